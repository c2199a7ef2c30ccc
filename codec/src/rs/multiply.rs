//! Products of a matrix of factors with blocks.

use reed_solomon_erasure::galois_8;

use super::kernel::Kernel;
use super::simd;

/// Bytes of each block that the portable kernel works on at a time. Few enough that the inputs of a tile
/// stay in a cache until all its outputs are computed, and enough to make up for loading one of the
/// library's tables of 256 bytes for each factor.
const PORTABLE_TILE: usize = 8192;

impl Kernel {
    /// Overwrites every output by a sum of products of all inputs with the output's row of `factors`.
    /// `factors` has one row of `inputs.len()` factors for each output.
    ///
    /// # Panics
    /// When there are more or fewer factors, or inputs and outputs do not all have one length.
    pub(super) fn multiply(self, factors: &[u8], inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
        assert_eq!(factors.len(), inputs.len() * outputs.len());
        let len = inputs.first().map_or(0, |input| input.len());
        assert!(inputs.iter().all(|input| input.len() == len));
        assert!(outputs.iter().all(|output| output.len() == len));
        if !simd::multiply(self, factors, inputs, outputs) {
            multiply_portably(factors, inputs, outputs);
        }
    }
}

fn multiply_portably(factors: &[u8], inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
    let len = inputs.first().map_or(0, |input| input.len());
    for start in (0..len).step_by(PORTABLE_TILE) {
        let tile = start..len.min(start + PORTABLE_TILE);
        for (row, output) in factors.chunks_exact(inputs.len()).zip(&mut *outputs) {
            let output = &mut output[tile.clone()];
            for (number, (&factor, input)) in row.iter().zip(inputs).enumerate() {
                match number {
                    0 => galois_8::mul_slice(factor, &input[tile.clone()], output),
                    _ => galois_8::mul_slice_xor(factor, &input[tile.clone()], output),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::noise;

    /// Compares all kernels with sums of the library's products. Inputs and outputs begin at `offset` in
    /// their memory, and the bytes beside the outputs have to stay as they are.
    fn check(inputs: usize, outputs: usize, len: usize, offset: usize) {
        let mut factors = noise(0, inputs * outputs);
        factors[0] = 0;
        factors[inputs * outputs / 2] = 1;
        let memory: Vec<Vec<u8>> = (0..inputs)
            .map(|input| noise(input as u8 + 1, len + offset))
            .collect();
        let blocks: Vec<&[u8]> = memory.iter().map(|memory| &memory[offset..]).collect();
        let expected: Vec<Vec<u8>> = factors
            .chunks_exact(inputs)
            .map(|row| {
                let sum = |at| {
                    row.iter().zip(&blocks).fold(0, |sum, (&factor, block)| {
                        sum ^ galois_8::mul(factor, block[at])
                    })
                };
                (0..len).map(sum).collect()
            })
            .collect();
        for kernel in Kernel::all() {
            let mut memory = vec![vec![0xA5; offset + len + 64]; outputs];
            let mut results: Vec<&mut [u8]> = memory
                .iter_mut()
                .map(|memory| &mut memory[offset..offset + len])
                .collect();
            kernel.multiply(&factors, &blocks, &mut results);
            for (memory, expected) in memory.iter().zip(&expected) {
                let context = format!("{kernel:?} {inputs}x{outputs} {len} bytes at {offset}");
                assert_eq!(memory[offset..offset + len], *expected, "{context}");
                let beside = memory[..offset].iter().chain(&memory[offset + len..]);
                assert!(beside.copied().all(|byte| byte == 0xA5), "{context}");
            }
        }
    }

    #[test]
    fn all_kernels_agree_at_every_short_length() {
        for len in 0..=200 {
            check(3, 2, len, len % 7);
        }
    }

    #[test]
    fn all_kernels_agree_at_odd_lengths_and_places() {
        for (turn, len) in [255, 256, 257, 511, 513, 1023, 4095, 4097, 8193, 70_001]
            .into_iter()
            .enumerate()
        {
            check(3, 2, len, turn);
            check(10, 4, len, 2 * turn + 1);
        }
    }

    #[test]
    fn all_kernels_agree_for_every_number_of_outputs() {
        for outputs in 1..=32 {
            check(1, outputs, 333, 1);
            check(32, outputs, 1100, 3);
            check(7, outputs, 64, 0);
        }
    }

    #[test]
    #[should_panic(expected = "output.len() == len")]
    fn outputs_of_another_length_are_refused() {
        Kernel::best().multiply(&[1], &[&[0; 64]], &mut [&mut [0; 63]]);
    }
}
