//! Files inside `.tar.zst` archives.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Window of the archives packed with `--long=27`.
const WINDOW_LOG_MAX: u32 = 27;

/// Calls `each` with path and text of every file in the archive. Text that is not UTF-8 is passed
/// on with replacement characters.
///
/// # Errors
/// If the archive cannot be read, and the first error of `each`, with the path.
pub(super) fn for_each_file(
    archive: &Path,
    mut each: impl FnMut(&Path, &str) -> Result<()>,
) -> Result<()> {
    let file = File::open(archive).with_context(|| format!("opening {}", archive.display()))?;
    let mut decoder = zstd::Decoder::new(file)?;
    decoder.window_log_max(WINDOW_LOG_MAX)?;
    for entry in tar::Archive::new(decoder).entries()? {
        let mut entry = entry.with_context(|| format!("reading {}", archive.display()))?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let path: PathBuf = entry.path()?.into_owned();
        let mut bytes = Vec::new();
        entry
            .read_to_end(&mut bytes)
            .with_context(|| format!("reading {}", path.display()))?;
        let text = String::from_utf8_lossy(&bytes);
        each(&path, &text).with_context(|| format!("in {}", path.display()))?;
    }
    Ok(())
}
