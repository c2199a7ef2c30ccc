//! How the authority talks to members: it sends them new lists, and asks registries who joined with a
//! token.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use protocol::authority_dir::{AuthorityDir, AuthorityDirError, Joiner, grid_path};
use protocol::grid::{Grid, GridHost};
use protocol::identity::{HostId, Identity};
use serde::Serialize;
use transfer::herald::{BUSY_PATIENCE, Delivery, Herald, Listener, OnBusy};
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
    let nobody = Grid::new(grid.name.clone(), grid.authority.clone());
    let roster = roster::merge(&nobody, &answers, &[], unix_seconds());
    let listed = |host: &GridHost| grid.hosts.iter().any(|one| one.id == host.id);
    let hosts = roster.hosts.into_iter().chain(roster.absent);
    let hosts = hosts.filter(|host| !listed(host));
    Ok(Joined {
        hosts: hosts.collect(),
        silent,
    })
}
