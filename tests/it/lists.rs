//! How the list of the grid spreads: one command on the authority's machine changes it everywhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use ckpt_agent::client::Settings;
use ckpt_agent::client::blocking::Client;
use protocol::grid::Grid as GridFile;
use protocol::identity::Revocations;
use tests::machines::Machines;
use tests::port::free_address;
use tests::program::wait_until;
use tests::{Grid, Outcome};

const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn text(path: &Path) -> Result<&str> {
    path.to_str().context("path")
}

pub(crate) fn authority(machines: &Machines) -> PathBuf {
    machines.usual("admin", "authority")
}

/// Enrols a host by hand, without sending the list to anybody. The host gets the grid file as it is now,
/// in the form that earlier programs had: without the list.
fn enrol(machines: &Machines, name: &str, addr: &str) -> Result<()> {
    machines.store(name, &["init", "--name", name])?.expect(0)?;
    let data = machines.usual(name, "store");
    sign(machines, name, addr, &["--offline"])?.expect(0)?;
    machines.carry(
        &machines.path("admin", &format!("{name}.crt")),
        &data.join("identity.crt"),
    )?;
    give_grid_file(machines, &data.join("grid.toml"))
}

pub(crate) fn sign(machines: &Machines, name: &str, addr: &str, more: &[&str]) -> Result<Outcome> {
    let public = machines.usual(name, "store/identity.pub");
    let public = text(&public)?.to_owned();
    let sign = [
        "grid", "sign", "--role", "donor", "--pubkey", &public, "--addr", addr,
    ];
    machines.ckpt("admin", &[&sign, more].concat())
}

fn give_grid_file(machines: &Machines, to: &Path) -> Result<()> {
    machines.carry(&authority(machines).join("grid.toml"), to)
}

fn enrol_submitter(machines: &Machines, name: &str) -> Result<()> {
    machines.ckpt(name, &["init", "--name", name])?.expect(0)?;
    let config = machines.path(name, "config/ckpt");
    let public = config.join("owner.key.pub");
    let sign = [
        "grid",
        "sign",
        "--role",
        "submitter",
        "--pubkey",
        text(&public)?,
    ];
    machines.ckpt("admin", &sign)?.expect(0)?;
    machines.carry(
        &machines.path("admin", &format!("{name}.crt")),
        &config.join("owner.crt"),
    )?;
    give_grid_file(machines, &config.join("grid.toml"))
}

/// A grid without a registry. Each host has the grid file from when it was enrolled, so the first host
/// knows only itself. The submitters Ada and Bob have the same grid file as the first host.
pub(crate) fn by_hand(hosts: usize) -> Result<Machines> {
    let mut machines = Machines::new()?;
    machines
        .ckpt("admin", &["grid", "init", "--name", "lab"])?
        .expect(0)?;
    for number in 1..=hosts {
        let name = format!("h{number}");
        let addr = free_address()?.to_string();
        enrol(&machines, &name, &addr)?;
        if number == 1 {
            enrol_submitter(&machines, "ada")?;
            enrol_submitter(&machines, "bob")?;
        }
        machines.serve(&name, &["--listen", &addr])?;
    }
    Ok(machines)
}

pub(crate) fn up(machines: &Machines, who: &str) -> Result<Vec<String>> {
    let mut up = machines.hosts(who)?;
    up.retain(|(_, is_up)| *is_up);
    Ok(up.into_iter().map(|(name, _)| name).collect())
}

