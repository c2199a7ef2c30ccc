//! What a program in the grid can know: what hosts have observed of themselves so far and announce, and
//! the rates of earlier transfers. Nothing here depends on the future of the trace.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use placement::absence::RepairWaits;
use placement::bandwidth::{Measurement, RateForecast, RateHistory};
use placement::bitmap::Slot;
use placement::hazard::{Forecaster, HazardModel};
use placement::history::{DAY_SECONDS, Timeline};
use placement::joint::{Member, PoolPast};
use placement::objective::readable_within;
use placement::state::{AvailabilityState, ModelState};
use placement::{AvailabilityBitmap, Probability, SurvivalCurve};
use supervision::patience::{Needs, Past};

use crate::draw::{Purpose, draws, lognormal};
use crate::keeper::Keeper;
use crate::network::{Location, Network};
use crate::world::{Grid, Host, World};

/// Length of the history that hosts keep.
pub(crate) const HISTORY_SECONDS: u64 = 28 * DAY_SECONDS;

/// Length of a step of an announced curve, seconds.
const CURVE_STEP: NonZeroU32 = NonZeroU32::new(300).unwrap();
/// Steps of an announced curve: ten hours.
const CURVE_STEPS: usize = 120;

/// Whoever rebuilds a shard compares hosts by the probability that they are there this many seconds from now.
const STAY_SECONDS: f64 = 36_000.0;

/// Slots in an hour.
const SLOTS_PER_HOUR: u32 = 12;

/// A timeline with its load samples, of which `load_seconds` is the length.
#[derive(Clone, Copy)]
struct Observed<'a> {
    states: &'a Timeline<AvailabilityState>,
    loads: &'a [(u64, f32)],
    load_seconds: u64,
}

/// What is derived from the past of such a timeline.
#[derive(Clone, Debug)]
struct View {
    forecaster: Forecaster<AvailabilityState>,
    bitmap: AvailabilityBitmap,
}

/// What is known in a grid at some moment.
#[derive(Clone, Debug)]
pub struct Knowledge<'a> {
    pub(crate) world: &'a World,
    pub(crate) grid: &'a Grid,
    model: &'a HazardModel,
    /// Views of the disks of all hosts of the grid.
    disks: Vec<View>,
    /// Views of the guest's states of the hosts that were asked for.
    guests: BTreeMap<usize, View>,
    /// Measured rates by compute host and storage host.
    rates: BTreeMap<(usize, usize), RateHistory>,
    /// Mean time to eviction in the grid before the jobs begin, seconds.
    pooled_mean: f64,
}

impl<'a> Knowledge<'a> {
    /// What is known when the jobs of `grid` begin. `model` predicts survival from a host's past.
    #[must_use]
    pub fn at(world: &'a World, grid: &'a Grid, model: &'a HazardModel) -> Self {
        let hosts = grid.hosts.iter().map(|host| &world.hosts[*host]);
        let disks = hosts
            .clone()
            .map(|host| View::new(model, host.disk_observed(world), grid.start));
        let window = grid.start.saturating_sub(HISTORY_SECONDS)..grid.start;
        let sums = hosts.map(|host| host.usable_seconds_and_failures(window.clone()));
        let (seconds, failures) = sums.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        Self {
            world,
            grid,
            model,
            disks: disks.collect(),
            guests: BTreeMap::new(),
            rates: BTreeMap::new(),
            pooled_mean: (seconds as f64 / (failures + 1) as f64).max(3600.0),
        }
    }

    /// What a host announces of its past.
    pub(crate) fn past(&self, host: usize) -> &AvailabilityBitmap {
        &self.disks[host].bitmap
    }

    /// The incidents of the whole grid, as its hosts announce them.
    pub(crate) fn pool(&self) -> PoolPast {
        let bitmaps = self.disks.iter().map(|view| &view.bitmap);
        PoolPast::seen(&bitmaps.collect::<Vec<_>>())
    }

