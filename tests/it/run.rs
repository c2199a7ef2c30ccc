//! `ckpt run` with jobs whose states the tests can check.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use tests::Grid;
use tests::hash_job::{Filler, Steps};
use tests::program::{run, wait_until};
use tests::supervised::{PATIENCE, RunMachine, Running, is_run_by_somebody, report_of};

/// The program that most jobs run.
pub(crate) const HASH_JOB: &str = env!("CARGO_BIN_EXE_hash-job");

/// Options that claim frequent failures, so that checkpoints are taken every few seconds.
const FREQUENT_FAILURES: [&str; 2] = ["--mtbf", "2s"];

fn machine<'a>(grid: &'a Grid, name: &str) -> Result<RunMachine<'a>> {
    RunMachine::new(grid, name, "hash.1", HASH_JOB)
}

#[test]
fn a_job_that_ends_passes_its_status_and_its_standard_streams_on() -> Result<()> {
    let grid = Grid::up(5)?;
    let here = machine(&grid, "here")?;
    let ended = run(&mut here.command(&[], &["end=20", "status=75"])?)?.expect(75)?;
    let report = report_of(&ended)?;
    ensure!(
        report["ended_by"] == "job" && report["exit_code"] == 75,
        "{report}"
    );
    ensure!(ended.stdout.is_empty(), "{ended}");
    for (command, status) in [
        ("exit 3", 3),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
        ("cat >/dev/null; echo out; echo err >&2; exit 7", 7),
    ] {
        let args = [
            "run", "--batch", "--job", "sh", "--files", "none", "--", "sh", "-c", command,
        ];
        let ended = run(&mut here.bare(&args)?)?.expect(status)?;
        let last = ended.stderr.lines().last().unwrap_or_default();
        ensure!(last.contains("ended_by job"), "{ended}");
        ensure!(last.contains(&format!("exit status {status}")), "{ended}");
        if status == 7 {
            ensure!(
                ended.stdout == b"out\n" && ended.stderr.contains("err\n"),
                "{ended}"
            );
        }
    }
    for (command, status) in [("/no/such/program", 127), ("/etc/passwd", 126)] {
        let args = [
            "run", "--batch", "--job", "sh", "--files", "none", "--", command,
        ];
        let ended = run(&mut here.bare(&args)?)?.expect(status)?;
        ensure!(ended.stderr.contains("was not started"), "{ended}");
    }
    let mut nowhere = here.command(&[], &["end=1"])?;
    run(nowhere.env("CKPT_GRID", "nowhere.toml"))?.expect(125)?;
    Ok(())
}

#[test]
fn a_job_that_is_evicted_goes_on_elsewhere_from_the_state_that_it_had() -> Result<()> {
    let grid = Grid::up(5)?;
    let first = machine(&grid, "first")?;
    let words = ["every=0", "usr2", "bytes=300000"];
    let options = ["--ask", "signal:USR2", "--grace", "30s"];
    let running = first.start(&options, &words)?;
    first.wait_for_start(1)?;
    std::thread::sleep(Duration::from_millis(500));
    running.signal(Signal::TERM)?;
    let (ended, report) = running.end()?;
    ended.expect(75)?;
    ensure!(
        report["ended_by"] == "supervisor" && report["version"] == 1,
        "{report}"
    );
    ensure!(report["last"]["took_seconds"].is_f64(), "{report}");
    ensure!(
        !is_run_by_somebody(&first.state()),
        "the job is still there"
    );
    let saved = first.saved()?;
    ensure!(saved.number > 0 && saved == Steps::read(&first.state())?);

    let second = machine(&grid, "second")?;
    let until = format!("end={}", saved.number + 20);
    let words = [until.as_str(), "every=0", "usr2", "status=7"];
    let running = second.start(&["--evict-exit", "85"], &words)?;
    let (ended, report) = running.end()?;
    ended.expect(7)?;
    ensure!(second.began() == [saved.number], "{:?}", second.began());
    ensure!(report["began_from"] == 1, "{report}");
    Ok(())
}

