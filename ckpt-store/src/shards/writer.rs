//! Writes one shard file from front to back. One page of its table is in memory at a time.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use codec::geometry::{PAGE_ROWS, page_count};
use codec::shard_file::{
    BlockEntry, ENTRY_BYTES, Footer, FormatError, HEADER_BYTES, Header, Page, ShardIdentity,
    TAIL_BYTES, TableBuilder,
};

use crate::core::Shard;
use crate::disk::{Append, ChangeError, Disk};

/// Bytes that a group of rows takes in the footer: its offset, and the hash of its page.
const GROUP_BYTES: u64 = 40;

/// A file in `incoming`. It is removed if it is dropped before it got its final name.
#[derive(Debug)]
pub(crate) struct TempFile {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    is_named: bool,
}

impl TempFile {
    pub(crate) const fn new(disk: Arc<dyn Disk>, path: PathBuf) -> Self {
        Self {
            disk,
            path,
            is_named: false,
        }
    }

    /// Gives the file its final name. If that fails, the file is removed under both names.
    pub(crate) fn publish(mut self, to: &Path) -> Result<(), ChangeError> {
        match self.disk.publish(&self.path, to) {
            Ok(()) => {
                self.is_named = true;
                Ok(())
            }
            Err(failed) => {
                if let ChangeError::NotSynced(_) = failed {
                    self.is_named = true;
                    // The final name may be back after a restart. That is harmless: the file is complete,
                    // and was never acknowledged.
                    let _ = self.disk.discard(to);
                }
                Err(failed)
            }
        }
    }

    /// Gives the file the name of the file that it replaces, if there is one. If the new name can't be
    /// synced, the new file stays: removing it would leave neither the old nor the new one, and after a
    /// restart one of the two is there.
    pub(crate) fn replace(mut self, to: &Path) -> Result<(), ChangeError> {
        let replaced = self.disk.publish(&self.path, to);
        self.is_named = !matches!(replaced, Err(ChangeError::NotDone(_)));
        replaced
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.is_named
            && let Err(cause) = self.disk.discard(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %cause, "can't remove an unfinished file");
        }
    }
}

/// A shard that is being written.
#[derive(Debug)]
pub(crate) struct ShardWriter {
    // This field comes first, so that the file is closed before its name is removed.
    file: Box<dyn Append>,
    temp: TempFile,
    header: Header,
    table: TableBuilder,
    groups: Vec<u64>,
    at: u64,
}

/// A shard whose first blocks are written and synced, and whose file is closed.
#[derive(Debug)]
pub(crate) struct ClosedShard {
    disk: Arc<dyn Disk>,
    temp: TempFile,
    header: Header,
    table: TableBuilder,
    groups: Vec<u64>,
}

/// A shard whose blocks and table are written, but not synced.
#[derive(Debug)]
pub(crate) struct WrittenShard {
    file: Box<dyn Append>,
    temp: TempFile,
    shard: Shard,
}

impl ShardWriter {
    /// Creates a shard file at `path` and writes its header.
    pub(crate) fn create(disk: Arc<dyn Disk>, path: PathBuf, header: Header) -> io::Result<Self> {
        let file = disk.create(&path)?;
        let mut writer = Self {
            file,
            temp: TempFile::new(disk, path),
            header,
            table: TableBuilder::default(),
            groups: Vec::new(),
            at: 0,
        };
        writer.append(&header.encode())?;
        Ok(writer)
    }

    /// Adds the block of the next row.
    pub(crate) fn push(&mut self, block: &[u8]) -> io::Result<()> {
        if self.table.rows().is_multiple_of(PAGE_ROWS) {
            self.groups.push(self.at);
        }
        self.append(block)?;
        match self.table.push(BlockEntry::of(block)) {
            Some(page) => self.append(&page),
            None => Ok(()),
        }
    }

    /// The number of rows so far.
    pub(crate) const fn rows(&self) -> u64 {
        self.table.rows()
    }

