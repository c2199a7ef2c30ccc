//! Repair: hosts that hold other shards of a checkpoint rebuild a lost one, without any key.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::program::wait_until;
use tests::{Grid, image};

const LIMIT: Duration = Duration::from_secs(180);

/// A grid whose hosts rebuild a shard that was missing for one second.
fn grid(hosts: usize) -> Result<Grid> {
    let env = [("CKPT_REPAIR_AFTER", "1s"), ("CKPT_REPAIR_PERIOD", "300ms")];
    Grid::up_in(hosts, &env)
}

fn save(grid: &Grid, job: &str, seed: u64) -> Result<Vec<u8>> {
    let bytes = image::memory(3 << 20, seed);
    fs::write(grid.path("image"), &bytes)?;
    grid.run(["save", "--job", job, "image"])?.expect(0)?;
    Ok(bytes)
}

/// Shards of the newest version that `verify` finds, each with the host that has it.
fn good(grid: &Grid, job: &str) -> Result<Vec<(u64, String)>> {
    let verified = grid.run(["--json", "verify", "--job", job])?.json()?;
    let good = verified["checkpoints"][0]["good"]
        .as_array()
        .context("good")?
        .clone();
    let one = |one: &Value| Some((one["shard"].as_u64()?, one["host"].as_str()?.to_owned()));
    Ok(good.iter().filter_map(one).collect())
}

fn shards(good: &[(u64, String)]) -> BTreeSet<u64> {
    good.iter().map(|(shard, _)| *shard).collect()
}

#[test]
fn lost_shards_are_rebuilt_elsewhere_again_and_again() -> Result<()> {
    let grid = grid(9)?;
    let bytes = save(&grid, "42", 1)?;
    // Three hosts die in all, one more than there are parity shards.
    for round in 0..3 {
        let holders = good(&grid, "42")?;
        let (_, victim) = holders.get(round % holders.len()).context("no holder")?;
        grid.kill(victim)?;
        wait_until("all shards are there again", LIMIT, || {
            Ok(shards(&good(&grid, "42")?).len() == 5)
        })?;
    }
    grid.run(["verify", "--read-data", "--job", "42"])?
        .expect(0)?;
    let restored = grid.run(["restore", "--job", "42", "-o", "-"])?.expect(0)?;
    ensure!(restored.stdout == bytes);
    Ok(())
}

#[test]
fn a_lost_shard_is_rebuilt_and_a_copy_that_comes_back_does_no_harm() -> Result<()> {
    let grid = grid(7)?;
    let bytes = save(&grid, "42", 2)?;
    let first = good(&grid, "42")?;
    let victim = &first[0].1;
    grid.kill(victim)?;
    wait_until("the shard is rebuilt", LIMIT, || {
        Ok(shards(&good(&grid, "42")?).len() == 5)
    })?;
    // The host comes back with its copy. Both copies are good, and one removal removes both.
    grid.restart()?;
    wait_until("it is back", LIMIT, || Ok(good(&grid, "42")?.len() >= 6))?;
    let restored = grid.run(["restore", "--job", "42", "-o", "-"])?.expect(0)?;
    ensure!(restored.stdout == bytes);
    grid.run(["forget", "--job", "42", "--all"])?.expect(0)?;
    grid.run(["list", "--job", "42"])?.expect(4)?;
    for number in 1..=7 {
        let left = grid.shard_files(&format!("h{number:02}"))?;
        ensure!(left.is_empty(), "{left:?}");
    }
    Ok(())
}

