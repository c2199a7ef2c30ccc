//! Faults in the files that are to be saved.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

use codec::index::FileKind;
use rustix::fs::{Mode, OFlags};

use super::*;
use crate::image::{Exclude, NameError, NamedPath, exclude_pattern};

/// A directory with a large file `a`, a small `b` and a large `c`.
pub(super) fn three_files() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("image");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("a"), noise(3 * SEGMENT_BYTES + 5, 1)).unwrap();
    fs::write(root.join("b"), noise(100, 2)).unwrap();
    fs::write(root.join("c"), noise(2 * SEGMENT_BYTES, 3)).unwrap();
    (dir, root)
}

/// Saves with the strict options, applies `change` before segment `at`, and returns the error.
fn refused(root: &Path, at: usize, change: impl Fn(&Path)) -> String {
    let source = Source::from_paths(&[root.to_owned()], STRICT).unwrap();
    let failed = drain_with(source, |number| {
        if number == at {
            change(root);
        }
    });
    match failed {
        Err(SourceError::Changed { path, what }) => {
            format!("{}: {what}", path.strip_prefix(root).unwrap().display())
        }
        other => panic!("{other:?}"),
    }
}

fn append(path: &Path) {
    let mut file = File::options().append(true).open(path).unwrap();
    file.write_all(b"more").unwrap();
}

fn shorten(path: &Path) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(SEGMENT_BYTES as u64 + 1).unwrap();
}

/// Writes in place, and makes sure that the clock of the file system has moved on.
fn overwrite(path: &Path) {
    let file = File::options().write(true).open(path).unwrap();
    let before = file.metadata().unwrap().mtime_nsec();
    while file.metadata().unwrap().mtime_nsec() == before {
        file.write_all_at(b"other", 0).unwrap();
    }
}

#[test]
fn a_file_that_changes_before_it_is_read_is_refused() {
    let (_dir, root) = three_files();
    assert_eq!(
        refused(&root, 1, |r| append(&r.join("c"))),
        "c: its size changed"
    );
    assert_eq!(
        refused(&root, 1, |r| overwrite(&r.join("c"))),
        "c: it was written to"
    );
    let (_dir, root) = three_files();
    assert_eq!(
        refused(&root, 1, |r| fs::remove_file(r.join("b")).unwrap()),
        "b: it vanished; left out"
    );
}

#[test]
fn a_file_that_changes_while_it_is_read_is_refused() {
    let (_dir, root) = three_files();
    assert_eq!(
        refused(&root, 2, |r| append(&r.join("a"))),
        "a: its size changed"
    );
    assert_eq!(
        refused(&root, 2, |r| overwrite(&r.join("a"))),
        "a: it was written to"
    );
    assert_eq!(
        refused(&root, 2, |r| shorten(&r.join("a"))),
        "a: it became shorter"
    );
}

#[test]
fn a_single_file_may_be_replaced_while_it_is_saved_but_not_written_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let first = noise(3 * SEGMENT_BYTES + 5, 1);
    let second = noise(100, 2);
    for before_segment in [0, 1, 3, 4] {
        fs::write(&path, &first).unwrap();
        let source = Source::from_paths(std::slice::from_ref(&path), STRICT).unwrap();
        let saved = drain_with(source, |number| {
            if number == before_segment {
                let next = dir.path().join("next");
                fs::write(&next, &second).unwrap();
                fs::rename(next, &path).unwrap();
            }
        });
        // The file is opened for the first segment.
        let whole = if before_segment == 0 { &second } else { &first };
        let saved = saved.unwrap();
        assert_eq!(
            &saved.segments.concat(),
            whole,
            "replaced before segment {before_segment}"
        );
    }
    fs::write(&path, &first).unwrap();
    let source = Source::from_paths(std::slice::from_ref(&path), STRICT).unwrap();
    let written = drain_with(source, |number| {
        if number == 2 {
            overwrite(&path);
        }
    });
    assert!(matches!(written, Err(SourceError::Changed { .. })));
}

