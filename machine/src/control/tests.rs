use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use super::groups::{Groups, V1, V2};
use super::*;
use crate::Processes;
use crate::cgroup;
use crate::processes::Process;

/// A job: a shell with two children that use the CPU all the time. It ends with the test.
struct ChildJob(Child);

impl ChildJob {
    fn start() -> Self {
        let script = "(while :; do :; done) & (while :; do :; done) & wait";
        let mut command = Command::new("sh");
        let command = command
            .args(["-c", script])
            .stdin(Stdio::null())
            .process_group(0);
        let job = Self(command.spawn().unwrap());
        until("both work", || job.family().len() == 3);
        job
    }

    fn family(&self) -> BTreeSet<i32> {
        let root = self.0.id().cast_signed();
        let below = Processes::all(&Machine::here());
        let members = below.with_descendants(|one| one.id.pid == root);
        members.iter().map(|one| one.id.pid).collect()
    }

    fn ticks(&self) -> u64 {
        let ticks = |pid: i32| Process::read(&Machine::here(), pid).map_or(0, |one| one.own_ticks);
        self.family().into_iter().map(ticks).sum()
    }

    fn works(&self) -> bool {
        let before = self.ticks();
        std::thread::sleep(Duration::from_millis(100));
        self.ticks() > before
    }
}

impl Drop for ChildJob {
    fn drop(&mut self) {
        let group = Pid::from_child(&self.0);
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
        let _ = self.0.wait();
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "waited for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn control(name: &str) -> Control {
    let name = format!("test-{name}-{}", std::process::id());
    choose(
        &Machine::here(),
        &Wishes {
            name: &name,
            own_session: false,
        },
    )
}

/// Checks that `control` lowers, stops, continues and kills a job.
fn holds_a_job_back(mut control: Control) {
    let job = ChildJob::start();
    let family = || job.family();
    control.adopt(&family).unwrap();
    let lowered = control.lowest(&family).unwrap();
    assert_eq!(lowered, control.check().lowers_by != Lowers::Nothing);
    assert_eq!(control.normal(&family).unwrap(), control.check().comes_back);
    control.stop(&family);
    assert!(control.is_stopped());
    until("all are stopped", || !job.works());
    control.go_on(&family);
    // On a busy machine a job of lowest priority hardly runs, so wait for a single tick.
    let before = job.ticks();
    until("all go on", || job.ticks() > before);
    control.lowest(&family).unwrap();
    control.stop(&family);
    assert!(control.kill_all(&family));
    let directories = control.group_directories();
    drop(job);
    drop(control);
    for directory in directories {
        assert!(!directory.exists(), "{}", directory.display());
    }
}

#[test]
fn a_job_is_held_back_by_what_this_machine_has() {
    let control = control("best");
    eprintln!("{}", control.check());
    if rustix::process::geteuid().is_root() && Path::new("/sys/fs/cgroup/cpu/cpu.idle").exists() {
        assert_eq!(
            control.check().lowers_by,
            Lowers::CgroupV1,
            "{}",
            control.check()
        );
        assert_eq!(control.check().reach, Reach::Machine);
        assert_eq!(control.check().stops_by, Stops::Freezer);
        assert!(control.check().comes_back);
    }
    holds_a_job_back(control);
}

#[test]
fn a_job_is_held_back_without_control_groups() {
    let mut control = control("signals");
    for group in control.groups.drain(..) {
        group.remove();
    }
    (control.lowering, control.freezing) = (None, None);
    control.check.lowers_by = Lowers::Priority;
    control.check.stops_by = Stops::Signal;
    control.check.comes_back = rustix::process::geteuid().is_root();
    holds_a_job_back(control);
}

#[test]
fn the_least_priority_reaches_every_thread_and_is_taken_back() {
    let job = ChildJob::start();
    let here = Machine::here();
    let nice = || {
        let nice = |pid: i32| rustix::process::getpriority_process(Pid::from_raw(pid)).ok();
        job.family()
            .into_iter()
            .filter_map(nice)
            .collect::<BTreeSet<i32>>()
    };
    let before = nice();
    for pid in job.family() {
        scheduler::lowest(&here, pid).unwrap();
    }
    assert_eq!(nice(), BTreeSet::from([19]));
    if rustix::process::geteuid().is_root() {
        for pid in job.family() {
            scheduler::normal(&here, pid, *before.first().unwrap()).unwrap();
        }
        assert_eq!(nice(), before);
    }
}

/// Stands for a kernel with version 2: keeps `cgroup.events` in step with `cgroup.freeze`.
fn kernel(directory: &Path, ends: &AtomicBool) {
    while !ends.load(Ordering::Relaxed) {
        let frozen = fs::read_to_string(directory.join("cgroup.freeze")).unwrap_or_default();
        let events = format!("populated 1\nfrozen {}\n", frozen.trim());
        let new = directory.join("new");
        let file = directory.join("cgroup.events");
        fs::write(&new, events).unwrap();
        fs::rename(new, file).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn groups_of_version_2_are_written_as_their_kernel_wants() {
    let dir = tempfile::tempdir().unwrap();
    let group = V2::at(dir.path().to_owned());
    let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    assert!(group.set_lowest(true).is_err() && group.set_frozen(true).is_err());
    fs::write(dir.path().join("cpu.weight"), "100\n").unwrap();
    group.set_lowest(true).unwrap();
    assert_eq!(read("cpu.weight"), "1");
    group.set_lowest(false).unwrap();
    assert_eq!(read("cpu.weight"), "100");
    fs::write(dir.path().join("cpu.idle"), "0\n").unwrap();
    group.set_lowest(true).unwrap();
    assert_eq!(
        (read("cpu.idle").as_str(), read("cpu.weight").as_str()),
        ("1", "100")
    );
    group.add(77).unwrap();
    assert_eq!(read("cgroup.procs"), "77");
    fs::write(dir.path().join("cgroup.freeze"), "0").unwrap();
    fs::write(dir.path().join("cgroup.events"), "populated 0\nfrozen 0\n").unwrap();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| kernel(dir.path(), &ends));
        let frozen = group.set_frozen(true);
        let events = read("cgroup.events");
        let thawed = group.set_frozen(false);
        // The scope waits for the thread, so stop it before any check can fail.
        ends.store(true, Ordering::Relaxed);
        frozen.unwrap();
        assert!(events.contains("frozen 1"), "{events}");
        thawed.unwrap();
    });
    assert_eq!(group.thaw(), (dir.path().join("cgroup.freeze"), "0"));
    // A kernel that never freezes the group.
    assert_eq!(
        group.set_frozen(true).unwrap_err().kind(),
        io::ErrorKind::TimedOut
    );
}

