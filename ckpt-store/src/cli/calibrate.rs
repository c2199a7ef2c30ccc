//! `ckpt-store calibrate`: thresholds of this machine, measured.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use placement::state::Thresholds;
use protocol::places::Place;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::joining;
use crate::calibrate::experiment::{Experiment, Measured};
use crate::calibrate::load::{self, Resource};
use crate::monitor::preferences::{Calibration, calibration_path};
use crate::priority;

#[derive(Debug, clap::Args)]
pub(super) struct Calibrate {
    /// Data directory [default: that of `ckpt-store join`].
    #[arg(long)]
    data: Option<PathBuf>,
    /// Seconds for each of 30 measurements of each resource, per round.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// How often each measurement is made; the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Print the thresholds, but do not write them down.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Guest {
    #[arg(long, value_enum)]
    resource: Resource,
    #[arg(long)]
    seconds: u64,
    #[arg(long)]
    scratch: PathBuf,
    #[arg(long)]
    lowest: bool,
}

/// Measures both resources and writes the thresholds to the data directory.
pub(super) fn calibrate(args: &Calibrate) -> Result<ExitCode> {
    let lasting = Duration::try_from_secs_f64(args.seconds).context("--seconds")?;
    let data = joining::data_dir(args.data.clone(), Place::Store)?;
    fs::create_dir_all(&data).with_context(|| format!("data directory {}", data.display()))?;
    // Owner and guest have to want the same CPU.
    let mut cpu = CpuSet::new();
    cpu.set(0);
    sched_setaffinity(None::<Pid>, &cpu).context("staying on one CPU")?;
    let measure = |resource| -> Result<Measured> {
        let experiment = Experiment {
            resource,
            dir: data.clone(),
            lasting,
            rounds: args.rounds,
        };
        let mut err = std::io::stderr().lock();
        writeln!(
            err,
            "{resource:?}: owner's load, work lost beside an equal guest, beside one of lowest priority"
        )?;
        Ok(experiment.run(|load, [equal, lowest]| {
            // Fails only when nobody reads it.
            let _ = writeln!(
                err,
                "{:>6.0}% {:>7.1}% {:>7.1}%",
                load * 100.0,
                equal * 100.0,
                lowest * 100.0
            );
        })?)
    };
    let pair =
        |thresholds: Thresholds| Some([rounded(thresholds.first()), rounded(thresholds.second())]);
    let calibration = Calibration {
        cpu_thresholds: pair(measure(Resource::Cpu)?.thresholds),
        disk_thresholds: pair(measure(Resource::Disk)?.thresholds),
    };
    let text = toml::to_string(&calibration)?;
    std::io::stdout().write_all(text.as_bytes())?;
    if !args.dry_run {
        write(&calibration_path(&data), &text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A daemon that runs takes it over at its next reading: it must not see half of it.
fn write(path: &Path, text: &str) -> Result<()> {
    let temporary = path.with_extension("new");
    let head = "# Written by `ckpt-store calibrate`. What preferences.toml says outranks it.\n";
    fs::write(&temporary, format!("{head}{text}"))
        .and_then(|()| fs::rename(&temporary, path))
        .with_context(|| path.display().to_string())
}

fn rounded(share: f64) -> f64 {
    (share * 1000.0).round() / 1000.0
}

/// What `calibrate` runs beside the owner.
pub(super) fn guest(args: &Guest) -> Result<ExitCode> {
    if args.lowest {
        priority::stand_back()?;
    }
    load::guest(
        args.resource,
        Duration::from_secs(args.seconds),
        &args.scratch,
    )?;
    Ok(ExitCode::SUCCESS)
}
