//! An attacker with a job key writes as many versions of that job as hosts take. Earlier versions can
//! still be restored, and others can still save.
//!
//! `CKPT_JUNK` sets the number of versions; the gate writes a thousand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use codec::keys::Keys;
use protocol::identity::read_key;
use protocol::net::stream::ExchangeError;
use protocol::wire::Code;
use quinn::Connection;
use serde_json::Value;
use tests::solo::{Solo, SoloPlan};
use tests::{Grid, image};
use tokio::task::JoinSet;

use crate::jobkeys::{Root, key_for, run_with, save};

/// Longest wait for a host.
const LIMIT: Duration = Duration::from_secs(60);

/// Number of versions that are written at the same time.
const AT_ONCE: usize = 24;

fn count() -> u64 {
    let set = std::env::var("CKPT_JUNK").ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(1_000)
}

/// A version of one byte of job 42, with an id of its number and the byte `mark`.
fn plan(mark: u8, version: u64, created: u64) -> Result<SoloPlan> {
    let mut id = [mark; 16];
    id[..8].copy_from_slice(&version.to_le_bytes());
    Ok(SoloPlan {
        job: "42".parse()?,
        version,
        created,
        id,
        rows: 1,
        block: vec![0],
    })
}

/// A version of one byte, of which one host has the one shard that suffices.
fn junk(keys: &Keys, version: u64, created: u64) -> Result<Solo> {
    Solo::sign(keys, plan(9, version, created)?)
}

/// Stores and commits a version, and repeats each request until the host is not busy.
async fn write(junk: &Solo, host: &Connection) -> Result<()> {
    while !is_there(junk.store(host, LIMIT).await)? {}
    while !is_there(junk.commit(host, LIMIT).await)? {}
    Ok(())
}

/// Whether a host accepted the request; false if it is busy.
fn is_there(answer: Result<(), ExchangeError>) -> Result<bool> {
    match answer {
        Ok(()) => Ok(true),
        Err(ExchangeError::Refused(refusal)) if refusal.code == Code::Busy => Ok(false),
        Err(cause) => bail!("{cause}"),
    }
}

/// Writes versions 2 to `count` + 1.
async fn write_all(hosts: Vec<Connection>, keys: Keys, count: u64) -> Result<()> {
    let created = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let hosts = Arc::new(hosts);
    let keys = Arc::new(keys);
    let next = Arc::new(AtomicU64::new(2));
    let mut writing = JoinSet::new();
    for _ in 0..AT_ONCE {
        let hosts = Arc::clone(&hosts);
        let keys = Arc::clone(&keys);
        let next = Arc::clone(&next);
        writing.spawn(async move {
            loop {
                let version = next.fetch_add(1, Ordering::Relaxed);
                if version > count + 1 {
                    return Ok(());
                }
                let junk = junk(&keys, version, created)?;
                let host = hosts.get(version as usize % hosts.len());
                write(&junk, host.context("no host")?).await?;
            }
        });
    }
    writing.join_all().await.into_iter().collect()
}

/// Versions of job 42 without shards and with long manifests, all on the first host.
async fn haunt(hosts: Vec<Connection>, keys: Keys, count: u64) -> Result<()> {
    let created = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let host = hosts.first().context("no host")?;
    for version in 100..100 + count {
        let phantom = Solo::sign_with(&keys, plan(7, version, created)?, 4_300)?;
        while !is_there(phantom.haunt(host, LIMIT).await)? {}
    }
    Ok(())
}

#[test]
fn phantoms_hide_no_other_version_of_the_owner() -> Result<()> {
    let grid = Grid::up(6)?;
    let good = save(&grid, "42", 1)?;
    save(&grid, "43", 2)?;
    key_for(&grid, "42", "job.key", &[])?;
    let root = Root::new(&grid, "job.key")?;
    root.run(|hosts, keys| haunt(hosts, keys, 400))?;
    // Half of this holds some 170 such manifests.
    let small = |args: &[&str]| grid.run([&["--memory", "64MiB"], args].concat());
    let shown = |listed: &Value, job: &str, version: u64| {
        let all = listed["checkpoints"].as_array().into_iter().flatten();
        all.filter(|one| one["job"] == job && one["version"] == version && one["can_lose"] == 2)
            .count()
    };
    for revoked in [false, true] {
        if revoked {
            grid.run(["key", "revoke"])?.expect(0)?;
        }
        let listed = small(&["--json", "list"])?.expect(0)?.json()?;
        ensure!(
            shown(&listed, "42", 1) == 1 && shown(&listed, "43", 1) == 1,
            "{listed}"
        );
        small(&["--json", "list", "--job", "42"])?.expect(0)?;
        small(&["verify", "--job", "43"])?.expect(0)?;
        let health = small(&["health"])?;
        ensure!(!health.stderr.contains("do not fit"), "{}", health.stderr);
    }
    let restored = small(&["restore", "--job", "42", "-o", "-"])?.expect(0)?;
    ensure!(restored.stdout == good);
    ensure!(restored.stderr.len() < 2_000, "{}", restored.stderr);
    small(&["forget", "--job", "42", "--all"])?.expect(0)?;
    let listed = grid.run(["--json", "list"])?.expect(0)?.json()?;
    let left = listed["checkpoints"].as_array().map(Vec::len);
    ensure!(left == Some(1), "{listed}");
    Ok(())
}

