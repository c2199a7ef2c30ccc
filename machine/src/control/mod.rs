//! How a guest is held back for the machine's owner, by what holds on this machine.
//!
//! [`choose`] tries from the best to the worst: a control group of the guest's own, the autogroup of a
//! session of its own, the lowest priority of its processes, stopping alone. Each is tried on a process
//! made for that, and what was written is read back; what came out is a [`Check`] that can be shown.

mod apart;
mod choice;
mod groups;
mod scheduler;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

pub use apart::Apart;
pub use choice::{Wishes, choose, session_counts};
use groups::Groups;

use crate::{Machine, ProcessId, autogroup};

/// Times that processes are looked for again while new ones are found.
const ROUNDS_MAX: usize = 8;

/// How long a guest that was killed may take to end.
const KILL_PATIENCE: Duration = Duration::from_secs(5);
const KILL_POLL: Duration = Duration::from_millis(5);

/// Times that control groups are removed before they are left to the next guest.
const REMOVALS_MAX: usize = 40;

/// A name for the control groups of a guest that this process holds back, by which others see whether it is
/// still there.
#[must_use]
pub fn own_name() -> String {
    groups::name_of(ProcessId::of(
        &Machine::here(),
        std::process::id().cast_signed(),
    ))
}

/// Whether this is the directory of a control group that was made for a guest.
#[must_use]
pub fn is_a_guest_s(directory: &std::path::Path) -> bool {
    let name = directory.file_name().unwrap_or_default();
    name.to_string_lossy().starts_with(groups::PREFIX)
}

/// The processes of a guest now, zombies among them: found anew whenever they are asked for.
pub type Family<'a> = &'a dyn Fn() -> BTreeSet<i32>;

/// What makes a guest give way to everybody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Lowers {
    /// A control group of its own, of version 2.
    CgroupV2,
    /// A control group of its own, of version 1.
    CgroupV1,
    /// The autogroup of a session of its own.
    Autogroup,
    /// Nice 19 and the idle class of its processes.
    Priority,
    /// Nothing does: it can only be stopped.
    Nothing,
}

/// What stops a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stops {
    /// The freezer of its control group: all at once, and the guest does not notice.
    Freezer,
    /// SIGSTOP to each process.
    Signal,
}

/// Beside whom a guest gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// Everybody on the machine.
    Machine,
    /// Those in the same control group: others share the CPU with the group as a whole.
    Group,
    /// Those in the same session.
    Session,
    /// Nobody.
    Nobody,
}

/// What was tried, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tried {
    /// What it is.
    pub what: &'static str,
    /// Why it does not hold here; `None` when it does.
    pub fails: Option<String>,
}

/// How a guest is held back on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What makes it give way.
    pub lowers_by: Lowers,
    /// Beside whom.
    pub reach: Reach,
    /// Whether that can be taken back.
    pub comes_back: bool,
    /// What stops it.
    pub stops_by: Stops,
    /// All that was tried.
    pub tried: Vec<Tried>,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lowers = match self.lowers_by {
            Lowers::CgroupV2 => "a control group of its own (version 2)",
            Lowers::CgroupV1 => "a control group of its own (version 1)",
            Lowers::Autogroup => "the autogroup of its session",
            Lowers::Priority => "nice 19 and the idle class",
            Lowers::Nothing => "nothing",
        };
        let reach = match self.reach {
            Reach::Machine => "everybody on the machine",
            Reach::Group => "those in the same control group alone",
            Reach::Session => "those in the same session alone",
            Reach::Nobody => "nobody: it can only be stopped",
        };
        let stops = match self.stops_by {
            Stops::Freezer => "the freezer of its control group",
            Stops::Signal => "SIGSTOP to each of its processes",
        };
        write!(f, "gives way by {lowers}, to {reach}; stopped by {stops}")?;
        if !self.comes_back && self.lowers_by != Lowers::Nothing {
            write!(f, "; what is lowest stays so: no privilege to take it back")?;
        }
        for Tried { what, fails } in &self.tried {
            match fails {
                None => write!(f, "\n  {what}: holds")?,
                Some(why) => write!(f, "\n  {what}: {why}")?,
            }
        }
        Ok(())
    }
}

