//! Reads files one after the other, and checks that each is still as it was when the list was made.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use codec::geometry::SEGMENT_BYTES;
use codec::index::{Extent, FileEntry, FileKind};
use codec::manifest::ImageKind;
use direct_io::DirectReader;
use rustix::fs::{Advice, FileType, Stat, fadvise};

use super::attributes::{NotKept, mode_of_open};
use super::extents::data_extents;
use super::maps::Maps;
use super::named::above;
use super::plan::{FileState, Plan, PlannedFile, Roots, set_time, stat_open, vanished};
use super::{
    Emptiness, Exclude, ReadImage, Remark, Remarks, SourceError, SourceOptions, Weight, changed,
};

/// Mode of directories that exist only in the names given by the user; the files in them have their own
/// modes.
const MADE_DIRECTORY_MODE: u32 = 0o755;

/// Longest time between two readings of the clock by which Linux dates changes.
const TICK_MAX: Duration = Duration::from_millis(11);

/// Longest file on Linux.
const SIZE_MAX: u64 = i64::MAX as u64;

/// Files and directories as a source of segments.
#[derive(Debug)]
pub struct FileSource {
    files: Vec<PlannedFile>,
    roots: Roots,
    kind: ImageKind,
    pub(super) planned_bytes: u64,
    next: usize,
    open: Option<OpenFile>,
    /// A buffer for reads that bypass the page cache.
    memory: Vec<u8>,
    options: SourceOptions,
    remarks: Remarks,
    not_kept: NotKept,
    exclude: Exclude,
    maps: Maps,
}

/// The file that is being read.
#[derive(Debug)]
struct OpenFile {
    number: usize,
    file: DirectReader,
    extents: Vec<Extent>,
    /// Index of the extent, and offset in it, that are read next.
    extent: usize,
    done: u64,
    /// Whether a change of the file was already accepted and reported.
    change_reported: bool,
    /// Whether the file says that it has no bytes, so that its end is found by reading.
    until_end: bool,
    /// Of all bytes that were read, if the file is mapped to be written.
    hasher: Option<blake3::Hasher>,
}

impl FileSource {
    pub(super) fn new(plan: Plan, options: SourceOptions) -> Self {
        let kind = match plan.files.as_slice() {
            [only]
                if matches!(only.entry.kind, FileKind::Regular { .. })
                    && !plan
                        .roots
                        .stored(only.root, &only.entry.path)
                        .contains(&b'/') =>
            {
                ImageKind::File
            }
            _ => ImageKind::Tree,
        };
        settle(&plan.files);
        let maps = Maps::of(&plan.files);
        Self {
            files: plan.files,
            roots: plan.roots,
            kind,
            planned_bytes: plan.bytes,
            next: 0,
            open: None,
            memory: Vec::new(),
            options,
            remarks: plan.remarks,
            not_kept: plan.not_kept,
            exclude: plan.exclude,
            maps,
        }
    }

    pub(super) fn next_segment(
        &mut self,
        mut buffer: Vec<u8>,
        kept: usize,
    ) -> Result<Option<Vec<u8>>, SourceError> {
        // The rest of the buffer is overwritten; clearing it first would cost a pass over its memory.
        buffer.resize(SEGMENT_BYTES, 0);
        let mut filled = kept;
        while filled < SEGMENT_BYTES {
            if self.open.is_none() {
                if filled > 0 && self.next_is_large() {
                    break;
                }
                if !self.open_next()? {
                    break;
                }
            }
            let room = buffer.get_mut(filled..).unwrap_or_default();
            filled += self.read_some(room)?;
        }
        buffer.truncate(filled);
        Ok((filled > 0).then_some(buffer))
    }

    /// Whether the next file with data is large, and so begins a segment of its own.
    fn next_is_large(&self) -> bool {
        let rest = self.files.iter().skip(self.next);
        let mut sizes = rest.map(|file| file.entry.size());
        sizes.find(|&size| size > 0).is_some_and(is_large)
    }

