//! Kept is kept: what a kept version builds on is never deleted, whoever deletes, and whatever is away.

use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use codec::CheckpointId;
use codec::notice::Notice;
use protocol::wire::message::Request;
use rustix::process::Signal;
use serde_json::Value;
use tests::cluster::{Cluster, Node};
use tests::program::{wait, wait_until};
use tests::skip::not_checked;
use tests::{Grid, image};

use crate::jobkeys::{Root, key_for, run_with};

const LIMIT: Duration = Duration::from_secs(120);

const MIB: usize = 1 << 20;

/// An image that is large enough to be a base, and others that differ from it in a few bytes.
fn images() -> [Vec<u8>; 6] {
    let first = image::noise(5 * MIB, 1);
    std::array::from_fn(|number| {
        let mut bytes = first.clone();
        for byte in bytes.iter_mut().take(7) {
            *byte ^= number as u8;
        }
        bytes
    })
}

fn save_with(grid: &Grid, key: &str, bytes: &[u8], more: &[&str]) -> Result<Value> {
    fs::write(grid.path("image"), bytes)?;
    let save = ["--json", "save", "--job", "42", "--keep", "9", "image"];
    let args: Vec<&str> = save.iter().chain(more).copied().collect();
    run_with(grid, key, &args)?.expect(0)?.json()
}

fn save(grid: &Grid, bytes: &[u8], more: &[&str]) -> Result<Value> {
    fs::write(grid.path("image"), bytes)?;
    let save = ["--json", "save", "--job", "42", "image"];
    grid.run(save.iter().chain(more))?.expect(0)?.json()
}

/// Restores a version, and fails unless it is `expected`.
fn restores(grid: &Grid, version: &str, expected: &[u8]) -> Result<()> {
    let restore = ["restore", "--job", "42", "--version", version, "-o", "-"];
    let restored = grid.run(restore)?.expect(0)?;
    ensure!(restored.stdout == expected, "version {version} differs");
    Ok(())
}

fn revoke(grid: &Grid, key: &str) -> Result<()> {
    grid.run(["key", "revoke", "--file", key])?.expect(0)?;
    Ok(())
}

#[test]
fn revoking_a_job_key_takes_no_version_of_another_key_with_it() -> Result<()> {
    let grid = Grid::up(6)?;
    for key in ["k1.key", "k2.key"] {
        key_for(&grid, "42", key, &[])?;
    }
    let images = images();
    save_with(&grid, "k1.key", &images[1], &[])?;
    save_with(&grid, "k2.key", &images[2], &[])?;
    let patch = save_with(&grid, "k2.key", &images[3], &[])?;
    ensure!(patch["base"] == 2, "a key builds on its own: {patch}");
    revoke(&grid, "k1.key")?;
    restores(&grid, "2", &images[2])?;
    restores(&grid, "3", &images[3])?;
    grid.run(["verify", "--job", "42"])?.expect(0)?;
    let listed = grid.run(["--json", "list", "--job", "42"])?.json()?;
    ensure!(listed["checkpoints"][2]["can_lose"] == 2, "{listed}");
    // The owner's own versions do not build on what a job key signed either.
    let by_hand = save(&grid, &images[4], &["--keep", "9"])?;
    ensure!(by_hand["base"].is_null(), "{by_hand}");
    revoke(&grid, "k2.key")?;
    restores(&grid, "4", &images[4])
}

#[test]
fn what_a_revoked_key_built_on_is_still_read_by_number() -> Result<()> {
    let grid = Grid::up(6)?;
    key_for(&grid, "42", "k1.key", &[])?;
    let images = images();
    save_with(&grid, "k1.key", &images[1], &[])?;
    let patch = save_with(&grid, "k1.key", &images[2], &[])?;
    ensure!(patch["base"] == 1, "{patch}");
    revoke(&grid, "k1.key")?;
    restores(&grid, "2", &images[2])?;
    // The base of what is kept is not removed, and with all of it, it is.
    let refused = grid.run(["forget", "--job", "42", "--version", "1"])?;
    ensure!(refused.code == Some(1), "{refused}");
    grid.run(["forget", "--job", "42", "--all"])?.expect(0)?;
    ensure!(grid.versions("42")?.is_empty());
    Ok(())
}

