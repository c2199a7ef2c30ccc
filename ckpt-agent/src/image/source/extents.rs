//! Finds the parts of a file that hold data, so that holes are not read.

use std::io;
use std::os::fd::BorrowedFd;

use codec::index::Extent;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// Most extents of one file, which bounds the size of the index.
const EXTENTS_MAX: usize = 1 << 16;

/// If there are too many extents, holes shorter than twice this many bytes are dropped first.
const GAP_MIN: u64 = 4096;

/// The parts of a file of `size` bytes that are not holes. If the file system knows no holes, that is the
/// whole file. If a file has more than 65,536 parts, its shortest holes count as data.
///
/// # Errors
/// When the system call fails. When the file can't be asked.
pub(super) fn data_extents(file: BorrowedFd<'_>, size: u64) -> io::Result<Vec<Extent>> {
    let mut extents = Extents::default();
    let mut at = 0;
    while at < size {
        let begin = match seek(file, SeekFrom::Data(at)) {
            Ok(begin) => begin,
            // There is only a hole up to the end.
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOTTY) => at,
            Err(cause) => return Err(cause.into()),
        };
        let end = match seek(file, SeekFrom::Hole(begin)) {
            Ok(end) => end.min(size),
            Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOTTY) => size,
            Err(cause) => return Err(cause.into()),
        };
        // The file became shorter; reading it will show that.
        if end <= begin {
            break;
        }
        extents.push(begin, end, EXTENTS_MAX);
        at = end;
    }
    Ok(extents.list)
}

#[derive(Debug, Default)]
struct Extents {
    list: Vec<Extent>,
    /// Holes shorter than this count as data.
    gap: u64,
}

impl Extents {
    fn push(&mut self, begin: u64, end: u64, max: usize) {
        self.append(begin, end);
        while self.list.len() > max {
            self.gap = (self.gap * 2).max(GAP_MIN * 2);
            for extent in std::mem::take(&mut self.list) {
                self.append(extent.offset, extent.offset + extent.len);
            }
        }
    }

    fn append(&mut self, begin: u64, end: u64) {
        match self.list.last_mut() {
            Some(last) if begin - (last.offset + last.len) < self.gap => {
                last.len = end - last.offset;
            }
            _ => self.list.push(Extent {
                offset: begin,
                len: end - begin,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_holes_go_first_when_there_are_too_many() {
        let mut extents = Extents::default();
        // All holes have 4 KiB, except for one of 1 GiB in the middle.
        for number in 0..1000_u64 {
            let begin = number * 8192 + if number >= 500 { 1 << 30 } else { 0 };
            extents.push(begin, begin + 4096, 16);
        }
        assert!(extents.list.len() <= 16, "{}", extents.list.len());
        let data: u64 = extents.list.iter().map(|e| e.len).sum();
        assert!(data < 2000 * 4096, "the long hole is kept: {data}");
        let ends = extents.list.windows(2).map(|pair| match pair {
            [a, b] => b.offset > a.offset + a.len,
            _ => false,
        });
        assert!(ends.into_iter().all(|ascending| ascending));
    }
}
