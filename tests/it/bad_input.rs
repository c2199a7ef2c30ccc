//! Images, targets and command lines that are not as they should be.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use tests::skip::not_checked;
use tests::{Grid, image};

use crate::{restore_bytes, save_file};

#[test]
fn empty_files_directories_and_streams_are_restored() -> Result<()> {
    let grid = Grid::up(5)?;
    save_file(&grid, "file", b"")?;
    assert_eq!(restore_bytes(&grid, "file")?, b"");
    grid.run(["restore", "--job", "file", "-o", "empty"])?
        .expect(0)?;
    assert_eq!(fs::read(grid.path("empty"))?, b"");
    fs::create_dir(grid.path("dir"))?;
    grid.run(["save", "--job", "dir", "dir"])?.expect(0)?;
    grid.run(["restore", "--job", "dir", "-o", "again"])?
        .expect(0)?;
    image::same(&grid.path("dir"), &grid.path("again"))?;
    let args = ["save", "--job", "in", "--allow-empty", "-"];
    let saved = grid.run_with_input(args, b"")?;
    saved.expect(0)?;
    assert_eq!(restore_bytes(&grid, "in")?, b"");
    Ok(())
}

#[test]
fn a_missing_file_or_checkpoint_is_named() -> Result<()> {
    let grid = Grid::up(5)?;
    let failed = grid
        .run(["save", "--job", "42", "nowhere.img"])?
        .expect(8)?;
    assert!(failed.stderr.contains("nowhere.img"), "{failed}");
    assert!(failed.stderr.contains("No such file"), "{failed}");
    let failed = grid.run(["restore", "--job", "42"])?.expect(4)?;
    assert!(failed.stderr.contains("no checkpoint"), "{failed}");
    Ok(())
}

