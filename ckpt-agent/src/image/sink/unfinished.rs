//! Temporary directories in which images are made before they get their names. If a program is killed and
//! leaves one behind, the next restore to the same directory removes it.
//!
//! ```text
//! .NAME.ckpt-MACHINE-PID-N    an image that is being made, locked by the process that makes it
//! .NAME.ckpt-old-PID-N        what was at the target while the new image is put there
//! ```

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, Stat, flock};
use rustix::io::Errno;
use rustix::process::{Pid, geteuid, test_kill_process};

use super::place::Shape;
use crate::image::beneath::remove_all;
use crate::unix_time::unix_seconds;

/// Name of the only file of an image in its temporary directory.
pub(super) const ONLY_FILE: &str = "image";

/// Separates the name of the target from the rest of a temporary name.
const MARK: &str = ".ckpt-";

/// How many times a new directory is tried to be locked. Another restore holds the lock for a moment to check
/// whether the directory is still in use.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// A younger empty directory may belong to a process that has not locked it yet.
const UNLOCKED_AGE_MAX: Duration = Duration::from_secs(10);

const TO_LOOK: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::DIRECTORY);

/// An unused name beside `name` for an image that is being made.
pub(super) fn temporary_name(parent: &OwnedFd, name: &OsStr) -> OsString {
    name_beside(parent, name, machine())
}

/// An unused name beside `name` for the old content. No restore removes it by this name.
pub(super) fn aside_name(parent: &OwnedFd, name: &OsStr) -> OsString {
    name_beside(parent, name, "old")
}

/// The part of a name beside `name` that all such names have.
fn prefix(name: &OsStr, what: &str) -> OsString {
    /// Bytes of the target's name that are used, which leaves room for the rest within the 255 bytes of a
    /// file name.
    const TARGET_NAME_BYTES_MAX: usize = 200;
    let kept = name
        .as_bytes()
        .get(..TARGET_NAME_BYTES_MAX)
        .unwrap_or(name.as_bytes());
    let mut prefix = OsString::from(".");
    prefix.push(OsStr::from_bytes(kept));
    prefix.push(format!("{MARK}{what}-"));
    prefix
}

fn name_beside(parent: &OwnedFd, name: &OsStr, what: &str) -> OsString {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let prefix = prefix(name, what);
    loop {
        let mut temporary = prefix.clone();
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        temporary.push(format!("{}-{serial}", std::process::id()));
        if !is_there(parent, &temporary) {
            return temporary;
        }
    }
}

/// Identifies this machine among others that use the same file system, whose processes can't be examined from
/// here.
fn machine() -> &'static str {
    static MACHINE: OnceLock<String> = OnceLock::new();
    MACHINE.get_or_init(|| {
        let mut hasher = blake3::Hasher::new();
        // Not every system has this file; then the host name alone identifies the machine.
        hasher.update(&std::fs::read("/etc/machine-id").unwrap_or_default());
        hasher.update(rustix::system::uname().nodename().to_bytes());
        let mut name = hasher.finalize().to_hex().to_string();
        name.truncate(8);
        name
    })
}

/// Makes a directory with this name, and locks it for as long as it is open.
///
/// # Errors
/// When it can't be made.
pub(super) fn make(parent: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    rustix::fs::mkdirat(parent, name, Mode::RWXU)?;
    let made = match rustix::fs::openat(parent, name, TO_LOOK, Mode::empty()) {
        Ok(made) => made,
        Err(cause) => {
            rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?;
            return Err(cause.into());
        }
    };
    for _ in 0..LOCK_TRIES {
        match flock(&made, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            // On a file system without locks, the process id decides whether the directory is in use.
            _ => break,
        }
    }
    Ok(made)
}

