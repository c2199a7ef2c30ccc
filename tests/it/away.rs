//! `ckpt run --on`: a launcher starts jobs on other machines, each of which is a directory here.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::Grid;
use tests::hash_job::{Filler, Steps};
use tests::program::{Outcome, ckpt, run, wait, wait_until};
use tests::supervised::{PATIENCE, journal_entries, lives, report_of};

use crate::run::HASH_JOB;

/// A launcher like `ssh`, which joins the arguments and has a shell split them again.
const LIKE_SSH: &str = r#"host=$1; shift; [ "$1" = -- ] && shift; exec sh -c "$*""#;

/// A launcher like `ip netns exec`, which passes the arguments on.
const LIKE_NETNS: &str = r#"host=$1; shift; exec "$@""#;

/// A working directory whose jobs run on the hosts of a grid.
struct Lab<'a> {
    grid: &'a Grid,
    /// The working directory.
    dir: PathBuf,
    launcher: PathBuf,
}

/// A running `ckpt run --on`.
struct Front {
    child: Option<Child>,
    pid: Pid,
}

impl<'a> Lab<'a> {
    fn new(grid: &'a Grid, launches: &str) -> Result<Self> {
        let lab = Self {
            grid,
            dir: grid.path("working directory"),
            launcher: grid.path("launch"),
        };
        fs::create_dir_all(&lab.dir)?;
        // Each host has a state directory of its own and none of this machine's settings. A host refuses if
        // the file `down-HOST` exists.
        let head = format!(
            "#!/bin/sh\n[ -e \"{0}/down-$1\" ] && exit 255\nexport CKPT_STATE_DIR=\"{0}/home-$1\" CKPT_GUEST_SOCKET=\"{0}/none\"\nunset CKPT_GRID CKPT_KEY_FILE\ncd /\n",
            lab.dir.parent().context("no directory")?.display()
        );
        fs::write(&lab.launcher, format!("{head}{launches}\n"))?;
        fs::set_permissions(&lab.launcher, fs::Permissions::from_mode(0o755))?;
        Ok(lab)
    }

    fn command(&self, job: &str, options: &[&str], words: &[&str]) -> Result<Command> {
        let on = format!("'{}' {{host}} --", self.launcher.display());
        let on = if fs::read_to_string(&self.launcher)?.contains("$*") {
            on
        } else {
            on.replace(" --", "")
        };
        let program = ckpt()?.display().to_string();
        let args = [
            "--json",
            "run",
            "--on",
            &on,
            "--program",
            &program,
            "--batch",
            "--job",
            job,
            "--report-every",
            "1500ms",
            "--retry",
            "20s",
        ];
        let mut command = self
            .grid
            .command([&args[..], options, &["--"], words].concat())?;
        command
            .current_dir(&self.dir)
            .env_remove("SLURM_JOB_ID")
            .env_remove("_CONDOR_SLOT")
            .env_remove("_CONDOR_SCRATCH_DIR")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(command)
    }

    /// Starts a hash job with its state in the file `state` of the working directory.
    fn start(&self, job: &str, options: &[&str], words: &[&str]) -> Result<Front> {
        let words = [&[HASH_JOB, "state"][..], words].concat();
        let child = self.command(job, options, &words)?.spawn()?;
        let pid = Pid::from_child(&child);
        Ok(Front {
            child: Some(child),
            pid,
        })
    }

    /// Entries of the kind `event` in the journal of `ckpt run --on`.
    fn entries(&self, job: &str, event: &str) -> Vec<Value> {
        let path = self.grid.path("state/away/run").join(job);
        journal_entries(&path.join("journal.jsonl"), event)
    }

    /// The journal of `ckpt run --on`, for the messages of failed tests.
    fn journal(&self, job: &str) -> String {
        let path = self.grid.path("state/away/run").join(job);
        fs::read_to_string(path.join("journal.jsonl")).unwrap_or_default()
    }

    /// Kills all processes on a host as the end of a machine does: none of them sees another one's end.
    fn kill_at_once(&self, host: &str) {
        let all = self.processes(host);
        signal_all(&all, Signal::STOP);
        signal_all(&all, Signal::KILL);
    }

