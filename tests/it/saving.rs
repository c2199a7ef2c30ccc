//! Saves with obstacles, such as silent hosts: what they report and how long they take; and wrong usage.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use tests::program::{Outcome, wait_until};
use tests::{Grid, image};

use crate::{restore_bytes, save_file};

/// Longest time of a save without a deadline when hosts are silent: less than one timeout of a connection.
const SAVE_TIME_MAX: Duration = protocol::wire::limits::CONNECT_TIMEOUT;

/// Runs a save three times. Returns how long the fastest one took, and the outcome of the last one.
fn fastest(grid: &Grid, args: &[&str]) -> Result<(Duration, Outcome)> {
    let mut best: Option<Duration> = None;
    for _ in 0..2 {
        let begun = Instant::now();
        grid.run(["save", "--job", "42", "img"].iter().chain(args))?;
        let took = begun.elapsed();
        best = Some(best.map_or(took, |best| best.min(took)));
    }
    let begun = Instant::now();
    let said = grid.run(["--json", "save", "--job", "42", "img"].iter().chain(args))?;
    let took = begun.elapsed();
    Ok((best.map_or(took, |best| best.min(took)), said))
}

fn names(list: &Value) -> Vec<&str> {
    let notes = list.as_array().into_iter().flatten();
    notes.filter_map(|note| note["host"].as_str()).collect()
}

#[test]
fn an_image_is_stored_as_it_is_when_the_user_wants_no_compression() -> Result<()> {
    let grid = Grid::up(5)?;
    let sevens = vec![7; 3 << 20];
    fs::write(grid.path("img"), &sevens)?;
    let save = ["--json", "save", "--job", "42", "--level", "none", "img"];
    let saved = grid.run(save)?.expect(0)?.json()?;
    ensure!(saved["stored_bytes"].as_u64() >= Some(3 << 20), "{saved}");
    ensure!(restore_bytes(&grid, "42")? == sevens);
    Ok(())
}

/// This command with its standard input closed.
fn with_closed_input(command: &Command) -> Command {
    let mut closed = Command::new("sh");
    closed
        .args(["-c", "exec \"$@\" <&-", "sh"])
        .arg(command.get_program())
        .args(command.get_args())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => closed.env(name, value),
            None => closed.env_remove(name),
        };
    }
    closed
}

#[test]
fn a_producer_that_writes_nothing_does_not_push_out_good_versions() -> Result<()> {
    let grid = Grid::up(3)?;
    let from_input = ["save", "--job", "42", "-"];
    grid.run_with_input(from_input, b"a week of work")?
        .expect(0)?;
    let refused = [
        grid.run_with_input(from_input, b"")?,
        tests::program::run(&mut with_closed_input(&grid.command(from_input)?))?,
        tests::program::run(grid.command(from_input)?.stdin(Stdio::null()))?,
        grid.run(["save", "--job", "42", "--", "true"])?,
    ];
    for refused in refused {
        let refused = refused.expect(2)?;
        ensure!(refused.stderr.contains("--allow-empty"), "{refused}");
    }
    let listed = grid
        .run(["--json", "list", "--job", "42"])?
        .expect(0)?
        .json()?;
    let versions = listed["checkpoints"].as_array().map(Vec::len);
    ensure!(versions == Some(1), "{listed}");
    ensure!(restore_bytes(&grid, "42")? == b"a week of work");

    let meant = ["save", "--job", "42", "--allow-empty", "-"];
    tests::program::run(&mut with_closed_input(&grid.command(meant)?))?.expect(0)?;
    ensure!(restore_bytes(&grid, "42")?.is_empty());
    let meant = ["save", "--job", "42", "--allow-empty", "--", "true"];
    grid.run(meant)?.expect(0)?;
    Ok(())
}

#[test]
fn a_directory_without_files_is_saved_with_a_note() -> Result<()> {
    let grid = Grid::up(3)?;
    fs::create_dir(grid.path("dir"))?;
    let saved = grid.run(["--json", "save", "--job", "42", "dir"])?;
    let saved = saved.expect(0)?.json()?;
    ensure!(saved["notes"].to_string().contains("no bytes"), "{saved}");
    Ok(())
}

