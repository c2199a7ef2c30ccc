//! Policies for where checkpoints are stored.

use placement::Probability;
use placement::joint::{Compute, Correlated, Independent};
use placement::levels::level;
use placement::objective::{Candidate, Stake, Width};
use placement::schemes::Scheme;
use rand::Rng;

use crate::draw::{Purpose, draws};
use crate::knowledge::Knowledge;
use crate::settings::Settings;

/// Time to connect before the first byte is sent, seconds.
pub(crate) const LEAD_SECONDS: f64 = 0.1;

/// Where checkpoints are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// On one server, not coded, as with a central checkpoint server.
    Dedicated,
    /// On hosts chosen by a scheme that knows the past.
    Hosts(Scheme),
    /// On the hosts that will be readable for most of the time until the next checkpoint. This policy knows
    /// the future, so it shows which failures no choice can avoid.
    Foresight,
}

/// What the choice of hosts for a checkpoint depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub(crate) job: usize,
    /// Number of the checkpoint.
    pub(crate) number: u64,
    /// Index of the compute host into the grid's hosts.
    pub(crate) compute: usize,
    /// Unix seconds.
    pub(crate) now: u64,
    /// Seconds until the next checkpoint is stored.
    pub(crate) interval_seconds: f64,
    /// Work that would be lost without this checkpoint, seconds.
    pub(crate) work_seconds: f64,
}

/// The hosts chosen, as indices into the grid's hosts, and the code.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chosen {
    pub(crate) hosts: Vec<usize>,
    pub(crate) width: Width,
}

impl Policy {
    /// The policy's name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dedicated => "dedicated",
            Self::Foresight => "(foresight)",
            Self::Hosts(scheme) => scheme.name(),
        }
    }

    /// Chooses hosts other than the compute host and those in `without`, for a code of `width` or, if
    /// there are fewer hosts, with less parity. `None` if there are fewer than `width.data()` hosts.
    pub(crate) fn choose(
        self,
        knowledge: &mut Knowledge<'_>,
        settings: &Settings,
        question: &Question,
        width: Width,
        without: &[usize],
    ) -> Option<Chosen> {
        let fits = |host: &usize| {
            let usable = knowledge.host(*host).usable(question.now) == Some(true);
            usable && *host != question.compute && !without.contains(host)
        };
        let hosts: Vec<usize> = (0..knowledge.grid.hosts.len()).filter(fits).collect();
        if hosts.len() < width.data() {
            return None;
        }
        let parity = width.parity().min(hosts.len() - width.data());
        let width = Width::new(width.data(), parity)?;
        knowledge.advance(question.now);
        let candidates: Vec<Candidate> = hosts
            .iter()
            .map(|host| self.candidate(knowledge, settings, question, *host))
            .collect();
        let candidates = match self {
            Self::Hosts(Scheme::Independent | Scheme::Correlated) => {
                level(candidates, settings.image_bytes, width)
            }
            _ => candidates,
        };
        let (guest, bitmap) = knowledge.guest(question.compute, question.now);
        let survives = guest.at(question.interval_seconds);
        let stake = Stake {
            stored_bytes: settings.image_bytes.max(1),
            width,
            lead_seconds: LEAD_SECONDS,
            uplink_bytes_per_second: None,
            need: survives.complement(),
            work_seconds: question.work_seconds,
        };
        let long_run: Vec<Probability> = hosts.iter().map(|h| knowledge.long_run(*h)).collect();
        let chosen = match self {
            Self::Hosts(Scheme::Correlated) => {
                let members = hosts.iter().zip(&candidates);
                let members = members.map(|(host, c)| knowledge.member(*host, c.readable));
                let compute = Compute {
                    survives,
                    domains: knowledge.host(question.compute).domains,
                    failures: Some(bitmap.failures()),
                    restart_seconds: 2 * settings.restart_seconds as u64,
                };
                let joint = Correlated::learn(members.collect(), Some(compute));
                Scheme::Correlated.choose(&candidates, &long_run, &stake, &joint)
            }
            Self::Hosts(scheme) => {
                let readable: Vec<Probability> = candidates.iter().map(|c| c.readable).collect();
                scheme.choose(&candidates, &long_run, &stake, &Independent(&readable))
            }
            Self::Foresight | Self::Dedicated => {
                let mut order: Vec<usize> = (0..candidates.len()).collect();
                order.sort_by(|a, b| {
                    let (a, b) = (&candidates[*a], &candidates[*b]);
                    let slower = a.shard_seconds(&stake).total_cmp(&b.shard_seconds(&stake));
                    b.readable.cmp(&a.readable).then(slower)
                });
                order.truncate(width.total());
                Ok(order)
            }
        };
        let chosen = chosen.ok()?;
        Some(Chosen {
            hosts: chosen.into_iter().map(|i| hosts[i]).collect(),
            width,
        })
    }

    /// A host as a candidate, with what a client can know of it.
    fn candidate(
        self,
        knowledge: &mut Knowledge<'_>,
        settings: &Settings,
        question: &Question,
        host: usize,
    ) -> Candidate {
        let pair = (question.compute, host);
        let rate = knowledge.rate(&settings.network, pair, question.now);
        let seed = knowledge.grid.seed;
        let (near, far) = (knowledge.place(question.compute), knowledge.place(host));
        let readable = if self == Self::Foresight {
            let until = question.now + question.interval_seconds as u64 + 1;
            let share = knowledge.host(host).share_here(question.now..until);
            Probability::saturating(share.unwrap_or(0.5))
        } else {
            knowledge.readable(host, question.interval_seconds)
        };
        let keys = [question.job as u64, question.number, far.host];
        Candidate {
            rate,
            rtt_seconds: settings.network.round_trip(seed, near, far),
            readable,
            domains: knowledge.host(host).domains,
            draw: draws(seed, Purpose::Tie, keys).random(),
        }
    }

    /// The code that the policy uses when the code `asked` is asked for.
    pub(crate) fn width(self, asked: Width) -> Width {
        match self {
            Self::Dedicated => Width::new(1, 0).unwrap_or(asked),
            Self::Hosts(scheme) => scheme.width(asked),
            Self::Foresight => asked,
        }
    }
}
