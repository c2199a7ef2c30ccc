//! States that a file system does not show: sizes, maps, access lists, what is excluded.

use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, symlink};

use super::sources::three_files;
use super::*;
use crate::image::{Exclude, Weight, exclude_pattern};

#[test]
fn a_file_of_size_0_is_read_to_its_end() {
    let path = Path::new("/proc/version");
    if fs::metadata(path).map_or(1, |of| of.len()) != 0 {
        eprintln!("not tested here: /proc/version has a size");
        return;
    }
    let content = fs::read(path).unwrap();
    let saved = save(&[path.to_owned()]);
    assert!(!content.is_empty());
    let warning = &saved.warnings[0];
    assert_eq!(warning.weight, Weight::Warning);
    assert!(warning.text.contains("read to its end"), "{warning:?}");
    assert_eq!(saved.segments.concat(), content);
    assert_eq!(saved.index.files[0].size(), content.len() as u64);
    let back = tempfile::tempdir().unwrap();
    let target = back.path().join("version");
    saved.restore(&target, PLAIN).unwrap();
    assert_eq!(fs::read(target).unwrap(), content);
}

#[test]
fn files_without_a_size_are_saved_among_others() {
    let Some(sizeless) = fs::read("/proc/self/limits")
        .ok()
        .filter(|it| !it.is_empty())
    else {
        eprintln!("not tested here: no /proc/self/limits");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let large = noise(2 * SEGMENT_BYTES + 7, 3);
    fs::write(dir.path().join("large"), &large).unwrap();
    fs::write(dir.path().join("empty"), b"").unwrap();
    let paths = [
        dir.path().join("large"),
        PathBuf::from("/proc/self/limits"),
        dir.path().join("empty"),
    ];
    let saved = save(&paths);
    let sizes: Vec<u64> = saved.index.files.iter().map(|file| file.size()).collect();
    assert_eq!(sizes, [large.len() as u64, sizeless.len() as u64, 0]);
    assert_eq!(saved.segments.concat(), [large, sizeless].concat());
}

#[test]
fn a_file_that_is_excluded_may_come_and_go() {
    let (dir, root) = three_files();
    let without = || Exclude::new(vec![exclude_pattern("*.tmp").unwrap()]).unwrap();
    let paths = [root.clone()];
    let save_while = |change: &dyn Fn(usize)| {
        let source = Source::from_paths_without(&paths, STRICT, without()).unwrap();
        drain_with(source, change).map(|_| ())
    };
    let made = |_: usize| fs::write(root.join("work.tmp"), b"x").unwrap();
    assert!(save_while(&made).is_ok());
    let removed = |_: usize| _ = fs::remove_file(root.join("work.tmp"));
    assert!(save_while(&removed).is_ok());
    // Another name is noticed, also beside one that is excluded.
    let both = |_: usize| {
        fs::write(root.join("work.tmp"), b"x").unwrap();
        fs::write(root.join("other"), b"x").unwrap();
    };
    let refused = save_while(&both).unwrap_err().to_string();
    assert!(refused.contains("files in it were made"), "{refused}");
    // So is a directory that took the place of the first one.
    let replaced = |number: usize| {
        if number == 1 {
            fs::rename(&root, dir.path().join("old")).unwrap();
            fs::create_dir(&root).unwrap();
            for name in ["a", "b", "c", "other"] {
                fs::rename(dir.path().join("old").join(name), root.join(name)).unwrap();
            }
        }
    };
    assert!(save_while(&replaced).is_err());
}

/// An access control list as Linux keeps it: what owner, the user 7, the owning group, and others may do, and the
/// mask.
fn access_list(group: u8, mask: u8) -> Vec<u8> {
    let entries = [(1_u8, 6_u8), (2, 4), (4, group), (0x10, mask), (0x20, 0)].into_iter();
    let entries = entries.flat_map(|(kind, rights)| {
        let id = if kind == 2 { [7, 0, 0, 0] } else { [0xff; 4] };
        [kind, 0, rights, 0].into_iter().chain(id)
    });
    [2, 0, 0, 0].into_iter().chain(entries).collect()
}

#[test]
fn the_mask_of_an_access_list_gives_the_group_no_right() {
    let (dir, root) = three_files();
    let set = |path: &Path, group, mask| {
        let name = c"system.posix_acl_access";
        let list = access_list(group, mask);
        rustix::fs::setxattr(path, name, &list, rustix::fs::XattrFlags::empty()).is_ok()
    };
    let sub = root.join("sub");
    fs::create_dir(&sub).unwrap();
    if !(set(&root.join("a"), 0, 4) && set(&sub, 0, 7) && set(&root.join("b"), 6, 4)) {
        eprintln!("not tested here: no access control lists");
        return;
    }
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o070;
    assert_eq!((mode(&root.join("a")), mode(&sub)), (0o040, 0o070));
    let saved = save(std::slice::from_ref(&root));
    let back = dir.path().join("back");
    saved.restore(&back, PLAIN).unwrap();
    assert_eq!(mode(&back.join("a")), 0);
    assert_eq!(mode(&back.join("sub")), 0);
    assert_eq!(mode(&back.join("b")), 0o040);
    let notes: Vec<&Remark> = saved.warnings.iter().collect();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_eq!(notes[0].weight, Weight::Note);
    assert!(
        notes[0].text.contains("the access control list of 3 files"),
        "{notes:?}"
    );
    // A file that is named itself, by a link.
    let link = dir.path().join("link");
    symlink(root.join("a"), &link).unwrap();
    assert_eq!(save(&[link]).index.files[0].mode & 0o070, 0);
}

#[test]
fn extended_attributes_that_are_not_kept_are_noted() {
    let (_dir, root) = three_files();
    let flags = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(root.join("b"), c"user.note", b"x", flags).is_err() {
        eprintln!("not tested here: no extended attributes");
        return;
    }
    let saved = save(std::slice::from_ref(&root));
    let text = &saved.warnings[0].text;
    assert!(
        text.starts_with("not kept: extended attributes of ") && text.ends_with("/b\""),
        "{text}"
    );
}

#[test]
fn attributes_come_back_if_that_was_asked_for() {
    let (dir, root) = three_files();
    let flags = rustix::fs::XattrFlags::empty();
    let note =
        |path: &Path, value: &[u8]| rustix::fs::setxattr(path, c"user.note", value, flags).is_ok();
    let list = access_list(0, 4);
    let listed = rustix::fs::setxattr(root.join("a"), c"system.posix_acl_access", &list, flags);
    if !note(&root.join("b"), b"x") || listed.is_err() {
        eprintln!("not tested here: no extended attributes");
        return;
    }
    assert!(note(&root, &[0, 7, 255]));
    let read_only = fs::Permissions::from_mode(0o444);
    fs::set_permissions(root.join("b"), read_only).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        std::os::unix::fs::chown(root.join("c"), Some(1234), Some(5678)).unwrap();
        symlink("a", root.join("link")).unwrap();
        std::os::unix::fs::lchown(root.join("link"), Some(1234), Some(5678)).unwrap();
    }
    let options = SourceOptions {
        extended_attributes: true,
        owners: true,
        ..STRICT
    };
    let source = Source::from_paths(std::slice::from_ref(&root), options).unwrap();
    let saved = drain(source).unwrap();
    assert_eq!(saved.warnings, []);
    let back = dir.path().join("back");
    saved.restore(&back, PLAIN).unwrap();
    let value = |path: &Path, name: &std::ffi::CStr| {
        let mut value = vec![0; 200];
        let len = rustix::fs::getxattr(path, name, value.as_mut_slice()).unwrap();
        value[..len].to_vec()
    };
    assert_eq!(value(&back.join("b"), c"user.note"), b"x");
    assert_eq!(value(&back, c"user.note"), [0, 7, 255]);
    assert_eq!(value(&back.join("a"), c"system.posix_acl_access"), list);
    let mode = |name: &str| fs::symlink_metadata(back.join(name)).unwrap().mode() & 0o777;
    assert_eq!((mode("a") & 0o070, mode("b")), (0o040, 0o444));
    if is_root {
        for name in ["c", "link"] {
            let found = fs::symlink_metadata(back.join(name)).unwrap();
            assert_eq!((found.uid(), found.gid()), (1234, 5678), "{name}");
        }
    }
}

