//! Runs chaos on a grid of daemons on this machine for the time that the arguments give, and prints what
//! happened.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tests::chaos::{Chaos, run};

const USAGE: &str = "usage: chaos [--listed] [--shared] [--thief] [--broken] [--minutes N | --hours N] [--seed N] [--hosts N] [--jobs N] [--registries N]";

fn main() -> Result<()> {
    let mut chaos = Chaos {
        seed: std::process::id().into(),
        time: Duration::from_secs(180),
        hosts: 12,
        jobs: 4,
        registries: 2,
        is_listed: false,
        is_shared: false,
        has_thief: false,
        has_broken: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        if name == "--listed" {
            chaos.is_listed = true;
            continue;
        }
        if name == "--thief" {
            chaos.has_thief = true;
            continue;
        }
        if name == "--broken" {
            chaos.has_broken = true;
            continue;
        }
        if name == "--shared" {
            chaos.is_shared = true;
            continue;
        }
        let value: u64 = args.next().context(USAGE)?.parse().context(USAGE)?;
        match name.as_str() {
            "--minutes" => chaos.time = Duration::from_secs(60 * value),
            "--hours" => chaos.time = Duration::from_secs(3600 * value),
            "--seed" => chaos.seed = value,
            "--hosts" => chaos.hosts = value.try_into()?,
            "--registries" => chaos.registries = value.try_into()?,
            "--jobs" => chaos.jobs = value.try_into()?,
            _ => bail!(USAGE),
        }
    }
    eprintln!("{chaos:?}");
    println!("{}", run(&chaos)?);
    Ok(())
}