#[test]
fn a_host_is_added_or_removed_and_a_submitter_revoked_by_one_command() -> Result<()> {
    let mut machines = by_hand(4)?;
    ensure!(
        machines.hosts("ada")?.len() == 1,
        "her grid file is an old one"
    );
    // Added: after one command, all members know the new host.
    machines.store("h5", &["init", "--name", "h5"])?.expect(0)?;
    let addr = free_address()?.to_string();
    let signed = sign(&machines, "h5", &addr, &["--json"])?
        .expect(0)?
        .json()?;
    ensure!(
        signed["sent"]["heard"] == serde_json::json!(["h1", "h2", "h3", "h4"]),
        "{signed}"
    );
    let data = machines.usual("h5", "store");
    machines.carry(
        &machines.path("admin", "h5.crt"),
        &data.join("identity.crt"),
    )?;
    give_grid_file(&machines, &data.join("grid.toml"))?;
    machines.serve("h5", &["--listen", &addr])?;
    wait_until("ada sees all hosts", LIMIT, || {
        Ok(up(&machines, "ada")?.len() == 5)
    })?;
    ensure!(machines.path("ada", "config/ckpt/grid.members").exists());
    machines
        .ckpt("ada", &["save", "--job", "42", "--", "echo", "42"])?
        .expect(0)?;

    // Removed: the host is in no list any more, but its key is not revoked.
    let removed = machines.json("admin", &["grid", "remove", "h2"])?;
    ensure!(
        removed["sent"]["heard"].as_array().map(Vec::len) == Some(5),
        "{removed}"
    );
    wait_until("ada does not see it", LIMIT, || {
        Ok(machines.hosts("ada")?.iter().all(|(name, _)| name != "h2"))
    })?;
    machines
        .ckpt("admin", &["grid", "remove", "h2"])?
        .expect(4)?;

    // Revoked: hosts refuse a submitter although nobody changed their grid files.
    machines.ckpt("bob", &["list"])?.expect(0)?;
    let revoked = machines.json("admin", &["grid", "revoke", "bob"])?;
    ensure!(revoked["was_already"] == false, "{revoked}");
    wait_until("bob is refused", LIMIT, || {
        Ok(machines.ckpt("bob", &["list"])?.code == Some(6))
    })?;
    let again = machines
        .ckpt("admin", &["grid", "revoke", "bob"])?
        .expect(0)?;
    let said = String::from_utf8_lossy(&again.stdout).into_owned();
    ensure!(said.contains("was revoked already"), "{said}");
    machines
        .ckpt("ada", &["restore", "--job", "42", "-o", "-"])?
        .expect(0)?;
    Ok(())
}

#[test]
fn the_status_of_a_host_says_that_it_was_revoked() -> Result<()> {
    let machines = by_hand(2)?;
    let status = |host: &str| -> Result<String> {
        let said = machines.store(host, &["status"])?.expect(0)?;
        Ok(String::from_utf8(said.stdout)?)
    };
    wait_until("the daemon wrote it", LIMIT, || {
        Ok(status("h2")?.contains(" since "))
    })?;
    ensure!(!status("h2")?.contains("REVOKED"));
    machines
        .ckpt("admin", &["grid", "revoke", "h2"])?
        .expect(0)?;
    wait_until("its status says so", LIMIT, || {
        Ok(status("h2")?.contains("REVOKED"))
    })?;
    ensure!(!status("h1")?.contains("REVOKED"));
    Ok(())
}

#[test]
fn a_host_that_was_away_gets_the_list_from_others_and_ignores_an_older_one() -> Result<()> {
    let mut machines = by_hand(3)?;
    let before = fs::read(authority(&machines).join("grid.members"))?;
    // A failed command changes nothing. The list changes while h3 is away.
    machines
        .ckpt("admin", &["grid", "remove", "nobody"])?
        .expect(4)?;
    machines.stop("h3")?;
    machines
        .ckpt("admin", &["grid", "revoke", "bob"])?
        .expect(3)?;
    let addr = machines.address("h3")?;
    machines.serve("h3", &["--listen", &addr])?;
    // Bob connects only to the host that was away. By that host's grid file, nobody is revoked.
    let config = machines.path("bob", "config/ckpt/grid.toml");
    let mut alone = GridFile::load(&machines.usual("h3", "store/grid.toml"))?;
    alone.hosts.retain(|host| host.name == "h3");
    alone.list = None;
    alone.revoked = Revocations::default();
    wait_until("it refuses bob", LIMIT, || {
        alone.save(&config)?;
        let _ = fs::remove_file(config.with_extension("members"));
        let _ = fs::remove_dir_all(machines.path("bob", "state"));
        Ok(machines.ckpt("bob", &["list"])?.code == Some(6))
    })?;
    ensure!(
        machines
            .log("h3")?
            .contains("using a newer list of the grid")
    );

    // An older list replaces the new one: the daemon ignores it while it runs, and gets the new list from
    // other hosts after a restart.
    let list = machines.usual("h3", "store/grid.members");
    fs::write(&list, &before)?;
    wait_until("the older list is seen", LIMIT, || {
        Ok(machines.log("h3")?.contains("older list of the grid"))
    })?;
    ensure!(machines.ckpt("bob", &["list"])?.code == Some(6));
    machines.stop("h3")?;
    machines.serve("h3", &["--listen", &addr])?;
    wait_until("it has the newer list again", LIMIT, || {
        Ok(fs::read(&list)? != before)
    })?;
    Ok(())
}

