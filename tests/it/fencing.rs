//! `ckpt save --after`: of all saves after one version, at most one is committed, even if savers and hosts
//! die, are stopped, or are cut off.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::cluster::{Cluster, Node};
use tests::liar::Lie;
use tests::mixed::MixedGrid;
use tests::program;
use tests::{Grid, Outcome, image};

fn save(grid: &Grid, more: &[&str]) -> Result<Outcome> {
    let save = ["--json", "save", "--job", "42", "image"];
    grid.run(save.iter().chain(more))
}

fn grid_with_image(hosts: usize) -> Result<Grid> {
    let grid = Grid::up(hosts)?;
    fs::write(grid.path("image"), image::memory(1 << 20, 1))?;
    Ok(grid)
}

fn error(outcome: &Outcome) -> Result<Value> {
    Ok(outcome.json()?["error"].clone())
}

#[test]
fn a_save_follows_the_version_that_it_names_or_loses() -> Result<()> {
    let grid = grid_with_image(6)?;
    let first = save(&grid, &["--after", "none"])?.expect(0)?.json()?;
    ensure!(first["fence"].is_null(), "{first}");
    let said = first["notes"].to_string();
    ensure!(said.contains("no witnesses"), "{first}");
    let second = save(&grid, &["--after", "1", "--fence", "strong"])?;
    let second = second.expect(0)?.json()?;
    let fence = &second["fence"];
    let numbers = [&fence["after"], &fence["witnesses"], &fence["needed"]];
    ensure!(numbers == [1, 5, 4] && fence["fenced"] == true, "{second}");
    ensure!(fence["after_checkpoint"] == first["checkpoint"], "{second}");
    // `--after` also takes the id of a checkpoint instead of a version.
    let id = second["checkpoint"].as_str().context("no id")?;
    let third = save(&grid, &["--after", id])?.expect(0)?.json()?;
    ensure!(third["fence"]["needed"] == 3, "{third}");
    for late in ["1", "2", id] {
        let lost = save(&grid, &["--after", late])?.expect(10)?;
        let other = &error(&lost)?["successor"];
        ensure!(other["checkpoint"] == third["checkpoint"], "{lost}");
        ensure!(
            other["committed"] == true && other["version"] == 3,
            "{lost}"
        );
    }
    save(&grid, &["--after", "none"])?.expect(10)?;
    save(&grid, &["--after", "7"])?.expect(4)?;
    save(&grid, &["--after", "latest"])?.expect(2)?;
    save(&grid, &["--unfenced"])?.expect(2)?;
    ensure!(grid.versions("42")? == [2, 3], "{:?}", grid.versions("42")?);
    // A save without `--after` notes that an earlier version was saved with it.
    let past = save(&grid, &[])?.expect(0)?.json()?;
    let said = past["notes"].to_string();
    ensure!(said.contains("saved with --after"), "{past}");
    let text = grid.run(["save", "--job", "42", "image", "--after", "4"])?;
    let text = String::from_utf8(text.expect(0)?.stdout)?;
    ensure!(text.contains("the only successor of version 4: "), "{text}");
    Ok(())
}

#[test]
fn without_enough_witnesses_a_save_fails_unless_it_is_unfenced() -> Result<()> {
    let grid = grid_with_image(9)?;
    save(&grid, &[])?.expect(0)?;
    let witnesses = grid.holders("42")?;
    for host in &witnesses[..2] {
        grid.kill(host)?;
    }
    save(&grid, &["--after", "1", "--fence", "strong"])?.expect(5)?;
    ensure!(grid.versions("42")? == [1]);
    // Seven hosts are left, enough for five shards, and three of five witnesses are a majority.
    let second = save(&grid, &["--after", "1"])?.expect(0)?.json()?;
    let second = second["version"].to_string();
    let witnesses = grid.holders("42")?;
    for host in &witnesses[..3] {
        grid.kill(host)?;
    }
    grid.restart()?;
    for host in &witnesses[..3] {
        grid.kill(host)?;
    }
    let lacking = save(&grid, &["--after", &second])?.expect(5)?;
    let error = error(&lacking)?;
    let message = error["message"].to_string();
    ensure!(message.contains("2 answer, but 3 are needed"), "{lacking}");
    ensure!(
        error["next"].to_string().contains("--unfenced"),
        "{lacking}"
    );
    let died: Vec<&str> = error["hosts"]
        .as_array()
        .context("no hosts")?
        .iter()
        .filter_map(|host| host["host"].as_str())
        .collect();
    ensure!(
        witnesses[..3]
            .iter()
            .all(|host| died.contains(&host.as_str())),
        "{lacking}"
    );
    let word = save(&grid, &["--after", &second, "--unfenced"])?
        .expect(0)?
        .json()?;
    ensure!(word["fence"]["fenced"] == false, "{word}");
    ensure!(
        word["notes"]
            .to_string()
            .contains("not fenced (--unfenced)"),
        "{word}"
    );
    Ok(())
}

