//! Reads the control groups of version 1 and of version 2 that processes are in.
//!
//! A [`Hierarchy`] is a mounted tree of groups. A group is named by its path in the tree, such as
//! `/user/job`; [`Hierarchy::directory`] is the directory with its files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::Machine;

/// Most groups below one group; with more, reading or removing them fails.
const GROUPS_MAX: usize = 4096;

/// Which of the two interfaces a hierarchy has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// Version 1: one hierarchy for each controller or for a few.
    V1,
    /// Version 2: one hierarchy for all controllers.
    V2,
}

/// A mounted tree of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Version of its interface.
    pub version: CgroupVersion,
    /// Controllers of a hierarchy of version 1; empty for version 2.
    pub controllers: Vec<String>,
    /// Directory on which it is mounted.
    pub mount: PathBuf,
    /// The group that is mounted there: `/`, except in containers.
    pub mounted: String,
}

impl Hierarchy {
    /// The directory of a group; `None` if the group is not below the one that is mounted.
    #[must_use]
    pub fn directory(&self, machine: &Machine, group: &str) -> Option<PathBuf> {
        let below = match self.mounted.as_str() {
            "/" => group,
            mounted => group.strip_prefix(mounted)?,
        };
        let below = below.trim_start_matches('/');
        if below.split('/').any(|part| part == "..") {
            return None;
        }
        let mount = machine.path(&self.mount);
        Some(if below.is_empty() {
            mount
        } else {
            mount.join(below)
        })
    }

    /// Whether it is a hierarchy of version 1 with this controller.
    #[must_use]
    pub fn controls(&self, controller: &str) -> bool {
        self.controllers.iter().any(|one| one == controller)
    }
}

/// The hierarchies that are mounted.
#[must_use]
pub fn hierarchies(machine: &Machine) -> Vec<Hierarchy> {
    let text = fs::read_to_string(machine.proc().join("self/mountinfo")).unwrap_or_default();
    text.lines().filter_map(hierarchy).collect()
}

/// Parses a line such as `36 25 0:30 /group /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct`.
fn hierarchy(line: &str) -> Option<Hierarchy> {
    let (place, file_system) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let mounted = unescaped(place.next()?);
    let mount = unescaped(place.next()?);
    let mut file_system = file_system.split(' ');
    let version = match file_system.next()? {
        "cgroup" => CgroupVersion::V1,
        "cgroup2" => CgroupVersion::V2,
        _ => return None,
    };
    let options = file_system.nth(1).unwrap_or_default();
    let controllers = match version {
        CgroupVersion::V1 => options.split(',').map(str::to_owned).collect(),
        CgroupVersion::V2 => Vec::new(),
    };
    Some(Hierarchy {
        version,
        controllers,
        mount: mount.into(),
        mounted,
    })
}

/// A path without the octal escapes that the kernel writes for spaces, tabs and backslashes.
fn unescaped(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\134", "\\")
}

/// The group of a hierarchy that a process is in.
#[must_use]
pub fn group_of(machine: &Machine, pid: i32, hierarchy: &Hierarchy) -> Option<String> {
    let text = fs::read_to_string(machine.process(pid).join("cgroup")).ok()?;
    group_in(&text, hierarchy)
}

/// The group of a hierarchy that this process is in.
#[must_use]
pub fn own_group(machine: &Machine, hierarchy: &Hierarchy) -> Option<String> {
    let text = fs::read_to_string(machine.proc().join("self/cgroup")).ok()?;
    group_in(&text, hierarchy)
}

/// Finds the group in the text of `/proc/PID/cgroup`, whose lines are such as `4:memory:/group`, or
/// `0::/group` for version 2.
fn group_in(text: &str, hierarchy: &Hierarchy) -> Option<String> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        let group = fields.next()?;
        let is_it = match hierarchy.version {
            CgroupVersion::V2 => controllers.is_empty(),
            CgroupVersion::V1 => controllers.split(',').any(|one| hierarchy.controls(one)),
        };
        is_it.then(|| group.to_owned())
    })
}

/// The process ids of a group and of all groups below it.
///
/// # Errors
/// When the group can't be read, or has more than 4,096 groups below it.
pub fn processes(directory: &Path) -> io::Result<Vec<i32>> {
    let mut found = pids(directory)?;
    let mut ahead = vec![directory.to_owned()];
    let mut looked_into = 0;
    while let Some(at) = ahead.pop() {
        let entries = fs::read_dir(&at).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            looked_into += 1;
            if looked_into > GROUPS_MAX {
                return Err(io::Error::other("too many groups below it"));
            }
            // A group that was removed meanwhile has no processes.
            found.extend(pids(&entry.path()).unwrap_or_default());
            ahead.push(entry.path());
        }
    }
    Ok(found)
}

