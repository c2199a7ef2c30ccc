//! Compares ways of choosing storage hosts by simulation over availability traces, and writes
//! `benches/tables/placement.md` if asked to; `benches/tables/placement-NAME.md` with `--only NAME`.

use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use anyhow::{Context, Result, ensure};
use benches::placement_sim::{Case, Effort, report, study, versions_study};
use benches::predict_eval::{Limits, model_from_others, travelling_examples};
use benches::traces::{Trace, format};
use clap::Parser;

/// Compare ways of choosing storage hosts by simulation over every trace in a folder and the model of
/// Grid'5000.
#[derive(Parser)]
#[command(name = "placement-sim")]
struct Args {
    /// A trace, or a folder of traces
    traces: PathBuf,
    /// Only cases whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Grids to draw from each case
    #[arg(long, default_value_t = 300)]
    grids: usize,
    /// Of these, grids for the smaller tables
    #[arg(long, default_value_t = 60)]
    variant_grids: usize,
    /// Of these, grids for versions that store what changed, the longest part; all without it
    #[arg(long)]
    version_grids: Option<usize>,
    /// Only versions that store what changed, against whole ones (into placement-NAME-versions.md)
    #[arg(long, requires = "only", conflicts_with = "version_grids")]
    versions: bool,
    /// Write placement.md, or placement-NAME.md with --only NAME, into this folder
    #[arg(long)]
    write: Option<PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let effort = Effort {
        grids: args.grids,
        variant_grids: args.variant_grids,
        version_grids: args.version_grids.unwrap_or(args.grids),
        threads: available_parallelism().map_or(1, usize::from),
    };
    let mut cases = vec![Case::of_grid5000()];
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
    for (index, trace) in traces.iter().enumerate() {
        cases.extend(Case::of_trace(trace, &model_from_others(&examples, index)));
    }
    let wanted = |case: &Case| {
        args.only
            .as_ref()
            .is_none_or(|name| case.name.contains(name))
    };
    let mut studies = Vec::new();
    cases.retain(wanted);
    ensure!(!cases.is_empty(), "no case has this name");
    for case in cases {
        let name = case.name.clone();
        eprintln!("{name} ...");
        if args.versions {
            write_versions(&args, &case, effort)?;
            continue;
        }
        match study(case, effort) {
            Some(study) => {
                println!("{}", report::summary(&study));
                studies.push(study);
            }
            None => eprintln!("{name}: no moment with enough hosts about which something is known"),
        }
    }
    if args.versions {
        return Ok(());
    }
    ensure!(!studies.is_empty(), "nothing to simulate");
    if let Some(folder) = &args.write {
        let only = args.only.as_ref();
        let name = only.map_or_else(String::new, |name| format!("-{}", as_file_name(name)));
        let file = folder.join(format!("placement{name}.md"));
        report::write(&studies, &file, &command(&args))?;
        println!("written to {}", file.display());
    }
    Ok(())
}

/// Writes the table of versions of a case alone.
fn write_versions(args: &Args, case: &Case, effort: Effort) -> Result<()> {
    let compared = versions_study(case, effort).context("no share of the image")?;
    let folder = args.write.as_deref().unwrap_or(Path::new("."));
    let file = folder.join(format!(
        "placement-{}-versions.md",
        as_file_name(&case.name)
    ));
    report::write_versions(&case.name, effort.grids, &compared, &file, &command(args))?;
    println!("written to {}", file.display());
    Ok(())
}

fn as_file_name(name: &str) -> String {
    name.replace([' ', ',', '/'], "-")
}

/// The command that makes the same tables.
fn command(args: &Args) -> String {
    let only = args.only.as_ref();
    let only = only.map_or_else(String::new, |name| format!(" --only {name:?}"));
    let grids = match args.versions {
        true => format!("--grids {} --versions", args.grids),
        false => format!(
            "--grids {} --variant-grids {}{}",
            args.grids,
            args.variant_grids,
            args.version_grids
                .map_or_else(String::new, |n| format!(" --version-grids {n}"))
        ),
    };
    format!(
        "cargo run --release -p benches --bin placement-sim -- DIR {grids}{only} --write benches/tables"
    )
}
