//! The requests of donors to each other: which shards they hold, and proofs of them.

use std::collections::BTreeSet;

use codec::holding::{Asking, ShardSet};
use codec::manifest::Public;
use codec::proof::Spot;
use codec::{CheckpointId, OwnerId, ShardIndex};
use protocol::wire::limits::{PEER_HOLDS_ASKED_MAX, REQUEST_TIMEOUT};
use protocol::wire::message::{HeldTag, Request, Response, ShardName};

use crate::hosts::unexpected;
use crate::{Fault, HostIndex, Hosts};

/// Bytes of a request, and of an answer, besides what it carries.
const MESSAGE_BYTES: u64 = 100;

impl Hosts {
    /// Asks a host which shards of these checkpoints, at most [`PEER_HOLDS_ASKED_MAX`], it holds. The
    /// request has only hashes of the checkpoints, so a host that does not know a checkpoint learns
    /// nothing of it. Returns, for each checkpoint that the host holds, its position in `keys` and the
    /// shards.
    ///
    /// # Errors
    /// When the host does not answer as it should.
    pub async fn peer_holds(
        &self,
        host: HostIndex,
        asker: OwnerId,
        salt: [u8; 32],
        keys: &[(OwnerId, CheckpointId)],
    ) -> Result<Vec<(usize, ShardSet)>, Fault> {
        let asked = self.entry(host).map(|entry| entry.id.0);
        let (Some(asked), true) = (asked, keys.len() <= PEER_HOLDS_ASKED_MAX) else {
            return Err(unexpected("peer holds"));
        };
        let asking = Asking::new(asker, asked, &salt);
        let tags = keys.iter().map(|(owner, id)| asking.question(*owner, *id));
        let message = Request::PeerHolds {
            salt,
            tags: tags.collect(),
        };
        match self.request(host, &message, REQUEST_TIMEOUT).await? {
            (Response::PeerHolds { held }, _) => read_held(&asking, keys, &held),
            _ => Err(unexpected("peer holds")),
        }
    }

    /// Has a host prove that it holds a part of a shard. Returns roughly the bytes that were received for
    /// it.
    ///
    /// # Errors
    /// When the host can't prove it.
    pub async fn prove(
        &self,
        host: HostIndex,
        public: &Public,
        shard: ShardIndex,
        spot: Spot,
    ) -> Result<u64, Fault> {
        let message = Request::Prove {
            owner: public.owner,
            shard: ShardName {
                checkpoint: public.checkpoint,
                shard: shard.number(),
            },
            spot,
        };
        match self.request(host, &message, REQUEST_TIMEOUT).await? {
            (Response::Proof(proof), _) => {
                let (_, root) = public.shard(shard).ok_or_else(|| unexpected("prove"))?;
                let checked = proof.check(root, public.rows, spot);
                checked.map_err(|cause| Fault::Lied(cause.to_string()))?;
                let bytes = proof.outline.len() + proof.page.len() + proof.block.len();
                Ok(bytes as u64 + MESSAGE_BYTES)
            }
            _ => Err(unexpected("prove")),
        }
    }
}

/// Checks an answer: no checkpoint occurs twice, and the host can compute tags that only hosts that know
/// the checkpoint can.
fn read_held(
    asking: &Asking,
    keys: &[(OwnerId, CheckpointId)],
    held: &[HeldTag],
) -> Result<Vec<(usize, ShardSet)>, Fault> {
    let mut places = BTreeSet::new();
    let mut read = Vec::with_capacity(held.len().min(keys.len()));
    for one in held {
        let place = usize::from(one.place);
        let (owner, id) = *keys.get(place).ok_or_else(|| unexpected("peer holds"))?;
        let shards = ShardSet(one.shards);
        if !places.insert(place) || asking.answer(owner, id, shards) != one.tag {
            return Err(Fault::Lied("a checkpoint that it does not know".into()));
        }
        read.push((place, shards));
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [(OwnerId, CheckpointId); 2] = [
        (OwnerId([1; 32]), CheckpointId([2; 16])),
        (OwnerId([1; 32]), CheckpointId([3; 16])),
    ];

    fn asking() -> Asking {
        Asking::new(OwnerId([7; 32]), OwnerId([8; 32]), &[9; 32])
    }

    fn held(place: u16, knows: usize, shards: u64) -> HeldTag {
        let (owner, id) = KEYS[knows];
        let tag = asking().answer(owner, id, ShardSet(shards));
        HeldTag { place, shards, tag }
    }

    #[test]
    fn a_host_that_does_not_know_a_checkpoint_can_not_claim_it() {
        let read = |held: &[HeldTag]| read_held(&asking(), &KEYS, held);
        assert_eq!(read(&[held(1, 1, 5)]), Ok(vec![(1, ShardSet(5))]));
        assert!(read(&[held(1, 0, 5)]).is_err());
        assert!(
            read(&[HeldTag {
                shards: 7,
                ..held(1, 1, 5)
            }])
            .is_err()
        );
        assert!(read(&[held(1, 1, 5), held(1, 1, 5)]).is_err());
        assert!(read(&[held(2, 1, 5)]).is_err());
    }
}
