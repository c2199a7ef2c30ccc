//! The simulation: jobs from event to event.

use placement::interval::{daly, first_after};
use placement::objective::Width;
use placement::state::{ModelState, Presence};
use rand::Rng;
use rand::seq::IndexedRandom;

use crate::draw::{Purpose, draws, lognormal};
use crate::flow::{End, Flow, Flows, Plan};
use crate::job::{Generation, Job, Phase, Restore, Store};
use crate::knowledge::Knowledge;
use crate::outcome::JobOutcome;
use crate::policy::{LEAD_SECONDS, Policy, Question};
use crate::server::Server;
use crate::settings::{Rule, Settings};
use crate::world::Host;

/// What the first checkpoint of a job is expected to cost, seconds.
const FIRST_COST_SECONDS: f64 = 60.0;
/// Shortest time between checkpoints, seconds.
const LEAST_INTERVAL_SECONDS: f64 = 30.0;
/// Time between looks whether storage hosts are back, seconds.
const POLL_SECONDS: f64 = 60.0;
/// A job is given up after so many times its work.
const LONGEST_MAKESPAN: f64 = 20.0;
/// Bound on the events of a run; nothing comes near it.
const EVENTS_MAX: u64 = 50_000_000;

/// Runs the jobs in the grid from its start until they are done or the trace ends. `knowledge` is
/// what was known at the start.
#[must_use]
pub fn run(knowledge: &Knowledge<'_>, settings: &Settings, policy: Policy) -> Vec<JobOutcome> {
    let mut simulation = Simulation::new(knowledge.clone(), *settings, policy);
    for _ in 0..EVENTS_MAX {
        if !simulation.step() {
            break;
        }
    }
    simulation.outcomes()
}

/// Whether a checkpoint can be read.
struct Readable {
    /// Hosts known to be there.
    here: Vec<usize>,
    /// Hosts of which that is unknown.
    unknown: Vec<usize>,
    needed: usize,
}

impl Readable {
    const fn possible(&self) -> bool {
        self.here.len() + self.unknown.len() >= self.needed
    }

    const fn certain(&self) -> bool {
        self.here.len() >= self.needed
    }
}

struct Simulation<'a> {
    knowledge: Knowledge<'a>,
    settings: Settings,
    policy: Policy,
    server: Server,
    flows: Flows,
    jobs: Vec<Job>,
    /// Seconds since the start.
    now: f64,
    end: f64,
}

impl<'a> Simulation<'a> {
    fn new(knowledge: Knowledge<'a>, settings: Settings, policy: Policy) -> Self {
        let grid = knowledge.grid;
        let trace_left = knowledge.world.span().end.saturating_sub(grid.start) as f64;
        let end = trace_left.min(LONGEST_MAKESPAN * settings.work_seconds);
        let places = (0..grid.hosts.len()).map(|host| knowledge.place(host));
        let mut access: Vec<f64> = places
            .map(|place| settings.network.access(grid.seed, place))
            .collect();
        access.push(settings.network.interface);
        Self {
            server: Server::new(grid.seed, end),
            flows: Flows::new(access, settings.network.interface),
            jobs: vec![Job::new(settings.work_seconds, FIRST_COST_SECONDS); settings.jobs],
            knowledge,
            settings,
            policy,
            now: 0.0,
            end,
        }
    }

    /// Goes on to the next event and lets it happen; false when there is none.
    fn step(&mut self) -> bool {
        self.flows.share(self.now);
        let jobs = self.jobs.iter().map(Job::next_event);
        let next = jobs
            .fold(self.flows.next_event(self.now), f64::min)
            .max(self.now);
        if next >= self.end {
            return false;
        }
        self.flows.advance(next - self.now);
        self.now = next;
        while let Some((flow, end)) = self.flows.take_ended(next) {
            self.transfer_ended(&flow, end);
        }
        for job in 0..self.jobs.len() {
            if self.jobs[job].fails_at <= next {
                self.evict(job);
            } else if self.jobs[job].timer <= next {
                self.timer(job);
            }
        }
        true
    }

