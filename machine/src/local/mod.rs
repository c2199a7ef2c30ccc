//! The socket over which a daemon and the guests of its machine talk, as `docs/local-socket.md` says.
//!
//! A guest connects; it and all its descendants are guests for as long as the connection lasts. Each
//! message is one JSON object in a line. What is read here is checked before it is believed: the length
//! of a line, and every number.

mod client;
mod place;

use placement::state::{AvailabilityState, Thresholds};
use serde::{Deserialize, Serialize};

pub use client::{Link, LinkError};
pub use place::{
    SOCKET_NAME, SOCKET_VARIABLE, SYSTEM_SOCKET, Shortened, socket_in, user_socket, usual_sockets,
};

/// Longest line in either direction, bytes, its end included.
pub const LINE_BYTES_MAX: usize = 2048;

/// Most cores that a guest can say that it uses.
const CORES_MAX: f64 = 65_536.0;

/// What a daemon says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromDaemon {
    /// How things are.
    Report(Report),
    /// Why it closes the connection.
    Refused(String),
}

/// What a guest says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromGuest {
    /// What it uses.
    Uses(Uses),
}

/// What a guest, with all that it has started, uses of the machine. Where the machine itself says how
/// much that is, the machine is believed; in no case more than the machine did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Uses {
    /// Cores that it keeps busy when it can; 0 when it does not say.
    #[serde(default)]
    pub cores: f64,
    /// Memory that it needs, bytes; 0 when it does not say.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Bytes that it has moved to and from disks since it connected.
    #[serde(default)]
    pub disk_bytes: u64,
}

/// How the machine is, for the guest that is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// When the machine was looked at, Unix seconds.
    pub at: u64,
    /// The state of the machine for this guest.
    pub state: State,
    /// The owner's share of all CPUs, 0 to 1.
    pub load: f64,
    /// The owner's load on the cores that this guest takes, 0 to 1: what the thresholds apply to.
    pub contended_load: f64,
    /// Th1 and Th2, shares of the CPU.
    pub thresholds: [f64; 2],
    /// Memory that guests could have, theirs included, bytes.
    pub free_memory_bytes: u64,
    /// Why the owner lends less than usual, if so.
    #[serde(default)]
    pub withheld: Option<Withheld>,
    /// That the daemon is about to end.
    #[serde(default)]
    pub leaving: Option<Leaving>,
}

/// The states S1 to S4 of a machine for a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// S1.
    Idle,
    /// S2: the guest runs at the lowest priority.
    Busy,
    /// S3: the owner needs the CPU.
    CpuTaken,
    /// S4: the owner needs the memory.
    NoMemory,
}

impl State {
    /// The state as predictions know it.
    #[must_use]
    pub const fn availability(self) -> AvailabilityState {
        match self {
            Self::Idle => AvailabilityState::Idle,
            Self::Busy => AvailabilityState::Busy,
            Self::CpuTaken => AvailabilityState::CpuTaken,
            Self::NoMemory => AvailabilityState::Thrashing,
        }
    }
}

impl From<AvailabilityState> for State {
    fn from(state: AvailabilityState) -> Self {
        match state {
            AvailabilityState::Idle => Self::Idle,
            AvailabilityState::Busy => Self::Busy,
            // Whoever says so is there.
            AvailabilityState::CpuTaken | AvailabilityState::Gone => Self::CpuTaken,
            AvailabilityState::Thrashing => Self::NoMemory,
        }
    }
}

/// What the owner does not lend now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withheld {
    /// Why.
    pub why: Why,
    /// Seconds after which it may be otherwise.
    pub for_s: u32,
}

/// Why an owner lends less than usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Not at this hour.
    Hours,
    /// No network at this hour.
    NetworkHours,
    /// The machine runs on its battery.
    Battery,
    /// The owner needs the CPU.
    Cpu,
    /// The owner needs the memory.
    Memory,
    /// The owner needs the disk.
    Disk,
    /// The owner has paused the daemon.
    Paused,
    /// A program runs for which the owner wants the machine alone.
    Program,
    /// As much was moved as the owner allows.
    Transfers,
    /// Something that this version does not know.
    #[serde(other)]
    Other,
}

