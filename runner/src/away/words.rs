//! The messages between the two ends of a launcher. Each message is a line with a JSON object. After a
//! message on output, the bytes of the output follow as they are.
//!
//! The launcher's command line has only plain words. `ssh` joins its arguments, and a shell splits them
//! again, whereas `ip netns exec` passes them on unchanged. So the job's command, its arguments and the
//! options go through standard input.
//!
//! ```text
//! from the host   {"ckpt":"hello","form":1,"program":"0.1.0"}
//! to the host     {"form":1,"host":"h2","job":"42",...}          an Order
//! from the host   {"ckpt":"alive","runs":true,"rest":null}
//! from the host   {"ckpt":"out","bytes":6}                       and the 6 bytes
//! to the host     {"shown":{"out":6,"err":0}}
//! from the host   {"ckpt":"ended","end":{"exit_code":0,...},...}
//! to the host     "forget"
//! ```

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::standing::JobStanding;
use ckpt_agent::agent::FetchedAhead;

/// Number of this form of messages. A program that knows only another form refuses.
pub(super) const FORM: u32 = 1;

/// Longest line that is read, bytes.
pub(super) const LINE_BYTES_MAX: u64 = 32 << 20;

/// Most bytes of output in one message.
pub(super) const OUTPUT_BYTES_MAX: u64 = 64 << 10;

/// Most bytes of output that are sent and not yet shown. The limit keeps reports from waiting behind
/// output.
pub(super) const WINDOW_BYTES: u64 = 1 << 20;

/// Time from one look for messages and news on a host to the next.
pub(super) const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// A word of a command line, which may have any bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Word {
    /// A word that is UTF-8.
    Text(String),
    /// The bytes of another word.
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

/// How much of the job's output was shown, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shown {
    /// Bytes of standard output.
    pub out: u64,
    /// Bytes of standard error.
    pub err: u64,
}

/// An incarnation of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Incarnation {
    /// A random text for the run of `ckpt run --on` to which it belongs.
    pub run: String,
    /// Its number in that run, counted from 1.
    pub number: u32,
}

/// The first line to a host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// The form of the messages, [`FORM`].
    pub form: u32,
    /// Name of the host in the grid.
    pub host: String,
    /// Name of the job.
    pub job: String,
    /// The incarnation of the job that the host is to start or to find.
    pub incarnation: Incarnation,
    /// How much of its output was shown already.
    pub shown: Shown,
    /// Time from one report to the next, milliseconds.
    pub report_ms: u64,
    /// What to start if the incarnation does not run; `None` if it is only looked for.
    pub start: Option<Start>,
    /// The order to stand by: nothing is started, and nothing looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stand_by: Option<StandBy>,
}

/// What a host needs to fetch the job's versions ahead, without being able to read them.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct StandBy {
    /// The text of the grid file.
    pub grid: String,
    /// A job key without the secrets of the job, with the right to restore.
    pub key: String,
}

impl std::fmt::Debug for StandBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key must not get into logs.
        f.debug_struct("StandBy").finish_non_exhaustive()
    }
}

/// What to start.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Start {
    /// Options of `ckpt run`.
    pub options: Vec<Word>,
    /// The job's command and its arguments.
    pub command: Vec<Word>,
    /// The text of the grid file.
    pub grid: String,
    /// A job key for this job alone.
    pub key: String,
    /// Lines of the history to which the run is compared; `None` if nothing is to be recorded.
    pub history: Option<Vec<String>>,
}

impl std::fmt::Debug for Start {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key must not get into logs.
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
    /// How much output was shown by now.
    Shown(Shown),
    /// The end has arrived: the files of the job are not needed any more.
    Forget,
    /// For a host that stands by: there is a newer version.
    Saved,
    /// For a host that stands by: fetch nothing until there is a newer version.
    Pause,
    /// For a host that stands by: the job comes here, so keep what was fetched.
    Comes,
}

/// What is left of a running job, as its supervisor estimates it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RemainingWork {
    /// Seconds until its end if it stays where it is.
    pub seconds: f64,
    /// Work that is left, in seconds of processor time at speed 1.
    pub work_seconds: f64,
    /// Seconds until its deadline, negative if it has passed; `None` if it has no deadline.
    pub left_seconds: Option<f64>,
}

/// How a supervisor ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct EndReport {
    /// The exit status of the supervisor.
    pub exit_code: u8,
    /// Whether this is the exit status of the job itself.
    pub by_job: bool,
    /// The reason for which the supervisor ended.
    pub why: String,
    /// The newest version that was committed or restored.
    pub version: Option<u64>,
    /// Seconds in which the job was allowed to run. Older programs do not report it.
    #[serde(default)]
    pub work_seconds: f64,
    /// Seconds of this work that no version holds.
    #[serde(default)]
    pub lost_seconds: f64,
}

/// A line from a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ckpt", rename_all = "snake_case")]
pub(super) enum FromHost {
    /// The first line.
    Hello {
        /// The form of the messages, [`FORM`].
        form: u32,
        /// Version of the program.
        program: String,
    },
    /// The order can't be carried out.
    Refused {
        /// Why it can't be carried out.
        message: String,
    },
    /// Bytes of the job's standard output follow.
    Out {
        /// How many bytes follow.
        bytes: u64,
    },
    /// Bytes of the job's standard error follow.
    Err {
        /// How many bytes follow.
        bytes: u64,
    },
    /// A sign that the supervisor lives.
    Alive {
        /// Whether the job runs. Otherwise it is being restored, or saved before it leaves.
        runs: bool,
        /// What is left of the job, if that can be estimated.
        rest: Option<RemainingWork>,
        /// How the job stands. Older programs do not report it.
        #[serde(default)]
        standing: Option<Box<JobStanding>>,
    },
    /// The supervisor has ended, and all output was sent.
    Ended {
        /// How it ended.
        end: EndReport,
        /// The line that it added to the history.
        noted: Option<String>,
    },
    /// A host that stands by has fetched what there is.
    StandsBy(FetchedAhead),
    /// There is neither a supervisor of this incarnation nor a record of its end.
    Vanished,
}

impl FromHost {
    /// Writes the line.
    ///
    /// # Errors
    /// When nobody reads at the other end any more.
    pub(super) fn send(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut *out, self)?;
        out.write_all(b"\n")?;
        out.flush()
    }
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
