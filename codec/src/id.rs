//! Ids of checkpoints, owners and versions. Names of jobs are in [`crate::job`].

use std::fmt;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

/// Number of a checkpoint within its job. It begins with 1 and only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version(NonZeroU64);

impl Version {
    /// The first version of a job.
    pub const FIRST: Self = Self(NonZeroU64::MIN);

    /// The version after which there is none.
    pub const LAST: Self = Self(NonZeroU64::MAX);

    /// The version with this number; `None` for 0.
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The number, at least 1.
    pub const fn number(self) -> u64 {
        self.0.get()
    }

    /// The version after this one; after [`Self::LAST`] it stays.
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! byte_id {
    ($(#[$doc:meta])* $name:ident, $len:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub [u8; $len]);

        impl $name {
            /// All digits, in lower-case hexadecimal.
            pub fn hex(&self) -> String {
                $crate::hex::encode(&self.0)
            }

            /// Reads what [`Self::hex`] writes.
            pub fn from_hex(text: &str) -> Option<Self> {
                $crate::hex::decode_exact(text).map(Self)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.hex())
            }
        }

        impl std::fmt::Display for $name {
            /// The first eight digits, enough for people to distinguish two ids.
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&$crate::hex::encode(&self.0[..4]))
            }
        }
    };
}
pub(crate) use byte_id;

byte_id! {
    /// Id of a checkpoint: random bytes, drawn when its save begins.
    CheckpointId, 16
}
byte_id! {
    /// What hosts see instead of the name of a job: a keyed hash of it, by which they can group the
    /// job's checkpoints. See [`crate::keys::Keys::job_tag`].
    JobTag, 32
}
byte_id! {
    /// Id of the owner of checkpoints, or of another member of the grid: its Ed25519 public key.
    OwnerId, 32
}

byte_id! {
    /// An Ed25519 public key of a program that acts for an owner, or of a host.
    PublicKey, 32
}

impl From<OwnerId> for PublicKey {
    fn from(owner: OwnerId) -> Self {
        Self(owner.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_comes_back() {
        let id = CheckpointId(*b"0123456789abcdef");
        assert_eq!(CheckpointId::from_hex(&id.hex()), Some(id));
        assert_eq!(CheckpointId::from_hex("00"), None);
        assert_eq!(CheckpointId::from_hex(&"+1".repeat(16)), None);
    }
}
