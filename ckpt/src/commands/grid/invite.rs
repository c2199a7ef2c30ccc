//! `ckpt grid invite`: makes tokens.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use codec::OwnerId;
use protocol::authority_dir::{AuthorityDir, Joiner, Roll};
use protocol::identity::TokenRole;
use serde::Serialize;

use crate::commands::args::grid::Audience;
use crate::commands::grid::authority_failure::failure;
use crate::commands::grid::members::{self, Sent, sent};
use crate::commands::grid::revoke;
use crate::commands::render::{Report, json_of_self};
use ckpt_agent::report::{ExitStatus, Failure};
use ckpt_agent::unix_time::unix_seconds;

/// Answer of `ckpt grid invite`.
#[derive(Debug, Serialize)]
pub(super) struct InviteReport {
    /// When the tokens expire, Unix seconds.
    expires: u64,
    /// The tokens, each for one member.
    tokens: Vec<String>,
    /// The name of the member that the new one replaces.
    replaces: Option<String>,
    /// Which members have the list with the key of the member that is replaced.
    pub(super) sent: Option<Sent>,
}

impl Report for InviteReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        for token in &self.tokens {
            writeln!(out, "{token}")?;
        }
        Ok(())
    }

    json_of_self!();
}

/// How the list with a revoked key is sent once more.
const AGAIN: &str = "ckpt grid revoke KEY, once members can be reached, sends the list again";

/// The tokens to make.
#[derive(Clone, Copy, Debug)]
pub(super) struct Invitation<'a> {
    pub(super) registry: Option<&'a str>,
    pub(super) donors: u16,
    pub(super) submitters: u16,
    pub(super) ttl: Duration,
}

/// Makes tokens.
pub(super) fn invite(dir: &Path, wanted: Invitation<'_>) -> Result<InviteReport, Failure> {
    if wanted.donors == 0 && wanted.submitters == 0 {
        return Err(
            Failure::new(ExitStatus::Usage, "no tokens are requested").next("--count COUNT")
        );
    }
    let of = |role, count: u16| std::iter::repeat_n(role, usize::from(count));
    let roles =
        of(TokenRole::Donor, wanted.donors).chain(of(TokenRole::Submitter, wanted.submitters));
    let roles: Vec<TokenRole> = roles.collect();
    let expires = unix_seconds().saturating_add(wanted.ttl.as_secs());
    Ok(InviteReport {
        expires,
        tokens: tokens(dir, wanted.registry, &roles, expires)?,
        replaces: None,
        sent: None,
    })
}

/// Retires the key of a member and makes a token with which a new machine or key takes over the name.
pub(super) fn replacement(
    dir: &Path,
    who: &str,
    registry: Option<&str>,
    ttl: Duration,
) -> Result<InviteReport, Failure> {
    let joined = members::joined(dir, Audience::Members)?;
    let joiners = joined.joiners();
    let key = {
        let authority = AuthorityDir::open(dir).map_err(|e| failure(&e))?;
        authority.find(who, &joiners).map_err(|e| failure(&e))?
    };
    let roll = Roll::load(dir).map_err(|e| failure(&e))?;
    let Named { name, role } = Named::of(&roll, key, &joiners)?;
    let expires = unix_seconds().saturating_add(ttl.as_secs());
    // Nothing is revoked if no token can be made.
    let _not_used = tokens(dir, registry, &[role], expires)?;
    revoke::ask_first(dir, key, &joiners)?;
    // The token names the number of the list: the registry has to know that the old key is revoked.
    let revoked = revoke::revoke_key(dir, key, &joiners, Audience::Members)?;
    let tokens = tokens(dir, registry, &[role], expires).map_err(|failure| Failure {
        message: format!(
            "the key of {name} is revoked, and no token could be made: {}",
            failure.message
        ),
        ..failure
    })?;
    // Standard output has the token alone. An error means that nobody reads standard error.
    let err = &mut io::stderr();
    let _ = sent(err, revoked.sent.as_ref(), AGAIN);
    let program = match role {
        TokenRole::Donor => "ckpt-store",
        TokenRole::Submitter => "ckpt",
    };
    let _ = writeln!(
        err,
        "the old key of {name}, {}, is revoked; next, where {name} is now: {program} join --name {name} TOKEN",
        key.hex()
    );
    Ok(InviteReport {
        expires,
        tokens,
        replaces: Some(name),
        sent: revoked.sent,
    })
}

/// The name of a member, and the role that a token can give it again.
struct Named {
    name: String,
    role: TokenRole,
}

impl Named {
    /// Of the member with this key.
    fn of(roll: &Roll, key: OwnerId, joiners: &[Joiner]) -> Result<Self, Failure> {
        let issued = roll.issued.iter().rev().find(|one| one.key == key);
        let joiner = joiners.iter().find(|one| one.key == key);
        let found = match (issued, joiner) {
            (Some(issued), _) => Some((issued.name.clone(), issued.roles.clone())),
            (None, Some(joiner)) => Some((joiner.name.clone(), vec![joiner.role])),
            (None, None) => None,
        };
        let Some((name, roles)) = found else {
            let message = format!("no member has the key {}", key.hex());
            return Err(Failure::new(ExitStatus::NotFound, message).next("ckpt grid show"));
        };
        let all = [TokenRole::Donor, TokenRole::Submitter];
        let role = all.into_iter().find(|role| roles.contains(&role.role()));
        let role = role.ok_or_else(|| {
            let message = format!("{name} is neither a donor nor a submitter");
            Failure::new(ExitStatus::Usage, message).next("ckpt grid revoke, then ckpt grid sign")
        })?;
        Ok(Self { name, role })
    }
}

/// Makes a token for each of these roles. Of several registries the first one that answers redeems them.
fn tokens(
    dir: &Path,
    registry: Option<&str>,
    roles: &[TokenRole],
    expires: u64,
) -> Result<Vec<String>, Failure> {
    let authority = AuthorityDir::open(dir).map_err(|e| failure(&e))?;
    let registry = match (registry, authority.grid().registries.as_slice()) {
        (Some(name), _) => name.to_owned(),
        (None, [only]) => only.name.clone(),
        (None, []) => {
            let message = "the grid has no registry to accept tokens";
            return Err(Failure::new(ExitStatus::Usage, message).next(
                "ckpt grid sign --role registry --addr ADDRESS:PORT, then ckpt grid delegate; or sign each certificate: ckpt grid sign",
            ));
        }
        (None, _) => members::redeeming_registry(&authority, roles)?,
    };
    let tokens = roles.iter().map(|role| {
        let mut nonce = [0; 16];
        aws_lc_rs::rand::fill(&mut nonce).map_err(|_| {
            Failure::new(ExitStatus::Failed, "the system returned no random numbers")
        })?;
        let token = authority.invite(&registry, *role, expires, nonce);
        Ok(token.map_err(|e| failure(&e))?.to_text())
    });
    tokens.collect()
}
