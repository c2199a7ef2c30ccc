//! The commands `ckpt grid`.

mod authority;
mod authority_failure;
mod backup;
mod invite;
pub(super) mod local;
pub(super) mod man_page;
mod members;
mod revoke;
mod roll;

use std::path::{Path, PathBuf};

use protocol::identity::Role;
use protocol::places::UsualDir;

use super::args::grid::{AuthorityArgs, GridCommand, InitArgs, InviteArgs, RenewArgs};
use super::render::Report;
use super::{Answer, DaemonProgram, done};
use ckpt_agent::report::{ExitStatus, Failure};
use members::{Silence, status};

/// The usual directory of an authority or a registry.
pub(super) fn usual(place: UsualDir) -> Result<PathBuf, Failure> {
    let is_root = rustix::process::geteuid().is_root();
    let dir = place.usual(|name| std::env::var_os(name), is_root);
    dir.ok_or_else(|| Failure::new(ExitStatus::Usage, "no home directory").next("--dir DIR"))
}

fn dir_of(args: &AuthorityArgs) -> Result<PathBuf, Failure> {
    match &args.dir {
        Some(dir) => Ok(dir.clone()),
        None => usual(UsualDir::Authority),
    }
}

/// The option by which the next command finds a directory, if it is not the usual one.
fn option(name: &str, given: Option<&Path>) -> String {
    given.map_or_else(String::new, |dir| format!(" {name} {}", dir.display()))
}

fn ended(status: ExitStatus, report: impl Report + 'static) -> Result<Answer, Failure> {
    Ok((Box::new(report), status))
}

/// Runs a command for grids: first those of the authority, then those for a grid on this machine.
pub(super) fn run(command: GridCommand, daemon: &DaemonProgram) -> Result<Answer, Failure> {
    match command {
        GridCommand::Init(args) => init(args),
        GridCommand::Sign(args) => {
            let dir = dir_of(&args.speaking.authority)?;
            let signed = authority::sign(&dir, *args)?;
            ended(status(signed.sent.as_ref(), Silence::IsUsual), signed)
        }
        GridCommand::Delegate(args) => {
            let roles: Vec<Role> = args.role.into_iter().map(Into::into).collect();
            let dir = dir_of(&args.authority)?;
            let permitted =
                authority::delegate(&dir, &args.registry, &roles, args.ttl, args.output);
            done(permitted?)
        }
        GridCommand::Invite(args) => invite(&args),
        GridCommand::Revoke {
            speaking,
            member,
            yes,
        } => {
            let dir = dir_of(&speaking.authority)?;
            let revoked = revoke::revoke(&dir, &member, yes, speaking.audience())?;
            ended(status(revoked.sent.as_ref(), Silence::Harms), revoked)
        }
        GridCommand::Remove { speaking, host } => {
            let dir = dir_of(&speaking.authority)?;
            let removed = authority::remove(&dir, &host, speaking.audience())?;
            ended(status(removed.sent.as_ref(), Silence::Harms), removed)
        }
        GridCommand::Renew(args) => renew(args),
        GridCommand::Show { speaking } => {
            let dir = dir_of(&speaking.authority)?;
            done(roll::show(&dir, speaking.audience())?)
        }
        GridCommand::Backup {
            authority,
            passphrase,
            file,
        } => done(backup::write(&dir_of(&authority)?, &passphrase, &file)?),
        GridCommand::Restore {
            speaking,
            passphrase,
            file,
        } => {
            let dir = dir_of(&speaking.authority)?;
            done(backup::read(&dir, &passphrase, &file, speaking.audience())?)
        }

        GridCommand::Up {
            dir,
            hosts,
            capacity,
        } => done(local::up(&dir, hosts, capacity.as_deref(), daemon)?),
        GridCommand::Status { dir } => done(local::status(&dir)?),
        GridCommand::Down { dir } => down(&dir),
        GridCommand::Add {
            dir,
            name,
            data,
            listen,
        } => done(local::add(&dir, &name, &data, &listen)?),
    }
}

fn init(args: InitArgs) -> Result<Answer, Failure> {
    let registry_options = option("--data", args.registry_data.as_deref());
    let registry = match (args.registry, args.registry_data) {
        (None, _) => None,
        (Some(addr), Some(data)) => Some((addr, data)),
        (Some(addr), None) => Some((addr, usual(UsualDir::Registry)?)),
    };
    let new = authority::NewGrid {
        name: &args.name,
        ttl: args.ttl,
        registry,
        options: option("--dir", args.authority.dir.as_deref()),
        registry_options,
    };
    done(authority::init(&dir_of(&args.authority)?, new)?)
}

fn invite(args: &InviteArgs) -> Result<Answer, Failure> {
    let dir = dir_of(&args.authority)?;
    let registry = args.registry.as_deref();
    if let Some(who) = &args.replace {
        let made = invite::replacement(&dir, who, registry, args.ttl)?;
        return ended(status(made.sent.as_ref(), Silence::Harms), made);
    }
    let usual = u16::from(args.submitters == 0);
    let wanted = invite::Invitation {
        registry,
        donors: args.count.unwrap_or(usual),
        submitters: args.submitters,
        ttl: args.ttl,
    };
    done(invite::invite(&dir, wanted)?)
}

fn renew(args: RenewArgs) -> Result<Answer, Failure> {
    let dir = dir_of(&args.speaking.authority)?;
    let audience = args.speaking.audience();
    let renewed = authority::renew(&dir, args.within, args.ttl, args.output, audience)?;
    ended(status(renewed.sent.as_ref(), Silence::Harms), renewed)
}

fn down(dir: &Path) -> Result<Answer, Failure> {
    let report = local::down(dir)?;
    let status = match report.still_running.is_empty() {
        true => ExitStatus::Done,
        false => ExitStatus::Failed,
    };
    ended(status, report)
}
