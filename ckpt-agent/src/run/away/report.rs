//! Answer of `ckpt run --on`.

use codec::JobId;
use serde::Serialize;

/// Answer of `ckpt run --on`.
#[derive(Clone, Debug, Serialize)]
pub struct AwayReport {
    /// The job.
    pub job: JobId,
    /// Exit status of `ckpt run`.
    pub exit_code: u8,
    /// Whose decision the end was: `job` or `supervisor`.
    pub ended_by: &'static str,
    /// Why it ended.
    pub why: String,
    /// The host on which it was at the end; none when it was on none, or nobody knows.
    pub host: Option<String>,
    /// The newest version that was restored here, or that the next start goes on from; none when nobody knows.
    pub version: Option<u64>,
    /// The hosts that it was started on, one after the other, as far as this process has seen it.
    pub hosts: Vec<String>,
    /// How often the job was started on a host, by earlier processes, too.
    pub starts: u32,
    /// Seconds from the end on one host to running on another, for each move that this process has seen.
    pub moves_seconds: Vec<f64>,
    /// Files of the working directory that are new or different; none when nothing was restored.
    pub changed_files: Option<usize>,
    /// Where files are that were changed here and by the job, as they were here.
    pub aside: Vec<String>,
    /// Where the journal is.
    pub journal: String,
    /// What the user should know.
    pub warnings: Vec<String>,
}
