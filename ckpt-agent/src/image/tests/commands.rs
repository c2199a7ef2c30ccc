//! Commands whose output is saved.

use std::ffi::OsString;
use std::io::Read;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, test_kill_process};

use super::*;
use crate::image::command::Producer;

/// Far longer than any step here takes, and far shorter than the commands that have to be ended.
const PATIENCE: Duration = Duration::from_secs(20);

fn shell(script: &str) -> Source {
    shell_with(script, STRICT)
}

fn shell_with(script: &str, options: SourceOptions) -> Source {
    let command = ["sh", "-c", script].map(OsString::from);
    Source::from_command(&command, options).unwrap()
}

/// Waits until a process is gone.
fn gone(pid: Pid) -> bool {
    let begun = Instant::now();
    while test_kill_process(pid).is_ok() {
        if begun.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Starts a script and reads the process id that it writes first.
fn start(script: &str) -> (Producer, Pid) {
    let command = ["sh", "-c", script].map(OsString::from);
    let mut producer = Producer::start(&command, None).unwrap();
    let mut digits = String::new();
    loop {
        let mut byte = [0];
        producer.read_exact(&mut byte).unwrap();
        match byte {
            [b'\n'] => return (producer, Pid::from_raw(digits.parse().unwrap()).unwrap()),
            [digit] => digits.push(digit.into()),
        }
    }
}

#[test]
fn the_output_of_a_command_that_succeeds_is_saved() {
    let saved = drain(shell(
        "printf abc; sleep 0.05; printf def; exec >&-; exit 0",
    ))
    .unwrap();
    assert_eq!(saved.segments, [b"abcdef".to_vec()]);
    assert_eq!(saved.kind, ImageKind::Stream);
}

#[test]
fn a_command_that_succeeds_and_writes_nothing_is_refused_unless_it_may() {
    let refused = drain(shell("true")).unwrap_err().to_string();
    assert!(
        refused.contains(r#""sh" ended with success, but wrote nothing"#),
        "{refused}"
    );
    let empty = drain(shell_with("true", ALLOW_EMPTY)).unwrap();
    assert_eq!(empty.index.stream_bytes(), 0);
    // That it failed says more.
    let failed = drain(shell("exit 3")).unwrap_err();
    assert!(
        matches!(failed, SourceError::CommandFailed { .. }),
        "{failed}"
    );
}

#[test]
fn the_output_of_a_command_that_fails_is_not() {
    let failed = drain(shell("echo much; exit 3")).unwrap_err();
    assert_eq!(
        failed.to_string(),
        r#""sh" ended with exit status: 3; its output was not saved"#
    );
    // Its output is not saved even if it closed it properly before it failed.
    let failed = drain(shell("echo much; exec >&-; exit 1")).unwrap_err();
    assert!(matches!(failed, SourceError::CommandFailed { .. }));
    let killed = drain(shell("echo much; kill -9 $$")).unwrap_err();
    assert!(killed.to_string().contains("signal: 9"), "{killed}");
}

#[test]
fn a_command_that_is_not_there_is_named() {
    let command = [OsString::from("/nowhere/to/be/found")];
    let failed = Source::from_command(&command, STRICT).unwrap_err();
    assert_eq!(failed.to_string(), r#"running "/nowhere/to/be/found""#);
    assert!(matches!(
        Source::from_command(&[], STRICT),
        Err(SourceError::Command { .. })
    ));
}

#[test]
fn ending_a_command_ends_the_wait_for_its_output() {
    let source = shell("echo begin; sleep 1000");
    let ender = source.ender().unwrap();
    let (sender, ended) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        sender.send(()).unwrap();
        drain(source)
    });
    ended.recv_timeout(PATIENCE).unwrap();
    ender.end();
    let failed = reader.join().unwrap().unwrap_err();
    assert!(
        matches!(failed, SourceError::CommandFailed { .. }),
        "{failed}"
    );
    // Another process may have the number by now, so no signal is sent to it.
    ender.end();
}

#[test]
fn a_command_that_does_not_want_to_end_is_killed_with_all_its_children() {
    // What is ignored stays ignored in children.
    let (mut producer, child) = start("trap '' TERM; sleep 1000 & echo $!; wait; sleep 1000");
    let begun = Instant::now();
    producer.ender().end();
    assert!(begun.elapsed() < PATIENCE);
    assert!(gone(child));
    assert_eq!(producer.read(&mut [0; 9]).unwrap(), 0);
    assert!(!producer.wait().unwrap().success());
}

#[test]
fn dropping_a_producer_ends_it() {
    let (producer, pid) = start("echo $$; exec sleep 1000");
    drop(producer);
    // The command was reaped, too: a zombie would still exist.
    assert!(test_kill_process(pid).is_err());
}