    fn outcomes(mut self) -> Vec<JobOutcome> {
        let end = self.end;
        for job in &mut self.jobs {
            if !job.outcome.finished {
                job.stop_working(end);
                job.outcome.makespan_seconds = end;
            }
        }
        self.jobs.into_iter().map(|job| job.outcome).collect()
    }

    fn unix(&self, at: f64) -> u64 {
        self.knowledge.grid.start + at as u64
    }

    fn timer(&mut self, job: usize) {
        match self.jobs[job].phase {
            Phase::Queued => self.find_host(job),
            Phase::Working { .. } => self.work_stops(job),
            Phase::Awaiting { .. } => self.restore(job),
            Phase::Storing(_) | Phase::Restoring(_) | Phase::Done => {
                self.jobs[job].timer = f64::INFINITY;
            }
        }
    }

    /// Takes any host on which a guest can run.
    fn find_host(&mut self, job: usize) {
        let now = self.unix(self.now);
        let taken: Vec<usize> = self.jobs.iter().filter_map(|job| job.compute).collect();
        let free = |host: &usize| {
            !taken.contains(host) && self.knowledge.host(*host).usable(now) == Some(true)
        };
        let free: Vec<usize> = (0..self.knowledge.grid.hosts.len()).filter(free).collect();
        let keys = [job as u64, self.jobs[job].outcome.evictions, 0];
        let mut rng = draws(self.knowledge.grid.seed, Purpose::Compute, keys);
        let Some(host) = free.choose(&mut rng).copied() else {
            self.jobs[job].timer = self.now + self.settings.restart_seconds;
            return;
        };
        let fails = Host::first(
            &self.knowledge.host(host).guest,
            now,
            ModelState::is_failure,
        );
        let start = self.knowledge.grid.start;
        let this = &mut self.jobs[job];
        this.compute = Some(host);
        this.fails_at = fails.map_or(f64::INFINITY, |at| (at - start) as f64);
        this.counted = false;
        if this.generations.is_empty() {
            this.go_back_to(0.0);
            self.work(job);
            return;
        }
        this.outcome.restores += 1;
        self.restore(job);
    }

    /// The compute host is lost to the job.
    fn evict(&mut self, job: usize) {
        let now = self.now;
        self.look(job);
        let moved = self.flows.cancel(job);
        let this = &mut self.jobs[job];
        this.stop_working(now);
        match &this.phase {
            Phase::Storing(_) => this.outcome.sent_bytes += moved,
            Phase::Restoring(restore) => {
                this.outcome.read_bytes += moved;
                this.outcome.restore_seconds += now - restore.begun;
            }
            Phase::Awaiting { since } => this.outcome.waiting_seconds += now - since,
            Phase::Queued | Phase::Working { .. } | Phase::Done => {}
        }
        this.reached = this.reached.max(this.progress);
        this.outcome.evictions += 1;
        this.compute = None;
        this.fails_at = f64::INFINITY;
        this.phase = Phase::Queued;
        this.timer = now + self.settings.restart_seconds;
    }

    /// Computes until the next checkpoint or the end.
    fn work(&mut self, job: usize) {
        let left = self.settings.work_seconds - self.jobs[job].progress;
        let interval = self.interval(job, left).max(LEAST_INTERVAL_SECONDS);
        let this = &mut self.jobs[job];
        this.phase = Phase::Working { since: self.now };
        this.timer = self.now + interval.min(left);
    }

    /// Work until the next checkpoint; at least `left` if none is worth while.
    fn interval(&mut self, job: usize, left: f64) -> f64 {
        let now = self.unix(self.now);
        let this = &self.jobs[job];
        let Some(compute) = this.compute else {
            return left;
        };
        match self.settings.rule {
            Rule::Daly => daly(this.expected_cost, self.knowledge.mean_stay(compute, now)),
            Rule::Accumulator => {
                let (hazard, _) = self.knowledge.guest(compute, now);
                first_after(&hazard, this.expected_cost, left).unwrap_or(left)
            }
        }
    }

