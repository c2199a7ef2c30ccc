//! Which hosts get the shards of a checkpoint: makes candidates of what hosts announce and of what this
//! client saw of them, has `placement` choose among them, and explains the choice.

pub mod renewal;
pub mod work;

use std::collections::BTreeMap;
use std::net::IpAddr;

use codec::{Redundancy, RedundancyError};
use placement::bandwidth::{RateForecast, UNKNOWN_SPREAD};
use placement::hazard::{HazardModel, HostSummary};
use placement::joint::{Compute, Correlated, DomainId, Domains, LEVELS, Member, PoolPast, Watched};
use placement::levels::{level, rounded};
use placement::objective::{Candidate, Score, Stake, Width, readable_within};
use placement::redundancy::{Aim, Bounds, choose_with_code, narrowed};
use placement::select::{Caps, Choice, choose, spares, with, without};
use placement::state::{AvailabilityState, Presence, StorageState};
use placement::{Probability, SurvivalCurve};
use protocol::wire::announcement::Announced;

use crate::core::HostIndex;
use crate::core::knowledge::KnownHost;

/// Rate that is assumed when no host was ever measured, bytes per second: 100 Mbit/s.
pub const FIRST_RATE: f64 = 12.5e6;

/// Probability of being readable of a host that announces nothing.
const FIRST_READABLE: f64 = 0.9;

/// Spread of the rate of a host that a probe has shown not to be slow.
const PROBED_SPREAD: f64 = 0.5;

/// Seconds to connect and to begin a transfer.
const LEAD_SECONDS: f64 = 0.1;

/// Seconds from the failure of a job's machine until its image is read elsewhere.
const RESTART_SECONDS: u64 = 600;

/// Only the pasts of this many hosts, the first ones, are compared with each other.
const PASTS_MAX: usize = 2_000;

/// Most rows of the table behind a choice.
const ROWS_MAX: usize = 100;

// `codec` and `placement` do not know each other, so each has the default code of a save.
const _: () = assert!(
    Width::FALCON.data() == Redundancy::DEFAULT.data()
        && Width::FALCON.parity() == Redundancy::DEFAULT.parity(),
    "placement::Width::FALCON differs from codec::Redundancy::DEFAULT"
);

/// What is known of a host that answered.
#[derive(Clone, Debug)]
pub struct HostView {
    /// Which host it is.
    pub host: HostIndex,
    /// Time of one question and answer, seconds.
    pub rtt_seconds: f64,
    /// Rate of earlier transfers.
    pub measured: Option<RateForecast>,
    /// Whether a probe has shown that it is not slow.
    pub passed_probe: bool,
    /// What the host announced of itself.
    pub claims: Option<Announced>,
    /// What this client saw of the host.
    pub seen: Option<KnownHost>,
    /// Failure domains of the host.
    pub domains: Domains,
    /// Bytes that the host has free for shards.
    pub free_bytes: u64,
}

/// How many shards are asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CodeRequest {
    /// This width, however few hosts take a shard.
    Width(Width),
    /// This width or, where too few hosts take a shard, one with fewer data shards and the same parity.
    AtMost(Width),
    /// Those that are stored in the least time and reach this probability of being able to restart.
    Target(Probability),
    /// Where enough is known of the pool's past ([`PoolPast::is_enough`]), those with which the job is expected to lose
    /// the least time, within the bounds of a code that nobody asked for ([`Bounds::usual`]). Elsewhere
    /// 3 and 2 or, where too few hosts take a shard, fewer data shards and the same parity.
    Usual,
}

impl CodeRequest {
    /// The width to calculate with before the hosts are known.
    const fn width(self) -> Width {
        match self {
            Self::Width(width) | Self::AtMost(width) => width,
            Self::Target(_) | Self::Usual => Width::FALCON,
        }
    }
}

/// What a [`CodeRequest`] comes to with the hosts that there are.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    /// Exactly this width.
    Width(Width),
    /// The best width for this aim within these bounds.
    Best(Aim, Bounds),
}

impl Wanted {
    /// The width to calculate with before the choice is made.
    const fn width(self) -> Width {
        match self {
            Self::Width(width) => width,
            Self::Best(..) => Width::FALCON,
        }
    }
}

