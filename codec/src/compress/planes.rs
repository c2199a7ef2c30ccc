//! Numbers in planes: of an array of numbers of two, four or eight bytes, the bytes of each place follow each
//! other, and each of these planes is stored as it is or entropy-coded alone.
//!
//! In the weights of a neural network the planes of mantissas are noise, and those of signs and exponents have
//! some 2.7 bits a byte. One zstd frame for all of them codes neither well; apart, the noise is only copied, and the
//! others need no search for matches, which these bytes do not have (ZipNN, Hershcovitch et al. 2024).
//!
//! ```text
//! width      u8          2, 4 or 8
//! coded      u8          bit k: plane k is a zstd frame, otherwise it is stored as it is
//! lengths    u32 each    of the frames, in the order of their planes
//! planes     width       each of raw_len / width bytes, or a frame of that many
//! rest                   the raw_len % width bytes after the last number
//! ```

use std::sync::LazyLock;

use zstd::zstd_safe::{CCtx, CParameter, DCtx, ParamSwitch};

use super::shuffle::{shuffle, unshuffle};
use super::{DecompressError, SAMPLES, WORTHWHILE_SHARE, inflate};

/// Most planes.
const PLANES_MAX: usize = 8;

/// Bytes of the width and of the bits.
const HEAD_BYTES: usize = 2;

/// Bytes of the length of a frame.
const LENGTH_BYTES: usize = 4;

/// Numbers whose bytes are split, or joined, in one go: as many as stay in the first cache.
const NUMBERS_AT_ONCE: usize = 1024;

/// Most bytes of a sample that are counted: half of it shows as much, in half of the time.
const COUNTED_BYTES: usize = 2048;

/// A level at which zstd searches for no matches, and codes all bytes by their frequency.
const NO_MATCHES: i32 = -131_072;

/// Most bits of a byte in a plane that is worth coding.
const WORTHWHILE_BITS: f64 = 8.0 - 8.0 / WORTHWHILE_SHARE as f64;

/// Planes are worth their time if they save more than one byte in this many of what the bytes take when all are coded
/// by one table, and of what other methods need.
const GAIN_SHARE: f64 = 16.0;

/// Bytes of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    Two,
    Four,
    Eight,
}

impl Width {
    const ALL: [Self; 3] = [Self::Two, Self::Four, Self::Eight];

    const fn bytes(self) -> usize {
        match self {
            Self::Two => 2,
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    fn of(bytes: u8) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|width| width.bytes() == usize::from(bytes))
    }

    /// Writes the planes of `raw` to `out`, which has the same length, and then the bytes after the last number.
    fn split(self, raw: &[u8], out: &mut [u8]) {
        match self {
            Self::Two => split(raw, out, u16::from_le_bytes, |word, plane| {
                (word >> (8 * plane)) as u8
            }),
            Self::Four => split(raw, out, u32::from_le_bytes, |word, plane| {
                (word >> (8 * plane)) as u8
            }),
            Self::Eight => shuffle(raw, out),
        }
    }

    /// Undoes [`Self::split`].
    fn join(self, planes: &[u8], out: &mut [u8]) {
        match self {
            Self::Two => join::<2>(planes, out),
            Self::Four => join::<4>(planes, out),
            Self::Eight => unshuffle(planes, out),
        }
    }
}

/// Shifts of whole words are what the compiler makes vector instructions of; bytes of arrays are not.
fn split<const WIDTH: usize, Word>(
    raw: &[u8],
    out: &mut [u8],
    word_of: impl Fn([u8; WIDTH]) -> Word,
    byte_of: impl Fn(Word, usize) -> u8,
) {
    let (numbers, rest) = raw.as_chunks::<WIDTH>();
    for (at, some) in numbers.chunks(NUMBERS_AT_ONCE).enumerate() {
        for plane in 0..WIDTH {
            let start = plane * numbers.len() + at * NUMBERS_AT_ONCE;
            let bytes = &mut out[start..start + some.len()];
            for (byte, number) in bytes.iter_mut().zip(some) {
                *byte = byte_of(word_of(*number), plane);
            }
        }
    }
    out[numbers.len() * WIDTH..].copy_from_slice(rest);
}

fn join<const WIDTH: usize>(planes: &[u8], out: &mut [u8]) {
    let each = planes.len() / WIDTH;
    let (numbers, rest) = out.as_chunks_mut::<WIDTH>();
    for (at, some) in numbers.chunks_mut(NUMBERS_AT_ONCE).enumerate() {
        let parts: [&[u8]; WIDTH] = std::array::from_fn(|plane| {
            let start = plane * each + at * NUMBERS_AT_ONCE;
            &planes[start..start + some.len()]
        });
        for (place, number) in some.iter_mut().enumerate() {
            *number = std::array::from_fn(|plane| parts[plane][place]);
        }
    }
    rest.copy_from_slice(&planes[each * WIDTH..]);
}

/// How an array of numbers is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    width: Width,
    /// Bit k: plane k is coded.
    coded: u8,
}

impl Layout {
    fn is_coded(self, plane: usize) -> bool {
        self.coded >> plane & 1 == 1
    }
}

