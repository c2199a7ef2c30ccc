//! What a long command reports while it runs.

use serde::Serialize;

use crate::report::{HostNote, SkippedVersion};

/// Where a long command stands; told a few times each second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Progress {
    /// Image bytes that are done.
    pub done_bytes: u64,
    /// Image bytes in all, when known.
    pub total_bytes: Option<u64>,
    /// Bytes after compression of the bytes that are done.
    pub stored_bytes: u64,
    /// Bytes that went over the network so far.
    pub network_bytes: u64,
}

/// What a long command tells while it runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum ProgressEvent {
    /// How far it is.
    Progress(Progress),
    /// A save has read its image to the end: from now on it may change.
    ImageRead,
    /// A host was given up, and which takes over.
    HostReplaced {
        /// The host that was given up and why.
        lost: HostNote,
        /// Its successor, when there is one.
        spare: Option<String>,
    },
    /// A host is asked again later.
    Waiting {
        /// The host, and what it said.
        host: HostNote,
        /// Seconds until then.
        seconds: f64,
    },
    /// A version was passed over.
    VersionSkipped(SkippedVersion),
    /// Something that the user should know.
    Warning {
        /// What.
        message: String,
    },
}

/// Who is told of progress. Called from several threads; returns quickly.
pub trait Observer: Send + Sync {
    /// Something happened.
    fn event(&self, event: ProgressEvent);
}

/// Tells nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {
    fn event(&self, _: ProgressEvent) {}
}
