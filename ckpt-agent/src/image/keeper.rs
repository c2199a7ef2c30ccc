//! Ends a command whose output is saved should this process be killed.
//!
//! Nothing in a process that is killed can end its command, and the signal that the kernel can send to a
//! child at its parent's death reaches that one process, can only be asked for between `fork` and
//! `exec`, and follows a thread, not the process. So a second process waits on a pipe that nobody ever
//! writes to again: it ends when we do, however that happens.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use super::command::{END_GRACE, END_POLL};

/// Name under which this program is the keeper.
pub const KEEPER: &str = "ckpt-keeper";

/// Most digits of a process id.
const PID_DIGITS_MAX: u64 = 16;

/// How to start a keeper: a program that calls [`main`] under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeper {
    path: PathBuf,
    arg0: &'static str,
}

impl Keeper {
    /// This program, which has to call [`main`] when it is started as [`KEEPER`].
    pub fn of_this_program() -> Self {
        Self {
            path: "/proc/self/exe".into(),
            arg0: KEEPER,
        }
    }

    /// Has the process group ended when this process is gone.
    ///
    /// # Errors
    /// When no process can be started.
    pub(super) fn keep(&self, group: Pid) -> io::Result<Kept> {
        let mut child = Command::new(&self.path)
            .arg0(self.arg0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // What is typed at the terminal is not for it.
            .process_group(0)
            .spawn()?;
        if let Some(pipe) = &mut child.stdin {
            writeln!(pipe, "{}", group.as_raw_nonzero())?;
        }
        Ok(Kept(child))
    }
}

/// A process group that is being kept; dropping it leaves the group alone.
#[derive(Debug)]
pub(super) struct Kept(Child);

impl Drop for Kept {
    fn drop(&mut self) {
        // Killed before the pipe is closed, or it would do its work. Fails when it is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for the end of whoever holds the other end of standard input, then ends the process group
/// that was written there.
pub fn main() -> ExitCode {
    let mut pipe = io::stdin().lock().take(PID_DIGITS_MAX);
    let mut text = String::new();
    if pipe.read_to_string(&mut text).is_err() {
        return ExitCode::FAILURE;
    }
    let group = text.trim().parse().ok().filter(|group: &i32| *group > 1);
    let Some(group) = group.and_then(Pid::from_raw) else {
        return ExitCode::FAILURE;
    };
    end(group);
    ExitCode::SUCCESS
}

/// Asks a process group to end, and kills what is left of it after a while.
fn end(group: Pid) {
    // Both fail when nobody is left.
    let _ = kill_process_group(group, Signal::TERM);
    wait_for(group, END_GRACE);
    let _ = kill_process_group(group, Signal::KILL);
}

fn wait_for(group: Pid, limit: Duration) {
    let asked = Instant::now();
    while test_kill_process_group(group).is_ok() && asked.elapsed() < limit {
        std::thread::sleep(END_POLL);
    }
}
