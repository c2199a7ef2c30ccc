//! Compression of one segment: zstd, or raw if zstd saves too little.

mod planes;
mod shuffle;

use serde::{Deserialize, Serialize};
use zstd::zstd_safe::{self, CCtx, CParameter, DCtx};

use planes::{Counts, Layout};
use shuffle::{shuffle, unshuffle};

/// How a stored segment is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub enum Method {
    /// The bytes as they are.
    Raw,
    /// One zstd frame of the bytes in their order.
    Zstd,
    /// One zstd frame of the shuffled bytes: sorted by their place in groups of eight.
    ShuffledZstd,
    /// Numbers of two, four or eight bytes in planes, some of them entropy-coded.
    Planes,
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 4] = [Self::Raw, Self::Zstd, Self::ShuffledZstd, Self::Planes];

    /// The method's name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Zstd => "zstd",
            Self::ShuffledZstd => "shuffled",
            Self::Planes => "planes",
        }
    }
}

/// A method number that this version does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("compression method {0} is not known to this version")]
pub struct UnknownMethod(u8);

impl TryFrom<u8> for Method {
    type Error = UnknownMethod;

    fn try_from(number: u8) -> Result<Self, UnknownMethod> {
        match number {
            0 => Ok(Self::Raw),
            1 => Ok(Self::Zstd),
            2 => Ok(Self::ShuffledZstd),
            3 => Ok(Self::Planes),
            other => Err(UnknownMethod(other)),
        }
    }
}

impl From<Method> for u8 {
    fn from(method: Method) -> Self {
        match method {
            Method::Raw => 0,
            Method::Zstd => 1,
            Method::ShuffledZstd => 2,
            Method::Planes => 3,
        }
    }
}

/// How hard to compress: a zstd level, from -7 (fastest) to 19 (smallest), or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(Option<i32>);

/// A level outside of the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("compression level {0} is not in -7..=19")]
pub struct LevelError(i32);

impl Level {
    /// Level 1: on memory images within 1% of the ratio of level 3, at two thirds of its cost.
    pub const DEFAULT: Self = Self(Some(1));

    /// No compression: every segment is stored raw.
    pub const STORED: Self = Self(None);

    /// A level that is a constant, checked at compile time.
    pub const fn of<const LEVEL: i32>() -> Self {
        const { assert!(LEVEL >= -7 && LEVEL <= 19, "no such level") };
        Self(Some(LEVEL))
    }

    /// Checks the level.
    ///
    /// # Errors
    /// When it is out of range.
    pub const fn new(level: i32) -> Result<Self, LevelError> {
        if level < -7 || level > 19 {
            return Err(LevelError(level));
        }
        Ok(Self(Some(level)))
    }
}

