//! Tables of products in GF(2^8) with polynomial 0x11D, in the forms that vector instructions take.
//!
//! They are computed at compile time from the definition of the field. The tests compare them with the
//! library's own table.

/// `x^8 + x^4 + x^3 + x^2 + 1` without its highest term.
const POLYNOMIAL: u8 = 0x1D;

/// For every factor, its products with 0x00, 0x01 ..= 0x0F and with 0x00, 0x10 ..= 0xF0. A shuffle looks up
/// the first by the low half of a byte and the second by its high half; their sum is the product.
pub(super) static NIBBLE_PRODUCTS: [NibbleProducts; 256] = nibble_products();

/// For every factor, the 8x8 bit matrix that multiplies by it, as `GF2P8AFFINEQB` takes it: byte `7 - i`
/// has the bits of the operand whose sum is bit `i` of the product.
#[cfg(any(test, target_arch = "x86_64"))]
pub(super) static BIT_MATRICES: [u64; 256] = bit_matrices();

/// Products of one factor with the low and the high halves of a byte.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(super) struct NibbleProducts {
    pub(super) low: [u8; 16],
    pub(super) high: [u8; 16],
}

const fn product(a: u8, b: u8) -> u8 {
    let mut sum = 0;
    let mut shifted = a;
    let mut bit = 0;
    while bit < 8 {
        if b >> bit & 1 == 1 {
            sum ^= shifted;
        }
        let carry = shifted >> 7;
        shifted = (shifted << 1) ^ (POLYNOMIAL * carry);
        bit += 1;
    }
    sum
}

const fn nibble_products() -> [NibbleProducts; 256] {
    let mut all = [NibbleProducts {
        low: [0; 16],
        high: [0; 16],
    }; 256];
    let mut factor = 0;
    while factor < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            all[factor].low[nibble] = product(factor as u8, nibble as u8);
            all[factor].high[nibble] = product(factor as u8, (nibble as u8) << 4);
            nibble += 1;
        }
        factor += 1;
    }
    all
}

#[cfg(any(test, target_arch = "x86_64"))]
const fn bit_matrices() -> [u64; 256] {
    let mut all = [0; 256];
    let mut factor = 0;
    while factor < 256 {
        let mut operand_bit = 0;
        while operand_bit < 8 {
            let column = product(factor as u8, 1 << operand_bit);
            let mut bit = 0;
            while bit < 8 {
                all[factor] |= ((column >> bit & 1) as u64) << ((7 - bit) * 8 + operand_bit);
                bit += 1;
            }
            operand_bit += 1;
        }
        factor += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use reed_solomon_erasure::galois_8;

    use super::*;

    #[test]
    fn tables_hold_the_librarys_products() {
        for factor in 0..=255_u8 {
            let halves = &NIBBLE_PRODUCTS[usize::from(factor)];
            let rows = BIT_MATRICES[usize::from(factor)].to_le_bytes();
            for byte in 0..=255_u8 {
                let expected = galois_8::mul(factor, byte);
                assert_eq!(product(factor, byte), expected);
                let low = halves.low[usize::from(byte & 15)];
                let high = halves.high[usize::from(byte >> 4)];
                assert_eq!(low ^ high, expected);
                let affine = (0..8).fold(0, |all, bit| {
                    let sum = (rows[7 - bit] & byte).count_ones() & 1;
                    all | (sum as u8) << bit
                });
                assert_eq!(affine, expected);
            }
        }
    }
}
