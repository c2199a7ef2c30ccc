//! AVAM's experiments on simulated machines.

use std::fmt::Write;

use sim::{Background, ShortJobs, Strategy, load_over_time, run_beside, run_stuttering};

/// Jobs in a series of one of AVAM's experiments, and the number of series.
const AVAM_JOBS: u32 = 50;
const AVAM_SERIES: u64 = 200;

/// AVAM's four scenarios: name, mean time between arrivals of background processes, and mean time that these
/// stay, in seconds.
const SCENARIOS: [(&str, f64, f64); 4] = [
    ("unloaded", f64::INFINITY, 1.0),
    ("lightly loaded", 15.0, 14.0),
    ("loaded", 12.0, 36.0),
    ("heavily loaded", 9.0, 60.0),
];

/// AVAM's two sets of jobs. In the first, a job needs 20 s on a loaded machine and 40 s on the idle one, and
/// has 100 s until its deadline. In the second, the third machine is like the others, and the deadline is
/// four times the run time.
const AVAM: [(&str, ShortJobs); 2] = [
    (
        "fixed inputs",
        ShortJobs {
            jobs: AVAM_JOBS,
            cpu_seconds: 20.0,
            cpu_seconds_elsewhere: 40.0,
            deadline_seconds: 100.0,
            silent_above: f64::INFINITY,
        },
    ),
    (
        "deadline of four times the run time",
        ShortJobs {
            jobs: AVAM_JOBS,
            cpu_seconds: 20.0,
            cpu_seconds_elsewhere: 20.0,
            deadline_seconds: 80.0,
            silent_above: f64::INFINITY,
        },
    ),
];

/// A Markdown table of AVAM's experiments: both sets of jobs, four scenarios, three strategies.
#[must_use]
pub fn avam_table() -> String {
    let mut text = String::from(
        "| jobs | machines | strategy | mean time | standard deviation | in time | moved |\n\
         |---|---|---|---|---|---|---|\n",
    );
    let strategies = [
        (Strategy::RoundRobin, "round robin"),
        (Strategy::Best, "best"),
        (Strategy::Rescheduled, "best, rescheduled"),
    ];
    for (kind, jobs) in AVAM {
        for (name, arrival_seconds, stay_seconds) in SCENARIOS {
            let background = Background {
                arrival_seconds,
                stay_seconds,
            };
            for (strategy, says) in strategies {
                let mut count = 0.0;
                let mut in_time = 0.0;
                let mut moved = 0.0;
                let mut sum = 0.0;
                let mut squares = 0.0;
                for seed in 0..AVAM_SERIES {
                    let found = run_stuttering(&jobs, background, strategy, seed);
                    count += f64::from(found.jobs);
                    in_time += f64::from(found.in_time);
                    moved += f64::from(found.moved);
                    sum += found.seconds;
                    squares += found.squares;
                }
                let mean = sum / count;
                let deviation = (squares / count - mean * mean).max(0.0).sqrt();
                let _ = writeln!(
                    text,
                    "| {kind} | {name} | {says} | {mean:.1} s | {deviation:.1} s | {:.1}% | {:.1}% |",
                    100.0 * in_time / count,
                    100.0 * moved / count,
                );
            }
        }
    }
    text
}

/// Numbers of machines in AVAM's table 1.
const MACHINES: [i32; 4] = [2, 16, 32, 256];

/// A Markdown table of AVAM's table 1 and figure 6: in each scenario the load of a machine, and the chance that of
/// some machines at least one has no background process, a load below 1, and one below 2.
#[must_use]
pub fn idle_table() -> String {
    let mut text = String::from("| machines | load: mean, standard deviation |");
    let mut rule = String::from("|---|---|");
    for machines in MACHINES {
        let _ = write!(text, " of {machines}: idle, below 1, below 2 |");
        rule += "---|";
    }
    text = text + "\n" + &rule + "\n";
    for (name, arrival_seconds, stay_seconds) in SCENARIOS {
        let background = Background {
            arrival_seconds,
            stay_seconds,
        };
        let load = load_over_time(background, 1);
        let _ = write!(text, "| {name} | {:.1}, {:.1} |", load.mean, load.deviation);
        for machines in MACHINES {
            let chances = load.below.map(|share| 1.0 - (1.0 - share).powi(machines));
            let [idle, below_1, below_2] = chances;
            let _ = write!(text, " {idle:.3}, {below_1:.3}, {below_2:.3} |");
        }
        text.push('\n');
    }
    text
}

/// The job of figures 12 and 13. The machine on which it may be started again is as fast as its first; the paper
/// does not say which one it was.
const SENSITIVE: ShortJobs = ShortJobs {
    jobs: 1,
    cpu_seconds: 80.0,
    cpu_seconds_elsewhere: 80.0,
    deadline_seconds: 180.0,
    silent_above: 5.0,
};

/// When the load comes in figure 12, and how much of it in figure 13.
const LOADED_AT: f64 = 20.0;
const LOADED_WITH: u32 = 5;

/// Markdown tables of AVAM's figures 12 (more or less load) and 13 (load that comes sooner or later).
#[must_use]
pub fn sensitivity_tables() -> String {
    let head = "without rescheduling | first machine | second machine | with rescheduling |\n|---|---|---|---|---|\n";
    let mut text = format!("| processes that come after {LOADED_AT} s | {head}");
    for processes in 1..=10 {
        text += &sensitivity_row(&processes.to_string(), processes, LOADED_AT);
    }
    let _ = write!(text, "\n| {LOADED_WITH} processes come after | {head}");
    for at in (10..80).step_by(10) {
        text += &sensitivity_row(&format!("{at} s"), LOADED_WITH, f64::from(at));
    }
    text
}

fn sensitivity_row(what: &str, processes: u32, at: f64) -> String {
    let ran = |strategy| run_beside(&SENSITIVE, processes, at, strategy);
    let stays = ran(Strategy::Best).here_seconds;
    let moved = ran(Strategy::Rescheduled);
    let second = moved
        .elsewhere_seconds
        .map(|seconds| format!("{seconds:.0} s"));
    let all = moved.here_seconds + moved.elsewhere_seconds.unwrap_or(0.0);
    format!(
        "| {what} | {stays:.0} s | {:.0} s | {} | {all:.0} s |\n",
        moved.here_seconds,
        second.unwrap_or_else(|| "-".to_owned()),
    )
}
