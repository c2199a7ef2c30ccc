//! The kinds of guests beside which an owner is measured: their priority, and where they run.

use std::fmt;

use machine::Machine;
use machine::control::{Apart, own_name, session_counts};

/// The priority of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// The priority of the owner.
    Equal,
    /// Nice 19, and the idle class of the disk.
    Lowest,
}

/// Where a guest runs, relative to the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestPlace {
    /// In the owner's session and control group.
    Same,
    /// In another session of the same control group, and so in an autogroup of its own.
    OtherSession,
    /// In another control group.
    OtherGroup,
}

/// A guest beside which the owner is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestKind {
    /// The priority of the guest.
    pub priority: Priority,
    /// Where the guest runs.
    pub place: GuestPlace,
}

impl GuestPlace {
    /// Why no guest can run there on this machine, or why it would make no difference. `None` if it can.
    #[must_use]
    pub fn lacks(self, machine: &Machine) -> Option<String> {
        match self {
            Self::Same => None,
            Self::OtherSession => session_counts(machine).err().map(|cause| cause.to_string()),
            Self::OtherGroup => {
                let made = Apart::make(machine, &own_name());
                made.err().map(|cause| cause.to_string())
            }
        }
    }
}

impl fmt::Display for GuestPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Same => "in the same session",
            Self::OtherSession => "in another session",
            Self::OtherGroup => "in another control group",
        })
    }
}

impl fmt::Display for GuestKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.priority {
            Priority::Equal => write!(f, "an equal guest {}", self.place),
            Priority::Lowest => write!(f, "one at nice 19 {}", self.place),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_machine_without_autogroups_or_control_groups_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::at(dir.path());
        assert_eq!(GuestPlace::Same.lacks(&machine), None);
        let lacks = GuestPlace::OtherSession.lacks(&machine).unwrap();
        assert!(lacks.contains("switched off"), "{lacks}");
        let lacks = GuestPlace::OtherGroup.lacks(&machine).unwrap();
        assert!(lacks.contains("not mounted"), "{lacks}");
        let kernel = machine.proc().join("sys/kernel");
        fs::create_dir_all(&kernel).unwrap();
        fs::write(kernel.join("sched_autogroup_enabled"), "1\n").unwrap();
        assert_eq!(GuestPlace::OtherSession.lacks(&machine), None);
    }
}
