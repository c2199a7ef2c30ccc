//! Where `ckpt` keeps what it knows of this machine, its jobs and its grid.

use std::path::PathBuf;

use ckpt_agent::report::{ExitStatus, Failure};
use ckpt_agent::{connection, knowledge};

/// The path of the grid file that `ckpt join` writes.
pub(super) fn usual_grid_file() -> Option<PathBuf> {
    let dir = connection::default_dir(|name| std::env::var_os(name));
    Some(dir?.join("grid.toml"))
}

/// The state directory, if the environment names one.
pub(super) fn state_dir() -> Option<PathBuf> {
    knowledge::default_dir(|name| std::env::var_os(name))
}

/// The state directory, for a command that does nothing without it.
///
/// # Errors
/// When the environment names none.
pub(super) fn needed_state_dir() -> Result<PathBuf, Failure> {
    state_dir().ok_or_else(no_state_dir)
}

/// The failure of a command that needs a state directory.
pub(super) fn no_state_dir() -> Failure {
    let message = "no state directory: neither CKPT_STATE_DIR nor XDG_STATE_HOME nor HOME is set";
    Failure::new(ExitStatus::Usage, message).next("CKPT_STATE_DIR=DIR")
}