/// Holds one guest back. When it is dropped, the guest's control groups go, if it has ended.
#[derive(Debug)]
pub struct Control {
    machine: Machine,
    check: Check,
    groups: Vec<Box<dyn Groups>>,
    /// Which of `groups` lowers, and which one freezes.
    lowering: Option<usize>,
    freezing: Option<usize>,
    /// Nice value of the guest as it was started.
    nice: i32,
    is_lowest: bool,
    is_stopped: bool,
}

impl Control {
    /// How it holds the guest back.
    #[must_use]
    pub const fn check(&self) -> &Check {
        &self.check
    }

    /// Whether the guest is stopped.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Takes the guest's processes into its control groups, where it has some. To be called once it was
    /// started; what its processes start later is in them already.
    ///
    /// # Errors
    /// When a process that is there can't be moved.
    pub fn adopt(&mut self, family: Family<'_>) -> io::Result<()> {
        let groups = &self.groups;
        each_new(family, |pid| {
            groups
                .iter()
                .try_for_each(|group| gone_is_well(group.add(pid)))
        })
    }

    /// Makes the guest give way to whomever this reaches; false when nothing does that here.
    ///
    /// # Errors
    /// When the system does not allow it any more.
    pub fn lowest(&mut self, family: Family<'_>) -> io::Result<bool> {
        self.is_lowest = true;
        match self.check.lowers_by {
            Lowers::CgroupV1 | Lowers::CgroupV2 => self.set_group(true)?,
            Lowers::Autogroup => self.set_autogroup(family, 19)?,
            Lowers::Priority => each_new(family, |pid| {
                gone_is_well(scheduler::lowest(&self.machine, pid))
            })?,
            Lowers::Nothing => return Ok(false),
        }
        Ok(true)
    }

    /// Gives the guest the priority that it was started with; false when it stays lowest because that
    /// can't be taken back here.
    ///
    /// # Errors
    /// When the system does not allow what it allowed before.
    pub fn normal(&mut self, family: Family<'_>) -> io::Result<bool> {
        if !self.is_lowest {
            return Ok(true);
        }
        if !self.check.comes_back {
            return Ok(false);
        }
        match self.check.lowers_by {
            Lowers::CgroupV1 | Lowers::CgroupV2 => self.set_group(false)?,
            Lowers::Autogroup => self.set_autogroup(family, 0)?,
            Lowers::Priority => {
                let nice = self.nice;
                each_new(family, |pid| {
                    gone_is_well(scheduler::normal(&self.machine, pid, nice))
                })?;
            }
            Lowers::Nothing => {}
        }
        self.is_lowest = false;
        Ok(true)
    }

    /// Stops all of the guest. When its freezer fails, its processes are stopped one by one.
    pub fn stop(&mut self, family: Family<'_>) {
        self.is_stopped = true;
        let frozen = self.freezer().map(|group| group.set_frozen(true));
        if !matches!(frozen, Some(Ok(()))) {
            signal_all(family, Signal::STOP);
        }
    }

    /// Lets all of the guest go on.
    pub fn go_on(&mut self, family: Family<'_>) {
        if let Some(group) = self.freezer() {
            // Whatever comes of it, the signal does no harm.
            let _ = group.set_frozen(false);
        }
        signal_all(family, Signal::CONT);
        self.is_stopped = false;
    }