    /// Waits until the job has been started on a host `times` times, and returns that host.
    fn wait_for_host(&self, job: &str, times: usize) -> Result<String> {
        let runs = || self.entries(job, "runs_there");
        wait_until("the job runs", PATIENCE, || Ok(runs().len() >= times))?;
        let host = runs()[times - 1]["host"].as_str().map(str::to_owned);
        host.context("no host")
    }

    /// The path of one of the job's files on a host.
    fn there(&self, host: &str, job: &str, name: &str) -> PathBuf {
        let home = self.grid.path(&format!("home-{host}"));
        home.join("there")
            .join(host)
            .join("run")
            .join(job)
            .join(name)
    }

    /// Process id of the `ckpt run` on a host.
    fn supervisor(&self, host: &str, job: &str) -> Result<Pid> {
        let text = fs::read_to_string(self.there(host, job, "lock"))?;
        Pid::from_raw(text.trim().parse()?).context("no process id")
    }

    /// All processes on a host.
    fn processes(&self, host: &str) -> Vec<Pid> {
        let home = format!(
            "CKPT_STATE_DIR={}",
            self.grid.path(&format!("home-{host}")).display()
        );
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let is_there = |pid: &i32| {
            let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let mut variables = variables.split(|&byte| byte == 0);
            variables.any(|one| one.starts_with(home.as_bytes()))
        };
        pids.filter(is_there).filter_map(Pid::from_raw).collect()
    }

    /// Waits until the job's state on a host is at step `number` or later.
    fn wait_for_step(&self, host: &str, job: &str, number: u64) -> Result<()> {
        let state = self.there(host, job, "work/state");
        wait_until("the job gets on", PATIENCE, || {
            Ok(Steps::read(&state).is_ok_and(|steps| steps.number >= number))
        })
    }

    /// The steps at which the job began, from the file that came back with the result.
    fn began(&self) -> Result<Vec<u64>> {
        let text = fs::read_to_string(self.dir.join("state.began"))?;
        text.lines().map(|line| Ok(line.parse()?)).collect()
    }
}

