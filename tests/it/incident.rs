//! Runs the blocks of the page for incidents, each in the situation that it is for. The number behind each command is
//! its exit status.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use tests::{Grid, image};

const PAGE: &str = include_str!("../../docs/run-a-grid/incident.md");

/// A command of the page, and its exit status.
#[derive(Debug)]
struct Line<'a> {
    words: Vec<&'a str>,
    status: i32,
}

/// The blocks below a heading.
fn blocks(heading: &str) -> Result<Vec<Vec<Line<'static>>>> {
    let start = PAGE.find(&format!("\n## {heading}\n"));
    let below = &PAGE[start.with_context(|| heading.to_owned())? + 4..];
    let below = below.split("\n## ").next().unwrap_or(below);
    let blocks = below.split("```sh\n").skip(1);
    let blocks = blocks.map(|rest| rest.split("```").next().unwrap_or_default());
    let blocks: Result<Vec<Vec<Line>>> = blocks
        .map(|block| block.lines().map(line).collect())
        .collect();
    let blocks = blocks?;
    ensure!(!blocks.is_empty(), "{heading}");
    Ok(blocks)
}

fn line(text: &'static str) -> Result<Line<'static>> {
    let parts = text.split_once(" # ");
    let (command, comment) = parts.with_context(|| text.to_owned())?;
    let words = command.split_whitespace().skip(1).collect();
    let digits = comment.split(':').next().unwrap_or_default();
    let status = digits.trim().parse();
    let status = status.with_context(|| text.to_owned())?;
    ensure!(command.starts_with("ckpt "), "{text}");
    Ok(Line { words, status })
}

/// Runs one block of the page.
fn follow(grid: &Grid, block: &[Line]) -> Result<()> {
    for line in block {
        let files = ["image.bin", "newest", "old", "current"];
        let words = line.words.iter().map(|word| match files.contains(word) {
            true => grid.path(word).display().to_string(),
            false => (*word).to_owned(),
        });
        let words: Vec<String> = words.collect();
        let outcome = grid.run(&words)?;
        ensure!(outcome.code == Some(line.status), "{line:?}: {outcome}");
    }
    Ok(())
}

fn only(heading: &str) -> Result<Vec<Line<'static>>> {
    let mut blocks = blocks(heading)?;
    ensure!(blocks.len() == 1, "{heading}");
    blocks.pop().context("no block")
}

fn saved(versions: u64) -> Result<Grid> {
    let grid = Grid::up(5)?;
    for version in 1..=versions {
        write_image(&grid.path("image.bin"), version)?;
        let path = grid.path("image.bin");
        let path = path.display().to_string();
        grid.run(["save", "--job", "42", "--keep", "9", "--full", &path])?
            .expect(0)?;
    }
    Ok(grid)
}

fn write_image(path: &Path, seed: u64) -> Result<()> {
    Ok(fs::write(path, image::memory(1 << 20, seed))?)
}

#[test]
fn with_two_hosts_away_the_cause_is_found_and_the_job_is_saved_again() -> Result<()> {
    let grid = saved(1)?;
    for host in ["h01", "h02"] {
        grid.kill(host)?;
    }
    follow(&grid, &only("First the cause")?)?;
    follow(&grid, &only("A job can lose none")?)
}

#[test]
fn with_too_few_hosts_nothing_is_lost_and_all_is_there_when_they_are_back() -> Result<()> {
    let grid = saved(1)?;
    for host in ["h01", "h02", "h03", "h04"] {
        grid.kill(host)?;
    }
    let blocks = blocks("Saves end with 5, restores with 3 or 5")?;
    let [away, back] = blocks.as_slice() else {
        anyhow::bail!("{blocks:?}");
    };
    follow(&grid, away)?;
    grid.restart()?;
    follow(&grid, back)
}

#[test]
fn a_version_that_hosts_have_lost_is_found_and_an_older_one_restored() -> Result<()> {
    let grid = saved(1)?;
    let mut older = Vec::new();
    for host in ["h01", "h02", "h03"] {
        older.extend(grid.shard_files(host)?);
    }
    let path = grid.path("image.bin");
    write_image(&path, 2)?;
    let path = path.display().to_string();
    grid.run(["save", "--job", "42", "--keep", "9", "--full", &path])?
        .expect(0)?;
    for host in ["h01", "h02", "h03"] {
        for file in grid.shard_files(host)? {
            if !older.contains(&file) {
                fs::remove_file(file)?;
            }
        }
    }
    follow(&grid, &only("A version is damaged: 7")?)
}

#[test]
fn a_job_that_was_saved_elsewhere_goes_on_from_there() -> Result<()> {
    let grid = saved(2)?;
    follow(
        &grid,
        &only("Another version follows: 10, or 77 from `ckpt run`")?,
    )
}

#[test]
fn where_no_host_answers_this_machine_is_looked_at_first() -> Result<()> {
    let grid = saved(1)?;
    for host in ["h01", "h02", "h03", "h04", "h05"] {
        grid.kill(host)?;
    }
    follow(&grid, &only("No host answers")?)
}
