//! What a job uses, and the command that asks a job for a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use machine::Machine;
use machine::processes::Process;
use supervision::JobUse;
use tokio::sync::mpsc;

use super::channel::CKPT_NOTIFY;
use super::orders::Script;
use super::saver::News;

/// Variable with the job's process id, for the command that asks it.
const CKPT_PID: &str = "CKPT_PID";

/// Variable with the directory of the image of processes, for the commands that write and read it.
pub(super) const CKPT_DIR: &str = "CKPT_DIR";

/// How many bytes of a command's standard error are kept: the last ones.
const COMPLAINT_BYTES_MAX: usize = 1024;

/// How many of its last lines are shown. One alone often shows only that something failed.
const COMPLAINT_LINES_MAX: usize = 3;

/// Longest wait for the rest of it after the command has ended.
const COMPLAINT_TIMEOUT: Duration = Duration::from_millis(200);

/// Processor time and bytes of all processes that a job ever had. Both only grow.
#[derive(Debug)]
pub(super) struct Usage {
    machine: Machine,
    /// Processor time of children of this process that had ended before the job was started, clock ticks.
    before: u64,
    /// Processor time of the job, clock ticks.
    ticks: u64,
    /// Bytes that each process has moved, for processes that are there.
    moved: BTreeMap<i32, u64>,
    /// Bytes that processes have moved which are gone.
    gone: u64,
}

impl Usage {
    /// For a job that is about to be started by this process.
    pub(super) fn new() -> Self {
        let machine = Machine::here();
        Self {
            before: ended_children_ticks(&machine),
            machine,
            ticks: 0,
            moved: BTreeMap::new(),
            gone: 0,
        }
    }

    /// Reads what the job's processes have used, what their ended children have used, and what processes
    /// have used that ended as children of this process.
    pub(super) fn read(&mut self, processes: &BTreeSet<i32>) -> JobUse {
        let ended = ended_children_ticks(&self.machine).saturating_sub(self.before);
        let mut alive = 0;
        let mut moved = BTreeMap::new();
        for pid in processes {
            if let Some(process) = Process::read(&self.machine, *pid) {
                alive += process.own_ticks + process.waited_ticks;
            }
            let before = self.moved.remove(pid).unwrap_or_default();
            moved.insert(*pid, bytes_moved(*pid).max(before));
        }
        self.gone += self.moved.values().sum::<u64>();
        self.moved = moved;
        // Processor time of a process that ends between the two readings is counted at the next sample.
        self.ticks = self.ticks.max(alive + ended);
        JobUse {
            cpu_ms: self.ticks * 1000 / procfs::ticks_per_second().max(1),
            io_bytes: self.gone + self.moved.values().sum::<u64>(),
        }
    }
}

fn ended_children_ticks(machine: &Machine) -> u64 {
    let own = Process::read(machine, std::process::id().cast_signed());
    own.map_or(0, |own| own.waited_ticks)
}

/// Bytes that a process has read and written, to files, sockets and pipes alike.
fn bytes_moved(pid: i32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let moved = io.lines().filter_map(|line| {
        let (key, value) = line.split_once(':')?;
        matches!(key, "rchar" | "wchar").then(|| value.trim().parse::<u64>().ok())?
    });
    moved.sum()
}

/// A run of the command that asks a job for a checkpoint, or writes an image of it.
#[derive(Clone, Debug)]
pub(super) struct Asking {
    /// The command, run by a shell.
    pub command: Script,
    /// Process id of the job.
    pub pid: i32,
    /// Directory for the image. It is emptied before the command starts.
    pub dir: Option<PathBuf>,
    /// The job's socket for notices.
    pub notify: PathBuf,
}

impl Asking {
    /// Starts the command in a process group of its own, and returns its process id. [`News::Asked`]
    /// follows when it has ended.
    ///
    /// # Errors
    /// When the command can't be started.
    pub(super) fn start(&self, news: mpsc::Sender<News>) -> io::Result<i32> {
        let mut command = std::process::Command::new("sh");
        command
            .args(["-c", &self.command.text])
            .env(CKPT_PID, self.pid.to_string())
            .env(CKPT_NOTIFY, &self.notify)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0);
        if let Some(dir) = &self.dir {
            super::files::remove(dir)?;
            fs::create_dir_all(dir)?;
            command.env(CKPT_DIR, dir);
        }
        let mut child = command.spawn()?;
        let pid = child.id().cast_signed();
        let name = self.command.name.clone();
        let (sender, complaint) = std::sync::mpsc::channel();
        if let Some(errors) = child.stderr.take() {
            // In a thread of its own, because processes that the command leaves behind may keep the pipe
            // open.
            std::thread::spawn(move || sender.send(last_lines(errors)));
        }
        tokio::task::spawn_blocking(move || {
            let ended = match child.wait() {
                Ok(status) if status.success() => Ok(()),
                Ok(status) => {
                    let complaint = complaint.recv_timeout(COMPLAINT_TIMEOUT);
                    let complaint = complaint.unwrap_or_default();
                    Err(format!("{name:?} ended with {status}{complaint}"))
                }
                Err(cause) => Err(format!("{name:?}: {cause}")),
            };
            // Fails if the shell has ended.
            let _ = news.blocking_send(News::Asked(pid, ended));
        });
        Ok(pid)
    }
}

/// The last lines that a command writes to its standard error, as the end of a message.
fn last_lines(mut errors: impl Read) -> String {
    let mut last = Vec::new();
    let mut buffer = [0; COMPLAINT_BYTES_MAX];
    while let Ok(read @ 1..) = errors.read(&mut buffer) {
        last.extend_from_slice(buffer.get(..read).unwrap_or_default());
        let beyond = last.len().saturating_sub(COMPLAINT_BYTES_MAX);
        last.drain(..beyond);
    }
    let text = String::from_utf8_lossy(&last);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut kept: Vec<&str> = lines.rev().take(COMPLAINT_LINES_MAX).collect();
    kept.reverse();
    match kept.as_slice() {
        [] => String::new(),
        lines => format!(": {}", lines.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_a_command_complains_about_the_last_lines_is_kept() {
        assert_eq!(last_lines("0\n1\n 2\n\n3\n\n".as_bytes()), ": 1; 2; 3");
        assert_eq!(last_lines("".as_bytes()), "");
        let long = format!("{}\nend", "x".repeat(5000));
        assert!(last_lines(long.as_bytes()).ends_with("xx; end"));
        let endless = "y".repeat(5000);
        assert_eq!(
            last_lines(endless.as_bytes()).len(),
            COMPLAINT_BYTES_MAX + 2
        );
    }

    #[test]
    fn the_use_of_ended_processes_still_counts() {
        let own = BTreeSet::from([std::process::id().cast_signed()]);
        let mut usage = Usage::new();
        let first = usage.read(&own);
        assert!(first.io_bytes > 0);
        let then = usage.read(&BTreeSet::new());
        assert_eq!(then.io_bytes, first.io_bytes);
        assert!(usage.read(&own).io_bytes >= 2 * first.io_bytes);
    }

    #[test]
    fn processor_time_of_processes_that_ended_is_counted() {
        let mut usage = Usage::new();
        let burn = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done";
        let mut command = std::process::Command::new("sh");
        command.args(["-c", burn]).status().unwrap();
        assert!(usage.read(&BTreeSet::new()).cpu_ms > 0);
    }
}
