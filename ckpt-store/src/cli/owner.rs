//! What the machine's owner can ask for: how much is lent to whom, what was moved, and whether the daemon
//! stands back. Also the commands `pause` and `resume`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use codec::OwnerId;
use command_line::{size, time};
use protocol::wire::escaped;
use serde::Serialize;

use super::running;
use crate::accounts;
use crate::core::traffic::{Days, Moved, TransferLimit};
use crate::monitor::pause::Pause;
use crate::monitor::preferences;
use crate::reached::Way;
use crate::status_file::StatusFile;
use crate::traffic;

/// Most submitters that are printed by name. `--json` has all of them.
const NAMED_MAX: usize = 5;

/// If the daemon's file is older, it says nothing about the present, seconds.
const STALE_S: u64 = 180;

/// What one submitter has on this host.
#[derive(Debug, Serialize)]
pub(super) struct LentTo {
    /// The public key of the submitter.
    key: String,
    /// The name in the submitter's certificate. `None` if the submitter was never here.
    name: Option<String>,
    /// Bytes of its files.
    bytes: u64,
}

impl LentTo {
    /// What each submitter has, those with the most first.
    pub(super) fn all(data: &Path, bytes: &BTreeMap<OwnerId, u64>) -> Result<Vec<Self>> {
        let names = accounts::load(data).context("accounts.json")?;
        let mut all: Vec<Self> = bytes
            .iter()
            .map(|(owner, bytes)| Self {
                key: owner.hex(),
                name: names.get(owner).cloned(),
                bytes: *bytes,
            })
            .collect();
        all.sort_by_key(|one| std::cmp::Reverse(one.bytes));
        Ok(all)
    }

    fn text(&self) -> String {
        let name = self.name.as_deref().unwrap_or(&self.key[..8]);
        let name = escaped(name);
        format!("{name} ({})", size::format(self.bytes))
    }
}

/// Bytes that were moved.
#[derive(Debug, Default, Serialize)]
pub(super) struct MovedText {
    /// Bytes received in this calendar month (UTC).
    month_received_bytes: u64,
    /// Bytes sent in this calendar month (UTC).
    month_sent_bytes: u64,
    /// The owner's limit on both together, if there is one.
    limit: Option<LimitText>,
}

/// An owner's limit, and how much of it is used.
#[derive(Debug, Serialize)]
struct LimitText {
    bytes: u64,
    days: u32,
    used_bytes: u64,
}

impl MovedText {
    pub(super) fn read(data: &Path, now: u64) -> Result<Self> {
        let days = traffic::load(data).context("traffic.json")?;
        let limit = preferences::load(data).ok();
        let limit = limit.and_then(|settings| settings.transfers);
        Ok(Self::of(&days, limit, now))
    }

    fn of(days: &Days, limit: Option<TransferLimit>, now: u64) -> Self {
        let Moved { received, sent } = days.since(first_of_month(now));
        Self {
            month_received_bytes: received,
            month_sent_bytes: sent,
            limit: limit.map(|limit| LimitText {
                bytes: limit.bytes,
                days: limit.days,
                used_bytes: days.within(now, limit.days).both(),
            }),
        }
    }

    pub(super) fn print(&self, out: &mut impl Write) -> Result<()> {
        write!(
            out,
            "transferred this month: {} sent, {} received",
            size::format(self.month_sent_bytes),
            size::format(self.month_received_bytes)
        )?;
        if let Some(limit) = &self.limit {
            write!(
                out,
                "; {} of {} in {} days",
                size::format(limit.used_bytes),
                size::format(limit.bytes),
                limit.days
            )?;
        }
        Ok(writeln!(out)?)
    }
}

/// The first day of the month of `now`, in days since 1970.
fn first_of_month(now: u64) -> u64 {
    let today = now / 86_400;
    let time = i64::try_from(now).ok();
    let time = time.and_then(|now| jiff::Timestamp::from_second(now).ok());
    let day = time.map_or(1, |time| {
        time.to_zoned(jiff::tz::TimeZone::UTC).day().unsigned_abs()
    });
    today.saturating_sub(u64::from(day).saturating_sub(1))
}

