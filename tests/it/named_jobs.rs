//! How a job is named: by option, by position, by the environment; and names that were probably meant.

use std::fs;

use anyhow::{Result, ensure};
use tests::{Grid, Outcome};

/// Runs a command with `CKPT_JOB`.
fn with_job(grid: &Grid, job: &str, args: &[&str]) -> Result<Outcome> {
    tests::program::run(grid.command(args)?.env("CKPT_JOB", job))
}

/// All jobs with their newest versions.
fn jobs(grid: &Grid) -> Result<Vec<(String, u64)>> {
    let list = grid.run(["--json", "list"])?.expect(0)?.json()?;
    let all = list["checkpoints"].as_array().cloned().unwrap_or_default();
    let mut found = Vec::new();
    for one in all {
        let job = one["job"].as_str().unwrap_or_default().to_owned();
        found.push((job, one["version"].as_u64().unwrap_or_default()));
    }
    found.sort();
    found.dedup_by(|later, kept| {
        let is_same = later.0 == kept.0;
        if is_same {
            kept.1 = later.1;
        }
        is_same
    });
    Ok(found)
}

#[test]
fn a_job_is_named_by_position_by_option_or_by_the_environment() -> Result<()> {
    let grid = Grid::up(5)?;
    fs::write(grid.path("image"), b"first")?;
    grid.run(["save", "42", "image"])?.expect(0)?;
    fs::write(grid.path("image"), b"second")?;
    grid.run(["save", "image", "--job", "42"])?.expect(0)?;
    fs::write(grid.path("image"), b"third")?;
    with_job(&grid, "42", &["save", "image"])?.expect(0)?;
    with_job(&grid, "41", &["save", "43", "--", "echo", "x"])?.expect(0)?;
    let saved = jobs(&grid)?;
    ensure!(
        saved == [("42".to_owned(), 3), ("43".to_owned(), 1)],
        "{saved:?}"
    );

    let read = |ended: Result<Outcome>| Ok::<_, anyhow::Error>(ended?.expect(0)?.stdout);
    ensure!(read(grid.run(["restore", "42", "-o", "-"]))? == b"third");
    ensure!(read(with_job(&grid, "42", &["restore", "-o", "-"]))? == b"third");
    ensure!(read(with_job(&grid, "43", &["restore", "42", "-o", "-"]))? == b"third");
    ensure!(read(grid.run(["cat", "42", "image"]))? == b"third");
    ensure!(read(with_job(&grid, "42", &["cat", "image"]))? == b"third");
    for args in [
        ["show", "42"],
        ["list", "42"],
        ["verify", "42"],
        ["touch", "42"],
        ["runs", "42"],
        ["hosts", "42"],
    ] {
        grid.run(args)?.expect(0)?;
    }
    let advise = ["advise", "42", "--job-length", "12h"];
    grid.run(advise)?.expect(0)?;
    let key = ["key", "for-job", "42", "-o", "job.key"];
    grid.run(key)?.expect(0)?;
    // A filter is typed: else a check in such a shell would cover one job alone.
    let all = with_job(&grid, "42", &["list"])?.expect(0)?;
    ensure!(String::from_utf8_lossy(&all.stdout).contains("43"), "{all}");
    Ok(())
}

#[test]
fn no_save_and_no_removal_takes_a_job_that_may_not_be_meant() -> Result<()> {
    let grid = Grid::up(5)?;
    for name in ["image", "other", "42"] {
        fs::write(grid.path(name), name)?;
    }
    grid.run(["save", "--job", "42", "image"])?.expect(0)?;
    grid.run(["save", "--job", "43", "image"])?.expect(0)?;
    let before = jobs(&grid)?;
    // The job may have been forgotten: the first word is a file.
    for args in [
        &["save", "image"][..],
        &["save", "image", "other"],
        &["save", "42", "image"],
        &["save", "image", "--", "echo", "x"],
    ] {
        let failed = grid.run(args)?.expect(2)?;
        ensure!(failed.stderr.contains("no job is named"), "{failed}");
        ensure!(failed.stderr.contains("try: "), "{failed}");
    }
    let failed = grid
        .run(["save", "--job", "43", "44", "image"])?
        .expect(2)?;
    ensure!(failed.stderr.contains("by --job the job is 43"), "{failed}");
    let failed = with_job(&grid, "43", &["save", "44", "image"])?.expect(2)?;
    ensure!(
        failed.stderr.contains("by CKPT_JOB the job is 43"),
        "{failed}"
    );

    // What removes takes its job from the command line alone.
    for args in [&["forget", "--all"][..], &["touch", "--ttl", "1s"]] {
        let failed = with_job(&grid, "42", args)?.expect(2)?;
        ensure!(failed.stderr.contains("no job is named"), "{failed}");
    }
    let failed = grid.run(["forget", "42", "--job", "43", "--all"])?;
    let failed = failed.expect(2)?;
    ensure!(failed.stderr.contains("two jobs are named"), "{failed}");
    grid.run(["gc", "42"])?.expect(2)?;
    ensure!(jobs(&grid)? == before, "{before:?}");
    grid.run(["forget", "42", "--all"])?.expect(0)?;
    ensure!(jobs(&grid)? == [("43".to_owned(), 1)]);
    Ok(())
}

#[test]
fn a_mistyped_job_is_answered_with_the_one_that_was_meant() -> Result<()> {
    let grid = Grid::up(5)?;
    fs::write(grid.path("image"), b"image")?;
    grid.run(["save", "42", "image"])?.expect(0)?;
    let commands: [&[&str]; 7] = [
        &["list", "24"],
        &["restore", "24"],
        &["show", "24"],
        &["cat", "24"],
        &["verify", "24"],
        &["touch", "24"],
        &["forget", "24", "--all"],
    ];
    for args in commands {
        let failed = grid.run(args)?.expect(4)?;
        ensure!(failed.stderr.contains("did you mean job 42?"), "{failed}");
    }
    let failed = grid.run(["--json", "show", "24"])?.expect(4)?.json()?;
    ensure!(
        failed["error"]["state"] == "did you mean job 42?",
        "{failed}"
    );
    for args in [&["show", "sim"][..], &["show", "42", "--version", "9"]] {
        let failed = grid.run(args)?.expect(4)?;
        ensure!(!failed.stderr.contains("did you mean"), "{failed}");
    }
    ensure!(jobs(&grid)? == [("42".to_owned(), 1)]);
    Ok(())
}