    /// The host with this index into the grid's hosts.
    pub(crate) fn host(&self, host: usize) -> &'a Host {
        &self.world.hosts[self.grid.hosts[host]]
    }

    /// Location in the network of what keeps a shard.
    pub(crate) fn place_of(&self, keeper: Keeper) -> Location {
        match keeper {
            Keeper::Host(host) => self.place(host),
            Keeper::Server => Location {
                host: u64::MAX,
                site: u64::MAX,
            },
        }
    }

    /// Location of a host in the network.
    pub(crate) fn place(&self, host: usize) -> Location {
        let index = self.grid.hosts[host];
        let host = index as u64;
        let site = self.world.hosts[index].domains[0];
        let site = site.map_or((1 << 40) + host, |site| u64::from(site.0));
        Location { host, site }
    }

    /// Learns what the storage hosts have observed of themselves until `now`, Unix seconds.
    pub(crate) fn advance(&mut self, now: u64) {
        for (view, host) in self.disks.iter_mut().zip(&self.grid.hosts) {
            view.advance(
                self.model,
                self.world.hosts[*host].disk_observed(self.world),
                now,
            );
        }
    }

    /// Learns the rate, bytes per second, of a transfer that ended at `now`.
    pub(crate) fn observe_rate(&mut self, near: usize, far: usize, now: u64, rate: f64) {
        self.rates
            .entry((near, far))
            .or_default()
            .observe(Measurement {
                at: now,
                bytes_per_second: rate,
            });
    }

    /// Forecast of the rate between two hosts. A rate that was never measured is measured now by a probe.
    pub(crate) fn rate(
        &mut self,
        network: &Network,
        (near, far): (usize, usize),
        now: u64,
    ) -> RateForecast {
        if !self.rates.contains_key(&(near, far)) {
            let a = self.place(near);
            let b = self.place(far);
            let seed = self.grid.seed;
            let mut rate = network.path(seed, a, b);
            if a.site != b.site {
                let links = network.access(seed, a).min(network.access(seed, b));
                rate = rate.min(links);
            }
            let mut rng = draws(seed, Purpose::Probe, [a.host, b.host, 0]);
            let noisy = lognormal(&mut rng, rate.min(network.interface), network.probe_noise);
            self.observe_rate(near, far, now, noisy);
        }
        let known = self
            .rates
            .get(&(near, far))
            .and_then(|rates| rates.forecast(now));
        known.unwrap_or_else(|| RateForecast::saturating(network.path_median, 1.0))
    }

    /// Share of the last 28 days in which a host could be read.
    pub(crate) fn long_run(&self, host: usize) -> Probability {
        let bitmap = &self.disks[host].bitmap;
        let hours = |slots: u32| u64::from(slots / SLOTS_PER_HOUR);
        Probability::jeffreys(
            hours(bitmap.usable().count()),
            hours(bitmap.known().count()),
        )
    }

    /// Probability that a host can be read at a random moment within the next `horizon` seconds.
    pub(crate) fn readable(&self, host: usize, horizon: f64) -> Probability {
        let curve = self.presence(host);
        readable_within(&curve, self.long_run(host), horizon)
    }

    /// A storage host as a member of the pool.
    pub(crate) fn member(&self, host: usize, readable: Probability) -> Member {
        Member {
            readable,
            domains: self.host(host).domains,
            past: Some(self.disks[host].bitmap.clone()),
        }
    }

    /// Of these hosts, the one that stays for the next hours with the highest probability.
    pub(crate) fn steadiest(&self, hosts: impl Iterator<Item = usize>) -> Option<usize> {
        let stays = |host: usize| self.presence(host).at(STAY_SECONDS).value();
        let hosts = hosts.map(|host| (stays(host), host));
        let best = hosts.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        best.map(|(_, host)| host)
    }

    /// How many hosts are away at `now` and are expected back, as repair expects it at the most.
    pub(crate) fn expected_back(&self, now: u64) -> usize {
        let wait = RepairWaits::default().most.as_secs();
        let hosts = (0..self.grid.hosts.len()).map(|host| self.host(host));
        let away = hosts.filter(|host| host.here(now) == Some(false));
        away.filter(|host| !host.is_away_since(now, wait)).count()
    }

    /// Survival curve of a guest on a host, and the bitmap of when guests could run there in the past.
    pub(crate) fn guest(&mut self, host: usize, now: u64) -> (SurvivalCurve, AvailabilityBitmap) {
        let model = self.model;
        let of = self.host(host).guest_observed(self.world);
        let view = self
            .guests
            .entry(host)
            .or_insert_with(|| View::new(model, of, now));
        view.advance(model, of, now);
        let bitmap = view.bitmap.clone();
        let curve = self.curve(&self.guests[&host]);
        (curve, bitmap)
    }

    /// Survival curves, from `now` on, of a host's presence and of a guest on it.
    pub(crate) fn outlook(&mut self, host: usize, now: u64) -> (SurvivalCurve, SurvivalCurve) {
        let of = self.host(host).disk_observed(self.world);
        self.disks[host].advance(self.model, of, now);
        let presence = self.presence(host);
        (presence, self.guest(host, now).0)
    }

    /// How long owners needed their hosts for themselves (S3): the owner of `host` in the 28 days before
    /// `now`, and the owners of the grid's other hosts in the 28 days before the jobs began.
    pub(crate) fn owner_needs(&self, host: usize, now: u64) -> Past {
        let mut pool = Needs::default();
        for other in (0..self.grid.hosts.len()).filter(|other| *other != host) {
            pool.extend(self.host(other).needs(self.grid.start));
        }
        Past::new(&self.host(host).needs(now), &pool)
    }

    /// Mean time for which guests stayed on a host in the 28 days before `now`, seconds. One stay of the mean
    /// length over all hosts is added.
    pub(crate) fn mean_stay(&self, host: usize, now: u64) -> f64 {
        let window = now.saturating_sub(HISTORY_SECONDS)..now;
        let (seconds, failures) = self.host(host).usable_seconds_and_failures(window);
        (seconds as f64 + self.pooled_mean) / (failures + 1) as f64
    }

    fn presence(&self, host: usize) -> SurvivalCurve {
        self.curve(&self.disks[host])
    }

    /// The curve that a host announces.
    fn curve(&self, view: &View) -> SurvivalCurve {
        view.forecaster.curve(self.model, CURVE_STEP, CURVE_STEPS)
    }
}

