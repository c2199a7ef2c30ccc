//! The memory of a save that is compared with an earlier version: what the comparison takes, and what is left for rows.
//!
//! Of an image of 64 GiB, the hashes of all pieces are 64 MiB, of the earlier version and of the new one. So those of a
//! large image are in files, and in memory is what finds them.

use codec::base::Base;

/// One in this many bytes of the memory is for an earlier version whose hashes of pieces are in memory.
const SHARE: u64 = 8;

/// One in this many bytes of the memory is for a comparison whose hashes of pieces are in files.
const SHARE_WITH_FILES: u64 = 2;

/// Bytes for each piece of the new version whose hash is in a file: its share of the index, as long as segments are full,
/// and of an anchor.
const NEW_PIECE_BYTES: u64 = 13;

/// Bytes of the stored hashes for each piece: its hash, and its share of an anchor.
const STORED_BYTES: u64 = 18;

/// Where the hashes of the pieces of an earlier version are while an image is compared with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashPlace {
    /// In memory.
    Memory,
    /// In a file without a name.
    File,
}

/// How many pieces a version has that stored so many bytes of hashes.
pub const fn pieces(stored_bytes: u64) -> u64 {
    stored_bytes.div_ceil(STORED_BYTES)
}

/// Whether the hashes of a version of so many pieces fit into memory of `memory_bytes`, or into a file. `None` if an image
/// can't be compared with it.
pub const fn place(pieces: u64, memory_bytes: u64, has_file: bool) -> Option<HashPlace> {
    if in_memory(pieces) <= memory_bytes / SHARE {
        return Some(HashPlace::Memory);
    }
    match has_file && with_files(pieces) <= memory_bytes / SHARE_WITH_FILES {
        true => Some(HashPlace::File),
        false => None,
    }
}

/// The least memory, bytes, with which an image can be compared with a version of so many pieces.
pub const fn memory_needed(pieces: u64, has_file: bool) -> u64 {
    match has_file {
        true => with_files(pieces).saturating_mul(SHARE_WITH_FILES),
        false => in_memory(pieces).saturating_mul(SHARE),
    }
}

/// Bytes for the rows of a save: what `reading` the image and the comparison leave of the memory, but at least `least`.
/// `base_bytes` is what the earlier version takes; the index and the hashes of the new version take about as much.
pub const fn rows_bytes(memory_bytes: u64, reading: u64, base_bytes: u64, least: u64) -> u64 {
    let compared = base_bytes.saturating_mul(2);
    let left = memory_bytes
        .saturating_sub(reading)
        .saturating_sub(compared);
    if left > least { left } else { least }
}

const fn in_memory(pieces: u64) -> u64 {
    pieces.saturating_mul(Base::PIECE_MEMORY)
}

const fn with_files(pieces: u64) -> u64 {
    pieces.saturating_mul(Base::PIECE_MEMORY_ELSEWHERE + NEW_PIECE_BYTES)
}

#[cfg(test)]
mod tests {
    use codec::pieces::PIECE_BYTES;

    use super::*;

    const GIB: u64 = 1 << 30;
    const USUAL: u64 = 256 << 20;

    fn of_image(bytes: u64) -> u64 {
        let pieces = bytes / PIECE_BYTES as u64;
        super::pieces(pieces * 16 + pieces / 4 * 8)
    }

    #[test]
    fn the_usual_memory_is_enough_for_images_of_64_gib() {
        assert_eq!(
            place(of_image(4 * GIB), USUAL, true),
            Some(HashPlace::Memory)
        );
        assert_eq!(
            place(of_image(12 * GIB), USUAL, true),
            Some(HashPlace::File)
        );
        assert_eq!(place(of_image(12 * GIB), USUAL, false), None);
        assert_eq!(
            place(of_image(64 * GIB), USUAL, true),
            Some(HashPlace::File)
        );
        assert_eq!(place(of_image(65 * GIB), USUAL, true), None);
        for has_file in [true, false] {
            let needed = memory_needed(of_image(65 * GIB), has_file);
            assert!(place(of_image(65 * GIB), needed, has_file).is_some());
            assert!(place(of_image(65 * GIB), needed - 1000, has_file).is_none());
        }
        assert_eq!(place(u64::MAX, USUAL, true), None);
    }

    #[test]
    fn a_save_stays_within_its_memory() {
        let base = of_image(64 * GIB) * Base::PIECE_MEMORY_ELSEWHERE;
        let new = of_image(64 * GIB) * NEW_PIECE_BYTES;
        // Reading with 16 processors, and a few rows.
        let reading = 68 << 20;
        let least = 35 << 20;
        let rows = rows_bytes(USUAL, reading, base, least);
        assert!(rows + reading + base + new <= USUAL + (4 << 20), "{rows}");
        assert!(rows > least);
        assert_eq!(rows_bytes(USUAL, reading, 0, least), USUAL - reading);
        assert_eq!(rows_bytes(16 << 20, reading, base, least), least);
    }
}
