//! How the authority talks to members: it sends them new lists, and asks registries who joined with a
//! token.

use std::io::{self, Write};
use std::path::Path;

use protocol::authority_dir::{AuthorityDir, AuthorityDirError, Joiner};
use protocol::grid::{Grid, GridHost};
use protocol::identity::{Identity, Revocations};
use serde::Serialize;
use transfer::herald::{Delivery, Herald};
use transfer::registry::Registries;
use transfer::roster;

use super::grid_args::Audience;
use super::{authority, chain, runtime};
use ckpt_agent::report::{Failure, HostNote};
use ckpt_agent::unix_time::unix_seconds;

/// Which members have received a new list.
#[derive(Debug, Serialize)]
pub(super) struct Sent {
    /// Number of the list.
    number: u64,
    /// Members that have it.
    heard: Vec<String>,
    /// Members that were asked and do not have it. Others will pass it on to them.
    silent: Vec<HostNote>,
}

/// Writes which members have received a list.
pub(super) fn sent(out: &mut dyn Write, sent: Option<&Sent>) -> io::Result<()> {
    let Some(Sent {
        number,
        heard,
        silent,
    }) = sent
    else {
        return Ok(());
    };
    let asked = heard.len() + silent.len();
    match (heard.len(), silent.len()) {
        (0, 0) => writeln!(
            out,
            "list number {number}: it has no members yet to pass it on"
        ),
        (0, _) => writeln!(
            out,
            "list number {number}: none of {asked} members answered; copy grid.members from this directory to where one of them keeps its grid file, and that member passes it on"
        ),
        (_, 0) => writeln!(
            out,
            "list number {number}: all {asked} members that answered have it"
        ),
        (count, _) => writeln!(
            out,
            "list number {number}: {count} of {asked} members have it, and pass it on to the others"
        ),
    }
}

/// Changes the grid, and sends the new list to the members unless nobody may be contacted. First takes over
/// any newer list that members have, since the directory may come from a backup. Returns the result of the
/// change, the grid after it, and which members have received the list.
pub(super) fn change<T>(
    dir: &Path,
    audience: Audience,
    change: impl FnOnce(&mut AuthorityDir) -> Result<T, AuthorityDirError>,
) -> Result<(T, Grid, Option<Sent>), Failure> {
    let mut authority = AuthorityDir::open(dir).map_err(|e| authority::failure(&e))?;
    if audience == Audience::Nobody {
        let done = change(&mut authority).map_err(|e| authority::failure(&e))?;
        return Ok((done, authority.grid().clone(), None));
    }
    let runtime = runtime()?;
    let mut herald = runtime.block_on(reach(&authority))?;
    if let Some((list, contents)) = herald.newer.take() {
        let adopted = authority.adopt(list, contents);
        adopted.map_err(|e| authority::failure(&e))?;
    }
    let done = change(&mut authority).map_err(|e| authority::failure(&e))?;
    authority
        .ensure_list()
        .map_err(|e| authority::failure(&e))?;
    let list = authority.grid().list.clone();
    let Delivery { by, silent } = runtime.block_on(herald.send(list.as_ref()));
    let silent = silent
        .into_iter()
        .map(|(host, what)| HostNote { host, what });
    let sent = Sent {
        number: authority.grid().number(),
        heard: by,
        silent: silent.collect(),
    };
    Ok((done, authority.grid().clone(), Some(sent)))
}

/// Takes over a newer list if members have one. Returns whether they had, and how many answered.
pub(super) fn catch_up(dir: &Path) -> Result<(bool, usize), Failure> {
    let mut authority = AuthorityDir::open(dir).map_err(|e| authority::failure(&e))?;
    let runtime = runtime()?;
    let mut herald = runtime.block_on(reach(&authority))?;
    let newer = herald.newer.take();
    let heard = runtime.block_on(herald.send(None));
    let adopted = match newer {
        Some((list, contents)) => {
            let adopted = authority.adopt(list, contents);
            adopted.map_err(|e| authority::failure(&e))?
        }
        None => false,
    };
    Ok((adopted, heard.by.len()))
}

async fn reach(authority: &AuthorityDir) -> Result<Herald, Failure> {
    let identity = herald_identity(authority)?;
    Ok(Herald::reach(authority.grid(), &identity).await)
}

fn herald_identity(authority: &AuthorityDir) -> Result<Identity, Failure> {
    let identity = authority.herald(unix_seconds());
    identity.map_err(|e| authority::failure(&e))
}

/// Donors that registries know and the list does not.
#[derive(Debug, Default)]
pub(super) struct Joined {
    pub(super) hosts: Vec<GridHost>,
    /// Registries that did not answer, and why.
    pub(super) silent: Vec<(String, String)>,
}

impl Joined {
    /// Names and keys of these donors.
    pub(super) fn joiners(&self) -> Vec<Joiner> {
        let joiner = |host: &GridHost| Joiner {
            name: host.name.clone(),
            key: host.id.0,
        };
        self.hosts.iter().map(joiner).collect()
    }
}

/// Asks the registries which donors joined. The result is empty if there is no registry, or if nobody may be
/// contacted.
pub(super) fn joined(dir: &Path, audience: Audience) -> Result<Joined, Failure> {
    let has_key = dir.join("authority.key").exists();
    if audience == Audience::Nobody || !has_key {
        return Ok(Joined::default());
    }
    let authority = match AuthorityDir::open(dir) {
        Ok(authority) => authority,
        // A user who may not read the key may still see the other files.
        Err(cause) => {
            let silent = vec![("(not asked)".to_owned(), chain(&cause))];
            return Ok(Joined {
                silent,
                ..Joined::default()
            });
        }
    };
    let grid = authority.grid();
    if grid.registries.is_empty() {
        return Ok(Joined::default());
    }
    let identity = herald_identity(&authority)?;
    let registries = Registries::new(&identity, grid).without_announcements();
    let answers = runtime()?.block_on(registries.ask(grid, Vec::new()));
    let silent = match answers.is_empty() {
        true => {
            let why = "no answer".to_owned();
            let names = grid.registries.iter().map(|one| one.name.clone());
            names.map(|name| (name, why.clone())).collect()
        }
        false => Vec::new(),
    };
    // Includes revoked donors, which the user wants to see.
    let roster = roster::merge(&[], &answers, &[], &Revocations::default());
    let listed = |host: &GridHost| grid.hosts.iter().any(|one| one.id == host.id);
    let hosts = roster.hosts.into_iter().filter(|host| !listed(host));
    Ok(Joined {
        hosts: hosts.collect(),
        silent,
    })
}
