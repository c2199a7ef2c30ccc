//! Reads a data directory at start: manifests and notices, and the headers and footers of shards.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use codec::OwnerId;
use codec::manifest::{MANIFEST_BYTES_MAX, Manifest, Public};
use codec::notice::{NOTICE_BYTES_MAX, Notice};
use codec::shard_file::Header;
use protocol::wire::message::Claim;

use super::error::StoreError;
use super::layout::{self, INCOMING, MANIFESTS, NOTICES, SHARDS};
use super::reader::{ReadError, ShardReader, read_header};
use crate::core::places::Who;
use crate::core::{Catalog, Key, Millis, Shard};
use crate::disk::{Disk, Read};

/// A file in a data directory.
#[derive(Clone, Debug)]
pub enum FoundFile {
    /// A manifest with a valid signature.
    Manifest {
        /// The owner and grant that made it.
        whose: Who<OwnerId>,
        /// The checkpoint, its job and its version.
        claim: Claim,
        /// When its save began, in Unix seconds.
        created: u64,
    },
    /// A shard with a valid header and footer.
    Shard {
        /// The owner of the checkpoint.
        owner: OwnerId,
        /// The checkpoint, its job and its version.
        claim: Claim,
        /// Identity, root and sizes of the shard.
        shard: Shard,
        /// When the shard was begun, in Unix seconds.
        created: u64,
    },
    /// A notice of an owner about a job.
    Notice(Box<Notice>),
    /// A file that is incomplete or damaged, or not what its name states.
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// What is wrong with the file, for the log.
        why: String,
    },
    /// A file that can't be read now, or whose name this program does not use.
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// Why the file can't be used, for the log.
        why: String,
    },
}

/// Counts of what was found at start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Shards with a valid header and footer.
    pub shards: u64,
    /// Manifests of committed checkpoints.
    pub manifests: u64,
    /// Notices of owners about their jobs.
    pub notices: u64,
    /// Damaged files, which were removed.
    pub damaged: u64,
    /// Files that could not be read. They are neither used nor removed.
    pub unreadable: u64,
}

impl Loaded {
    /// Enters a file in the books. A damaged file is removed from `disk`.
    pub(super) fn enter(
        &mut self,
        disk: &dyn Disk,
        catalog: &mut Catalog,
        found: FoundFile,
        now: Millis,
        unix_seconds: u64,
    ) {
        match found {
            FoundFile::Manifest {
                whose,
                claim,
                created,
            } => {
                catalog.load_manifest(&claim, whose);
                let owner = whose.member;
                let checkpoint = claim.checkpoint;
                catalog.dated(Key { owner, checkpoint }, created);
                self.manifests += 1;
            }
            FoundFile::Shard {
                owner,
                claim,
                shard,
                created,
            } => {
                // One from the future is from a time when the clock was wrong: nobody knows its age.
                let age = Duration::from_secs(unix_seconds.abs_diff(created));
                catalog.load_shard(now, age, &claim, owner, shard);
                self.shards += 1;
            }
            FoundFile::Notice(notice) => {
                let _unneeded = catalog.noted(notice.words().clone());
                self.notices += 1;
            }
            FoundFile::Damaged { path, why } => {
                self.damaged += 1;
                let removed = disk.remove(&path).is_ok();
                tracing::error!(path = %path.display(), why, removed, "damaged file");
            }
            FoundFile::Unreadable { path, why } => {
                self.unreadable += 1;
                tracing::error!(path = %path.display(), why, "ignored an unreadable file");
            }
        }
    }
}

/// Removes the files that were unfinished when the daemon ended.
pub(super) fn remove_incoming(disk: &dyn Disk) -> io::Result<()> {
    for name in disk.list(Path::new(INCOMING))? {
        disk.discard(&Path::new(INCOMING).join(name))?;
    }
    Ok(())
}

/// Reads all manifests and notices, and all headers and footers of shards, in this order.
///
/// # Errors
/// When a directory can't be read.
pub fn scan(disk: &dyn Disk, found: &mut dyn FnMut(FoundFile)) -> io::Result<()> {
    visit(disk, found, |_| Ok(()))
}

/// Like [`scan`], and also compares each block of each shard with the shard's table.
///
/// # Errors
/// When a directory can't be read.
pub fn check(disk: &dyn Disk, found: &mut dyn FnMut(FoundFile)) -> io::Result<()> {
    visit(disk, found, ShardReader::check)
}

fn visit(
    disk: &dyn Disk,
    found: &mut dyn FnMut(FoundFile),
    check_shard: impl Fn(&ShardReader) -> Result<(), ReadError>,
) -> io::Result<()> {
    walk(disk, MANIFESTS, |owner, path, name| {
        found(load_manifest(disk, owner, path, name).unwrap_or_else(|wrong| wrong.of(path)));
    })?;
    walk(disk, NOTICES, |owner, path, name| {
        found(load_notice(disk, owner, path, name).unwrap_or_else(|wrong| wrong.of(path)));
    })?;
    walk(disk, SHARDS, |owner, path, name| {
        let checked = load_shard(disk, owner, path, name).and_then(|(found, reader)| {
            check_shard(&reader)?;
            Ok(found)
        });
        found(checked.unwrap_or_else(|wrong| wrong.of(path)));
    })
}

/// Calls `visit` for every file of every owner.
pub(super) fn walk(
    disk: &dyn Disk,
    kind: &str,
    mut visit: impl FnMut(OwnerId, &Path, &str),
) -> io::Result<()> {
    for owner_name in disk.list(Path::new(kind))? {
        let Some(owner) = OwnerId::from_hex(&owner_name) else {
            tracing::warn!(
                kind,
                name = owner_name,
                "ignored a directory that is not an owner's"
            );
            continue;
        };
        let dir = Path::new(kind).join(&owner_name);
        for name in disk.list(&dir)? {
            visit(owner, &dir.join(&name), &name);
        }
    }
    Ok(())
}