/// Prints what the daemon does for others. If no daemon runs, prints only whether it is paused.
pub(super) fn print_status(
    status: Option<&StatusFile>,
    pause: Pause,
    runs: bool,
    now: u64,
    out: &mut impl Write,
) -> Result<()> {
    let current = status.filter(|one| runs && now.saturating_sub(one.at) < STALE_S);
    let paused = match pause {
        Pause::Until(until) if until > now => Some(format!("paused until {}", time::local(until))),
        Pause::Endless => Some("paused until `ckpt-store resume`".to_owned()),
        Pause::No | Pause::Until(_) => None,
    };
    if let Some(one) = current {
        let program = one.program.as_ref();
        let program = program.map_or(String::new(), |name| format!(" ({})", escaped(name)));
        let why = one.why.as_ref();
        let why = why.map_or(String::new(), |why| format!(": {why}{program}"));
        let until = one.until.map_or(String::new(), |until| {
            format!(", until {}", time::local(until))
        });
        writeln!(
            out,
            "{} since {}{why}{until}",
            one.stance,
            time::local(one.since)
        )?;
        if one.is_revoked {
            writeln!(
                out,
                "REVOKED: the grid's admin has revoked the key of this host, so no member uses it; to lend again, \
                 ask for a token and join with another data directory (ckpt-store join TOKEN --data DIR)"
            )?;
        }
        print_ways(&one.reached, out)?;
    }
    match (paused, current) {
        // The daemon has not read the pause yet. It reads it every few seconds.
        (Some(paused), Some(one)) if one.stance == "open" => {
            writeln!(out, "{paused}: the daemon stands back within seconds")?;
        }
        (Some(paused), None) => writeln!(out, "{paused}")?,
        _ => {}
    }
    Ok(())
}

/// Prints which registries reach this host.
fn print_ways(ways: &[Way], out: &mut impl Write) -> Result<()> {
    let (reach, do_not): (Vec<&Way>, Vec<&Way>) = ways.iter().partition(|way| way.answered);
    let names = |ways: &[&Way]| {
        let names = ways.iter().map(|way| escaped(&way.registry));
        list(&names.collect::<Vec<_>>())
    };
    if !reach.is_empty() {
        writeln!(out, "reached from outside by {}", names(&reach))?;
    }
    if !do_not.is_empty() {
        writeln!(
            out,
            "NOT reached from outside by {}: nobody who is not reached gets shards; let the UDP port through the \
             firewall, forward it, or announce another address (ckpt-store serve --announce)",
            names(&do_not)
        )?;
    }
    Ok(())
}

/// Prints how much is lent, and to whom.
pub(super) fn print_lent(
    status: Option<&StatusFile>,
    lent: &[LentTo],
    bytes: u64,
    out: &mut impl Write,
) -> Result<()> {
    match status {
        Some(one) => write!(
            out,
            "lent: {} of {}",
            size::format(one.used_bytes),
            size::format(one.capacity_bytes)
        )?,
        None => write!(out, "lent: {}", size::format(bytes))?,
    }
    let named: Vec<String> = lent.iter().take(NAMED_MAX).map(LentTo::text).collect();
    match lent.len() {
        0 => write!(out, ", to nobody yet")?,
        n if n > NAMED_MAX => write!(
            out,
            ", to {} and {} others",
            named.join(", "),
            n - NAMED_MAX
        )?,
        _ => write!(out, ", to {}", list(&named))?,
    }
    Ok(writeln!(out)?)
}

/// Joins names as in `a`, `a and b`, or `a, b and c`.
fn list(names: &[String]) -> String {
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        Some((last, _)) => last.clone(),
        None => String::new(),
    }
}

/// Has the daemon take no shards for `time`, or until it is resumed.
pub(super) fn pause(data: &Path, time: Option<Duration>) -> Result<ExitCode> {
    let runs = running::running(data)?.is_some();
    let pause = time.map_or(Pause::Endless, |time| {
        Pause::Until(running::now().saturating_add(time.as_secs()))
    });
    let failed = || format!("writing {}/pause", data.display());
    pause.write(data).with_context(failed)?;
    let until = match pause {
        Pause::Until(until) => format!("until {}", time::local(until)),
        _ => "until `ckpt-store resume`".to_owned(),
    };
    let then = match runs {
        true => "the daemon stands back within seconds",
        false => "no daemon runs; the next one that starts stands back",
    };
    writeln!(std::io::stdout(), "paused {until}; {then}")?;
    Ok(ExitCode::SUCCESS)
}

/// Ends a pause. A daemon that runs notices it; one that starts later does not stand back.
pub(super) fn resume(data: &Path) -> Result<ExitCode> {
    // Called for its error if there is no such directory.
    running::running(data)?;
    let was = Pause::read(data);
    let failed = || format!("removing {}/pause", data.display());
    Pause::No.write(data).with_context(failed)?;
    let said = match was {
        Pause::No => "not paused before",
        _ => "resumed",
    };
    writeln!(std::io::stdout(), "{said}")?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_begins_with_its_first_day() {
        // 2026-11-22 08:00 UTC.
        let now = 1_795_334_400;
        assert_eq!(first_of_month(now), now / 86_400 - 21);
        let first = (now / 86_400 - 21) * 86_400;
        assert_eq!(first_of_month(first), first / 86_400);
        assert_eq!(first_of_month(first - 1), first / 86_400 - 31);
    }

    #[test]
    fn names_are_listed_as_people_do() {
        let names = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(list(&names[..0]), "");
        assert_eq!(list(&names[..1]), "a");
        assert_eq!(list(&names[..2]), "a and b");
        assert_eq!(list(&names), "a, b and c");
    }
}
