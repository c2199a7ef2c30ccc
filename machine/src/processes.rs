//! Processes: what `/proc/PID/stat` reports about them, and their descendants.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use procfs::FromRead;
use procfs::process::Stat;
use serde::{Deserialize, Serialize};

use crate::Machine;

/// Names a process for as long as the machine is up. The start time distinguishes it from a later process
/// with the same process id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// Process id.
    pub pid: i32,
    /// When it started, in clock ticks since the machine started.
    pub started: u64,
}

impl ProcessId {
    /// The process that has this process id now; `None` when there is none.
    #[must_use]
    pub fn of(machine: &Machine, pid: i32) -> Option<Self> {
        Some(Process::read(machine, pid)?.id)
    }

    /// Whether the process still exists, be it as a zombie.
    #[must_use]
    pub fn is_there(self, machine: &Machine) -> bool {
        Self::of(machine, self.pid) == Some(self)
    }
}

/// What the system reports about a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its process id and start time.
    pub id: ProcessId,
    /// Process id of its parent.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// Number of its session, by which the kernel groups processes.
    pub session: i32,
    /// `R` if it runs, `S` if it sleeps, `T` if it is stopped, `Z` if it has ended, and so on.
    pub state: char,
    /// Name of its command, cut by the kernel after 15 bytes.
    pub command: String,
    /// CPU time that it has used, clock ticks.
    pub own_ticks: u64,
    /// CPU time of its children that have ended and that it has waited for, clock ticks.
    pub waited_ticks: u64,
}

impl Process {
    /// The process that has this process id now.
    #[must_use]
    pub fn read(machine: &Machine, pid: i32) -> Option<Self> {
        Self::in_directory(&machine.process(pid))
    }

    fn in_directory(directory: &Path) -> Option<Self> {
        let stat = Stat::from_file(directory.join("stat")).ok()?;
        let waited = stat.cutime.saturating_add(stat.cstime).max(0);
        Some(Self {
            id: ProcessId {
                pid: stat.pid,
                started: stat.starttime,
            },
            parent: stat.ppid,
            group: stat.pgrp,
            session: stat.session,
            state: stat.state,
            command: stat.comm,
            own_ticks: stat.utime.saturating_add(stat.stime),
            waited_ticks: waited.unsigned_abs(),
        })
    }

    /// Resident memory without pages of files and shared memory, bytes. Pages of files are left out because
    /// the system counts them as available.
    #[must_use]
    pub fn memory_bytes(&self, machine: &Machine) -> u64 {
        let path = machine.process(self.id.pid).join("statm");
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut pages = text.split_ascii_whitespace().map(str::parse::<u64>);
        let (Some(_), Some(Ok(resident)), Some(Ok(shared))) =
            (pages.next(), pages.next(), pages.next())
        else {
            return 0;
        };
        let page = rustix::param::page_size() as u64;
        resident.saturating_sub(shared).saturating_mul(page)
    }

    /// Bytes that the process, and its children that it has waited for, have moved to and from disks;
    /// `None` if the system does not report them, as for another user's process.
    #[must_use]
    pub fn disk_bytes(&self, machine: &Machine) -> Option<u64> {
        let text = fs::read_to_string(machine.process(self.id.pid).join("io")).ok()?;
        let count = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':').trim().parse::<u64>().ok()
        };
        Some(count("read_bytes")?.saturating_add(count("write_bytes")?))
    }
}

/// Processes at one moment, by process id.
#[derive(Clone, Debug, Default)]
pub struct Processes(BTreeMap<i32, Process>);

impl Processes {
    /// All processes of the machine; those that end meanwhile are left out.
    #[must_use]
    pub fn all(machine: &Machine) -> Self {
        let entries = fs::read_dir(machine.proc()).into_iter().flatten().flatten();
        let is_process = |name: &std::ffi::OsStr| name.to_str()?.parse::<i32>().ok();
        entries
            .filter(|entry| is_process(&entry.file_name()).is_some())
            .filter_map(|entry| Process::in_directory(&entry.path()))
            .collect()
    }

    /// These processes and all their descendants. If the kernel lists children, no other process is read;
    /// otherwise all processes of the machine are returned.
    #[must_use]
    pub fn below(machine: &Machine, from: impl IntoIterator<Item = ProcessId>) -> Self {
        let from: BTreeSet<ProcessId> = from.into_iter().collect();
        let mut ahead: Vec<i32> = from.iter().map(|id| id.pid).collect();
        let mut found = Self::default();
        while let Some(pid) = ahead.pop() {
            if found.0.contains_key(&pid) {
                continue;
            }
            let Some(process) = Process::read(machine, pid) else {
                continue;
            };
            // A process that has the id of one in `from` which has ended: it belongs only as a descendant.
            let is_another = from.iter().any(|id| id.pid == pid) && !from.contains(&process.id);
            if is_another && !found.0.contains_key(&process.parent) {
                continue;
            }
            match children(machine, pid) {
                Some(children) => ahead.extend(children),
                None => return Self::all(machine),
            }
            found.0.insert(pid, process);
        }
        found
    }

