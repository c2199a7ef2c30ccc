//! A simulated disk that loses power, or fails, at any step.
//!
//! It keeps two images: the live one, which programs see, and the durable one. A crash keeps the durable
//! image and a random part of the rest: of each file that was not synced, a part of its appended bytes,
//! some of them perhaps zero; of each directory, some of the changes that were not synced, in any order.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{Append, ChangeError, Disk, Read};

/// What goes wrong, and in which operation, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// All operations succeed.
    None,
    /// Power is lost in the middle of the operation.
    PowerLoss(u64),
    /// The operation fails, and later ones do not. A sync that fails loses what it did not write.
    Error(u64, io::ErrorKind),
}

#[derive(Debug, Default, Clone)]
struct File {
    live: Vec<u8>,
    durable: Vec<u8>,
}

/// What each path leads to.
type Names = BTreeMap<PathBuf, Entry>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Dir,
    File(usize),
}

#[derive(Debug)]
struct State {
    files: Vec<File>,
    live: Names,
    durable: Names,
    operations: u64,
    fault: Fault,
    is_down: bool,
    rng: SmallRng,
    free_bytes: u64,
    /// Most files that the disk has room for.
    files_max: usize,
}

/// The simulated disk. A clone is the same disk.
#[derive(Clone, Debug)]
pub(crate) struct CrashDisk(Arc<Mutex<State>>);

