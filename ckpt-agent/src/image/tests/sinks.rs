//! Faults at the target of a restore.

use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::{Arc, Mutex};

use codec::index::{Extent, FileKind};

use super::*;
use crate::core::pick::samples::{entry, regular, stored};
use crate::image::sink::OutputSink;

/// A tree with two files of one segment each.
fn tree() -> Saved {
    let len = SEGMENT_BYTES as u32;
    let kind = regular(SEGMENT_BYTES as u64);
    Saved {
        index: Index {
            files: vec![
                entry("root", FileKind::Directory),
                entry("root/a", kind.clone()),
                entry("root/sub", FileKind::Directory),
                entry("root/sub/b", kind),
            ],
            segments: vec![stored(len), stored(len)],
        },
        kind: ImageKind::Tree,
        warnings: vec![],
        segments: vec![noise(SEGMENT_BYTES, 1), noise(SEGMENT_BYTES, 2)],
    }
}

/// A single file of one segment.
fn single() -> Saved {
    Saved {
        index: Index {
            files: vec![entry("file", regular(SEGMENT_BYTES as u64))],
            segments: vec![stored(SEGMENT_BYTES as u32)],
        },
        kind: ImageKind::File,
        warnings: vec![],
        segments: vec![noise(SEGMENT_BYTES, 1)],
    }
}

#[test]
fn a_target_that_exists_is_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("target");
    let link = dir.path().join("link");
    fs::write(&target, b"precious").unwrap();
    symlink("nowhere", &link).unwrap();
    for saved in [single(), tree()] {
        for path in [&target, &link] {
            let refused = saved.restore(path, PLAIN).unwrap_err();
            assert!(matches!(&refused, SinkError::Exists(p) if p == path));
        }
    }
    assert_eq!(fs::read(&target).unwrap(), b"precious");
    assert_eq!(names(dir.path()), ["link", "target"]);
}

#[test]
fn a_target_that_appears_meanwhile_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target");
    for saved in [single(), tree()] {
        let target = Target::Path(path.clone());
        let mut sink = Sink::create(&saved.index, &target, PLAIN).unwrap();
        saved.write_all(&mut sink).unwrap();
        fs::write(&path, b"precious").unwrap();
        assert!(matches!(sink.finish(), Err(SinkError::Exists(_))));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        assert_eq!(names(dir.path()), ["target"]);
        fs::remove_file(&path).unwrap();
    }
}

/// Makes the old file or directory at a path, which is to be replaced or to stay.
type Old = fn(&Path);

const OLD_FILE: Old = |path| fs::write(path, b"old").unwrap();
const OLD_LINK: Old = |path| symlink("outside", path).unwrap();
const OLD_TREE: Old = |path| {
    fs::create_dir_all(path.join("old/older")).unwrap();
    symlink("../../outside", path.join("old/link")).unwrap();
    fs::write(path.join("old/file"), b"old").unwrap();
    fs::set_permissions(path.join("old"), fs::Permissions::from_mode(0o0)).unwrap();
};
const OLD_PIPE: Old = |path| {
    let made = std::process::Command::new("mkfifo").arg(path).status();
    assert!(made.unwrap().success());
};

#[test]
fn force_replaces_like_with_like_once_the_new_image_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target");
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), b"kept").unwrap();
    for (saved, old) in [
        (single(), OLD_FILE),
        (single(), OLD_LINK),
        (tree(), OLD_TREE),
    ] {
        old(&path);
        let before = fs::symlink_metadata(&path).unwrap().ino();
        let target = Target::Path(path.clone());
        let mut sink = Sink::create(&saved.index, &target, FORCE).unwrap();
        saved.write_all(&mut sink).unwrap();
        assert_eq!(fs::symlink_metadata(&path).unwrap().ino(), before);
        sink.finish().unwrap();
        let new = fs::symlink_metadata(&path).unwrap();
        assert_eq!(new.is_dir(), saved.kind == ImageKind::Tree);
        assert_eq!(names(dir.path()), ["outside", "target"]);
        assert_eq!(names(&outside), ["kept"]);
        if new.is_dir() {
            fs::remove_dir_all(&path).unwrap();
        } else {
            assert!(fs::read(&path).unwrap() == saved.segments[0]);
            fs::remove_file(&path).unwrap();
        }
    }
}

