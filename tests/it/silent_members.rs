//! Members that are silent stay members: registries, donors and clients know them until they are revoked.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::machines::Machines;
use tests::port::free_address;
use tests::program::wait_until;

/// A registry notices within half a minute that a donor is silent, a donor sends a heartbeat each ten
/// seconds, and compares cards with a registry each 36 seconds in these tests.
const LIMIT: Duration = Duration::from_secs(150);

/// The file in which a registry keeps the members that it knows.
const KNOWN: &str = "known-donors";

/// The silent members that a submitter is shown, by name, with since when.
fn silent(machines: &Machines, who: &str) -> Result<Vec<(String, u64)>> {
    let report = machines.ckpt(who, &["--json", "hosts"])?.json()?;
    let hosts = report["hosts"].as_array().context("hosts")?;
    let silent = hosts.iter().filter(|host| host["status"] == "silent");
    let one = |host: &Value| {
        let name = host["name"].as_str().context("name")?;
        Ok((
            name.to_owned(),
            host["silent_since"].as_u64().context("since")?,
        ))
    };
    let mut all: Vec<_> = silent.map(one).collect::<Result<_>>()?;
    all.sort();
    Ok(all)
}

fn await_silent(machines: &Machines, who: &str, names: &[&str]) -> Result<Vec<(String, u64)>> {
    let mut seen = Vec::new();
    wait_until(
        &format!("{who} is shown {names:?} as silent"),
        LIMIT,
        || {
            seen = silent(machines, who)?;
            Ok(seen
                .iter()
                .map(|(name, _)| name.as_str())
                .eq(names.iter().copied()))
        },
    )?;
    Ok(seen)
}

/// Whether a file has these bytes anywhere.
fn has(path: &Path, sought: impl AsRef<[u8]>) -> bool {
    let sought = sought.as_ref();
    let bytes = fs::read(path).unwrap_or_default();
    bytes.windows(sought.len()).any(|some| some == sought)
}

/// The bytes of a key in hexadecimal digits. Files are searched for these: two letters of a name may be in any key by
/// chance.
fn bytes_of(key: &str) -> Result<Vec<u8>> {
    let pairs = (0..key.len()).step_by(2).map(|at| key.get(at..at + 2));
    let byte = |pair: Option<&str>| Ok(u8::from_str_radix(pair.context("odd")?, 16)?);
    pairs.map(byte).collect()
}

/// How many cards of others a donor keeps.
fn cards(machines: &Machines, donor: &str) -> usize {
    let kept = fs::read_dir(machines.usual(donor, "store/cards"));
    kept.map_or(0, Iterator::count)
}

fn await_cards(machines: &Machines, donor: &str, count: usize) -> Result<()> {
    wait_until(&format!("{donor} keeps {count} cards"), LIMIT, || {
        Ok(cards(machines, donor) == count)
    })
}

/// A grid with the donors `late`, which joined first, and `up`, and the submitter zoe. Those that are up keep
/// the cards of the others.
fn founded(late: &[&str], up: &[&str], submitters: usize) -> Result<(Machines, Vec<String>)> {
    let mut machines = Machines::new()?;
    machines.found(&free_address()?.to_string())?;
    let donors = late.len() + up.len();
    let mut tokens = machines.invite(donors, submitters)?;
    let people = tokens.split_off(donors);
    machines.join_person("zoe", &people[0])?;
    let mut tokens = tokens.iter();
    for machine in late {
        machines.join(machine, tokens.next().context("token")?)?;
    }
    machines.await_up("zoe", late.len(), LIMIT)?;
    for machine in up {
        machines.join(machine, tokens.next().context("token")?)?;
        wait_until("the cards of those that were there", LIMIT, || {
            Ok(cards(&machines, machine) >= late.len())
        })?;
    }
    machines.await_up("zoe", donors, LIMIT)?;
    Ok((machines, people))
}

fn a_damaged_file_does_not_stop_the_registry(machines: &mut Machines, known: &Path) -> Result<()> {
    machines.stop("admin")?;
    fs::write(known, b"damaged")?;
    machines.start("admin", &["registry"])?;
    ensure!(known.with_extension("damaged").exists());
    Ok(())
}

