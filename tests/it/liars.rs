//! Hosts that lie in every way that has a name, among honest ones. With as many liars as there are
//! parity shards every restore is right; with more, `ckpt` says so and leaves nothing behind.

use anyhow::{Context, Result, ensure};
use tests::image;
use tests::liar::{Kind, Lie};
use tests::mixed::MixedGrid;

/// Several segments.
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

/// Restores and compares; `None` when `ckpt` said that it can't.
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
    // Whatever happens, a second attempt is not to find the first one's file.
    if bytes.is_some() {
        std::fs::remove_file(&out)?;
    }
    Ok((outcome, bytes))
}

/// Two versions are saved while all are honest; then two of five lie.
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

/// Three of five lie: one more than there are parity shards. What is restored is right and an
/// earlier version only if that is said; nothing else than that or an error is allowed.
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

/// Two of ten lie all the time, when checkpoints are saved, too.
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

/// All lies of a kind, in threads: each has a grid of its own.
fn each(lies: impl Iterator<Item = Lie>, test: fn(Lie) -> Result<()>) -> Result<()> {
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

fn about_data() -> impl Iterator<Item = Lie> {
    Lie::ALL.into_iter().filter(|lie| !about_life(*lie))
}

/// Lies that cost the client time.
fn about_life(lie: Lie) -> bool {
    matches!(
        lie,
        Lie::Drips | Lie::IsSilent | Lie::SendsHugeFrames | Lie::SendsNoise | Lie::AnswersTooMuch
    ) || matches!(lie, Lie::HangsUpAt(_))
}

fn about_time() -> impl Iterator<Item = Lie> {
    Lie::ALL.into_iter().filter(|lie| about_life(*lie))
}

#[test]
fn two_liars_of_five_do_no_harm() -> Result<()> {
    each(about_data(), two_of_five)
}

#[test]
fn two_of_five_that_break_off_or_hold_up_do_no_harm() -> Result<()> {
    each(about_time(), two_of_five)
}

#[test]
fn three_liars_of_five_are_an_error_or_do_no_harm() -> Result<()> {
    each(about_data(), three_of_five)
}

#[test]
fn three_of_five_that_break_off_or_hold_up_are_an_error() -> Result<()> {
    // Hosts that drip are borne for minutes when there are no others: slow is better than nothing.
    each(about_time().filter(|lie| *lie != Lie::Drips), three_of_five)
}

#[test]
fn two_liars_of_ten_do_no_harm_to_saves_either() -> Result<()> {
    each(about_data(), two_of_ten)
}

#[test]
fn two_of_ten_that_break_off_or_hold_up_do_no_harm_to_saves_either() -> Result<()> {
    each(about_time(), two_of_ten)
}

#[test]
fn the_list_of_lies_is_whole() {
    let ends = Lie::ALL
        .into_iter()
        .filter(|lie| matches!(lie, Lie::HangsUpAt(_)));
    assert_eq!(ends.count(), 9);
    assert!(!Lie::ALL.contains(&Lie::None));
    assert!(Lie::ALL.contains(&Lie::HangsUpAt(Kind::Rows)));
}

/// A host answers every `Find` with records that are none, or with the same one, for ever.
#[test]
fn a_list_without_end_takes_no_memory() -> Result<()> {
    /// Of `ckpt`, beside what `--memory` allows.
    const PROGRAM_BYTES: u64 = 32 << 20;
    /// Large enough that a flood of one second would not fit into it.
    const MEMORY_BYTES: u64 = 64 << 20;
    for lie in [Lie::FloodsFind, Lie::RepeatsFind] {
        let grid = MixedGrid::up(5, 2)?;
        let images = write_images(&grid)?;
        // Small parts, so that everybody gets some of them.
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

/// A donor shows what it holds of another job of the same owner, with a higher version.
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
    // Nor when all of them do it.
    grid.lie(Lie::MixesJobsUp);
    let (outcome, bytes) = restore(&grid)?;
    ensure!(bytes.is_none(), "{outcome}");
    outcome.expect(5)?;
    Ok(())
}

#[test]
fn a_lying_registry_hides_no_host_from_those_whom_an_honest_one_tells() -> Result<()> {
    let mut grid = MixedGrid::up(5, 0)?;
    let images = write_images(&grid)?;
    // Nobody answers there.
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0")?;
    let nowhere = nobody.local_addr()?;
    grid.tell("honest", |_| ())?;
    // It has just heard of all of them, at an address at which nobody is, and two are gone.
    grid.tell("liar", |record| {
        record.silent_ms = 0;
        record.presence.addr = nowhere;
        record.alive = !["h03", "h05"].contains(&record.presence.name.as_str());
    })?;
    // Two have moved since the grid file was written, and two are not in it.
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

#[test]
fn labels_that_a_terminal_would_obey_are_not_printed() -> Result<()> {
    let mut grid = MixedGrid::up(1, 0)?;
    let trick = "\u{1b}]0;owned\u{7}\u{1b}[2J\nh09  10.0.0.9:7600  lab  up";
    grid.tell("liar", |record| {
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
        // Head, one host, and the line for all ("1 of 1 hosts up", or "0 of 1").
        ensure!(
            matches!(begins.as_slice(), ["HOST", "h01", "0" | "1"]),
            "{said:?}"
        );
        Ok(())
    };
    check()?;
    // Nor when an earlier program wrote them down, and the registry is gone.
    let entry = std::fs::read_dir(grid.path("state"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        });
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
fn who_did_not_hear_of_a_removal_is_named_and_shows_in_the_exit_status() -> Result<()> {
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
        first.contains("not heard by 2 hosts") && first.contains("h04 h05"),
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
        saved["notes"].to_string().contains("h04 did not hear"),
        "{saved}"
    );
    Ok(())
}

#[test]
fn what_nobody_heard_is_a_failure_and_no_removal() -> Result<()> {
    let grid = MixedGrid::up(0, 5)?;
    write_images(&grid)?;
    save(&grid, "first")?.expect(0)?;
    save(&grid, "first")?.expect(0)?;
    grid.lie(Lie::IsDeaf);
    let forgotten = grid.run(["forget", "--job", "42", "--all"])?.expect(1)?;
    let first = forgotten.stderr.lines().next().unwrap_or_default();
    ensure!(
        first.contains("none of the 5 hosts that answer heard it"),
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

/// A host that speaks today's protocol knows notices, whatever it says.
#[test]
fn who_says_that_it_does_not_know_notices_did_not_hear_them() -> Result<()> {
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