#[test]
fn a_changing_file_is_not_committed() -> Result<()> {
    let grid = Grid::up(5)?;
    let file = grid.path("log");
    fs::write(&file, image::memory(30 << 20, 1))?;
    let done = AtomicBool::new(false);
    let (refused, accepted) = std::thread::scope(|scope| {
        scope.spawn(|| {
            use std::io::Write;
            let mut log = fs::File::options().append(true).open(&file).unwrap();
            while !done.load(Ordering::Relaxed) {
                log.write_all(b"more").unwrap();
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
        });
        let refused = grid.run(["save", "--job", "42", "log"]);
        let accepted = grid.run(["save", "--job", "42", "--accept-changed", "log"]);
        done.store(true, Ordering::Relaxed);
        (refused, accepted)
    });
    let refused = refused?.expect(8)?;
    assert!(
        refused.stderr.contains("changed while it was read"),
        "{refused}"
    );
    let accepted = accepted?.expect(3)?;
    assert!(
        String::from_utf8_lossy(&accepted.stdout).contains("warning"),
        "{accepted}"
    );
    Ok(())
}

#[test]
fn a_target_that_exists_is_kept_unless_forced() -> Result<()> {
    let grid = Grid::up(5)?;
    save_file(&grid, "42", b"new")?;
    fs::write(grid.path("here"), b"precious")?;
    let refused = grid
        .run(["restore", "--job", "42", "-o", "here"])?
        .expect(8)?;
    assert!(refused.stderr.contains("--force"), "{refused}");
    assert_eq!(fs::read(grid.path("here"))?, b"precious");
    grid.run(["restore", "--job", "42", "-o", "here", "--force"])?
        .expect(0)?;
    assert_eq!(fs::read(grid.path("here"))?, b"new");
    // If the target is a link, the link is replaced, not the file that it points to.
    fs::write(grid.path("victim"), b"precious")?;
    symlink("victim", grid.path("planted"))?;
    grid.run(["restore", "--job", "42", "-o", "planted"])?
        .expect(8)?;
    grid.run(["restore", "--job", "42", "-o", "planted", "--force"])?
        .expect(0)?;
    assert_eq!(fs::read(grid.path("victim"))?, b"precious");
    assert!(!grid.path("planted").is_symlink());
    Ok(())
}

#[test]
fn a_restore_to_a_full_disk_says_so_and_leaves_nothing() -> Result<()> {
    let grid = Grid::up(5)?;
    save_file(&grid, "42", &image::memory(20 << 20, 2))?;
    let small = grid.path("small");
    fs::create_dir(&small)?;
    let mount = |args: &[&str]| {
        std::process::Command::new(args[0])
            .args(&args[1..])
            .arg(&small)
            .status()
    };
    let mounted = mount(&["mount", "-t", "tmpfs", "-o", "size=4m", "none"]);
    if !mounted.is_ok_and(|status| status.success()) {
        return not_checked("a full disk", "mounting a tmpfs is not allowed");
    }
    let target = small.join("image");
    let failed = grid.run([
        "restore".as_ref(),
        "--job".as_ref(),
        "42".as_ref(),
        "-o".as_ref(),
        target.as_os_str(),
    ]);
    let left = fs::read_dir(&small)?.count();
    let unmounted = mount(&["umount"]);
    let failed = failed?.expect(8)?;
    assert!(failed.stderr.contains("bytes needed"), "{failed}");
    assert_eq!(left, 0);
    assert!(unmounted?.success());
    Ok(())
}

#[test]
fn wrong_usage_and_refused_keys_have_exit_statuses_of_their_own() -> Result<()> {
    let grid = Grid::up(5)?;
    fs::write(grid.path("img"), b"x")?;
    for args in [
        vec!["save", "--job", "4//2", "img"],
        vec!["save", "img"],
        vec!["save", "--job", "42", "--data", "0", "img"],
        vec!["save", "--job", "42", "--keep", "0", "img"],
        vec!["save", "--job", "42", "--level", "99", "img"],
        vec!["save", "--job", "42", "-", "img"],
        vec!["frobnicate"],
    ] {
        grid.run(args)?.expect(2)?;
    }
    let mut lost = tests::program::command(["list"])?;
    let lost = tests::program::run(&mut lost)?.expect(2)?;
    assert!(lost.stderr.contains("CKPT_GRID"), "{lost}");
    // An empty variable counts as not set.
    let mut empty = tests::program::command(["list"])?;
    let empty = tests::program::run(empty.env("CKPT_GRID", ""))?.expect(2)?;
    assert_eq!(empty.stderr, lost.stderr);
    let key = grid.file().parent().unwrap().join("owner.key");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(&key, open)?;
    let denied = grid.run(["list"])?.expect(6)?;
    assert!(denied.stderr.contains("chmod 600"), "{denied}");
    Ok(())
}

#[test]
fn two_saves_at_once_are_two_versions() -> Result<()> {
    let grid = Grid::up(6)?;
    let images = [image::memory(8 << 20, 3), image::memory(8 << 20, 4)];
    for (number, bytes) in images.iter().enumerate() {
        fs::write(grid.path(&format!("img{number}")), bytes)?;
    }
    let args = |name| ["--json", "save", "--job", "42", "--keep", "9", name];
    let running: Vec<_> = ["img0", "img1"]
        .map(|name| grid.command(args(name)).and_then(|mut c| Ok(c.spawn()?)))
        .into_iter()
        .collect::<Result<_>>()?;
    let mut versions = Vec::new();
    for (number, child) in running.into_iter().enumerate() {
        let report = tests::program::wait(child)?.expect(0)?.json()?;
        let version = report["version"].as_u64().unwrap();
        versions.push(version);
        let version = version.to_string();
        let back = grid.run(["restore", "--job", "42", "--version", &version, "-o", "-"])?;
        assert!(back.expect(0)?.stdout == images[number], "image {number}");
    }
    assert_ne!(versions[0], versions[1]);
    Ok(())
}

#[test]
fn names_of_two_paths_must_differ() -> Result<()> {
    let grid = Grid::up(5)?;
    fs::create_dir(grid.path("a"))?;
    fs::write(grid.path("a/img"), b"1")?;
    fs::write(grid.path("img"), b"2")?;
    let refused = grid
        .run(["save", "--job", "42", "img", "a/img"])?
        .expect(2)?;
    assert!(refused.stderr.contains("two of the paths"), "{refused}");
    Ok(())
}
