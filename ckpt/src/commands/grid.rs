//! The commands `ckpt grid`.

use std::path::{Path, PathBuf};

use protocol::identity::Role;
use protocol::places::UsualDir;

use super::grid_args::{AuthorityArgs, GridCommand};
use super::members::{Silence, status};
use super::render::Report;
use super::{DaemonProgram, Outcome, authority, backup, done, local_grid};
use ckpt_agent::report::{ExitStatus, Failure};

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
fn option(name: &str, said: Option<&Path>) -> String {
    said.map_or_else(String::new, |dir| format!(" {name} {}", dir.display()))
}

fn ended(status: ExitStatus, report: impl Report + 'static) -> Result<Outcome, Failure> {
    Ok((Box::new(report), status))
}

/// Runs a command for grids.
pub(super) fn run(command: GridCommand, daemon: &DaemonProgram) -> Result<Outcome, Failure> {
    match command {
        GridCommand::Init { .. } => init(command),
        GridCommand::Sign(asked) => {
            let dir = dir_of(&asked.speaking.authority)?;
            let signed = authority::sign(&dir, *asked)?;
            ended(status(signed.sent.as_ref(), Silence::IsUsual), signed)
        }
        GridCommand::Delegate {
            authority,
            registry,
            role,
            ttl,
            output,
        } => {
            let roles: Vec<Role> = role.into_iter().map(Into::into).collect();
            let dir = dir_of(&authority)?;
            done(authority::delegate(&dir, &registry, &roles, ttl, output)?)
        }
        GridCommand::Invite {
            authority,
            registry,
            count,
            submitters,
            ttl,
        } => {
            let usual = u16::from(submitters == 0);
            let wanted = authority::Invitation {
                registry: registry.as_deref(),
                donors: count.unwrap_or(usual),
                submitters,
                ttl,
            };
            done(authority::invite(&dir_of(&authority)?, wanted)?)
        }
        GridCommand::Revoke { speaking, member } => {
            let dir = dir_of(&speaking.authority)?;
            let revoked = authority::revoke(&dir, &member, speaking.audience())?;
            ended(status(revoked.sent.as_ref(), Silence::Harms), revoked)
        }
        GridCommand::Remove { speaking, host } => {
            let dir = dir_of(&speaking.authority)?;
            let removed = authority::remove(&dir, &host, speaking.audience())?;
            ended(status(removed.sent.as_ref(), Silence::Harms), removed)
        }
        GridCommand::Renew { .. } => renew(command),
        GridCommand::Show { speaking } => {
            let dir = dir_of(&speaking.authority)?;
            done(authority::show(&dir, speaking.audience())?)
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
        command => run_local(command, daemon),
    }
}

fn renew(command: GridCommand) -> Result<Outcome, Failure> {
    let GridCommand::Renew {
        speaking,
        within,
        ttl,
        output,
    } = command
    else {
        return Err(Failure::new(ExitStatus::Usage, "nothing to renew"));
    };
    let dir = dir_of(&speaking.authority)?;
    let renewed = authority::renew(&dir, within, ttl, output, speaking.audience())?;
    ended(status(renewed.sent.as_ref(), Silence::Harms), renewed)
}

fn init(command: GridCommand) -> Result<Outcome, Failure> {
    let GridCommand::Init {
        authority,
        name,
        ttl,
        registry,
        registry_data,
    } = command
    else {
        return Err(Failure::new(ExitStatus::Usage, "not a new grid"));
    };
    let registry_options = option("--data", registry_data.as_deref());
    let registry = match (registry, registry_data) {
        (None, _) => None,
        (Some(addr), Some(data)) => Some((addr, data)),
        (Some(addr), None) => Some((addr, usual(UsualDir::Registry)?)),
    };
    let new = authority::NewGrid {
        name: &name,
        ttl,
        registry,
        options: option("--dir", authority.dir.as_deref()),
        registry_options,
    };
    done(authority::init(&dir_of(&authority)?, new)?)
}

/// Runs a command for a grid on this machine.
fn run_local(command: GridCommand, daemon: &DaemonProgram) -> Result<Outcome, Failure> {
    match command {
        GridCommand::Up {
            dir,
            hosts,
            capacity,
        } => done(local_grid::up(&dir, hosts, capacity.as_deref(), daemon)?),
        GridCommand::Status { dir } => done(local_grid::status(&dir)?),
        GridCommand::Down { dir } => {
            let report = local_grid::down(&dir)?;
            let status = if report.still_running.is_empty() {
                ExitStatus::Done
            } else {
                ExitStatus::Failed
            };
            ended(status, report)
        }
        GridCommand::Add {
            dir,
            name,
            data,
            listen,
        } => done(local_grid::add(&dir, &name, &data, &listen)?),
        _ => Err(Failure::new(
            ExitStatus::Usage,
            "not a command for a local grid",
        )),
    }
}
