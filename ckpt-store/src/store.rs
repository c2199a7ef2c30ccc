//! Shards and manifests on a disk, and the books about them.
//!
//! Layout of the data directory:
//!
//! ```text
//! incoming/<checkpoint>-<shard>-<n>     being written; removed at start
//! shards/<checkpoint>/<shard>.shard     whole and synced
//! manifests/<checkpoint>.manifest       committed
//! ```
//!
//! Everything is written to a temporary name, synced, renamed, and the directory synced, before it
//! is acknowledged or entered in the books. The books are rebuilt from the files at start. All
//! calls block; they run on threads for that.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use codec::geometry::{BLOCK_BYTES_MAX, page_count, page_of, page_rows};
use codec::manifest::{MANIFEST_BYTES_MAX, Manifest};
use codec::shard_file::{
    BlockEntry, ENTRY_BYTES, Footer, FormatError, HEADER_BYTES, Header, Outline, PAGES_MAX, Page,
    ShardIdentity, TAIL_BYTES, TableBuilder,
};
use codec::{CheckpointId, JobTag, OwnerId};
use protocol::wire::Code;
use protocol::wire::limits::{READ_BYTES_MAX, RECORDS_MAX, ROWS_PER_READ_MAX};
use protocol::wire::message::{Claim, PutEnd, PutShard, Record, Refusal, ShardName, StoredShard};

use crate::core::catalog::{Catalog, ClaimAnswer, HeldShard, Reservation, UnixSeconds};
use crate::disk::{Disk, DiskFile};

const INCOMING: &str = "incoming";
const SHARDS: &str = "shards";
const MANIFESTS: &str = "manifests";

/// Bytes that are gathered before they are written.
const WRITE_BYTES: usize = 1 << 20;

/// Room that a shard of unknown length gets at first, and each time it has used it up.
const RESERVE_STEP: u64 = 64 << 20;

/// The store of one host.
#[derive(Debug)]
pub struct Store<D> {
    disk: D,
    catalog: Mutex<Catalog>,
    /// Free space of the disk that is never used.
    reserve_bytes: u64,
    serial: AtomicU64,
}

/// What happens to files that are wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Leave,
    Remove,
}

/// What was found wrong at start; it was removed or left out.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub what: String,
}

/// Committed checkpoints, and whether there are more.
#[derive(Debug)]
pub struct FoundRecords {
    /// Up to [`RECORDS_MAX`].
    pub records: Vec<Record>,
    /// Whether there are more after these.
    pub more: bool,
}

/// Rows of a shard that may be read, and where they are.
#[derive(Debug)]
pub struct RowsReader<F> {
    file: F,
    spans: Vec<(u64, usize)>,
    /// Bytes in all.
    pub bytes: u64,
}

impl<D: Disk> Store<D> {
    /// Opens the store on `disk`, removing what was not finished, and rebuilds the books.
    ///
    /// # Errors
    /// When the disk fails. Single files that are wrong are findings, not errors.
    pub fn open(
        disk: D,
        capacity_bytes: u64,
        reserve_bytes: u64,
    ) -> io::Result<(Self, Vec<Finding>)> {
        for dir in [INCOMING, SHARDS, MANIFESTS] {
            disk.make_dir(Path::new(dir))?;
        }
        let store = Self {
            disk,
            catalog: Mutex::new(Catalog::new(capacity_bytes)),
            reserve_bytes,
            serial: AtomicU64::new(0),
        };
        for name in store.disk.list(Path::new(INCOMING))? {
            store.disk.remove(&Path::new(INCOMING).join(name))?;
        }
        let findings = store.rebuild(Wrong::Remove)?;
        Ok((store, findings))
    }

