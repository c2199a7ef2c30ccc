//! Finds out which means hold a guest back on this machine, by trying each of them.

use std::io;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::getpriority_process;

use super::groups::{Groups, V1, V2};
use super::{Check, Control, Lowers, Reach, Stops, Tried, scheduler};
use crate::cgroup::{self, CgroupVersion};
use crate::processes::Process;
use crate::{Machine, autogroup};

/// How long a process made for a trial may take to start, or to do what is waited for.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);
/// Time between two checks of such a process.
const PROBE_POLL: Duration = Duration::from_millis(2);

/// Pause between two changes of an autogroup: without privilege the kernel accepts one each tenth of a
/// second.
const AUTOGROUP_PAUSE: Duration = Duration::from_millis(120);

/// What a caller of [`choose`] states about the guest.
#[derive(Clone, Copy, Debug)]
pub struct Wishes<'a> {
    /// A name for the directories of the guest's control groups, different from those of other guests, such
    /// as [`own_name`](super::own_name).
    pub name: &'a str,
    /// Whether the guest will be started in a session of its own.
    pub own_session: bool,
}

/// Tries what can hold a guest back on this machine, and returns the control for it. Takes up to some
/// seconds.
#[must_use]
pub fn choose(machine: &Machine, wishes: &Wishes<'_>) -> Control {
    let hierarchies = cgroup::hierarchies(machine);
    let mut tried = Vec::new();
    let mut groups: Vec<Box<dyn Groups>> = Vec::new();
    let made_v2 = V2::make(machine, &hierarchies, wishes.name);
    let made_v1 = V1::make(machine, &hierarchies, wishes.name);
    record_trial(
        &mut tried,
        "control group of version 2",
        add_group(&mut groups, made_v2),
    );
    record_trial(
        &mut tried,
        "control group of version 1",
        add_group(&mut groups, made_v1),
    );
    let lowering = groups.iter().position(|group| {
        let done = group
            .set_lowest(true)
            .and_then(|()| group.set_lowest(false));
        record_trial(&mut tried, share_of(group.version()), done)
    });
    let freezing = groups.iter().position(|group| {
        let done = freezes(machine, group.as_ref());
        record_trial(&mut tried, freezer_of(group.version()), done)
    });
    let grouped = lowering.and_then(|index| groups.get(index));
    let (lowers_by, reach, comes_back) = match grouped {
        Some(group) => by_control_group(group.as_ref()),
        None => without_groups(machine, wishes, &mut tried),
    };
    let nice = getpriority_process(None).unwrap_or(0);
    Control {
        machine: machine.clone(),
        check: Check {
            lowers_by,
            reach,
            comes_back,
            stops_by: if freezing.is_some() {
                Stops::Freezer
            } else {
                Stops::Signal
            },
            tried,
        },
        groups,
        lowering,
        freezing,
        nice,
        is_lowest: false,
        is_stopped: false,
    }
}

const fn share_of(version: CgroupVersion) -> &'static str {
    match version {
        CgroupVersion::V2 => "least share of the CPU, version 2",
        CgroupVersion::V1 => "least share of the CPU, version 1",
    }
}

const fn freezer_of(version: CgroupVersion) -> &'static str {
    match version {
        CgroupVersion::V2 => "freezer, version 2",
        CgroupVersion::V1 => "freezer, version 1",
    }
}

/// The result if a control group makes the guest give way: means, reach, and that it comes back.
fn by_control_group(group: &dyn Groups) -> (Lowers, Reach, bool) {
    let lowers = match group.version() {
        CgroupVersion::V2 => Lowers::CgroupV2,
        CgroupVersion::V1 => Lowers::CgroupV1,
    };
    let reach = if group.is_at_the_root() {
        Reach::Machine
    } else {
        Reach::Group
    };
    (lowers, reach, true)
}

/// The result if no control group makes the guest give way: means, reach, and whether it comes back.
fn without_groups(
    machine: &Machine,
    wishes: &Wishes<'_>,
    tried: &mut Vec<Tried>,
) -> (Lowers, Reach, bool) {
    let session = if wishes.own_session {
        autogroup_holds(machine)
    } else {
        Err(io::Error::other("the guest has no session of its own"))
    };
    if record_trial(tried, "autogroup", session) {
        return (Lowers::Autogroup, Reach::Machine, true);
    }
    let reach = if autogroup::is_on(machine) && is_in_the_group_of_all(machine) {
        Reach::Session
    } else if is_in_the_group_of_all(machine) {
        Reach::Machine
    } else {
        Reach::Group
    };
    let mut comes_back = false;
    let lowest = Probe::start(false).and_then(|probe| {
        scheduler::lowest(machine, probe.pid())?;
        let nice = getpriority_process(None).unwrap_or(0);
        comes_back = scheduler::normal(machine, probe.pid(), nice).is_ok();
        Ok(())
    });
    if record_trial(tried, "nice 19 and the idle class", lowest) {
        (Lowers::Priority, reach, comes_back)
    } else {
        (Lowers::Nothing, Reach::Nobody, false)
    }
}

