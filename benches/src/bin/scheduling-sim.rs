//! Compares rules for choosing a job's host by simulation over availability traces, also in FALCON's setting,
//! and AVAM's strategies on simulated machines. Prints tables of `benches/tables/scheduling.md`.

use std::path::PathBuf;
use std::thread::available_parallelism;

use anyhow::{Context, Result};
use benches::placement_sim::Case;
use benches::predict_eval::{Limits, model_from_others, travelling_examples};
use benches::scheduling_sim::{
    KEEPINGS, avam_table, by_length, idle_table, paper, paper_table, sensitivity_tables, shorter,
    study, table,
};
use benches::traces::{Trace, format};
use clap::Parser;

/// Compare ways of choosing a job's host by simulation over every trace in a folder and the model of
/// Grid'5000.
#[derive(Parser)]
#[command(name = "scheduling-sim")]
struct Args {
    /// A trace, or a folder of traces; without it AVAM's experiments alone
    traces: Option<PathBuf>,
    /// Only cases whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Grids to draw from each case
    #[arg(long, default_value_t = 100)]
    grids: usize,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(folder) = &args.traces {
        let cases = cases(folder)?;
        let wanted = |case: &&Case| {
            let name = args.only.as_ref();
            name.is_none_or(|name| case.name.contains(name))
        };
        let cases: Vec<&Case> = cases.iter().filter(wanted).collect();
        print(&cases, args.grids);
    }
    println!("{}", avam_table());
    println!("{}", idle_table());
    print!("{}", sensitivity_tables());
    Ok(())
}

fn print(cases: &[&Case], grids: usize) {
    let threads = available_parallelism().map_or(1, usize::from);
    let mut found = Vec::new();
    for case in cases {
        eprintln!("{} ...", case.name);
        found.extend(KEEPINGS.map(|keeping| study(case, grids, keeping, None, threads)));
    }
    println!("{}", table(&found));
    println!("| trace | rule | jobs | unscheduled | failed starts | finished | makespan / work |");
    println!("|---|---|---|---|---|---|---|");
    let of_paper = |case: &&Case| (case.name.clone(), paper(case, grids, threads));
    let found: Vec<_> = cases.iter().map(of_paper).collect();
    for (name, found) in &found {
        print!("{}", paper_table(name, found));
    }
    println!("\n{}\n{}", by_length(&found), shorter(&found));
}

fn cases(folder: &std::path::Path) -> Result<Vec<Case>> {
    let folders = format::traces_in(folder)?;
    let traces = folders.iter().map(|folder| {
        let table =
            format::read(folder).with_context(|| format!("reading {}", folder.display()))?;
        Ok(Trace::new(table))
    });
    let traces = traces.collect::<Result<Vec<Trace>>>()?;
    let examples: Vec<_> = traces
        .iter()
        .map(|trace| travelling_examples(trace, Limits::default()))
        .collect();
    let mut cases = vec![Case::of_grid5000()];
    for (index, trace) in traces.iter().enumerate() {
        let model = model_from_others(&examples, index);
        cases.push(Case::of_guests(trace, &model));
    }
    Ok(cases)
}