#[test]
fn a_client_replaces_a_forged_list_by_the_true_one() -> Result<()> {
    let machines = by_hand(1)?;
    machines.json("admin", &["grid", "revoke", "bob"])?;
    let path = machines.usual("h1", "store/grid.members");
    wait_until("the list is there", LIMIT, || Ok(path.exists()))?;
    let good = fs::read(&path)?;
    let mut wrong = good.clone();
    if let Some(byte) = wrong.get_mut(100) {
        *byte ^= 1;
    }
    // A client that finds a forged list uses the grid file, and gets the true list from a host.
    let ada = machines.path("ada", "config/ckpt/grid.members");
    fs::write(&ada, &wrong)?;
    machines.ckpt("ada", &["hosts"])?.expect(0)?;
    ensure!(fs::read(&ada)? == good);
    Ok(())
}

#[test]
fn a_host_that_can_not_write_beside_its_grid_file_keeps_the_list_with_its_data() -> Result<()> {
    let mut machines = by_hand(1)?;
    machines.stop("h1")?;
    // The daemon can't write beside the grid file, so it keeps the list beside its shards.
    let elsewhere = machines.path("h1", "etc/grid.toml");
    let data = machines.usual("h1", "store");
    machines.carry(&data.join("grid.toml"), &elsewhere)?;
    let named = format!(
        "members = \"/proc/nowhere\"\n{}",
        fs::read_to_string(&elsewhere)?
    );
    fs::write(&elsewhere, named)?;
    fs::remove_file(data.join("grid.toml"))?;
    let addr = machines.address("h1")?;
    machines.serve("h1", &["--listen", &addr, "--grid", text(&elsewhere)?])?;
    machines.json("admin", &["grid", "revoke", "bob"])?;
    wait_until("the list is in the data directory", LIMIT, || {
        Ok(data.join("grid.members").exists())
    })?;
    machines.ckpt("bob", &["list"])?.expect(6)?;
    machines.stop("h1")?;
    machines.serve("h1", &["--listen", &addr, "--grid", text(&elsewhere)?])?;
    machines.ckpt("bob", &["list"])?.expect(6)?;
    Ok(())
}

#[test]
fn a_machine_that_joins_with_a_token_gets_the_list_and_no_settings_of_the_registry() -> Result<()> {
    let mut machines = Machines::new()?;
    let addr = free_address()?.to_string();
    machines.found(&addr)?;
    // The registry's grid file names an owner of its machine.
    let grid = machines.usual("admin", "registry/grid.toml");
    let local =
        "[owner]\nkey = \"/home/admin/owner.key\"\ncertificate = \"/home/admin/owner.crt\"\n";
    fs::write(&grid, fs::read_to_string(&grid)? + local)?;
    let tokens = machines.invite(1, 1)?;
    machines.join("h1", &tokens[0])?;
    machines.ckpt("ada", &["join", &tokens[1]])?.expect(0)?;
    for (machine, dir) in [("h1", "data/ckpt/store"), ("ada", "config/ckpt")] {
        let dir = machines.path(machine, dir);
        let text = fs::read_to_string(dir.join("grid.toml"))?;
        ensure!(!text.contains("owner.key"), "{text}");
        ensure!(dir.join("grid.members").exists(), "{machine}");
    }
    wait_until("ada sees the host", LIMIT, || {
        Ok(up(&machines, "ada")? == ["h1"])
    })?;
    let save = [
        "save", "--job", "42", "--data", "1", "--parity", "0", "--", "echo", "42",
    ];
    machines.ckpt("ada", &save)?.expect(0)?;
    // Hosts also accept a job key of a submitter whom a registry certified.
    machines
        .ckpt("ada", &["key", "for-job", "--job", "42", "-o", "job.key"])?
        .expect(0)?;
    let restore = ["--key-file", "job.key", "restore", "--job", "42", "-o", "-"];
    ensure!(machines.ckpt("ada", &restore)?.expect(0)?.stdout == b"42\n");

    // A token names the number of the list that its holder has to see, so a machine refuses to join if the
    // registry shows an older list.
    machines.stop("admin")?;
    let list = machines.usual("admin", "registry/grid.members");
    let before = fs::read(&list)?;
    machines
        .ckpt("admin", &["grid", "revoke", "ada", "--offline"])?
        .expect(4)?;
    let key = machines.json("ada", &["init"])?["id"]
        .as_str()
        .context("id")?
        .to_owned();
    machines
        .ckpt("admin", &["grid", "revoke", &key, "--offline"])?
        .expect(0)?;
    let token = machines.invite(1, 0)?.remove(0);
    ensure!(fs::read(&list)? == before);
    machines.start("admin", &["registry"])?;
    let refused = machines
        .store("h2", &["join", &token, "--name", "h2"])?
        .expect(1)?;
    ensure!(refused.stderr.contains("the token names"), "{refused}");
    ensure!(!machines.usual("h2", "store/identity.crt").exists());
    // Once the registry has the newer list, the same token is good for the same machine.
    let newer = authority(&machines).join("grid.members");
    machines.carry(&newer, &list)?;
    wait_until("the same token is good", LIMIT, || {
        Ok(machines
            .store("h2", &["join", &token, "--name", "h2"])?
            .code
            == Some(0))
    })?;
    Ok(())
}

