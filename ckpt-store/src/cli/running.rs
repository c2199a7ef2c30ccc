//! The daemon that uses a data directory, as other commands on its machine see it.

use std::fs;
use std::path::Path;

use super::refusal::Refusal;
use anyhow::{Result, bail};
use rustix::fs::{FlockOperation, flock};

/// The process id of the daemon that uses a data directory.
///
/// # Errors
/// When there is no such directory.
pub(super) fn running(data: &Path) -> Result<Option<u32>> {
    if !data.is_dir() {
        let message = format!("{} is not a directory", data.display());
        bail!(Refusal::new(message, "--data DIR"));
    }
    Ok(daemon(data))
}

/// The wall clock, Unix seconds.
pub(super) fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// The process that holds the lock of the data directory.
pub(super) fn daemon(data: &Path) -> Option<u32> {
    let path = data.join("lock");
    let lock = fs::File::open(&path).ok()?;
    if flock(&lock, FlockOperation::NonBlockingLockShared).is_ok() {
        return None;
    }
    fs::read_to_string(path).ok()?.trim().parse().ok()
}
