//! Mistakes of admins, submitters and owners, and what the answers have to say.

use std::fs;

use anyhow::{Context, Result, ensure};
use tests::machines::Machines;
use tests::port::free_address;
use tests::program::{command, run};
use tests::{Grid, Outcome};

fn text(outcome: &Outcome) -> String {
    String::from_utf8_lossy(&outcome.stdout).into_owned()
}

#[test]
fn a_grid_without_hosts_is_called_that() -> Result<()> {
    let mut machines = Machines::new()?;
    machines.found(&free_address()?.to_string())?;
    let tokens = machines.invite(0, 1)?;
    machines.ckpt("ada", &["join", &tokens[0]])?.expect(0)?;
    fs::write(machines.path("ada", "img"), b"image")?;
    let image = machines.path("ada", "img").display().to_string();
    for args in [&["save", "--job", "42", &*image][..], &["list"]] {
        let failed = machines.ckpt("ada", args)?.expect(5)?;
        ensure!(failed.stderr.contains("no host is known"), "{failed}");
    }
    Ok(())
}

#[test]
fn the_end_of_a_job_key_is_a_date() -> Result<()> {
    let grid = Grid::up(1)?;
    let made = grid.run(["key", "for-job", "--job", "42", "-o", "job.key"])?;
    let said = text(&made.expect(0)?);
    ensure!(said.contains("valid until 20"), "{said}");
    Ok(())
}

#[test]
fn a_directory_without_an_authority_is_named_by_four_commands() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let passphrase = dir.path().join("passphrase");
    fs::write(&passphrase, "correct horse battery\n")?;
    let commands: [&[&str]; 4] = [
        &["grid", "show"],
        &["grid", "renew"],
        &["grid", "invite"],
        &["grid", "backup", "copy.sealed"],
    ];
    for args in commands {
        let mut asked = command(args)?;
        asked
            .env("CKPT_AUTHORITY", dir.path())
            .env("CKPT_PASSPHRASE_FILE", &passphrase)
            .current_dir(dir.path());
        let failed = run(&mut asked)?.expect(2)?;
        ensure!(failed.stderr.contains("has no authority"), "{failed}");
        ensure!(failed.stderr.contains("ckpt grid init"), "{failed}");
    }
    Ok(())
}

#[test]
fn a_pause_is_seen_before_the_daemon_has_noticed_it() -> Result<()> {
    let grid = Grid::up(1)?;
    grid.store("h01", &["pause"])?.expect(0)?;
    let said = text(&grid.store("h01", &["status"])?.expect(0)?);
    ensure!(
        said.contains("paused until `ckpt-store resume`") || said.contains("has paused it"),
        "{said}"
    );
    // A second pause gives a time; the second of two resumes reports that there was no pause.
    grid.store("h01", &["pause", "2h"])?.expect(0)?;
    let said = text(&grid.store("h01", &["status"])?.expect(0)?);
    ensure!(said.contains("until 20"), "{said}");
    grid.store("h01", &["resume"])?.expect(0)?;
    let again = text(&grid.store("h01", &["resume"])?.expect(0)?);
    ensure!(again.contains("not paused before"), "{again}");
    Ok(())
}

#[test]
fn the_key_that_is_exported_is_the_one_that_the_grid_file_names() -> Result<()> {
    let grid = Grid::up(1)?;
    let copy = grid.run(["key", "export", "-o", "-"])?.expect(0)?;
    let used = fs::read(grid.dir().join("grid/owner.key"))?;
    ensure!(copy.stdout == used, "another key");
    Ok(())
}

#[test]
fn if_no_host_answers_nothing_is_called_well() -> Result<()> {
    let grid = Grid::up(1)?;
    grid.kill("h01")?;
    let said = text(&grid.run(["health"])?.expect(5)?);
    ensure!(!said.contains("all is well"), "{said}");
    ensure!(said.contains("no host answers"), "{said}");
    Ok(())
}

