//! What the monitor saw, on disk: one record for each run of the same states.
//!
//! The last record grows in place with every heartbeat, so the file ends at the last moment at
//! which the daemon is known to have been there, however it ended. A record that was torn by a power
//! failure is dropped at the next start. The format is in `docs/format.md`.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use placement::state::{AvailabilityState, ModelState, StorageState};

const MAGIC: [u8; 8] = *b"CKPTHIS1";
const RECORD_BYTES: usize = 24;
/// Size at which the older half of the file is thrown away: with a change of state every minute,
/// four months.
const FILE_BYTES_MAX: usize = 4 << 20;
/// A state that nobody saw.
const UNKNOWN: u8 = u8::MAX;

/// A time in which the states stayed the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// From the first second to the one after the last, Unix seconds.
    pub span: Range<u64>,
    /// The states; `None` when nobody looked.
    pub states: Option<States>,
    /// Mean CPU load of the owner, 0 to 1, to 1/255.
    pub cpu: f64,
    /// Mean disk load of the owner, likewise.
    pub disk: f64,
}

/// The states of machine and disk at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct States {
    /// As a guest job sees it.
    pub guest: AvailabilityState,
    /// As a shard sees it.
    pub storage: StorageState,
}

impl States {
    /// Nobody else needs the machine.
    pub const CALM: Self = Self {
        guest: AvailabilityState::Idle,
        storage: StorageState::FullRate,
    };

    /// The daemon is not there.
    pub const GONE: Self = Self {
        guest: AvailabilityState::Gone,
        storage: StorageState::Offline,
    };
}

impl Run {
    /// The record on disk.
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let states = self.states.map_or([UNKNOWN; 2], |states| {
            [states.guest.index() as u8, states.storage.index() as u8]
        });
        let load = |share: f64| (share.clamp(0.0, 1.0) * 255.0).round() as u8;
        let mut record = [0; RECORD_BYTES];
        record[..8].copy_from_slice(&self.span.start.to_le_bytes());
        record[8..16].copy_from_slice(&self.span.end.to_le_bytes());
        record[16..18].copy_from_slice(&states);
        record[18..20].copy_from_slice(&[load(self.cpu), load(self.disk)]);
        let check = check(&record);
        record[20..].copy_from_slice(&check);
        record
    }

    /// `None` when the record is torn or makes no sense.
    fn decode(record: &[u8; RECORD_BYTES]) -> Option<Self> {
        let [start, end] = [0, 8].map(|at| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&record[at..at + 8]);
            u64::from_le_bytes(bytes)
        });
        if record[20..] != check(record) || end < start {
            return None;
        }
        let states = match [record[16], record[17]] {
            [UNKNOWN, UNKNOWN] => None,
            [guest, storage] => Some(States {
                guest: *AvailabilityState::ALL.get(usize::from(guest))?,
                storage: *StorageState::ALL.get(usize::from(storage))?,
            }),
        };
        Some(Self {
            span: start..end,
            states,
            cpu: f64::from(record[18]) / 255.0,
            disk: f64::from(record[19]) / 255.0,
        })
    }
}

fn check(record: &[u8; RECORD_BYTES]) -> [u8; 4] {
    let mut short = [0; 4];
    short.copy_from_slice(&blake3::hash(&record[..20]).as_bytes()[..4]);
    short
}

/// Why a history can't be used.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// Reading or writing failed.
    #[error("history {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// The file is something else.
    #[error("{0} is not the history of a host; move it away")]
    Foreign(PathBuf),
}

/// The history of a host on its disk.
#[derive(Debug)]
pub struct HistoryFile {
    file: File,
    path: PathBuf,
    records: usize,
    /// The last run could not be appended: a longer one is still to be.
    is_behind: bool,
}

/// Path of the history in a data directory.
#[must_use]
pub fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("history")
}

/// The runs of a history, which may be in use, one after the other; what comes after a torn record
/// is left out.
///
/// # Errors
/// When the file can't be read or is no history. One that does not exist is empty.
pub fn runs(data_dir: &Path) -> Result<impl Iterator<Item = Run>, HistoryError> {
    let path = path(data_dir);
    let file = match File::open(&path) {
        Ok(file) => Some(file),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => None,
        Err(cause) => return Err(HistoryError::Io { path, cause }),
    };
    let parsed = parse(file.map(BufReader::new));
    parsed.map_err(|cause| match cause {
        Some(cause) => HistoryError::Io { path, cause },
        None => HistoryError::Foreign(path),
    })
}

