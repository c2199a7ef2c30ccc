//! Measures what the monitor costs the machine that it watches.
//!
//! `monitor-cost [SAMPLES]` fills a history to its bound and starts a monitor on it. Then it takes SAMPLES
//! samples (2000 by default) of this machine one after the other, without a guest and with one, whose
//! processes the monitor reads. Printed are the CPU time of a sample, as a share of the six seconds between
//! two samples, and the memory that the monitor added to the process.

use std::env;
use std::fs;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use ckpt_store::core::traffic::Days;
use ckpt_store::monitor::history::{self, Run, States};
use ckpt_store::monitor::outlook::Predictor;
use ckpt_store::monitor::{LOOK_PERIOD, Monitor, SAMPLE_PERIOD};
use machine::{Machine, ProcessId};
use placement::state::AvailabilityState;

/// Number of records in a history that has reached its bound of 4 MiB.
const RECORDS: u64 = (4 << 20) / 24;

/// Length of each run of that history, in seconds: a machine whose state changed every minute for months.
const RUN_SECONDS: u64 = 60;

fn main() -> Result<()> {
    let samples: u32 = env::args()
        .nth(1)
        .map_or(Ok(2000), |n| n.parse())
        .context("the number of samples")?;
    let dir = tempfile::tempdir()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    fill_history(dir.path(), now)?;
    let before = resident_bytes()?;
    let began = Instant::now();
    let monitor = Monitor::open(dir.path(), Machine::here(), true, Predictor::Hazard, now)?;
    println!(
        "history of {RECORDS} runs read in {:.0} ms",
        began.elapsed().as_secs_f64() * 1e3
    );
    let plain = cpu_per_sample(&monitor, samples, now)?;
    let pid = i32::try_from(std::process::id())?;
    let own = ProcessId::of(&Machine::here(), pid).context("/proc")?;
    let _seat = monitor.admit(own, 0)?;
    let with_guest = cpu_per_sample(&monitor, samples, now + u64::from(samples) * 6)?;
    let looks = cpu_per_look(&monitor, samples, now + u64::from(samples) * 12)?;
    println!(
        "a look beside a guest: {:.3} ms of CPU, {:.4}% of one CPU (target: below 0.2%)",
        looks * 1e3,
        100.0 * looks / LOOK_PERIOD.as_secs_f64()
    );
    let processes = fs::read_dir("/proc")?.flatten();
    let processes = processes
        .filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit())
        .count();
    for (what, seconds) in [("no guest", plain), ("a guest", with_guest)] {
        println!(
            "{what}: {:.3} ms of CPU per reading, {:.4}% of one CPU (target: below 1%)",
            seconds * 1e3,
            100.0 * seconds / SAMPLE_PERIOD.as_secs_f64()
        );
    }
    println!("processes on this machine: {processes}");
    let added = resident_bytes()?.saturating_sub(before);
    println!(
        "memory added by monitor and history: {:.1} MiB (target: below 16 MiB)",
        added as f64 / (1 << 20) as f64
    );
    Ok(())
}

fn fill_history(dir: &Path, now: u64) -> Result<()> {
    let busy = States {
        guest: AvailabilityState::Busy,
        ..States::CALM
    };
    let start = now - RECORDS * RUN_SECONDS;
    let runs: Vec<Run> = (0..RECORDS)
        .map(|i| Run {
            span: start + i * RUN_SECONDS..start + (i + 1) * RUN_SECONDS,
            states: Some(if i % 2 == 0 { States::CALM } else { busy }),
            cpu: 0.2,
            disk: 0.0,
        })
        .collect();
    history::write(dir, &runs)?;
    Ok(())
}

fn cpu_per_sample(monitor: &Monitor, samples: u32, from: u64) -> Result<f64> {
    let before = cpu_seconds()?;
    for i in 1..=u64::from(samples) {
        monitor.sample(from + 6 * i, 1 << 40, &Days::default());
    }
    Ok((cpu_seconds()? - before) / f64::from(samples.max(1)))
}

fn cpu_per_look(monitor: &Monitor, looks: u32, from: u64) -> Result<f64> {
    let before = cpu_seconds()?;
    for i in 1..=u64::from(looks) {
        monitor.read_for_guests(from + i);
    }
    Ok((cpu_seconds()? - before) / f64::from(looks.max(1)))
}

/// CPU time of this process, in seconds.
fn cpu_seconds() -> Result<f64> {
    // This file has nanoseconds, where `stat` has only ticks.
    let text = fs::read_to_string("/proc/self/schedstat")?;
    let nanoseconds: f64 = text.split(' ').next().unwrap_or_default().parse()?;
    Ok(nanoseconds / 1e9)
}

fn resident_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find(|line| line.starts_with("VmRSS:"));
    let kib: u64 = line
        .and_then(|line| line.split_whitespace().nth(1))
        .context("VmRSS")?
        .parse()?;
    Ok(kib << 10)
}