#[test]
fn every_refusal_says_what_to_do_instead() -> Result<()> {
    let grid = Grid::up(1)?;
    fs::write(grid.path("image"), b"an image")?;
    fs::write(grid.path("short"), b"abc\n")?;
    std::os::unix::fs::symlink("image", grid.path("link"))?;
    let refused: [&[&str]; 28] = [
        &["save", "image"],
        &["save", "--job", "42", "43", "image"],
        &["save", "42", "image", "--", "true"],
        &["save", "42", "image", "-"],
        &["save", "42", "-"],
        &["save", "42", "image", "--data", "40", "--parity", "2"],
        &["save", "42", "image", "--parity", "1", "--allow-degraded=2"],
        &["save", "--detach", "42", "-"],
        &["save", "--detach", "--xattrs", "42", "image"],
        &["save", "--detach", "42", "link"],
        &["restore"],
        &["restore", "42", "--job", "43"],
        &["restore", "42"],
        &["show", "42"],
        &["cat"],
        &["forget", "--all"],
        &["touch"],
        &["wait", "42"],
        &["run", "42", "--files", "/", "--", "true"],
        &["run", "--files", "state", "--", "true"],
        &["run", "42", "--files", "a/s", "b/s", "--", "true"],
        &["run", "--setup"],
        &["runs", "--predict", "--", "true"],
        &["hosts", "42", "--for-job", "43"],
        &["key", "for-job", "-o", "job.key"],
        &["join", "no-token"],
        &["trace", "describe", "."],
        &[
            "key",
            "export",
            "-o",
            "out",
            "--seal",
            "--passphrase-file",
            "short",
        ],
    ];
    let mut without = Vec::new();
    for args in refused {
        let failed = grid.run(args)?;
        ensure!(failed.code != Some(0), "{args:?}: {failed}");
        if !failed.stderr.contains("try: ") {
            without.push(format!("{args:?}: {failed}"));
        }
    }
    ensure!(without.is_empty(), "{}", without.join("\n"));
    Ok(())
}

#[test]
fn no_key_is_revoked_when_no_token_can_be_made_for_its_successor() -> Result<()> {
    let grid = Grid::up(3)?;
    let dir = grid.file().parent().context("no directory")?.to_owned();
    let dir = dir.to_str().context("no text")?;
    let refused = grid.run(["grid", "invite", "--replace", "h01", "--dir", dir])?;
    let refused = refused.expect(2)?;
    ensure!(refused.stderr.contains("no registry"), "{refused}");
    let named = [
        "grid",
        "invite",
        "--replace",
        "h01",
        "--registry",
        "r9",
        "--dir",
        dir,
    ];
    let unknown = grid.run(named)?;
    ensure!(unknown.code != Some(0), "{unknown}");
    let shown = grid.run(["grid", "show", "--dir", dir])?.expect(0)?;
    let shown = String::from_utf8(shown.stdout)?;
    let line = shown.lines().find(|line| line.starts_with("h01"));
    ensure!(line.is_some_and(|line| line.contains("valid")), "{shown}");
    Ok(())
}

#[test]
fn a_passphrase_encrypts_an_exported_key_and_standard_output_has_no_sealed_one() -> Result<()> {
    let grid = Grid::up(1)?;
    fs::write(grid.path("pass"), "correct horse\n")?;
    let export = ["key", "export", "--passphrase-file", "pass", "-o", "sealed"];
    grid.run(export)?.expect(0)?;
    let plain = ["key", "export", "-o", "plain"];
    let said = grid.run(plain)?.expect(0)?;
    let said = format!("{}{}", String::from_utf8(said.stdout)?, said.stderr);
    ensure!(said.contains("not encrypted"), "{said}");
    let names_key = |file: &str| -> Result<bool> {
        let bytes = fs::read(grid.path(file))?;
        Ok(bytes.windows(9).any(|at| at == b"owner.key"))
    };
    ensure!(names_key("plain")? && !names_key("sealed")?);
    let refused = grid
        .run(["key", "export", "--seal", "-o", "-"])?
        .expect(2)?;
    ensure!(refused.stdout.is_empty(), "{refused}");
    Ok(())
}