/// The runs in the bytes of a history; nothing is an empty one.
///
/// # Errors
/// When the bytes are no history, or why they can't be read.
pub fn parse(
    mut reader: Option<impl Read>,
) -> Result<impl Iterator<Item = Run>, Option<io::Error>> {
    if let Some(reader) = &mut reader {
        let mut magic = Vec::new();
        let head = reader.take(MAGIC.len() as u64).read_to_end(&mut magic);
        head.map_err(Some)?;
        // Part of it: a history that was torn when it began.
        if !MAGIC.starts_with(&magic) {
            return Err(None);
        }
    }
    Ok(std::iter::from_fn(move || {
        let mut record = [0; RECORD_BYTES];
        reader.as_mut()?.read_exact(&mut record).ok()?;
        Run::decode(&record)
    }))
}

/// Writes a history from the beginning, in place of one that is there.
///
/// # Errors
/// When the file can't be written.
pub fn write(data_dir: &Path, runs: &[Run]) -> Result<(), HistoryError> {
    let path = path(data_dir);
    let mut bytes = MAGIC.to_vec();
    bytes.extend(runs.iter().flat_map(Run::encode));
    let temporary = path.with_extension("new");
    fs::write(&temporary, bytes)
        .and_then(|()| File::open(&temporary)?.sync_all())
        .and_then(|()| fs::rename(&temporary, &path))
        .map_err(|cause| HistoryError::Io { path, cause })
}

impl HistoryFile {
    /// Opens the history of a data directory, or begins one. A torn end is cut off.
    ///
    /// # Errors
    /// When the file can't be read or written, or is no history.
    pub fn open(data_dir: &Path) -> Result<Self, HistoryError> {
        let records = runs(data_dir)?.count();
        Self::open_first(data_dir, records)
    }

    /// Opens the history of a data directory, which has at least `records` runs, and cuts off the rest.
    /// That takes no space, so it succeeds on a full disk.
    ///
    /// # Errors
    /// When the file can't be read or written.
    pub fn open_first(data_dir: &Path, records: usize) -> Result<Self, HistoryError> {
        let path = path(data_dir);
        let length = (MAGIC.len() + records * RECORD_BYTES) as u64;
        let mut options = File::options();
        let file = options.create(true).truncate(false).write(true).open(&path);
        let file = file.and_then(|file| {
            file.set_len(length)?;
            file.write_all_at(&MAGIC, 0)?;
            Ok(file)
        });
        match file {
            Ok(file) => Ok(Self {
                file,
                path,
                records,
                is_behind: false,
            }),
            Err(cause) => Err(HistoryError::Io { path, cause }),
        }
    }

