//! Judges the predictors on traces in the plain format (`docs/traces.md`), and imports known sets
//! into it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use benches::predict_eval::{Evaluation, Limits, evaluate, report, speed};
use benches::traces::{Trace, TraceSet, format, import};
use clap::Parser;

/// Judge the predictors on every trace in a folder, or import a known set as a trace.
#[derive(Parser)]
#[command(name = "predict-eval")]
struct Args {
    /// A trace, or a folder of traces
    #[arg(required_unless_present = "import", conflicts_with = "import")]
    traces: Option<PathBuf>,
    /// Import a known set: its name, the folder it is in, and the trace to write
    #[arg(long, num_args = 3, value_names = ["SET", "SOURCE", "TRACE"])]
    import: Option<Vec<String>>,
    /// Folder for prediction.md and img/
    #[arg(long, default_value = "docs")]
    docs: PathBuf,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some([set, source, target]) = args.import.as_deref() {
        let set = <TraceSet as clap::ValueEnum>::from_str(set, true)
            .map_err(|error| anyhow::anyhow!("set {set:?}: {error}"))?;
        return import_set(set, Path::new(source), Path::new(target));
    }
    let folder = args.traces.context("no folder of traces given")?;
    let evaluations: Vec<Evaluation> = traces_in(&folder)?
        .iter()
        .map(|trace| evaluate_trace(trace))
        .collect::<Result<_>>()?;
    println!("{}", report::summary(&evaluations));
    report::write(&evaluations, speed::measure(), &args.docs)?;
    println!("written to {}", args.docs.join("prediction.md").display());
    Ok(())
}

fn import_set(set: TraceSet, source: &Path, target: &Path) -> Result<()> {
    let trace = import(set, source).with_context(|| format!("importing {}", source.display()))?;
    format::write(&trace, target)?;
    println!(
        "{}: {} hosts written to {}",
        trace.name,
        trace.hosts.len(),
        target.display()
    );
    Ok(())
}

/// The folder itself if it is a trace, else the traces in it by name.
fn traces_in(folder: &Path) -> Result<Vec<PathBuf>> {
    if format::is_trace(folder) {
        return Ok(vec![folder.to_owned()]);
    }
    let mut traces = Vec::new();
    for entry in folder
        .read_dir()
        .with_context(|| format!("reading {}", folder.display()))?
    {
        let path = entry?.path();
        if format::is_trace(&path) {
            traces.push(path);
        }
    }
    traces.sort();
    if traces.is_empty() {
        bail!(
            "no trace in {}: a trace is a folder with trace.csv, see docs/traces.md; \
             --import makes one",
            folder.display()
        );
    }
    Ok(traces)
}

fn evaluate_trace(folder: &Path) -> Result<Evaluation> {
    let raw = format::read(folder).with_context(|| format!("reading {}", folder.display()))?;
    eprintln!("{}: {} hosts", raw.name, raw.hosts.len());
    Ok(evaluate(&Trace::new(raw), Limits::default()))
}
