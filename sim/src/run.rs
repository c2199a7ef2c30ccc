//! The simulation of jobs that store checkpoints on hosts, event by event.
//!
//! Events are the ends of transfers ([`crate::flow`]), timers of jobs (time for a checkpoint, a new attempt)
//! and evictions ([`crate::schedule`]). All times are seconds since the start of the grid unless they are
//! called Unix seconds.

use crate::schemes::Scheme;
use placement::Probability;
use placement::interval::{daly, first_after};
use placement::objective::Width;
use placement::renewal::OlderRows;
use rand::Rng;

use crate::draw::{Purpose, draws, lognormal};
use crate::flow::{End, Flow, Flows, Plan};
use crate::job::{AskedShard, Checkpoint, Content, Job, Phase, Restore, ShardProgress, Store};
use crate::jobs::{JobIndex, Jobs};
use crate::keeper::Keeper;
use crate::knowledge::Knowledge;
use crate::layers::{Part, PartState, Rows, next_version};
use crate::outcome::JobOutcome;
use crate::policy::{Policy, takers};
use crate::question::{LEAD_SECONDS, Question};
use crate::repair;
use crate::schedule::stays;
use crate::server::Server;
use crate::settings::{Rule, Settings, Versions};
use crate::wipes::Wipes;
use crate::world::Host;

/// Time for which the first checkpoint of a job is expected to hold it up, seconds.
const FIRST_COST_SECONDS: f64 = 60.0;
/// Shortest time between checkpoints, seconds.
const LEAST_INTERVAL_SECONDS: f64 = 30.0;
/// Time between two checks whether storage hosts are back, seconds.
const POLL_SECONDS: f64 = 60.0;
/// A job is given up after this many times its work.
const LONGEST_MAKESPAN: f64 = 20.0;
/// Most events of a run; no run comes near it.
const EVENTS_MAX: u64 = 50_000_000;

/// Runs the jobs in the grid from its start until they are done or the trace ends, and returns the outcome of
/// each. `knowledge` is that at the start of the grid.
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

/// The direction of a transfer, seen from the job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// A shard is stored.
    ToHost,
    /// A shard is read.
    FromHost,
}

/// Where the shards of a new checkpoint go.
struct ChosenKeepers {
    keepers: Vec<Keeper>,
    /// The code that is used.
    width: Width,
    /// Probability that enough of the keepers can be read when the job has failed; `None` if the policy does not
    /// forecast it.
    readable: Option<Probability>,
}

/// Which shards of some rows can be read.
struct ReadableRows {
    /// Keepers that are known to be present.
    here: Vec<Keeper>,
    /// Hosts of which the trace does not say whether they are present.
    unknown: Vec<Keeper>,
    /// Shards that are needed to read the rows.
    needed: usize,
}

impl ReadableRows {
    /// How many can be read if all unknown hosts are present.
    const fn found(&self) -> usize {
        self.here.len() + self.unknown.len()
    }

    /// Whether the rows can be read if all unknown hosts are present.
    const fn possible(&self) -> bool {
        self.found() >= self.needed
    }
}

/// Which shards of a checkpoint can be read, for each of its parts.
struct Readable(Vec<ReadableRows>);

impl Readable {
    /// Whether the checkpoint can be read if all unknown hosts are present.
    fn possible(&self) -> bool {
        self.0.iter().all(ReadableRows::possible)
    }

    /// Whether the checkpoint can be read without the unknown hosts.
    fn certain(&self) -> bool {
        self.0.iter().all(|rows| rows.here.len() >= rows.needed)
    }

    /// How many shards more than needed can be read of the part that has the fewest.
    fn spare(&self) -> usize {
        let spare = self
            .0
            .iter()
            .map(|rows| rows.found().saturating_sub(rows.needed));
        spare.min().unwrap_or_default()
    }
}

struct Simulation<'a> {
    knowledge: Knowledge<'a>,
    settings: Settings,
    policy: Policy,
    server: Server,
    wipes: Wipes,
    flows: Flows,
    jobs: Jobs,
    /// Seconds since the start.
    now: f64,
    end: f64,
}

