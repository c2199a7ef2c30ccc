//! How the authority talks to members: it sends them new lists, and asks registries who joined with a
//! token.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use codec::OwnerId;
use protocol::address::Address;
use protocol::authority_dir::{AuthorityDir, AuthorityDirError, JoinedWith, Joiner, grid_path};
use protocol::grid::{Grid, GridHost};
use protocol::identity::{HostId, Identity, Role, TokenRole};
use protocol::net::Sockets;
use protocol::net::endpoint::EndpointConfig;
use protocol::net::stream::request;
use protocol::wire::message::{Request, Response};
use serde::Serialize;
use transfer::herald::{BUSY_PATIENCE, Delivery, Herald, Listener, OnBusy};
use transfer::joiners::ask_joiners;
use transfer::registry::Registries;
use transfer::roster;

use crate::commands::args::grid::Audience;
use crate::commands::grid::authority_failure::failure;
use crate::commands::render::one_line;
use crate::commands::runtime;
use ckpt_agent::report::{ExitStatus, Failure, HostNote};
use ckpt_agent::unix_time::unix_seconds;
use protocol::errors::chain;

/// Up to this many members without the list get a line each.
const WITHOUT_SHOWN: usize = 3;

/// How long a host has to say how many shards it holds.
const STATUS_TIMEOUT: Duration = Duration::from_secs(3);

/// Which members have received a new list.
#[derive(Debug, Serialize)]
pub(super) struct Sent {
    /// Number of the list.
    number: u64,
    /// How many members of this list were asked. The others get it from them.
    asked: usize,
    /// How many of these answered.
    answered: usize,
    /// How many of these have the list.
    have: usize,
    /// Members that have it, also those that it removes or revokes.
    heard: Vec<String>,
    /// Members of this list that were asked and do not have it. Others will pass it on to them.
    silent: Vec<HostNote>,
    /// The file of the list.
    #[serde(skip)]
    file: PathBuf,
}

/// What it means that a member does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    /// The member goes on by an older list, which is not what the command promises.
    Harms,
    /// Nothing: it may not have been started yet, and the new member brings the list along.
    IsUsual,
}

impl Sent {
    /// How the command ended: whether all members have the list, some or none.
    pub(super) const fn status(&self, silence: Silence) -> ExitStatus {
        let lacking = match silence {
            Silence::Harms => self.asked - self.have,
            Silence::IsUsual => self.answered - self.have,
        };
        match (lacking, self.have) {
            (0, _) => ExitStatus::Done,
            (_, 0) => ExitStatus::Failed,
            _ => ExitStatus::Degraded,
        }
    }

    fn of(delivery: Delivery, grid: &Grid, file: PathBuf) -> Self {
        // A member that the list removes or revokes need not know it, and may not pass it on.
        let is_listed = |id: HostId| {
            grid.hosts.iter().any(|one| one.id == id)
                || grid.registries.iter().any(|one| one.id == id)
        };
        let by = delivery.by;
        let mut without = delivery.without;
        without.retain(|one| is_listed(one.member.id));
        let have = by.iter().filter(|one| is_listed(one.id)).count();
        let answered = without.iter().filter(|one| one.answered).count();
        let name = |one: Listener| one.name;
        let silent = without.into_iter().map(|one| HostNote {
            host: one.member.name,
            what: one.why,
        });
        let silent: Vec<HostNote> = silent.collect();
        Self {
            number: grid.number(),
            asked: have + silent.len(),
            answered: have + answered,
            have,
            heard: by.into_iter().map(name).collect(),
            silent,
            file,
        }
    }
}

/// Exit status of a command that may have sent a list.
pub(super) fn status(sent: Option<&Sent>, silence: Silence) -> ExitStatus {
    sent.map_or(ExitStatus::Done, |sent| sent.status(silence))
}

/// Writes which members have received a list. `again` says how the list is sent once more.
pub(super) fn sent(out: &mut dyn Write, sent: Option<&Sent>, again: &str) -> io::Result<()> {
    let Some(sent) = sent else {
        return Ok(());
    };
    let Sent {
        number,
        asked,
        answered,
        have,
        ..
    } = sent;
    if have == asked {
        return match sent.heard.len() {
            0 => writeln!(
                out,
                "list number {number}: it has no members yet to pass it on"
            ),
            all => writeln!(
                out,
                "list number {number}: all {all} members that were asked have it"
            ),
        };
    }
    if *have > 0 {
        writeln!(
            out,
            "list number {number}: {have} of {asked} members have it, and pass it on to the others"
        )?;
        return without(out, sent);
    }
    let file = sent.file.display();
    match answered {
        0 => writeln!(
            out,
            "list number {number}: NO MEMBER HAS IT: none of {asked} members answered"
        )?,
        _ => writeln!(
            out,
            "list number {number}: NO MEMBER HAS IT: {answered} of {asked} members answered, and did not take it"
        )?,
    }
    without(out, sent)?;
    writeln!(
        out,
        "the list is signed and lies in {file}; until a member has it, all of them go by the list before it"
    )?;
    writeln!(
        out,
        "next: {again}; or copy {file} to where one of them keeps its grid file, and that member passes it on"
    )
}