/// The width for which there are hosts: `usual`, or one with fewer data shards and the same parity. Hosts that
/// take no shards now count only if the others are too few even for one data shard.
fn settled(usual: Width, question: &Question, views: &[HostView]) -> Width {
    let narrowest = Width::new(1, usual.parity()).unwrap_or(usual);
    let taking = |width: Width| {
        let reserves = views.iter().map(|view| reserve(view, question, width));
        reserves
            .filter(|reserve| reserve.is_none_or(|why| why == Reserve::ComputeHost))
            .count()
    };
    narrowed(usual, taking)
        .or_else(|| narrowed(usual, |_| views.len()))
        .unwrap_or(narrowest)
}

/// What is to be placed, and what the choice depends on besides the hosts.
#[derive(Clone, Debug)]
pub struct Question {
    /// Bytes after compression; an estimate.
    pub stored_bytes: u64,
    /// How many shards are asked for.
    pub code: CodeRequest,
    /// Seconds of work that are lost if the job can't restart.
    pub work_seconds: f64,
    /// Seconds until the next checkpoint is expected.
    pub interval_seconds: f64,
    /// The machine on which the job runs, if it is one of the hosts.
    pub compute: Option<HostIndex>,
    /// Bytes per second that this machine can send to all hosts together, if that is known.
    pub uplink: Option<f64>,
    /// The incidents of the whole pool that this machine saw.
    pub watched: Watched,
    /// Breaks ties between equal hosts; each checkpoint has another seed.
    pub seed: [u8; 16],
    /// Present time, Unix seconds.
    pub now: u64,
}

/// The hosts among which a choice is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Among {
    /// All hosts that answered.
    #[default]
    All,
    /// As many as there are shards, drawn at random, whatever is known of them: the baseline with which
    /// choices are compared (FALCON's `Random`).
    Random,
    /// These hosts and no other.
    These(Vec<HostIndex>),
}

impl Among {
    /// Keeps those hosts. A random draw keeps `shards` of them, and prefers hosts that take a shard.
    pub fn leave(
        &self,
        mut views: Vec<HostView>,
        question: &Question,
        shards: usize,
    ) -> Vec<HostView> {
        match self {
            Self::All => {}
            Self::These(hosts) => views.retain(|view| hosts.contains(&view.host)),
            Self::Random => {
                views.sort_by_cached_key(|view| {
                    let drawn = [&question.seed[..], &view.host.0.to_le_bytes()].concat();
                    let drawn = *blake3::hash(&drawn).as_bytes();
                    let reserve = reserve(view, question, question.code.width());
                    (reserve.map(|reserve| reserve as u8), drawn)
                });
                views.truncate(shards);
            }
        }
        views
    }
}

/// Why a host is only used when there are too few others; variants in the order in which such hosts are
/// taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// The host has no room.
    NoRoom,
    /// The host announced that it takes no shards at present.
    Refuses,
    /// The job itself runs on it.
    ComputeHost,
}

/// One host in the table behind a choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The host that the row is about.
    pub host: HostIndex,
    /// Whether it was chosen.
    pub chosen: bool,
    /// Why it is only a reserve.
    pub reserve: Option<Reserve>,
    /// State of its machine, as the host announced.
    pub guest_state: Option<AvailabilityState>,
    /// State of its disk, as the host announced.
    pub storage_state: Option<StorageState>,
    /// Expected rate, bytes per second.
    pub rate: f64,
    /// Whether the rate was measured.
    pub rate_is_measured: bool,
    /// Probability that the host stays connected until the next checkpoint.
    pub stays: Option<Probability>,
    /// Probability that the host can be read when it has to be.
    pub readable: Probability,
    /// Largest correlation with a chosen host.
    pub correlation: f64,
    /// Objective of the best set with this host.
    pub with: Option<Score>,
    /// Objective of the best set without this host.
    pub without: Option<Score>,
}

