//! Policies for where checkpoints are stored.

use crate::schemes::Scheme;
use placement::Probability;
use placement::joint::{Compute, Correlated, Independent, PoolPast};
use placement::levels::{level, rounded};
use placement::objective::{Candidate, Stake, Width};
use placement::redundancy::{Aim, Bounds, choose_with_code, narrowed};
use placement::renewal::{OlderRows, worth_storing_again};
use placement::select::choose;
use rand::Rng;

use crate::draw::{Purpose, draws};
use crate::keeper::Keeper;
use crate::knowledge::Knowledge;
use crate::question::{Chosen, LEAD_SECONDS, Question};
use crate::settings::Settings;

/// Where checkpoints are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// On one server, not coded, as with a central checkpoint server.
    Dedicated,
    /// On hosts chosen by a scheme that knows the past.
    Hosts(Scheme),
    /// As [`Scheme::Correlated`], and where hosts are too few for the code that is asked for, one with fewer
    /// data shards and as much parity: what `ckpt save` does while less than 27 days of the pool are known.
    Narrow,
    /// As [`Narrow`](Self::Narrow) and, where enough of the pool's past is known, with a code chosen by forecast:
    /// what `ckpt save` without options does.
    Usual,
    /// On hosts, and with a code, chosen for a probability of being able to restart: what `ckpt save
    /// --redundancy auto` does.
    Auto(Target),
    /// On the hosts that will be readable for most of the time until the next checkpoint. This policy knows
    /// the future, so it shows which failures no choice can avoid.
    Foresight,
}

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
    /// All targets, the lowest first.
    pub const ALL: [Self; 3] = [Self::P90, Self::P97, Self::P99];

    /// The probability of being able to restart that the policy aims at.
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

impl Policy {
    /// The policy's name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dedicated => "dedicated",
            Self::Foresight => "(foresight)",
            Self::Narrow => "ckpt",
            Self::Usual => "ckpt by forecast",
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
        without: &[Keeper],
    ) -> Option<Chosen> {
        let hosts = takers(knowledge, question.now, question.compute, without);
        knowledge.advance(question.now);
        let pool = self.reads_pool().then(|| knowledge.pool());
        let by_forecast = self.by_forecast(pool, hosts.len());
        let width = match by_forecast {
            Some(_) => (!hosts.is_empty()).then_some(width)?,
            None => self.fitting(width, hosts.len())?,
        };
        let candidates: Vec<Candidate> = hosts
            .iter()
            .map(|host| self.candidate(knowledge, settings, question, *host))
            .collect();
        let (stake, compute) = stake(knowledge, settings, question, width);
        let is_ours = self.reads_pool() || self == Self::Hosts(Scheme::Independent);
        let candidates = if is_ours {
            rounded(candidates)
        } else {
            candidates
        };
        let long_run: Vec<Probability> = hosts.iter().map(|h| knowledge.long_run(*h)).collect();
        let joint = || {
            let members = hosts.iter().zip(&candidates);
            let members = members.map(|(host, c)| knowledge.member(*host, c.readable));
            Correlated::learn_in(pool.unwrap_or_default(), members.collect(), Some(compute))
        };
        if let Some((aim, bounds)) = by_forecast {
            let chosen = choose_with_code(&candidates, &stake, &joint(), aim, bounds)?;
            return Some(Chosen {
                hosts: chosen.choice.hosts.iter().map(|i| hosts[*i]).collect(),
                width: chosen.width,
                readable: Some(chosen.choice.score.reliability),
            });
        }
        if self.reads_pool() {
            let chosen = choose(&level(&candidates, &stake), &stake, &joint()).ok()?;
            return Some(Chosen {
                hosts: chosen.hosts.iter().map(|i| hosts[*i]).collect(),
                width,
                readable: Some(chosen.score.reliability),
            });
        }
        let candidates = if is_ours {
            level(&candidates, &stake)
        } else {
            candidates
        };
        let chosen = match self {
            Self::Hosts(scheme) => {
                let readable: Vec<Probability> = candidates.iter().map(|c| c.readable).collect();
                scheme.choose(&candidates, &long_run, &stake, &Independent(&readable))
            }
            _ => Ok(most_readable(&candidates, &stake)),
        };
        let chosen = chosen.ok()?.into_iter().map(|i| hosts[i]).collect();
        Some(Chosen::without_forecast(chosen, width))
    }

    /// Which of these rows of older checkpoints a version stores again for which these hosts were `chosen`. A policy that
    /// knows nothing of the pool's past stores none again.
    pub(crate) fn stored_again(
        self,
        knowledge: &mut Knowledge<'_>,
        settings: &Settings,
        question: &Question,
        chosen: (&[Keeper], Width),
        rows: &[OlderRows<Keeper>],
    ) -> Vec<bool> {
        if !self.reads_pool() {
            return vec![false; rows.len()];
        }
        let (chosen, width) = chosen;
        let host_of = |keeper: &Keeper| match keeper {
            Keeper::Host(host) => Some(*host),
            Keeper::Server => None,
        };
        let all = rows.iter().flat_map(|rows| &rows.hosts).chain(chosen);
        let mut hosts: Vec<usize> = all.filter_map(host_of).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let places = |keepers: &[Keeper]| -> Vec<usize> {
            let places = keepers.iter().filter_map(host_of);
            places
                .filter_map(|host| hosts.binary_search(&host).ok())
                .collect()
        };
        let older: Vec<OlderRows> = rows.iter().map(|rows| rows.renamed(places)).collect();
        let (stake, compute) = stake(knowledge, settings, question, width);
        let candidates = hosts
            .iter()
            .map(|host| self.candidate(knowledge, settings, question, *host));
        let candidates: Vec<Candidate> = candidates.collect();
        let members = hosts.iter().zip(&candidates);
        let members = members.map(|(host, c)| knowledge.member(*host, c.readable));
        let joint = Correlated::learn_in(knowledge.pool(), members.collect(), Some(compute));
        worth_storing_again(&older, &candidates, &places(chosen), &stake, &joint)
    }

    /// Whether the choice depends on the incidents of the whole pool.
    const fn reads_pool(self) -> bool {
        matches!(
            self,
            Self::Hosts(Scheme::Correlated) | Self::Narrow | Self::Usual | Self::Auto(_)
        )
    }

    /// What the code is chosen for among `hosts` hosts, and its bounds; `None` for a code that is not chosen by
    /// forecast.
    fn by_forecast(self, pool: Option<PoolPast>, hosts: usize) -> Option<(Aim, Bounds)> {
        match self {
            Self::Auto(target) => Some((Aim::Reliability(target.probability()), Bounds::ASKED)),
            Self::Usual if pool?.is_enough() => Some((Aim::LeastLoss, Bounds::usual(hosts))),
            _ => None,
        }
    }

    /// The code for `hosts` hosts when `width` is asked for. `None` if there are too few hosts.
    fn fitting(self, width: Width, hosts: usize) -> Option<Width> {
        let width = match self {
            Self::Narrow | Self::Usual => {
                narrowed(width, |_| hosts).or(Width::new(1, width.parity()))?
            }
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
        let near = knowledge.place(question.compute);
        let far = knowledge.place(host);
        let readable = if self == Self::Foresight {
            let until = question.now + question.interval_seconds as u64 + 1;
            let share = knowledge.host(host).share_here(question.now..until);
            Probability::saturating(share.unwrap_or(0.5))
        } else {
            knowledge.readable(host, question.interval_seconds)
        };
        let keys = [question.job.key(), question.number, far.host];
        Candidate {
            rate,
            rtt_seconds: settings.network.round_trip(seed, near, far),
            readable,
            free_bytes: u64::MAX,
            domains: knowledge.host(host).domains,
            draw: draws(seed, Purpose::Tie, keys).random(),
        }
    }

    /// The code that the policy uses when the code `asked` is asked for.
    pub(crate) fn width(self, asked: Width) -> Width {
        match self {
            Self::Dedicated => Width::new(1, 0).unwrap_or(asked),
            Self::Hosts(scheme) => scheme.width(asked),
            Self::Foresight | Self::Narrow | Self::Usual | Self::Auto(_) => asked,
        }
    }
}

