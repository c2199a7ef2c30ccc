//! The file in which a host keeps a shard, and the shard's root. This module works on bytes; it opens no
//! files.
//!
//! ```text
//! header | blocks of rows 0..1024, page 0 | blocks of rows 1024..2048, page 1 | ... | footer
//! ```
//!
//! A **page** has length and hash of each block of its group of 1,024 rows (the last group may be
//! shorter). The footer has, for each page, its hash and where its group begins, and the root. The hashes
//! of all pages are the shard's **outline**, and the hash of the outline is its **root**: the owner signs
//! the root, so each block can be checked by its page, each page by the outline, and the outline by the
//! root.
//!
//! Writing needs memory for one page and 32 bytes for each earlier page, reading for one page and the
//! footer. The fields are listed in `docs/inside/format.md`.

#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::indexing_slicing)
)]

use std::num::TryFromIntError;

use crate::geometry::{
    BLOCK_BYTES_MAX, PAGE_ROWS, Redundancy, RedundancyError, ShardIndex, page_count, page_rows,
};
use crate::hash::{BlockHash, PageHash, ShardRoot};
use crate::id::{CheckpointId, JobTag, OwnerId, Version};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 128;

/// Bytes of the last part of a footer, which has a fixed length. It gives the length of the whole footer.
pub const TAIL_BYTES: usize = 72;

/// Bytes of one row's entry in a page.
pub const ENTRY_BYTES: usize = 36;

/// Bytes of one page's entry in a footer.
const FOOTER_ENTRY_BYTES: usize = 40;

/// BLAKE3 key derivation context of the root.
pub(crate) const OUTLINE_CONTEXT: &str = "ckpt v1 shard root";

/// Bytes of [`Outline::hashed`] before the page hashes.
pub(crate) const OUTLINE_HEAD_BYTES: usize = 36;

/// Most pages of a shard: enough for an image of 16 TiB in full segments, with 512 KiB of page hashes.
pub const PAGES_MAX: u64 = 1 << 14;

const HEADER_MAGIC: &[u8; 8] = b"CKPTSHD1";
const FOOTER_MAGIC: &[u8; 8] = b"CKPTEND1";
const FORMAT: u16 = 1;