impl Drop for Lab<'_> {
    fn drop(&mut self) {
        // A failed test may leave processes that would never end.
        for host in ["h01", "h02", "h03", "h04", "h05"] {
            signal_all(&self.processes(host), Signal::KILL);
        }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Fails if the process has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Front {
    /// Waits until `ckpt run --on` ends.
    fn wait(mut self) -> Result<Outcome> {
        wait(self.child.take().context("it was waited for")?)
    }

    /// Waits until `ckpt run --on` ends with this exit status. Returns its outcome and its report.
    fn end(self, status: i32) -> Result<(Outcome, Value)> {
        let ended = self.wait()?.expect(status)?;
        let report = report_of(&ended).with_context(|| ended.to_string())?;
        Ok((ended, report))
    }
}

fn signal_all(processes: &[Pid], signal: Signal) {
    for pid in processes {
        // Fails if the process has just ended.
        let _ = kill_process(*pid, signal);
    }
}

#[test]
fn words_and_files_arrive_as_they_are_and_the_result_comes_back() -> Result<()> {
    let grid = Grid::up(5)?;
    for (job, launches) in [("ssh", LIKE_SSH), ("netns", LIKE_NETNS)] {
        let lab = Lab::new(&grid, launches)?;
        let name = "a 'file' of \"mine\" $HOME;\n`x` *";
        fs::write(lab.dir.join(name), b"in\0put")?;
        let words = ["a b", "c'd", "e\"f", "$HOME `x` \\ * ; # \n", "", "--json"];
        let script = "for a; do printf '[%s]' \"$a\"; done; cat a*; echo err >&2; printf %s \"$1\" > 'new one'; mkdir sub; cp a* sub; exit 7";
        let words = [&["sh", "-c", script, "sh"][..], &words].concat();
        let ended = run(&mut lab.command(job, &[], &words)?)?.expect(7)?;
        let shown = "[a b][c'd][e\"f][$HOME `x` \\ * ; # \n][][--json]in\0put";
        ensure!(ended.stdout == shown.as_bytes(), "{ended}");
        ensure!(ended.stderr.lines().any(|line| line == "err"), "{ended}");
        let report = report_of(&ended)?;
        ensure!(
            report["ended_by"] == "job" && report["changed_files"] == 2,
            "{report}"
        );
        ensure!(fs::read_to_string(lab.dir.join("new one"))? == "a b");
        ensure!(fs::read(lab.dir.join("sub").join(name))? == b"in\0put");
        let host = report["host"].as_str().context("no host")?;
        for left in ["work", "job.key", "grid.toml", "out"] {
            let path = lab.there(host, job, left);
            wait_until("nothing is left there", PATIENCE, || Ok(!path.exists()))?;
        }
        fs::remove_dir_all(&lab.dir)?;
    }
    // A run that ends with 0 is noted in the history of this machine, with the host.
    let lab = Lab::new(&grid, LIKE_SSH)?;
    let ended = run(&mut lab.command("noted", &[], &["true"])?)?.expect(0)?;
    let host = report_of(&ended)?["host"].clone();
    let history = fs::read_to_string(grid.path("state/runs.jsonl"))?;
    let line: Value = serde_json::from_str(history.lines().last().context("no line")?)?;
    ensure!(line["job"] == "noted" && line["host"] == host, "{line}");
    let rank = grid
        .run(["--json", "rank", "--work", "1h"])?
        .expect(0)?
        .json()?;
    let hosts = rank["hosts"].as_array().context("no hosts")?;
    let seen = hosts.iter().filter(|one| one["speed_seen"] == true);
    let seen: Vec<&Value> = seen.map(|one| &one["host"]).collect();
    ensure!(seen == [&host], "{rank}");
    Ok(())
}

#[test]
fn a_job_that_leaves_its_host_goes_on_on_the_next_one() -> Result<()> {
    let grid = Grid::up(5)?;
    let lab = Lab::new(&grid, LIKE_SSH)?;
    fs::write(
        lab.dir.join("ballast"),
        Steps::START.state(64 << 20, Filler::Noise),
    )?;
    let words = ["term", "end=300", "every=5"];
    let front = lab.start("moved", &["--grace", "60s"], &words)?;
    let first = lab.wait_for_host("moved", 1)?;
    lab.wait_for_step(&first, "moved", 100)?;
    wait_until("the job is seen on its host", PATIENCE, || {
        let report = grid.run(["--json", "jobs"])?.expect(0)?.json()?;
        let job = &report["jobs"][0];
        let risk = job["at_risk_seconds"].as_f64();
        Ok(job["job"] == "moved" && job["host"] == first.as_str() && risk > Some(0.0))
    })?;
    kill_process(lab.supervisor(&first, "moved")?, Signal::TERM)?;
    let second = lab.wait_for_host("moved", 2)?;
    ensure!(first != second);
    let (_, report) = front.end(0)?;
    let began = lab.began()?;
    ensure!(began.len() == 2 && began[1] >= 100, "{began:?}");
    ensure!(Steps::read(&lab.dir.join("state"))?.number == 300);
    // The result builds on what the first host saved.
    let listed = grid.run(["--json", "list", "--job", "moved"])?.expect(0)?;
    let listed = listed.json()?;
    let all = listed["checkpoints"].as_array().context("no list")?;
    let newest = all.last().context("no version")?;
    let stored = newest["stored_bytes"].as_u64();
    ensure!(stored < Some(32 << 20), "{newest}");
    ensure!(
        report["starts"] == 2 && report["hosts"] == serde_json::json!([first, second]),
        "{report}"
    );
    let runs = grid.run(["--json", "runs"])?.expect(0)?.json()?;
    let moved = &runs["ledger"]["all"];
    ensure!(moved["evictions"] == 1 && moved["survived"] == 1, "{runs}");
    ensure!(
        moved["rescued_seconds"].as_f64() > Some(0.0) && moved["lost_seconds"] == 0.0,
        "{runs}"
    );
    let journal = lab.there(&first, "moved", "journal.jsonl");
    let at = |journal: &Path, event| journal_entries(journal, event)[0]["at_ms"].as_u64();
    let left = at(&journal, "leaving").context("it did not leave")?;
    let journal = lab.there(&second, "moved", "journal.jsonl");
    let ran = at(&journal, "started").context("it did not start")?;
    // Its state was restored once.
    let started = &journal_entries(&journal, "started")[0];
    ensure!(
        started["at_hand_bytes"] == 0 && started["fetched_bytes"].as_u64() > Some(64 << 20),
        "{started}"
    );
    eprintln!(
        "64 MiB: from eviction to running elsewhere {} ms",
        ran - left
    );
    Ok(())
}

/// The file or folder of a host that stands by, if it is there.
const AHEAD: [&str; 3] = ["ahead", "ahead.key", "ahead.toml"];

impl Lab<'_> {
    /// Waits until a host stands by with at least this version, and returns the host.
    fn wait_for_next_host(&self, job: &str, version: u64) -> Result<String> {
        let mut host = None;
        wait_until("a host stands by", PATIENCE, || {
            let last = self.entries(job, "stands_by").pop();
            let last = last.filter(|one| {
                one["is_complete"] == true && one["version"].as_u64() >= Some(version)
            });
            host = last.and_then(|one| one["host"].as_str().map(str::to_owned));
            Ok(host.is_some())
        })?;
        host.context("no host")
    }

    fn has_ahead(&self, host: &str, job: &str) -> bool {
        AHEAD
            .iter()
            .any(|name| self.there(host, job, name).exists())
    }
}