impl Default for Level {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Bytes that do not decompress to what was promised.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecompressError {
    /// The bytes are no zstd frame.
    #[error("zstd: {0}")]
    Zstd(&'static str),
    /// The bytes are no numbers in planes.
    #[error("numbers in planes: {0}")]
    Planes(&'static str),
    /// The bytes decompress to another length.
    #[error("{actual} bytes after decompression, {expected} expected")]
    Length {
        /// Bytes that came out of the frame.
        actual: usize,
        /// Bytes that the index asks for.
        expected: usize,
    },
}

/// Bytes of one sample. Samples decide how a segment is compressed.
const PROBE_BYTES: usize = 4096;

/// Samples of a segment, at equal distances from its beginning to its end.
const SAMPLES: usize = 4;

/// Segments are shuffled if that saves more than one byte in this many of the compressed bytes.
const SHUFFLE_GAIN_SHARE: usize = 16;

/// Segments are compressed if that saves at least one byte in this many. Raw segments restore faster.
const WORTHWHILE_SHARE: usize = 32;

/// How a segment is to be compressed.
#[derive(Clone, Copy, Debug)]
enum Choice {
    Raw,
    Zstd,
    ShuffledZstd,
    Planes(Layout),
}

impl Choice {
    const fn method(self) -> Method {
        match self {
            Self::Raw => Method::Raw,
            Self::Zstd => Method::Zstd,
            Self::ShuffledZstd => Method::ShuffledZstd,
            Self::Planes(_) => Method::Planes,
        }
    }
}

/// A compressor with its working memory, for one thread.
pub struct Compressor {
    context: CCtx<'static>,
    level: Level,
    probe: Vec<u8>,
    shuffled: Vec<u8>,
}

impl Compressor {
    /// A compressor for segments at `level`.
    ///
    /// # Panics
    /// When there is no memory for the context, or libzstd does not know a parameter that its header declares.
    pub fn new(level: Level) -> Self {
        let mut context = CCtx::create();
        // Frames carry no checksum and no length: every block is hashed, and the index has the length.
        for parameter in [
            CParameter::ChecksumFlag(false),
            CParameter::ContentSizeFlag(false),
            CParameter::DictIdFlag(false),
        ] {
            let set = context.set_parameter(parameter);
            assert!(set.is_ok(), "libzstd knows {parameter:?}");
        }
        let mut compressor = Self {
            context,
            level: Level::STORED,
            probe: Vec::with_capacity(zstd_safe::compress_bound(PROBE_BYTES)),
            shuffled: Vec::new(),
        };
        compressor.set_level(level);
        compressor
    }

    /// Compresses at `level` from now on.
    pub fn set_level(&mut self, level: Level) {
        if self.level == level {
            return;
        }
        self.level = level;
        self.set_zstd_level();
    }

    fn set_zstd_level(&mut self) {
        if let Some(zstd) = self.level.0 {
            let parameter = CParameter::CompressionLevel(zstd);
            // If this fails, the level is another one: what is written is read in the same way.
            let _ = self.context.set_parameter(parameter);
        }
    }

    /// Replaces `out` by the bytes to store for `raw`, never more than `raw` has, and returns the method.
    pub fn compress(&mut self, raw: &[u8], out: &mut Vec<u8>) -> Method {
        let choice = self.best_choice(raw);
        if self.compress_as(choice, raw, out) {
            return choice.method();
        }
        replace(out, raw);
        Method::Raw
    }

    /// Replaces `out` by the compressed bytes, and returns whether they are few enough.
    fn compress_as(&mut self, choice: Choice, raw: &[u8], out: &mut Vec<u8>) -> bool {
        let room = raw.len() - raw.len() / WORTHWHILE_SHARE;
        let source = match choice {
            Choice::Raw => return false,
            Choice::Zstd => raw,
            Choice::ShuffledZstd => {
                self.shuffled.resize(raw.len(), 0);
                shuffle(raw, &mut self.shuffled);
                &self.shuffled
            }
            Choice::Planes(layout) => {
                let scratch = &mut self.shuffled;
                let fits = planes::encode(&mut self.context, raw, layout, scratch, (out, room));
                self.set_zstd_level();
                return fits;
            }
        };
        // Old bytes in `out` are not zeroed: zstd overwrites the bytes that are kept.
        out.resize(room, 0);
        // zstd fails when it runs out of room: then it would save less than is worthwhile.
        let compressed = self.context.compress2(out.as_mut_slice(), source);
        out.truncate(compressed.unwrap_or_default());
        compressed.is_ok()
    }

    /// Chooses a method by samples: compresses them as they are and shuffled, and counts their bytes. The samples are
    /// 1/64 of a full segment, so a segment that is better kept raw is found out cheaply.
    fn best_choice(&mut self, raw: &[u8]) -> Choice {
        if raw.is_empty() || self.level == Level::STORED {
            return Choice::Raw;
        }
        if raw.len() < 16 * PROBE_BYTES {
            return Choice::Zstd;
        }
        // Samples are compressed one by one. In one run, zstd would find matches between samples that
        // the whole segment, with its distances, does not have; and one sample that shrinks would be
        // lost among three that don't.
        let mut plain = 0;
        let mut shuffled = 0;
        let mut pays = false;
        let mut counts = Counts::default();
        for place in 0..SAMPLES {
            let at = (raw.len() - PROBE_BYTES) / (SAMPLES - 1) * place;
            let sample = &raw[at..at + PROBE_BYTES];
            let as_it_is = self.probe(sample);
            let mut planes = [0; PROBE_BYTES];
            shuffle(sample, &mut planes);
            let in_planes = self.probe(&planes);
            let best = as_it_is.min(in_planes);
            pays |= best + PROBE_BYTES / WORTHWHILE_SHARE <= PROBE_BYTES;
            plain += as_it_is;
            shuffled += in_planes;
            counts.add(sample, at);
        }
        if let Some(layout) =
            counts.layout(plain.min(shuffled) as f64 / (SAMPLES * PROBE_BYTES) as f64)
        {
            Choice::Planes(layout)
        } else if !pays {
            Choice::Raw
        } else if shuffled + shuffled / SHUFFLE_GAIN_SHARE < plain {
            Choice::ShuffledZstd
        } else {
            Choice::Zstd
        }
    }

    /// Length of the compressed sample, or of the sample itself if it does not shrink.
    fn probe(&mut self, sample: &[u8]) -> usize {
        self.probe.clear();
        let compressed = self.context.compress2(&mut self.probe, sample);
        compressed.map_or(sample.len(), |len| len.min(sample.len()))
    }
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compressor").finish_non_exhaustive()
    }
}

/// A decompressor with its working memory, for one thread.
pub struct Decompressor {
    context: DCtx<'static>,
    planes: Vec<u8>,
}

impl Decompressor {
    /// A decompressor without working memory yet, except zstd's own.
    pub fn new() -> Self {
        Self {
            context: DCtx::create(),
            planes: Vec::new(),
        }
    }