/// Why bytes are no shard, or no whole one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// A part has the wrong length.
    #[error("{part} has {actual} bytes, {expected} expected")]
    Length {
        /// Name of the part.
        part: &'static str,
        /// Bytes that there are.
        actual: usize,
        /// Bytes that the part has in a whole shard.
        expected: usize,
    },
    /// The header does not begin, or the footer does not end, as that of a shard does.
    #[error("{0} is not that of a shard file")]
    Magic(&'static str),
    /// The hash of a part does not match.
    #[error("{0} is damaged")]
    Checksum(&'static str),
    /// A format that this version does not read.
    #[error("shard format {0} is not known to this version")]
    Format(u16),
    /// No checkpoint can have these counts of shards.
    #[error(transparent)]
    Redundancy(#[from] RedundancyError),
    /// The redundancy has no shard of this number.
    #[error("shard {index} of {redundancy}")]
    Shard {
        /// The number in the header.
        index: u8,
        /// The redundancy in the header.
        redundancy: Redundancy,
    },
    /// A number contradicts another one, or is larger than a shard allows.
    #[error("impossible {0}")]
    Number(&'static str),
}

impl From<TryFromIntError> for FormatError {
    fn from(_: TryFromIntError) -> Self {
        Self::Number("number of pages")
    }
}

/// The fields that identify a shard; its header and its root both have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardIdentity {
    /// The checkpoint that the shard is a part of.
    pub checkpoint: CheckpointId,
    /// How many shards of the checkpoint carry data and parity.
    pub redundancy: Redundancy,
    /// Index of the shard in the checkpoint.
    pub shard: ShardIndex,
}

/// The header of a shard file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Checkpoint and index of the shard.
    pub identity: ShardIdentity,
    /// Owner of the checkpoint.
    pub owner: OwnerId,
    /// Tag of the job.
    pub job_tag: JobTag,
    /// Version of the checkpoint.
    pub version: Version,
    /// When this host began to write the file, Unix seconds.
    pub created: u64,
}

impl Header {
    /// The header as it is at the beginning of the file.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(HEADER_MAGIC);
        bytes[8..10].copy_from_slice(&FORMAT.to_le_bytes());
        let (data, parity) = self.identity.redundancy.into();
        bytes[10..13].copy_from_slice(&[data, parity, self.identity.shard.number()]);
        bytes[16..32].copy_from_slice(&self.identity.checkpoint.0);
        bytes[32..64].copy_from_slice(&self.owner.0);
        bytes[64..96].copy_from_slice(&self.job_tag.0);
        bytes[96..104].copy_from_slice(&self.version.number().to_le_bytes());
        bytes[104..112].copy_from_slice(&self.created.to_le_bytes());
        let check = blake3::hash(&bytes[..112]);
        bytes[112..].copy_from_slice(&check.as_bytes()[..16]);
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// When the bytes are no header of a shard that this version can read.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FormatError> {
        let mut fields = Fields(bytes);
        if fields.take()? != *HEADER_MAGIC {
            return Err(FormatError::Magic("header"));
        }
        if blake3::hash(&bytes[..112]).as_bytes()[..16] != bytes[112..] {
            return Err(FormatError::Checksum("header"));
        }
        let format = u16::from_le_bytes(fields.take()?);
        if format != FORMAT {
            return Err(FormatError::Format(format));
        }
        let [data, parity, index, _, _, _] = fields.take()?;
        let redundancy = Redundancy::new(data, parity)?;
        let shard = redundancy
            .shard(index)
            .ok_or(FormatError::Shard { index, redundancy })?;
        Ok(Self {
            identity: ShardIdentity {
                checkpoint: CheckpointId(fields.take()?),
                redundancy,
                shard,
            },
            owner: OwnerId(fields.take()?),
            job_tag: JobTag(fields.take()?),
            version: Version::new(u64::from_le_bytes(fields.take()?))
                .ok_or(FormatError::Number("version"))?,
            created: u64::from_le_bytes(fields.take()?),
        })
    }
}

/// Length and hash of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockEntry {
    /// Bytes of the block.
    pub len: u32,
    /// Hash of the block.
    pub hash: BlockHash,
}

impl BlockEntry {
    /// The entry of `block`.
    pub fn of(block: &[u8]) -> Self {
        Self {
            len: u32::try_from(block.len()).unwrap_or(u32::MAX),
            hash: BlockHash::of(block),
        }
    }

    /// The entry as it is in a page.
    pub(crate) fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..4].copy_from_slice(&self.len.to_le_bytes());
        bytes[4..].copy_from_slice(&self.hash.0);
        bytes
    }

    /// Reads an entry of a page.
    pub(crate) fn decode(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let mut len = [0; 4];
        let mut hash = [0; 32];
        len.copy_from_slice(&bytes[..4]);
        hash.copy_from_slice(&bytes[4..]);
        Self {
            len: u32::from_le_bytes(len),
            hash: BlockHash(hash),
        }
    }

    /// Whether `block` has the length and the hash of this entry.
    pub fn matches(&self, block: &[u8]) -> bool {
        block.len() as u64 == u64::from(self.len) && BlockHash::of(block) == self.hash
    }
}

/// One page of a shard's table: the entries of up to 1,024 rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    entries: Vec<BlockEntry>,
}

