//! The sealed part of a manifest.

use serde::{Deserialize, Serialize};

use super::{MANIFEST_BYTES_MAX, ManifestError};
use crate::id::{CheckpointId, PublicKey};
use crate::index::StoredSegment;
use crate::job::JobId;
use crate::labels::Labels;
use crate::layers::Chain;
use crate::pieces::BaseRef;
use crate::seal::DataKey;
use crate::serial::{self, SerialError};

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
    /// Why the image is not known to be one whole state; `None` if it is.
    pub mark: Option<Mark>,
    /// What a checkpoint names whose rows later ones use, or that uses rows of earlier ones.
    pub chain: Option<Chain>,
    /// Whether it is a remnant: rows of a save that was interrupted, which later versions use. It has neither index nor
    /// files, and nobody can restore it.
    pub is_remnant: bool,
}

/// Why an image is not known to be one whole state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Files changed while they were read, and the user accepted that.
    Changed,
    /// Whoever wrote the files was killed while it may have been writing them.
    Torn,
    /// A reason that this program does not know.
    Other(u8),
}

impl Mark {
    const fn number(self) -> u8 {
        match self {
            Self::Changed => 1,
            Self::Torn => 2,
            Self::Other(number) => number,
        }
    }

    const fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Changed,
            2 => Self::Torn,
            number => Self::Other(number),
        }
    }
}

impl std::fmt::Display for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Changed => f.write_str("files changed while they were read"),
            Self::Torn => {
                f.write_str("the job was killed while it may have been writing its files")
            }
            Self::Other(number) => write!(f, "reason {number}, which a newer program gave"),
        }
    }
}

/// Number of the extension with [`Tail::after`].
const AFTER_EXTENSION: u16 = 1;

/// Number of the extension with [`BaseRef::created`].
const BASE_CREATED_EXTENSION: u16 = 2;

/// Number of the extension with [`Tail::mark`].
const MARK_EXTENSION: u16 = NEEDED_FROM + 1;

/// Number of the extension with [`Tail::is_remnant`], which has no bytes.
const REMNANT_EXTENSION: u16 = NEEDED_FROM + 2;

/// From this number on, a reader has to know an extension: without it, it would take the checkpoint for something
/// that it is not. So a summary with an unknown one is refused.
const NEEDED_FROM: u16 = 0x8000;

