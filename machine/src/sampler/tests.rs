use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::*;

/// A command that uses about a tenth of a second of CPU time.
const BURN: &str = "sh -c 'i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done'";

/// A shell that runs the lines that it reads; it ends with the test.
struct Shell {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Shell {
    fn start() -> Self {
        let mut child = Command::new("sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            stdin,
            stdout,
        }
    }

    fn id(&self) -> ProcessId {
        ProcessId::of(&Machine::here(), self.child.id() as i32).unwrap()
    }

    /// Lets the shell run a line, waits until it is done, and returns the line that it prints.
    fn run(&mut self, line: &str) -> String {
        writeln!(self.stdin, "{line}; echo").unwrap();
        let mut said = String::new();
        self.stdout.read_line(&mut said).unwrap();
        said
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn sampler() -> Sampler {
    Sampler::new(Machine::here())
}

#[test]
fn this_machine_can_be_read() {
    let mut sampler = sampler();
    let counters = sampler.read(&Guests::default()).unwrap();
    assert!(counters.busy_ticks > 0 && counters.all_ticks >= counters.busy_ticks);
    assert!(counters.cpus >= 1);
    assert_eq!(counters.guest_ticks, 0);
    assert!(counters.available_memory_bytes > 1 << 20);
}

#[test]
fn children_of_a_guest_that_have_ended_are_not_the_owner() {
    let mut shell = Shell::start();
    let mut sampler = sampler();
    shell.run(BURN);
    let guests = Guests::of([shell.id()]);
    let before = sampler.read(&guests).unwrap();
    assert_eq!(before.guest_ticks, 0, "what it did before it was a guest");
    shell.run(BURN);
    shell.run(BURN);
    let after = sampler.read(&guests).unwrap();
    let used = Process::read(&Machine::here(), shell.id().pid).unwrap();
    assert!(used.waited_ticks > 0);
    assert!(after.guest_ticks >= 4, "{after:?}");
    assert!(
        after.guest_ticks <= used.own_ticks + used.waited_ticks,
        "{after:?} {used:?}"
    );
    let load = after.load_since(&before);
    assert!(
        load.guests > 0.0 && load.owner <= load.all - load.guests + 1e-9,
        "{load:?}"
    );
    // A process that is no longer a guest adds nothing to the guests' sums.
    let none = sampler.read(&Guests::default()).unwrap();
    shell.run(BURN);
    assert_eq!(
        sampler.read(&Guests::default()).unwrap().guest_ticks,
        none.guest_ticks
    );
}

#[test]
fn a_guest_is_one_from_the_moment_at_which_it_is_let_in() {
    let mut sampler = sampler();
    sampler.read(&Guests::default()).unwrap();
    let mut shell = Shell::start();
    shell.run(BURN);
    let before = Process::read(&Machine::here(), shell.id().pid).unwrap();
    sampler.admit(shell.id());
    shell.run(BURN);
    let used = Process::read(&Machine::here(), shell.id().pid).unwrap();
    let counted = sampler.read(&Guests::of([shell.id()])).unwrap().guest_ticks;
    assert!(counted >= 2, "{counted}");
    let most = used.own_ticks + used.waited_ticks - before.own_ticks - before.waited_ticks;
    assert!(counted <= most, "{counted} {most}");
}

#[test]
fn a_process_with_the_id_of_a_guest_that_has_ended_is_no_guest() {
    let mut shell = Shell::start();
    let mut sampler = sampler();
    let guests = Guests::of([ProcessId {
        started: shell.id().started - 1,
        ..shell.id()
    }]);
    sampler.read(&guests).unwrap();
    shell.run(BURN);
    assert_eq!(sampler.read(&guests).unwrap().guest_ticks, 0);
}

#[test]
fn a_guest_is_found_by_its_command_with_all_that_it_starts() {
    let dir = tempfile::tempdir().unwrap();
    let named = dir.path().join("guest-by-name-and-more");
    std::os::unix::fs::symlink("/bin/sh", &named).unwrap();
    let mut sampler = sampler();
    let guests = Guests::default().and_commands(&["guest-by-name-and-more".to_owned()]);
    sampler.read(&guests).unwrap();
    let mut child = Command::new(&named)
        .args(["-c", &format!("{BURN}; {BURN}; echo; read line")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(sampler.read(&guests).unwrap().guest_ticks >= 2);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_memory_of_a_guest_is_known_and_pages_of_files_are_not_its_own() {
    let mut sampler = sampler();
    // `tail` keeps in memory what it reads until its input ends.
    let mut tail = Command::new("tail")
        .args(["-c", "100000000"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let guest = ProcessId::of(&Machine::here(), tail.id() as i32).unwrap();
    tail.stdin
        .as_mut()
        .unwrap()
        .write_all(&vec![7; 48 << 20])
        .unwrap();
    let counters = sampler.read(&Guests::of([guest])).unwrap();
    assert!(counters.guest_memory_bytes > 40 << 20, "{counters:?}");
    assert!(counters.guest_memory_bytes < 80 << 20, "{counters:?}");
    tail.kill().unwrap();
    tail.wait().unwrap();
}

#[test]
fn children_without_a_waiting_parent_count_if_the_guest_has_a_group_of_its_own() {
    let here = Machine::here();
    let hierarchies = cgroup::hierarchies(&here);
    let counts =
        |one: &&Hierarchy| one.version == cgroup::CgroupVersion::V2 || one.controls("cpuacct");
    let name = format!("machine-test-{}", std::process::id());
    let made = hierarchies.iter().filter(counts).find_map(|one| {
        let directory = one.mount.join(&name);
        fs::create_dir(&directory).ok()?;
        cgroup::cpu_microseconds(&directory)
            .is_some()
            .then_some(directory)
    });
    let Some(directory) = made else {
        eprintln!("not tested: no group can be made on this machine");
        return;
    };
    let mut shell = Shell::start();
    fs::write(directory.join("cgroup.procs"), shell.child.id().to_string()).unwrap();
    let mut sampler = sampler();
    let guests = Guests::of([shell.id()]);
    let before = sampler.read(&guests).unwrap();
    // The process that starts them ends at once, so no process of this test waits for them.
    shell.run("D=$(mktemp -d); mkfifo $D/done");
    let busy = format!("{BURN}; {BURN}; {BURN}; : > $D/done");
    shell.run(&format!("(({busy}) & :)"));
    shell.run("cat $D/done; rm -r $D");
    let after = sampler.read(&guests).unwrap();
    assert!(after.guest_ticks >= before.guest_ticks + 4, "{after:?}");
    drop(shell);
    fs::remove_dir(directory).unwrap();
}

#[test]
fn a_guest_whose_disk_traffic_can_be_read_claims_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::at(dir.path());
    let proc = machine.proc();
    let device = fs::metadata(dir.path()).unwrap().dev();
    let major = rustix::fs::major(device);
    let minor = rustix::fs::minor(device);
    let own = std::process::id();
    let guest_dir = proc.join(own.to_string());
    fs::create_dir_all(&guest_dir).unwrap();
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    fs::write(guest_dir.join("stat"), stat).unwrap();
    for name in ["stat", "meminfo", "vmstat"] {
        let text = fs::read(Path::new("/proc").join(name)).unwrap();
        fs::write(proc.join(name), text).unwrap();
    }
    let moved = |sectors: u64, busy_ms: u64, guest_bytes: u64| {
        let line = format!("{major} {minor} disk 1 0 {sectors} 1 1 0 0 1 0 {busy_ms} 1\n");
        fs::write(proc.join("diskstats"), line).unwrap();
        let io = format!("read_bytes: {guest_bytes}\nwrite_bytes: 0\n");
        fs::write(guest_dir.join("io"), io).unwrap();
    };
    // A guest counts as a guest even if it is this very process.
    let guest = ProcessId::of(&machine, i32::try_from(own).unwrap()).unwrap();
    let mut sampler = Sampler::new(machine).with_disk_of(dir.path());
    let mut said = |bytes: u64| {
        let mut guests = Guests::default();
        guests.add(guest, bytes);
        sampler.read(&guests).unwrap()
    };
    moved(1000, 100, 0);
    let first = said(0);
    // The guest claims all 2,000 sectors; the system reports 500 of them.
    moved(3000, 1100, 500 * SECTOR_BYTES);
    let second = said(u64::MAX);
    let reading = second.disk_since(&first, 0..6, 2000.0, 1);
    assert!((reading.owner_busy - 0.375).abs() < 1e-9, "{reading:?}");
}

#[test]
fn a_guest_moves_no_more_on_the_disk_than_it_says_and_the_machine_has_seen() {
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::at(dir.path());
    let proc = machine.proc();
    fs::create_dir_all(&proc).unwrap();
    let (major, minor) = {
        let device = fs::metadata(dir.path()).unwrap().dev();
        (rustix::fs::major(device), rustix::fs::minor(device))
    };
    for name in ["stat", "meminfo", "vmstat"] {
        let text = fs::read(Path::new("/proc").join(name)).unwrap();
        fs::write(proc.join(name), text).unwrap();
    }
    let moved = |sectors: u64, busy_ms: u64| {
        let line = format!("{major} {minor} disk 1 0 {sectors} 1 1 0 0 1 0 {busy_ms} 1\n");
        fs::write(proc.join("diskstats"), line).unwrap();
    };
    let mut sampler = Sampler::new(machine).with_disk_of(dir.path());
    // A process that does not exist stands for one of another user, which may be hidden.
    let guest = ProcessId {
        pid: 4_000_000,
        started: 1,
    };
    let mut said = |bytes: u64| {
        let mut guests = Guests::default();
        guests.add(guest, bytes);
        sampler.read(&guests).unwrap()
    };
    moved(1000, 100);
    let first = said(0);
    moved(3000, 1100);
    let second = said(1500 * SECTOR_BYTES);
    let reading = second.disk_since(&first, 0..6, 2000.0, 1);
    assert!((reading.owner_busy - 0.125).abs() < 1e-9, "{reading:?}");
    moved(4000, 2100);
    let third = said(u64::MAX);
    let reading = third.disk_since(&second, 0..6, 2000.0, 1);
    assert_eq!(reading.owner_busy, 0.0);
    // What the guest claimed too much does not reduce the owner's use later.
    moved(5000, 3100);
    let reading = said(u64::MAX).disk_since(&third, 0..6, 2000.0, 1);
    assert!((reading.owner_busy - 0.5).abs() < 1e-9, "{reading:?}");
}
