//! Later versions store only what changed since the one before.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::liar::Lie;
use tests::mixed::MixedGrid;
use tests::{Grid, image};

const MIB: usize = 1 << 20;

/// Changes one block of 64 KiB in ten.
fn change(bytes: &mut [u8], seed: u64) {
    let noise = image::memory(64 << 10, seed ^ 0x77);
    for (at, block) in bytes.chunks_mut(64 << 10).enumerate() {
        if (at as u64 + seed).is_multiple_of(10) {
            for (byte, other) in block.iter_mut().zip(&noise) {
                *byte = byte.wrapping_add(*other | 1);
            }
        }
    }
}

fn save(grid: &Grid, bytes: &[u8], more: &[&str]) -> Result<Value> {
    fs::write(grid.path("image"), bytes)?;
    let save = ["--json", "save", "--job", "42", "image"];
    grid.run(save.iter().chain(more))?.expect(0)?.json()
}

fn restore(grid: &Grid, version: u64) -> Result<Vec<u8>> {
    let version = version.to_string();
    let restore = [
        "restore",
        "--job",
        "42",
        "--version",
        &version,
        "--force",
        "-o",
        "out",
    ];
    grid.run(restore)?.expect(0)?;
    Ok(fs::read(grid.path("out"))?)
}

#[test]
fn unchanged_segments_are_not_sent_again() -> Result<()> {
    let grid = Grid::up(7)?;
    let first = image::memory(20 * MIB + 12_345, 1);
    let mut second = first.clone();
    change(&mut second, 3);
    let whole = save(&grid, &first, &["--keep", "9"])?;
    ensure!(whole["base"].is_null(), "{whole}");
    let patch = save(&grid, &second, &["--keep", "9"])?;
    ensure!(patch["base"] == 1, "{patch}");
    let bytes = |report: &Value| report["shard_bytes"].as_u64();
    ensure!(bytes(&patch).map(|b| b * 4) < bytes(&whole), "{patch}");
    let same = save(&grid, &second, &["--keep", "9"])?;
    ensure!(same["base"] == 2 && same["stored_bytes"] == 0, "{same}");
    // Two hosts die that hold shards of the version on which the others build.
    let show = ["--json", "show", "--job", "42", "--version", "1"];
    let shown = grid.run(show)?.expect(0)?.json()?;
    for shard in 0..2 {
        let host = shown["holders"][shard]["host"].as_str();
        grid.kill(host.context("no holder")?)?;
    }
    for (version, image) in [(1, &first), (2, &second), (3, &second)] {
        ensure!(restore(&grid, version)? == *image, "version {version}");
    }
    let streamed = grid.run(["restore", "--job", "42", "-o", "-"])?.expect(0)?;
    ensure!(streamed.stdout == second);
    // The hosts may come back, so the next version builds on what lacks their shards, and says so.
    let next = ["--json", "save", "--job", "42", "image", "--keep", "9"];
    let next = grid.run(next)?.expect(3)?.json()?;
    ensure!(next["base"] == 3 && next["can_lose"] == 0, "{next}");
    let full = save(&grid, &second, &["--keep", "9", "--full"])?;
    ensure!(full["base"].is_null() && full["can_lose"] == 2, "{full}");
    Ok(())
}

/// A grid that grows, and one whose user asks for fewer data shards.
#[test]
fn a_version_can_build_on_one_with_another_number_of_shards() -> Result<()> {
    let grid = Grid::up(6)?;
    let first = image::memory(8 * MIB, 1);
    let mut second = first.clone();
    change(&mut second, 3);
    for host in ["h01", "h03", "h06"] {
        grid.kill(host)?;
    }
    let narrow = save(&grid, &first, &["--keep", "9"])?;
    ensure!(narrow["redundancy"] == "1+2", "{narrow}");
    // Its number is the time, since half of the members were silent.
    let number = narrow["version"].as_u64().context("version")?;
    grid.restart()?;
    let wide = save(&grid, &second, &["--keep", "9"])?;
    ensure!(
        wide["redundancy"] == "3+2" && wide["base"] == number,
        "{wide}"
    );
    let bytes = |report: &Value| report["stored_bytes"].as_u64();
    ensure!(bytes(&wide).map(|b| b * 4) < bytes(&narrow), "{wide}");

    let whole = save(&grid, &second, &["--keep", "9", "--full"])?;
    let back = ["--keep", "9", "--data", "1", "--parity", "2"];
    let back = save(&grid, &first, &back)?;
    ensure!(
        back["redundancy"] == "1+2" && back["base"] == number + 2,
        "{back}"
    );
    ensure!(bytes(&back) < bytes(&whole), "{back}");
    for (version, image) in (number..).zip([&first, &second, &second, &first]) {
        ensure!(restore(&grid, version)? == *image, "version {version}");
    }
    Ok(())
}

