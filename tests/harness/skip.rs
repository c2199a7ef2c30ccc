//! Reports what a test could not check on this machine, so that it does not pass in silence.

use std::fs::OpenOptions;
use std::io::Write;

use anyhow::Result;

/// Environment variable with the path of the file that collects what was not checked.
const LIST: &str = "CKPT_NOT_CHECKED";

/// Reports that `what` was not checked, and why: on standard error, and in the file that `CKPT_NOT_CHECKED`
/// names, which the gate prints at its end.
///
/// # Errors
/// When that file can't be written.
pub fn not_checked(what: &str, why: &str) -> Result<()> {
    eprintln!("NOT CHECKED: {what}: {why}");
    if let Some(path) = std::env::var_os(LIST) {
        let mut list = OpenOptions::new().create(true).append(true).open(path)?;
        writeln!(list, "{what}: {why}")?;
    }
    Ok(())
}
