//! Sets what a file has besides its bytes: owner, mode, extended attributes, times.

use std::io;
use std::os::fd::BorrowedFd;

use codec::index::FileEntry;
use rustix::fs::{Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, fsetxattr};
use rustix::process::geteuid;

use super::SinkOptions;

/// The owner that a file gets; only root may give files away.
pub(super) fn owner_of(file: &FileEntry) -> Option<(Uid, Gid)> {
    let (user, group) = file.attributes.as_ref()?.owner?;
    geteuid()
        .is_root()
        .then(|| (Uid::from_raw(user), Gid::from_raw(group)))
}

/// Sets an extended attribute. Not every file system has them, and the file is whole without.
fn set_extended(fd: BorrowedFd<'_>, file: &FileEntry, name: &[u8], value: &[u8]) {
    if let Err(cause) = fsetxattr(fd, name, value, XattrFlags::empty()) {
        let path = file.display_path();
        let name = String::from_utf8_lossy(name).into_owned();
        tracing::warn!(path, name, %cause, "an extended attribute is not restored");
    }
}

/// Sets all that the index holds of a file besides its bytes and name.
pub(super) fn set_attributes(
    fd: BorrowedFd<'_>,
    file: &FileEntry,
    options: SinkOptions,
) -> io::Result<()> {
    let allowed = if options.set_id_bits { 0o7777 } else { 0o1777 };
    let attributes = file.attributes.as_deref();
    // A change of the owner takes setuid bits away, and an access list has to follow the mode that it changes.
    if let Some((user, group)) = owner_of(file) {
        rustix::fs::fchown(fd, Some(user), Some(group))?;
    }
    // Who may not write to a file may set no attribute either, but an access list.
    let extended = || attributes.iter().flat_map(|kept| &kept.extended);
    let is_list = |name: &[u8]| name.starts_with(b"system.posix_acl");
    for (name, value) in extended().filter(|(name, _)| !is_list(name)) {
        // This one is a setuid bit by another name.
        if name.as_slice() != b"security.capability" || options.set_id_bits {
            set_extended(fd, file, name, value);
        }
    }
    rustix::fs::fchmod(fd, Mode::from_raw_mode(file.mode & allowed))?;
    for (name, value) in extended().filter(|(name, _)| is_list(name)) {
        set_extended(fd, file, name, value);
    }
    // A stream has no time of its own, so its file keeps the time of the restore.
    if !file.path.is_empty() {
        rustix::fs::futimens(fd, &times(file))?;
    }
    Ok(())
}

/// The times that a file gets.
pub(super) fn times(file: &FileEntry) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: file.mtime_s,
            tv_nsec: file.mtime_ns.into(),
        },
    }
}