    /// How many files are large, and so begin segments of their own.
    pub(super) fn large_files(&self) -> usize {
        let sizes = self.files.iter().map(|file| file.entry.size());
        sizes.filter(|size| is_large(*size)).count()
    }

    /// Opens the next regular file; `false` if there is none.
    fn open_next(&mut self) -> Result<bool, SourceError> {
        while let Some(planned) = self.files.get(self.next) {
            let number = self.next;
            self.next += 1;
            if matches!(planned.entry.kind, FileKind::Regular { .. }) && self.open(number)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Opens a file and finds its extents; `false` if it is left out.
    fn open(&mut self, number: usize) -> Result<bool, SourceError> {
        let is_alone = self.is_alone();
        let Some(planned) = self.files.get_mut(number) else {
            return Ok(false);
        };
        let opened = self.roots.open_file(planned.root, &planned.entry.path);
        let opened = opened.and_then(|file| Ok((stat_open(file.as_fd())?, file)));
        let (stat, file) = match opened {
            Ok((stat, file)) if FileType::from_raw_mode(stat.st_mode).is_file() => (stat, file),
            Ok(_) => return self.leave_out(number, io::ErrorKind::NotFound.into()),
            Err(cause) => return self.leave_out(number, cause),
        };
        let state = FileState::of(&stat);
        let state = match is_alone {
            true => state.with_birth(file.as_fd()),
            false => state,
        };
        let mut change_reported = false;
        if let Some(what) = planned.state.change(&state) {
            if !(is_alone && planned.state.is_another(&state)) {
                let path = self.roots.display(planned.root, &planned.entry.path);
                self.remarks.push(changed(&path, what, self.options)?);
                change_reported = true;
            }
            planned.state = state;
            set_time(&mut planned.entry, &stat);
            planned.entry.mode = mode_of_open(file.as_fd(), &stat);
        }
        if is_large(state.size) {
            // This is only advice: if it fails, reading is slower.
            let _ = fadvise(&file, 0, None, Advice::Sequential);
        }
        let mut extents = data_extents(file.as_fd(), &stat).map_err(|cause| {
            io_error(self.roots.display(planned.root, &planned.entry.path), cause)
        })?;
        let until_end = state.size == 0;
        if until_end {
            let len = SIZE_MAX;
            extents = vec![Extent { offset: 0, len }];
        }
        planned.entry.kind = FileKind::Regular {
            size: state.size,
            extents: if until_end { vec![] } else { extents.clone() },
        };
        let hasher = self.maps.hasher(&state);
        self.open = Some(OpenFile {
            number,
            file: DirectReader::new(file.into()),
            extents,
            extent: 0,
            done: 0,
            change_reported,
            until_end,
            hasher,
        });
        Ok(true)
    }

    /// Whether the image is a single file. A program that renames a new file into its place then does no harm:
    /// whichever file is read, it is one state.
    fn is_alone(&self) -> bool {
        self.files.len() == 1
    }

    /// Leaves out a file that can't be opened, if the options accept that; never returns `true`.
    fn leave_out(&mut self, number: usize, cause: io::Error) -> Result<bool, SourceError> {
        let Some(planned) = self.files.get_mut(number) else {
            return Ok(false);
        };
        let path = self.roots.display(planned.root, &planned.entry.path);
        if vanished(&cause) {
            let warning = changed(&path, "it vanished; left out", self.options)?;
            self.remarks.push(warning);
        } else if self.options.skip_unreadable {
            self.remarks.warn(format!("{path:?}: {cause}; left out"));
        } else {
            return Err(SourceError::Io {
                doing: "reading",
                path,
                cause,
                can_be_left_out: true,
            });
        }
        planned.left_out = true;
        Ok(false)
    }

    /// Reads from the open file, and closes it after its last byte.
    fn read_some(&mut self, room: &mut [u8]) -> Result<usize, SourceError> {
        let Some(open) = &mut self.open else {
            return Ok(0);
        };
        let Some(extent) = open.extents.get(open.extent).copied() else {
            return self.close().map(|()| 0);
        };
        let Some(planned) = self.files.get_mut(open.number) else {
            return Ok(0);
        };
        let path = || self.roots.display(planned.root, &planned.entry.path);
        let left = usize::try_from(extent.len - open.done).unwrap_or(usize::MAX);
        let len = room.len().min(left);
        let room = room.get_mut(..len).unwrap_or_default();
        let at = extent.offset + open.done;
        let mut read = match open.file.read_at(&mut self.memory, room, at) {
            Ok(read) => read,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => return Ok(0),
            Err(cause) => return Err(io_error(path(), cause)),
        };
        if read == 0 && open.until_end {
            open.extents.clear();
            if open.done > 0 {
                let len = open.done;
                open.extents.push(Extent { offset: 0, len });
                let what = "its file system shows no size, so a change of it may not be noticed";
                let path = path();
                self.remarks
                    .warn(format!("{path:?}: read to its end, {len} bytes: {what}"));
            }
            planned.entry.kind = FileKind::Regular {
                size: open.done,
                extents: open.extents.clone(),
            };
            return self.close().map(|()| 0);
        }
        if read == 0 {
            // If the change is accepted, the rest of the file is read as zeros.
            if !open.change_reported {
                let what = "it became shorter";
                self.remarks.push(changed(&path(), what, self.options)?);
                open.change_reported = true;
            }
            room.fill(0);
            read = len;
        }
        if let Some(hasher) = &mut open.hasher {
            hasher.update(room.get(..read).unwrap_or_default());
        }
        open.done += read as u64;
        if open.done == extent.len {
            open.extent += 1;
            open.done = 0;
        }
        Ok(read)
    }

    /// Closes the file, and checks that it is still the planned one.
    fn close(&mut self) -> Result<(), SourceError> {
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        let Some(planned) = self.files.get_mut(open.number) else {
            return Ok(());
        };
        let path = || self.roots.display(planned.root, &planned.entry.path);
        let stat = stat_open(open.file.file().as_fd()).map_err(|cause| io_error(path(), cause))?;
        let state = planned.state.seen_again(&stat);
        if let Some(hasher) = &open.hasher {
            let extents = open.extents.clone();
            self.maps
                .was_read(open.number, hasher, extents, open.file.file());
        }
        let change = planned.state.change(&state);
        let longer =
            has_more_bytes(&open, state.size).then_some("it has more bytes than its size says");
        if let Some(what) = change.or(longer) {
            if !open.change_reported {
                self.remarks.push(changed(&path(), what, self.options)?);
            }
            // The final check of all files then reports only later changes.
            planned.state = state;
        }
        Ok(())
    }

    /// Checks all files once more: a file that changed after it was read does not belong to the same state as
    /// files that were read later. If the image is a single file, only writes through maps are of this kind.
    fn check_all(&mut self) -> Result<(), SourceError> {
        let maps = std::mem::take(&mut self.maps);
        let mapped = maps.changed(&self.files, &mut self.roots);
        let path = |number: usize| match self.files.get(number) {
            Some(planned) => self.roots.display(planned.root, &planned.entry.path),
            None => PathBuf::new(),
        };
        for (number, what) in mapped.map_err(|(number, cause)| io_error(path(number), cause))? {
            self.remarks
                .push(changed(&path(number), what, self.options)?);
        }
        if self.is_alone() {
            return Ok(());
        }
        for planned in &self.files {
            let is_directory = planned.entry.kind == FileKind::Directory;
            if planned.left_out || !(is_directory || planned.is_regular()) {
                continue;
            }
            let change = match self.roots.stat(planned.root, &planned.entry.path) {
                Ok(stat) if is_directory => {
                    let what = planned.state.change_of_names(&FileState::of(&stat));
                    what.filter(|_| !has_same_names(planned, &stat, &mut self.roots, &self.exclude))
                }
                Ok(stat) => planned.state.change(&planned.state.seen_again(&stat)),
                Err(cause) if !vanished(&cause) => {
                    let path = self.roots.display(planned.root, &planned.entry.path);
                    return Err(io_error(path, cause));
                }
                Err(_) => Some("it vanished"),
            };
            if let Some(what) = change {
                let path = self.roots.display(planned.root, &planned.entry.path);
                self.remarks.push(changed(&path, what, self.options)?);
            }
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<ReadImage, SourceError> {
        self.check_all()?;
        let entries = self.entries();
        let weight = Weight::Note;
        if let Some(text) = self.not_kept.note() {
            self.remarks.push(Remark { text, weight });
        }
        if entries.is_empty() && !self.options.allow_empty {
            return Err(SourceError::Empty(Emptiness::NoFiles));
        }
        Ok((entries, self.kind, self.remarks.into_list()))
    }

    /// The list of files without those left out; hard links get the new number of their file.
    fn entries(&mut self) -> Vec<FileEntry> {
        let mut numbers = Vec::with_capacity(self.files.len());
        let mut entries = Vec::with_capacity(self.files.len());
        let mut made = BTreeSet::new();
        for planned in std::mem::take(&mut self.files) {
            let mut entry = planned.entry;
            let is_root = !entry.path.contains(&b'/');
            let mut left_out = planned.left_out;
            if let FileKind::HardLink { file } = &mut entry.kind {
                let old = usize::try_from(*file).ok();
                match old.and_then(|old| numbers.get(old).copied().flatten()) {
                    Some(new) => *file = new,
                    None => {
                        let path = self.roots.display(planned.root, &entry.path);
                        let what = "links to a file that was left out; left out too";
                        self.remarks.warn(format!("{path:?} {what}"));
                        left_out = true;
                    }
                }
            }
            if !left_out {
                entry.path = self.roots.stored(planned.root, &entry.path);
                if is_root {
                    add_directories(&mut entries, &mut made, &entry);
                }
            }
            numbers.push((!left_out).then_some(entries.len() as u64));
            if !left_out {
                entries.push(entry);
            }
        }
        entries
    }
}

/// Adds the directories in a file's name that no other name contained.
fn add_directories(entries: &mut Vec<FileEntry>, made: &mut BTreeSet<Vec<u8>>, of: &FileEntry) {
    for path in above(&of.path) {
        if made.insert(path.to_vec()) {
            entries.push(FileEntry {
                path: path.to_vec(),
                mode: MADE_DIRECTORY_MODE,
                mtime_s: of.mtime_s,
                mtime_ns: of.mtime_ns,
                kind: FileKind::Directory,
                attributes: None,
            });
        }
    }
}

/// Whether a directory that changed is the same one, with the same names that are not excluded.
fn has_same_names(planned: &PlannedFile, now: &Stat, roots: &mut Roots, exclude: &Exclude) -> bool {
    let mut names = || roots.names_hash(planned.root, &planned.entry.path, exclude);
    let is_itself = !planned.state.is_another(&FileState::of(now));
    is_itself
        && planned
            .names
            .is_some_and(|before| names().is_ok_and(|now| now == before))
}

/// Whether a file has bytes after those that its size promises. Some file systems do not know sizes.
fn has_more_bytes(open: &OpenFile, size: u64) -> bool {
    let end = if open.until_end { open.done } else { size };
    open.file
        .file()
        .read_at(&mut [0], end)
        .is_ok_and(|read| read > 0)
}

/// Waits until the clock of the file system has gone on since the newest change of a file. A later change has
/// another time then.
fn settle(files: &[PlannedFile]) {
    let newest = files.iter().map(|planned| planned.state.changed_at()).max();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let (Some((seconds, nanoseconds)), Ok(now)) = (newest, now) else {
        return;
    };
    let changed = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let settled = changed + Duration::from_nanos(nanoseconds) + TICK_MAX;
    // A file from the future is on a file system with another clock.
    if let Some(wait) = settled.checked_sub(now).filter(|wait| *wait <= TICK_MAX) {
        std::thread::sleep(wait);
    }
}

const fn io_error(path: PathBuf, cause: io::Error) -> SourceError {
    SourceError::Io {
        doing: "reading",
        path,
        cause,
        can_be_left_out: false,
    }
}

/// Whether a file fills at least one segment.
const fn is_large(size: u64) -> bool {
    size >= SEGMENT_BYTES as u64
}
