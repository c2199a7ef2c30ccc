//! Whether donors can be reached from outside, and how members are found while no registry is alive.

use std::fs;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::machines::Machines;
use tests::port::free_address;
use tests::program::wait_until;

/// A donor sends a heartbeat each ten seconds, and compares cards with a registry each 36 seconds in these tests.
const LIMIT: Duration = Duration::from_secs(120);

/// Within this time a donor knows that nobody reaches it.
const A_MINUTE: Duration = Duration::from_secs(60);

/// What a donor's status says of the registries.
fn reached(machines: &Machines, donor: &str) -> Result<Vec<(String, bool)>> {
    let status = machines
        .store(donor, &["status", "--json"])?
        .expect(0)?
        .json()?;
    let ways = status["standing"]["reached"].as_array();
    let way = |one: &Value| {
        let registry = one["registry"].as_str().context("registry")?;
        Ok((
            registry.to_owned(),
            one["answered"].as_bool().context("answered")?,
        ))
    };
    ways.into_iter().flatten().map(way).collect()
}

/// The datagrams of registries that a socket has received so far.
fn tries(socket: &UdpSocket) -> Result<Vec<usize>> {
    socket.set_nonblocking(true)?;
    let mut all = Vec::new();
    let mut bytes = [0; 2048];
    while let Ok((length, _)) = socket.recv_from(&mut bytes) {
        if bytes.starts_with(&[0xc0, 0x1a, 0x2a, 0x3a, 0x4a]) {
            all.push(length);
        }
    }
    Ok(all)
}

#[test]
fn the_status_of_a_donor_says_that_it_was_revoked() -> Result<()> {
    let mut machines = Machines::new()?;
    machines.found(&free_address()?.to_string())?;
    let tokens = machines.invite(2, 0)?;
    machines.join("out", &tokens[0])?;
    machines.join("in", &tokens[1])?;
    let status = |donor: &str| -> Result<String> {
        let said = machines.store(donor, &["status"])?.expect(0)?;
        Ok(String::from_utf8(said.stdout)?)
    };
    wait_until("the daemon runs", LIMIT, || {
        Ok(status("out")?.contains("open since"))
    })?;
    ensure!(!status("out")?.contains("REVOKED"));
    machines.ckpt("admin", &["grid", "revoke", "out"])?;
    wait_until("its status says so", LIMIT, || {
        Ok(status("out")?.contains("REVOKED"))
    })?;
    ensure!(!status("in")?.contains("REVOKED"));
    Ok(())
}

#[test]
fn a_donor_that_nobody_reaches_learns_it_within_a_minute_and_so_do_others() -> Result<()> {
    let mut machines = Machines::new()?;
    machines.found(&free_address()?.to_string())?;
    let tokens = machines.invite(2, 1)?;
    machines.join_person("ada", &tokens[2])?;
    machines.join("open", &tokens[0])?;
    // What arrives here reaches nobody, as behind a firewall.
    let wall = UdpSocket::bind("127.0.0.1:0")?;
    let addr = wall.local_addr()?.to_string();
    let join = ["join", &tokens[1], "--name", "shut"];
    machines.store("shut", &join)?.expect(0)?;
    let began = Instant::now();
    machines.serve("shut", &["--listen", "127.0.0.1:0", "--announce", &addr])?;
    wait_until("the donor knows that it is not reached", A_MINUTE, || {
        Ok(reached(&machines, "shut")? == [("registry".to_owned(), false)])
    })?;
    let seconds = began.elapsed().as_secs();
    wait_until("the other one knows that it is reached", LIMIT, || {
        Ok(reached(&machines, "open")? == [("registry".to_owned(), true)])
    })?;
    let status = machines.store("shut", &["status"])?.expect(0)?;
    let status = String::from_utf8(status.stdout)?;
    ensure!(
        status.contains("NOT reached from outside by registry"),
        "{status}"
    );
    ensure!(machines.log("shut")?.contains("firewall"));
    // Few datagrams, and small ones.
    let sizes = tries(&wall)?;
    let most = usize::try_from(2 + seconds / 5)?;
    ensure!(
        (3..=most).contains(&sizes.len()) && sizes.iter().all(|size| *size == 1200),
        "{sizes:?} in {seconds} s"
    );

    let report = machines.ckpt("ada", &["--json", "hosts"])?.json()?;
    for host in report["hosts"].as_array().context("hosts")? {
        ensure!(host["unreached"] == (host["name"] == "shut"), "{host}");
    }
    let shown = machines.ckpt("ada", &["hosts"])?;
    let shown = String::from_utf8(shown.stdout)?;
    ensure!(
        shown.contains("a registry hears shut and gets no answer"),
        "{shown}"
    );
    let doctor = machines.ckpt("ada", &["doctor"])?;
    let doctor = String::from_utf8(doctor.stdout)?;
    ensure!(doctor.contains("does not reach it either"), "{doctor}");

    // It moves to an address at which it is reached.
    machines.stop("shut")?;
    machines.serve("shut", &["--listen", "127.0.0.1:0"])?;
    wait_until("the donor knows that it is reached", LIMIT, || {
        Ok(reached(&machines, "shut")? == [("registry".to_owned(), true)])
    })?;
    machines.await_up("ada", 2, LIMIT)
}

