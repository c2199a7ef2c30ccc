//! Addresses under which HTCondor keeps files of checkpoints:
//! `ckpt://GRID/PREFIX/GLOBAL-JOB-ID/NUMBER/FILE`.

use codec::{JobId, JobIdError};
use protocol::identity::is_name;

/// Label of a version; its value is the number that HTCondor gave the checkpoint.
pub const NUMBER_LABEL: &str = "checkpoint-number";

const SCHEME: &[u8] = b"ckpt://";

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// The checkpoint that has the file.
    pub checkpoint: CheckpointAddress,
    /// Path of the file within the checkpoint, without `.` and empty parts.
    pub file: Vec<u8>,
}

/// A checkpoint, as HTCondor names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CheckpointAddress {
    /// Name of the grid.
    pub grid: String,
    /// The job: prefix and global job id, as one name.
    pub job: JobId,
    /// The number of the checkpoint, counted from 0 by HTCondor.
    pub number: u64,
}

/// Why a text is no address of a file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It does not begin with `ckpt://GRID/`.
    #[error("{0:?} does not begin with ckpt://GRID/")]
    Scheme(String),
    /// The grid's name has characters that may not be in the name of its file.
    #[error("{0:?} is not the name of a grid: use letters, digits, '.', '_' and '-'")]
    Grid(String),
    /// A part is `..`.
    #[error("{0:?} has the part ..")]
    Up(String),
    /// There is no number of a checkpoint.
    #[error("{0:?} has no number of a checkpoint between the job's id and the file")]
    Number(String),
    /// The parts before the number are no name of a job.
    #[error("{0:?}: {1}")]
    Job(String, JobIdError),
}

impl Address {
    /// Reads an address. Parts that are `.` or empty are ignored. The number is the part behind the first
    /// part that looks like a global job id, because the path of the file may have directories. Without
    /// such a part, the number is the last part but one.
    ///
    /// # Errors
    /// When the text is no such address.
    pub fn parse(url: &[u8]) -> Result<Self, AddressError> {
        let shown = || String::from_utf8_lossy(url).into_owned();
        let rest = url.strip_prefix(SCHEME);
        let rest = rest.ok_or_else(|| AddressError::Scheme(shown()))?;
        let mut parts = rest.split(|&byte| byte == b'/');
        let grid = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        if !is_name(&grid) {
            return Err(AddressError::Grid(grid));
        }
        let parts: Vec<&[u8]> = parts.filter(|part| !matches!(*part, b"" | b".")).collect();
        if parts.contains(&&b".."[..]) {
            return Err(AddressError::Up(shown()));
        }
        let behind_id = parts.windows(2).position(|two| is_global_job_id(two[0]));
        let at = behind_id.map_or(parts.len().saturating_sub(2), |at| at + 1);
        let number = parts.get(at).and_then(|part| number(part));
        let (job, file) = parts.split_at(at.min(parts.len()));
        let (Some(number), [_, file @ ..]) = (number, file) else {
            return Err(AddressError::Number(shown()));
        };
        if job.is_empty() || file.is_empty() {
            return Err(AddressError::Number(shown()));
        }
        let job = String::from_utf8_lossy(&job.join(&b'/')).into_owned();
        let job = job.parse().map_err(|cause| AddressError::Job(job, cause))?;
        Ok(Self {
            checkpoint: CheckpointAddress { grid, job, number },
            file: file.join(&b'/'),
        })
    }
}

/// Whether this is HTCondor's name of a job: `HOST#CLUSTER.PROC#TIME`, in which addresses may have `_`
/// for `#`.
fn is_global_job_id(part: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(part) else {
        return false;
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mut parts = text.rsplitn(3, ['#', '_']);
    let time = parts.next();
    let job = parts.next();
    let host = parts.next();
    let is_job = |job: &str| {
        let numbers = job.split_once('.');
        numbers.is_some_and(|(cluster, process)| is_number(cluster) && is_number(process))
    };
    time.is_some_and(is_number)
        && job.is_some_and(is_job)
        && host.is_some_and(|host| !host.is_empty())
}

/// Reads the number of a checkpoint: four digits or more.
fn number(part: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(part).ok()?;
    let is_number = text.len() >= 4 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<(String, String, u64, String), AddressError> {
        let Address { checkpoint, file } = Address::parse(url.as_bytes())?;
        let file = String::from_utf8_lossy(&file).into_owned();
        let CheckpointAddress { grid, job, number } = checkpoint;
        Ok((grid, job.as_str().to_owned(), number, file))
    }

    #[test]
    fn an_address_names_grid_job_number_and_file() {
        let owned = |(grid, job, number, file): (&str, &str, u64, &str)| {
            Ok((grid.to_owned(), job.to_owned(), number, file.to_owned()))
        };
        for (url, parts) in [
            (
                "ckpt://lab/alice/m1.lab_12.0_1700000000/0003/state",
                ("lab", "alice/m1.lab_12.0_1700000000", 3, "state"),
            ),
            (
                "ckpt://lab/alice//m1_12.0_17/0000/./dir/0007/_condor_stdout",
                ("lab", "alice/m1_12.0_17", 0, "dir/0007/_condor_stdout"),
            ),
            (
                "ckpt://lab/m_1#12.0#17/12345/a b",
                ("lab", "m_1#12.0#17", 12345, "a b"),
            ),
            // No global job id of HTCondor: the job is everything but the last two parts.
            (
                "ckpt://lab/2024/0001/sweep/0002/state",
                ("lab", "2024/0001/sweep", 2, "state"),
            ),
        ] {
            assert_eq!(read(url), owned(parts), "{url}");
        }
    }

    #[test]
    fn text_that_is_no_address_is_refused() {
        for wrong in [
            "osdf://lab/a/m_1.0_1/0001/f",
            "ckpt:///a/m_1.0_1/0001/f",
            "ckpt://../a/m_1.0_1/0001/f",
            "ckpt://la b/a/m_1.0_1/0001/f",
            "ckpt://lab",
            "ckpt://lab/state",
            "ckpt://lab/0001/state",
            "ckpt://lab/a/m_1.0_1/0001",
            "ckpt://lab/a/m_1.0_1/0001/",
            "ckpt://lab/a/m_1.0_1/state/0001",
            "ckpt://lab/a/m_1.0_1/1/f",
            "ckpt://lab/a/m_1.0_1/0001/../f",
            "ckpt://lab/a b/m_1.0_1/0001/f",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
