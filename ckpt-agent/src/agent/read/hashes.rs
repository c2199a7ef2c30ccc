//! Reads the hashes of all pieces of a version: a save compares its image with them, and a restore the files that are at
//! hand.

use std::io;
use std::path::{Path, PathBuf};

use codec::base::{Base, BaseError};
use codec::index::Index;
use codec::manifest::Summary;
use codec::seal::DataKey;

use crate::agent::Agent;
use crate::agent::read::fetch::Unreadable;
use crate::core::compared::{self, HashPlace};
use crate::inventory::KnownCheckpoint;
use crate::pipeline::hash_file::HashFile;
use transfer::get::BlockReader;

/// How many pieces a version has whose hashes it states.
pub(crate) fn pieces(summary: &Summary) -> u64 {
    let rows = summary.tail.pieces.iter();
    compared::pieces(rows.map(|row| u64::from(row.raw_len)).sum())
}

impl Agent {
    /// Where the hashes of the pieces of a version are while an image or files are compared with them. `None` if it states
    /// none, or there is no memory for them.
    pub(crate) fn hash_place(&self, summary: &Summary) -> Option<HashPlace> {
        let has_file = self.notebook.dir().is_some();
        let pieces = Some(pieces(summary)).filter(|pieces| *pieces > 0)?;
        compared::place(pieces, self.resources.memory_bytes, has_file)
    }

    /// Where the hashes of a version that are in no memory are put.
    pub(crate) fn hashes_dir(&self, place: HashPlace) -> Option<PathBuf> {
        match place {
            HashPlace::Memory => None,
            HashPlace::File => self.notebook.dir(),
        }
    }

    /// Reads the bytes of these hashes.
    pub(crate) async fn read_hashes(
        &self,
        known: &KnownCheckpoint,
        summary: &Summary,
        reader: &BlockReader,
    ) -> Result<Vec<u8>, Unreadable> {
        let first = known.manifest.public().rows - summary.other_rows();
        self.read_rows(known, summary, reader, first, &summary.tail.pieces)
            .await
    }
}

/// Why there is no base.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoBase {
    /// Index and hashes do not fit together.
    #[error(transparent)]
    Base(#[from] BaseError),
    /// The file for the hashes can't be written.
    #[error("the file for hashes of pieces: {0}")]
    File(#[from] io::Error),
}

/// A base whose hashes of pieces are put into a file in `dir`, if one is named.
pub(crate) fn base_of(
    index: &Index,
    hashes: &[u8],
    key: &DataKey,
    dir: Option<PathBuf>,
) -> Result<Base, NoBase> {
    let mut written = Ok(());
    let base =
        Base::with_hashes_elsewhere(index, hashes, key, |hashes| match in_file(&dir?, hashes) {
            Ok(file) => Some(Box::new(file)),
            Err(cause) => {
                written = Err(cause);
                None
            }
        })?;
    // Memory is not for the hashes that the file was for.
    written?;
    Ok(base)
}

fn in_file(dir: &Path, hashes: &[u8]) -> io::Result<HashFile> {
    let mut file = HashFile::in_dir(dir)?;
    file.append(hashes)?;
    Ok(file)
}
