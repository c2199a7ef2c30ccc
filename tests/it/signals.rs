//! Saves that are interrupted, killed or out of time.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tests::program::wait_until;
use tests::{Grid, image};

use crate::{restore_bytes, save_file};

#[test]
fn interrupted_saves_leave_nothing() -> Result<()> {
    let grid = Grid::up(5)?;
    save_file(&grid, "42", b"old")?;
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut save = grid.command(["save", "--job", "42", "-"])?;
        let mut child = save.stdin(Stdio::piped()).spawn()?;
        let mut stdin = child.stdin.take().context("no stdin")?;
        stdin.write_all(&image::memory(8 << 20, 1))?;
        wait_until("a shard is being written", Duration::from_secs(30), || {
            let incoming = grid.data_dir("h01").join("incoming");
            Ok(std::fs::read_dir(incoming)?.next().is_some())
        })?;
        kill_process(Pid::from_child(&child), signal)?;
        let ended = tests::program::wait(child)?.expect(code)?;
        assert!(
            ended.stderr.contains("version 1 is still the newest"),
            "{ended}"
        );
        drop(stdin);
        wait_until("the hosts dropped it", Duration::from_secs(30), || {
            let mut left = 0;
            for (host, _) in grid.running()? {
                left += std::fs::read_dir(grid.data_dir(&host).join("incoming"))?.count();
                left += grid.shard_files(&host)?.len().saturating_sub(1);
            }
            Ok(left == 0)
        })?;
        assert_eq!(restore_bytes(&grid, "42")?, b"old");
    }
    Ok(())
}

#[test]
fn a_killed_agent_leaves_the_old_version() -> Result<()> {
    let grid = Grid::up(5)?;
    save_file(&grid, "42", b"old")?;
    let mut save = grid.command(["save", "--job", "42", "-"])?;
    let mut child = save.stdin(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    stdin.write_all(&image::memory(8 << 20, 2))?;
    child.kill()?;
    child.wait()?;
    assert_eq!(restore_bytes(&grid, "42")?, b"old");
    save_file(&grid, "42", b"new")?;
    assert_eq!(restore_bytes(&grid, "42")?, b"new");
    Ok(())
}

#[test]
fn a_save_without_input_fails_at_its_deadline() -> Result<()> {
    let grid = Grid::up(5)?;
    save_file(&grid, "42", b"old")?;
    let mut save = grid.command(["save", "--job", "42", "--deadline", "700ms", "-"])?;
    let mut child = save.stdin(Stdio::piped()).spawn()?;
    let stdin = child.stdin.take().context("no stdin")?;
    let ended = tests::program::wait(child)?.expect(9)?;
    assert!(ended.stderr.contains("deadline"), "{ended}");
    drop(stdin);
    assert_eq!(restore_bytes(&grid, "42")?, b"old");
    Ok(())
}

#[test]
fn the_command_of_an_interrupted_save_is_ended() -> Result<()> {
    let grid = Grid::up(5)?;
    let pid_file = grid.path("pid");
    let script = format!("echo $$ > {}; sleep 1000", pid_file.display());
    let child = grid
        .command(["save", "--job", "42", "--", "sh", "-c", &script])?
        .spawn()?;
    let mut producer = None;
    wait_until("the command runs", Duration::from_secs(30), || {
        let text = std::fs::read_to_string(&pid_file).unwrap_or_default();
        producer = text.trim().parse().ok().and_then(Pid::from_raw);
        Ok(producer.is_some())
    })?;
    kill_process(Pid::from_child(&child), Signal::INT)?;
    tests::program::wait(child)?.expect(130)?;
    let producer = producer.context("no pid")?;
    wait_until("the command ended", Duration::from_secs(30), || {
        Ok(rustix::process::test_kill_process(producer).is_err())
    })
}

#[test]
fn a_command_ends_when_the_save_is_killed() -> Result<()> {
    let grid = Grid::up(5)?;
    let pids = grid.path("pids");
    // The script prints the process ids of the command and of a process that the command started.
    let script = format!("sleep 1000 & echo $$ $! > {}; wait", pids.display());
    let mut child = grid
        .command(["save", "--job", "42", "--", "sh", "-c", &script])?
        .spawn()?;
    let mut started = Vec::new();
    wait_until("the command runs", Duration::from_secs(30), || {
        let text = std::fs::read_to_string(&pids).unwrap_or_default();
        let numbers = text.split_whitespace().filter_map(|pid| pid.parse().ok());
        started = numbers.filter_map(Pid::from_raw).collect();
        Ok(started.len() == 2)
    })?;
    child.kill()?;
    child.wait()?;
    wait_until("both ended", Duration::from_secs(30), || {
        Ok(started.iter().all(|pid| !is_running(*pid)))
    })?;
    Ok(())
}

/// Whether a process exists and is no zombie.
fn is_running(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|s| s.starts_with(" Z")))
}
