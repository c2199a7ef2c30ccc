//! Is it worth choosing the host on which a job runs? Compares the rules of [`placement::rank`], which `ckpt
//! rank` uses, with simple rules and with one that knows the future.
//!
//! A job works at the rate that the owner of its host leaves it, and is driven off in S3, S4 and S5. Each job
//! is alone in the grid: no host is taken by another job.

mod choose;
mod stay;

use rand::Rng;
use supervision::leaving::FinalSave;

use crate::draw::{Purpose, draws};
use crate::guarded::Waiting;
use crate::jobs::JobIndex;
use crate::knowledge::Knowledge;
use crate::outcome::JobOutcome;
use choose::Chooser;
use stay::Stay;

/// A job is given up after this many times its work.
const LONGEST_MAKESPAN: f64 = 20.0;

const HOUR: f64 = 3600.0;
const DAY: u64 = 86_400;

/// How the host of a job is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// A random host that can be used now.
    Random,
    /// The host whose owner uses the processor least now.
    LeastLoad,
    /// The best host by FALCON's rule ([`placement::rank::Rule::Falcon`]).
    Falcon,
    /// The host with the earliest expected end ([`placement::rank::Rule::Expected`]).
    Expected,
    /// The host on which the job will be done first or, if it will not be done on any, will have most of its
    /// work saved. This choice knows the future of one stay.
    Foresight,
}

/// What a job keeps when it is driven off its host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Keeping {
    /// Nothing.
    Nothing,
    /// Its last checkpoint. Checkpoints are taken at Daly's interval for the mean stay on the host.
    Checkpoints,
    /// A final checkpoint if that can be stored within the grace, else the one before. The interval and the
    /// time for which the job stays stopped before it leaves follow the formulas of `ckpt run`.
    Leaving(Waiting),
}

/// The jobs of a grid, all alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScheduledJobs {
    /// Number of jobs.
    pub jobs: usize,
    /// Work of each job, seconds on a host that it has for itself.
    pub work_seconds: f64,
    /// Time for which a checkpoint holds a job up, seconds.
    pub checkpoint_seconds: f64,
    /// Times of a final checkpoint, and the grace.
    pub save: FinalSave,
    /// Seconds from leaving one host to being started on another, and between attempts to find one.
    pub restart_seconds: f64,
    /// FALCON's experiment: jobs are submitted between 6 and 22 o'clock, and given up when no host is free
    /// at the first attempt and at the second. Otherwise all jobs are submitted at the start.
    pub as_in_the_paper: bool,
}

/// The outcome of a job, and how often it was started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scheduled {
    /// Times and counts.
    pub outcome: JobOutcome,
    /// How often the job was started on a host.
    pub starts: u64,
    /// Whether the job was given up before it was ever started.
    pub unscheduled: bool,
}

/// What is the same for all jobs: the grid, the settings, and the end of the time.
pub(crate) struct Ground<'a> {
    knowledge: Knowledge<'a>,
    jobs: ScheduledJobs,
    keeping: Keeping,
    /// When the trace ends, seconds since the start of the grid.
    end: f64,
}

/// The state of a job between two stays.
#[derive(Clone, Copy, Debug)]
struct Stand {
    /// Seconds since the start of the grid.
    now: f64,
    /// Work in its newest checkpoint, seconds.
    saved: f64,
}

/// Runs the jobs one by one and returns the outcomes of those that fit into the trace. Random draws depend
/// on the grid's seed, the job and the number of its start, not on the choice.
#[must_use]
pub fn run_scheduled(
    knowledge: &Knowledge<'_>,
    jobs: &ScheduledJobs,
    keeping: Keeping,
    choice: Choice,
) -> Vec<Scheduled> {
    let world = knowledge.world;
    let grid = knowledge.grid;
    let ground = Ground {
        knowledge: knowledge.clone(),
        jobs: *jobs,
        keeping,
        end: world.span().end.saturating_sub(grid.start) as f64,
    };
    JobIndex::first(jobs.jobs)
        .filter_map(|job| ground.live(job, choice))
        .collect()
}

impl<'a> Ground<'a> {
    fn unix(&self, at: f64) -> u64 {
        self.knowledge.grid.start + at as u64
    }

    /// When a job is submitted, seconds since the start of the grid.
    fn submitted(&self, job: JobIndex) -> f64 {
        if !self.jobs.as_in_the_paper {
            return 0.0;
        }
        let grid = self.knowledge.grid;
        let mut rng = draws(grid.seed, Purpose::Begin, [job.key(), 0, 2]);
        let hour = rng.random_range(6.0..22.0);
        let at = grid.start / DAY * DAY + (hour * HOUR) as u64;
        let at = if at < grid.start { at + DAY } else { at };
        (at - grid.start) as f64
    }

    /// Runs a job to its end; `None` if its work does not fit into the rest of the trace.
    fn live(&self, job: JobIndex, choice: Choice) -> Option<Scheduled> {
        let begin = self.submitted(job);
        let end = self
            .end
            .min(begin + LONGEST_MAKESPAN * self.jobs.work_seconds);
        if begin + self.jobs.work_seconds > self.end {
            return None;
        }
        let mut chooser = Chooser::new(self.knowledge.clone());
        let mut scheduled = Scheduled::default();
        let outcome = &mut scheduled.outcome;
        outcome.work_seconds = self.jobs.work_seconds;
        let mut stand = Stand {
            now: begin,
            saved: 0.0,
        };
        let mut attempts = 0;
        while stand.now < end {
            let start = scheduled.starts;
            let Some(host) = chooser.choose(self, &stand, choice, [job.key(), start]) else {
                attempts += 1;
                if self.jobs.as_in_the_paper && start == 0 && attempts > 1 {
                    scheduled.unscheduled = true;
                    break;
                }
                outcome.queued_seconds += self.jobs.restart_seconds;
                stand.now += self.jobs.restart_seconds;
                continue;
            };
            scheduled.starts += 1;
            let left = Stay::new(self, chooser.knowledge(), host, stand).run(outcome);
            stand = Stand {
                now: left.at,
                saved: left.saved,
            };
            if left.done {
                outcome.finished = true;
                break;
            }
            if stand.now < end {
                outcome.evictions += 1;
                outcome.queued_seconds += self.jobs.restart_seconds;
                stand.now += self.jobs.restart_seconds;
            }
        }
        outcome.makespan_seconds = stand.now.min(end) - begin;
        Some(scheduled)
    }
}

