//! From segments to rows of blocks, and from rows to a signed manifest.

use std::collections::BTreeMap;

use crate::anchors::{Anchor, anchors};
use crate::compress::{Compressor, Level};
use crate::geometry::{Redundancy, SEGMENT_BYTES, ShardIndex};
use crate::hash::{ManifestHash, PieceHash, SegmentHash};
use crate::id::{CheckpointId, JobTag, Version};
use crate::index::{FileEntry, Index, Patch, SegmentEntry, StoredSegment};
use crate::job::JobId;
use crate::labels::Labels;
use crate::layers::{CHAIN_BYTES_MIN, Chain, Layered, Origin};
use crate::manifest::{Draft, ImageKind, NewManifest, Summary, Tail};
use crate::pieces::PieceHasher;
use crate::rs::Coder;
use crate::seal::{Cipher, DataKey, SealContext, SegmentSealer};
use crate::segment::{MadeSegment, RepeatedSource};
use crate::serial::SerialError;
use crate::shard_file::{BlockEntry, Outline, ShardIdentity, TableBuilder};

/// A coded segment: one block for each shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedRow {
    /// Number of the row.
    pub row: u64,
    /// Lengths and compression of the segment.
    pub stored: StoredSegment,
    /// Keyed hash of the image bytes.
    pub hash: SegmentHash,
    /// Length of each block.
    pub block_len: usize,
    /// All blocks, one after the other: `total * block_len` bytes.
    pub blocks: Vec<u8>,
    /// Length and hash of each block.
    pub table: Vec<BlockEntry>,
    /// Hashes of the segment's pieces; empty unless the checkpoint can be a base.
    pub pieces: Vec<PieceHash>,
    /// Anchors of the segment; empty unless the checkpoint can be a base.
    pub anchors: Vec<Anchor>,
}

impl EncodedRow {
    /// Where the block of `shard` lies in [`Self::blocks`].
    pub const fn block_range(&self, shard: ShardIndex) -> std::ops::Range<usize> {
        let start = shard.at() * self.block_len;
        start..start + self.block_len
    }
}

/// Most bytes that the blocks of one row take.
pub const fn row_bytes_max(redundancy: Redundancy) -> usize {
    redundancy.total() * redundancy.block_len(crate::geometry::BLOCK_BYTES_MAX)
}

/// Encodes segments. Each thread has one, since it keeps working memory.
#[derive(Debug)]
pub struct RowEncoder {
    redundancy: Redundancy,
    coder: Coder,
    sealer: SegmentSealer,
    compressor: Compressor,
    hasher: Option<PieceHasher>,
}

impl RowEncoder {
    /// An encoder for one checkpoint.
    pub fn new(redundancy: Redundancy, sealer: SegmentSealer, level: Level) -> Self {
        Self {
            redundancy,
            coder: Coder::new(redundancy),
            sealer,
            compressor: Compressor::new(level),
            hasher: None,
        }
    }

    /// Compresses at `level` from now on.
    pub fn set_level(&mut self, level: Level) {
        self.compressor.set_level(level);
    }

    /// Hashes the pieces of segments, too: for a checkpoint that can be a base.
    pub fn with_pieces(self, key: &DataKey) -> Self {
        let hasher = Some(PieceHasher::new(key));
        Self { hasher, ..self }
    }

    /// Hashes, compresses, seals and codes the segment `raw`. The memory of `blocks` is used again.
    ///
    /// # Panics
    /// When `raw` is empty or longer than a segment, which is a mistake of the caller.
    pub fn encode(&mut self, row: u64, raw: &[u8], blocks: Vec<u8>) -> EncodedRow {
        let pieces = self.hasher.as_ref().map(|hasher| hasher.hash(raw));
        self.encode_hashed(row, raw, pieces, blocks)
    }

