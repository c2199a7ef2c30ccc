//! What `ckpt doctor` finds; each finding has a remedy.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::machines::Machines;
use tests::program::{ckpt, run, wait_until};
use tests::{Grid, Outcome};

const LIMIT: Duration = Duration::from_secs(60);

/// The checks that found something bad, each with what they found.
fn bad(outcome: &Outcome) -> Result<Vec<(String, String)>> {
    let json = outcome.json()?;
    let all = json["findings"].as_array().context("no findings")?;
    let text = |one: &Value, field: &str| one[field].as_str().unwrap_or_default().to_owned();
    let bad = all.iter().filter(|one| one["verdict"] == "bad");
    let bad: Vec<&Value> = bad.collect();
    for one in &bad {
        ensure!(
            one["remedy"]
                .as_str()
                .is_some_and(|remedy| remedy.len() > 5),
            "{one}"
        );
    }
    Ok(bad
        .into_iter()
        .map(|one| (text(one, "check"), text(one, "what")))
        .collect())
}

fn doctor(grid: &Grid, options: &[&str], code: i32) -> Result<Vec<(String, String)>> {
    let mut args = vec!["--json"];
    args.extend(options);
    args.push("doctor");
    bad(&grid.run(args)?.expect(code)?)
}

#[test]
fn the_doctor_finds_nothing_in_a_healthy_grid() -> Result<()> {
    let grid = Grid::up(3)?;
    let found = doctor(&grid, &[], 0)?;
    ensure!(found.is_empty(), "{found:?}");
    let said = grid.run(["doctor"])?.expect(0)?;
    let text = String::from_utf8(said.stdout)?;
    for part in ["grid file", "identity", "datagrams of", "within 0 s of"] {
        ensure!(text.contains(part), "{part}: {text}");
    }
    Ok(())
}

#[test]
fn a_closed_port_and_a_silent_one_are_reported_differently() -> Result<()> {
    let grid = Grid::up(3)?;
    grid.kill("h02")?;
    // At the address of h03, a socket listens and never answers.
    let hosts = grid.run(["--json", "hosts"])?.expect(0)?.json()?;
    let addr = hosts["hosts"][2]["addr"]
        .as_str()
        .context("no address")?
        .to_owned();
    grid.kill("h03")?;
    let mut silent = None;
    wait_until("its port is free", LIMIT, || {
        silent = UdpSocket::bind(&addr).ok();
        Ok(silent.is_some())
    })?;
    let found = doctor(&grid, &[], 3)?;
    let of = |name: &str| {
        let mut all = found.iter().filter(|(_, what)| what.starts_with(name));
        all.next()
            .map(|(check, what)| (check.as_str(), what.as_str()))
    };
    let (check, what) = of("h02").context("h02")?;
    ensure!(
        check == "network" && what.contains("no program listens"),
        "{what}"
    );
    let (_, what) = of("h03").context("h03")?;
    ensure!(what.contains("no answer"), "{what}");
    ensure!(of("h01").is_none(), "{found:?}");
    Ok(())
}

#[test]
fn a_wrong_identity_ends_with_a_status_of_its_own() -> Result<()> {
    let grid = Grid::up(1)?;
    let missing = doctor(&grid, &["--key-file", "nowhere.key"], 6)?;
    ensure!(
        missing.iter().any(|(check, _)| check == "identity"),
        "{missing:?}"
    );
    let key = grid.data_dir("h01").join("identity.key");
    let open = grid.path("open.key");
    fs::copy(&key, &open)?;
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644))?;
    let open = open.display().to_string();
    let found = doctor(&grid, &["--key-file", &open], 6)?;
    ensure!(
        found
            .iter()
            .any(|(check, what)| check == "identity" && what.contains("open.key")),
        "{found:?}"
    );
    // With a donor's certificate nobody can save.
    let key = key.display().to_string();
    let certificate = grid
        .data_dir("h01")
        .join("identity.crt")
        .display()
        .to_string();
    let options = ["--key-file", &*key, "--cert-file", &*certificate];
    let found = doctor(&grid, &options, 6)?;
    ensure!(
        found
            .iter()
            .any(|(_, what)| what.contains("not as submitter")),
        "{found:?}"
    );
    Ok(())
}

#[test]
fn limits_and_files_are_checked_without_a_grid() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let program = ckpt()?.display().to_string();
    let script =
        format!("ulimit -n 20; ulimit -f 1000; exec {program} --json --grid none.toml doctor");
    let mut shell = Command::new("bash");
    shell
        .args(["-c", &script])
        .current_dir(dir.path())
        .env("CKPT_STATE_DIR", "/proc/none")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let found = bad(&run(&mut shell)?.expect(3)?)?;
    let of = |check: &str| found.iter().filter(|(found, _)| found == check).count();
    ensure!(of("limits") == 2, "{found:?}");
    ensure!(
        of("grid_file") == 1 && of("state_directory") == 1,
        "{found:?}"
    );
    Ok(())
}

#[test]
fn without_a_grid_file_the_way_back_with_a_copy_of_the_key_is_named() -> Result<()> {
    let machines = Machines::new()?;
    let failed = machines
        .ckpt("new", &["--json", "list"])?
        .expect(2)?
        .json()?;
    let next = failed["error"]["next"].as_str().unwrap_or_default();
    ensure!(next.contains("ckpt key import FILE"), "{failed}");
    let found = machines.ckpt("new", &["--json", "doctor"])?.json()?;
    let findings = found["findings"].as_array().context("findings")?;
    let grid = findings.iter().find(|one| one["check"] == "grid_file");
    let remedy = grid.and_then(|one| one["remedy"].as_str());
    ensure!(
        remedy.is_some_and(|remedy| remedy.contains("ckpt key import FILE")),
        "{found}"
    );
    Ok(())
}
