//! AVAM's experiments (seed 003): short jobs on simulated machines with background processes that come and
//! go. The conditions of [`supervision::moving`] decide when a job is started again elsewhere.
//!
//! Background processes arrive as a Poisson process and stay for exponential times, whatever else runs. A
//! job gets `1 / (1 + n)` of the processor beside n of them.

use rand::rngs::SmallRng;
use supervision::hang::remaining;
use supervision::moving::{CpuShare, Elsewhere, MISSED_REPORTS_MAX};

use crate::draw::{Purpose, draws, exponential};

/// Time between two checks of a job's progress, seconds.
const CHECK_SECONDS: f64 = 5.0;
/// Time that a move takes, seconds: the paper's mean.
const MOVE_SECONDS: f64 = 4.0;
/// Time before the first job begins, in mean stays of background processes, so that their number is steady.
const WARM_UP_STAYS: f64 = 10.0;
/// Time over which a machine's load average is taken, seconds, and between two looks at it.
const AVERAGE_SECONDS: f64 = 60.0;
/// Looks at a machine's load.
const LOOKS: u32 = 200_000;
/// A job is given up after this many times its deadline.
const LONGEST_DEADLINES: f64 = 50.0;

/// Background processes beside which jobs run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Background {
    /// Mean time between arrivals, seconds; infinite for no processes.
    pub arrival_seconds: f64,
    /// Mean time for which a process stays, seconds.
    pub stay_seconds: f64,
}

/// How a job's machine is chosen from two loaded machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Both machines in turn.
    RoundRobin,
    /// The machine with the lower load when the job begins.
    Best,
    /// The machine with the lower load; a job that is going to be late is started again on an idle machine.
    Rescheduled,
}

/// Short jobs, one after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortJobs {
    /// Number of jobs.
    pub jobs: u32,
    /// Processor time of a job on one of the loaded machines, seconds.
    pub cpu_seconds: f64,
    /// Processor time of a job on the idle machine, seconds.
    pub cpu_seconds_elsewhere: f64,
    /// Deadline, seconds after the beginning.
    pub deadline_seconds: f64,
    /// Number of background processes above which a job's reports do not arrive.
    pub silent_above: f64,
}

/// What became of one job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ran {
    /// Seconds on the machine on which it began.
    pub here_seconds: f64,
    /// Seconds on the machine to which it moved, with the move; `None` if it did not move.
    pub elsewhere_seconds: Option<f64>,
}

/// The load of one machine over time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadOverTime {
    /// Mean of the load average.
    pub mean: f64,
    /// Standard deviation of the load average.
    pub deviation: f64,
    /// Shares of the time without a process, with a load average below 1, and with one below 2.
    pub below: [f64; 3],
}

/// Counts and sums over the jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stuttered {
    /// Number of jobs.
    pub jobs: u32,
    /// Number of jobs that met their deadline.
    pub in_time: u32,
    /// Number of jobs that were started again elsewhere.
    pub moved: u32,
    /// Sum of the times that the jobs took, seconds.
    pub seconds: f64,
    /// Sum of the squares of these times, from which their standard deviation follows.
    pub squares: f64,
}

/// A machine with background processes.
struct Machine {
    background: Background,
    rng: SmallRng,
    next_arrival: f64,
    /// Number of processes that arrive at once.
    together: u32,
    /// When each present process ends.
    ends: Vec<f64>,
}

impl Machine {
    fn new(background: Background, seed: u64, number: u64) -> Self {
        let mut rng = draws(seed, Purpose::Noise, [number, 0, 3]);
        let next_arrival = exponential(&mut rng, background.arrival_seconds);
        Self {
            background,
            rng,
            next_arrival,
            together: 1,
            ends: Vec::new(),
        }
    }

    /// A machine on which `processes` arrive at `at`, and stay.
    fn with_load(processes: u32, at: f64) -> Self {
        let stays = Background {
            arrival_seconds: f64::INFINITY,
            stay_seconds: f64::INFINITY,
        };
        Self {
            next_arrival: at,
            together: processes,
            ..Self::new(stays, 0, 0)
        }
    }

    /// Number of processes at `now`, which may not be before that of an earlier call.
    fn load(&mut self, now: f64) -> f64 {
        while self.next_arrival <= now {
            let at = self.next_arrival;
            for _ in 0..self.together {
                let stays = exponential(&mut self.rng, self.background.stay_seconds);
                self.ends.push(at + stays);
            }
            self.next_arrival = at + exponential(&mut self.rng, self.background.arrival_seconds);
        }
        self.ends.retain(|end| *end > now);
        self.ends.len() as f64
    }

