//! The grid's authority: who belongs to the grid. To be run on a machine that is offline otherwise.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use codec::OwnerId;
use protocol::authority_dir::{
    AuthorityDir, AuthorityDirError, Certify, HostEntry, Roll, grid_path,
};
use protocol::identity::{PublicPart, Role, Validity, certificate_to_pem, new_key, replace_public};
use rustls_pki_types::CertificateDer;
use serde::Serialize;

use super::chain;
use super::render::{Report, Table, json_of_self, time};
use crate::report::{ExitStatus, Failure};

/// Answer of `grid init`.
#[derive(Debug, Serialize)]
pub(super) struct InitReport {
    grid: String,
    dir: PathBuf,
    grid_file: PathBuf,
    expires: u64,
}

impl Report for InitReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let dir = self.dir.display();
        writeln!(
            out,
            "grid {}, authority until {}",
            self.grid,
            time(self.expires)
        )?;
        writeln!(
            out,
            "{dir}/authority.key decides who belongs to it: keep {dir} offline, and a copy of it elsewhere"
        )?;
        writeln!(
            out,
            "next: ckpt grid sign --dir {dir} --role donor --pubkey HOST.pub --addr ADDRESS:PORT"
        )
    }

    json_of_self!();
}

/// Answer of `grid sign`.
#[derive(Debug, Serialize)]
pub(super) struct SignReport {
    name: String,
    key: String,
    roles: Vec<&'static str>,
    expires: u64,
    certificate: PathBuf,
    grid_file: PathBuf,
    listed: bool,
}

impl Report for SignReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "{} ({}), key {}, until {}",
            self.name,
            self.roles.join(", "),
            &self.key[..16.min(self.key.len())],
            time(self.expires)
        )?;
        let (certificate, grid) = (self.certificate.display(), self.grid_file.display());
        if self.roles.contains(&"donor") {
            writeln!(
                out,
                "next: put {certificate} on that machine as DATA/identity.crt, with {grid}"
            )?;
            if self.listed {
                writeln!(
                    out,
                    "{grid} lists it now: submitters need the new file, too"
                )?;
            } else {
                writeln!(out, "without --addr it is not listed in {grid}")?;
            }
            return Ok(());
        }
        if self.roles.contains(&"registry") {
            return writeln!(
                out,
                "next: put {certificate} on that machine as DATA/identity.crt, with {grid}"
            );
        }
        writeln!(
            out,
            "next: give them {certificate}, to be put beside the key, and {grid}"
        )
    }

    json_of_self!();
}

/// Answer of `grid revoke`.
#[derive(Debug, Serialize)]
pub(super) struct RevokeReport {
    key: String,
    number: u64,
    grid_file: PathBuf,
}

impl Report for RevokeReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let grid = self.grid_file.display();
        writeln!(out, "key {} revoked, list number {}", self.key, self.number)?;
        writeln!(
            out,
            "next: bring {grid} to every host; daemons read it within seconds, without a restart"
        )
    }

    json_of_self!();
}

/// Answer of `grid show`.
#[derive(Debug, Serialize)]
pub(super) struct RollReport {
    grid: String,
    authority_expires: u64,
    revoked_list: u64,
    members: Vec<Member>,
}

#[derive(Debug, Serialize)]
struct Member {
    name: String,
    roles: Vec<&'static str>,
    key: String,
    expires: u64,
    revoked: Option<u64>,
    addr: Option<String>,
    state: &'static str,
}

impl Report for RollReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "grid {}, authority until {}, list of revoked keys number {}",
            self.grid,
            time(self.authority_expires),
            self.revoked_list
        )?;
        let mut table = Table::new(&["MEMBER", "ROLES", "KEY", "UNTIL", "STATE", "ADDRESS"]);
        for member in &self.members {
            table.row(vec![
                member.name.clone(),
                member.roles.join(","),
                member.key.chars().take(16).collect(),
                time(member.expires),
                member.state.to_owned(),
                member.addr.clone().unwrap_or_else(|| "-".into()),
            ]);
        }
        table.write(out)
    }

    json_of_self!();
}