/// Waits until a save has chosen what it builds on.
fn wait_until_sending(grid: &Grid) -> Result<()> {
    wait_until("the save has begun to send", LIMIT, || {
        for host in 1..=6 {
            let dir = grid.data_dir(&format!("h{host:02}")).join("incoming");
            if fs::read_dir(dir)?.next().is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    })
}

/// Starts a save that takes some seconds, and waits until it has chosen what it builds on.
fn slow_save(grid: &Grid, bytes: &[u8]) -> Result<Child> {
    fs::write(grid.path("slow"), bytes)?;
    let args = [
        "--json",
        "--bandwidth",
        "1MiB",
        "save",
        "--job",
        "42",
        "slow",
    ];
    let child = grid.command(args)?.spawn()?;
    wait_until_sending(grid)?;
    Ok(child)
}

/// An image that differs from the first one in as much as takes some seconds to send.
fn much_changed() -> Vec<u8> {
    let [mut bytes, ..] = images();
    let other = image::noise(2 * MIB, 9);
    bytes[..other.len()].copy_from_slice(&other);
    bytes
}

#[test]
fn a_save_whose_base_is_deleted_meanwhile_is_saved_again_whole() -> Result<()> {
    let grid = Grid::up(6)?;
    save(&grid, &images()[0], &[])?;
    let changed = much_changed();
    let saving = slow_save(&grid, &changed)?;
    grid.run(["forget", "--job", "42", "--all"])?.expect(0)?;
    let saved = wait(saving)?.expect(0)?.json()?;
    ensure!(saved["base"].is_null(), "{saved}");
    let version = saved["version"].as_u64().context("no version")?;
    restores(&grid, &version.to_string(), &changed)?;
    ensure!(
        grid.versions("42")? == [version],
        "what was saved first is gone"
    );
    grid.run(["verify", "--job", "42"])?.expect(0)?;
    Ok(())
}

#[test]
fn a_stream_whose_base_is_deleted_meanwhile_is_no_success() -> Result<()> {
    let grid = Grid::up(6)?;
    save(&grid, &images()[0], &[])?;
    fs::write(grid.path("stream"), much_changed())?;
    let args = ["--json", "--bandwidth", "1MiB", "save", "--job", "42", "-"];
    let mut command = grid.command(args)?;
    command.stdin(fs::File::open(grid.path("stream"))?);
    let saving = command.spawn()?;
    wait_until_sending(&grid)?;
    grid.run(["forget", "--job", "42", "--all"])?.expect(0)?;
    let failed = wait(saving)?;
    ensure!(failed.code == Some(1), "{failed}");
    ensure!(
        grid.versions("42")?.is_empty(),
        "what nobody can read is gone"
    );
    Ok(())
}

const ON_ALL: [&str; 6] = ["--data", "3", "--parity", "7", "--keep", "9"];

/// When the versions of a job were created, from the first one on.
fn created(listed: &Value) -> Result<Vec<u64>> {
    let all = listed["checkpoints"].as_array().context("no checkpoints")?;
    Ok(all
        .iter()
        .filter_map(|one| one["created"].as_u64())
        .collect())
}

#[test]
fn a_base_whose_hosts_are_away_is_in_no_stretch_of_deletion() -> Result<()> {
    let grid = Grid::up(10)?;
    let names = |from: u8| (from..from + 5).map(|number| format!("h{number:02}"));
    let signal = |from, what| names(from).try_for_each(|host| grid.signal(&host, what).map(|_| ()));
    let images = images();
    save(&grid, &images[0], &ON_ALL)?;
    signal(6, Signal::STOP)?;
    save(&grid, &images[1], &["--full", "--keep", "9"])?;
    signal(6, Signal::CONT)?;
    let patch = save(&grid, &images[2], &ON_ALL)?;
    ensure!(patch["base"] == 2, "{patch}");
    std::thread::sleep(Duration::from_secs(2));
    save(&grid, &images[3], &ON_ALL)?;
    // The base of versions 3 and 4 is away.
    signal(1, Signal::STOP)?;
    save(&grid, &images[4], &["--full", "--keep", "9"])?;
    let listed = grid.run(["--json", "list", "--job", "42"])?.json()?;
    let created = created(&listed)?;
    ensure!(created.len() == 4, "{listed}");
    let within = format!("{}s", created[3] - created[2]);
    let forget = ["forget", "--job", "42", "--keep-within", &within];
    let forgotten = grid.run(["--json"].iter().chain(&forget))?.json()?;
    ensure!(
        forgotten["removed"] == serde_json::json!([3, 1]),
        "{forgotten}"
    );
    signal(1, Signal::CONT)?;
    grid.run(["gc"])?.expect(0)?;
    restores(&grid, "4", &images[3])?;
    restores(&grid, "5", &images[4])?;
    ensure!(grid.versions("42")? == [2, 4, 5]);
    Ok(())
}

/// How many intervals the last notice on the only job has, on the host that has most.
fn intervals(grid: &Grid, hosts: u8) -> Result<usize> {
    let mut most = 0;
    for host in 1..=hosts {
        let dir = grid.data_dir(&format!("h{host:02}")).join("notices");
        for owner in fs::read_dir(dir)? {
            for file in fs::read_dir(owner?.path())? {
                let notice = Notice::parse(fs::read(file?.path())?)?;
                most = most.max(notice.words().intervals.len());
            }
        }
    }
    Ok(most)
}

#[test]
fn each_save_does_not_add_an_interval_to_the_notice() -> Result<()> {
    let grid = Grid::up(6)?;
    let images = images();
    save(&grid, &images[0], &["--keep", "1"])?;
    for number in 1..=12 {
        let patch = save(&grid, &images[1 + number % 5], &["--keep", "1"])?;
        ensure!(patch["base"] == number, "{patch}");
    }
    // Two are kept, the one with the rest of the image and the newest.
    let count = intervals(&grid, 6)?;
    ensure!((1..=3).contains(&count), "{count} intervals");
    ensure!(grid.versions("42")? == [1, 13]);
    restores(&grid, "13", &images[3])
}

/// Eight days, in seconds: a host keeps what is inside of a deleted stretch for seven.
const EIGHT_DAYS: i64 = 8 * 86_400;

/// Time in which each host has looked several times for what is to be removed. Hosts do not report when they first
/// find something in a deleted stretch.
const ROUNDS: Duration = Duration::from_secs(12);

/// A job on ten hosts, each of which is there or away.
struct Absences<'a> {
    cluster: &'a Cluster,
    job: &'a str,
}