impl<'a> Simulation<'a> {
    fn new(knowledge: Knowledge<'a>, settings: Settings, policy: Policy) -> Self {
        let world = knowledge.world;
        let grid = knowledge.grid;
        let trace_left = world.span().end.saturating_sub(grid.start) as f64;
        let end = trace_left.min(LONGEST_MAKESPAN * settings.work_seconds);
        let places = (0..grid.hosts.len()).map(|host| knowledge.place(host));
        let access = places.map(|place| settings.network.access(grid.seed, place));
        let interface = settings.network.interface;
        let stays = stays(world, grid, settings.jobs, settings.restart_seconds, end);
        let jobs = stays
            .into_iter()
            .map(|stays| Job::new(settings.work_seconds, FIRST_COST_SECONDS, stays));
        Self {
            server: Server::new(grid.seed, end),
            wipes: Wipes::new(grid, settings.wiped_every_seconds, end),
            flows: Flows::new(access.collect(), interface, interface),
            jobs: jobs.collect(),
            knowledge,
            settings,
            policy,
            now: 0.0,
            end,
        }
    }

    /// Advances to the next event and handles it; `false` when there is none before the end.
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
        for job in self.jobs.indices() {
            if self.jobs[job].leaves() <= next {
                self.evict(job);
            } else if self.jobs[job].timer <= next {
                self.timer(job);
            }
        }
        true
    }

    fn outcomes(mut self) -> Vec<JobOutcome> {
        for job in self.jobs.iter_mut() {
            if !job.outcome.finished {
                job.finish(self.end, false);
            }
        }
        self.jobs.into_iter().map(|job| job.outcome).collect()
    }

    fn unix(&self, at: f64) -> u64 {
        self.knowledge.grid.start + at as u64
    }

    fn timer(&mut self, job: JobIndex) {
        match self.jobs[job].phase() {
            Phase::Queued => self.arrive(job),
            Phase::Working => self.work_stops(job),
            Phase::Awaiting(_) => self.restore(job),
            Phase::Storing(_) | Phase::Restoring(_) | Phase::Done => {}
        }
    }

    /// The job gets its next host and restores the newest checkpoint.
    fn arrive(&mut self, job: JobIndex) {
        self.repair(job);
        self.jobs[job].arrive();
        if let Some(newest) = self.jobs[job].checkpoints.last() {
            let state = self.readable(newest, self.now);
            let outcome = &mut self.jobs[job].outcome;
            outcome.without_spare += u64::from(state.spare() == 0);
            outcome.with_one_spare += u64::from(state.spare() <= 1);
        }
        self.restore(job);
    }

    /// Rebuilds shards of the job's checkpoints as hosts would have done by now.
    fn repair(&mut self, job: JobIndex) {
        if !self.settings.repairs {
            return;
        }
        let mut checkpoints = std::mem::take(&mut self.jobs[job].checkpoints);
        for part in checkpoints.iter_mut().flat_map(Checkpoint::parts_mut) {
            let bytes = part.rows.held * self.settings.image_bytes as f64;
            let has = |keeper, rows: &Rows, at| self.has(keeper, rows, at);
            repair::rebuild(&mut part.rows, bytes, self.now, &self.knowledge, has);
        }
        self.jobs[job].checkpoints = checkpoints;
    }

    /// The job has to leave its compute host.
    fn evict(&mut self, job: JobIndex) {
        self.check_newest(job);
        let moved = self.flows.cancel(job);
        let now = self.now;
        let this = &mut self.jobs[job];
        match this.phase() {
            Phase::Storing(_) => this.outcome.sent_bytes += moved,
            Phase::Restoring(_) => this.outcome.read_bytes += moved,
            _ => {}
        }
        this.evict(now);
    }

    /// The job computes until the next checkpoint or the end.
    fn work(&mut self, job: JobIndex) {
        let left = self.settings.work_seconds - self.jobs[job].progress;
        let interval = self.interval(job, left).max(LEAST_INTERVAL_SECONDS);
        let until = self.now + interval.min(left);
        self.jobs[job].enter(self.now, Phase::Working, until);
    }

    /// Work until the next checkpoint, seconds; at least `left` if no checkpoint pays.
    fn interval(&mut self, job: JobIndex, left: f64) -> f64 {
        let now = self.unix(self.now);
        let this = &self.jobs[job];
        let Some(compute) = this.host() else {
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

    /// The job's working time is over: it takes a checkpoint, or its work is done.
    fn work_stops(&mut self, job: JobIndex) {
        let now = self.now;
        // Entering the phase again accounts for the work up to now.
        self.jobs[job].enter(now, Phase::Working, f64::INFINITY);
        let left = self.settings.work_seconds - self.jobs[job].progress;
        if left < 1e-3 {
            self.check_newest(job);
            self.jobs[job].finish(now, true);
        } else {
            self.repair(job);
            self.store(job, left);
        }
    }

    /// Begins to store a checkpoint. If there are no hosts for it, the job goes on computing.
    fn store(&mut self, job: JobIndex, left: f64) {
        let width = self.policy.width(self.settings.width);
        let interval = self.interval(job, left).min(left);
        let Some(chosen) = self.choose(job, interval, width, &[]) else {
            self.jobs[job].outcome.not_stored += 1;
            self.work(job);
            return;
        };
        let content = self.content(job, interval, &chosen);
        let width = chosen.width;
        let takers = self.takers(job);
        let keepers = prefer(chosen.keepers, &content.keepers_before, &takers);
        let others = takers.into_iter().filter(|taker| !keepers.contains(taker));
        let image_bytes = self.settings.image_bytes as f64;
        let shard_bytes = image_bytes * content.stores / width.data() as f64;
        let store = Store {
            width,
            shard_bytes,
            content,
            readable: chosen.readable,
            stored: Vec::new(),
            asked: keepers.clone(),
            takers: others.collect(),
        };
        self.jobs[job].number += 1;
        self.jobs[job].enter(self.now, Phase::Storing(store), f64::INFINITY);
        for keeper in keepers {
            self.transfer(job, keeper, shard_bytes, self.now, Direction::ToHost);
        }
    }

    /// What takes shards of a job's checkpoint now.
    fn takers(&self, job: JobIndex) -> Vec<Keeper> {
        let now = self.unix(self.now);
        let compute = self.jobs[job].host();
        let takers = compute.map(|compute| takers(&self.knowledge, now, compute, &[]));
        takers.into_iter().flatten().map(Keeper::Host).collect()
    }

    /// What the next checkpoint of a job holds for which these keepers were `chosen`.
    fn content(&mut self, job: JobIndex, interval: f64, chosen: &ChosenKeepers) -> Content {
        let Versions::Layered { changed } = self.settings.versions else {
            return Content::whole();
        };
        let Some(base) = self.jobs[job].base().cloned() else {
            return Content::whole();
        };
        let Readable(found) = self.readable(&base, self.now);
        // The index of the version before is in its own rows.
        if !found.first().is_some_and(ReadableRows::possible) {
            return Content::whole();
        }
        let away = self.knowledge.expected_back(self.unix(self.now));
        let is_at_risk = self.is_at_risk(job, interval, chosen, base.parts().zip(&found));
        let states = base.parts().zip(&found).zip(is_at_risk);
        let states = states.map(|((part, found), is_at_risk)| PartState {
            held: part.rows.held,
            used: part.used,
            found: found.found(),
            away: away.min(part.rows.width.total().saturating_sub(found.found())),
            needed: found.needed,
            is_at_risk,
        });
        let states: Vec<PartState> = states.collect();
        let next = next_version(&states, base.changed, changed.value());
        let origins = base.parts().zip(next.uses).map(|(part, used)| Part {
            rows: part.rows.clone(),
            used,
        });
        let origins: Vec<Part> = origins.filter(|part| part.used > 0.0).collect();
        let own = found.into_iter().next().filter(|_| !origins.is_empty());
        let keepers = own.map(|own| [own.here, own.unknown].concat());
        Content {
            stores: next.stores,
            changed: changed.value(),
            origins,
            keepers_before: keepers.unwrap_or_default(),
        }
    }

    /// Which of these parts of the version before are at risk, for a version for which these keepers were `chosen`.
    fn is_at_risk<'b>(
        &mut self,
        job: JobIndex,
        interval: f64,
        chosen: &ChosenKeepers,
        parts: impl Iterator<Item = (&'b Part, &'b ReadableRows)>,
    ) -> Vec<bool> {
        let image_bytes = self.settings.image_bytes as f64;
        let rows = parts.map(|(part, found)| OlderRows {
            hosts: [&found.here[..], &found.unknown].concat(),
            data: found.needed,
            stored_bytes: (image_bytes * part.used) as u64,
        });
        let rows: Vec<OlderRows<Keeper>> = rows.collect();
        let Some(question) = self.question(job, interval) else {
            return vec![false; rows.len()];
        };
        self.policy.stored_again(
            &mut self.knowledge,
            &self.settings,
            &question,
            (&chosen.keepers, chosen.width),
            &rows,
        )
    }

    /// What the policy is asked about the next checkpoint; `None` if the job has no host.
    fn question(&self, job: JobIndex, interval: f64) -> Option<Question> {
        let this = &self.jobs[job];
        let share = this
            .checkpoints
            .last()
            .map_or(1.0, |newest| newest.own.rows.held);
        Some(Question {
            job,
            number: this.number,
            compute: this.host()?,
            now: self.unix(self.now),
            interval_seconds: interval + this.expected_cost,
            stored_bytes: (self.settings.image_bytes as f64 * share) as u64,
            // Older checkpoints are on hosts that may fail together with these, so that all the work is at
            // stake.
            work_seconds: this.progress,
        })
    }

    /// Keepers for a checkpoint, other than those in `without`, the code that is used, and the forecast for both.
    fn choose(
        &mut self,
        job: JobIndex,
        interval: f64,
        width: Width,
        without: &[Keeper],
    ) -> Option<ChosenKeepers> {
        let question = self.question(job, interval)?;
        if self.policy == Policy::Dedicated {
            let free = self.server.is_up(self.now) && without.is_empty();
            return free.then(|| ChosenKeepers {
                keepers: vec![Keeper::Server],
                width,
                readable: None,
            });
        }
        let knowledge = &mut self.knowledge;
        let settings = &self.settings;
        // A host that takes the place of another one holds a shard of the code that was chosen before.
        let policy = match self.policy {
            Policy::Narrow | Policy::Usual | Policy::Auto(_) if !without.is_empty() => {
                Policy::Hosts(Scheme::Correlated)
            }
            policy => policy,
        };
        let chosen = policy.choose(knowledge, settings, &question, width, without)?;
        let hosts = chosen.hosts.into_iter().map(Keeper::Host);
        Some(ChosenKeepers {
            keepers: hosts.collect(),
            width: chosen.width,
            readable: chosen.readable,
        })
    }

    /// Begins a transfer between the job's compute host and `far`, not before `from`. It gets the next number of
    /// the job's transfers.
    fn transfer(
        &mut self,
        job: JobIndex,
        far: Keeper,
        bytes: f64,
        from: f64,
        direction: Direction,
    ) {
        let Some(near) = self.jobs[job].host() else {
            return;
        };
        let network = &self.settings.network;
        let seed = self.knowledge.grid.seed;
        let a = self.knowledge.place(near);
        let b = self.knowledge.place_of(far);
        let this = &mut self.jobs[job];
        this.transfers += 1;
        let number = this.transfers;
        let keys = [job.key(), number, b.host];
        let mut noise = draws(seed, Purpose::Noise, keys);
        let mut chance = draws(seed, Purpose::Breaks, keys);
        let breaks =
            direction == Direction::ToHost && chance.random::<f64>() < self.settings.breaks;
        let path = network.path(seed, a, b);
        let leaves = match far {
            Keeper::Server => self.server.leaves(self.now),
            Keeper::Host(far) => {
                let away = Host::first_failure(&self.knowledge.host(far).disk, self.unix(self.now));
                away.map_or(f64::INFINITY, |at| (at - self.knowledge.grid.start) as f64)
            }
        };
        self.flows.push(Plan {
            job,
            number,
            near,
            far,
            bytes,
            path: lognormal(&mut noise, path, network.noise),
            outside: a.site != b.site,
            starts: from + LEAD_SECONDS + network.round_trip(seed, a, b),
            breaks_with: breaks.then(|| bytes * chance.random::<f64>()),
            leaves: leaves.max(from),
        });
    }

    /// A transfer has ended: its rate is measured, and the job's store or restore goes on.
    fn transfer_ended(&mut self, flow: &Flow, end: End) {
        let plan = &flow.plan;
        if let (End::Finished, Keeper::Host(far)) = (end, plan.far) {
            let rate = plan.bytes / (self.now - plan.starts).max(1e-3);
            let now = self.unix(self.now);
            self.knowledge.observe_rate(plan.near, far, now, rate);
        }
        match self.jobs[plan.job].phase() {
            Phase::Storing(_) => {
                self.jobs[plan.job].outcome.sent_bytes += flow.moved();
                self.shard_sent(plan, end);
            }
            Phase::Restoring(_) => {
                self.jobs[plan.job].outcome.read_bytes += flow.moved();
                self.shard_read(plan, end);
            }
            _ => {}
        }
    }

    /// A shard was stored, or failed to be. After the last one the checkpoint is committed if enough shards
    /// are stored.
    fn shard_sent(&mut self, plan: &Plan, end: End) {
        let job = plan.job;
        let Phase::Storing(store) = self.jobs[job].phase().clone() else {
            return;
        };
        let mut store = store;
        if end == End::Finished {
            store.stored.push(plan.far);
        } else {
            self.replace(job, &mut store);
        }
        if self.flows.count(job) > 0 {
            *self.jobs[job].phase_mut() = Phase::Storing(store);
            return;
        }
        if store.stored.len() >= store.width.data() {
            self.check_newest(job);
            self.jobs[job].commit(self.now, store);
        } else {
            self.jobs[job].outcome.not_stored += 1;
        }
        self.work(job);
    }

    /// Sends a shard that could not be stored to another host, if there is one.
    fn replace(&mut self, job: JobIndex, store: &mut Store) {
        let one = Width::new(1, 0).unwrap_or(self.settings.width);
        let interval = self.jobs[job].expected_cost;
        let Some(chosen) = self.choose(job, interval, one, &store.asked) else {
            return;
        };
        let from = self.now + self.settings.detect_seconds;
        for keeper in chosen.keepers {
            store.asked.push(keeper);
            self.transfer(job, keeper, store.shard_bytes, from, Direction::ToHost);
        }
    }

    /// Reads the newest checkpoint back. If it can't be read, the job waits for its hosts for as long as it
    /// would take to do the work again that only this checkpoint holds; then it goes back to the newest
    /// checkpoint that can be read.
    fn restore(&mut self, job: JobIndex) {
        let now = self.now;
        let this = &self.jobs[job];
        let readable: Vec<Readable> = this
            .checkpoints
            .iter()
            .map(|checkpoint| self.readable(checkpoint, now))
            .collect();
        let Some((newest, older)) = readable.split_last() else {
            self.jobs[job].go_back_to(0.0);
            self.work(job);
            return;
        };
        if newest.possible() {
            self.jobs[job].outcome.unjudged += u64::from(!newest.certain());
            self.begin_restore(job, older.len());
            return;
        }
        let best = older.iter().rposition(Readable::possible);
        let progress_of = |index: usize| this.checkpoints[index].progress;
        let worth = progress_of(older.len()) - best.map_or(0.0, progress_of);
        let since = match this.phase() {
            Phase::Awaiting(since) => *since,
            _ => now,
        };
        let left = since + worth - now;
        self.restore_fails(job, older.len());
        let this = &mut self.jobs[job];
        if left > 0.0 {
            this.enter(now, Phase::Awaiting(since), now + left.min(POLL_SECONDS));
            return;
        }
        this.give_up_newest(best.map_or(0, |checkpoint| checkpoint + 1));
        if let Some(checkpoint) = best {
            self.begin_restore(job, checkpoint);
        } else {
            this.go_back_to(0.0);
            self.work(job);
        }
    }

    fn begin_restore(&mut self, job: JobIndex, checkpoint: usize) {
        let found = self.jobs[job].checkpoints[checkpoint].clone();
        let image_bytes = self.settings.image_bytes as f64;
        let mut shards = Vec::new();
        for (number, part) in found.parts().enumerate() {
            let data = part.rows.width.data();
            let keepers = self.fastest_readable(job, &part.rows, &[]);
            shards.extend(keepers.into_iter().take(data).map(|keeper| AskedShard {
                part: number,
                keeper,
                bytes: image_bytes * part.read() / data as f64,
                progress: ShardProgress::Chosen,
            }));
        }
        let mut restore = Restore { checkpoint, shards };
        self.request(job, &mut restore, self.now);
        self.jobs[job].enter(self.now, Phase::Restoring(restore), f64::INFINITY);
    }

    /// Begins the transfers of the shards that none has yet, one from each keeper, not before `from`.
    fn request(&mut self, job: JobIndex, restore: &mut Restore, from: f64) {
        let is_chosen = |shard: &AskedShard| shard.progress == ShardProgress::Chosen;
        while let Some(first) = restore.shards.iter().find(|shard| is_chosen(shard)) {
            let keeper = first.keeper;
            let number = self.jobs[job].transfers + 1;
            let mut bytes = 0.0;
            let of_keeper = restore.shards.iter_mut();
            for shard in of_keeper.filter(|shard| is_chosen(shard) && shard.keeper == keeper) {
                bytes += shard.bytes;
                shard.progress = ShardProgress::UnderWay(number);
            }
            self.transfer(job, keeper, bytes, from, Direction::FromHost);
        }
    }

    /// The keepers of rows that may be present, other than those in `without`: those known to be present first,
    /// then by expected rate.
    fn fastest_readable(&mut self, job: JobIndex, of: &Rows, without: &[Keeper]) -> Vec<Keeper> {
        let state = self.readable_rows(of, self.now);
        let Some(near) = self.jobs[job].host() else {
            return Vec::new();
        };
        let now = self.unix(self.now);
        let mut rated: Vec<(bool, f64, Keeper)> = Vec::new();
        for (unknown, keepers) in [(false, state.here), (true, state.unknown)] {
            for keeper in keepers {
                let rate = match keeper {
                    Keeper::Server => 0.0,
                    Keeper::Host(host) => {
                        let network = &self.settings.network;
                        self.knowledge.rate(network, (near, host), now).median()
                    }
                };
                rated.push((unknown, rate, keeper));
            }
        }
        rated.retain(|(.., keeper)| !without.contains(keeper));
        rated.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)).then(a.2.cmp(&b.2)));
        rated.into_iter().map(|(.., keeper)| keeper).collect()
    }

    /// Shards of one host were read, or failed to be; then other hosts are asked.
    fn shard_read(&mut self, plan: &Plan, end: End) {
        let job = plan.job;
        let now = self.now;
        let Phase::Restoring(restore) = self.jobs[job].phase().clone() else {
            return;
        };
        let mut restore = restore;
        let checkpoint = self.jobs[job].checkpoints[restore.checkpoint].clone();
        let is_asked = if end == End::Finished {
            restore.end(plan.number, ShardProgress::Read);
            true
        } else {
            let failed = restore.end(plan.number, ShardProgress::Failed);
            self.ask_others(job, &failed, &checkpoint, &mut restore)
        };
        if !is_asked {
            // Too few hosts are left, so the restore has failed.
            let moved = self.flows.cancel(job);
            self.restore_fails(job, restore.checkpoint);
            let this = &mut self.jobs[job];
            this.outcome.read_bytes += moved;
            this.enter(now, Phase::Awaiting(now), now + POLL_SECONDS);
            return;
        }
        if !restore.is_done() {
            *self.jobs[job].phase_mut() = Phase::Restoring(restore);
            return;
        }
        self.jobs[job].go_back_to(checkpoint.progress);
        self.work(job);
    }

    /// Asks other hosts for shards that replace those that `failed`; `false` if there are too few.
    fn ask_others(
        &mut self,
        job: JobIndex,
        failed: &[AskedShard],
        checkpoint: &Checkpoint,
        restore: &mut Restore,
    ) -> bool {
        for shard in failed {
            let Some(part) = checkpoint.parts().nth(shard.part) else {
                return false;
            };
            let others = self.fastest_readable(job, &part.rows, &restore.asked(shard.part));
            let Some(keeper) = others.first().copied() else {
                return false;
            };
            restore.shards.push(AskedShard {
                keeper,
                progress: ShardProgress::Chosen,
                ..*shard
            });
        }
        self.request(job, restore, self.now + self.settings.detect_seconds);
        true
    }

    /// Counts the present restore of a checkpoint (its index among the job's) as failed.
    fn restore_fails(&mut self, job: JobIndex, checkpoint: usize) {
        let newest = &self.jobs[job].checkpoints[checkpoint];
        let rows = &newest.own.rows;
        let mut could = rows.keepers.iter().chain(&newest.others);
        let is_there = |keeper: &Keeper| self.has(*keeper, rows, self.now) != Some(false);
        let is_avoidable = could.any(is_there);
        let at = self.unix(self.now);
        self.jobs[job].restore_fails(at, is_avoidable);
    }

    /// Whether data of rows could be read at `at` from a keeper that stored some; `None` if the trace does not say.
    fn has(&self, keeper: Keeper, rows: &Rows, at: f64) -> Option<bool> {
        if self.wipes.between(keeper, rows.stored_at, at) {
            return Some(false);
        }
        match keeper {
            Keeper::Server => Some(self.server.is_up(at)),
            Keeper::Host(host) => self.knowledge.host(host).here(self.unix(at)),
        }
    }

    /// Which shards of a checkpoint can be read at `at`.
    fn readable(&self, checkpoint: &Checkpoint, at: f64) -> Readable {
        let parts = checkpoint.parts();
        Readable(
            parts
                .map(|part| self.readable_rows(&part.rows, at))
                .collect(),
        )
    }

    /// Which shards of rows can be read at `at`.
    fn readable_rows(&self, rows: &Rows, at: f64) -> ReadableRows {
        let mut here = Vec::new();
        let mut unknown = Vec::new();
        for keeper in &rows.keepers {
            match self.has(*keeper, rows, at) {
                Some(true) => here.push(*keeper),
                Some(false) => {}
                None => unknown.push(*keeper),
            }
        }
        ReadableRows {
            here,
            unknown,
            needed: rows.width.data(),
        }
    }

    /// Counts at how many of some moments since the last call the newest checkpoint could not be read.
    fn check_newest(&mut self, job: JobIndex) {
        let moments = self.jobs[job].moments_to_look(self.now);
        let Some(newest) = self.jobs[job].checkpoints.last() else {
            return;
        };
        let failed = moments
            .iter()
            .filter(|at| !self.readable(newest, **at).possible())
            .count();
        let outcome = &mut self.jobs[job].outcome;
        outcome.looks += moments.len() as u64;
        outcome.looks_failed += failed as u64;
    }
}

