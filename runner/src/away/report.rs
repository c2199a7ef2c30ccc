//! The answer of `ckpt run --on`.

use codec::JobId;
use serde::Serialize;

/// Answer of `ckpt run --on`, on standard error.
#[derive(Clone, Debug, Serialize)]
pub struct AwayReport {
    /// Name of the job.
    pub job: JobId,
    /// Exit status of `ckpt run`.
    pub exit_code: u8,
    /// Whose decision the end was: `job` or `supervisor`.
    pub ended_by: &'static str,
    /// The reason for which the run ended.
    pub why: String,
    /// The host on which the job was at the end; `None` if it was on none, or if that is unknown.
    pub host: Option<String>,
    /// The version that was restored here, or the newest one, from which the next start goes on; `None`
    /// if unknown.
    pub version: Option<u64>,
    /// The hosts on which this process started or found the job, in order.
    pub hosts: Vec<String>,
    /// How often the job was started on a host, by earlier processes as well.
    pub starts: u32,
    /// For each move that this process has seen: seconds from the last report that the job ran undisturbed to
    /// the first one from the next host.
    pub moves_seconds: Vec<f64>,
    /// Number of files of the working directory that are new or different; `None` if nothing was
    /// restored.
    pub changed_files: Option<usize>,
    /// Paths under which this machine's copies lie of files that were changed both here and by the job.
    pub aside: Vec<String>,
    /// The directory with hidden files, programs and links to elsewhere that the job made or changed, which were not
    /// put in their places; `None` when there are none.
    pub held_back: Option<String>,
    /// Path of the journal.
    pub journal: String,
    /// What the user should know, in whole sentences.
    pub warnings: Vec<String>,
}
