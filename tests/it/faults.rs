//! Hosts that die, stall, have damaged files, are full, or are impostors.

use std::fs;
use std::io::Write;
use std::net::UdpSocket;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use codec::manifest::Public;
use codec::{OwnerId, ShardIndex};
use protocol::grid::Grid as GridFile;
use protocol::identity::{Identity, certificate_from_pem, read_key};
use rustix::process::Signal;
use tests::cluster::Cluster;
use tests::program::wait_until;
use tests::{Grid, damage, image};
use tokio::sync::{mpsc, watch};
use transfer::find::{Shown, ShownManifest};
use transfer::get::BlockReader;
use transfer::put::PutCommand;
use transfer::rebuild::Rebuild;
use transfer::{HostIndex, Hosts};

use crate::{restore_bytes, save_file};

#[test]
fn any_two_holders_can_die() -> Result<()> {
    let grid = Grid::up(5)?;
    let bytes = image::memory((3 << 20) + 11, 1);
    save_file(&grid, "42", &bytes)?;
    let holders = grid.holders("42")?;
    for a in 0..5 {
        for b in a + 1..5 {
            grid.kill(&holders[a])?;
            grid.kill(&holders[b])?;
            assert!(restore_bytes(&grid, "42")? == bytes, "without {a} and {b}");
            grid.restart()?;
        }
    }
    Ok(())
}

#[test]
fn with_three_holders_dead_a_restore_says_how_many_shards_it_found() -> Result<()> {
    let grid = Grid::up(5)?;
    save_file(&grid, "42", b"image")?;
    for host in &grid.holders("42")?[..3] {
        grid.kill(host)?;
    }
    let failed = grid
        .run(["restore", "--job", "42", "-o", "out"])?
        .expect(5)?;
    assert!(
        failed.stderr.contains("2 of 5 shards found, 3 needed"),
        "{failed}"
    );
    assert!(!grid.path("out").exists());
    Ok(())
}

#[test]
fn a_donor_that_is_away_does_not_keep_a_new_job_from_starting() -> Result<()> {
    let grid = Grid::up(7)?;
    let if_exists = |job: &str, more: &[&str]| {
        let restore = [
            "--json",
            "restore",
            "--if-exists",
            "-o",
            "out",
            "--job",
            job,
        ];
        grid.run(restore.iter().chain(more))
    };
    save_file(&grid, "old", b"image")?;
    let holders = grid.holders("old")?;
    grid.kill(&holders[0])?;
    let none = if_exists("new", &[])?.expect(0)?.json()?;
    assert!(none["version"].is_null(), "{none}");
    // With --data 1 one silent host could have a checkpoint, so the answer is not that there is none.
    if_exists("new", &["--data", "1"])?.expect(5)?;
    grid.kill(&holders[1])?;
    if_exists("new", &[])?.expect(0)?;
    let old = if_exists("old", &[])?.expect(0)?.json()?;
    assert_eq!(old["version"], 1);
    fs::remove_file(grid.path("out"))?;
    // Three silent hosts could have a checkpoint that no other host has.
    grid.kill(&holders[2])?;
    let unknown = if_exists("new", &[])?.expect(5)?;
    assert!(
        unknown
            .json()?
            .to_string()
            .contains("fewer than 3 members are silent"),
        "{unknown}"
    );
    if_exists("old", &[])?.expect(5)?;
    // This machine remembers a checkpoint that no host shows now.
    for host in &holders[3..] {
        grid.kill(host)?;
    }
    if_exists("old", &["--data", "32"])?.expect(5)?;
    Ok(())
}