#[test]
fn the_next_host_has_the_versions_before_the_job_comes_and_can_not_read_them() -> Result<()> {
    let grid = Grid::up(5)?;
    let lab = Lab::new(&grid, LIKE_SSH)?;
    let ballast = 32 << 20;
    fs::write(
        lab.dir.join("ballast"),
        Steps::START.state(ballast, Filler::Noise),
    )?;
    let words = ["term", "end=300", "every=5"];
    let front = lab.start("next", &["--standby", "--grace", "60s"], &words)?;
    let first = lab.wait_for_host("next", 1)?;
    let standing_by = lab.wait_for_next_host("next", 1)?;
    ensure!(standing_by != first);
    wait_until("it is shown", PATIENCE, || {
        let report = grid.run(["--json", "jobs"])?.expect(0)?.json()?;
        Ok(report["jobs"][0]["standby"] == standing_by.as_str())
    })?;
    // The key there finds the versions, and opens none; it can't save either.
    let with_its_key = |args: &[&str]| {
        let mut command = grid.command([&["--json"], args].concat())?;
        command.env(
            "CKPT_KEY_FILE",
            lab.there(&standing_by, "next", "ahead.key"),
        );
        run(&mut command)
    };
    let to = grid.path("stolen").display().to_string();
    let stolen = with_its_key(&["restore", "--job", "next", "-o", &to])?;
    ensure!(stolen.code != Some(0), "{stolen}");
    ensure!(!grid.path("stolen").exists());
    let forged = with_its_key(&["save", "--job", "next", "/etc/hostname"])?;
    ensure!(forged.code != Some(0), "{forged}");
    // It has nothing of the files in clear.
    let ahead = lab.there(&standing_by, "next", "ahead");
    let held: Vec<PathBuf> = fs::read_dir(&ahead)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    ensure!(held.len() >= 3, "{held:?}");
    kill_process(lab.supervisor(&first, "next")?, Signal::TERM)?;
    let second = lab.wait_for_host("next", 2)?;
    ensure!(second == standing_by, "{}", lab.journal("next"));
    wait_until("what was fetched is used up", PATIENCE, || {
        Ok(!lab.has_ahead(&second, "next"))
    })?;
    let journal = lab.there(&second, "next", "journal.jsonl");
    let started = &journal_entries(&journal, "started")[0];
    let fetched = started["fetched_bytes"].as_u64().context("no number")?;
    ensure!(
        started["at_hand_bytes"] == 0 && fetched < ballast as u64 / 4,
        "{started}"
    );
    let (_, report) = front.end(0)?;
    ensure!(report["starts"] == 2, "{report}");
    ensure!(Steps::read(&lab.dir.join("state"))?.number == 300);
    let hosts = ["h01", "h02", "h03", "h04", "h05"];
    wait_until("nothing is left anywhere", PATIENCE, || {
        Ok(hosts.iter().all(|host| !lab.has_ahead(host, "next")))
    })
}

