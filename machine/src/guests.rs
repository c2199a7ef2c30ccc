//! Which processes are guests: their load, and the load of all processes that they start, is not the owner's.

use std::collections::{BTreeMap, BTreeSet};

use crate::ProcessId;
use crate::processes::Process;

/// Length to which the kernel cuts the name of a command, characters.
const COMMAND_LENGTH: usize = 15;

/// The processes that are guests, by process id or by the name of their command. Their descendants are guests
/// as well, and are not listed here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guests {
    /// Bytes that each guest states to have moved to and from disks.
    processes: BTreeMap<ProcessId, u64>,
    /// Names of commands, as the kernel cuts them.
    commands: BTreeSet<String>,
}

impl Guests {
    /// Guests by process id and start time.
    #[must_use]
    pub fn of(processes: impl IntoIterator<Item = ProcessId>) -> Self {
        Self {
            processes: processes.into_iter().map(|id| (id, 0)).collect(),
            commands: BTreeSet::new(),
        }
    }

    /// Adds a guest that states to have moved `disk_bytes` to and from disks since it became a guest. The
    /// statement counts only while the system hides what a process of the guest has moved, and never beyond
    /// what the disk has moved.
    pub fn add(&mut self, process: ProcessId, disk_bytes: u64) {
        let stated = self.processes.entry(process).or_default();
        *stated = (*stated).max(disk_bytes);
    }

    /// The same guests and all processes that run one of these commands. Names are compared as the kernel
    /// cuts them.
    #[must_use]
    pub fn and_commands(mut self, commands: &[String]) -> Self {
        let cut = |name: &String| name.chars().take(COMMAND_LENGTH).collect();
        self.commands = commands.iter().map(cut).collect();
        self
    }

    /// Whether no process can be a guest.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.commands.is_empty()
    }

    /// Whether some guests can only be found by reading every process.
    #[must_use]
    pub(crate) fn are_named_by_command(&self) -> bool {
        !self.commands.is_empty()
    }

    /// The processes that were given by their ids.
    pub fn processes(&self) -> impl Iterator<Item = ProcessId> {
        self.processes.keys().copied()
    }

    /// Bytes that a guest states to have moved to and from disks.
    pub(crate) fn stated_disk_bytes(&self, process: ProcessId) -> u64 {
        self.processes.get(&process).copied().unwrap_or(0)
    }

    /// Whether this process is a guest by its id or its command, not as a descendant.
    #[must_use]
    pub fn contains(&self, process: &Process) -> bool {
        self.processes.contains_key(&process.id) || self.commands.contains(&process.command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_compared_as_the_kernel_cuts_them() {
        let guests =
            Guests::default().and_commands(&["condor_starter_with_a_long_name".to_owned()]);
        let runs = |command: &str| {
            guests.contains(&Process {
                id: ProcessId { pid: 7, started: 1 },
                parent: 1,
                group: 7,
                session: 7,
                state: 'R',
                command: command.to_owned(),
                own_ticks: 0,
                waited_ticks: 0,
            })
        };
        assert!(runs("condor_starter_"));
        assert!(!runs("condor"));
    }
}
