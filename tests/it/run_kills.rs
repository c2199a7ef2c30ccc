//! Supervised jobs that are evicted and killed at any moment.

use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Signal, kill_process};
use tests::Grid;
use tests::hash_job::Steps;
use tests::program::wait_until;
use tests::skip::not_checked;
use tests::supervised::{PATIENCE, RunMachine, Running, is_run_by_somebody, lives};

use crate::run::{HASH_JOB, Owner, groups};

/// Number of evictions in the gate. `CKPT_EVICTIONS=300` asks for more, `CKPT_SEED` for others, and
/// `CKPT_EVICTION_BYTES` for states larger than 2 MiB.
const EVICTIONS: u64 = 6;

/// Jobs that run at the same time.
const AT_A_TIME: usize = 4;

fn setting<T: FromStr>(name: &str, usual: T) -> Result<T, T::Err> {
    std::env::var(name).map_or(Ok(usual), |text| text.parse())
}

/// Starts a random kind of job, evicts it by SIGTERM or SIGUSR1 at a random moment, and starts it again on
/// another machine. Returns whether the job left with its state saved.
fn evict(grid: &Grid, seed: u64) -> Result<bool> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let job = format!("evicted.{seed}");
    let name = format!("m{seed}");
    let next = format!("n{seed}");
    let here = RunMachine::new(grid, &name, &job, HASH_JOB)?;
    let most: usize = setting("CKPT_EVICTION_BYTES", 2 << 20)?;
    let bytes = format!("bytes={}", 1000.max(most >> rng.random_range(0..11)));
    let grace = format!("{}s", rng.random_range(20..=60));
    let how = ["write=replace", "write=place"][rng.random_range(0..2)];
    let (options, words): (&[&str], &[&str]) = match rng.random_range(0..4) {
        0 => (&["--ask", "signal:USR2"], &["usr2", "every=0"]),
        1 => (&["--ask", "signal:USR2"], &["usr2", "every=40", "notify"]),
        2 => (&["--ask", "none"], &["term", "every=30"]),
        _ => (&["--ask", "none", "--mtbf", "5s"], &["every=120", "notify"]),
    };
    let options = [options, &["--grace", &grace]].concat();
    let words = [words, &[bytes.as_str(), how]].concat();
    let running = here.start(&options, &words)?;
    here.wait_for_start(1)?;
    std::thread::sleep(Duration::from_millis(rng.random_range(0..3000)));
    running.signal([Signal::TERM, Signal::USR1][rng.random_range(0..2)])?;
    let (ended, report) = running.end()?;
    let code = ended.code;
    let context = format!("CKPT_SEED={seed} {options:?} {words:?} {ended}");
    ensure!(
        !is_run_by_somebody(&here.state()),
        "the job is still there: {context}"
    );
    ensure!(report["ended_by"] == "supervisor", "{context}");
    let had = Steps::read(&here.state());
    match code {
        // The saved state is the whole state that the job had.
        Some(75) => ensure!(here.saved()? == had?, "{context}"),
        Some(76) => {}
        _ => anyhow::bail!("{context}"),
    }
    let Some(version) = report["version"].as_u64() else {
        return Ok(false);
    };
    let saved = here.saved()?;
    let there = RunMachine::new(grid, &next, &job, HASH_JOB)?;
    let end = format!("end={}", saved.number + 3);
    let (ended, report) = there.start(&[], &[&end])?.end()?;
    ended.expect(0)?;
    ensure!(
        there.began() == [saved.number] && report["began_from"] == version,
        "{context}"
    );
    Ok(code == Some(75))
}

#[test]
fn six_evicted_jobs_leave_with_the_state_that_they_had_and_go_on_from_it() -> Result<()> {
    let grid = Grid::up(5)?;
    let first: u64 = setting("CKPT_SEED", 1)?;
    let count: u64 = setting("CKPT_EVICTIONS", EVICTIONS)?;
    let next = AtomicU64::new(first);
    let with_state = AtomicU64::new(0);
    let worker = || -> Result<()> {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count {
                return Ok(());
            }
            with_state.fetch_add(u64::from(evict(&grid, seed)?), Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(worker)).collect();
        for worker in workers {
            let ended = worker.join();
            ended.unwrap_or_else(|_| Err(anyhow::anyhow!("a worker panicked")))?;
        }
        anyhow::Ok(())
    })?;
    let with_state = with_state.into_inner();
    println!("{with_state} of {count} left with their state saved");
    // A job that can't be asked to write leaves with what it wrote last, which is older than its state.
    ensure!(with_state * 2 >= count, "{with_state} of {count}");
    Ok(())
}

