//! How donors ask each other which checkpoints they hold, without naming the checkpoints.
//!
//! The id of a checkpoint is random, and a donor that knows the id may read the ciphertext of its shards.
//! So a question has, instead of the id, a hash that only a host that knows the id can recognise; and an
//! answer has a hash that only a host that knows the id can make. Both hashes depend on the asker, on the
//! host that is asked, and on random bytes of the asker's, so they are of no use to anybody else.

use crate::geometry::ShardIndex;
use crate::id::{CheckpointId, OwnerId};

/// Bytes of a hash in a question or an answer.
pub const TAG_BYTES: usize = 16;

/// A hash that stands for a checkpoint in a question or an answer.
pub type Tag = [u8; TAG_BYTES];

/// The shards of a checkpoint that a host claims to hold, bit 0 for shard 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardSet(pub u64);

impl ShardSet {
    /// Adds `shard` to the set.
    #[must_use]
    pub fn with(self, shard: ShardIndex) -> Self {
        Self(self.0 | 1_u64.checked_shl(shard.number().into()).unwrap_or(0))
    }

    /// Whether `shard` is in the set.
    pub fn has(self, shard: ShardIndex) -> bool {
        self.0.checked_shr(shard.number().into()).unwrap_or(0) & 1 == 1
    }
}

/// Makes the hashes of one question and its answer.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    question: [u8; 32],
    answer: [u8; 32],
}

impl Asking {
    /// For a question of `asker` to `asked`, with 32 random bytes that the asker draws.
    pub fn new(asker: OwnerId, asked: OwnerId, salt: &[u8; 32]) -> Self {
        let mut of = [0; 96];
        of[..32].copy_from_slice(&asker.0);
        of[32..64].copy_from_slice(&asked.0);
        of[64..].copy_from_slice(salt);
        Self {
            question: blake3::derive_key("ckpt v2 holding question", &of),
            answer: blake3::derive_key("ckpt v2 holding answer", &of),
        }
    }

    /// The hash that stands for a checkpoint of `owner` in the question.
    pub fn question(&self, owner: OwnerId, checkpoint: CheckpointId) -> Tag {
        let mut hasher = blake3::Hasher::new_keyed(&self.question);
        hasher.update(&owner.0).update(&checkpoint.0);
        tag(&hasher)
    }

    /// The hash that stands for a checkpoint of `owner` in the answer. It shows that the answering host
    /// knows the checkpoint, and covers the shards that this host claims to hold.
    pub fn answer(&self, owner: OwnerId, checkpoint: CheckpointId, shards: ShardSet) -> Tag {
        let mut hasher = blake3::Hasher::new_keyed(&self.answer);
        hasher.update(&owner.0).update(&checkpoint.0);
        hasher.update(&shards.0.to_le_bytes());
        tag(&hasher)
    }
}

fn tag(hasher: &blake3::Hasher) -> Tag {
    let mut tag = [0; TAG_BYTES];
    hasher.finalize_xof().fill(&mut tag);
    tag
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Redundancy;

    const ANN: OwnerId = OwnerId([1; 32]);
    const H1: OwnerId = OwnerId([2; 32]);
    const H2: OwnerId = OwnerId([3; 32]);
    const ID: CheckpointId = CheckpointId([4; 16]);

    #[test]
    fn a_question_is_of_one_asker_one_asked_one_owner_and_one_time() {
        let asking = Asking::new(H1, H2, &[0; 32]);
        let tag = asking.question(ANN, ID);
        assert_eq!(Asking::new(H1, H2, &[0; 32]).question(ANN, ID), tag);
        let others = [
            Asking::new(H2, H1, &[0; 32]).question(ANN, ID),
            Asking::new(H1, H1, &[0; 32]).question(ANN, ID),
            Asking::new(H1, H2, &[1; 32]).question(ANN, ID),
            asking.question(H1, ID),
            asking.question(ANN, CheckpointId([5; 16])),
            asking.answer(ANN, ID, ShardSet(0)),
        ];
        assert!(!others.contains(&tag));
    }

    #[test]
    fn an_answer_is_of_exactly_the_shards_that_it_names() {
        let asking = Asking::new(H1, H2, &[0; 32]);
        let shard = |number| Redundancy::DEFAULT.shard(number).unwrap();
        let two = ShardSet::default().with(shard(0)).with(shard(4));
        assert_eq!(two, ShardSet(0b10001));
        assert!(two.has(shard(0)) && two.has(shard(4)) && !two.has(shard(1)));
        let one = ShardSet::default().with(shard(0));
        assert_ne!(asking.answer(ANN, ID, one), asking.answer(ANN, ID, two));
    }
}
