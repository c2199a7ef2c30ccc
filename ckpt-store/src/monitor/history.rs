//! What the monitor saw, on disk: one record for each run of equal states.
//!
//! The last record is rewritten with a later end at every heartbeat. So the file ends at the last time at
//! which the daemon is known to have run, however it ended. A record that was torn by a power failure is
//! dropped at the next start. The format is in `docs/inside/format.md`.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use placement::state::{AvailabilityState, ModelState, StorageState};

const MAGIC: [u8; 8] = *b"CKPTHIS1";
const RECORD_BYTES: usize = 24;
/// At this size the older half of the file is removed. With a change of state every minute, the file
/// holds four months.
const FILE_BYTES_MAX: usize = 4 << 20;
/// The number of a state that was not observed.
const UNKNOWN: u8 = u8::MAX;

/// A stretch of time in which the states stayed the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// From its first second to the one after its last, in Unix seconds.
    pub span: Range<u64>,
    /// The states; `None` if they were not observed.
    pub states: Option<States>,
    /// Mean CPU load of the owner, from 0 to 1, in steps of 1/255.
    pub cpu: f64,
    /// Mean disk load of the owner, in the same unit.
    pub disk: f64,
}

/// The states of the machine and of its disk at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct States {
    /// The state that matters to a guest job.
    pub guest: AvailabilityState,
    /// The state that matters to a shard.
    pub storage: StorageState,
}

impl States {
    /// The owner does not use the machine.
    pub const CALM: Self = Self {
        guest: AvailabilityState::Idle,
        storage: StorageState::FullRate,
    };

    /// The daemon does not run.
    pub const GONE: Self = Self {
        guest: AvailabilityState::Gone,
        storage: StorageState::Offline,
    };
}

impl Run {
    /// The bytes of the record.
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

    /// `None` if the record is torn or not valid.
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
        /// Path of the history file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        cause: io::Error,
    },
    /// The file is not a history.
    #[error("{0} is not the history of a host; move the file away")]
    Foreign(PathBuf),
}

/// The history file of a host, open for writing.
#[derive(Debug)]
pub struct HistoryFile {
    file: File,
    path: PathBuf,
    records: usize,
    /// The last run could not be appended, so the next update has to append it.
    is_behind: bool,
}

/// The path of the history in a data directory.
#[must_use]
pub fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("history")
}

/// Reads the runs of a history one after the other, also while a daemon writes the file. Reading ends at
/// a torn record.
///
/// # Errors
/// When the file can't be read or is not a history. A file that does not exist counts as an empty
/// history.
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

/// Parses the bytes of a history. `None` counts as an empty history.
///
/// # Errors
/// `None` when the bytes are not a history, otherwise why they can't be read.
pub fn parse(
    mut reader: Option<impl Read>,
) -> Result<impl Iterator<Item = Run>, Option<io::Error>> {
    if let Some(reader) = &mut reader {
        let mut magic = Vec::new();
        let head = reader.take(MAGIC.len() as u64).read_to_end(&mut magic);
        head.map_err(Some)?;
        // A part of the magic number is a history that was torn at its beginning.
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

/// Writes a whole history. It replaces the existing file.
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
    /// Opens the history of a data directory, or begins one. A torn record at the end is cut off.
    ///
    /// # Errors
    /// When the file can't be read or written, or is not a history.
    pub fn open(data_dir: &Path) -> Result<Self, HistoryError> {
        let records = runs(data_dir)?.count();
        Self::open_first(data_dir, records)
    }

    /// Opens the history of a data directory and keeps its first `records` runs, of which it has to have
    /// as many. That takes no space, so it succeeds on a full disk.
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

    /// Rewrites the last run, which has become longer. If the run could not be appended before, it is
    /// appended now.
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
    fn written_history_is_there_after_any_end() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).is_empty());
        let mut file = HistoryFile::open(dir.path()).unwrap();
        file.append(&run(100, 106, 0, 0)).unwrap();
        file.update(&run(100, 160, 0, 0)).unwrap();
        file.append(&run(160, 166, 2, 1)).unwrap();
        let expected = vec![run(100, 160, 0, 0), run(160, 166, 2, 1)];
        // The file was neither closed nor synced, as after a kill.
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
