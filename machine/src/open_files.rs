//! Which processes can write to the files of a state: they have one of them open for writing, or mapped shared
//! and writable. Found in `/proc`.
//!
//! A file is known by device and inode: in another mount namespace, through a bind mount or by another hard
//! link it has another path. A path below the state counts, too, also of a file that is not listed, unless it is
//! left out.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, DirEntry, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, OFlags, StatxFlags, makedev, statfs, statx};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

/// Numbers of the file systems whose files have another device in `/proc/PID/maps` than elsewhere: btrfs and
/// overlayfs.
const OTHER_DEVICE_IN_MAPS: [i64; 2] = [0x9123_683e, 0x794c_7630];

/// Place of a process's state, and of the size of its memory, among the fields of `/proc/PID/stat` after the
/// process's name.
const STATE_FIELD: usize = 0;
const MEMORY_FIELD: usize = 20;

/// Most open files of a state that are listed. Where there are more, nothing is known of the others.
const OPEN_FILES_MAX: usize = 10_000;

/// What a path in `/proc/PID/fd` ends with if the file has no name any more.
const DELETED: &[u8] = b" (deleted)";

/// What distinguishes a file from all others, under whatever path it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId {
    /// Its inode.
    pub inode: u64,
    /// The device of its file system.
    pub device: u64,
}

impl FileId {
    /// Of a file's metadata.
    pub fn of(found: &Metadata) -> Self {
        Self {
            inode: found.ino(),
            device: found.dev(),
        }
    }
}

/// Most processes that are listed.
const PROCESSES_MAX: usize = 100_000;

/// Process ids of all processes of this machine that `/proc` shows.
pub fn all_processes() -> BTreeSet<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.take(PROCESSES_MAX).collect()
}

/// Says whether a path below a root of the state is no part of it.
pub type LeftOut<'a> = dyn Fn(&Path) -> bool + 'a;

/// The files of a state, as processes may have them open.
pub struct StateFiles<'a> {
    roots: &'a [PathBuf],
    is_left_out: Option<&'a LeftOut<'a>>,
    files: BTreeSet<FileId>,
    has_other_device_in_maps: bool,
}

impl<'a> StateFiles<'a> {
    /// These files, and all that lies below `roots` (absolute paths without links).
    pub fn new(roots: &'a [PathBuf], files: impl IntoIterator<Item = FileId>) -> Self {
        let is_other = |root: &PathBuf| {
            statfs(root.as_path()).is_ok_and(|found| {
                #[allow(
                    clippy::unnecessary_cast,
                    reason = "the type of this field differs between processors"
                )]
                OTHER_DEVICE_IN_MAPS.contains(&(found.f_type as i64))
            })
        };
        Self {
            roots,
            is_left_out: None,
            files: files.into_iter().collect(),
            has_other_device_in_maps: roots.iter().any(is_other),
        }
    }

    /// The same without paths that are left out: `is_left_out` is asked for each path below a root, and for the
    /// directories above it.
    #[must_use]
    pub fn without(self, is_left_out: &'a LeftOut<'a>) -> Self {
        let is_left_out = Some(is_left_out);
        Self {
            is_left_out,
            ..self
        }
    }

    fn is_beneath(&self, path: &Path) -> bool {
        if path.as_os_str().as_bytes().ends_with(DELETED) {
            return false;
        }
        let mut below = self.roots.iter().flat_map(|root| path.strip_prefix(root));
        below.any(|below| {
            let mut parts = below.ancestors().filter(|part| *part != Path::new(""));
            !self
                .is_left_out
                .is_some_and(|is_left_out| parts.any(is_left_out))
        })
    }
}

/// A file of a state that a process can write to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// Its path, as the process knows it.
    pub path: PathBuf,
    /// What it is; `None` if that can't be found out.
    pub id: Option<FileId>,
    /// Whether the process can only append to it.
    pub appends: bool,
}

/// Which processes can write to a state.
#[derive(Debug, Default)]
pub struct Writing {
    /// The files that are open for writing.
    pub files: Vec<OpenFile>,
    /// A process that can't be looked at, and may have any file open.
    pub hidden: Option<HiddenProcess>,
    /// Whether more files may be open than are listed.
    pub is_cut: bool,
}

/// A process that can't be looked at.
#[derive(Debug)]
pub struct HiddenProcess {
    /// The process.
    pub pid: i32,
    /// Why it can't be looked at.
    pub cause: io::Error,
}

