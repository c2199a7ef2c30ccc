//! The file `standing.json` in the data directory: what the daemon does for others now, and why not more.
//! `ckpt-store status` reads it and does not ask the daemon.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::json_file;
use crate::monitor::stance::{Stance, StanceReport};
use crate::reached::Way;
use crate::shards::Usage;

/// No such file is longer, bytes.
const FILE_BYTES_MAX: u64 = 1 << 16;

/// While the daemon runs, the file is rewritten at least this often, seconds.
pub const PERIOD_S: u64 = 60;

/// What the daemon does for others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusFile {
    /// When this was written, in Unix seconds.
    pub at: u64,
    /// `open`, `standing back` or `closed`.
    pub stance: String,
    /// Since when the stance has been the same, in Unix seconds.
    pub since: u64,
    /// Why the stance is not `open`.
    pub why: Option<String>,
    /// A program that is running and during which the owner wants the machine alone.
    pub program: Option<String>,
    /// When the stance will be `open` again, in Unix seconds, if that is known.
    pub until: Option<u64>,
    /// Bytes that the host lends.
    pub capacity_bytes: u64,
    /// Bytes that are stored or promised.
    pub used_bytes: u64,
    /// Bytes that can still be stored.
    pub free_bytes: u64,
    /// Why the present `preferences.toml` is not in force.
    pub preferences_error: Option<String>,
    /// Which registries reach this host from outside, as far as they have tried.
    #[serde(default)]
    pub reached: Vec<Way>,
    /// Whether the grid has revoked the key of this host.
    #[serde(default)]
    pub is_revoked: bool,
}

impl StatusFile {
    /// The content to write at `at`, in Unix seconds.
    pub fn of(report: StanceReport, usage: &Usage, reached: Vec<Way>, at: u64) -> Self {
        let (stance, why) = match report.stance {
            Stance::Open => ("open", None),
            Stance::StandBack(reason) => ("standing back", Some(reason.what)),
            Stance::Closed(reason) => ("closed", Some(reason.what)),
        };
        Self {
            at,
            stance: stance.to_owned(),
            since: report.since,
            why: why.map(|why| why.to_string()),
            program: report.program,
            until: report.until,
            capacity_bytes: usage.capacity_bytes,
            used_bytes: usage.used_bytes,
            free_bytes: usage.free_bytes,
            preferences_error: report.preferences_error,
            reached,
            is_revoked: false,
        }
    }

    /// Whether the file has to be rewritten: something has changed, or the file is [`PERIOD_S`] old.
    pub fn is_news(&self, before: Option<&Self>) -> bool {
        let Some(before) = before else {
            return true;
        };
        let essence = |one: &Self| {
            (
                one.stance.clone(),
                one.since,
                one.why.clone(),
                one.program.clone(),
                one.preferences_error.clone(),
                one.reached.clone(),
                one.is_revoked,
                one.capacity_bytes,
            )
        };
        self.at.abs_diff(before.at) >= PERIOD_S || essence(self) != essence(before)
    }

    /// Replaces the file in one step.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn save(&self, data: &Path) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(data)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        // The file is not synced, because it is of no use after a crash.
        file.persist(path(data)).map_err(|persist| persist.error)?;
        Ok(())
    }
}

fn path(data: &Path) -> PathBuf {
    data.join("standing.json")
}

/// Reads the file; `None` if there is none.
///
/// # Errors
/// When it can't be read.
pub fn load(data: &Path) -> io::Result<Option<StatusFile>> {
    json_file::read(&path(data), FILE_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use protocol::wire::Withheld;

    use super::*;
    use crate::core::catalog::Counts;
    use crate::monitor::stance::Reason;

    fn status(stance: Stance, at: u64) -> StatusFile {
        let report = StanceReport {
            stance,
            since: 5,
            until: None,
            program: None,
            preferences_error: None,
        };
        let usage = Usage {
            capacity_bytes: 3,
            used_bytes: 2,
            free_bytes: 1,
            counts: Counts::default(),
        };
        StatusFile::of(report, &usage, Vec::new(), at)
    }

    #[test]
    fn changes_are_written_at_once_and_the_rest_once_a_minute() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(dir.path()).unwrap(), None);
        let open = status(Stance::Open, 100);
        assert!(open.is_news(None));
        open.save(dir.path()).unwrap();
        assert_eq!(load(dir.path()).unwrap(), Some(open.clone()));
        assert!(!status(Stance::Open, 159).is_news(Some(&open)));
        assert!(status(Stance::Open, 160).is_news(Some(&open)));
        let paused = Stance::StandBack(Reason {
            what: Withheld::Paused,
            retry_after_s: 9,
        });
        let paused = status(paused, 101);
        assert!(paused.is_news(Some(&open)));
        assert_eq!(paused.why.as_deref(), Some("its owner has paused it"));
    }
}