/// Witnesses keep their promises on disk, and remove them with the checkpoint.
#[test]
fn promises_outlive_restarts_and_go_with_the_version() -> Result<()> {
    let grid = grid_with_image(5)?;
    save(&grid, &[])?.expect(0)?;
    save(&grid, &["--after", "1", "--keep", "9"])?.expect(0)?;
    let hosts: Vec<String> = grid.running()?.into_iter().map(|(name, _)| name).collect();
    let promises = || -> Result<usize> {
        let files = hosts.iter().map(|host| grid.fence_files(host));
        Ok(files.collect::<Result<Vec<_>>>()?.concat().len())
    };
    ensure!(promises()? >= 3, "{}", promises()?);
    for host in &hosts {
        grid.kill(host)?;
    }
    grid.restart()?;
    save(&grid, &["--after", "1"])?.expect(10)?;
    let third = save(&grid, &["--after", "2", "--keep", "1"])?.expect(0)?;
    ensure!(
        grid.versions("42")? == [3] || grid.versions("42")? == [1, 3],
        "{third}"
    );
    grid.run(["forget", "--job", "42", "--all"])?.expect(0)?;
    ensure!(promises()? == 0, "{} promises are left", promises()?);
    Ok(())
}

/// Two of five witnesses accept whatever they are asked, and four have to agree.
#[test]
fn two_witnesses_that_forget_their_promises_have_no_two_saves_committed() -> Result<()> {
    let grid = MixedGrid::up(3, 2)?;
    fs::write(grid.path("image"), image::memory(1 << 16, 1))?;
    let mut committed = 0;
    for number in 0..4 {
        let job = format!("job-{number}");
        let save = |more: &[&str]| {
            let save = ["save", "--keep", "9", "--job", &job, "image"];
            grid.run(save.iter().chain(more))
        };
        grid.lie(Lie::None);
        save(&[])?.expect(0)?;
        grid.lie(Lie::ForgetsPromises);
        let fenced = ["--after", "1", "--fence", "strong"];
        let codes = std::thread::scope(|scope| {
            let running = [0, 1].map(|_| scope.spawn(|| save(&fenced)));
            let ended = running.into_iter().map(|thread| match thread.join() {
                Ok(outcome) => Ok(outcome?.code),
                Err(_) => anyhow::bail!("a test panicked"),
            });
            ended.collect::<Result<Vec<_>>>()
        })?;
        let done = codes.iter().filter(|code| **code == Some(0)).count();
        ensure!(done <= 1, "{codes:?}");
        committed += done;
    }
    ensure!(committed > 0, "no save was ever committed");
    Ok(())
}

/// A running `ckpt save` on a machine of its own.
struct Saver {
    child: Option<Child>,
    machine: String,
}

impl Saver {
    fn start(cluster: &Cluster, run: &Run, name: &str) -> Result<Self> {
        let machine = format!("{}-{name}", run.job);
        fs::write(cluster.path(&machine), image::memory(run.bytes, run.seed))?;
        let strength = if run.is_strong { "strong" } else { "majority" };
        let args = [
            "save", "--json", "--job", &run.job, "--keep", "9", "--full", "--after", "1",
            "--fence", strength, &machine,
        ];
        let state = format!("state-{machine}");
        let child = cluster.command(&state, args)?.spawn()?;
        Ok(Self {
            child: Some(child),
            machine,
        })
    }

    fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            // Fails if the process has ended.
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    fn end(mut self) -> Result<Option<i32>> {
        self.signal(Signal::CONT);
        let child = self.child.take().context("no child")?;
        let outcome = program::wait(child)?;
        let is_known = matches!(outcome.code, None | Some(0 | 1 | 5 | 10));
        ensure!(is_known, "{}: {outcome}", self.machine);
        Ok(outcome.code)
    }
}

/// The job and the save of one run.
#[derive(Debug)]
struct Run {
    job: String,
    seed: u64,
    bytes: usize,
    is_strong: bool,
}

/// How far a save has come: the number of promises, accepted proposals and manifests that were added on
/// the disks of the hosts.
fn progress(cluster: &Cluster, before: [usize; 2]) -> Result<usize> {
    let [promised, committed] = counts(cluster)?;
    Ok(promised + committed - before[0] - before[1])
}

fn counts(cluster: &Cluster) -> Result<[usize; 2]> {
    let mut counts = [0; 2];
    for host in &cluster.hosts {
        for file in host.files_of("fences")? {
            // The file may be replaced at this moment.
            let len = fs::metadata(file).map_or(0, |file| file.len());
            counts[0] += 1 + usize::from(len > 400);
        }
        counts[1] += host.files_of("manifests")?.len();
    }
    Ok(counts)
}

/// Waits until a save has come to step `step`, for at most 1.5 s.
fn wait_for_step(cluster: &Cluster, before: [usize; 2], step: usize) -> Result<()> {
    let began = Instant::now();
    while progress(cluster, before)? < step && began.elapsed() < Duration::from_millis(1500) {
        std::thread::yield_now();
    }
    Ok(())
}

/// The fault of a run; the number is that of the hosts that it hits.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    StopSaver,
    KillSaver,
    StopHosts(usize),
    CutHosts(usize),
    KillHosts(usize),
}

impl Trouble {
    fn drawn(random: &mut StdRng) -> Self {
        let some = random.random_range(1..4);
        match random.random_range(0..5) {
            0 => Self::StopSaver,
            1 => Self::KillSaver,
            2 => Self::StopHosts(some),
            3 => Self::CutHosts(some),
            _ => Self::KillHosts(some),
        }
    }

    fn begin(self, first: &Saver, hosts: &[&Node]) -> Result<()> {
        match self {
            Self::StopSaver => first.signal(Signal::STOP),
            Self::KillSaver => first.signal(Signal::KILL),
            Self::StopHosts(n) => hosts[..n]
                .iter()
                .try_for_each(|host| host.signal(Signal::STOP))?,
            Self::CutHosts(n) => hosts[..n].iter().for_each(|host| host.relay.cut(true)),
            Self::KillHosts(n) => hosts[..n].iter().try_for_each(|host| host.kill())?,
        }
        Ok(())
    }

    fn end(self, cluster: &Cluster, first: &Saver, hosts: &[&Node]) -> Result<()> {
        match self {
            Self::StopSaver | Self::KillSaver => first.signal(Signal::CONT),
            Self::StopHosts(n) => hosts[..n]
                .iter()
                .try_for_each(|host| host.signal(Signal::CONT))?,
            Self::CutHosts(n) => hosts[..n].iter().for_each(|host| host.relay.cut(false)),
            Self::KillHosts(_) => cluster.start_stopped()?,
        }
        Ok(())
    }
}

/// Counts of what became of the saves of all runs.
#[derive(Debug, Default)]
struct Outcomes {
    /// Saves that ended with exit status 0.
    committed: usize,
    /// Saves that lost to another one.
    lost: usize,
    /// Saves that were killed or failed otherwise.
    failed: usize,
    /// Half-done saves that a later one finished.
    finished: usize,
}