#[test]
fn nothing_of_a_job_survives_its_supervisor_and_a_killed_keeper_is_replaced() -> Result<()> {
    const FAMILY: &str = r#"
        setsid sleep 1000 &
        echo $! >"$1.orphan"
        (trap '' TERM; exec sleep 1000) &
        echo $! >"$1.deaf"
        sleep 1000
    "#;
    let grid = Grid::up(5)?;
    let here = RunMachine::new(&grid, "here", "family", "sh")?;
    let state = here.state().display().to_string();
    let args = [
        "run", "--batch", "--job", "family", "--files", &state, "--", "sh", "-c", FAMILY, "sh",
        &state,
    ];
    let mut supervisor = here.bare(&args)?.spawn()?;
    let member = |name: &str| -> Option<rustix::process::Pid> {
        let text = std::fs::read_to_string(here.dir.join(name)).ok()?;
        rustix::process::Pid::from_raw(text.trim().parse().ok()?)
    };
    wait_until("the family is there", PATIENCE, || {
        Ok(member("state.orphan").is_some() && member("state.deaf").is_some())
    })?;
    here.wait_for_entries("started", 1)?;
    let job = here.job_pid()?;
    let orphan = member("state.orphan");
    let family: Vec<_> = [Some(job), orphan, member("state.deaf")]
        .into_iter()
        .flatten()
        .collect();
    // A keeper is a child of the supervisor that is not the job.
    let own = rustix::process::Pid::from_child(&supervisor);
    let keeper = || children(own).into_iter().find(|pid| *pid != job);
    wait_until("there is a keeper", PATIENCE, || Ok(keeper().is_some()))?;
    let first = keeper();
    if let Some(first) = first {
        kill_process(first, Signal::KILL)?;
    }
    wait_until("there is another keeper", PATIENCE, || {
        Ok(keeper().is_some_and(|now| Some(now) != first && lives(now)))
    })?;
    ensure!(family.iter().all(|pid| lives(*pid)), "{family:?}");
    // A stopped job does not survive either.
    kill_process(job, Signal::STOP)?;
    supervisor.kill()?;
    supervisor.wait()?;
    wait_until("all of the family are gone", PATIENCE, || {
        Ok(!family.iter().any(|pid| lives(*pid)))
    })
}

/// Control groups that this supervisor made for its job.
fn groups_of(supervisor: rustix::process::Pid) -> Vec<std::path::PathBuf> {
    let pid = supervisor.as_raw_nonzero().to_string();
    groups("/sys/fs/cgroup".as_ref(), &pid, 4)
}

/// Whether any of these control groups is frozen.
fn is_one_frozen(groups: &[std::path::PathBuf]) -> bool {
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    groups.iter().any(|group| {
        read(group.join("freezer.state")).trim() == "FROZEN"
            || read(group.join("cgroup.events")).contains("frozen 1")
    })
}