    /// Replaces `out` by the `raw_len` image bytes of the segment that is stored as `stored`.
    ///
    /// # Errors
    /// When `stored` is anything else than a segment of this length compressed by `method`.
    pub fn decompress(
        &mut self,
        method: Method,
        stored: &[u8],
        raw_len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), DecompressError> {
        match method {
            Method::Raw => replace(out, stored),
            Method::Zstd => inflate_into(&mut self.context, stored, raw_len, out)?,
            Method::ShuffledZstd => {
                inflate_into(&mut self.context, stored, raw_len, &mut self.planes)?;
                out.resize(self.planes.len(), 0);
                unshuffle(&self.planes, out);
            }
            Method::Planes => {
                planes::decode(&mut self.context, stored, raw_len, &mut self.planes, out)?;
            }
        }
        if out.len() != raw_len {
            return Err(DecompressError::Length {
                actual: out.len(),
                expected: raw_len,
            });
        }
        Ok(())
    }
}

fn replace(out: &mut Vec<u8>, raw: &[u8]) {
    out.clear();
    out.extend_from_slice(raw);
}

/// Replaces `out` by the content of the frame, which may have at most `raw_len` bytes.
fn inflate_into(
    context: &mut DCtx<'static>,
    frame: &[u8],
    raw_len: usize,
    out: &mut Vec<u8>,
) -> Result<(), DecompressError> {
    // Old bytes in `out` are not zeroed: zstd overwrites the bytes that are kept.
    out.resize(raw_len, 0);
    let len = inflate(context, frame, out.as_mut_slice())?;
    out.truncate(len);
    Ok(())
}

/// Writes the content of the frame to `out`, and returns its length.
fn inflate(
    context: &mut DCtx<'static>,
    frame: &[u8],
    out: &mut [u8],
) -> Result<usize, DecompressError> {
    context
        .decompress(out, frame)
        .map_err(|code| DecompressError::Zstd(zstd_safe::get_error_name(code)))
}

impl Default for Decompressor {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Decompressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decompressor").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip(raw: &[u8]) -> (Method, usize) {
        let mut stored = b"of an earlier one".to_vec();
        let method = Compressor::new(Level::DEFAULT).compress(raw, &mut stored);
        assert!(stored.len() <= raw.len());
        let mut back = Vec::new();
        Decompressor::new()
            .decompress(method, &stored, raw.len(), &mut back)
            .unwrap();
        assert_eq!(back, raw);
        (method, stored.len())
    }

