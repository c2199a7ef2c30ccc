//! The choice of hosts, and the advice on checkpoint intervals, as text.

use std::io::{self, Write};

use super::{Report, Table, bytes, json_of_self, one_line, write_silent};
use ckpt_agent::agent::YEAR_SECONDS;
use ckpt_agent::report::{AdviseReport, PlacedHost, PlacementReport, ReserveReason};

impl Report for PlacementReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new(&[
            "",
            "HOST",
            "SITE",
            "MACHINE",
            "DISK",
            "RATE",
            "STAYS",
            "READABLE",
            "CORR",
            "J WITH",
            "J WITHOUT",
        ]);
        for host in &self.hosts {
            table.row(row(host));
        }
        table.write(out)?;
        writeln!(
            out,
            "job {}: {} on the hosts marked *: probability {} that it can be restored when needed; stored in about {}, \
             read back in about {}",
            self.job,
            self.redundancy,
            share(self.reliability),
            duration(self.store_seconds),
            duration(self.restore_seconds),
        )?;
        writeln!(
            out,
            "J is cost minus benefit in seconds, lower is better; the job's machine fails \
             before the next checkpoint with probability {}",
            share(self.compute_fails)
        )?;
        for note in &self.notes {
            writeln!(out, "note: {}", one_line(note))?;
        }
        write_silent(out, &self.silent)
    }

    json_of_self!();
}

const fn reserve(reason: ReserveReason) -> &'static str {
    match reason {
        ReserveReason::NoRoom => "no room",
        ReserveReason::Refuses => "takes none now",
        ReserveReason::ComputeHost => "the job runs here",
    }
}

fn row(host: &PlacedHost) -> Vec<String> {
    let none = || "-".to_owned();
    let number = |value: Option<f64>| value.map_or_else(none, |value| format!("{value:.2}"));
    let assumed = if host.measured { "" } else { "?" };
    vec![
        if host.chosen { "*" } else { "" }.to_owned(),
        host.name.clone(),
        host.site.clone().unwrap_or_else(none),
        host.machine.clone().unwrap_or_else(none),
        host.reserve
            .map(|reason| reserve(reason).to_owned())
            .or_else(|| host.disk.clone())
            .unwrap_or_else(none),
        format!("{}/s{assumed}", bytes(host.bytes_per_second as u64)),
        host.stays.map_or_else(none, share),
        share(host.readable),
        format!("{:.2}", host.correlation),
        number(host.objective_with),
        number(host.objective_without),
    ]
}

/// A probability in per cent, with more digits if it is close to 1.
pub(super) fn share(probability: f64) -> String {
    let miss = 1.0 - probability;
    if miss <= 0.0 {
        "100%".to_owned()
    } else if miss < 0.001 {
        format!("{:.4}%", 100.0 * probability)
    } else {
        format!("{:.1}%", 100.0 * probability)
    }
}

/// A time with a unit: `45 s`, `12 min`, `3.5 h`, `12 days`.
fn duration(seconds: f64) -> String {
    if seconds > YEAR_SECONDS {
        "more than a year".to_owned()
    } else if seconds >= 4.0 * 86_400.0 {
        format!("{:.0} days", seconds / 86_400.0)
    } else if seconds < 10.0 {
        format!("{seconds:.1} s")
    } else if seconds < 120.0 {
        format!("{seconds:.0} s")
    } else if seconds < 7200.0 {
        format!("{:.0} min", seconds / 60.0)
    } else {
        format!("{:.1} h", seconds / 3600.0)
    }
}

/// A time with a unit, where `None` stands for more than a year.
fn duration_or_more(seconds: Option<f64>) -> String {
    duration(seconds.unwrap_or(f64::INFINITY))
}

impl Report for AdviseReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "a job of {}, on {}",
            duration(self.job_seconds),
            one_line(&self.hazard)
        )?;
        writeln!(
            out,
            "a checkpoint stops it for {}, {}; checkpoints are at least {} apart",
            duration(self.cost_seconds),
            self.cost_source,
            duration(self.least_seconds)
        )?;
        writeln!(
            out,
            "the machine stays that long with probability {}, as in the column STAYS of ckpt hosts: it is not switched \
             off, disconnected or taken away; its owner's load does not end the job",
            share(self.survives_job)
        )?;
        for note in &self.notes {
            writeln!(out, "note: {}", one_line(note))?;
        }
        match self.first_seconds {
            None => writeln!(out, "no checkpoint is worth its cost")?,
            Some(first) => {
                writeln!(
                    out,
                    "next checkpoint after {}; {} in all",
                    duration(first),
                    self.checkpoints.len()
                )?;
                let moments: Vec<String> = self
                    .checkpoints
                    .iter()
                    .take(12)
                    .map(|at| duration(*at))
                    .collect();
                let more = if self.checkpoints.len() > 12 {
                    ", ..."
                } else {
                    ""
                };
                writeln!(out, "at {}{more}", moments.join(", "))?;
            }
        }
        writeln!(
            out,
            "with one failure in {} on average: a checkpoint every {} (Daly; Young: {})",
            duration_or_more(self.mtbf_seconds),
            duration_or_more(self.daly_seconds),
            duration_or_more(self.young_seconds)
        )?;
        writeln!(
            out,
            "expected to end after {}; without checkpoints after {}",
            duration_or_more(self.makespan_seconds),
            duration_or_more(self.makespan_without_seconds)
        )
    }

    json_of_self!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_readable_and_end_at_a_year() {
        assert_eq!(duration(9.96), "10.0 s");
        assert_eq!(duration(3.5 * 3600.0), "3.5 h");
        assert_eq!(duration(12.0 * 86_400.0), "12 days");
        for long in [1e9, 1e120, f64::INFINITY] {
            assert_eq!(duration(long), "more than a year");
        }
        assert_eq!(duration_or_more(None), "more than a year");
    }
}
