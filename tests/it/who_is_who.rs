//! Who is who in a grid: names that stay, the record of who joined, machines and people that are replaced,
//! and a fresh machine that restores with no registry.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::machines::Machines;
use tests::port::free_address;
use tests::program::{run, wait_until};

use crate::page_machines::Story;

/// A registry notices within half a minute that a donor is silent.
const LIMIT: Duration = Duration::from_secs(120);

/// The record of the authority: all members.
fn record(machines: &Machines) -> Result<Vec<Value>> {
    let shown = machines.json("admin", &["grid", "show"])?;
    Ok(shown["members"].as_array().context("members")?.clone())
}

/// The name and key of the members that are donors, in the order of the record.
fn donors(machines: &Machines) -> Result<Vec<(String, String)>> {
    let text = |one: &Value, field: &str| one[field].as_str().unwrap_or_default().to_owned();
    let all = record(machines)?;
    let all = all.iter().filter(|one| one["roles"][0] == "donor");
    let mut all: Vec<_> = all
        .map(|one| (text(one, "name"), text(one, "key")))
        .collect();
    all.sort();
    Ok(all)
}

/// Joins as a person who has no login name in the environment, as in a container.
fn join_without_a_name(machines: &Machines, home: &str, token: &str) -> Result<String> {
    let mut join = machines.command(home, &["--json", "join", token])?;
    join.env_remove("USER").env_remove("LOGNAME");
    let joined = run(&mut join)?.expect(0)?.json()?;
    Ok(joined["name"].as_str().context("name")?.to_owned())
}

#[test]
fn machines_of_one_image_keep_their_names_and_none_is_revoked_by_mistake() -> Result<()> {
    let mut machines = Machines::new()?;
    machines.found(&free_address()?.to_string())?;
    let tokens = machines.invite(5, 1)?;
    machines.join_person("ada", &tokens[5])?;
    // All of them have the host name of this machine.
    for (number, token) in tokens.iter().take(5).enumerate() {
        let machine = format!("m{number}");
        machines.store(&machine, &["join", token])?.expect(0)?;
        machines.serve(&machine, &["--listen", "127.0.0.1:0"])?;
    }
    machines.await_up("ada", 5, LIMIT)?;
    let before = donors(&machines)?;
    let stem = before[0].0.clone();
    let names: Vec<&str> = before.iter().map(|(name, _)| name.as_str()).collect();
    let wanted: Vec<String> = (2..=5).map(|number| format!("{stem}-{number}")).collect();
    ensure!(before.len() == 5 && names[1..] == wanted, "{names:?}");

    // The machine that has the bare name dies. The name stays its own.
    machines.stop("m0")?;
    wait_until("m0 is silent", LIMIT, || {
        let report = machines.ckpt("ada", &["--json", "hosts"])?.json()?;
        let hosts = report["hosts"].as_array().context("hosts")?.iter();
        let mut silent = hosts.filter(|host| host["status"] == "silent");
        Ok(silent.any(|host| host["name"] == stem.as_str()))
    })?;
    ensure!(donors(&machines)? == before);
    let unclear = machines
        .ckpt("admin", &["grid", "revoke", &stem])?
        .expect(2)?;
    ensure!(unclear.stderr.contains(&before[0].1), "{unclear}");
    let digits = &before[0].1[..8];
    let revoked = machines
        .ckpt("admin", &["grid", "revoke", digits])?
        .expect(0)?;
    ensure!(revoked.stderr.contains(&stem), "{revoked}");
    ensure!(revoked.stderr.contains("shards held"), "{revoked}");
    let again = machines
        .ckpt("admin", &["grid", "revoke", &stem])?
        .expect(2)?;
    ensure!(again.stderr.contains("revoked"), "{again}");
    let left = donors(&machines)?;
    ensure!(left == before, "{left:?}");
    machines.await_up("ada", 4, LIMIT)
}