impl Host {
    /// Times in S3 that ended before `now`, and times of use, in the 28 days before it.
    fn needs(&self, now: u64) -> Needs {
        let window = now.saturating_sub(HISTORY_SECONDS)..now;
        let mut needs = Needs::default();
        let mut usable = None;
        for run in self.guest.runs(window.clone()) {
            let seconds = (run.span.end.min(window.end) - run.span.start.max(window.start)) as f64;
            let is_usable = run.state.is_some_and(|state| !state.is_failure());
            if is_usable {
                usable = Some(usable.unwrap_or(0.0) + seconds);
                continue;
            }
            if let Some(seconds) = usable.take() {
                needs.uses.add(seconds, run.state.is_some());
            }
            if run.state == Some(AvailabilityState::CpuTaken) && run.span.end < now {
                needs.lengths.push((run.span.end - run.span.start) as f64);
            }
        }
        if let Some(seconds) = usable {
            needs.uses.add(seconds, false);
        }
        needs
    }

    fn disk_observed<'a>(&'a self, world: &World) -> Observed<'a> {
        Observed {
            states: &self.disk,
            loads: &self.disk_loads,
            load_seconds: world.load_seconds,
        }
    }

    fn guest_observed<'a>(&'a self, world: &World) -> Observed<'a> {
        Observed {
            states: &self.guest,
            loads: &self.loads,
            load_seconds: world.load_seconds,
        }
    }
}

impl View {
    fn new(model: &HazardModel, of: Observed<'_>, now: u64) -> Self {
        Self::fed(Forecaster::new(Self::begin(of, now)), model, of, now)
    }

    /// Where the past begins that is known at `now`.
    fn begin(of: Observed<'_>, now: u64) -> u64 {
        now.saturating_sub(HISTORY_SECONDS)
            .max(of.states.start().min(now))
    }

