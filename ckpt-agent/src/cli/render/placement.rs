//! The choice of hosts and the advice on intervals, as text.

use std::io::{self, Write};

use super::{Report, Table, bytes, json_of_self, one_line, write_silent};
use crate::report::{AdviseReport, PlacedHost, PlacementReport};

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
            "{} on the hosts marked *: {} that it can be restored when needed; stored in about {}, \
             read back in about {}",
            self.redundancy,
            share(self.reliability),
            duration(self.store_seconds),
            duration(self.restore_seconds),
        )?;
        writeln!(
            out,
            "J is cost less benefit in seconds, the less the better; the machine of the job fails \
             before the next checkpoint with {}",
            share(self.compute_fails)
        )?;
        for note in &self.notes {
            writeln!(out, "note: {}", one_line(note))?;
        }
        write_silent(out, &self.silent)
    }

    json_of_self!();
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
            .clone()
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

/// A probability in per cent, with as many digits as it needs.
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

/// `45 s`, `12 min`, `3.5 h`.
fn duration(seconds: f64) -> String {
    if seconds < 10.0 {
        format!("{seconds:.1} s")
    } else if seconds < 120.0 {
        format!("{seconds:.0} s")
    } else if seconds < 7200.0 {
        format!("{:.0} min", seconds / 60.0)
    } else {
        format!("{:.1} h", seconds / 3600.0)
    }
}

impl Report for AdviseReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "a job of {} with checkpoints of {}, on {}",
            duration(self.job_seconds),
            duration(self.cost_seconds),
            self.hazard
        )?;
        writeln!(
            out,
            "it survives that long with {}",
            share(self.survives_job)
        )?;
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
        if let (Some(mtbf), Some(young), Some(daly)) =
            (self.mtbf_seconds, self.young_seconds, self.daly_seconds)
        {
            writeln!(
                out,
                "with one failure in {} on average: every {} (Daly; Young: {})",
                duration(mtbf),
                duration(daly),
                duration(young)
            )?;
        }
        if let (Some(with), Some(without)) = (self.makespan_seconds, self.makespan_without_seconds)
        {
            writeln!(
                out,
                "expected to end after {}; without checkpoints after {}",
                duration(with),
                duration(without)
            )?;
        }
        Ok(())
    }

    json_of_self!();
}
