//! Sets files aside within moments, so that their program can go on while they are saved: by a further name, by a copy
//! that shares the file's blocks, or by a copy.

use std::fs::{self, File, FileTimes, Metadata};
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use ckpt_agent::image::{Exclude, data_extents};
use machine::disk::free_bytes;

/// Copies may take this part of the free space at most.
const COPIES_PART: u64 = 2;
/// Fewest bytes whose copies show how long copies take.
const COPIED_MIN: u64 = 32 << 20;
/// Bytes that are copied before it is asked again whether the copies are still wanted.
const COPIED_AT_ONCE: u64 = 32 << 20;

/// How a file was set aside; the one that costs more comes later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Means {
    /// By a further name of the same file.
    Linked,
    /// By a copy that shares its blocks.
    Shared,
    /// By a copy.
    Copied,
}

/// What was copied without sharing blocks.
#[derive(Clone, Copy, Debug)]
struct Copied {
    bytes: u64,
    took: Duration,
}

/// Sets files aside, one tree after the other.
pub struct SetAside<'a> {
    is_replaced: &'a dyn Fn(&Metadata) -> bool,
    goes_on: &'a dyn Fn() -> bool,
    exclude: Option<&'a Exclude>,
    divides_names: bool,
    copies: bool,
    files_left: usize,
    used: Means,
    copied: Copied,
    /// Bytes that copies may still take; `None` before the first copy.
    space_left: Option<u64>,
}

/// Adds the path to an error.
pub fn at(path: &Path) -> impl FnOnce(io::Error) -> io::Error + '_ {
    move |cause| io::Error::new(cause.kind(), format!("{}: {cause}", path.display()))
}

impl<'a> SetAside<'a> {
    /// Sets aside at most `files_max` files, directories and links, each file as it is now, by the cheapest means.
    /// `is_replaced` says of a file whether it is only ever replaced by renaming, so that a further name keeps its
    /// content. `goes_on` is asked during copies whether they are still wanted.
    pub const fn new(
        files_max: usize,
        is_replaced: &'a dyn Fn(&Metadata) -> bool,
        goes_on: &'a dyn Fn() -> bool,
    ) -> Self {
        Self {
            is_replaced,
            goes_on,
            exclude: None,
            divides_names: false,
            copies: true,
            files_left: files_max,
            used: Means::Linked,
            copied: Copied {
                bytes: 0,
                took: Duration::ZERO,
            },
            space_left: None,
        }
    }

    /// Leaves out what a save with these patterns leaves out.
    #[must_use]
    pub const fn without(self, exclude: &'a Exclude) -> Self {
        Self {
            exclude: Some(exclude),
            ..self
        }
    }

    /// Copies also files that have several names: each name gets a file of its own.
    #[must_use]
    pub const fn dividing_names(self) -> Self {
        Self {
            divides_names: true,
            ..self
        }
    }

    /// Makes copies that do not share blocks only if `copies`. Without them, what is replaced has to get a further name.
    #[must_use]
    pub const fn with_copies(self, copies: bool) -> Self {
        Self { copies, ..self }
    }

    /// The means so far that cost most.
    pub const fn used(&self) -> Means {
        self.used
    }

    /// Bytes that were copied in a second; `None` if so few were copied that it shows nothing.
    pub fn copied_per_second(&self) -> Option<f64> {
        let Copied { bytes, took } = self.copied;
        let is_known = bytes >= COPIED_MIN && !took.is_zero();
        is_known.then(|| bytes as f64 / took.as_secs_f64())
    }

    /// Sets aside what is at `from`: `to`, which does not exist yet, becomes what `from` is now. Directories are made
    /// anew, and keep times and rights, as copies do; links stay links.
    ///
    /// # Errors
    /// When something can't be read or made, when there are other things than files, directories and links, when
    /// there are too many files, when copies would take too much space ([`io::ErrorKind::StorageFull`]), or when they
    /// are not wanted any more. What was made up to then stays.
    pub fn duplicate(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.duplicate_below(from, from, to)
    }

