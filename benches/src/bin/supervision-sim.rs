//! Compares, by simulation over availability traces, jobs under the supervisor of `ckpt run` with jobs that
//! take checkpoints at Daly's interval and are killed if the owner of their machine stays. Prints the tables
//! of `benches/tables/supervision.md`.

use std::path::PathBuf;
use std::thread::available_parallelism;

use anyhow::{Context, Result, ensure};
use benches::placement_sim::Case;
use benches::predict_eval::{Limits, model_from_others, travelling_examples};
use benches::supervision_sim::{study, tables};
use benches::traces::{Trace, format};
use clap::Parser;

/// Compare supervised jobs with periodic checkpoints by simulation over every trace in a folder and the
/// model of Grid'5000.
#[derive(Parser)]
#[command(name = "supervision-sim")]
struct Args {
    /// A trace, or a folder of traces
    traces: PathBuf,
    /// Only cases whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Grids to draw from each case
    #[arg(long, default_value_t = 200)]
    grids: usize,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let threads = available_parallelism().map_or(1, usize::from);
    let folders = format::traces_in(&args.traces)?;
    let traces = folders.iter().map(|folder| {
        let table =
            format::read(folder).with_context(|| format!("reading {}", folder.display()))?;
        Ok(Trace::new(table))
    });
    let traces = traces.collect::<Result<Vec<Trace>>>()?;
    let examples = traces
        .iter()
        .map(|trace| travelling_examples(trace, Limits::default()));
    let examples: Vec<_> = examples.collect();
    let mut cases = vec![Case::of_grid5000()];
    for (index, trace) in traces.iter().enumerate() {
        let model = model_from_others(&examples, index);
        cases.push(Case::of_guests(trace, &model));
        cases.extend(Case::of_shared_hosts(trace, &model));
    }
    let wanted = |case: &&Case| {
        args.only
            .as_ref()
            .is_none_or(|name| case.name.contains(name))
    };
    let mut found = Vec::new();
    for case in cases.iter().filter(wanted) {
        eprintln!("{} ...", case.name);
        match study(case, args.grids, threads) {
            Some(one) => found.push(one),
            None => eprintln!(
                "{}: no moment with enough hosts about which something is known",
                case.name
            ),
        }
    }
    ensure!(!found.is_empty(), "nothing to simulate");
    print!("{}", tables(&found));
    Ok(())
}