/// On a machine that has not seen the job before, two silent hosts, all that have shards of it, do not make
/// it one that has no checkpoint.
#[test]
fn hosts_without_a_shard_show_a_version_of_few_data_shards() -> Result<()> {
    let grid = Grid::up(7)?;
    fs::write(grid.path("image"), b"image")?;
    for job in ["42", "43"] {
        let save = [
            "save", "--job", job, "--data", "1", "--parity", "1", "image",
        ];
        grid.run(save)?.expect(0)?;
    }
    let if_exists = |job: &str| {
        let restore = [
            "--json",
            "restore",
            "--if-exists",
            "-o",
            "out",
            "--job",
            job,
        ];
        let mut command = grid.command(restore)?;
        command.env("CKPT_STATE_DIR", grid.path("another-machine"));
        tests::program::run(&mut command)
    };
    let holders = grid.holders("42")?;
    assert_eq!(holders.len(), 2);
    let verified = grid.run(["verify", "--job", "42"])?.expect(0)?;
    grid.run(["health"])?.expect(0)?;
    for host in &holders {
        grid.kill(host)?;
    }
    let failed = if_exists("42")?.expect(5)?;
    let text = failed.json()?.to_string();
    assert!(text.contains("0 of 2 shards found"), "{text} {verified}");
    assert!(if_exists("no-such-job")?.expect(0)?.json()?["version"].is_null());

    // What shows a version goes with it.
    grid.restart()?;
    grid.run(["forget", "--job", "43", "--all"])?.expect(0)?;
    let none = if_exists("43")?.expect(0)?.json()?;
    assert!(
        none["version"].is_null() && none["warnings"] == serde_json::json!([]),
        "{none}"
    );
    let restored = if_exists("42")?.expect(0)?.json()?;
    assert_eq!(restored["version"], 1);
    Ok(())
}

#[test]
fn daemons_leave_no_core_dumps() -> Result<()> {
    let grid = Grid::up(1)?;
    for (host, pid) in grid.running()? {
        let limits = fs::read_to_string(format!("/proc/{}/limits", pid.as_raw_nonzero()))?;
        let core = limits
            .lines()
            .find(|line| line.starts_with("Max core file size"));
        let soft = core.and_then(|line| line.split_whitespace().nth(4));
        assert_eq!(soft, Some("0"), "{host}: {limits}");
    }
    Ok(())
}

#[test]
fn flipped_bytes_are_erasures() -> Result<()> {
    let grid = Grid::up(5)?;
    let bytes = image::memory(4 << 20, 2);
    save_file(&grid, "42", &bytes)?;
    let holders = grid.holders("42")?;
    // One host has a damaged block, and another one a damaged table.
    for (host, from_end) in [(&holders[0], None), (&holders[1], Some(200))] {
        let shard = &grid.shard_files(host)?[0];
        let len = fs::metadata(shard)?.len();
        damage::flip(shard, from_end.map_or(200, |n| len - n))?;
    }
    let restored = grid.run(["restore", "--job", "42", "-o", "first"])?;
    let restored = restored.expect(0)?;
    assert!(fs::read(grid.path("first"))? == bytes);
    let wrong = format!("{}: wrong data: block of row 0", holders[0]);
    assert!(restored.stderr.contains(&wrong), "{restored}");
    let verified = grid.run(["verify", "--read-data"])?.expect(3)?;
    let text = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(text.contains("3 of 5 shards good, can lose none"), "{text}");
    // Without reading blocks the damage is not seen, and no shard is called good.
    let listed = grid.run(["verify"])?.expect(0)?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(
        text.contains("5 of 5 shards present, not read, can lose 2"),
        "{text}"
    );
    let listed = grid.run(["--json", "verify"])?.expect(0)?.json()?;
    assert_eq!(listed["checked"], "present", "{listed}");

    let shard = &grid.shard_files(&holders[2])?[0];
    damage::flip(shard, 300)?;
    let failed = grid
        .run(["restore", "--job", "42", "-o", "out"])?
        .expect(7)?;
    assert!(
        failed.stderr.contains("2 good blocks found, 3 needed"),
        "{failed}"
    );
    assert!(!grid.path("out").exists());
    grid.run(["verify", "--read-data"])?.expect(7)?;
    Ok(())
}

/// Damages one block of the first shard of each of these hosts, each somewhere else.
fn damage_a_block_of_each(grid: &Grid, hosts: &[String]) -> Result<()> {
    for (host, at) in hosts.iter().zip(1..) {
        let shard = &grid.shard_files(host)?[0];
        let len = fs::metadata(shard)?.len();
        damage::flip(shard, len * at / (hosts.len() as u64 + 1))?;
    }
    Ok(())
}

