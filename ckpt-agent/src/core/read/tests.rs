use codec::SegmentHash;
use codec::ShardIndex;
use codec::compress::Method;
use codec::index::{Extent, Patch, StoredSegment};
use codec::layers::{Layer, Layered};
use proptest::prelude::*;

use super::*;
use crate::core::{Fault, HostIndex, Millis};

fn stored(bytes: u32) -> SegmentEntry {
    SegmentEntry::Stored {
        stored: StoredSegment {
            raw_len: bytes,
            stored_len: bytes,
            method: Method::Raw,
        },
        hash: SegmentHash([0; 32]),
    }
}

fn patch(len: u32, row: bool) -> Patch {
    let format = StoredSegment {
        raw_len: 1,
        stored_len: 1,
        method: Method::Raw,
    };
    Patch {
        len,
        changed: u64::from(row),
        row: row.then_some((format, SegmentHash([1; 32]))),
        hash: SegmentHash([2; 32]),
    }
}

/// A segment that uses row 7 of the first origin.
fn layered(len: u32, row: bool) -> SegmentEntry {
    let Patch { row, hash, .. } = patch(len, row);
    let layer = Layer {
        origin: 0,
        row: 7,
        stored: StoredSegment {
            raw_len: 40,
            stored_len: 40,
            method: Method::Raw,
        },
        used: 1,
        taken: 1,
    };
    SegmentEntry::Layered(Layered {
        len,
        layers: vec![layer],
        row: row.map(|(stored, _)| stored),
        hash,
    })
}

fn file(path: &str, kind: FileKind) -> FileEntry {
    FileEntry {
        path: path.as_bytes().to_vec(),
        mode: 0o600,
        mtime_s: 0,
        mtime_ns: 0,
        kind,
        attributes: None,
    }
}

fn regular(path: &str, size: u64, extents: &[(u64, u64)]) -> FileEntry {
    let extents = extents.iter();
    let extents = extents.map(|&(offset, len)| Extent { offset, len });
    file(
        path,
        FileKind::Regular {
            size,
            extents: extents.collect(),
        },
    )
}

/// Two files, a link to the second, and something else; segments of every kind.
fn layout() -> Layout {
    Layout::new(Index {
        files: vec![
            file("d", FileKind::Directory),
            regular("d/a", 100, &[(10, 20), (50, 30)]),
            regular("d/b", 60, &[(0, 60)]),
            file("d/c", FileKind::HardLink { file: 2 }),
            file(
                "d/l",
                FileKind::Symlink {
                    target: b"a".to_vec(),
                },
            ),
        ],
        segments: vec![
            stored(40),
            SegmentEntry::Zero { bytes: 15 },
            layered(15, true),
            layered(20, false),
            SegmentEntry::Shared {
                offset: 35,
                patch: patch(20, true),
            },
        ],
    })
}

#[test]
fn files_are_found_by_their_paths() {
    let layout = layout();
    assert_eq!(layout.file(Some(b"d/a")), Ok(FileNumber(1)));
    assert_eq!(layout.file(Some(b"d/c")), Ok(FileNumber(2)));
    assert_eq!(layout.file(None), Err(NoFile::Several(5)));
    let missing = layout.file(Some(b"a")).unwrap_err();
    assert!(matches!(missing, NoFile::Missing(_)), "{missing}");
    for (path, kind) in [("d", "directory"), ("d/l", "symbolic link")] {
        let refused = layout.file(Some(path.as_bytes())).unwrap_err();
        assert!(refused.to_string().contains(kind), "{refused}");
    }
}

#[test]
fn parts_of_a_file_are_holes_and_pieces_of_the_stream() {
    let layout = layout();
    let parts = |range| layout.parts(FileNumber(1), range);
    let whole = [
        Part::Hole(10),
        Part::Stream(0..20),
        Part::Hole(20),
        Part::Stream(20..50),
        Part::Hole(20),
    ];
    assert_eq!(parts(0..100), whole);
    assert_eq!(
        parts(0..1000),
        whole,
        "what lies beyond the end is left out"
    );
    assert_eq!(parts(15..16), [Part::Stream(5..6)]);
    assert_eq!(parts(30..50), [Part::Hole(20)]);
    assert_eq!(parts(79..81), [Part::Stream(49..50), Part::Hole(1)]);
    assert_eq!(parts(100..200), []);
    assert_eq!(layout.parts(FileNumber(2), 5..7), [Part::Stream(55..57)]);
    for (offset, at) in [
        (0, 0),
        (12, 2),
        (40, 20),
        (55, 25),
        (90, 50),
        (u64::MAX, 50),
    ] {
        assert_eq!(layout.stream_at(FileNumber(1), offset), at, "{offset}");
    }
}