/// The chosen hosts, and why.
#[derive(Clone, Debug)]
pub struct Placed {
    /// How many data and parity shards are to be stored. Where hosts are too few for a width that is kept to,
    /// more than `width` has.
    pub code: Width,
    /// How many data and parity shards have a host.
    pub width: Width,
    /// Whether `code` has fewer data shards than usual, because too few hosts take a shard.
    pub is_narrowed: bool,
    /// Whether the code was chosen by forecast without having been asked for.
    pub is_forecast: bool,
    /// Whether the target is reached; true when none was set.
    pub reaches_target: bool,
    /// Hosts in order of preference; the first `width.total()` are the chosen ones.
    pub order: Vec<HostIndex>,
    /// How many of these are no reserves.
    pub ready: usize,
    /// Objective of the chosen set.
    pub score: Score,
    /// For each level, most chosen hosts in one failure domain; `None` unless one of these is more than the
    /// parity.
    pub crowded: Option<Caps>,
    /// Probability that the compute host fails before the next checkpoint.
    pub need: Probability,
    /// The table behind the choice, chosen hosts first.
    pub rows: Vec<Row>,
}

impl Placed {
    /// Chooses the `hosts` of the version before first, as far as they are no reserves: a version that uses rows of it
    /// needs these hosts, too, and more hosts would be one more way to lose it.
    pub fn prefer(&mut self, hosts: &[HostIndex]) {
        let ready = self.order.len().min(self.ready);
        if let Some(ready) = self.order.get_mut(..ready) {
            // The sort is stable.
            ready.sort_by_key(|host| !hosts.contains(host));
        }
        let chosen = self.chosen().to_vec();
        for row in &mut self.rows {
            row.chosen = chosen.contains(&row.host);
        }
        self.rows.sort_by_key(|row| !row.chosen);
    }

    /// The chosen hosts.
    pub fn chosen(&self) -> &[HostIndex] {
        let count = self.order.len().min(self.width.total());
        self.order.get(..count).unwrap_or_default()
    }

    /// The code as it is stored.
    ///
    /// # Errors
    /// When `code` has more data or parity shards than a checkpoint can have.
    pub fn redundancy(&self) -> Result<Redundancy, RedundancyError> {
        // A number that is cut off is still out of range.
        let number = |count: usize| u8::try_from(count).unwrap_or(u8::MAX);
        Redundancy::new(number(self.code.data()), number(self.code.parity()))
    }
}

/// Chooses hosts; `None` when there are too few for a single data shard. With fewer hosts than shards,
/// all of them are chosen. Only with `explain` does the answer have rows.
pub fn place(views: &[HostView], question: &Question, explain: bool) -> Option<Placed> {
    let pool = pool(views, question);
    let with = |wanted| place_wanted(views, question, wanted, pool, explain);
    let at_most = |usual| {
        let width = settled(usual, question, views);
        let placed = with(Wanted::Width(width))?;
        Some(Placed {
            is_narrowed: width != usual,
            ..placed
        })
    };
    match question.code {
        CodeRequest::Width(width) => with(Wanted::Width(width)),
        CodeRequest::AtMost(usual) => at_most(usual),
        CodeRequest::Target(target) => {
            let placed = with(Wanted::Best(Aim::Reliability(target), Bounds::ASKED));
            // If no hosts have room for any code, the save may still find some that have it by then.
            placed.or_else(|| {
                Some(Placed {
                    reaches_target: false,
                    ..at_most(Width::FALCON)?
                })
            })
        }
        CodeRequest::Usual if pool.is_enough() => {
            let takes = |view: &&HostView| reserve(view, question, Width::FALCON).is_none();
            let bounds = Bounds::usual(views.iter().filter(takes).count());
            let usual = settled(Width::FALCON, question, views);
            let placed = with(Wanted::Best(Aim::LeastLoss, bounds));
            // With fewer than three hosts there is no code that can lose two of them.
            let placed = placed.filter(|placed| placed.code.parity() >= bounds.least_parity);
            let forecast = placed
                .filter(|placed| placed.code != usual)
                .map(|placed| Placed {
                    is_forecast: true,
                    ..placed
                });
            forecast.or_else(|| at_most(Width::FALCON))
        }
        CodeRequest::Usual => at_most(Width::FALCON),
    }
}

/// What hosts announced, and this machine saw, of incidents of the whole pool.
fn pool(views: &[HostView], question: &Question) -> PoolPast {
    let claims = views.iter().filter_map(|view| view.claims.as_ref());
    let bitmaps: Vec<_> = claims.map(|claims| &claims.presence_bitmap).collect();
    PoolPast::seen(&bitmaps).and(question.watched)
}