#[test]
fn a_file_that_changes_after_it_was_read_is_refused_too() {
    let (_dir, root) = three_files();
    assert_eq!(
        refused(&root, 5, |r| overwrite(&r.join("a"))),
        "a: it was written to"
    );
    assert_eq!(
        refused(&root, 5, |r| {
            fs::rename(r.join("b"), r.join("old b")).unwrap();
            fs::write(r.join("b"), noise(100, 2)).unwrap();
        }),
        ": files in it were made, renamed or removed"
    );
}

#[test]
fn a_further_name_of_a_file_keeps_it_whole_when_the_first_one_goes_and_not_when_it_is_written_to() {
    let large = vec![7; 3 * SEGMENT_BYTES];
    let set_aside = || {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("aside");
        fs::create_dir(&root).unwrap();
        fs::write(dir.path().join("large"), &large).unwrap();
        fs::hard_link(dir.path().join("large"), root.join("large")).unwrap();
        fs::write(root.join("small"), b"some").unwrap();
        (dir, root)
    };
    for before_segment in [0, 1, 2, 3] {
        let (dir, root) = set_aside();
        let source = Source::from_paths(std::slice::from_ref(&root), STRICT).unwrap();
        let replace = |number| {
            if number == before_segment {
                fs::write(dir.path().join("next"), b"next").unwrap();
                fs::rename(dir.path().join("next"), dir.path().join("large")).unwrap();
            }
        };
        let saved = drain_with(source, replace);
        assert!(saved.is_ok(), "replaced before segment {before_segment}");
    }
    let (dir, root) = set_aside();
    let written = refused(&root, 1, |_| {
        fs::rename(dir.path().join("large"), dir.path().join("moved")).unwrap();
        fs::write(dir.path().join("next"), b"next").unwrap();
        overwrite(&dir.path().join("moved"));
        fs::remove_file(dir.path().join("moved")).unwrap();
    });
    assert!(written.contains("it was written to"), "{written}");
}

#[test]
fn a_file_replaced_by_a_link_or_a_fifo_is_not_followed() {
    let (dir, root) = three_files();
    let secret = dir.path().join("secret");
    fs::write(&secret, noise(2 * SEGMENT_BYTES, 9)).unwrap();
    let by_link = |r: &Path| {
        fs::remove_file(r.join("c")).unwrap();
        symlink(&secret, r.join("c")).unwrap();
    };
    assert_eq!(refused(&root, 1, by_link), "c: it vanished; left out");
    let (_dir, root) = three_files();
    let by_fifo = |r: &Path| {
        fs::remove_file(r.join("c")).unwrap();
        let kind = rustix::fs::FileType::Fifo;
        let mode = Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, r.join("c"), kind, mode, 0).unwrap();
    };
    assert_eq!(refused(&root, 1, by_fifo), "c: it vanished; left out");
}

#[test]
fn a_directory_replaced_by_a_link_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("image");
    fs::create_dir_all(root.join("d")).unwrap();
    // The last directory of the list is still open when reading begins.
    fs::create_dir_all(root.join("z/z")).unwrap();
    fs::create_dir_all(dir.path().join("secret")).unwrap();
    fs::write(root.join("a"), noise(2 * SEGMENT_BYTES, 1)).unwrap();
    fs::write(root.join("d/file"), b"mine").unwrap();
    fs::write(dir.path().join("secret/file"), b"hers").unwrap();
    let swapped = refused(&root, 1, |r| {
        fs::rename(r.join("d"), r.join("e")).unwrap();
        symlink(dir.path().join("secret"), r.join("d")).unwrap();
    });
    assert_eq!(swapped, "d/file: it vanished; left out");
}

