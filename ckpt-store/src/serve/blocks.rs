//! Parses the stream of a shard transfer: a length and a block for each row, and the end.

use protocol::wire::message::PutEnd;

use crate::shards::{Batch, StoreError};

/// Where in the stream the parser is.
#[derive(Debug)]
enum At {
    /// In the length of a block, of which this many bytes have been read.
    Length([u8; 4], usize),
    /// In a block, of which this many bytes are missing.
    Block(usize),
    /// In the end of the transfer, of which this many bytes have been read.
    End([u8; PutEnd::BYTES], usize),
    /// After the end of the transfer.
    Done(PutEnd),
}

/// Parses the stream of a shard transfer, however it is cut into chunks.
#[derive(Debug)]
pub(super) struct BlockParser(At);

/// How far [`BlockParser::feed`] has come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// All bytes are used up, and the transfer goes on.
    More,
    /// The batch is full and ends with a whole block. There may be bytes left.
    Full,
    /// The transfer ended with these counts.
    End(PutEnd),
}

impl BlockParser {
    pub(super) const fn new() -> Self {
        Self(At::Length([0; 4], 0))
    }

    /// Takes bytes from the front of `bytes` and adds blocks to `batch`.
    pub(super) fn feed(
        &mut self,
        bytes: &mut &[u8],
        batch: &mut Batch,
    ) -> Result<Parsed, StoreError> {
        loop {
            if let At::Done(end) = self.0 {
                return match bytes {
                    [] => Ok(Parsed::End(end)),
                    _ => Err(StoreError::BadRequest("bytes after the end")),
                };
            }
            if bytes.is_empty() {
                return Ok(Parsed::More);
            }
            match &mut self.0 {
                At::Length(field, known) => {
                    take(bytes, field, known);
                    if *known == field.len() {
                        self.0 = after_length(*field, batch)?;
                    }
                }
                At::Block(missing) => {
                    let (now, later) = bytes.split_at(bytes.len().min(*missing));
                    batch.extend(now);
                    *bytes = later;
                    *missing -= now.len();
                    if *missing == 0 {
                        self.0 = At::Length([0; 4], 0);
                        if batch.is_full() {
                            return Ok(Parsed::Full);
                        }
                    }
                }
                At::End(field, known) => {
                    take(bytes, field, known);
                    if *known == field.len() {
                        self.0 = At::Done(PutEnd::decode(field));
                    }
                }
                At::Done(_) => {}
            }
        }
    }
}

fn after_length(field: [u8; 4], batch: &mut Batch) -> Result<At, StoreError> {
    match u32::from_le_bytes(field) {
        0 => Ok(At::End([0; PutEnd::BYTES], 0)),
        len => {
            batch.begin_block(len as usize)?;
            Ok(At::Block(len as usize))
        }
    }
}

/// Fills `field`, of which `known` bytes have been read, from the front of `bytes`.
fn take(bytes: &mut &[u8], field: &mut [u8], known: &mut usize) {
    let (now, later) = bytes.split_at(bytes.len().min(field.len() - *known));
    field[*known..*known + now.len()].copy_from_slice(now);
    *known += now.len();
    *bytes = later;
}

#[cfg(test)]
mod tests {
    use codec::ShardRoot;
    use codec::geometry::BLOCK_BYTES_MAX;
    use proptest::prelude::*;

    use super::*;

    fn stream(blocks: &[Vec<u8>], end: &PutEnd) -> Vec<u8> {
        let mut bytes = Vec::new();
        for block in blocks {
            bytes.extend_from_slice(&(block.len() as u32).to_le_bytes());
            bytes.extend_from_slice(block);
        }
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&end.encode());
        bytes
    }

    fn end(rows: usize) -> PutEnd {
        PutEnd {
            rows: rows as u64,
            root: ShardRoot([7; 32]),
        }
    }

    proptest! {
        #[test]
        fn blocks_come_out_however_the_stream_is_cut(
            blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..3000), 0..20),
            piece in 1..500_usize,
        ) {
            let end = end(blocks.len());
            let bytes = stream(&blocks, &end);
            let mut parser = BlockParser::new();
            let mut batch = Batch::default();
            let mut parsed = Parsed::More;
            for mut piece in bytes.chunks(piece) {
                parsed = parser.feed(&mut piece, &mut batch).unwrap();
                prop_assert!(piece.is_empty());
            }
            prop_assert_eq!(parsed, Parsed::End(end));
            let actual: Vec<&[u8]> = batch.blocks().collect();
            prop_assert_eq!(actual, blocks);
        }

        #[test]
        fn garbage_is_an_error_or_waits_for_more(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
            let mut parser = BlockParser::new();
            let mut batch = Batch::default();
            let mut rest = bytes.as_slice();
            while let Ok(Parsed::Full) = parser.feed(&mut rest, &mut batch) {
                batch.clear();
            }
        }
    }

    #[test]
    fn impossible_lengths_and_trailing_bytes_are_refused() {
        for (bytes, ok) in [
            ((BLOCK_BYTES_MAX as u32).to_le_bytes().to_vec(), true),
            ((BLOCK_BYTES_MAX as u32 + 1).to_le_bytes().to_vec(), false),
            (u32::MAX.to_le_bytes().to_vec(), false),
            ([stream(&[], &end(0)), vec![1]].concat(), false),
        ] {
            let mut batch = Batch::default();
            let parsed = BlockParser::new().feed(&mut bytes.as_slice(), &mut batch);
            assert_eq!(parsed.is_ok(), ok, "{bytes:?}");
        }
    }

    #[test]
    fn a_full_batch_is_handed_over_between_blocks() {
        let block = vec![1; Batch::WORTH_BYTES / 2];
        let bytes = stream(&[block.clone(), block.clone(), block], &end(3));
        let mut parser = BlockParser::new();
        let mut batch = Batch::default();
        let mut rest = bytes.as_slice();
        assert_eq!(parser.feed(&mut rest, &mut batch).unwrap(), Parsed::Full);
        assert_eq!(batch.blocks().count(), 2);
        batch.clear();
        let parsed = parser.feed(&mut rest, &mut batch).unwrap();
        assert_eq!(parsed, Parsed::End(end(3)));
        assert_eq!(batch.blocks().count(), 1);
    }
}
