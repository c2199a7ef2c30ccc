//! How many pages of a file are in the page cache: `cachestat(2)` of Linux 6.5, which no library offers yet.

#![allow(unsafe_code, reason = "a system call without a safe wrapper")]

use std::os::fd::{AsRawFd, BorrowedFd};

/// Number of the system call, the same on all architectures.
const SYS_CACHESTAT: libc::c_long = 451;

/// Numbers of pages of a file: the kernel's `struct cachestat`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CachedPages {
    /// Pages in the cache.
    pub(crate) cached: u64,
    /// Pages in the cache that have to be written to the disk.
    pub(crate) dirty: u64,
    /// Pages that are being written to the disk.
    pub(crate) writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

/// Counts the pages of a part of a file. `None` if the kernel is too old, or refuses because the file belongs
/// to another user.
pub(crate) fn cached_pages(file: BorrowedFd<'_>, offset: u64, len: u64) -> Option<CachedPages> {
    let range = Range { offset, len };
    let mut pages = CachedPages::default();
    // SAFETY: the descriptor is open as long as it is borrowed; the kernel reads one `Range` and writes
    // one `CachedPages`, which have the layout of its `cachestat_range` and `cachestat`, both alive here;
    // it keeps no pointer. Kernels that do not know the number do nothing.
    let failed = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            std::ptr::from_ref(&range),
            std::ptr::from_mut(&mut pages),
            0 as libc::c_uint,
        )
    };
    (failed == 0).then_some(pages)
}

#[cfg(test)]
mod tests {
    use std::io::{IoSliceMut, Write};
    use std::os::fd::AsFd;

    use rustix::fs::{Advice, fadvise};
    use rustix::io::{ReadWriteFlags, preadv2};
    use rustix::param::page_size;

    use super::*;

    const LEN: u64 = 1 << 20;

    /// Whether the whole file can be read without waiting, so that all of it is in the cache.
    fn is_read_at_once(file: &std::fs::File) -> bool {
        let mut buffer = vec![0; LEN as usize];
        let read = preadv2(
            file,
            &mut [IoSliceMut::new(&mut buffer)],
            0,
            ReadWriteFlags::NOWAIT,
        );
        read == Ok(buffer.len())
    }

    #[test]
    fn it_agrees_with_what_can_be_read_without_waiting() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; LEN as usize]).unwrap();
        let Some(pages) = cached_pages(file.as_fd(), 0, LEN) else {
            eprintln!("this kernel has no cachestat");
            return;
        };
        let all = LEN / page_size() as u64;
        assert_eq!(pages.cached, all);
        assert!(is_read_at_once(&file));
        file.sync_all().unwrap();
        let pages = cached_pages(file.as_fd(), 0, LEN).unwrap();
        assert_eq!((pages.dirty, pages.writeback), (0, 0));
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        let pages = cached_pages(file.as_fd(), 0, LEN).unwrap();
        assert_eq!(pages.cached == all, is_read_at_once(&file));
        assert_eq!(cached_pages(file.as_fd(), 8 * LEN, LEN).unwrap().cached, 0);
    }
}
