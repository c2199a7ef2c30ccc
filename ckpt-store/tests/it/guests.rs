//! Guests register over the daemon's socket: real processes, and a real socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ckpt_store::clock::Clock;
use ckpt_store::core::traffic::Days;
use ckpt_store::guest_socket::GuestSocket;
use ckpt_store::monitor::Monitor;
use ckpt_store::monitor::outlook::Predictor;
use machine::local::{How, LINE_BYTES_MAX, Leaving, Link, LinkError, Report, Uses, socket_in};
use machine::{Machine, ProcessId};
use rustix::process::{Pid, Signal, kill_process};

use crate::lab::{Lab, wait_for};

/// A monitor with a socket, which is served until this is dropped.
struct ServedMonitor {
    dir: tempfile::TempDir,
    monitor: Arc<Monitor>,
    runtime: tokio::runtime::Runtime,
}

impl ServedMonitor {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let monitor =
            Monitor::open(dir.path(), Machine::here(), false, Predictor::Hazard, now()).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let place = Self {
            dir,
            monitor: Arc::new(monitor),
            runtime,
        };
        let runtime = place.runtime.enter();
        let socket = GuestSocket::bind(&place.socket()).unwrap();
        place
            .runtime
            .spawn(socket.serve(Arc::clone(&place.monitor), Clock::start()));
        drop(runtime);
        place
    }

    fn socket(&self) -> PathBuf {
        socket_in(self.dir.path())
    }

    fn wait_until_guests_are(&self, expected: &[ProcessId]) {
        let mut expected = expected.to_vec();
        expected.sort();
        wait_for("who is a guest", || {
            let guests = self.monitor.guests(&[]);
            guests
                .processes()
                .eq(expected.iter().copied())
                .then_some(())
        });
    }

    fn report(&self, link: &mut Link) -> Report {
        wait_for("a report", || link.poll().unwrap())
    }
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap().as_secs()
}

fn this_process() -> ProcessId {
    ProcessId::of(&Machine::here(), std::process::id().cast_signed()).unwrap()
}

/// `ckpt-store guest` with a shell that prints its process id and waits for a line.
fn start(socket: &Path, script: &str) -> (Child, ProcessId) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ckpt-store"))
        .args(["guest", "--cores", "1", "--socket"])
        .arg(socket)
        .args(["--", "sh", "-c", &format!("echo $$; {script}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(
        line.trim(),
        child.id().to_string(),
        "it is the process that was started"
    );
    let process = ProcessId::of(&Machine::here(), child.id().cast_signed()).unwrap();
    (child, process)
}

#[test]
fn a_command_is_a_guest_until_it_ends_with_its_own_status() {
    let place = ServedMonitor::new();
    let (mut child, process) = start(&place.socket(), "read line; exit 7");
    place.wait_until_guests_are(&[process]);
    let (mut other, another) = start(&place.socket(), "read line; read line");
    place.wait_until_guests_are(&[process, another]);
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(7));
    place.wait_until_guests_are(&[another]);
    other.kill().unwrap();
    other.wait().unwrap();
    place.wait_until_guests_are(&[]);
}

#[test]
fn a_guest_hears_how_the_machine_is_and_that_the_daemon_ends() {
    let place = ServedMonitor::new();
    let mut link = Link::connect(&place.socket()).unwrap();
    place.wait_until_guests_are(&[this_process()]);
    assert!(link.poll().unwrap().is_none());
    let began = now();
    place.monitor.sample(began, 1 << 40, &Days::default());
    place.monitor.sample(began + 6, 1 << 40, &Days::default());
    let report = place.report(&mut link);
    assert_eq!(report.at, began + 6);
    assert_eq!(report.thresholds, [0.2, 0.6]);
    assert_eq!(report.contended_load, report.load);
    assert!(report.free_memory_bytes > 1 << 20);
    // No machine has this much memory.
    link.send(&Uses {
        cores: 1.0,
        memory_bytes: u64::MAX,
        disk_bytes: 0,
    })
    .unwrap();
    let mut at = began + 6;
    let report = wait_for("the state that follows", || {
        at += 6;
        place.monitor.sample(at, 1 << 40, &Days::default());
        link.poll()
            .unwrap()
            .filter(|report| report.state == machine::local::State::NoMemory)
    });
    assert!(report.leaving.is_none());
    place.monitor.announce_end(Leaving {
        how: How::Drain,
        within_s: 60,
    });
    let report = place.report(&mut link);
    assert_eq!(report.leaving.unwrap().how, How::Drain);
}

