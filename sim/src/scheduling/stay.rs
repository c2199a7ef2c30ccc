//! A job's stay on one host, from the restore of its checkpoint until it is done or driven off.

use placement::interval::daly;
use placement::state::{AvailabilityState, ModelState};
use supervision::leaving::{Hazards, best_interval};

use super::{Ground, Keeping, Stand};
use crate::guarded::Waiting;
use crate::knowledge::Knowledge;
use crate::outcome::JobOutcome;

/// Shortest time between checkpoints, seconds.
const LEAST_INTERVAL_SECONDS: f64 = 30.0;
/// Time for which a job is stopped in S3 before it has to go, seconds.
const STOPPED_SECONDS: f64 = 60.0;
/// Smallest rate at which a job works, as a share of a processor.
const LEAST_RATE: f64 = 0.01;

/// How a stay ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    /// When, seconds since the start of the grid.
    pub(super) at: f64,
    /// Work that is saved, seconds.
    pub(super) saved: f64,
    /// Whether the job is done.
    pub(super) done: bool,
}

/// A stay in progress.
pub(super) struct Stay<'a, 'k> {
    ground: &'a Ground<'k>,
    /// Index into the grid's hosts.
    host: usize,
    /// Seconds since the start of the grid.
    now: f64,
    /// Work done, seconds.
    worked: f64,
    /// Work in the newest checkpoint, seconds.
    saved: f64,
    /// Time computed since the last checkpoint, seconds.
    since: f64,
    /// Time to compute between two checkpoints, seconds.
    interval: f64,
    /// Time for which the job stays stopped while the owner needs the host, before it leaves, seconds.
    patience: f64,
}

impl<'a, 'k> Stay<'a, 'k> {
    pub(super) fn new(
        ground: &'a Ground<'k>,
        knowledge: &mut Knowledge<'_>,
        host: usize,
        stand: Stand,
    ) -> Self {
        let unix = ground.unix(stand.now);
        let cost = ground.jobs.checkpoint_seconds;
        let interval = match ground.keeping {
            Keeping::Nothing => f64::INFINITY,
            Keeping::Checkpoints => daly(cost, knowledge.mean_stay(host, unix)),
            Keeping::Leaving(_) => {
                let (presence, guest) = knowledge.outlook(host, unix);
                let hazard = |curve: &placement::SurvivalCurve| curve.hazard_per_second(0.0);
                let hazards = Hazards::new(hazard(&presence), hazard(&guest));
                best_interval(cost, hazards, Some(&ground.jobs.save))
            }
        };
        let patience = match ground.keeping {
            Keeping::Leaving(Waiting::Auto) => {
                let past = knowledge.owner_needs(host, unix);
                let save = &ground.jobs.save;
                let moving = ground.jobs.restart_seconds
                    + save.image_bytes / save.bytes_per_second
                    + save.seconds(interval / 2.0);
                past.patience(past.worth_of_a_wait(moving, None), 0.0) + STOPPED_SECONDS
            }
            Keeping::Leaving(Waiting::Never) => f64::INFINITY,
            _ => STOPPED_SECONDS,
        };
        Self {
            ground,
            host,
            now: stand.now,
            worked: stand.saved,
            saved: stand.saved,
            since: 0.0,
            interval: interval.max(LEAST_INTERVAL_SECONDS),
            patience,
        }
    }

    /// Runs until the job is done or driven off, or the trace ends, and adds to the outcome.
    pub(super) fn run(mut self, outcome: &mut JobOutcome) -> Left {
        self.restore(outcome);
        while self.now < self.ground.end {
            let (state, until) = self.state();
            if state.is_failure() {
                if self.waits(state, until, outcome) {
                    continue;
                }
                return self.leave(state, outcome);
            }
            if self.compute(until, outcome) {
                return self.left(true);
            }
            if self.since >= self.interval {
                self.checkpoint(until, outcome);
            }
        }
        self.left(false)
    }

    const fn left(&self, done: bool) -> Left {
        Left {
            at: self.now,
            saved: self.saved,
            done,
        }
    }

