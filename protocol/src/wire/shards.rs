//! The messages of a shard's transfer: how they are made from a manifest, and the bytes of the last one.

use codec::ShardIndex;
use codec::hash::ShardRoot;
use codec::manifest::Public;

use super::message::{Claim, PutEnd, PutShard};

impl PutEnd {
    /// Length: 8 bytes of rows, 32 bytes of root.
    pub const BYTES: usize = 40;

    /// The 40 bytes that are sent.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.rows.to_le_bytes());
        bytes[8..].copy_from_slice(&self.root.0);
        bytes
    }

    /// The end that these bytes stand for. Any bytes are one.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        let (rows, root) = bytes.split_at(8);
        let mut end = Self {
            rows: 0,
            root: ShardRoot([0; 32]),
        };
        end.root.0.copy_from_slice(root);
        let mut le = [0; 8];
        le.copy_from_slice(rows);
        end.rows = u64::from_le_bytes(le);
        end
    }
}

impl Claim {
    /// The claim to the version that a manifest states.
    pub const fn of(public: &Public) -> Self {
        Self {
            job_tag: public.job_tag,
            version: public.version,
            checkpoint: public.checkpoint,
        }
    }
}

impl PutShard {
    /// The head of the transfer of a shard that a manifest describes, of the length that the manifest states.
    pub const fn of(public: &Public, shard: ShardIndex) -> Self {
        Self {
            claim: Claim::of(public),
            redundancy: public.redundancy,
            shard: shard.number(),
            expected_bytes: public.block_bytes,
        }
    }

    /// The shard's index; `None` if the redundancy has no shard of this number.
    pub fn shard(&self) -> Option<ShardIndex> {
        self.redundancy.shard(self.shard)
    }
}
