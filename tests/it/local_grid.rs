//! `ckpt grid up` and `grid down` on one machine, when ports or the list have changed since the last start.

use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};

use anyhow::{Context, Result, bail, ensure};
use tests::program::run;
use tests::{Grid, image};

use crate::{restore_bytes, save_file};

fn address_of(grid: &Grid, host: &str) -> Result<SocketAddr> {
    let file = protocol::grid::Grid::load(&grid.file())?;
    let entry = file.hosts.iter().find(|entry| entry.name == host);
    let addr = &entry.context("no such host")?.addr;
    addr.ip().context("it is a name")
}

/// Kills h03 and takes its port. If another process takes the port first, h03 is started on another port
/// and killed again.
fn take_port_of_h03(grid: &Grid) -> Result<(SocketAddr, UdpSocket)> {
    for _ in 0..5 {
        let addr = address_of(grid, "h03")?;
        grid.kill("h03")?;
        match UdpSocket::bind(addr) {
            Ok(taken) => return Ok((addr, taken)),
            Err(cause) if cause.kind() == ErrorKind::AddrInUse => grid.restart()?,
            Err(cause) => return Err(cause.into()),
        }
    }
    bail!("others took the port of h03 five times")
}

#[test]
fn a_host_whose_port_is_taken_gets_another_one() -> Result<()> {
    let grid = Grid::up(5)?;
    let bytes = image::memory(1 << 20, 1);
    save_file(&grid, "42", &bytes)?;
    let (before, _taken) = take_port_of_h03(&grid)?;
    grid.restart()?;
    let after = address_of(&grid, "h03")?;
    ensure!(after.port() != before.port(), "{before} is taken");
    ensure!(after.ip() == before.ip());
    ensure!(grid.running()?.len() == 5);
    // Clients find the host at its new port, and store shards there.
    let later = image::memory(1 << 20, 2);
    save_file(&grid, "42", &later)?;
    ensure!(grid.holders("42")?.contains(&"h03".to_owned()));
    ensure!(restore_bytes(&grid, "42")? == later);
    let log = fs::read_to_string(grid.data_dir("h03").join("log"))?;
    ensure!(log.contains("in use"), "it did not say why: {log}");
    Ok(())
}

#[test]
fn a_host_that_was_removed_from_the_grid_is_stopped_with_the_others() -> Result<()> {
    let grid = Grid::up(2)?;
    let dir = grid.file();
    let dir = dir.parent().context("no directory")?;
    run(grid.command(["grid", "revoke", "h01", "--dir"])?.arg(dir))?.expect(0)?;
    let mut down = grid.command(["--json", "grid", "down", "--dir"])?;
    let down = run(down.arg(dir))?.expect(0)?.json()?;
    ensure!(
        down["stopped"] == serde_json::json!(["h01", "h02"]),
        "{down}"
    );
    Ok(())
}

#[test]
fn a_grid_whose_file_is_damaged_is_stopped_all_the_same() -> Result<()> {
    let grid = Grid::up(2)?;
    let file = grid.file();
    let dir = file.parent().context("no directory")?;
    let good = fs::read(&file)?;
    fs::write(&file, "no grid")?;
    let down = || -> Result<_> {
        let mut down = grid.command(["--json", "grid", "down", "--dir"])?;
        run(down.arg(dir))
    };
    let stopped = down()?.expect(0)?.json()?;
    ensure!(
        stopped["stopped"] == serde_json::json!(["h01", "h02"]),
        "{stopped}"
    );
    // With nothing to stop, what is wrong with the grid is said.
    down()?.expect(2)?;
    fs::write(&file, good)?;
    Ok(())
}