    /// Opens the store to look at it, changing nothing; a daemon may be running on it.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn inspect_only(disk: D) -> io::Result<(Self, Vec<Finding>)> {
        let store = Self {
            disk,
            catalog: Mutex::new(Catalog::new(0)),
            reserve_bytes: 0,
            serial: AtomicU64::new(0),
        };
        let findings = store.rebuild(Wrong::Leave)?;
        Ok((store, findings))
    }

    /// Enters all whole shards and manifests in the books.
    fn rebuild(&self, wrong: Wrong) -> io::Result<Vec<Finding>> {
        let mut findings = Vec::new();
        self.find_shards(wrong, &mut findings)?;
        self.find_manifests(wrong, &mut findings)?;
        Ok(findings)
    }

    fn find_shards(&self, wrong: Wrong, findings: &mut Vec<Finding>) -> io::Result<()> {
        for directory in self.disk.list(Path::new(SHARDS))? {
            let path = Path::new(SHARDS).join(&directory);
            let files = self.disk.list(&path)?;
            for name in &files {
                let path = path.join(name);
                match self.inspect(&path) {
                    Ok((header, shard)) if shard_path(&header.identity) == path => {
                        let claim = claim_of(&header);
                        let number = header.identity.shard.number();
                        self.catalog()
                            .enter(header.owner, claim, number, shard, header.created);
                    }
                    Ok(_) => findings.push(Finding {
                        path,
                        what: "not the shard that its name says; left out".into(),
                    }),
                    Err(InspectError::Disk(cause)) => return Err(cause),
                    Err(InspectError::Format(cause)) => {
                        findings.push(self.sort_out(wrong, path, &cause)?);
                    }
                }
            }
            if wrong == Wrong::Remove {
                // Fails when shards are left in it, which is the usual case.
                let _ = self.disk.remove_dir(&path);
            }
        }
        Ok(())
    }

    fn sort_out(
        &self,
        wrong: Wrong,
        path: PathBuf,
        cause: &dyn std::fmt::Display,
    ) -> io::Result<Finding> {
        let what = match wrong {
            Wrong::Leave => cause.to_string(),
            Wrong::Remove => {
                self.disk.remove(&path)?;
                format!("{cause}; removed")
            }
        };
        Ok(Finding { path, what })
    }

    fn find_manifests(&self, wrong: Wrong, findings: &mut Vec<Finding>) -> io::Result<()> {
        for name in self.disk.list(Path::new(MANIFESTS))? {
            let path = Path::new(MANIFESTS).join(name);
            let bytes = match self.read_manifest(&path) {
                Ok(bytes) => bytes,
                Err(cause) if cause.kind() == io::ErrorKind::InvalidData => Vec::new(),
                Err(cause) => return Err(cause),
            };
            let problem = match Manifest::parse(bytes) {
                Err(cause) => cause.to_string(),
                Ok(manifest) => {
                    let owner = manifest.public().owner;
                    let mut catalog = self.catalog();
                    match catalog.check_commit(owner, &manifest) {
                        Ok(_) => {
                            catalog.committed(manifest);
                            continue;
                        }
                        Err(refusal) => refusal.to_string(),
                    }
                }
            };
            findings.push(self.sort_out(wrong, path, &problem)?);
        }
        Ok(())
    }

    fn read_manifest(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = self.disk.open(path)?;
        let len = usize::try_from(file.len()?).unwrap_or(usize::MAX);
        if len > MANIFEST_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Reads header and footer of a shard file.
    fn inspect(&self, path: &Path) -> Result<(Header, HeldShard), InspectError> {
        let file = self.disk.open(path)?;
        let (header, footer) = read_outline(&file)?;
        let shard = HeldShard {
            file_bytes: file.len()?,
            root: footer.root,
        };
        Ok((header, shard))
    }

    /// Capacity, used and free bytes, shards, checkpoints.
    pub fn usage(&self) -> Usage {
        let disk_free = self.disk.free_bytes().unwrap_or(0);
        let catalog = self.catalog();
        let lent = catalog
            .capacity_bytes()
            .saturating_sub(catalog.used_bytes());
        Usage {
            capacity_bytes: catalog.capacity_bytes(),
            used_bytes: catalog.used_bytes(),
            free_bytes: lent.min(disk_free.saturating_sub(self.reserve_bytes)),
            shards: catalog.shard_count(),
            checkpoints: catalog.checkpoint_count(),
        }
    }

    /// Reserves a version.
    ///
    /// # Errors
    /// When the owner has too many claims.
    pub fn claim(
        &self,
        owner: OwnerId,
        claim: Claim,
        now: UnixSeconds,
    ) -> Result<ClaimAnswer, Refusal> {
        self.catalog().claim(owner, claim, now)
    }

    /// Begins a shard.
    ///
    /// # Errors
    /// When it may not be stored here, or the disk fails.
    pub fn begin(
        self: &Arc<Self>,
        owner: OwnerId,
        put: &PutShard,
        now: UnixSeconds,
    ) -> Result<ShardWriter<D>, Refusal> {
        let shard = put
            .shard()
            .ok_or_else(|| Refusal::new(Code::BadRequest, "no such shard number"))?;
        let wanted = put.expected_bytes;
        self.check_disk(wanted)?;
        let reservation = self
            .catalog()
            .reserve(owner, put.claim, put.shard, wanted, now)?;
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{}-{serial}", put.claim.checkpoint.hex(), put.shard);
        let mut writer = ShardWriter {
            store: Arc::clone(self),
            header: Header {
                identity: ShardIdentity {
                    checkpoint: put.claim.checkpoint,
                    redundancy: put.redundancy,
                    shard,
                },
                owner,
                job_tag: put.claim.job_tag,
                version: put.claim.version,
                created: now,
            },
            path: Path::new(INCOMING).join(name),
            file: None,
            reservation: Some(reservation),
            reserved: wanted,
            table: TableBuilder::default(),
            groups: Vec::new(),
            buffer: Vec::new(),
            written: 0,
        };
        writer.file = Some(
            self.disk
                .create(&writer.path)
                .map_err(|e| disk_failed(&e))?,
        );
        writer.buffer.extend_from_slice(&writer.header.encode());
        Ok(writer)
    }

    fn check_disk(&self, wanted: u64) -> Result<(), Refusal> {
        let free = self.disk.free_bytes().map_err(|e| disk_failed(&e))?;
        let left = free.saturating_sub(self.reserve_bytes);
        if wanted > left || left == 0 {
            return Err(Refusal::new(
                Code::NoSpace,
                format!("{wanted} bytes wanted, {left} left on the disk"),
            ));
        }
        Ok(())
    }

    /// Makes a checkpoint visible; doing it again is fine.
    ///
    /// # Errors
    /// When the manifest does not go with what is held, or the disk fails.
    pub fn commit(&self, owner: OwnerId, manifest: Vec<u8>) -> Result<(), Refusal> {
        let manifest = Manifest::parse(manifest)
            .map_err(|cause| Refusal::new(Code::Mismatch, cause.to_string()))?;
        let id = manifest.public().checkpoint;
        // Held over the writing: two commits of one version must not both pass the check.
        let mut catalog = self.catalog();
        if catalog.check_commit(owner, &manifest)? {
            return Ok(());
        }
        let temporary = Path::new(INCOMING).join(format!("{}.manifest", id.hex()));
        let write = || {
            self.disk.remove(&temporary)?;
            let mut file = self.disk.create(&temporary)?;
            file.append(manifest.bytes())?;
            file.sync()?;
            self.disk.publish(&temporary, &manifest_path(id))
        };
        if let Err(cause) = write() {
            let _ = self.disk.remove(&temporary);
            return Err(disk_failed(&cause));
        }
        catalog.committed(manifest);
        Ok(())
    }

    /// Committed checkpoints of `owner`.
    pub fn find(
        &self,
        owner: OwnerId,
        job_tag: Option<JobTag>,
        after: Option<CheckpointId>,
    ) -> FoundRecords {
        let catalog = self.catalog();
        let mut found = catalog.find(owner, job_tag, after);
        let records = found
            .by_ref()
            .take(RECORDS_MAX as usize)
            .filter_map(|held| {
                Some(Record {
                    manifest: held.manifest.as_ref()?.bytes().to_vec(),
                    shards: held.shards.keys().copied().collect(),
                })
            })
            .collect();
        let more = found.next().is_some();
        FoundRecords { records, more }
    }

    /// The outline of a shard.
    ///
    /// # Errors
    /// When it is not here or not the asker's, or the disk fails.
    pub fn outline(&self, owner: OwnerId, name: ShardName) -> Result<Outline, Refusal> {
        let (_, _, footer) = self.open_shard(owner, name)?;
        Ok(footer.outline)
    }

    /// A page of a shard's table.
    ///
    /// # Errors
    /// As [`Self::outline`].
    pub fn page(&self, owner: OwnerId, name: ShardName, page: u64) -> Result<Vec<u8>, Refusal> {
        let (file, _, footer) = self.open_shard(owner, name)?;
        read_page(&file, &footer, page)
    }

    /// Finds rows of a shard.
    ///
    /// # Errors
    /// As [`Self::outline`], or when there are no such rows or they are too many for one request.
    pub fn rows(
        &self,
        owner: OwnerId,
        name: ShardName,
        first: u64,
        count: u32,
    ) -> Result<RowsReader<D::File>, Refusal> {
        let (file, _, footer) = self.open_shard(owner, name)?;
        let end = first.saturating_add(u64::from(count));
        if count == 0 || count > ROWS_PER_READ_MAX || end > footer.outline.rows {
            return Err(Refusal::new(
                Code::BadRequest,
                format!("rows {first}..{end} of {}", footer.outline.rows),
            ));
        }
        let (mut spans, mut bytes) = (Vec::new(), 0);
        for page in page_of(first).0..=page_of(end - 1).0 {
            let entries = parse_page(&file, &footer, page)?;
            let group = usize::try_from(page).ok();
            let mut at = group
                .and_then(|group| footer.groups.get(group).copied())
                .ok_or_else(damaged)?;
            let start = page * codec::geometry::PAGE_ROWS;
            for (row, entry) in (start..).zip(entries.entries()) {
                if (first..end).contains(&row) {
                    spans.push((at, entry.len as usize));
                    bytes += u64::from(entry.len);
                }
                at += u64::from(entry.len);
            }
        }
        debug_assert!(bytes <= READ_BYTES_MAX);
        Ok(RowsReader { file, spans, bytes })
    }

    /// Removes all that is held of a checkpoint; `false` when there was nothing.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn forget(&self, owner: OwnerId, checkpoint: CheckpointId) -> Result<bool, Refusal> {
        let mut catalog = self.catalog();
        catalog.unclaim(owner, checkpoint);
        if catalog.owned(owner, checkpoint).is_err() {
            return Ok(false);
        }
        self.remove(&mut catalog, checkpoint)
            .map_err(|cause| disk_failed(&cause))?;
        Ok(true)
    }

    /// Removes what was never committed and has waited for too long.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn expire(&self, now: UnixSeconds) -> io::Result<Vec<CheckpointId>> {
        let mut catalog = self.catalog();
        let expired = catalog.expire(now);
        for checkpoint in &expired {
            self.remove(&mut catalog, *checkpoint)?;
        }
        Ok(expired)
    }

    /// The manifest goes first: a crash in between leaves shards that expire, never a checkpoint
    /// that looks whole.
    fn remove(&self, catalog: &mut Catalog, checkpoint: CheckpointId) -> io::Result<()> {
        self.disk.remove(&manifest_path(checkpoint))?;
        let directory = shard_directory(checkpoint);
        if let Some(held) = catalog.remove(checkpoint) {
            for number in held.shards.keys() {
                self.disk
                    .remove(&directory.join(format!("{number}.shard")))?;
            }
        }
        // Fails when a shard is being published into it; then it is not empty and stays.
        let _ = self.disk.remove_dir(&directory);
        Ok(())
    }

    fn open_shard(
        &self,
        owner: OwnerId,
        name: ShardName,
    ) -> Result<(D::File, Header, Footer), Refusal> {
        let held = self.catalog().owned_shard(owner, name)?;
        let path = shard_directory(name.checkpoint).join(format!("{}.shard", name.shard));
        let file = self.disk.open(&path).map_err(|e| disk_failed(&e))?;
        let (header, footer) = read_outline(&file).map_err(|cause| match cause {
            InspectError::Disk(cause) => disk_failed(&cause),
            InspectError::Format(_) => damaged(),
        })?;
        if footer.root != held.root {
            return Err(damaged());
        }
        Ok((file, header, footer))
    }

    /// Reads every block of every shard and tells which are damaged.
    ///
    /// # Errors
    /// When the disk can't be read at all.
    pub fn check(&self) -> io::Result<Vec<Finding>> {
        let mut findings = Vec::new();
        for directory in self.disk.list(Path::new(SHARDS))? {
            let directory = Path::new(SHARDS).join(directory);
            for name in self.disk.list(&directory)? {
                let path = directory.join(name);
                let file = self.disk.open(&path)?;
                if let Err(what) = check_shard(&file) {
                    findings.push(Finding { path, what });
                }
            }
        }
        Ok(findings)
    }

    fn catalog(&self) -> MutexGuard<'_, Catalog> {
        self.catalog.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How full a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes lent.
    pub capacity_bytes: u64,
    /// Bytes taken or promised.
    pub used_bytes: u64,
    /// Bytes that can still be stored.
    pub free_bytes: u64,
    /// Whole shards.
    pub shards: u64,
    /// Committed checkpoints.
    pub checkpoints: u64,
}