    /// Reads the checkpoint back. Stops when the host fails meanwhile; then the stay ends without new work.
    fn restore(&mut self, outcome: &mut JobOutcome) {
        if self.saved <= 0.0 {
            return;
        }
        outcome.restores += 1;
        let save = &self.ground.jobs.save;
        let ready = self.now + save.image_bytes / save.bytes_per_second;
        while self.now < ready {
            let (state, until) = self.state();
            let next = if state.is_failure() {
                return;
            } else {
                until.min(ready)
            };
            outcome.restoring_seconds += next - self.now;
            self.now = next;
        }
    }

    /// The state of the host, and when it ends; an unknown state counts as idle.
    fn state(&self) -> (AvailabilityState, f64) {
        let ground = self.ground;
        let host = ground.knowledge.host(self.host);
        let run = host.guest.run_at(ground.unix(self.now));
        let state = run.as_ref().and_then(|run| run.state);
        let until = run.map_or(f64::INFINITY, |run| {
            (run.span.end - ground.knowledge.grid.start) as f64
        });
        let state = state.unwrap_or(AvailabilityState::Idle);
        (state, until.min(ground.end).max(self.now + 1e-3))
    }

    /// Computes until the state or the load changes, a checkpoint is due, or the job is done; returns whether
    /// the job is done.
    fn compute(&mut self, until: f64, outcome: &mut JobOutcome) -> bool {
        let (load, load_until) = self.load();
        let rate = (1.0 - load).max(LEAST_RATE);
        let left = self.ground.jobs.work_seconds - self.worked;
        let passed = (until.min(load_until) - self.now)
            .min(left / rate)
            .min(self.interval - self.since)
            .max(0.0);
        self.now += passed;
        self.since += passed;
        self.worked += rate * passed;
        outcome.computing_seconds += passed;
        self.worked >= self.ground.jobs.work_seconds - 1e-6
    }

    /// The owner's load, 0 to 1, and until when it holds. It is 0 where there is no sample.
    fn load(&self) -> (f64, f64) {
        let ground = self.ground;
        let loads = &ground.knowledge.host(self.host).loads;
        let at = ground.unix(self.now);
        let next = loads.partition_point(|(from, _)| *from <= at);
        let seconds = |unix: u64| unix.saturating_sub(ground.knowledge.grid.start) as f64;
        let ends = loads
            .get(next)
            .map_or(f64::INFINITY, |(from, _)| seconds(*from));
        let length = ground.knowledge.world.load_seconds;
        match next.checked_sub(1).and_then(|index| loads.get(index)) {
            Some((from, load)) if from + length > at => (
                f64::from(*load),
                ends.min(seconds(from + length)).max(self.now + 1e-3),
            ),
            _ => (0.0, ends.max(self.now + 1e-3)),
        }
    }

    /// Takes a checkpoint, which is lost if the state ends (at `until`) before it is stored.
    fn checkpoint(&mut self, until: f64, outcome: &mut JobOutcome) {
        let stored = self.now + self.ground.jobs.checkpoint_seconds;
        let next = stored.min(until);
        outcome.storing_seconds += next - self.now;
        self.now = next;
        self.since = 0.0;
        if stored <= until {
            self.saved = self.worked;
            outcome.stored += 1;
        }
    }

    /// If the owner needs the processor (S3), waits until that is over (at `until`), at most for `patience`.
    /// Returns whether the state is over.
    fn waits(&mut self, state: AvailabilityState, until: f64, outcome: &mut JobOutcome) -> bool {
        if state != AvailabilityState::CpuTaken {
            return false;
        }
        let next = until.min(self.now + self.patience);
        outcome.waiting_seconds += next - self.now;
        self.now = next;
        next >= until
    }

    /// Leaves the host, after a final checkpoint if that can be stored within the grace.
    fn leave(&mut self, state: AvailabilityState, outcome: &mut JobOutcome) -> Left {
        let unsaved = self.worked - self.saved;
        let save = &self.ground.jobs.save;
        let can_save = matches!(self.ground.keeping, Keeping::Leaving(_))
            && state != AvailabilityState::Gone
            && unsaved > 0.0;
        if can_save {
            let takes = save.seconds(unsaved);
            outcome.storing_seconds += takes.min(save.grace_seconds);
            self.now += takes.min(save.grace_seconds);
            if takes <= save.grace_seconds {
                self.saved = self.worked;
                outcome.stored += 1;
            }
        }
        if self.ground.keeping == Keeping::Nothing {
            self.saved = 0.0;
        }
        outcome.lost_seconds += self.worked - self.saved;
        self.left(false)
    }
}
