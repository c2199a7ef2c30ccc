//! Small files with one JSON object that others may read while they are replaced.

use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;

/// Writes a file that others may read at any time.
pub(super) fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(value)?;
    let next = path.with_extension("next");
    fs::write(&next, text)?;
    fs::rename(next, path)
}
