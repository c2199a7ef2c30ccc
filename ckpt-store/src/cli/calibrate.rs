//! `ckpt-store calibrate`: measures the thresholds of this machine.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use placement::state::Thresholds;
use protocol::places::UsualDir;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::joining;
use crate::calibrate::experiment::{Experiment, Measured};
use crate::calibrate::guest::GuestPlace;
use crate::calibrate::load::{self, Resource};
use crate::calibrate::{Point, threshold};
use crate::monitor::preferences::{Calibration, calibration_path};
use crate::priority;

#[derive(Debug, clap::Args)]
pub(super) struct Calibrate {
    /// Data directory [default: that of `ckpt-store join`].
    #[arg(long)]
    data: Option<PathBuf>,
    /// Seconds for each of 50 measurements of the CPU and 30 of the disk, per round.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// How many times each measurement is made; the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Print the thresholds without writing them to the data directory.
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
    #[arg(long)]
    own_session: bool,
}

/// Measures CPU and disk, and writes the thresholds to the data directory.
pub(super) fn calibrate(args: &Calibrate) -> Result<ExitCode> {
    let lasting = Duration::try_from_secs_f64(args.seconds).context("--seconds")?;
    let data = joining::data_dir(args.data.clone(), UsualDir::Store)?;
    fs::create_dir_all(&data).with_context(|| format!("data directory {}", data.display()))?;
    // Owner and guest have to compete for the same CPU.
    let mut cpu = CpuSet::new();
    cpu.set(0);
    sched_setaffinity(None::<Pid>, &cpu).context("staying on one CPU")?;
    let measure = |resource| measure(resource, &data, lasting, args.rounds);
    let cpu = measure(Resource::Cpu)?;
    let disk = measure(Resource::Disk)?;
    let pair =
        |thresholds: Thresholds| Some([rounded(thresholds.first()), rounded(thresholds.second())]);
    let calibration = Calibration {
        cpu_thresholds: pair(cpu.thresholds),
        disk_thresholds: pair(disk.thresholds),
    };
    let text = format!("{}{}", reach(&cpu), toml::to_string(&calibration)?);
    std::io::stdout().write_all(text.as_bytes())?;
    if !args.dry_run {
        write(&calibration_path(&data), &text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures one resource, and prints a table to standard error.
fn measure(resource: Resource, data: &Path, lasting: Duration, rounds: usize) -> Result<Measured> {
    let experiment = Experiment {
        resource,
        dir: data.to_owned(),
        lasting,
        rounds,
    };
    let mut err = std::io::stderr().lock();
    let guests: Vec<String> = experiment
        .guests()
        .iter()
        .map(ToString::to_string)
        .collect();
    writeln!(
        err,
        "{resource:?}: owner's load; work lost beside {}",
        guests.join(", ")
    )?;
    Ok(experiment.run(|row| {
        let losses = row.losses.iter().map(|loss| match loss {
            Some(loss) => format!(" {:>7.1}%", loss * 100.0),
            None => format!(" {:>8}", "-"),
        });
        let losses: String = losses.collect();
        // An error means that nothing reads the output.
        let _ = writeln!(err, "{:>6.0}%{losses}", row.load * 100.0);
    })?)
}

/// Comment lines that state from which load on the owner loses work to a guest at nice 19, for each place
/// of the guest.
fn reach(measured: &Measured) -> String {
    let mut text = String::from(
        "# Load of the owner from which on a guest at nice 19 costs 5% of the owner's work, by where the\n\
         # guest is. Nice 19 reaches only as far as its autogroup or control group; Th2 is the first one.\n",
    );
    let mut line = |place: GuestPlace, what: &str| text.push_str(&format!("#   {place}: {what}\n"));
    let from = |points: &[Point]| format!("{:.3}", rounded(threshold(points)));
    line(GuestPlace::Same, &from(&measured.lowest));
    for elsewhere in &measured.elsewhere {
        match &elsewhere.losses {
            Ok(points) => line(elsewhere.place, &from(points)),
            Err(why) => line(elsewhere.place, &format!("not measured: {why}")),
        }
    }
    text
}

/// Replaces the file in one step, because a running daemon reads it and must not see half of it.
fn write(path: &Path, text: &str) -> Result<()> {
    let temporary = path.with_extension("new");
    let head = "# Written by `ckpt-store calibrate`. Values in preferences.toml replace these.\n";
    fs::write(&temporary, format!("{head}{text}"))
        .and_then(|()| fs::rename(&temporary, path))
        .with_context(|| path.display().to_string())
}

fn rounded(share: f64) -> f64 {
    (share * 1000.0).round() / 1000.0
}

/// Runs the guest beside which `calibrate` measures.
pub(super) fn guest(args: &Guest) -> Result<ExitCode> {
    if args.own_session {
        rustix::process::setsid().context("a session of its own")?;
    }
    if args.lowest {
        priority::stand_back()?;
    }
    // The byte reports that the guest works; the measuring process waits for it.
    std::io::stdout().write_all(b"\n")?;
    std::io::stdout().flush()?;
    load::guest(
        args.resource,
        Duration::from_secs(args.seconds),
        &args.scratch,
    )?;
    Ok(ExitCode::SUCCESS)
}
