//! Locks between processes. The lock is on a file beside the guarded one, because the guarded one may be
//! replaced; and the replacing of such a file.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Pause between two attempts to get the lock.
const TRY_PERIOD: Duration = Duration::from_millis(5);

/// Waits until no other process holds the lock. This process then holds it until the file is closed.
///
/// # Errors
/// `ResourceBusy` when another process holds it for longer than `timeout`; others as the system reports them.
pub fn lock(file: &File, timeout: Duration) -> io::Result<()> {
    let began = Instant::now();
    while let Err(cause) = flock(file, FlockOperation::NonBlockingLockExclusive) {
        if cause != Errno::WOULDBLOCK {
            return Err(cause.into());
        }
        if began.elapsed() > timeout {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        std::thread::sleep(TRY_PERIOD);
    }
    Ok(())
}

/// Locks the file at `path` by a file beside it, in a directory that is made, readable only by the user, if there
/// is none. The lock lasts until the returned file is closed.
///
/// # Errors
/// As [`lock`], and when directory or file can't be made.
pub fn lock_beside(path: &Path, timeout: Duration) -> io::Result<File> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(dir_of(path))?;
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path.with_extension("lock"))?;
    lock(&file, timeout)?;
    Ok(file)
}

/// Replaces the file at `path` in one step by one with this text, readable only by the user. It is not
/// synced: what is kept this way can be learnt again.
///
/// # Errors
/// When it can't be written.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut file = tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(0o600))
        .tempfile_in(dir_of(path))?;
    file.write_all(text.as_bytes())?;
    file.persist(path).map_err(|persist| persist.error)?;
    Ok(())
}

fn dir_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}