#[test]
fn people_who_joined_are_shown_with_their_tokens_and_are_revoked_by_eight_digits() -> Result<()> {
    let mut machines = Machines::new()?;
    machines.found(&free_address()?.to_string())?;
    let tokens = machines.invite(1, 2)?;
    machines.join("m1", &tokens[0])?;
    let first = join_without_a_name(&machines, "p1", &tokens[1])?;
    let second = join_without_a_name(&machines, "p2", &tokens[2])?;
    ensure!((first.as_str(), second.as_str()) == ("submitter", "submitter-2"));
    machines.await_up("p1", 1, LIMIT)?;
    let all = record(&machines)?;
    let of = |name: &str| all.iter().find(|one| one["name"] == name).context("shown");
    for (name, token) in [("submitter", &tokens[1]), ("submitter-2", &tokens[2])] {
        let one = of(name)?;
        let number = one["token"].as_str().context("token")?;
        ensure!(token.contains(&format!("/{number}")), "{one}");
        ensure!(one["roles"][0] == "submitter", "{one}");
        ensure!(one["joined"].as_u64().is_some() && one["seen"].as_u64().is_some());
        ensure!(one["registry"] == "registry", "{one}");
    }
    let digits = of("submitter")?["key"].as_str().context("key")?[..8].to_owned();

    // The record outlives the registry: with the registry dead, the person is shown and can be revoked.
    machines.stop("admin")?;
    let shown = machines.ckpt("admin", &["grid", "show"])?.expect(0)?;
    let shown = String::from_utf8(shown.stdout)?;
    ensure!(
        shown.contains(&digits) && shown.contains("did not report"),
        "{shown}"
    );
    machines.start("admin", &["registry"])?;
    machines.await_up("p2", 1, LIMIT)?;
    machines
        .ckpt("admin", &["grid", "revoke", &digits])?
        .expect(0)?;
    wait_until("the revoked person is refused", LIMIT, || {
        Ok(machines.ckpt("p1", &["list"])?.code == Some(6))
    })?;
    machines.ckpt("p2", &["list"])?.expect(0)?;
    Ok(())
}

#[test]
fn a_machine_with_a_new_disk_comes_back_under_its_name() -> Result<()> {
    let mut machines = Machines::new()?;
    machines.found(&free_address()?.to_string())?;
    let tokens = machines.invite(3, 1)?;
    machines.join_person("ada", &tokens[3])?;
    machines.join("m1", &tokens[0])?;
    machines.join("m2", &tokens[1])?;
    machines.await_up("ada", 2, LIMIT)?;
    let key = donors(&machines)?[0].1.clone();
    machines.stop("m1")?;
    fs::remove_dir_all(machines.usual("m1", "store"))?;
    // With any other token the name is refused, and the refusal says what helps.
    let refused = machines
        .store("m1", &["join", &tokens[2], "--name", "m1"])?
        .expect(1)?;
    ensure!(refused.stderr.contains("invite --replace"), "{refused}");
    let made = machines
        .ckpt("admin", &["grid", "invite", "--replace", &key[..8]])?
        .expect(0)?;
    let token = String::from_utf8(made.stdout)?;
    ensure!(made.stderr.contains("join --name m1"), "{}", made.stderr);
    machines.join("m1", token.trim())?;
    machines.await_up("ada", 2, LIMIT)?;
    let after = record(&machines)?;
    let m1: Vec<&Value> = after.iter().filter(|one| one["name"] == "m1").collect();
    ensure!(m1.len() == 2, "{after:?}");
    ensure!(
        m1.iter()
            .any(|one| one["key"] == key.as_str() && one["state"] == "revoked")
    );
    ensure!(m1.iter().any(|one| one["state"] == "joined"));
    Ok(())
}