/// Runs two saves after the same version, with a fault at a step of the first one.
fn race(cluster: &Cluster, number: u64, outcomes: &mut Outcomes) -> Result<()> {
    let mut random = StdRng::seed_from_u64(number);
    let run = Run {
        job: format!("race-{number}"),
        seed: number,
        bytes: 1 << random.random_range(12..20),
        is_strong: random.random_range(0..4) == 0,
    };
    fs::write(cluster.path("first"), b"first")?;
    cluster
        .run(["save", "--job", &run.job, "--after", "none", "first"])?
        .expect(0)?;
    let step = random.random_range(0..16);
    let trouble = Trouble::drawn(&mut random);
    let mut hosts: Vec<&Node> = cluster.hosts.iter().collect();
    hosts.rotate_left(random.random_range(0..5));
    let what = format!("run {number}: {trouble:?} at step {step}: {run:?}");
    let before = counts(cluster)?;
    let first = Saver::start(cluster, &run, "a")?;
    let second_at_once = random.random_range(0..2) == 0;
    let early = second_at_once.then(|| Saver::start(cluster, &run, "b"));
    wait_for_step(cluster, before, step)?;
    trouble.begin(&first, &hosts)?;
    let second = match early {
        Some(early) => early?,
        None => Saver::start(cluster, &run, "b")?,
    };
    // The fault lasts long enough for a save that can go on, and not until one that can't gives up.
    std::thread::sleep(Duration::from_millis(random.random_range(50..900)));
    trouble.end(cluster, &first, &hosts)?;
    let ended = [first.end()?, second.end()?];
    for code in ended {
        match code {
            Some(0) => outcomes.committed += 1,
            Some(10) => outcomes.lost += 1,
            _ => outcomes.failed += 1,
        }
    }
    check(cluster, &run, ended, outcomes).with_context(|| what)
}

fn versions(cluster: &Cluster, job: &str) -> Result<Vec<u64>> {
    let listed = cluster.run(["--json", "list", "--job", job])?.expect(0)?;
    let listed = listed.json()?;
    let all = listed["checkpoints"].as_array().context("no checkpoints")?;
    Ok(all
        .iter()
        .filter_map(|one| one["version"].as_u64())
        .collect())
}

/// Checks that at most one version follows the first, and that a restarted job can restore and save.
fn check(
    cluster: &Cluster,
    run: &Run,
    ended: [Option<i32>; 2],
    outcomes: &mut Outcomes,
) -> Result<()> {
    let done = ended.iter().filter(|code| **code == Some(0)).count();
    ensure!(done <= 1, "both were committed: {ended:?}");
    let shown = versions(cluster, &run.job)?;
    ensure!(
        shown.len() <= 2 && shown.len() > done,
        "{shown:?}, {ended:?}"
    );
    // The job restores the newest version and saves after it, until a save is committed.
    for _ in 0..4 {
        let restore = [
            "restore", "--json", "--job", &run.job, "--force", "-o", "again",
        ];
        let restored = cluster.run(restore)?;
        // A version that too few hosts show is passed over, with a warning.
        ensure!([Some(0), Some(3)].contains(&restored.code), "{restored}");
        let version = restored.json()?["version"].to_string();
        let again = cluster.run([
            "save", "--json", "--job", &run.job, "--keep", "9", "--after", &version, "again",
        ])?;
        match again.code {
            Some(0) => {
                let shown = versions(cluster, &run.job)?;
                ensure!(shown.len() <= 3, "{shown:?}");
                return Ok(());
            }
            // This save finished another one that was half done. The next restore gets that one's version.
            Some(10) => {
                let other = error(&again)?["successor"].clone();
                ensure!(other["committed"] == true, "{again}");
                outcomes.finished += 1;
            }
            _ => return Err(anyhow::anyhow!("{again}")),
        }
    }
    anyhow::bail!("the job does not go on")
}

fn races(numbers: std::ops::Range<u64>) -> Result<()> {
    let cluster = Cluster::start(5, 0, &[])?;
    let mut outcomes = Outcomes::default();
    let runs = numbers.end - numbers.start;
    for number in numbers {
        race(&cluster, number, &mut outcomes)?;
    }
    println!("{runs} runs: {outcomes:?}");
    Ok(())
}

#[test]
fn of_two_saves_after_one_version_at_most_one_is_committed_and_the_job_goes_on() -> Result<()> {
    races(0..6)
}

#[test]
#[ignore = "takes minutes"]
fn in_a_hundred_runs_never_two_saves_after_one_version_are_committed() -> Result<()> {
    races(100..200)
}