/// Adds a trial to the list, and returns whether it succeeded.
fn record_trial(tried: &mut Vec<Tried>, what: &'static str, done: io::Result<()>) -> bool {
    let fails = done.err().map(|cause| cause.to_string());
    let holds = fails.is_none();
    tried.push(Tried { what, fails });
    holds
}

fn add_group(
    groups: &mut Vec<Box<dyn Groups>>,
    made: io::Result<impl Groups + 'static>,
) -> io::Result<()> {
    groups.push(Box::new(made?));
    Ok(())
}

/// Checks that a frozen process uses no CPU time, and continues afterwards.
fn freezes(machine: &Machine, group: &dyn Groups) -> io::Result<()> {
    let probe = Probe::start(true)?;
    group.add(probe.pid())?;
    let frozen = group.set_frozen(true).and_then(|()| {
        let before = probe.ticks(machine);
        std::thread::sleep(Duration::from_millis(60));
        match before == probe.ticks(machine) {
            true => Ok(()),
            false => Err(io::Error::other("a process in it kept running")),
        }
    });
    group.set_frozen(false)?;
    frozen?;
    let before = probe.ticks(machine);
    probe.wait_for(|| probe.ticks(machine) > before)
}

/// Whether this process is in no control group with a share of the CPU. Only then do autogroups count for
/// the processes that it starts.
fn is_in_the_group_of_all(machine: &Machine) -> bool {
    let hierarchies = cgroup::hierarchies(machine);
    hierarchies.iter().all(|hierarchy| {
        let shares_cpu = hierarchy.version == CgroupVersion::V2 || hierarchy.controls("cpu");
        if !shares_cpu {
            return true;
        }
        let group = cgroup::own_group(machine, hierarchy).unwrap_or_default();
        let directory = hierarchy.directory(machine, &group);
        group == "/"
            || directory.is_none_or(|directory| {
                !directory.join("cpu.weight").exists() && !directory.join("cpu.shares").exists()
            })
    })
}

/// Checks that the kernel divides the CPU among sessions, for this process and those that it starts.
///
/// # Errors
/// When it does not; the error states why.
pub fn session_counts(machine: &Machine) -> io::Result<()> {
    if !autogroup::is_on(machine) {
        return Err(io::Error::other(
            "the kernel has no autogroups, or has them switched off",
        ));
    }
    if !is_in_the_group_of_all(machine) {
        return Err(io::Error::other(
            "control groups share the CPU out here, not sessions",
        ));
    }
    Ok(())
}

fn autogroup_holds(machine: &Machine) -> io::Result<()> {
    session_counts(machine)?;
    let probe = Probe::start_in_session()?;
    let own = autogroup::of(machine, std::process::id().cast_signed()).map(|one| one.number);
    let of_probe = || autogroup::of(machine, probe.pid());
    probe.wait_for(|| of_probe().is_some_and(|one| Some(one.number) != own))?;
    for nice in [19, 0] {
        autogroup::set_nice(machine, probe.pid(), nice)?;
        if of_probe().map(|one| one.nice) != Some(nice) {
            return Err(io::Error::other("the written value can't be read back"));
        }
        std::thread::sleep(AUTOGROUP_PAUSE);
    }
    Ok(())
}

/// A process for trials, which is killed when this is dropped.
struct Probe(Child);

impl Probe {
    /// Starts a process that uses the CPU all the time (`works`), or one that sleeps.
    fn start(works: bool) -> io::Result<Self> {
        let script = if works {
            "while :; do :; done"
        } else {
            "sleep 60"
        };
        Self::spawn(Command::new("sh").args(["-c", &format!("exec 2>/dev/null; {script}")]))
    }

    fn start_in_session() -> io::Result<Self> {
        Self::spawn(Command::new("setsid").args(["sleep", "60"]))
    }

    fn spawn(command: &mut Command) -> io::Result<Self> {
        let null = command.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Self(null.stderr(Stdio::null()).spawn()?))
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    fn ticks(&self, machine: &Machine) -> Option<u64> {
        Some(Process::read(machine, self.pid())?.own_ticks)
    }

    fn wait_for(&self, is_so: impl Fn() -> bool) -> io::Result<()> {
        let until = Instant::now() + PROBE_PATIENCE;
        while !is_so() {
            if Instant::now() > until {
                return Err(io::Error::from(io::ErrorKind::TimedOut));
            }
            std::thread::sleep(PROBE_POLL);
        }
        Ok(())
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // Fails if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
