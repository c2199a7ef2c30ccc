//! The shell blocks of the pages are run, each in a directory of its own with the files that they speak of.
//!
//! A block that can't be run here has a comment before it that readers do not see, with the reason:
//! `<!-- not run: REASON -->`. How many there are is fixed below, so that none is left out unnoticed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tests::image;
use tests::program::{ckpt, command, run};

/// A page, and how many of its blocks are not run.
const PAGES: [(&str, &str, usize); 2] = [
    ("README.md", include_str!("../../README.md"), 3),
    (
        "docs/operations.md",
        include_str!("../../docs/operations.md"),
        10,
    ),
];

const NOT_RUN: &str = "<!-- not run: ";

/// A shell block of a page.
struct Block {
    /// Line of the page at which it begins.
    line: usize,
    script: String,
    /// Why it is not run.
    reason: Option<String>,
}

fn blocks(page: &str) -> Vec<Block> {
    let (mut found, mut open, mut reason) = (Vec::new(), None, None);
    for (number, line) in page.lines().enumerate() {
        match (&mut open, line) {
            (None, "```sh") => {
                open = Some(Block {
                    line: number + 1,
                    script: String::new(),
                    reason: reason.take(),
                });
            }
            (Some(_), "```") => found.extend(open.take()),
            (Some(block), line) => {
                block.script.push_str(line);
                block.script.push('\n');
            }
            (None, "") => {}
            (None, line) => {
                let comment = line.strip_prefix(NOT_RUN);
                let text = comment.and_then(|rest| rest.strip_suffix(" -->"));
                reason = text.map(str::to_owned);
            }
        }
    }
    found
}

/// A machine with the programs, and the files of a user.
fn prepare(home: &Path) -> Result<()> {
    let bin = home.join("bin");
    fs::create_dir_all(&bin)?;
    for name in ["ckpt", "ckpt-store"] {
        symlink(ckpt()?, bin.join(name))?;
    }
    let producer = bin.join("some-producer");
    fs::write(&producer, "#!/bin/sh\nexec tar c state\n")?;
    fs::set_permissions(&producer, fs::Permissions::from_mode(0o755))?;
    fs::write(home.join("image.bin"), image::memory(1 << 20, 1))?;
    for rank in 0..2 {
        fs::write(
            home.join(format!("rank-{rank}.img")),
            image::memory(1 << 20, 2),
        )?;
    }
    fs::create_dir(home.join("state"))?;
    fs::write(home.join("state/now"), "42")?;
    Ok(())
}

/// Has its directory's grid stopped however the test ends.
struct Home(tempfile::TempDir);

impl Drop for Home {
    fn drop(&mut self) {
        let grid = self.0.path().join("grid");
        if let Ok(mut down) = command(["grid", "down", "--dir"]) {
            // Fails where there is no grid.
            let _ = run(down.arg(grid));
        }
    }
}

fn run_block(page: &str, block: &Block) -> Result<()> {
    let home = Home(tempfile::Builder::new().prefix("ckpt-page-").tempdir()?);
    let dir = home.0.path();
    prepare(dir)?;
    let path = std::env::var_os("PATH").context("PATH")?;
    let mut paths = vec![dir.join("bin")];
    paths.extend(std::env::split_paths(&path));
    let mut shell = Command::new("bash");
    shell
        .args(["-e", "-u", "-o", "pipefail", "-c", &block.script])
        .current_dir(dir)
        .env("HOME", dir)
        .env("PATH", std::env::join_paths(paths)?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for name in [
        "CKPT_GRID",
        "CKPT_KEY_FILE",
        "CKPT_CERT_FILE",
        "CKPT_KEY_COMMAND",
        "CKPT_COMPUTE_HOST",
        "CKPT_STATE_DIR",
        "XDG_CONFIG_HOME",
        "XDG_STATE_HOME",
    ] {
        shell.env_remove(name);
    }
    let outcome = run(&mut shell)?;
    ensure!(
        outcome.code == Some(0),
        "{page}, block at line {}: {outcome}\n{}",
        block.line,
        block.script
    );
    Ok(())
}

fn run_page(name: &str) -> Result<()> {
    let (_, page, not_run) = PAGES
        .iter()
        .find(|(page, ..)| *page == name)
        .context("no such page")?;
    let blocks = blocks(page);
    let (out, run): (Vec<&Block>, Vec<&Block>) =
        blocks.iter().partition(|block| block.reason.is_some());
    for block in &out {
        let reason = block.reason.as_deref().unwrap_or_default();
        ensure!(reason.len() > 10, "{name}, line {}: no reason", block.line);
    }
    ensure!(!run.is_empty(), "{name}: nothing is run");
    for block in run {
        run_block(name, block)?;
    }
    ensure!(
        out.len() == *not_run,
        "{name}: {} blocks are not run, not {not_run}",
        out.len()
    );
    Ok(())
}

#[test]
fn the_commands_of_the_readme_do_what_it_says() -> Result<()> {
    run_page("README.md")
}

#[test]
fn the_commands_of_the_manual_that_need_one_machine_work() -> Result<()> {
    run_page("docs/operations.md")
}

#[test]
fn blocks_are_found_with_their_reasons() {
    let page = "# A\n\n```sh\none\n```\n\n<!-- not run: needs two machines -->\n\n```sh\ntwo\nthree\n```\n```toml\nx = 1\n```\n";
    let found = blocks(page);
    let scripts: Vec<&str> = found.iter().map(|block| &*block.script).collect();
    assert_eq!(scripts, ["one\n", "two\nthree\n"]);
    assert_eq!(found[0].reason, None);
    assert_eq!(found[1].reason.as_deref(), Some("needs two machines"));
    assert_eq!(found[1].line, 9);
}
