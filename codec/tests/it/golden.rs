//! A checkpoint in the formats of shards, index and manifest. These files never change: a format that changes
//! gets a new number and new files.

use std::path::{Path, PathBuf};

use codec::compress::Method;
use codec::geometry::SEGMENT_BYTES;
use codec::index::{Extent, FileEntry, FileKind, Index, SegmentEntry, StoredSegment};
use codec::seal::Cipher;
use codec::{Redundancy, SegmentHash};

use crate::checkpoint::{restore, save};

/// Compares `actual` with the fixture. If it differs, or there is no fixture, `actual` is written to a
/// directory that the message names.
#[track_caller]
fn expect_fixture(name: &str, actual: &[u8]) {
    expect(&fixture_path(name), actual);
}

/// As [`expect_fixture`], for a file anywhere.
#[track_caller]
pub(crate) fn expect(fixture: &Path, actual: &[u8]) {
    if std::fs::read(fixture).is_ok_and(|expected| expected == actual) {
        return;
    }
    let made = fixture.components().rev().take(3).collect::<Vec<_>>();
    let made: PathBuf = made.into_iter().rev().collect();
    let made = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(made);
    std::fs::create_dir_all(made.parent().unwrap()).unwrap();
    std::fs::write(&made, actual).unwrap();
    panic!(
        "the format changed: {} is not {}",
        made.display(),
        fixture.display()
    );
}

fn fixture_path(name: &str) -> PathBuf {
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/golden");
    fixtures.join(name)
}

fn fixture(name: &str) -> Vec<u8> {
    let path = fixture_path(name);
    std::fs::read(&path).unwrap_or_else(|cause| panic!("{}: {cause}", path.display()))
}

/// 200 bytes of noise, zeros, and text that compresses.
fn image() -> Vec<u8> {
    let mut image = vec![0; 400];
    blake3::Hasher::new().finalize_xof().fill(&mut image[..200]);
    image.extend_from_slice(&b"the same words again and again, ".repeat(20)[..200]);
    image
}

const SHARDS: [&str; 5] = ["shard0", "shard1", "shard2", "shard3", "shard4"];

#[test]
fn the_kept_checkpoint_is_read() {
    let shards = SHARDS.map(fixture);
    let back = restore(&fixture("manifest"), &shards).unwrap();
    assert_eq!(back, image());
    let back = restore(&fixture("manifest"), &shards[2..]).unwrap();
    assert_eq!(back, image());
}

/// If only this test fails after an update of zstd, then zstd's output changed and the format did not: the
/// checkpoint can still be read, and differs only in compressed rows.
#[test]
fn a_checkpoint_is_written_as_it_was() {
    let saved = save(&image(), 200, Redundancy::DEFAULT, Cipher::Aes256Gcm);
    for (name, shard) in SHARDS.into_iter().zip(&saved.shards) {
        expect_fixture(name, shard);
    }
    expect_fixture("manifest", &saved.manifest);
}

#[test]
fn an_index_is_written_as_it_was_and_read() {
    let file = |path: &str, kind| FileEntry {
        path: path.as_bytes().to_vec(),
        mode: 0o4755,
        mtime_s: -1_000_000_000,
        mtime_ns: 999_999_999,
        kind,
        attributes: None,
    };
    let extent = |offset, len| Extent { offset, len };
    let regular = FileKind::Regular {
        size: 1 << 40,
        extents: vec![extent(0, 300), extent(1 << 39, SEGMENT_BYTES as u64)],
    };
    let target = b"../elsewhere".to_vec();
    let stored = |raw_len, stored_len, method| SegmentEntry::Stored {
        stored: StoredSegment {
            raw_len,
            stored_len,
            method,
        },
        hash: SegmentHash([0xAB; 32]),
    };
    let index = Index {
        files: vec![
            file("dump", FileKind::Directory),
            file("dump/pages \n", regular),
            file("dump/link", FileKind::Symlink { target }),
            file("dump/again", FileKind::HardLink { file: 1 }),
            file("dump/pipe", FileKind::Fifo),
        ],
        segments: vec![
            stored(300, 300, Method::Raw),
            SegmentEntry::Zero { bytes: 70_000 },
            stored(SEGMENT_BYTES as u32 - 70_000, 5_000, Method::Zstd),
        ],
    };
    expect_fixture("index", &index.encode().unwrap());
    assert_eq!(Index::decode(&fixture("index")), Ok(index));
}
