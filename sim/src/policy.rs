//! Policies for where checkpoints are stored.

use placement::Probability;
use placement::joint::{Compute, Correlated, Independent};
use placement::levels::level;
use placement::objective::{Candidate, Stake, Width};
use placement::redundancy::{cheapest, narrowed};
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
    /// As [`Scheme::Correlated`], and where hosts are too few for the code that is asked for, one with fewer
    /// data shards and as much parity: what `ckpt save` does.
    Narrow,
    /// On hosts, and with a code, chosen for a probability of being able to restart: what `ckpt save
    /// --redundancy auto` does.
    Auto(Target),
    /// On the hosts that will be readable for most of the time until the next checkpoint. This policy knows
    /// the future, so it shows which failures no choice can avoid.
    Foresight,
    /// On the fastest of the hosts that will be readable when the job has its next host, coded without parity
    /// over as many of them as store it fastest. No policy, whatever its code, avoids a failure that this one
    /// meets, apart from hosts that fail while they store or are read.
    Clairvoyant,
}

/// Most shards of [`Policy::Clairvoyant`].
const FORESEEN_MAX: usize = 16;

/// For so long hosts of [`Policy::Clairvoyant`] have to stay while they store or are read, seconds.
const TRANSFER_SECONDS: u64 = 900;

/// A probability of being able to restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// 0.90.
    P90,
    /// 0.97.
    P97,
    /// 0.99.
    P99,
}

impl Target {
    /// All targets.
    pub const ALL: [Self; 3] = [Self::P90, Self::P97, Self::P99];

    /// The probability.
    #[must_use]
    pub const fn share(self) -> f64 {
        match self {
            Self::P90 => 0.90,
            Self::P97 => 0.97,
            Self::P99 => 0.99,
        }
    }

    fn probability(self) -> Probability {
        Probability::saturating(self.share())
    }
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
    /// When the job will have its next host, Unix seconds. Only a policy that knows the future may use it.
    pub(crate) read_at: u64,
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
            Self::Clairvoyant => "(clairvoyant)",
            Self::Narrow => "ckpt",
            Self::Hosts(Scheme::Correlated) => "ckpt --data 3",
            Self::Auto(Target::P90) => "auto 0.90",
            Self::Auto(Target::P97) => "auto 0.97",
            Self::Auto(Target::P99) => "auto 0.99",
            Self::Hosts(scheme) => scheme.name(),
        }
    }

    /// Chooses hosts other than the compute host and those in `without`, for a code of `width` or, if
    /// there are fewer hosts, with less parity or as the policy says. `None` if there are fewer than the data
    /// shards.
    pub(crate) fn choose(
        self,
        knowledge: &mut Knowledge<'_>,
        settings: &Settings,
        question: &Question,
        width: Width,
        without: &[usize],
    ) -> Option<Chosen> {
        let hosts = takers(knowledge, question, without);
        let width = self.fitting(width, hosts.len())?;
        knowledge.advance(question.now);
        let candidates: Vec<Candidate> = hosts
            .iter()
            .map(|host| self.candidate(knowledge, settings, question, *host))
            .collect();
        if self == Self::Clairvoyant {
            let most = if without.is_empty() { FORESEEN_MAX } else { 1 };
            return foreseen(knowledge, settings, question, &hosts, &candidates, most);
        }
        let candidates = match self {
            Self::Hosts(Scheme::Independent | Scheme::Correlated)
            | Self::Narrow
            | Self::Auto(_) => level(candidates, settings.image_bytes, width),
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
        let compute = Compute {
            survives,
            domains: knowledge.host(question.compute).domains,
            failures: Some(bitmap.failures()),
            restart_seconds: 2 * settings.restart_seconds as u64,
        };
        let joint = || joint(knowledge, &hosts, &candidates, compute);
        let (chosen, width) = match self {
            Self::Auto(target) => {
                let chosen = cheapest(&candidates, &stake, &joint(), target.probability())?;
                (Ok(chosen.choice.hosts), chosen.width)
            }
            Self::Hosts(Scheme::Correlated) | Self::Narrow => {
                let scheme = Scheme::Correlated;
                let chosen = scheme.choose(&candidates, &long_run, &stake, &joint());
                (chosen, width)
            }
            Self::Hosts(scheme) => {
                let readable: Vec<Probability> = candidates.iter().map(|c| c.readable).collect();
                let joint = Independent(&readable);
                (scheme.choose(&candidates, &long_run, &stake, &joint), width)
            }
            Self::Foresight | Self::Clairvoyant | Self::Dedicated => {
                (Ok(most_readable(&candidates, &stake)), width)
            }
        };
        let chosen = chosen.ok()?;
        Some(Chosen {
            hosts: chosen.into_iter().map(|i| hosts[i]).collect(),
            width,
        })
    }

    /// The code for `hosts` hosts when `width` is asked for; for a policy that chooses the code with the hosts,
    /// `width` itself. `None` if there are too few hosts.
    fn fitting(self, width: Width, hosts: usize) -> Option<Width> {
        let width = match self {
            Self::Auto(_) | Self::Clairvoyant => return (hosts > 0).then_some(width),
            Self::Narrow => narrowed(width, |_| hosts).or(Width::new(1, width.parity()))?,
            _ => width,
        };
        let parity = width.parity().min(hosts.checked_sub(width.data())?);
        Width::new(width.data(), parity)
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
            Self::Foresight | Self::Clairvoyant | Self::Narrow | Self::Auto(_) => asked,
        }
    }
}