#[test]
fn force_replaces_nothing_by_what_is_unlike() {
    let cases = [
        (single(), OLD_TREE),
        (single(), OLD_PIPE),
        (tree(), OLD_FILE),
        (tree(), OLD_LINK),
        (tree(), OLD_PIPE),
    ];
    for (saved, old) in cases {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("target");
        fs::create_dir(dir.path().join("outside")).unwrap();
        old(&path);
        let before = fs::symlink_metadata(&path).unwrap().ino();
        let refused = saved.restore(&path, FORCE).unwrap_err();
        assert!(matches!(&refused, SinkError::Unlike { path: p, .. } if *p == path));
        // A file put there while the image is being written is not replaced either.
        fs::rename(&path, dir.path().join("aside")).unwrap();
        let target = Target::Path(path.clone());
        let mut sink = Sink::create(&saved.index, &target, FORCE).unwrap();
        saved.write_all(&mut sink).unwrap();
        fs::rename(dir.path().join("aside"), &path).unwrap();
        let refused = sink.finish().unwrap_err();
        assert!(matches!(&refused, SinkError::Unlike { .. }), "{refused}");
        assert_eq!(fs::symlink_metadata(&path).unwrap().ino(), before);
        assert_eq!(names(dir.path()), ["outside", "target"]);
    }
}

#[test]
fn a_device_is_not_replaced() {
    let device = Path::new("/dev/null");
    let before = fs::metadata(device).unwrap().rdev();
    let refused = single().restore(device, FORCE).unwrap_err();
    assert!(refused.to_string().contains("is a device"), "{refused}");
    assert_eq!(fs::metadata(device).unwrap().rdev(), before);
}

#[test]
fn a_single_file_has_no_name_before_it_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::Path(dir.path().join("target"));
    let saved = single();
    let mut sink = Sink::create(&saved.index, &target, PLAIN).unwrap();
    saved.write_all(&mut sink).unwrap();
    let made = names(dir.path());
    // On a file system without unnamed files, it is in a directory of its own.
    assert!(made.is_empty() || made[0].contains(".ckpt-"), "{made:?}");
    assert!(made.is_empty() || !has_unnamed_files(dir.path()));
    sink.finish().unwrap();
    assert_eq!(names(dir.path()), ["target"]);
}

fn has_unnamed_files(dir: &Path) -> bool {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open(dir, OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR).is_ok()
}

#[test]
fn a_restore_that_is_given_up_leaves_nothing_and_the_old_one() {
    for (saved, old) in [(single(), OLD_FILE), (tree(), OLD_TREE)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("target");
        old(&path);
        let before = fs::symlink_metadata(&path).unwrap().ino();
        let target = Target::Path(path.clone());
        // Before the first byte, in the middle, before the end.
        for written in 0..=saved.segments.len() {
            let mut sink = Sink::create(&saved.index, &target, FORCE).unwrap();
            for segment in saved.segments.iter().take(written) {
                sink.write(segment).unwrap();
            }
            drop(sink);
            assert_eq!(names(dir.path()), ["target"]);
            assert_eq!(fs::symlink_metadata(&path).unwrap().ino(), before);
        }
    }
}

#[test]
fn too_few_and_too_many_bytes_are_no_image() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target");
    for saved in [single(), tree()] {
        let target = Target::Path(path.clone());
        let mut sink = Sink::create(&saved.index, &target, PLAIN).unwrap();
        let mut segments = saved.segments.clone();
        segments.last_mut().unwrap().pop();
        for segment in &segments {
            sink.write(segment).unwrap();
        }
        assert!(matches!(sink.finish(), Err(SinkError::TooShort)));
        let mut sink = Sink::create(&saved.index, &target, PLAIN).unwrap();
        saved.write_all(&mut sink).unwrap();
        assert!(matches!(sink.write(b"1"), Err(SinkError::TooLong)));
        drop(sink);
        let sink = Sink::create(&saved.index, &target, PLAIN).unwrap();
        assert!(matches!(sink.finish(), Err(SinkError::TooShort)));
        assert!(names(dir.path()).is_empty());
    }
}

