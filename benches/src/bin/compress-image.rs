//! Measures the time and the ratio of compression of an image's segments: plain zstd against the choice
//! between raw, zstd, shuffled zstd and planes that a save makes. Both take turns on each segment, on one thread.
//!
//! ```text
//! cargo run --release -p benches --bin compress-image -- IMAGE [LEVEL...]
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use codec::compress::{Compressor, Decompressor, Level};
use codec::geometry::SEGMENT_BYTES;
use codec::segment::is_zero;
use zstd::bulk;

#[derive(Default)]
struct Tally {
    raw: u64,
    plain: u64,
    chosen: u64,
    plain_time: Duration,
    chosen_time: Duration,
    plain_back: Duration,
    chosen_back: Duration,
    methods: BTreeMap<&'static str, u64>,
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let image = args.next().context("which image?")?;
    let levels: Vec<i32> = args.map(|level| level.parse()).collect::<Result<_, _>>()?;
    println!("level  segments by method  ratio zstd -> chosen  MB/s zstd -> chosen  back");
    for level in if levels.is_empty() { vec![1] } else { levels } {
        let tally = measure(&image, level)?;
        let rate = |time: Duration| tally.raw as f64 / 1e6 / time.as_secs_f64();
        println!(
            "{level:>5}  {:?}  {:.3} -> {:.3}  {:.0} -> {:.0}  {:.0} -> {:.0}",
            tally.methods,
            tally.raw as f64 / tally.plain as f64,
            tally.raw as f64 / tally.chosen as f64,
            rate(tally.plain_time),
            rate(tally.chosen_time),
            rate(tally.plain_back),
            rate(tally.chosen_back),
        );
    }
    Ok(())
}

fn measure(image: &str, level: i32) -> Result<Tally> {
    let mut tally = Tally::default();
    let mut file = File::open(image)?;
    let mut plain = bulk::Compressor::new(level)?;
    let mut plain_back = bulk::Decompressor::new()?;
    let mut compressor = Compressor::new(Level::new(level)?);
    let mut decompressor = Decompressor::new();
    let mut stored = Vec::new();
    let mut back = Vec::new();
    let mut frame = vec![0; zstd::zstd_safe::compress_bound(SEGMENT_BYTES)];
    loop {
        let mut raw = Vec::with_capacity(SEGMENT_BYTES);
        Read::take(&mut file, SEGMENT_BYTES as u64).read_to_end(&mut raw)?;
        if raw.is_empty() {
            return Ok(tally);
        }
        if is_zero(&raw) {
            continue;
        }
        tally.raw += raw.len() as u64;
        let begun = Instant::now();
        let len = plain.compress_to_buffer(&raw, &mut frame)?;
        tally.plain_time += begun.elapsed();
        tally.plain += len.min(raw.len()) as u64;
        back.resize(raw.len(), 0);
        let begun = Instant::now();
        plain_back.decompress_to_buffer(&frame[..len], &mut back)?;
        tally.plain_back += begun.elapsed();
        let begun = Instant::now();
        let method = compressor.compress(&raw, &mut stored);
        tally.chosen_time += begun.elapsed();
        tally.chosen += stored.len() as u64;
        let begun = Instant::now();
        decompressor.decompress(method, &stored, raw.len(), &mut back)?;
        tally.chosen_back += begun.elapsed();
        *tally.methods.entry(method.name()).or_default() += 1;
    }
}
