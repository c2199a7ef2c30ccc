//! The protocol between a daemon and the guests of its machine over a local socket (`docs/run-a-grid/local-socket.md`).
//!
//! A process that connects is a guest, and so are all its descendants, for as long as the connection lasts.
//! Each message is one JSON object in a line. The length of every line, and every number in it, is checked
//! before it is used.

mod client;
mod place;

use placement::state::{AvailabilityState, Thresholds};
use serde::{Deserialize, Serialize};

pub use client::{Link, LinkError};
pub use place::{
    SOCKET_NAME, SOCKET_VARIABLE, SYSTEM_SOCKET, Shortened, socket_in, user_socket, usual_sockets,
};

/// Longest line in either direction, bytes, its line break included.
pub const LINE_BYTES_MAX: usize = 2048;

/// Most cores that a guest can state to use.
const CORES_MAX: f64 = 65_536.0;

/// A message from the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromDaemon {
    /// The state of the machine.
    Report(Report),
    /// The daemon closes the connection for this reason.
    Refused(String),
}

/// A message from a guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromGuest {
    /// What the guest uses of the machine.
    Uses(Uses),
}

/// What a guest, with all its descendants, uses of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Uses {
    /// Cores that the guest keeps busy when it can; 0 if it does not state it, which counts as all cores.
    #[serde(default)]
    pub cores: f64,
    /// Memory that the guest needs, bytes; 0 if it does not state it.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Bytes that the guest has moved to and from disks since it connected. They count as far as they exceed
    /// what the system reports for its processes, and never beyond what the disk has moved.
    #[serde(default)]
    pub disk_bytes: u64,
}

/// The state of the machine for the guest that receives the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// When the machine was read, Unix seconds.
    pub at: u64,
    /// The state of the machine for this guest.
    pub state: State,
    /// The owner's share of all CPUs, 0 to 1.
    pub load: f64,
    /// The owner's load on the cores that this guest takes, 0 to 1: what the thresholds apply to.
    pub contended_load: f64,
    /// Th1 and Th2, shares of the CPU, 0 to 1.
    pub thresholds: [f64; 2],
    /// Memory that guests could have, bytes; what they use already is included.
    pub free_memory_bytes: u64,
    /// Why the owner lends less than usual; `None` if the owner does not.
    #[serde(default)]
    pub withheld: Option<Withheld>,
    /// How the daemon is about to end; `None` if it is not.
    #[serde(default)]
    pub leaving: Option<Leaving>,
}

/// The states S1 to S4 of a machine for a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// S1: the owner hardly uses the machine.
    Idle,
    /// S2: the guest runs at the lowest priority.
    Busy,
    /// S3: the owner needs the CPU.
    CpuTaken,
    /// S4: the owner needs the memory.
    NoMemory,
}

impl State {
    /// The same state in [`placement::state`].
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
            // A host that reports is not gone; S3 keeps guests away as well.
            AvailabilityState::CpuTaken | AvailabilityState::Gone => Self::CpuTaken,
            AvailabilityState::Thrashing => Self::NoMemory,
        }
    }
}

/// That the owner lends less than usual at present.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withheld {
    /// Why the owner lends less.
    pub why: Why,
    /// Seconds after which that may change.
    pub for_s: u32,
}

/// Why an owner lends less than usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The owner does not lend the machine at this hour.
    Hours,
    /// The owner does not lend the network at this hour.
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
    /// The bytes that the owner allows to be moved are used up.
    Transfers,
    /// A reason that this version does not know.
    #[serde(other)]
    Other,
}

impl Why {
    /// Whether the reason also keeps guests away. Network and disk concern shards alone, and CPU and memory
    /// have states of their own.
    #[must_use]
    pub const fn concerns_guests(self) -> bool {
        matches!(
            self,
            Self::Hours | Self::Battery | Self::Paused | Self::Program
        )
    }
}

/// Announces that the daemon is about to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    /// How the daemon ends.
    pub how: How,
    /// Seconds after which the daemon has ended at the latest.
    pub within_s: u64,
}

/// How a daemon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// The machine leaves the grid: its shards go to other hosts.
    Drain,
    /// The daemon stops: the machine may be switched off, or another daemon may be started.
    Stop,
    /// A way that this version does not know.
    #[serde(other)]
    Other,
}

/// Why a line is no message.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// It is longer than [`LINE_BYTES_MAX`].
    #[error("a line of more than {LINE_BYTES_MAX} bytes")]
    TooLong,
    /// It is not JSON, or not of the expected form.
    #[error("no message: {0}")]
    Form(#[from] serde_json::Error),
    /// A number in it is out of range; the text names the field and the range.
    #[error("{0}")]
    Value(&'static str),
}

/// A message, in both directions.
pub trait Message: Serialize + for<'a> Deserialize<'a> {
    /// Checks that every number is in its range.
    ///
    /// # Errors
    /// When a number is out of its range.
    fn check(&self) -> Result<(), MessageError>;

    /// Parses and checks a line, which is given without its line break.
    ///
    /// # Errors
    /// When the line is no such message.
    fn parse(line: &[u8]) -> Result<Self, MessageError> {
        if line.len() >= LINE_BYTES_MAX {
            return Err(MessageError::TooLong);
        }
        let message: Self = serde_json::from_slice(line)?;
        message.check()?;
        Ok(message)
    }

    /// The message as a line with its line break.
    ///
    /// # Errors
    /// When the line would be longer than [`LINE_BYTES_MAX`].
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

/// Cuts the bytes that arrive into lines, and keeps at most one unfinished line.
#[derive(Debug, Default)]
pub struct Lines {
    unfinished: Vec<u8>,
}

impl Lines {
    /// Takes bytes that have arrived, and returns the lines that are complete with them, without line breaks.
    ///
    /// # Errors
    /// When a line is longer than [`LINE_BYTES_MAX`]; after that the connection is of no use.
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