/// How often each byte occurs in samples, by its place in a group of eight.
#[derive(Debug)]
pub(super) struct Counts([[u32; 256]; PLANES_MAX]);

impl Default for Counts {
    fn default() -> Self {
        Self([[0; 256]; PLANES_MAX])
    }
}

impl Counts {
    /// Counts the bytes of a sample that begins `at` this byte of a segment.
    pub(super) fn add(&mut self, sample: &[u8], at: usize) {
        // The first whole group.
        let first = at.next_multiple_of(PLANES_MAX) - at;
        let counted = sample.get(first..).unwrap_or_default();
        let counted = counted.get(..COUNTED_BYTES).unwrap_or(counted);
        for group in counted.as_chunks::<PLANES_MAX>().0 {
            for (counts, byte) in self.0.iter_mut().zip(group) {
                counts[usize::from(*byte)] += 1;
            }
        }
    }

    /// How the samples are best stored in planes, if that saves enough beside other methods, which leave the share
    /// `others` of them.
    pub(super) fn layout(&self, others: f64) -> Option<Layout> {
        let (in_one, _) = self.estimate(1);
        let counted: u32 = self.0.iter().flatten().sum();
        let others = others * f64::from(counted);
        let estimates = Width::ALL.map(|width| (width, self.estimate(width.bytes())));
        let best = estimates
            .into_iter()
            .min_by(|(_, (one, _)), (_, (other, _))| one.total_cmp(other))?;
        let (width, (bytes, coded)) = best;
        let pays = bytes * (1.0 + 1.0 / GAIN_SHARE) < in_one.min(others);
        (pays && coded != 0).then_some(Layout { width, coded })
    }

    /// Bytes that the samples take in so many planes, and which of these are worth coding.
    fn estimate(&self, planes: usize) -> (f64, u8) {
        let mut sum = 0.0;
        let mut coded = 0;
        for plane in 0..planes {
            let mut counts = [0; 256];
            for place in self.0.iter().skip(plane).step_by(planes) {
                for (count, more) in counts.iter_mut().zip(place) {
                    *count += more;
                }
            }
            let (bytes, bits) = bits_of(&counts);
            if bits < WORTHWHILE_BITS {
                coded |= 1 << plane;
                sum += bytes * bits / 8.0;
            } else {
                sum += bytes;
            }
        }
        (sum, coded)
    }
}

/// n times its binary logarithm, for each number of equal bytes that samples can have: logarithms would take longer
/// than counting.
static N_LOG_N: LazyLock<Vec<f32>> = LazyLock::new(|| {
    let most = (SAMPLES * COUNTED_BYTES) as u32;
    (0..=most).map(n_log_n).collect()
});

fn n_log_n(count: u32) -> f32 {
    let count = f64::from(count.max(1));
    (count * count.log2()) as f32
}

/// How many bytes were counted, and the bits of each if all are coded by their frequency: the entropy, corrected for
/// the size of the sample (Miller 1955), and at least one bit.
fn bits_of(counts: &[u32; 256]) -> (f64, f64) {
    let seen = counts.iter().filter(|count| **count > 0);
    let kinds = seen.clone().count();
    let all: u32 = seen.clone().sum();
    let bytes = f64::from(all);
    let table = &*N_LOG_N;
    let weighted: f32 = seen
        .map(|count| {
            table
                .get(*count as usize)
                .copied()
                .unwrap_or_else(|| n_log_n(*count))
        })
        .sum();
    let weighted = f64::from(weighted);
    let entropy = bytes.log2() - weighted / bytes;
    let missing = kinds.saturating_sub(1) as f64 / (2.0 * bytes * std::f64::consts::LN_2);
    // No Huffman code has less than one bit. A plane of equal bytes may have another one outside of the samples.
    (bytes, (entropy + missing).max(1.0))
}

/// Replaces `out` by the numbers of `raw` in planes, and returns whether they fit into `room` bytes. `scratch` is
/// working memory. The context's level is another one afterwards.
pub(super) fn encode(
    context: &mut CCtx<'static>,
    raw: &[u8],
    layout: Layout,
    scratch: &mut Vec<u8>,
    (out, room): (&mut Vec<u8>, usize),
) -> bool {
    for parameter in [
        CParameter::CompressionLevel(NO_MATCHES),
        CParameter::LiteralCompressionMode(ParamSwitch::Enable),
    ] {
        if context.set_parameter(parameter).is_err() {
            return false;
        }
    }
    let is_done = encode_planes(context, raw, layout, scratch, (out, room)).is_some();
    let reset = CParameter::LiteralCompressionMode(ParamSwitch::Auto);
    is_done && context.set_parameter(reset).is_ok()
}