    fn duplicate_below(&mut self, root: &Path, from: &Path, to: &Path) -> io::Result<()> {
        self.files_left = self
            .files_left
            .checked_sub(1)
            .ok_or_else(|| io::Error::other("there are too many files to set them aside"))?;
        let found = fs::symlink_metadata(from).map_err(at(from))?;
        let kind = found.file_type();
        if kind.is_symlink() {
            let target = fs::read_link(from).map_err(at(from))?;
            return std::os::unix::fs::symlink(target, to).map_err(at(to));
        }
        if kind.is_dir() {
            fs::create_dir(to).map_err(at(to))?;
            for entry in fs::read_dir(from).map_err(at(from))? {
                let entry = entry.map_err(at(from))?;
                let path = entry.path();
                if self
                    .exclude
                    .is_some_and(|exclude| exclude.leaves_out_path(root, &path))
                {
                    continue;
                }
                self.duplicate_below(root, &path, &to.join(entry.file_name()))?;
            }
            return like(to, &found);
        }
        if !kind.is_file() {
            return Err(at(from)(io::Error::other("neither a file nor a directory")));
        }
        if (self.is_replaced)(&found) {
            let linked = fs::hard_link(from, to);
            // Some file systems have no further names, and a system may refuse those of other users' files.
            if linked.is_ok() || !self.copies {
                return linked.map_err(at(from));
            }
        }
        if found.nlink() > 1 && !self.divides_names {
            return Err(at(from)(io::Error::other("a file with several names")));
        }
        self.copy(from, to, &found)?;
        like(to, &found)
    }

    fn copy(&mut self, from: &Path, to: &Path, found: &Metadata) -> io::Result<()> {
        let source = File::open(from).map_err(at(from))?;
        let made = File::create_new(to).map_err(at(to))?;
        if self.used < Means::Copied {
            let shared = rustix::fs::ioctl_ficlone(&made, &source);
            if shared.is_ok() {
                self.used = Means::Shared;
                return Ok(());
            }
            if !self.copies {
                let refused = |cause| io::Error::other(format!("no reflink can be made: {cause}"));
                return shared.map_err(|cause| at(from)(refused(cause)));
            }
            self.used = Means::Copied;
        }
        let space = self.space_left.map_or_else(|| space(&made), Ok)?;
        let bytes = found.blocks().saturating_mul(512);
        let left = space.checked_sub(bytes).ok_or_else(|| {
            let message = format!("copies would take more than 1/{COPIES_PART} of the free space");
            io::Error::new(io::ErrorKind::StorageFull, message)
        })?;
        self.space_left = Some(left);
        let begun = Instant::now();
        self.copy_bytes(&source, &made).map_err(at(from))?;
        self.copied.bytes += bytes;
        self.copied.took += begun.elapsed();
        Ok(())
    }