/// What is at stake with a checkpoint in a code of this `width`, and its compute host.
fn stake(
    knowledge: &mut Knowledge<'_>,
    settings: &Settings,
    question: &Question,
    width: Width,
) -> (Stake, Compute) {
    let (guest, bitmap) = knowledge.guest(question.compute, question.now);
    let survives = guest.at(question.interval_seconds);
    let stake = Stake {
        stored_bytes: question.stored_bytes.max(1),
        width,
        lead_seconds: LEAD_SECONDS,
        uplink_bytes_per_second: None,
        need: survives.complement(),
        work_seconds: question.work_seconds,
    };
    let compute = Compute {
        survives,
        domains: knowledge.host(question.compute).domains,
        failures: Some(bitmap.failures()),
        restart_seconds: 2 * settings.restart_seconds as u64,
    };
    (stake, compute)
}

/// The hosts that take shards at `now` (Unix seconds), other than the host `compute` and those in `without`.
pub(crate) fn takers(
    knowledge: &Knowledge<'_>,
    now: u64,
    compute: usize,
    without: &[Keeper],
) -> Vec<usize> {
    let fits = |host: &usize| {
        let usable = knowledge.host(*host).usable(now) == Some(true);
        usable && *host != compute && !without.contains(&Keeper::Host(*host))
    };
    let all = 0..knowledge.grid.hosts.len();
    all.filter(fits).collect()
}

/// The hosts that are readable for longest, the fastest of those that are equal, as indices.
fn most_readable(candidates: &[Candidate], stake: &Stake) -> Vec<usize> {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by(|a, b| {
        let a = &candidates[*a];
        let b = &candidates[*b];
        let slower = a.shard_seconds(stake).total_cmp(&b.shard_seconds(stake));
        b.readable.cmp(&a.readable).then(slower)
    });
    order.truncate(stake.width.total());
    order
}