/// Chooses hosts of a pool with this past, and the code if it is not given.
fn place_wanted(
    views: &[HostView],
    question: &Question,
    wanted: Wanted,
    pool: PoolPast,
    explain: bool,
) -> Option<Placed> {
    let unknown = unknown_rate(views);
    let reserve_of = |i: usize| reserve(&views[i], question, wanted.width());
    let (mut ready, mut rest): (Vec<usize>, Vec<usize>) =
        (0..views.len()).partition(|i| reserve_of(*i).is_none());
    rest.sort_by_key(|i| reserve_of(*i).map(|reserve| reserve as u8));
    let fewest = match wanted {
        Wanted::Width(width) => width.total(),
        Wanted::Best(..) => 0,
    };
    let missing = fewest.saturating_sub(ready.len()).min(rest.len());
    ready.extend(rest.drain(..missing));

    let candidates: Vec<Candidate> = ready
        .iter()
        .map(|i| candidate(&views[*i], question, wanted, unknown))
        .collect();
    let candidates = rounded(candidates);
    let compute = compute(views, question);
    let need = compute.survives.complement();
    let joint = correlated(views, &ready, &candidates, compute, pool);
    let stake = stake(question, need);
    let Coded {
        code,
        width,
        candidates,
        choice,
        reaches_target,
    } = coded(wanted, &candidates, &stake, &joint)?;
    let stake = Stake { width, ..stake };
    let mut spares = spares(&choice, &candidates, &stake, &joint);
    spares.sort_by_key(|at| !candidates[*at].has_room(&stake));
    let order = choice.hosts.iter().chain(&spares).map(|i| ready[*i]);
    let order: Vec<usize> = order.chain(rest.iter().copied()).collect();
    let rows = if explain {
        let table = Table {
            views,
            ready: &ready,
            candidates: &candidates,
            question,
            code,
        };
        table.rows(&choice, &spares, &rest, &stake, &joint)
    } else {
        Vec::new()
    };
    let too_many = |cap: &Option<usize>| cap.is_none_or(|cap| cap > width.parity().max(1));
    Some(Placed {
        code,
        width,
        is_narrowed: false,
        is_forecast: false,
        reaches_target,
        ready: order.len() - rest.len(),
        order: order.into_iter().map(|i| views[i].host).collect(),
        score: choice.score,
        crowded: crowding(&choice, &candidates).filter(|crowd| crowd.iter().any(too_many)),
        need,
        rows,
    })
}

/// What is at stake, before the code is known.
fn stake(question: &Question, need: Probability) -> Stake {
    Stake {
        stored_bytes: question.stored_bytes.max(1),
        width: Width::FALCON,
        lead_seconds: LEAD_SECONDS,
        uplink_bytes_per_second: question.uplink,
        need,
        work_seconds: question.work_seconds,
    }
}

/// Hosts, and the code for which they were chosen.
struct Coded {
    code: Width,
    width: Width,
    /// The candidates, levelled for this width.
    candidates: Vec<Candidate>,
    choice: Choice,
    reaches_target: bool,
}

/// Chooses hosts, and the code if it is not given.
fn coded(
    wanted: Wanted,
    candidates: &[Candidate],
    stake: &Stake,
    joint: &Correlated,
) -> Option<Coded> {
    match wanted {
        Wanted::Width(code) => {
            let width = fitting(code, candidates.len())?;
            let stake = Stake { width, ..*stake };
            let candidates = level(candidates, &stake);
            Some(Coded {
                code,
                width,
                choice: choose(&candidates, &stake, joint).ok()?,
                candidates,
                reaches_target: true,
            })
        }
        Wanted::Best(aim, bounds) => {
            let chosen = choose_with_code(candidates, stake, joint, aim, bounds)?;
            let width = chosen.width;
            Some(Coded {
                code: width,
                width,
                candidates: level(candidates, &Stake { width, ..*stake }),
                choice: chosen.choice,
                reaches_target: chosen.reaches_target,
            })
        }
    }
}

/// The width, narrowed to the number of hosts. Whether a save goes on with fewer shards is for its session
/// to decide.
fn fitting(width: Width, hosts: usize) -> Option<Width> {
    if width.total() <= hosts {
        return Some(width);
    }
    let data = width.data().min(hosts);
    Width::new(data, hosts - data)
}