/// What the daemon writes before it closes the connection.
fn until_closed(mut stream: UnixStream) -> String {
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let mut said = String::new();
    // The connection may be reset if something was left unread.
    let _ = stream.read_to_string(&mut said);
    said
}

#[test]
fn a_guest_that_sends_junk_or_too_much_is_disconnected_and_no_other_is() {
    let place = ServedMonitor::new();
    let mut well = Link::connect(&place.socket()).unwrap();
    let chatter = b"{\"uses\":{}}\n".repeat(500);
    let long = vec![b'x'; LINE_BYTES_MAX + 1];
    for (sent, said) in [
        (b"{\"uses\":{\"cores\":-1}}\n".as_slice(), "cores"),
        (b"{\"claims\":{\"pid\":1}}\n", "no message"),
        (&long, "a line of more than"),
        (&chatter, "more than 40 messages"),
    ] {
        let mut stream = UnixStream::connect(place.socket()).unwrap();
        // The connection may be closed before everything is written.
        let _ = stream.write_all(sent);
        let heard = until_closed(stream);
        assert!(heard.is_empty() || heard.contains(said), "{heard}");
        assert!(heard.contains("refused") || sent.len() > 1000, "{heard}");
    }
    well.send(&Uses::default()).unwrap();
    assert!(well.poll().is_ok());
    place.wait_until_guests_are(&[this_process()]);
    drop(well);
    place.wait_until_guests_are(&[]);
}

#[test]
fn guests_hear_each_second_of_load_that_just_began() {
    let place = ServedMonitor::new();
    let mut link = Link::connect(&place.socket()).unwrap();
    place.wait_until_guests_are(&[this_process()]);
    let began = now();
    place.monitor.sample(began, 1 << 40, &Days::default());
    place.monitor.sample(began + 6, 1 << 40, &Days::default());
    let report = place.report(&mut link);
    assert_eq!(report.at, began + 6);
    place.monitor.read_for_guests(began + 7);
    // The owner must not descend from a guest. This process is one, so another process starts the owner.
    let mut owner = Owner::start();
    std::thread::sleep(Duration::from_millis(500));
    place.monitor.read_for_guests(began + 8);
    let report = wait_for("the second that was busy", || {
        link.poll().unwrap().filter(|report| report.at == began + 8)
    });
    let cpus = std::thread::available_parallelism().unwrap().get() as f64;
    // The load is less than one whole CPU, because other programs may share it.
    assert!(report.load > 0.2 / cpus, "{report:?}");
    // The second reading in one second brings nothing new, and nothing that was not measured.
    place.monitor.read_for_guests(began + 8);
    let again = place.report(&mut link);
    assert_eq!((again.at, again.load), (began + 8, report.load));
    owner.end();
    // A clock that was set back does not stop the reports.
    place.monitor.read_for_guests(began);
    place.monitor.read_for_guests(began + 1);
    wait_for("reports after that", || {
        link.poll().unwrap().filter(|report| report.at == began + 1)
    });
}

/// A process that works without rest and is no descendant of this one.
struct Owner(Pid);

impl Owner {
    fn start() -> Self {
        // The shell in between ends at once, so the kernel makes its child one of the first process.
        let script = "setsid sh -c 'while :; do :; done' >/dev/null 2>&1 & echo $!";
        let out = Command::new("sh").args(["-c", script]).output().unwrap();
        let pid = String::from_utf8(out.stdout).unwrap();
        Self(Pid::from_raw(pid.trim().parse().unwrap()).unwrap())
    }

