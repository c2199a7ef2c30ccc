//! Where `ckpt` keeps what it knows of this machine and its jobs.

use std::path::PathBuf;

use ckpt_agent::knowledge;
use ckpt_agent::report::{ExitStatus, Failure};

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
    Failure::new(ExitStatus::Usage, message)
}
