//! Pressure: how long processes had to wait for a resource (the kernel's pressure stall information, PSI).

use std::fs;
use std::path::{Path, PathBuf};

use crate::Machine;
use crate::cgroup::{CgroupVersion, Hierarchy};

/// Most groups that [`groups_of_others`] returns.
const OTHERS_MAX: usize = 1024;

/// A resource that processes wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// A CPU.
    Cpu,
    /// Memory: pages that were evicted and have to be read again.
    Memory,
    /// A disk.
    Io,
}

impl Resource {
    /// The resource's name in the kernel's file names.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Io => "io",
        }
    }
}

/// How long processes waited.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// Share of the last ten seconds in which at least one process waited, 0 to 1.
    pub some_10s: f64,
    /// Time in which at least one process waited, since the machine started, microseconds.
    pub some_microseconds: u64,
    /// Time in which all processes waited, since the machine started, microseconds.
    pub full_microseconds: u64,
}

/// The pressure on the whole machine; `None` if the kernel does not report it.
#[must_use]
pub fn of_machine(machine: &Machine, resource: Resource) -> Option<Pressure> {
    read(&machine.proc().join("pressure").join(resource.name()))
}

/// The pressure on a group of version 2 and all groups below it; `None` if the kernel does not report it.
#[must_use]
pub fn of_group(directory: &Path, resource: Resource) -> Option<Pressure> {
    read(&directory.join(format!("{}.pressure", resource.name())))
}

fn read(path: &Path) -> Option<Pressure> {
    parse(&fs::read_to_string(path).ok()?)
}

/// Parses a text such as
///
/// ```text
/// some avg10=0.12 avg60=0.05 avg300=0.01 total=123456
/// full avg10=0.00 avg60=0.00 avg300=0.00 total=1234
/// ```
fn parse(text: &str) -> Option<Pressure> {
    let field = |kind: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        line.split(' ')
            .find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
    };
    let some_10s: f64 = field("some ", "avg10")?.parse().ok()?;
    let full = field("full ", "total").and_then(|total| total.parse().ok());
    Some(Pressure {
        some_10s: (some_10s / 100.0).clamp(0.0, 1.0),
        some_microseconds: field("some ", "total")?.parse().ok()?,
        // Kernels before 5.13 have no line `full` for the CPU.
        full_microseconds: full.unwrap_or(0),
    })
}

/// The directories of the groups of version 2 that do not contain the guest's group `guest`, none of them
/// within another: the siblings of the guest's group and of each group above it.
#[must_use]
pub fn groups_of_others(machine: &Machine, hierarchy: &Hierarchy, guest: &str) -> Vec<PathBuf> {
    if hierarchy.version != CgroupVersion::V2 {
        return Vec::new();
    }
    let Some(own) = hierarchy.directory(machine, guest) else {
        return Vec::new();
    };
    let mount = machine.path(&hierarchy.mount);
    let above = own
        .ancestors()
        .skip(1)
        .take_while(|one| one.starts_with(&mount));
    let beside = above.flat_map(|parent| {
        let entries = fs::read_dir(parent).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
    });
    beside
        .filter(|path| !own.starts_with(path))
        .take(OTHERS_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_read_as_the_kernel_writes_it() {
        let text = "some avg10=12.50 avg60=0.05 avg300=0.01 total=123456\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1234\n";
        let read = parse(text).unwrap();
        assert_eq!(read.some_10s, 0.125);
        assert_eq!(
            (read.some_microseconds, read.full_microseconds),
            (123_456, 1234)
        );
        let old = parse("some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n").unwrap();
        assert_eq!((old.some_microseconds, old.full_microseconds), (5, 0));
        for broken in ["", "some", "some avg10=x total=1", "full avg10=0.0 total=1"] {
            assert_eq!(parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn the_groups_of_others_are_those_beside_the_guest_s() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::at(dir.path());
        let root = machine.path("/cg");
        for group in [
            "system",
            "user/u1/job/below",
            "user/u1/desk/shell",
            "user/u2",
        ] {
            fs::create_dir_all(root.join(group)).unwrap();
        }
        let hierarchy = Hierarchy {
            version: CgroupVersion::V2,
            controllers: Vec::new(),
            mount: "/cg".into(),
            mounted: "/".into(),
        };
        let mut others = groups_of_others(&machine, &hierarchy, "/user/u1/job");
        others.sort();
        let expected = ["system", "user/u1/desk", "user/u2"].map(|group| root.join(group));
        assert_eq!(others, expected);
        fs::write(
            root.join("user/u2/cpu.pressure"),
            "some avg10=1.00 avg60=0.00 avg300=0.00 total=7\n",
        )
        .unwrap();
        assert_eq!(
            of_group(&others[2], Resource::Cpu)
                .unwrap()
                .some_microseconds,
            7
        );
        assert_eq!(of_group(&others[0], Resource::Cpu), None);
    }
}