impl Page {
    /// Reads a page that has to have `rows` entries and the hash `expected`.
    ///
    /// # Errors
    /// When the bytes have another hash or length, or an entry has a length that no block can have.
    pub fn parse(bytes: &[u8], rows: u64, expected: PageHash) -> Result<Self, FormatError> {
        let expected_len = usize::try_from(rows)?.saturating_mul(ENTRY_BYTES);
        if bytes.len() != expected_len {
            return Err(FormatError::Length {
                part: "page",
                actual: bytes.len(),
                expected: expected_len,
            });
        }
        if PageHash::of(bytes) != expected {
            return Err(FormatError::Checksum("page"));
        }
        let (entries, _) = bytes.as_chunks::<ENTRY_BYTES>();
        let entries = entries
            .iter()
            .map(|entry| {
                let mut fields = Fields(entry);
                let len = u32::from_le_bytes(fields.take()?);
                if len == 0 || len as usize > BLOCK_BYTES_MAX {
                    return Err(FormatError::Number("block length"));
                }
                Ok(BlockEntry {
                    len,
                    hash: BlockHash(fields.take()?),
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { entries })
    }

    /// The page as it is in the file, of which the outline has the hash.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.entries.len() * ENTRY_BYTES);
        for entry in &self.entries {
            bytes.extend_from_slice(&entry.encode());
        }
        bytes
    }

    /// The entries, in the order of rows.
    pub fn entries(&self) -> &[BlockEntry] {
        &self.entries
    }

    /// Sum of the block lengths.
    pub fn block_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| u64::from(entry.len)).sum()
    }
}

/// The content of which a shard's root is the hash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    /// Rows of the shard.
    pub rows: u64,
    /// Sum of its block lengths.
    pub block_bytes: u64,
    /// Hash of every page.
    pub pages: Vec<PageHash>,
}

impl Outline {
    /// The root: the hash of the identity and this outline, which the owner signs.
    pub fn root(&self, identity: &ShardIdentity) -> ShardRoot {
        ShardRoot(blake3::derive_key(OUTLINE_CONTEXT, &self.hashed(identity)))
    }

    /// The bytes of which the root is the hash: the identity, the counts, the page hashes.
    pub(crate) fn hashed(&self, identity: &ShardIdentity) -> Vec<u8> {
        let (data, parity) = identity.redundancy.into();
        let mut bytes = Vec::with_capacity(OUTLINE_HEAD_BYTES + self.pages.len() * 32);
        bytes.extend_from_slice(&identity.checkpoint.0);
        bytes.extend_from_slice(&[identity.shard.number(), data, parity, 0]);
        bytes.extend_from_slice(&self.rows.to_le_bytes());
        bytes.extend_from_slice(&self.block_bytes.to_le_bytes());
        for page in &self.pages {
            bytes.extend_from_slice(&page.0);
        }
        bytes
    }

    /// Checks that the counts fit together and that the root is `expected`.
    ///
    /// # Errors
    /// When one of these does not hold.
    pub fn verify(&self, identity: &ShardIdentity, expected: ShardRoot) -> Result<(), FormatError> {
        if self.pages.len() as u64 != page_count(self.rows) {
            return Err(FormatError::Number("number of pages"));
        }
        if self.root(identity) != expected {
            return Err(FormatError::Checksum("outline"));
        }
        Ok(())
    }
}

/// Builds the table of a shard while its blocks go by.
///
/// Keeps one page, and 32 bytes for each earlier page.
#[derive(Clone, Debug, Default)]
pub struct TableBuilder {
    page: Page,
    outline: Outline,
}

impl TableBuilder {
    /// Adds the entry of the next row. Returns the bytes of the page if this entry filled it.
    pub fn push(&mut self, entry: BlockEntry) -> Option<Vec<u8>> {
        self.page.entries.push(entry);
        self.outline.rows += 1;
        self.outline.block_bytes += u64::from(entry.len);
        (self.page.entries.len() as u64 == PAGE_ROWS).then(|| self.close_page())
    }

    /// How many rows were added so far.
    pub const fn rows(&self) -> u64 {
        self.outline.rows
    }

    /// Sum of the block lengths so far.
    pub const fn block_bytes(&self) -> u64 {
        self.outline.block_bytes
    }

    /// Hashes of the pages that were filled.
    pub fn filled(&self) -> &[PageHash] {
        &self.outline.pages
    }

