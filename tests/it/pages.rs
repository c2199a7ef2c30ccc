//! Runs the shell blocks of the pages. Each block has a directory of its own, with the files that the
//! pages mention. Blocks for several machines run one after the other on the same machines
//! ([`crate::page_machines`]).
//!
//! A comment in the page before a block, which readers do not see, says how to run the block: [`Kind`].
//! The number of blocks that are not run is fixed below, so that none is left out unnoticed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tests::image;
use tests::program::{ckpt, command, run};

use crate::page_machines::Story;

/// The path of a page, its text, and the number of its blocks that are not run.
const PAGES: [(&str, &str, usize); 4] = [
    ("README.md", include_str!("../../README.md"), 1),
    (
        "docs/use/first-hour.md",
        include_str!("../../docs/use/first-hour.md"),
        0,
    ),
    (
        "docs/use/usage.md",
        include_str!("../../docs/use/usage.md"),
        0,
    ),
    (
        "docs/run-a-grid/operations.md",
        include_str!("../../docs/run-a-grid/operations.md"),
        // A block for systemd.
        1,
    ),
];

/// Number of machines that the manual's blocks need.
const MACHINES: u8 = 10;

/// How a block is run.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// On one machine.
    Here,
    /// On one machine with a running grid: `<!-- with a grid -->`.
    WithGrid,
    /// On several machines: `<!-- on several machines -->`.
    OnMachines,
    /// By a test in a file beside this one, which reads the page: `<!-- run by FILE -->`.
    By(String),
    /// Not at all: `<!-- not run: REASON -->`.
    NotRun(String),
}

impl Kind {
    fn of(comment: &str) -> Option<Self> {
        let text = comment.strip_prefix("<!-- ")?.strip_suffix(" -->")?;
        match text {
            "with a grid" => Some(Self::WithGrid),
            "on several machines" => Some(Self::OnMachines),
            _ => {
                let by = text
                    .strip_prefix("run by ")
                    .map(|file| Self::By(file.to_owned()));
                let reason = text.strip_prefix("not run: ");
                by.or_else(|| reason.map(|why| Self::NotRun(why.to_owned())))
            }
        }
    }
}

/// A shell block of a page.
struct Block {
    /// Line of the page at which it begins.
    line: usize,
    script: String,
    kind: Kind,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open = None;
    let mut kind = None;
    for (number, line) in page.lines().enumerate() {
        match (&mut open, line) {
            (None, "```sh") => {
                open = Some(Block {
                    line: number + 1,
                    script: String::new(),
                    kind: kind.take().unwrap_or(Kind::Here),
                });
            }
            (Some(_), "```") => found.extend(open.take()),
            (Some(block), line) => {
                block.script.push_str(line);
                block.script.push('\n');
            }
            (None, "") => {}
            (None, line) => kind = Kind::of(line),
        }
    }
    found
}

fn write_script(path: &Path, line: &str) -> Result<()> {
    fs::write(path, format!("#!/bin/sh\n{line}\n"))?;
    Ok(fs::set_permissions(
        path,
        fs::Permissions::from_mode(0o755),
    )?)
}

/// Fills a home with links to the programs, and with the files that the pages mention.
fn prepare(home: &Path) -> Result<()> {
    let bin = home.join("bin");
    fs::create_dir_all(&bin)?;
    for name in ["ckpt", "ckpt-store"] {
        symlink(ckpt()?, bin.join(name))?;
    }
    write_script(&home.join("sim"), "echo step 1 > state/now")?;
    write_script(&bin.join("some-producer"), "exec tar c state")?;
    fs::write(home.join("image.bin"), image::memory(1 << 20, 1))?;
    for rank in 0..2 {
        fs::write(
            home.join(format!("rank-{rank}.img")),
            image::memory(1 << 20, 2),
        )?;
    }
    fs::create_dir(home.join("state"))?;
    fs::write(home.join("state/now"), "42")?;
    // A version with less than a tenth of the bytes of the one before is warned of.
    fs::write(home.join("state/past"), image::memory(1 << 20, 4))?;
    Ok(())
}

