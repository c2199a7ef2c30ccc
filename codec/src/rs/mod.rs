//! Reed-Solomon over GF(2^8): makes `parity` blocks of `data` blocks, and the data blocks of any `data` of
//! all these.
//!
//! Every block is a linear combination of any `data` others. The library `reed_solomon_erasure` defines the
//! factors: they are found by letting it code unit vectors, so there is no matrix arithmetic here. The
//! combinations are computed by a [`Kernel`], which is faster and gives the same bytes as the library.
//!
//! What the library calls a shard is a block in this crate.

mod kernel;
mod multiply;
mod simd;
mod tables;

use std::array;

use reed_solomon_erasure::galois_8::ReedSolomon;

use crate::geometry::{DATA_MAX, PARITY_MAX, Redundancy, ShardIndex};

pub use kernel::Kernel;

/// Why blocks can't be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    /// There are fewer blocks than are needed.
    #[error("not enough blocks: {present} present < {data} data")]
    TooFew {
        /// Number of different blocks that were given.
        present: usize,
        /// Number of blocks that are needed.
        data: usize,
    },
    /// The blocks have different lengths, or are empty.
    #[error("blocks of different lengths")]
    Lengths,
    /// The redundancy has no block of this number.
    #[error("there is no block {index} in {redundancy}")]
    Index {
        /// The number that was given.
        index: u8,
        /// The code that has no such block.
        redundancy: Redundancy,
    },
}

const TOTAL_MAX: usize = DATA_MAX as usize + PARITY_MAX as usize;

/// Inverted matrices that a coder keeps. A restore decodes from the same blocks of each row as long as it
/// reads from the same hosts; requests that are hedged add a few more sets of blocks.
const INVERSES_MAX: usize = 8;

/// Codes and decodes for one redundancy. Each thread has one, since it keeps inverted matrices.
#[derive(Debug)]
pub struct Coder {
    redundancy: Redundancy,
    kernel: Kernel,
    /// `None` if there is no parity.
    library: Option<ReedSolomon>,
    /// Rows of `data` factors, one for each parity block.
    parity_factors: Vec<u8>,
    /// The one that was used last comes first.
    inverses: Vec<Inverse>,
}

/// The factors by which all other blocks follow from one set of `data` blocks, the **sources**.
#[derive(Debug)]
struct Inverse {
    sources: BlockSet,
    /// Rows of `data` factors, one row for each block that is no source, in the order of blocks.
    factors: Vec<u8>,
}

/// A set of block numbers, one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BlockSet(u64);

const _: () = assert!(TOTAL_MAX <= u64::BITS as usize);

/// Blocks that were checked: there are enough, all of one length. The first `data` of them are the sources.
struct Given<'a> {
    len: usize,
    present: [Option<&'a [u8]>; TOTAL_MAX],
    sources: BlockSet,
}

impl Coder {
    /// A coder for `redundancy` that uses the fastest kernel of this CPU.
    pub fn new(redundancy: Redundancy) -> Self {
        Self::with_kernel(redundancy, Kernel::best())
    }

    /// A coder for `redundancy` that uses `kernel`.
    pub fn with_kernel(redundancy: Redundancy, kernel: Kernel) -> Self {
        // Of all counts that a redundancy can have, the library refuses only those without parity.
        let library = ReedSolomon::new(redundancy.data(), redundancy.parity()).ok();
        let sources = BlockSet::first(redundancy.data());
        let parity_factors = factors_of_others(library.as_ref(), redundancy, sources);
        Self {
            redundancy,
            kernel,
            library,
            parity_factors,
            inverses: Vec::with_capacity(INVERSES_MAX),
        }
    }

    /// Computes the parity blocks of `blocks`, which holds `total` blocks of `block_len` bytes one
    /// after the other, data first.
    ///
    /// # Panics
    /// When `blocks` has another length, which is a mistake of the caller.
    pub fn encode(&self, blocks: &mut [u8], block_len: usize) {
        assert_eq!(blocks.len(), self.redundancy.total() * block_len);
        let data = self.redundancy.data();
        let parity = self.redundancy.parity();
        let (inputs, outputs) = blocks.split_at_mut(data * block_len);
        let mut inputs = inputs.chunks_exact(block_len.max(1));
        let inputs: [&[u8]; DATA_MAX as usize] =
            array::from_fn(|_| inputs.next().unwrap_or_default());
        let mut outputs = outputs.chunks_exact_mut(block_len.max(1));
        let mut outputs: [&mut [u8]; PARITY_MAX as usize] =
            array::from_fn(|_| outputs.next().unwrap_or_default());
        let outputs = &mut outputs[..parity];
        self.kernel
            .multiply(&self.parity_factors, &inputs[..data], outputs);
    }