/// Starts a job on a machine where the test acts as the daemon, and has the machine's owner suspend it.
fn frozen(here: &RunMachine<'_>) -> Result<(Running, Owner)> {
    let path = here.dir.join("guests.sock");
    let _ = std::fs::remove_file(&path);
    let socket = std::os::unix::net::UnixListener::bind(path)?;
    let began = here.began().len();
    let suspended = here.entries("suspended").len();
    let options = ["--suspend", "never", "--suspend-cpu-usage", "99"];
    let running = Running::of(here.watched(&options, &["every=10"])?)?;
    let mut owner = Owner(socket.accept()?.0);
    here.wait_for_start(began + 1)?;
    owner.says(r#"{"why":"paused","for_s":60}"#, "null")?;
    here.wait_for_entries("suspended", suspended + 1)?;
    Ok((running, owner))
}

#[test]
fn a_frozen_job_does_not_survive_its_supervisor_nor_do_its_control_groups() -> Result<()> {
    let grid = Grid::up(5)?;
    let here = RunMachine::new(&grid, "here", "frozen.1", HASH_JOB)?;
    let (running, _owner) = frozen(&here)?;
    let supervisor = running.pid;
    if groups_of(supervisor).is_empty() {
        running.signal(Signal::KILL)?;
        return not_checked(
            "a job that a freezer holds when its supervisor is killed",
            "this machine lets nobody make control groups here",
        );
    }
    wait_until("it is frozen", PATIENCE, || {
        Ok(is_one_frozen(&groups_of(supervisor)))
    })?;
    let job = here.job_pid()?;
    running.signal(Signal::KILL)?;
    wait_until("the job is gone", PATIENCE, || {
        Ok(!lives(job) && !is_run_by_somebody(&here.state()))
    })?;
    wait_until("its groups are gone", PATIENCE, || {
        Ok(groups_of(supervisor).is_empty())
    })?;
    // Now the supervisor is killed together with its keeper, before it can start another one.
    let (running, _owner) = frozen(&here)?;
    let supervisor = running.pid;
    let job = here.job_pid()?;
    wait_until("it is frozen", PATIENCE, || {
        Ok(is_one_frozen(&groups_of(supervisor)))
    })?;
    running.signal(Signal::STOP)?;
    for keeper in children(supervisor).into_iter().filter(|pid| *pid != job) {
        kill_process(keeper, Signal::KILL)?;
    }
    running.signal(Signal::KILL)?;
    ensure!(lives(job), "nobody was there to end it");
    let running = here.start(&["--local"], &["end=1"])?;
    running.end()?.0.expect(0)?;
    ensure!(!lives(job), "the next start left it");
    ensure!(groups_of(supervisor).is_empty());
    Ok(())
}

/// Processes that keep all CPUs busy until this is dropped.
struct Burning(Vec<std::process::Child>);

impl Burning {
    fn all() -> Result<Self> {
        let mut burning = Self(Vec::new());
        for _ in 0..std::thread::available_parallelism()?.get() {
            let mut command = std::process::Command::new("sh");
            burning
                .0
                .push(command.args(["-c", "while :; do :; done"]).spawn()?);
        }
        Ok(burning)
    }
}

impl Drop for Burning {
    fn drop(&mut self) {
        for one in &mut self.0 {
            let _ = one.kill();
            let _ = one.wait();
        }
    }
}

#[test]
fn a_job_that_leaves_has_its_priority_back_for_its_last_checkpoint() -> Result<()> {
    let grid = Grid::up(5)?;
    let here = RunMachine::new(&grid, "here", "lowest.1", HASH_JOB)?;
    let socket = std::os::unix::net::UnixListener::bind(here.dir.join("guests.sock"))?;
    // No load is above 100 %, so the job gets a lower priority and is never suspended. The job never answers
    // the signal, so that there is time to check its priority before it leaves.
    let options = ["--suspend-cpu-usage", "100", "--ask", "signal:USR2"];
    let running = Running::of(here.watched(&options, &["every=0"])?)?;
    let mut owner = Owner(socket.accept()?.0);
    here.wait_for_start(1)?;
    let is_idle = |wanted: &str| {
        let groups = groups_of(running.pid);
        let read = |group: &std::path::PathBuf| std::fs::read_to_string(group.join("cpu.idle"));
        groups
            .iter()
            .any(|group| read(group).is_ok_and(|text| text.trim() == wanted))
    };
    if !is_idle("0") {
        running.signal(Signal::KILL)?;
        return not_checked(
            "the priority of a job that leaves",
            "this machine has no control groups with cpu.idle here",
        );
    }
    let burning = Burning::all()?;
    wait_until("it gives way", PATIENCE, || Ok(is_idle("1")))?;
    owner.says("null", r#"{"how":"drain","within_s":20}"#)?;
    here.wait_for_entries("leaving", 1)?;
    wait_until("it has its priority back", PATIENCE, || Ok(is_idle("0")))?;
    ensure!(here.entries("ended").is_empty(), "it has left already");
    drop(burning);
    running.signal(Signal::KILL)?;
    wait_until("the job is gone", PATIENCE, || {
        Ok(!is_run_by_somebody(&here.state()))
    })
}

fn children(of: rustix::process::Pid) -> Vec<rustix::process::Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", of.as_raw_nonzero()));
    let mut found = Vec::new();
    for task in tasks.into_iter().flatten().flatten() {
        let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let pids = text.split_whitespace().filter_map(|pid| pid.parse().ok());
        found.extend(pids.filter_map(rustix::process::Pid::from_raw));
    }
    found
}

#[test]
fn a_supervisor_that_is_killed_while_it_saves_leaves_the_version_before() -> Result<()> {
    let grid = Grid::up(5)?;
    let here = RunMachine::new(&grid, "here", "killed.1", HASH_JOB)?;
    let words = ["every=20", "bytes=4000000", "notify"];
    for round in 1..=3 {
        let running = here.start(&["--mtbf", "1s", "--bandwidth", "4MiB"], &words)?;
        here.wait_for_entries("saved", round)?;
        here.wait_for_entries("saving", round * 2)?;
        running.signal(Signal::KILL)?;
        wait_until("the job is gone", PATIENCE, || {
            Ok(!is_run_by_somebody(&here.state()))
        })?;
        let known = here
            .entries("saved")
            .last()
            .and_then(|entry| entry["version"].as_u64());
        let shown = grid.versions("killed.1")?.last().copied();
        ensure!(known.is_some() && shown >= known, "{shown:?} {known:?}");
        here.saved()?;
    }
    Ok(())
}

#[test]
fn a_job_goes_on_while_hosts_come_and_go() -> Result<()> {
    let grid = Grid::up(5)?;
    let here = RunMachine::new(&grid, "here", "hosts.1", HASH_JOB)?;
    let options = ["--mtbf", "2s", "--deadline", "5s", "--grace", "30s"];
    let running = here.start(&options, &["every=50", "notify", "term", "bytes=100000"])?;
    here.wait_for_entries("saved", 1)?;
    for host in ["h01", "h02", "h03"] {
        grid.kill(host)?;
    }
    here.wait_for_entries("save_failed", 1)?;
    let at = Steps::read(&here.state())?.number;
    grid.restart()?;
    here.wait_for_step(at + 1)?;
    running.signal(Signal::TERM)?;
    let (ended, report) = running.end()?;
    ended.expect(75)?;
    ensure!(report["failed_saves"].as_u64() >= Some(1), "{report}");
    ensure!(here.saved()? == Steps::read(&here.state())?, "{report}");
    Ok(())
}