    fn fed(
        forecaster: Forecaster<AvailabilityState>,
        model: &HazardModel,
        of: Observed<'_>,
        now: u64,
    ) -> Self {
        let mut view = Self {
            forecaster,
            bitmap: of.states.bitmap(now, |state| !state.is_failure()),
        };
        view.feed(model, of, now);
        view
    }

    fn advance(&mut self, model: &HazardModel, of: Observed<'_>, now: u64) {
        self.feed(model, of, now);
        for slot in self.bitmap.newest().0 + 1..Slot::containing(now).0 {
            let slot = Slot(slot);
            let availability = of.states.slot(slot, |state| !state.is_failure());
            self.bitmap.record(slot, availability);
        }
    }

    /// Adds what happened until `now` to the forecaster, with the load samples that are complete by then.
    fn feed(&mut self, model: &HazardModel, of: Observed<'_>, now: u64) {
        let from = self.forecaster.summary().now();
        let length = of.load_seconds;
        let first = of.loads.partition_point(|(at, _)| at + length <= from);
        let loads = of.loads.iter().skip(first);
        for (at, load) in loads.take_while(|(at, _)| at + length <= now) {
            self.feed_states(model, of, *at);
            let state = of.states.state_at(*at);
            self.forecaster
                .observe(model, *at..at + length, state, Some(f64::from(*load)));
        }
        self.feed_states(model, of, now);
    }

    /// Adds the states until `until` without loads, for times that no complete sample covers.
    fn feed_states(&mut self, model: &HazardModel, of: Observed<'_>, until: u64) {
        let from = self.forecaster.summary().now();
        if from >= until {
            return;
        }
        for run in of.states.runs(from..until) {
            let span = run.span.start.max(from)..run.span.end.min(until);
            self.forecaster.observe(model, span, run.state, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Reading;

    #[test]
    fn the_future_is_not_known() {
        let host = |ends: AvailabilityState| {
            let mut timeline = Timeline::new(0);
            timeline.push(0..100_000, Some(AvailabilityState::Idle));
            timeline.push(100_000..110_000, Some(AvailabilityState::Gone));
            timeline.push(110_000..200_000, Some(AvailabilityState::Idle));
            timeline.push(200_000..400_000, Some(ends));
            Host::new(timeline, Vec::new(), None, None, Reading::Gone)
        };
        let model = HazardModel::pretrained();
        let known = |ends| {
            let world = World::new(vec![host(ends)], 0);
            let grid = Grid {
                hosts: vec![0],
                start: 150_000,
                seed: 0,
            };
            let mut knowledge = Knowledge::at(&world, &grid, &model);
            knowledge.advance(200_000);
            let (curve, bitmap) = knowledge.guest(0, 200_000);
            (
                knowledge.readable(0, 3600.0),
                knowledge.long_run(0),
                curve,
                bitmap,
            )
        };
        assert_eq!(
            known(AvailabilityState::Gone),
            known(AvailabilityState::Idle)
        );
    }

    #[test]
    fn knowledge_that_grew_is_that_made_at_once() {
        let mut timeline = Timeline::new(0);
        for i in 0..200_u64 {
            let state = if i % 7 == 3 {
                AvailabilityState::Gone
            } else {
                AvailabilityState::Idle
            };
            timeline.push(i * 5000..(i + 1) * 5000, Some(state));
        }
        let world = World::new(
            vec![Host::new(timeline, Vec::new(), None, None, Reading::Gone)],
            0,
        );
        let model = HazardModel::pretrained();
        let grid = |start| Grid {
            hosts: vec![0],
            start,
            seed: 0,
        };
        let early = grid(300_000);
        let late = grid(620_100);
        let mut grown = Knowledge::at(&world, &early, &model);
        for now in [301_000, 400_000, 555_555, 620_100] {
            grown.advance(now);
        }
        let fresh = Knowledge::at(&world, &late, &model);
        assert_eq!(grown.long_run(0), fresh.long_run(0));
        assert_eq!(grown.readable(0, 7200.0), fresh.readable(0, 7200.0));
    }
}
