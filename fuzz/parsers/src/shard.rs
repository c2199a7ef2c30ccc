//! Parsers of the parts of a shard file, and of proofs. Checksums in the input are corrected first; otherwise
//! no mutation would get beyond their check.

use codec::geometry::page_rows;
use codec::proof::{PROOF_BYTES_MAX, ShardProof, Spot};
use codec::serial;
use codec::shard_file::{
    BlockEntry, ENTRY_BYTES, Footer, HEADER_BYTES, Header, Outline, Page, ShardIdentity,
    TAIL_BYTES, TableBuilder,
};
use codec::{CheckpointId, PageHash, Redundancy};

/// Bytes of one page's entry in a footer.
const FOOTER_ENTRY_BYTES: usize = 40;

fn hash(bytes: &[u8]) -> [u8; 32] {
    PageHash::of(bytes).0
}

pub(crate) fn header(input: &[u8]) -> bool {
    let Some(bytes) = input.first_chunk::<HEADER_BYTES>() else {
        return false;
    };
    let mut right = *bytes;
    let check = hash(&bytes[..112]);
    right[112..].copy_from_slice(&check[..16]);
    let mut accepted = false;
    for bytes in [*bytes, right] {
        if let Ok(header) = Header::parse(&bytes) {
            let identity = header.identity;
            assert!(identity.shard.at() < identity.redundancy.total());
            assert_eq!(Header::parse(&header.encode()), Ok(header));
            accepted = true;
        }
    }
    accepted
}

/// Takes the input for a page, whose hash and length are also given wrongly.
pub(crate) fn page(input: &[u8]) -> bool {
    let rows = (input.len() / ENTRY_BYTES) as u64;
    assert!(Page::parse(input, rows, PageHash([0; 32])).is_err());
    assert!(Page::parse(input, rows + 1, PageHash::of(input)).is_err());
    let Ok(page) = Page::parse(input, rows, PageHash::of(input)) else {
        return false;
    };
    assert_eq!(page.encode(), input);
    assert_eq!(page.entries().len() as u64, rows);
    assert!(page.entries().iter().all(|entry| entry.len > 0));
    assert!(page.block_bytes() >= rows);
    true
}

/// Rows of the shard to which the proofs in `seeds` belong.
const PROVED_ROWS: u64 = 3;

fn proved_block(row: u64) -> Vec<u8> {
    (0..1500 + row * 1000)
        .map(|at| (at * 7 + row) as u8)
        .collect()
}

/// Takes the first bytes for a row and a draw, and the others for a proof. An accepted proof has to give the
/// chunk that the shard has there.
pub(crate) fn proof(input: &[u8]) -> bool {
    let Some((row, rest)) = input.split_first_chunk() else {
        return false;
    };
    let Some((draw, bytes)) = rest.split_first_chunk() else {
        return false;
    };
    let spot = Spot {
        row: u64::from_le_bytes(*row),
        draw: u32::from_le_bytes(*draw),
    };
    let Ok(proof) = serial::decode::<ShardProof>(bytes, PROOF_BYTES_MAX) else {
        return false;
    };
    let redundancy = Redundancy::DEFAULT;
    let Some(shard) = redundancy.shard(0) else {
        return false;
    };
    let identity = ShardIdentity {
        checkpoint: CheckpointId([1; 16]),
        redundancy,
        shard,
    };
    let mut table = TableBuilder::default();
    for row in 0..PROVED_ROWS {
        table.push(BlockEntry::of(&proved_block(row)));
    }
    let (page, outline) = table.finish();
    let root = outline.root(&identity);
    let Ok(chunk) = proof.check(root, PROVED_ROWS, spot) else {
        return false;
    };
    let block = proved_block(spot.row);
    let page = page.unwrap_or_default();
    let right = ShardProof::of(&identity, &outline, &page, &block, spot);
    assert_eq!(right, Some(proof), "there is one proof for each spot");
    assert!(block.windows(chunk.len()).any(|part| part == chunk));
    true
}

/// Takes the first 8 bytes for the length of the file, and the others for its footer.
pub(crate) fn footer(input: &[u8]) -> bool {
    let Some((len, bytes)) = input.split_first_chunk() else {
        return false;
    };
    let file_len = u64::from_le_bytes(*len);
    let redundancy = Redundancy::DEFAULT;
    let Some(shard) = redundancy.shard(0) else {
        return false;
    };
    let identity = ShardIdentity {
        checkpoint: CheckpointId([1; 16]),
        redundancy,
        shard,
    };
    let right = with_right_hashes(bytes, &identity);
    let accepted = right.is_some_and(|right| check_footer(&right, file_len, &identity));
    check_footer(bytes, file_len, &identity) || accepted
}

fn check_footer(bytes: &[u8], file_len: u64, identity: &ShardIdentity) -> bool {
    let Ok(footer) = Footer::parse(bytes, file_len, identity) else {
        return false;
    };
    assert_eq!(footer.encoded_len(), bytes.len());
    assert!(footer.outline.verify(identity, footer.root).is_ok());
    let mut end = HEADER_BYTES as u64;
    for (page, &group) in (0..).zip(&footer.groups) {
        assert_eq!(group, end, "groups follow each other");
        let Some(table) = footer.page_offset(page, file_len, bytes.len()) else {
            panic!("page {page} has no place")
        };
        assert!(table > group, "blocks come before their page");
        end = table + page_rows(footer.outline.rows, page) * ENTRY_BYTES as u64;
    }
    assert_eq!(end + bytes.len() as u64, file_len);
    true
}

/// A footer with root and checksum corrected for its other fields.
fn with_right_hashes(bytes: &[u8], identity: &ShardIdentity) -> Option<Vec<u8>> {
    let (entries, tail) = bytes.split_last_chunk::<TAIL_BYTES>()?;
    let (rows, rest) = tail.split_first_chunk()?;
    let block_bytes = rest.first_chunk()?;
    let entries = entries.as_chunks::<FOOTER_ENTRY_BYTES>().0.iter();
    let outline = Outline {
        rows: u64::from_le_bytes(*rows),
        block_bytes: u64::from_le_bytes(*block_bytes),
        pages: entries
            .filter_map(|entry| entry.last_chunk())
            .map(|hash| PageHash(*hash))
            .collect(),
    };
    let mut bytes = bytes.to_vec();
    let root = bytes.len() - TAIL_BYTES + 24;
    bytes[root..root + 32].copy_from_slice(&outline.root(identity).0);
    let check = hash(&bytes[..root + 32]);
    bytes[root + 32..root + 40].copy_from_slice(&check[..8]);
    Some(bytes)
}
