//! How processes are ended: the times, and writing to the files of control groups.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// How long a command may take to end after it was asked to, before it is killed.
pub(super) const END_GRACE: Duration = Duration::from_secs(2);

/// How often a wait checks whether the command has ended.
pub(super) const END_POLL: Duration = Duration::from_millis(5);

/// Writes to an existing file; does not create one.
///
/// # Errors
/// When the file does not exist, or can't be written.
pub(super) fn write_to(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options().write(true).open(path)?;
    file.write_all(text.as_bytes())
}
