//! Gives the daemon the lowest CPU and disk priority, because the owner of the machine comes first.

use std::io;

/// Sets nice 19 and the idle I/O class for this process.
///
/// # Errors
/// When the system does not allow it. The daemon can run all the same.
pub fn stand_back() -> io::Result<()> {
    rustix::process::setpriority_process(None, 19)?;
    idle_io()
}

/// There is no safe wrapper of ioprio_set(2), so the program of util-linux is called.
fn idle_io() -> io::Result<()> {
    let pid = std::process::id().to_string();
    let status = std::process::Command::new("ionice")
        .args(["-c", "3", "-p", &pid])
        .stdin(std::process::Stdio::null())
        .status()?;
    if !status.success() {
        return Err(io::Error::other(format!("ionice: {status}")));
    }
    Ok(())
}
