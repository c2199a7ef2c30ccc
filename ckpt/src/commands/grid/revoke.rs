//! `ckpt grid revoke`: shuts out a member for good.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use codec::OwnerId;
use protocol::authority_dir::{AuthorityDir, Joiner, Roll, grid_path};
use serde::Serialize;

use crate::commands::args::grid::Audience;
use crate::commands::grid::authority::REPEATED;
use crate::commands::grid::authority_failure::failure;
use crate::commands::grid::members::{self, Sent, sent};
use crate::commands::render::{Report, json_of_self};
use ckpt_agent::report::{ExitStatus, Failure};
use ckpt_agent::unix_time::unix_seconds;

/// Most bytes of an answer on the terminal.
const ANSWER_BYTES_MAX: u64 = 64;

/// Answer of `ckpt grid revoke`.
#[derive(Debug, Serialize)]
pub(super) struct RevokeReport {
    /// The revoked key, hexadecimal.
    key: String,
    /// Whether the key was revoked before.
    was_already: bool,
    /// Number of the list of revoked keys.
    number: u64,
    /// The grid file.
    grid_file: PathBuf,
    /// Which members have the changed list; `None` if nothing was sent.
    pub(super) sent: Option<Sent>,
}

impl Report for RevokeReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { key, number, .. } = self;
        if self.was_already {
            writeln!(out, "key {key} was revoked already, list number {number}")?;
        } else {
            writeln!(out, "key {key} revoked, list number {number}")?;
        }
        sent(out, self.sent.as_ref(), REPEATED)
    }

    json_of_self!();
}

/// What is known of a member that is to be shut out, for people.
struct Target {
    name: String,
    key: OwnerId,
    addr: Option<String>,
    shards: Result<u64, String>,
}

impl Target {
    fn of(dir: &Path, key: OwnerId, joiners: &[Joiner]) -> Result<Self, Failure> {
        let roll = Roll::load(dir).map_err(|e| failure(&e))?;
        let joiner = joiners.iter().find(|one| one.key == key);
        let issued = roll.issued.iter().rev().find(|one| one.key == key);
        let listed = roll.grid.hosts.iter().find(|host| host.id.0 == key);
        let name = issued.map(|one| one.name.clone());
        let name = name.or_else(|| joiner.map(|one| one.name.clone()));
        let addr = listed.map(|host| host.addr.to_string());
        let addr = addr.or_else(|| joiner.and_then(|one| one.addr.clone()));
        let shards = match &addr {
            Some(addr) => members::shards_of(dir, key, addr),
            None => Err("no registry knows it as a host".to_owned()),
        };
        Ok(Self {
            name: name.unwrap_or_else(|| "a member without a record".to_owned()),
            key,
            addr,
            shards,
        })
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let addr = self.addr.as_deref().unwrap_or("no known address");
        let key = self.key.hex();
        write!(out, "{}: key {key}, {addr}, shards held: ", self.name)?;
        match &self.shards {
            Ok(shards) => writeln!(out, "{shards}"),
            Err(why) => writeln!(out, "unknown ({why})"),
        }
    }
}

/// Shows the member with this key on standard error and, on a terminal, asks whether to shut it out.
pub(super) fn ask_first(dir: &Path, key: OwnerId, joiners: &[Joiner]) -> Result<(), Failure> {
    let target = Target::of(dir, key, joiners)?;
    let err = &mut io::stderr();
    // An error means that nobody reads standard error.
    let _ = target.write(err);
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(());
    }
    let _ = write!(err, "Revoke this key for ever? Type yes: ");
    let mut answer = String::new();
    let mut input = io::stdin().lock().take(ANSWER_BYTES_MAX);
    match input.read_line(&mut answer) {
        Ok(_) if answer.trim() == "yes" => Ok(()),
        _ => {
            let failure = Failure::new(ExitStatus::Usage, "nothing is revoked");
            Err(failure.next("type yes; or --yes, and nothing is asked"))
        }
    }
}

/// Revokes all certificates of a member, who may have joined with a token.
pub(super) fn revoke(
    dir: &Path,
    who: &str,
    is_sure: bool,
    audience: Audience,
) -> Result<RevokeReport, Failure> {
    let joiners = members::joined(dir, audience)?.joiners();
    let key = {
        let authority = AuthorityDir::open(dir).map_err(|e| failure(&e))?;
        authority.find(who, &joiners).map_err(|e| failure(&e))?
    };
    if !is_sure && audience == Audience::Members {
        ask_first(dir, key, &joiners)?;
    }
    revoke_key(dir, key, &joiners, audience)
}

/// Revokes a key, and asks nothing.
pub(super) fn revoke_key(
    dir: &Path,
    key: OwnerId,
    joiners: &[Joiner],
    audience: Audience,
) -> Result<RevokeReport, Failure> {
    let change =
        |authority: &mut AuthorityDir| authority.revoke(&key.hex(), joiners, unix_seconds());
    let (revoked, grid, sent) = members::change(dir, audience, change)?;
    Ok(RevokeReport {
        key: revoked.key.hex(),
        was_already: revoked.was_already,
        number: grid.revoked.number(),
        grid_file: grid_path(dir),
        sent,
    })
}