    /// It is time for a checkpoint, or the work is done.
    fn work_stops(&mut self, job: usize) {
        let now = self.now;
        self.jobs[job].stop_working(now);
        let left = self.settings.work_seconds - self.jobs[job].progress;
        if left < 1e-3 {
            self.look(job);
            let this = &mut self.jobs[job];
            this.phase = Phase::Done;
            (this.timer, this.fails_at) = (f64::INFINITY, f64::INFINITY);
            this.compute = None;
            this.outcome.finished = true;
            this.outcome.makespan_seconds = now;
            return;
        }
        self.store(job, left);
    }

    fn store(&mut self, job: usize, left: f64) {
        let width = self.policy.width(self.settings.width);
        let interval = self.interval(job, left).min(left);
        let chosen = self.choose(job, interval, width, &[]);
        let Some((hosts, width)) = chosen else {
            self.jobs[job].outcome.not_stored += 1;
            self.work(job);
            return;
        };
        let this = &mut self.jobs[job];
        let shard_bytes = self.settings.image_bytes as f64 / width.data() as f64;
        this.number += 1;
        this.timer = f64::INFINITY;
        this.phase = Phase::Storing(Store {
            begun: self.now,
            data: width.data(),
            shard_bytes,
            stored: Vec::new(),
            asked: hosts.clone(),
        });
        for host in hosts {
            self.transfer(job, host, shard_bytes, self.now, true);
        }
    }

    /// Hosts for a checkpoint, and the code that they allow.
    fn choose(
        &mut self,
        job: usize,
        interval: f64,
        width: Width,
        without: &[usize],
    ) -> Option<(Vec<usize>, Width)> {
        if self.policy == Policy::Dedicated {
            let server = self.knowledge.grid.hosts.len();
            let free = self.server.is_up(self.now) && without.is_empty();
            return free.then_some((vec![server], width));
        }
        let this = &self.jobs[job];
        let saved = this
            .generations
            .last()
            .map_or(0.0, |newest| newest.progress);
        let question = Question {
            job,
            number: this.number,
            compute: this.compute?,
            now: self.unix(self.now),
            interval_seconds: interval + this.expected_cost,
            work_seconds: this.progress - saved,
        };
        let chosen = self.policy.choose(
            &mut self.knowledge,
            &self.settings,
            &question,
            width,
            without,
        )?;
        Some((chosen.hosts, chosen.width))
    }

    /// Begins a transfer with the job's compute host not before `from`.
    fn transfer(&mut self, job: usize, far: usize, bytes: f64, from: f64, upload: bool) {
        let Some(near) = self.jobs[job].compute else {
            return;
        };
        let network = &self.settings.network;
        let seed = self.knowledge.grid.seed;
        let (a, b) = (self.knowledge.place(near), self.knowledge.place(far));
        let this = &mut self.jobs[job];
        this.transfers += 1;
        let keys = [job as u64, this.transfers, b.host];
        let mut noise = draws(seed, Purpose::Noise, keys);
        let mut chance = draws(seed, Purpose::Breaks, keys);
        let breaks = upload && chance.random::<f64>() < self.settings.breaks;
        let path = network.path(seed, a, b);
        let leaves = if far == self.knowledge.grid.hosts.len() {
            self.server.leaves(self.now)
        } else {
            let now = self.unix(self.now);
            let presence = &self.knowledge.host(far).presence;
            let away = Host::first(presence, now, |state| state == Presence::Away);
            away.map_or(f64::INFINITY, |at| (at - self.knowledge.grid.start) as f64)
        };
        self.flows.push(Flow::new(Plan {
            job,
            near,
            far,
            bytes,
            path: lognormal(&mut noise, path, network.noise),
            outside: a.site != b.site,
            starts: from + LEAD_SECONDS + network.round_trip(seed, a, b),
            breaks_with: breaks.then(|| bytes * chance.random::<f64>()),
            leaves,
        }));
    }

