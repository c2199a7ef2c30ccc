//! A command whose output is an image.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::keeper::{Keeper, Kept};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// How long a command may take to end after it was asked to.
pub(super) const END_GRACE: Duration = Duration::from_secs(2);

/// How often it is looked whether it has ended.
pub(super) const END_POLL: Duration = Duration::from_millis(5);

/// A running producer. Dropping it ends it.
#[derive(Debug)]
pub struct Producer {
    output: ChildStdout,
    ender: Ender,
}

/// Ends a producer from another thread.
#[derive(Clone, Debug)]
pub struct Ender {
    pid: Pid,
    running: Arc<Mutex<Running>>,
}

/// The process id is the command's own, and may be used for signals, as long as it is not reaped.
#[derive(Debug)]
struct Running {
    child: Child,
    status: Option<ExitStatus>,
    /// Who ends it should this process be killed.
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
    /// Starts a command in a process group of its own, so that all of it can be ended. It reads
    /// nothing and writes errors where we do. With a keeper it ends when this process is killed.
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
            // The command can be saved without.
            kept.inspect_err(
                |cause| tracing::warn!(%cause, "nobody ends the command if this is killed"),
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

    /// A handle to end it.
    pub fn ender(&self) -> Ender {
        self.ender.clone()
    }

    /// Waits for its end; its output was read to the end. Whoever ends the command ends this wait.
    ///
    /// # Errors
    /// When waiting fails.
    pub fn wait(&self) -> io::Result<ExitStatus> {
        // Not under the lock, so that it can be ended meanwhile.
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
    /// Ends the command and everything in its process group, unless it has ended by itself: asks
    /// it to, waits up to two seconds for it, and kills what is left. Its output is closed
    /// afterwards, and it is reaped.
    pub fn end(&self) {
        {
            let running = self.lock();
            if running.status.is_some() {
                return;
            }
            // Not reaped: only this command can have the number. Fails when nobody is left.
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