    /// Leaves out the rows from number `rows` on. If the last of the others is in a page that was filled, `filled` has
    /// to be that page. The blocks of all pages before have `before` bytes.
    ///
    /// # Errors
    /// When there are fewer rows, or `filled` is not that page.
    pub fn cut(&mut self, rows: u64, filled: Option<Page>, before: u64) -> Result<(), FormatError> {
        let wrong = FormatError::Number("number of rows");
        let page = rows.checked_sub(1).ok_or(wrong.clone())? / PAGE_ROWS;
        let number = usize::try_from(page)?;
        if rows > self.outline.rows {
            return Err(wrong);
        }
        if number < self.outline.pages.len() {
            let filled = filled.ok_or(wrong)?;
            if Some(&PageHash::of(&filled.encode())) != self.outline.pages.get(number) {
                return Err(FormatError::Checksum("page"));
            }
            self.page = filled;
            self.outline.pages.truncate(number);
        }
        let kept = usize::try_from(rows - page * PAGE_ROWS)?;
        self.page.entries.truncate(kept);
        self.outline.rows = rows;
        self.outline.block_bytes = before.saturating_add(self.page.block_bytes());
        Ok(())
    }

    /// Ends the table. Returns the bytes of the last page if it has entries, and the outline.
    pub fn finish(mut self) -> (Option<Vec<u8>>, Outline) {
        let last = (!self.page.entries.is_empty()).then(|| self.close_page());
        (last, self.outline)
    }

    fn close_page(&mut self) -> Vec<u8> {
        let bytes = self.page.encode();
        self.outline.pages.push(PageHash::of(&bytes));
        self.page.entries.clear();
        bytes
    }
}

/// The end of a shard file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footer {
    /// Counts and page hashes.
    pub outline: Outline,
    /// Where in the file the blocks of each page begin.
    pub groups: Vec<u64>,
    /// The root, as it was computed when the shard was written.
    pub root: ShardRoot,
}

