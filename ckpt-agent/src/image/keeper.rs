//! Ends a command whose output is saved should this process be killed.
//!
//! Nothing in a process that is killed can end its command, and the signal that the kernel can send to a
//! child at its parent's death reaches that one process, can only be asked for between `fork` and
//! `exec`, and follows a thread, not the process. So a second process waits on a pipe that nobody ever
//! writes to again: it ends when we do, however that happens.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};

use super::command::{END_GRACE, END_POLL};

/// Name under which this program is the keeper.
pub const KEEPER: &str = "ckpt-keeper";

/// Variable by which the processes of a job are recognised that have left its process group.
pub const MARK: &str = "CKPT_RUN_ID";

/// Longest order to a keeper: a process id and a mark, and the files that thaw what is frozen.
const ORDER_BYTES_MAX: u64 = 64 << 10;

/// Shortest mark: one that is guessed, or is empty, would end others' processes.
const MARK_BYTES_MIN: usize = 16;

/// Times that marked processes are looked for: each could start another meanwhile.
const MARKED_ROUNDS: usize = 5;

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
        self.start(&group_line(group))
    }

    /// Has all of `family` ended, and the process group of [`Kept::add`]. It can be started before the
    /// first of these processes, so that there is no moment without it.
    ///
    /// # Errors
    /// When no process can be started.
    #[cfg(feature = "cli")]
    pub(crate) fn keep_marked(&self, family: &Marked) -> io::Result<Kept> {
        self.start(&family.order())
    }

    fn start(&self, order: &str) -> io::Result<Kept> {
        let (reader, mut pipe) = io::pipe()?;
        // Before it is there: it must not be found without an order.
        pipe.write_all(order.as_bytes())?;
        let child = Command::new(&self.path)
            .arg0(self.arg0)
            .stdin(reader)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // What is typed at the terminal is not for it.
            .process_group(0)
            .spawn()?;
        Ok(Kept { child, pipe })
    }
}

/// All processes of a job, and how they are reached.
#[cfg(feature = "cli")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marked {
    /// What the variable [`MARK`] is in their environment.
    pub(crate) mark: String,
    /// Files that thaw their control groups, and what is written there: what version 1 has frozen does
    /// not end.
    pub(crate) thaw: Vec<(PathBuf, &'static str)>,
    /// Control groups that are theirs alone: emptied, and removed.
    pub(crate) groups: Vec<PathBuf>,
}

#[cfg(feature = "cli")]
impl Marked {
    /// What is to be done when they have to end: for a keeper, or for [`carry_out`].
    pub(crate) fn order(&self) -> String {
        let mut order = format!("mark {}\n", self.mark);
        for (path, text) in &self.thaw {
            order.push_str(&format!("thaw {text} {}\n", path.display()));
        }
        for path in &self.groups {
            order.push_str(&format!("empty {}\n", path.display()));
        }
        order
    }
}

fn group_line(group: Pid) -> String {
    format!("group {}\n", group.as_raw_nonzero())
}

/// What is being kept; dropping it leaves that alone.
#[derive(Debug)]
pub(crate) struct Kept {
    child: Child,
    #[cfg_attr(
        not(feature = "cli"),
        expect(dead_code, reason = "the keeper acts when it is closed")
    )]
    pipe: io::PipeWriter,
}

#[cfg(feature = "cli")]
impl Kept {
    /// Process id of the keeper.
    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Has this process group ended, too.
    ///
    /// # Errors
    /// When the keeper is gone.
    pub(crate) fn add(&mut self, group: Pid) -> io::Result<()> {
        self.pipe.write_all(group_line(group).as_bytes())
    }

    /// Whether the keeper has ended: somebody killed it.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Killed before the pipe is closed, or it would do its work. Fails when it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for the end of whoever holds the other end of standard input, then does what was written there,
/// one order a line.
pub fn main() -> ExitCode {
    let mut pipe = io::stdin().lock().take(ORDER_BYTES_MAX);
    let mut text = String::new();
    if pipe.read_to_string(&mut text).is_err() {
        return ExitCode::FAILURE;
    }
    carry_out(&text);
    ExitCode::SUCCESS
}

/// Does what a keeper would do that has these orders.
pub(crate) fn carry_out(text: &str) {
    let orders = |name: &'static str| {
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        lines
            .filter(move |(order, _)| *order == name)
            .map(|(_, what)| what)
    };
    for (text, path) in orders("thaw").filter_map(|what| what.split_once(' ')) {
        // Fails when the group is gone.
        let _ = write_to(Path::new(path), text);
    }
    let groups = orders("group").filter_map(|number| number.parse().ok());
    let groups = groups.filter(|group: &i32| *group > 1);
    for group in groups.filter_map(Pid::from_raw) {
        end(group);
    }
    for mark in orders("mark").filter(|mark| mark.len() >= MARK_BYTES_MIN) {
        end_marked(mark);
    }
    // Only jobs that are supervised have control groups.
    #[cfg(feature = "cli")]
    orders("empty")
        .map(Path::new)
        .for_each(super::emptied::empty);
}

/// Writes to a file that is there; none is made.
///
/// # Errors
/// When it is not there, or can't be written.
pub(super) fn write_to(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options().write(true).open(path)?;
    file.write_all(text.as_bytes())
}

/// Kills the processes with this mark.
fn end_marked(mark: &str) {
    let wanted = format!("{MARK}={mark}");
    for _ in 0..MARKED_ROUNDS {
        let marked = marked(wanted.as_bytes());
        if marked.is_empty() {
            return;
        }
        for pid in marked {
            // Fails when it has just ended.
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(END_POLL);
    }
}

/// Processes with this variable; those of other users can't be read, and are not ours to end.
fn marked(wanted: &[u8]) -> Vec<Pid> {
    let own = std::process::id().cast_signed();
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_marked = |pid: &i32| {
        let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        variables.split(|&byte| byte == 0).any(|one| one == wanted)
    };
    pids.filter(|pid| *pid != own)
        .filter(is_marked)
        .filter_map(Pid::from_raw)
        .collect()
}

/// Asks a process group to end, and kills what is left of it after a while.
fn end(group: Pid) {
    // Both fail when nobody is left.
    let _ = kill_process_group(group, Signal::TERM);
    // One that is stopped hears nothing.
    let _ = kill_process_group(group, Signal::CONT);
    wait_for(group, END_GRACE);
    let _ = kill_process_group(group, Signal::KILL);
}

fn wait_for(group: Pid, limit: Duration) {
    let asked = Instant::now();
    while test_kill_process_group(group).is_ok() && asked.elapsed() < limit {
        std::thread::sleep(END_POLL);
    }
}