/// Repair asks hosts in the order of shards: here the first two hosts have the same shard.
#[test]
fn a_shard_that_two_hosts_hold_counts_once_when_another_is_rebuilt() -> Result<()> {
    let grid = grid(7)?;
    let bytes = save(&grid, "42", 5)?;
    let victim = good(&grid, "42")?.first().context("no holder")?.1.clone();
    grid.kill(&victim)?;
    wait_until("the first shard is rebuilt", LIMIT, || {
        Ok(shards(&good(&grid, "42")?).len() == 5)
    })?;
    grid.restart()?;
    let copies = |shard| -> Result<Vec<String>> {
        let all = good(&grid, "42")?.into_iter();
        Ok(all.filter(|one| one.0 == shard).map(|one| one.1).collect())
    };
    wait_until("it is there twice", LIMIT, || Ok(copies(0)?.len() == 2))?;
    let last = copies(4)?.first().context("no holder")?.clone();
    grid.kill(&last)?;
    wait_until("the last shard is rebuilt", LIMIT, || {
        Ok(shards(&good(&grid, "42")?).len() == 5)
    })?;
    let restored = grid.run(["restore", "--job", "42", "-o", "-"])?.expect(0)?;
    ensure!(restored.stdout == bytes);
    Ok(())
}

/// Several hosts may each rebuild a shard on the same host, so that fewer hosts than a restore needs have all shards.
#[test]
fn shards_that_are_on_two_hosts_are_spread_again() -> Result<()> {
    let grid = grid(5)?;
    let bytes = save(&grid, "42", 9)?;
    for host in 1..=5 {
        grid.kill(&format!("h{host:02}"))?;
    }
    let crowded = grid.shard_files("h01")?;
    let crowded = crowded.first().and_then(|file| file.parent());
    let crowded = crowded.context("the first host has no shard")?;
    for host in ["h02", "h03"] {
        for file in grid.shard_files(host)? {
            fs::rename(&file, crowded.join(file.file_name().context("no name")?))?;
        }
    }
    for file in grid.shard_files("h05")? {
        fs::remove_file(file)?;
    }
    grid.restart()?;
    wait_until("each host has a shard of its own", LIMIT, || {
        let good = good(&grid, "42")?;
        let hosts: BTreeSet<&String> = good.iter().map(|(_, host)| host).collect();
        Ok(shards(&good).len() == 5 && hosts.len() == 5)
    })?;
    let restored = grid.run(["restore", "--job", "42", "-o", "-"])?.expect(0)?;
    ensure!(restored.stdout == bytes);
    Ok(())
}

#[test]
fn no_shard_is_rebuilt_that_comes_back_soon_or_is_not_lost() -> Result<()> {
    let env = [
        ("CKPT_REPAIR_AFTER", "1h"),
        ("CKPT_REPAIR_PERIOD", "200ms"),
        ("RUST_LOG", "info,ckpt_store=debug"),
    ];
    let grid = Grid::up_in(7, &env)?;
    save(&grid, "42", 3)?;
    let holders = good(&grid, "42")?;
    grid.kill(&holders[0].1)?;
    let log = grid.data_dir(&holders[1].1).join("log");
    let looks = || -> Result<usize> {
        Ok(fs::read_to_string(&log)?
            .matches("checked the held checkpoints")
            .count())
    };
    let before: usize = looks()?;
    wait_until("it was looked several times", LIMIT, || {
        Ok(looks()? >= before + 3)
    })?;
    ensure!(good(&grid, "42")?.len() == 4);
    grid.restart()?;
    ensure!(good(&grid, "42")? == holders);
    Ok(())
}