    /// Replaces `out` by all data blocks, one after the other, from any `data` different blocks. Data blocks
    /// that were given are copied; only the missing ones are computed.
    ///
    /// # Errors
    /// When there are too few blocks, or they have different lengths.
    pub fn decode_data(
        &mut self,
        blocks: &[(ShardIndex, &[u8])],
        out: &mut Vec<u8>,
    ) -> Result<(), CodeError> {
        let given = Given::check(blocks, self.redundancy)?;
        let data = self.redundancy.data();
        // Old bytes in `out` are not zeroed: every byte is overwritten.
        out.resize(data * given.len, 0);
        let mut missing: [&mut [u8]; DATA_MAX as usize] = array::from_fn(|_| [].as_mut_slice());
        let mut missing_count = 0;
        for (place, block) in out.chunks_exact_mut(given.len).zip(given.present) {
            if let Some(block) = block {
                place.copy_from_slice(block);
            } else {
                missing[missing_count] = place;
                missing_count += 1;
            }
        }
        if missing_count > 0 {
            // Data blocks come first in the order of blocks, so the missing ones have the first rows.
            let kernel = self.kernel;
            let factors = &self.inverse(given.sources)[..missing_count * data];
            let inputs = given.inputs();
            kernel.multiply(factors, &inputs[..data], &mut missing[..missing_count]);
        }
        Ok(())
    }

    /// Replaces `out` by the block `want`, from any `data` different blocks.
    ///
    /// # Errors
    /// When there are too few blocks, they have different lengths, or there is no block `want`.
    pub fn rebuild(
        &mut self,
        blocks: &[(ShardIndex, &[u8])],
        want: ShardIndex,
        out: &mut Vec<u8>,
    ) -> Result<(), CodeError> {
        let redundancy = self.redundancy;
        let data = self.redundancy.data();
        let given = Given::check(blocks, redundancy)?;
        if want.at() >= redundancy.total() {
            let index = want.number();
            return Err(CodeError::Index { index, redundancy });
        }
        out.resize(given.len, 0);
        if let Some(block) = given.present[want.at()] {
            out.copy_from_slice(block);
            return Ok(());
        }
        let row = want.at() - given.sources.count_below(want.at());
        let kernel = self.kernel;
        let factors = &self.inverse(given.sources)[row * data..][..data];
        kernel.multiply(factors, &given.inputs()[..data], &mut [out]);
        Ok(())
    }

    /// The factors of all blocks but `sources`, computed unless they are kept from an earlier call.
    fn inverse(&mut self, sources: BlockSet) -> &[u8] {
        match self
            .inverses
            .iter()
            .position(|inverse| inverse.sources == sources)
        {
            Some(place) => self.inverses[..=place].rotate_right(1),
            None => {
                let factors = factors_of_others(self.library.as_ref(), self.redundancy, sources);
                self.inverses.truncate(INVERSES_MAX - 1);
                self.inverses.insert(0, Inverse { sources, factors });
            }
        }
        &self.inverses[0].factors
    }
}

/// The factors by which every other block follows from the `data` blocks in `sources`: a row for each. If
/// source number `i` is the `i`-th unit vector, the blocks that the library reconstructs are these rows.
fn factors_of_others(
    library: Option<&ReedSolomon>,
    redundancy: Redundancy,
    sources: BlockSet,
) -> Vec<u8> {
    let Some(library) = library else {
        return Vec::new();
    };
    let data = redundancy.data();
    let mut unit_vectors = (0..data).map(|place| {
        let mut vector = vec![0; data];
        vector[place] = 1;
        vector
    });
    let mut blocks: Vec<Option<Vec<u8>>> = (0..redundancy.total())
        .map(|block| {
            sources
                .contains(block)
                .then(|| unit_vectors.next())
                .flatten()
        })
        .collect();
    let reconstructed = library.reconstruct(&mut blocks);
    assert!(
        reconstructed.is_ok(),
        "any {data} different blocks are enough"
    );
    (0..redundancy.total())
        .filter(|&block| !sources.contains(block))
        .filter_map(|block| blocks[block].take())
        .flatten()
        .collect()
}

