//! Hosts with each [`Lie`] among honest ones. With at most as many liars as parity shards, every
//! restore is right. With more, a restore is right, or fails with an error and leaves no file.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tests::image;
use tests::liar::{Kind, Lie};
use tests::mixed::MixedGrid;

/// Size of an image: three segments.
const IMAGE_BYTES: usize = 3 << 20;

fn save(grid: &MixedGrid, file: &str) -> Result<tests::Outcome> {
    grid.run(["save", "--job", "42", file])
}

fn write_images(grid: &MixedGrid) -> Result<[Vec<u8>; 2]> {
    let images = [image::memory(IMAGE_BYTES, 1), image::memory(IMAGE_BYTES, 2)];
    for (name, image) in ["first", "second"].iter().zip(&images) {
        std::fs::write(grid.path(name), image)?;
    }
    Ok(images)
}

/// Restores the job and returns the bytes; `None` if `ckpt` reported an error.
fn restore(grid: &MixedGrid) -> Result<(tests::Outcome, Option<Vec<u8>>)> {
    let out = grid.path("out");
    let outcome = grid.run(["restore", "--job", "42", "--json", "--force", "-o", "out"])?;
    let bytes = match outcome.code {
        Some(0 | 3) => Some(std::fs::read(&out)?),
        _ => {
            ensure!(!out.exists(), "something was left behind\n{outcome}");
            None
        }
    };
    // A later restore must not find this one's file.
    if bytes.is_some() {
        std::fs::remove_file(&out)?;
    }
    Ok((outcome, bytes))
}

/// Two versions are saved while all five hosts are honest. Then two hosts lie, and the restore is right.
fn two_of_five(lie: Lie) -> Result<()> {
    let grid = MixedGrid::up(3, 2)?;
    let images = write_images(&grid)?;
    save(&grid, "first")?.expect(0)?;
    save(&grid, "second")?.expect(0)?;
    grid.lie(lie);
    let (outcome, bytes) = restore(&grid)?;
    ensure!(bytes.as_ref() == Some(&images[1]), "{lie:?}\n{outcome}");
    Ok(())
}

/// Three of five hosts lie, one more than there are parity shards. The restore has to fail, or to return
/// the right bytes of a version, and to report it if that is not the newest.
fn three_of_five(lie: Lie) -> Result<()> {
    let grid = MixedGrid::up(2, 3)?;
    let images = write_images(&grid)?;
    save(&grid, "first")?.expect(0)?;
    save(&grid, "second")?.expect(0)?;
    grid.lie(lie);
    let (outcome, bytes) = restore(&grid)?;
    match bytes {
        Some(bytes) => {
            let version = outcome.json()?["version"].as_u64().context("version")?;
            let expected = images
                .get(version as usize - 1)
                .context("no such version")?;
            ensure!(&bytes == expected, "{lie:?}: wrong bytes\n{outcome}");
            let passed_over = outcome.json()?["skipped"]
                .as_array()
                .is_some_and(|s| !s.is_empty());
            ensure!(
                version == 2 || passed_over,
                "{lie:?}: silently an old version\n{outcome}"
            );
        }
        None => {
            let said = outcome.json()?["error"]["message"].to_string();
            ensure!(
                matches!(outcome.code, Some(4 | 5 | 7)),
                "{lie:?}\n{outcome}"
            );
            ensure!(said.contains("42"), "{lie:?}: {said}");
        }
    }
    Ok(())
}

/// Two of ten hosts lie all the time, while checkpoints are saved, too. Every restore is right.
fn two_of_ten(lie: Lie) -> Result<()> {
    let grid = MixedGrid::up(8, 2)?;
    let images = write_images(&grid)?;
    grid.lie(lie);
    for (file, image) in ["first", "second"].iter().zip(&images) {
        let saved = save(&grid, file)?;
        ensure!(matches!(saved.code, Some(0 | 3)), "{lie:?}: {saved}");
        let (outcome, bytes) = restore(&grid)?;
        ensure!(bytes.as_ref() == Some(image), "{lie:?}\n{outcome}");
    }
    Ok(())
}

