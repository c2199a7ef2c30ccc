//! The choice of a policy that knows every later state of every host.

use placement::Probability;
use placement::objective::{Candidate, Stake, Width};

use crate::knowledge::Knowledge;
use crate::question::{Chosen, LEAD_SECONDS, Question};
use crate::settings::Settings;

/// Most shards.
const SHARDS_MAX: usize = 16;

/// How long hosts have to stay while they store or are read, seconds.
const TRANSFER_SECONDS: u64 = 900;

/// A host, and what it is worth at each time at which the checkpoint may be read: 2 if it is readable and stays
/// while it is read, 1 if it is readable, 0 otherwise.
struct HostWorth<'a> {
    index: usize,
    candidate: &'a Candidate,
    worth: Vec<u8>,
}

/// Hosts that take a shard now.
pub(crate) struct Foreseen<'a> {
    hosts: Vec<HostWorth<'a>>,
    stake: Stake,
}

impl<'a> Foreseen<'a> {
    pub(crate) fn new(
        knowledge: &Knowledge<'_>,
        settings: &Settings,
        question: &Question,
        hosts: &[usize],
        candidates: &'a [Candidate],
    ) -> Self {
        let stays = |host: usize, from: u64| {
            let times = from..from + TRANSFER_SECONDS;
            let share = knowledge.host(host).share_here(times);
            share.is_none_or(|share| share >= 1.0)
        };
        let worth = |host: usize, read_at: u64| {
            // A host that the trace does not know then is taken as readable, as for all policies.
            let is_readable = knowledge.host(host).here(read_at) != Some(false);
            match is_readable && stays(host, question.now) {
                true => 1 + u8::from(stays(host, read_at)),
                false => 0,
            }
        };
        let host = |(index, candidate): (&usize, &'a Candidate)| HostWorth {
            index: *index,
            candidate,
            worth: question
                .reads_at
                .iter()
                .map(|at| worth(*index, *at))
                .collect(),
        };
        Self {
            hosts: hosts.iter().zip(candidates).map(host).collect(),
            stake: Stake {
                stored_bytes: settings.image_bytes.max(1),
                width: Width::FALCON,
                lead_seconds: LEAD_SECONDS,
                uplink_bytes_per_second: None,
                need: Probability::ONE,
                work_seconds: question.work_seconds,
            },
        }
    }

    /// Chooses hosts and code; one host if not `many`. Where no host is the best at all times, each time has a
    /// host with a copy of its own.
    pub(crate) fn choose(&self, many: bool) -> Option<Chosen> {
        let best = self.hosts.iter().map(|host| &host.worth).max()?;
        let kept: Vec<&HostWorth<'_>> = self
            .hosts
            .iter()
            .filter(|host| host.worth == *best)
            .collect();
        let most = if many { SHARDS_MAX.min(kept.len()) } else { 1 };
        let codes = (1..=most).filter_map(|data| self.fastest(&kept, data));
        let (_, chosen) = codes.min_by(|a, b| a.0.total_cmp(&b.0))?;
        if !many {
            return Some(chosen);
        }
        let mut copies = self.fastest(&kept, 1)?.1.hosts;
        for time in 0..best.len() {
            let worth = |host: &&HostWorth<'_>| host.worth.get(time).copied();
            let most = self.hosts.iter().map(|host| worth(&host)).max()?;
            let all: Vec<&HostWorth<'_>> = self
                .hosts
                .iter()
                .filter(|host| worth(host) == most)
                .collect();
            if !all.iter().any(|host| copies.contains(&host.index)) {
                copies.extend(self.fastest(&all, 1)?.1.hosts);
            }
        }
        let width = Width::new(1, copies.len() - 1)?;
        match copies.len() {
            1 => Some(chosen),
            _ => Some(Chosen::without_forecast(copies, width)),
        }
    }

    /// The `data` fastest of `hosts`, for a code without parity, and the seconds to store on them.
    fn fastest(&self, hosts: &[&HostWorth<'_>], data: usize) -> Option<(f64, Chosen)> {
        let width = Width::new(data, 0)?;
        let stake = Stake {
            width,
            ..self.stake
        };
        let timed = hosts.iter();
        let timed = timed.map(|host| (host.candidate.shard_seconds(&stake), host.index));
        let mut timed: Vec<(f64, usize)> = timed.collect();
        timed.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        timed.truncate(data);
        let slowest = timed.last()?.0;
        let hosts = timed.into_iter().map(|(_, host)| host).collect();
        Some((slowest, Chosen::without_forecast(hosts, width)))
    }
}

#[cfg(test)]
mod tests {
    use placement::bandwidth::RateForecast;
    use placement::joint::LEVELS;

    use super::*;

    fn chosen(worth: &[&[u8]], many: bool) -> (Vec<usize>, usize, usize) {
        let candidate = Candidate {
            rate: RateForecast::saturating(1e6, 0.0),
            rtt_seconds: 0.0,
            readable: Probability::ONE,
            free_bytes: u64::MAX,
            domains: [None; LEVELS],
            draw: 0,
        };
        let host = |(index, worth): (usize, &&[u8])| HostWorth {
            index,
            candidate: &candidate,
            worth: worth.to_vec(),
        };
        let all = Foreseen {
            hosts: worth.iter().enumerate().map(host).collect(),
            stake: Stake {
                stored_bytes: 6_000_000,
                width: Width::FALCON,
                lead_seconds: LEAD_SECONDS,
                uplink_bytes_per_second: None,
                need: Probability::ONE,
                work_seconds: 1.0,
            },
        };
        let chosen = all.choose(many).unwrap();
        let width = chosen.width;
        (chosen.hosts, width.data(), width.parity())
    }

    #[test]
    fn an_image_is_spread_over_hosts_that_are_there_whenever_it_is_read() {
        let always: &[u8] = &[2, 2];
        let hosts = [always, &[2, 0], always, always];
        assert_eq!(chosen(&hosts, true), (vec![0, 2, 3], 3, 0));
        assert_eq!(
            chosen(&hosts, false),
            (vec![0], 1, 0),
            "for a shard that failed"
        );
    }

    #[test]
    fn each_read_has_a_copy_where_no_host_is_there_for_all() {
        // Nobody is there at the last read, which is no reason for a copy.
        let hosts: [&[u8]; 3] = [&[2, 0, 1, 0], &[0, 2, 2, 0], &[1, 1, 1, 0]];
        assert_eq!(chosen(&hosts, true), (vec![0, 1], 1, 1));
        assert_eq!(chosen(&hosts, false), (vec![0], 1, 0));
    }
}
