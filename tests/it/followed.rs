//! A save, a restore or a request can be followed through the logs of the client and the hosts.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};
use codec::CheckpointId;
use protocol::wire::message::{Request, ShardName};
use tests::{Grid, image};

use crate::jobkeys::{Root, key_for, save};

/// The values of a field in lines of a log that contain `part`.
fn values<'a>(log: &'a str, part: &str, field: &str) -> BTreeSet<&'a str> {
    let lines = log.lines().filter(|line| line.contains(part));
    let after = lines.filter_map(|line| Some(line.split_once(field)?.1));
    let ends = |c: char| !c.is_ascii_hexdigit();
    let value = after.filter_map(|text| text.trim_start_matches('"').split(ends).next());
    value.collect()
}

#[test]
fn a_refused_request_is_a_line_with_its_connection_and_its_checkpoint() -> Result<()> {
    let grid = Grid::up(5)?;
    save(&grid, "42", 1)?;
    key_for(&grid, "42", "job.key", &[])?;
    let checkpoint = CheckpointId([7; 16]);
    let root = Root::new(&grid, "job.key")?;
    let shard = ShardName {
        checkpoint,
        shard: 0,
    };
    for asked in [Request::Census, Request::Outline(shard)] {
        let answers = root.ask(&asked);
        ensure!(answers.len() == 5, "{answers:?}");
    }
    for host in 1..=5 {
        let log = fs::read_to_string(grid.data_dir(&format!("h0{host}")).join("log"))?;
        let refused = log.lines().filter(|line| line.contains("refused"));
        let refused: Vec<&str> = refused.filter(|line| line.contains("link{id=")).collect();
        let has = |parts: [&str; 2]| {
            let mut lines = refused.iter();
            lines.any(|line| parts.iter().all(|part| line.contains(part)))
        };
        ensure!(has(["request=\"census\"", "code=Forbidden"]), "{log}");
        let about = format!("of{{checkpoint={checkpoint}}}");
        ensure!(has(["request=\"outline\"", &about]), "{log}");
    }
    Ok(())
}

#[test]
fn one_id_leads_through_the_logs_of_a_client_and_its_hosts() -> Result<()> {
    let grid = Grid::up_in(5, &[("RUST_LOG", "ckpt_store=debug")])?;
    fs::write(grid.path("image"), image::memory(1 << 20, 1))?;
    let run = |args: &[&str]| -> Result<tests::Outcome> {
        let mut command = grid.command(args)?;
        command.env("RUST_LOG", "debug");
        tests::program::run(&mut command)?.expect(0)
    };
    let host_log =
        |host: usize| fs::read_to_string(grid.data_dir(&format!("h0{host}")).join("log"));
    let id_of = |outcome: &tests::Outcome| -> Result<String> {
        let report = outcome.json()?;
        let id = report["checkpoint"]
            .as_str()
            .and_then(CheckpointId::from_hex);
        // In logs, its first eight digits.
        Ok(id.context("no id")?.to_string())
    };
    let first = run(&["--json", "save", "--job", "42", "image"])?;
    let second = run(&["--json", "save", "--job", "43", "image"])?;
    let ids = [id_of(&first)?, id_of(&second)?];
    for (saved, id) in [&first, &second].into_iter().zip(&ids) {
        let span = format!("save{{checkpoint={id}}}");
        ensure!(saved.stderr.contains(&span), "{}", saved.stderr);
        for host in 1..=5 {
            let log = host_log(host)?;
            let about = format!("of{{checkpoint={id}}}");
            for request in ["claim", "put", "commit"] {
                let answered = format!("answered request=\"{request}\"");
                let lines = log.lines().filter(|line| line.contains(&about));
                let count = lines.filter(|line| line.contains(&answered)).count();
                ensure!(count == 1, "{count} of {request} at host {host}: {log}");
            }
        }
    }
    // A request that is about no checkpoint is followed by the name of its connection.
    let listed = run(&["list"])?;
    let links = values(&listed.stderr, "asked", "link=");
    ensure!(links.len() == 5, "{links:?}: {}", listed.stderr);
    for host in 1..=5 {
        let log = host_log(host)?;
        let answered = values(&log, "answered request=\"find\"", "link{id=");
        let own = answered.intersection(&links).count();
        ensure!(own == 1, "{answered:?} {links:?}");
    }
    // An incident: a host has lost a shard. Its line is there without debug messages.
    let restored = run(&["-v", "restore", "--job", "42", "-o", "out"])?;
    let span = format!("restore{{checkpoint={}}}", ids[0]);
    ensure!(restored.stderr.contains(&span), "{}", restored.stderr);
    Ok(())
}