/// A program that maps a file, prints `open`, and then writes to it through the map each time that it reads a
/// line; `None` where there is no Python.
struct MapWriter {
    child: std::process::Child,
    out: io::BufReader<std::process::ChildStdout>,
}

impl MapWriter {
    fn start(path: &Path) -> Option<Self> {
        let script = "import mmap, os, sys\n\
                      fd = os.open(sys.argv[1], os.O_RDWR)\n\
                      memory = mmap.mmap(fd, 0)\n\
                      os.close(fd)\n\
                      memory[0:1] = b'0'\n\
                      print('open', flush=True)\n\
                      for line in sys.stdin:\n\
                      \x20   memory[0:1] = line[0:1].encode()\n\
                      \x20   print('done', flush=True)\n";
        let mut python = std::process::Command::new("python3");
        python.args(["-c", script]).arg(path);
        python.stdin(std::process::Stdio::piped());
        let mut child = python.stdout(std::process::Stdio::piped()).spawn().ok()?;
        let out = io::BufReader::new(child.stdout.take()?);
        let mut writer = Self { child, out };
        (writer.line() == "open").then_some(writer)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        io::BufRead::read_line(&mut self.out, &mut line).unwrap();
        line.trim().to_owned()
    }

    fn write(&mut self, text: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{text}").unwrap();
        assert_eq!(self.line(), "done");
    }
}