#[test]
fn a_freezer_mounted_with_the_controller_cpu_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let group = V1::at(dir.path().to_owned());
    let refused = group.set_frozen(true).unwrap_err();
    assert_eq!(refused.to_string(), "the freezer is not mounted");
    fs::write(dir.path().join("freezer.state"), "THAWED\n").unwrap();
    group.set_frozen(true).unwrap();
    let state = fs::read_to_string(dir.path().join("freezer.state")).unwrap();
    assert_eq!(state, "FROZEN");
    assert_eq!(group.thaw().0, dir.path().join("freezer.state"));
}

#[test]
fn processes_are_frozen_by_version_2_where_it_is_mounted() {
    let here = Machine::here();
    let hierarchies = cgroup::hierarchies(&here);
    let name = format!("test-v2-{}", std::process::id());
    let Ok(group) = V2::make(&here, &hierarchies, &name) else {
        eprintln!("not tested: no group of version 2 can be made on this machine");
        return;
    };
    let job = ChildJob::start();
    for pid in job.family() {
        group.add(pid).unwrap();
    }
    group.set_frozen(true).unwrap();
    assert!(!job.works());
    group.set_frozen(false).unwrap();
    until("it goes on", || job.works());
    drop(job);
    until("all have ended", || {
        group.remove();
        !group.directories()[0].exists()
    });
}

#[test]
fn controls_that_do_not_hold_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let wishes = Wishes {
        name: "nothing",
        own_session: true,
    };
    // A machine without control groups and without `/proc`.
    let control = choose(&Machine::at(dir.path()), &wishes);
    let check = control.check();
    assert_eq!(check.lowers_by, Lowers::Nothing);
    assert_eq!(check.reach, Reach::Nobody);
    assert_eq!(check.stops_by, Stops::Signal);
    let text = check.to_string();
    for said in [
        "version 2 is not mounted",
        "the controller cpu is not mounted",
        "switched off",
    ] {
        assert!(text.contains(said), "{text}");
    }
    assert!(control.thaw().is_empty());
}