    /// As [`Self::encode`], with hashes of the pieces that the caller has already. They have to be made
    /// with the key of [`Self::with_pieces`], and to be `None` without it.
    ///
    /// # Panics
    /// See [`Self::encode`].
    pub fn encode_hashed(
        &mut self,
        row: u64,
        raw: &[u8],
        pieces: Option<Vec<PieceHash>>,
        mut blocks: Vec<u8>,
    ) -> EncodedRow {
        assert!(
            !raw.is_empty() && raw.len() <= SEGMENT_BYTES,
            "a segment has 1 to {SEGMENT_BYTES} bytes, not {}",
            raw.len()
        );
        let hash = self.sealer.hash(raw, pieces.as_deref());
        let method = self.compressor.compress(raw, &mut blocks);
        let stored = StoredSegment {
            raw_len: raw.len() as u32,
            stored_len: blocks.len() as u32,
            method,
        };
        self.sealer.seal(row, &mut blocks, 0);
        let block_len = self.redundancy.block_len(blocks.len());
        blocks.resize(self.redundancy.total() * block_len, 0);
        self.coder.encode(&mut blocks, block_len);
        let table = blocks.chunks_exact(block_len).map(BlockEntry::of).collect();
        EncodedRow {
            row,
            stored,
            hash,
            block_len,
            blocks,
            table,
            anchors: match pieces {
                Some(_) => anchors(raw).collect(),
                None => Vec::new(),
            },
            pieces: pieces.unwrap_or_default(),
        }
    }
}

/// What is fixed when a save begins.
#[derive(Clone, Debug)]
pub struct CheckpointPlan {
    /// The checkpoint that is saved; its id was drawn at random.
    pub checkpoint: CheckpointId,
    /// Job of the checkpoint.
    pub job: JobId,
    /// What hosts see instead of the job's name.
    pub job_tag: JobTag,
    /// Version of the checkpoint.
    pub version: Version,
    /// When the save began, Unix seconds.
    pub created: u64,
    /// Hash of the manifest of the version before it, if there is one.
    pub previous: Option<ManifestHash>,
    /// Numbers of data and parity shards.
    pub redundancy: Redundancy,
    /// How segments are sealed.
    pub cipher: Cipher,
    /// Key of all segments: random, used for this checkpoint only.
    pub data_key: DataKey,
    /// The chain that this checkpoint goes on with; `None` if it begins one.
    pub link: Option<Link>,
    /// Labels that the user gives it.
    pub labels: Labels,
}

/// What a checkpoint goes on with.
#[derive(Clone, Debug)]
pub struct Link {
    /// Key of the hashes of pieces.
    pub pieces_key: DataKey,
    /// The checkpoint that it is compared with, then the origins of that one.
    pub origins: Vec<Origin>,
}

impl CheckpointPlan {
    /// The key of the hashes of pieces.
    pub fn pieces_key(&self) -> &DataKey {
        let link = self.link.as_ref();
        link.map_or(&self.data_key, |link| &link.pieces_key)
    }

    /// The sealer of the checkpoint's segments.
    pub fn sealer(&self) -> SegmentSealer {
        let context = SealContext {
            checkpoint: self.checkpoint,
            job_tag: self.job_tag,
            version: self.version,
        };
        SegmentSealer::new(self.cipher, &self.data_key, context)
    }
}

/// Why the index and the manifest of an image can't be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// A row came out of order.
    #[error("row {actual} after {expected} rows")]
    Order {
        /// Number of the row that came.
        actual: u64,
        /// Number of the row that was to come next.
        expected: u64,
    },
    /// The index is too long: the image has too many files or segments.
    #[error("index too long: {0}")]
    Index(#[from] SerialError),
}

/// Collects the content of the index and the manifest while rows go by in order: first the rows of the
/// image, then those of piece hashes, then those of the index.
#[derive(Debug)]
pub struct CheckpointBuilder {
    plan: CheckpointPlan,
    index: Index,
    index_rows: Vec<StoredSegment>,
    /// Bytes of the piece hashes of all segments that a later version can be compared with.
    pieces: Vec<u8>,
    /// Bytes of the anchors of these segments.
    anchors: Vec<u8>,
    piece_rows: Vec<StoredSegment>,
    tables: Vec<TableBuilder>,
    sealer: SegmentSealer,
    chain: Option<Chain>,
    stored_bytes: u64,
    totals: ImageTotals,
}

#[derive(Debug, Default)]
struct ImageTotals {
    image_bytes: u64,
    stream_bytes: u64,
    files: u64,
}

