//! Access to the files below a directory that never follows a symbolic link, and that keeps at most two
//! directories open, however deep the tree is.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

/// Opens a directory only as a place for relative calls, which needs no read permission.
const OPEN_AS_PLACE: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// A directory, and the directory below it that was used last.
#[derive(Debug)]
pub(super) struct Beneath {
    root: OwnedFd,
    last: Option<(Vec<u8>, OwnedFd)>,
}

impl Beneath {
    /// Access to all files below `root`.
    pub(super) const fn new(root: OwnedFd) -> Self {
        Self { root, last: None }
    }

    /// The directory below which all paths are.
    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// The directory at `path`: components separated by `/`, none of them `.` or `..`; empty for the root. It
    /// can be used only for calls relative to it.
    ///
    /// # Errors
    /// When there is no such directory, or one of the components is a symbolic link.
    pub(super) fn directory(&mut self, path: &[u8]) -> io::Result<BorrowedFd<'_>> {
        if path.is_empty() {
            return Ok(self.root.as_fd());
        }
        let known = self.last.take().and_then(|(last, fd)| {
            let rest = path.strip_prefix(last.as_slice())?;
            (rest.is_empty() || rest.starts_with(b"/")).then_some((last.len(), fd))
        });
        let (len, mut at) = known.map_or((0, None), |(len, fd)| (len, Some(fd)));
        let rest = path.get(len..).unwrap_or_default();
        for component in rest.split(|&byte| byte == b'/').filter(|c| !c.is_empty()) {
            let from = at.as_ref().unwrap_or(&self.root);
            let name = OsStr::from_bytes(component);
            at = Some(rustix::fs::openat(
                from,
                name,
                OPEN_AS_PLACE,
                Mode::empty(),
            )?);
        }
        match at {
            Some(fd) => Ok(self.last.insert((path.to_vec(), fd)).1.as_fd()),
            None => Ok(self.root.as_fd()),
        }
    }

    /// The directory that contains `path`, and the name of `path` in it.
    ///
    /// # Errors
    /// See [`Beneath::directory`].
    pub(super) fn parent_of<'a>(
        &mut self,
        path: &'a [u8],
    ) -> io::Result<(BorrowedFd<'_>, &'a OsStr)> {
        let (parent, name) = split(path);
        Ok((self.directory(parent)?, OsStr::from_bytes(name)))
    }

    /// The names in the directory at `path`, in the order of their bytes.
    ///
    /// # Errors
    /// When it can't be read.
    pub(super) fn names(&mut self, path: &[u8]) -> io::Result<Vec<OsString>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listed = rustix::fs::openat(self.directory(path)?, ".", flags, Mode::empty())?;
        let mut entries = Dir::new(listed)?;
        let mut names = Vec::new();
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}

/// `path/name`; `name` alone if `path` is empty.
pub(super) fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() {
        name.to_vec()
    } else {
        [path, b"/", name].concat()
    }
}

/// The part before the last slash, and the last component.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (
            path.get(..slash).unwrap_or_default(),
            path.get(slash + 1..).unwrap_or_default(),
        ),
        None => (b"", path),
    }
}

/// Removes a file, or a directory with everything in it. Symbolic links are removed, not followed. A mounted
/// file system below it is not touched, and is an error.
///
/// # Errors
/// When something can't be removed; other files may be gone then.
pub(super) fn remove_all(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR) => {}
        Err(cause) => return Err(cause.into()),
    }
    let root = rustix::fs::openat(parent, name, OPEN_AS_PLACE, Mode::empty())?;
    let device = rustix::fs::fstat(&root)?.st_dev;
    let mut below = Beneath::new(root);
    // Each directory is in the list twice: to be emptied, and then to be removed.
    let mut pending = vec![(Vec::new(), false)];
    while let Some((path, emptied)) = pending.pop() {
        if emptied {
            let (directory, name) = below.parent_of(&path)?;
            rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?;
            continue;
        }
        if !path.is_empty() {
            pending.push((path.clone(), true));
        }
        let directory = below.directory(&path)?;
        if rustix::fs::fstat(directory)?.st_dev != device {
            return Err(io::Error::other("something is mounted in it"));
        }
        make_accessible(directory)?;
        for name in below.names(&path)? {
            let directory = below.directory(&path)?;
            match rustix::fs::unlinkat(directory, &name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR) => pending.push((join(&path, name.as_bytes()), false)),
                Err(cause) => return Err(cause.into()),
            }
        }
    }
    drop(below);
    Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

/// Gives the owner of a directory the right to list and change it.
fn make_accessible(directory: BorrowedFd<'_>) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(directory)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        // This path names the open directory itself: `chmodat` would follow a link, and `fchmod` needs a
        // directory that can be opened for reading. If this fails, listing the directory will fail as well.
        let itself = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let _ = rustix::fs::chmod(itself, mode | Mode::RWXU);
    }
    Ok(())
}
