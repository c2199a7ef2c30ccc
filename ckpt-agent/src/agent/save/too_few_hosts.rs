//! The failure of a save that finds too few hosts.

use codec::Redundancy;
use jiff::{SpanRound, Timestamp, Unit, Zoned};

use crate::agent::ask::gather::Gathered;
use crate::agent::{Agent, DATA_USUAL, SaveRequest};
use crate::report::{ExitStatus, Failure, HostNote};

/// Too few hosts took a shard of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    /// Hosts that took a shard.
    pub(crate) placed: usize,
    /// Hosts that were needed.
    pub(crate) needed: usize,
    /// Milliseconds until the earliest time that a refusing host named.
    pub(crate) soonest_ms: Option<u64>,
    /// Whether hosts were asked until the deadline ended.
    pub(crate) deadline_ended: bool,
}

impl Shortage {
    pub(crate) fn failure(self, doing: &str) -> Failure {
        let Self { placed, needed, .. } = self;
        let mut message = format!("{doing}: {placed} of {needed} shards have a host");
        if self.deadline_ended {
            message.push_str(" at the end of the deadline");
        }
        // Where no host takes a shard, fewer shards find none either.
        let less = match placed {
            0 => "",
            _ => "; or save with less: --data, --parity, --allow-degraded",
        };
        let Some(wait_ms) = self.soonest_ms else {
            return Failure::new(ExitStatus::TooFewHosts, message)
                .next(format!("ckpt hosts{less}"));
        };
        let when = clock_time(wait_ms);
        message.push_str(&format!("; the next host takes shards {when}"));
        Failure::new(ExitStatus::TooFewHosts, message).next(format!("again {when}{less}"))
    }
}

/// A wait that a clock without seconds would show as none, milliseconds.
const SOON_MS: u64 = 60_000;

/// `at 18:00 (in 2h)`, by the clock and the time zone of this machine; `in 5 s` for less than a minute.
fn clock_time(wait_ms: u64) -> String {
    if wait_ms < SOON_MS {
        return format!("in {} s", wait_ms.div_ceil(1000).max(1));
    }
    let now = Zoned::now();
    let wait_s = i64::try_from(wait_ms / 1000).unwrap_or(i64::MAX);
    let at = now.timestamp().as_second().saturating_add(wait_s);
    let Ok(at) = Timestamp::from_second(at) else {
        return "much later".to_owned();
    };
    let at = at.to_zoned(now.time_zone().clone());
    let form = if at.date() == now.date() {
        "%H:%M"
    } else {
        "%Y-%m-%d %H:%M"
    };
    let round = SpanRound::new().largest(Unit::Hour).smallest(Unit::Minute);
    let span = (&at - &now).round(round);
    let within = span.map_or_else(|_| String::new(), |span| format!(" (in {span:#})"));
    format!("at {}{within}", at.strftime(form))
}

/// The failure when a grid of `hosts` hosts is too small for at least `needed` shards of `redundancy`, with a
/// proposal that fits; `None` when the grid is large enough, or has no host.
pub(crate) fn too_small(
    hosts: usize,
    needed: usize,
    redundancy: Redundancy,
    doing: &str,
) -> Option<Failure> {
    if hosts >= needed || hosts == 0 {
        return None;
    }
    let data = hosts - hosts / 2;
    let parity = hosts / 2;
    let message = format!(
        "{doing}: {redundancy} shards need {needed} hosts, and the grid has {hosts}: at most {hosts} \
         of {needed} shards have a host"
    );
    let survives = match parity {
        0 => "survives no loss".to_owned(),
        1 => "survives the loss of any 1".to_owned(),
        n => format!("survives the loss of any {n}"),
    };
    Some(Failure::new(ExitStatus::TooFewHosts, message).next(format!(
        "--redundancy auto; or --data {data} --parity {parity}, which {survives}"
    )))
}

impl Agent {
    /// Failed hosts with their faults: those of the save, and those that were silent before it. Each host
    /// once, in the order of the grid.
    pub(crate) fn with_silent(&self, found: Vec<HostNote>, gathered: &Gathered) -> Vec<HostNote> {
        let mut all = found;
        for note in self.silent_notes(gathered) {
            if all.iter().all(|known| known.host != note.host) {
                all.push(note);
            }
        }
        let place = |note: &HostNote| {
            self.hosts
                .all()
                .position(|h| self.hosts.name(h) == note.host)
        };
        all.sort_by_key(place);
        all
    }
}

/// Fewest parity shards with which a save may commit. A version of a code that nobody gave is on at least
/// [`DATA_USUAL`] hosts, even if it is degraded: fewer silent hosts than that hide no version.
pub(super) fn least_parity(request: &SaveRequest, redundancy: Redundancy) -> u8 {
    let (data, parity) = <(u8, u8)>::from(redundancy);
    let is_given =
        request.options.redundancy.is_some() || request.options.placement.target.is_some();
    let fewest = match is_given {
        true => 0,
        false => DATA_USUAL.saturating_sub(data),
    };
    request
        .options
        .allow_degraded
        .unwrap_or(parity)
        .max(fewest)
        .min(parity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_grid_learns_which_code_fits() {
        let usual = Redundancy::new(3, 2).unwrap();
        assert!(too_small(5, 5, usual, "cannot save").is_none());
        assert!(too_small(4, 4, usual, "cannot save").is_none(), "degraded");
        for (hosts, fits) in [
            (4, "--data 2 --parity 2"),
            (3, "--data 2 --parity 1"),
            (2, "--data 1 --parity 1"),
            (1, "--data 1 --parity 0"),
        ] {
            let failure = too_small(hosts, 5, usual, "cannot save").unwrap();
            let next = failure.next.unwrap();
            assert!(next.contains(fits) && next.contains("auto"), "{next}");
        }
    }

    #[test]
    fn a_refusal_that_names_a_time_is_said_as_one() {
        let shortage = Shortage {
            placed: 0,
            needed: 5,
            soonest_ms: Some(2 * 3_600_000),
            deadline_ended: false,
        };
        let failure = shortage.failure("cannot save");
        let next = failure.next.unwrap();
        assert!(next.ends_with("(in 2h)"), "fewer do not help: {next}");
        let some = Shortage {
            placed: 2,
            ..shortage
        };
        let next = some.failure("cannot save").next.unwrap();
        assert!(next.contains("--parity"), "{next}");
        let message = failure.message;
        let expected = "cannot save: 0 of 5 shards have a host; the next host takes shards at ";
        assert!(message.starts_with(expected), "{message}");
        assert!(message.ends_with("(in 2h)"), "{message}");
        assert_eq!(clock_time(u64::MAX), "much later");
        assert_eq!(clock_time(0), "in 1 s", "the wait may be over by now");
        assert_eq!(clock_time(59_001), "in 60 s");
    }
}