/// Removes temporary directories in `parent` that killed restores left behind.
pub(super) fn remove_dead(parent: &OwnedFd) {
    let found = match candidates(parent) {
        Ok(found) => found,
        Err(cause) => {
            tracing::warn!(%cause, "can't search for files that killed restores left");
            return;
        }
    };
    for (name, process) in found {
        let Some(_held) = hold_dead(parent, &name, process) else {
            continue;
        };
        match remove_all(parent.as_fd(), &name) {
            Ok(()) => tracing::info!("removed {name:?}, which a killed restore left"),
            Err(cause) => {
                tracing::warn!("{name:?}, which a killed restore left, can't be removed: {cause}");
            }
        }
    }
}

/// What a killed restore to the same target had written. While it is held, no other restore removes it.
#[derive(Debug)]
pub(in crate::image) struct Left {
    parent: OwnedFd,
    name: OsString,
    path: PathBuf,
    /// Locked.
    _directory: OwnedFd,
}

impl Left {
    /// Where an image of this shape is in it.
    pub(in crate::image) fn root(&self, shape: Shape) -> PathBuf {
        match shape {
            Shape::Tree => self.path.clone(),
            Shape::File => self.path.join(ONLY_FILE),
        }
    }

    /// Removes it, since the image is whole now.
    pub(in crate::image) fn remove(self) {
        if let Err(cause) = remove_all(self.parent.as_fd(), &self.name) {
            // The next restore tries it again.
            tracing::warn!(
                "{:?}, which a killed restore left, can't be removed: {cause}",
                self.path
            );
        }
    }
}

/// What killed restores to `target` had written: that of the last `most` of them.
pub(in crate::image) fn left_for(target: &Path, most: usize) -> Vec<Left> {
    let Some(name) = target.file_name() else {
        return Vec::new();
    };
    let above = target
        .parent()
        .filter(|above| !above.as_os_str().is_empty());
    let above = above.unwrap_or_else(|| Path::new("."));
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
    let Ok(parent) = rustix::fs::open(above, flags, Mode::empty()) else {
        return Vec::new();
    };
    let prefix = prefix(name, machine());
    let is_for_target =
        |(found, _): &(OsString, _)| found.as_bytes().starts_with(prefix.as_bytes());
    let found = candidates(&parent).unwrap_or_default().into_iter();
    let mut left: Vec<(_, Left)> = found
        .filter(is_for_target)
        .filter_map(|(name, process)| {
            let held = hold_dead(&parent, &name, process)?;
            // Without locks, another restore may remove it at any time.
            flock(&held, FlockOperation::NonBlockingLockExclusive).ok()?;
            let written = rustix::fs::fstat(&held).ok()?.st_mtime;
            let left = Left {
                parent: parent.try_clone().ok()?,
                path: above.join(&name),
                name,
                _directory: held,
            };
            Some((written, left))
        })
        .collect();
    left.sort_by_key(|(written, _)| std::cmp::Reverse(*written));
    left.into_iter().take(most).map(|(_, left)| left).collect()
}

/// Names of temporary directories that this machine made, and the process ids of their makers.
fn candidates(parent: &OwnedFd) -> io::Result<Vec<(OsString, Option<Pid>)>> {
    let mut entries = Dir::read_from(parent)?;
    let mut found = Vec::new();
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if let Some(process) = maker(name) {
            found.push((name.to_owned(), process));
        }
    }
    Ok(found)
}

/// Whether a restore on this machine may have given this name to an image that it had not finished.
pub fn is_unfinished(name: &OsStr) -> bool {
    maker(name).is_some()
}

/// The process of this machine that made a directory with this name; `None` if it is not such a name.
fn maker(name: &OsStr) -> Option<Option<Pid>> {
    let name = name.as_bytes();
    let mark = MARK.as_bytes();
    let at = name.windows(mark.len()).rposition(|part| part == mark)?;
    let rest = std::str::from_utf8(name.get(at + mark.len()..)?).ok()?;
    let mut parts = rest.split('-');
    let is_of_here = name.first() == Some(&b'.') && parts.next() == Some(machine());
    let process: i32 = parts.next()?.parse().ok()?;
    let _serial: u32 = parts.next()?.parse().ok()?;
    (is_of_here && parts.next().is_none()).then(|| Pid::from_raw(process))
}