    /// Kills all of the guest and waits until only zombies are left; false when some did not end in
    /// five seconds.
    pub fn kill_all(&mut self, family: Family<'_>) -> bool {
        let until = Instant::now() + KILL_PATIENCE;
        loop {
            signal_all(family, Signal::KILL);
            if let Some(group) = self.freezer() {
                // A process that is frozen by version 1 ends only once it goes on.
                let _ = group.set_frozen(false);
            }
            self.is_stopped = false;
            let is_there = |pid: &i32| {
                let found = crate::processes::Process::read(&self.machine, *pid);
                found.is_some_and(|process| !matches!(process.state, 'Z' | 'X'))
            };
            if !family().iter().any(is_there) {
                return true;
            }
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(KILL_POLL);
        }
    }

    /// Files, and what has to be written to them so that nothing of the guest stays stopped should this
    /// process be killed, or gets no time to end: for whoever ends the guest then.
    #[must_use]
    pub fn thaw(&self) -> Vec<(PathBuf, &'static str)> {
        let share = self.lowering.and_then(|index| self.groups.get(index));
        let share = share.map(|group| group.usual_share());
        let thawed = self.freezer().map(|group| group.thaw());
        thawed.into_iter().chain(share).collect()
    }

    /// Directories of the guest's control groups.
    #[must_use]
    pub fn group_directories(&self) -> Vec<PathBuf> {
        self.groups
            .iter()
            .flat_map(|group| group.directories())
            .collect()
    }

    fn freezer(&self) -> Option<&dyn Groups> {
        self.groups.get(self.freezing?).map(Box::as_ref)
    }

    fn set_group(&self, is_lowest: bool) -> io::Result<()> {
        match self.lowering.and_then(|index| self.groups.get(index)) {
            Some(group) => group.set_lowest(is_lowest),
            None => Ok(()),
        }
    }

    /// One process of each session is enough.
    fn set_autogroup(&self, family: Family<'_>, nice: i32) -> io::Result<()> {
        let own = autogroup::of(&self.machine, std::process::id().cast_signed());
        let mut done = BTreeSet::new();
        for pid in family() {
            let Some(group) = autogroup::of(&self.machine, pid) else {
                continue;
            };
            // A process that has not left our session is not the guest's first.
            if own.map(|own| own.number) == Some(group.number) || !done.insert(group.number) {
                continue;
            }
            gone_is_well(autogroup::set_nice(&self.machine, pid, nice))?;
        }
        Ok(())
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Some(group) = self.freezer() {
            let _ = group.set_frozen(false);
        }
        remove_when_empty(&self.groups);
    }
}

/// Removes control groups. A process that was just killed may be in its group for a moment more.
fn remove_when_empty(groups: &[Box<dyn Groups>]) {
    for _ in 0..REMOVALS_MAX {
        for group in groups {
            group.remove();
        }
        let mut directories = groups.iter().flat_map(|group| group.directories());
        if !directories.any(|one| one.exists()) {
            return;
        }
        std::thread::sleep(KILL_POLL);
    }
}

/// Does something to each process, until no new ones are found: one that is started meanwhile is reached,
/// too.
fn each_new(family: Family<'_>, mut act: impl FnMut(i32) -> io::Result<()>) -> io::Result<()> {
    let mut reached = BTreeSet::new();
    for _ in 0..ROUNDS_MAX {
        let mut new = family();
        new.retain(|pid| reached.insert(*pid));
        if new.is_empty() {
            break;
        }
        new.into_iter().try_for_each(&mut act)?;
    }
    Ok(())
}

fn signal_all(family: Family<'_>, signal: Signal) {
    let sent = each_new(family, |pid| {
        if let Some(pid) = Pid::from_raw(pid) {
            // Fails for one that has just ended.
            let _ = kill_process(pid, signal);
        }
        Ok(())
    });
    debug_assert!(sent.is_ok(), "nothing in it fails");
}

/// A process that ended meanwhile needs nothing done to it.
fn gone_is_well(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(cause)
            if cause.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
                || cause.kind() == io::ErrorKind::NotFound =>
        {
            Ok(())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
