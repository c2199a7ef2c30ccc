//! What `ckpt health --admin` reports of registries, and of hosts that only a registry heard of.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::machines::Machines;
use tests::port::free_address;
use tests::program::wait_until;

const LIMIT: Duration = Duration::from_secs(60);

fn health(machines: &Machines) -> Result<Value> {
    machines
        .ckpt("root", &["--json", "health", "--admin"])?
        .json()
}

fn hosts(machines: &Machines) -> Result<Value> {
    Ok(health(machines)?["hosts"].take())
}

/// Whether silent registries need attention.
fn speaks_of_registries(health: &Value) -> bool {
    let attention = health["attention"].as_array().into_iter().flatten();
    let mut kinds = attention.map(|one| &one["kind"]);
    kinds.any(|kind| kind == "registry_silent")
}

#[test]
fn an_admin_sees_silent_registries_and_what_they_heard_of_silent_hosts() -> Result<()> {
    let mut machines = Machines::new()?;
    machines.found(&free_address()?.to_string())?;
    let tokens = machines.invite(2, 0)?;
    machines.join("h1", &tokens[0])?;
    machines.join("h2", &tokens[1])?;

    machines
        .ckpt("root", &["init", "--name", "root"])?
        .expect(0)?;
    let config = machines.path("root", "config/ckpt");
    let public = config.join("owner.key.pub").display().to_string();
    let sign = ["grid", "sign", "--role", "admin", "--pubkey", &public];
    machines.ckpt("admin", &sign)?.expect(0)?;
    machines.carry(
        &machines.path("admin", "root.crt"),
        &config.join("owner.crt"),
    )?;
    let grid_file = machines.usual("admin", "authority").join("grid.toml");
    machines.carry(&grid_file, &config.join("grid.toml"))?;
    wait_until("both are announced", LIMIT, || {
        Ok(hosts(&machines)?["up"]["value"] == 2)
    })?;

    machines.stop("h2")?;
    let seen = hosts(&machines)?;
    let each = seen["each"].as_array().context("no hosts")?;
    let h2 = each.iter().find(|host| host["name"] == "h2");
    let h2 = h2.context("h2 is not known")?;
    let why = h2["why"].as_str().unwrap_or_default();
    ensure!(
        h2["state"] == "down" && why.contains("it announced itself to a registry"),
        "{seen}"
    );
    ensure!(h2["capacity_bytes"].as_u64() > Some(0), "{seen}");

    let well = health(&machines)?;
    let heard = &well["registries"][0]["hosts_heard"]["value"];
    ensure!(
        heard.as_u64() >= Some(1) && !speaks_of_registries(&well),
        "{well}"
    );
    machines.stop("admin")?;
    let silent = health(&machines)?;
    let registry = &silent["registries"][0];
    ensure!(
        registry["hosts_heard"].is_null() && registry["why"].is_string(),
        "{silent}"
    );
    ensure!(speaks_of_registries(&silent), "{silent}");
    Ok(())
}