#[test]
fn a_job_that_writes_when_it_wants_to_is_saved_when_it_pays() -> Result<()> {
    let grid = Grid::up(5)?;
    for (name, how) in [("replaced", "write=replace"), ("in-place", "write=place")] {
        let job = format!("hash.{name}");
        let here = RunMachine::new(&grid, name, &job, HASH_JOB)?;
        // The job pauses between two writes of its state, so that `ckpt run` can save it unchanged.
        let words = [how, "every=150", "bytes=2000000", "notify"];
        let running = here.start(&FREQUENT_FAILURES, &words)?;
        here.wait_for_entries("saved", 3)?;
        // The job does not survive its killed supervisor, and its last checkpoint is whole.
        let job = here.job_pid()?;
        running.signal(Signal::KILL)?;
        wait_until("the job is gone", PATIENCE, || {
            Ok(!tests::supervised::lives(job) && !is_run_by_somebody(&here.state()))
        })?;
        let saved = here.saved()?;
        let running = here.start(&FREQUENT_FAILURES, &words)?;
        here.wait_for_start(2)?;
        running.signal(Signal::TERM)?;
        running.end()?;
        let began = here.began().last().copied().context("did not begin")?;
        ensure!(began >= saved.number, "{began} {}", saved.number);
    }
    Ok(())
}

/// Writes its state in two parts, several seconds apart, through `$2`, which is not a path of `--files`.
const WRITES_IN_TWO_PARTS: &str = r#"
    : >"$1/image"
    eval "$3" && exec 3>>"$2/image" && printf one >&3
    seconds=0
    while [ $seconds -lt 4 ]; do sleep 1; seconds=$((seconds + 1)); done
    printf two >&3
    exec 3>&-
    while :; do sleep 0.1; done
"#;

/// Checks that the first version of a job that writes through another path is whole. `other` makes the other
/// path, and `within` runs the job.
fn first_version_is_whole(grid: &Grid, name: &str, within: &[&str], other: &str) -> Result<()> {
    let here = RunMachine::new(grid, name, name, "sh")?;
    for dir in ["state", "other"] {
        fs::create_dir(here.dir.join(dir))?;
    }
    let run = [
        "--json", "run", "--batch", "--job", name, "--files", "state", "--mtbf", "2s", "--",
    ];
    let job = [
        "sh",
        "-c",
        WRITES_IN_TWO_PARTS,
        "job",
        "state",
        "other",
        other,
    ];
    let running = Running::of(here.bare(&[&run[..], within, &job].concat())?)?;
    here.wait_for_entries("saved", 1)?;
    running.signal(Signal::TERM)?;
    running.end()?;
    let args = ["restore", "--job", name, "--version", "1", "-o", "back"];
    tests::program::run(&mut here.bare(&args)?)?.expect(0)?;
    let saved = fs::read_to_string(here.dir.join("back/image"))?;
    ensure!(saved == "onetwo", "{name}: {saved}");
    Ok(())
}

#[test]
fn a_file_that_is_open_under_another_path_is_not_saved_half_written() -> Result<()> {
    let grid = Grid::up(5)?;
    first_version_is_whole(&grid, "linked", &[], "ln $1/image $2/image")?;
    let can_unshare = std::process::Command::new("unshare")
        .args(["-m", "true"])
        .status();
    if can_unshare.is_ok_and(|status| status.success()) {
        return first_version_is_whole(&grid, "mounted", &["unshare", "-m"], "mount --bind $1 $2");
    }
    tests::skip::not_checked("a job in a mount namespace", "unshare -m is not allowed")
}

#[test]
fn a_command_that_writes_no_image_leaves_no_version() -> Result<()> {
    let grid = Grid::up(5)?;
    let here = machine(&grid, "here")?;
    let args = [
        "--json",
        "run",
        "--batch",
        "--job",
        "hash.1",
        "--grace",
        "5s",
        "--via",
        "cmd",
        "--checkpoint-cmd",
        "true",
        "--restart-cmd",
        "true",
        "--",
        "sleep",
        "1000",
    ];
    let running = Running::of(here.bare(&args)?)?;
    here.wait_for_entries("started", 1)?;
    running.signal(Signal::TERM)?;
    let (ended, report) = running.end()?;
    ended.expect(76)?;
    ensure!(report["version"].is_null(), "{report}");
    ensure!(
        report["warnings"].to_string().contains("no file to save"),
        "{report}"
    );
    Ok(())
}