#[test]
fn machines_that_joined_with_a_token_are_shown_and_revoked_by_key_or_digits() -> Result<()> {
    let mut machines = Machines::new()?;
    machines.found(&free_address()?.to_string())?;
    let tokens = machines.invite(3, 1)?;
    for (number, token) in tokens.iter().take(3).enumerate() {
        machines.join(&format!("h{}", number + 1), token)?;
    }
    machines.ckpt("ada", &["join", &tokens[3]])?.expect(0)?;
    wait_until("all are announced", LIMIT, || {
        Ok(up(&machines, "ada")?.len() == 3)
    })?;
    let show = machines.json("admin", &["grid", "show"])?;
    let members = show["members"].as_array().context("members")?;
    let of = |name: &str| members.iter().find(|member| member["name"] == name);
    let registry = of("registry").context("no registry")?;
    ensure!(registry["addr"].is_string(), "{registry}");
    let h2 = of("h2").context("h2 is not shown")?;
    ensure!(h2["state"] == "joined" && h2["addr"].is_string(), "{h2}");
    let digits = h2["key"]
        .as_str()
        .context("key")?
        .chars()
        .take(8)
        .collect::<String>();
    let hosts = machines.ckpt("ada", &["hosts"])?.expect(0)?;
    ensure!(
        String::from_utf8_lossy(&hosts.stdout).contains(&digits),
        "{hosts}"
    );
    let ids = machines.json("ada", &["hosts"])?["hosts"].to_string();
    ensure!(ids.contains(h2["key"].as_str().context("key")?), "{ids}");

    machines
        .ckpt("admin", &["grid", "revoke", &digits])?
        .expect(0)?;
    // Only the registry says who has this name, so the key is asked for.
    let unclear = machines
        .ckpt("admin", &["grid", "revoke", "h3"])?
        .expect(2)?;
    let key = of("h3").context("h3 is not shown")?["key"]
        .as_str()
        .context("key")?
        .to_owned();
    ensure!(
        unclear.stderr.contains(&key) && unclear.stderr.contains("ckpt grid revoke KEY"),
        "{unclear}"
    );
    machines
        .ckpt("admin", &["grid", "revoke", &key])?
        .expect(0)?;
    wait_until("they are not used", LIMIT, || {
        Ok(up(&machines, "ada")? == ["h1"])
    })?;
    let show = machines.json("admin", &["grid", "show"])?;
    let revoked = show["members"].as_array().context("members")?.iter();
    let revoked = revoked.filter(|member| member["state"] == "revoked");
    ensure!(revoked.count() == 2, "{show}");
    Ok(())
}

