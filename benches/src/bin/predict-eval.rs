//! Judges the predictors on traces in the plain format (`docs/research/traces.md`), and imports known sets
//! into it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use benches::predict_eval::{
    Evaluation, Limits, evaluate, first_days, model_from_others, report, speed, travelling_examples,
};
use benches::traces::{Trace, TraceSet, format, import};
use clap::Parser;
use placement::hazard::{Example, HazardModel};

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
    /// Write weights fitted on all the traces as Rust source, to be shipped
    #[arg(long, requires = "traces", value_name = "FILE")]
    write_weights: Option<PathBuf>,
    /// Judge only the forecasts of a grid in its first days
    #[arg(long, requires = "traces")]
    first_days: bool,
    /// Write prediction.md and img/ into this folder; otherwise only the summary is printed
    #[arg(long, value_name = "FOLDER")]
    write: Option<PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some([set, source, target]) = args.import.as_deref() {
        let set = <TraceSet as clap::ValueEnum>::from_str(set, true)
            .map_err(|error| anyhow::anyhow!("set {set:?}: {error}"))?;
        return import_set(set, Path::new(source), Path::new(target));
    }
    let folder = args.traces.context("no folder of traces given")?;
    let limits = Limits::default();
    let traces = format::traces_in(&folder)?
        .iter()
        .map(|folder| read(folder))
        .collect::<Result<Vec<_>>>()?;
    let examples: Vec<Vec<Example>> = traces
        .iter()
        .map(|trace| travelling_examples(trace, limits))
        .collect();
    if let Some(file) = args.write_weights {
        let model = HazardModel::default().fit(&examples.concat());
        let names: Vec<&str> = traces.iter().map(|trace| trace.name.as_str()).collect();
        std::fs::write(&file, weights_source(&model, &names))
            .with_context(|| format!("writing {}", file.display()))?;
        println!("written to {}", file.display());
        return Ok(());
    }
    let first_days: Vec<first_days::FirstDays> = traces
        .iter()
        .enumerate()
        .flat_map(|(index, trace)| {
            let foreign = model_from_others(&examples, index);
            first_days::AGES.map(|age| first_days::evaluate(trace, &foreign, age, limits))
        })
        .flatten()
        .collect();
    let first_days = first_days::section(&first_days);
    println!("{first_days}");
    if args.first_days {
        return Ok(());
    }
    let evaluate_one = |(index, trace): (usize, &Trace)| {
        eprintln!("{}: {} hosts", trace.name, trace.hosts.len());
        evaluate(trace, &model_from_others(&examples, index), limits)
    };
    let evaluations: Vec<Evaluation> = traces.iter().enumerate().map(evaluate_one).collect();
    println!("{}", report::summary(&evaluations));
    if let Some(folder) = args.write {
        report::write(&evaluations, &first_days, &speed::measure(), &folder)?;
        println!("written to {}", folder.join("prediction.md").display());
    }
    Ok(())
}

/// The source file of the shipped weights.
fn weights_source(model: &HazardModel, traces: &[&str]) -> String {
    let parameters = model.parameters();
    let mut source = format!(
        "//! Parameters of the shipped model, written by `predict-eval DIR --write-weights FILE`\n\
         //! from the traces (docs/research/traces.md) {}.\n\n\
         pub(super) const PARAMETERS_FROM_TRACES: [f64; {}] = [\n",
        traces.join(", "),
        parameters.len()
    );
    for parameter in parameters {
        source += &format!("    {parameter:?},\n");
    }
    source + "];\n"
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

fn read(folder: &Path) -> Result<Trace> {
    let raw = format::read(folder).with_context(|| format!("reading {}", folder.display()))?;
    Ok(Trace::new(raw))
}