#[test]
fn a_state_that_exists_is_moved_aside_and_local_begins_from_it() -> Result<()> {
    let grid = Grid::up(5)?;
    let here = machine(&grid, "here")?;
    let running = here.start(&["--ask", "signal:USR2"], &["usr2", "every=0"])?;
    here.wait_for_start(1)?;
    running.signal(Signal::TERM)?;
    running.end()?.0.expect(75)?;
    let saved = here.saved()?.number;
    let mut later = Steps::START;
    for _ in 0..saved + 100 {
        later = later.next();
    }
    fs::write(here.state(), later.state(1000, Filler::Noise))?;
    let end = format!("end={}", saved + 110);
    run(&mut here.command(&["--local"], &[&end])?)?.expect(0)?;
    ensure!(
        here.began().last() == Some(&(saved + 100)),
        "{:?}",
        here.began()
    );
    // Without --local the job begins from the checkpoint, and the file that was there is kept.
    let lay_there = fs::read(here.state())?;
    run(&mut here.command(&[], &[&end])?)?.expect(0)?;
    ensure!(here.began().last() == Some(&saved), "{:?}", here.began());
    ensure!(fs::read(here.dir.join("state.before"))? == lay_there);
    // The directory into which the checkpoint was restored is removed.
    let left = fs::read_dir(&here.dir)?.flatten();
    let left = left.filter(|one| one.file_name().to_string_lossy().starts_with(".ckpt-run"));
    ensure!(left.count() == 0);
    Ok(())
}

#[test]
fn a_job_runs_once_on_a_machine() -> Result<()> {
    let grid = Grid::up(5)?;
    let here = machine(&grid, "here")?;
    let running = here.start(&[], &[])?;
    here.wait_for_start(1)?;
    let refused = run(&mut here.command(&[], &["end=1"])?)?.expect(125)?;
    let pid = running.pid.as_raw_nonzero().to_string();
    ensure!(refused.stderr.contains(&pid), "{refused}");
    ensure!(here.began().len() == 1, "{:?}", here.began());
    running.signal(Signal::INT)?;
    let (ended, report) = running.end()?;
    // SIGINT, which Ctrl-C sends, is passed on to the job.
    ended.expect(130)?;
    ensure!(report["ended_by"] == "job", "{report}");
    Ok(())
}

#[test]
fn without_enough_hosts_a_job_that_leaves_ends_with_76() -> Result<()> {
    let grid = Grid::up(5)?;
    let here = machine(&grid, "here")?;
    let running = here.start(
        &["--ask", "signal:USR2", "--grace", "6s"],
        &["usr2", "every=0"],
    )?;
    here.wait_for_start(1)?;
    for host in ["h01", "h02", "h03"] {
        grid.kill(host)?;
    }
    running.signal(Signal::USR1)?;
    let (ended, report) = running.end()?;
    ended.expect(76)?;
    ensure!(report["ended_by"] == "supervisor", "{report}");
    ensure!(report["version"].is_null(), "{report}");
    ensure!(!is_run_by_somebody(&here.state()), "the job is still there");
    Ok(())
}

#[test]
fn a_final_checkpoint_takes_less_redundancy_where_that_is_allowed() -> Result<()> {
    let grid = Grid::up(5)?;
    let here = machine(&grid, "here")?;
    let options = [
        "--ask",
        "signal:USR2",
        "--grace",
        "30s",
        "--allow-degraded=1",
    ];
    let running = here.start(&options, &["usr2", "every=0"])?;
    here.wait_for_start(1)?;
    grid.kill("h02")?;
    running.signal(Signal::TERM)?;
    let (ended, report) = running.end()?;
    ended.expect(75)?;
    ensure!(here.saved()? == Steps::read(&here.state())?, "{report}");
    Ok(())
}

/// The version before stored so much that the next one would be whole if there were time.
#[test]
fn a_final_checkpoint_is_a_patch_where_the_whole_state_would_be_late() -> Result<()> {
    const JOB: &str = r#"
        trap 'cp third next && mv next state; exit 0' TERM
        : >ready
        while :; do sleep 0.1; done
    "#;
    const MIB: usize = 1 << 20;
    let grid = Grid::up(5)?;
    let here = RunMachine::new(&grid, "here", "late", "sh")?;
    let mut bytes = tests::image::noise(16 * MIB, 1);
    for number in 1..=2 {
        fs::write(here.state(), &bytes)?;
        let save = ["save", "--job", "late", "--keep", "9", "state"];
        run(&mut here.bare(&save)?)?.expect(0)?;
        bytes[..4 * MIB].iter_mut().for_each(|byte| *byte ^= number);
    }
    fs::write(here.dir.join("third"), &bytes)?;
    let state = here.state().display().to_string();
    let args = [
        "--json",
        "--bandwidth",
        "1MiB",
        "run",
        "--batch",
        "--job",
        "late",
        "--files",
        &state,
        "--local",
        "--keep",
        "9",
        "--grace",
        "20s",
        "--",
        "sh",
        "-c",
        JOB,
    ];
    let running = Running::of(here.bare(&args)?)?;
    wait_until("the job runs", PATIENCE, || {
        Ok(here.dir.join("ready").exists())
    })?;
    running.signal(Signal::TERM)?;
    let (ended, report) = running.end()?;
    ended.expect(75)?;
    ensure!(report["version"] == 3, "{report}");
    let saved = here.entries("saved");
    let stored = saved
        .last()
        .and_then(|saved| saved["stored_bytes"].as_u64());
    ensure!(stored < Some(8 * MIB as u64), "{saved:?}");
    let restored = grid.run(["restore", "--job", "late", "-o", "-"])?;
    ensure!(restored.expect(0)?.stdout == bytes);
    Ok(())
}