    /// When the number of processes changes next.
    fn changes(&self) -> f64 {
        self.ends.iter().copied().fold(self.next_arrival, f64::min)
    }
}

/// Runs the jobs one after the other.
#[must_use]
pub fn run_stuttering(
    jobs: &ShortJobs,
    background: Background,
    strategy: Strategy,
    seed: u64,
) -> Stuttered {
    let mut machines = [0, 1].map(|number| Machine::new(background, seed, number));
    let mut now = WARM_UP_STAYS * background.stay_seconds;
    let mut found = Stuttered::default();
    for job in 0..jobs.jobs {
        let [first, second] = &mut machines;
        let one = first.load(now);
        let other = second.load(now);
        let in_turn = job % 2 == 0;
        let takes_first = match strategy {
            Strategy::RoundRobin => in_turn,
            Strategy::Best | Strategy::Rescheduled if one == other => in_turn,
            Strategy::Best | Strategy::Rescheduled => one < other,
        };
        let machine = if takes_first { first } else { second };
        let ran = one_job(jobs, machine, strategy, now);
        let took = ran.here_seconds + ran.elsewhere_seconds.unwrap_or(0.0);
        found.jobs += 1;
        found.in_time += u32::from(took <= jobs.deadline_seconds);
        found.moved += u32::from(ran.elsewhere_seconds.is_some());
        found.seconds += took;
        found.squares += took * took;
        now += took;
    }
    found
}

/// Runs one job on a machine on which `processes` arrive `at` seconds after its beginning, and stay: figures 12
/// and 13.
#[must_use]
pub fn run_beside(jobs: &ShortJobs, processes: u32, at: f64, strategy: Strategy) -> Ran {
    one_job(jobs, &mut Machine::with_load(processes, at), strategy, 0.0)
}

/// The load of a machine with these background processes: table 1 and figure 6. The load average is the usual one
/// of a minute.
#[must_use]
pub fn load_over_time(background: Background, seed: u64) -> LoadOverTime {
    let mut machine = Machine::new(background, seed, 0);
    let kept = (-CHECK_SECONDS / AVERAGE_SECONDS).exp();
    let mut average = background.stay_seconds / background.arrival_seconds;
    let mut sum = 0.0;
    let mut squares = 0.0;
    let mut below = [0.0; 3];
    for look in 0..LOOKS {
        let now = WARM_UP_STAYS * background.stay_seconds + f64::from(look) * CHECK_SECONDS;
        let load = machine.load(now);
        average = kept * average + (1.0 - kept) * load;
        sum += average;
        squares += average * average;
        for (count, is_below) in below
            .iter_mut()
            .zip([load < 1.0, average < 1.0, average < 2.0])
        {
            *count += f64::from(u8::from(is_below));
        }
    }
    let looks = f64::from(LOOKS);
    let mean = sum / looks;
    LoadOverTime {
        mean,
        deviation: (squares / looks - mean * mean).max(0.0).sqrt(),
        below: below.map(|count| count / looks),
    }
}