/// As many keepers as were `chosen`: first those of the version before that are among `takers`, because more hosts would
/// be one more way to lose what both need, then the others that were chosen.
fn prefer(chosen: Vec<Keeper>, before: &[Keeper], takers: &[Keeper]) -> Vec<Keeper> {
    let count = chosen.len();
    let (both, new): (Vec<Keeper>, Vec<Keeper>) = chosen
        .into_iter()
        .partition(|keeper| before.contains(keeper));
    let takes = |keeper: &&Keeper| takers.contains(keeper) && !both.contains(keeper);
    let others: Vec<Keeper> = before.iter().filter(takes).copied().collect();
    let all = both.into_iter().chain(others).chain(new);
    all.take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_the_version_before_come_first_if_they_take_shards() {
        let hosts = |numbers: &[usize]| -> Vec<Keeper> {
            numbers.iter().copied().map(Keeper::Host).collect()
        };
        let takers = hosts(&[1, 2, 3, 4, 5, 6]);
        let preferred = |before: &[usize]| prefer(hosts(&[4, 5, 6]), &hosts(before), &takers);
        assert_eq!(preferred(&[]), hosts(&[4, 5, 6]));
        assert_eq!(preferred(&[1, 2, 3, 4]), hosts(&[4, 1, 2]));
        assert_eq!(preferred(&[1, 6, 9]), hosts(&[6, 1, 4]));
    }
}
