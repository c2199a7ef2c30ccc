//! Autogroups: the kernel divides a CPU among sessions first, and then among the processes of each session.
//! A process of low priority therefore gets a full share beside the processes of other sessions, unless its
//! session has a low priority, too.

use std::fs;
use std::io;

use crate::Machine;

/// Whether the kernel has autogroups, and they are switched on.
#[must_use]
pub fn is_on(machine: &Machine) -> bool {
    let path = machine.proc().join("sys/kernel/sched_autogroup_enabled");
    fs::read_to_string(path).is_ok_and(|text| text.trim() == "1")
}

/// The autogroup of a process: its number and its priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Autogroup {
    /// Number of the group, which is different for each session.
    pub number: u64,
    /// Nice value of the group, -20 to 19.
    pub nice: i32,
}

/// The autogroup of a process; `None` if the kernel has no autogroups.
#[must_use]
pub fn of(machine: &Machine, pid: i32) -> Option<Autogroup> {
    let text = fs::read_to_string(machine.process(pid).join("autogroup")).ok()?;
    // `/autogroup-249 nice 0`
    let (name, nice) = text.trim().split_once(" nice ")?;
    Some(Autogroup {
        number: name.strip_prefix("/autogroup-")?.parse().ok()?,
        nice: nice.trim().parse().ok()?,
    })
}

/// Sets the nice value of the autogroup of a process, -20 to 19. Without privilege the value can be lowered
/// again, down to 0, and it can be changed only ten times a second.
///
/// # Errors
/// When the system does not allow it.
pub fn set_nice(machine: &Machine, pid: i32, nice: i32) -> io::Result<()> {
    fs::write(machine.process(pid).join("autogroup"), nice.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_autogroup_is_read_as_the_kernel_writes_it() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::at(dir.path());
        fs::create_dir_all(machine.process(7)).unwrap();
        fs::create_dir_all(machine.proc().join("sys/kernel")).unwrap();
        assert_eq!(of(&machine, 7), None);
        assert!(!is_on(&machine));
        fs::write(
            machine.process(7).join("autogroup"),
            "/autogroup-249 nice -3\n",
        )
        .unwrap();
        fs::write(
            machine.proc().join("sys/kernel/sched_autogroup_enabled"),
            "1\n",
        )
        .unwrap();
        let found = of(&machine, 7).unwrap();
        assert_eq!((found.number, found.nice), (249, -3));
        assert!(is_on(&machine));
        set_nice(&machine, 7, 19).unwrap();
        assert_eq!(
            fs::read_to_string(machine.process(7).join("autogroup")).unwrap(),
            "19"
        );
    }
}