#[test]
fn a_command_asks_the_job_and_ckpt_notify_reports_from_a_shell() -> Result<()> {
    const JOB: &str = r#"
        trap 'exit 9' HUP
        "$CKPT" notify BUSY=1 PROGRESS=0.5
        echo one >"$1"
        "$CKPT" notify BUSY=0
        : >"$1.ready"
        while :; do sleep 0.1; done
    "#;
    let grid = Grid::up(5)?;
    let here = machine(&grid, "here")?;
    let state = here.state().display().to_string();
    let ask = format!("cmd:echo asked by $CKPT_PID >{state}");
    let args = [
        "--json", "run", "--batch", "--job", "hash.1", "--files", &state, "--ask", &ask, "--",
        "sh", "-c", JOB, "job", &state,
    ];
    let mut command = here.bare(&args)?;
    let child = command.env("CKPT", tests::ckpt()?).spawn()?;
    let ready = here.state().with_extension("ready");
    wait_until("the job can be asked", PATIENCE, || Ok(ready.exists()))?;
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::TERM)?;
    let ended = tests::program::wait(child)?.expect(75)?;
    let job = here.job_pid()?.as_raw_nonzero().to_string();
    let saved = grid
        .run(["restore", "--job", "hash.1", "-o", "-"])?
        .expect(0)?;
    let saved = String::from_utf8(saved.stdout)?;
    ensure!(saved.trim() == format!("asked by {job}"), "{saved} {ended}");
    let refused = run(&mut here.bare(&["notify", "PROGRESS=2"])?)?.expect(2)?;
    ensure!(refused.stderr.contains("from 0 to 1"), "{refused}");
    run(&mut here.bare(&["notify", "SAVED=1"])?)?.expect(0)?;
    Ok(())
}

#[test]
fn an_image_of_processes_is_taken_and_started_by_commands() -> Result<()> {
    let grid = Grid::up(5)?;
    let here = machine(&grid, "here")?;
    let out = here.dir.join("out").display().to_string();
    let restart = format!("cat $CKPT_DIR/image >{out}; exit 4");
    let args = [
        "--json",
        "run",
        "--batch",
        "--job",
        "hash.1",
        "--via",
        "cmd",
        "--checkpoint-cmd",
        "echo process $CKPT_PID >$CKPT_DIR/image",
        "--restart-cmd",
        &restart,
        "--",
        "sleep",
        "1000",
    ];
    let child = here.bare(&args)?.spawn()?;
    here.wait_for_entries("started", 1)?;
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::TERM)?;
    tests::program::wait(child)?.expect(75)?;
    let job = here.job_pid()?.as_raw_nonzero().to_string();
    run(&mut here.bare(&args)?)?.expect(4)?;
    ensure!(fs::read_to_string(&out)?.trim() == format!("process {job}"));
    Ok(())
}

#[test]
fn check_says_what_would_be_done_and_starts_nothing() -> Result<()> {
    let grid = Grid::up(5)?;
    let here = machine(&grid, "here")?;
    let state = here.state().display().to_string();
    let args = [
        "--json", "run", "--job", "hash.1", "--files", &state, "--check",
    ];
    let report = run(&mut here.bare(&args)?)?.expect(0)?.json()?;
    ensure!(
        report["version"].is_null() && report["grace_seconds"] == 30.0,
        "{report}"
    );
    ensure!(
        report["key"]
            .as_str()
            .is_some_and(|key| key.contains("all jobs")),
        "{report}"
    );
    ensure!(
        report["control"]
            .as_array()
            .is_some_and(|all| !all.is_empty()),
        "{report}"
    );
    let mut under = here.bare(&args)?;
    let report = run(under.env("SLURM_JOB_ID", "7"))?.expect(0)?.json()?;
    ensure!(
        report["owner"]
            .as_str()
            .is_some_and(|who| who.contains("Slurm")),
        "{report}"
    );
    ensure!(!here.state().exists() && here.began().is_empty());
    Ok(())
}

