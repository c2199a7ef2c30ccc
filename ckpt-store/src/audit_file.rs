//! The file `audits.json` in the data directory: what submitters found when they checked shards.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use codec::{CheckpointId, OwnerId};
use protocol::wire::message::{Audit, AuditFault};
use serde::{Deserialize, Serialize};

use crate::core::audits::{AuditCounts, Audits, Failure};
use crate::json_file;

/// No such file is longer, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Default, Serialize, Deserialize)]
struct FileText {
    submitters: Vec<SubmitterText>,
    failures: Vec<FailureText>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SubmitterText {
    key: String,
    passed: u64,
    failed: u64,
}

/// A check that failed, in the form in which it is written and shown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FailureText {
    /// When it was reported, in Unix seconds.
    pub at: u64,
    /// The public key of the submitter that reported it, in hexadecimal.
    pub by: String,
    /// The id of the checkpoint, in hexadecimal.
    pub checkpoint: String,
    /// The number of the shard.
    pub shard: u8,
    /// `missing`, `damaged` or `broken_off`.
    pub fault: String,
}

impl From<&Failure> for FailureText {
    fn from(failure: &Failure) -> Self {
        Self {
            at: failure.at,
            by: failure.by.hex(),
            checkpoint: failure.audit.checkpoint.hex(),
            shard: failure.audit.shard,
            fault: failure.fault.name().to_owned(),
        }
    }
}

impl FailureText {
    fn read(&self) -> Option<Failure> {
        let fault = AuditFault::from_name(&self.fault)?;
        Some(Failure {
            at: self.at,
            by: OwnerId::from_hex(&self.by)?,
            audit: Audit {
                checkpoint: CheckpointId::from_hex(&self.checkpoint)?,
                shard: self.shard,
                blocks: 0,
                fault: Some(fault),
            },
            fault,
        })
    }
}

/// The path of the file in a data directory.
pub fn path(data: &Path) -> PathBuf {
    data.join("audits.json")
}

/// Reads the file. Without a file the record is empty.
///
/// # Errors
/// When the file can't be read. Entries that are not valid are skipped.
pub fn load(data: &Path) -> io::Result<Audits> {
    let Some(text) = json_file::read::<FileText>(&path(data), FILE_BYTES_MAX)? else {
        return Ok(Audits::default());
    };
    let counted = text.submitters.iter().filter_map(|one| {
        let counts = AuditCounts {
            passed: one.passed,
            failed: one.failed,
        };
        Some((OwnerId::from_hex(&one.key)?, counts))
    });
    let by: BTreeMap<OwnerId, AuditCounts> = counted.collect();
    let failures = text.failures.iter().filter_map(FailureText::read);
    Ok(Audits::new(by, failures.collect()))
}

/// Replaces the file in one step.
///
/// # Errors
/// When the file can't be written. The old file stays then.
pub fn save(data: &Path, audits: &Audits) -> io::Result<()> {
    let submitters = audits.by().iter().map(|(key, counts)| SubmitterText {
        key: key.hex(),
        passed: counts.passed,
        failed: counts.failed,
    });
    let text = FileText {
        submitters: submitters.collect(),
        failures: audits.failures().map(FailureText::from).collect(),
    };
    json_file::write(data, &path(data), &text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn findings_are_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(dir.path()).unwrap(), Audits::default());
        let mut audits = Audits::default();
        let audit = |fault| Audit {
            checkpoint: CheckpointId([5; 16]),
            shard: 1,
            blocks: 0,
            fault,
        };
        audits.enter(OwnerId([1; 32]), audit(None), 7);
        audits.enter(OwnerId([2; 32]), audit(Some(AuditFault::Missing)), 8);
        save(dir.path(), &audits).unwrap();
        assert_eq!(load(dir.path()).unwrap(), audits);
        fs::write(path(dir.path()), "{").unwrap();
        assert!(load(dir.path()).is_err());
    }
}