/// Writes which members do not have the list, and why.
fn without(out: &mut dyn Write, sent: &Sent) -> io::Result<()> {
    for HostNote { host, what } in sent.silent.iter().take(WITHOUT_SHOWN) {
        writeln!(out, "  {host}: {}", one_line(what))?;
    }
    match sent.silent.len().saturating_sub(WITHOUT_SHOWN) {
        0 => Ok(()),
        more => writeln!(out, "  and {more} more; --json names all of them"),
    }
}

/// Reports that a member is asked again.
fn on_busy() -> OnBusy {
    Arc::new(|name| {
        let limit = BUSY_PATIENCE.as_secs();
        // Fails only if standard error is closed.
        let _ = writeln!(
            io::stderr(),
            "ckpt: {name} is busy and does not take the list yet; trying again for up to {limit} s"
        );
    })
}

/// Changes the grid, and sends the new list to the members unless nobody may be contacted. First takes over
/// any newer list that members have, since the directory may come from a backup. Returns the result of the
/// change, the grid after it, and which members have received the list.
pub(super) fn change<T>(
    dir: &Path,
    audience: Audience,
    change: impl FnOnce(&mut AuthorityDir) -> Result<T, AuthorityDirError>,
) -> Result<(T, Grid, Option<Sent>), Failure> {
    let mut authority = AuthorityDir::open(dir).map_err(|e| failure(&e))?;
    if audience == Audience::Nobody {
        let done = change(&mut authority).map_err(|e| failure(&e))?;
        return Ok((done, authority.grid().clone(), None));
    }
    let runtime = runtime()?;
    let mut herald = runtime.block_on(reach(&authority))?;
    if let Some((list, contents)) = herald.newer.take() {
        let adopted = authority.adopt(list, contents);
        adopted.map_err(|e| failure(&e))?;
    }
    let done = change(&mut authority).map_err(|e| failure(&e))?;
    authority.ensure_list().map_err(|e| failure(&e))?;
    let grid = authority.grid().clone();
    // Sending may take a minute, and changes nothing in the directory.
    drop(authority);
    let delivery = match &grid.list {
        Some(list) => runtime.block_on(herald.send(list, BUSY_PATIENCE, &on_busy())),
        None => Delivery::default(),
    };
    let sent = Sent::of(delivery, &grid, grid.list_path(&grid_path(dir)));
    Ok((done, grid, Some(sent)))
}

/// Takes over a newer list if members have one. Returns whether they had, and how many answered.
pub(super) fn catch_up(dir: &Path) -> Result<(bool, usize), Failure> {
    let mut authority = AuthorityDir::open(dir).map_err(|e| failure(&e))?;
    let runtime = runtime()?;
    let mut herald = runtime.block_on(reach(&authority))?;
    let newer = herald.newer.take();
    let answered = herald.reached();
    runtime.block_on(herald.leave());
    let adopted = match newer {
        Some((list, contents)) => {
            let adopted = authority.adopt(list, contents);
            adopted.map_err(|e| failure(&e))?
        }
        None => false,
    };
    Ok((adopted, answered))
}

async fn reach(authority: &AuthorityDir) -> Result<Herald, Failure> {
    let identity = herald_identity(authority)?;
    Ok(Herald::reach(authority.grid(), &identity).await)
}

fn herald_identity(authority: &AuthorityDir) -> Result<Identity, Failure> {
    let identity = authority.herald(unix_seconds());
    identity.map_err(|e| failure(&e))
}

/// Who joined with tokens, as registries report it.
#[derive(Debug, Default)]
pub(super) struct Joined {
    /// Donors that registries know and the list does not.
    pub(super) hosts: Vec<GridHost>,
    /// Who joined, and what registries know of each.
    pub(super) by_token: Vec<transfer::joiners::Joiner>,
    /// Registries that did not answer, and why.
    pub(super) silent: Vec<(String, String)>,
}