/// The machine's daemon, played by the test: the connection on which it reports to `ckpt run`.
pub(crate) struct Owner(pub(crate) std::os::unix::net::UnixStream);

impl Owner {
    pub(crate) fn says(&mut self, withheld: &str, leaving: &str) -> Result<()> {
        use std::io::Write;
        let report = format!(
            r#"{{"report":{{"at":1,"state":"idle","load":0,"contended_load":0,"thresholds":[0.2,0.6],"free_memory_bytes":1,"withheld":{withheld},"leaving":{leaving}}}}}"#
        );
        Ok(writeln!(self.0, "{report}")?)
    }
}

#[test]
fn a_job_stands_still_for_the_owner_and_leaves_with_the_machine() -> Result<()> {
    let grid = Grid::up(5)?;
    let here = machine(&grid, "here")?;
    let socket = std::os::unix::net::UnixListener::bind(here.dir.join("guests.sock"))?;
    let options = [
        "--ask",
        "signal:USR2",
        "--suspend",
        "never",
        "--suspend-cpu-usage",
        "99",
    ];
    let running = Running::of(here.watched(&options, &["usr2", "every=0"])?)?;
    let mut owner = Owner(socket.accept()?.0);
    here.wait_for_start(1)?;
    let job = here.job_pid()?;
    owner.says(r#"{"why":"paused","for_s":60}"#, "null")?;
    here.wait_for_entries("suspended", 1)?;
    let used = || -> Result<String> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", job.as_raw_nonzero()))?;
        Ok(stat.split(' ').skip(13).take(2).collect())
    };
    wait_until("it stands still", PATIENCE, || {
        let before = used()?;
        std::thread::sleep(Duration::from_millis(200));
        Ok(used()? == before)
    })?;
    owner.says("null", r#"{"how":"drain","within_s":60}"#)?;
    let (ended, report) = running.end()?;
    ended.expect(75)?;
    ensure!(report["why"] == "the machine leaves the grid", "{report}");
    ensure!(report["suspensions"].as_u64() >= Some(1), "{report}");
    ensure!(here.saved()? == Steps::read(&here.state())?, "{report}");
    // No control group of the job is left.
    let pid = format!("{}", running_pid(&report)?);
    let left = groups("/sys/fs/cgroup".as_ref(), &pid, 4);
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

/// Process id of the supervisor whose journal this report names.
fn running_pid(report: &serde_json::Value) -> Result<u32> {
    let journal = report["journal"].as_str().context("no journal")?;
    let lock = std::path::Path::new(journal).with_file_name("lock");
    Ok(fs::read_to_string(lock)?.trim().parse()?)
}

/// Control groups below `dir` whose names end with this process id.
pub(crate) fn groups(dir: &std::path::Path, pid: &str, depth: u32) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if !path.is_dir() || path.is_symlink() || depth == 0 {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("ckpt") && name.ends_with(&format!("-{pid}")) {
            found.push(path.clone());
        }
        found.extend(groups(&path, pid, depth - 1));
    }
    found
}

#[test]
fn of_two_incarnations_of_a_job_one_goes_on_and_the_other_ends_with_77() -> Result<()> {
    let grid = Grid::up(5)?;
    let first = machine(&grid, "first")?;
    let running = first.start(&["--ask", "signal:USR2"], &["usr2", "every=0"])?;
    first.wait_for_start(1)?;
    running.signal(Signal::TERM)?;
    running.end()?.0.expect(75)?;
    let second = machine(&grid, "second")?;
    let words = ["every=100", "notify", "term"];
    let mut both = [
        first.start(&FREQUENT_FAILURES, &words)?,
        second.start(&FREQUENT_FAILURES, &words)?,
    ];
    wait_until("one of them has ended", PATIENCE, || {
        Ok(both[0].has_ended()? || both[1].has_ended()?)
    })?;
    if both[0].has_ended()? {
        both.reverse();
    }
    let [lives, loser] = both;
    let (ended, report) = loser.end()?;
    ended.expect(77)?;
    ensure!(report["ended_by"] == "supervisor", "{report}");
    lives.signal(Signal::TERM)?;
    lives.end()?.0.expect(75)?;
    Ok(())
}