impl CrashDisk {
    /// An empty disk. `seed` decides what a crash keeps.
    pub(crate) fn new(fault: Fault, seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            files: Vec::new(),
            live: Names::new(),
            durable: Names::new(),
            operations: 0,
            fault,
            is_down: false,
            rng: SmallRng::seed_from_u64(seed),
            free_bytes: 1 << 40,
            files_max: usize::MAX,
        })))
    }

    /// The number of operations so far that could have failed.
    pub(crate) fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Whether power was lost.
    pub(crate) fn is_down(&self) -> bool {
        self.state().is_down
    }

    /// Sets the free space.
    pub(crate) fn set_free_bytes(&self, free_bytes: u64) {
        self.state().free_bytes = free_bytes;
    }

    /// Sets how many files there may be, as on a disk without free inodes.
    pub(crate) fn set_files_max(&self, files_max: usize) {
        self.state().files_max = files_max;
    }

    /// All files in the live image.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let state = self.state();
        let file = |(path, entry): (&PathBuf, &Entry)| {
            matches!(entry, Entry::File(_)).then(|| path.clone())
        };
        state.live.iter().filter_map(file).collect()
    }

    /// Flips a bit of a file in both images.
    pub(crate) fn flip(&self, path: &Path, offset: usize) {
        let mut state = self.state();
        let file = state.file(path).unwrap();
        state.files[file].live[offset] ^= 0x40;
        state.files[file].durable[offset] ^= 0x40;
    }

    /// The disk after the power has come back.
    pub(crate) fn restart(&self) -> Self {
        let mut state = self.state();
        let mut rng = state.rng.clone();
        let mut files = Vec::new();
        for file in &state.files {
            let bytes = torn(&mut rng, file);
            files.push(File {
                live: bytes.clone(),
                durable: bytes,
            });
        }
        let mut names = state.durable.clone();
        let mut paths: Vec<_> = state.durable.keys().chain(state.live.keys()).collect();
        paths.sort();
        for path in paths {
            // Each change that was not synced happened or did not.
            if state.durable.get(path) != state.live.get(path) && rng.random() {
                match state.live.get(path) {
                    Some(entry) => names.insert(path.clone(), *entry),
                    None => names.remove(path),
                };
            }
        }
        // The content of a directory that was lost is lost, too.
        let dirs: Vec<PathBuf> = names.keys().cloned().collect();
        names.retain(|path, _| {
            let parent = path.parent().unwrap_or(Path::new(""));
            parent == Path::new("") || dirs.iter().any(|dir| dir == parent)
        });
        let new = State {
            files,
            live: names.clone(),
            durable: names,
            operations: 0,
            fault: Fault::None,
            is_down: false,
            rng,
            free_bytes: state.free_bytes,
            files_max: state.files_max,
        };
        state.is_down = true;
        Self(Arc::new(Mutex::new(new)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

/// The bytes of a file that was not synced: the file ends somewhere in the appended bytes, and some of
/// these may be zero.
fn torn(rng: &mut SmallRng, file: &File) -> Vec<u8> {
    let synced = file.durable.len();
    let keep = rng.random_range(synced..=file.live.len());
    let mut bytes = file.durable.clone();
    bytes.extend_from_slice(&file.live[synced..keep]);
    if keep > synced && rng.random() {
        let hole = rng.random_range(synced..keep);
        let end = rng.random_range(hole..=keep);
        bytes[hole..end].fill(0);
    }
    bytes
}

/// The result of an operation that can fail.
enum Step {
    Done,
    /// Power is lost in the middle: a part of the operation may have happened.
    Halfway,
}

impl State {
    /// Counts an operation that can fail.
    fn step(&mut self) -> io::Result<Step> {
        if self.is_down {
            return Err(power_lost());
        }
        let number = self.operations;
        self.operations += 1;
        match self.fault {
            Fault::PowerLoss(at) if at == number => {
                self.is_down = true;
                Ok(Step::Halfway)
            }
            Fault::Error(at, kind) if at == number => Err(kind.into()),
            _ => Ok(Step::Done),
        }
    }

    /// Counts an operation that happens completely or not at all. Returns whether it happens.
    fn atomic_step(&mut self) -> io::Result<bool> {
        match self.step()? {
            Step::Done => Ok(true),
            Step::Halfway => Ok(self.rng.random()),
        }
    }

    /// Called after an operation. Fails if power was lost, so that the caller does not learn of the
    /// result.
    fn still_up(&self) -> io::Result<()> {
        if self.is_down {
            Err(power_lost())
        } else {
            Ok(())
        }
    }

    fn file(&self, path: &Path) -> io::Result<usize> {
        match self.live.get(path) {
            Some(Entry::File(file)) => Ok(*file),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn sync_dir(&mut self, dir: &Path) -> io::Result<()> {
        if self.atomic_step()? {
            let here = |path: &PathBuf| path.parent() == Some(dir);
            self.durable.retain(|path, _| !here(path));
            let live: Vec<_> = self.live.iter().filter(|(path, _)| here(path)).collect();
            let live: Vec<_> = live.into_iter().map(|(p, e)| (p.clone(), *e)).collect();
            self.durable.extend(live);
        }
        self.still_up()
    }

    fn insert(&mut self, path: &Path, entry: Entry) -> io::Result<()> {
        let parent = path.parent().unwrap_or(Path::new(""));
        if parent != Path::new("") && self.live.get(parent) != Some(&Entry::Dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.live.insert(path.to_owned(), entry);
        Ok(())
    }
}

fn power_lost() -> io::Error {
    io::Error::other("power lost")
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

impl Disk for CrashDisk {
    fn create_dir(&self, dir: &Path) -> Result<(), ChangeError> {
        let mut state = self.state();
        if state.live.contains_key(dir) {
            return Ok(());
        }
        if state.atomic_step()? {
            state.insert(dir, Entry::Dir)?;
        }
        state.still_up()?;
        state.sync_dir(parent(dir)).map_err(ChangeError::NotSynced)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Append>> {
        let mut state = self.state();
        if state.live.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let there = state.live.values();
        if there
            .filter(|entry| matches!(entry, Entry::File(_)))
            .count()
            >= state.files_max
        {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let file = state.files.len();
        if state.atomic_step()? {
            state.files.push(File::default());
            state.insert(path, Entry::File(file))?;
        }
        state.still_up()?;
        Ok(Box::new(CrashFile {
            disk: self.clone(),
            file,
        }))
    }

    fn reopen(&self, path: &Path, len: u64) -> io::Result<Box<dyn Append>> {
        let mut state = self.state();
        let file = state.file(path)?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if state.files[file].live.len() < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if state.atomic_step()? {
            state.files[file].live.truncate(len);
            state.files[file].durable.truncate(len);
        }
        state.still_up()?;
        Ok(Box::new(CrashFile {
            disk: self.clone(),
            file,
        }))
    }

    fn publish(&self, from: &Path, to: &Path) -> Result<(), ChangeError> {
        let mut state = self.state();
        let file = state.file(from)?;
        if state.atomic_step()? {
            state.insert(to, Entry::File(file))?;
            state.live.remove(from);
        }
        state.still_up()?;
        state.sync_dir(parent(to)).map_err(ChangeError::NotSynced)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn Read>> {
        let state = self.state();
        let bytes = state.files[state.file(path)?].live.clone();
        Ok(Arc::new(Snapshot(bytes)))
    }

    fn remove(&self, path: &Path) -> Result<(), ChangeError> {
        if self.state().file(path).is_err() {
            return Ok(());
        }
        self.discard(path)?;
        let mut state = self.state();
        state.sync_dir(parent(path)).map_err(ChangeError::NotSynced)
    }

    fn discard(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.file(path)?;
        if state.atomic_step()? {
            state.live.remove(path);
        }
        state.still_up()
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = self.state();
        let name = |path: &PathBuf| Some(path.file_name()?.to_str()?.to_owned());
        let here = state.live.keys().filter(|path| parent(path) == dir);
        Ok(here.filter_map(name).collect())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.state().free_bytes)
    }

    fn short_bytes(&self) -> io::Result<u64> {
        Ok(0)
    }
}

#[derive(Debug)]
struct CrashFile {
    disk: CrashDisk,
    file: usize,
}

impl Append for CrashFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        let step = state.step();
        let taken = match step {
            Ok(Step::Done) => bytes.len(),
            // Some of the bytes were taken before the failure.
            Ok(Step::Halfway) | Err(_) if !bytes.is_empty() => {
                state.rng.random_range(0..=bytes.len())
            }
            _ => 0,
        };
        state.files[self.file]
            .live
            .extend_from_slice(&bytes[..taken]);
        step?;
        state.still_up()
    }

    fn sync(self: Box<Self>) -> io::Result<()> {
        let mut state = self.disk.state();
        let step = state.step();
        let mut rng = state.rng.clone();
        let file = &mut state.files[self.file];
        match step {
            Ok(Step::Done) => file.durable = file.live.clone(),
            Ok(Step::Halfway) => file.durable = torn(&mut rng, file),
            // As on Linux: what could not be written is marked clean, and only the page cache has it.
            Err(_) => {
                let durable = torn(&mut rng, file);
                file.durable = durable;
            }
        }
        state.rng = rng;
        step?;
        state.still_up()
    }
}

#[derive(Debug)]
struct Snapshot(Vec<u8>);

impl Read for Snapshot {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = self.0.get(from..).and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(disk: &CrashDisk) -> Box<dyn Append> {
        disk.create_dir(Path::new("a")).unwrap();
        let mut file = disk.create(Path::new("temp")).unwrap();
        file.append(b"bytes").unwrap();
        file
    }

    #[test]
    fn synced_and_published_files_survive() {
        for seed in 0..100 {
            let disk = CrashDisk::new(Fault::None, seed);
            written(&disk).sync().unwrap();
            disk.publish(Path::new("temp"), Path::new("a/file"))
                .unwrap();
            let disk = disk.restart();
            let file = disk.open(Path::new("a/file")).unwrap();
            let mut bytes = [0; 5];
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!((&bytes, file.size()), (b"bytes", 5));
        }
    }

    #[test]
    fn files_that_were_not_synced_may_be_torn() {
        let mut outcomes = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let disk = CrashDisk::new(Fault::None, seed);
            drop(written(&disk));
            disk.publish(Path::new("temp"), Path::new("a/file"))
                .unwrap();
            let size = disk.restart().open(Path::new("a/file")).unwrap().size();
            outcomes.insert(size);
        }
        assert_eq!(outcomes, (0..=5).collect());
    }
}
