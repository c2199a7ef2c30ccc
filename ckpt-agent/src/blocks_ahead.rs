//! A folder with blocks that were fetched ahead of a restore: sealed bytes as hosts hold them, which are of no use
//! without the keys of their job.
//!
//! ```text
//! FOLDER/CHECKPOINT-SHARD         the blocks of a shard: that of row r from byte r * STRIDE_BYTES on, the rest are holes
//! FOLDER/CHECKPOINT-SHARD.part    the same while it is fetched
//! ```
//!
//! A block counts only if it is as the signed table of its shard states, so the folder need not be trusted.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use codec::geometry::BLOCK_BYTES_MAX;
use codec::shard_file::BlockEntry;
use codec::{CheckpointId, ShardIndex};

/// Distance of the blocks in a file: the longest block, in whole pages.
const STRIDE_BYTES: u64 = (BLOCK_BYTES_MAX as u64).next_multiple_of(4096);

/// Unit of `st_blocks`, bytes.
const STAT_BLOCK_BYTES: u64 = 512;

const PART: &str = ".part";

/// A shard of a checkpoint.
pub type ShardOf = (CheckpointId, ShardIndex);

/// A folder with blocks that were fetched ahead of a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlocksAhead(PathBuf);

/// A shard of which blocks come.
#[derive(Debug)]
pub struct ShardAhead {
    file: File,
    part: PathBuf,
    whole: PathBuf,
}

impl BlocksAhead {
    /// The blocks in this folder, which need not exist.
    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        Self(dir.into())
    }

    fn path(&self, (checkpoint, shard): ShardOf) -> PathBuf {
        self.0.join(format!("{checkpoint}-{}", shard.number()))
    }

    /// Whether all blocks of a shard were fetched.
    pub fn has(&self, shard: ShardOf) -> bool {
        self.path(shard).is_file()
    }

    /// Begins to fetch a shard.
    ///
    /// # Errors
    /// When the file can't be made.
    pub fn begin(&self, shard: ShardOf) -> io::Result<ShardAhead> {
        let whole = self.path(shard);
        let part = PathBuf::from(format!("{}{PART}", whole.display()));
        let mut options = File::options();
        options.create(true).truncate(true).write(true).mode(0o600);
        let file = options.open(&part)?;
        Ok(ShardAhead { file, part, whole })
    }

    /// The blocks of these rows that are here and as their entries state; the rows ascend.
    pub fn blocks(&self, shard: ShardOf, rows: &[(u64, BlockEntry)]) -> Vec<(u64, Bytes)> {
        // What can't be read here comes from hosts.
        let Ok(file) = File::open(self.path(shard)) else {
            return Vec::new();
        };
        let read = |(row, entry): &(u64, BlockEntry)| {
            let mut block = vec![0; entry.len as usize];
            let at = row.checked_mul(STRIDE_BYTES)?;
            file.read_exact_at(&mut block, at).ok()?;
            entry.matches(&block).then(|| (*row, block.into()))
        };
        rows.iter().filter_map(read).collect()
    }

    /// Removes the shards of all checkpoints but these, and what was fetched of a shard in part.
    ///
    /// # Errors
    /// When a file can't be removed.
    pub fn keep_only(&self, checkpoints: &BTreeSet<CheckpointId>) -> io::Result<()> {
        let kept: Vec<String> = checkpoints.iter().map(|one| format!("{one}-")).collect();
        for path in self.files()? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_kept = kept.iter().any(|one| name.starts_with(one.as_str()));
            if !is_kept || name.ends_with(PART) {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Bytes that the files take on the disk.
    ///
    /// # Errors
    /// When the folder can't be read.
    pub fn bytes(&self) -> io::Result<u64> {
        let taken = |path: PathBuf| Ok(path.symlink_metadata()?.blocks() * STAT_BLOCK_BYTES);
        self.files()?.into_iter().map(taken).sum()
    }

    fn files(&self) -> io::Result<Vec<PathBuf>> {
        let entries = fs::read_dir(&self.0)?;
        entries.map(|entry| Ok(entry?.path())).collect()
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.0
    }
}

impl ShardAhead {
    /// Writes blocks, each with its row. Returns how many bytes of the disk they take at most.
    ///
    /// # Errors
    /// When they can't be written.
    pub fn put(&self, blocks: &[(u64, Bytes)]) -> io::Result<u64> {
        for (row, block) in blocks {
            self.file
                .write_all_at(block, row.saturating_mul(STRIDE_BYTES))?;
        }
        let taken = |block: &Bytes| (block.len() as u64).next_multiple_of(4096);
        Ok(blocks.iter().map(|(_, block)| taken(block)).sum())
    }

    /// Notes that all blocks are here.
    ///
    /// # Errors
    /// When the file can't be renamed.
    pub fn end(self) -> io::Result<()> {
        fs::rename(self.part, self.whole)
    }
}

#[cfg(test)]
mod tests {
    use codec::Redundancy;

    use super::*;

    fn shard(number: u8) -> ShardOf {
        let shard = Redundancy::DEFAULT.shard(number).unwrap();
        (CheckpointId([number; 16]), shard)
    }

    #[test]
    fn only_whole_shards_and_blocks_as_their_table_states_are_had() {
        let dir = tempfile::tempdir().unwrap();
        let ahead = BlocksAhead::in_dir(dir.path());
        let blocks: Vec<(u64, Bytes)> = vec![
            (0, Bytes::from(vec![1; 5000])),
            (3, Bytes::from(vec![2; BLOCK_BYTES_MAX])),
            (4, Bytes::from(vec![3; 1])),
        ];
        let entry = |(row, block): &(u64, Bytes)| (*row, BlockEntry::of(block));
        let entries: Vec<(u64, BlockEntry)> = blocks.iter().map(entry).collect();
        let coming = ahead.begin(shard(1)).unwrap();
        coming.put(&blocks).unwrap();
        assert!(!ahead.has(shard(1)));
        assert!(ahead.blocks(shard(1), &entries).is_empty());
        coming.end().unwrap();
        assert!(ahead.has(shard(1)));
        assert_eq!(ahead.blocks(shard(1), &entries), blocks);
        // A row that is not here, and one that is damaged.
        let absent = (2, BlockEntry::of(&[7]));
        let other = (4, BlockEntry::of(&[4]));
        assert!(ahead.blocks(shard(1), &[absent, other]).is_empty());
        assert!(ahead.blocks(shard(2), &entries).is_empty());
        assert!(ahead.bytes().unwrap() >= 5000 + BLOCK_BYTES_MAX as u64);
    }

    #[test]
    fn shards_of_other_checkpoints_and_parts_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let ahead = BlocksAhead::in_dir(dir.path());
        for number in 0..3 {
            ahead.begin(shard(number)).unwrap().end().unwrap();
        }
        ahead.begin(shard(3)).unwrap();
        let kept = [shard(1), shard(3), shard(4)].map(|(checkpoint, _)| checkpoint);
        ahead.keep_only(&BTreeSet::from(kept)).unwrap();
        let left: Vec<PathBuf> = ahead.files().unwrap();
        assert_eq!(left, [ahead.path(shard(1))]);
    }
}