impl Absences<'_> {
    fn run(&self, args: &[&str]) -> Result<Value> {
        let of_job = ["--job", self.job];
        let args: Vec<&str> = ["--json"]
            .into_iter()
            .chain(args.iter().copied())
            .chain(of_job)
            .collect();
        let ended = self.cluster.run(args)?;
        // 3: some hosts did not hear of it, since they are away.
        ensure!(matches!(ended.code, Some(0 | 3)), "{}: {ended}", self.job);
        ended.json()
    }

    fn save(&self, bytes: &[u8], more: &[&str]) -> Result<Value> {
        let image = format!("image-{}", self.job);
        fs::write(self.cluster.path(&image), bytes)?;
        let save = ["save", &image];
        self.run(&save.iter().chain(more).copied().collect::<Vec<_>>())
    }

    fn restores(&self, version: &str, expected: &[u8]) -> Result<()> {
        let restore = [
            "restore",
            "--job",
            self.job,
            "--version",
            version,
            "-o",
            "-",
        ];
        let restored = self.cluster.run(restore)?.expect(0)?;
        ensure!(
            restored.stdout == expected,
            "{} {version} differs",
            self.job
        );
        Ok(())
    }

    fn versions(&self) -> Result<Vec<u64>> {
        let listed = self.run(&["list"])?;
        let all = listed["checkpoints"].as_array().context("no checkpoints")?;
        Ok(all
            .iter()
            .filter_map(|one| one["version"].as_u64())
            .collect())
    }
}

/// Sets the clocks of all hosts ahead, until one of these hosts has removed a base that was away when its job was
/// deleted. The week until then begins when a host first finds it in the deleted stretch.
fn a_week_passes(cluster: &Cluster, first: &[Node]) -> Result<()> {
    let on_first = || -> Result<usize> {
        let mut all = 0;
        for host in first {
            all += host.files_of("manifests")?.len();
        }
        Ok(all)
    };
    let before = on_first()?;
    let mut ahead = 0;
    wait_until("a week is over", LIMIT, || {
        ahead += EIGHT_DAYS;
        for host in &cluster.hosts {
            host.set_clock(ahead)?;
        }
        std::thread::sleep(ROUNDS);
        Ok(on_first()? < before)
    })
}

