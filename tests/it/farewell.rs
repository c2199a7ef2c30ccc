//! How commands end: hosts learn that a client is gone, and stop counting its connections.

use std::process::Child;
use std::time::Duration;

use anyhow::{Result, ensure};
use tests::mixed::MixedGrid;
use tests::program::{wait, wait_until};

const HOSTS: u8 = 3;

/// Number of commands: more than the connections that one client may have, which are three quarters of 64.
const COMMANDS: usize = 56;

/// Time within which a host learns that a client closed its connection.
const HEARD_WITHIN: Duration = Duration::from_secs(10);

/// Time within which a host drops a connection that went silent: the idle timeout, and as much again for
/// a busy machine.
const NOTICED_WITHIN: Duration = Duration::from_secs(40);

/// Fails if a host refused the connection because it counts too many. `list` may name hosts that did not
/// answer in time, which happens on an overloaded machine.
fn check_not_busy(listed: &tests::Outcome) -> Result<()> {
    let silent = listed.json()?["silent"].to_string();
    ensure!(!silent.contains("too many connections"), "{listed}");
    Ok(())
}

/// Checks that hosts have learned of the ends of this many commands. On an overloaded machine they may
/// miss one in eight, and notice it later.
fn check_ends_are_heard(grid: &MixedGrid, commands: usize) -> Result<()> {
    let most = commands * usize::from(HOSTS) / 8;
    wait_until("most connections are closed", HEARD_WITHIN, || {
        Ok(grid.connections() <= most)
    })?;
    wait_until("all connections are closed", NOTICED_WITHIN, || {
        Ok(grid.connections() == 0)
    })
}

#[test]
fn no_host_is_busy_after_many_commands_in_a_row() -> Result<()> {
    let grid = MixedGrid::behind_relays(HOSTS)?;
    for _ in 0..COMMANDS {
        check_not_busy(&grid.run(["--json", "list"])?.expect(0)?)?;
    }
    check_ends_are_heard(&grid, COMMANDS)
}

#[test]
fn no_host_is_busy_after_sixteen_commands_at_once() -> Result<()> {
    let grid = MixedGrid::behind_relays(HOSTS)?;
    for _ in 0..4 {
        let spawn = |_| Ok(grid.command(["--json", "list"])?.spawn()?);
        let commands: Result<Vec<Child>> = (0..16).map(spawn).collect();
        for command in commands? {
            check_not_busy(&wait(command)?.expect(0)?)?;
        }
        check_ends_are_heard(&grid, 16)?;
    }
    Ok(())
}

#[test]
fn of_hosts_behind_a_lossy_link_most_hear_and_all_notice() -> Result<()> {
    let grid = MixedGrid::behind_relays(HOSTS)?;
    grid.lose(50);
    let mut asked = 0;
    let mut unheard = 0;
    for _ in 0..12 {
        let before = grid.connections();
        grid.run(["list"])?.expect(0)?;
        asked += usize::from(HOSTS);
        // Hosts that get the packet close the connection within this time, unless the machine is busy.
        let _ = wait_until("all have heard", Duration::from_millis(500), || {
            Ok(grid.connections() <= before)
        });
        // Earlier connections may have timed out meanwhile, which makes the difference negative.
        unheard += grid.connections().saturating_sub(before);
    }
    eprintln!("{unheard} of {asked} not heard");
    ensure!(unheard * 3 < asked, "{unheard} of {asked} did not hear");
    wait_until("all connections are closed", NOTICED_WITHIN, || {
        Ok(grid.connections() == 0)
    })
}

#[test]
fn a_supervisor_holds_no_connection_while_it_needs_none() -> Result<()> {
    // A single host, because several are connected to each other, too.
    let grid = MixedGrid::up(1, 0)?;
    std::fs::write(grid.path("image"), "1")?;
    grid.run("save --job 42 --data 1 --parity 0 image".split(' '))?
        .expect(0)?;
    std::fs::remove_file(grid.path("image"))?;
    wait_until(
        "all connections of the save are closed",
        NOTICED_WITHIN,
        || Ok(grid.connections() == 0),
    )?;
    // It ends by itself if this test fails.
    let job = "n=0; while ! [ -e end ] && [ $n -lt 1800 ]; do sleep 0.1; n=$((n+1)); done";
    let mut run = grid.command(["run", "--batch", "--job", "42", "--files", "image"])?;
    let run = run.args(["--", "sh", "-c", job]).spawn()?;
    wait_until("the state is restored", NOTICED_WITHIN, || {
        Ok(grid.path("image").exists() && grid.connections() > 0)
    })?;
    wait_until(
        "all connections of the supervisor are closed",
        NOTICED_WITHIN,
        || Ok(grid.connections() == 0),
    )?;
    // It connects again when it needs hosts, here to set the lease.
    std::fs::write(grid.path("end"), "")?;
    let ended = wait(run)?.expect(0)?;
    ensure!(!ended.stderr.contains("error"), "{ended}");
    let shown = grid
        .run(["--json", "show", "--job", "42"])?
        .expect(0)?
        .json()?;
    ensure!(shown["kept_until"].is_number(), "{shown}");
    Ok(())
}