/// A second registry, which signs donors and submitters.
fn second_registry(machines: &mut Machines, addr: &str) -> Result<()> {
    let init = ["init", "--role", "registry", "--name", "r2"];
    machines.store("r2", &init)?.expect(0)?;
    let data = machines.usual("r2", "registry");
    let public = data.join("identity.pub");
    let public = public.to_str().context("path")?;
    let sign = [
        "grid", "sign", "--role", "registry", "--pubkey", public, "--addr", addr,
    ];
    machines.ckpt("admin", &sign)?.expect(0)?;
    let made = machines.path("admin", "r2.crt");
    machines.carry(&made, &data.join("identity.crt"))?;
    for file in ["grid.toml", "grid.members"] {
        let from = machines.usual("admin", "authority").join(file);
        machines.carry(&from, &data.join(file))?;
    }
    machines.start("r2", &["registry", "--listen", addr])
}

#[test]
fn with_two_registries_tokens_are_made_for_one_that_answers_and_may_redeem_them() -> Result<()> {
    let mut machines = Machines::new()?;
    machines.found(&free_address()?.to_string())?;
    second_registry(&mut machines, &free_address()?.to_string())?;
    let tokens = machines.invite(1, 0)?;
    machines.join("m1", &tokens[0])?;
    // The first registry is gone, and the second one may not sign yet.
    machines.stop("admin")?;
    let none = machines.ckpt("admin", &["grid", "invite"])?.expect(5)?;
    ensure!(none.stderr.contains("ckpt grid delegate"), "{none}");
    machines
        .ckpt("admin", &["grid", "delegate", "r2", "-o", "enrol.crt"])?
        .expect(0)?;
    let enrol = machines.usual("r2", "registry").join("enrol.crt");
    machines.carry(&machines.path("admin", "enrol.crt"), &enrol)?;
    let tokens = machines.invite(1, 0)?;
    machines.join("m2", &tokens[0])?;
    Ok(())
}

/// A grid with three donors and a job that ada saved.
fn saved() -> Result<Machines> {
    let mut machines = Machines::new()?;
    machines.found(&free_address()?.to_string())?;
    let tokens = machines.invite(3, 1)?;
    machines.join_person("ada", &tokens[3])?;
    for (number, token) in (1..=3).zip(&tokens) {
        machines.join(&format!("m{number}"), token)?;
    }
    machines.await_up("ada", 3, LIMIT)?;
    let save = ["save", "--job", "42", "--", "echo", "precious"];
    machines.ckpt("ada", &save)?.expect(0)?;
    Ok(machines)
}

fn restored(machines: &Machines, who: &str) -> Result<()> {
    let restore = ["restore", "--job", "42", "-o", "-"];
    let restored = machines.ckpt(who, &restore)?.expect(0)?;
    ensure!(restored.stdout == b"precious\n", "{restored}");
    Ok(())
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("path")
}

#[test]
fn a_fresh_machine_restores_from_one_file_while_no_registry_is_alive() -> Result<()> {
    let mut machines = saved()?;
    let passphrase = machines.path("ada", "passphrase");
    fs::write(&passphrase, "battery staple\n")?;
    let sealed = machines.path("ada", "ada.sealed");
    let export = [
        "key",
        "export",
        "--seal",
        "--passphrase-file",
        text(&passphrase)?,
        "-o",
        text(&sealed)?,
    ];
    machines.ckpt("ada", &export)?.expect(0)?;
    let plain = machines.path("ada", "ada.export");
    machines
        .ckpt("ada", &["key", "export", "-o", text(&plain)?])?
        .expect(0)?;
    ensure!(!fs::read(&sealed)?.windows(4).any(|some| some == b"grid"));

    machines.stop("admin")?;
    fs::remove_dir_all(machines.home("ada").join("config"))?;
    let import = [
        "key",
        "import",
        text(&sealed)?,
        "--passphrase-file",
        text(&passphrase)?,
    ];
    machines.ckpt("fresh", &import)?.expect(0)?;
    restored(&machines, "fresh")?;
    machines
        .ckpt("other", &["key", "import", text(&plain)?])?
        .expect(0)?;
    restored(&machines, "other")?;
    fs::write(&passphrase, "another one\n")?;
    let wrong = machines.ckpt("late", &import)?.expect(6)?;
    ensure!(wrong.stderr.contains("wrong passphrase"), "{wrong}");
    Ok(())
}

