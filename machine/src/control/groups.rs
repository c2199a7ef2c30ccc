//! The control groups of one guest, of either version.

use std::fmt::Debug;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cgroup::{self, CgroupVersion, Hierarchy};
use crate::{Machine, ProcessId};

/// How long the kernel may take to freeze a group.
const FREEZE_PATIENCE: Duration = Duration::from_secs(2);
/// Time between two checks whether it is frozen.
const FREEZE_POLL: Duration = Duration::from_millis(2);

/// File by which a group gives way to all other groups, since Linux 5.15.
const IDLE: &str = "cpu.idle";

/// Beginning of the names of the groups.
pub(super) const PREFIX: &str = "ckpt-guest-";

/// The control groups of one guest.
pub(super) trait Groups: Debug + Send {
    /// Version of the control groups.
    fn version(&self) -> CgroupVersion;

    /// Whether the group that divides the CPU lies directly below the machine's root group, so that it
    /// competes with all other processes.
    fn is_at_the_root(&self) -> bool;

    /// The groups' directories.
    fn directories(&self) -> Vec<PathBuf>;

    /// Moves a process into the groups.
    fn add(&self, pid: i32) -> io::Result<()> {
        self.directories()
            .iter()
            .try_for_each(|directory| fs::write(directory.join("cgroup.procs"), pid.to_string()))
    }

    /// Sets the least share of the CPU or the usual one, and reads it back.
    fn set_lowest(&self, is_lowest: bool) -> io::Result<()>;