#[test]
fn a_shard_damaged_on_a_disk_is_found_and_rebuilt_without_a_request() -> Result<()> {
    let env = [
        ("CKPT_REPAIR_AFTER", "1h"),
        ("CKPT_REPAIR_PERIOD", "300ms"),
        ("CKPT_SCRUB_PASS", "200ms"),
        ("RUST_LOG", "info,ckpt_store=debug"),
    ];
    let grid = Grid::up_in(7, &env)?;
    let bytes = save(&grid, "42", 5)?;
    let holders = good(&grid, "42")?;
    let victim = &holders[2].1;
    // Until the other hosts have seen proof of the victim's shard, they would wait longer before repair.
    let log = |host: &str| fs::read_to_string(grid.data_dir(host).join("log"));
    for (_, holder) in holders.iter().filter(|(_, holder)| holder != victim) {
        wait_until("the others know that it has its shard", LIMIT, || {
            let has_proved =
                |line: &str| line.contains("proved to hold a shard") && line.contains(victim);
            Ok(log(holder)?.lines().any(has_proved))
        })?;
    }
    let file = grid.shard_files(victim)?.pop().context("no shard")?;
    tests::damage::flip(&file, 20_000)?;
    wait_until("the damaged file is gone", LIMIT, || Ok(!file.exists()))?;
    wait_until("it is said", LIMIT, || {
        Ok(log(victim)?.contains("dropped a damaged shard"))
    })?;
    wait_until("the shard is rebuilt", LIMIT, || {
        Ok(shards(&good(&grid, "42")?).len() == 5)
    })?;
    grid.run(["verify", "--read-data", "--job", "42"])?
        .expect(0)?;
    ensure!(
        grid.run(["restore", "--job", "42", "-o", "-"])?
            .expect(0)?
            .stdout
            == bytes
    );
    Ok(())
}

/// Runs `ckpt-store drain --within` on a host.
fn drain(grid: &Grid, host: &str, within: &str) -> Result<tests::Outcome> {
    grid.store(host, &["drain", "--within", within])
}

#[test]
fn a_host_that_leaves_hands_its_shards_over() -> Result<()> {
    let grid = Grid::up(8)?;
    let images: Vec<_> = (0..3)
        .map(|job| save(&grid, &format!("job-{job}"), job))
        .collect::<Result<_>>()?;
    let holders = good(&grid, "job-0")?;
    for (_, host) in &holders[..3] {
        let left = drain(&grid, host, "60s")?.expect(0)?;
        ensure!(
            String::from_utf8_lossy(&left.stdout).contains("can be deleted"),
            "{left}"
        );
        fs::remove_dir_all(grid.data_dir(host).join("shards"))?;
    }
    for (job, bytes) in images.iter().enumerate() {
        let name = format!("job-{job}");
        ensure!(shards(&good(&grid, &name)?).len() == 5, "{name}");
        let restored = grid
            .run(["restore", "--job", &name, "-o", "-"])?
            .expect(0)?;
        ensure!(&restored.stdout == bytes, "{name}");
    }
    // Five hosts are left, and each has a shard of the checkpoint: none of them can take another one.
    let (_, host) = &good(&grid, "job-0")?[0];
    let stays = drain(&grid, host, "10s")?.expect(1)?;
    ensure!(
        String::from_utf8_lossy(&stays.stdout).contains("the daemon goes on"),
        "{stays}"
    );
    let ends = grid.store(host, &["drain", "--within", "1s", "--force"])?;
    let said = String::from_utf8_lossy(&ends.expect(1)?.stdout).into_owned();
    ensure!(said.contains("keep the data directory"), "{said}");
    Ok(())
}

#[test]
fn a_host_whose_shards_all_have_a_second_holder_can_leave_when_no_other_has_room() -> Result<()> {
    let grid = grid(6)?;
    let jobs = ["a", "b", "c", "d", "e", "f"];
    for (seed, job) in (0..).zip(jobs) {
        save(&grid, job, seed)?;
    }
    let leaving = good(&grid, "a")?.first().context("no holder")?.1.clone();
    grid.kill(&leaving)?;
    let others = ["h01", "h02", "h03", "h04", "h05", "h06"];
    let others = others.into_iter().filter(|host| *host != leaving);
    wait_until("its shards are rebuilt", LIMIT, || {
        let files = others.clone().map(|host| Ok(grid.shard_files(host)?.len()));
        Ok(files.sum::<Result<usize>>()? == 5 * jobs.len())
    })?;
    grid.restart()?;
    // Each host holds a shard of each checkpoint now, so none can take one of the leaving host's shards.
    drain(&grid, &leaving, "60s")?.expect(0)?;
    for job in jobs {
        ensure!(shards(&good(&grid, job)?).len() == 5, "{job}");
    }
    Ok(())
}