#[cfg(test)]
mod tests {
    use placement::hazard::HazardModel;
    use placement::history::Timeline;
    use placement::state::AvailabilityState;

    use super::*;
    use crate::world::{Grid, Host, Reading, World};

    const HOURS: u64 = 3600;
    const CHOICES: [Choice; 5] = [
        Choice::Random,
        Choice::LeastLoad,
        Choice::Falcon,
        Choice::Expected,
        Choice::Foresight,
    ];
    const KEEPINGS: [Keeping; 4] = [
        Keeping::Nothing,
        Keeping::Checkpoints,
        Keeping::Leaving(Waiting::Minute),
        Keeping::Leaving(Waiting::Auto),
    ];

    /// Every other host is free for two hours at a time, and then works half as fast as the other hosts.
    fn world() -> World {
        let host = |index: u64| {
            let is_good = index.is_multiple_of(2);
            let free = if is_good { 400 } else { 2 } * HOURS + 600 * index;
            let mut states = Timeline::new(0);
            let mut at = 0;
            while at < 1500 * HOURS {
                states.push(at..at + free, Some(AvailabilityState::Idle));
                at += free;
                states.push(at..at + HOURS, Some(AvailabilityState::CpuTaken));
                at += HOURS;
            }
            let load = if is_good { 0.0 } else { 0.5 };
            let loads = (0..1500 * 12).map(|slot| (slot * 300, load)).collect();
            Host::new(states, loads, None, None, Reading::Gone)
        };
        World::new((0..10).map(host).collect(), 300)
    }

    fn jobs() -> ScheduledJobs {
        ScheduledJobs {
            jobs: 6,
            work_seconds: 6.0 * HOUR,
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
            as_in_the_paper: false,
        }
    }

    fn run(keeping: Keeping, choice: Choice, jobs: &ScheduledJobs) -> Vec<Scheduled> {
        let world = world();
        let grid = Grid {
            hosts: (0..10).collect(),
            start: 700 * HOURS,
            seed: 5,
        };
        let model = HazardModel::pretrained();
        run_scheduled(&Knowledge::at(&world, &grid, &model), jobs, keeping, choice)
    }

    #[test]
    fn the_times_of_a_job_add_up_and_the_future_is_not_beaten() {
        for keeping in KEEPINGS {
            let makespan = |choice| {
                let ran = run(keeping, choice, &jobs());
                assert_eq!(ran.len(), 6);
                for Scheduled { outcome, .. } in &ran {
                    let times = outcome.queued_seconds
                        + outcome.computing_seconds
                        + outcome.storing_seconds
                        + outcome.waiting_seconds
                        + outcome.restoring_seconds;
                    let apart = (times - outcome.makespan_seconds).abs();
                    assert!(apart < 1.0, "{keeping:?} {choice:?} {outcome:?}");
                }
                ran.iter()
                    .map(|one| one.outcome.makespan_seconds)
                    .sum::<f64>()
            };
            let sums = CHOICES.map(makespan);
            let [random, _, falcon, expected, foresight] = sums;
            assert!(expected < random && falcon < random, "{keeping:?} {sums:?}");
            assert!(foresight <= expected + 1.0, "{keeping:?} {sums:?}");
        }
    }

    #[test]
    fn a_job_that_keeps_nothing_begins_anew_and_one_that_leaves_in_time_loses_nothing() {
        let lost = |keeping| {
            let ran = run(keeping, Choice::Random, &jobs());
            ran.iter().map(|one| one.outcome.lost_seconds).sum::<f64>()
        };
        let [nothing, checkpoints, leaving, _] = KEEPINGS.map(lost);
        assert!(nothing > 3600.0, "{nothing}");
        assert!(
            checkpoints > 0.0 && checkpoints < nothing / 2.0,
            "{checkpoints}"
        );
        assert!(leaving < checkpoints, "{leaving}");
    }

    #[test]
    fn in_the_paper_s_setting_jobs_come_by_day_and_give_up_after_a_second_attempt() {
        let paper = ScheduledJobs {
            as_in_the_paper: true,
            ..jobs()
        };
        let ran = run(Keeping::Nothing, Choice::Expected, &paper);
        assert!(
            ran.iter()
                .all(|one| !one.unscheduled && one.outcome.finished)
        );
        let mut timeline = Timeline::new(0);
        timeline.push(0..1500 * HOURS, Some(AvailabilityState::CpuTaken));
        let taken = Host::new(timeline, Vec::new(), None, None, Reading::Gone);
        let world = World::new(vec![taken], 300);
        let grid = Grid {
            hosts: vec![0],
            start: 700 * HOURS,
            seed: 5,
        };
        let model = HazardModel::pretrained();
        let knowledge = Knowledge::at(&world, &grid, &model);
        let ran = run_scheduled(&knowledge, &paper, Keeping::Nothing, Choice::Random);
        assert!(ran.iter().all(|one| one.unscheduled && one.starts == 0));
    }
}