/// The hosts that take shards now, other than the compute host and those in `without`.
fn takers(knowledge: &Knowledge<'_>, question: &Question, without: &[usize]) -> Vec<usize> {
    let fits = |host: &usize| {
        let usable = knowledge.host(*host).usable(question.now) == Some(true);
        usable && *host != question.compute && !without.contains(host)
    };
    let all = 0..knowledge.grid.hosts.len();
    all.filter(fits).collect()
}

/// The joint distribution of `hosts`, which are these `candidates`.
fn joint(
    knowledge: &Knowledge<'_>,
    hosts: &[usize],
    candidates: &[Candidate],
    compute: Compute,
) -> Correlated {
    let members = hosts.iter().zip(candidates);
    let members = members.map(|(host, c)| knowledge.member(*host, c.readable));
    Correlated::learn(members.collect(), Some(compute))
}

/// The hosts that are readable for longest, the fastest of those that are equal, as indices.
fn most_readable(candidates: &[Candidate], stake: &Stake) -> Vec<usize> {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by(|a, b| {
        let (a, b) = (&candidates[*a], &candidates[*b]);
        let slower = a.shard_seconds(stake).total_cmp(&b.shard_seconds(stake));
        b.readable.cmp(&a.readable).then(slower)
    });
    order.truncate(stake.width.total());
    order
}

/// The choice of [`Policy::Clairvoyant`] among `hosts`, with at most `most` shards.
fn foreseen(
    knowledge: &Knowledge<'_>,
    settings: &Settings,
    question: &Question,
    hosts: &[usize],
    candidates: &[Candidate],
    most: usize,
) -> Option<Chosen> {
    let stays = |host: usize, from: u64| {
        let share = knowledge
            .host(host)
            .share_here(from..from + TRANSFER_SECONDS);
        share.is_none_or(|share| share >= 1.0)
    };
    // A host that the trace does not know then is taken as readable, as for all policies.
    let is_readable = |host: usize| knowledge.host(host).here(question.read_at) != Some(false);
    let worth = |at: &usize| {
        let host = hosts[*at];
        let stored = is_readable(host) && stays(host, question.now);
        (stored && stays(host, question.read_at), stored)
    };
    let best = (0..hosts.len()).map(|at| worth(&at)).max()?;
    let kept: Vec<usize> = (0..hosts.len()).filter(|at| worth(at) == best).collect();
    let code = |data: usize| {
        let width = Width::new(data, 0)?;
        let stake = Stake {
            stored_bytes: settings.image_bytes.max(1),
            width,
            lead_seconds: LEAD_SECONDS,
            uplink_bytes_per_second: None,
            need: Probability::ONE,
            work_seconds: question.work_seconds,
        };
        let mut timed: Vec<(f64, usize)> = kept
            .iter()
            .map(|at| (candidates[*at].shard_seconds(&stake), hosts[*at]))
            .collect();
        timed.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        timed.truncate(data);
        let slowest = timed.last()?.0;
        let hosts = timed.into_iter().map(|(_, host)| host).collect();
        Some((slowest, Chosen { hosts, width }))
    };
    let codes = (1..=most.min(kept.len())).filter_map(code);
    let fastest = codes.min_by(|a, b| a.0.total_cmp(&b.0));
    fastest.map(|(_, chosen)| chosen)
}