impl Drop for MapWriter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_write_through_a_map_is_noticed() {
    for dir in ["/dev/shm", "/tmp", "/var/tmp"] {
        let Ok(dir) = tempfile::tempdir_in(dir) else {
            continue;
        };
        let path = dir.path().join("state");
        let content = noise(3 * SEGMENT_BYTES + 5, 1);
        fs::write(&path, &content).unwrap();
        let Some(mut writer) = MapWriter::start(&path) else {
            eprintln!("not tested here: no python3");
            return;
        };
        // One that only has it mapped does no harm.
        let quiet = save(std::slice::from_ref(&path));
        assert_eq!(quiet.segments.concat()[1..], content[1..]);
        let source = Source::from_paths(std::slice::from_ref(&path), STRICT).unwrap();
        let torn = drain_with(source, |number| {
            if number == 2 {
                writer.write("1");
            }
        });
        assert!(matches!(torn, Err(SourceError::Changed { .. })), "{torn:?}");
        // The program renamed another file into its place meanwhile, and goes on to write to the first one.
        let source = Source::from_paths(std::slice::from_ref(&path), STRICT).unwrap();
        let torn = drain_with(source, |number| {
            if number == 2 {
                writer.write("2");
                fs::write(dir.path().join("next"), b"next").unwrap();
                fs::rename(dir.path().join("next"), &path).unwrap();
            }
        });
        assert!(matches!(torn, Err(SourceError::Changed { .. })), "{torn:?}");
    }
}

#[test]
fn a_map_that_was_made_while_the_files_were_read_counts_as_a_change() {
    let (_dir, root) = three_files();
    let mut writer = None;
    let source = Source::from_paths(std::slice::from_ref(&root), ACCEPT_CHANGED).unwrap();
    let saved = drain_with(source, |number| {
        if number == 2 {
            writer = MapWriter::start(&root.join("b"));
        }
    })
    .unwrap();
    if writer.is_none() {
        eprintln!("not tested here: no python3");
        return;
    }
    assert!(!saved.warnings.is_empty());
    let is_mixed = |remark: &Remark| remark.weight == Weight::Mixed;
    assert!(saved.warnings.iter().all(is_mixed), "{:?}", saved.warnings);
}