/// The directory of a block. Dropping it stops the grid that the block may have started.
struct Home(tempfile::TempDir);

impl Drop for Home {
    fn drop(&mut self) {
        let grid = self.0.path().join("grid");
        if let Ok(mut down) = command(["grid", "down", "--dir"]) {
            // Fails if there is no grid.
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
    if block.kind == Kind::WithGrid {
        let grid = dir.join("grid");
        run(command(["grid", "up", "--hosts", "5", "--dir"])?.arg(&grid))?.expect(0)?;
    }
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
    if block.kind == Kind::WithGrid {
        shell.env("CKPT_GRID", dir.join("grid/grid.toml"));
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

/// Whether a file beside this one includes the page.
fn is_run_by(file: &str, page: &str) -> Result<bool> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("it").join(file);
    let source = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(source.contains(&format!("include_str!(\"../../{page}\")")))
}

fn run_page(name: &str) -> Result<()> {
    let (_, page, not_run) = PAGES
        .iter()
        .find(|(page, ..)| *page == name)
        .context("no such page")?;
    let mut left_out = 0;
    let mut is_run = 0;
    let mut story = None;
    for block in blocks(page) {
        is_run += 1;
        match &block.kind {
            Kind::Here | Kind::WithGrid => run_block(name, &block)?,
            Kind::OnMachines => {
                let story = match &mut story {
                    Some(story) => story,
                    None => story.insert(Story::begin(MACHINES, prepare)?),
                };
                if let Some(story) = story {
                    let ran = story.run(&block.script);
                    ran.with_context(|| format!("{name}, block at line {}", block.line))?;
                }
            }
            Kind::By(file) => ensure!(is_run_by(file, name)?, "{file} does not read {name}"),
            Kind::NotRun(reason) => {
                ensure!(reason.len() > 10, "{name}, line {}: no reason", block.line);
                (left_out, is_run) = (left_out + 1, is_run - 1);
            }
        }
    }
    ensure!(is_run > 0, "{name}: nothing is run");
    ensure!(
        left_out == *not_run,
        "{name}: {left_out} blocks are not run, not {not_run}"
    );
    Ok(())
}

#[test]
fn the_commands_of_the_readme_succeed() -> Result<()> {
    run_page("README.md")
}

#[test]
fn the_blocks_of_the_first_hour_work() -> Result<()> {
    run_page("docs/use/first-hour.md")
}

#[test]
fn the_commands_of_the_usage_page_succeed() -> Result<()> {
    run_page("docs/use/usage.md")
}

#[test]
fn the_commands_of_the_manual_work_one_after_the_other() -> Result<()> {
    run_page("docs/run-a-grid/operations.md")
}

#[test]
fn blocks_are_found_with_the_comments_before_them() {
    let page = "# A\n\n```sh\none\n```\n\n<!-- not run: needs a crane -->\n\n```sh\ntwo\nthree\n```\n```toml\nx = 1\n```\n\n<!-- on several machines -->\n\n```sh\n# on m1\nfour\n```\n<!-- run by x.rs -->\n```sh\nfive\n```\n";
    let found = blocks(page);
    let scripts: Vec<&str> = found.iter().map(|block| &*block.script).collect();
    assert_eq!(
        scripts,
        ["one\n", "two\nthree\n", "# on m1\nfour\n", "five\n"]
    );
    let kinds: Vec<&Kind> = found.iter().map(|block| &block.kind).collect();
    let reason = Kind::NotRun("needs a crane".into());
    let by = Kind::By("x.rs".into());
    assert_eq!(kinds, [&Kind::Here, &reason, &Kind::OnMachines, &by]);
    assert_eq!(found[1].line, 9);
}