impl Writing {
    /// What is known if only this is known: whether any file is open.
    pub fn of_unknown(is_open: bool) -> Self {
        Self {
            is_cut: is_open,
            ..Self::default()
        }
    }

    /// Whether a process has a file open.
    pub const fn is_seen(&self) -> bool {
        !self.files.is_empty()
    }

    #[cfg(test)]
    const fn is_possible(&self) -> bool {
        self.is_seen() || self.hidden.is_some()
    }
}

/// Which of the files these processes can write to now.
pub fn written_to(pids: &BTreeSet<i32>, files: &StateFiles<'_>) -> Writing {
    written_to_by("/proc".as_ref(), pids, files)
}

fn written_to_by(proc: &Path, pids: &BTreeSet<i32>, files: &StateFiles<'_>) -> Writing {
    let mut writing = Writing::default();
    for &pid in pids {
        let process = proc.join(pid.to_string());
        let found = [
            opened(&process, files, &mut writing.files),
            mapped(&process, files, &mut writing.files),
        ];
        for cause in found.into_iter().filter_map(Result::err) {
            if !is_gone(&process, pid, &cause) {
                writing.hidden.get_or_insert(HiddenProcess { pid, cause });
            }
        }
        if writing.files.len() >= OPEN_FILES_MAX {
            writing.files.truncate(OPEN_FILES_MAX);
            writing.is_cut = true;
            break;
        }
    }
    writing
}

/// Whether a process that can't be looked at for this reason can't write any more: it has ended, or has given
/// up its memory and is about to.
fn is_gone(process: &Path, pid: i32, cause: &io::Error) -> bool {
    if has_ended(cause) {
        // Where `/proc` hides the processes of other users, they seem to have ended.
        let signalled = Pid::from_raw(pid).map(test_kill_process);
        return signalled != Some(Err(Errno::PERM));
    }
    let stat = match fs::read(process.join("stat")) {
        Ok(stat) => String::from_utf8_lossy(&stat).into_owned(),
        Err(cause) => return has_ended(&cause),
    };
    let Some((_, fields)) = stat.rsplit_once(')') else {
        return false;
    };
    let fields: Vec<&str> = fields.split_whitespace().collect();
    matches!(fields.get(STATE_FIELD), Some(&("Z" | "X" | "x")))
        || fields.get(MEMORY_FIELD) == Some(&"0")
}

/// Whether an error means that a process has ended, or has closed the file.
fn has_ended(cause: &io::Error) -> bool {
    let errno = Errno::from_io_error(cause);
    matches!(errno, Some(Errno::NOENT | Errno::SRCH))
}

/// Adds the files that a process has open for writing.
fn opened(process: &Path, files: &StateFiles<'_>, found: &mut Vec<OpenFile>) -> io::Result<()> {
    let mut hidden = Ok(());
    for fd in fs::read_dir(process.join("fd"))? {
        match opened_as(process, &fd?, files) {
            Ok(open) => found.extend(open),
            Err(cause) if has_ended(&cause) => {}
            Err(cause) => hidden = Err(cause),
        }
    }
    hidden
}

fn opened_as(
    process: &Path,
    fd: &DirEntry,
    files: &StateFiles<'_>,
) -> io::Result<Option<OpenFile>> {
    let link = fd.path();
    let path = match fs::read_link(&link) {
        Ok(path) => path,
        Err(cause) if has_ended(&cause) => return Err(cause),
        // Such as a path that is too long to be read.
        Err(_) => link.clone(),
    };
    // What has no path, such as a socket, is no file.
    if !path.has_root() {
        return Ok(None);
    }
    let id = identity(&link);
    let is_one = files.is_beneath(&path)
        || match &id {
            Ok(id) => files.files.contains(id),
            Err(_) => true,
        };
    if !is_one {
        return Ok(None);
    }
    let flags = flags_of(process, &fd.file_name())?;
    if !flags.intersects(OFlags::WRONLY | OFlags::RDWR) {
        return Ok(None);
    }
    if !files.is_beneath(&path)
        && let Err(cause) = id
    {
        return Err(cause);
    }
    Ok(Some(OpenFile {
        path,
        id: id.ok(),
        appends: flags.contains(OFlags::APPEND),
    }))
}

