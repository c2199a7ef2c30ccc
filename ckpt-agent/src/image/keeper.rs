//! A process that ends a command whose output is saved, if this process is killed.
//!
//! A killed process can't end its own command. The signal that the kernel can send at a parent's death does
//! not suffice: it reaches only the one child, can only be requested between `fork` and `exec`, and follows a
//! thread, not the process. So a second process, the keeper, waits on a pipe for the end of this process,
//! however that comes about, and then ends the command.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal};

use super::ending::{END_GRACE, END_POLL, write_to};
use super::group::{Held, held_if, processes};

pub use super::group::Group;

/// The name (`argv[0]`) under which this program acts as a keeper.
pub const KEEPER: &str = "ckpt-keeper";

/// Environment variable that marks the processes of a job, also those that have left its process group.
pub const MARK: &str = "CKPT_RUN_ID";

/// Longest order to a keeper, bytes: a process id and a mark, and the files that thaw frozen processes.
const ORDER_BYTES_MAX: u64 = 64 << 10;

/// Shortest mark, bytes. An empty mark, or one that can be guessed, would end other users' processes.
const MARK_BYTES_MIN: usize = 16;

/// How many times marked processes are looked for, since each of them could have started another meanwhile.
const MARKED_ROUNDS: usize = 5;

/// How to start a keeper: a program, and the name under which it calls [`main`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeper {
    path: PathBuf,
    arg0: &'static str,
}

impl Keeper {
    /// This program as a keeper; it has to call [`main`] when it is started as [`KEEPER`].
    pub fn of_this_program() -> Self {
        Self {
            path: "/proc/self/exe".into(),
            arg0: KEEPER,
        }
    }

    /// Starts a keeper that ends the process group `group` when this process is gone.
    ///
    /// # Errors
    /// When no process can be started.
    pub(super) fn keep(&self, group: Pid) -> io::Result<Kept> {
        self.start(&group_line(Group::of_leader(group)?))
    }

    /// Starts a keeper that ends all of `family`, and the process groups of [`Kept::add`]. It can be started
    /// before the first of these processes, so that they are never without a keeper.
    ///
    /// # Errors
    /// When no process can be started.
    pub fn keep_marked(&self, family: &Marked) -> io::Result<Kept> {
        self.start(&family.order())
    }

    fn start(&self, order: &str) -> io::Result<Kept> {
        let (reader, mut pipe) = io::pipe()?;
        // Written before the keeper exists, so that it never reads an empty pipe.
        pipe.write_all(order.as_bytes())?;
        let child = Command::new(&self.path)
            .arg0(self.arg0)
            .stdin(reader)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // So that signals from the terminal, as by Ctrl-C, do not reach the keeper.
            .process_group(0)
            .spawn()?;
        Ok(Kept { child, pipe })
    }
}

/// All processes of a job, and how they can be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marked {
    /// The value of the variable [`MARK`] in their environment.
    pub mark: String,
    /// Files that thaw their control groups, with the text to write: processes frozen by version 1 of control
    /// groups do not end otherwise.
    pub thaw: Vec<(PathBuf, &'static str)>,
    /// Control groups that contain no other processes: they are emptied and removed.
    pub groups: Vec<PathBuf>,
}

impl Marked {
    /// The order that ends these processes, for a keeper or for [`carry_out`].
    pub fn order(&self) -> String {
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

fn group_line(group: Group) -> String {
    format!("group {}\n", group.to_text())
}

/// A running keeper. Dropping it ends the keeper, and leaves the processes that it keeps alone.
#[derive(Debug)]
pub struct Kept {
    child: Child,
    pipe: io::PipeWriter,
}

impl Kept {
    /// Process id of the keeper.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Adds a process group that the keeper has to end.
    ///
    /// # Errors
    /// When the keeper is gone.
    pub fn add(&mut self, group: Group) -> io::Result<()> {
        self.pipe.write_all(group_line(group).as_bytes())
    }

    /// Whether the keeper has ended, which happens only when it is killed.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // The keeper is killed before the pipe is closed, or else it would carry out its orders. Fails when
        // it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until the other end of standard input is closed, then carries out the orders that were written to
/// it, one a line.
pub fn main() -> ExitCode {
    let mut pipe = io::stdin().lock().take(ORDER_BYTES_MAX);
    let mut text = String::new();
    if pipe.read_to_string(&mut text).is_err() {
        return ExitCode::FAILURE;
    }
    carry_out(&text);
    ExitCode::SUCCESS
}

/// Carries out these orders: thaws, ends process groups and marked processes, and empties control groups.
pub fn carry_out(text: &str) {
    let orders = |name: &'static str| {
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        lines
            .filter(move |(order, _)| *order == name)
            .map(|(_, what)| what)
    };
    for (text, path) in orders("thaw").filter_map(|what| what.split_once(' ')) {
        // Fails when the control group is gone.
        let _ = write_to(Path::new(path), text);
    }
    for group in orders("group").filter_map(Group::from_text) {
        end(group);
    }
    for mark in orders("mark").filter(|mark| mark.len() >= MARK_BYTES_MIN) {
        end_marked(mark);
    }
    // Only jobs that are supervised have control groups.
    orders("empty")
        .map(Path::new)
        .for_each(super::emptied::empty);
}

/// Kills the processes with this mark.
fn end_marked(mark: &str) {
    let wanted = format!("{MARK}={mark}");
    for _ in 0..MARKED_ROUNDS {
        let marked = marked(wanted.as_bytes());
        if marked.is_empty() {
            return;
        }
        for process in marked {
            process.signal(Signal::KILL);
        }
        std::thread::sleep(END_POLL);
    }
}

/// Processes with this variable. Those of other users can't be read, and are not this user's to end.
fn marked(wanted: &[u8]) -> Vec<Held> {
    let own = std::process::id().cast_signed();
    let is_marked = |pid: Pid| {
        let variables = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero()));
        let variables = variables.unwrap_or_default();
        variables.split(|&byte| byte == 0).any(|one| one == wanted)
    };
    let others = processes().filter(|pid| pid.as_raw_nonzero().get() != own);
    others.filter_map(|pid| held_if(pid, is_marked)).collect()
}

/// Asks a process group to end, and kills it after [`END_GRACE`].
fn end(group: Group) {
    group.signal(Signal::TERM);
    let asked = Instant::now();
    // A stopped process does not act on SIGTERM.
    while group.signal(Signal::CONT) > 0 && asked.elapsed() < END_GRACE {
        std::thread::sleep(END_POLL);
    }
    // Each of them could have started another one meanwhile.
    for _ in 0..MARKED_ROUNDS {
        if group.signal(Signal::KILL) == 0 {
            return;
        }
        std::thread::sleep(END_POLL);
    }
}
