//! Holds a guest back for the machine's owner, by the best means that works on this machine.
//!
//! The means, from the best to the worst: a control group of the guest's own; the autogroup of a session of
//! its own; the lowest priority for its processes; only stopping them. [`choose`] tries each on a process
//! made for this purpose and reads back what it wrote. The result is a [`Control`] for the guest, and a
//! [`Check`] that shows what was tried.

mod apart;
mod choice;
mod groups;
mod scheduler;

use std::collections::BTreeSet;
use std::convert::Infallible;
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

/// Most rounds in which a guest's processes are listed again to find new ones.
const ROUNDS_MAX: usize = 8;

/// How long a guest that was killed may take to end.
const KILL_PATIENCE: Duration = Duration::from_secs(5);
/// Time between two checks whether it has ended, or its groups are gone.
const KILL_POLL: Duration = Duration::from_millis(5);

/// Attempts to remove control groups, after which the next guest has to remove them.
const REMOVALS_MAX: usize = 40;

/// A name for the control groups of a guest that this process holds back. It names this process, so others
/// can see whether the holder still exists.
#[must_use]
pub fn own_name() -> String {
    groups::name_of(ProcessId::of(
        &Machine::here(),
        std::process::id().cast_signed(),
    ))
}

/// Whether `directory` is that of a control group that was made for a guest, by its name.
#[must_use]
pub fn is_a_guest_s(directory: &std::path::Path) -> bool {
    let name = directory.file_name().unwrap_or_default();
    name.to_string_lossy().starts_with(groups::PREFIX)
}

/// Lists the present processes of a guest, zombies included, by process id.
pub type Family<'a> = &'a dyn Fn() -> BTreeSet<i32>;

/// The means by which a guest gives way to other processes that want the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Lowers {
    /// A control group of its own, of version 2.
    CgroupV2,
    /// A control group of its own, of version 1.
    CgroupV1,
    /// The autogroup of a session of its own.
    Autogroup,
    /// Nice 19 and the idle class for its processes.
    Priority,
    /// None: the guest can only be stopped.
    Nothing,
}

/// The means by which a guest is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stops {
    /// The freezer of its control group: stops all processes at once, without a signal to the guest.
    Freezer,
    /// SIGSTOP to each process.
    Signal,
}

/// The processes to which a guest gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// All processes of the machine.
    Machine,
    /// Those in the same control group: processes of other groups share the CPU with the group as a whole.
    Group,
    /// Those in the same session.
    Session,
    /// None.
    Nobody,
}

/// A means that was tried on this machine, and the result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tried {
    /// The means, in words.
    pub what: &'static str,
    /// Why it does not work on this machine; `None` if it works.
    pub fails: Option<String>,
}

/// How a guest is held back on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The means by which the guest gives way.
    pub lowers_by: Lowers,
    /// The processes to which it gives way.
    pub reach: Reach,
    /// Whether the guest can get its usual priority back.
    pub comes_back: bool,
    /// The means by which it is stopped.
    pub stops_by: Stops,
    /// All means that were tried.
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
            write!(
                f,
                "; a lowered priority can't be raised again: no privilege"
            )?;
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

/// Holds one guest back. When this is dropped, the guest's control groups are thawed, and removed if the
/// guest has ended.
#[derive(Debug)]
pub struct Control {
    machine: Machine,
    check: Check,
    groups: Vec<Box<dyn Groups>>,
    /// Index into `groups` of the one whose share of the CPU is lowered.
    lowering: Option<usize>,
    /// Index into `groups` of the one that is frozen.
    freezing: Option<usize>,
    /// Nice value with which the guest is started: that of this process.
    nice: i32,
    is_lowest: bool,
    is_stopped: bool,
}

impl Control {
    /// How the guest is held back.
    #[must_use]
    pub const fn check(&self) -> &Check {
        &self.check
    }

    /// Whether the guest is stopped.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Moves the guest's processes into its control groups, if there are any. To be called once, after the
    /// guest was started: processes that it starts later are in the groups from their beginning.
    ///
    /// # Errors
    /// When a process that exists can't be moved.
    pub fn adopt(&mut self, family: Family<'_>) -> io::Result<()> {
        let groups = &self.groups;
        each_new(family, |pid| {
            groups
                .iter()
                .try_for_each(|group| gone_is_well(group.add(pid)))
        })
    }

    /// Gives the guest the lowest priority, so that it gives way to the processes of [`Reach`]; `false` if
    /// this machine has no means for that.
    ///
    /// # Errors
    /// When the system no longer allows it.
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

    /// Gives the guest the priority with which it was started; `false` if it stays at the lowest one because
    /// this machine does not allow raising it again.
    ///
    /// # Errors
    /// When the system no longer allows it.
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

    /// Stops all processes of the guest: by the freezer or, if that fails, one by one.
    pub fn stop(&mut self, family: Family<'_>) {
        self.is_stopped = true;
        let frozen = self.freezer().map(|group| group.set_frozen(true));
        if !matches!(frozen, Some(Ok(()))) {
            signal_all(family, Signal::STOP);
        }
    }

    /// Lets all processes of the guest continue.
    pub fn go_on(&mut self, family: Family<'_>) {
        if let Some(group) = self.freezer() {
            // The processes may have been stopped by a signal, so the signal follows even if this fails.
            let _ = group.set_frozen(false);
        }
        signal_all(family, Signal::CONT);
        self.is_stopped = false;
    }

    /// Kills all processes of the guest and waits until only zombies are left; `false` if some of them have
    /// not ended after five seconds.
    pub fn kill_all(&mut self, family: Family<'_>) -> bool {
        let until = Instant::now() + KILL_PATIENCE;
        loop {
            signal_all(family, Signal::KILL);
            if let Some(group) = self.freezer() {
                // A process that version 1 has frozen ends only after it is thawed.
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

    /// Files, and the text to write to each, that thaw the guest and give it its usual share of the CPU. They
    /// are for the process that has to end the guest if this process is killed: a frozen or starved guest
    /// would not end.
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

    /// Sets the share of the guest's control group to the least or the usual one.
    fn set_group(&self, is_lowest: bool) -> io::Result<()> {
        match self.lowering.and_then(|index| self.groups.get(index)) {
            Some(group) => group.set_lowest(is_lowest),
            None => Ok(()),
        }
    }

    /// Sets the nice value of the guest's sessions, by one process of each.
    fn set_autogroup(&self, family: Family<'_>, nice: i32) -> io::Result<()> {
        let own = autogroup::of(&self.machine, std::process::id().cast_signed());
        let mut done = BTreeSet::new();
        for pid in family() {
            let Some(group) = autogroup::of(&self.machine, pid) else {
                continue;
            };
            // A process that is still in our session is skipped: our own priority must not change.
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

/// Removes control groups, in several attempts: a process that was just killed stays in its group for a
/// moment.
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

/// Calls `act` with each process, and lists the processes again until there are no new ones, so that those
/// started meanwhile are reached, too.
fn each_new<E>(family: Family<'_>, mut act: impl FnMut(i32) -> Result<(), E>) -> Result<(), E> {
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
    let Ok(()) = each_new(family, |pid| {
        if let Some(pid) = Pid::from_raw(pid) {
            // Fails for a process that has just ended.
            let _ = kill_process(pid, signal);
        }
        Ok::<(), Infallible>(())
    });
}

/// Turns the error that a process no longer exists into success.
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
