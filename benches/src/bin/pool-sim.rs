//! Simulates clusters whose schedulers know more or less of which processors are available. Prints tables 6
//! and 7 of Iosup et al. (2007) with our results beside the paper's.

use std::path::PathBuf;
use std::thread::available_parallelism;

use anyhow::{Context, Result, ensure};
use benches::pool_sim::{
    Pool, of_grid5000, of_trace, on_threads, read_jobs, report, simulate, trace_of,
};
use benches::traces::{Trace, format};
use clap::Parser;
use sim::batch::Workload;

/// Compare what schedulers know of their clusters: SA, KA, AMA, HMA.
#[derive(Parser)]
#[command(name = "pool-sim")]
struct Args {
    /// A trace whose sites are the clusters [default: made up after Grid'5000]
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Processors of each host of the trace
    #[arg(long, default_value_t = 1, requires = "trace")]
    processors: u32,
    /// Jobs in the Standard Workload Format [default: made up]
    #[arg(long)]
    jobs: Option<PathBuf>,
    /// Seeds, from 1 on, of what is made up
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Days of the pool that is made up
    #[arg(long, default_value_t = sim::grid5000::detailed::STUDY_DAYS, value_parser = clap::value_parser!(u64).range(1..))]
    days: u64,
    /// Jobs that are made up: processor time that they need, over what is available
    #[arg(long, default_value_t = 0.2)]
    load: f64,
    /// Mean number of jobs that come together
    #[arg(long, default_value_t = 45.0)]
    batch: f64,
    /// Share of jobs with one processor
    #[arg(long, default_value_t = 0.6)]
    single: f64,
    /// Most processors of a job, as a share of its cluster's
    #[arg(long, default_value_t = 0.5)]
    largest: f64,
    /// Median time of a job, seconds
    #[arg(long, default_value_t = 800.0)]
    median: f64,
    /// Standard deviation of its logarithm
    #[arg(long, default_value_t = 1.5)]
    spread: f64,
    /// Only write the made-up pool of the first seed as a trace to this folder
    #[arg(long, value_name = "DIR", conflicts_with = "trace")]
    write_trace: Option<PathBuf>,
}

/// Longest run time of a synthetic job, in seconds.
const JOB_SECONDS_MAX: f64 = 5.0 * 86_400.0;

fn main() -> Result<()> {
    let args = Args::parse();
    ensure!(
        args.load > 0.0 && args.load < 1.0,
        "--load: above 0 and below 1"
    );
    ensure!(args.batch >= 1.0, "--batch: at least 1");
    ensure!((0.0..=1.0).contains(&args.single), "--single: from 0 to 1");
    ensure!(
        args.largest > 0.0 && args.largest <= 1.0,
        "--largest: above 0, at most 1"
    );
    ensure!(
        args.median >= 1.0 && args.spread >= 0.0,
        "--median: at least 1; --spread: at least 0"
    );
    if let Some(folder) = &args.write_trace {
        format::write(&trace_of(1, args.days), folder)?;
        println!("written to {}", folder.display());
        return Ok(());
    }
    let given = args.trace.as_ref().map(|folder| -> Result<Pool> {
        let raw = format::read(folder).with_context(|| format!("reading {}", folder.display()))?;
        Ok(of_trace(&Trace::new(raw), args.processors))
    });
    let given = given.transpose()?;
    let workload = Workload {
        load: args.load,
        batch: args.batch,
        single: args.single,
        largest: args.largest,
        median: args.median,
        spread: args.spread,
        longest: JOB_SECONDS_MAX,
    };
    // With a given trace and given jobs, nothing depends on the seed.
    let last = if given.is_some() && args.jobs.is_some() {
        1
    } else {
        args.seeds
    };
    let seeds: Vec<u64> = (1..=last).collect();
    let threads = available_parallelism().map_or(1, usize::from);
    let outcomes = on_threads(&seeds, threads, |seed| -> Result<_> {
        let mut pool = given
            .clone()
            .unwrap_or_else(|| of_grid5000(seed, args.days));
        match &args.jobs {
            Some(path) => {
                let read = read_jobs(path, &mut pool)?;
                eprintln!("{}: {read:?}", path.display());
            }
            None => pool.make_jobs(&workload, seed),
        }
        Ok(simulate(&pool))
    });
    let outcomes = outcomes.into_iter().collect::<Result<Vec<_>>>()?;
    print!("{}", report(&outcomes));
    Ok(())
}
