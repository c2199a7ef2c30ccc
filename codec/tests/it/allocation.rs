//! No parser believes a false length: none allocates much more memory than its input has bytes.

#![allow(unsafe_code, reason = "a global allocator that takes notes")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use codec::Redundancy;
use codec::compress::{Decompressor, Method};
use codec::geometry::SEGMENT_BYTES;
use codec::index::Index;
use codec::manifest::Manifest;
use codec::seal::Cipher;
use codec::serial;

use crate::checkpoint::save;

#[global_allocator]
static ALLOCATOR: Noting = Noting;

/// The system's allocator, which also records the largest request of each thread.
struct Noting;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

fn note(size: usize) {
    // A thread that ends has no thread-local variable any more.
    let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(size)));
}

// SAFETY: all calls go to the system's allocator as they are, and the record allocates nothing.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps the same promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps the same promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        // SAFETY: the caller keeps the same promises.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the same promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Most bytes that serde reserves for a sequence before it has read the elements.
const SEQUENCE_RESERVE_MAX: usize = 1 << 20;

fn largest_request(run: impl FnOnce()) -> usize {
    LARGEST.set(0);
    run();
    LARGEST.get()
}

/// Encodings of large integers, as bincode writes them, to be taken for lengths.
fn lying_lengths() -> Vec<Vec<u8>> {
    let mut lies = vec![vec![250], vec![251, 255, 255]];
    for bits in [20, 24, 28, 30, 31] {
        lies.push([&[252], &(1_u32 << bits).to_le_bytes()[..]].concat());
    }
    for bits in [32, 40, 47, 62, 63] {
        lies.push([&[253], &(1_u64 << bits).to_le_bytes()[..]].concat());
    }
    lies.push([&[253], &u64::MAX.to_le_bytes()[..]].concat());
    lies
}

/// Copies of `bytes` in which one byte is replaced by a false length, for every byte and every length.
fn with_lies(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    (0..bytes.len()).flat_map(move |at| {
        let lies = lying_lengths().into_iter();
        lies.map(move |lie| [&bytes[..at], &lie, &bytes[at + 1..]].concat())
    })
}

#[test]
fn the_notes_are_right() {
    let size = largest_request(|| drop(std::hint::black_box(Vec::<u8>::with_capacity(12_345))));
    assert_eq!(size, 12_345);
}

#[test]
fn no_length_in_an_index_is_believed() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/golden/index");
    let whole = std::fs::read(path).unwrap();
    for bytes in with_lies(&whole) {
        let size = largest_request(|| drop(Index::decode(&bytes)));
        assert!(size <= SEQUENCE_RESERVE_MAX, "{size} bytes for {bytes:?}");
    }
}

#[test]
fn no_length_in_a_manifest_is_believed() {
    let saved = save(b"image", 5, Redundancy::DEFAULT, Cipher::None);
    for mut bytes in with_lies(&saved.manifest[12..saved.manifest.len() - 64]) {
        let len = (bytes.len() as u32).to_le_bytes();
        bytes = [&b"CKPTMAN2"[..], &len, &bytes, &[0; 64]].concat();
        let size = largest_request(|| drop(Manifest::parse(bytes.clone())));
        assert!(size <= SEQUENCE_RESERVE_MAX, "{size} bytes for {bytes:?}");
    }
}

#[test]
fn nested_lengths_are_not_believed() {
    for lie in lying_lengths() {
        let bytes = lie.repeat(50);
        for decode in [
            |bytes: &[u8]| drop(serial::decode::<Vec<Vec<Vec<u64>>>>(bytes, 1 << 30)),
            |bytes: &[u8]| drop(serial::decode::<Vec<String>>(bytes, 1 << 30)),
            |bytes: &[u8]| drop(serial::decode::<Vec<[u64; 32]>>(bytes, 1 << 30)),
            |bytes: &[u8]| drop(serial::decode::<serde_bytes::ByteBuf>(bytes, 1 << 30)),
        ] {
            let size = largest_request(|| decode(&bytes));
            assert!(size <= SEQUENCE_RESERVE_MAX, "{size} bytes for {lie:?}");
        }
    }
}

#[test]
fn a_frame_cannot_grow_beyond_its_segment() {
    // A zstd frame of 128 MiB of zeros.
    let frame = zstd::bulk::compress(&vec![0; 128 << 20], 1).unwrap();
    let mut decompressor = Decompressor::new();
    let mut out = Vec::new();
    let size = largest_request(|| {
        let refused = decompressor.decompress(Method::Zstd, &frame, SEGMENT_BYTES, &mut out);
        assert!(refused.is_err());
    });
    assert!(size <= SEGMENT_BYTES, "{size}");
}
