//! Donors that die, and that the registry does not name any more: what they have is away, and not lost.

use std::fs;
use std::io::{BufRead, BufReader};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::machines::Machines;
use tests::port::free_address;
use tests::program::{wait, wait_until};
use tests::{Outcome, image};

/// A registry names a silent donor for up to half a minute.
const LIMIT: Duration = Duration::from_secs(150);

const DONORS: [&str; 5] = ["m1", "m2", "m3", "m4", "m5"];

/// A grid with a registry, five donors and the submitters zoe and eve, all of whom joined with tokens. Zoe has saved
/// these jobs. Also returns the token for a sixth donor.
fn saved(jobs: &[&str]) -> Result<(Machines, String)> {
    let mut machines = Machines::new()?;
    machines.found(&free_address()?.to_string())?;
    let tokens = machines.invite(6, 2)?;
    for (machine, token) in DONORS.iter().zip(&tokens) {
        machines.join(machine, token)?;
    }
    machines.join_person("zoe", &tokens[6])?;
    machines.join_person("eve", &tokens[7])?;
    await_hosts(&machines, &DONORS)?;
    fs::write(machines.path("zoe", "img"), image::memory(3 << 20, 1))?;
    for job in jobs {
        let save = ["save", "--job", job, "--data", "3", "--parity", "2", "img"];
        machines.ckpt("zoe", &save)?.expect(0)?;
    }
    Ok((machines, tokens[5].clone()))
}

/// Waits until the hosts that zoe sees are these, and all answer.
fn await_hosts(machines: &Machines, names: &[&str]) -> Result<()> {
    let what = format!("the hosts are {names:?}");
    wait_until(&what, LIMIT, || {
        let hosts = machines.ckpt("zoe", &["--json", "hosts"])?.json()?;
        let hosts = hosts["hosts"].as_array().cloned().unwrap_or_default();
        // Silent members are listed, too.
        let there = hosts.iter().filter(|host| host["status"] != "silent");
        let mut seen: Vec<&str> = there
            .clone()
            .filter_map(|host| host["name"].as_str())
            .collect();
        seen.sort_unstable();
        Ok(seen == names && there.clone().all(|host| host["up"] == true))
    })
}

fn zoe(machines: &Machines, line: &str) -> Result<Outcome> {
    let words: Vec<&str> = line.split(' ').collect();
    machines.ckpt("zoe", &words)
}

fn stop(machines: &mut Machines, names: &[&str]) -> Result<()> {
    names.iter().try_for_each(|name| machines.stop(name))
}

fn serve_again(machines: &mut Machines, names: &[&str]) -> Result<()> {
    // Ports are others than before.
    let listen = ["--listen", "127.0.0.1:0"];
    names
        .iter()
        .try_for_each(|name| machines.serve(name, &listen))
}

/// The version that a restore found; `None`: the job begins anew, whoever is silent.
fn begins_with(machines: &Machines, job: &str) -> Result<Option<u64>> {
    let restore = format!("--json restore --job {job} --if-exists --new --force -o out");
    Ok(zoe(machines, &restore)?.expect(0)?.json()?["version"].as_u64())
}