/// Why a file is not used.
enum Wrong {
    Damaged(String),
    Unreadable(String),
}

impl Wrong {
    fn of(self, path: &Path) -> FoundFile {
        let path = path.to_owned();
        match self {
            Self::Damaged(why) => FoundFile::Damaged { path, why },
            Self::Unreadable(why) => FoundFile::Unreadable { path, why },
        }
    }
}

impl From<io::Error> for Wrong {
    fn from(cause: io::Error) -> Self {
        Self::Unreadable(cause.to_string())
    }
}

impl From<ReadError> for Wrong {
    fn from(cause: ReadError) -> Self {
        match cause {
            ReadError::Io(cause) => cause.into(),
            other => Self::Damaged(other.to_string()),
        }
    }
}

fn load_shard(
    disk: &dyn Disk,
    owner: OwnerId,
    path: &Path,
    name: &str,
) -> Result<(FoundFile, ShardReader), Wrong> {
    let Some((checkpoint, number)) = layout::parse_shard_name(name) else {
        return Err(Wrong::Unreadable("not the name of a shard".into()));
    };
    let (header, reader) = open_shard(disk.open(path)?)?;
    let identity = header.identity;
    let names = (owner, checkpoint, number);
    if names != (header.owner, identity.checkpoint, identity.shard.number()) {
        return Err(Wrong::Damaged("another shard than its name says".into()));
    }
    let outline = &reader.footer().outline;
    let found = FoundFile::Shard {
        owner,
        claim: Claim {
            job_tag: header.job_tag,
            version: header.version,
            checkpoint,
        },
        created: header.created,
        shard: Shard {
            identity,
            root: reader.footer().root,
            rows: outline.rows,
            block_bytes: outline.block_bytes,
            file_bytes: reader.file_bytes(),
        },
    };
    Ok((found, reader))
}

fn open_shard(file: Arc<dyn Read>) -> Result<(Header, ShardReader), ReadError> {
    let header = read_header(&*file)?;
    let reader = ShardReader::open(file, header.identity)?;
    Ok((header, reader))
}

fn load_manifest(
    disk: &dyn Disk,
    owner: OwnerId,
    path: &Path,
    name: &str,
) -> Result<FoundFile, Wrong> {
    let Some(checkpoint) = layout::parse_manifest_name(name) else {
        return Err(Wrong::Unreadable("not the name of a manifest".into()));
    };
    let manifest = match read_manifest(disk, path) {
        Ok(manifest) => manifest,
        Err(StoreError::Disk { cause, .. }) => return Err(cause.into()),
        Err(other) => return Err(Wrong::Damaged(other.to_string())),
    };
    let (key, claim) = of_manifest(manifest.public());
    if key != (Key { owner, checkpoint }) {
        return Err(Wrong::Damaged("another manifest than its name says".into()));
    }
    Ok(FoundFile::Manifest {
        whose: signed_by(&manifest),
        claim,
        created: manifest.public().created,
    })
}

fn load_notice(
    disk: &dyn Disk,
    owner: OwnerId,
    path: &Path,
    name: &str,
) -> Result<FoundFile, Wrong> {
    let Some(job_tag) = layout::parse_notice_name(name) else {
        return Err(Wrong::Unreadable("not the name of a notice".into()));
    };
    let notice = match read_notice(disk, path) {
        Ok(notice) => notice,
        Err(StoreError::Disk { cause, .. }) => return Err(cause.into()),
        Err(other) => return Err(Wrong::Damaged(other.to_string())),
    };
    let words = notice.words();
    if (words.owner, words.job_tag) != (owner, job_tag) {
        return Err(Wrong::Damaged("another notice than its name says".into()));
    }
    Ok(FoundFile::Notice(Box::new(notice)))
}

/// Reads a notice and checks its signature.
pub(super) fn read_notice(disk: &dyn Disk, path: &Path) -> Result<Notice, StoreError> {
    Ok(Notice::parse(read_small(disk, path, NOTICE_BYTES_MAX)?)?)
}

/// Reads a manifest and checks its signature.
pub(super) fn read_manifest(disk: &dyn Disk, path: &Path) -> Result<Manifest, StoreError> {
    Ok(Manifest::parse(read_small(
        disk,
        path,
        MANIFEST_BYTES_MAX,
    )?)?)
}

/// Reads a file of at most `most` bytes.
pub(super) fn read_small(disk: &dyn Disk, path: &Path, most: usize) -> Result<Vec<u8>, StoreError> {
    let failed = || StoreError::disk("reading a small file");
    let file = disk.open(path).map_err(failed())?;
    if file.size() > most as u64 {
        return Err(StoreError::Mismatch("length of a small file"));
    }
    let mut bytes = vec![0; file.size() as usize];
    file.read_exact_at(&mut bytes, 0).map_err(failed())?;
    Ok(bytes)
}

/// The owner of a checkpoint, and the grant with which its manifest was signed.
pub fn signed_by(manifest: &Manifest) -> Who<OwnerId> {
    Who {
        member: manifest.public().owner,
        grant: manifest.grant().map(|_| OwnerId(manifest.signer().0)),
    }
}

/// The checkpoint of a manifest, and the claim to its version.
pub(super) fn of_manifest(public: &Public) -> (Key, Claim) {
    let key = Key {
        owner: public.owner,
        checkpoint: public.checkpoint,
    };
    (key, Claim::of(public))
}
