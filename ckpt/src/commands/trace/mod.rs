//! `ckpt trace`: describes a pool of machines.

mod text;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use command_line::time;
use study::{Counts, HostPast, Options, Pool, PoolDescription};
use traces::{RawTrace, Trace, format};

use super::render::Report;
use super::{Answer, done};
use ckpt_agent::report::{ExitStatus, Failure};

/// What can be done with traces.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Describe a pool of machines: availability, failures, daily pattern, fitted distributions.
    ///
    /// Also shows times between failures, lengths of periods, the weekly pattern, causes of failures, and
    /// failures that happen together.
    #[command(
        after_help = "Example:\n  ckpt-store history -o lab/$(hostname)     on each machine; then, where all these folders are:\n  ckpt trace describe lab\n  ckpt trace describe lab --unavailable gone --utc-offset -5 --plots plots\n\nExit status: see ckpt --help; 4 when there is no trace."
    )]
    Describe(DescribeArgs),
}

/// Options of `trace describe`.
#[derive(Debug, Args)]
pub struct DescribeArgs {
    /// A trace (docs/research/traces.md) or a folder of traces; all of them are one pool.
    #[arg(required = true, value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// Which states count as unavailable.
    #[arg(long, value_enum, default_value = "guest")]
    pub unavailable: Unavailable,
    /// For fits, failures at most this far apart form one group; 1s to 1h.
    #[arg(long, default_value = "60s", value_parser = within, value_name = "TIME")]
    pub within: Duration,
    /// Time zone of daily and weekly patterns, in hours from UTC, such as 1 or -5.
    #[arg(long, default_value_t = 0, value_name = "HOURS", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-12..=14))]
    pub utc_offset: i32,
    /// Folder to write plots to, as SVG files.
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
}

/// What counts as unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Unavailable {
    /// Every state that stops a guest: owner's load (S3), too little memory (S4), machine gone (S5).
    Guest,
    /// Only the machine gone (S5).
    Gone,
}

fn within(text: &str) -> Result<Duration, String> {
    let time = time::parse(text)?;
    let range = Duration::from_secs(1)..=Duration::from_secs(3600);
    range
        .contains(&time)
        .then_some(time)
        .ok_or_else(|| "out of range: 1s to 1h".to_owned())
}

/// The description, and the plots that were written.
struct Described {
    pool: PoolDescription,
    plots: Vec<PathBuf>,
}

impl Report for Described {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        text::write(&self.pool, out)?;
        if let Some(dir) = self.plots.first().and_then(|plot| plot.parent()) {
            writeln!(out, "\n{} plots in {}", self.plots.len(), dir.display())?;
        }
        Ok(())
    }

    fn json(&self) -> String {
        super::render::to_json(&self.pool)
    }
}

/// Runs a command for traces.
pub(super) fn run(command: TraceCommand) -> Result<Answer, Failure> {
    let TraceCommand::Describe(args) = command;
    let raw = read(&args.dirs)?;
    let trace = Trace::new(raw);
    let hosts: Vec<HostPast<'_>> = trace
        .hosts
        .iter()
        .map(|host| HostPast {
            name: &host.name,
            site: &host.site,
            timeline: &host.timeline,
        })
        .collect();
    let options = Options {
        name: trace.name.clone(),
        about: trace.description.clone(),
        resolution_seconds: u64::from(trace.resolution_seconds),
        counts: match args.unavailable {
            Unavailable::Guest => Counts::Guest,
            Unavailable::Gone => Counts::Gone,
        },
        group_within: args.within.as_secs(),
        utc_offset: args.utc_offset,
    };
    let pool = Pool::new(&hosts, options);
    if pool.is_empty() {
        let message = format!("nothing is known of any host of trace {:?}", trace.name);
        return Err(Failure::new(ExitStatus::NotFound, message).next(A_TRACE));
    }
    let plots = match &args.plots {
        Some(dir) => plot(&pool, dir)?,
        None => Vec::new(),
    };
    done(Described {
        pool: pool.describe(),
        plots,
    })
}

/// What a trace is, for whoever named something else.
const A_TRACE: &str = "a trace is a folder with trace.csv, as ckpt-store history -o writes one";

/// Reads all traces as one pool.
fn read(dirs: &[PathBuf]) -> Result<RawTrace, Failure> {
    let failed = |cause: anyhow::Error| {
        Failure::new(ExitStatus::LocalIo, format!("{cause:#}")).next(A_TRACE)
    };
    let mut whole: Option<RawTrace> = None;
    for dir in dirs {
        if !dir.is_dir() {
            let message = format!("{} is not a folder", dir.display());
            return Err(Failure::new(ExitStatus::NotFound, message).next(A_TRACE));
        }
        let found = format::traces_in(dir).map_err(|cause| {
            Failure::new(ExitStatus::NotFound, format!("{cause:#}")).next(A_TRACE)
        })?;
        for folder in found {
            let raw = format::read(&folder).map_err(failed)?;
            let Some(pool) = &mut whole else {
                whole = Some(raw);
                continue;
            };
            pool.join(raw).map_err(|host| {
                let folder = folder.display();
                let message = format!("host {host:?} of {folder} is in another trace already");
                Failure::new(ExitStatus::Usage, message).next("one folder for each host")
            })?;
        }
    }
    whole.ok_or_else(|| Failure::new(ExitStatus::NotFound, "no trace".to_owned()).next(A_TRACE))
}

fn plot(pool: &Pool, dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |path: &Path, cause: io::Error| Failure::local(path.display(), &cause);
    fs::create_dir_all(dir).map_err(|cause| failed(dir, cause))?;
    let mut written = Vec::new();
    for (name, figure) in pool.figures() {
        let path = dir.join(format!("{name}.svg"));
        fs::write(&path, figure.to_svg()).map_err(|cause| failed(&path, cause))?;
        written.push(path);
    }
    Ok(written)
}