impl Joined {
    /// All of them, each once.
    pub(super) fn joiners(&self) -> Vec<Joiner> {
        let addr = |key: OwnerId| {
            let host = self.hosts.iter().find(|host| host.id.0 == key);
            host.map(|host| host.addr.to_string())
        };
        let by_token = self.by_token.iter().map(|one| {
            let record = &one.record;
            Joiner {
                name: record.name.clone(),
                key: record.id,
                role: match record.submitter {
                    true => Role::Submitter,
                    false => Role::Donor,
                },
                addr: addr(record.id),
                joined: Some(JoinedWith {
                    token: record.token,
                    at: record.at,
                    until: record.until,
                }),
            }
        });
        let mut all: Vec<Joiner> = by_token.collect();
        let known: BTreeSet<OwnerId> = all.iter().map(|one| one.key).collect();
        let others = self.hosts.iter().filter(|host| !known.contains(&host.id.0));
        all.extend(others.map(|host| Joiner {
            name: host.name.clone(),
            key: host.id.0,
            role: Role::Donor,
            addr: Some(host.addr.to_string()),
            joined: None,
        }));
        all
    }
}

/// Asks the registries who joined, and enters that into the record. The result is empty if there is no
/// registry, or if nobody may be contacted.
pub(super) fn joined(dir: &Path, audience: Audience) -> Result<Joined, Failure> {
    let has_key = dir.join("authority.key").exists();
    if audience == Audience::Nobody || !has_key {
        return Ok(Joined::default());
    }
    let mut authority = match AuthorityDir::open(dir) {
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
    if authority.grid().registries.is_empty() {
        return Ok(Joined::default());
    }
    let identity = herald_identity(&authority)?;
    let joined = runtime()?.block_on(ask_registries(authority.grid(), &identity));
    let noted = authority.note_joined(&joined.joiners());
    noted.map_err(|e| failure(&e))?;
    Ok(joined)
}

async fn ask_registries(grid: &Grid, identity: &Identity) -> Joined {
    let registries = Registries::new(identity, grid).without_announcements();
    let asked = ask_joiners(grid, identity);
    let present = registries.ask(grid, Vec::new());
    let answers = tokio::join!(asked, present);
    let mut joined = Joined::default();
    for (registry, answer) in answers.0 {
        match answer {
            Ok(answer) => joined.by_token.extend(answer.joiners),
            Err(why) => joined.silent.push((registry, why)),
        }
    }
    // Includes revoked donors, which the user wants to see.
    let nobody = Grid::new(grid.name.clone(), grid.authority.clone());
    let roster = roster::merge(&nobody, &answers.1, &[], unix_seconds());
    let listed = |host: &GridHost| grid.hosts.iter().any(|one| one.id == host.id);
    let hosts = roster.hosts.into_iter().chain(roster.absent);
    joined.hosts = hosts.filter(|host| !listed(host)).collect();
    joined
}

/// The first registry, in the order of the grid, that answers and redeems tokens for all these roles.
pub(super) fn redeeming_registry(
    authority: &AuthorityDir,
    roles: &[TokenRole],
) -> Result<String, Failure> {
    let identity = herald_identity(authority)?;
    let answers = runtime()?.block_on(ask_joiners(authority.grid(), &identity));
    let mut lacking = Vec::new();
    for (registry, answer) in answers {
        match answer {
            Ok(answer) if roles.iter().all(|role| answer.redeems(*role)) => return Ok(registry),
            Ok(_) => lacking.push(HostNote {
                host: registry,
                what: "redeems no tokens of this kind (ckpt grid delegate)".to_owned(),
            }),
            Err(what) => lacking.push(HostNote {
                host: registry,
                what,
            }),
        }
    }
    let message = "no registry answers that redeems such tokens";
    let mut failure = Failure::new(ExitStatus::TooFewHosts, message)
        .next("--registry NAME makes tokens for that registry without asking it");
    failure.hosts = lacking;
    Err(failure)
}

/// How many shards the host at `addr` says that it holds, or why that is not known.
pub(super) fn shards_of(dir: &Path, key: OwnerId, addr: &str) -> Result<u64, String> {
    let authority = AuthorityDir::open(dir).map_err(|cause| chain(&cause))?;
    let identity = herald_identity(&authority).map_err(|cause| cause.message)?;
    let addr: Address = addr.parse().map_err(|_| format!("{addr} is no address"))?;
    let settings = EndpointConfig::new(identity, authority.grid().authority.clone());
    drop(authority);
    let sockets = Sockets::new(settings);
    let asked = async {
        let connecting = sockets.connect(&addr, HostId(key), Role::Donor);
        let connection = connecting.await.map_err(|cause| cause.to_string())?;
        let asked = request(&connection, &Request::Status, STATUS_TIMEOUT).await;
        connection.close(0_u32.into(), b"");
        match asked {
            Ok((Response::Status(status), _)) => Ok(status.shards),
            Ok(_) => Err("an unexpected answer".to_owned()),
            Err(cause) => Err(cause.to_string()),
        }
    };
    let runtime = runtime().map_err(|cause| cause.message)?;
    let limited = async { tokio::time::timeout(STATUS_TIMEOUT, asked).await };
    let answered = runtime.block_on(limited);
    answered.unwrap_or_else(|_| Err("no answer".to_owned()))
}