#[test]
fn planted_links_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let parent = dir.path().join("parent");
    fs::create_dir(&parent).unwrap();
    let saved = tree();
    let target = Target::Path(parent.join("target"));
    // Links replace a directory and a file while the image is being made.
    for planted in ["sub", "sub/b", "a"] {
        let mut sink = Sink::create(&saved.index, &target, PLAIN).unwrap();
        let temporary = parent.join(names(&parent).first().unwrap());
        let plant = temporary.join(planted);
        if planted != "a" {
            sink.write(&saved.segments[0]).unwrap();
        }
        if planted == "sub/b" {
            fs::create_dir(temporary.join("sub")).unwrap();
        }
        symlink(&outside, &plant).unwrap();
        let failed = saved.segments.iter().try_for_each(|s| sink.write(s));
        assert!(
            matches!(failed, Err(SinkError::Io { .. })),
            "{planted}: {failed:?}"
        );
        drop(sink);
        assert!(
            names(&outside).is_empty() && names(&parent).is_empty(),
            "{planted}"
        );
    }
}

#[test]
fn a_directory_swapped_for_a_link_keeps_what_it_points_to() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("b"), b"kept").unwrap();
    fs::set_permissions(&outside, fs::Permissions::from_mode(0o711)).unwrap();
    let seen = see(&outside);
    let saved = tree();
    let parent = dir.path().join("parent");
    fs::create_dir(&parent).unwrap();
    let target = Target::Path(parent.join("target"));
    let mut sink = Sink::create(&saved.index, &target, PLAIN).unwrap();
    saved.write_all(&mut sink).unwrap();
    let temporary = parent.join(names(&parent).first().unwrap());
    fs::rename(temporary.join("sub"), temporary.join("moved")).unwrap();
    symlink(&outside, temporary.join("sub")).unwrap();
    // Neither completing the directory nor cleaning up goes through the link.
    assert!(matches!(sink.finish(), Err(SinkError::Io { .. })));
    assert_eq!(see(&outside), seen);
    assert!(names(&parent).is_empty());
}

#[test]
fn a_target_without_a_directory_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("missing/target");
    let failed = single().restore(&path, PLAIN).unwrap_err();
    let directory = dir.path().join("missing");
    assert_eq!(
        failed.to_string(),
        format!("opening directory {directory:?}")
    );
    for path in ["/", "..", "."] {
        let failed = single().restore(Path::new(path), FORCE).unwrap_err();
        assert!(matches!(failed, SinkError::Name(_)));
    }
}

#[test]
fn an_image_that_cannot_fit_is_refused_with_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let mut saved = single();
    let len = 1 << 60;
    saved.index.files = vec![entry("file", regular(len))];
    saved.index.segments = vec![SegmentEntry::Zero { bytes: len }];
    // Zeros need no room. (No file system has files of that size.)
    let failed = saved.restore(&dir.path().join("t"), PLAIN).unwrap_err();
    assert!(matches!(failed, SinkError::Io { .. }), "{failed}");
    saved.index.segments = (0..1 << 20).map(|_| stored(SEGMENT_BYTES as u32)).collect();
    let refused = saved.restore(&dir.path().join("t"), PLAIN).unwrap_err();
    assert!(
        matches!(refused, SinkError::NoSpace { needed, free, .. } if needed == 1 << 40 && free < needed)
            || fs_has_room(dir.path(), 1 << 40)
    );
    assert!(names(dir.path()).is_empty());
}

fn fs_has_room(path: &Path, bytes: u64) -> bool {
    let stat = rustix::fs::statvfs(path).unwrap();
    stat.f_bavail * stat.f_frsize >= bytes
}

/// A small file system of its own, unmounted and gone at the end.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `None` where mounting is not allowed.
    fn mount(options: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(dir.path())
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(dir)),
            other => {
                eprintln!("not tested here, no mount: {other:?}");
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = std::process::Command::new("umount")
            .arg("-l")
            .arg(self.0.path())
            .status();
        assert!(unmounted.is_ok_and(|status| status.success()));
    }
}