#[test]
fn accepted_changes_are_saved_as_read_and_reported_once() {
    let (dir, root) = three_files();
    let begin = fs::read(root.join("a")).unwrap();
    let source = Source::from_paths(std::slice::from_ref(&root), ACCEPT_CHANGED).unwrap();
    let saved = drain_with(source, |number| {
        if number == 1 {
            // The first segment of `a` was read before `a` is shortened. `b` vanishes, `c` grows.
            shorten(&root.join("a"));
            fs::remove_file(root.join("b")).unwrap();
            append(&root.join("c"));
        }
    })
    .unwrap();
    let warnings: Vec<_> = saved.warnings.iter().map(|w| w.text.as_str()).collect();
    assert_eq!(warnings.len(), 4, "{warnings:#?}");
    for (name, warning) in ["a\"", "b\"", "c\"", "image\""].into_iter().zip(&warnings) {
        let path = warning.split(" changed while").next().unwrap();
        assert!(path.ends_with(name), "{warning}");
    }
    let back = dir.path().join("back");
    saved.restore(&back, PLAIN).unwrap();
    let a = fs::read(back.join("a")).unwrap();
    assert_eq!(a.len(), begin.len());
    assert_eq!(a[..=SEGMENT_BYTES], begin[..=SEGMENT_BYTES]);
    assert!(a[SEGMENT_BYTES + 1..].iter().all(|&byte| byte == 0));
    assert!(!back.join("b").exists());
    assert_eq!(
        fs::read(back.join("c")).unwrap(),
        fs::read(root.join("c")).unwrap()
    );
}

#[test]
fn a_link_to_a_file_that_was_left_out_is_left_out_and_others_keep_their_file() {
    let (dir, root) = three_files();
    fs::hard_link(root.join("b"), root.join("z b")).unwrap();
    fs::hard_link(root.join("c"), root.join("z c")).unwrap();
    let source = Source::from_paths(std::slice::from_ref(&root), ACCEPT_CHANGED).unwrap();
    let saved = drain_with(source, |number| {
        if number == 1 {
            fs::remove_file(root.join("b")).unwrap();
        }
    })
    .unwrap();
    let back = dir.path().join("back");
    saved.restore(&back, PLAIN).unwrap();
    assert_eq!(names(&back), ["a", "c", "z c"]);
    let inode = |name| fs::metadata(back.join(name)).unwrap().ino();
    assert_eq!(inode("c"), inode("z c"));
}

#[test]
fn a_missing_path_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("no\nwhere");
    let failed = Source::from_paths(std::slice::from_ref(&path), STRICT).unwrap_err();
    assert_eq!(failed.to_string(), format!("reading {path:?}"));
    symlink("nothing", &path).unwrap();
    assert!(matches!(
        Source::from_paths(&[path], STRICT),
        Err(SourceError::Io { .. })
    ));
}

#[test]
fn sockets_are_left_out_with_a_warning_and_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    let saved = save(&[dir.path().to_owned()]);
    assert_eq!(saved.index.files.len(), 1);
    let warning = &saved.warnings.first().unwrap().text;
    assert!(
        warning.ends_with("socket\": a socket is not saved"),
        "{warning}"
    );
    let refused = Source::from_paths(&[socket], STRICT).unwrap_err();
    assert!(matches!(
        refused,
        SourceError::NotAFile { what: "socket", .. }
    ));
    let device = Source::from_paths(&[PathBuf::from("/dev/null")], STRICT).unwrap_err();
    assert!(matches!(
        device,
        SourceError::NotAFile { what: "device", .. }
    ));
}

#[test]
fn named_links_are_followed_and_found_ones_are_kept() {
    let (dir, root) = three_files();
    symlink(&root, dir.path().join("latest")).unwrap();
    symlink("a", root.join("link")).unwrap();
    let saved = save(&[dir.path().join("latest")]);
    let first = saved.index.files.first().unwrap();
    assert_eq!(
        (first.path.as_slice(), &first.kind),
        (b"latest".as_slice(), &FileKind::Directory)
    );
    let link = saved.index.files.last().unwrap();
    assert_eq!(
        link.kind,
        FileKind::Symlink {
            target: b"a".to_vec()
        }
    );
}

#[test]
fn two_paths_of_the_same_name_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["x/same", "y/same"] {
        fs::create_dir_all(dir.path().join(name)).unwrap();
    }
    let paths = ["x/same", "y/same"].map(|name| dir.path().join(name));
    assert!(matches!(
        Source::from_paths(&paths, STRICT),
        Err(SourceError::SameName(name)) if name == "same"
    ));
    assert!(matches!(
        Source::from_paths(&[PathBuf::from("/")], STRICT),
        Err(SourceError::Name(_))
    ));
}

