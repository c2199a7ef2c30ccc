//! Answers of `ckpt runs`.

use serde::Serialize;

/// Answer of `ckpt runs`.
#[derive(Clone, Debug, Serialize)]
pub struct RunsReport {
    /// File of the history.
    pub history: String,
    /// Runs, in the order in which they ended.
    pub runs: Vec<PastRunReport>,
    /// Lines of the file that are no runs.
    pub unreadable: usize,
    /// Runs of these for which there had been a forecast.
    pub forecast_runs: usize,
    /// Mean of the errors of these forecasts; none without any.
    pub mean_error: Option<f64>,
    /// The same of the nearest run, by the numbers as they are: the papers' rule.
    pub nearest_mean_error: Option<f64>,
    /// Share of these runs that were in their interval, 0 to 1.
    pub inside: Option<f64>,
}

/// A run that ended with 0.
#[derive(Clone, Debug, Serialize)]
pub struct PastRunReport {
    /// When it ended, Unix seconds.
    pub ended_at: u64,
    /// The job.
    pub job: String,
    /// Program and words, with the numbers.
    pub command: String,
    /// Processor time at reference speed.
    pub cpu_seconds: f64,
    /// Time in which it could run, in seconds of a machine of reference speed.
    pub work_seconds: f64,
    /// Seconds from its first start to its end.
    pub elapsed_seconds: f64,
    /// How often it was started.
    pub starts: u32,
    /// Speed of the machine on which it ended, 1 being the reference.
    pub speed: f64,
    /// Processor time that had been forecast; none when nothing was known.
    pub forecast_seconds: Option<f64>,
    /// Lower end of the interval of the forecast.
    pub low_seconds: Option<f64>,
    /// Upper end.
    pub high_seconds: Option<f64>,
    /// How wrong the forecast was, as a share of the truth: 0.1 when it was 10% too high or too low.
    pub error: Option<f64>,
    /// The same of the nearest run, by the numbers as they are.
    pub nearest_error: Option<f64>,
}

/// Answer of `ckpt runs --predict`.
#[derive(Clone, Debug, Serialize)]
pub struct RunForecastReport {
    /// File of the history.
    pub history: String,
    /// Program and words, with the numbers.
    pub command: String,
    /// Processor time at reference speed.
    pub cpu_seconds: f64,
    /// Lower end of the interval; none from a single run.
    pub low_seconds: Option<f64>,
    /// Upper end.
    pub high_seconds: Option<f64>,
    /// Share of runs that lie in it, 0 to 1.
    pub share: Option<f64>,
    /// What the nearest run took, by the numbers as they are: the papers' rule.
    pub nearest_seconds: f64,
    /// Earlier runs that were looked at.
    pub runs: usize,
    /// Parameters that lie outside of all earlier runs.
    pub outside: Vec<String>,
    /// Speed of this machine, 1 being the reference.
    pub speed: f64,
    /// Seconds that it has to run on this machine, if it gets as much of it as earlier runs did of theirs.
    pub here_seconds: f64,
    /// The longest time without a sign of life of any earlier run, seconds.
    pub quiet_seconds: f64,
}