/// What `list` shows: versions, and for checkpoints that are no versions any more, the version that needs them.
fn listed(grid: &Grid) -> Result<Vec<(u64, Option<u64>)>> {
    let list = grid.run(["--json", "list", "--job", "42"])?;
    let list = list.expect(0)?.json()?;
    let all = list["checkpoints"].as_array().context("no list")?.iter();
    all.map(|one| {
        let version = one["version"].as_u64().context("no version")?;
        Ok((version, one["kept_for"].as_u64()))
    })
    .collect()
}

#[test]
fn what_a_version_builds_on_is_kept_as_long_as_it_is() -> Result<()> {
    let grid = Grid::up(5)?;
    let mut bytes = image::memory(8 * MIB, 5);
    let mut stored = Vec::new();
    for seed in 0..5 {
        change(&mut bytes, seed);
        let saved = save(&grid, &bytes, &["--keep", "1"])?;
        let base = Some(seed).filter(|seed| *seed > 0);
        ensure!(saved["base"].as_u64() == base, "{saved}");
        stored.push(saved["stored_bytes"].as_u64().context("no number")?);
    }
    // Each stores the tenth that changed, and perhaps as much again.
    let mut later = stored.iter().skip(1);
    ensure!(later.all(|bytes| bytes * 4 < stored[0]), "{stored:?}");
    let all = listed(&grid)?;
    let others = all.iter().filter(|one| **one != (5, None));
    ensure!(others.clone().count() >= 2, "{all:?}");
    ensure!(others.clone().all(|one| one.1 == Some(5)), "{all:?}");
    let text = grid.run(["list", "--job", "42"])?.expect(0)?.stdout;
    let text = String::from_utf8(text)?;
    ensure!(text.contains(", for version 5"), "{text}");
    ensure!(restore(&grid, 5)? == bytes);
    let whole = save(&grid, &bytes, &["--keep", "1", "--full"])?;
    ensure!(whole["base"].is_null());
    ensure!(listed(&grid)? == [(6, None)]);
    change(&mut bytes, 9);
    save(&grid, &bytes, &["--keep", "1"])?;
    ensure!(listed(&grid)? == [(6, Some(7)), (7, None)]);
    let refused = grid.run(["forget", "--job", "42", "--version", "6"])?;
    ensure!(refused.expect(1)?.stderr.contains("version 7 builds on"));
    grid.run(["forget", "--job", "42", "--keep", "1"])?
        .expect(0)?;
    grid.run(["gc", "--keep", "1"])?.expect(0)?;
    ensure!(grid.versions("42")? == [6, 7] && restore(&grid, 7)? == bytes);
    let two = save(&grid, &bytes, &["--keep", "2"])?;
    ensure!(two["stored_bytes"] == 0, "{two}");
    ensure!(listed(&grid)? == [(6, Some(8)), (7, None), (8, None)]);
    grid.run(["forget", "--job", "42", "--all"])?.expect(0)?;
    ensure!(grid.versions("42")?.is_empty());
    Ok(())
}

/// With five shards of three, 16 MiB that do not compress are 27 s of this bandwidth.
const HURRIED: [&str; 6] = ["--keep", "9", "--bandwidth", "1MiB", "--deadline", "20s"];

/// Changes all bytes in a share of an image that does not compress.
fn change_share(bytes: &mut [u8], seed: u8, one_in: usize) {
    let from = usize::from(seed) * MIB;
    let changed = bytes.len() / one_in;
    for byte in &mut bytes[from..from + changed] {
        *byte ^= seed | 1;
    }
}

#[test]
fn a_save_stores_a_patch_where_the_whole_image_would_miss_its_deadline() -> Result<()> {
    let grid = Grid::up(5)?;
    let mut bytes = image::noise(16 * MIB, 1);
    let whole = save(&grid, &bytes, &["--keep", "9"])?;
    change_share(&mut bytes, 1, 4);
    let second = save(&grid, &bytes, &["--keep", "9"])?;
    let stored = |report: &Value| report["stored_bytes"].as_u64();
    ensure!(stored(&second).map(|b| b * 5) > stored(&whole), "{second}");
    change_share(&mut bytes, 9, 100);
    let third = save(&grid, &bytes, &HURRIED)?;
    ensure!(third["base"] == 2, "{third}");
    ensure!(stored(&third).map(|b| b * 50) < stored(&whole), "{third}");
    ensure!(restore(&grid, 3)? == bytes);
    let fourth = save(&grid, &bytes, &["--keep", "9", "--deadline", "10m"])?;
    ensure!(
        fourth["base"] == 3 && stored(&fourth) == Some(0),
        "{fourth}"
    );
    let new = |report: &Value| report["new_bytes"].as_u64();
    ensure!(new(&whole).is_none(), "{whole}");
    for saved in [&second, &third, &fourth] {
        ensure!(new(saved) == stored(saved), "{saved}");
    }
    let full = ["--keep", "9", "--deadline", "10m", "--full"];
    let full = save(&grid, &bytes, &full)?;
    ensure!(full["base"].is_null() && new(&full).is_none(), "{full}");
    Ok(())
}

