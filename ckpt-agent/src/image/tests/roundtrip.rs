//! Saved images come back as they were.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use codec::index::{Extent, FileKind};
use proptest::prelude::*;
use rustix::fs::{FileType, Mode};

use super::*;

fn set_time(path: &Path, seconds: u64, nanos: u32) {
    let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos);
    File::open(path).unwrap().set_modified(time).unwrap();
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mkfifo(path: &Path) {
    rustix::fs::mknodat(
        rustix::fs::CWD,
        path,
        FileType::Fifo,
        Mode::from_raw_mode(0o640),
        0,
    )
    .unwrap();
}

/// A directory with a file of every kind and many odd names.
fn everything(root: &Path) {
    fs::create_dir(root).unwrap();
    let long = "n".repeat(255);
    let odd: [&[u8]; 6] = [
        b"new\nline",
        b"not utf-8 \xff\xfe",
        b" spaces ",
        b"-rf",
        b"\x1b[31m",
        long.as_bytes(),
    ];
    for (number, name) in (1..).zip(odd) {
        let path = root.join(OsStr::from_bytes(name));
        fs::write(&path, noise(1000 * number, number as u64)).unwrap();
        chmod(&path, 0o400 + u32::try_from(number).unwrap());
    }
    fs::write(root.join("empty"), b"").unwrap();
    chmod(&root.join("empty"), 0o666);
    fs::write(root.join("large"), noise((3 << 20) + 17, 99)).unwrap();
    fs::hard_link(root.join("large"), root.join("same as large")).unwrap();
    fs::create_dir_all(root.join("deep/er/and deeper")).unwrap();
    fs::hard_link(root.join("large"), root.join("deep/er/same")).unwrap();
    symlink("/etc/passwd", root.join("outside")).unwrap();
    symlink("nowhere", root.join("dangling")).unwrap();
    symlink("..", root.join("deep/up")).unwrap();
    mkfifo(&root.join("deep/pipe"));
    fs::create_dir(root.join("empty directory")).unwrap();
    fs::create_dir(root.join("read only")).unwrap();
    fs::write(root.join("read only/file"), b"content").unwrap();
    set_time(&root.join("read only/file"), 1, 1);
    chmod(&root.join("read only/file"), 0);
    set_time(&root.join("read only"), 1_000_000_000, 999_999_999);
    chmod(&root.join("read only"), 0o555);
    set_time(&root.join("deep"), 5, 0);
    chmod(&root.join("deep"), 0o1777);
}

#[test]
fn a_tree_of_every_kind_of_file_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("image");
    everything(&root);
    let saved = save(std::slice::from_ref(&root));
    assert_eq!((saved.kind, saved.warnings.len()), (ImageKind::Tree, 0));
    let back = dir.path().join("back");
    saved.restore(&back, PLAIN).unwrap();
    assert_eq!(see(&root), see(&back));
    assert_eq!(names(dir.path()), ["back", "image"]);
    let first = back.join("large");
    let second = back.join("deep/er/same");
    assert_eq!(
        fs::metadata(first).unwrap().ino(),
        fs::metadata(second).unwrap().ino()
    );
}

#[test]
fn the_list_is_the_same_for_the_same_tree() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("image");
    everything(&root);
    let first = save(std::slice::from_ref(&root));
    let second = save(std::slice::from_ref(&root));
    assert_eq!(first.index, second.index);
    let paths: Vec<_> = first.index.files.iter().map(|f| &f.path).collect();
    let read_only = paths
        .iter()
        .position(|p| p.ends_with(b"read only"))
        .unwrap();
    assert!(paths[read_only + 1].ends_with(b"read only/file"));
}

#[test]
fn more_files_than_are_synced_one_by_one_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("image");
    for number in 0..300_u32 {
        let directory = root.join(format!("d{}", number % 7));
        fs::create_dir_all(&directory).unwrap();
        let bytes = noise(number as usize * 40, number.into());
        fs::write(directory.join(format!("f{number}")), bytes).unwrap();
    }
    let saved = save(std::slice::from_ref(&root));
    assert!(saved.segments.len() < 4, "small files share segments");
    let back = dir.path().join("back");
    saved.restore(&back, PLAIN).unwrap();
    assert_eq!(see(&root), see(&back));
}

#[test]
fn single_files_come_back_under_any_name() {
    let dir = tempfile::tempdir().unwrap();
    for (number, len) in [
        0,
        1,
        SEGMENT_BYTES - 1,
        SEGMENT_BYTES,
        SEGMENT_BYTES + 1,
        3_000_000,
    ]
    .into_iter()
    .enumerate()
    {
        let file = dir.path().join(format!("file{number}"));
        fs::write(&file, noise(len, 7)).unwrap();
        chmod(&file, 0o751);
        set_time(&file, 77, 5);
        let saved = save(std::slice::from_ref(&file));
        assert_eq!(saved.kind, ImageKind::File);
        let back = dir.path().join(format!("back{number}"));
        saved.restore(&back, PLAIN).unwrap();
        assert_eq!(see(&file), see(&back));
    }
}