    /// The sum of the lengths of the blocks so far.
    pub(crate) const fn block_bytes(&self) -> u64 {
        self.table.block_bytes()
    }

    /// The length of the file so far.
    pub(crate) const fn written(&self) -> u64 {
        self.at
    }

    /// The length of the complete file, if it ended after `rows` more rows of `bytes` bytes together.
    pub(crate) fn len_with(&self, rows: u64, bytes: u64) -> u64 {
        let rows = self.table.rows() + rows;
        let table = rows * ENTRY_BYTES as u64 + page_count(rows) * GROUP_BYTES;
        let blocks = self.table.block_bytes() + bytes;
        HEADER_BYTES as u64 + blocks + table + TAIL_BYTES as u64
    }

    /// Syncs the blocks and closes the file. It can be opened again to end the shard.
    pub(crate) fn close(self) -> io::Result<ClosedShard> {
        self.file.sync()?;
        Ok(ClosedShard {
            disk: Arc::clone(&self.temp.disk),
            temp: self.temp,
            header: self.header,
            table: self.table,
            groups: self.groups,
        })
    }

    /// Writes the rest of the table and the footer.
    pub(crate) fn finish(mut self) -> io::Result<WrittenShard> {
        let (page, outline) = std::mem::take(&mut self.table).finish();
        if let Some(page) = page {
            self.append(&page)?;
        }
        let identity = self.header.identity;
        let footer = Footer {
            root: outline.root(&identity),
            groups: std::mem::take(&mut self.groups),
            outline,
        };
        self.append(&footer.encode())?;
        let shard = Shard {
            identity,
            root: footer.root,
            rows: footer.outline.rows,
            block_bytes: footer.outline.block_bytes,
            file_bytes: self.at,
        };
        Ok(WrittenShard {
            file: self.file,
            temp: self.temp,
            shard,
        })
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.append(bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}

impl ClosedShard {
    /// The shard that it is a part of.
    pub(crate) const fn identity(&self) -> ShardIdentity {
        self.header.identity
    }

    /// The number of its rows.
    pub(crate) const fn rows(&self) -> u64 {
        self.table.rows()
    }

    /// Opens the file again, and cuts it after its first `rows` rows.
    pub(crate) fn reopen(mut self, rows: u64) -> io::Result<ShardWriter> {
        let wrong = |cause: FormatError| io::Error::new(io::ErrorKind::InvalidData, cause);
        let page = rows.saturating_sub(1) / PAGE_ROWS;
        let number = usize::try_from(page).unwrap_or(usize::MAX);
        let group = self.groups.get(number).copied();
        let group = group.ok_or(io::ErrorKind::InvalidInput)?;
        let filled = match self.table.filled().get(number) {
            Some(hash) => {
                let bytes = PAGE_ROWS as usize * ENTRY_BYTES;
                let file = self.disk.open(&self.temp.path)?;
                let end = self.groups.get(number + 1).copied();
                let end = end.unwrap_or(file.size());
                let mut page = vec![0; bytes];
                file.read_exact_at(&mut page, end.saturating_sub(bytes as u64))?;
                Some(Page::parse(&page, PAGE_ROWS, *hash).map_err(wrong)?)
            }
            None => None,
        };
        let tables = page * PAGE_ROWS * ENTRY_BYTES as u64;
        let before = group.saturating_sub(HEADER_BYTES as u64 + tables);
        self.table.cut(rows, filled, before).map_err(wrong)?;
        self.groups.truncate(number + 1);
        let at = HEADER_BYTES as u64 + tables + self.table.block_bytes();
        let file = self.disk.reopen(&self.temp.path, at)?;
        Ok(ShardWriter {
            file,
            temp: self.temp,
            header: self.header,
            table: self.table,
            groups: self.groups,
            at,
        })
    }
}

impl WrittenShard {
    /// The shard that was written.
    pub(crate) const fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Syncs the file. It can get its final name then.
    pub(crate) fn sync(self) -> io::Result<(Shard, TempFile)> {
        self.file.sync()?;
        Ok((self.shard, self.temp))
    }
}
