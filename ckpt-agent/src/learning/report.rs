//! The report of `ckpt hosts --model`.

use serde::Serialize;

/// Which models make the forecasts of hosts: answer of `ckpt hosts --model`.
#[derive(Clone, Debug, Serialize)]
pub struct ModelsReport {
    /// When this machine last collected what hosts learnt, Unix seconds; none if it never did.
    pub collected: Option<u64>,
    /// The model that forecasts whether a host stays reachable.
    pub presence: ModelReport,
    /// The model that forecasts whether a guest job on a host stays alive.
    pub guest: ModelReport,
    /// Number of hosts that answered.
    pub hosts_asked: usize,
    /// Number of these whose forecasts are of the papers' semi-Markov process, or of a program that does not
    /// say what they are made from; a hazard regression makes the others.
    pub hosts_of_other_models: usize,
    /// How good both models would have been in the last seven days of these hosts, by horizon.
    pub judged: Vec<JudgedReport>,
}

/// Forecasts of presence on the past of the hosts that answered; both models made the same number of them.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct JudgedReport {
    /// How far ahead, hours.
    pub hours: u64,
    /// Number of forecasts.
    pub forecasts: u64,
    /// Mean squared error of the shipped hazard regression with the level of the host (Brier score); none
    /// without forecasts.
    pub hazard_brier: Option<f64>,
    /// Mean squared error of the papers' semi-Markov process.
    pub smp_brier: Option<f64>,
}

/// The model of one kind of forecast.
#[derive(Clone, Debug, Serialize)]
pub struct ModelReport {
    /// Whether a model that was refitted to the grid is used; otherwise the shipped one is.
    pub refitted: bool,
    /// Since when the model is in use, Unix seconds; none if no other model was in use before.
    pub since: Option<u64>,
    /// When the model in use was refitted, Unix seconds.
    pub refitted_at: Option<u64>,
    /// Number of hosts from whose sums it was refitted.
    pub hosts: Option<usize>,
    /// Number of landmarks (hours of these hosts) in these sums; old landmarks fade.
    pub landmarks: Option<u64>,
    /// Whether another refit waits for its trial.
    pub to_be_tried: bool,
    /// The trials that decided which model is used, together: at most seven, of the last eight days; none if
    /// there are none.
    pub together: Option<TogetherReport>,
    /// The last trials, at most 28, the newest one last.
    pub trials: Vec<TrialReport>,
}

/// Several trials together. A refit is used if its log loss is the lower one.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TogetherReport {
    /// Number of forecasts that were judged.
    pub landmarks: u64,
    /// Mean log loss of the shipped model.
    pub shipped_log_loss: f64,
    /// Mean log loss of the refits, each of the day before its trial.
    pub refitted_log_loss: f64,
}

/// A trial: the shipped model and a refit, on a day that neither had seen.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TrialReport {
    /// When the trial was, Unix seconds.
    pub at: u64,
    /// Number of forecasts that were judged.
    pub landmarks: u64,
    /// Mean log loss of the shipped model.
    pub shipped_log_loss: f64,
    /// Mean log loss of the refit.
    pub refitted_log_loss: f64,
    /// Whether the refit was better on that day.
    pub won: bool,
}