#[test]
fn where_every_host_has_a_damaged_block_every_byte_is_restored() -> Result<()> {
    let grid = Grid::up(5)?;
    let bytes = image::noise(24 << 20, 2);
    save_file(&grid, "42", &bytes)?;
    damage_a_block_of_each(&grid, &grid.holders("42")?)?;
    assert!(restore_bytes(&grid, "42")? == bytes);
    let read = grid.run(["cat", "--job", "42", "42.img"])?.expect(0)?;
    ensure!(read.stdout == bytes);
    let verified = grid.run(["--json", "verify", "--read-data"])?;
    let verified = verified.expect(3)?.json()?;
    let one = &verified["checkpoints"][0];
    ensure!(one["lost"] == false && one["can_lose"] == 1, "{verified}");
    ensure!(
        one["bad"].as_array().is_some_and(|bad| bad.len() == 5),
        "{verified}"
    );
    Ok(())
}

/// What is needed to rebuild the shard with number 0: the public part of its checkpoint, and who has which shard.
async fn sources_of(hosts: &Hosts, owner: OwnerId) -> Result<(Public, Vec<Source>)> {
    let mut sources = Vec::new();
    let mut public = None;
    for host in hosts.all() {
        let take = |shown: Shown| {
            if let ShownManifest::New(manifest) = shown.manifest {
                public = Some(manifest.public().clone());
            }
            sources.extend(shown.shards.into_iter().map(|shard| (shard, host)));
            true
        };
        hosts.find(host, owner, None, |_| None, take).await?;
    }
    Ok((public.context("no checkpoint")?, sources))
}

type Source = (ShardIndex, HostIndex);

#[test]
fn a_shard_is_rebuilt_though_each_source_has_a_damaged_block() -> Result<()> {
    let grid = Grid::up(5)?;
    save_file(&grid, "42", &image::noise(24 << 20, 2))?;
    let file = GridFile::load(&grid.file())?;
    let files = file.owner.clone().context("no owner")?;
    let certificate = certificate_from_pem(&fs::read_to_string(&files.certificate)?)?;
    let identity = Identity::new(read_key(&files.key)?, certificate)?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let hosts = Hosts::new(&file, &identity, 1 << 20)?;
        let (public, mut sources) = sources_of(&hosts, identity.secret.id()).await?;
        let at = sources.iter().position(|(shard, _)| shard.number() == 0);
        let (missing, holder) = sources.remove(at.context("no shard 0")?);
        let mut good = Vec::new();
        BlockReader::new(hosts.clone(), public.clone())
            .blocks(missing, holder, 0..public.rows, |row, block| {
                good.push((row, block));
            })
            .await?;
        let names: Vec<String> = sources
            .iter()
            .map(|(_, host)| hosts.name(*host).to_owned())
            .collect();
        damage_a_block_of_each(&grid, &names)?;
        let (commands, mut rebuilt) = mpsc::unbounded_channel();
        let (_sender, sent) = watch::channel(public.rows);
        let rebuild = Rebuild {
            hosts,
            public,
            shard: missing,
            sources,
            damaged: Vec::new(),
            commands,
            sent,
            bytes_per_second: None,
        };
        rebuild.run().await?;
        let mut blocks = Vec::new();
        while let Some(PutCommand::Block(row, block)) = rebuilt.recv().await {
            blocks.push((row, block));
        }
        ensure!(blocks == good, "{} of {} blocks", blocks.len(), good.len());
        Ok(())
    })
}

#[test]
fn a_damaged_version_is_passed_over_and_reported() -> Result<()> {
    let grid = Grid::up(5)?;
    save_file(&grid, "42", b"old")?;
    save_file(&grid, "42", b"new")?;
    let shown = grid
        .run(["--json", "show", "--job", "42"])?
        .expect(0)?
        .json()?;
    let id = shown["checkpoint"].as_str().context("no id")?.to_owned();
    for host in &grid.holders("42")?[..3] {
        for shard in grid.shard_files(host)? {
            if shard.to_string_lossy().contains(&id) {
                damage::flip(&shard, 130)?;
            }
        }
    }
    let restored = grid
        .run(["--json", "restore", "--job", "42", "-o", "out"])?
        .expect(3)?;
    let said = restored.stderr.matches("version 2 passed over").count();
    assert_eq!(said, 1, "{restored}");
    let report = restored.json()?;
    assert_eq!(report["version"], 1);
    assert_eq!(report["skipped"][0]["version"], 2);
    assert_eq!(fs::read(grid.path("out"))?, b"old");
    let again = grid
        .run(["restore", "--job", "42", "-o", "again"])?
        .expect(3)?;
    let said = String::from_utf8_lossy(&again.stdout).into_owned() + &again.stderr;
    assert_eq!(said.matches("passed over").count(), 1, "{again}");
    Ok(())
}

