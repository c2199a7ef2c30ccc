//! Reed-Solomon over GF(2^8): `data` blocks to `parity` more, and any `data` of them back.
//!
//! The only place where a library's word "shard" is translated to our "block".

use reed_solomon_erasure::galois_8::ReedSolomon;

use crate::geometry::{Redundancy, ShardIndex};

/// Blocks that cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    /// Fewer blocks than are needed.
    #[error("not enough blocks: {present} present < {data} data")]
    TooFew {
        /// Different blocks at hand.
        present: usize,
        /// Blocks needed.
        data: usize,
    },
    /// Blocks of different lengths, or none at all.
    #[error("blocks of different lengths")]
    Lengths,
    /// A block number beyond the redundancy.
    #[error("block {index} of {redundancy}")]
    Index {
        /// The number.
        index: u8,
        /// The redundancy.
        redundancy: Redundancy,
    },
}

/// Codes and decodes for one redundancy.
#[derive(Debug)]
pub struct Coder {
    redundancy: Redundancy,
    library: Option<ReedSolomon>,
}

impl Coder {
    /// A coder for `redundancy`.
    pub fn new(redundancy: Redundancy) -> Self {
        // The library refuses only counts that a redundancy cannot have, except no parity at all.
        let library = ReedSolomon::new(redundancy.data(), redundancy.parity()).ok();
        Self {
            redundancy,
            library,
        }
    }

    /// Computes the parity blocks of `blocks`, which holds `total` blocks of `block_len` bytes one
    /// after the other, data first.
    ///
    /// # Panics
    /// When `blocks` has another length, which is a mistake of the caller.
    pub fn encode(&self, blocks: &mut [u8], block_len: usize) {
        assert_eq!(blocks.len(), self.redundancy.total() * block_len);
        let Some(library) = &self.library else { return };
        let mut blocks: Vec<&mut [u8]> = blocks.chunks_exact_mut(block_len).collect();
        let encoded = library.encode(&mut blocks);
        debug_assert!(encoded.is_ok(), "lengths were checked");
    }

    /// Replaces `out` by the `data` data blocks, one after the other, from any `data` different
    /// blocks.
    ///
    /// # Errors
    /// When there are too few blocks, or of different lengths.
    pub fn decode_data(
        &self,
        blocks: &[(ShardIndex, &[u8])],
        out: &mut Vec<u8>,
    ) -> Result<(), CodeError> {
        let all = self.reconstruct(blocks)?;
        out.clear();
        for block in all.iter().take(self.redundancy.data()).flatten() {
            out.extend_from_slice(block);
        }
        Ok(())
    }

    /// Replaces `out` by the block `want`, from any `data` different blocks.
    ///
    /// # Errors
    /// When there are too few blocks, or of different lengths.
    pub fn rebuild(
        &self,
        blocks: &[(ShardIndex, &[u8])],
        want: ShardIndex,
        out: &mut Vec<u8>,
    ) -> Result<(), CodeError> {
        let all = self.reconstruct(blocks)?;
        out.clear();
        if let Some(Some(block)) = all.get(want.at()) {
            out.extend_from_slice(block);
        }
        Ok(())
    }

    fn reconstruct(
        &self,
        blocks: &[(ShardIndex, &[u8])],
    ) -> Result<Vec<Option<Vec<u8>>>, CodeError> {
        let (redundancy, data) = (self.redundancy, self.redundancy.data());
        let mut all: Vec<Option<Vec<u8>>> = vec![None; redundancy.total()];
        for (shard, block) in blocks {
            let index = shard.number();
            let place = all
                .get_mut(shard.at())
                .ok_or(CodeError::Index { index, redundancy })?;
            *place = Some(block.to_vec());
        }
        let present = all.iter().flatten().count();
        if present < data {
            return Err(CodeError::TooFew { present, data });
        }
        let len = blocks.first().map_or(0, |(_, block)| block.len());
        if len == 0 || blocks.iter().any(|(_, block)| block.len() != len) {
            return Err(CodeError::Lengths);
        }
        if let Some(library) = &self.library {
            library
                .reconstruct(&mut all)
                .map_err(|_| CodeError::TooFew { present, data })?;
        }
        Ok(all)
    }
}
