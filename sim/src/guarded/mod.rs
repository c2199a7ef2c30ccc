//! Is it worth supervising a job? Compares jobs that only take checkpoints at Daly's interval with jobs
//! under the [`supervision::Supervisor`] that `ckpt run` uses, on hosts that they are driven off.
//!
//! Checkpoints can always be stored and read here, at a given rate; [`crate::run`] simulates where they are
//! stored.

mod daly;
mod supervised;

use placement::state::{AvailabilityState, ModelState};
use rand::seq::IndexedRandom;
use supervision::leaving::FinalSave;

use crate::draw::{Purpose, draws, lognormal};
use crate::jobs::JobIndex;
use crate::knowledge::Knowledge;
use crate::outcome::JobOutcome;

/// A job is given up after this many times its work.
const LONGEST_MAKESPAN: f64 = 20.0;

/// How a job is guarded against evictions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Guard {
    /// It takes checkpoints at Daly's interval for the mean stay on the host, and is killed a minute after
    /// its owner begins to need the host.
    Daly,
    /// It runs under a supervisor, which keeps it stopped for this long before it leaves the host.
    Supervised(Waiting),
}

/// How long a stopped job waits until the owner no longer needs the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// As long as waiting pays, judged by how long owners needed their hosts before.
    Auto,
    /// A minute, as in the papers.
    Minute,
    /// Without an end: it never leaves.
    Never,
}

/// The jobs of a grid, all alike, and what a checkpoint costs them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GuardedJobs {
    /// Number of jobs.
    pub jobs: usize,
    /// Work of each job, seconds on one host.
    pub work_seconds: f64,
    /// Time for which a checkpoint holds the job up, seconds.
    pub checkpoint_seconds: f64,
    /// Times of a save, and the grace of an eviction.
    pub save: FinalSave,
    /// Seconds from leaving one host to being started on another, and between attempts to find one.
    pub restart_seconds: f64,
}

impl GuardedJobs {
    /// Time to read a checkpoint back, seconds.
    #[must_use]
    pub fn restore_seconds(&self) -> f64 {
        self.save.image_bytes / self.save.bytes_per_second
    }
}

/// The state of a job when a stay on a host begins.
#[derive(Clone, Copy, Debug)]
struct Stand {
    job: JobIndex,
    /// Index into the grid's hosts.
    host: usize,
    /// Number of stays before this one.
    moves: u64,
    /// Work in its newest committed checkpoint, seconds.
    saved: f64,
}

/// How a stay on a host ended.
#[derive(Clone, Copy, Debug)]
struct Left {
    /// When, seconds since the start of the grid.
    at: f64,
    /// Work that is saved, seconds.
    saved: f64,
    /// Whether the job is done.
    done: bool,
}

/// What is the same for all jobs: the grid, the settings, and the end of the time.
struct Ground<'a> {
    knowledge: Knowledge<'a>,
    jobs: GuardedJobs,
    /// When jobs are given up or the trace ends, seconds since the start of the grid.
    end: f64,
}

/// Runs the jobs one by one in the grid, each as if it were alone, until they are done or the trace
/// ends. The hosts that a job gets and the time that each of its saves takes follow from the grid's seed.
#[must_use]
pub fn run_guarded(knowledge: &Knowledge<'_>, jobs: &GuardedJobs, guard: Guard) -> Vec<JobOutcome> {
    let world = knowledge.world;
    let grid = knowledge.grid;
    let trace_left = world.span().end.saturating_sub(grid.start) as f64;
    let ground = Ground {
        knowledge: knowledge.clone(),
        jobs: *jobs,
        end: trace_left.min(LONGEST_MAKESPAN * jobs.work_seconds),
    };
    JobIndex::first(jobs.jobs)
        .map(|job| ground.live(job, guard))
        .collect()
}

