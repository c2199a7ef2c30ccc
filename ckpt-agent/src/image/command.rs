//! A command whose output is an image.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// How long a command may take to end after it was asked to.
const END_GRACE: Duration = Duration::from_secs(2);

/// A running producer. Dropping it ends it.
#[derive(Debug)]
pub struct Producer {
    child: Child,
    output: ChildStdout,
    ended: bool,
}

/// Ends a producer from another thread.
#[derive(Clone, Copy, Debug)]
pub struct Ender(Pid);

impl Producer {
    /// Starts a command in a process group of its own, so that all of it can be ended. It reads
    /// nothing and writes errors where we do.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn start(command: &[OsString]) -> io::Result<Self> {
        let (program, args) = command
            .split_first()
            .ok_or_else(|| io::Error::other("no command"))?;
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let Some(output) = child.stdout.take() else {
            return Err(io::Error::other("no output"));
        };
        Ok(Self {
            child,
            output,
            ended: false,
        })
    }

    /// A handle to end it.
    pub fn ender(&self) -> Ender {
        Ender(Pid::from_child(&self.child))
    }

    /// Waits for its end; its output was read to the end.
    ///
    /// # Errors
    /// When waiting fails.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait()?;
        self.ended = true;
        Ok(status)
    }
}

impl Read for Producer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.output.read(buffer)
    }
}

impl Ender {
    /// Asks the command to end; it has closed its output afterwards.
    pub fn end(self) {
        // Fails when it has ended already.
        let _ = kill_process_group(self.0, Signal::TERM);
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let pid = Pid::from_child(&self.child);
        let _ = kill_process_group(pid, Signal::TERM);
        let asked = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if asked.elapsed() > END_GRACE {
                let _ = kill_process_group(pid, Signal::KILL);
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