/// Removes a group and all groups below it, if none of them has a process.
///
/// # Errors
/// When one of them has a process, there is no such group, or it has more than 4,096 groups below it.
pub fn remove(directory: &Path) -> io::Result<()> {
    let mut groups = vec![directory.to_owned()];
    let mut looked_into = 0;
    while let Some(group) = groups.get(looked_into).cloned() {
        looked_into += 1;
        if looked_into > GROUPS_MAX {
            return Err(io::Error::other("too many groups below it"));
        }
        let entries = fs::read_dir(&group)?.flatten();
        let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        groups.extend(below.map(|entry| entry.path()));
    }
    // A group can be removed only after all groups below it.
    groups.iter().rev().try_for_each(fs::remove_dir)
}

fn pids(directory: &Path) -> io::Result<Vec<i32>> {
    let text = fs::read_to_string(directory.join("cgroup.procs"))?;
    Ok(text
        .lines()
        .filter_map(|line| line.trim().parse().ok())
        .collect())
}

/// CPU time that a group and all groups below it have used, microseconds. It includes the time of processes
/// that have ended, even if no parent waited for them.
#[must_use]
pub fn cpu_microseconds(directory: &Path) -> Option<u64> {
    let text = |name| fs::read_to_string(directory.join(name)).ok();
    if let Some(nanoseconds) = text("cpuacct.usage") {
        return nanoseconds
            .trim()
            .parse::<u64>()
            .ok()
            .map(|time| time / 1000);
    }
    let stat = text("cpu.stat")?;
    let line = stat
        .lines()
        .find_map(|line| line.strip_prefix("usage_usec "))?;
    line.trim().parse().ok()
}

/// What control groups allow a process of memory, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The least limit of its group and of those above.
    pub limit: u64,
    /// What the group with the least room can still take. File cache does not count: it is given up.
    pub room: u64,
}

/// What control groups allow this process of memory; `None` without a limit.
#[must_use]
pub fn memory_limit(machine: &Machine) -> Option<MemoryLimit> {
    let hierarchies = hierarchies(machine).into_iter();
    let limits = hierarchies.flat_map(|hierarchy| {
        let has_memory = hierarchy.version == CgroupVersion::V2 || hierarchy.controls("memory");
        let group = own_group(machine, &hierarchy).filter(|_| has_memory);
        let directory = group.and_then(|group| hierarchy.directory(machine, &group));
        let mount = machine.path(&hierarchy.mount);
        let above = directory.into_iter().flat_map(|directory| {
            let above = directory.ancestors().map(Path::to_owned);
            above.collect::<Vec<PathBuf>>()
        });
        let within = above.take_while(|group| group.starts_with(&mount));
        let limits: Vec<MemoryLimit> = within.filter_map(|group| limit_of(&group)).collect();
        limits
    });
    limits.reduce(|one, other| MemoryLimit {
        limit: one.limit.min(other.limit),
        room: one.room.min(other.room),
    })
}

/// What one group allows, if it has a limit.
fn limit_of(group: &Path) -> Option<MemoryLimit> {
    let text = |name| fs::read_to_string(group.join(name)).ok();
    let number = |name| text(name)?.trim().parse::<u64>().ok();
    let v2 = [number("memory.max"), number("memory.high")];
    let v2 = v2.into_iter().flatten().min();
    // Without a limit, version 1 shows one that no machine has.
    let v1 = number("memory.limit_in_bytes").filter(|limit| *limit < 1 << 60);
    let limit = v2.or(v1)?;
    let used = number("memory.current").or_else(|| number("memory.usage_in_bytes"))?;
    let stat = text("memory.stat").unwrap_or_default();
    let of_stat = |names: &[&str]| -> u64 {
        let lines = stat.lines().filter_map(|line| line.split_once(' '));
        let lines = lines.filter(|(name, _)| names.contains(name));
        lines
            .filter_map(|(_, value)| value.parse::<u64>().ok())
            .sum()
    };
    // Those of version 1 have `total_` in front where groups below are counted.
    let cache = match of_stat(&["total_inactive_file", "total_active_file"]) {
        0 => of_stat(&["inactive_file", "active_file"]),
        cache => cache,
    };
    Some(MemoryLimit {
        limit,
        room: limit.saturating_sub(used.saturating_sub(cache)),
    })
}