impl<'a> Given<'a> {
    fn check(blocks: &[(ShardIndex, &'a [u8])], redundancy: Redundancy) -> Result<Self, CodeError> {
        let data = redundancy.data();
        let mut present = [None; TOTAL_MAX];
        for (shard, block) in blocks {
            let index = shard.number();
            let place = present
                .get_mut(..redundancy.total())
                .and_then(|present| present.get_mut(shard.at()))
                .ok_or(CodeError::Index { index, redundancy })?;
            *place = Some(*block);
        }
        let count = present.iter().flatten().count();
        if count < data {
            return Err(CodeError::TooFew {
                present: count,
                data,
            });
        }
        let len = blocks.first().map_or(0, |(_, block)| block.len());
        if len == 0 || blocks.iter().any(|(_, block)| block.len() != len) {
            return Err(CodeError::Lengths);
        }
        let at_hand = (0..TOTAL_MAX).filter(|&block| present[block].is_some());
        Ok(Self {
            len,
            present,
            sources: at_hand.take(data).collect(),
        })
    }

    /// The sources in the order of blocks; the rest of the array is empty.
    fn inputs(&self) -> [&'a [u8]; DATA_MAX as usize] {
        let mut sources = (0..TOTAL_MAX).filter(|&block| self.sources.contains(block));
        array::from_fn(|_| {
            let source = sources.next().and_then(|block| self.present[block]);
            source.unwrap_or_default()
        })
    }
}

impl BlockSet {
    fn first(count: usize) -> Self {
        (0..count).collect()
    }

    const fn contains(self, block: usize) -> bool {
        self.0 >> block & 1 == 1
    }

    const fn count_below(self, block: usize) -> usize {
        (self.0 & ((1 << block) - 1)).count_ones() as usize
    }
}

impl FromIterator<usize> for BlockSet {
    fn from_iter<T: IntoIterator<Item = usize>>(blocks: T) -> Self {
        Self(blocks.into_iter().fold(0, |set, block| set | 1 << block))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::subsequence;

    use super::*;

    fn noise(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        bytes
    }

    /// Data and parity blocks as the library alone makes them.
    fn by_library(redundancy: Redundancy, data: &[u8], block_len: usize) -> Vec<u8> {
        let mut all = data.to_vec();
        all.resize(redundancy.total() * block_len, 0);
        if let Ok(library) = ReedSolomon::new(redundancy.data(), redundancy.parity()) {
            let mut blocks: Vec<&mut [u8]> = all.chunks_exact_mut(block_len).collect();
            library.encode(&mut blocks).unwrap();
        }
        all
    }

    fn chosen<'a>(
        redundancy: Redundancy,
        all: &'a [u8],
        block_len: usize,
        keep: &[usize],
    ) -> Vec<(ShardIndex, &'a [u8])> {
        let block = |&at: &usize| &all[at * block_len..][..block_len];
        keep.iter()
            .map(|at| (redundancy.shard(*at as u8).unwrap(), block(at)))
            .collect()
    }

    fn check(redundancy: Redundancy, block_len: usize, keep: &[usize]) {
        let data = noise(redundancy.data() * block_len);
        let expected = by_library(redundancy, &data, block_len);
        let given = chosen(redundancy, &expected, block_len, keep);
        for kernel in Kernel::all() {
            let mut coder = Coder::with_kernel(redundancy, kernel);
            let mut all = data.clone();
            all.resize(expected.len(), 0xEE);
            coder.encode(&mut all, block_len);
            assert_eq!(all, expected, "{kernel:?} {redundancy} {block_len}");

            let mut out = vec![0xEE; 7];
            coder.decode_data(&given, &mut out).unwrap();
            assert_eq!(out, data, "{kernel:?} {redundancy} {block_len} {keep:?}");
            for (want, block) in redundancy.shards().zip(expected.chunks_exact(block_len)) {
                coder.rebuild(&given, want, &mut out).unwrap();
                assert_eq!(out, block, "{kernel:?} {redundancy} {keep:?} {want}");
            }
        }
    }

    fn redundancies_and_kept() -> impl Strategy<Value = (Redundancy, Vec<usize>)> {
        (1..=DATA_MAX, 0..=PARITY_MAX).prop_flat_map(|(data, parity)| {
            let redundancy = Redundancy::new(data, parity).unwrap();
            let all: Vec<usize> = (0..redundancy.total()).collect();
            let kept = subsequence(all, redundancy.data()..=redundancy.total()).prop_shuffle();
            (Just(redundancy), kept)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_data_blocks_are_enough_and_equal_the_librarys(
            (redundancy, kept) in redundancies_and_kept(),
            block_len in 1..600_usize,
        ) {
            check(redundancy, block_len, &kept);
        }
    }

    #[test]
    fn every_loss_of_three_and_two_is_repaired() {
        let redundancy = Redundancy::DEFAULT;
        for set in 0..32_usize {
            let keep: Vec<usize> = (0..5).filter(|at| set >> at & 1 == 1).collect();
            if keep.len() >= 3 {
                check(redundancy, 5000, &keep);
            }
        }
    }

    #[test]
    fn the_last_sets_are_kept_and_no_more() {
        let redundancy = Redundancy::new(4, 4).unwrap();
        let data = noise(400);
        let all = by_library(redundancy, &data, 100);
        let mut coder = Coder::new(redundancy);
        let mut out = Vec::new();
        for set in (0..256_usize).filter(|set| set.count_ones() == 4) {
            let keep: Vec<usize> = (0..8).filter(|at| set >> at & 1 == 1).collect();
            for _ in 0..2 {
                let given = chosen(redundancy, &all, 100, &keep);
                coder.decode_data(&given, &mut out).unwrap();
                assert_eq!(out, data);
                assert!(coder.inverses.len() <= INVERSES_MAX);
            }
        }
        assert_eq!(coder.inverses.len(), INVERSES_MAX);
    }

    #[test]
    fn nothing_is_inverted_when_all_data_is_at_hand() {
        let redundancy = Redundancy::DEFAULT;
        let all = by_library(redundancy, &noise(300), 100);
        let mut coder = Coder::new(redundancy);
        let given = chosen(redundancy, &all, 100, &[4, 2, 0, 1]);
        coder.decode_data(&given, &mut Vec::new()).unwrap();
        assert!(coder.inverses.is_empty());
    }

    #[test]
    fn blocks_that_cannot_be_decoded_are_refused() {
        let redundancy = Redundancy::DEFAULT;
        let all = by_library(redundancy, &noise(300), 100);
        let mut coder = Coder::new(redundancy);
        let out = &mut Vec::new();
        let too_few = Err(CodeError::TooFew {
            present: 2,
            data: 3,
        });
        let two = chosen(redundancy, &all, 100, &[0, 4, 4]);
        assert_eq!(coder.decode_data(&two, out), too_few);
        let mut uneven = chosen(redundancy, &all, 100, &[0, 1, 3]);
        uneven[1].1 = &all[..99];
        assert_eq!(coder.decode_data(&uneven, out), Err(CodeError::Lengths));
        let empty = redundancy.shards().map(|shard| (shard, &[][..]));
        let empty: Vec<_> = empty.collect();
        assert_eq!(coder.decode_data(&empty, out), Err(CodeError::Lengths));

        let wide = Redundancy::new(32, 32).unwrap();
        let beyond = Err(CodeError::Index {
            index: 5,
            redundancy,
        });
        let mut given = chosen(redundancy, &all, 100, &[0, 1, 2]);
        assert_eq!(coder.rebuild(&given, wide.shard(5).unwrap(), out), beyond);
        given.push((wide.shard(5).unwrap(), &all[..100]));
        assert_eq!(coder.decode_data(&given, out), beyond);
    }

    #[test]
    fn no_bytes_are_coded_to_no_bytes() {
        Coder::new(Redundancy::DEFAULT).encode(&mut [], 0);
    }
}