#[test]
fn silent_hosts_hold_no_save_up() -> Result<()> {
    let grid = Grid::up(6)?;
    fs::write(grid.path("img"), image::memory(100_000, 1))?;
    let given = ["--data", "3", "--parity", "2"];
    grid.kill("h02")?;
    let (took, said) = fastest(&grid, &given)?;
    said.expect(0)?;
    ensure!(took < SAVE_TIME_MAX, "with a spare: {took:?}");

    grid.kill("h05")?;
    let (took, said) = fastest(&grid, &given)?;
    let said = said.expect(5)?.json()?;
    ensure!(took < SAVE_TIME_MAX, "without: {took:?}");
    let message = said["error"]["message"].as_str().context("no message")?;
    ensure!(message.contains("4 of 5 shards have a host"), "{message}");
    ensure!(names(&said["error"]["hosts"]) == ["h02", "h05"], "{said}");

    let (took, said) = fastest(&grid, &[&given[..], &["--allow-degraded=1"]].concat())?;
    let said = said.expect(3)?.json()?;
    ensure!(took < SAVE_TIME_MAX, "degraded: {took:?}");
    ensure!(said["can_lose"] == 1, "{said}");

    let (took, said) = fastest(&grid, &[])?;
    let said = said.expect(0)?.json()?;
    ensure!(took < SAVE_TIME_MAX, "narrower: {took:?}");
    ensure!(
        said["redundancy"] == "2+2" && said["can_lose"] == 2,
        "{said}"
    );

    grid.kill("h01")?;
    grid.kill("h06")?;
    let (took, said) = fastest(&grid, &given)?;
    let said = said.expect(5)?.json()?;
    ensure!(took < SAVE_TIME_MAX, "two left: {took:?}");
    let message = said["error"]["message"].as_str().context("no message")?;
    ensure!(message.contains("2 of 5 shards have a host"), "{message}");
    let silent = ["h01", "h02", "h05", "h06"];
    ensure!(names(&said["error"]["hosts"]) == silent, "{said}");
    Ok(())
}

/// With a short deadline, too, the message names missing hosts as the cause, not the lack of time.
#[test]
fn a_host_still_missing_at_the_deadline_is_reported_as_too_few_hosts() -> Result<()> {
    let grid = Grid::up(5)?;
    fs::write(grid.path("img"), image::memory(100_000, 1))?;
    grid.kill("h04")?;
    for deadline in ["2s", "6s"] {
        let args = [
            "--json",
            "save",
            "--job",
            "42",
            "--data",
            "3",
            "--deadline",
            deadline,
            "img",
        ];
        let said = grid.run(args)?.expect(5)?.json()?;
        let message = said["error"]["message"].as_str().context("no message")?;
        ensure!(
            message.contains("4 of 5 shards have a host at the end of the deadline"),
            "{deadline}: {message}"
        );
    }
    Ok(())
}

#[test]
fn with_a_deadline_a_host_that_comes_back_is_used() -> Result<()> {
    let grid = Grid::up(5)?;
    fs::write(grid.path("img"), image::memory(100_000, 1))?;
    grid.kill("h04")?;
    // Of three data shards: without this, a save takes the four hosts that are there, with two.
    let args = ["--json", "save", "--job", "42", "--data", "3"];
    let mut command = grid.command(args)?;
    let mut child = command.args(["--deadline", "120s", "img"]).spawn()?;
    // A save without a deadline would have ended by then.
    std::thread::sleep(SAVE_TIME_MAX / 2);
    ensure!(child.try_wait()?.is_none(), "the save did not wait");
    grid.restart()?;
    let saved = tests::program::wait(child)?.expect(0)?.json()?;
    ensure!(
        saved["can_lose"] == 2 && names(&saved["replaced"]).is_empty(),
        "{saved}"
    );
    Ok(())
}

/// Daemons that end with the test.
struct Daemons(Vec<std::process::Child>);