impl Ground<'_> {
    fn unix(&self, at: f64) -> u64 {
        self.knowledge.grid.start + at as u64
    }

    /// Runs a job to its end.
    fn live(&self, job: JobIndex, guard: Guard) -> JobOutcome {
        let mut outcome = JobOutcome {
            work_seconds: self.jobs.work_seconds,
            ..JobOutcome::default()
        };
        let mut knowledge = self.knowledge.clone();
        let mut now = 0.0;
        let mut saved = 0.0;
        let mut moves = 0;
        while now < self.end {
            let Some(host) = self.offer(job, moves, now) else {
                outcome.queued_seconds += self.jobs.restart_seconds;
                now += self.jobs.restart_seconds;
                continue;
            };
            let stand = Stand {
                job,
                host,
                moves,
                saved,
            };
            moves += 1;
            let left = match self.restore(&stand, now, &mut outcome) {
                Err(left) => left,
                Ok(at) => match guard {
                    Guard::Daly => self.daly(&knowledge, &stand, at, &mut outcome),
                    Guard::Supervised(waiting) => {
                        self.supervised(&mut knowledge, &stand, at, waiting, &mut outcome)
                    }
                },
            };
            (now, saved) = (left.at, left.saved);
            if left.done {
                outcome.finished = true;
                break;
            }
            if now >= self.end {
                break;
            }
            outcome.evictions += 1;
            outcome.queued_seconds += self.jobs.restart_seconds;
            now += self.jobs.restart_seconds;
        }
        outcome.makespan_seconds = now.min(self.end);
        outcome
    }

    /// A random usable host for the next stay of a job; `None` if no host is usable.
    fn offer(&self, job: JobIndex, moves: u64, now: f64) -> Option<usize> {
        let grid = self.knowledge.grid;
        let mut rng = draws(grid.seed, Purpose::Compute, [job.key(), moves, 1]);
        let usable = |host: &usize| self.knowledge.host(*host).usable(self.unix(now));
        let hosts = 0..grid.hosts.len();
        let free: Vec<usize> = hosts.filter(|host| usable(host) == Some(true)).collect();
        free.choose(&mut rng).copied()
    }

    /// Reads the checkpoint back, if there is one. Returns when the job can go on, or the end of the stay if
    /// the host fails meanwhile.
    fn restore(&self, stand: &Stand, now: f64, outcome: &mut JobOutcome) -> Result<f64, Left> {
        if stand.saved <= 0.0 {
            return Ok(now);
        }
        outcome.restores += 1;
        let ready = now + self.jobs.restore_seconds();
        match self.next_state(stand.host, now, ModelState::is_failure) {
            Some((at, _)) if at < ready => {
                outcome.restoring_seconds += at - now;
                Err(Left {
                    at,
                    saved: stand.saved,
                    done: false,
                })
            }
            _ => {
                outcome.restoring_seconds += ready - now;
                Ok(ready)
            }
        }
    }

    /// The first moment from `now` on at which the state of a host is known and satisfies `is_wanted`, and
    /// this state.
    fn next_state(
        &self,
        host: usize,
        now: f64,
        is_wanted: impl Fn(AvailabilityState) -> bool,
    ) -> Option<(f64, AvailabilityState)> {
        let from = self.unix(now);
        let mut runs = self.knowledge.host(host).guest.runs(from..u64::MAX);
        runs.find_map(|run| {
            let state = run.state.filter(|state| is_wanted(*state))?;
            let since = run.span.start.saturating_sub(self.knowledge.grid.start) as f64;
            Some((since.max(now), state))
        })
    }

    /// The state of a host, and when the next state begins; an unknown state counts as idle.
    fn state(&self, host: usize, now: f64) -> (AvailabilityState, f64) {
        let run = self.knowledge.host(host).guest.run_at(self.unix(now));
        let state = run.as_ref().and_then(|run| run.state);
        let until = run.map_or(f64::INFINITY, |run| {
            (run.span.end - self.knowledge.grid.start) as f64
        });
        (state.unwrap_or(AvailabilityState::Idle), until)
    }

    /// Seconds that save number `number` takes of a job that has done `work` seconds since the save before.
    fn save_seconds(&self, stand: &Stand, number: u64, work: f64) -> f64 {
        let keys = [stand.job.key(), stand.moves, number];
        let mut rng = draws(self.knowledge.grid.seed, Purpose::Save, keys);
        lognormal(
            &mut rng,
            self.jobs.save.seconds(work),
            self.jobs.save.spread,
        )
    }
}

#[cfg(test)]
mod tests {
    use placement::hazard::HazardModel;
    use placement::history::Timeline;

