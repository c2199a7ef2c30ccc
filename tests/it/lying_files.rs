//! File systems that answer falsely: a save fails, or it holds the bytes that each file had at one moment.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEntry,
    ReplyLseek, ReplyOpen, Request,
};
use tests::skip::not_checked;
use tests::{Grid, image};

const FILE_BYTES: usize = 3 << 20;

/// Where a read begins that fails, or during which the file is written to.
const MIDDLE: u64 = 2 << 20;

const NAMES: [&str; 2] = ["one", "two"];

/// The number of a file's inode, without the changes of its content.
const FIRST_INODE: u64 = 16;

/// What a file system says that is not so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    Nothing,
    /// Data and holes begin wherever one asks.
    SeekAnswersTheOffset,
    /// There is no data from any offset on.
    SeekFindsNoData,
    NoBlocks,
    SizeIsZero,
    SizeIsTooLarge,
    /// Each read returns fewer bytes than were asked for.
    ReadsAreShort,
    DirectReadsAreRefused,
    /// No birth times, and all times are those of 1970, until the file is written to.
    NoTimes,
    /// The kinds of files are missing in listings.
    ListingHasNoKinds,
    ReadFails,
    ListingFails,
    ListingFailsInTheMiddle,
    AttributesFail,
}

const LIES: [Lie; 14] = [
    Lie::Nothing,
    Lie::SeekAnswersTheOffset,
    Lie::SeekFindsNoData,
    Lie::NoBlocks,
    Lie::SizeIsZero,
    Lie::SizeIsTooLarge,
    Lie::ReadsAreShort,
    Lie::DirectReadsAreRefused,
    Lie::NoTimes,
    Lie::ListingHasNoKinds,
    Lie::ReadFails,
    Lie::ListingFails,
    Lie::ListingFailsInTheMiddle,
    Lie::AttributesFail,
];

impl Lie {
    /// The file system says that it could not look: a save of what it has shown would lack something.
    fn is_an_error(self) -> bool {
        matches!(
            self,
            Self::ReadFails
                | Self::ListingFails
                | Self::ListingFailsInTheMiddle
                | Self::AttributesFail
        )
    }
}

/// What happens to each file when its middle is read for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    Nobody,
    InPlace,
    /// Another file takes its name; whoever has it open goes on reading the former one.
    Renaming,
}

struct OddFiles {
    lie: Lie,
    writer: Writer,
    contents: Arc<Contents>,
    /// Whether each file was written to.
    is_written: [AtomicBool; NAMES.len()],
}

/// The content of each file before and after it is written to.
struct Contents([[Vec<u8>; 2]; NAMES.len()]);

impl Contents {
    fn new() -> Self {
        let noise = |seed| image::noise(FILE_BYTES, seed);
        Self([[noise(1), noise(2)], [noise(3), noise(4)]])
    }
}

impl OddFiles {
    /// How often a file was written to: 0 or 1.
    fn rounds_of(&self, file: usize) -> u64 {
        self.is_written[file].load(Ordering::SeqCst).into()
    }

    /// The number by which the kernel knows a file: a renaming writer leaves another file under the name.
    fn inode(&self, file: usize) -> INodeNo {
        let another = match self.writer {
            Writer::Renaming => self.rounds_of(file) * NAMES.len() as u64,
            _ => 0,
        };
        INodeNo(FIRST_INODE + file as u64 + another)
    }