#[test]
fn a_host_whose_shard_another_has_takes_a_second_one_and_gives_its_own_back() -> Result<()> {
    let grid = grid(6)?;
    save(&grid, "42", 1)?;
    let away = good(&grid, "42")?.first().context("no holder")?.1.clone();
    grid.kill(&away)?;
    wait_until("the sixth host has the shard", LIMIT, || {
        Ok(shards(&good(&grid, "42")?).len() == 5)
    })?;
    grid.restart()?;
    let held = good(&grid, "42")?;
    ensure!(held.len() == 6, "{held:?}");
    let copies = |of: u64| held.iter().filter(|(shard, _)| *shard == of).count();
    let alone = held.iter().find(|(shard, _)| copies(*shard) == 1);
    let leaving = &alone.context("no shard with one holder")?.1;
    // Only the two with the same shard can take another one. Whether the one that does so counts for it
    // is not known before it has given the first back.
    drain(&grid, leaving, "60s")?.expect(0)?;
    let held = good(&grid, "42")?;
    let hosts: BTreeSet<&String> = held.iter().map(|(_, host)| host).collect();
    ensure!(
        held.len() == 5 && hosts.len() == 5 && shards(&held).len() == 5,
        "{held:?}"
    );
    Ok(())
}

#[test]
fn a_drain_that_only_a_further_host_could_help_stops_early_and_the_daemon_goes_on() -> Result<()> {
    let grid = Grid::up(5)?;
    let bytes = save(&grid, "42", 1)?;
    let host = grid.holders("42")?.swap_remove(0);
    let began = std::time::Instant::now();
    let stays = grid.store(&host, &["drain", "--within", "10min"])?;
    let said = String::from_utf8_lossy(&stays.expect(1)?.stdout).into_owned();
    ensure!(began.elapsed() < LIMIT, "it waited: {:?}", began.elapsed());
    ensure!(said.contains("the grid lacks 1 host"), "{said}");
    // It is used as before: all shards are proved, and it takes new ones.
    let again = save(&grid, "42", 2)?;
    ensure!(again != bytes && grid.holders("42")?.contains(&host));
    Ok(())
}

#[test]
fn a_leaving_host_says_why_no_host_takes_a_shard_and_tries_until_one_does() -> Result<()> {
    let grid = Grid::up(5)?;
    fs::write(grid.path("image"), image::memory(100_000, 1))?;
    let save = "save --job 42 --data 2 --parity 2 image";
    grid.run(save.split(' '))?.expect(0)?;
    let holders = grid.holders("42")?;
    let hosts = ["h01", "h02", "h03", "h04", "h05"];
    let free = hosts
        .into_iter()
        .find(|host| !holders.iter().any(|holder| holder == host));
    let free = free.context("all five hold a shard")?;
    grid.kill(free)?;

    let began = std::time::Instant::now();
    // The time is long enough to wait several times for the host that is away.
    let stays = drain(&grid, &holders[0], "25s")?.expect(1)?;
    ensure!(
        began.elapsed() >= Duration::from_secs(25),
        "it gave up early"
    );
    let said = String::from_utf8_lossy(&stays.stdout);
    ensure!(said.contains("1 shard is on no other host"), "{stays}");
    ensure!(
        said.contains("each other host that answers has a shard of the checkpoint already"),
        "{stays}"
    );

    let leaving = &holders[1];
    std::thread::scope(|scope| {
        let left = scope.spawn(|| drain(&grid, leaving, "90s"));
        let log = grid.data_dir(leaving).join("log");
        wait_until("nobody takes it", Duration::from_secs(60), || {
            Ok(fs::read_to_string(&log)?.contains("shard not handed over"))
        })?;
        grid.restart()?;
        let left = left.join().map_err(|_| anyhow::anyhow!("drain failed"))??;
        left.expect(0)?;
        Ok(())
    })
}
