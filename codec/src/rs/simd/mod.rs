//! The kernels that use vector instructions: one algorithm over the trait [`Vector`], which has an
//! implementation for each set of instructions.
//!
//! A step computes a few vectors of up to four outputs. Their sums stay in registers while all inputs are
//! read once, and are then stored once.

#![allow(
    unsafe_code,
    reason = "vector loads and stores, and calls of functions for a CPU that was asked for them"
)]

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::kernel::{Instructions, Kernel};

/// Outputs that are computed together.
const GROUP: usize = 4;

/// Bytes of all inputs of a tile. With more than four outputs, inputs are read several times; a tile is
/// small enough that they are still in the first-level cache.
const TILE_BYTES: usize = 24 << 10;

/// Does what [`Kernel::multiply`] describes. Returns false, and does nothing, if the kernel has no vector
/// instructions or the blocks are shorter than a vector.
pub(super) fn multiply(
    kernel: Kernel,
    factors: &[u8],
    inputs: &[&[u8]],
    outputs: &mut [&mut [u8]],
) -> bool {
    let len = inputs.first().map_or(0, |input| input.len());
    assert_eq!(factors.len(), inputs.len() * outputs.len());
    assert!(inputs.iter().all(|input| input.len() == len));
    assert!(outputs.iter().all(|output| output.len() == len));
    match kernel.instructions() {
        // SAFETY (all): a kernel exists only when the CPU has its instructions, lengths were
        // checked just above, and blocks are not shorter than a vector.
        #[cfg(target_arch = "x86_64")]
        Instructions::GfniAvx512 if len >= 64 => unsafe {
            x86::gfni_avx512(factors, inputs, outputs);
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Instructions::GfniAvx512 | Instructions::GfniAvx2 if len >= 32 => unsafe {
            x86::gfni_avx2(factors, inputs, outputs);
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Instructions::Avx2 if len >= 32 => unsafe { x86::avx2(factors, inputs, outputs) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Instructions::Ssse3 if len >= 16 => unsafe { x86::ssse3(factors, inputs, outputs) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        Instructions::Neon if len >= 16 => unsafe { neon::neon(factors, inputs, outputs) },
        _ => return false,
    }
    true
}

/// A vector of bytes.
///
/// # Safety
/// All functions may be called only on a CPU that has the instructions, and have to be inlined
/// into a function that enables them.
unsafe trait Vector: Copy {
    /// Bytes of a vector.
    const BYTES: usize;

    /// A vector of operands, prepared for products with several factors.
    type Operand: Copy;

    /// One factor, prepared for products with whole vectors.
    type Factor: Copy;

    unsafe fn zero() -> Self;

    /// Reads `BYTES` bytes, which need no alignment.
    unsafe fn load(from: *const u8) -> Self::Operand;

    unsafe fn factor(factor: u8) -> Self::Factor;

    /// `self` plus the products of all bytes of `operand` with `factor`.
    unsafe fn add_product(self, operand: Self::Operand, factor: Self::Factor) -> Self;

    /// Writes `BYTES` bytes, which need no alignment.
    unsafe fn store(self, to: *mut u8);
}

/// Computes all outputs, in steps of `WIDE` vectors.
///
/// # Safety
/// The CPU has the instructions of `V` and the caller enables them; there are `inputs.len()`
/// factors for each output; all blocks have the same length of at least `V::BYTES`.
#[inline(always)]
unsafe fn multiply_by<V: Vector, const WIDE: usize>(
    factors: &[u8],
    inputs: &[&[u8]],
    outputs: &mut [&mut [u8]],
) {
    let len = inputs.first().map_or(0, |input| input.len());
    let step = WIDE * V::BYTES;
    // With one group, every input is read once, so that tiles are of no use.
    let tile = match outputs.len() {
        0..=GROUP => len.next_multiple_of(step),
        _ => (TILE_BYTES / inputs.len().max(1)).next_multiple_of(step),
    };
    let mut start = 0;
    while start < len {
        let end = len.min(start + tile);
        let groups = outputs.chunks_mut(GROUP);
        for (factors, outputs) in factors.chunks(GROUP * inputs.len()).zip(groups) {
            // SAFETY: `start` is a multiple of the step and `end` too, or it is the length of the
            // blocks; the other conditions are this function's own.
            unsafe {
                match outputs {
                    [a] => tile_of::<V, 1, WIDE>(factors, inputs, [a], start, end),
                    [a, b] => tile_of::<V, 2, WIDE>(factors, inputs, [a, b], start, end),
                    [a, b, c] => tile_of::<V, 3, WIDE>(factors, inputs, [a, b, c], start, end),
                    [a, b, c, d] => {
                        tile_of::<V, 4, WIDE>(factors, inputs, [a, b, c, d], start, end);
                    }
                    _ => {}
                }
            }
        }
        start = end;
    }
}

/// Computes the bytes `start..end` of one group of outputs.
///
/// # Safety
/// As for [`multiply_by`]; `end` is within the blocks, and at least `V::BYTES`.
#[inline(always)]
unsafe fn tile_of<V: Vector, const OUTPUTS: usize, const WIDE: usize>(
    factors: &[u8],
    inputs: &[&[u8]],
    outputs: [&mut &mut [u8]; OUTPUTS],
    start: usize,
    end: usize,
) {
    let outputs = outputs.map(|output| output.as_mut_ptr());
    let mut at = start;
    // SAFETY: every step lies within `..end`. The last vector can overlap the one before it: the
    // same bytes are written there again, because outputs are no inputs.
    unsafe {
        while at + WIDE * V::BYTES <= end {
            step::<V, OUTPUTS, WIDE>(factors, inputs, outputs, at);
            at += WIDE * V::BYTES;
        }
        while at + V::BYTES <= end {
            step::<V, OUTPUTS, 1>(factors, inputs, outputs, at);
            at += V::BYTES;
        }
        if at < end {
            step::<V, OUTPUTS, 1>(factors, inputs, outputs, end - V::BYTES);
        }
    }
}

/// Computes `WIDE` vectors of each output, from byte `at` on.
///
/// # Safety
/// As for [`multiply_by`]; the vectors lie within the blocks.
#[inline(always)]
unsafe fn step<V: Vector, const OUTPUTS: usize, const WIDE: usize>(
    factors: &[u8],
    inputs: &[&[u8]],
    outputs: [*mut u8; OUTPUTS],
    at: usize,
) {
    // SAFETY: `at + WIDE * BYTES` is at most the length of every block, and `factors` has
    // `inputs.len()` entries for each output, as the caller promises.
    unsafe {
        let mut sums = [[V::zero(); WIDE]; OUTPUTS];
        for (number, input) in inputs.iter().enumerate() {
            let from = input.as_ptr().add(at);
            let mut operands = [V::load(from); WIDE];
            for (place, operand) in operands.iter_mut().enumerate().skip(1) {
                *operand = V::load(from.add(place * V::BYTES));
            }
            for (output, sums) in sums.iter_mut().enumerate() {
                let factor = *factors.get_unchecked(output * inputs.len() + number);
                let factor = V::factor(factor);
                for (sum, operand) in sums.iter_mut().zip(operands) {
                    *sum = sum.add_product(operand, factor);
                }
            }
        }
        for (output, sums) in outputs.into_iter().zip(sums) {
            for (place, sum) in sums.into_iter().enumerate() {
                sum.store(output.add(at + place * V::BYTES));
            }
        }
    }
}