/// A number that a variable of the environment sets.
fn set_by(variable: &str, usual: u64) -> u64 {
    let set = std::env::var(variable).ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// The number of checkpoints of an owner: a hundred thousand if `CKPT_MANY` says so.
fn many() -> u64 {
    set_by("CKPT_MANY", 4_000)
}

/// The number of segments of each, on which the length of its manifest depends.
fn segments_of_many() -> usize {
    usize::try_from(set_by("CKPT_MANY_SEGMENTS", 64)).unwrap_or(usize::MAX)
}

/// The manifests of many versions of job 42 that its owner signed, each on two hosts.
async fn keep_many(hosts: Vec<Connection>, owner: Arc<Keys>, count: u64) -> Result<()> {
    let created = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() - count;
    let hosts = Arc::new(hosts);
    let next = Arc::new(AtomicU64::new(2));
    let mut writing = JoinSet::new();
    for _ in 0..AT_ONCE {
        let hosts = Arc::clone(&hosts);
        let next = Arc::clone(&next);
        let owner = Arc::clone(&owner);
        writing.spawn(async move {
            loop {
                let version = next.fetch_add(1, Ordering::Relaxed);
                if version > count + 1 {
                    return anyhow::Ok(());
                }
                let segments = segments_of_many();
                let plan = SoloPlan {
                    rows: segments + 16,
                    ..plan(5, version, created + version)?
                };
                let many = Solo::sign_with(&owner, plan, segments)?;
                for at in [version as usize, version as usize + 1] {
                    let host = hosts.get(at % hosts.len()).context("no host")?;
                    while !is_there(many.haunt(host, LIMIT).await)? {}
                }
            }
        });
    }
    writing.join_all().await.into_iter().collect()
}

#[test]
fn an_owner_of_very_many_checkpoints_is_served_in_bounded_memory() -> Result<()> {
    let count = many();
    // The usual memory for a hundred thousand.
    let memory = (count * (256 << 20) / 100_000).max(32 << 20);
    // A host keeps some 16,000 for one key.
    let grid = Grid::up(7.max(usize::try_from(count / 7_000)?))?;
    let good = save(&grid, "43", 1)?;
    save(&grid, "42", 2)?;
    key_for(&grid, "42", "job.key", &[])?;
    let root = Root::new(&grid, "job.key")?;
    let owner = Arc::new(Keys::from(read_key(
        &grid.file().with_file_name("owner.key"),
    )?));
    root.run(|hosts, _| keep_many(hosts, owner, count))?;
    let limit = format!("{}MiB", memory >> 20);
    let all = count.to_string();
    let commands: [(&[&str], i32); 8] = [
        (&["list"], 0),
        (&["list", "--job", "42"], 0),
        (&["verify"], 7),
        (&["health"], 3),
        (&["gc", "--dry-run"], 0),
        (&["restore", "--job", "43", "-o", "out"], 0),
        (&["save", "--job", "43", "image"], 0),
        (&["forget", "--job", "42", "--keep", &all], 0),
    ];
    for (command, code) in commands {
        let mut program = grid.command(["--memory", &limit].iter().chain(command))?;
        let began = Instant::now();
        let (outcome, peak) = tests::program::run_measured(&mut program)?;
        let took = began.elapsed();
        eprintln!("{}: {} MiB in {took:?}", command.join(" "), peak >> 20);
        ensure!(!outcome.stderr.contains("do not fit"), "{outcome}");
        ensure!(
            outcome.code == Some(code),
            "{command:?}: {:?} {}",
            outcome.code,
            outcome.stderr
        );
        ensure!(peak <= memory + (40 << 20), "{command:?}: {peak}");
    }
    ensure!(std::fs::read(grid.path("out"))? == good);
    Ok(())
}

#[test]
fn a_job_key_can_not_take_the_last_versions_from_its_owner() -> Result<()> {
    let grid = Grid::up(6)?;
    save(&grid, "42", 1)?;
    key_for(&grid, "42", "job.key", &[])?;
    let root = Root::new(&grid, "job.key")?;
    let highest = 1 << 48;
    root.run(|hosts, keys| async move {
        let created = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        for version in [u64::MAX, highest + 1, highest] {
            let junk = junk(&keys, version, created)?;
            for host in &hosts {
                let written = write(&junk, host).await;
                ensure!(
                    written.is_ok() == (version == highest),
                    "{version}: {written:?}"
                );
            }
        }
        Ok(())
    })?;
    // The owner saves above it, and the job key, too.
    save(&grid, "42", 2)?;
    run_with(&grid, "job.key", &["save", "--job", "42", "image"])?.expect(0)?;
    grid.run(["key", "revoke"])?.expect(0)?;
    save(&grid, "42", 3)?;
    Ok(())
}

/// Junk of a stolen key, with shards and without.
async fn litter(hosts: Vec<Connection>, keys: Keys) -> Result<()> {
    write_all(hosts.clone(), keys.clone(), 30).await?;
    haunt(hosts, keys, 300).await
}

#[test]
fn what_a_void_key_left_is_one_line_and_removed_by_the_owners_gc() -> Result<()> {
    let grid = Grid::up(6)?;
    let good = save(&grid, "42", 1)?;
    // Of job 43, only what the key saved is there.
    for job in ["42", "43"] {
        key_for(&grid, job, &format!("{job}.key"), &[])?;
    }
    run_with(&grid, "43.key", &["save", "--job", "43", "image"])?.expect(0)?;
    let root = Root::new(&grid, "42.key")?;
    root.run(litter)?;
    grid.run(["key", "revoke"])?.expect(0)?;
    let lines = |command: &[&str]| -> Result<Vec<String>> {
        let outcome = grid.run(command)?.expect(0)?;
        let text = format!("{}{}", String::from_utf8(outcome.stdout)?, outcome.stderr);
        Ok(text.lines().map(str::to_owned).collect())
    };
    let list = lines(&["list"])?;
    let of_void = list.iter().filter(|line| line.contains("revoked"));
    ensure!(of_void.count() == 1 && list.len() < 6, "{list:?}");
    let restored = lines(&["restore", "--job", "42", "-o", "out"])?;
    let of_void = restored.iter().filter(|line| line.contains("revoked"));
    ensure!(of_void.count() == 1 && restored.len() < 6, "{restored:?}");
    let dry_run = lines(&["gc", "--dry-run"])?;
    ensure!(
        dry_run.len() == 2 && dry_run[0].starts_with("job 42, 330 versions from 2 to 399: "),
        "{dry_run:?}"
    );
    grid.run(["gc"])?.expect(0)?;
    let listed = grid.run(["--json", "list"])?.expect(0)?.json()?;
    let left = listed["checkpoints"].as_array().into_iter().flatten();
    let left: Vec<(&str, bool)> = left
        .filter_map(|one| Some((one["job"].as_str()?, one["void"].as_bool()?)))
        .collect();
    ensure!(left == [("42", false), ("43", true)], "{listed}");
    ensure!(std::fs::read(grid.path("out"))? == good);
    ensure!(lines(&["gc", "--dry-run"])? == ["nothing to remove"]);
    Ok(())
}

#[test]
fn junk_versions_of_a_job_push_out_no_good_version_and_block_no_save() -> Result<()> {
    let grid = Grid::up(6)?;
    let good = save(&grid, "42", 1)?;
    save(&grid, "43", 2)?;
    key_for(&grid, "42", "job.key", &[])?;
    let count = count();
    let root = Root::new(&grid, "job.key")?;
    let began = Instant::now();
    root.run(|hosts, keys| write_all(hosts, keys, count))?;
    eprintln!("{count} versions in {:?}", began.elapsed());
    let by_version = ["restore", "--job", "42", "--version", "1", "-o", "-"];
    let restored = grid.run(by_version)?.expect(0)?;
    ensure!(restored.stdout == good);
    let restored = run_with(&grid, "job.key", &by_version)?.expect(0)?;
    ensure!(restored.stdout == good);
    // The owner can save another job and this one, and another job key of the owner can save its job.
    save(&grid, "43", 3)?;
    key_for(&grid, "44", "other.key", &[])?;
    run_with(&grid, "other.key", &["save", "--job", "44", "image"])?.expect(0)?;
    let newest = image::memory(1 << 20, 4);
    std::fs::write(grid.path("image"), &newest)?;
    let keep = (count + 10).to_string();
    grid.run(["save", "--job", "42", "--keep", &keep, "image"])?
        .expect(0)?;
    let restored = grid.run(["restore", "--job", "42", "-o", "-"])?.expect(0)?;
    ensure!(restored.stdout == newest);
    let listed = grid.run(["--json", "list", "--job", "42"])?.expect(0)?;
    let listed = listed.json()?["checkpoints"].as_array().map(Vec::len);
    ensure!(listed == Some(count as usize + 2), "{listed:?}");

    // Once the key is void, a restore without --version takes the newest good version.
    grid.run([
        "forget",
        "--job",
        "42",
        "--version",
        &(count + 2).to_string(),
    ])?
    .expect(0)?;
    grid.run(["key", "revoke"])?.expect(0)?;
    let restored = grid.run(["restore", "--job", "42", "-o", "-"])?.expect(0)?;
    ensure!(restored.stdout == good);
    ensure!(image::memory(1 << 20, 1) == good);
    eprintln!("{:?} in all", began.elapsed());
    Ok(())
}
