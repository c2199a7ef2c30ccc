//! Which checkpoint a save is to follow.

use std::fmt;
use std::str::FromStr;

use codec::{CheckpointId, Version};

/// Which checkpoint a save is to follow, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct After {
    /// The checkpoint to follow.
    pub which: AfterWhich,
    /// How many of its witnesses have to agree.
    pub strength: Strength,
    /// Save without asking the witnesses, because they are gone for good.
    pub is_unfenced: bool,
}

impl From<CheckpointId> for After {
    /// After this checkpoint, if a majority of its witnesses agrees.
    fn from(checkpoint: CheckpointId) -> Self {
        Self {
            which: AfterWhich::Checkpoint(checkpoint),
            strength: Strength::Majority,
            is_unfenced: false,
        }
    }
}

/// Names the checkpoint that a save is to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterWhich {
    /// No checkpoint: the save is to be the first of its job.
    Nothing,
    /// The checkpoint with this version, if there is only one.
    Version(Version),
    /// The checkpoint with this id.
    Checkpoint(CheckpointId),
}

/// Why a text names no checkpoint to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AfterError {
    /// The text asks for the newest one, which need not be the one from which the job went on.
    #[error(
        "name the version that the job continued from: the newest one may be from another incarnation of the job"
    )]
    Newest,
    /// Any other text that is wrong.
    #[error("not a version number, the id of a checkpoint (32 digits) or none")]
    Malformed,
}

impl FromStr for AfterWhich {
    type Err = AfterError;

    fn from_str(text: &str) -> Result<Self, AfterError> {
        match text {
            "none" => return Ok(Self::Nothing),
            "latest" | "newest" => return Err(AfterError::Newest),
            _ => {}
        }
        // A version has at most 20 digits, an id has 32.
        let version = text.parse().ok().and_then(Version::new);
        version
            .map(Self::Version)
            .or_else(|| CheckpointId::from_hex(text).map(Self::Checkpoint))
            .ok_or(AfterError::Malformed)
    }
}

impl fmt::Display for AfterWhich {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("none"),
            Self::Version(version) => version.fmt(f),
            Self::Checkpoint(checkpoint) => f.write_str(&checkpoint.hex()),
        }
    }
}

/// How many of the witnesses have to agree to a save.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strength {
    /// More than half of the hosts that hold the version; safe if none of them lies.
    #[default]
    Majority,
    /// One more than half of the sum of these hosts and the parity shards; safe even if some of them lie.
    Strong,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_an_id_and_nothing_can_be_followed_and_the_newest_can_not() {
        let id = CheckpointId([0x12; 16]);
        for which in [
            AfterWhich::Nothing,
            AfterWhich::Version(Version::new(17).unwrap()),
            AfterWhich::Checkpoint(id),
        ] {
            assert_eq!(which.to_string().parse(), Ok(which));
        }
        let read = |text: &str| text.parse::<AfterWhich>();
        assert_eq!(read("latest"), Err(AfterError::Newest));
        for wrong in ["", "0", "-1", "1a", "12345678", "x", &id.hex()[1..]] {
            let is_number = wrong == "12345678";
            assert_eq!(read(wrong).is_ok(), is_number, "{wrong}");
        }
    }
}