#[test]
fn a_host_that_stands_by_is_left_clean_when_the_command_is_killed_and_no_job_needs_it() -> Result<()>
{
    let grid = Grid::up(5)?;
    let lab = Lab::new(&grid, LIKE_SSH)?;
    let words = ["end=4000", "every=5", "notify"];
    let options = ["--standby", "--mtbf", "2s"];
    let mut front = lab.start("lost", &options, &words)?;
    let first = lab.wait_for_host("lost", 1)?;
    let standing_by = lab.wait_for_next_host("lost", 1)?;
    ensure!(lab.has_ahead(&standing_by, "lost"));
    kill_process(front.pid, Signal::KILL)?;
    if let Some(mut child) = front.child.take() {
        child.wait()?;
    }
    wait_until("nothing is left", PATIENCE, || {
        Ok(!lab.has_ahead(&standing_by, "lost"))
    })?;
    // The next start finds the job and has a host stand by again. That machine fails, and the job's too.
    let before = lab.entries("lost", "stands_by").len();
    let front = lab.start("lost", &options, &words)?;
    wait_until("a host stands by again", PATIENCE, || {
        Ok(lab.entries("lost", "stands_by").len() > before)
    })?;
    let killed = lab.wait_for_next_host("lost", 1)?;
    for host in [&killed, &first] {
        fs::write(grid.path(&format!("down-{host}")), "")?;
        lab.kill_at_once(host);
    }
    let second = || {
        let runs = lab.entries("lost", "runs_there");
        let mut hosts = runs.iter().filter_map(|one| one["host"].as_str());
        hosts.next_back().map(str::to_owned)
    };
    wait_until("the job runs elsewhere", PATIENCE, || {
        Ok(second().is_some_and(|host| host != first && host != killed))
    })?;
    kill_process(front.pid, Signal::TERM)?;
    let ended = front.wait()?;
    ensure!(matches!(ended.code, Some(75 | 76)), "{ended}");
    Ok(())
}

#[test]
fn a_job_that_hangs_on_one_host_goes_on_on_the_next_one() -> Result<()> {
    let grid = Grid::up(5)?;
    let lab = Lab::new(&grid, LIKE_SSH)?;
    let hangs = grid.path("hangs");
    let script = format!(
        "rm '{}' 2> /dev/null && sleep 3000; sleep 2; echo done > result",
        hangs.display()
    );
    let words = ["sh", "-c", script.as_str()];
    // From this run it is known how long the job takes.
    run(&mut lab.command("known", &[], &words)?)?.expect(0)?;
    fs::write(&hangs, [])?;
    let options = ["--on-hang", "leave", "--local"];
    let ended = run(&mut lab.command("hung", &options, &words)?)?.expect(0)?;
    let report = report_of(&ended)?;
    ensure!(report["starts"] == 2, "{report}");
    let ends = lab.entries("hung", "ended_there");
    let statuses: Vec<&Value> = ends.iter().map(|end| &end["exit_code"]).collect();
    ensure!(statuses == [78, 0], "{ends:?}");
    ensure!(fs::read_to_string(lab.dir.join("result"))? == "done\n");
    Ok(())
}