    fn noise(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        bytes
    }

    #[test]
    fn text_shrinks_and_noise_stays_raw() {
        let text = b"the same words again and again, ".repeat(10_000);
        let (method, len) = round_trip(&text);
        assert_eq!(method, Method::Zstd);
        assert!(len < text.len() / 100);
        assert_eq!(round_trip(&noise(1 << 20)), (Method::Raw, 1 << 20));
        assert_eq!(round_trip(&noise(100)).0, Method::Raw);
    }

    #[test]
    fn numbers_are_shuffled_and_text_is_not() {
        let numbers: Vec<u8> = (0..1 << 17)
            .flat_map(|at| (1.0 + f64::from(at).sin() * 1e-6).to_le_bytes())
            .collect();
        let (method, len) = round_trip(&numbers);
        assert_eq!(method, Method::ShuffledZstd);
        let mut plain = vec![0; numbers.len()];
        let mut context = CCtx::create();
        let plain = context.compress(&mut plain, &numbers, 1).unwrap();
        assert!(len < plain * 9 / 10, "{len} {plain}");
    }

    /// Numbers of a normal distribution, as in the weights of neural networks, each as its bytes.
    fn weights<const BYTES: usize>(bytes: impl Fn(f32) -> [u8; BYTES]) -> Vec<u8> {
        // The sum of twelve uniform numbers.
        let numbers = noise(1 << 21).into_iter().collect::<Vec<u8>>();
        let of = |part: &[u8; 24]| {
            let all = part.as_chunks::<2>().0.iter();
            let sum: f32 = all
                .map(|two| f32::from(u16::from_le_bytes(*two)) / 65_536.0)
                .sum();
            (sum - 6.0) * 0.02
        };
        let numbers = numbers.as_chunks::<24>().0.iter().map(of);
        numbers.flat_map(bytes).collect()
    }

    #[test]
    fn numbers_of_each_width_are_stored_in_planes() {
        let half = |number: f32| {
            let [_, _, low, high] = number.to_le_bytes();
            [low, high]
        };
        let (method, len) = round_trip(&weights(half));
        assert_eq!(method, Method::Planes);
        let bytes = weights(half).len();
        assert!(len * 140 < bytes * 100, "bf16: {bytes} to {len}");
        let (method, len) = round_trip(&weights(f32::to_le_bytes));
        assert_eq!(method, Method::Planes);
        let bytes = weights(f32::to_le_bytes).len();
        assert!(len * 117 < bytes * 100, "fp32: {bytes} to {len}");
        let (method, len) = round_trip(&weights(|number| f64::from(number).to_le_bytes()));
        let bytes = weights(|number| f64::from(number).to_le_bytes()).len();
        // Doubles of so few bits have bytes of zeros, which others methods store as well.
        assert!(
            len * 2 < bytes && method != Method::Raw,
            "fp64: {bytes} to {len}"
        );
    }

    /// The bytes were put together by hand, from docs/inside/format.md and RFC 8878.
    #[test]
    fn planes_are_read_as_the_page_of_formats_describes_them() {
        // Eight numbers of two bytes and a byte more: the first plane as it is, the second a frame with one block
        // that repeats a byte.
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 8, 8 << 3 | 3, 0, 0, 0x3d];
        let mut stored = vec![2, 0b10, 10, 0, 0, 0];
        stored.extend(0..8);
        stored.extend(frame);
        stored.push(b'z');
        let mut raw: Vec<u8> = (0..8).flat_map(|low| [low, 0x3d]).collect();
        raw.push(b'z');
        let mut out = Vec::new();
        let decoded = Decompressor::new().decompress(Method::Planes, &stored, raw.len(), &mut out);
        assert_eq!((decoded, out), (Ok(()), raw));
    }