#[test]
fn what_dead_donors_have_is_away_until_they_are_back() -> Result<()> {
    let (mut machines, token) = saved(&["42", "43"])?;
    stop(&mut machines, &DONORS[..3])?;
    await_hosts(&machines, &DONORS[3..])?;
    let verified = zoe(&machines, "verify --job 42")?.expect(5)?;
    let text = String::from_utf8(verified.stdout)?;
    ensure!(text.contains("3 away") && !text.contains("LOST"), "{text}");
    let failed = zoe(&machines, "restore --job 42 -o out")?.expect(5)?;
    ensure!(failed.stderr.contains("m1"), "{failed}");
    zoe(&machines, "restore --job 42 --if-exists -o out")?.expect(5)?;
    zoe(&machines, "cat --job 42 img")?.expect(5)?;
    zoe(&machines, "show --job 42")?.expect(5)?;
    zoe(&machines, "health")?.expect(5)?;
    let listed = zoe(&machines, "list")?.expect(0)?;
    let listed = String::from_utf8(listed.stdout)?;
    ensure!(listed.contains("NOT RESTORABLE NOW"), "{listed}");

    // All of them die, and another one joins, which has nothing.
    stop(&mut machines, &DONORS[3..])?;
    machines.join("m6", &token)?;
    await_hosts(&machines, &["m6"])?;
    let failed = zoe(&machines, "restore --job 42 --if-exists -o out")?.expect(5)?;
    ensure!(
        failed
            .stderr
            .contains("version 1, which this machine has seen"),
        "{failed}"
    );
    zoe(&machines, "restore --job 42 -o out")?.expect(5)?;
    zoe(&machines, "verify --job 42")?.expect(5)?;
    zoe(&machines, "list --job 42")?.expect(5)?;
    zoe(&machines, "run --batch --job 42 --files img -- true")?.expect(5)?;
    zoe(
        &machines,
        "run --batch --check --job 42 --files img -- true",
    )?
    .expect(5)?;
    let health = zoe(&machines, "health")?.expect(5)?;
    let health = String::from_utf8(health.stdout)?;
    ensure!(health.contains("ATTENTION job 42: version 1"), "{health}");
    let listed = zoe(&machines, "list")?.expect(0)?;
    let listed = String::from_utf8(listed.stdout)?;
    ensure!(listed.contains("5 hosts do not answer"), "{listed}");
    Ok(())
}

#[test]
fn a_job_that_is_begun_anew_has_a_line_of_its_own_when_the_old_one_is_back() -> Result<()> {
    let (mut machines, token) = saved(&["42", "43", "44"])?;
    stop(&mut machines, &DONORS)?;
    machines.join("m6", &token)?;
    await_hosts(&machines, &["m6"])?;
    // Nobody knows whether a job is new, unless the user does.
    let failed = zoe(&machines, "restore --job new --if-exists -o out")?.expect(5)?;
    ensure!(failed.stderr.contains("--new"), "{failed}");
    ensure!(begins_with(&machines, "new")?.is_none());
    zoe(&machines, "restore --job new -o out")?.expect(5)?;
    // The donors hear of a removal when they are back.
    zoe(&machines, "forget --job 43 --all")?.expect(3)?;
    ensure!(begins_with(&machines, "43")?.is_none());
    ensure!(begins_with(&machines, "44")?.is_none());
    begins_anew_beside_what_is_away(&mut machines)
}

/// Job 42 begins anew while its donors are away, and goes on from there when they are back.
fn begins_anew_beside_what_is_away(machines: &mut Machines) -> Result<()> {
    // A save that begins anew says what it leaves behind.
    let save = "--json save --job 42 --data 1 --parity 1 --allow-degraded=0 img";
    let saved = zoe(machines, save)?.expect(3)?.json()?;
    let anew = saved["version"].as_u64().context("version")?;
    ensure!(anew > 1_700_000_000, "{saved}");
    let notes = saved["notes"].to_string();
    ensure!(
        notes.contains("version 1, which this machine has seen"),
        "{notes}"
    );

    serve_again(machines, &DONORS)?;
    await_hosts(machines, &["m1", "m2", "m3", "m4", "m5", "m6"])?;
    let old = zoe(machines, "restore --job 42 --version 1 --force -o out")?;
    old.expect(0)?;
    let same = fs::read(machines.path("zoe", "out"))? == fs::read(machines.path("zoe", "img"))?;
    ensure!(same);
    ensure!(begins_with(machines, "43")? == Some(1));
    // The job goes on from the version that was begun anew, and removes nothing of the line before it.
    ensure!(begins_with(machines, "42")? == Some(anew));
    for _ in 0..3 {
        let save = "--json save --job 42 --keep 1 --data 3 --parity 2 img";
        let saved = zoe(machines, save)?.expect(0)?.json()?;
        let removed = saved["removed"].as_array().context("removed")?;
        ensure!(removed.iter().all(|version| version != 1), "{saved}");
        ensure!(saved["notes"].to_string().contains("begun anew"), "{saved}");
    }
    let old = zoe(machines, "restore --job 42 --version 1 --force -o out")?;
    old.expect(0)?;
    // Job 44 began anew, too, and what it was begun without is back before its first save.
    for _ in 0..3 {
        let save = "--json save --job 44 --keep 1 --data 3 --parity 2 img";
        let saved = zoe(machines, save)?.expect(0)?.json()?;
        ensure!(saved["version"].as_u64() > Some(1_700_000_000), "{saved}");
    }
    let old = zoe(machines, "restore --job 44 --version 1 --force -o out")?;
    old.expect(0)?;
    zoe(machines, "gc")?.expect(0)?;
    zoe(machines, "forget --job 42 --version 1")?.expect(0)?;
    zoe(machines, "restore --job 42 --version 1 --force -o out")?.expect(4)?;
    Ok(())
}

