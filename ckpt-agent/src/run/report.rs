//! Answers of `ckpt run`: the summary at the end, and what `--check` finds.

use codec::JobId;
use serde::Serialize;

/// Answer of `ckpt run`.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// The job.
    pub job: JobId,
    /// Exit status of `ckpt run`.
    pub exit_code: u8,
    /// Whose decision the end was: `job` or `supervisor`.
    pub ended_by: &'static str,
    /// Why it ended, such as `exit status 0` or `the owner needs the machine`.
    pub why: String,
    /// Version that the job began from on this machine; none when it began anew.
    pub began_from: Option<u64>,
    /// The newest version that was committed or restored.
    pub version: Option<u64>,
    /// Seconds in which the job could run.
    pub work_seconds: f64,
    /// Seconds in which it was stopped for the machine's owner.
    pub suspended_seconds: f64,
    /// Seconds in which it was stopped for checkpoints.
    pub checkpoint_seconds: f64,
    /// Seconds of work that are in no committed checkpoint, if it is to be started again.
    pub lost_seconds: f64,
    /// Times that it was stopped for the owner.
    pub suspensions: u64,
    /// Checkpoints that were committed.
    pub checkpoints: u64,
    /// Saves that failed.
    pub failed_saves: u64,
    /// The final checkpoint; none when the job did not have to leave.
    pub last: Option<FinalReport>,
    /// Processor time of the job in all its incarnations, at reference speed.
    pub cpu_seconds: f64,
    /// Speed of a processor of this machine, 1 being the reference.
    pub speed: f64,
    /// How often the job was started, this time included.
    pub starts: u32,
    /// Processor time that was forecast when it was started first; none when nothing was known.
    pub forecast_cpu_seconds: Option<f64>,
    /// Whether `--finish-within` is not over; none without it.
    pub in_time: Option<bool>,
    /// Where the journal is.
    pub journal: String,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// Forecast and truth of a final checkpoint.
#[derive(Clone, Debug, Serialize)]
pub struct FinalReport {
    /// Seconds between the need to leave and the end.
    pub grace_seconds: f64,
    /// Seconds that it was expected to take.
    pub expected_seconds: f64,
    /// The chance that it would be in time, 0 to 1.
    pub chance: f64,
    /// Seconds that it took; none when it was not committed.
    pub took_seconds: Option<f64>,
}

/// Answer of `ckpt run --check`.
#[derive(Clone, Debug, Serialize)]
pub struct RunCheckReport {
    /// The job.
    pub job: JobId,
    /// Version that would be restored; none when the job would begin anew.
    pub version: Option<u64>,
    /// Who has the machine: `owner`, or the batch system's name.
    pub owner: String,
    /// What holds the job back on this machine: what was chosen, then all that was tried.
    pub control: Vec<ControlFound>,
    /// Seconds from one checkpoint to the next, if one takes `cost_seconds`; none when none pays.
    pub interval_seconds: Option<f64>,
    /// Seconds for which the job is expected to stand still for a checkpoint.
    pub cost_seconds: f64,
    /// Who says what is to be expected of the machine.
    pub outlook: String,
    /// Seconds between the need to leave and the end.
    pub grace_seconds: f64,
    /// What the key is good for: `all jobs`, or what its grant says.
    pub key: String,
    /// Where the journal is or would be.
    pub journal: String,
    /// What stands in the way, or works less well than elsewhere.
    pub notes: Vec<String>,
}

/// A way of holding a job back.
#[derive(Clone, Debug, Serialize)]
pub struct ControlFound {
    /// Its name.
    pub name: String,
    /// Whether it works here.
    pub works: bool,
    /// How that was found out, or why not.
    pub what: String,
}