impl Footer {
    /// The footer as it is at the end of the file.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.groups.len() * FOOTER_ENTRY_BYTES + TAIL_BYTES);
        for (offset, page) in self.groups.iter().zip(&self.outline.pages) {
            bytes.extend_from_slice(&offset.to_le_bytes());
            bytes.extend_from_slice(&page.0);
        }
        let pages = u32::try_from(self.outline.pages.len()).unwrap_or(u32::MAX);
        bytes.extend_from_slice(&self.outline.rows.to_le_bytes());
        bytes.extend_from_slice(&self.outline.block_bytes.to_le_bytes());
        bytes.extend_from_slice(&pages.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.root.0);
        let check = blake3::hash(&bytes);
        bytes.extend_from_slice(&check.as_bytes()[..8]);
        bytes.extend_from_slice(FOOTER_MAGIC);
        bytes
    }

    /// The length of the whole footer whose last bytes are `tail`.
    ///
    /// # Errors
    /// When `tail` is not the end of a whole shard.
    pub fn len_from_tail(tail: &[u8; TAIL_BYTES]) -> Result<usize, FormatError> {
        let mut fields = Fields(tail);
        let rows = u64::from_le_bytes(fields.take()?);
        let _block_bytes: [u8; 8] = fields.take()?;
        let pages = u32::from_le_bytes(fields.take()?);
        if tail[TAIL_BYTES - 8..] != *FOOTER_MAGIC {
            return Err(FormatError::Magic("footer"));
        }
        if page_count(rows) != u64::from(pages) || u64::from(pages) > PAGES_MAX {
            return Err(FormatError::Number("number of pages"));
        }
        Ok(usize::try_from(pages)? * FOOTER_ENTRY_BYTES + TAIL_BYTES)
    }

    /// Reads the footer of a file of `file_len` bytes whose header has `identity`.
    ///
    /// # Errors
    /// When the bytes are not the footer of this whole shard.
    pub fn parse(
        bytes: &[u8],
        file_len: u64,
        identity: &ShardIdentity,
    ) -> Result<Self, FormatError> {
        let short = |expected| FormatError::Length {
            part: "footer",
            actual: bytes.len(),
            expected,
        };
        let (entries, tail) = bytes.split_last_chunk().ok_or(short(TAIL_BYTES))?;
        let expected = Self::len_from_tail(tail)?;
        if bytes.len() != expected {
            return Err(short(expected));
        }
        let (checked, _) = bytes.split_last_chunk::<16>().ok_or(short(TAIL_BYTES))?;
        if blake3::hash(checked).as_bytes()[..8] != tail[TAIL_BYTES - 16..TAIL_BYTES - 8] {
            return Err(FormatError::Checksum("footer"));
        }
        let mut fields = Fields(tail);
        let rows = u64::from_le_bytes(fields.take()?);
        let block_bytes = u64::from_le_bytes(fields.take()?);
        let _pages_and_zero: [u8; 8] = fields.take()?;
        let root = ShardRoot(fields.take()?);
        let mut groups = Vec::new();
        let mut pages = Vec::new();
        for entry in entries.as_chunks::<FOOTER_ENTRY_BYTES>().0 {
            let mut fields = Fields(entry);
            groups.push(u64::from_le_bytes(fields.take()?));
            pages.push(PageHash(fields.take()?));
        }
        let outline = Outline {
            rows,
            block_bytes,
            pages,
        };
        outline.verify(identity, root)?;
        let footer = Self {
            outline,
            groups,
            root,
        };
        footer.check_places(file_len, bytes.len())?;
        Ok(footer)
    }

    /// Where in the file page number `page` begins. A page ends where the next group or the footer begins.
    pub fn page_offset(&self, page: u64, file_len: u64, footer_len: usize) -> Option<u64> {
        let next = usize::try_from(page).ok()?.checked_add(1)?;
        let end = match self.groups.get(next) {
            Some(offset) => *offset,
            None if next == self.groups.len() => file_len.checked_sub(footer_len as u64)?,
            None => return None,
        };
        end.checked_sub(page_rows(self.outline.rows, page) * ENTRY_BYTES as u64)
    }

    /// Length of the encoded footer.
    pub fn encoded_len(&self) -> usize {
        self.groups.len() * FOOTER_ENTRY_BYTES + TAIL_BYTES
    }

    /// Checks that the first group begins after the header, that each group has room for its blocks and
    /// its page, that the last group ends where the footer begins, and that all blocks and pages together
    /// have as many bytes as there are between header and footer.
    fn check_places(&self, file_len: u64, footer_len: usize) -> Result<(), FormatError> {
        let wrong = FormatError::Number("place of a group");
        let header = HEADER_BYTES as u64;
        let footer = file_len
            .checked_sub(footer_len as u64)
            .ok_or(wrong.clone())?;
        let table = self.outline.rows.saturating_mul(ENTRY_BYTES as u64);
        let content = self.outline.block_bytes.checked_add(table);
        if content.is_none() || footer.checked_sub(header) != content {
            return Err(wrong);
        }
        let begins = self.groups.iter().copied().chain([footer]);
        if begins.clone().next() != Some(header) {
            return Err(wrong);
        }
        for (page, (begin, end)) in (0..).zip(begins.clone().zip(begins.skip(1))) {
            let rows = page_rows(self.outline.rows, page);
            // Every block has at least one byte.
            if end.checked_sub(begin) < Some(rows * (ENTRY_BYTES as u64 + 1)) {
                return Err(wrong);
            }
        }
        Ok(())
    }
}