    /// The process with this id.
    #[must_use]
    pub fn get(&self, pid: i32) -> Option<&Process> {
        self.0.get(&pid)
    }

    /// All of the processes, in the order of their process ids.
    pub fn iter(&self) -> impl Iterator<Item = &Process> {
        self.0.values()
    }

    /// The processes other than these.
    #[must_use]
    pub(crate) fn without(mut self, pids: &BTreeSet<i32>) -> Self {
        self.0.retain(|pid, _| !pids.contains(pid));
        self
    }

    /// The processes for which `is_one` holds, and all their descendants.
    pub fn with_descendants(&self, is_one: impl Fn(&Process) -> bool) -> Vec<&Process> {
        let mut known: BTreeMap<i32, bool> = BTreeMap::new();
        for process in self.iter() {
            let mut line = Vec::new();
            let mut at = Some(process);
            let belongs = loop {
                let Some(one) = at else { break false };
                if let Some(known) = known.get(&one.id.pid) {
                    break *known;
                }
                if is_one(one) {
                    known.insert(one.id.pid, true);
                    break true;
                }
                // Parents that are read while processes come and go can form a circle.
                if line.contains(&one.id.pid) {
                    break false;
                }
                line.push(one.id.pid);
                at = self.get(one.parent);
            };
            known.extend(line.into_iter().map(|pid| (pid, belongs)));
        }
        let belongs = |process: &&Process| known.get(&process.id.pid) == Some(&true);
        self.iter().filter(belongs).collect()
    }
}

impl FromIterator<Process> for Processes {
    fn from_iter<I: IntoIterator<Item = Process>>(processes: I) -> Self {
        Self(processes.into_iter().map(|one| (one.id.pid, one)).collect())
    }
}

/// The children of a process; `None` when the kernel does not list them.
fn children(machine: &Machine, pid: i32) -> Option<Vec<i32>> {
    let Ok(tasks) = fs::read_dir(machine.process(pid).join("task")) else {
        // The process has ended.
        return Some(Vec::new());
    };
    let mut found = Vec::new();
    for task in tasks.flatten() {
        match fs::read_to_string(task.path().join("children")) {
            Ok(text) => found.extend(
                text.split_ascii_whitespace()
                    .filter_map(|pid| pid.parse::<i32>().ok()),
            ),
            // If the thread has ended, its directory is gone, too. If the directory is there, this kernel
            // does not list children.
            Err(_) if task.path().exists() => return None,
            Err(_) => {}
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn process(pid: i32, parent: i32) -> Process {
        Process {
            id: ProcessId { pid, started: 1 },
            parent,
            group: 1,
            session: 1,
            state: 'R',
            command: String::new(),
            own_ticks: 0,
            waited_ticks: 0,
        }
    }

    fn descendants(processes: &Processes, pid: i32) -> Vec<i32> {
        let below = processes.with_descendants(|process| process.id.pid == pid);
        below.iter().map(|process| process.id.pid).collect()
    }

    #[test]
    fn descendants_are_found_through_their_parents() {
        let family = [(2, 1), (3, 2), (9, 3), (4, 1), (5, 9), (7, 8), (8, 7)];
        let processes: Processes = family
            .map(|(pid, parent)| process(pid, parent))
            .into_iter()
            .collect();
        assert_eq!(descendants(&processes, 2), [2, 3, 5, 9]);
        assert_eq!(descendants(&processes, 4), [4]);
        assert_eq!(descendants(&processes, 1), [] as [i32; 0]);
        assert_eq!(descendants(&processes, 7), [7, 8]);
    }

    #[test]
    fn a_subtree_is_read_without_the_rest_of_the_machine() {
        let here = Machine::here();
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 1000 & echo; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0];
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut line).unwrap();
        let root = ProcessId::of(&here, shell.id() as i32).unwrap();
        let below = Processes::below(&here, [root]);
        let commands: Vec<&str> = below.iter().map(|one| one.command.as_str()).collect();
        assert_eq!(below.iter().count(), 2, "{commands:?}");
        let sleep = below.iter().find(|one| one.id != root).unwrap();
        assert_eq!(sleep.parent, root.pid);
        assert!(root.is_there(&here));
        let reused = ProcessId {
            started: root.started + 1,
            ..root
        };
        assert!(!reused.is_there(&here));
        assert_eq!(Processes::below(&here, [reused]).iter().count(), 0);
        let sleep = rustix::process::Pid::from_raw(sleep.id.pid).unwrap();
        rustix::process::kill_process(sleep, rustix::process::Signal::KILL).unwrap();
        shell.wait().unwrap();
        assert!(!root.is_there(&here));
    }
}
