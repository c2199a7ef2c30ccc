//! `ckpt grid show`: the whole record of a grid.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use codec::{CheckpointId, OwnerId};
use protocol::authority_dir::{Issued, Roll};
use protocol::grid::Grid;
use protocol::identity::{Peer, Role, ends_within_days};
use protocol::net::resolve;
use serde::Serialize;

use crate::commands::args::grid::Audience;
use crate::commands::grid::authority::{last_certificates, short};
use crate::commands::grid::authority_failure::failure;
use crate::commands::grid::members::{self, Joined};
use crate::commands::render::{Report, Table, json_of_self, time};
use crate::commands::runtime;
use ckpt_agent::report::{ExitStatus, Failure};
use ckpt_agent::unix_time::unix_seconds;

/// Answer of `ckpt grid show`.
#[derive(Debug, Serialize)]
pub(super) struct RollReport {
    /// Name of the grid.
    grid: String,
    /// When the certificate of the authority ends, Unix seconds.
    authority_expires: u64,
    /// Number of the list of the grid.
    list: u64,
    /// Number of the list of revoked keys.
    revoked_list: u64,
    /// The members.
    members: Vec<Member>,
    /// Registries that did not answer who joined: the name of each, and why.
    silent: Vec<(String, String)>,
}

/// A member of the grid.
#[derive(Debug, Serialize)]
struct Member {
    /// Its name.
    name: String,
    /// Its roles, such as `donor` and `submitter`.
    roles: Vec<&'static str>,
    /// Its public key, hexadecimal.
    key: String,
    /// When the certificate ends, Unix seconds. Unknown for members of which a registry reports only that
    /// they are there.
    expires: Option<u64>,
    /// When its key was revoked, Unix seconds, if the record of the authority names that.
    revoked: Option<u64>,
    /// Its address, if it is known.
    addr: Option<String>,
    /// `valid`, `joined` (with a token), `ends soon`, `expired` or `revoked`.
    state: &'static str,
    /// When the member joined with a token, or when its certificate was signed, Unix seconds.
    joined: Option<u64>,
    /// The first digits of the number of the token with which it joined.
    token: Option<String>,
    /// The registry that redeemed the token, if it answered.
    registry: Option<String>,
    /// When that registry heard the member last, Unix seconds.
    seen: Option<u64>,
}

impl Report for RollReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "grid {}, authority until {}, list number {}, list of revoked keys number {}",
            self.grid,
            time(self.authority_expires),
            self.list,
            self.revoked_list
        )?;
        let mut table = Table::new(&[
            "MEMBER", "ROLES", "KEY", "UNTIL", "STATE", "ADDRESS", "SINCE", "TOKEN", "SEEN",
        ]);
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        for member in &self.members {
            table.row(vec![
                member.name.clone(),
                member.roles.join(","),
                short(&member.key),
                or_none(member.expires.map(time)),
                member.state.to_owned(),
                or_none(member.addr.clone()),
                or_none(member.joined.map(time)),
                or_none(member.token.clone()),
                or_none(member.seen.map(time)),
            ]);
        }
        table.write(out)?;
        for (registry, why) in &self.silent {
            writeln!(out, "registry {registry} did not report who joined: {why}")?;
        }
        Ok(())
    }

    json_of_self!();
}

/// Lists all members, including those that joined with a token.
pub(super) fn show(dir: &Path, audience: Audience) -> Result<RollReport, Failure> {
    // First: what registries report is entered into the record.
    let joined = members::joined(dir, audience)?;
    let roll = Roll::load(dir).map_err(|e| failure(&e))?;
    let now = unix_seconds();
    let mut addresses = addresses(&roll.grid, audience)?;
    for host in &joined.hosts {
        let addr = || host.addr.to_string();
        addresses.entry(host.id.0).or_insert_with(addr);
    }
    let issued = last_certificates(&roll.issued, now);
    let issued = issued
        .into_iter()
        .map(|one| recorded(one, (&roll.grid, now), &addresses, &joined));
    let others = joined.hosts.iter();
    let others = others.filter(|host| roll.issued.iter().all(|one| one.key != host.id.0));
    let others = others.map(|host| Member {
        name: host.name.clone(),
        roles: vec![Role::Donor.name()],
        key: host.id.hex(),
        expires: None,
        revoked: None,
        addr: Some(host.addr.to_string()),
        state: match roll.grid.revoked.contains(&host.id.0) {
            true => "revoked",
            false => "joined",
        },
        joined: None,
        token: None,
        registry: None,
        seen: None,
    });
    let members = issued.chain(others).collect();
    let authority = Peer::from_certificate(&roll.grid.authority)
        .map_err(|cause| Failure::new(ExitStatus::Usage, cause.to_string()))?;
    Ok(RollReport {
        authority_expires: authority.not_after,
        list: roll.grid.number(),
        revoked_list: roll.grid.revoked.number(),
        grid: roll.grid.name,
        members,
        silent: joined.silent,
    })
}

/// A member of the record.
fn recorded(
    one: Issued,
    (grid, now): (&Grid, u64),
    addresses: &BTreeMap<OwnerId, String>,
    joined: &Joined,
) -> Member {
    let by_token = joined.by_token.iter();
    let of_registry = by_token
        .filter(|other| other.record.id == one.key)
        .max_by_key(|other| other.record.seen_at);
    Member {
        roles: one.roles.iter().map(|role| role.name()).collect(),
        key: one.key.hex(),
        expires: Some(one.expires),
        revoked: one.revoked,
        addr: addresses.get(&one.key).cloned(),
        state: if grid.revoked.contains(&one.key) {
            "revoked"
        } else if one.expires < now {
            "expired"
        } else if ends_within_days(one.expires, now).is_some() {
            "ends soon"
        } else if one.token.is_some() {
            "joined"
        } else {
            "valid"
        },
        joined: Some(one.issued),
        token: one.token.map(|token| short(&CheckpointId(token).hex())),
        registry: of_registry.map(|other| other.registry.clone()),
        seen: of_registry.map(|other| other.record.seen_at),
        name: one.name,
    }
}

/// The addresses of members in the list, by key. Names are also resolved, unless nobody may be
/// contacted.
fn addresses(grid: &Grid, audience: Audience) -> Result<BTreeMap<OwnerId, String>, Failure> {
    let hosts = grid.hosts.iter().map(|one| (one.id.0, &one.addr));
    let registries = grid.registries.iter().map(|one| (one.id.0, &one.addr));
    let all = hosts.chain(registries);
    let mut shown: BTreeMap<OwnerId, String> = BTreeMap::new();
    let mut asking = tokio::task::JoinSet::new();
    let runtime = runtime()?;
    for (key, addr) in all {
        shown.insert(key, addr.to_string());
        if addr.ip().is_none() && audience == Audience::Members {
            let addr = addr.clone();
            let ask = async move { (key, resolve(&addr).await) };
            asking.spawn_on(ask, runtime.handle());
        }
    }
    for (key, found) in runtime.block_on(asking.join_all()) {
        let found = match found {
            Ok(found) => {
                let found: Vec<String> = found.iter().map(ToString::to_string).collect();
                found.join(", ")
            }
            Err(cause) => cause.to_string(),
        };
        if let Some(shown) = shown.get_mut(&key) {
            shown.push_str(&format!(" ({found})"));
        }
    }
    Ok(shown)
}