impl Why {
    /// Whether the owner wants no guests then, either: what is said of network and disk is said of
    /// shards alone, and CPU and memory have states of their own.
    #[must_use]
    pub const fn concerns_guests(self) -> bool {
        matches!(
            self,
            Self::Hours | Self::Battery | Self::Paused | Self::Program
        )
    }
}

/// That the daemon is about to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    /// How.
    pub how: How,
    /// Seconds after which it is gone at the latest.
    pub within_s: u64,
}

/// How a daemon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// The machine leaves the grid: its shards go to other hosts.
    Drain,
    /// The daemon ends, and maybe the machine does; maybe another daemon follows it.
    Stop,
    /// Something that this version does not know.
    #[serde(other)]
    Other,
}

/// Why a line is no message.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// Longer than [`LINE_BYTES_MAX`].
    #[error("a line of more than {LINE_BYTES_MAX} bytes")]
    TooLong,
    /// Not JSON, or not of the form that was expected.
    #[error("no message: {0}")]
    Form(#[from] serde_json::Error),
    /// A number that makes no sense.
    #[error("{0}")]
    Value(&'static str),
}

/// A message, in both directions.
pub trait Message: Serialize + for<'a> Deserialize<'a> {
    /// Checks every number.
    ///
    /// # Errors
    /// When one makes no sense.
    fn check(&self) -> Result<(), MessageError>;

    /// Reads a line without its end.
    ///
    /// # Errors
    /// When it is no such message.
    fn parse(line: &[u8]) -> Result<Self, MessageError> {
        if line.len() >= LINE_BYTES_MAX {
            return Err(MessageError::TooLong);
        }
        let message: Self = serde_json::from_slice(line)?;
        message.check()?;
        Ok(message)
    }

    /// The line with its end.
    ///
    /// # Errors
    /// When it would be too long.
    fn line(&self) -> Result<Vec<u8>, MessageError> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        if line.len() > LINE_BYTES_MAX {
            return Err(MessageError::TooLong);
        }
        Ok(line)
    }
}

impl Message for FromGuest {
    fn check(&self) -> Result<(), MessageError> {
        let Self::Uses(uses) = self;
        if !(0.0..=CORES_MAX).contains(&uses.cores) {
            return Err(MessageError::Value("cores: a number from 0 to 65536"));
        }
        Ok(())
    }
}

impl Message for FromDaemon {
    fn check(&self) -> Result<(), MessageError> {
        let Self::Report(report) = self else {
            return Ok(());
        };
        let is_share = |share: f64| (0.0..=1.0).contains(&share);
        if !is_share(report.load) || !is_share(report.contended_load) {
            return Err(MessageError::Value("load: a share from 0 to 1"));
        }
        let [first, second] = report.thresholds;
        Thresholds::new(first, second)
            .map(|_| ())
            .map_err(|_| MessageError::Value("thresholds: two shares in order"))
    }
}

/// Cuts what arrives into lines, and keeps no more than one unfinished line.
#[derive(Debug, Default)]
pub struct Lines {
    unfinished: Vec<u8>,
}

impl Lines {
    /// Takes what has arrived, and returns the lines that it finishes, without their ends.
    ///
    /// # Errors
    /// When a line is longer than [`LINE_BYTES_MAX`]: nothing after it can be read.
    pub fn take(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, MessageError> {
        let mut lines = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.unfinished.len() + part.len() > LINE_BYTES_MAX {
                return Err(MessageError::TooLong);
            }
            self.unfinished.extend_from_slice(part);
            if self.unfinished.pop_if(|byte| *byte == b'\n').is_some() {
                lines.push(std::mem::take(&mut self.unfinished));
            }
        }
        Ok(lines)
    }
}

#[cfg(test)]
mod tests;