/// Makes the authority of a new grid.
pub(super) fn init(dir: &Path, name: &str, ttl: Duration) -> Result<InitReport, Failure> {
    let secret = new_key().map_err(|cause| Failure::new(ExitStatus::Failed, cause.to_string()))?;
    let made = AuthorityDir::create(dir, name, secret, validity(ttl)).map_err(|e| failure(&e))?;
    Ok(InitReport {
        grid: name.to_owned(),
        dir: dir.to_owned(),
        grid_file: grid_path(dir),
        expires: made.expires(),
    })
}

/// What `grid sign` was asked for.
#[derive(Debug)]
pub(super) struct Wish<'a> {
    pub(super) roles: Vec<Role>,
    pub(super) name: Option<String>,
    pub(super) public: &'a str,
    pub(super) ttl: Duration,
    pub(super) addr: Option<SocketAddr>,
    pub(super) site: Option<String>,
    pub(super) owner: Option<String>,
    pub(super) output: Option<PathBuf>,
}

/// Signs a certificate.
pub(super) fn sign(dir: &Path, wish: Wish<'_>) -> Result<SignReport, Failure> {
    let part = match OwnerId::from_hex(wish.public) {
        Some(key) => PublicPart {
            key,
            name: String::new(),
        },
        None => PublicPart::read(Path::new(wish.public))
            .map_err(|cause| Failure::new(ExitStatus::Usage, chain(&cause)))?,
    };
    let name = wish.name.unwrap_or(part.name);
    if name.is_empty() {
        return Err(Failure::new(ExitStatus::Usage, "a bare key has no name").next("--name NAME"));
    }
    let mut roles = wish.roles;
    roles.sort_unstable();
    roles.dedup();
    let mut authority = AuthorityDir::open(dir).map_err(|e| failure(&e))?;
    let certify = Certify {
        roles: roles.clone(),
        name: name.clone(),
        key: part.key,
        validity: validity(wish.ttl),
        host: wish.addr.map(|addr| HostEntry {
            addr,
            site: wish.site,
            owner: wish.owner,
        }),
    };
    let certificate = authority.certify(&certify).map_err(|e| failure(&e))?;
    let path = wish
        .output
        .unwrap_or_else(|| PathBuf::from(format!("{name}.crt")));
    write_public(&path, &certificate)?;
    Ok(SignReport {
        name,
        key: part.key.hex(),
        roles: roles.into_iter().map(Role::name).collect(),
        expires: certify.validity.from + certify.validity.lasting.as_secs(),
        certificate: path,
        grid_file: grid_path(dir),
        listed: certify.host.is_some(),
    })
}

/// Answer of `grid delegate`.
#[derive(Debug, Serialize)]
pub(super) struct DelegateReport {
    registry: String,
    expires: u64,
    certificate: PathBuf,
}

impl Report for DelegateReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let (registry, until) = (&self.registry, time(self.expires));
        writeln!(
            out,
            "{registry} may sign donors that have a token, until {until}"
        )?;
        let certificate = self.certificate.display();
        writeln!(
            out,
            "next: put {certificate} on that machine as DATA/enrol.crt"
        )
    }

    json_of_self!();
}

/// Lets a registry sign donors.
pub(super) fn delegate(
    dir: &Path,
    registry: &str,
    ttl: Duration,
    output: Option<PathBuf>,
) -> Result<DelegateReport, Failure> {
    let authority = AuthorityDir::open(dir).map_err(|e| failure(&e))?;
    let validity = validity(ttl);
    let certificate = authority.delegate(registry, validity);
    let certificate = certificate.map_err(|e| failure(&e))?;
    let path = output.unwrap_or_else(|| PathBuf::from(format!("{registry}.enrol.crt")));
    write_public(&path, &certificate)?;
    Ok(DelegateReport {
        registry: registry.to_owned(),
        expires: validity.from + validity.lasting.as_secs(),
        certificate: path,
    })
}