/// Runs a test for each of these lies, four at a time, each with a grid of its own.
fn for_each_lie(lies: impl Iterator<Item = Lie>, test: fn(Lie) -> Result<()>) -> Result<()> {
    let lies: Vec<Lie> = lies.collect();
    for some in lies.chunks(4) {
        std::thread::scope(|scope| {
            let running: Vec<_> = some.iter().map(|lie| scope.spawn(|| test(*lie))).collect();
            for thread in running {
                match thread.join() {
                    Ok(result) => result?,
                    Err(_) => anyhow::bail!("a test panicked"),
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn lies_about_data() -> impl Iterator<Item = Lie> {
    Lie::ALL.into_iter().filter(|lie| !costs_time(*lie))
}

/// Whether a lie costs the client time, rather than giving it wrong data.
fn costs_time(lie: Lie) -> bool {
    matches!(
        lie,
        Lie::Drips
            | Lie::IsSilent
            | Lie::SendsHugeFrames
            | Lie::SendsNoise
            | Lie::AnswersTooMuch
            | Lie::ListsForEver
    ) || matches!(lie, Lie::HangsUpAt(_))
}

fn lies_that_cost_time() -> impl Iterator<Item = Lie> {
    Lie::ALL.into_iter().filter(|lie| costs_time(*lie))
}

#[test]
fn two_liars_of_five_do_no_harm() -> Result<()> {
    for_each_lie(lies_about_data(), two_of_five)
}

#[test]
fn two_of_five_that_break_off_or_hold_up_do_no_harm() -> Result<()> {
    for_each_lie(lies_that_cost_time(), two_of_five)
}

#[test]
fn three_liars_of_five_are_an_error_or_do_no_harm() -> Result<()> {
    for_each_lie(lies_about_data(), three_of_five)
}

#[test]
fn three_of_five_that_break_off_or_hold_up_are_an_error_or_do_no_harm() -> Result<()> {
    // Without these two: if there are not enough other hosts, a client reads from slow ones for minutes.
    let takes_minutes = |lie: &Lie| matches!(lie, Lie::Drips | Lie::ListsForEver);
    for_each_lie(
        lies_that_cost_time().filter(|lie| !takes_minutes(lie)),
        three_of_five,
    )
}

#[test]
fn two_liars_of_ten_do_no_harm_to_saves_either() -> Result<()> {
    for_each_lie(lies_about_data(), two_of_ten)
}

#[test]
fn two_of_ten_that_break_off_or_hold_up_do_no_harm_to_saves_either() -> Result<()> {
    for_each_lie(lies_that_cost_time(), two_of_ten)
}

#[test]
fn the_list_of_lies_has_all_nine_ways_to_hang_up() {
    let ends = Lie::ALL
        .into_iter()
        .filter(|lie| matches!(lie, Lie::HangsUpAt(_)));
    assert_eq!(ends.count(), 9);
    assert!(!Lie::ALL.contains(&Lie::None));
    assert!(Lie::ALL.contains(&Lie::HangsUpAt(Kind::Rows)));
}

/// Hosts answer every `Find` without end, with invalid records or with the same record.
#[test]
fn a_list_without_end_takes_bounded_memory() -> Result<()> {
    /// Memory that `ckpt` may use beyond what `--memory` allows.
    const PROGRAM_BYTES: u64 = 32 << 20;
    /// The limit of `--memory`; a second of the flood would not fit into this.
    const MEMORY_BYTES: u64 = 64 << 20;
    for lie in [Lie::FloodsFind, Lie::RepeatsFind] {
        let grid = MixedGrid::up(5, 2)?;
        let images = write_images(&grid)?;
        // With seven shards, each of the seven hosts has one.
        for job in ["42", "43", "44"] {
            grid.run(["save", "--job", job, "--parity", "4", "first"])?
                .expect(0)?;
        }
        grid.lie(lie);
        let commands: [(&[&str], i32); 8] = [
            (&["list"], 0),
            (&["verify"], 3),
            (&["touch", "--job", "42", "--ttl", "1h"], 3),
            (&["gc", "--dry-run"], 0),
            (&["hosts", "--for-job", "42"], 0),
            (&["restore", "--job", "42", "-o", "out"], 0),
            (&["save", "--job", "42", "second"], 0),
            (&["forget", "--job", "42", "--all"], 3),
        ];
        for (command, code) in commands {
            let mut program = grid.command(["--memory", "64MiB"].iter().chain(command))?;
            let (outcome, peak) = tests::program::run_measured(&mut program)?;
            outcome
                .expect(code)
                .with_context(|| format!("{lie:?} {command:?}"))?;
            eprintln!("{lie:?} {}: {} MiB", command[0], peak >> 20);
            ensure!(
                peak <= MEMORY_BYTES + PROGRAM_BYTES,
                "{lie:?} {command:?}: {} MiB",
                peak >> 20
            );
        }
        ensure!(std::fs::read(grid.path("out"))? == images[0]);
        let listed = grid.run(["list"])?.expect(0)?;
        let said = String::from_utf8_lossy(&listed.stdout).into_owned();
        ensure!(said.contains("no answer from h06: wrong data"), "{listed}");
        ensure!(said.contains("43") && said.contains("44"), "{listed}");
    }
    Ok(())
}

/// A host shows a list that never ends, as fast as a slow one would show an honest one.
#[test]
fn a_list_that_goes_on_for_ever_costs_ten_seconds_and_its_host_is_named() -> Result<()> {
    /// Time for a slow machine, beyond the ten seconds.
    const GRACE: Duration = Duration::from_secs(4);
    let grid = MixedGrid::up(4, 1)?;
    write_images(&grid)?;
    grid.run(["save", "--job", "42", "first"])?.expect(0)?;
    grid.lie(Lie::ListsForEver);
    for command in [&["list"][..], &["health"], &["gc", "--dry-run"]] {
        let began = Instant::now();
        let outcome = grid.run(command)?;
        let took = began.elapsed();
        ensure!(took < Duration::from_secs(10) + GRACE, "{took:?}");
        let said = format!("{outcome}");
        ensure!(
            said.contains("its list of checkpoints was not whole"),
            "{said}"
        );
    }
    // What the host has counts as away, and not as lost.
    let listed = grid.run(["--json", "list"])?.expect(0)?.json()?;
    ensure!(listed["checkpoints"][0]["can_lose"] == 1, "{listed}");
    ensure!(listed["silent"][0]["host"] == "h05", "{listed}");
    grid.run(["restore", "--job", "42", "-o", "out"])?
        .expect(0)?;
    Ok(())
}

/// Donors answer with checkpoints of another job of the same owner, which have higher versions.
#[test]
fn another_job_is_not_restored_in_the_place_of_this_one() -> Result<()> {
    let grid = MixedGrid::up(0, 5)?;
    let images = write_images(&grid)?;
    save(&grid, "first")?.expect(0)?;
    for _ in 0..3 {
        grid.run(["save", "--job", "43", "second"])?.expect(0)?;
    }
    grid.lie_at(0..2, Lie::MixesJobsUp);
    let (outcome, bytes) = restore(&grid)?;
    ensure!(bytes.as_ref() == Some(&images[0]), "{outcome}");
    // The same when all hosts do so: the restore fails.
    grid.lie(Lie::MixesJobsUp);
    let (outcome, bytes) = restore(&grid)?;
    ensure!(bytes.is_none(), "{outcome}");
    outcome.expect(5)?;
    Ok(())
}

#[test]
fn a_lying_registry_hides_no_host_that_an_honest_one_lists() -> Result<()> {
    let mut grid = MixedGrid::up(5, 0)?;
    let images = write_images(&grid)?;
    // Nothing answers at the address of this socket.
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0")?;
    let nowhere = nobody.local_addr()?;
    grid.claim("honest", |_| ())?;
    // The liar claims to have just heard of all hosts, at an address where none is, and that two are gone.
    grid.claim("liar", |record| {
        record.silent_ms = 0;
        record.presence.addr = nowhere;
        record.alive = !["h03", "h05"].contains(&record.presence.name.as_str());
    })?;
    // The grid file has old addresses of two hosts, and lacks two others.
    grid.edit(|grid| {
        for host in grid.hosts.iter_mut().take(2) {
            host.addr = nowhere.into();
        }
        grid.hosts.truncate(3);
    })?;
    save(&grid, "first")?.expect(0)?;
    let (outcome, bytes) = restore(&grid)?;
    ensure!(bytes.as_ref() == Some(&images[0]), "{outcome}");
    Ok(())
}

/// A registry of an older program, or a liar, lists hosts under names that are not in their certificates.
#[test]
fn a_host_is_called_and_chosen_by_the_name_in_its_certificate() -> Result<()> {
    let mut grid = MixedGrid::up(4, 0)?;
    let images = write_images(&grid)?;
    let file = protocol::grid::Grid::load(&grid.path("grid.toml"))?;
    let key = |name: &str| -> Result<protocol::identity::HostId> {
        let host = file.hosts.iter().find(|host| host.name == name);
        Ok(host.context("no such host")?.id)
    };
    // h02 is reported as h03, whose own name is right; h04 has another one.
    grid.claim("liar", |record| {
        let name = match record.presence.name.as_str() {
            "h02" => "h03".to_owned(),
            "h04" => "H04".to_owned(),
            other => other.to_owned(),
        };
        record.presence.name = name;
    })?;
    grid.edit(|grid| grid.hosts.truncate(1))?;
    let hosts = grid.run(["--json", "hosts"])?.expect(0)?.json()?;
    let hosts = hosts["hosts"].as_array().context("no hosts")?.clone();
    let of = |name: &str| -> Result<&serde_json::Value> {
        let id = key(name)?.hex();
        let host = hosts.iter().find(|host| host["id"] == id.as_str());
        host.context("not listed")
    };
    let h02 = of("h02")?;
    ensure!(h02["name"] == "h02" && h02["up"] == true, "{h02}");
    let reported = h02["misnamed"].as_str().unwrap_or_default();
    ensure!(reported.starts_with("h03"), "{h02}");
    let h03 = of("h03")?;
    ensure!(
        h03["name"] == format!("h03-{}", key("h03")?) && h03["misnamed"].is_null(),
        "two hosts were reported as h03: {h03}"
    );
    ensure!(of("h04")?["name"] == "h04" && of("h04")?["misnamed"] == "H04");
    let said = grid.run(["hosts"])?.expect(0)?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    ensure!(
        said.contains("note: a registry reports h02 as h03"),
        "{said}"
    );

    let choose = |job: &str, names: &str| -> Result<tests::Outcome> {
        let code = ["--data", "1", "--parity", "0", "--choose", names];
        let save = ["save", "--job", job];
        grid.run(save.iter().chain(&code).chain(&["first"]))
    };
    for (job, name) in [("1", "h03"), ("2", "h02"), ("3", "h04")] {
        let before: Vec<usize> = count_files(&grid)?;
        choose(job, name)?.expect(0)?;
        let grown: Vec<usize> = count_files(&grid)?;
        let grown: Vec<&str> = HOSTS
            .into_iter()
            .zip(before.iter().zip(&grown))
            .filter_map(|(name, (before, after))| (after > before).then_some(name))
            .collect();
        ensure!(grown == [name], "{name}: {grown:?}");
    }
    choose("4", "H04")?.expect(2)?;
    drop(images);
    Ok(())
}

const HOSTS: [&str; 4] = ["h01", "h02", "h03", "h04"];

fn count_files(grid: &MixedGrid) -> Result<Vec<usize>> {
    let count = |name| Ok(grid.shard_files(name)?.len());
    HOSTS.into_iter().map(count).collect()
}

#[test]
fn labels_that_a_terminal_would_obey_are_not_printed() -> Result<()> {
    let mut grid = MixedGrid::up(1, 0)?;
    let trick = "\u{1b}]0;owned\u{7}\u{1b}[2J\nh09  10.0.0.9:7600  lab  up";
    grid.claim("liar", |record| {
        record.presence.site = Some(trick.to_owned());
        record.presence.owner = Some(trick.to_owned());
    })?;
    grid.edit(|grid| grid.hosts.clear())?;
    let check = || -> Result<()> {
        let hosts = grid.run(["hosts"])?.expect(0)?;
        let said = String::from_utf8_lossy(&hosts.stdout).into_owned();
        ensure!(
            said.chars().all(|c| c == '\n' || !c.is_control()),
            "{said:?}"
        );
        let begins: Vec<_> = said
            .lines()
            .filter_map(|line| line.split(' ').next())
            .collect();
        // The output has a head, one host, and the summary ("1 of 1 hosts up", or "0 of 1").
        ensure!(
            matches!(begins.as_slice(), ["HOST", "h01", "0" | "1"]),
            "{said:?}"
        );
        Ok(())
    };
    check()?;
    // The same for labels that an earlier program stored in the state directory, without the registry.
    let entry = std::fs::read_dir(grid.path("state"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|kind| kind == "json"));
    let path = entry.context("nothing was written down")?;
    let mut known: serde_json::Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    known["roster"][0]["site"] = trick.into();
    known["roster"][0]["owner"] = trick.into();
    std::fs::write(&path, known.to_string())?;
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0")?;
    let nowhere = nobody.local_addr()?;
    grid.edit(|grid| {
        for registry in &mut grid.registries {
            registry.addr = nowhere.into();
        }
    })?;
    check()
}

#[test]
fn hosts_that_did_not_hear_of_a_removal_are_named_and_change_the_exit_status() -> Result<()> {
    let grid = MixedGrid::up(3, 2)?;
    write_images(&grid)?;
    for _ in 0..3 {
        grid.run(["save", "--job", "42", "--keep", "9", "first"])?
            .expect(0)?;
    }
    grid.lie(Lie::IsDeaf);
    let forgotten = grid
        .run(["forget", "--job", "42", "--keep", "2"])?
        .expect(3)?;
    let said = String::from_utf8_lossy(&forgotten.stdout).into_owned();
    let first = said.lines().next().context("no line")?;
    ensure!(
        first.contains("not informed: 2 hosts") && first.contains("h04 h05"),
        "{said}"
    );
    let forgotten = grid.run(["--json", "forget", "--job", "42", "--version", "2"])?;
    let forgotten = forgotten.expect(3)?.json()?;
    ensure!(
        forgotten["unheard"][0]["host"] == "h04" && forgotten["removed"][0] == 2,
        "{forgotten}"
    );
    let saved = grid.run(["--json", "save", "--job", "42", "--keep", "1", "first"])?;
    let saved = saved.expect(0)?.json()?;
    ensure!(
        saved["notes"].to_string().contains("h04 was not informed"),
        "{saved}"
    );
    Ok(())
}

#[test]
fn a_host_that_does_not_send_its_notices_counts_as_silent() -> Result<()> {
    let grid = MixedGrid::up(4, 1)?;
    write_images(&grid)?;
    save(&grid, "first")?.expect(0)?;
    for (lie, silent) in [(Lie::None, 0), (Lie::KeepsNotices, 1)] {
        grid.lie(lie);
        let listed = grid.run(["--json", "list", "--job", "42"])?.json()?;
        let named = listed["silent"].as_array().context("silent")?;
        ensure!(named.len() == silent, "{lie:?}: {listed}");
    }
    Ok(())
}

#[test]
fn a_removal_that_no_host_heard_is_reported_as_a_failure() -> Result<()> {
    let grid = MixedGrid::up(0, 5)?;
    write_images(&grid)?;
    save(&grid, "first")?.expect(0)?;
    save(&grid, "first")?.expect(0)?;
    grid.lie(Lie::IsDeaf);
    let forgotten = grid.run(["forget", "--job", "42", "--all"])?.expect(1)?;
    let first = forgotten.stderr.lines().next().unwrap_or_default();
    ensure!(
        first.contains("none of the 5 hosts that answer accepted the change"),
        "{forgotten}"
    );
    ensure!(!forgotten.stderr.contains("removed"), "{forgotten}");
    grid.run(["forget", "--job", "42", "--keep", "1"])?
        .expect(1)?;
    grid.run(["gc", "--keep", "1"])?.expect(1)?;
    let saved = grid.run(["--json", "save", "--job", "42", "--keep", "1", "first"])?;
    let saved = saved.expect(0)?.json()?;
    ensure!(
        saved["removed"] == serde_json::json!([])
            && saved["notes"]
                .to_string()
                .contains("versions 2 1 were not removed"),
        "{saved}"
    );
    Ok(())
}

/// All hosts know notices.
#[test]
fn a_host_that_claims_not_to_know_notices_counts_as_not_having_heard() -> Result<()> {
    let grid = MixedGrid::up(3, 2)?;
    write_images(&grid)?;
    for _ in 0..3 {
        grid.run(["save", "--job", "42", "--keep", "9", "first"])?
            .expect(0)?;
    }
    grid.lie(Lie::RefusesNotices);
    let forgotten = grid.run(["--json", "forget", "--job", "42", "--keep", "2"])?;
    let forgotten = forgotten.expect(3)?.json()?;
    let unheard = forgotten["unheard"].as_array().context("unheard")?;
    let unheard: Vec<_> = unheard.iter().map(|one| one["host"].clone()).collect();
    ensure!(unheard == ["h04", "h05"], "{forgotten}");
    Ok(())
}
