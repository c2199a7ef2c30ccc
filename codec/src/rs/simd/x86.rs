//! Kernels for x86-64: GFNI on 64 and 32 bytes, shuffles on 32 and 16.

use std::arch::x86_64::*;

use super::{Vector, multiply_by};
use crate::rs::tables::{BIT_MATRICES, NIBBLE_PRODUCTS};

macro_rules! kernel {
    ($(#[$doc:meta])* $name:ident, $features:literal, $vector:ident, $wide:literal) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The CPU has these instructions; there are `inputs.len()` factors for each output; all
        /// blocks have the same length, which is at least that of a vector.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $name(factors: &[u8], inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
            // SAFETY: the conditions are this function's own.
            unsafe { multiply_by::<$vector, $wide>(factors, inputs, outputs) }
        }
    };
}

kernel! {
    /// Steps of four vectors, since there are 32 registers of 64 bytes.
    gfni_avx512, "gfni,avx512f", Gfni512, 4
}
kernel! {
    /// Steps of two vectors, since there are 16 registers of 32 bytes.
    gfni_avx2, "gfni,avx2", Gfni256, 2
}
kernel! {
    /// Steps of two vectors, since there are 16 registers of 32 bytes.
    avx2, "avx2", Shuffle256, 2
}
kernel! {
    /// Steps of two vectors, since there are 16 registers of 16 bytes.
    ssse3, "ssse3", Shuffle128, 2
}

#[derive(Clone, Copy)]
struct Gfni512(__m512i);

// SAFETY: used only by `gfni_avx512`, which enables the instructions.
unsafe impl Vector for Gfni512 {
    const BYTES: usize = 64;
    type Operand = __m512i;
    type Factor = __m512i;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the instructions are there.
        Self(unsafe { _mm512_setzero_si512() })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512i {
        // SAFETY: the instructions are there, and 64 bytes can be read.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn factor(factor: u8) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe { _mm512_set1_epi64(BIT_MATRICES[usize::from(factor)].cast_signed()) }
    }

    #[inline(always)]
    unsafe fn add_product(self, operand: __m512i, factor: __m512i) -> Self {
        // SAFETY: the instructions are there.
        Self(unsafe {
            let product = _mm512_gf2p8affine_epi64_epi8::<0>(operand, factor);
            _mm512_xor_si512(self.0, product)
        })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the instructions are there, and 64 bytes can be written.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }
}

#[derive(Clone, Copy)]
struct Gfni256(__m256i);

// SAFETY: used only by `gfni_avx2`, which enables the instructions.
unsafe impl Vector for Gfni256 {
    const BYTES: usize = 32;
    type Operand = __m256i;
    type Factor = __m256i;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the instructions are there.
        Self(unsafe { _mm256_setzero_si256() })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m256i {
        // SAFETY: the instructions are there, and 32 bytes can be read.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn factor(factor: u8) -> __m256i {
        // SAFETY: the instructions are there.
        unsafe { _mm256_set1_epi64x(BIT_MATRICES[usize::from(factor)].cast_signed()) }
    }

    #[inline(always)]
    unsafe fn add_product(self, operand: __m256i, factor: __m256i) -> Self {
        // SAFETY: the instructions are there.
        Self(unsafe {
            let product = _mm256_gf2p8affine_epi64_epi8::<0>(operand, factor);
            _mm256_xor_si256(self.0, product)
        })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the instructions are there, and 32 bytes can be written.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }
}

#[derive(Clone, Copy)]
struct Shuffle256(__m256i);

// SAFETY: used only by `avx2`, which enables the instructions.
unsafe impl Vector for Shuffle256 {
    const BYTES: usize = 32;
    /// Low halves of all bytes, and high halves.
    type Operand = (__m256i, __m256i);
    /// Products with low halves, and with high halves.
    type Factor = (__m256i, __m256i);

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the instructions are there.
        Self(unsafe { _mm256_setzero_si256() })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> (__m256i, __m256i) {
        // SAFETY: the instructions are there, and 32 bytes can be read.
        unsafe {
            let bytes = _mm256_loadu_si256(from.cast());
            let half = _mm256_set1_epi8(15);
            let high = _mm256_srli_epi64::<4>(bytes);
            (_mm256_and_si256(bytes, half), _mm256_and_si256(high, half))
        }
    }

    #[inline(always)]
    unsafe fn factor(factor: u8) -> (__m256i, __m256i) {
        let products = &NIBBLE_PRODUCTS[usize::from(factor)];
        // SAFETY: the instructions are there, and both tables have 16 bytes.
        unsafe {
            let low = _mm_loadu_si128(products.low.as_ptr().cast());
            let high = _mm_loadu_si128(products.high.as_ptr().cast());
            (
                _mm256_broadcastsi128_si256(low),
                _mm256_broadcastsi128_si256(high),
            )
        }
    }

    #[inline(always)]
    unsafe fn add_product(self, (low, high): Self::Operand, factor: Self::Factor) -> Self {
        // SAFETY: the instructions are there.
        Self(unsafe {
            let low = _mm256_shuffle_epi8(factor.0, low);
            let high = _mm256_shuffle_epi8(factor.1, high);
            _mm256_xor_si256(_mm256_xor_si256(self.0, low), high)
        })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the instructions are there, and 32 bytes can be written.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }
}

#[derive(Clone, Copy)]
struct Shuffle128(__m128i);

// SAFETY: used only by `ssse3`, which enables the instructions.
unsafe impl Vector for Shuffle128 {
    const BYTES: usize = 16;
    /// Low halves of all bytes, and high halves.
    type Operand = (__m128i, __m128i);
    /// Products with low halves, and with high halves.
    type Factor = (__m128i, __m128i);

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the instructions are there.
        Self(unsafe { _mm_setzero_si128() })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> (__m128i, __m128i) {
        // SAFETY: the instructions are there, and 16 bytes can be read.
        unsafe {
            let bytes = _mm_loadu_si128(from.cast());
            let half = _mm_set1_epi8(15);
            let high = _mm_srli_epi64::<4>(bytes);
            (_mm_and_si128(bytes, half), _mm_and_si128(high, half))
        }
    }

    #[inline(always)]
    unsafe fn factor(factor: u8) -> (__m128i, __m128i) {
        let products = &NIBBLE_PRODUCTS[usize::from(factor)];
        // SAFETY: the instructions are there, and both tables have 16 bytes.
        unsafe {
            (
                _mm_loadu_si128(products.low.as_ptr().cast()),
                _mm_loadu_si128(products.high.as_ptr().cast()),
            )
        }
    }

    #[inline(always)]
    unsafe fn add_product(self, (low, high): Self::Operand, factor: Self::Factor) -> Self {
        // SAFETY: the instructions are there.
        Self(unsafe {
            let low = _mm_shuffle_epi8(factor.0, low);
            let high = _mm_shuffle_epi8(factor.1, high);
            _mm_xor_si128(_mm_xor_si128(self.0, low), high)
        })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the instructions are there, and 16 bytes can be written.
        unsafe { _mm_storeu_si128(to.cast(), self.0) }
    }
}
