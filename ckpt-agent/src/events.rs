//! Events that a long command reports while it runs.

use serde::Serialize;

use crate::report::{HostNote, SkippedVersion};

/// How far a long command is; reported a few times each second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Progress {
    /// Image bytes that are done, such as read by a save or written by a restore.
    pub done_bytes: u64,
    /// Bytes of the whole image; `None` until they are known.
    pub total_bytes: Option<u64>,
    /// How many bytes the done bytes have after compression.
    pub stored_bytes: u64,
    /// Bytes that went over the network so far.
    pub network_bytes: u64,
}

/// One event of a long command.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum ProgressEvent {
    /// How far the command is.
    Progress(Progress),
    /// A save has read its image to the end, so the image may change from now on.
    ImageRead,
    /// A host was given up.
    HostReplaced {
        /// The host that was given up and why.
        lost: HostNote,
        /// The host that replaces it, if there is one.
        spare: Option<String>,
    },
    /// A host could not help now, and is asked again later.
    Waiting {
        /// The host, and what it answered.
        host: HostNote,
        /// Seconds until it is asked again.
        seconds: f64,
    },
    /// A version was passed over.
    VersionSkipped(SkippedVersion),
    /// Something that the user should know.
    Warning {
        /// The warning, as a sentence.
        message: String,
    },
}

/// Receives the events of a command. It is called from several threads, and has to return quickly.
pub trait Observer: Send + Sync {
    /// Receives one event.
    fn event(&self, event: ProgressEvent);
}

/// An observer that ignores all events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {
    fn event(&self, _: ProgressEvent) {}
}