#[test]
fn a_lost_grid_file_and_a_lost_key_are_put_back_by_one_command() -> Result<()> {
    let machines = saved()?;
    let copy = machines.path("ada", "ada.export");
    machines
        .ckpt("ada", &["key", "export", "-o", text(&copy)?])?
        .expect(0)?;
    let config = machines.home("ada").join("config/ckpt");
    for (lost, code) in [("grid.toml", 2), ("owner.key", 6), ("owner.crt", 6)] {
        fs::remove_file(config.join(lost))?;
        let refused = machines.ckpt("ada", &["list"])?.expect(code)?;
        ensure!(
            refused.stderr.contains("ckpt key import"),
            "{lost}: {refused}"
        );
        let put = machines
            .ckpt("ada", &["key", "import", text(&copy)?])?
            .expect(0)?;
        ensure!(String::from_utf8(put.stdout)?.contains(lost), "{lost}");
        restored(&machines, "ada")?;
    }
    // A key of another person is not replaced.
    let tokens = machines.invite(0, 2)?;
    machines.join_person("bob", &tokens[0])?;
    let kept = machines
        .ckpt("bob", &["key", "import", text(&copy)?])?
        .expect(2)?;
    ensure!(kept.stderr.contains("another key"), "{kept}");

    // A copy of the key alone: join again, and the key stays.
    let bare = machines.path("ada", "bare");
    let piped = machines
        .ckpt("ada", &["key", "export", "-o", "-"])?
        .expect(0)?;
    fs::write(&bare, piped.stdout)?;
    let put = machines
        .ckpt("laptop", &["key", "import", text(&bare)?])?
        .expect(0)?;
    ensure!(String::from_utf8(put.stdout)?.contains("ckpt join TOKEN"));
    machines.ckpt("laptop", &["join", &tokens[1]])?.expect(0)?;
    restored(&machines, "laptop")
}

#[test]
fn after_a_laptop_was_stolen_its_key_reads_nothing_and_its_owner_goes_on_with_a_new_one()
-> Result<()> {
    let machines = saved()?;
    let copy = machines.path("ada", "ada.export");
    machines
        .ckpt("ada", &["key", "export", "-o", text(&copy)?])?
        .expect(0)?;
    // The machine "ada" is with the thief. Ada has the copy, and a new machine.
    machines
        .ckpt("new", &["key", "import", text(&copy)?])?
        .expect(0)?;
    let restore = ["restore", "--job", "42", "-o", "out"];
    machines.ckpt("new", &restore)?.expect(0)?;
    let tokens = machines.invite(0, 1)?;
    let files = [
        "--grid",
        "new.toml",
        "--key-file",
        "new.key",
        "--cert-file",
        "new.crt",
    ];
    // The token is not in the list of processes.
    let token = machines.path("new", "token");
    fs::write(&token, format!("{}\n", tokens[0]))?;
    let join = [&files[..], &["join", "@token", "--name", "ada-new"]].concat();
    machines.ckpt("new", &join)?.expect(0)?;
    let save = [&files[..], &["save", "--job", "42", "out"]].concat();
    machines.ckpt("new", &save)?.expect(0)?;
    let all = record(&machines)?;
    let stolen = all.iter().find(|one| one["name"] == "ada").context("ada")?;
    let stolen = stolen["key"].as_str().context("key")?;
    machines
        .ckpt("admin", &["grid", "revoke", &stolen[..8]])?
        .expect(0)?;
    wait_until("the thief is refused", LIMIT, || {
        Ok(machines.ckpt("ada", &["list"])?.code == Some(6))
    })?;
    let again = [&files[..], &["restore", "--job", "42", "-o", "back"]].concat();
    machines.ckpt("new", &again)?.expect(0)?;
    ensure!(fs::read(machines.path("new", "back"))? == b"precious\n");
    Ok(())
}