    /// Copies what a file contains: without its holes, and with what follows after the size that it has by its own word.
    fn copy_bytes(&self, source: &File, made: &File) -> io::Result<()> {
        let stat = rustix::fs::fstat(source)?;
        for extent in data_extents(source.as_fd(), &stat)? {
            if self.copy_range(source, made, extent.offset, extent.len)? < extent.len {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let end = source.metadata()?.len();
        made.set_len(end)?;
        self.copy_range(source, made, end, u64::MAX).map(drop)
    }

    /// Copies this part of a file, or what there is of it. Returns the bytes that there were.
    fn copy_range(&self, source: &File, made: &File, begin: u64, len: u64) -> io::Result<u64> {
        let mut source = source;
        let mut made = made;
        source.seek(io::SeekFrom::Start(begin))?;
        made.seek(io::SeekFrom::Start(begin))?;
        let mut done = 0;
        while done < len {
            if !(self.goes_on)() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let part = (len - done).min(COPIED_AT_ONCE);
            let copied = io::copy(&mut source.take(part), &mut made)?;
            if copied == 0 {
                break;
            }
            done += copied;
        }
        Ok(done)
    }
}

/// Bytes that copies may take on the file system of a file. Without a bound where its free space is not known.
fn space(of: &File) -> io::Result<u64> {
    let free = free_bytes(&rustix::fs::fstatvfs(of)?);
    Ok(free.map_or(u64::MAX, |free| free / COPIES_PART))
}

/// Gives a directory or copy the times and rights of the original.
fn like(to: &Path, data: &Metadata) -> io::Result<()> {
    let times = FileTimes::new()
        .set_modified(data.modified()?)
        .set_accessed(data.accessed()?);
    let set = File::open(to).and_then(|file| {
        file.set_times(times)?;
        file.set_permissions(data.permissions())
    });
    set.map_err(at(to))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn never(_: &Metadata) -> bool {
        false
    }

    #[test]
    fn a_copy_keeps_holes_times_and_rights() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        let to = dir.path().join("to");
        let file = File::create(&from).unwrap();
        file.write_all_at(b"one", 0).unwrap();
        file.write_all_at(b"two", 5 << 20).unwrap();
        file.set_len(64 << 20).unwrap();
        let set_aside = &mut SetAside::new(9, &never, &|| true);
        set_aside.duplicate(&from, &to).unwrap();
        assert!(set_aside.used() >= Means::Shared);
        assert_eq!(fs::read(&from).unwrap(), fs::read(&to).unwrap());
        let was = file.metadata().unwrap();
        let is = fs::metadata(&to).unwrap();
        assert_eq!(was.modified().unwrap(), is.modified().unwrap());
        assert_eq!(was.mode(), is.mode());
        assert!(is.blocks() <= was.blocks() + 64, "{}", is.blocks());
    }

    #[test]
    fn what_is_replaced_gets_a_further_name_and_what_is_written_in_place_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("state");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("replaced"), b"one").unwrap();
        fs::write(root.join("written"), b"two").unwrap();
        let replaced = fs::metadata(root.join("replaced")).unwrap().ino();
        let is_replaced = |found: &Metadata| found.ino() == replaced;
        let to = dir.path().join("aside");
        let mut set_aside = SetAside::new(9, &is_replaced, &|| true);
        set_aside.duplicate(&root, &to).unwrap();
        fs::write(dir.path().join("next"), b"later").unwrap();
        fs::rename(dir.path().join("next"), root.join("replaced")).unwrap();
        fs::write(root.join("written"), b"later").unwrap();
        assert_eq!(fs::read(to.join("replaced")).unwrap(), b"one");
        assert_eq!(fs::read(to.join("written")).unwrap(), b"two");
        assert_eq!(fs::metadata(to.join("replaced")).unwrap().ino(), replaced);
    }

    #[test]
    fn files_with_several_names_copies_that_are_not_wanted_and_too_many_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        fs::write(&from, b"some").unwrap();
        let duplicate = |mut set_aside: SetAside<'_>, to: &str| {
            set_aside.duplicate(&from, &dir.path().join(to))
        };
        let usual = |goes_on| SetAside::new(9, &never, goes_on);
        duplicate(usual(&|| true), "a").unwrap();
        duplicate(SetAside::new(0, &never, &|| true), "b").unwrap_err();
        if rustix::fs::ioctl_ficlone(
            File::create(dir.path().join("shares")).unwrap(),
            File::open(&from).unwrap(),
        )
        .is_err()
        {
            duplicate(usual(&|| true).with_copies(false), "c").unwrap_err();
            let stopped = duplicate(usual(&|| false), "d").unwrap_err();
            assert_eq!(stopped.kind(), io::ErrorKind::Interrupted);
        }
        fs::hard_link(&from, dir.path().join("another")).unwrap();
        let refused = duplicate(usual(&|| true), "e").unwrap_err();
        assert!(refused.to_string().contains("several names"), "{refused}");
        duplicate(usual(&|| true).dividing_names(), "f").unwrap();
    }
}
