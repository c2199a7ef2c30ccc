//! A job goes on while its files are saved: they are set aside by further names or copies. On a file system whose copies
//! share blocks (XFS, on a loop device), an image is that of the moment at once, of any size.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use rustix::process::Signal;
use tests::program::wait_until;
use tests::skip::not_checked;
use tests::supervised::{PATIENCE, RunMachine, Running};
use tests::{Grid, image};

/// The job's name.
const JOB: &str = "shares";

/// Counts in a file beside an image that never changes.
const COUNTS: &str = r#"
    n=0
    while :; do
        n=$((n + 1)); echo $n >"$1/n.new"; mv "$1/n.new" "$1/n"; echo $n >"$1.count"; sleep 0.1
    done
"#;

/// A mounted file system, which is unmounted at the end.
struct Mounted(PathBuf);

impl Mounted {
    /// XFS in a sparse file of the grid's directory; `None` where that can't be made.
    fn xfs(grid: &Grid) -> Result<Option<Self>> {
        let device = grid.path("xfs.image");
        let at = grid.path("xfs");
        fs::File::create(&device)?.set_len(1 << 30)?;
        fs::create_dir(&at)?;
        let works = |command: &mut Command| command.status().is_ok_and(|status| status.success());
        let made = works(
            Command::new("mkfs.xfs")
                .args(["-q", "-m", "reflink=1"])
                .arg(&device),
        ) && works(
            Command::new("mount")
                .args(["-o", "loop"])
                .args([&device, &at]),
        );
        Ok(made.then_some(Self(at)))
    }