/// Makes directories below `root` until a path is too long to be saved, and returns that path.
fn deeper_than_can_be_saved(root: &Path) -> usize {
    let name = "d".repeat(200);
    let mut bytes = root.file_name().unwrap().len();
    let mut at = rustix::fs::open(root, OFlags::PATH, Mode::empty()).unwrap();
    while bytes <= 4096 {
        rustix::fs::mkdirat(&at, &name, Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, &name, OFlags::PATH, Mode::empty()).unwrap();
        bytes += 1 + name.len();
    }
    bytes
}

#[test]
fn a_path_that_is_too_long_is_named_in_short_and_can_be_left_out() {
    let (_dir, root) = three_files();
    let bytes = deeper_than_can_be_saved(&root);
    let failed = Source::from_paths(std::slice::from_ref(&root), STRICT).unwrap_err();
    let SourceError::TooLong {
        pattern, bytes: of, ..
    } = &failed
    else {
        panic!("{failed}");
    };
    assert_eq!(*of, bytes);
    let shown = failed.to_string();
    assert!(shown.len() < 300 + root.as_os_str().len(), "{shown}");
    assert!(pattern.len() < 100, "{pattern}");
    let without = Exclude::new(vec![exclude_pattern(pattern).unwrap()]);
    let paths = std::slice::from_ref(&root);
    let source = Source::from_paths_without(paths, STRICT, without.unwrap()).unwrap();
    let saved = drain(source).unwrap();
    assert_eq!(saved.index.files.len(), 4, "{:?}", saved.index.files);
}

#[test]
fn excluded_files_are_not_saved() {
    let (_dir, root) = three_files();
    fs::create_dir_all(root.join("cache/deep")).unwrap();
    fs::write(root.join("cache/deep/x"), b"x").unwrap();
    fs::write(root.join("y.tmp"), b"y").unwrap();
    let patterns = ["cache", "*.tmp"].map(|text| exclude_pattern(text).unwrap());
    let exclude = Exclude::new(patterns.to_vec()).unwrap();
    let paths = std::slice::from_ref(&root);
    let saved = drain(Source::from_paths_without(paths, STRICT, exclude).unwrap()).unwrap();
    let mut names = saved.index.files.iter().map(|file| file.path.as_slice());
    assert!(names.all(|name| !name.ends_with(b".tmp") && !name.ends_with(b"cache")));
    assert_eq!(saved.index.files.len(), 4);
}

#[test]
fn dots_are_saved_under_the_directorys_own_name() {
    let (_dir, root) = three_files();
    let saved = save(&[root.join("..").join("image").join("..")]);
    let parent = root.parent().unwrap().file_name().unwrap();
    assert_eq!(saved.index.files.first().unwrap().path, parent.as_bytes());
}