/// For each step, a save is killed as soon as the disks of the hosts show that step.
#[test]
#[ignore = "takes minutes"]
fn a_job_goes_on_at_whichever_step_its_save_was_killed() -> Result<()> {
    let cluster = Cluster::start(5, 0, &[])?;
    let mut outcomes = Outcomes::default();
    for step in 0..=15 {
        let run = Run {
            job: format!("killed-{step}"),
            seed: 1,
            bytes: 1 << 16,
            is_strong: step % 2 == 1,
        };
        fs::write(cluster.path("first"), b"first")?;
        cluster
            .run(["save", "--job", &run.job, "first"])?
            .expect(0)?;
        let before = counts(&cluster)?;
        let killed = Saver::start(&cluster, &run, "a")?;
        wait_for_step(&cluster, before, step)?;
        killed.signal(Signal::KILL);
        let code = killed.end()?;
        check(&cluster, &run, [code, None], &mut outcomes)
            .with_context(|| format!("step {step}"))?;
    }
    println!("{outcomes:?}");
    Ok(())
}

/// A save that died when some of the hosts had its commit is finished by the next one, which names it.
#[test]
fn a_save_that_died_in_its_commit_is_finished_however_few_hosts_show_it() -> Result<()> {
    let cluster = Cluster::start(5, 0, &[])?;
    let mut outcomes = Outcomes::default();
    for committed in [1, 2, 4] {
        let run = Run {
            job: format!("commit-{committed}"),
            seed: 1,
            bytes: 1 << 16,
            is_strong: committed == 2,
        };
        fs::write(cluster.path("first"), b"first")?;
        cluster
            .run(["save", "--job", &run.job, "first"])?
            .expect(0)?;
        let before = manifests(&cluster)?;
        let saved = Saver::start(&cluster, &run, "a")?.end()?;
        ensure!(saved == Some(0), "{saved:?}");
        let added = manifests(&cluster)?;
        let added: Vec<_> = added.difference(&before).collect();
        ensure!(added.len() == 5, "{added:?}");
        for host in &cluster.hosts {
            host.kill()?;
        }
        for manifest in &added[committed..] {
            fs::remove_file(manifest)?;
        }
        cluster.start_stopped()?;
        check(&cluster, &run, [None, None], &mut outcomes)
            .with_context(|| format!("{committed} of 5 have committed"))?;
    }
    // Four shards are enough for a restore, so that save is the newest version at once.
    ensure!(outcomes.finished == 2, "{outcomes:?}");
    Ok(())
}

fn manifests(cluster: &Cluster) -> Result<BTreeSet<PathBuf>> {
    let mut all = BTreeSet::new();
    for host in &cluster.hosts {
        all.extend(host.files_of("manifests")?);
    }
    Ok(all)
}

/// Compares saves with and without `--after` on links with a round trip of 100 ms.
#[test]
#[ignore = "measures"]
fn a_fenced_save_takes_less_than_one_and_a_half_round_trips_more() -> Result<()> {
    const ROUND_TRIP: f64 = 0.1;
    let cluster = Cluster::start(5, 0, &[])?;
    for host in &cluster.hosts {
        host.relay.weather(0, 50, 0);
    }
    fs::write(cluster.path("image"), image::memory(1 << 16, 1))?;
    let seconds = |more: &[&str]| -> Result<f64> {
        let save = ["--json", "save", "--job", "42", "--full", "image"];
        let saved = cluster.run(save.iter().chain(more))?.expect(0)?.json()?;
        saved["seconds"].as_f64().context("no time")
    };
    let mut plain = Vec::new();
    let mut fenced = Vec::new();
    for version in (1..16).step_by(2) {
        plain.push(seconds(&[])?);
        fenced.push(seconds(&["--after", &version.to_string()])?);
    }
    for times in [&mut plain, &mut fenced] {
        times.sort_by(f64::total_cmp);
    }
    let plain = plain[plain.len() / 2];
    let fenced = fenced[fenced.len() / 2];
    let more = (fenced - plain) / ROUND_TRIP;
    println!("{plain:.3} s, with --after {fenced:.3} s: {more:.2} round trips more");
    ensure!(more < 1.5, "{more} round trips");
    Ok(())
}