impl CheckpointBuilder {
    /// A builder for a checkpoint without rows yet.
    pub fn new(plan: CheckpointPlan) -> Self {
        let tables = vec![TableBuilder::default(); plan.redundancy.total()];
        Self {
            sealer: plan.sealer(),
            chain: None,
            plan,
            index: Index::default(),
            index_rows: Vec::new(),
            pieces: Vec::new(),
            anchors: Vec::new(),
            piece_rows: Vec::new(),
            tables,
            stored_bytes: 0,
            totals: ImageTotals::default(),
        }
    }

    /// Records segments of zeros, which have no row.
    pub fn push_zero(&mut self, bytes: u64) {
        self.index.push_segment(SegmentEntry::Zero { bytes });
    }

    /// Records the next row of the image, which has a whole segment.
    ///
    /// # Errors
    /// When it is not the next row.
    pub fn push_row(&mut self, row: &EncodedRow) -> Result<(), BuildError> {
        self.push_table(row)?;
        self.stored_bytes += u64::from(row.stored.stored_len);
        self.pieces
            .extend(row.pieces.iter().flat_map(|hash| hash.0));
        let anchors = row.anchors.iter().flat_map(|anchor| anchor.0.to_le_bytes());
        self.anchors.extend(anchors);
        self.index.push_segment(SegmentEntry::Stored {
            stored: row.stored,
            hash: row.hash,
        });
        Ok(())
    }

    /// Records a segment that repeats earlier bytes, with the row of its new pieces if it has any.
    ///
    /// # Errors
    /// When it is not the next row.
    pub fn push_made(
        &mut self,
        made: &MadeSegment,
        row: Option<&EncodedRow>,
    ) -> Result<(), BuildError> {
        if let Some(row) = row {
            self.push_table(row)?;
            self.stored_bytes += u64::from(row.stored.stored_len);
        }
        let len = made.len;
        let hash = self.sealer.hash_pieces(&made.hashes);
        let entry = match &made.source {
            RepeatedSource::Image { offset, changed } => SegmentEntry::Shared {
                offset: *offset,
                patch: Patch {
                    len,
                    changed: *changed,
                    row: row.map(|row| (row.stored, row.hash)),
                    hash,
                },
            },
            RepeatedSource::Rows(layers) => {
                let hashes = made.hashes.iter().flat_map(|hash| hash.0);
                self.pieces.extend(hashes);
                let anchors = made.anchors.iter();
                let anchors = anchors.flat_map(|anchor| anchor.0.to_le_bytes());
                self.anchors.extend(anchors);
                SegmentEntry::Layered(Layered {
                    len,
                    layers: layers.clone(),
                    row: row.map(|row| row.stored),
                    hash,
                })
            }
        };
        self.index.push_segment(entry);
        Ok(())
    }

    /// The segment that was recorded last.
    pub fn last_segment(&self) -> Option<&SegmentEntry> {
        self.index.segments.last()
    }

    /// Leaves out the origins of which no row is used, and numbers the others anew.
    fn origins(&mut self) -> Vec<Origin> {
        let mut used = BTreeMap::new();
        for segment in &self.index.segments {
            let layers = segment.layers().iter();
            used.extend(layers.map(|layer| (layer.origin, 0)));
        }
        for (number, new) in (0..).zip(used.values_mut()) {
            *new = number;
        }
        for segment in &mut self.index.segments {
            if let SegmentEntry::Layered(layered) = segment {
                for layer in &mut layered.layers {
                    layer.origin = used.get(&layer.origin).copied().unwrap_or(u8::MAX);
                }
            }
        }
        let link = self.plan.link.as_ref();
        let all = link.map_or(&[][..], |link| &link.origins);
        let kept = used
            .keys()
            .filter_map(|number| all.get(usize::from(*number)));
        kept.cloned().collect()
    }

    /// The hashes that [`Self::take_pieces`] would begin with, 16 bytes each.
    pub fn piece_hashes(&self) -> &[u8] {
        &self.pieces
    }

    /// Forgets these hashes: the caller has written them elsewhere, and puts them before those that follow.
    pub fn forget_piece_hashes(&mut self) {
        self.pieces.clear();
    }

