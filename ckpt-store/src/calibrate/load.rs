//! Synthetic loads: an owner that alternates work and rest, and a guest that never rests.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long each phase of the owner's work takes when the owner is alone.
const WORK: Duration = Duration::from_millis(20);

/// Bytes that are written and synced in one unit of work.
const DISK_BYTES: usize = 1 << 20;

/// Size of the file, in bytes, that is written again and again.
const FILE_BYTES: u64 = 64 << 20;

/// The resource of the machine that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Resource {
    /// One CPU.
    Cpu,
    /// The disk of the data directory.
    Disk,
}

/// Does units of work on a resource.
#[derive(Debug)]
enum Worker {
    Cpu,
    Disk { file: File, at: u64, bytes: Vec<u8> },
}

impl Worker {
    fn new(resource: Resource, scratch: &Path) -> io::Result<Self> {
        match resource {
            Resource::Cpu => Ok(Self::Cpu),
            Resource::Disk => Ok(Self::Disk {
                file: File::create(scratch)?,
                at: 0,
                bytes: vec![0x5A; DISK_BYTES],
            }),
        }
    }

    fn unit(&mut self) -> io::Result<()> {
        match self {
            Self::Cpu => {
                let mut value = 1_u64;
                for i in 0..20_000_u64 {
                    value = std::hint::black_box(value.wrapping_mul(0x5851_F42D_4C95_7F2D) ^ i);
                }
                Ok(())
            }
            Self::Disk { file, at, bytes } => {
                file.write_all_at(bytes, *at)?;
                file.sync_data()?;
                *at = (*at + bytes.len() as u64) % FILE_BYTES;
                Ok(())
            }
        }
    }
}

/// Runs an owner for `lasting` and returns how many units of work it completed. The owner alternates
/// `units_at_once` units of work, which take 20 ms when it is alone, and a rest. The rest has a fixed
/// length, chosen such that an owner that is alone uses `load` of the resource. So if work becomes
/// slower, less work is done, as with a user who thinks between two commands.
///
/// # Errors
/// When the scratch file can't be written.
pub fn owner(
    resource: Resource,
    load: f64,
    units_at_once: u64,
    lasting: Duration,
    scratch: &Path,
) -> io::Result<u64> {
    let rest = WORK.mul_f64((1.0 / load.clamp(0.01, 1.0)) - 1.0);
    let mut worker = Worker::new(resource, scratch)?;
    let began = Instant::now();
    let mut done = 0;
    while began.elapsed() < lasting {
        for _ in 0..units_at_once {
            worker.unit()?;
            done += 1;
        }
        std::thread::sleep(rest);
    }
    Ok(done)
}

/// How many units of work take 20 ms when nothing else runs; at least one.
///
/// # Errors
/// When the scratch file can't be written.
pub fn units_at_once(resource: Resource, scratch: &Path) -> io::Result<u64> {
    let mut worker = Worker::new(resource, scratch)?;
    // The first units are slow, because the CPU wakes up and the file grows.
    let warm_up = Instant::now();
    while warm_up.elapsed() < 5 * WORK {
        worker.unit()?;
    }
    let began = Instant::now();
    let mut done = 0_u32;
    while began.elapsed() < 10 * WORK {
        worker.unit()?;
        done += 1;
    }
    Ok(u64::from(done / 10).max(1))
}

/// Works without rest for `lasting`.
///
/// # Errors
/// When the scratch file can't be written.
pub fn guest(resource: Resource, lasting: Duration, scratch: &Path) -> io::Result<()> {
    let mut worker = Worker::new(resource, scratch)?;
    let began = Instant::now();
    while began.elapsed() < lasting {
        worker.unit()?;
    }
    Ok(())
}
