//! A command whose output is an image.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::ending::{END_GRACE, END_POLL};
use super::keeper::{Keeper, Kept};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// A running command whose output is an image. Dropping it ends the command.
#[derive(Debug)]
pub struct Producer {
    output: ChildStdout,
    ender: Ender,
}

/// A handle to end a producer from another thread.
#[derive(Clone, Debug)]
pub struct Ender {
    pid: Pid,
    running: Arc<Mutex<Running>>,
}

/// A command, until it is reaped. As long as that has not happened, its process id can't belong to another
/// process, and may be used for signals.
#[derive(Debug)]
struct Running {
    child: Child,
    status: Option<ExitStatus>,
    /// The keeper, which ends the command if this process is killed.
    kept: Option<Kept>,
}

impl Running {
    fn reap(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait()?;
        self.kept = None;
        self.status = Some(status);
        Ok(status)
    }
}

impl Producer {
    /// Starts a command in a process group of its own, so that the command can be ended with all its
    /// children. Its standard input is empty; its errors go where this program's errors go. With a `keeper`,
    /// it ends when this process is killed.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn start(command: &[OsString], keeper: Option<&Keeper>) -> io::Result<Self> {
        let (program, args) = command
            .split_first()
            .ok_or_else(|| io::Error::other("no command"))?;
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let output = child.stdout.take();
        let pid = Pid::from_child(&child);
        let kept = keeper.and_then(|keeper| {
            let kept = keeper.keep(pid);
            // The save goes on without a keeper.
            kept.inspect_err(
                |cause| tracing::warn!(%cause, "the command is not ended if this process is killed"),
            )
            .ok()
        });
        let ender = Ender {
            pid,
            running: Arc::new(Mutex::new(Running {
                child,
                status: None,
                kept,
            })),
        };
        match output {
            Some(output) => Ok(Self { output, ender }),
            None => Err(io::Error::other("no output")),
        }
    }

    /// A handle to end the command from another thread.
    pub fn ender(&self) -> Ender {
        self.ender.clone()
    }

    /// Waits for the command to end, after its output was read to the end. [`Ender::end`] ends this wait.
    ///
    /// # Errors
    /// When waiting fails.
    pub fn wait(&self) -> io::Result<ExitStatus> {
        // Without the lock, so that the command can be ended meanwhile.
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let _ = waitid(WaitId::Pid(self.ender.pid), ended);
        self.ender.lock().reap()
    }
}

impl Read for Producer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.output.read(buffer)
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.ender.end();
    }
}

impl Ender {
    /// Ends the command and its whole process group, unless it has ended by itself: sends SIGTERM, waits up
    /// to two seconds, and kills what is left. Afterwards the command is reaped and its output is closed.
    pub fn end(&self) {
        {
            let running = self.lock();
            if running.status.is_some() {
                return;
            }
            // The command is not reaped, so the number is still its own. Fails when the group is empty.
            let _ = kill_process_group(self.pid, Signal::TERM);
        }
        let asked = Instant::now();
        while !self.has_ended() && asked.elapsed() < END_GRACE {
            std::thread::sleep(END_POLL);
        }
        let mut running = self.lock();
        if running.status.is_none() {
            let _ = kill_process_group(self.pid, Signal::KILL);
            let _ = running.reap();
        }
    }

    /// Whether the command has ended, reaped or not.
    fn has_ended(&self) -> bool {
        let running = self.lock();
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        running.status.is_some() || !matches!(waitid(WaitId::Pid(self.pid), look), Ok(None))
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