#[test]
fn a_killed_launcher_is_started_again_and_a_host_that_refuses_one_loses_the_job() -> Result<()> {
    let grid = Grid::up(5)?;
    let lab = Lab::new(&grid, LIKE_SSH)?;
    // The job must not end before its machine fails.
    let words = ["end=1500", "every=5", "notify"];
    let front = lab.start("cut", &["--mtbf", "2s"], &words)?;
    let first = lab.wait_for_host("cut", 1)?;
    let is_launcher = |pid: &Pid| {
        let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
        line.is_ok_and(|line| line.ends_with(b"\0there\0"))
    };
    let launchers = || -> Vec<Pid> {
        let all = lab.processes(&first).into_iter();
        all.filter(is_launcher).collect()
    };
    let killed = launchers();
    ensure!(!killed.is_empty());
    signal_all(&killed, Signal::KILL);
    wait_until("another launcher runs", PATIENCE, || {
        let now = launchers();
        Ok(!now.is_empty() && now.iter().all(|pid| !killed.contains(pid)))
    })?;
    ensure!(lab.entries("cut", "runs_there").len() == 1);
    // The machine fails: all its processes are killed, and it refuses to start others.
    let journal = lab.there(&first, "cut", "journal.jsonl");
    wait_until("a checkpoint is there", PATIENCE, || {
        Ok(!journal_entries(&journal, "saved").is_empty())
    })?;
    fs::write(grid.path(&format!("down-{first}")), "")?;
    lab.kill_at_once(&first);
    let second = lab.wait_for_host("cut", 2)?;
    let journal = || lab.journal("cut");
    ensure!(first != second, "{}", journal());
    ensure!(lab.entries("cut", "lost").len() == 1, "{}", journal());
    let (_, report) = front.end(0)?;
    let began = lab.began()?;
    ensure!(began.last().is_some_and(|step| *step > 0), "{began:?}");
    // On a busy machine the job may move once more, to a host that measures itself as faster.
    let moves = lab.entries("cut", "better").len();
    ensure!(
        report["starts"] == 2 || moves > 0,
        "{report}\n{}",
        journal()
    );
    ensure!(Steps::read(&lab.dir.join("state"))?.number == 1500);
    Ok(())
}

#[test]
fn a_stopped_host_loses_the_job_and_its_incarnation_ends_when_the_host_continues() -> Result<()> {
    let grid = Grid::up(5)?;
    let lab = Lab::new(&grid, LIKE_SSH)?;
    let front = lab.start("still", &["--mtbf", "2s"], &["every=5", "notify"])?;
    let first = lab.wait_for_host("still", 1)?;
    lab.wait_for_step(&first, "still", 20)?;
    let asleep = lab.processes(&first);
    let old = lab.supervisor(&first, "still")?;
    signal_all(&asleep, Signal::STOP);
    let second = lab.wait_for_host("still", 2)?;
    ensure!(first != second && lab.entries("still", "lost").len() == 1);
    let journal = lab.there(&second, "still", "journal.jsonl");
    wait_until("the second one has saved", PATIENCE, || {
        Ok(!journal_entries(&journal, "saved").is_empty())
    })?;
    signal_all(&asleep, Signal::CONT);
    wait_until("the first one is gone", PATIENCE, || Ok(!lives(old)))?;
    let journal = lab.there(&first, "still", "journal.jsonl");
    let ended = journal_entries(&journal, "ended");
    ensure!(
        ended.last().is_some_and(|end| end["exit_code"] == 77),
        "{ended:?}"
    );
    ensure!(!lab.there(&first, "still", "work").exists());
    kill_process(front.pid, Signal::TERM)?;
    // If SIGTERM ends the job while it writes, its checkpoint may be older than its state (76).
    let ended = front.wait()?;
    ensure!(matches!(ended.code, Some(75 | 76)), "{ended}");
    Ok(())
}