/// How often a donor moves in the test of that.
const MOVES: usize = 5;

#[test]
fn a_donor_that_starts_at_another_address_is_found_there_after_a_heartbeat() -> Result<()> {
    let mut machines = Machines::new()?;
    machines.found(&free_address()?.to_string())?;
    let tokens = machines.invite(1, 1)?;
    machines.join_person("ada", &tokens[1])?;
    machines.join("moves", &tokens[0])?;
    machines.await_up("ada", 1, LIMIT)?;
    // Nothing that it announces changes but its address.
    for _ in 0..MOVES {
        machines.stop("moves")?;
        machines.serve("moves", &["--listen", "127.0.0.1:0"])?;
        let addr = machines.address("moves")?;
        wait_until("the donor answers at its new address", A_MINUTE, || {
            // This ends with 5 while the donor is looked for at its earlier address.
            let report = machines.ckpt("ada", &["--json", "hosts"])?.json()?;
            let host = &report["hosts"][0];
            Ok(host["up"] == true && host["addr"] == addr.trim())
        })?;
    }
    Ok(())
}

/// How many cards of others a donor keeps.
fn cards(machines: &Machines, donor: &str) -> usize {
    let dir = machines.usual(donor, "store").join("cards");
    fs::read_dir(dir).map_or(0, Iterator::count)
}

#[test]
fn without_a_registry_donors_name_the_members_that_a_machine_does_not_know() -> Result<()> {
    let mut machines = Machines::new()?;
    machines.found(&free_address()?.to_string())?;
    let tokens = machines.invite(5, 1)?;
    machines.join_person("ada", &tokens[5])?;
    machines.join("m1", &tokens[0])?;
    machines.await_up("ada", 1, LIMIT)?;
    // What is exported now knows one donor.
    let copy = machines.path("ada", "ada.export");
    let copy = copy.to_str().context("path")?;
    machines
        .ckpt("ada", &["key", "export", "-o", copy])?
        .expect(0)?;
    for (number, token) in (2..=5).zip(&tokens[1..]) {
        machines.join(&format!("m{number}"), token)?;
    }
    machines.await_up("ada", 5, LIMIT)?;
    let save = [
        "save", "--job", "42", "--data", "3", "--parity", "2", "--", "echo", "precious",
    ];
    machines.ckpt("ada", &save)?.expect(0)?;
    wait_until("the donor keeps the cards of the others", LIMIT, || {
        Ok(cards(&machines, "m1") == 4)
    })?;
    machines.stop("admin")?;
    machines
        .ckpt("fresh", &["key", "import", copy])?
        .expect(0)?;
    let restore = ["restore", "--job", "42", "-o", "-"];
    let restored = machines.ckpt("fresh", &restore)?.expect(0)?;
    ensure!(restored.stdout == b"precious\n", "{restored}");
    // Donors that are away count as members: the version is away, and not lost.
    machines.stop("m4")?;
    machines.stop("m5")?;
    let restored = machines.ckpt("fresh", &restore)?.expect(0)?;
    ensure!(restored.stdout == b"precious\n", "{restored}");
    machines.stop("m3")?;
    machines.ckpt("fresh", &restore)?.expect(5)?;
    Ok(())
}
