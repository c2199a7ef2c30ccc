//! Locks between processes. The lock is on a file beside the guarded one, because the guarded one may be
//! replaced.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Pause between two attempts to get the lock.
const TRY_PERIOD: Duration = Duration::from_millis(5);

/// Waits until no other process holds the lock. This process then holds it until the file is closed.
///
/// # Errors
/// `ResourceBusy` when another process holds it for longer than `timeout`; others as the system reports them.
pub(crate) fn lock(file: &File, timeout: Duration) -> io::Result<()> {
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