#[test]
fn a_full_disk_is_reported_with_numbers_and_left_clean() {
    let Some(disk) = SmallDisk::mount("size=4m") else {
        return;
    };
    let path = disk.0.path().join("target");
    let saved = tree();
    let target = Target::Path(path);
    let mut sink = Sink::create(&saved.index, &target, PLAIN).unwrap();
    // Another program takes the room.
    let hog = disk.0.path().join("hog");
    let mut hogged = fs::File::create(&hog).unwrap();
    while hogged.write_all(&[1; 4096]).is_ok() {}
    let failed = saved.write_all(&mut sink).unwrap_err();
    assert!(
        matches!(failed, SinkError::NoSpace { needed, free, .. }
            if needed == 2 * SEGMENT_BYTES as u64 && free < needed),
        "{failed:?}"
    );
    drop(sink);
    assert_eq!(names(disk.0.path()), ["hog"]);
}

#[test]
fn a_file_system_mounted_in_a_replaced_directory_is_not_emptied() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target");
    fs::create_dir_all(path.join("mounted")).unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "tmpfs"])
        .arg(path.join("mounted"))
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("not tested here, no mount");
        return;
    }
    fs::write(path.join("mounted/precious"), b"precious").unwrap();
    let restored = tree().restore(&path, FORCE);
    let Err(SinkError::OldRemains { old, .. }) = restored else {
        panic!("{restored:?}");
    };
    let kept = fs::read(old.join("mounted/precious"));
    let unmounted = std::process::Command::new("umount")
        .arg("-l")
        .arg(old.join("mounted"))
        .status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    assert_eq!(kept.unwrap(), b"precious");
    assert_eq!(fs::read(path.join("a")).unwrap().len(), SEGMENT_BYTES);
}

/// Memory that a test can look into while a sink writes to it.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Another user may write in the directory of the target, and replaces the file that is being restored with
/// another one just before it gets its name.
#[test]
fn a_file_that_was_swapped_for_another_is_not_restored() {
    for force in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out");
        if force {
            fs::write(&target, b"old").unwrap();
        }
        let saved = single();
        let options = SinkOptions { force, ..PLAIN };
        let to = Target::Path(target.clone());
        let mut sink = Sink::create(&saved.index, &to, options).unwrap();
        sink.write(&saved.segments[0]).unwrap();
        let entries: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
        for entry in entries {
            let path = entry.unwrap().path();
            if path != target {
                fs::rename(&path, path.with_extension("away")).unwrap();
                fs::write(&path, b"evil").unwrap();
            }
        }
        sink.finish().unwrap();
        assert!(fs::read(&target).unwrap() == saved.segments[0], "{force}");
    }
}

#[test]
fn standard_output_gets_one_file_with_its_holes() {
    let size = 300_000;
    let parts = [(10, 5), (100_000, 70_000)].map(|(offset, len)| Extent { offset, len });
    let kind = FileKind::Regular {
        size,
        extents: parts.to_vec(),
    };
    let index = Index {
        files: vec![entry("file", kind)],
        segments: vec![],
    };
    let bytes = noise(70_005, 8);
    let mut whole = vec![0; 300_000];
    whole[10..15].copy_from_slice(&bytes[..5]);
    whole[100_000..170_000].copy_from_slice(&bytes[5..]);
    let out = Shared::default();
    let mut sink = Sink::Output(OutputSink::new(&index, out.clone()).unwrap());
    sink.write(&bytes[..3]).unwrap();
    sink.write(&bytes[3..1000]).unwrap();
    sink.write(&bytes[1000..]).unwrap();
    assert!(matches!(sink.write(b"1"), Err(SinkError::TooLong)));
    sink.finish().unwrap();
    assert!(*out.0.lock().unwrap() == whole);
    let mut sink = Sink::Output(OutputSink::new(&index, Shared::default()).unwrap());
    sink.zeros(70_004).unwrap();
    assert!(matches!(sink.finish(), Err(SinkError::TooShort)));
    assert!(matches!(
        Sink::create(&tree().index, &Target::Stdout, PLAIN),
        Err(SinkError::TreeToStdout)
    ));
}