/// Answer of `grid invite`.
#[derive(Debug, Serialize)]
pub(super) struct InviteReport {
    expires: u64,
    tokens: Vec<String>,
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

/// Makes tokens.
pub(super) fn invite(
    dir: &Path,
    registry: &str,
    count: u16,
    ttl: Duration,
) -> Result<InviteReport, Failure> {
    let authority = AuthorityDir::open(dir).map_err(|e| failure(&e))?;
    let expires = now().saturating_add(ttl.as_secs());
    let tokens = (0..count).map(|_| {
        let mut nonce = [0; 16];
        aws_lc_rs::rand::fill(&mut nonce)
            .map_err(|_| Failure::new(ExitStatus::Failed, "the system has no random numbers"))?;
        let token = authority.invite(registry, expires, nonce);
        Ok(token.map_err(|e| failure(&e))?.to_text())
    });
    Ok(InviteReport {
        expires,
        tokens: tokens.collect::<Result<_, Failure>>()?,
    })
}

fn write_public(path: &Path, certificate: &CertificateDer<'_>) -> Result<(), Failure> {
    replace_public(path, certificate_to_pem(certificate).as_bytes()).map_err(|cause| {
        let message = format!("certificate {}: {cause}", path.display());
        Failure::new(ExitStatus::LocalIo, message)
    })
}

/// Takes back all certificates of a member.
pub(super) fn revoke(dir: &Path, who: &str) -> Result<RevokeReport, Failure> {
    let mut authority = AuthorityDir::open(dir).map_err(|e| failure(&e))?;
    let key = authority.revoke(who, now()).map_err(|e| failure(&e))?;
    Ok(RevokeReport {
        key: key.hex(),
        number: authority.grid().revoked.number(),
        grid_file: grid_path(dir),
    })
}

/// Lists the members.
pub(super) fn show(dir: &Path) -> Result<RollReport, Failure> {
    let roll = Roll::load(dir).map_err(|e| failure(&e))?;
    let now = now();
    let members = roll.issued.iter().map(|issued| Member {
        name: issued.name.clone(),
        roles: issued.roles.iter().map(|role| role.name()).collect(),
        key: issued.key.hex(),
        expires: issued.expires,
        revoked: issued.revoked,
        addr: roll
            .grid
            .hosts
            .iter()
            .find(|host| host.id.0 == issued.key)
            .map(|host| host.addr.to_string()),
        state: if roll.grid.revoked.contains(&issued.key) {
            "revoked"
        } else if issued.expires < now {
            "expired"
        } else {
            "valid"
        },
    });
    let members = members.collect();
    let authority = protocol::identity::Peer::from_certificate(&roll.grid.authority)
        .map_err(|cause| Failure::new(ExitStatus::Usage, cause.to_string()))?;
    Ok(RollReport {
        authority_expires: authority.not_after,
        revoked_list: roll.grid.revoked.number(),
        grid: roll.grid.name,
        members,
    })
}

/// From now on for this long.
pub(super) fn validity(lasting: Duration) -> Validity {
    Validity {
        from: now(),
        lasting,
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

pub(super) fn failure(cause: &AuthorityDirError) -> Failure {
    let status = match cause {
        AuthorityDirError::Io { .. } => ExitStatus::LocalIo,
        AuthorityDirError::Key(_) | AuthorityDirError::Mixed(_) => ExitStatus::Denied,
        AuthorityDirError::Unknown(_) => ExitStatus::NotFound,
        AuthorityDirError::Locked(_) => ExitStatus::Failed,
        _ => ExitStatus::Usage,
    };
    let failure = Failure::new(status, chain(cause));
    match cause {
        AuthorityDirError::Missing(dir) => failure.next(format!(
            "ckpt grid init --dir {} --name GRID",
            dir.display()
        )),
        AuthorityDirError::Unknown(_) => failure.next("ckpt grid show --dir DIR"),
        _ => failure,
    }
}
