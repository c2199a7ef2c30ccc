//! Kernel for aarch64: table look-ups on 16 bytes.

use std::arch::aarch64::*;

use super::{Vector, multiply_by};
use crate::rs::tables::NIBBLE_PRODUCTS;

/// Steps of four vectors, since there are 32 registers of 16 bytes.
///
/// # Safety
/// The CPU has NEON; there are `inputs.len()` factors for each output; all blocks have the same
/// length, which is at least that of a vector.
#[target_feature(enable = "neon")]
pub(super) unsafe fn neon(factors: &[u8], inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
    // SAFETY: the conditions are this function's own.
    unsafe { multiply_by::<Neon, 4>(factors, inputs, outputs) }
}

#[derive(Clone, Copy)]
struct Neon(uint8x16_t);

// SAFETY: used only by `neon`, which enables the instructions.
unsafe impl Vector for Neon {
    const BYTES: usize = 16;
    /// Low halves of all bytes, and high halves.
    type Operand = (uint8x16_t, uint8x16_t);
    /// Products with low halves, and with high halves.
    type Factor = (uint8x16_t, uint8x16_t);

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the instructions are there.
        Self(unsafe { vdupq_n_u8(0) })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self::Operand {
        // SAFETY: the instructions are there, and 16 bytes can be read.
        unsafe {
            let bytes = vld1q_u8(from);
            (vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes))
        }
    }

    #[inline(always)]
    unsafe fn factor(factor: u8) -> Self::Factor {
        let products = &NIBBLE_PRODUCTS[usize::from(factor)];
        // SAFETY: the instructions are there, and both tables have 16 bytes.
        unsafe {
            (
                vld1q_u8(products.low.as_ptr()),
                vld1q_u8(products.high.as_ptr()),
            )
        }
    }

    #[inline(always)]
    unsafe fn add_product(self, (low, high): Self::Operand, factor: Self::Factor) -> Self {
        // SAFETY: the instructions are there.
        Self(unsafe {
            let low = vqtbl1q_u8(factor.0, low);
            let high = vqtbl1q_u8(factor.1, high);
            veorq_u8(veorq_u8(self.0, low), high)
        })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the instructions are there, and 16 bytes can be written.
        unsafe { vst1q_u8(to, self.0) }
    }
}
