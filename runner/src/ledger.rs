//! The ledger: how often jobs lost their machine, what was rescued, and what was lost. A file with a line for each
//! time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::history::{HistoryError, append_line, read_lines};
use ckpt_agent::unix_time::unix_seconds;

/// Name of the ledger in the state directory.
pub const LEDGER: &str = "ledger.jsonl";

/// How a job lost its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Loss {
    /// It had to leave.
    Evicted,
    /// Its supervisor was killed, or its machine failed.
    Killed,
    /// Another incarnation of the job went on.
    Superseded,
    /// It hung.
    Hung,
}

/// A line of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LedgerLine {
    /// When it was noted, Unix seconds.
    pub at: u64,
    /// Name of the job.
    pub job: String,
    /// How the job lost its machine.
    pub loss: Loss,
    /// The host on which it ran, if that was not this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Whether a version, or files here, hold a state from which the job can go on.
    pub goes_on: bool,
    /// Its work on that machine that it need not repeat, seconds.
    pub rescued_s: f64,
    /// Its work on that machine that it has to repeat, seconds.
    pub lost_s: f64,
    /// Why its last save before that failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl LedgerLine {
    /// A line for a job that lost its machine now.
    pub(crate) fn now(job: &str, loss: Loss, goes_on: bool, work_s: f64, lost_s: f64) -> Self {
        let lost_s = lost_s.clamp(0.0, work_s.max(0.0));
        Self {
            at: unix_seconds(),
            job: job.to_owned(),
            loss,
            host: None,
            goes_on,
            rescued_s: work_s.max(0.0) - lost_s,
            lost_s,
            why: None,
        }
    }

    fn is_sound(&self) -> bool {
        let times = [self.rescued_s, self.lost_s];
        times.iter().all(|time| time.is_finite() && *time >= 0.0)
    }

    /// Adds it to the ledger in the state directory; nothing is noted without one.
    ///
    /// # Errors
    /// When the line can't be written.
    pub(crate) fn append(&self, state_dir: Option<&Path>) -> Result<(), HistoryError> {
        state_dir.map_or(Ok(()), |dir| append_line(&dir.join(LEDGER), self))
    }
}

/// Sums over the times when jobs lost their machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LedgerSum {
    /// How often a job had to leave its machine, or the machine or `ckpt run` was lost.
    pub evictions: u64,
    /// How often of these the job could go on from a saved state.
    pub survived: u64,
    /// Seconds of work that did not have to be repeated; at evictions, and where another incarnation went on or the
    /// job hung.
    pub rescued_seconds: f64,
    /// Seconds of work that had to be repeated.
    pub lost_seconds: f64,
}

impl LedgerSum {
    fn add(&mut self, line: &LedgerLine) {
        let is_eviction = matches!(line.loss, Loss::Evicted | Loss::Killed);
        self.evictions += u64::from(is_eviction);
        self.survived += u64::from(is_eviction && line.goes_on);
        self.rescued_seconds += line.rescued_s;
        self.lost_seconds += line.lost_s;
    }
}

/// The ledger, summed up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ledger {
    /// The sums of each job, by name.
    pub jobs: BTreeMap<String, LedgerSum>,
    /// The sum of all jobs.
    pub all: LedgerSum,
    /// Why the last save of a job failed when it lost its machine, by job: the newest reason of each.
    pub why: BTreeMap<String, String>,
    /// The newest of these reasons, with the name of the job.
    pub newest_why: Option<String>,
    /// How many lines can't be read.
    pub unreadable: usize,
}

impl Ledger {
    /// Reads the ledger at `path`; empty if the file does not exist.
    ///
    /// # Errors
    /// When the file exists and can't be read.
    pub fn read(path: &Path) -> Result<Self, HistoryError> {
        let (lines, unreadable) = read_lines(path, LedgerLine::is_sound)?;
        let mut ledger = Self {
            unreadable,
            ..Self::default()
        };
        for line in &lines {
            ledger.jobs.entry(line.job.clone()).or_default().add(line);
            ledger.all.add(line);
            if let Some(why) = &line.why {
                ledger.why.insert(line.job.clone(), why.clone());
                ledger.newest_why = Some(format!("job {}: {why}", line.job));
            }
        }
        Ok(ledger)
    }

    /// The path of the ledger in a state directory.
    #[must_use]
    pub fn path(state_dir: &Path) -> PathBuf {
        state_dir.join(LEDGER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_adds_up_by_job_and_in_all() {
        let dir = tempfile::tempdir().unwrap();
        let state = Some(dir.path());
        let path = Ledger::path(dir.path());
        assert_eq!(Ledger::read(&path).unwrap(), Ledger::default());
        let note = |job, loss, goes_on, work_s, lost_s| {
            let line = LedgerLine::now(job, loss, goes_on, work_s, lost_s);
            line.append(state).unwrap();
        };
        let failed = LedgerLine {
            why: Some("too few hosts".to_owned()),
            ..LedgerLine::now("a", Loss::Evicted, true, 100.0, 0.0)
        };
        failed.append(state).unwrap();
        note("a", Loss::Killed, true, 50.0, 20.0);
        note("b", Loss::Evicted, false, 30.0, 30.0);
        note("b", Loss::Hung, true, 10.0, 4.0);
        let ledger = Ledger::read(&path).unwrap();
        let a = LedgerSum {
            evictions: 2,
            survived: 2,
            rescued_seconds: 130.0,
            lost_seconds: 20.0,
        };
        assert_eq!(ledger.jobs["a"], a);
        let all = LedgerSum {
            evictions: 3,
            survived: 2,
            rescued_seconds: 136.0,
            lost_seconds: 54.0,
        };
        assert_eq!((ledger.all, ledger.unreadable), (all, 0));
        assert_eq!(
            ledger.why.get("a").map(String::as_str),
            Some("too few hosts")
        );
        assert_eq!(ledger.newest_why.as_deref(), Some("job a: too few hosts"));
        assert!(!ledger.why.contains_key("b"));
        LedgerLine::now("a", Loss::Killed, true, 1.0, 0.0)
            .append(None)
            .unwrap();
    }

    #[test]
    fn a_line_loses_no_more_than_was_worked() {
        let line = LedgerLine::now("a", Loss::Killed, true, 5.0, 9.0);
        assert_eq!((line.rescued_s, line.lost_s), (0.0, 5.0));
    }

    #[test]
    fn a_ledger_that_can_t_be_read_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Ledger::read(dir.path()).is_err());
    }
}