#[test]
fn damaged_files_are_found_at_start() -> Result<()> {
    let grid = Grid::up(5)?;
    let bytes = image::memory(2 << 20, 3);
    save_file(&grid, "42", &bytes)?;
    let holders = grid.holders("42")?;
    for host in &holders[..2] {
        grid.kill(host)?;
    }
    let shard = &grid.shard_files(&holders[0])?[0];
    damage::cut(shard, fs::metadata(shard)?.len() / 2)?;
    damage::flip(&grid.manifest_files(&holders[1])?[0], 100)?;
    grid.restart()?;
    assert!(!shard.exists(), "half a shard is kept");
    assert!(restore_bytes(&grid, "42")? == bytes);
    Ok(())
}

/// Starts a save that reads from a pipe, writes the first half of the image to the pipe, and waits until
/// hosts have got some of it.
pub(crate) fn half_a_save(
    grid: &Grid,
    args: &[&str],
    bytes: &[u8],
) -> Result<(std::process::Child, std::process::ChildStdin)> {
    let mut save = grid.command(args)?;
    let mut child = save.stdin(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    stdin.write_all(&bytes[..bytes.len() / 2])?;
    wait_until("shards are being written", Duration::from_secs(30), || {
        let mut begun = 0;
        for (host, _) in grid.running()? {
            for file in fs::read_dir(grid.data_dir(&host).join("incoming"))? {
                begun += usize::from(file?.metadata().is_ok_and(|meta| meta.len() > 0));
            }
        }
        Ok(begun >= 5)
    })?;
    Ok((child, stdin))
}

/// A host to which a save is writing now.
pub(crate) fn busy_host(grid: &Grid) -> Result<String> {
    for (host, _) in grid.running()? {
        if fs::read_dir(grid.data_dir(&host).join("incoming"))?
            .next()
            .is_some()
        {
            return Ok(host);
        }
    }
    anyhow::bail!("nobody is busy")
}

#[test]
fn a_host_that_dies_in_the_middle_is_replaced() -> Result<()> {
    let grid = Grid::up(6)?;
    let bytes = image::memory(40 << 20, 4);
    let args = ["--json", "save", "--job", "42", "-"];
    let (child, mut stdin) = half_a_save(&grid, &args, &bytes)?;
    let dead = busy_host(&grid)?;
    grid.kill(&dead)?;
    stdin.write_all(&bytes[bytes.len() / 2..])?;
    drop(stdin);
    let report = tests::program::wait(child)?.expect(0)?.json()?;
    assert_eq!(report["can_lose"], 2);
    assert_eq!(report["replaced"][0]["host"], dead.as_str());
    assert!(!grid.holders("42")?.contains(&dead));
    assert!(restore_bytes(&grid, "42")? == bytes);
    Ok(())
}

#[test]
fn a_shard_that_is_too_long_for_memory_is_rebuilt_on_the_spare() -> Result<()> {
    let grid = Grid::up(6)?;
    let bytes = image::memory(160 << 20, 5);
    let args = ["--json", "--memory", "32MiB", "save", "--job", "42", "-"];
    let (child, mut stdin) = half_a_save(&grid, &args, &bytes)?;
    let dead = busy_host(&grid)?;
    grid.kill(&dead)?;
    stdin.write_all(&bytes[bytes.len() / 2..])?;
    drop(stdin);
    let report = tests::program::wait(child)?.expect(0)?.json()?;
    assert_eq!(report["replaced"][0]["host"], dead.as_str());
    grid.run(["verify", "--read-data"])?.expect(0)?;
    assert!(restore_bytes(&grid, "42")? == bytes);
    Ok(())
}

#[test]
fn a_host_that_stalls_is_replaced() -> Result<()> {
    let grid = Grid::up(6)?;
    // The image is larger than what fits into the stalled host's windows.
    let bytes = image::memory(100 << 20, 6);
    let args = ["--json", "save", "--job", "42", "-"];
    let (child, mut stdin) = half_a_save(&grid, &args, &bytes)?;
    let stalled = busy_host(&grid)?;
    let pid = grid.signal(&stalled, Signal::STOP)?;
    stdin.write_all(&bytes[bytes.len() / 2..])?;
    drop(stdin);
    let report = tests::program::wait(child)?.expect(0)?.json()?;
    rustix::process::kill_process(pid, Signal::CONT)?;
    assert_eq!(report["replaced"][0]["host"], stalled.as_str());
    assert!(restore_bytes(&grid, "42")? == bytes);
    Ok(())
}

#[test]
fn without_a_spare_the_old_version_stands() -> Result<()> {
    let grid = Grid::up(5)?;
    save_file(&grid, "42", b"old")?;
    let bytes = image::memory(40 << 20, 7);
    let (child, mut stdin) = half_a_save(&grid, &["save", "--job", "42", "-"], &bytes)?;
    grid.kill(&busy_host(&grid)?)?;
    // The save may end before it has read everything.
    let _ = stdin.write_all(&bytes[bytes.len() / 2..]);
    drop(stdin);
    let failed = tests::program::wait(child)?.expect(5)?;
    assert!(
        failed.stderr.contains("4 of 5 shards have a host"),
        "{failed}"
    );
    assert!(
        failed.stderr.contains("version 1 is still the newest"),
        "{failed}"
    );
    assert_eq!(restore_bytes(&grid, "42")?, b"old");
    for (host, _) in grid.running()? {
        assert_eq!(
            grid.shard_files(&host)?.len(),
            1,
            "{host} keeps what was retracted"
        );
    }
    Ok(())
}

#[test]
fn a_save_is_degraded_only_if_asked_for() -> Result<()> {
    let grid = Grid::up(4)?;
    fs::write(grid.path("img"), b"image")?;
    let args = ["--json", "save", "--job", "42", "--data", "3", "img"];
    let refused = grid.run(args)?.expect(5)?;
    let message = refused.json()?["error"]["message"].to_string();
    assert!(message.contains("4 of 5 shards"), "{refused}");
    let args = args.iter().chain(&["--allow-degraded=1"]);
    let degraded = grid.run(args)?.expect(3)?.json()?;
    assert_eq!(degraded["can_lose"], 1);
    assert_eq!(restore_bytes(&grid, "42")?, b"image");
    grid.kill(&grid.holders("42")?[0])?;
    assert_eq!(restore_bytes(&grid, "42")?, b"image");
    Ok(())
}

#[test]
fn hosts_that_are_full_say_so() -> Result<()> {
    let grid = Grid::up_with(5, &["--capacity", "1MiB"])?;
    fs::write(grid.path("small"), image::memory(500_000, 8))?;
    fs::write(grid.path("large"), image::memory(20 << 20, 9))?;
    grid.run(["save", "--job", "42", "small"])?.expect(0)?;
    let failed = grid.run(["save", "--job", "42", "large"])?.expect(5)?;
    assert!(failed.stderr.contains("no space"), "{failed}");
    grid.run(["restore", "--job", "42", "-o", "back"])?
        .expect(0)?;
    image::same(&grid.path("small"), &grid.path("back"))?;
    Ok(())
}

#[test]
fn strangers_get_nothing() -> Result<()> {
    let ours = Grid::up(5)?;
    let theirs = Grid::up(1)?;
    save_file(&ours, "42", b"secret")?;
    let dir = theirs.file().parent().unwrap().to_owned();
    let mut list = ours.command(["list"])?;
    list.env("CKPT_KEY_FILE", dir.join("owner.key"))
        .env("CKPT_CERT_FILE", dir.join("owner.crt"));
    let refused = tests::program::run(&mut list)?.expect(6)?;
    assert!(
        refused.stderr.contains("does not accept our certificate"),
        "{refused}"
    );

    // Now the grid file names a host of another grid, which has another authority.
    let text = fs::read_to_string(ours.file())?;
    let addr = fs::read_to_string(theirs.data_dir("h01").join("address"))?;
    let own = fs::read_to_string(ours.data_dir("h01").join("address"))?;
    fs::write(ours.file(), text.replace(&own, &addr))?;
    // The signed list outranks the grid file.
    fs::remove_file(ours.file().with_extension("members"))?;
    let hosts = ours.run(["--json", "hosts"])?.expect(0)?.json()?;
    let error = hosts["hosts"][0]["error"].as_str().context("no error")?;
    assert!(error.contains("certificate"), "{error}");
    assert_eq!(restore_bytes(&ours, "42")?, b"secret");
    Ok(())
}

#[test]
fn garbage_on_a_port_is_no_host() -> Result<()> {
    let grid = Grid::up(6)?;
    grid.kill("h06")?;
    let addr = fs::read_to_string(grid.data_dir("h06").join("address"))?;
    // Another process may have taken the port, and it answers no valid packets either.
    let socket = UdpSocket::bind(&addr).or_else(|_| UdpSocket::bind("127.0.0.1:0"))?;
    std::thread::spawn(move || {
        let mut datagram = [0; 65536];
        while let Ok((len, from)) = socket.recv_from(&mut datagram) {
            for byte in &mut datagram[..len] {
                *byte = byte.wrapping_mul(31).wrapping_add(7);
            }
            let _ = socket.send_to(&datagram[..len], from);
        }
    });
    save_file(&grid, "42", b"image")?;
    assert_eq!(restore_bytes(&grid, "42")?, b"image");
    let hosts = grid.run(["--json", "hosts"])?.expect(0)?.json()?;
    assert_eq!(hosts["hosts"][5]["up"], false);
    Ok(())
}

#[test]
fn hosts_that_are_slow_to_answer_are_waited_for_when_they_are_needed() -> Result<()> {
    let cluster = Cluster::start(6, 0, &[("CKPT_REPAIR_PERIOD", "1h")])?;
    let bytes = image::memory(2 << 20, 9);
    fs::write(cluster.path("image"), &bytes)?;
    for _ in 0..2 {
        cluster.run(["save", "--job", "42", "image"])?.expect(0)?;
    }
    let shown = cluster.run(["--json", "show", "--job", "42"])?.json()?;
    let holders = shown["holders"].as_array().context("holders")?.clone();
    let node = |at: usize| {
        let name = holders[at]["host"].as_str();
        let mut hosts = cluster.hosts.iter();
        hosts.find(|host| Some(host.name.as_str()) == name)
    };
    // Two hosts claim to have shards whose files are gone.
    for at in [0, 1] {
        for file in node(at).context("no host")?.shard_files()? {
            fs::remove_file(file)?;
        }
    }
    for at in [2, 3] {
        node(at).context("no host")?.relay.weather(0, 400, 0);
    }
    let restore = ["--json", "restore", "--job", "42", "-o", "out"];
    let restored = cluster.run(restore)?.expect(0)?.json()?;
    ensure!(restored["version"] == 2, "{restored}");
    ensure!(fs::read(cluster.path("out"))? == bytes);
    Ok(())
}

#[test]
fn a_list_with_a_dead_host_takes_less_than_two_connection_timeouts() -> Result<()> {
    let grid = Grid::up(6)?;
    save_file(&grid, "42", &image::memory(100_000, 1))?;
    let list = || -> Result<Duration> {
        let begun = std::time::Instant::now();
        grid.run(["list", "--job", "42"])?.expect(0)?;
        Ok(begun.elapsed())
    };
    grid.kill(&grid.holders("42")?[0])?;
    // If each of the three requests of `list` waited for the dead host, it would take three timeouts.
    let limit = protocol::wire::limits::CONNECT_TIMEOUT;
    let fastest = (0..3).map(|_| list()).collect::<Result<Vec<_>>>()?;
    let fastest = fastest.into_iter().min().context("no run")?;
    ensure!(fastest < 2 * limit, "{fastest:?}");
    Ok(())
}