#[test]
fn a_save_with_little_time_builds_on_a_version_that_has_lost_a_shard() -> Result<()> {
    let grid = Grid::up(6)?;
    let mut bytes = image::noise(16 * MIB, 2);
    save(&grid, &bytes, &["--keep", "9"])?;
    let host = grid.holders("42")?.first().context("no holder")?.clone();
    grid.kill(&host)?;
    change_share(&mut bytes, 3, 50);
    fs::write(grid.path("image"), &bytes)?;
    let hurried = ["--json", "save", "--job", "42", "image"];
    let hurried = grid
        .run(hurried.iter().chain(&HURRIED))?
        .expect(3)?
        .json()?;
    ensure!(
        hurried["base"] == 1 && hurried["can_lose"] == 1,
        "{hurried}"
    );
    let said = hurried["warnings"][0].as_str().unwrap_or_default();
    ensure!(said.contains("version 1"), "{hurried}");
    ensure!(restore(&grid, 2)? == bytes);
    // The version itself is on hosts that are there, and what it builds on may be whole again.
    let verdict = |report: &Value| (report["base"].clone(), report["can_lose"].clone());
    let calm = ["--json", "save", "--job", "42", "image", "--keep", "9"];
    let calm = grid.run(calm)?.expect(3)?.json()?;
    ensure!(verdict(&calm) == (2.into(), 1.into()), "{calm}");
    grid.restart()?;
    let whole = save(&grid, &bytes, &["--keep", "9"])?;
    ensure!(verdict(&whole) == (3.into(), 2.into()), "{whole}");
    Ok(())
}

#[test]
fn a_base_that_is_read_slowly_does_not_use_the_deadline_up() -> Result<()> {
    let grid = MixedGrid::up(1, 4)?;
    let mut bytes = image::noise(8 * MIB, 3);
    fs::write(grid.path("image"), &bytes)?;
    let save = ["--json", "save", "--job", "42", "image"];
    grid.run(save)?.expect(0)?;
    grid.lie(Lie::Drips);
    change_share(&mut bytes, 3, 50);
    fs::write(grid.path("image"), &bytes)?;
    let hurried = save.iter().chain(&["--deadline", "16s"]);
    let hurried = grid.run(hurried)?.expect(0)?.json()?;
    ensure!(hurried["base"].is_null(), "{hurried}");
    grid.lie(Lie::None);
    grid.run(["restore", "--job", "42", "-o", "out"])?
        .expect(0)?;
    ensure!(fs::read(grid.path("out"))? == bytes);
    Ok(())
}

/// Dumps of the processes of one job: content that they share is stored once, and restored to each.
#[test]
fn bytes_that_ranks_share_are_stored_once() -> Result<()> {
    let grid = Grid::up(5)?;
    let mut ranks = Vec::new();
    for rank in 0..4_u8 {
        // Each rank has content that all share, with a few bytes changed, and content of its own.
        let own = image::memory(2 * MIB, 10 + u64::from(rank));
        let mut bytes = [image::memory(8 * MIB + 4096, 1), own].concat();
        for at in (0..bytes.len()).step_by(3 * MIB + 1) {
            bytes[at] ^= rank;
        }
        let path = grid.path(&format!("rank-{rank}.img"));
        fs::write(&path, &bytes)?;
        // Every second file has a mode with which its owner can't open it a second time, unless the owner
        // is root.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400 >> (4 * (rank % 2))))?;
        ranks.push((path, bytes));
    }
    let paths = ranks.iter().filter_map(|(path, _)| path.to_str());
    let save: Vec<&str> = ["--json", "save", "--job", "42"]
        .into_iter()
        .chain(paths)
        .collect();
    let check = |saved: &Value, least: u64| -> Result<()> {
        let read = saved["read_bytes"].as_u64();
        let stored = saved["stored_bytes"].as_u64();
        ensure!(stored.map(|stored| stored * least) < read, "{saved}");
        fs::remove_dir_all(grid.path("back")).or_else(ignore_missing)?;
        grid.run(["restore", "--job", "42", "-o", "back"])?
            .expect(0)?;
        for (path, bytes) in &ranks {
            let name = path.file_name().context("no name")?;
            ensure!(fs::read(grid.path("back").join(name))? == *bytes);
        }
        Ok(())
    };
    let saved = grid.run(&save)?.expect(0)?.json()?;
    // Compression alone would halve the bytes.
    check(&saved, 4)?;
    let again = grid.run(&save)?.expect(0)?.json()?;
    ensure!(again["base"] == 1, "{again}");
    check(&again, 40)?;
    // The checkpoint can be restored with two hosts dead, too.
    for host in grid.holders("42")?.iter().take(2) {
        grid.kill(host)?;
    }
    check(&again, 40)
}