#[test]
fn what_is_kept_outlives_eight_days_whoever_was_away_when_others_were_deleted() -> Result<()> {
    let cluster = Cluster::start(10, 0, &[("CKPT_REPAIR_PERIOD", "300ms")])?;
    if !cluster.powers.clocks {
        return not_checked("deletion after a week", "libfaketime is not installed");
    }
    let [first, second] = [&cluster.hosts[..5], &cluster.hosts[5..]];
    let jobs = ["keep", "within", "gc", "gone"].map(|job| Absences {
        cluster: &cluster,
        job,
    });
    let images = images();
    let save = |image: usize, more: &[&str]| -> Result<()> {
        jobs.iter()
            .try_for_each(|job| job.save(&images[image], more).map(|_| ()))
    };
    save(0, &ON_ALL)?;
    second.iter().try_for_each(|host| host.kill())?;
    // The base of the next two versions is on the first five hosts alone.
    save(1, &["--full", "--keep", "9"])?;
    cluster.start_stopped()?;
    save(2, &ON_ALL)?;
    std::thread::sleep(Duration::from_secs(2));
    save(3, &ON_ALL)?;
    first.iter().try_for_each(|host| host.kill())?;
    save(4, &["--full", "--keep", "9"])?;
    let [keep, within, gc, gone] = &jobs;
    let times = created(&within.run(&["list"])?)?;
    let seconds = format!("{}s", times[3] - times[2]);
    within.run(&["forget", "--keep-within", &seconds])?;
    cluster.run(["gc", "--keep", "2"])?;
    gone.run(&["forget", "--all"])?;
    keep.save(&images[5], &["--full", "--keep", "2"])?;
    cluster.start_stopped()?;
    wait_until("the first hosts have heard what is deleted", LIMIT, || {
        Ok(keep.versions()? == [2, 5, 6] && within.versions()? == [2, 4, 5])
    })?;
    // What nobody saw when the others were deleted is deleted with the next ones.
    keep.run(&["forget", "--keep", "2"])?;
    ensure!(keep.versions()? == [5, 6]);
    a_week_passes(&cluster, first)?;
    for host in &cluster.hosts {
        host.set_clock(0)?;
    }
    keep.restores("5", &images[4])?;
    keep.restores("6", &images[5])?;
    within.restores("4", &images[3])?;
    within.restores("5", &images[4])?;
    for (version, image) in [("1", 0), ("2", 1), ("3", 2), ("4", 3), ("5", 4)] {
        gc.restores(version, &images[image])?;
    }
    Ok(())
}

/// The answers of all hosts to a request of a job key.
fn ask_each(grid: &Grid, key: &str, asked: &Request) -> Result<Vec<String>> {
    Ok(Root::new(grid, key)?.ask(asked))
}

#[test]
fn a_thief_with_the_right_to_remove_can_at_most_take_an_old_base_and_the_job_goes_on() -> Result<()>
{
    let grid = Grid::up(6)?;
    key_for(
        &grid,
        "42",
        "stolen.key",
        &["--rights", "save,restore,remove"],
    )?;
    let images = images();
    for image in &images[..4] {
        save(&grid, image, &["--keep", "9"])?;
    }
    let listed = grid.run(["--json", "list", "--job", "42"])?.json()?;
    let base = listed["checkpoints"][0]["checkpoint"].as_str();
    let checkpoint = base.and_then(CheckpointId::from_hex).context("no base")?;
    // Through the program, nobody removes what a kept version needs.
    let forget = ["forget", "--job", "42", "--version", "1"];
    let refused = run_with(&grid, "stolen.key", &forget)?;
    ensure!(refused.code == Some(1), "{refused}");
    // A thief asks hosts directly. They keep the oldest version of the last six hours from job keys.
    let answers = ask_each(&grid, "stolen.key", &Request::Forget { checkpoint })?;
    let refusals = answers.iter().filter(|answer| answer.contains("Guarded"));
    ensure!(refusals.count() >= 5, "each holder refuses: {answers:?}");
    restores(&grid, "4", &images[3])?;

    // Later it can: no host knows what builds on what.
    for host in 1..=6 {
        let dir = grid.data_dir(&format!("h{host:02}"));
        grid.kill(&format!("h{host:02}"))?;
        remove_files_of(&dir, &checkpoint.hex())?;
    }
    grid.restart()?;
    let lost = grid.run(["restore", "--job", "42", "-o", "-"])?;
    ensure!(lost.code == Some(7), "{lost}");
    ensure!(lost.stderr.contains("builds on"), "{lost}");
    grid.run(["verify", "--job", "42"])?.expect(7)?;
    // The next save builds on nothing that is lost.
    let whole = save(&grid, &images[4], &["--keep", "9"])?;
    ensure!(whole["base"].is_null(), "{whole}");
    restores(&grid, "5", &images[4])?;
    let newest = grid.run(["restore", "--job", "42", "-o", "-"])?.expect(0)?;
    ensure!(newest.stdout == images[4]);
    Ok(())
}

/// Removes all files of a checkpoint below a directory.
fn remove_files_of(dir: &Path, checkpoint: &str) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_files_of(&path, checkpoint)?;
        } else if path.to_string_lossy().contains(checkpoint) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}
