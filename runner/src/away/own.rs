//! What a host needs to start this program for a job of `ckpt run --on`: private files, and a process that uses the grid
//! with them.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes a file that only this user can read. Until its permissions are set, those of its directory protect it.
pub(super) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))
}

/// This program in `dir`, as a user of the grid in one file with the key in another; `state` is its state directory.
pub(super) fn program(dir: &Path, grid: &Path, key: &Path, state: Option<&Path>) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("ckpt")
        .env("CKPT_GRID", grid)
        .env("CKPT_KEY_FILE", key)
        .env_remove("CKPT_KEY_COMMAND")
        .env_remove("CKPT_CERT_FILE")
        .stdin(Stdio::null())
        .current_dir(dir);
    if let Some(state) = state {
        command.env("CKPT_STATE_DIR", state);
    }
    command
}
