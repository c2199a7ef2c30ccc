//! The answers of `ckpt runs`.

use serde::Serialize;

use super::ledger::LedgerSum;

/// Answer of `ckpt runs`.
#[derive(Clone, Debug, Serialize)]
pub struct RunsReport {
    /// Path of the history.
    pub history: String,
    /// Runs, in the order in which they ended.
    pub runs: Vec<PastRunReport>,
    /// How many lines of the file are not runs.
    pub unreadable: usize,
    /// How many of these runs had a forecast.
    pub forecast_runs: usize,
    /// Mean error of these forecasts; `None` if there are none.
    pub mean_error: Option<f64>,
    /// Mean error of the rule of AVAM, which takes the run with the nearest numbers; `None` without forecasts.
    pub nearest_mean_error: Option<f64>,
    /// Share of these runs whose time was in the interval of the forecast, 0 to 1; `None` without any.
    pub inside: Option<f64>,
    /// What became of work when jobs lost their machines.
    pub ledger: LedgerReport,
}

/// What became of work when jobs lost their machines: the lines of `ledger.jsonl` in the state directory, of one job
/// with `--job`. A job on a host of `--on` counts on the machine from which it was started.
#[derive(Clone, Debug, Serialize)]
pub struct LedgerReport {
    /// The jobs that lost a machine, by name.
    pub jobs: Vec<JobLedger>,
    /// The sum of these jobs.
    pub all: LedgerSum,
    /// How many lines of the ledger can't be read.
    pub unreadable: usize,
}

/// The part of a job in the ledger.
#[derive(Clone, Debug, Serialize)]
pub struct JobLedger {
    /// Name of the job.
    pub job: String,
    /// What became of its work.
    #[serde(flatten)]
    pub sum: LedgerSum,
    /// Why its last save failed when it lost its machine, the newest reason; `None` if none failed.
    pub why: Option<String>,
}

/// A run that ended with exit status 0.
#[derive(Clone, Debug, Serialize)]
pub struct PastRunReport {
    /// When it ended, Unix seconds.
    pub ended_at: u64,
    /// Name of the job.
    pub job: String,
    /// The program and its words, with the numbers.
    pub command: String,
    /// Processor time at reference speed, seconds.
    pub cpu_seconds: f64,
    /// Time in which it could run, converted to seconds of a machine of reference speed.
    pub work_seconds: f64,
    /// Seconds from its first start to its end.
    pub elapsed_seconds: f64,
    /// How often it was started.
    pub starts: u32,
    /// Speed of the machine on which it ended, 1 for the reference.
    pub speed: f64,
    /// Processor time that was forecast, seconds; `None` if nothing was known.
    pub forecast_seconds: Option<f64>,
    /// Lower end of the interval of the forecast, seconds.
    pub low_seconds: Option<f64>,
    /// Upper end of the interval of the forecast, seconds.
    pub high_seconds: Option<f64>,
    /// Error of the forecast, as a share of the truth: 0.1 if it was 10% too high or too low.
    pub error: Option<f64>,
    /// The same error of the run with the nearest numbers.
    pub nearest_error: Option<f64>,
}

/// Answer of `ckpt runs --predict`.
#[derive(Clone, Debug, Serialize)]
pub struct RunForecastReport {
    /// Path of the history.
    pub history: String,
    /// The program and its words, with the numbers.
    pub command: String,
    /// Forecast of the processor time at reference speed, seconds.
    pub cpu_seconds: f64,
    /// Lower end of the interval, seconds; `None` if the forecast rests on a single run.
    pub low_seconds: Option<f64>,
    /// Upper end of the interval, seconds.
    pub high_seconds: Option<f64>,
    /// Share of runs that lie in the interval, 0 to 1: 0.9, or less with fewer than 19 runs.
    pub share: Option<f64>,
    /// Processor time of the run with the nearest numbers, seconds: the rule of AVAM.
    pub nearest_seconds: f64,
    /// How many earlier runs were compared with this one.
    pub runs: usize,
    /// Names of the numbers that lie outside the range of all earlier runs.
    pub outside: Vec<String>,
    /// Speed of this machine, 1 for the reference.
    pub speed: f64,
    /// Seconds that it has to run on this machine, if it gets the same share of it as earlier runs did of
    /// theirs.
    pub here_seconds: f64,
    /// The longest time without a sign of life of any earlier run, seconds.
    pub quiet_seconds: f64,
}