#[test]
fn a_read_needs_the_rows_of_its_segment_and_of_what_it_is_made_of() {
    let layout = layout();
    let needs = |part: Range<u64>, kept: &[usize]| {
        let needs = layout.needs(layout.overlapping(&part), |number| kept.contains(&number));
        let own = needs.rows.keys().filter(|place| place.0 == 0);
        let rows: Vec<u64> = own.map(|place| place.1).collect();
        let base = needs.rows.keys().filter(|place| place.0 == 1);
        let base: Vec<u64> = base.map(|place| place.1).collect();
        let segments: Vec<usize> = needs.segments.iter().copied().collect();
        (segments, rows, base)
    };
    assert_eq!(needs(0..1, &[]), (vec![0], vec![0], vec![]));
    assert_eq!(needs(0..1, &[0]), (vec![], vec![], vec![]));
    assert_eq!(needs(41..50, &[]), (vec![], vec![], vec![]), "zeros");
    assert_eq!(needs(55..56, &[]), (vec![2], vec![1], vec![7]));
    assert_eq!(needs(70..90, &[]), (vec![3], vec![], vec![7]), "unchanged");
    // Bytes 35 to 55 are the end of the first segment, and zeros.
    assert_eq!(needs(95..96, &[]), (vec![0, 4], vec![0, 2], vec![]));
    assert_eq!(needs(95..96, &[0]), (vec![4], vec![2], vec![]));
    assert_eq!(needs(0..0, &[]), (vec![], vec![], vec![]));
}

#[test]
fn missing_rows_are_never_taken_for_zeros() {
    let layout = layout();
    let mut buffer = [9; 4];
    assert_eq!(
        layout.copy(&(41..45), &mut buffer, &BTreeMap::new()),
        Some(())
    );
    assert_eq!(buffer, [0; 4]);
    assert_eq!(layout.copy(&(39..43), &mut buffer, &BTreeMap::new()), None);
    let short = BTreeMap::from([(0, Shared::from(vec![1; 39]))]);
    assert_eq!(layout.copy(&(39..43), &mut buffer, &short), None);
    let whole = BTreeMap::from([(0, Shared::from(vec![1; 40]))]);
    assert_eq!(layout.copy(&(39..43), &mut buffer, &whole), Some(()));
    assert_eq!(buffer, [1, 0, 0, 0]);
}

#[test]
fn only_reads_in_order_are_read_ahead_of() {
    let mut ahead = ReadAhead::new(5);
    let mut read = |file, from, to| {
        ahead.read(file, from, to);
        ahead.more()
    };
    let grown: Vec<usize> = (0..5).map(|n| read(1, n * 10, n * 10 + 10)).collect();
    assert_eq!(grown, [0, 1, 2, 4, 5]);
    assert_eq!(read(1, 7, 9), 0, "somewhere else");
    assert_eq!(read(2, 9, 10), 0, "in another file");
    assert_eq!(read(2, 10, 11), 1);
}

#[test]
fn hosts_that_did_badly_are_asked_when_the_others_are_not_enough() {
    let shards = codec::Redundancy::DEFAULT.shards();
    let all: Vec<(ShardIndex, HostIndex)> = shards.zip((0..).map(HostIndex)).collect();
    let mut holders = Holders::new(all.clone());
    assert_eq!(holders.to_ask(Millis(0), 3), all);
    holders.failed(HostIndex(0), &Fault::Gone("away".into()), Millis(0));
    holders.failed(HostIndex(1), &Fault::Lied("block".into()), Millis(0));
    assert_eq!(holders.to_ask(Millis(1), 3), all[2..]);
    assert_eq!(
        holders.to_ask(Millis(60_000), 3),
        [&all[..1], &all[2..]].concat(),
        "who was away may be back, who lied is not believed again"
    );
    holders.was_slow(HostIndex(2), Millis(1));
    assert_eq!(holders.to_ask(Millis(2), 3), all, "two are not enough");
}

proptest! {
    /// Compares the cache with a list of all uses, newest first.
    #[test]
    fn the_cache_keeps_what_was_used_last(
        uses in prop::collection::vec((0_usize..8, 1_usize..6, any::<bool>()), 0..60),
        room in 0_usize..12,
    ) {
        let mut cache = SegmentCache::new(room as u64);
        let mut model: Vec<(usize, usize)> = Vec::new();
        for (number, len, is_put) in uses {
            let at = model.iter().position(|(kept, _)| *kept == number);
            if is_put {
                at.map(|at| model.remove(at));
                cache.put(number, Shared::from(vec![0; len]));
                if len <= room {
                    while model.iter().map(|(_, len)| len).sum::<usize>() + len > room {
                        model.pop();
                    }
                    model.insert(0, (number, len));
                }
            } else {
                let found = at.map(|at| model.remove(at));
                prop_assert_eq!(cache.get(number).map(|bytes| bytes.len()), found.map(|one| one.1));
                if let Some(found) = found {
                    model.insert(0, found);
                }
            }
            let bytes: usize = model.iter().map(|(_, len)| len).sum();
            prop_assert_eq!(cache.bytes(), bytes as u64);
            for number in 0..8 {
                prop_assert_eq!(cache.has(number), model.iter().any(|(kept, _)| *kept == number));
            }
        }
    }
}
