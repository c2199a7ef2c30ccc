//! The answers of `ckpt run`: the summary at the end, and what `--check` finds.

use codec::JobId;
use serde::Serialize;

/// Answer of `ckpt run`, on standard error.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// Name of the job.
    pub job: JobId,
    /// Exit status of `ckpt run`.
    pub exit_code: u8,
    /// Whose decision the end was: `job` or `supervisor`.
    pub ended_by: &'static str,
    /// Why it ended, such as `exit status 0`, `SIGTERM` or `the owner needs the processors`.
    pub why: String,
    /// The version from which the job began on this machine; `None` if it began anew.
    pub began_from: Option<u64>,
    /// The newest version that was committed or restored.
    pub version: Option<u64>,
    /// Seconds in which the job was allowed to run.
    pub work_seconds: f64,
    /// Seconds in which it was stopped for the machine's owner.
    pub suspended_seconds: f64,
    /// Seconds in which it was stopped for checkpoints.
    pub checkpoint_seconds: f64,
    /// Seconds of work that the next start of the job has to repeat, because no committed checkpoint
    /// holds them.
    pub lost_seconds: f64,
    /// If work was lost: what kept the job's files from being whole, and what helps, as far as it is known.
    pub obstacle: Option<String>,
    /// How often the job was stopped for the owner.
    pub suspensions: u64,
    /// How many checkpoints were committed.
    pub checkpoints: u64,
    /// How many saves failed.
    pub failed_saves: u64,
    /// The final checkpoint; `None` if the job did not have to leave.
    pub last: Option<FinalReport>,
    /// Processor time of the job in all its incarnations, at reference speed, seconds.
    pub cpu_seconds: f64,
    /// Speed of a processor of this machine, 1 being the reference; 1, too, with `--history none`.
    pub speed: f64,
    /// How often the job was started, this time included.
    pub starts: u32,
    /// Processor time that was forecast at the first start, seconds; `None` if nothing was known.
    pub forecast_cpu_seconds: Option<f64>,
    /// Whether the job is within `--finish-within`; `None` without this option.
    pub in_time: Option<bool>,
    /// The path of the journal.
    pub journal: String,
    /// What the user should know, in whole sentences.
    pub warnings: Vec<String>,
}

/// What was forecast of a final checkpoint, and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct FinalReport {
    /// Seconds between the need to leave and the end.
    pub grace_seconds: f64,
    /// Seconds that the checkpoint was expected to take.
    pub expected_seconds: f64,
    /// The probability with which it was expected to be in time, 0 to 1.
    pub chance: f64,
    /// Seconds that the checkpoint took; `None` if it was not committed.
    pub took_seconds: Option<f64>,
}

/// Answer of `ckpt run --check`.
#[derive(Clone, Debug, Serialize)]
pub struct RunCheckReport {
    /// Name of the job.
    pub job: JobId,
    /// The version that would be restored; `None` if the job would begin anew.
    pub version: Option<u64>,
    /// Who deals with the machine's owner: this program, or a batch system, as a phrase.
    pub owner: String,
    /// What would hold the job back on this machine: first the chosen way, then all that were tried.
    pub control: Vec<ControlFound>,
    /// Seconds between checkpoints, if each takes `cost_seconds`; `None` if no checkpoint is worth its
    /// cost.
    pub interval_seconds: Option<f64>,
    /// Seconds for which the job is expected to stand still for a checkpoint.
    pub cost_seconds: f64,
    /// Where the forecast for the machine comes from.
    pub outlook: String,
    /// Seconds between the need to leave and the end.
    pub grace_seconds: f64,
    /// What the key may be used for: all jobs of its owner, or what the grant of a job key allows.
    pub key: String,
    /// The path that the journal has or would have.
    pub journal: String,
    /// What stands in the way, or could work better.
    pub notes: Vec<String>,
}

/// A way to hold a job back.
#[derive(Clone, Debug, Serialize)]
pub struct ControlFound {
    /// Name of this way of holding back.
    pub name: String,
    /// Whether it works here.
    pub works: bool,
    /// How it was tried, or why it fails.
    pub what: String,
}