    fn transfer_ended(&mut self, flow: &Flow, end: End) {
        if end == End::Finished && flow.far < self.knowledge.grid.hosts.len() {
            let rate = flow.bytes / (self.now - flow.starts).max(1e-3);
            let now = self.unix(self.now);
            self.knowledge.observe_rate(flow.near, flow.far, now, rate);
        }
        match self.jobs[flow.job].phase.clone() {
            Phase::Storing(store) => {
                self.jobs[flow.job].outcome.sent_bytes += flow.moved();
                self.shard_sent(flow, end, store);
            }
            Phase::Restoring(restore) => {
                self.jobs[flow.job].outcome.read_bytes += flow.moved();
                self.shard_read(flow, end, restore);
            }
            _ => {}
        }
    }

    fn shard_sent(&mut self, flow: &Flow, end: End, mut store: Store) {
        let job = flow.job;
        if end == End::Finished {
            store.stored.push(flow.far);
        } else {
            let one = Width::new(1, 0).unwrap_or(self.settings.width);
            let interval = self.jobs[job].expected_cost;
            if let Some((hosts, _)) = self.choose(job, interval, one, &store.asked) {
                let from = self.now + self.settings.detect_seconds;
                for host in hosts {
                    store.asked.push(host);
                    self.transfer(job, host, store.shard_bytes, from, true);
                }
            }
        }
        if self.flows.count(job) > 0 {
            self.jobs[job].phase = Phase::Storing(store);
            return;
        }
        if store.stored.len() >= store.data {
            self.look(job);
            let now = self.now;
            self.jobs[job].commit(&store, now);
        } else {
            self.jobs[job].outcome.not_stored += 1;
        }
        self.work(job);
    }

    /// Reads the newest checkpoint back; if it cannot be read, waits for its hosts as long as the
    /// work would take that only it holds, then goes back to what can be read.
    fn restore(&mut self, job: usize) {
        let Some(newest) = self.jobs[job].generations.len().checked_sub(1) else {
            return;
        };
        let state = self.readable(&self.jobs[job].generations[newest], self.now);
        if state.possible() {
            self.jobs[job].outcome.unjudged += u64::from(!state.certain());
            self.stop_waiting(job);
            self.begin_restore(job, newest);
            return;
        }
        let older = self.jobs[job].generations[..newest].iter();
        let best = older
            .enumerate()
            .rev()
            .find(|(_, generation)| self.readable(generation, self.now).possible())
            .map(|(i, generation)| (i, generation.progress));
        let now = self.now;
        let this = &mut self.jobs[job];
        if !this.counted {
            this.counted = true;
            this.outcome.not_at_once += 1;
        }
        let since = match this.phase {
            Phase::Awaiting { since } => since,
            _ => now,
        };
        let worth = this.generations[newest].progress - best.map_or(0.0, |(_, progress)| progress);
        let left = since + worth - now;
        if left > 0.0 {
            this.phase = Phase::Awaiting { since };
            this.timer = now + left.min(POLL_SECONDS);
            return;
        }
        this.outcome.lost_newest += 1;
        self.stop_waiting(job);
        if let Some((generation, _)) = best {
            self.jobs[job].generations.truncate(generation + 1);
            self.begin_restore(job, generation);
        } else {
            let this = &mut self.jobs[job];
            this.outcome.from_scratch += 1;
            this.generations.clear();
            this.go_back_to(0.0);
            self.work(job);
        }
    }

    fn stop_waiting(&mut self, job: usize) {
        let now = self.now;
        let this = &mut self.jobs[job];
        if let Phase::Awaiting { since } = this.phase {
            this.outcome.waiting_seconds += now - since;
        }
    }