/// Runs one job from `from` on.
fn one_job(jobs: &ShortJobs, machine: &mut Machine, strategy: Strategy, from: f64) -> Ran {
    let mut now = from;
    let mut done = 0.0;
    let mut share = CpuShare::default();
    share.update(0.0, 0.0);
    let mut missed = 0;
    let mut next_check = from + CHECK_SECONDS;
    let elsewhere = Elsewhere {
        cpu_seconds: jobs.cpu_seconds_elsewhere,
        load: 0.0,
        overhead_seconds: MOVE_SECONDS,
    };
    while now < from + LONGEST_DEADLINES * jobs.deadline_seconds {
        let rate = 1.0 / (1.0 + machine.load(now));
        let ends = now + (jobs.cpu_seconds - done) / rate;
        let next = ends.min(machine.changes()).min(next_check);
        done += rate * (next - now);
        now = next;
        if now >= ends {
            break;
        }
        if now < next_check {
            continue;
        }
        next_check += CHECK_SECONDS;
        let elapsed = now - from;
        let moves = Ran {
            here_seconds: elapsed,
            elsewhere_seconds: Some(elsewhere.seconds()),
        };
        if strategy == Strategy::Rescheduled && machine.load(now) > jobs.silent_above {
            missed += 1;
            if missed == MISSED_REPORTS_MAX {
                return moves;
            }
            continue;
        }
        missed = 0;
        share.update(done, elapsed);
        let Some(share) = share.share().filter(|_| strategy == Strategy::Rescheduled) else {
            continue;
        };
        let left = remaining(jobs.cpu_seconds, done, elapsed, share);
        let is_late = left.whole_seconds > jobs.deadline_seconds;
        let helps = elsewhere.is_in_time(jobs.deadline_seconds - elapsed)
            || elsewhere.is_worthwhile(left.elapsed_seconds);
        if is_late && helps {
            return moves;
        }
    }
    Ran {
        here_seconds: now - from,
        elsewhere_seconds: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOBS: ShortJobs = ShortJobs {
        jobs: 200,
        cpu_seconds: 20.0,
        cpu_seconds_elsewhere: 40.0,
        deadline_seconds: 100.0,
        silent_above: f64::INFINITY,
    };

    #[test]
    fn a_machine_without_others_is_the_job_s() {
        let nobody = Background {
            arrival_seconds: f64::INFINITY,
            stay_seconds: 10.0,
        };
        for strategy in [Strategy::RoundRobin, Strategy::Best, Strategy::Rescheduled] {
            let found = run_stuttering(&JOBS, nobody, strategy, 1);
            assert_eq!((found.in_time, found.moved), (200, 0));
            assert!((found.seconds / 200.0 - 20.0).abs() < 1e-6);
        }
    }

    #[test]
    fn the_mean_load_is_the_stay_by_the_time_between_arrivals() {
        let background = Background {
            arrival_seconds: 9.0,
            stay_seconds: 60.0,
        };
        let mut machine = Machine::new(background, 3, 0);
        let looks = 20_000;
        let sum: f64 = (0..looks)
            .map(|i| machine.load(600.0 + f64::from(i) * 7.0))
            .sum();
        let mean = sum / f64::from(looks);
        assert!((mean - 60.0 / 9.0).abs() < 0.2, "{mean}");
    }

    #[test]
    fn machines_are_idle_as_often_as_a_poisson_number_is_zero() {
        let background = Background {
            arrival_seconds: 12.0,
            stay_seconds: 36.0,
        };
        let found = load_over_time(background, 4);
        let [idle, below_1, below_2] = found.below;
        assert!((idle - (-3.0f64).exp()).abs() < 0.01, "{found:?}");
        assert!(below_1 < below_2 && below_2 < 0.5, "{found:?}");
        assert!((found.mean - 3.0).abs() < 0.1, "{found:?}");
        // An average of a minute hides part of the spread of the number, which is its root.
        assert!((0.8..1.7).contains(&found.deviation), "{found:?}");
    }

    #[test]
    fn more_load_is_seen_sooner_and_load_near_the_end_moves_nothing() {
        let jobs = ShortJobs {
            jobs: 1,
            cpu_seconds: 80.0,
            cpu_seconds_elsewhere: 80.0,
            deadline_seconds: 180.0,
            silent_above: 5.0,
        };
        let here = |processes, at| run_beside(&jobs, processes, at, Strategy::Rescheduled);
        assert_eq!(here(1, 20.0).elsewhere_seconds, None, "140 s are in time");
        let stays = run_beside(&jobs, 4, 20.0, Strategy::Best);
        assert!((stays.here_seconds - 320.0).abs() < 1e-6, "{stays:?}");
        assert!(here(4, 20.0).here_seconds < here(2, 20.0).here_seconds);
        assert_eq!(here(4, 20.0).elsewhere_seconds, Some(84.0));
        // Six reports, 5 s apart, that do not arrive; the first is due when the load comes.
        assert!((here(9, 20.0).here_seconds - 45.0).abs() < 1e-6);
        assert_eq!(here(4, 70.0).elsewhere_seconds, None, "it ends soon");
    }

    #[test]
    fn the_better_machine_helps_and_moving_helps_more() {
        let heavy = Background {
            arrival_seconds: 9.0,
            stay_seconds: 60.0,
        };
        let found = |strategy| run_stuttering(&JOBS, heavy, strategy, 2);
        let [turns, best, moved] =
            [Strategy::RoundRobin, Strategy::Best, Strategy::Rescheduled].map(found);
        assert!(turns.in_time < best.in_time && best.in_time < moved.in_time);
        assert!(
            moved.seconds < best.seconds && moved.moved > 20,
            "{moved:?}"
        );
    }
}
