//! Finds the parts of a file that hold data, so that holes are not read.

use std::io;
use std::os::fd::BorrowedFd;

use codec::index::Extent;
use rustix::fs::{SeekFrom, Stat, seek};
use rustix::io::Errno;

/// Most extents of one file, which bounds the size of the index.
const EXTENTS_MAX: usize = 1 << 16;

/// If there are too many extents, holes shorter than twice this many bytes are dropped first.
const GAP_MIN: u64 = 4096;

/// Most times that a file system is asked about one file, which bounds the wait for one that answers in tiny
/// steps. What lies after the last answer counts as data.
const ASKED_MAX: usize = 1 << 20;

/// Blocks of a file hold data, or the list of its blocks, or nothing yet. If more bytes than these are
/// allocated beyond the data that the file system has shown, its answer that no data follows is not believed.
const UNSHOWN_BYTES_MAX: u64 = 64 << 10;

/// The list of a file's blocks takes at most this part of its data.
const UNSHOWN_PART: u64 = 64;

/// Bytes of a file for which the file system has blocks.
pub(super) fn allocated_bytes(stat: &Stat) -> u64 {
    let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
    blocks.saturating_mul(512)
}

/// The parts of a file that are not holes. A file that has blocks for all its bytes is not asked for holes. If
/// a file has more than 65,536 parts, its shortest holes count as data.
///
/// # Errors
/// When the system call fails. When the file can't be asked.
pub fn data_extents(file: BorrowedFd<'_>, stat: &Stat) -> io::Result<Vec<Extent>> {
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    shown_extents(size, allocated_bytes(stat), |to| seek(file, to))
}

/// The parts of a file of `size` bytes that `seek` does not show to be holes. Whatever it answers, no other
/// byte is left out: a byte that is read in vain costs time, and one that is taken for a hole is lost.
fn shown_extents(
    size: u64,
    allocated: u64,
    mut seek: impl FnMut(SeekFrom) -> Result<u64, Errno>,
) -> io::Result<Vec<Extent>> {
    let mut extents = Extents::default();
    let mut at = 0;
    let mut data = 0;
    for asked in 0.. {
        if at >= size {
            break;
        }
        let shown = if asked < ASKED_MAX && allocated < size {
            Shown::at(at, size, &mut seek)?
        } else {
            Shown::Nothing
        };
        let (begin, end) = match shown {
            Shown::Data(begin, end) => (begin, end),
            Shown::NoMoreData if allocated <= data + data / UNSHOWN_PART + UNSHOWN_BYTES_MAX => {
                break;
            }
            Shown::NoMoreData | Shown::Nothing => (at, size),
        };
        extents.push(begin, end, EXTENTS_MAX);
        data += end - begin;
        at = end;
    }
    Ok(extents.list)
}

/// What a file system answers about the bytes from some offset on.
enum Shown {
    /// The next data: its first byte, and the byte after its last one. What lies before it is a hole.
    Data(u64, u64),
    /// There is only a hole up to the end.
    NoMoreData,
    /// Nothing that can be: it knows no holes, or its answers do not go forward within the file.
    Nothing,
}

impl Shown {
    fn at(
        at: u64,
        size: u64,
        seek: &mut impl FnMut(SeekFrom) -> Result<u64, Errno>,
    ) -> io::Result<Self> {
        let begin = match seek(SeekFrom::Data(at)) {
            Ok(begin) if (at..size).contains(&begin) => begin,
            Err(Errno::NXIO) => return Ok(Self::NoMoreData),
            Ok(_) | Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOTTY) => {
                return Ok(Self::Nothing);
            }
            Err(cause) => return Err(cause.into()),
        };
        match seek(SeekFrom::Hole(begin)) {
            Ok(end) if end > begin => Ok(Self::Data(begin, end.min(size))),
            Ok(_) | Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOTTY) => {
                Ok(Self::Nothing)
            }
            Err(cause) => Err(cause.into()),
        }
    }
}