/// [`twenty_machines.sh`](twenty_machines.sh), which a reader can follow: a grid of twenty machines of one
/// image with two registries, a stolen laptop, a replaced disk, a lost authority and a revoked person.
#[test]
fn a_grid_of_twenty_machines_of_one_image_knows_who_is_who() -> Result<()> {
    let Some(story) = Story::begin(20, |_| Ok(()))? else {
        return Ok(());
    };
    story
        .of_one_image("vm")
        .run(include_str!("twenty_machines.sh"))
}

/// Where a submitter is shown a host, once it is up there.
fn address_of(machines: &Machines, who: &str, name: &str) -> Result<Option<String>> {
    let report = machines.ckpt(who, &["--json", "hosts"])?.json()?;
    let hosts = report["hosts"].as_array().context("hosts")?.iter();
    let mut found = hosts.filter(|host| host["name"] == name && host["up"] == true);
    let addr = found.next().and_then(|host| host["addr"].as_str());
    Ok(addr.map(str::to_owned))
}

/// The section *Move a machine* of the operations page.
#[test]
fn donors_that_move_are_found_at_their_new_addresses_with_their_shards() -> Result<()> {
    let mut machines = saved()?;
    let before = donors(&machines)?;
    for donor in ["m1", "m2"] {
        machines.stop(donor)?;
        machines.serve(donor, &["--listen", "127.0.0.1:0"])?;
    }
    // The third one goes to another machine: its whole data directory is copied.
    machines.stop("m3")?;
    let copied = run(std::process::Command::new("cp")
        .arg("-a")
        .arg(machines.home("m3"))
        .arg(machines.home("elsewhere")))?;
    copied.expect(0)?;
    fs::remove_dir_all(machines.home("m3"))?;
    machines.serve("elsewhere", &["--listen", "127.0.0.1:0"])?;
    for (name, home) in [("m1", "m1"), ("m2", "m2"), ("m3", "elsewhere")] {
        let now = machines.address(home)?;
        wait_until(&format!("{name} is found at {now}"), LIMIT, || {
            Ok(address_of(&machines, "ada", name)?.as_deref() == Some(now.trim()))
        })?;
    }
    restored(&machines, "ada")?;
    machines
        .ckpt("ada", &["verify", "--job", "42"])?
        .expect(0)?;
    ensure!(donors(&machines)? == before, "names and keys stay");
    Ok(())
}

/// The section *Leave for a week* of the operations page.
#[test]
fn a_donor_that_leaves_for_a_week_is_a_member_with_its_shards_when_it_is_back() -> Result<()> {
    let mut machines = saved()?;
    let before = donors(&machines)?;
    machines.store("m1", &["pause", "1w"])?.expect(0)?;
    wait_until("m1 takes no shards, and answers", LIMIT, || {
        let report = machines.ckpt("ada", &["--json", "hosts"])?.json()?;
        let hosts = report["hosts"].as_array().context("hosts")?.iter();
        let mut paused =
            hosts.filter(|host| host["name"] == "m1" && host["status"] == "stands_back");
        Ok(paused.next().is_some_and(|host| host["up"] == true))
    })?;
    restored(&machines, "ada")?;
    machines.stop("m1")?;
    wait_until("m1 is silent", LIMIT, || {
        let report = machines.ckpt("ada", &["--json", "hosts"])?.json()?;
        let mut hosts = report["hosts"].as_array().context("hosts")?.iter();
        Ok(hosts.any(|host| host["name"] == "m1" && host["status"] == "silent"))
    })?;
    // What it has is away, and not lost.
    machines.stop("m2")?;
    machines.stop("m3")?;
    let away = machines.ckpt("ada", &["restore", "--job", "42", "-o", "-"])?;
    ensure!(away.code == Some(5), "{away}");
    for donor in ["m1", "m2", "m3"] {
        machines.serve(donor, &["--listen", "127.0.0.1:0"])?;
    }
    machines.store("m1", &["resume"])?.expect(0)?;
    machines.await_up("ada", 3, LIMIT)?;
    restored(&machines, "ada")?;
    ensure!(donors(&machines)? == before);
    Ok(())
}