impl Drop for Daemons {
    fn drop(&mut self) {
        for daemon in &mut self.0 {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// Has a host take no shards for the next hours.
fn refuse_for_hours(grid: &Grid, host: &str) -> Result<()> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    // In local time this hour is in the future except in the most remote time zones.
    let hour = (now.as_secs() / 3600 + 12) % 24;
    let text = format!("start_hour = {hour}\nend_hour = {}\n", (hour + 1) % 24);
    fs::write(grid.data_dir(host).join("preferences.toml"), text)?;
    Ok(())
}

#[test]
fn a_save_does_not_wait_for_hosts_that_refuse_for_hours_and_says_until_when() -> Result<()> {
    let grid = Grid::up(5)?;
    let all = ["h01", "h02", "h03", "h04", "h05"];
    fs::write(grid.path("img"), image::memory(100_000, 1))?;
    let mut daemons = Daemons(Vec::new());
    for host in all {
        grid.kill(host)?;
        refuse_for_hours(&grid, host)?;
        // Without --no-stand-back, which a local grid's daemons get, the daemon heeds its preferences.
        let address = fs::read_to_string(grid.data_dir(host).join("address"))?;
        let mut daemon = Command::new(tests::ckpt()?);
        daemon
            .arg0("ckpt-store")
            .args([
                "serve",
                "--normal-priority",
                "--listen",
                address.trim(),
                "--grid",
            ])
            .arg(grid.file())
            .arg("--data")
            .arg(grid.data_dir(host))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        daemons.0.push(daemon.spawn()?);
    }
    wait_until("they refuse", Duration::from_secs(60), || {
        let hosts = grid.run(["--json", "hosts"])?.json()?;
        let hosts = hosts["hosts"].as_array().context("no hosts")?;
        let refuse = hosts
            .iter()
            .filter_map(|host| host["refuses_for_s"].as_u64());
        Ok(refuse.filter(|seconds| *seconds > 3600).count() == all.len())
    })?;
    let begun = Instant::now();
    let save = ["--json", "save", "--job", "42", "--deadline", "120s", "img"];
    let failed = grid.run(save)?.expect(5)?.json()?;
    ensure!(
        begun.elapsed() < Duration::from_secs(60),
        "{:?}",
        begun.elapsed()
    );
    let error = &failed["error"];
    let message = error["message"].as_str().context("no message")?;
    ensure!(message.contains("0 of 5 shards have a host"), "{message}");
    ensure!(
        message.contains("the next host takes shards at "),
        "{message}"
    );
    ensure!(names(&error["hosts"]) == all, "{failed}");
    Ok(())
}

#[test]
fn a_save_on_a_grid_that_is_too_small_says_what_fits() -> Result<()> {
    let grid = Grid::up(3)?;
    fs::write(grid.path("img"), b"image")?;
    let given = ["save", "--job", "42", "--parity", "2", "img"];
    let failed = grid.run(given)?.expect(5)?;
    ensure!(failed.stderr.contains("the grid has 3"), "{failed}");
    ensure!(failed.stderr.contains("--data 2 --parity 1"), "{failed}");
    ensure!(failed.stderr.contains("--redundancy auto"), "{failed}");
    let what_fits = ["save", "--job", "42", "--data", "2", "--parity", "1", "img"];
    grid.run(what_fits)?.expect(0)?;
    let auto = ["--json", "save", "--job", "42", "--redundancy", "auto"];
    let saved = grid.run(auto.iter().chain(&["img"]))?;
    let saved = saved.expect(0)?.json()?;
    ensure!(
        saved["version"] == 2
            && saved["holders"]
                .as_array()
                .is_some_and(|all| all.len() <= 3),
        "{saved}"
    );
    ensure!(restore_bytes(&grid, "42")? == b"image");
    Ok(())
}

/// Two hosts can be lost whatever the code, and nobody has to say which code it is.
#[test]
fn too_few_hosts_cost_data_shards_before_parity() -> Result<()> {
    for (hosts, code, times) in [(4, "2+2", 2.0), (3, "1+2", 3.0)] {
        let grid = Grid::up(hosts)?;
        let bytes = image::memory(5 << 20, 3);
        fs::write(grid.path("img"), &bytes)?;
        let saved = grid.run(["--json", "save", "--job", "42", "img"])?;
        let saved = saved.expect(0)?.json()?;
        ensure!(saved["redundancy"] == code, "{saved}");
        ensure!(
            saved["can_lose"] == 2 && saved["stored_times"] == times,
            "{saved}"
        );
        let [stored, shards] = ["stored_bytes", "shard_bytes"].map(|name| saved[name].as_f64());
        let ratio = shards.zip(stored).map(|(all, once)| all / once);
        ensure!(
            ratio.is_some_and(|ratio| (ratio / times - 1.0).abs() < 0.05),
            "{saved}"
        );
        ensure!(
            saved["notes"].to_string().contains("too few hosts"),
            "{saved}"
        );
        let text = grid.run(["save", "--job", "43", "img"])?.expect(0)?;
        let text = String::from_utf8(text.stdout)?;
        let said = format!("stored {times:.1} times, survives the loss of any 2");
        ensure!(text.contains(code) && text.contains(&said), "{text}");
        let there = grid.run(["--json", "hosts", "--for-job", "42"])?;
        ensure!(there.expect(0)?.json()?["redundancy"] == code);

        let sampled = grid.run(["verify", "--job", "42", "--read-data"])?;
        sampled.expect(0)?;
        grid.run(["--json", "health"])?.expect(0)?;
        let listed = grid.run(["list"])?.expect(0)?;
        ensure!(
            String::from_utf8_lossy(&listed.stdout).contains(code),
            "{listed}"
        );
        let shown = grid.run(["--json", "show", "--job", "42"])?.expect(0)?;
        ensure!(shown.json()?["redundancy"] == code, "{shown}");

        let holders = grid.holders("42")?;
        for host in &holders[..2] {
            grid.kill(host)?;
        }
        ensure!(
            restore_bytes(&grid, "42")? == bytes,
            "with {} hosts",
            hosts - 2
        );
        // Too few even for one data shard.
        let failed = grid.run(["save", "--job", "42", "img"])?.expect(5)?;
        ensure!(
            failed.stderr.contains("of 3 shards have a host"),
            "{failed}"
        );
        // Two silent hosts could hide a version that is on two hosts alone.
        let degraded = ["save", "--job", "42", "--allow-degraded", "img"];
        grid.run(degraded)?.expect(5)?;
    }
    Ok(())
}

/// Has `clients` clients save at the same time with a deadline, each for a job of its own.
fn evicted_together(hosts: usize, clients: usize, deadline: &str) -> Result<()> {
    let grid = Grid::up(hosts)?;
    let file = image::memory(1 << 20, 1);
    let mut running = Vec::new();
    for client in 0..clients {
        let job = format!("job-{client}");
        let name = format!("img-{client}");
        fs::write(grid.path(&name), &file)?;
        let save = [
            "--json",
            "save",
            "--deadline",
            deadline,
            "--job",
            &job,
            &name,
        ];
        running.push(grid.command(save)?.spawn()?);
    }
    let mut failed = Vec::new();
    for child in running {
        let said = tests::program::wait(child)?;
        if said.code != Some(0) {
            failed.push(said.to_string());
        }
    }
    ensure!(
        failed.is_empty(),
        "{} of {clients}: {}",
        failed.len(),
        failed.join("\n")
    );
    ensure!(
        grid.run(["--json", "list"])?.json()?["checkpoints"]
            .as_array()
            .map(Vec::len)
            == Some(clients)
    );
    Ok(())
}

#[test]
fn jobs_that_are_evicted_together_all_commit() -> Result<()> {
    evicted_together(10, 40, "150s")
}

#[test]
#[ignore = "a hundred clients at once, for minutes"]
fn a_hundred_jobs_that_are_evicted_together_all_commit() -> Result<()> {
    evicted_together(12, 100, "170s")
}

/// Ratios of image bytes to stored bytes in the lines of progress.
fn ratios(said: &Outcome) -> Vec<f64> {
    let lines = said.stderr.lines();
    let events = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let progress = events.filter(|event| event["event"] == "progress");
    let ratio = |event: Value| {
        let stored = event["stored_bytes"]
            .as_f64()
            .filter(|stored| *stored > 0.0)?;
        Some(event["done_bytes"].as_f64()? / stored)
    };
    progress.filter_map(ratio).collect()
}

#[test]
fn the_ratio_that_progress_shows_is_that_of_what_is_done() -> Result<()> {
    let grid = Grid::up(5)?;
    let mut bytes = vec![0; 24 << 20];
    SmallRng::seed_from_u64(3).fill(&mut bytes[..]);
    fs::write(grid.path("img"), &bytes)?;
    // The limited bandwidth makes this take three seconds or more, enough for a dozen reports.
    let slowly = ["--progress", "json", "--bandwidth", "8MiB"];
    for command in [
        ["save", "--job", "42", "img"],
        ["restore", "--job", "42", "-oout"],
    ] {
        let said = grid.run(slowly.iter().chain(&command))?.expect(0)?;
        let ratios = ratios(&said);
        ensure!(ratios.len() > 3, "{said}");
        for ratio in &ratios {
            ensure!((0.98..1.02).contains(ratio), "{command:?}: {ratios:?}");
        }
    }
    Ok(())
}

#[test]
fn numbers_out_of_bounds_are_wrong_usage_that_names_the_bounds() -> Result<()> {
    let grid = Grid::up(1)?;
    fs::write(grid.path("img"), b"image")?;
    let save = ["save", "--job", "42", "--data", "1", "--parity", "0", "img"];
    for (wrong, bound) in [
        (["--bandwidth", "1"], "64KiB"),
        (["--bandwidth", "0"], "64KiB"),
        (["--cpus", "0"], "1..=1024"),
        (["--memory", "1"], "16MiB"),
        (["--ttl", "0s"], "1ms"),
        (["--deadline", "0s"], "1ms"),
        (["--allow-degraded=9", "--full"], "0 parity shards"),
        (["--keep", "0"], "1.."),
    ] {
        let refused = grid.run(save.iter().chain(&wrong))?.expect(2)?;
        ensure!(refused.stderr.contains(bound), "{wrong:?}: {refused}");
    }
    for wrong in [
        &[
            "save",
            "--job",
            "42",
            "--redundancy",
            "auto",
            "--target",
            "1",
            "img",
        ][..],
        &["advise", "--job-length", "0s"],
    ] {
        grid.run(wrong)?.expect(2)?;
    }
    // The smallest allowed values work.
    let least = [
        "--bandwidth",
        "64KiB",
        "--memory",
        "16MiB",
        "--cpus",
        "1",
        "--ttl",
        "1s",
    ];
    grid.run(save.iter().chain(&least))?.expect(0)?;
    Ok(())
}

#[test]
fn excluded_files_are_not_saved() -> Result<()> {
    let grid = Grid::up(5)?;
    let tree = grid.path("tree");
    fs::create_dir_all(tree.join("cache"))?;
    for name in ["kept", "core", "cache/x"] {
        fs::write(tree.join(name), name)?;
    }
    let save = [
        "save",
        "--job",
        "42",
        "tree",
        "--exclude",
        "core",
        "--exclude",
        "/cache",
    ];
    grid.run(save)?.expect(0)?;
    let shown = grid
        .run(["--json", "show", "--job", "42"])?
        .expect(0)?
        .json()?;
    let files = shown["files"].as_array().context("no files")?;
    let paths: Vec<&str> = files
        .iter()
        .filter_map(|file| file["path"].as_str())
        .collect();
    ensure!(paths == ["tree", "tree/kept"], "{paths:?}");
    grid.run(["save", "--job", "42", "tree", "--exclude", "["])?
        .expect(2)?;
    Ok(())
}

#[test]
fn a_stream_has_no_files_and_no_date() -> Result<()> {
    let grid = Grid::up(5)?;
    let mut image = vec![0; 3 << 20];
    image[5] = 1;
    let saved = grid
        .run_with_input(["save", "--job", "42", "-"], &image)?
        .expect(0)?;
    let said = String::from_utf8_lossy(&saved.stdout).into_owned();
    ensure!(said.contains("ratio over 1000"), "{said}");
    let shown = grid.run(["show", "--job", "42"])?.expect(0)?;
    let said = String::from_utf8_lossy(&shown.stdout).into_owned();
    ensure!(
        said.contains("a stream:") && !said.contains("1970"),
        "{said}"
    );
    Ok(())
}

/// All commands of `ckpt`, from the names of its man pages.
fn commands() -> Result<Vec<Vec<String>>> {
    let dir = tempfile::tempdir()?;
    let mut man = tests::program::command(["man", "--dir"])?;
    tests::program::run(man.arg(dir.path()))?.expect(0)?;
    let mut all = Vec::new();
    for page in fs::read_dir(dir.path())? {
        let name = page?.file_name().to_string_lossy().into_owned();
        let Some(command) = name
            .strip_prefix("ckpt-")
            .and_then(|n| n.strip_suffix(".1"))
        else {
            continue;
        };
        let words = match command.split_once('-') {
            Some((group @ ("grid" | "key"), rest)) => vec![group.to_owned(), rest.to_owned()],
            _ => vec![command.to_owned()],
        };
        if words[0] != "help" {
            all.push(words);
        }
    }
    Ok(all)
}

#[test]
fn wrong_usage_of_any_command_is_one_object_with_json() -> Result<()> {
    let mut all = commands()?;
    ensure!(all.len() > 20, "{all:?}");
    all.push(vec!["bogus".to_owned()]);
    all.push(Vec::new());
    for command in all {
        let mut wrong = tests::program::command(["--json"])?;
        wrong.args(&command);
        if !command.is_empty() {
            wrong.arg("--no-such-option");
        }
        let said = tests::program::run(&mut wrong)?.expect(2)?;
        let object = said.json()?;
        ensure!(object["exit_code"] == 2, "{command:?}: {object}");
        ensure!(
            object["error"]["status"] == "usage",
            "{command:?}: {object}"
        );
        let message = object["error"]["message"].as_str().unwrap_or_default();
        ensure!(
            !message.is_empty() && !message.contains('\n'),
            "{command:?}: {object}"
        );
    }
    let missing = tests::program::run(&mut tests::program::command(["save", "--json"])?)?;
    let missing = missing.expect(2)?.json()?;
    ensure!(
        missing["error"]["message"].to_string().contains("PATH"),
        "{missing}"
    );
    let unnamed = tests::program::run(&mut tests::program::command(["restore", "--json"])?)?;
    let unnamed = unnamed.expect(2)?.json()?;
    ensure!(
        unnamed["error"]["next"]
            .to_string()
            .contains("CKPT_JOB=JOB"),
        "{unnamed}"
    );
    Ok(())
}

#[test]
fn advice_needs_no_host_to_be_named_on_a_local_grid() -> Result<()> {
    let grid = Grid::up(5)?;
    save_file(&grid, "42", &image::memory(100_000, 1))?;
    let advise = [
        "--json",
        "plan",
        "when",
        "--job-length",
        "12h",
        "--job",
        "42",
    ];
    let advice = grid.run(advise)?.expect(0)?.json()?;
    let source = advice["hazard"].as_str().context("no source")?;
    ensure!(source.starts_with("prediction of host h0"), "{advice}");
    let cost = advice["cost_seconds"].as_f64().context("no cost")?;
    let least = advice["least_seconds"].as_f64().context("no least")?;
    ensure!(
        cost <= least,
        "the job stood still for as long as its image was read: {advice}"
    );
    // `ckpt hosts` answers the same question. The load of this machine may change between the two.
    let ten_hours = ["--json", "advise", "--job-length", "10h"];
    wait_until("both expect the same", Duration::from_secs(60), || {
        let advice = grid.run(ten_hours)?.expect(0)?.json()?;
        let hosts = grid.run(["--json", "hosts"])?.expect(0)?.json()?;
        let of_hosts = hosts["hosts"][0]["stays_10h"].as_f64();
        let of_hosts = of_hosts.context("no stays")?;
        let of_advice = advice["survives_job"].as_f64().context("no survives")?;
        Ok((of_hosts - of_advice).abs() < 0.02)
    })
}

#[test]
fn weights_are_stored_in_planes_and_explained() -> Result<()> {
    let grid = Grid::up(5)?;
    let bytes = image::weights(6 << 20, 1);
    fs::write(grid.path("weights"), &bytes)?;
    for level in ["auto", "3"] {
        let save = [
            "save",
            "--job",
            level,
            "--level",
            level,
            "--explain",
            "weights",
        ];
        let shown = grid.run(save)?.expect(0)?;
        let shown = String::from_utf8(shown.stdout)?;
        ensure!(shown.contains("compression planes: 6.0 MiB"), "{shown}");
        let listed = grid.run(["--json", "list", "--job", level])?.json()?;
        let stored = listed["checkpoints"][0]["stored_bytes"].as_u64();
        let stored = stored.context("stored_bytes")?;
        ensure!(stored * 140 < (bytes.len() as u64) * 100, "{stored}");
        let restored = grid.run(["restore", "--job", level, "-o", "-"])?;
        ensure!(restored.expect(0)?.stdout == bytes);
    }
    Ok(())
}