#[test]
fn several_paths_come_back_in_one_directory() {
    let dir = tempfile::tempdir().unwrap();
    everything(&dir.path().join("tree"));
    fs::create_dir(dir.path().join("empty")).unwrap();
    fs::write(dir.path().join("file"), b"alone").unwrap();
    let paths = ["tree", "empty", "file"].map(|name| dir.path().join(name));
    let saved = save(&paths);
    let back = dir.path().join("back");
    saved.restore(&back, PLAIN).unwrap();
    assert_eq!(names(&back), ["empty", "file", "tree"]);
    for path in paths {
        assert_eq!(see(&path), see(&back.join(path.file_name().unwrap())));
    }
}

#[test]
fn a_huge_sparse_file_is_neither_read_nor_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sparse");
    let file = File::create(&path).unwrap();
    if let Err(cause) = file.set_len(1 << 40) {
        eprintln!("not tested here: {cause}");
        return;
    }
    let bytes = noise(1 << 20, 3);
    file.write_all_at(&bytes, (1 << 39) + 4096).unwrap();
    let source = Source::from_paths(std::slice::from_ref(&path), STRICT).unwrap();
    let planned = source.planned_bytes().unwrap();
    assert!((1 << 20..2 << 20).contains(&planned), "{planned}");
    let saved = drain(source).unwrap();
    assert!(saved.segments.len() <= 2);
    let back = dir.path().join("back");
    saved.restore(&back, PLAIN).unwrap();
    let old = fs::metadata(&path).unwrap();
    let new = fs::metadata(&back).unwrap();
    assert_eq!(old.len(), new.len());
    assert!(new.blocks() <= old.blocks() + 64, "{}", new.blocks());
    let mut read = vec![0; 1 << 20];
    let opened = File::open(&back).unwrap();
    opened.read_exact_at(&mut read, (1 << 39) + 4096).unwrap();
    assert_eq!(read, bytes);
}

#[test]
fn zeros_in_a_file_come_back_as_holes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("zeros");
    let mut bytes = vec![0; 16 << 20];
    bytes[5 << 20] = 1;
    fs::write(&path, &bytes).unwrap();
    let saved = save(std::slice::from_ref(&path));
    assert_eq!(saved.segments.len(), 1);
    let back = dir.path().join("back");
    saved.restore(&back, PLAIN).unwrap();
    assert_eq!(fs::read(&back).unwrap(), bytes);
    assert!(fs::metadata(&back).unwrap().blocks() * 512 <= 2 << 20);
}

#[test]
fn a_very_deep_tree_comes_back_and_can_be_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let mut path = dir.path().join("image");
    fs::create_dir(&path).unwrap();
    for _ in 0..600 {
        path.push("d");
        fs::create_dir(&path).unwrap();
    }
    fs::write(path.join("bottom"), b"here").unwrap();
    let saved = save(&[dir.path().join("image")]);
    let back = dir.path().join("back");
    saved.restore(&back, PLAIN).unwrap();
    let bottom: PathBuf = std::iter::repeat_n("d", 600).collect();
    assert_eq!(fs::read(back.join(bottom).join("bottom")).unwrap(), b"here");
    // Replacing it removes the old one, which is as deep.
    saved.restore(&back, FORCE).unwrap();
    assert_eq!(names(dir.path()), ["back", "image"]);
}

#[test]
fn setuid_and_setgid_come_back_only_when_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"#!").unwrap();
    chmod(&file, 0o6755);
    let saved = save(std::slice::from_ref(&file));
    for (set_id_bits, mode) in [(false, 0o755), (true, 0o6755)] {
        let back = dir.path().join("back");
        let options = SinkOptions {
            force: true,
            set_id_bits,
        };
        saved.restore(&back, options).unwrap();
        assert_eq!(fs::metadata(&back).unwrap().mode() & 0o7777, mode);
    }
}

#[test]
fn streams_come_back_as_private_files() {
    let dir = tempfile::tempdir().unwrap();
    for len in [0, 1, SEGMENT_BYTES, 2 * SEGMENT_BYTES + 5] {
        let bytes = noise(len, 1);
        let source = Source::from_reader(std::io::Cursor::new(bytes.clone()), ALLOW_EMPTY);
        assert_eq!(source.planned_bytes(), None);
        let saved = drain(source).unwrap();
        assert_eq!(saved.kind, ImageKind::Stream);
        let back = dir.path().join(format!("back{len}"));
        saved.restore(&back, PLAIN).unwrap();
        assert_eq!(fs::read(&back).unwrap(), bytes);
        assert_eq!(fs::metadata(&back).unwrap().mode() & 0o7777, 0o600);
    }
}

