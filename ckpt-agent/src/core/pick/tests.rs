use codec::index::Patch;

use super::samples::{entry, regular, stored};
use super::*;

fn shared(offset: u64, len: u32) -> SegmentEntry {
    SegmentEntry::Shared {
        offset,
        patch: Patch {
            len,
            changed: 0,
            row: None,
            hash: SegmentHash([0; 32]),
        },
    }
}

/// `t/a` has bytes 0 to 15, `t/d/b` 15 to 30, `t/d/c` 30 to 40, and two links to the first.
fn index() -> Index {
    Index {
        files: vec![
            entry("t", FileKind::Directory),
            entry("t/a", regular(15)),
            entry("t/d", FileKind::Directory),
            entry("t/d/b", regular(15)),
            entry("t/d/c", regular(10)),
            entry("t/e", FileKind::Directory),
            entry("t/e/a2", FileKind::HardLink { file: 1 }),
            entry("t/e/a3", FileKind::HardLink { file: 1 }),
        ],
        segments: vec![
            stored(10),
            SegmentEntry::Zero { bytes: 10 },
            stored(10),
            shared(0, 10),
        ],
    }
}

fn pick(globs: &[&str]) -> Result<Pick, usize> {
    let globs: Vec<Glob> = globs
        .iter()
        .map(|glob| Glob::new(glob.as_bytes()).unwrap())
        .collect();
    let pick = Pick::of(&index(), &globs)?;
    assert_eq!(pick.index.check(), Ok(()), "{globs:?}");
    let bytes: u64 = pick.parts.iter().map(|part| part.end - part.start).sum();
    assert_eq!(pick.index.stream_bytes(), bytes, "{globs:?}");
    Ok(pick)
}

fn paths(pick: &Pick) -> Vec<String> {
    let files = pick.index.files.iter();
    files.map(FileEntry::display_path).collect()
}

fn spans(parts: &[Range<u64>]) -> Vec<(u64, u64)> {
    parts.iter().map(|part| (part.start, part.end)).collect()
}

fn numbers(pick: &Pick) -> Vec<usize> {
    (0..8).filter(|number| pick.wanted.has(*number)).collect()
}

#[test]
fn one_name_gives_that_file_or_tree_alone() {
    let file = pick(&["t/d/b"]).unwrap();
    assert_eq!(paths(&file), ["b"]);
    assert_eq!(spans(&file.parts), [(15, 30)]);
    assert_eq!((numbers(&file), &*file.begins), (vec![1, 2], &[10, 20][..]));
    let rows = file
        .wanted
        .rows(&index(), 0, &PiecesAtHand::default())
        .remove(0);
    assert_eq!(Vec::from_iter(rows.into_keys()), [1]);
    let tree = pick(&["./t/d/"]).unwrap();
    assert_eq!(paths(&tree), ["d", "d/b", "d/c"]);
    assert_eq!(spans(&tree.parts), [(15, 40)]);
    let all = pick(&["t"]).unwrap();
    assert_eq!(paths(&all).len(), 8);
    assert_eq!(numbers(&all), [0, 1, 2, 3]);
}

#[test]
fn patterns_keep_the_directories_above() {
    let two = pick(&["t/*/b", "t/a"]).unwrap();
    assert_eq!(paths(&two), ["t", "t/d", "t/a", "t/d/b"]);
    assert_eq!(spans(&two.parts), [(0, 30)]);
    let none = pick(&["t/a", "t/x*"]);
    assert_eq!(none, Err(1));
}

#[test]
fn segments_that_a_wanted_segment_refers_to_are_wanted_too() {
    let file = pick(&["t/d/c"]).unwrap();
    assert_eq!(spans(&file.parts), [(30, 40)]);
    assert_eq!(numbers(&file), [0, 3]);
    assert_eq!(spans(&file.sources), [(0, 10)]);
    assert_eq!(file.begins, [0, 30]);
}

#[test]
fn a_link_stands_for_a_file_that_was_not_chosen() {
    let links = pick(&["t/e"]).unwrap();
    assert_eq!(paths(&links), ["e", "e/a2", "e/a3"]);
    assert_eq!(links.index.files[1].kind, regular(15));
    assert_eq!(links.index.files[2].kind, FileKind::HardLink { file: 1 });
    assert_eq!(spans(&links.parts), [(0, 15)]);
    let one = pick(&["t/e/a3"]).unwrap();
    assert_eq!(
        (paths(&one), spans(&one.parts)),
        (vec!["a3".to_owned()], vec![(0, 15)])
    );
    let with_file = pick(&["t/e/a3", "t/a"]).unwrap();
    assert_eq!(paths(&with_file), ["t", "t/e", "t/a", "t/e/a3"]);
    assert_eq!(
        with_file.index.files[3].kind,
        FileKind::HardLink { file: 2 }
    );
}
