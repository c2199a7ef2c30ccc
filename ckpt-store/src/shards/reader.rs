//! Reads shard files: outlines, pages of the table, and rows.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use codec::geometry::{page_of, page_rows};
use codec::proof::{ShardProof, Spot};
use codec::shard_file::{
    BlockEntry, ENTRY_BYTES, Footer, FormatError, HEADER_BYTES, Header, Page, ShardIdentity,
    TAIL_BYTES,
};

use protocol::wire::message::RowRun;

use crate::disk::Read;

/// Most bytes of a group that are read in one step of a check.
const CHECK_READ_BYTES: u64 = codec::geometry::BLOCK_BYTES_MAX as u64;

/// Runs of blocks with at most this much between them are read at once, because a read costs more than these bytes.
const GAP_BYTES_MAX: usize = 64 << 10;

/// Why a shard can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file can't be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is not a complete shard, or not any more.
    #[error("{0}")]
    Format(#[from] FormatError),
    /// A block does not have the hash that the table states.
    #[error("row {0} is damaged")]
    Block(u64),
}

/// An open shard file whose footer is valid.
#[derive(Debug)]
pub struct ShardReader {
    file: Arc<dyn Read>,
    footer: Footer,
    identity: ShardIdentity,
}

/// The positions of the blocks of some rows in a file.
#[derive(Debug)]
pub struct RowBytes {
    file: Arc<dyn Read>,
    /// Offset and length of each run of blocks, in bytes.
    runs: Vec<(u64, u64)>,
}

/// Reads the header of a shard file.
///
/// # Errors
/// When the header can't be read or is not valid.
pub(super) fn read_header(file: &dyn Read) -> Result<Header, ReadError> {
    let mut header = [0; HEADER_BYTES];
    if file.size() < header.len() as u64 {
        return Err(FormatError::Magic("header").into());
    }
    file.read_exact_at(&mut header, 0)?;
    Ok(Header::parse(&header)?)
}

impl ShardReader {
    /// Opens the shard in `file`, whose header states `identity`, and reads its footer.
    ///
    /// # Errors
    /// When the footer can't be read or does not belong to this shard.
    pub fn open(file: Arc<dyn Read>, identity: ShardIdentity) -> Result<Self, ReadError> {
        let len = file.size();
        let no_footer = FormatError::Magic("footer");
        let tail_at = len
            .checked_sub(TAIL_BYTES as u64)
            .ok_or(no_footer.clone())?;
        let mut tail = [0; TAIL_BYTES];
        file.read_exact_at(&mut tail, tail_at)?;
        let footer_len = Footer::len_from_tail(&tail)?;
        let footer_at = len.checked_sub(footer_len as u64).ok_or(no_footer)?;
        let mut footer = vec![0; footer_len];
        file.read_exact_at(&mut footer, footer_at)?;
        let footer = Footer::parse(&footer, len, &identity)?;
        Ok(Self {
            file,
            footer,
            identity,
        })
    }

    /// The footer of the file.
    pub const fn footer(&self) -> &Footer {
        &self.footer
    }

    /// The checkpoint and the number of the shard.
    pub const fn identity(&self) -> &ShardIdentity {
        &self.identity
    }

    /// The length of the file.
    pub fn file_bytes(&self) -> u64 {
        self.file.size()
    }

    /// The bytes of one page of the table, and the parsed page. `None` if there is no such page.
    ///
    /// # Errors
    /// When the page can't be read or is damaged.
    pub fn page(&self, page: u64) -> Result<Option<(Vec<u8>, Page)>, ReadError> {
        let rows = page_rows(self.footer.outline.rows, page);
        let place = usize::try_from(page)
            .ok()
            .and_then(|at| self.footer.outline.pages.get(at));
        let Some(hash) = place.filter(|_| rows > 0) else {
            return Ok(None);
        };
        let offset = self
            .footer
            .page_offset(page, self.file.size(), self.footer.encoded_len())
            .ok_or(FormatError::Number("place of a page"))?;
        // A page has at most 1,024 entries, so the cast keeps the value.
        let mut bytes = vec![0; rows as usize * ENTRY_BYTES];
        self.file.read_exact_at(&mut bytes, offset)?;
        let parsed = Page::parse(&bytes, rows, *hash)?;
        Ok(Some((bytes, parsed)))
    }