    /// The file for the share of the CPU, and the text that sets the usual share.
    fn usual_share(&self) -> (PathBuf, &'static str);

    /// Freezes or thaws the processes, and returns when that is done.
    fn set_frozen(&self, is_frozen: bool) -> io::Result<()>;

    /// The file of the freezer, and the text that thaws.
    fn thaw(&self) -> (PathBuf, &'static str);

    /// Removes the groups that have no process.
    fn remove(&self) {
        for directory in self.directories() {
            // Fails while there are processes; a later guest removes the group then.
            let _ = cgroup::remove(&directory);
        }
    }
}

/// Groups of version 1: one for each controller.
#[derive(Debug)]
pub(super) struct V1 {
    /// Directory in the hierarchy of the controller `cpu`.
    cpu: PathBuf,
    /// Directory in that of `freezer`, if it is another hierarchy.
    freezer: Option<PathBuf>,
    /// Directory in that of `cpuacct`, if it is another hierarchy.
    accounting: Option<PathBuf>,
    is_at_the_root: bool,
}

/// Groups of version 2: a single one.
#[derive(Debug)]
pub(super) struct V2 {
    directory: PathBuf,
    is_at_the_root: bool,
}

impl V1 {
    /// Makes the groups.
    pub(super) fn make(
        machine: &Machine,
        hierarchies: &[Hierarchy],
        name: &str,
    ) -> io::Result<Self> {
        let of = |controller: &str| hierarchies.iter().find(|one| one.controls(controller));
        let cpu = of("cpu").ok_or_else(|| missing("the controller cpu is not mounted"))?;
        let (cpu_directory, is_at_the_root) = make_in(machine, cpu, name)?;
        let other = |controller: &str| {
            let hierarchy = of(controller).filter(|one| one.mount != cpu.mount)?;
            Some(make_in(machine, hierarchy, name).ok()?.0)
        };
        Ok(Self {
            cpu: cpu_directory,
            freezer: other("freezer"),
            accounting: other("cpuacct"),
            is_at_the_root,
        })
    }
}

impl Groups for V1 {
    fn version(&self) -> CgroupVersion {
        CgroupVersion::V1
    }

    fn is_at_the_root(&self) -> bool {
        self.is_at_the_root
    }

    fn directories(&self) -> Vec<PathBuf> {
        let others = [self.freezer.clone(), self.accounting.clone()];
        let mut all = vec![self.cpu.clone()];
        all.extend(others.into_iter().flatten());
        all
    }

    fn set_lowest(&self, is_lowest: bool) -> io::Result<()> {
        let (file, usual) = self.usual_share();
        let least = if file.ends_with(IDLE) { "1" } else { "2" };
        write_back(&file, if is_lowest { least } else { usual })
    }

    fn usual_share(&self) -> (PathBuf, &'static str) {
        let idle = self.cpu.join(IDLE);
        if idle.exists() {
            return (idle, "0");
        }
        (self.cpu.join("cpu.shares"), "1024")
    }

    fn set_frozen(&self, is_frozen: bool) -> io::Result<()> {
        let state = self.freezer_dir()?.join("freezer.state");
        let wanted = if is_frozen { "FROZEN" } else { "THAWED" };
        fs::write(&state, wanted)?;
        wait_until(|| Ok(fs::read_to_string(&state)?.trim() == wanted))
    }

    fn thaw(&self) -> (PathBuf, &'static str) {
        let directory = self.freezer.as_ref().unwrap_or(&self.cpu);
        (directory.join("freezer.state"), "THAWED")
    }
}

impl V1 {
    /// The group whose hierarchy has all controllers, in a directory that exists.
    #[cfg(test)]
    pub(super) const fn at(directory: PathBuf) -> Self {
        Self {
            cpu: directory,
            freezer: None,
            accounting: None,
            is_at_the_root: true,
        }
    }

    /// The group's directory with the controller `freezer`, which may share its hierarchy with `cpu`.
    fn freezer_dir(&self) -> io::Result<&Path> {
        if let Some(directory) = &self.freezer {
            return Ok(directory);
        }
        match self.cpu.join("freezer.state").exists() {
            true => Ok(&self.cpu),
            false => Err(missing("the freezer is not mounted")),
        }
    }
}

impl V2 {
    /// Makes the group.
    pub(super) fn make(
        machine: &Machine,
        hierarchies: &[Hierarchy],
        name: &str,
    ) -> io::Result<Self> {
        let hierarchy = hierarchies
            .iter()
            .find(|one| one.version == CgroupVersion::V2);
        let hierarchy = hierarchy.ok_or_else(|| missing("version 2 is not mounted"))?;
        let (directory, is_at_the_root) = make_in(machine, hierarchy, name)?;
        Ok(Self {
            directory,
            is_at_the_root,
        })
    }

    /// The group in a directory that exists.
    #[cfg(test)]
    pub(super) const fn at(directory: PathBuf) -> Self {
        Self {
            directory,
            is_at_the_root: true,
        }
    }
}

impl Groups for V2 {
    fn version(&self) -> CgroupVersion {
        CgroupVersion::V2
    }

    fn is_at_the_root(&self) -> bool {
        self.is_at_the_root
    }

    fn directories(&self) -> Vec<PathBuf> {
        vec![self.directory.clone()]
    }

    fn set_lowest(&self, is_lowest: bool) -> io::Result<()> {
        let (file, usual) = self.usual_share();
        if !file.exists() {
            return Err(missing("it has no controller for the CPU"));
        }
        // In both files 1 is the lowest: idle, or the least weight.
        write_back(&file, if is_lowest { "1" } else { usual })
    }

    fn usual_share(&self) -> (PathBuf, &'static str) {
        let idle = self.directory.join(IDLE);
        if idle.exists() {
            return (idle, "0");
        }
        (self.directory.join("cpu.weight"), "100")
    }

    fn set_frozen(&self, is_frozen: bool) -> io::Result<()> {
        let freeze = self.directory.join("cgroup.freeze");
        if !freeze.exists() {
            return Err(missing("the kernel can't freeze groups of version 2"));
        }
        fs::write(freeze, if is_frozen { "1" } else { "0" })?;
        let wanted = if is_frozen { "frozen 1" } else { "frozen 0" };
        let events = self.directory.join("cgroup.events");
        wait_until(|| {
            Ok(fs::read_to_string(&events)?
                .lines()
                .any(|line| line == wanted))
        })
    }

    fn thaw(&self) -> (PathBuf, &'static str) {
        (self.directory.join("cgroup.freeze"), "0")
    }
}

/// Makes a group as near to the root as is allowed. Returns its directory, and whether it lies directly below
/// the machine's root group.
fn make_in(machine: &Machine, hierarchy: &Hierarchy, name: &str) -> io::Result<(PathBuf, bool)> {
    let own = cgroup::own_group(machine, hierarchy).unwrap_or_else(|| "/".to_owned());
    let mount = hierarchy.directory(machine, &hierarchy.mounted);
    let own = hierarchy.directory(machine, &own).or_else(|| mount.clone());
    let (Some(mount), Some(own)) = (mount, own) else {
        return Err(missing("it is mounted elsewhere"));
    };
    let mut above: Vec<&Path> = own
        .ancestors()
        .take_while(|one| one.starts_with(&mount))
        .collect();
    above.reverse();
    let mut failure = missing("there is no group");
    for parent in above {
        remove_empty(machine, parent);
        let directory = parent.join(format!("{PREFIX}{name}"));
        match fs::create_dir(&directory) {
            Ok(()) => return Ok((directory, parent == mount && hierarchy.mounted == "/")),
            Err(cause) => failure = cause,
        }
    }
    Err(failure)
}

/// The name of the groups of a guest that the process `holder` holds back: start time and process id.
pub(super) fn name_of(holder: Option<ProcessId>) -> String {
    match holder {
        Some(holder) => format!("{}-{}", holder.started, holder.pid),
        None => std::process::id().to_string(),
    }
}

/// The process that holds the guest of these groups back, from their name.
fn holder_of(name: &str) -> Option<ProcessId> {
    let (started, pid) = name.strip_prefix(PREFIX)?.split_once('-')?;
    Some(ProcessId {
        pid: pid.parse().ok()?,
        started: started.parse().ok()?,
    })
}

/// Removes the empty groups that earlier guests have left: those whose holder no longer exists.
fn remove_empty(machine: &Machine, parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_left = match holder_of(&name) {
            Some(holder) => !holder.is_there(machine),
            None => name.starts_with(PREFIX) && is_old(&entry.path()),
        };
        if is_left && cgroup::processes(&entry.path()).is_ok_and(|pids| pids.is_empty()) {
            // Another guest may remove it, too.
            let _ = cgroup::remove(&entry.path());
        }
    }
}

/// Whether a group is old enough to be a leftover: one that another guest has just made is empty, too.
fn is_old(directory: &Path) -> bool {
    let made = fs::metadata(directory).and_then(|found| found.modified());
    made.is_ok_and(|made| {
        made.elapsed()
            .is_ok_and(|age| age > Duration::from_secs(60))
    })
}

fn missing(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, why)
}

/// Writes a text and checks that it is read back.
fn write_back(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text)?;
    let read = fs::read_to_string(path)?;
    if read.trim() == text {
        Ok(())
    } else {
        Err(io::Error::other(format!(
            "wrote {text}, and read {}",
            read.trim()
        )))
    }
}

fn wait_until(is_so: impl Fn() -> io::Result<bool>) -> io::Result<()> {
    let until = Instant::now() + FREEZE_PATIENCE;
    while !is_so()? {
        if Instant::now() > until {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
        std::thread::sleep(FREEZE_POLL);
    }
    Ok(())
}
