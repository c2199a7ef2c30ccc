//! What the first release format left on disks is read by today's programs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Result, ensure};
use tests::{Grid, image};

fn fixture() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/format-1"))
}

/// A copy whose keys are private again, on free ports.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
            continue;
        }
        fs::copy(entry.path(), &target)?;
        if target
            .extension()
            .is_some_and(|extension| extension == "key")
        {
            fs::set_permissions(&target, fs::Permissions::from_mode(0o600))?;
        }
        if target.ends_with("grid.toml") {
            let text = fs::read_to_string(&target)?;
            let lines = text.lines().map(|line| match line.rsplit_once(':') {
                Some((start, _)) if line.starts_with("addr = ") => format!("{start}:0\""),
                _ => line.to_owned(),
            });
            fs::write(&target, lines.collect::<Vec<_>>().join("\n"))?;
        }
    }
    Ok(())
}

fn numbers(last: u32) -> Vec<u8> {
    (1..=last)
        .flat_map(|number| format!("{number}\n").into_bytes())
        .collect()
}

#[test]
fn checkpoints_of_the_first_format_are_restored_and_continued() -> Result<()> {
    let grid = Grid::of(|dir| copy(&fixture().join("grid"), dir))?;
    copy(&fixture().join("state"), &grid.path("state"))?;

    for (job, version, bytes) in [
        ("stream", "2", numbers(5000)),
        ("stream", "1", numbers(9000)),
        ("plain", "1", numbers(100)),
    ] {
        let restore = ["restore", "--job", job, "--version", version, "-o", "-"];
        let restored = grid.run(restore)?.expect(0)?;
        ensure!(
            restored.stdout == bytes,
            "{job} {version}: {}",
            restored.stderr
        );
    }
    grid.run(["restore", "--job", "tree", "-o", "tree"])?
        .expect(0)?;
    let tree = grid.path("tree");
    ensure!(fs::read(tree.join("random"))? == fs::read(fixture().join("random"))?);
    ensure!(tree.join("random").metadata()?.permissions().mode() & 0o777 == 0o640);
    ensure!(fs::read(tree.join("sub/numbers"))? == numbers(4000));
    ensure!(fs::read_link(tree.join("link"))? == Path::new("sub/numbers"));
    let hole = fs::read(tree.join("hole"))?;
    ensure!(hole.len() == (3 << 20) + 3 && hole.ends_with(b"\0end"));

    grid.run(["verify", "--read-data"])?.expect(0)?;
    // And it goes on: the next version is 3, made by today's program.
    fs::write(grid.path("image"), image::memory(100_000, 1))?;
    let saved = grid
        .run(["--json", "save", "--job", "stream", "image"])?
        .expect(0)?
        .json()?;
    ensure!(saved["version"] == 3, "{saved}");
    let warned = grid.run(["hosts", "--for-job", "stream"])?.expect(0)?;
    ensure!(!warned.stderr.contains("without knowledge"), "{warned}");
    grid.kill("h02")?;
    let restored = grid
        .run(["restore", "--job", "stream", "-o", "-"])?
        .expect(0)?;
    ensure!(restored.stdout == image::memory(100_000, 1));
    Ok(())
}
