//! Processor time and memory of processes, from `/proc`.

use anyhow::{Context, Result};

/// Clock ticks per second of `/proc/PID/stat` (`sysconf(_SC_CLK_TCK)`), 100 on every Linux.
const TICKS: f64 = 100.0;

/// Processor seconds of a process and of its children that have ended and were waited for.
///
/// # Errors
/// When there is no such process.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in brackets may hold blanks; utime, stime, cutime and cstime are 12th after it.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = fields.get(11..15).context("a short stat line")?;
    let ticks = ticks.iter().map(|ticks| ticks.parse::<f64>());
    Ok(ticks.sum::<Result<f64, _>>()? / TICKS)
}

/// Resident memory of a process, in MiB.
///
/// # Errors
/// When there is no such process.
pub fn memory_mib(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.context("no such line")?.trim().trim_end_matches(" kB");
    Ok(kib.trim().parse::<f64>()? / 1024.0)
}
