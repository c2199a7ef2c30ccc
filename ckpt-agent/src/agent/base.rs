//! Chooses and reads the base of a new version: the earlier checkpoint that it refers to.

use std::sync::Arc;

use codec::CheckpointId;
use codec::Version;
use codec::base::Base;
use codec::manifest::Summary;
use codec::pieces::{BaseRef, EarlierSegments, PIECE_BYTES};

use super::gather::Gathered;
use super::rows::Unreadable;
use super::{Agent, SaveRequest};
use crate::inventory::KnownCheckpoint;
use transfer::get::BlockReader;

/// Smaller images are saved whole: comparing them with a base saves no time.
const IMAGE_BYTES_MIN: u64 = 4 << 20;

/// If the last version had to store more than one byte in this many of what its base stored, the next version
/// is saved whole: otherwise a restore would have to read too much.
const FOLD_SHARE: u64 = 5;

/// One in this many bytes of the memory is for hashes of the base, and as much for hashes of the image.
const MEMORY_SHARE: u64 = 8;

/// How many segments of the new version are remembered, to find what its files have in common.
pub(super) fn remembered(memory_bytes: u64) -> usize {
    let segments = memory_bytes / MEMORY_SHARE / EarlierSegments::SEGMENT_MEMORY;
    usize::try_from(segments).unwrap_or(usize::MAX)
}

/// The base with which a save is compared.
pub(super) struct ChosenBase {
    pub(super) reference: BaseRef,
    pub(super) version: Version,
    pub(super) pieces: Arc<Base>,
}

impl Agent {
    /// The base for a new version, if there is one worth using: all its shards are at hosts that answer, and
    /// the last version did not differ too much from it.
    pub(super) async fn base_for(
        &self,
        gathered: &Gathered,
        request: &SaveRequest,
    ) -> Option<ChosenBase> {
        if request.full {
            return None;
        }
        let newest = *gathered.inventory.newest_first().first()?;
        let summary = newest.manifest.open(&self.keys).ok()?;
        let (known, summary) = match summary.tail.base {
            None => (newest, summary),
            Some(base) => {
                let known = gathered.inventory.get(base.checkpoint)?;
                if known.manifest.hash() != base.manifest {
                    return None;
                }
                let first = known.manifest.open(&self.keys).ok()?;
                if summary.stored_bytes > first.stored_bytes / FOLD_SHARE {
                    return None;
                }
                (known, first)
            }
        };
        let public = known.manifest.public();
        let is_whole = known.can_lose() == Some(public.redundancy.parity());
        let hash_bytes = summary.stream_bytes / PIECE_BYTES as u64 * Base::PIECE_MEMORY;
        let fits = hash_bytes <= self.resources.memory_bytes / MEMORY_SHARE;
        let is_worth_it = summary.stream_bytes >= IMAGE_BYTES_MIN
            && !summary.tail.pieces.is_empty()
            && public.cipher == request.cipher;
        if !(is_whole && fits && is_worth_it) {
            return None;
        }
        match self.read_base(known, &summary).await {
            Ok(base) => Some(base),
            Err(stop) => {
                let version = known.version();
                tracing::warn!(%version, ?stop, "the image is saved whole, because the earlier version can't be read");
                None
            }
        }
    }

    async fn read_base(
        &self,
        known: &KnownCheckpoint,
        summary: &Summary,
    ) -> Result<ChosenBase, Unreadable> {
        let public = known.manifest.public();
        let reader = BlockReader::new(self.hosts.clone(), public.clone());
        let first = public.rows - summary.other_rows();
        let (index, hashes) = tokio::try_join!(
            self.read_index(known, summary, &reader),
            self.read_rows(known, summary, &reader, first, &summary.tail.pieces),
        )?;
        let key = summary.data_key.clone();
        // Takes a while for a large image, so it runs on a thread of its own.
        let building = tokio::task::spawn_blocking(move || Base::new(&index, &hashes, &key));
        let unusable = |cause: String| Unreadable::because(cause);
        let pieces = building
            .await
            .map_err(|cause| unusable(cause.to_string()))?
            .map_err(|cause| unusable(cause.to_string()))?;
        Ok(ChosenBase {
            reference: BaseRef {
                checkpoint: public.checkpoint,
                manifest: known.manifest.hash(),
            },
            version: known.version(),
            pieces: Arc::new(pieces),
        })
    }

    /// The base of a checkpoint, if it has one.
    pub(super) fn base_of(&self, known: &KnownCheckpoint) -> Option<CheckpointId> {
        let summary = known.manifest.open(&self.keys).ok()?;
        summary.tail.base.map(|base| base.checkpoint)
    }
}
