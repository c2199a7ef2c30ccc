//! A control group of its own for a process that must not share one with this process.

use std::io;

use super::groups::{Groups, V1, V2};
use crate::Machine;
use crate::cgroup::{self, CgroupVersion};

/// A control group with the usual share of the CPU, as near to the root as is allowed. When this is dropped,
/// the group is removed if no process is left in it.
#[derive(Debug)]
pub struct Apart {
    group: Box<dyn Groups>,
}

impl Apart {
    /// Makes a group of this name, in a hierarchy that divides the CPU.
    ///
    /// # Errors
    /// When this machine has no such hierarchy, or does not allow the group; the error states which.
    pub fn make(machine: &Machine, name: &str) -> io::Result<Self> {
        let hierarchies = cgroup::hierarchies(machine);
        let first = V1::make(machine, &hierarchies, name);
        let group: Box<dyn Groups> = match first {
            Ok(group) => Box::new(group),
            Err(of_v1) => Box::new(V2::make(machine, &hierarchies, name).map_err(|of_v2| {
                io::Error::new(
                    of_v2.kind(),
                    format!("version 1: {of_v1}; version 2: {of_v2}"),
                )
            })?),
        };
        let apart = Self { group };
        let shares = match apart.group.version() {
            CgroupVersion::V1 => "cpu.shares",
            CgroupVersion::V2 => "cpu.weight",
        };
        let mut directories = apart.group.directories().into_iter();
        if !directories.any(|directory| directory.join(shares).exists()) {
            return Err(io::Error::other("its groups have no share of the CPU"));
        }
        Ok(apart)
    }

    /// Moves a process into the group.
    ///
    /// # Errors
    /// When that is not allowed, or the process no longer exists.
    pub fn add(&self, pid: i32) -> io::Result<()> {
        self.group.add(pid)
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        super::remove_when_empty(std::slice::from_ref(&self.group));
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_taken_into_another_group_and_the_group_goes() {
        let here = Machine::here();
        let name = format!("apart-{}", std::process::id());
        let apart = match Apart::make(&here, &name) {
            Ok(apart) => apart,
            Err(cause) => {
                eprintln!("not tested: no control group can be made here: {cause}");
                return;
            }
        };
        let mut sleeps = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pid = sleeps.id().cast_signed();
        apart.add(pid).unwrap();
        let hierarchies = cgroup::hierarchies(&here);
        let is_in = hierarchies.iter().any(|hierarchy| {
            cgroup::group_of(&here, pid, hierarchy).is_some_and(|group| group.contains(&name))
        });
        sleeps.kill().unwrap();
        sleeps.wait().unwrap();
        let directories = apart.group.directories();
        drop(apart);
        assert!(is_in);
        assert!(directories.iter().all(|one| !one.exists()));
    }

    #[test]
    fn a_machine_without_control_groups_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let cause = Apart::make(&Machine::at(dir.path()), "none").unwrap_err();
        let said = cause.to_string();
        assert!(said.contains("cpu is not mounted"), "{said}");
        assert!(said.contains("version 2 is not mounted"), "{said}");
    }
}