/// Reads fields of fixed length one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let (field, rest) = self.0.split_first_chunk().ok_or(FormatError::Length {
            part: "field",
            actual: self.0.len(),
            expected: N,
        })?;
        self.0 = rest;
        Ok(*field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> ShardIdentity {
        let redundancy = Redundancy::DEFAULT;
        ShardIdentity {
            checkpoint: CheckpointId(*b"0123456789abcdef"),
            redundancy,
            shard: redundancy.shard(4).unwrap(),
        }
    }

    fn header() -> Header {
        Header {
            identity: identity(),
            owner: OwnerId([2; 32]),
            job_tag: JobTag([3; 32]),
            version: Version::new(4).unwrap(),
            created: 1_700_000_000,
        }
    }

    fn block(row: u64) -> Vec<u8> {
        row.to_le_bytes()[..1 + (row % 5) as usize].to_vec()
    }

    /// The file of a shard of `rows` blocks, written as the daemon does, and its footer.
    fn shard(rows: u64) -> (Vec<u8>, Footer) {
        let mut file = header().encode().to_vec();
        let mut table = TableBuilder::default();
        let mut groups = Vec::new();
        for row in 0..rows {
            if row % PAGE_ROWS == 0 {
                groups.push(file.len() as u64);
            }
            file.extend(block(row));
            file.extend(table.push(BlockEntry::of(&block(row))).unwrap_or_default());
        }
        assert_eq!(table.rows(), rows);
        let (last, outline) = table.finish();
        file.extend(last.unwrap_or_default());
        let root = outline.root(&identity());
        let footer = Footer {
            outline,
            groups,
            root,
        };
        file.extend(footer.encode());
        (file, footer)
    }

    fn parse_footer(file: &[u8]) -> Result<Footer, FormatError> {
        let tail = file.last_chunk().ok_or(FormatError::Magic("file"))?;
        let len = Footer::len_from_tail(tail)?;
        let at = file
            .len()
            .checked_sub(len)
            .ok_or(FormatError::Magic("file"))?;
        Footer::parse(&file[at..], file.len() as u64, &identity())
    }

    fn parse_header(file: &[u8]) -> Result<Header, FormatError> {
        Header::parse(file.first_chunk().unwrap())
    }

    #[test]
    fn shards_of_any_number_of_pages_come_back() {
        for rows in [0, 1, 2, 1023, 1024, 1025, 2048, 3000] {
            let (file, written) = shard(rows);
            assert_eq!(parse_header(&file), Ok(header()));
            let footer = parse_footer(&file).unwrap();
            assert_eq!(footer, written, "{rows}");
            assert_eq!(footer.encoded_len(), footer.encode().len());
            let mut row = 0;
            for (page, hash) in (0..).zip(&footer.outline.pages) {
                let page_rows = page_rows(rows, page);
                let mut at = footer.groups[page as usize] as usize;
                let table = footer
                    .page_offset(page, file.len() as u64, footer.encoded_len())
                    .unwrap() as usize;
                let bytes = &file[table..][..page_rows as usize * ENTRY_BYTES];
                let parsed = Page::parse(bytes, page_rows, *hash).unwrap();
                assert_eq!(parsed.encode(), bytes);
                for entry in parsed.entries() {
                    let bytes = &file[at..][..entry.len as usize];
                    assert!(entry.matches(bytes) && bytes == block(row));
                    assert!(!entry.matches(&bytes[1..]));
                    (row, at) = (row + 1, at + bytes.len());
                }
                assert_eq!(at, table, "blocks are followed by their page");
            }
            assert_eq!(row, rows);
            assert_eq!(footer.page_offset(page_count(rows), 1 << 40, 72), None);
        }
    }

    #[test]
    fn every_flipped_byte_of_a_header_is_refused() {
        let whole = header().encode();
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole;
                bytes[at] ^= 1 << bit;
                assert!(Header::parse(&bytes).is_err(), "{at} {bit}");
            }
        }
    }

    #[test]
    fn every_flipped_byte_of_a_footer_is_refused() {
        let (file, footer) = shard(2049);
        let start = file.len() - footer.encoded_len();
        for at in start..file.len() {
            for change in [1, 0x80, 0xFF] {
                let mut file = file.clone();
                file[at] ^= change;
                assert!(parse_footer(&file).is_err(), "{}", at - start);
            }
        }
    }

    #[test]
    fn a_shard_cut_anywhere_or_grown_is_refused() {
        let (file, _) = shard(30);
        for len in 0..file.len() {
            assert!(parse_footer(&file[..len]).is_err(), "{len}");
            assert!(parse_footer(&file[file.len() - len..]).is_err(), "{len}");
        }
        let mut longer = file.clone();
        longer.insert(HEADER_BYTES, 0);
        assert_eq!(
            parse_footer(&longer),
            Err(FormatError::Number("place of a group"))
        );
    }

    #[test]
    fn every_flipped_byte_of_a_page_is_refused() {
        let mut table = TableBuilder::default();
        for row in 0..20 {
            table.push(BlockEntry::of(&block(row)));
        }
        let (bytes, outline) = table.finish();
        let bytes = bytes.unwrap();
        let hash = outline.pages[0];
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let refused = Page::parse(&changed, 20, hash);
            assert_eq!(refused, Err(FormatError::Checksum("page")));
            assert!(Page::parse(&bytes[..at], 20, hash).is_err());
        }
        assert!(Page::parse(&bytes, 21, hash).is_err());
        assert!(Page::parse(&bytes, u64::MAX, hash).is_err());
    }

    #[test]
    fn blocks_of_impossible_length_are_refused() {
        for len in [0, BLOCK_BYTES_MAX as u32 + 1, u32::MAX] {
            let entry = BlockEntry {
                len,
                hash: BlockHash([1; 32]),
            };
            let page = Page {
                entries: vec![entry],
            };
            let bytes = page.encode();
            let refused = Page::parse(&bytes, 1, PageHash::of(&bytes));
            assert_eq!(refused, Err(FormatError::Number("block length")));
        }
    }

    /// Whether a footer with these changes is refused, although all of its hashes are right.
    fn refused_numbers(file_len: u64, change: impl Fn(&mut Footer)) -> bool {
        let (_, mut footer) = shard(2049);
        change(&mut footer);
        footer.root = footer.outline.root(&identity());
        let bytes = footer.encode();
        let parsed = Footer::parse(&bytes, file_len, &identity());
        matches!(parsed, Err(FormatError::Number(_)))
    }

    #[test]
    fn footers_that_contradict_themselves_are_refused() {
        let len = shard(2049).0.len() as u64;
        assert!(!refused_numbers(len, |_| ()));
        assert!(refused_numbers(len + 1, |_| ()));
        assert!(refused_numbers(0, |_| ()));
        for group in 0..3 {
            for to in [0, 127, 129, len, u64::MAX] {
                assert!(refused_numbers(len, |footer| footer.groups[group] = to));
            }
        }
        assert!(refused_numbers(len, |footer| footer.groups[1] += 20_000));
        assert!(refused_numbers(len, |footer| footer.groups.swap(1, 2)));
        for rows in [0, 2048, 2050, 3072, 3073, u64::MAX] {
            assert!(refused_numbers(len, |footer| footer.outline.rows = rows));
        }
        for bytes in [0, u64::MAX, u64::MAX - 2049 * 36 - 300] {
            let change = |footer: &mut Footer| footer.outline.block_bytes = bytes;
            assert!(refused_numbers(len, change));
        }
    }

    #[test]
    fn a_footer_belongs_to_one_shard() {
        let (file, footer) = shard(3);
        let other = ShardIdentity {
            shard: Redundancy::DEFAULT.shard(3).unwrap(),
            ..identity()
        };
        let bytes = footer.encode();
        assert_eq!(
            Footer::parse(&bytes, file.len() as u64, &other),
            Err(FormatError::Checksum("outline"))
        );
        assert!(footer.outline.verify(&identity(), footer.root).is_ok());
        assert!(footer.outline.verify(&other, footer.root).is_err());
    }

    #[test]
    fn a_tail_cannot_claim_more_pages_than_a_shard_has() {
        let mut tail = [0; TAIL_BYTES];
        tail[TAIL_BYTES - 8..].copy_from_slice(FOOTER_MAGIC);
        let pages = PAGES_MAX + 1;
        tail[..8].copy_from_slice(&(pages * PAGE_ROWS).to_le_bytes());
        tail[16..20].copy_from_slice(&(pages as u32).to_le_bytes());
        let refused = Footer::len_from_tail(&tail);
        assert_eq!(refused, Err(FormatError::Number("number of pages")));
    }

    #[test]
    fn a_format_of_the_future_is_named() {
        let mut bytes = header().encode();
        bytes[8] = 2;
        let check = blake3::hash(&bytes[..112]);
        bytes[112..].copy_from_slice(&check.as_bytes()[..16]);
        assert_eq!(Header::parse(&bytes), Err(FormatError::Format(2)));
    }
}