/// The file to which a link in `/proc/PID` leads, in whatever mount namespace.
fn identity(link: &Path) -> io::Result<FileId> {
    // Its device and inode never change, so a file system is not asked that may not answer.
    match statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::INO) {
        Ok(found) => Ok(FileId {
            inode: found.stx_ino,
            device: makedev(found.stx_dev_major, found.stx_dev_minor),
        }),
        Err(Errno::NOSYS) => {
            let found = fs::metadata(link)?;
            Ok(FileId {
                inode: found.ino(),
                device: found.dev(),
            })
        }
        Err(cause) => Err(cause.into()),
    }
}

fn flags_of(process: &Path, fd: &OsStr) -> io::Result<OFlags> {
    let info = fs::read(process.join("fdinfo").join(fd))?;
    let info = String::from_utf8_lossy(&info);
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok());
    let flags = flags.ok_or_else(|| io::Error::other("its open files have no flags"))?;
    Ok(OFlags::from_bits_retain(flags))
}

/// Adds the files that a process has mapped shared and writable.
fn mapped(process: &Path, files: &StateFiles<'_>, found: &mut Vec<OpenFile>) -> io::Result<()> {
    let maps = fs::read(process.join("maps"))?;
    let mappings = maps.split(|&byte| byte == b'\n').filter_map(Mapping::parse);
    found.extend(mappings.filter_map(|mapping| {
        let known = mapping.is_of(process, files).next();
        let is_one = known.is_some() || files.is_beneath(mapping.path);
        is_one.then(|| OpenFile {
            path: mapping.path.to_owned(),
            id: known.or_else(|| identity(&mapping.link(process)).ok()),
            appends: false,
        })
    }));
    Ok(())
}

/// Those of the files that a process has mapped shared and writable. Processes of this machine that can't be
/// looked at, such as those of other users, are passed over.
pub fn mapped_files(files: &StateFiles<'_>) -> BTreeSet<FileId> {
    let mut found = BTreeSet::new();
    for pid in all_processes() {
        let process = Path::new("/proc").join(pid.to_string());
        let Ok(maps) = fs::read(process.join("maps")) else {
            continue;
        };
        let mappings = maps.split(|&byte| byte == b'\n').filter_map(Mapping::parse);
        for mapping in mappings {
            found.extend(mapping.is_of(&process, files));
        }
    }
    found
}

/// A file that is mapped shared and writable, as `/proc/PID/maps` shows it.
struct Mapping<'a> {
    /// Its name in `/proc/PID/map_files`.
    range: String,
    shown: FileId,
    path: &'a Path,
}

impl<'a> Mapping<'a> {
    /// The link to the file, which not every user may follow.
    fn link(&self, process: &Path) -> PathBuf {
        process.join("map_files").join(&self.range)
    }