#[test]
fn silent_members_are_known_to_a_registry_that_begins_anew_until_they_are_revoked() -> Result<()> {
    let (mut machines, people) = founded(&["m3", "m4"], &["m1", "m2"], 4)?;
    for machine in ["m3", "m4"] {
        machines.stop(machine)?;
    }
    let seen = await_silent(&machines, "zoe", &["m3", "m4"])?;
    let text = machines.ckpt("zoe", &["hosts"])?.expect(0)?;
    let text = String::from_utf8(text.stdout)?;
    ensure!(text.contains("2 of 4 hosts up"), "{text}");
    ensure!(text.contains("silent since "), "{text}");
    let health = machines.ckpt("zoe", &["health"])?;
    let health = String::from_utf8(health.stdout)?;
    ensure!(health.contains("m3: silent since "), "{health}");
    ensure!(health.contains("2 of 4 hosts up"), "{health}");
    let doctor = machines.ckpt("zoe", &["doctor"])?.expect(3)?;
    let doctor = String::from_utf8(doctor.stdout)?;
    ensure!(
        doctor.contains("m3 (") && doctor.contains("silent since "),
        "{doctor}"
    );

    // With its directory, the registry knows them at once, and has what it knew of the time.
    let known = machines.usual("admin", "registry").join(KNOWN);
    wait_until("the registry has written them down", LIMIT, || {
        Ok(has(&known, "m3") && has(&known, "m4"))
    })?;
    machines.stop("admin")?;
    machines.start("admin", &["registry"])?;
    machines.join_person("eve", &people[1])?;
    let now = silent(&machines, "eve")?;
    for (name, since) in &seen {
        let (_, again) = now
            .iter()
            .find(|(other, _)| other == name)
            .context("not known")?;
        ensure!(since.abs_diff(*again) <= 600, "{name}: {since} {again}");
    }

    // Without it, the donors that are up bring their cards.
    machines.stop("admin")?;
    fs::remove_file(&known)?;
    machines.start("admin", &["registry"])?;
    machines.join_person("mia", &people[2])?;
    await_silent(&machines, "mia", &["m3", "m4"])?;
    machines.await_up("mia", 2, LIMIT)?;

    a_damaged_file_does_not_stop_the_registry(&mut machines, &known)?;
    await_silent(&machines, "zoe", &["m3", "m4"])?;

    // A member that is revoked is gone everywhere.
    let report = machines.ckpt("zoe", &["--json", "hosts"])?.json()?;
    let mut hosts = report["hosts"].as_array().context("hosts")?.iter();
    let m3 = hosts.find(|host| host["name"] == "m3").context("m3")?;
    let key = m3["id"].as_str().context("id")?;
    let of_m3 = bytes_of(key)?;
    let is_known = || has(&known, &of_m3);
    wait_until("the registry has written it down", LIMIT, || Ok(is_known()))?;
    machines
        .ckpt("admin", &["grid", "revoke", key])?
        .expect(0)?;
    for who in ["zoe", "eve", "mia"] {
        await_silent(&machines, who, &["m4"])?;
    }
    wait_until("the registry has forgotten it", LIMIT, || Ok(!is_known()))?;
    await_cards(&machines, "m1", 2)?;
    await_cards(&machines, "m2", 2)?;
    Ok(())
}

/// A second registry, which the grid's list names.
fn second_registry(machines: &mut Machines) -> Result<PathBuf> {
    machines
        .store("r2", &["init", "--role", "registry", "--name", "r2"])?
        .expect(0)?;
    let data = machines.usual("r2", "registry");
    let public = data.join("identity.pub");
    let public = public.to_str().context("path")?;
    let addr = free_address()?.to_string();
    let sign = [
        "grid", "sign", "--role", "registry", "--pubkey", public, "--addr", &addr,
    ];
    machines.ckpt("admin", &sign)?.expect(0)?;
    machines.carry(
        &machines.path("admin", "r2.crt"),
        &data.join("identity.crt"),
    )?;
    for file in ["grid.toml", "grid.members"] {
        let from = machines.usual("admin", "authority").join(file);
        machines.carry(&from, &data.join(file))?;
    }
    machines.start("r2", &["registry", "--listen", &addr])?;
    Ok(data)
}

#[test]
fn a_registry_that_never_heard_a_donor_knows_it_by_its_card() -> Result<()> {
    let (mut machines, _) = founded(&["m2"], &["m1"], 1)?;
    machines.stop("m2")?;
    await_silent(&machines, "zoe", &["m2"])?;
    let data = second_registry(&mut machines)?;
    wait_until("the second registry knows m2", LIMIT, || {
        Ok(has(&data.join(KNOWN), "m2"))
    })?;
    // Zoe has heard of the second registry, and the first one is gone with all that she remembers.
    wait_until("zoe knows both registries", LIMIT, || {
        let health = machines.ckpt("zoe", &["--json", "health"])?.json()?;
        Ok(health["registries"]
            .as_array()
            .is_some_and(|all| all.len() == 2))
    })?;
    machines.stop("admin")?;
    fs::remove_dir_all(machines.home("zoe").join("state"))?;
    await_silent(&machines, "zoe", &["m2"])?;
    machines.await_up("zoe", 1, LIMIT)?;
    Ok(())
}