#[derive(Debug, Default)]
struct Extents {
    list: Vec<Extent>,
    /// Holes shorter than this count as data. Parts without a hole between them are one.
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
            Some(last) if begin - (last.offset + last.len) < self.gap.max(1) => {
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

    const MIB: u64 = 1 << 20;

    /// The parts that are read of a file of 3 MiB; bytes from each offset up to another one.
    fn read(allocated: u64, seek: impl FnMut(SeekFrom) -> Result<u64, Errno>) -> Vec<(u64, u64)> {
        let extents = shown_extents(3 * MIB, allocated, seek).unwrap();
        extents
            .iter()
            .map(|it| (it.offset, it.offset + it.len))
            .collect()
    }

    /// Answers as Linux does for a file of `len` bytes with these parts of data.
    fn honest(data: &[(u64, u64)], len: u64) -> impl FnMut(SeekFrom) -> Result<u64, Errno> {
        move |to| match to {
            SeekFrom::Data(at) => {
                let mut next = data.iter().filter(|(_, end)| *end > at);
                next.next()
                    .map(|(begin, _)| at.max(*begin))
                    .ok_or(Errno::NXIO)
            }
            SeekFrom::Hole(at) if at < len => {
                let within = data
                    .iter()
                    .find(|(begin, end)| (*begin..*end).contains(&at));
                Ok(within.map_or(at, |(_, end)| *end))
            }
            _ => Err(Errno::NXIO),
        }
    }

    #[test]
    fn holes_that_a_file_system_shows_are_left_out() {
        let data = [(MIB, MIB + 4096), (2 * MIB, 2 * MIB + 4096)];
        assert_eq!(read(8192, honest(&data, 3 * MIB)), data);
        // The list of a file's blocks takes blocks, too.
        assert_eq!(read(16384, honest(&data, 3 * MIB)), data);
        assert_eq!(read(0, honest(&[], 3 * MIB)), []);
        // Without blocks it may still have data, such as in a compressed or a remote file system.
        assert_eq!(read(0, honest(&data, 3 * MIB)), data);
    }

    #[test]
    fn a_file_with_blocks_for_all_its_bytes_is_not_asked() {
        let all = read(3 * MIB, |_| panic!("asked"));
        assert_eq!(all, [(0, 3 * MIB)]);
        assert_eq!(shown_extents(0, 0, |_| panic!("asked")).unwrap(), []);
    }

    #[test]
    fn an_answer_that_can_t_be_makes_the_rest_data() {
        let all = [(0, 3 * MIB)];
        let same = |to: SeekFrom| match to {
            SeekFrom::Data(at) | SeekFrom::Hole(at) => Ok(at),
            _ => Err(Errno::INVAL),
        };
        assert_eq!(read(0, same), all);
        assert_eq!(read(2 * MIB, |_| Err(Errno::NXIO)), all);
        assert_eq!(read(0, |_| Err(Errno::INVAL)), all);
        assert_eq!(read(0, |_| Ok(u64::MAX)), all);
        // Backwards, after a true answer.
        let backwards = |to: SeekFrom| match to {
            SeekFrom::Data(0) => Ok(MIB),
            SeekFrom::Hole(_) => Ok(MIB + 4096),
            _ => Ok(0),
        };
        assert_eq!(read(0, backwards), [(MIB, 3 * MIB)]);
        // The end of the data lies before the data.
        let ends_before = |to: SeekFrom| match to {
            SeekFrom::Data(_) => Ok(2 * MIB),
            _ => Ok(MIB),
        };
        assert_eq!(read(0, ends_before), all);
    }

    #[test]
    fn a_file_that_became_shorter_is_read_up_to_its_length() {
        // It had 3 MiB of data when it was listed, and has 1 MiB now.
        assert_eq!(read(2 * MIB, honest(&[(0, MIB)], MIB)), [(0, 3 * MIB)]);
        assert_eq!(read(MIB, honest(&[(0, MIB)], MIB)), [(0, MIB)]);
    }

    #[test]
    fn answers_in_tiny_steps_come_to_an_end() {
        let mut asked = 0;
        let steps = |to: SeekFrom| {
            asked += 1;
            match to {
                SeekFrom::Data(at) => Ok(at),
                SeekFrom::Hole(at) => Ok(at + 1),
                _ => Err(Errno::INVAL),
            }
        };
        let extents = shown_extents(1 << 60, 0, steps).unwrap();
        let data: u64 = extents.iter().map(|it| it.len).sum();
        assert_eq!(data, 1 << 60);
        assert!(asked <= 2 * ASKED_MAX, "{asked}");
    }

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