/// The tail as it is encoded.
#[derive(Serialize, Deserialize)]
struct TailBody {
    base: Option<BaseRef>,
    pieces: Vec<StoredSegment>,
    labels: Labels,
    witnesses: Vec<PublicKey>,
    /// Fields that are added later, each a number and bytes. Unknown numbers below `NEEDED_FROM` are passed over.
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
        let created = self.tail.base.and_then(|base| base.created);
        let created = created.map(|created| {
            let bytes = serde_bytes::ByteBuf::from(created.to_le_bytes());
            (BASE_CREATED_EXTENSION, bytes)
        });
        let mark = self.tail.mark.iter();
        let mark = mark.map(|mark| (MARK_EXTENSION, serde_bytes::ByteBuf::from([mark.number()])));
        let remnant = (REMNANT_EXTENSION, serde_bytes::ByteBuf::new());
        let remnant = self.tail.is_remnant.then_some(remnant);
        let tail = TailBody {
            base: self.tail.base,
            pieces: self.tail.pieces.clone(),
            labels: self.tail.labels.clone(),
            witnesses: self.tail.witnesses.clone(),
            extensions: after.chain(created).chain(mark).chain(remnant).collect(),
        };
        // Programs that do not know chains refuse a summary with more bytes than they expect. So they delete
        // nothing of a job that has one.
        Ok(match &self.tail.chain {
            None => serial::encode(&(self, tail), MANIFEST_BYTES_MAX)?,
            Some(chain) => serial::encode(&(self, tail, chain), MANIFEST_BYTES_MAX)?,
        })
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        let without = serial::decode::<(Self, TailBody)>(bytes, MANIFEST_BYTES_MAX);
        let (summary, tail, chain) = match without {
            Err(SerialError::Trailing(_)) => {
                let (summary, tail, chain): (Self, TailBody, Chain) =
                    serial::decode(bytes, MANIFEST_BYTES_MAX)?;
                (summary, tail, Some(chain))
            }
            without => {
                let (summary, tail) = without?;
                (summary, tail, None)
            }
        };
        let is_possible = |chain: &Chain| chain.is_possible() && tail.base.is_none();
        if !chain.as_ref().is_none_or(is_possible) {
            return Err(ManifestError::Number("origins"));
        }
        if tail.witnesses.len() > WITNESSES_MAX {
            return Err(ManifestError::Number("number of witnesses"));
        }
        let mut needed = tail.extensions.iter().map(|(number, _)| *number);
        let known = [MARK_EXTENSION, REMNANT_EXTENSION];
        if needed.any(|number| number >= NEEDED_FROM && !known.contains(&number)) {
            return Err(ManifestError::Number("number of an extension"));
        }
        let extension = |wanted| {
            let mut all = tail.extensions.iter();
            all.find(|(number, _)| *number == wanted)
                .map(|(_, bytes)| bytes.as_slice())
        };
        let after = extension(AFTER_EXTENSION).and_then(|id| <[u8; 16]>::try_from(id).ok());
        let created = extension(BASE_CREATED_EXTENSION);
        let created = created.and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
        let base = tail.base.map(|base| BaseRef {
            created: created.map(u64::from_le_bytes),
            ..base
        });
        let tail = Tail {
            base,
            pieces: tail.pieces,
            labels: tail.labels,
            witnesses: tail.witnesses,
            after: after.map(CheckpointId),
            // Whatever a mark looks like, it is one.
            mark: extension(MARK_EXTENSION)
                .map(|bytes| Mark::from_number(bytes.first().copied().unwrap_or(0))),
            chain,
            is_remnant: extension(REMNANT_EXTENSION).is_some(),
        };
        Ok(Self { tail, ..summary })
    }

    /// The checkpoints of which a restore of this one reads rows, each of them named: also what those build on.
    pub fn needs(&self) -> impl Iterator<Item = BaseRef> {
        let origins = self.tail.chain.iter().flat_map(|chain| &chain.origins);
        let origins = origins.map(|origin| origin.reference);
        self.tail.base.into_iter().chain(origins)
    }

    /// The key of the hashes of pieces of which the hashes of its segments are made; `None` if these are made of the
    /// bytes of the segments, but for those that refer to others.
    pub fn pieces_key(&self) -> Option<&DataKey> {
        match &self.tail.chain {
            Some(chain) => Some(&chain.pieces_key),
            None if self.tail.pieces.is_empty() => None,
            None => Some(&self.data_key),
        }
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
    fn when_the_base_was_created_comes_back_and_older_summaries_lack_it() {
        for created in [None, Some(1_800_000_000)] {
            let mut patch = summary();
            patch.tail.base = Some(BaseRef {
                checkpoint: CheckpointId([5; 16]),
                manifest: crate::ManifestHash([6; 32]),
                created,
            });
            let bytes = patch.encode().unwrap();
            assert_eq!(Summary::decode(&bytes), Ok(patch));
        }
    }

    #[test]
    fn a_mark_comes_back_and_what_a_reader_has_to_know_is_refused_if_it_is_unknown() {
        for mark in [Mark::Changed, Mark::Torn, Mark::Other(9)] {
            let mut marked = summary();
            marked.tail.mark = Some(mark);
            let bytes = marked.encode().unwrap();
            assert_eq!(Summary::decode(&bytes), Ok(marked));
        }
        let with = |number, bytes: &[u8]| {
            let tail = TailBody {
                base: None,
                pieces: Vec::new(),
                labels: Labels::default(),
                witnesses: Vec::new(),
                extensions: vec![(number, serde_bytes::ByteBuf::from(bytes.to_vec()))],
            };
            let bytes = serial::encode(&(summary(), tail), MANIFEST_BYTES_MAX).unwrap();
            Summary::decode(&bytes)
        };
        let empty = with(MARK_EXTENSION, &[]).unwrap();
        assert_eq!(empty.tail.mark, Some(Mark::Other(0)));
        let refused = Err(ManifestError::Number("number of an extension"));
        assert_eq!(with(REMNANT_EXTENSION + 1, &[1]).map(|_| ()), refused);
    }

    #[test]
    fn a_remnant_comes_back_as_one() {
        let mut remnant = summary();
        remnant.tail.is_remnant = true;
        let bytes = remnant.encode().unwrap();
        assert_eq!(Summary::decode(&bytes), Ok(remnant));
    }

    #[test]
    fn too_many_witnesses_are_refused() {
        let mut many = summary();
        many.tail.witnesses = vec![PublicKey([1; 32]); WITNESSES_MAX + 1];
        let bytes = many.encode().unwrap();
        let refused = Err(ManifestError::Number("number of witnesses"));
        assert_eq!(Summary::decode(&bytes).map(|_| ()), refused);
    }

    #[test]
    fn a_chain_comes_back_and_programs_that_know_none_refuse_it() {
        let mut link = summary();
        let origin = crate::layers::Origin {
            reference: BaseRef {
                checkpoint: CheckpointId([5; 16]),
                manifest: crate::ManifestHash([6; 32]),
                created: Some(1_800_000_000),
            },
            data_key: DataKey::new([7; 32]),
            is_version: true,
        };
        link.tail.chain = Some(Chain {
            pieces_key: DataKey::new([8; 32]),
            changed_bytes: 9,
            origins: vec![origin],
        });
        let bytes = link.encode().unwrap();
        assert_eq!(Summary::decode(&bytes), Ok(link.clone()));
        let before = serial::decode::<(Summary, TailBody)>(&bytes, MANIFEST_BYTES_MAX);
        assert!(matches!(before, Err(SerialError::Trailing(_))));
        let needs: Vec<CheckpointId> = link.needs().map(|need| need.checkpoint).collect();
        assert_eq!(needs, [CheckpointId([5; 16])]);
        // A checkpoint builds on a base or on origins.
        let mut both = link.clone();
        both.tail.base = link.needs().next();
        let refused = Err(ManifestError::Number("origins"));
        assert_eq!(Summary::decode(&both.encode().unwrap()), refused);
        let twice = |chain: &mut Chain| chain.origins.push(chain.origins[0].clone());
        link.tail.chain.iter_mut().for_each(twice);
        assert_eq!(Summary::decode(&link.encode().unwrap()), refused);
        let mut longer = bytes;
        longer.push(0);
        assert!(Summary::decode(&longer).is_err());
    }
}
