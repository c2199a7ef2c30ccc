//! What the two ends of a launcher say to each other. Each message is a line with a JSON object; bytes of
//! the job's output follow theirs as they are.
//!
//! Nothing but plain words goes through the launcher's command line: `ssh` joins its arguments, and a shell
//! splits them again, where `ip netns exec` passes them on. So the command, its arguments and the options
//! go through standard input.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::{Deserialize, Serialize};

/// Number of this form of messages. A program that knows another one refuses.
pub(super) const FORM: u32 = 1;

/// Longest line that is believed.
pub(super) const LINE_BYTES_MAX: u64 = 32 << 20;

/// Bytes of output that are sent at a time.
pub(super) const OUTPUT_BYTES_MAX: u64 = 64 << 10;

/// Bytes of output that may be on their way without having been shown: reports go past them.
pub(super) const WINDOW_BYTES: u64 = 1 << 20;

/// A word of a command line, whatever its bytes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Word {
    /// As text.
    Text(String),
    /// Bytes that are no text.
    Bytes(Vec<u8>),
}

impl From<&OsStr> for Word {
    fn from(word: &OsStr) -> Self {
        word.to_str().map_or_else(
            || Self::Bytes(word.as_bytes().to_vec()),
            |text| Self::Text(text.to_owned()),
        )
    }
}

impl From<Word> for OsString {
    fn from(word: Word) -> Self {
        match word {
            Word::Text(text) => text.into(),
            Word::Bytes(bytes) => Self::from_vec(bytes),
        }
    }
}

/// How much of the job's output was shown, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shown {
    /// Standard output.
    pub out: u64,
    /// Standard error.
    pub err: u64,
}

/// Which incarnation of a job, on which host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Incarnation {
    /// Random: the run of `ckpt run --on` that it belongs to.
    pub run: String,
    /// Its number in that run, from 1.
    pub number: u32,
}

/// The first line to a host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// [`FORM`].
    pub form: u32,
    /// Name of the host in the grid.
    pub host: String,
    /// The job.
    pub job: String,
    /// Which incarnation.
    pub incarnation: Incarnation,
    /// How much of its output was shown already.
    pub shown: Shown,
    /// Milliseconds from one report to the next.
    pub report_ms: u64,
    /// What is started if it does not run; none when it is only looked for.
    pub start: Option<Start>,
}

/// What is started.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Start {
    /// Options of `ckpt run`.
    pub options: Vec<Word>,
    /// The command.
    pub command: Vec<Word>,
    /// The grid file.
    pub grid: String,
    /// A key for this job alone.
    pub key: String,
    /// Lines of the history that the run is compared with; none when nothing is to be noted.
    pub history: Option<Vec<String>>,
}

impl std::fmt::Debug for Start {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key is nobody's business.
        f.debug_struct("Start")
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}

/// A later line to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToHost {
    /// A signal for `ckpt run`.
    Signal(u8),
    /// So much was shown.
    Shown(Shown),
    /// Its end was heard: what lies there of the job is needed no more.
    Forget,
}

/// What is left of a running job, as its supervisor foresees it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::run) struct RestSaid {
    /// Seconds until its end where it is.
    pub seconds: f64,
    /// Work that is left, in seconds of processor time at speed 1.
    pub work_seconds: f64,
    /// Seconds until its deadline; below zero when that is over.
    pub left_seconds: Option<f64>,
}

/// How a supervisor ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::run) struct EndSaid {
    /// Its exit status.
    pub exit_code: u8,
    /// Whether that is the job's own.
    pub by_job: bool,
    /// Why it ended.
    pub why: String,
    /// The newest version.
    pub version: Option<u64>,
}

/// A line from a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ckpt", rename_all = "snake_case")]
pub(super) enum FromHost {
    /// The first one.
    Hello {
        /// [`FORM`].
        form: u32,
        /// Version of the program.
        program: String,
    },
    /// The order can't be carried out.
    Refused {
        /// Why.
        message: String,
    },
    /// So many bytes of the job's standard output follow.
    Out {
        /// Bytes.
        bytes: u64,
    },
    /// The same of its standard error.
    Err {
        /// Bytes.
        bytes: u64,
    },
    /// The supervisor lives.
    Alive {
        /// Whether the job runs, or is being restored or saved.
        runs: bool,
        /// What is left of it, if that is foreseen.
        rest: Option<RestSaid>,
    },
    /// The supervisor has ended, and all output was sent.
    Ended {
        /// How.
        end: EndSaid,
        /// The line of the history that it added.
        noted: Option<String>,
    },
    /// There is no supervisor of this incarnation, nor any word of its end.
    Vanished,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_any_bytes_come_back() {
        for bytes in [&b"a b'\"c\n$x"[..], b"\xff\xfe", b""] {
            let word = OsString::from_vec(bytes.to_vec());
            let text = serde_json::to_string(&Word::from(word.as_os_str())).unwrap();
            assert!(!text.contains('\n'), "{text}");
            let read: Word = serde_json::from_str(&text).unwrap();
            assert_eq!(OsString::from(read), word);
        }
    }

    #[test]
    fn messages_say_what_they_are() {
        let text = serde_json::to_string(&FromHost::Out { bytes: 7 }).unwrap();
        assert_eq!(text, r#"{"ckpt":"out","bytes":7}"#);
        let text = serde_json::to_string(&ToHost::Signal(15)).unwrap();
        assert_eq!(text, r#"{"signal":15}"#);
        let text = serde_json::to_string(&ToHost::Forget).unwrap();
        assert_eq!(
            serde_json::from_str::<ToHost>(&text).unwrap(),
            ToHost::Forget
        );
        assert!(serde_json::from_str::<FromHost>("Last login: Monday").is_err());
    }
}