#[test]
fn a_running_registry_can_be_allowed_to_redeem_tokens() -> Result<()> {
    let mut machines = Machines::new()?;
    machines
        .ckpt("admin", &["grid", "init", "--name", "lab"])?
        .expect(0)?;
    let made = machines
        .store("r1", &["init", "--role", "registry", "--name", "r1"])?
        .expect(0)?;
    ensure!(made.stderr.contains("--role registry"), "{made}");
    let data = machines.usual("r1", "registry");
    let public = data.join("identity.pub");
    let addr = free_address()?.to_string();
    let sign = [
        "grid",
        "sign",
        "--role",
        "registry",
        "--pubkey",
        text(&public)?,
        "--addr",
        &addr,
    ];
    machines.ckpt("admin", &sign)?.expect(0)?;
    machines.carry(
        &machines.path("admin", "r1.crt"),
        &data.join("identity.crt"),
    )?;
    give_grid_file(&machines, &data.join("grid.toml"))?;
    machines.start("r1", &["registry", "--listen", &addr])?;
    // The list reaches the registry with the next command of the authority, or as a file.
    machines.carry(
        &authority(&machines).join("grid.members"),
        &data.join("grid.members"),
    )?;
    let tokens = machines.invite(2, 1)?;
    let early = machines
        .store("h1", &["join", &tokens[0], "--name", "h1"])?
        .expect(1)?;
    ensure!(early.stderr.contains("accepts no tokens"), "{early}");
    let enrol = data.join("enrol.crt");
    let delegate = ["grid", "delegate", "r1", "-o", text(&enrol)?];
    machines.ckpt("admin", &delegate)?.expect(0)?;
    // The registry refuses until it has read the new list.
    wait_until("a machine may join", LIMIT, || {
        let joined = machines.store("h1", &["join", &tokens[0], "--name", "h1"])?;
        Ok(joined.code == Some(0))
    })?;
    // The message states each reason once.
    let used = machines
        .store("h2", &["join", &tokens[0], "--name", "h2"])?
        .expect(1)?;
    ensure!(used.stderr.matches("used already").count() == 1, "{used}");
    let long = format!("{}0", tokens[1]);
    let long = machines
        .store("h2", &["join", &long, "--name", "h2"])?
        .expect(1)?;
    ensure!(long.stderr.contains("extra characters"), "{long}");
    // The registry may sign only donors until the authority lets it sign submitters.
    let ada = machines.ckpt("ada", &["join", &tokens[2]])?.expect(6)?;
    ensure!(ada.stderr.contains("may not sign a submitter"), "{ada}");
    let both = [&delegate[..], &["--role", "donor,submitter"]].concat();
    machines.ckpt("admin", &both)?.expect(0)?;
    machines.ckpt("ada", &["join", &tokens[2]])?.expect(0)?;
    Ok(())
}

#[test]
fn a_copy_with_a_passphrase_becomes_the_authority_and_catches_up_with_its_grid() -> Result<()> {
    let mut machines = by_hand(1)?;
    fs::write(machines.path("admin", "secret"), "correct horse\n")?;
    fs::write(machines.path("admin", "other"), "battery staple\n")?;
    let backup = [
        "grid",
        "backup",
        "--passphrase-file",
        "secret",
        "copy.sealed",
    ];
    machines.ckpt("admin", &backup)?.expect(0)?;
    machines.ckpt("admin", &backup)?.expect(8)?;
    let copy = fs::read(machines.path("admin", "copy.sealed"))?;
    ensure!(copy.starts_with(b"ckpt v1 sealed  "));
    let key = fs::read_to_string(authority(&machines).join("authority.key"))?;
    let key = key
        .trim()
        .rsplit(' ')
        .next()
        .context("key")?
        .as_bytes()
        .to_vec();
    ensure!(!copy.windows(key.len()).any(|some| some == key));
    // After the copy was made, Bob is revoked, and the authority's directory is lost.
    machines
        .ckpt("admin", &["grid", "revoke", "bob"])?
        .expect(0)?;
    fs::remove_dir_all(authority(&machines))?;
    let restore = |file| ["grid", "restore", "--passphrase-file", file, "copy.sealed"];
    machines.ckpt("admin", &restore("other"))?.expect(6)?;
    let restored = machines.ckpt("admin", &restore("secret"))?.expect(0)?;
    let said = String::from_utf8_lossy(&restored.stdout).into_owned();
    ensure!(said.contains("the newest that a member has"), "{said}");
    machines.ckpt("admin", &restore("secret"))?.expect(2)?;
    machines.ckpt("bob", &["list"])?.expect(6)?;
    // The restored authority can sign a new host, and Bob stays revoked.
    machines.store("h2", &["init", "--name", "h2"])?.expect(0)?;
    sign(&machines, "h2", &free_address()?.to_string(), &[])?.expect(0)?;
    machines.ckpt("ada", &["hosts"])?.expect(0)?;
    ensure!(machines.hosts("ada")?.len() == 2);
    machines.ckpt("bob", &["list"])?.expect(6)?;
    machines.stop("h1")
}