    /// The positions of the blocks of these rows, which ascend. `None` if the shard has fewer rows.
    ///
    /// # Errors
    /// When the table can't be read or is damaged.
    pub fn rows(&self, rows: &[RowRun]) -> Result<Option<RowBytes>, ReadError> {
        let mut runs = Vec::new();
        let mut at_hand: Option<(u64, Page)> = None;
        for run in rows {
            let Some(end) = run.end().filter(|end| *end <= self.footer.outline.rows) else {
                return Ok(None);
            };
            let mut row = run.first;
            while row < end {
                let (page, at) = page_of(row);
                let known = at_hand.take().filter(|(number, _)| *number == page);
                let table = match known {
                    Some((_, table)) => table,
                    None => match self.page(page)? {
                        Some((_, table)) => table,
                        None => return Ok(None),
                    },
                };
                let entries = table.entries();
                let here = entries.len().min(at + (end - row) as usize);
                let len =
                    |entries: &[BlockEntry]| entries.iter().map(|e| u64::from(e.len)).sum::<u64>();
                let group = self.group(page)?;
                runs.push((group + len(&entries[..at]), len(&entries[at..here])));
                row += (here - at) as u64;
                at_hand = Some((page, table));
            }
        }
        Ok(Some(RowBytes {
            file: Arc::clone(&self.file),
            runs,
        }))
    }

    /// A proof that this host holds a part of the shard. `None` if the shard has no such row.
    ///
    /// # Errors
    /// When the part can't be read or is damaged.
    pub fn prove(&self, spot: Spot) -> Result<Option<ShardProof>, ReadError> {
        let (number, place) = page_of(spot.row);
        let row = RowRun {
            first: spot.row,
            count: 1,
        };
        let (Some((page, table)), Some(mut block)) = (self.page(number)?, self.rows(&[row])?)
        else {
            return Ok(None);
        };
        let mut memory = Vec::new();
        // One block is one run, and is not longer than a block may be.
        let len = usize::try_from(block.bytes()).unwrap_or(0);
        let bytes = block.next(&mut memory, len)?.into_iter().next();
        let block = memory.get(bytes.unwrap_or_default()).unwrap_or_default();
        let entry = table.entries().get(place);
        if !entry.is_some_and(|entry| entry.matches(block)) {
            return Err(ReadError::Block(spot.row));
        }
        let outline = &self.footer.outline;
        Ok(ShardProof::of(&self.identity, outline, &page, block, spot))
    }

    /// Reads the whole shard and compares it with its table. Stops at the first damage.
    ///
    /// # Errors
    /// When something can't be read or is damaged.
    pub fn check(&self) -> Result<(), ReadError> {
        self.check_slowly(|_| {})
    }

    /// The same as [`Self::check`]. After each block `after` is called with its length, and may sleep.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_slowly(&self, mut after: impl FnMut(usize)) -> Result<(), ReadError> {
        let mut memory = Vec::new();
        let mut row = 0;
        for page in 0..self.footer.outline.pages.len() as u64 {
            let mut offset = self.group(page)?;
            let Some((_, table)) = self.page(page)? else {
                return Err(FormatError::Number("number of pages").into());
            };
            for entry in table.entries() {
                debug_assert!(u64::from(entry.len) <= CHECK_READ_BYTES);
                let len = entry.len as usize;
                let bytes = self.file.read_long(&mut memory, offset, len)?;
                let block = memory.get(bytes).unwrap_or_default();
                if !entry.matches(block) {
                    return Err(ReadError::Block(row));
                }
                after(len);
                offset += u64::from(entry.len);
                row += 1;
            }
        }
        Ok(())
    }

    fn group(&self, page: u64) -> Result<u64, FormatError> {
        let groups = &self.footer.groups;
        let place = usize::try_from(page).ok().and_then(|at| groups.get(at));
        place
            .copied()
            .ok_or(FormatError::Number("place of a group"))
    }
}

impl RowBytes {
    /// The length of the blocks together.
    pub fn bytes(&self) -> u64 {
        self.runs.iter().map(|(_, len)| len).sum()
    }

    /// Reads the next bytes into `memory`, in one read of at most `most` bytes. Returns where in `memory` they are:
    /// nowhere at the end.
    ///
    /// # Errors
    /// When they can't be read.
    pub fn next(&mut self, memory: &mut Vec<u8>, most: usize) -> io::Result<Vec<Range<usize>>> {
        let start = self.runs.first().map_or(0, |(offset, _)| *offset);
        let mut pieces: Vec<Range<usize>> = Vec::new();
        let mut read = 0;
        let mut done = 0;
        for (offset, left) in &mut self.runs {
            let at = offset
                .checked_sub(start)
                .and_then(|at| usize::try_from(at).ok());
            let Some(at) = at.filter(|at| (read..=read + GAP_BYTES_MAX).contains(at) && *at < most)
            else {
                break;
            };
            let len = (*left).min((most - at) as u64);
            *offset += len;
            *left -= len;
            read = at + len as usize;
            pieces.push(at..read);
            if *left > 0 {
                break;
            }
            done += 1;
        }
        self.runs.drain(..done);
        if read == 0 {
            return Ok(Vec::new());
        }
        let Range { start: from, .. } = self.file.read_long(memory, start, read)?;
        let moved = pieces.into_iter();
        Ok(moved
            .map(|piece| piece.start + from..piece.end + from)
            .collect())
    }
}
