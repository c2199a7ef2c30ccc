//! Notices of a job to its supervisor: lines `KEY=VALUE` in a datagram, like those of `sd_notify`.

use std::fmt;
use std::str::FromStr;

/// Largest datagram that is read, bytes.
pub const NOTICE_BYTES_MAX: usize = 4096;

/// Most lines in one datagram.
pub const NOTICE_LINES_MAX: usize = 64;

/// One notice of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum JobNotice {
    /// The job has written its checkpoint. The files are whole, and do not change until the job is asked
    /// again or writes the next checkpoint.
    Saved,
    /// The share of its work that is done, 0 to 1.
    Progress(f64),
    /// Whether the job is busy with something that a checkpoint must not interrupt.
    Busy(bool),
    /// The number of the step that the job has reached.
    Step(u64),
}

/// Why a datagram is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoticeError {
    /// The datagram has too many bytes.
    #[error("the notice has {0} bytes, at most {NOTICE_BYTES_MAX} are allowed")]
    TooLong(usize),
    /// It has too many lines.
    #[error("the notice has more than {NOTICE_LINES_MAX} lines")]
    TooManyLines,
    /// It is not text.
    #[error("the notice is not UTF-8")]
    NotText,
    /// A line has no equals sign.
    #[error("{0:?} is not KEY=VALUE")]
    NoPair(String),
    /// The value is not allowed for this key.
    #[error("{key}={value}: {allowed}")]
    Value {
        /// The key in the datagram.
        key: &'static str,
        /// The value in the datagram.
        value: String,
        /// The values that the key allows, for the message.
        allowed: &'static str,
    },
}

impl JobNotice {
    /// Reads a datagram. Unknown keys are ignored, so that a job can report more than this program reads.
    ///
    /// # Errors
    /// When the datagram is too large or no text, or when the value of a known key is not allowed. No
    /// line of such a datagram counts.
    pub fn parse(datagram: &[u8]) -> Result<Vec<Self>, NoticeError> {
        if datagram.len() > NOTICE_BYTES_MAX {
            return Err(NoticeError::TooLong(datagram.len()));
        }
        let text = str::from_utf8(datagram).map_err(|_| NoticeError::NotText)?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let mut notices = Vec::new();
        for (number, line) in lines.enumerate() {
            if number >= NOTICE_LINES_MAX {
                return Err(NoticeError::TooManyLines);
            }
            notices.extend(Self::of_line(line)?);
        }
        Ok(notices)
    }

    fn of_line(line: &str) -> Result<Option<Self>, NoticeError> {
        let pair = line.split_once('=');
        let (key, value) = pair.ok_or_else(|| NoticeError::NoPair(line.to_owned()))?;
        match key {
            "SAVED" => {
                read("SAVED", value, "1", flag).map(|is_saved| is_saved.then_some(Self::Saved))
            }
            "PROGRESS" => read("PROGRESS", value, "a share from 0 to 1", share)
                .map(|share| Some(Self::Progress(share))),
            "BUSY" => read("BUSY", value, "0 or 1", flag).map(|busy| Some(Self::Busy(busy))),
            "STEP" => read("STEP", value, "a whole number from 0", |text| {
                u64::from_str(text).ok()
            })
            .map(|step| Some(Self::Step(step))),
            _ => Ok(None),
        }
    }
}

impl fmt::Display for JobNotice {
    /// Writes the line that is read as this notice.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Saved => f.write_str("SAVED=1"),
            Self::Progress(share) => write!(f, "PROGRESS={share}"),
            Self::Busy(busy) => write!(f, "BUSY={}", u8::from(*busy)),
            Self::Step(step) => write!(f, "STEP={step}"),
        }
    }
}

fn read<T>(
    key: &'static str,
    value: &str,
    allowed: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, NoticeError> {
    parse(value.trim()).ok_or_else(|| NoticeError::Value {
        key,
        value: value.to_owned(),
        allowed,
    })
}

fn flag(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn share(text: &str) -> Option<f64> {
    let share = f64::from_str(text).ok()?;
    (0.0..=1.0).contains(&share).then_some(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_read_line_by_line() {
        let read =
            JobNotice::parse(b"SAVED=1\nPROGRESS=0.31\nBUSY=1\nBUSY=0\nSTEP=12000\n\nMORE=x=y\n");
        assert_eq!(
            read,
            Ok(vec![
                JobNotice::Saved,
                JobNotice::Progress(0.31),
                JobNotice::Busy(true),
                JobNotice::Busy(false),
                JobNotice::Step(12_000),
            ])
        );
        assert_eq!(JobNotice::parse(b""), Ok(vec![]));
        assert_eq!(JobNotice::parse(b"SAVED=0"), Ok(vec![]));
    }

    #[test]
    fn a_value_that_a_key_can_not_have_is_refused_with_those_that_it_can() {
        for (line, allowed) in [
            ("PROGRESS=1.5", "from 0 to 1"),
            ("PROGRESS=NaN", "from 0 to 1"),
            ("PROGRESS=-0.1", "from 0 to 1"),
            ("BUSY=yes", "0 or 1"),
            ("SAVED=2", "1"),
            ("STEP=-1", "whole number"),
            ("STEP=99999999999999999999", "whole number"),
            ("SAVED", "KEY=VALUE"),
        ] {
            let refused = JobNotice::parse(line.as_bytes()).unwrap_err().to_string();
            assert!(refused.contains(allowed), "{line}: {refused}");
        }
        assert_eq!(JobNotice::parse(b"\xff=1"), Err(NoticeError::NotText));
        let long = vec![b'\n'; NOTICE_BYTES_MAX + 1];
        assert_eq!(
            JobNotice::parse(&long),
            Err(NoticeError::TooLong(NOTICE_BYTES_MAX + 1))
        );
        let many = "BUSY=1\n".repeat(NOTICE_LINES_MAX + 1);
        assert_eq!(
            JobNotice::parse(many.as_bytes()),
            Err(NoticeError::TooManyLines)
        );
    }

    #[test]
    fn a_notice_is_written_as_it_is_read() {
        for notice in [
            JobNotice::Saved,
            JobNotice::Progress(0.25),
            JobNotice::Busy(false),
            JobNotice::Step(7),
        ] {
            let line = notice.to_string();
            assert_eq!(JobNotice::parse(line.as_bytes()), Ok(vec![notice]));
        }
    }
}