/// Most chosen hosts in one domain, for each level; zero where no domain is known.
fn crowding(choice: &Choice, candidates: &[Candidate]) -> Option<Caps> {
    let most = |level: usize| {
        let mut counts = BTreeMap::new();
        for domain in choice
            .hosts
            .iter()
            .filter_map(|host| candidates[*host].domains[level])
        {
            *counts.entry(domain).or_insert(0) += 1;
        }
        counts.values().copied().max().unwrap_or(0)
    };
    Some(std::array::from_fn(|level| Some(most(level))))
}

/// Why a host is no candidate for a shard of a code of this `width`.
fn reserve(view: &HostView, question: &Question, width: Width) -> Option<Reserve> {
    let refuses = view
        .claims
        .as_ref()
        .is_some_and(|claims| claims.refuses_for_s > 0);
    if question.compute == Some(view.host) {
        Some(Reserve::ComputeHost)
    } else if refuses {
        Some(Reserve::Refuses)
    } else if view.free_bytes < question.stored_bytes / width.data() as u64 {
        Some(Reserve::NoRoom)
    } else {
        None
    }
}

/// The rate that is assumed of a host that was never measured: what measured hosts have.
fn unknown_rate(views: &[HostView]) -> RateForecast {
    let measured = views.iter().filter_map(|view| view.measured);
    RateForecast::of_unknown(measured.map(|rate| rate.median()))
        .unwrap_or_else(|| RateForecast::saturating(FIRST_RATE, UNKNOWN_SPREAD))
}

/// The measured rate, or the assumed one, limited to what the host announced that it can take.
fn rate(view: &HostView, unknown: RateForecast) -> RateForecast {
    let claimed = view
        .claims
        .as_ref()
        .and_then(|claims| claims.receives_bytes_per_s);
    let spread = if view.passed_probe {
        PROBED_SPREAD
    } else {
        unknown.spread()
    };
    let unknown = RateForecast::saturating(unknown.median(), spread);
    let assumed = || claimed.map_or(unknown, |limit| unknown.limited_to(limit as f64));
    view.measured.unwrap_or_else(assumed)
}

fn candidate(
    view: &HostView,
    question: &Question,
    wanted: Wanted,
    unknown: RateForecast,
) -> Candidate {
    Candidate {
        rate: rate(view, unknown),
        rtt_seconds: view.rtt_seconds,
        readable: readable(view, question),
        free_bytes: match wanted {
            // Hosts without room are reserves already.
            Wanted::Width(_) => u64::MAX,
            Wanted::Best(..) => view.free_bytes,
        },
        domains: view.domains,
        draw: draw(&question.seed, view.host),
    }
}

fn draw(seed: &[u8; 16], host: HostIndex) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(seed).update(&(host.0 as u64).to_le_bytes());
    let mut first = [0; 8];
    hasher.finalize_xof().fill(&mut first);
    u64::from_le_bytes(first)
}

/// Probability that a host can be read when it has to be: what the host announced, as far as what was seen
/// of it bears that out.
fn readable(view: &HostView, question: &Question) -> Probability {
    let claimed = view.claims.as_ref().map_or_else(
        || Probability::saturating(FIRST_READABLE),
        |claims| {
            let bitmap = &claims.presence_bitmap;
            let hours = |slots: u32| u64::from(slots / 12);
            let long_run = Probability::jeffreys(
                hours(bitmap.usable().count()),
                hours(bitmap.known().count()),
            );
            readable_within(&claims.presence, long_run, question.interval_seconds)
        },
    );
    view.seen
        .as_ref()
        .map_or(claimed, |seen| seen.trusted(claimed, question.now))
}

/// Probability over time that a host stays connected of which nothing is known.
pub fn presence_of_unknown() -> SurvivalCurve {
    let model = HazardModel::pretrained();
    let nothing = HostSummary::<Presence>::new(0);
    model.curve(&nothing.covariates(model.pool()), CURVE_STEP, 120)
}

const CURVE_STEP: std::num::NonZeroU32 = std::num::NonZeroU32::new(300).unwrap();

fn compute(views: &[HostView], question: &Question) -> Compute {
    let view = question
        .compute
        .and_then(|host| views.iter().find(|view| view.host == host));
    let claims = view.and_then(|view| view.claims.as_ref());
    let survives = |curve: &SurvivalCurve| curve.at(question.interval_seconds);
    // The job ends when its machine goes away. An owner who uses the processor or the memory ends no job as
    // long as nobody evicts it, and the load that is seen may be the job's own.
    Compute {
        survives: claims.map_or_else(
            || survives(&presence_of_unknown()),
            |claims| survives(&claims.presence),
        ),
        domains: view.map_or([None; LEVELS], |view| view.domains),
        failures: claims.map(|claims| claims.presence_bitmap.failures()),
        restart_seconds: RESTART_SECONDS,
    }
}