fn encode_planes(
    context: &mut CCtx<'static>,
    raw: &[u8],
    layout: Layout,
    scratch: &mut Vec<u8>,
    (out, room): (&mut Vec<u8>, usize),
) -> Option<()> {
    let width = layout.width.bytes();
    let each = raw.len() / width;
    if each == 0 {
        return None;
    }
    scratch.resize(raw.len(), 0);
    layout.width.split(raw, scratch);
    let (planes, rest) = scratch.split_at(each * width);
    let planes = || planes.chunks_exact(each).enumerate();
    let frames = planes().filter(|(plane, _)| layout.is_coded(*plane));
    // What a frame may take: a plane that shrinks less than expected is stored as it is.
    let longest = each - each / WORTHWHILE_SHARE;
    out.clear();
    out.resize(HEAD_BYTES + frames.count() * LENGTH_BYTES, 0);
    let mut coded = 0_u8;
    let mut lengths = Vec::with_capacity(PLANES_MAX);
    for (plane, bytes) in planes() {
        let start = out.len();
        let mut is_frame = false;
        if layout.is_coded(plane) {
            out.resize(start + longest, 0);
            let written = out.get_mut(start..)?;
            if let Ok(len) = context.compress2(written, bytes) {
                out.truncate(start + len);
                lengths.push(u32::try_from(len).ok()?);
                coded |= 1 << plane;
                is_frame = true;
            } else {
                out.truncate(start);
            }
        }
        if !is_frame {
            out.extend_from_slice(bytes);
        }
        if out.len() > room {
            return None;
        }
    }
    out.extend_from_slice(rest);
    if coded != layout.coded {
        // The places of the lengths that are not needed go.
        let head = HEAD_BYTES + lengths.len() * LENGTH_BYTES;
        let reserved = HEAD_BYTES + layout.coded.count_ones() as usize * LENGTH_BYTES;
        out.drain(head..reserved);
    }
    let (head, lens) = out.split_at_mut_checked(HEAD_BYTES)?;
    head.copy_from_slice(&[u8::try_from(width).ok()?, coded]);
    for (place, len) in lens
        .as_chunks_mut::<LENGTH_BYTES>()
        .0
        .iter_mut()
        .zip(lengths)
    {
        *place = len.to_le_bytes();
    }
    (out.len() <= room && coded != 0).then_some(())
}

/// Replaces `out` by the `raw_len` bytes of numbers that are `stored` in planes. `scratch` is working memory.
///
/// # Errors
/// When `stored` is anything else.
pub(super) fn decode(
    context: &mut DCtx<'static>,
    stored: &[u8],
    raw_len: usize,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(), DecompressError> {
    let wrong = DecompressError::Planes;
    let ([width, coded], stored) = stored
        .split_first_chunk()
        .ok_or(wrong("they have no head"))?;
    let width = Width::of(*width).ok_or(wrong("no number has this many bytes"))?;
    let planes = width.bytes();
    if u32::from(*coded) >> planes != 0 {
        return Err(wrong("more are coded than there are"));
    }
    let layout = Layout {
        width,
        coded: *coded,
    };
    let frames = coded.count_ones() as usize;
    let (lengths, mut stored) = stored
        .split_at_checked(frames * LENGTH_BYTES)
        .ok_or(wrong("a length is missing"))?;
    let mut lengths = lengths.as_chunks::<LENGTH_BYTES>().0.iter();
    let each = raw_len / planes;
    scratch.clear();
    for plane in 0..planes {
        let len = match layout.is_coded(plane) {
            true => lengths.next().map(|len| u32::from_le_bytes(*len) as usize),
            false => Some(each),
        };
        let len = len.ok_or(wrong("a length is missing"))?;
        let (bytes, later) = stored
            .split_at_checked(len)
            .ok_or(wrong("a plane is cut off"))?;
        stored = later;
        let start = scratch.len();
        if layout.is_coded(plane) {
            scratch.resize(start + each, 0);
            let written = scratch.get_mut(start..).unwrap_or_default();
            if inflate(context, bytes, written)? != each {
                return Err(wrong("a plane is too short"));
            }
        } else {
            scratch.extend_from_slice(bytes);
        }
    }
    if stored.len() != raw_len % planes {
        return Err(wrong("the rest has another length"));
    }
    scratch.extend_from_slice(stored);
    out.resize(scratch.len(), 0);
    width.join(scratch, out);
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn split_numbers_come_back(raw in prop::collection::vec(any::<u8>(), 0..9000)) {
            for width in Width::ALL {
                let mut planes = vec![0; raw.len()];
                width.split(&raw, &mut planes);
                let each = raw.len() / width.bytes();
                for (number, bytes) in raw.chunks_exact(width.bytes()).enumerate() {
                    for (place, byte) in bytes.iter().enumerate() {
                        prop_assert_eq!(planes[place * each + number], *byte);
                    }
                }
                let mut back = vec![0; raw.len()];
                width.join(&planes, &mut back);
                prop_assert_eq!(&back, &raw);
            }
        }
    }

    #[test]
    fn the_bits_of_bytes_are_their_entropy() {
        let mut counts = [0; 256];
        counts[3] = 4096;
        assert_eq!(bits_of(&counts), (4096.0, 1.0));
        counts[9] = 4096;
        let (bytes, bits) = bits_of(&counts);
        assert!(bytes == 8192.0 && (bits - 1.0).abs() < 1e-3, "{bits}");
        let (_, bits) = bits_of(&[8; 256]);
        assert!((bits - 8.0).abs() < 0.1, "{bits}");
    }
}