/// Signs a certificate again that ends after `ttl`, and writes it to the file `to`.
fn sign_for(machines: &Machines, role: &str, public: &Path, ttl: &str, to: &Path) -> Result<()> {
    let sign = [
        "grid",
        "sign",
        "--role",
        role,
        "--pubkey",
        text(public)?,
        "--ttl",
        ttl,
    ];
    machines
        .ckpt("admin", &[&sign[..], &["-o", text(to)?]].concat())?
        .expect(0)?;
    Ok(())
}

#[test]
fn certificates_that_end_soon_are_reported_and_renewed_by_one_command() -> Result<()> {
    let mut machines = by_hand(1)?;
    let public = machines.path("ada", "config/ckpt/owner.key.pub");
    let certificate = machines.path("ada", "config/ckpt/owner.crt");
    sign_for(&machines, "submitter", &public, "5d", &certificate)?;
    let old = fs::read(&certificate)?;
    let ends_soon = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() + 6 * 86_400;
    let host = machines.usual("h1", "store");
    let of_host = host.join("identity.pub");
    let at_host = host.join("identity.crt");
    sign_for(&machines, "donor", &of_host, "5d", &at_host)?;
    let addr = machines.address("h1")?;
    machines.stop("h1")?;
    machines.serve("h1", &["--listen", &addr])?;
    ensure!(machines.log("h1")?.contains("the certificate ends soon"));
    let save = [
        "save", "--job", "1", "--data", "1", "--parity", "0", "--", "echo", "1",
    ];
    for args in [&save[..], &["list"], &["hosts"]] {
        let said = machines.ckpt("ada", args)?.expect(0)?;
        // Just after it was signed, the certificate may still be good for five whole days.
        let is_said =
            said.stderr.contains("expires in 4 days") || said.stderr.contains("expires in 5 days");
        ensure!(is_said, "{said}");
    }
    let hosts = machines.ckpt("ada", &["hosts"])?;
    let shown = String::from_utf8_lossy(&hosts.stdout).into_owned();
    ensure!(shown.contains("certificate expires in "), "{shown}");
    let show = machines.json("admin", &["grid", "show"])?;
    let soon = show["members"].as_array().context("members")?.iter();
    ensure!(
        soon.filter(|one| one["state"] == "ends soon").count() == 2,
        "{show}"
    );

    let renewed = machines.json("admin", &["grid", "renew"])?;
    ensure!(
        renewed["renewed"].as_array().map(Vec::len) == Some(2),
        "{renewed}"
    );
    // Nobody copies a file: the submitter's next command fetches the certificate, and the host gets its own.
    wait_until("the submitter has its certificate", LIMIT, || {
        let said = machines.ckpt("ada", &["list"])?.expect(0)?;
        Ok(!said.stderr.contains("expires"))
    })?;
    let signed = fs::read(authority(&machines).join("renewed/ada.crt"))?;
    ensure!(fs::read(&certificate)? == signed, "another certificate");
    wait_until("the host uses its certificate", LIMIT, || {
        let hosts = machines.ckpt("ada", &["hosts"])?;
        let shown = String::from_utf8_lossy(&hosts.stdout).into_owned();
        Ok(hosts.code == Some(0) && !shown.contains("certificate expires in "))
    })?;
    let back = machines
        .ckpt("ada", &["restore", "--job", "1", "-o", "-"])?
        .expect(0)?;
    ensure!(back.stdout == b"1\n", "{back}");
    let again = machines.json("admin", &["grid", "renew"])?;
    ensure!(again["renewed"] == serde_json::json!([]), "{again}");

    // A program that uses the library fetches the renewed certificate as well.
    fs::write(&certificate, old)?;
    let settings = Settings::of_grid(machines.path("ada", "config/ckpt/grid.toml"))
        .key(machines.path("ada", "config/ckpt/owner.key"));
    let client = Client::connect(&settings)?;
    ensure!(client.identity_ends() > ends_soon);
    client.close();
    ensure!(fs::read(&certificate)? == signed, "another certificate");
    Ok(())
}