fn ignore_missing(cause: std::io::Error) -> std::io::Result<()> {
    let is_missing = cause.kind() == std::io::ErrorKind::NotFound;
    if is_missing { Ok(()) } else { Err(cause) }
}

#[test]
fn files_that_moved_in_a_tree_are_found_again() -> Result<()> {
    let grid = Grid::up(5)?;
    let tree = grid.path("tree");
    fs::create_dir(&tree)?;
    let big = image::memory(6 * MIB, 1);
    fs::write(tree.join("b"), &big)?;
    fs::write(tree.join("c"), image::memory(3 * MIB + 5, 2))?;
    let save = ["--json", "save", "--job", "t", "tree"];
    grid.run(save)?.expect(0)?;
    // A new file comes before the others in the image, and moves all of them.
    fs::write(tree.join("a"), image::memory(MIB + 77, 3))?;
    let saved = grid.run(save)?.expect(0)?.json()?;
    ensure!(saved["base"] == 1, "{saved}");
    let read = saved["read_bytes"].as_u64();
    let stored = saved["stored_bytes"].as_u64();
    ensure!(stored.map(|stored| stored * 5) < read, "{saved}");
    grid.run(["restore", "--job", "t", "-o", "back"])?
        .expect(0)?;
    for name in ["a", "b", "c"] {
        let new = tree.join(name);
        let back = grid.path("back").join(name);
        ensure!(fs::read(new)? == fs::read(back)?, "{name}");
    }
    Ok(())
}

/// A command writes an archive in which some files became longer or shorter, which moves all bytes after
/// them.
#[test]
fn bytes_that_moved_in_a_stream_are_found_again() -> Result<()> {
    let grid = Grid::up(5)?;
    let mut archive = image::memory(24 * MIB, 1);
    let save = |bytes: &[u8]| -> Result<Value> {
        fs::write(grid.path("archive"), bytes)?;
        let save = ["--json", "save", "--job", "s", "--", "cat", "archive"];
        grid.run(save)?.expect(0)?.json()
    };
    let first = save(&archive)?;
    for (number, at) in (1..=8).map(|n| (n, n * 2 * MIB + n * 12_345)) {
        let longer = image::memory(512 * number, 100 + number as u64);
        let shorter = 100 * number * (number % 2);
        archive.splice(at..at + shorter, longer);
    }
    let saved = save(&archive)?;
    ensure!(saved["base"] == 1, "{saved}");
    let stored = saved["stored_bytes"].as_u64().context("no number")?;
    // Half of each edit and of the 64 KiB after it is random, the rest compresses well.
    ensure!(stored < 8 * (64 << 10), "{saved}");
    let restored = grid.run(["restore", "--job", "s", "-o", "-"])?.expect(0)?;
    ensure!(restored.stdout == archive);
    // Most of the base is not in the next version, so a restore does not fetch that part.
    archive.drain(..17 * MIB);
    let short = save(&archive)?;
    ensure!(short["base"] == 2, "{short}");
    let restore = ["--json", "restore", "--job", "s", "-o", "short"];
    let restored = grid.run(restore)?.expect(0)?.json()?;
    ensure!(fs::read(grid.path("short"))? == archive);
    let fetched = restored["fetched_bytes"].as_u64().context("no number")?;
    let whole = first["stored_bytes"].as_u64().context("no number")?;
    ensure!(fetched * 2 < whole, "{restored} of {whole}");
    let host = grid.holders("s")?.first().context("no holder")?.clone();
    grid.kill(&host)?;
    grid.run(["restore", "--job", "s", "-o", "back"])?
        .expect(0)?;
    ensure!(fs::read(grid.path("back"))? == archive);
    Ok(())
}