    /// The file with this number, and the round of its content.
    fn file_of(&self, inode: INodeNo) -> Option<(usize, u64)> {
        let from_first = u64::from(inode).checked_sub(FIRST_INODE)?;
        let file = usize::try_from(from_first % NAMES.len() as u64).ok()?;
        let round = match self.writer {
            Writer::Renaming => from_first / NAMES.len() as u64,
            _ => self.rounds_of(file),
        };
        Some((file, round))
    }

    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let file = match inode {
            INodeNo::ROOT => None,
            _ => Some(self.file_of(inode)?),
        };
        let round = file.map_or(0, |(_, round)| round);
        let time = match self.lie {
            Lie::NoTimes if round == 0 => UNIX_EPOCH,
            _ => UNIX_EPOCH + Duration::from_secs(1_700_000_000 + round),
        };
        let size = match self.lie {
            Lie::SizeIsZero => 0,
            Lie::SizeIsTooLarge => 2 * FILE_BYTES as u64,
            _ => FILE_BYTES as u64,
        };
        let blocks = match self.lie {
            Lie::NoBlocks => 0,
            // Else nobody asks where data begins.
            Lie::SeekAnswersTheOffset | Lie::SeekFindsNoData => size / 512 - 8,
            _ => size / 512,
        };
        Some(FileAttr {
            ino: inode,
            size: if file.is_some() { size } else { 0 },
            blocks,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: UNIX_EPOCH,
            kind: match file {
                Some(_) => FileType::RegularFile,
                None => FileType::Directory,
            },
            perm: 0o755,
            nlink: if file.is_none() { 2 } else { 1 },
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn write_to(&self, file: usize) {
        if self.writer != Writer::Nobody {
            self.is_written[file].store(true, Ordering::SeqCst);
        }
    }
}

impl Filesystem for OddFiles {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let file = NAMES.iter().position(|one| name == OsStr::new(one));
        if self.lie == Lie::AttributesFail && file == Some(1) {
            return reply.error(Errno::EIO);
        }
        let inode = file.map(|file| self.inode(file));
        match inode.and_then(|inode| self.attributes(inode)) {
            Some(attributes) => reply.entry(&Duration::ZERO, &attributes, fuser::Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&Duration::ZERO, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if self.lie == Lie::DirectReadsAreRefused && flags.0 & 0o40_000 != 0 {
            return reply.error(Errno::EINVAL);
        }
        // Each read comes here, whatever the size of the file is said to be.
        reply.opened(FileHandle(u64::from(inode)), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some((file, round)) = self.file_of(inode) else {
            return reply.error(Errno::ENOENT);
        };
        let end = (offset + u64::from(size)).min(FILE_BYTES as u64);
        if self.lie == Lie::ReadFails && end > MIDDLE {
            return reply.error(Errno::EIO);
        }
        let all = &self.contents.0[file][usize::from(round > 0)];
        let end = match self.lie {
            Lie::ReadsAreShort => end.min(offset + 10_000),
            _ => end,
        };
        reply.data(all.get(offset as usize..end as usize).unwrap_or_default());
        if end > MIDDLE {
            self.write_to(file);
        }
    }

    fn lseek(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        const DATA: i32 = 3;
        match self.lie {
            Lie::SeekAnswersTheOffset => reply.offset(offset),
            Lie::SeekFindsNoData => reply.error(Errno::ENXIO),
            _ if whence == DATA => reply.offset(offset),
            _ => reply.offset(FILE_BYTES as i64),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let fails_at = match self.lie {
            Lie::ListingFails => 0,
            Lie::ListingFailsInTheMiddle => 1,
            _ => u64::MAX,
        };
        if offset >= fails_at {
            return reply.error(Errno::EIO);
        }
        let kind = match self.lie {
            Lie::ListingHasNoKinds => FileType::Socket,
            _ => FileType::RegularFile,
        };
        for (file, name) in NAMES.iter().enumerate().skip(offset as usize) {
            let next = file as u64 + 1;
            if reply.add(self.inode(file), next, kind, name) || next == fails_at {
                break;
            }
        }
        reply.ok();
    }
}

fn mount(
    at: &Path,
    lie: Lie,
    writer: Writer,
    contents: &Arc<Contents>,
) -> std::io::Result<BackgroundSession> {
    let mut config = Config::default();
    config.mount_options = vec![MountOption::RO, MountOption::FSName("odd".to_owned())];
    let files = OddFiles {
        lie,
        writer,
        contents: Arc::clone(contents),
        is_written: Default::default(),
    };
    fuser::spawn_mount(files, at, &config)
}

/// Saves a tree of the file system, and compares what comes back. Says whether the save succeeded.
fn tried(grid: &Grid, lie: Lie, writer: Writer, contents: &Arc<Contents>) -> Result<bool> {
    let dir = tempfile::tempdir_in(grid.path("."))?;
    let odd = dir.path().join("odd");
    std::fs::create_dir(&odd)?;
    let session = mount(&odd, lie, writer, contents)?;
    let job = format!("{lie:?}-{writer:?}").to_lowercase();
    let odd_name = odd.to_string_lossy();
    let saved = grid.run(["save", "--job", &job, &odd_name])?;
    session.umount_and_join().context("unmount")?;
    if !matches!(saved.code, Some(0 | 3)) {
        let why = saved.stderr.lines().next().unwrap_or_default();
        ensure!(!why.is_empty(), "{lie:?}, {writer:?}: no reason: {saved:?}");
        let must_save =
            writer == Writer::Nobody && !lie.is_an_error() && lie != Lie::SizeIsTooLarge;
        ensure!(!must_save, "{lie:?}: all bytes can be read, and yet: {why}");
        eprintln!("{lie:?}, {writer:?}: {why}");
        return Ok(false);
    }
    ensure!(
        !lie.is_an_error(),
        "{lie:?}, {writer:?}: saved, though the system could not look"
    );
    let back = dir.path().join("back");
    let to = back.to_string_lossy();
    grid.run(["restore", "--job", &job, "-o", &to])?.expect(0)?;
    for (file, name) in NAMES.iter().enumerate() {
        let held = std::fs::read(back.join(name))
            .with_context(|| format!("{lie:?}, {writer:?}: {name} is missing"))?;
        let is_whole = contents.0[file].contains(&held);
        ensure!(
            is_whole,
            "{lie:?}, {writer:?}: {name} came back with {} bytes that it never had",
            held.len()
        );
    }
    Ok(true)
}

#[test]
fn whatever_a_file_system_says_a_save_fails_or_holds_what_was_there() -> Result<()> {
    let grid = Grid::up(5)?;
    let contents = Arc::new(Contents::new());
    let probe = tempfile::tempdir()?;
    if let Err(cause) = mount(probe.path(), Lie::Nothing, Writer::Nobody, &contents) {
        return not_checked("file systems that lie", &cause.to_string());
    }
    let mut outcomes = Vec::new();
    for lie in LIES {
        for writer in [Writer::Nobody, Writer::InPlace, Writer::Renaming] {
            let is_saved = tried(&grid, lie, writer, &contents)?;
            outcomes.push(format!("{lie:?} {writer:?}: {is_saved}"));
        }
    }
    eprintln!("saved: {}", outcomes.join("; "));
    Ok(())
}