    /// Piece hashes of all segments that a later version can be compared with, then their anchors. The caller cuts these bytes into segments,
    /// encodes them and passes them to [`Self::push_piece_row`], before [`Self::finish_image`].
    pub fn take_pieces(&mut self) -> Vec<u8> {
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.append(&mut self.anchors);
        pieces
    }

    /// Records the next row of piece hashes.
    ///
    /// # Errors
    /// When it is not the next row.
    pub fn push_piece_row(&mut self, row: &EncodedRow) -> Result<(), BuildError> {
        self.push_table(row)?;
        self.piece_rows.push(row.stored);
        Ok(())
    }

    /// Ends the image, of which `changed_bytes` were stored because they are new, and returns the bytes of the index.
    /// The caller cuts them into segments, encodes them and passes them to [`Self::push_index_row`].
    ///
    /// # Errors
    /// When the index is too long.
    pub fn finish_image(
        &mut self,
        files: Vec<FileEntry>,
        changed_bytes: u64,
    ) -> Result<Vec<u8>, BuildError> {
        let origins = self.origins();
        let has_pieces = !self.piece_rows.is_empty();
        let begins = has_pieces && self.index.stream_bytes() >= CHAIN_BYTES_MIN;
        if begins || self.plan.link.is_some() {
            self.chain = Some(Chain {
                pieces_key: self.plan.pieces_key().clone(),
                changed_bytes,
                origins,
            });
        }
        self.totals = ImageTotals {
            image_bytes: files
                .iter()
                .fold(0, |sum, file| sum.saturating_add(file.size())),
            stream_bytes: self.index.stream_bytes(),
            files: files.len() as u64,
        };
        self.index.files = files;
        Ok(std::mem::take(&mut self.index).encode()?)
    }

    /// Records the next row of the index.
    ///
    /// # Errors
    /// When it is not the next row.
    pub fn push_index_row(&mut self, row: &EncodedRow) -> Result<(), BuildError> {
        self.push_table(row)?;
        self.index_rows.push(row.stored);
        Ok(())
    }

    /// How many rows were recorded so far: of the image, of piece hashes and of the index.
    pub fn rows(&self) -> u64 {
        self.tables.first().map_or(0, TableBuilder::rows)
    }

    /// Bytes of the image in its rows so far, before compression.
    pub fn row_bytes(&self) -> u64 {
        let rows = self.index.rows();
        rows.map(|(stored, _)| u64::from(stored.raw_len)).sum()
    }

    /// Compressed bytes of the image so far.
    pub const fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// The manifest, not signed yet.
    pub fn finish(self, kind: ImageKind) -> Draft {
        let plan = self.plan;
        let outlines: Vec<Outline> = self
            .tables
            .into_iter()
            .map(|table| table.finish().1)
            .collect();
        let roots = plan
            .redundancy
            .shards()
            .zip(&outlines)
            .map(|(shard, outline)| {
                outline.root(&ShardIdentity {
                    checkpoint: plan.checkpoint,
                    redundancy: plan.redundancy,
                    shard,
                })
            })
            .collect();
        let first = outlines.first();
        let new = NewManifest {
            checkpoint: plan.checkpoint,
            version: plan.version,
            created: plan.created,
            previous: plan.previous,
            redundancy: plan.redundancy,
            cipher: plan.cipher,
            rows: first.map_or(0, |outline| outline.rows),
            block_bytes: first.map_or(0, |outline| outline.block_bytes),
            roots,
        };
        let summary = Summary {
            job: plan.job,
            data_key: plan.data_key,
            kind,
            image_bytes: self.totals.image_bytes,
            stream_bytes: self.totals.stream_bytes,
            stored_bytes: self.stored_bytes,
            files: self.totals.files,
            index: self.index_rows,
            tail: Tail {
                chain: self.chain,
                pieces: self.piece_rows,
                labels: plan.labels,
                ..Tail::default()
            },
        };
        Draft::new(new, summary)
    }

    fn push_table(&mut self, row: &EncodedRow) -> Result<(), BuildError> {
        let expected = self.rows();
        if row.row != expected {
            return Err(BuildError::Order {
                actual: row.row,
                expected,
            });
        }
        for (table, entry) in self.tables.iter_mut().zip(&row.table) {
            table.push(*entry);
        }
        Ok(())
    }
}
