//! The week of the pool.

use std::io::{self, Write};

use ckpt_agent::pool::{PoolHour, PoolReport};
use health::span;

use super::{Report, Table, count, json_of_self};

const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// Hours of a day.
const DAY: usize = 24;

impl Report for PoolReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let hosts = count(self.hosts, "host");
        writeln!(
            out,
            "hosts that take shards, of {hosts} (mean of four weeks, UTC; . nothing is known)"
        )?;
        week(&self.hours, out, |hour| mean(hour, hour.hosts))?;
        writeln!(out, "hosts whose processors are free")?;
        week(&self.hours, out, |hour| mean(hour, hour.free))?;
        let job = span(self.job_s);
        writeln!(out, "chance that a job of {job} is never moved, percent")?;
        week(&self.hours, out, percent)?;
        for line in advice(self) {
            writeln!(out, "{line}")?;
        }
        Ok(())
    }

    json_of_self!();
}

/// A table of seven days with 24 hours each.
fn week(
    hours: &[PoolHour],
    out: &mut dyn Write,
    cell: impl Fn(&PoolHour) -> String,
) -> io::Result<()> {
    let heads: Vec<String> = (0..DAY).map(|hour| hour.to_string()).collect();
    let mut all = vec![""];
    all.extend(heads.iter().map(String::as_str));
    let mut table = Table::new(&all);
    for (name, day) in DAYS.iter().zip(hours.chunks(DAY)) {
        let mut row = vec![(*name).to_owned()];
        row.extend(day.iter().map(&cell));
        table.row(row);
    }
    table.write(out)
}

/// What stands where nothing is known.
const UNKNOWN: &str = ".";

fn mean(hour: &PoolHour, hosts: f64) -> String {
    match hour.known {
        0 => UNKNOWN.to_owned(),
        _ => format!("{hosts:.0}"),
    }
}

fn percent(hour: &PoolHour) -> String {
    match hour.starts {
        0 => UNKNOWN.to_owned(),
        starts => format!("{:.0}", 100.0 * f64::from(hour.stayed) / f64::from(starts)),
    }
}

/// An hour of the week, as `Fri 19:00`.
fn at(hour: usize) -> String {
    let day = DAYS.get(hour / DAY).copied().unwrap_or_default();
    format!("{day} {}:00", hour % DAY)
}

/// When to begin, in words.
fn advice(pool: &PoolReport) -> Vec<String> {
    let said = |hour: usize| {
        let seen = pool.hours.get(hour)?;
        let of = format!("{} of {} starts seen", seen.stayed, seen.starts);
        (seen.starts > 0).then(|| format!("{}% ({of})", percent(seen)))
    };
    let job = span(pool.job_s);
    let now = said(pool.now).map(|chance| {
        let hour = at(pool.now);
        format!("a job of {job} that begins in this hour ({hour} UTC) is never moved: {chance}")
    });
    let best = pool.best.as_ref().filter(|best| best.in_hours > 0);
    let best = best.and_then(|best| {
        let hour = at(best.hour);
        let chance = said(best.hour)?;
        Some(format!("best within a day: {hour} UTC, {chance}"))
    });
    let mut lines: Vec<String> = now.into_iter().chain(best).collect();
    if lines.is_empty() {
        lines.push(format!(
            "no start of a job of {job} was seen in this hour of the last four weeks"
        ));
    }
    lines
}