/// Opens and locks a temporary directory, if the process that made it is dead.
fn hold_dead(parent: &OwnedFd, name: &OsStr, process: Option<Pid>) -> Option<OwnedFd> {
    let left = rustix::fs::openat(parent, name, TO_LOOK, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&left).ok()?;
    let around = rustix::fs::fstat(parent).ok()?;
    if !is_own(&stat, &around) {
        return None;
    }
    let is_dead = match flock(&left, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => !is_young(&stat) || !is_empty(&left),
        Err(Errno::WOULDBLOCK) => false,
        // The file system has no locks.
        Err(_) => process.is_some_and(|process| test_kill_process(process) == Err(Errno::SRCH)),
    };
    is_dead.then_some(left)
}

/// Whether a directory was surely made by a restore of this user. Either other users can't rename files in
/// the parent directory, or this one is as private as temporary directories are.
fn is_own(stat: &Stat, around: &Stat) -> bool {
    let mode = |stat: &Stat| Mode::from_raw_mode(stat.st_mode);
    let others_write = mode(around).intersects(Mode::WGRP | Mode::WOTH);
    let is_shared = others_write && !mode(around).contains(Mode::SVTX);
    stat.st_uid == geteuid().as_raw() && (!is_shared || mode(stat) == Mode::RWXU)
}

fn is_young(stat: &Stat) -> bool {
    let changed = u64::try_from(stat.st_ctime).unwrap_or(0);
    // One from the future is from a time when the clock was wrong.
    unix_seconds().abs_diff(changed) < UNLOCKED_AGE_MAX.as_secs()
}

fn is_empty(directory: &OwnedFd) -> bool {
    let Ok(mut entries) = Dir::read_from(directory) else {
        return true;
    };
    let mut names = std::iter::from_fn(|| entries.read());
    !names
        .any(|entry| entry.is_ok_and(|entry| !matches!(entry.file_name().to_bytes(), b"." | b"..")))
}

pub(super) fn is_there(parent: &OwnedFd, name: &OsStr) -> bool {
    rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn unfinished_files_of_dead_processes_go_and_those_of_living_ones_stay() {
        let dir = tempfile::tempdir().unwrap();
        let parent = OwnedFd::from(fs::File::open(dir.path()).unwrap());
        let dead = |name: &str| {
            let left = dir.path().join(name);
            fs::create_dir_all(left.join("sub")).unwrap();
            fs::write(left.join("sub/image"), b"much").unwrap();
            left
        };
        let machine = machine();
        let removed = [
            dead(&format!(".out.ckpt-{machine}-1-0")),
            dead(&format!("..ckpt-{machine}-4000000-17")),
        ];
        let others = [
            dead(".out.ckpt-old-4000000-0"),
            dead(".out.ckpt-00000000-4000000-0"),
            dead(&format!("out.ckpt-{machine}-1-0")),
            dead(&format!(".out.ckpt-{machine}-1-0-1")),
            dead(&format!(".out.ckpt-{machine}-one-0")),
        ];
        let file = dir.path().join(format!(".f.ckpt-{machine}-1-0"));
        fs::write(&file, b"a file is not such a thing").unwrap();
        // This directory was just made and is not locked yet.
        let young = dir.path().join(format!(".young.ckpt-{machine}-1-0"));
        fs::create_dir(&young).unwrap();
        let name = temporary_name(&parent, OsStr::new("out"));
        let living = make(&parent, &name).unwrap();
        fs::write(dir.path().join(&name).join("image"), b"half").unwrap();

        remove_dead(&parent);
        assert!(removed.iter().all(|path| !path.exists()));
        assert!(others.iter().all(|path| path.exists()));
        assert!(file.exists() && young.exists() && dir.path().join(&name).exists());
        drop(living);
        remove_dead(&parent);
        assert!(!dir.path().join(&name).exists());
    }
}