    fn begin_restore(&mut self, job: usize, generation: usize) {
        let found = self.jobs[job].generations[generation].clone();
        let needed = found.data;
        let hosts = self.fastest_readable(job, &found, &[]);
        let hosts: Vec<usize> = hosts.into_iter().take(needed).collect();
        let this = &mut self.jobs[job];
        this.timer = f64::INFINITY;
        this.phase = Phase::Restoring(Restore {
            begun: self.now,
            generation,
            read: 0,
            asked: hosts.clone(),
        });
        let bytes = self.settings.image_bytes as f64 / needed as f64;
        for host in hosts {
            self.transfer(job, host, bytes, self.now, false);
        }
    }

    /// The hosts of a checkpoint that may be there, known before unknown, then by expected rate.
    fn fastest_readable(&mut self, job: usize, of: &Generation, without: &[usize]) -> Vec<usize> {
        let state = self.readable(of, self.now);
        let Some(near) = self.jobs[job].compute else {
            return Vec::new();
        };
        let now = self.unix(self.now);
        let rated = |hosts: Vec<usize>, knowledge: &mut Knowledge<'_>| {
            let mut rated: Vec<(f64, usize)> = hosts
                .into_iter()
                .filter(|host| !without.contains(host))
                .map(|host| match host {
                    server if server == knowledge.grid.hosts.len() => (0.0, server),
                    host => {
                        let rate = knowledge.rate(&self.settings.network, (near, host), now);
                        (rate.median(), host)
                    }
                })
                .collect();
            rated.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            rated
        };
        let mut all = rated(state.here, &mut self.knowledge);
        all.extend(rated(state.unknown, &mut self.knowledge));
        all.into_iter().map(|(_, host)| host).collect()
    }

    fn shard_read(&mut self, flow: &Flow, end: End, mut restore: Restore) {
        let (job, now) = (flow.job, self.now);
        let generation = self.jobs[job].generations[restore.generation].clone();
        if end == End::Finished {
            restore.read += 1;
        } else {
            let others = self.fastest_readable(job, &generation, &restore.asked);
            let Some(other) = others.first().copied() else {
                // Too few are left: the restore has failed after all.
                let moved = self.flows.cancel(job);
                let this = &mut self.jobs[job];
                this.outcome.read_bytes += moved;
                this.outcome.restore_seconds += now - restore.begun;
                this.outcome.not_at_once += u64::from(!this.counted);
                this.counted = true;
                this.phase = Phase::Awaiting { since: now };
                this.timer = now + POLL_SECONDS;
                return;
            };
            restore.asked.push(other);
            let from = now + self.settings.detect_seconds;
            self.transfer(job, other, flow.bytes, from, false);
        }
        let this = &mut self.jobs[job];
        if restore.read < generation.data {
            this.phase = Phase::Restoring(restore);
            return;
        }
        this.outcome.restore_seconds += now - restore.begun;
        this.go_back_to(generation.progress);
        self.work(job);
    }

    fn readable(&self, generation: &Generation, at: f64) -> Readable {
        let (mut here, mut unknown) = (Vec::new(), Vec::new());
        for host in &generation.hosts {
            let state = if *host == self.knowledge.grid.hosts.len() {
                Some(self.server.is_up(at))
            } else {
                self.knowledge.host(*host).here(self.unix(at))
            };
            match state {
                Some(true) => here.push(*host),
                Some(false) => {}
                None => unknown.push(*host),
            }
        }
        Readable {
            here,
            unknown,
            needed: generation.data,
        }
    }

    fn look(&mut self, job: usize) {
        let mut looking = std::mem::replace(&mut self.jobs[job], Job::new(0.0, 0.0));
        looking.look(self.now, |generation, at| {
            self.readable(generation, at).possible()
        });
        self.jobs[job] = looking;
    }
}