#[test]
fn large_files_begin_a_segment_and_small_ones_share() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("image");
    fs::create_dir(&root).unwrap();
    for (name, len) in [
        ("a", 10),
        ("b", 20),
        ("c", SEGMENT_BYTES),
        ("d", 5),
        ("e", 6),
    ] {
        fs::write(root.join(name), noise(len, 4)).unwrap();
    }
    let saved = save(&[root]);
    let lens: Vec<_> = saved.segments.iter().map(Vec::len).collect();
    assert_eq!(lens, [30, SEGMENT_BYTES, 11]);
}

#[derive(Clone, Debug)]
enum Node {
    Directory(Vec<(OsString, Self)>),
    File {
        pieces: Vec<(u32, u32)>,
        end: u32,
    },
    Link(Vec<u8>),
    Fifo,
    /// Another name of a file that was made before.
    HardLink(prop::sample::Index),
}

fn name() -> impl Strategy<Value = OsString> {
    use std::os::unix::ffi::OsStringExt;
    let byte = any::<u8>().prop_filter("special", |b| *b != 0 && *b != b'/');
    prop::collection::vec(byte, 1..12)
        .prop_filter("special", |name| name != b"." && name != b"..")
        .prop_map(OsString::from_vec)
}

fn node() -> impl Strategy<Value = Node> {
    let piece = (0..200_000_u32, 1..200_000_u32);
    let leaf = prop_oneof![
        4 => (prop::collection::vec(piece, 0..5), 0..100_000_u32)
            .prop_map(|(pieces, end)| Node::File { pieces, end }),
        1 => prop::collection::vec(1..=255_u8, 1..30).prop_map(Node::Link),
        1 => Just(Node::Fifo),
        1 => any::<prop::sample::Index>().prop_map(Node::HardLink),
    ];
    leaf.prop_recursive(4, 40, 8, |inner| {
        prop::collection::vec((name(), inner), 0..8).prop_map(Node::Directory)
    })
}

fn build(path: &Path, node: &Node, made: &mut Vec<PathBuf>) {
    match node {
        Node::Directory(children) => {
            fs::create_dir(path).unwrap();
            for (name, child) in children {
                let path = path.join(name);
                if fs::symlink_metadata(&path).is_err() {
                    build(&path, child, made);
                }
            }
        }
        Node::File { pieces, end } => {
            let file = File::create(path).unwrap();
            let mut at = 0;
            for (hole, len) in pieces {
                at += u64::from(*hole);
                file.write_all_at(&noise(*len as usize, at), at).unwrap();
                at += u64::from(*len);
            }
            file.set_len(at + u64::from(*end)).unwrap();
            made.push(path.to_owned());
        }
        Node::Link(target) => symlink(OsStr::from_bytes(target), path).unwrap(),
        Node::Fifo => mkfifo(path),
        Node::HardLink(which) if !made.is_empty() => {
            fs::hard_link(which.get(made), path).unwrap();
        }
        Node::HardLink(_) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_tree_comes_back(
        children in prop::collection::vec((name(), node()), 0..8),
        modes in prop::collection::vec(0..0o2000_u32, 8),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("image");
        build(&root, &Node::Directory(children), &mut Vec::new());
        let all: Vec<_> = see(&root).into_keys().collect();
        for (name, mode) in all.iter().zip(modes) {
            let path = root.join(OsStr::from_bytes(name));
            if !fs::symlink_metadata(&path).unwrap().is_symlink() {
                // The owner keeps access, so that the test can look into it.
                chmod(&path, mode & 0o1777 | 0o700);
            }
        }
        let saved = save(std::slice::from_ref(&root));
        let back = dir.path().join("back");
        saved.restore(&back, PLAIN).unwrap();
        prop_assert_eq!(see(&root), see(&back));
        let again = save(std::slice::from_ref(&back));
        let shape = |saved: &Saved| -> Vec<_> {
            saved.index.files.iter().map(|f| (f.path.len(), f.kind.clone())).collect()
        };
        // File systems keep holes of different sizes, which adds at most 64 KiB of data to a file.
        let data = |saved: &Saved| -> u64 {
            shape(saved).iter().map(|(_, kind)| match kind {
                FileKind::Regular { extents, .. } => extents.iter().map(|e: &Extent| e.len).sum(),
                _ => 0,
            }).sum()
        };
        prop_assert!(data(&again) <= data(&saved) + (all.len() as u64) * 65_536);
    }
}