/// The client finds the expired certificate by itself, so the reason is the same when no host answers.
#[test]
fn an_expired_certificate_is_the_reason_even_if_no_host_answers() -> Result<()> {
    let mut machines = by_hand(1)?;
    machines.stop("h1")?;
    machines.ckpt("ada", &["list"])?.expect(5)?;
    let public = machines.path("ada", "config/ckpt/owner.key.pub");
    let certificate = machines.path("ada", "config/ckpt/owner.crt");
    sign_for(&machines, "submitter", &public, "1s", &certificate)?;
    wait_until("the certificate has ended", LIMIT, || {
        Ok(machines.ckpt("ada", &["list"])?.code == Some(6))
    })?;
    let ended = machines
        .ckpt("ada", &["save", "--job", "1", "--", "echo", "1"])?
        .expect(6)?;
    ensure!(ended.stderr.contains("expired"), "{ended}");
    Ok(())
}

#[test]
fn a_host_of_a_local_grid_whose_data_are_elsewhere_is_started_and_stopped() -> Result<()> {
    let grid = Grid::up(2)?;
    let dir = grid.file();
    let dir = text(dir.parent().context("no directory")?)?.to_owned();
    let data = grid.path("elsewhere");
    let local = |args: &[&str]| -> Result<Outcome> {
        let mut command = grid.command(["grid"])?;
        command.args(args).args(["--dir", &dir]);
        tests::program::run(&mut command)
    };
    let add = [
        "add",
        "--name",
        "h07",
        "--listen",
        "127.0.0.1:0",
        "--data",
        text(&data)?,
    ];
    local(&add)?.expect(0)?;
    let status = |name: &str| -> Result<(bool, String)> {
        let report = local(&["status", "--json"])?.json()?;
        let hosts = report["hosts"].as_array().context("hosts")?.clone();
        let host = hosts.iter().find(|host| host["name"] == name);
        let host = host.context("no such host")?;
        let data = host["data"].as_str().context("data")?;
        Ok((host["pid"].is_number(), data.to_owned()))
    };
    ensure!(status("h07")? == (false, text(&data)?.to_owned()));
    grid.restart()?;
    ensure!(status("h07")? == (true, text(&data)?.to_owned()));
    ensure!(data.join("lock").exists());
    ensure!(
        grid.run(["hosts", "--json"])?.json()?["hosts"]
            .to_string()
            .matches("\"up\":true")
            .count()
            == 3
    );
    local(&["down"])?.expect(0)?;
    ensure!(!status("h07")?.0);
    // An address that another host has is refused.
    let hosts = local(&["status", "--json"])?.json()?;
    let taken = hosts["hosts"][0]["addr"]
        .as_str()
        .context("addr")?
        .to_owned();
    let other = grid.path("other");
    let add = [
        "add",
        "--name",
        "h08",
        "--listen",
        &taken,
        "--data",
        text(&other)?,
    ];
    let refused = local(&add)?.expect(2)?;
    ensure!(refused.stderr.contains("is the address of"), "{refused}");
    Ok(())
}

#[test]
fn a_host_hears_from_others_which_job_keys_are_void() -> Result<()> {
    let quick = [("CKPT_REPAIR_AFTER", "1h"), ("CKPT_REPAIR_PERIOD", "300ms")];
    let grid = Grid::up_in(5, &quick)?;
    grid.run(["save", "--job", "42", "--", "echo", "42"])?
        .expect(0)?;
    grid.run(["key", "for-job", "--job", "42", "-o", "job.key"])?
        .expect(0)?;
    // One host is away while the owner makes the key void. The owner runs no command afterwards.
    grid.kill("h02")?;
    grid.run(["key", "revoke"])?.expect(3)?;
    grid.restart()?;
    // The holder of the key connects only to that host.
    let mut alone = GridFile::load(&grid.file())?;
    alone.list = None;
    alone.hosts.retain(|host| host.name == "h02");
    let dir = grid.path("alone");
    fs::create_dir_all(&dir)?;
    let file = dir.join("grid.toml");
    alone.save(&file)?;
    wait_until("the host that was away refuses the key", LIMIT, || {
        let _ = fs::remove_file(file.with_extension("members"));
        let mut list = grid.command(["list", "--job", "42"])?;
        list.env("CKPT_GRID", &file)
            .env("CKPT_KEY_FILE", grid.path("job.key"))
            .env("CKPT_STATE_DIR", dir.join("state"));
        let said = tests::program::run(&mut list)?;
        let _ = fs::remove_dir_all(dir.join("state"));
        Ok(said.stderr.contains("was revoked by its owner"))
    })
}