    /// Appends a run.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn append(&mut self, run: &Run) -> Result<(), HistoryError> {
        self.is_behind = true;
        if (self.records + 1) * RECORD_BYTES > FILE_BYTES_MAX {
            self.forget_older_half()?;
        }
        self.put(self.records, run)?;
        self.records += 1;
        self.is_behind = false;
        Ok(())
    }

    /// Writes the last run anew, which has become longer. It is appended if that failed before.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn update(&mut self, run: &Run) -> Result<(), HistoryError> {
        match self.is_behind || self.records == 0 {
            true => self.append(run),
            false => self.put(self.records - 1, run),
        }
    }

    fn put(&self, record: usize, run: &Run) -> Result<(), HistoryError> {
        let at = MAGIC.len() + record * RECORD_BYTES;
        self.file
            .write_all_at(&run.encode(), at as u64)
            .map_err(|cause| HistoryError::Io {
                path: self.path.clone(),
                cause,
            })
    }

    fn forget_older_half(&mut self) -> Result<(), HistoryError> {
        let data_dir = self.path.parent().unwrap_or(Path::new(".")).to_owned();
        let newer: Vec<Run> = runs(&data_dir)?.skip(self.records / 2).collect();
        write(&data_dir, &newer)?;
        let is_behind = self.is_behind;
        *self = Self::open(&data_dir)?;
        self.is_behind = is_behind;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(start: u64, end: u64, guest: usize, storage: usize) -> Run {
        Run {
            span: start..end,
            states: Some(States {
                guest: AvailabilityState::ALL[guest],
                storage: StorageState::ALL[storage],
            }),
            cpu: 51.0 / 255.0,
            disk: 0.0,
        }
    }

    fn read(data_dir: &Path) -> Vec<Run> {
        runs(data_dir).unwrap().collect()
    }

    #[test]
    fn what_was_written_is_there_after_any_end() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).is_empty());
        let mut file = HistoryFile::open(dir.path()).unwrap();
        file.append(&run(100, 106, 0, 0)).unwrap();
        file.update(&run(100, 160, 0, 0)).unwrap();
        file.append(&run(160, 166, 2, 1)).unwrap();
        let expected = vec![run(100, 160, 0, 0), run(160, 166, 2, 1)];
        // Nothing is closed or synced: this is what a kill leaves.
        assert_eq!(read(dir.path()), expected);
        let mut again = HistoryFile::open(dir.path()).unwrap();
        again.append(&run(200, 206, 0, 0)).unwrap();
        assert_eq!(read(dir.path()).len(), 3);
    }

    #[test]
    fn a_torn_record_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &[run(1, 2, 0, 0), run(2, 3, 1, 1)]).unwrap();
        let whole = fs::read(path(dir.path())).unwrap();
        for cut in 0..RECORD_BYTES {
            let torn = &whole[..whole.len() - RECORD_BYTES + cut];
            fs::write(path(dir.path()), torn).unwrap();
            assert_eq!(read(dir.path()), [run(1, 2, 0, 0)], "{cut}");
            let mut file = HistoryFile::open(dir.path()).unwrap();
            file.append(&run(5, 6, 0, 0)).unwrap();
            let expected = [run(1, 2, 0, 0), run(5, 6, 0, 0)];
            assert_eq!(read(dir.path()), expected);
        }
    }

    #[test]
    fn a_run_that_found_no_space_is_appended_by_the_next_update() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = HistoryFile::open(dir.path()).unwrap();
        file.append(&run(100, 106, 0, 0)).unwrap();
        let writable = std::mem::replace(&mut file.file, File::open("/dev/full").unwrap());
        assert!(file.append(&run(106, 112, 2, 1)).is_err());
        assert!(file.update(&run(106, 118, 2, 1)).is_err());
        file.file = writable;
        file.update(&run(106, 124, 2, 1)).unwrap();
        let expected = [run(100, 106, 0, 0), run(106, 124, 2, 1)];
        assert_eq!(read(dir.path()), expected);
    }

    #[test]
    fn another_file_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(path(dir.path()), "letters").unwrap();
        let refused = HistoryFile::open(dir.path());
        assert!(matches!(refused, Err(HistoryError::Foreign(_))));
    }

    #[test]
    fn the_file_stays_within_its_bound() {
        let dir = tempfile::tempdir().unwrap();
        let most = FILE_BYTES_MAX / RECORD_BYTES;
        let many: Vec<Run> = (0..most as u64 - 1)
            .map(|i| run(6 * i, 6 * i + 6, (i % 2) as usize, 0))
            .collect();
        write(dir.path(), &many).unwrap();
        let mut file = HistoryFile::open(dir.path()).unwrap();
        for i in 0..100 {
            file.append(&run(6 * (most as u64 + i), 6 * (most as u64 + i) + 6, 0, 0))
                .unwrap();
        }
        let bytes = fs::metadata(path(dir.path())).unwrap().len();
        assert!(bytes < FILE_BYTES_MAX as u64 * 6 / 10, "{bytes}");
        let left = read(dir.path());
        assert_eq!(left.last().unwrap().span.end, 6 * (most as u64 + 99) + 6);
    }

    #[test]
    fn a_record_is_as_documented() {
        let record = run(0x0102, 0x0304, 2, 1).encode();
        let expected = [2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0, 2, 1, 51, 0];
        assert_eq!(record[..20], expected);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let dir = tempfile::tempdir().unwrap();
            let all = [&MAGIC[..], &bytes].concat();
            fs::write(path(dir.path()), all).unwrap();
            prop_assert!(read(dir.path()).len() <= bytes.len() / RECORD_BYTES);
        }
    }
}