/// The directory in which the CPU time of a process's group is counted; `None` if the process is in the root
/// group, whose time is that of all processes.
#[must_use]
pub fn accounting_directory(
    machine: &Machine,
    hierarchies: &[Hierarchy],
    pid: i32,
) -> Option<PathBuf> {
    let counts = |hierarchy: &&Hierarchy| {
        hierarchy.version == CgroupVersion::V2 || hierarchy.controls("cpuacct")
    };
    hierarchies.iter().filter(counts).find_map(|hierarchy| {
        let group = group_of(machine, pid, hierarchy)?;
        if group == "/" || group == hierarchy.mounted {
            return None;
        }
        let directory = hierarchy.directory(machine, &group)?;
        cpu_microseconds(&directory).is_some().then_some(directory)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
24 1 0:22 / /proc rw - proc proc rw
30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
31 25 0:27 /docker/abc /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
32 25 0:28 / /sys/fs/cgroup/uni\\040fied rw - cgroup2 cgroup2 rw,nsdelegate
";

    /// A machine with two hierarchies of version 1 and one of version 2, on which process 7 is in
    /// `groups`.
    fn machine(groups: &str) -> (tempfile::TempDir, Machine) {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::at(dir.path());
        for process in ["self", "7"] {
            fs::create_dir_all(machine.proc().join(process)).unwrap();
        }
        fs::write(machine.proc().join("self/mountinfo"), MOUNTS).unwrap();
        fs::write(machine.process(7).join("cgroup"), groups).unwrap();
        (dir, machine)
    }

    #[test]
    fn groups_are_found_in_both_versions() {
        let (_dir, machine) =
            machine("5:cpu,cpuacct:/jobs/a\n3:freezer:/docker/abc/x\n0::/slice/b c\n");
        let found = hierarchies(&machine);
        let versions: Vec<CgroupVersion> = found.iter().map(|one| one.version).collect();
        assert_eq!(
            versions,
            [CgroupVersion::V1, CgroupVersion::V1, CgroupVersion::V2]
        );
        let directory = |hierarchy: &Hierarchy| {
            let group = group_of(&machine, 7, hierarchy)?;
            hierarchy.directory(&machine, &group)
        };
        let below = |path: &str| Some(machine.path(path));
        assert_eq!(
            directory(&found[0]),
            below("/sys/fs/cgroup/cpu,cpuacct/jobs/a")
        );
        assert_eq!(directory(&found[1]), below("/sys/fs/cgroup/freezer/x"));
        assert_eq!(
            directory(&found[2]),
            below("/sys/fs/cgroup/uni fied/slice/b c")
        );
        assert_eq!(found[1].directory(&machine, "/docker/other"), None);
        assert_eq!(found[0].directory(&machine, "/../../etc"), None);
    }

    #[test]
    fn the_limit_of_memory_is_the_least_of_both_versions_and_of_the_groups_above() {
        let mounts = "\
30 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
        let (_dir, machine) = machine("");
        fs::write(machine.proc().join("self/mountinfo"), mounts).unwrap();
        fs::write(machine.proc().join("self/cgroup"), "4:memory:/a/b\n0::/c\n").unwrap();
        assert_eq!(memory_limit(&machine), None);
        let write = |group: &str, name: &str, text: &str| {
            let group = machine.path("/sys/fs/cgroup").join(group);
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join(name), text).unwrap();
        };
        write("memory", "memory.limit_in_bytes", "9223372036854771712\n");
        write(
            "memory/a/b",
            "memory.limit_in_bytes",
            "9223372036854771712\n",
        );
        write("memory/a", "memory.limit_in_bytes", "1000\n");
        write("memory/a", "memory.usage_in_bytes", "900\n");
        let is =
            |limit, room| assert_eq!(memory_limit(&machine), Some(MemoryLimit { limit, room }));
        is(1000, 100);
        let stat = "cache 500\ninactive_file 1\ntotal_inactive_file 200\ntotal_active_file 100\n";
        write("memory/a", "memory.stat", stat);
        is(1000, 400);
        write("unified/c", "memory.max", "max\n");
        write("unified/c", "memory.current", "700\n");
        is(1000, 400);
        write("unified/c", "memory.high", "900\n");
        is(900, 200);
        write("unified/c", "memory.max", "800\n");
        write(
            "unified/c",
            "memory.stat",
            "inactive_file 50\nactive_file 10\n",
        );
        is(800, 160);
    }

    #[test]
    fn cpu_time_is_read_from_either_version() {
        let (_dir, machine) = machine("5:cpu,cpuacct:/jobs/a\n0::/\n");
        let found = hierarchies(&machine);
        assert_eq!(accounting_directory(&machine, &found, 7), None);
        let directory = machine.path("/sys/fs/cgroup/cpu,cpuacct/jobs/a");
        fs::create_dir_all(directory.join("below")).unwrap();
        fs::write(directory.join("cpuacct.usage"), "1234567\n").unwrap();
        assert_eq!(
            accounting_directory(&machine, &found, 7),
            Some(directory.clone())
        );
        assert_eq!(cpu_microseconds(&directory), Some(1234));
        fs::remove_file(directory.join("cpuacct.usage")).unwrap();
        fs::write(directory.join("cpu.stat"), "usage_usec 99\nuser_usec 98\n").unwrap();
        assert_eq!(cpu_microseconds(&directory), Some(99));
        fs::write(directory.join("cgroup.procs"), "7\n").unwrap();
        fs::write(directory.join("below/cgroup.procs"), "8\n9\n").unwrap();
        assert_eq!(processes(&directory).unwrap(), [7, 8, 9]);
    }
}
