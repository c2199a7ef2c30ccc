//! `ckpt watch`: saves each directory that a program puts in place.

use std::io::{self, Write};
use std::sync::Arc;

use crate::commands::args::options::Global;
use crate::commands::args::run::WatchArgs;
use crate::commands::connect::connect;
use crate::commands::render::{self, Report, json_of_self, one_line};
use crate::commands::run::{Connection, save_options};
use crate::commands::{Answer, done, progress};
use ckpt_agent::cancel::Cancel;
use ckpt_agent::report::{Failure, SaveReport};
use runner::SavePlan;
use runner::completeness::Completeness;
use runner::watching::{WatchEvent, WatchOrders, WatchReport, WatchedSave, watch};

/// Why a directory is passed over, and what to do about it.
const NO_SIGN: &str = "not saved: nothing shows that it is whole; to save it, name a file that the program writes \
    last: --marker NAME";

/// Watches until a signal ends it.
pub(crate) async fn run(
    global: &Global,
    args: WatchArgs,
    cancel: Cancel,
) -> Result<Answer, Failure> {
    let is_json = global.json;
    let orders = WatchOrders {
        save: SavePlan::new(args.job.named()?, save_options(args.save)?, false)?,
        dir: args.dir,
        completeness: Completeness {
            markers: args.marker,
            unless: args.unless,
            in_place: args.in_place,
        },
        once: args.once,
    };
    let observer = progress::observer(global.progress, "saving");
    let connected = connect(global).await?;
    let reach = Arc::new(Connection::new(global.clone(), connected));
    let report = |event| {
        // Fails when the reader has closed its end. The saves matter more.
        let _ = write_event(&event, is_json);
    };
    let watched = watch(&orders, reach.as_ref(), &observer, cancel, report).await;
    reach.close().await;
    done(watched?)
}

fn write_event(event: &WatchEvent, is_json: bool) -> io::Result<()> {
    match event {
        WatchEvent::Saved(save) => {
            let mut out = io::stdout().lock();
            if is_json {
                writeln!(out, "{}", render::to_json(save))?;
            } else {
                let WatchedSave { name, saved } = &**save;
                write!(out, "{}: ", one_line(name))?;
                SaveReport::human(saved, &mut out)?;
            }
            out.flush()
        }
        WatchEvent::PassedOver { name } => {
            writeln!(io::stderr(), "ckpt: {}: {}", one_line(name), NO_SIGN)
        }
        WatchEvent::Failed {
            name,
            failure,
            wait,
        } => writeln!(
            io::stderr(),
            "ckpt: {} is not saved: {}; it is tried again in {} s",
            one_line(name),
            one_line(&failure.message),
            wait.as_secs()
        ),
    }
}

impl Report for WatchReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let saves = usize::try_from(self.saves).unwrap_or(usize::MAX);
        let saved = render::count(saves, "checkpoint");
        writeln!(out, "job {}: {saved} saved", self.job)?;
        for name in &self.passed_over {
            writeln!(out, "note: {}: {}", one_line(name), NO_SIGN)?;
        }
        Ok(())
    }

    json_of_self!();
}