#[test]
fn a_start_after_a_kill_finds_the_job_or_its_result() -> Result<()> {
    let grid = Grid::up(5)?;
    let lab = Lab::new(&grid, LIKE_SSH)?;
    let words = ["end=400", "every=5"];
    let front = lab.start("found", &[], &words)?;
    let host = lab.wait_for_host("found", 1)?;
    kill_process(front.pid, Signal::KILL)?;
    front.wait()?;
    let supervisor = lab.supervisor(&host, "found")?;
    ensure!(lives(supervisor));
    // A start with another command is refused, also with --local.
    let other = [HASH_JOB, "state", "end=401"];
    run(&mut lab.command("found", &[], &other)?)?.expect(125)?;
    run(&mut lab.command("found", &["--local"], &other)?)?.expect(125)?;
    let front = lab.start("found", &[], &words)?;
    lab.wait_for_host("found", 2)?;
    let again = [&[HASH_JOB, "state"][..], &words].concat();
    let refused = run(&mut lab.command("found", &[], &again)?)?.expect(125)?;
    ensure!(refused.stderr.contains("is run already"), "{refused}");
    ensure!(lab.supervisor(&host, "found")? == supervisor);
    // The second process is killed, too, and the job ends without one.
    kill_process(front.pid, Signal::KILL)?;
    front.wait()?;
    wait_until("the job has ended", PATIENCE, || Ok(!lives(supervisor)))?;
    ensure!(!lab.dir.join("state").exists());
    let (_, report) = lab.start("found", &[], &words)?.end(0)?;
    ensure!(report["host"] == *host && report["starts"] == 1, "{report}");
    ensure!(Steps::read(&lab.dir.join("state"))?.number == 400);
    ensure!(lab.began()? == [0]);
    // A job that has ended is not continued: the next start runs it as a new one.
    let (_, report) = lab.start("found", &[], &words)?.end(0)?;
    ensure!(
        report["starts"] == 1 && lab.began()? == [0, 400],
        "{report}"
    );
    Ok(())
}

#[test]
fn a_signal_ends_the_restore_of_a_result_and_the_next_start_brings_it_back() -> Result<()> {
    let grid = Grid::up(3)?;
    let lab = Lab::new(&grid, LIKE_SSH)?;
    let code = ["--data", "2", "--parity", "1"];
    let words = ["end=100", "every=5"];
    let front = lab.start("ended", &code, &words)?;
    let host = lab.wait_for_host("ended", 1)?;
    kill_process(front.pid, Signal::KILL)?;
    front.wait()?;
    let supervisor = lab.supervisor(&host, "ended")?;
    wait_until("the job has ended", PATIENCE, || Ok(!lives(supervisor)))?;
    // No host answers, so that the restore lasts.
    for (host, _) in grid.running()? {
        grid.signal(&host, Signal::STOP)?;
    }
    let front = lab.start("ended", &code, &words)?;
    let stage = lab.dir.join(".ckpt-run-ended");
    wait_until("the restore has begun", PATIENCE, || Ok(stage.exists()))?;
    kill_process(front.pid, Signal::TERM)?;
    // The result is saved, so the status asks for another start.
    let ended = front.wait()?.expect(75)?;
    ensure!(ended.stderr.contains("to fetch the result"), "{ended}");
    for host in ["h01", "h02", "h03"] {
        grid.signal(host, Signal::CONT)?;
    }
    let (_, report) = lab.start("ended", &code, &words)?.end(0)?;
    ensure!(report["starts"] == 1, "{report}");
    ensure!(Steps::read(&lab.dir.join("state"))?.number == 100);
    Ok(())
}

#[test]
fn a_signal_ends_the_wait_for_a_host() -> Result<()> {
    let grid = Grid::up(3)?;
    let lab = Lab::new(&grid, LIKE_SSH)?;
    let code = ["--data", "2", "--parity", "1"];
    let words = ["term", "every=5"];
    let front = lab.start("waits", &code, &words)?;
    let host = lab.wait_for_host("waits", 1)?;
    lab.wait_for_step(&host, "waits", 10)?;
    // The job leaves its host, and no host takes it.
    for host in ["h01", "h02", "h03"] {
        fs::write(grid.path(&format!("down-{host}")), "")?;
    }
    kill_process(lab.supervisor(&host, "waits")?, Signal::TERM)?;
    let waits = || lab.entries("waits", "waits").len();
    let end = |front: Front, before: usize, signal: Signal, status: i32| {
        wait_until("it waits for a host", PATIENCE, || Ok(waits() > before))?;
        kill_process(front.pid, Signal::WINCH)?;
        kill_process(front.pid, signal)?;
        front.wait()?.expect(status)
    };
    end(front, 0, Signal::INT, 130)?;
    let before = waits();
    end(lab.start("waits", &code, &words)?, before, Signal::TERM, 75)?;
    Ok(())
}

