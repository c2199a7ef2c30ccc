//! Hosts that are known by a host name instead of an address.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use tests::port::free_address;
use tests::program::{command, run};
use tests::{Grid, image};

use crate::restore_bytes;

/// Enters a host in the list of the grid.
fn add(grid: &Grid, name: &str, listen: &str) -> Result<()> {
    let mut add: Command = command(["grid", "add", "--name", name, "--listen", listen, "--dir"])?;
    let dir = grid.file().parent().context("no directory")?.to_owned();
    add.arg(dir).arg("--data").arg(grid.path(name));
    run(&mut add)?.expect(0).map(|_| ())
}

#[test]
fn a_host_known_by_name_stores_shards_and_a_name_that_does_not_resolve_stops_no_save() -> Result<()>
{
    let grid = Grid::up(2)?;
    let named = format!("localhost:{}", free_address()?.port());
    add(&grid, "h03", &named)?;
    grid.restart()?;
    add(&grid, "h04", "no-such-host.invalid:7600")?;

    let bytes = image::memory(300_000, 3);
    let image = grid.path("img");
    std::fs::write(&image, &bytes)?;
    let save = ["save", "--job", "42", "--data", "2", "--parity", "1", "img"];
    grid.run(save)?.expect(0)?;
    let holders = grid.holders("42")?;
    ensure!(holders.contains(&"h03".to_owned()), "{holders:?}");
    ensure!(restore_bytes(&grid, "42")? == bytes, "other bytes");

    let hosts = grid.run(["--json", "hosts"])?.expect(0)?.json()?;
    let addr = |at: usize| hosts["hosts"][at]["addr"].as_str().unwrap_or_default();
    ensure!(addr(2).starts_with(&format!("{named} (")), "{hosts}");
    ensure!(addr(3) == "no-such-host.invalid:7600", "{hosts}");
    let error = hosts["hosts"][3]["error"].as_str().unwrap_or_default();
    ensure!(error.contains("does not resolve"), "{error}");

    let doctor = grid.run(["doctor"])?.expect(3)?;
    let doctor = String::from_utf8(doctor.stdout)?;
    let good = doctor.lines().find(|line| line.contains("h03"));
    ensure!(
        good.is_some_and(|line| line.starts_with("ok") && line.contains(&named)),
        "{doctor}"
    );
    let bad = doctor.lines().find(|line| line.contains("host h04"));
    let file = grid.file().display().to_string();
    ensure!(
        bad.is_some_and(|line| line.starts_with("BAD")
            && line.contains(&file)
            && line.contains("\"no-such-host.invalid\" does not resolve")),
        "{doctor}"
    );
    ensure!(
        doctor.contains("or addr of h04 in the list of the grid"),
        "{doctor}"
    );
    Ok(())
}

/// `grid remove` sends the list of the grid to hosts by their names, and `grid show` resolves the names.
#[test]
fn the_authority_shows_what_names_resolve_to_and_reaches_hosts_by_them() -> Result<()> {
    let grid = Grid::up(1)?;
    let named = format!("localhost:{}", free_address()?.port());
    add(&grid, "h02", &named)?;
    grid.restart()?;
    let dir = grid
        .file()
        .parent()
        .context("no directory")?
        .display()
        .to_string();
    let show = run(&mut command(["grid", "show", "--dir", &dir])?)?.expect(0)?;
    let show = String::from_utf8(show.stdout)?;
    let line = show.lines().find(|line| line.starts_with("h02"));
    ensure!(
        line.is_some_and(|line| line.contains(&format!("{named} (")) && line.contains("127.0.0.1")),
        "{show}"
    );
    let removed = run(&mut command(["grid", "remove", "--dir", &dir, "h01"])?)?.expect(0)?;
    let removed = String::from_utf8(removed.stdout)?;
    ensure!(removed.contains("all 2 members"), "{removed}");
    Ok(())
}