    use super::*;
    use crate::world::{Grid, Host, Reading, World};

    const HOUR: u64 = 3600;
    const GUARDS: [Guard; 4] = [
        Guard::Daly,
        Guard::Supervised(Waiting::Minute),
        Guard::Supervised(Waiting::Auto),
        Guard::Supervised(Waiting::Never),
    ];

    /// Hosts that are free for two hours and then needed by their owner for `taken` seconds.
    fn world(taken: u64) -> World {
        let host = |index: u64| {
            let mut states = Timeline::new(0);
            let mut at = 0;
            while at < 1500 * HOUR {
                let free = at + 2 * HOUR + 600 * index;
                states.push(at..free, Some(AvailabilityState::Idle));
                at = free + taken;
                states.push(free..at, Some(AvailabilityState::CpuTaken));
            }
            Host::new(states, Vec::new(), None, None, Reading::Gone)
        };
        World::new((0..8).map(host).collect(), 0)
    }

    fn outcomes(taken: u64, guard: Guard) -> Vec<JobOutcome> {
        let world = world(taken);
        let grid = Grid {
            hosts: (0..8).collect(),
            start: 700 * HOUR,
            seed: 5,
        };
        let model = HazardModel::pretrained();
        let jobs = GuardedJobs {
            jobs: 6,
            work_seconds: 12.0 * HOUR as f64,
            checkpoint_seconds: 20.0,
            save: FinalSave {
                ask_seconds: 2.0,
                fixed_seconds: 0.0,
                image_bytes: 1e9,
                change_seconds: 1800.0,
                bytes_per_second: 50e6,
                spread: 0.3,
                grace_seconds: 60.0,
            },
            restart_seconds: 300.0,
        };
        run_guarded(&Knowledge::at(&world, &grid, &model), &jobs, guard)
    }

    fn sum(outcomes: &[JobOutcome], of: fn(&JobOutcome) -> f64) -> f64 {
        outcomes.iter().map(of).sum()
    }

    #[test]
    fn the_times_of_a_job_add_up_to_its_makespan() {
        for guard in GUARDS {
            for outcome in outcomes(HOUR, guard) {
                assert!(outcome.finished, "{guard:?}");
                let times = outcome.queued_seconds
                    + outcome.computing_seconds
                    + outcome.storing_seconds
                    + outcome.waiting_seconds
                    + outcome.restoring_seconds;
                let differs = (times - outcome.makespan_seconds).abs();
                assert!(differs < 1.0, "{guard:?} {outcome:?}");
                let useful = outcome.computing_seconds - outcome.lost_seconds;
                assert!(
                    (useful - outcome.work_seconds).abs() < 1.0,
                    "{guard:?} {outcome:?}"
                );
            }
        }
    }

    #[test]
    fn a_supervised_job_takes_its_work_with_it() {
        let daly = outcomes(HOUR, Guard::Daly);
        let minute = outcomes(HOUR, Guard::Supervised(Waiting::Minute));
        assert!(sum(&daly, |one| one.evictions as f64) > 20.0);
        let lost = |one: &JobOutcome| one.lost_seconds;
        assert!(sum(&daly, lost) > 3000.0);
        assert!(sum(&minute, lost) < 0.1 * sum(&daly, lost));
        let makespan = |one: &JobOutcome| one.makespan_seconds;
        assert!(sum(&minute, makespan) < sum(&daly, makespan));
    }

    #[test]
    fn a_job_learns_whether_it_pays_to_wait() {
        // The job waits for owners who need their hosts for a short time, and not for others.
        let evictions = |taken, waiting| {
            let outcomes = outcomes(taken, Guard::Supervised(waiting));
            sum(&outcomes, |one| one.evictions as f64)
        };
        assert_eq!(evictions(200, Waiting::Auto), 0.0);
        assert!(evictions(200, Waiting::Minute) > 20.0);
        assert!(evictions(3 * HOUR, Waiting::Auto) > 20.0);
        assert_eq!(evictions(3 * HOUR, Waiting::Never), 0.0);
    }

    #[test]
    fn the_same_seed_gives_the_same_lives() {
        let guard = Guard::Supervised(Waiting::Auto);
        assert_eq!(outcomes(HOUR, guard), outcomes(HOUR, guard));
    }
}