    /// The files among `files` that it may be; more than one only where the device is not known.
    fn is_of<'f>(
        &self,
        process: &Path,
        files: &'f StateFiles<'_>,
    ) -> impl Iterator<Item = FileId> + use<'f> {
        let (first, last) = match identity(&self.link(process)) {
            Ok(id) => (id, id),
            Err(_) if files.has_other_device_in_maps => {
                let FileId { inode, .. } = self.shown;
                let of = |device| FileId { inode, device };
                (of(0), of(u64::MAX))
            }
            Err(_) => (self.shown, self.shown),
        };
        files.files.range(first..=last).copied()
    }

    fn parse(line: &'a [u8]) -> Option<Self> {
        let path_begins = line.iter().position(|&byte| byte == b'/')?;
        let (fields, path) = line.split_at(path_begins);
        let mut fields = std::str::from_utf8(fields).ok()?.split_whitespace();
        let (begin, end) = fields.next()?.split_once('-')?;
        if !matches!(fields.next()?.as_bytes(), [_, b'w', _, b's', ..]) {
            return None;
        }
        let (major, minor) = fields.nth(1)?.split_once(':')?;
        let number = |hex| u32::from_str_radix(hex, 16).ok();
        let address = |hex| u64::from_str_radix(hex, 16).ok();
        Some(Self {
            range: format!("{:x}-{:x}", address(begin)?, address(end)?),
            shown: FileId {
                inode: fields.next()?.parse().ok()?,
                device: makedev(number(major)?, number(minor)?),
            },
            path: Path::new(OsStr::from_bytes(path)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::symlink;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A process that can't be there: its number is above all that Linux gives.
    const NOBODY: i32 = 1 << 23;

    /// A state of one file in a directory of its own, and a directory beside it.
    struct State {
        dir: tempfile::TempDir,
        roots: [PathBuf; 1],
    }

    impl State {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().canonicalize().unwrap().join("state");
            fs::create_dir(&root).unwrap();
            fs::write(root.join("image"), b"some").unwrap();
            fs::create_dir(dir.path().join("beside")).unwrap();
            Self { dir, roots: [root] }
        }

        fn image(&self) -> PathBuf {
            self.roots[0].join("image")
        }

        fn id(&self) -> FileId {
            FileId::of(&fs::metadata(self.image()).unwrap())
        }

        fn beside(&self, name: &str) -> PathBuf {
            self.dir.path().join("beside").join(name)
        }

        fn of(&self, pids: &[i32]) -> Writing {
            self.of_proc("/proc".as_ref(), pids)
        }

        fn of_proc(&self, proc: &Path, pids: &[i32]) -> Writing {
            let pids = pids.iter().copied().collect();
            written_to_by(proc, &pids, &StateFiles::new(&self.roots, [self.id()]))
        }

        /// A process in a made-up `/proc`, with these fields in its `stat`.
        fn made_up(&self, state: char, memory: u64) -> PathBuf {
            let process = self.dir.path().join("proc").join(NOBODY.to_string());
            fs::create_dir_all(&process).unwrap();
            let between = "0 ".repeat(MEMORY_FIELD - 1);
            let stat = format!("{NOBODY} (a ) b) {state} {between}{memory} 0\n");
            fs::write(process.join("stat"), stat).unwrap();
            process
        }

        fn of_made_up(&self) -> Writing {
            self.of_proc(&self.dir.path().join("proc"), &[NOBODY])
        }
    }

    fn own() -> i32 {
        std::process::id().cast_signed()
    }

    #[test]
    fn a_file_that_is_open_for_writing_is_found_and_one_that_is_read_is_not() {
        let state = State::new();
        let file = File::options().append(true).open(state.image()).unwrap();
        let found = state.of(&[own()]);
        assert_eq!(found.files[0].path, state.image());
        assert!(found.files[0].appends);
        drop(file);
        let _reader = File::open(state.image()).unwrap();
        assert!(!state.of(&[own()]).is_possible());
    }

    #[test]
    fn a_file_is_found_under_another_path() {
        let state = State::new();
        let other = state.beside("link");
        fs::hard_link(state.image(), &other).unwrap();
        let file = File::options().append(true).open(&other).unwrap();
        assert!(state.of(&[own()]).is_seen());
        drop(file);
        let _reader = File::open(&other).unwrap();
        let _another = File::create(state.beside("another")).unwrap();
        assert!(!state.of(&[own()]).is_possible());
    }

    #[test]
    fn a_mapped_file_is_found_under_another_path() {
        let state = State::new();
        let other = state.beside("link");
        fs::hard_link(state.image(), &other).unwrap();
        for (access, is_written) in [("WRITE", true), ("COPY", false), ("READ", false)] {
            let script = format!(
                "import mmap, os, sys, time\n\
                 fd = os.open(sys.argv[1], os.O_RDWR)\n\
                 memory = mmap.mmap(fd, 0, access=mmap.ACCESS_{access})\n\
                 os.close(fd)\n\
                 for number in range(3, 100):\n\
                 \x20   try: os.close(number)\n\
                 \x20   except OSError: pass\n\
                 print('open', flush=True)\n\
                 time.sleep(100)"
            );
            let mut python = Command::new("python3");
            let Some(child) = started(python.args(["-c", &script]).arg(&other)) else {
                eprintln!("not tested here: no python3");
                return;
            };
            assert_eq!(state.of(&[child.id()]).is_seen(), is_written, "{access}");
            let mapped = mapped_files(&StateFiles::new(&[], [state.id()]));
            assert_eq!(mapped.contains(&state.id()), is_written, "{access}");
        }
    }

    #[test]
    fn without_the_right_to_follow_links_a_mapped_file_is_known_by_what_maps_shows() {
        let state = State::new();
        let process = state.made_up('S', 1000);
        fs::create_dir(process.join("fd")).unwrap();
        let id = state.id();
        let shows = |perms: &str, device: u64, inode: u64| {
            let major = rustix::fs::major(device);
            let minor = rustix::fs::minor(device);
            let line = format!(
                "00400000-00401000 {perms} 00000000 {major:02x}:{minor:02x} {inode}  /mnt/x y\n"
            );
            fs::write(process.join("maps"), line).unwrap();
            state.of_made_up().is_seen()
        };
        assert!(shows("rw-s", id.device, id.inode));
        assert!(!shows("r--s", id.device, id.inode) && !shows("rw-p", id.device, id.inode));
        assert!(!shows("rw-s", id.device, id.inode + 1));
        let other_device = shows("rw-s", id.device + 1, id.inode);
        let roots = StateFiles::new(&state.roots, [id]);
        assert_eq!(other_device, roots.has_other_device_in_maps);
        let on_btrfs = StateFiles {
            has_other_device_in_maps: true,
            ..roots
        };
        let pids = BTreeSet::from([NOBODY]);
        let found = written_to_by(&state.dir.path().join("proc"), &pids, &on_btrfs);
        assert!(found.is_seen());
    }

    #[test]
    fn a_process_that_can_t_be_looked_at_counts_and_one_that_has_ended_does_not() {
        let state = State::new();
        assert!(!state.of(&[NOBODY]).is_possible());
        // Its directory of open files is there, and can't be read.
        let process = state.made_up('S', 1000);
        fs::write(process.join("fd"), b"").unwrap();
        let found = state.of_made_up();
        assert!(!found.is_seen() && found.hidden.is_some_and(|hidden| hidden.pid == NOBODY));
        // One that is seen to write is named before it.
        let proc = state.dir.path().join("proc");
        symlink(format!("/proc/{}", own()), proc.join("1")).unwrap();
        let file = File::options().append(true).open(state.image()).unwrap();
        assert!(state.of_proc(&proc, &[NOBODY, 1]).is_seen());
        drop(file);
        state.made_up('Z', 1000);
        assert!(!state.of_made_up().is_possible());
        // It has given up its memory, and is about to close its files.
        state.made_up('R', 0);
        assert!(!state.of_made_up().is_possible());
    }

    #[test]
    fn an_open_file_whose_flags_or_identity_can_t_be_read_counts() {
        let state = State::new();
        let process = state.made_up('S', 1000);
        fs::write(process.join("maps"), b"").unwrap();
        for name in ["fd", "fdinfo"] {
            fs::create_dir(process.join(name)).unwrap();
        }
        symlink(state.image(), process.join("fd/3")).unwrap();
        let info = process.join("fdinfo/3");
        fs::write(&info, "pos:\t0\n").unwrap();
        assert!(state.of_made_up().hidden.is_some());
        fs::write(&info, "pos:\t0\nflags:\t0100000\n").unwrap();
        assert!(!state.of_made_up().is_possible());
        fs::write(&info, "pos:\t0\nflags:\t0100001\n").unwrap();
        assert!(state.of_made_up().is_seen());
        // It has been closed since the directory was read.
        fs::remove_file(&info).unwrap();
        assert!(!state.of_made_up().is_possible());
        // A link to itself can't be followed.
        fs::remove_file(process.join("fd/3")).unwrap();
        symlink(process.join("fd/3"), process.join("fd/3")).unwrap();
        fs::write(&info, "flags:\t0100001\n").unwrap();
        assert!(state.of_made_up().hidden.is_some());
        fs::write(&info, "flags:\t0100000\n").unwrap();
        assert!(!state.of_made_up().is_possible());
    }

    /// A process that ends with its test.
    struct Process(Child);

    impl Process {
        fn id(&self) -> i32 {
            self.0.id().cast_signed()
        }
    }

    /// Starts a process that prints `open` once it has opened a file; `None` if it does not.
    fn started(command: &mut Command) -> Option<Process> {
        let mut process = command.stdout(Stdio::piped()).spawn().map(Process).ok()?;
        let mut line = String::new();
        let mut out = io::BufReader::new(process.0.stdout.take()?);
        io::BufRead::read_line(&mut out, &mut line).ok()?;
        (line.trim() == "open").then_some(process)
    }

    impl Drop for Process {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_process_in_another_mount_namespace_is_found() {
        let state = State::new();
        let mount = state.beside("mount");
        fs::create_dir(&mount).unwrap();
        let script =
            "mount --bind \"$1\" \"$2\" && exec 3>>\"$2/image\" && echo open && exec sleep 100";
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "sh", "-c", script, "sh"]);
        let Some(child) = started(unshare.args([state.roots[0].as_os_str(), mount.as_os_str()]))
        else {
            eprintln!("not tested here: no mount namespaces");
            return;
        };
        let found = state.of(&[child.id()]);
        assert_eq!(found.files[0].path, mount.join("image"));
    }
}
