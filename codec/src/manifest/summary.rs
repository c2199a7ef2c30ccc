//! The sealed part of a manifest.

use serde::{Deserialize, Serialize};

use super::{MANIFEST_BYTES_MAX, ManifestError};
use crate::id::{CheckpointId, PublicKey};
use crate::index::StoredSegment;
use crate::job::JobId;
use crate::labels::Labels;
use crate::pieces::BaseRef;
use crate::seal::DataKey;
use crate::serial;

/// Most witnesses of a checkpoint: as many as it can have shards.
pub const WITNESSES_MAX: usize = 64;

/// What only the owner may know of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Name of the job.
    pub job: JobId,
    /// Key of all segments.
    pub data_key: DataKey,
    /// What was saved: a file, a tree or a stream.
    pub kind: ImageKind,
    /// Sum of the file sizes, holes included.
    pub image_bytes: u64,
    /// Length of the image stream.
    pub stream_bytes: u64,
    /// Sum of the compressed lengths of the image's segments.
    pub stored_bytes: u64,
    /// Number of files, directories and links in the index.
    pub files: u64,
    /// The rows of the index, which are the last rows.
    pub index: Vec<StoredSegment>,
    /// Fields that follow the others.
    #[serde(skip)]
    pub tail: Tail,
}

/// The fields of a summary that are encoded after all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// The base of this checkpoint, if it has one.
    pub base: Option<BaseRef>,
    /// The rows with hashes of pieces, just before the rows of the index; empty if the checkpoint can't
    /// be a base.
    pub pieces: Vec<StoredSegment>,
    /// Labels that the user gave the checkpoint.
    pub labels: Labels,
    /// Hosts that had acknowledged a shard when the manifest was signed.
    pub witnesses: Vec<PublicKey>,
    /// The checkpoint of which this one is the only successor: its witnesses agreed on that.
    pub after: Option<CheckpointId>,
}

/// Number of the extension with [`Tail::after`].
const AFTER_EXTENSION: u16 = 1;

/// The tail as it is encoded.
#[derive(Serialize, Deserialize)]
struct TailBody {
    base: Option<BaseRef>,
    pieces: Vec<StoredSegment>,
    labels: Labels,
    witnesses: Vec<PublicKey>,
    /// Fields that are added later, each a number and bytes. Unknown numbers are passed over.
    extensions: Vec<(u16, serde_bytes::ByteBuf)>,
}

/// Kind of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageKind {
    /// One regular file.
    File,
    /// A directory, or several files and directories.
    Tree,
    /// Standard input or the output of a command.
    Stream,
}

impl Summary {
    pub(super) fn encode(&self) -> Result<Vec<u8>, ManifestError> {
        let after = self.tail.after.iter();
        let after = after.map(|id| (AFTER_EXTENSION, serde_bytes::ByteBuf::from(id.0)));
        let tail = TailBody {
            base: self.tail.base,
            pieces: self.tail.pieces.clone(),
            labels: self.tail.labels.clone(),
            witnesses: self.tail.witnesses.clone(),
            extensions: after.collect(),
        };
        Ok(serial::encode(&(self, tail), MANIFEST_BYTES_MAX)?)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        let (summary, tail): (Self, TailBody) = serial::decode(bytes, MANIFEST_BYTES_MAX)?;
        if tail.witnesses.len() > WITNESSES_MAX {
            return Err(ManifestError::Number("number of witnesses"));
        }
        let mut extensions = tail.extensions.iter();
        let after = extensions.find(|(number, _)| *number == AFTER_EXTENSION);
        let after = after.and_then(|(_, id)| <[u8; 16]>::try_from(id.as_slice()).ok());
        let tail = Tail {
            base: tail.base,
            pieces: tail.pieces,
            labels: tail.labels,
            witnesses: tail.witnesses,
            after: after.map(CheckpointId),
        };
        Ok(Self { tail, ..summary })
    }

    /// Number of the rows after those of the image: of piece hashes and of the index.
    pub const fn other_rows(&self) -> u64 {
        (self.index.len() + self.tail.pieces.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::summary;
    use super::*;

    #[test]
    fn extensions_that_are_not_known_are_passed_over() {
        let tail = TailBody {
            base: None,
            pieces: Vec::new(),
            labels: Labels::default(),
            witnesses: Vec::new(),
            extensions: vec![(7, serde_bytes::ByteBuf::from(vec![1, 2, 3]))],
        };
        let bytes = serial::encode(&(summary(), tail), MANIFEST_BYTES_MAX).unwrap();
        assert_eq!(Summary::decode(&bytes), Ok(summary()));
    }

    #[test]
    fn the_checkpoint_that_a_save_follows_comes_back() {
        let mut fenced = summary();
        fenced.tail.after = Some(CheckpointId([5; 16]));
        let bytes = fenced.encode().unwrap();
        assert_eq!(Summary::decode(&bytes), Ok(fenced));
    }

    #[test]
    fn too_many_witnesses_are_refused() {
        let mut many = summary();
        many.tail.witnesses = vec![PublicKey([1; 32]); WITNESSES_MAX + 1];
        let bytes = many.encode().unwrap();
        let refused = Err(ManifestError::Number("number of witnesses"));
        assert_eq!(Summary::decode(&bytes).map(|_| ()), refused);
    }
}
