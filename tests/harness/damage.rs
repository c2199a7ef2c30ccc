//! Ways to damage files of a host.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Result;

/// Flips all bits of the byte at `offset`.
///
/// # Errors
/// When the file has no such byte or can't be written.
pub fn flip(file: &Path, offset: u64) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(file)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset)?;
    file.write_all_at(&[!byte[0]], offset)?;
    Ok(())
}

/// Cuts the file to `len` bytes.
///
/// # Errors
/// When the file can't be written.
pub fn cut(file: &Path, len: u64) -> Result<()> {
    Ok(OpenOptions::new().write(true).open(file)?.set_len(len)?)
}
