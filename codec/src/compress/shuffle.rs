//! Sorts the bytes of numbers by significance: first the first bytes of all groups of eight, then all
//! second bytes, and so on; each of these eight parts is a **plane**. Floats and pointers that are near each
//! other differ in their low bytes only, so that the planes of high bytes compress well. (HDF5 and Blosc
//! have the same filter.)

/// Bytes of a group: the length of a double, a pointer, a 64-bit integer.
const GROUP: usize = 8;

/// Bytes that are transposed at once: eight groups.
const TILE: usize = GROUP * GROUP;

/// Writes the planes of `raw` to `out`, which has the same length. Bytes after the last whole group follow
/// as they are.
pub(super) fn shuffle(raw: &[u8], out: &mut [u8]) {
    let groups = raw.len() / GROUP;
    let (tiles, _) = raw.as_chunks::<TILE>();
    for (at, tile) in tiles.iter().enumerate() {
        let planes = transpose(words(tile));
        for (plane, word) in planes.iter().enumerate() {
            let start = plane * groups + at * GROUP;
            out[start..start + GROUP].copy_from_slice(&word.to_le_bytes());
        }
    }
    for group in tiles.len() * GROUP..groups {
        for plane in 0..GROUP {
            out[plane * groups + group] = raw[group * GROUP + plane];
        }
    }
    out[groups * GROUP..].copy_from_slice(&raw[groups * GROUP..]);
}

/// Undoes [`shuffle`].
pub(super) fn unshuffle(planes: &[u8], out: &mut [u8]) {
    let groups = planes.len() / GROUP;
    let (tiles, _) = out.as_chunks_mut::<TILE>();
    let whole = tiles.len() * GROUP;
    for (at, tile) in tiles.iter_mut().enumerate() {
        let mut rows = [0; GROUP];
        for (plane, row) in rows.iter_mut().enumerate() {
            let start = plane * groups + at * GROUP;
            let mut word = [0; GROUP];
            word.copy_from_slice(&planes[start..start + GROUP]);
            *row = u64::from_le_bytes(word);
        }
        let (parts, _) = tile.as_chunks_mut::<GROUP>();
        for (part, word) in parts.iter_mut().zip(transpose(rows)) {
            *part = word.to_le_bytes();
        }
    }
    for group in whole..groups {
        for plane in 0..GROUP {
            out[group * GROUP + plane] = planes[plane * groups + group];
        }
    }
    out[groups * GROUP..].copy_from_slice(&planes[groups * GROUP..]);
}

fn words(tile: &[u8; TILE]) -> [u64; GROUP] {
    let (parts, _) = tile.as_chunks::<GROUP>();
    let mut words = [0; GROUP];
    for (word, part) in words.iter_mut().zip(parts) {
        *word = u64::from_le_bytes(*part);
    }
    words
}

/// Transposes a matrix of 8 by 8 bytes, a row in each word: blocks of 4, then 2, then 1 change places
/// (Warren, Hacker's Delight, section 7-3).
fn transpose(mut rows: [u64; GROUP]) -> [u64; GROUP] {
    const STEPS: [(usize, u32, u64); 3] = [
        (4, 32, 0x0000_0000_ffff_ffff),
        (2, 16, 0x0000_ffff_0000_ffff),
        (1, 8, 0x00ff_00ff_00ff_00ff),
    ];
    for (distance, shift, mask) in STEPS {
        for low in (0..GROUP).filter(|row| row & distance == 0) {
            let high = low + distance;
            let swapped = ((rows[low] >> shift) ^ rows[high]) & mask;
            rows[high] ^= swapped;
            rows[low] ^= swapped << shift;
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_of_the_same_significance_follow_each_other() {
        for groups in [1, 7, 8, 9, 64, 130_000 / 8] {
            let raw: Vec<u8> = (0..groups * 8 + 3).map(|at| (at % 8) as u8).collect();
            let mut planes = vec![0; raw.len()];
            shuffle(&raw, &mut planes);
            for (at, byte) in planes[..groups * 8].iter().enumerate() {
                assert_eq!(usize::from(*byte), at / groups);
            }
            assert_eq!(planes[groups * 8..], [0, 1, 2]);
        }
    }

    proptest! {
        #[test]
        fn shuffled_bytes_come_back(raw in prop::collection::vec(any::<u8>(), 0..700)) {
            let mut planes = vec![0; raw.len()];
            shuffle(&raw, &mut planes);
            let mut back = vec![0; raw.len()];
            unshuffle(&planes, &mut back);
            prop_assert_eq!(back, raw);
        }
    }
}