    fn end(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn the_daemon_looks_each_second_while_a_guest_is_here() {
    let lab = Lab::new();
    let data = lab.data();
    let _process = lab.spawn(&data, &[]);
    let mut link = Link::connect(&socket_in(&data)).unwrap();
    let mut heard = std::collections::BTreeSet::new();
    wait_for("four seconds of which it hears one after the other", || {
        heard.extend(link.poll().unwrap().map(|report| report.at));
        let last: Vec<u64> = heard.iter().rev().take(4).copied().collect();
        (last.len() == 4 && last[0] - last[3] <= 5).then_some(())
    });
}

#[test]
fn the_connections_of_one_process_are_limited() {
    let place = ServedMonitor::new();
    let mut links: Vec<Link> = (0..4)
        .map(|_| Link::connect(&place.socket()).unwrap())
        .collect();
    place.wait_until_guests_are(&[this_process()]);
    // Connections are accepted one after the other, but their processes are read at the same time. On a busy machine
    // one of the first may have ended before it was read: each that is not refused stays.
    let refused = wait_for("a refusal", || {
        let mut link = Link::connect(&place.socket()).unwrap();
        // On a busy machine the refusal takes its time.
        let refused = (0..100).find_map(|_| {
            std::thread::sleep(Duration::from_millis(20));
            match link.poll() {
                Err(LinkError::Refused(why)) => Some(why),
                _ => None,
            }
        });
        links.push(link);
        refused
    });
    assert!(refused.contains("4 connections"), "{refused}");
    let (mut other, process) = start(&place.socket(), "read line");
    place.wait_until_guests_are(&[this_process(), process]);
    drop(links);
    place.wait_until_guests_are(&[process]);
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn anybody_may_connect_and_no_file_but_a_dead_socket_is_replaced() {
    let place = ServedMonitor::new();
    let mode = std::fs::metadata(place.socket())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o666);
    let runtime = place.runtime.enter();
    let second = GuestSocket::bind(&place.socket()).unwrap_err();
    assert!(second.to_string().contains("another daemon"), "{second}");
    let file = place.dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(GuestSocket::bind(&file).is_err());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    drop(runtime);
}

#[test]
fn a_job_outlives_a_daemon_that_is_killed_and_the_next_one_hears_guests() {
    let lab = Lab::new();
    let data = lab.data();
    let mut process = lab.spawn(&data, &[]);
    let (mut job, _) = start(&socket_in(&data), "read line; exit 3");
    process.child.kill().unwrap();
    process.child.wait().unwrap();
    assert!(socket_in(&data).exists(), "nobody removed it");
    let mut process = lab.spawn(&data, &[]);
    let mut link = Link::connect(&socket_in(&data)).unwrap();
    assert!(link.poll().is_ok());
    drop(job.stdin.take());
    assert_eq!(job.wait().unwrap().code(), Some(3));
    kill_process(Pid::from_child(&process.child), Signal::TERM).unwrap();
    let said = wait_for("the end of the daemon", || link.poll().err());
    assert!(
        matches!(said, LinkError::Closed | LinkError::Io(_)),
        "{said}"
    );
    let ended = wait_for("the daemon ends", || process.child.try_wait().unwrap());
    assert!(ended.success(), "{ended}");
    assert!(!socket_in(&data).exists());
}

#[test]
fn without_a_daemon_the_command_is_not_run_and_a_process_id_is_no_command() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ckpt-store"));
        let out = command
            .args(["guest", "--data"])
            .arg(dir.path())
            .args(args)
            .output()
            .unwrap();
        assert!(!out.status.success());
        String::from_utf8(out.stderr).unwrap()
    };
    let file = dir.path().join("ran");
    let said = run(&["--", "touch", file.to_str().unwrap()]);
    assert!(
        said.contains("no daemon answers") && said.contains("guests.sock"),
        "{said}"
    );
    assert!(!file.exists());
    let said = run(&["12345"]);
    assert!(said.contains("ckpt-store guest -- COMMAND"), "{said}");
}