#[test]
fn a_stream_that_breaks_is_reported() {
    struct Broken(usize);
    impl Read for Broken {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0 += 1;
            match self.0 {
                1 => Err(io::ErrorKind::Interrupted.into()),
                2 => {
                    buffer.fill(7);
                    Ok(buffer.len().min(1000))
                }
                _ => Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
    }
    let failed = drain(Source::from_reader(Broken(0), STRICT)).unwrap_err();
    assert!(
        matches!(failed, SourceError::Stdin(cause) if cause.kind() == io::ErrorKind::BrokenPipe)
    );
}

#[test]
fn a_stream_without_bytes_and_a_list_without_paths_are_refused_unless_they_may_be_empty() {
    let of_reader = |options| Source::from_reader(io::empty(), options);
    let refused = drain(of_reader(STRICT)).unwrap_err();
    assert!(
        matches!(refused, SourceError::Empty(Emptiness::Reader)),
        "{refused}"
    );
    assert_eq!(
        drain(of_reader(ALLOW_EMPTY)).unwrap().index.stream_bytes(),
        0
    );
    let refused = Source::from_paths(&[], STRICT).unwrap_err();
    assert!(
        matches!(refused, SourceError::Empty(Emptiness::NoPaths)),
        "{refused}"
    );
    let nothing = drain(Source::from_paths(&[], ALLOW_EMPTY).unwrap()).unwrap();
    assert!(nothing.index.files.is_empty());
}

#[test]
fn an_image_of_which_every_file_is_left_out_is_refused_and_named_ones_may_be_empty() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    fs::write(&path, b"some").unwrap();
    let paths = std::slice::from_ref(&path);
    // It is there when the list is made, and gone when it is to be read.
    let source = |options| {
        fs::write(&path, b"some").unwrap();
        let source = Source::from_paths(paths, options).unwrap();
        fs::remove_file(&path).unwrap();
        drain(source)
    };
    let refused = source(ACCEPT_CHANGED).unwrap_err();
    assert!(
        matches!(refused, SourceError::Empty(Emptiness::NoFiles)),
        "{refused}"
    );
    let allowed = source(SourceOptions {
        allow_empty: true,
        ..ACCEPT_CHANGED
    })
    .unwrap();
    assert!(allowed.index.files.is_empty() && allowed.warnings.len() == 1);

    fs::write(&path, b"").unwrap();
    assert_eq!(save(paths).index.files.len(), 1);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(save(paths).index.files.len(), 1);
}

/// Root reads everything, so this runs as nobody in a child process.
#[test]
fn unreadable_files_are_named_or_left_out() {
    const CHILD: &str = "CKPT_TEST_UNREADABLE";
    let name = "image::tests::sources::unreadable_files_are_named_or_left_out";
    if let Some(root) = std::env::var_os(CHILD) {
        return unreadable_in_child(Path::new(&root));
    }
    let (dir, root) = three_files();
    fs::hard_link(root.join("b"), root.join("b again")).unwrap();
    fs::create_dir(root.join("closed")).unwrap();
    let open = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    open(dir.path(), 0o755);
    let is_root = rustix::process::geteuid().is_root();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child
        .args([name, "--exact", "--nocapture"])
        .env(CHILD, &root);
    if is_root {
        // The test binary may lie where nobody can't reach it: run a copy.
        let copy = dir.path().join("tests");
        fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        open(&copy, 0o755);
        child = std::process::Command::new("setpriv");
        child
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&copy)
            .args([name, "--exact", "--nocapture"])
            .env(CHILD, &root)
            .current_dir("/");
    }
    open(&root.join("b"), 0o000);
    open(&root.join("closed"), 0o000);
    let ended = child.output().unwrap();
    assert!(
        ended.status.success(),
        "{}{}",
        String::from_utf8_lossy(&ended.stdout),
        String::from_utf8_lossy(&ended.stderr)
    );
    assert!(String::from_utf8_lossy(&ended.stdout).contains("1 passed"));
}

fn unreadable_in_child(root: &Path) {
    let denied = |failed: &SourceError, name: &str| match failed {
        SourceError::Io { path, cause, .. } => {
            assert_eq!(path, &root.join(name));
            assert_eq!(cause.kind(), io::ErrorKind::PermissionDenied);
        }
        other => panic!("{other:?}"),
    };
    let paths = [root.to_owned()];
    denied(&Source::from_paths(&paths, STRICT).unwrap_err(), "closed");
    let alone = [root.join("b")];
    let source = Source::from_paths(&alone, STRICT).unwrap();
    denied(&drain(source).unwrap_err(), "b");
    let skip = SourceOptions {
        skip_unreadable: true,
        ..STRICT
    };
    let saved = drain(Source::from_paths(&paths, skip).unwrap()).unwrap();
    let kept: Vec<_> = saved.index.files.iter().map(|f| f.display_path()).collect();
    assert_eq!(kept, ["image", "image/a", "image/c", "image/closed"]);
    let is_warning = |remark: &&Remark| remark.weight == crate::image::Weight::Warning;
    let warned = saved.warnings.iter().filter(is_warning).count();
    assert_eq!(warned, 3, "{:?}", saved.warnings);
}