#[test]
fn a_job_starts_on_no_host_that_its_owner_needs_and_waits_until_one_is_free() -> Result<()> {
    let grid = Grid::up(7)?;
    let lab = Lab::new(&grid, LIKE_SSH)?;
    // Five hosts store checkpoints and take no jobs.
    for host in ["h01", "h02", "h03", "h04", "h05"] {
        fs::write(grid.path(&format!("down-{host}")), "")?;
    }
    let is_free = |host: &str, expected: bool| {
        wait_until("the host announces its owner's word", PATIENCE, || {
            let rank = grid.run(["--json", "rank", "--work", "1h"])?.json()?;
            let mut hosts = rank["hosts"].as_array().into_iter().flatten();
            Ok(hosts.any(|one| one["host"] == host) == expected)
        })
    };
    grid.store("h06", &["pause"])?.expect(0)?;
    is_free("h06", false)?;
    let front = lab.start("polite", &[], &["term", "every=5"])?;
    ensure!(lab.wait_for_host("polite", 1)? == "h07");
    lab.wait_for_step("h07", "polite", 10)?;
    grid.store("h07", &["pause"])?.expect(0)?;
    is_free("h07", false)?;
    kill_process(lab.supervisor("h07", "polite")?, Signal::TERM)?;
    let waits = || Ok(!lab.entries("polite", "waits").is_empty());
    wait_until("it waits for a host", PATIENCE, waits)?;
    grid.store("h06", &["resume"])?.expect(0)?;
    ensure!(lab.wait_for_host("polite", 2)? == "h06");
    kill_process(front.pid, Signal::TERM)?;
    front.end(75)?;
    Ok(())
}

#[test]
fn signals_reach_the_job_and_a_job_that_cannot_start_has_a_status_of_its_own() -> Result<()> {
    let grid = Grid::up(3)?;
    let lab = Lab::new(&grid, LIKE_SSH)?;
    let two = ["--data", "2", "--parity", "1"];
    let front = lab.start("signalled", &two, &["term", "every=5"])?;
    let host = lab.wait_for_host("signalled", 1)?;
    lab.wait_for_step(&host, "signalled", 10)?;
    kill_process(front.pid, Signal::TERM)?;
    let (_, report) = front.end(75)?;
    ensure!(report["ended_by"] == "supervisor", "{report}");
    ensure!(!lab.dir.join("state").exists());
    // The next start continues the job. SIGINT is passed on to the job and ends it.
    let front = lab.start("signalled", &two, &["term", "every=5"])?;
    let host = lab.wait_for_host("signalled", 2)?;
    lab.wait_for_step(&host, "signalled", 20)?;
    kill_process(front.pid, Signal::INT)?;
    let (ended, report) = front.end(130)?;
    ensure!(
        report["ended_by"] == "job" && report["starts"] == 2,
        "{ended}"
    );
    ensure!(lab.began()?.len() == 2 && Steps::read(&lab.dir.join("state"))?.number >= 20);
    let not_there = run(&mut lab.command("none", &two, &["/no/such/program"])?)?.expect(127)?;
    ensure!(not_there.stderr.contains("was not started"), "{not_there}");
    for host in ["h01", "h02", "h03"] {
        fs::write(grid.path(&format!("down-{host}")), "")?;
    }
    run(&mut lab.command("down", &two, &["true"])?)?.expect(125)?;
    let wrong = ["run", "--on", "ssh host", "--job", "x", "--", "true"];
    let wrong = grid.run(wrong)?.expect(125)?;
    ensure!(wrong.stderr.contains("{host}"), "{wrong}");
    grid.run([
        "run",
        "--on",
        "ssh {host}",
        "--job",
        "x",
        "--files",
        "a",
        "--",
        "true",
    ])?
    .expect(2)?;
    Ok(())
}