fn correlated(
    views: &[HostView],
    ready: &[usize],
    candidates: &[Candidate],
    compute: Compute,
    pool: PoolPast,
) -> Correlated {
    let members = ready
        .iter()
        .zip(candidates)
        .enumerate()
        .map(|(n, (i, candidate))| Member {
            readable: candidate.readable,
            domains: candidate.domains,
            past: views[*i]
                .claims
                .as_ref()
                .filter(|_| n < PASTS_MAX)
                .map(|claims| claims.presence_bitmap.clone()),
        });
    Correlated::learn_in(pool, members.collect(), Some(compute))
}

/// The data of which the rows of the table are made.
struct Table<'a> {
    views: &'a [HostView],
    ready: &'a [usize],
    candidates: &'a [Candidate],
    question: &'a Question,
    /// The code for whose shards hosts need room.
    code: Width,
}

impl Table<'_> {
    fn rows(
        &self,
        choice: &Choice,
        spares: &[usize],
        rest: &[usize],
        stake: &Stake,
        joint: &Correlated,
    ) -> Vec<Row> {
        let ready = choice.hosts.iter().chain(spares).map(|at| {
            let chosen = choice.hosts.contains(at);
            let others = choice.hosts.iter().filter(|other| *other != at);
            Row {
                chosen,
                correlation: others
                    .map(|other| joint.correlation(*at, *other))
                    .fold(0.0, f64::max),
                with: Some(if chosen {
                    choice.score
                } else {
                    with(choice, self.candidates, stake, joint, *at)
                }),
                without: if chosen {
                    without(choice, self.candidates, stake, joint, *at)
                } else {
                    Some(choice.score)
                },
                ..self.row(self.ready[*at], Some(&self.candidates[*at]))
            }
        });
        let rest = rest.iter().map(|i| self.row(*i, None));
        ready.chain(rest).take(ROWS_MAX).collect()
    }

    fn row(&self, view: usize, candidate: Option<&Candidate>) -> Row {
        let view = &self.views[view];
        let claims = view.claims.as_ref();
        let known = candidate.map(|candidate| candidate.rate).or(view.measured);
        Row {
            host: view.host,
            chosen: false,
            reserve: reserve(view, self.question, self.code),
            guest_state: claims.map(|claims| claims.guest_state),
            storage_state: claims.map(|claims| claims.storage_state),
            rate: known.map_or(0.0, |rate| rate.median()),
            rate_is_measured: view.measured.is_some(),
            stays: claims.map(|claims| claims.presence.at(self.question.interval_seconds)),
            readable: readable(view, self.question),
            correlation: 0.0,
            with: None,
            without: None,
        }
    }
}

/// Numbers the failure domains of hosts: site and owner as the grid file names them. A host without a
/// site is in the domain of its network (/24 or /48). Hosts on loopback addresses, which are for trials,
/// are in no network.
#[derive(Debug, Default)]
pub struct DomainNames {
    numbers: BTreeMap<String, u32>,
}

impl DomainNames {
    /// The domains of a host: its site or network, and its owner.
    pub fn of(&mut self, site: Option<&str>, owner: Option<&str>, addr: IpAddr) -> Domains {
        let place = site
            .map(|site| format!("site {site}"))
            .or_else(|| network(addr));
        [
            place.map(|name| self.number(name)),
            owner.map(|owner| self.number(format!("owner {owner}"))),
        ]
    }

    fn number(&mut self, name: String) -> DomainId {
        let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
        DomainId(*self.numbers.entry(name).or_insert(next))
    }
}

fn network(addr: IpAddr) -> Option<String> {
    if addr.is_loopback() {
        return None;
    }
    Some(match addr {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            format!("net {a}.{b}.{c}.0/24")
        }
        IpAddr::V6(v6) => {
            let [a, b, c, ..] = v6.segments();
            format!("net {a:x}:{b:x}:{c:x}::/48")
        }
    })
}

#[cfg(test)]
mod tests;