impl<F: DiskFile> RowsReader<F> {
    /// Reads the next blocks, at least one and about [`WRITE_BYTES`]; `None` after the last.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn next_blocks(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut bytes: Vec<u8> = Vec::new();
        let mut taken = 0;
        let mut at = self.spans.first().map_or(0, |(offset, _)| *offset);
        let start = at;
        for (offset, len) in &self.spans {
            let contiguous = *offset == at;
            if taken > 0 && (!contiguous || (at - start) as usize + len > WRITE_BYTES) {
                break;
            }
            at = offset + *len as u64;
            taken += 1;
        }
        if taken == 0 {
            return Ok(None);
        }
        self.spans.drain(..taken);
        bytes.resize((at - start) as usize, 0);
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(Some(bytes))
    }
}

/// A shard that is being written. Dropping it before the end removes what was written.
#[derive(Debug)]
pub struct ShardWriter<D: Disk> {
    store: Arc<Store<D>>,
    header: Header,
    path: PathBuf,
    file: Option<D::File>,
    reservation: Option<Reservation>,
    reserved: u64,
    table: TableBuilder,
    groups: Vec<u64>,
    buffer: Vec<u8>,
    written: u64,
}

impl<D: Disk> ShardWriter<D> {
    /// Takes the next row's block.
    ///
    /// # Errors
    /// When there is no room or the disk fails; then the shard is lost.
    pub fn push(&mut self, block: &[u8]) -> Result<(), Refusal> {
        if block.is_empty() || block.len() > BLOCK_BYTES_MAX {
            return Err(Refusal::new(Code::BadRequest, "length of a block"));
        }
        if page_count(self.table.rows() + 1) > PAGES_MAX {
            return Err(Refusal::new(Code::BadRequest, "too many rows"));
        }
        if page_of(self.table.rows()).1 == 0 {
            self.groups.push(self.offset());
        }
        self.reserve(block.len() as u64)?;
        self.buffer.extend_from_slice(block);
        if let Some(page) = self.table.push(BlockEntry::of(block)) {
            self.buffer.extend_from_slice(&page);
        }
        if self.buffer.len() >= WRITE_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    /// Ends the shard: when this returns it is on stable storage under its final name.
    ///
    /// # Errors
    /// When what was written is not what the client says that it sent, or the disk fails.
    pub fn finish(mut self, end: &PutEnd, now: UnixSeconds) -> Result<StoredShard, Refusal> {
        let (page, outline) = std::mem::take(&mut self.table).finish();
        let root = outline.root(&self.header.identity);
        if outline.rows != end.rows || root != end.root {
            return Err(Refusal::new(
                Code::Mismatch,
                format!(
                    "{} rows with root {root}, {} with {} promised",
                    outline.rows, end.rows, end.root
                ),
            ));
        }
        self.buffer.extend(page.unwrap_or_default());
        let footer = Footer {
            root,
            groups: std::mem::take(&mut self.groups),
            outline,
        };
        self.buffer.extend_from_slice(&footer.encode());
        self.reserve(0)?;
        self.flush()?;
        self.publish()?;
        let shard = HeldShard {
            file_bytes: self.written,
            root,
        };
        if let Some(reservation) = self.reservation.take() {
            self.store.catalog().stored(
                reservation,
                self.header.owner,
                claim_of(&self.header),
                shard,
                now,
            );
        }
        Ok(StoredShard {
            rows: footer.outline.rows,
            root,
        })
    }

    /// Syncs the file and gives it its final name.
    fn publish(&mut self) -> Result<(), Refusal> {
        let failed = |cause: io::Error| disk_failed(&cause);
        let path = shard_path(&self.header.identity);
        if let Some(mut file) = self.file.take() {
            file.sync().map_err(failed)?;
        }
        // A checkpoint that is removed at this moment takes an empty directory along: make it
        // again, once.
        let disk = &self.store.disk;
        let directory = shard_directory(self.header.identity.checkpoint);
        disk.make_dir(&directory).map_err(failed)?;
        let published = disk.publish(&self.path, &path).or_else(|_| {
            disk.make_dir(&directory)?;
            disk.publish(&self.path, &path)
        });
        published.map_err(|cause| {
            // Renamed or not: it was not acknowledged and must not come back.
            let _ = disk.remove(&path);
            failed(cause)
        })
    }

    const fn offset(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Keeps the reservation ahead of what is written.
    fn reserve(&mut self, more: u64) -> Result<(), Refusal> {
        let needed = self.offset() + more;
        if needed <= self.reserved {
            return Ok(());
        }
        let Some(reservation) = &mut self.reservation else {
            return Ok(());
        };
        self.store.check_disk(needed - self.reserved)?;
        let step = needed.max(self.reserved.saturating_add(RESERVE_STEP));
        let mut catalog = self.store.catalog();
        // Near the end of the capacity a whole step may not fit, but the block still may.
        self.reserved = match catalog.extend(reservation, step) {
            Ok(()) => step,
            Err(_) => {
                catalog.extend(reservation, needed)?;
                needed
            }
        };
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Refusal> {
        if let Some(file) = &mut self.file {
            file.append(&self.buffer).map_err(|e| disk_failed(&e))?;
        }
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

impl<D: Disk> Drop for ShardWriter<D> {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            self.store.catalog().release(reservation);
            // What can't be removed now is removed at the next start.
            let _ = self.store.disk.remove(&self.path);
        }
    }
}

/// Why a shard file can't be used.
#[derive(Debug)]
enum InspectError {
    Disk(io::Error),
    Format(FormatError),
}

impl From<io::Error> for InspectError {
    fn from(cause: io::Error) -> Self {
        Self::Disk(cause)
    }
}

impl From<FormatError> for InspectError {
    fn from(cause: FormatError) -> Self {
        Self::Format(cause)
    }
}

fn read_outline<F: DiskFile>(file: &F) -> Result<(Header, Footer), InspectError> {
    let len = file.len()?;
    let short = FormatError::Length {
        part: "shard file",
        actual: usize::try_from(len).unwrap_or(usize::MAX),
        expected: HEADER_BYTES + TAIL_BYTES,
    };
    if len < (HEADER_BYTES + TAIL_BYTES) as u64 {
        return Err(short.into());
    }
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0)?;
    let header = Header::parse(&header)?;
    let mut tail = [0; TAIL_BYTES];
    file.read_exact_at(&mut tail, len - TAIL_BYTES as u64)?;
    let footer_len = Footer::len_from_tail(&tail)?;
    let start = len.checked_sub(footer_len as u64).ok_or(short)?;
    let mut footer = vec![0; footer_len];
    file.read_exact_at(&mut footer, start)?;
    let footer = Footer::parse(&footer, len, &header.identity)?;
    Ok((header, footer))
}

fn read_page<F: DiskFile>(file: &F, footer: &Footer, page: u64) -> Result<Vec<u8>, Refusal> {
    let rows = page_rows(footer.outline.rows, page);
    let len = file.len().map_err(|e| disk_failed(&e))?;
    let offset = footer.page_offset(page, len, footer.encoded_len());
    let Some(offset) = offset.filter(|_| rows > 0) else {
        return Err(Refusal::new(Code::BadRequest, format!("page {page}")));
    };
    let mut bytes = vec![0; rows as usize * ENTRY_BYTES];
    file.read_exact_at(&mut bytes, offset)
        .map_err(|e| disk_failed(&e))?;
    Ok(bytes)
}

fn parse_page<F: DiskFile>(file: &F, footer: &Footer, page: u64) -> Result<Page, Refusal> {
    let bytes = read_page(file, footer, page)?;
    let number = usize::try_from(page).ok();
    let hash = number.and_then(|number| footer.outline.pages.get(number));
    let rows = page_rows(footer.outline.rows, page);
    Page::parse(&bytes, rows, *hash.ok_or_else(damaged)?).map_err(|_| damaged())
}

/// Reads all blocks of a shard.
fn check_shard<F: DiskFile>(file: &F) -> Result<(), String> {
    let (_, footer) = read_outline(file).map_err(|cause| match cause {
        InspectError::Disk(cause) => cause.to_string(),
        InspectError::Format(cause) => cause.to_string(),
    })?;
    let mut block = Vec::new();
    for page in 0..page_count(footer.outline.rows) {
        let entries = parse_page(file, &footer, page).map_err(|refusal| refusal.to_string())?;
        let group = usize::try_from(page).map_err(|cause| cause.to_string())?;
        let mut at = footer.groups.get(group).copied().unwrap_or_default();
        let start = page * codec::geometry::PAGE_ROWS;
        for (row, entry) in (start..).zip(entries.entries()) {
            block.resize(entry.len as usize, 0);
            file.read_exact_at(&mut block, at)
                .map_err(|cause| format!("row {row}: {cause}"))?;
            if !entry.matches(&block) {
                return Err(format!("row {row}: hash mismatch"));
            }
            at += u64::from(entry.len);
        }
    }
    Ok(())
}

fn shard_directory(checkpoint: CheckpointId) -> PathBuf {
    Path::new(SHARDS).join(checkpoint.hex())
}

fn shard_path(identity: &ShardIdentity) -> PathBuf {
    shard_directory(identity.checkpoint).join(format!("{}.shard", identity.shard))
}

fn manifest_path(checkpoint: CheckpointId) -> PathBuf {
    Path::new(MANIFESTS).join(format!("{}.manifest", checkpoint.hex()))
}

const fn claim_of(header: &Header) -> Claim {
    Claim {
        job_tag: header.job_tag,
        version: header.version,
        checkpoint: header.identity.checkpoint,
    }
}

fn disk_failed(cause: &io::Error) -> Refusal {
    let code = match cause.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Code::NoSpace,
        _ => Code::DiskFailed,
    };
    Refusal::new(code, cause.to_string())
}

fn damaged() -> Refusal {
    Refusal::new(Code::DiskFailed, "the shard is damaged")
}