    /// Bytes of the file system that are in use.
    fn used(&self) -> Result<u64> {
        let space = rustix::fs::statvfs(&self.0)?;
        Ok((space.f_blocks - space.f_bfree) * space.f_frsize)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A process of a failed test may still use it.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Writes a large file in place or, with a third argument, replaces it, each few seconds, with a hash of it at its
/// end. Counts meanwhile.
const WRITES: &str = r#"
    n=0
    while :; do
        head -c 33554432 /dev/urandom >"$1.data"
        sha256sum <"$1.data" >>"$1.data"
        if [ -n "$2" ]; then mv "$1.data" "$1/large"; else cat "$1.data" >"$1/large"; fi
        echo $n >"$1/n.new"; mv "$1/n.new" "$1/n"
        for i in $(seq 40); do n=$((n + 1)); echo $n >"$1.count"; sleep 0.1; done
    done
"#;

/// Whether `ckpt run` has files aside, beside the state.
fn has_copies(beside: &Path) -> Result<bool> {
    let names = fs::read_dir(beside)?.map(|entry| Ok(entry?.file_name()));
    let names: Vec<_> = names.collect::<Result<_>>()?;
    Ok(names
        .iter()
        .any(|name| name.as_encoded_bytes().starts_with(b".ckpt-aside-")))
}

#[test]
fn where_copies_share_blocks_a_detached_image_costs_no_space_and_is_that_of_the_moment()
-> Result<()> {
    let grid = Grid::up(5)?;
    let Some(disk) = Mounted::xfs(&grid)? else {
        return not_checked("copies that share blocks", "XFS can't be made and mounted");
    };
    let path = disk.0.join("image");
    let old = image::memory(40 << 20, 3);
    fs::write(&path, &old)?;
    let before = disk.used()?;
    let shown = path.display().to_string();
    // At this rate the save takes seconds.
    let args = [
        "--json",
        "--bandwidth",
        "8MiB",
        "save",
        "--detach",
        "--job",
        JOB,
        &shown,
    ];
    let detached = grid.run(args)?.expect(0)?.json()?;
    ensure!(detached["how"] == "shared", "{detached}");
    ensure!(disk.used()? < before + (4 << 20), "the copy takes space");
    // The program writes into its file while that is saved.
    fs::write(&path, image::memory(40 << 20, 4))?;
    grid.run(["wait", JOB])?.expect(0)?;
    let back = grid.path("back");
    let to = back.display().to_string();
    grid.run(["restore", "--job", JOB, "-o", &to])?.expect(0)?;
    ensure!(fs::read(back)? == old, "not the image of the moment");
    Ok(())
}

#[test]
fn where_copies_share_blocks_a_job_goes_on_while_its_checkpoint_is_read() -> Result<()> {
    let grid = Grid::up(5)?;
    let Some(_disk) = Mounted::xfs(&grid)? else {
        return not_checked("copies that share blocks", "XFS can't be made and mounted");
    };
    let here = RunMachine::new(&grid, "xfs/here", JOB, "sh")?;
    let state = here.dir.join("st");
    fs::create_dir(&state)?;
    let large = image::memory(24 << 20, 5);
    fs::write(state.join("large"), &large)?;
    let run = [
        "--json",
        "--bandwidth",
        "4MiB",
        "run",
        "--batch",
        "--mtbf",
        "5s",
        "--job",
    ];
    let job = [JOB, "--files", "st", "--", "sh", "-c", COUNTS, "job", "st"];
    let running = Running::of(here.bare(&[&run[..], &job].concat())?)?;
    let count = || -> u64 {
        let text = fs::read_to_string(here.dir.join("st.count")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    here.wait_for_entries("saving", 1)?;
    wait_until("copies are made", PATIENCE, || has_copies(&here.dir))?;
    let seen = count();
    wait_until("the job goes on", PATIENCE, || {
        ensure!(
            has_copies(&here.dir)?,
            "the save ended before the job went on"
        );
        Ok(count() > seen + 5)
    })?;
    wait_until("a checkpoint is committed", PATIENCE, || {
        Ok(!has_copies(&here.dir)?)
    })?;
    // Of the large file nothing changes: saves of a few bytes, which take what the hosts need to answer.
    here.wait_for_entries("saved", 5)?;
    let promises = here.entries("promise");
    ensure!(
        !promises.is_empty() && promises.iter().all(|promise| promise["limit"].is_null()),
        "{promises:?}"
    );
    running.signal(Signal::TERM)?;
    running.outcome()?;
    ensure!(!has_copies(&here.dir)?, "copies are left");
    let args = ["restore", "--job", JOB, "-o", "back"];
    tests::program::run(&mut here.bare(&args)?)?.expect(0)?;
    let back = here.dir.join("back");
    ensure!(fs::read(back.join("large"))? == large, "other bytes");
    let saved: u64 = fs::read_to_string(back.join("n"))?.trim().parse()?;
    ensure!(saved > seen, "{saved} after {seen}");
    Ok(())
}

/// Whether the grid's files are in the memory.
fn is_in_memory(grid: &Grid) -> Result<bool> {
    let mut stat = Command::new("stat");
    let file_system = stat.args(["-f", "-c", "%T"]).arg(grid.path(".")).output()?;
    Ok(file_system.stdout.starts_with(b"tmpfs"))
}

/// Restores the job, and compares its large file with the hash in it.
fn is_restored_whole(here: &RunMachine) -> Result<bool> {
    let args = ["restore", "--job", JOB, "-o", "back"];
    tests::program::run(&mut here.bare(&args)?)?.expect(0)?;
    let back = here.dir.join("back");
    let script = r#"test "$(head -c 33554432 "$1" | sha256sum)" = "$(tail -c +33554433 "$1")""#;
    let args = ["-c", script, "sh"];
    let is_whole = Command::new("sh")
        .args(args)
        .arg(back.join("large"))
        .status()?;
    Ok(is_whole.success())
}

/// Waits until the journal says by which means files that are written so are set aside.
fn wait_for_means(here: &RunMachine, how: &str) -> Result<()> {
    let by: &[&str] = match how.is_empty() {
        true => &["copies", "reflinks"],
        false => &["names"],
    };
    wait_until("the journal says by which means", PATIENCE, || {
        let entries = here.entries("set_aside");
        let last = entries.last().and_then(|entry| entry["by"].as_str());
        Ok(last.is_some_and(|last| by.contains(&last)))
    })
}

/// Saves a job whose file is written so, kills `ckpt run` during a save, and goes on.
fn goes_on_while_saved(how: &str) -> Result<()> {
    let grid = Grid::up(5)?;
    if how.is_empty() && is_in_memory(&grid)? {
        return not_checked(
            "copies of a job's files",
            "temporary files are in the memory",
        );
    }
    let here = RunMachine::new(&grid, "here", JOB, "sh")?;
    let state = here.dir.join("st");
    fs::create_dir(&state)?;
    let run = [
        "--json",
        "--bandwidth",
        "4MiB",
        // Far less than the image, so that it takes as long to read as to send.
        "--memory",
        "16MiB",
        "run",
        "--batch",
        "--mtbf",
        "5s",
        "--job",
    ];
    let job = [
        JOB, "--files", "st", "--", "sh", "-c", WRITES, "job", "st", how,
    ];
    let start = || Running::of(here.bare(&[&run[..], &job].concat())?);
    let running = start()?;
    let count = || -> u64 {
        let text = fs::read_to_string(here.dir.join("st.count")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    // The first save shows how long reading takes.
    here.wait_for_entries("saved", 1)?;
    wait_until("files are set aside", PATIENCE, || has_copies(&here.dir))?;
    let seen = count();
    wait_for_means(&here, how)?;
    wait_until(
        "the job goes on during a save",
        PATIENCE,
        || match has_copies(&here.dir)? {
            true => Ok(count() > seen + 5),
            false => anyhow::bail!(
                "the save ended before the job went on: {:?}",
                here.entries("saved")
            ),
        },
    )?;
    running.signal(Signal::KILL)?;
    running.outcome()?;
    ensure!(has_copies(&here.dir)?, "nothing is left by the kill");
    let again = start()?;
    wait_until("what the kill left is removed", PATIENCE, || {
        Ok(!has_copies(&here.dir)?)
    })?;
    let saved = here.entries("saved").len();
    here.wait_for_entries("saved", saved + 2)?;
    again.signal(Signal::TERM)?;
    again.outcome()?;
    ensure!(!has_copies(&here.dir)?, "copies are left");
    ensure!(
        is_restored_whole(&here)?,
        "the file is not as it was written"
    );
    Ok(())
}

#[test]
fn a_job_that_replaces_one_of_its_files_goes_on_while_they_are_saved() -> Result<()> {
    goes_on_while_saved("replaces")
}

#[test]
fn a_job_that_writes_a_file_in_place_goes_on_while_a_copy_is_saved() -> Result<()> {
    goes_on_while_saved("")
}