/// The paths under which these are stored, and their kinds.
fn saved_as(named: &[NamedPath]) -> Result<(Vec<(String, FileKind)>, ImageKind), SourceError> {
    let saved = drain(Source::from_named(named, STRICT, Exclude::default())?)?;
    saved.index.check().unwrap();
    let files = saved.index.files.into_iter();
    let files = files.map(|file| (file.display_path(), file.kind));
    Ok((files.collect(), saved.kind))
}

fn renamed(path: &Path, name: &str) -> NamedPath {
    NamedPath::renamed(path, name.as_ref()).unwrap()
}

#[test]
fn files_are_stored_under_the_names_that_they_are_given() {
    let (_dir, root) = three_files();
    fs::hard_link(root.join("a"), root.join("d")).unwrap();
    let (files, kind) = saved_as(&[renamed(&root.join("b"), "x")]).unwrap();
    assert_eq!((files[0].0.as_str(), kind), ("x", ImageKind::File));
    let named = [
        renamed(&root.join("b"), "out/deep/b"),
        NamedPath::own(root.join("c")),
        renamed(&root, "out/all"),
        renamed(&root.join("a"), "outer"),
    ];
    let (files, kind) = saved_as(&named).unwrap();
    let paths: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "out",
            "out/deep",
            "out/deep/b",
            "c",
            "out/all",
            "out/all/a",
            "out/all/b",
            "out/all/c",
            "out/all/d",
            "outer",
        ]
    );
    assert_eq!(kind, ImageKind::Tree);
    // The numbers that hard links refer to count the added directories.
    assert_eq!(files[8].1, FileKind::HardLink { file: 5 });
    assert_eq!(files[9].1, FileKind::HardLink { file: 5 });
    let (_, kind) = saved_as(&[renamed(&root.join("b"), "d/b")]).unwrap();
    assert_eq!(kind, ImageKind::Tree, "a file in a directory");
}

#[test]
fn names_that_are_taken_and_links_are_refused() {
    let (dir, root) = three_files();
    let a = root.join("a");
    let b = root.join("b");
    symlink(&a, dir.path().join("link")).unwrap();
    for (one, other) in [("x", "x"), ("x", "x/y"), ("x/y", "x"), ("b/c", "b")] {
        let refused = saved_as(&[renamed(&a, one), renamed(&b, other)]).unwrap_err();
        assert!(
            matches!(refused, SourceError::NameTaken { .. }),
            "{refused}"
        );
    }
    saved_as(&[renamed(&a, "x/y"), renamed(&b, "x/yz")]).unwrap();
    let link = renamed(&dir.path().join("link"), "x");
    let refused = saved_as(&[link]).unwrap_err();
    assert!(refused.to_string().contains("symbolic link"), "{refused}");
    for name in ["", "/x", "x/", "x//y", ".", "../x", "x/./y", "x\0"] {
        assert!(NamedPath::renamed(&a, name.as_ref()).is_err(), "{name:?}");
    }
    let long = "n".repeat(4096);
    let long = saved_as(&[renamed(&root, &long)]).unwrap_err();
    assert!(matches!(long, SourceError::TooLong { .. }), "{long}");
}

#[test]
fn an_argument_is_a_path_that_is_there_or_a_path_and_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let read = |name: &str| NamedPath::of_argument(&at(name));
    fs::write(at("a"), b"1").unwrap();
    assert_eq!(read("a=b"), Ok(renamed(&at("a"), "b")));
    assert_eq!(read("a=b=c"), Ok(renamed(&at("a"), "b=c")));
    assert_eq!(read("none=b"), Ok(NamedPath::own(at("none=b"))));
    assert!(matches!(read("a=../b"), Err(NameError::Impossible { .. })));
    fs::write(at("a=b"), b"2").unwrap();
    assert_eq!(read("a=b"), Ok(NamedPath::own(at("a=b"))));
    assert!(matches!(read("a=b=c"), Err(NameError::Ambiguous { .. })));
}