#[test]
fn a_save_that_waits_for_busy_hosts_ends_when_its_user_is_revoked() -> Result<()> {
    let (machines, _) = saved(&["42"])?;
    for donor in DONORS {
        machines.store(donor, &["pause", "40s"])?.expect(0)?;
    }
    wait_until("the hosts take no shards", LIMIT, || {
        let hosts = machines.ckpt("zoe", &["--json", "hosts"])?.json()?;
        let hosts = hosts["hosts"].as_array().cloned().unwrap_or_default();
        Ok(hosts
            .iter()
            .all(|host| host["refuses_for_s"].as_u64() > Some(0)))
    })?;
    let save = ["--progress", "json", "save", "--job", "42", "img"];
    let mut waiting = machines.command("zoe", &save)?.spawn()?;
    let said = BufReader::new(waiting.stderr.take().context("no standard error")?);
    let mut lines = said.lines().map_while(Result::ok);
    let mut seen = Vec::new();
    while !seen
        .last()
        .is_some_and(|line: &String| line.contains("waiting"))
    {
        let line = lines.next();
        seen.push(line.with_context(|| format!("the save does not wait: {seen:?}"))?);
    }
    let log = machines.log("admin")?;
    let key = log.lines().find(|line| line.contains("name=\"zoe\""));
    let key = key.and_then(|line| line.split("key=\"").nth(1)?.split('"').next());
    let key = key.context("zoe's key")?;
    machines
        .ckpt("admin", &["grid", "revoke", key])?
        .expect(0)?;
    let rest: Vec<String> = lines.collect();
    wait(waiting)?.expect(6)?;
    // It did not wait until the hosts take shards again.
    let hosts = machines.ckpt("eve", &["--json", "hosts"])?.json()?;
    let hosts = hosts["hosts"].as_array().cloned().context("hosts")?;
    let wait = |host: &serde_json::Value| host["refuses_for_s"].as_u64();
    ensure!(hosts.iter().all(|host| wait(host) > Some(0)), "{hosts:?}");
    ensure!(rest.iter().any(|line| line.contains("revoked")), "{rest:?}");
    Ok(())
}

#[test]
fn donors_that_were_revoked_do_not_come_back() -> Result<()> {
    let (mut machines, _) = saved(&["42"])?;
    // A registry that has just begun may name nobody yet. Zoe's machine knows whom to ask.
    machines.stop("admin")?;
    machines.start("admin", &["registry"])?;
    zoe(&machines, "restore --job 42 -o early")?.expect(0)?;
    await_hosts(&machines, &DONORS)?;
    let hosts = machines.json("zoe", &["hosts"])?;
    let hosts = hosts["hosts"].as_array().cloned().context("hosts")?;
    stop(&mut machines, &DONORS[..3])?;
    await_hosts(&machines, &DONORS[3..])?;
    zoe(&machines, "verify --job 42")?.expect(5)?;
    for host in hosts {
        let name = host["name"].as_str();
        let key = host["id"].as_str();
        if name.is_some_and(|name| DONORS[..3].contains(&name)) {
            let key = key.context("id")?;
            machines
                .ckpt("admin", &["grid", "revoke", key])?
                .expect(0)?;
        }
    }
    wait_until("zoe has heard of the revocations", LIMIT, || {
        Ok(zoe(&machines, "verify --job 42")?.code == Some(7))
    })?;
    zoe(&machines, "restore --job 42 -o out")?.expect(7)?;
    zoe(&machines, "restore --job 42 --if-exists -o out")?.expect(7)?;
    Ok(())
}