    #[test]
    fn planes_that_are_something_else_are_refused() {
        let raw = weights(f32::to_le_bytes);
        let raw = &raw[..raw.len() - 1];
        let mut stored = Vec::new();
        let method = Compressor::new(Level::DEFAULT).compress(raw, &mut stored);
        assert_eq!(method, Method::Planes);
        let mut out = Vec::new();
        let mut decode = |stored: &[u8], len: usize| {
            Decompressor::new().decompress(Method::Planes, stored, len, &mut out)
        };
        assert_eq!(decode(&stored, raw.len()), Ok(()));
        // Other widths, planes beyond the width, and lengths that do not fit.
        for (at, byte) in [(0, 3), (0, 2), (1, 0x18), (1, 0), (2, 0xff), (5, 0xff)] {
            let mut other = stored.clone();
            other[at] = byte;
            assert!(decode(&other, raw.len()).is_err(), "{at} {byte}");
        }
        for len in [0, 1, 2, 5, 6, 7, stored.len() - 1] {
            assert!(decode(&stored[..len], raw.len()).is_err(), "{len}");
        }
        for len in [0, 1, raw.len() - 1, raw.len() + 1, raw.len() + 4] {
            assert!(decode(&stored, len).is_err(), "{len}");
        }
        stored.push(0);
        assert!(decode(&stored, raw.len()).is_err());
    }

    #[test]
    fn bytes_that_are_nearly_all_equal_are_not_coded_one_by_one() {
        for width in [2, 3, 4, 8, 4096] {
            let mut bytes = vec![0; 1 << 20];
            for at in (5..bytes.len()).step_by(width * 1000) {
                bytes[at] = 1;
            }
            let (method, len) = round_trip(&bytes);
            assert!(method != Method::Planes && len < 4096, "{width}: {len}");
        }
    }

    #[test]
    fn one_compressible_part_is_enough() {
        let mut bytes = noise(1 << 20);
        bytes[..1 << 19].fill(7);
        assert_eq!(round_trip(&bytes).0, Method::Zstd);
    }

    #[test]
    fn a_level_without_compression_stores_what_would_compress() {
        let bytes = vec![7; 1 << 20];
        let mut stored = Vec::new();
        let mut compressor = Compressor::new(Level::STORED);
        assert_eq!(compressor.compress(&bytes, &mut stored), Method::Raw);
        assert_eq!(stored, bytes);
        compressor.set_level(Level::DEFAULT);
        assert_eq!(compressor.compress(&bytes, &mut stored), Method::Zstd);
    }

    #[test]
    fn levels_are_checked() {
        assert!(Level::new(-7).is_ok() && Level::new(19).is_ok());
        assert_eq!(Level::new(20), Err(LevelError(20)));
        assert_eq!(Level::new(-8), Err(LevelError(-8)));
    }

    #[test]
    fn a_wrong_length_is_refused() {
        let mut out = Vec::new();
        let mut decompressor = Decompressor::new();
        let wrong = decompressor.decompress(Method::Raw, b"abc", 4, &mut out);
        assert_eq!(
            wrong,
            Err(DecompressError::Length {
                actual: 3,
                expected: 4
            })
        );
        let mut stored = Vec::new();
        Compressor::new(Level::DEFAULT).compress(&[1; 1000], &mut stored);
        assert!(
            decompressor
                .decompress(Method::Zstd, &stored, 999, &mut out)
                .is_err()
        );
        assert!(
            decompressor
                .decompress(Method::Zstd, &stored, 1001, &mut out)
                .is_err()
        );
        assert!(
            decompressor
                .decompress(Method::Zstd, &stored, 1000, &mut out)
                .is_ok()
        );
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(raw in prop::collection::vec(any::<u8>(), 1..5000), times in 1..40_usize) {
            round_trip(&raw.repeat(times));
        }

        #[test]
        fn garbage_never_panics(stored in prop::collection::vec(any::<u8>(), 0..500), raw_len in 0..5000_usize) {
            let mut out = Vec::new();
            for method in Method::ALL {
                let _ = Decompressor::new().decompress(method, &stored, raw_len, &mut out);
            }
        }
    }
}
