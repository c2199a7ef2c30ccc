//! The commands of the grid's authority, which decides who belongs to the grid.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use codec::OwnerId;
use protocol::address::Address;
use protocol::authority_dir::{AuthorityDir, Certify, HostEntry, Issued, grid_path};
use protocol::grid::Grid;
use protocol::identity::{
    Peer, PublicPart, Role, Validity, certificate_to_pem, new_key, replace_public, write_key,
};
use rustls_pki_types::CertificateDer;
use serde::Serialize;

use crate::commands::args::grid::{Audience, SignArgs};
use crate::commands::grid::authority_failure::failure;
use crate::commands::grid::members::{self, Sent, sent};
use crate::commands::render::{Report, Table, json_of_self, time};
use ckpt_agent::report::{ExitStatus, Failure};
use ckpt_agent::unix_time::unix_seconds;
use protocol::errors::chain;

/// Answer of `ckpt grid init`.
#[derive(Debug, Serialize)]
pub(super) struct InitReport {
    /// Name of the grid.
    grid: String,
    /// Directory of the authority.
    dir: PathBuf,
    /// The grid file.
    grid_file: PathBuf,
    /// When the certificate of the authority ends, Unix seconds.
    expires: u64,
    /// Data directory of the registry, if one was made.
    registry: Option<PathBuf>,
    #[serde(skip)]
    options: String,
    #[serde(skip)]
    registry_options: String,
}

impl Report for InitReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let dir = self.dir.display();
        let options = &self.options;
        writeln!(
            out,
            "grid {}, authority until {}",
            self.grid,
            time(self.expires)
        )?;
        writeln!(
            out,
            "{dir}/authority.key certifies all members; keep a copy elsewhere: ckpt grid backup{options} FILE"
        )?;
        if self.registry.is_some() {
            let registry = &self.registry_options;
            writeln!(out, "next: ckpt-store registry{registry}")?;
            return writeln!(
                out,
                "      ckpt grid invite{options} --count DONORS --submitters PEOPLE"
            );
        }
        writeln!(
            out,
            "next: ckpt grid sign{options} --role donor --pubkey HOST.pub --addr ADDRESS:PORT"
        )
    }

    json_of_self!();
}

/// Answer of `ckpt grid sign`.
#[derive(Debug, Serialize)]
pub(super) struct SignReport {
    /// Name of the member.
    name: String,
    /// Its public key, hexadecimal.
    key: String,
    /// Its roles, such as `donor` and `submitter`.
    roles: Vec<&'static str>,
    /// When the certificate ends, Unix seconds.
    expires: u64,
    /// The certificate's file.
    certificate: PathBuf,
    /// The grid file.
    grid_file: PathBuf,
    /// Whether the list of the grid names its address.
    listed: bool,
    /// Which members have the changed list; `None` if nothing was sent.
    pub(super) sent: Option<Sent>,
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
        let certificate = self.certificate.display();
        let grid = self.grid_file.display();
        if self.roles.contains(&"donor") {
            writeln!(
                out,
                "next: put {certificate} on that machine as DATA/identity.crt, with {grid}"
            )?;
            if !self.listed {
                writeln!(out, "without --addr it is not in the list of the grid")?;
            }
            return sent(out, self.sent.as_ref(), BROUGHT_ALONG);
        }
        if self.roles.contains(&"registry") {
            writeln!(
                out,
                "next: put {certificate} on that machine as DATA/identity.crt, with {grid}"
            )?;
            return sent(out, self.sent.as_ref(), BROUGHT_ALONG);
        }
        writeln!(
            out,
            "next: give them {certificate}, to be put beside the key, and {grid}"
        )
    }

    json_of_self!();
}

/// How a list is sent once more.
const BROUGHT_ALONG: &str = "the new member brings the list along with that grid file";
pub(super) const REPEATED: &str =
    "the same command again, once members can be reached, sends the list again";
const WITH_LATER: &str = "the next command that changes the list sends this change, too";

/// Answer of `ckpt grid remove`.
#[derive(Debug, Serialize)]
pub(super) struct RemoveReport {
    /// The key that was removed, hexadecimal.
    key: String,
    /// Number of the list of the grid.
    number: u64,
    /// Which members have the changed list; `None` if nothing was sent.
    pub(super) sent: Option<Sent>,
}

impl Report for RemoveReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { key, number, .. } = self;
        writeln!(
            out,
            "{} is removed from the list of the grid, number {number}; its certificate stays valid until it expires (ckpt grid revoke ends it now)",
            short(key)
        )?;
        sent(out, self.sent.as_ref(), WITH_LATER)
    }

    json_of_self!();
}

/// Answer of `ckpt grid renew`.
#[derive(Debug, Serialize)]
pub(super) struct RenewReport {
    /// The certificates that were renewed.
    renewed: Vec<Renewed>,
    /// Which members have the changed list; `None` if nothing was sent.
    pub(super) sent: Option<Sent>,
}

/// A certificate that was renewed.
#[derive(Debug, Serialize)]
struct Renewed {
    /// Name of the member.
    name: String,
    /// Its roles, such as `donor` and `submitter`.
    roles: Vec<&'static str>,
    /// Its public key, hexadecimal.
    key: String,
    /// When the certificate before it ends, Unix seconds.
    ended: u64,
    /// When the new one ends, Unix seconds.
    expires: u64,
    /// The new one's file.
    certificate: PathBuf,
}

impl Report for RenewReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.renewed.is_empty() {
            writeln!(out, "no certificate expires within that time")?;
            return sent(out, self.sent.as_ref(), REPEATED);
        }
        let mut table = Table::new(&["MEMBER", "ROLES", "KEY", "ENDS", "RENEWED UNTIL", "FILE"]);
        for one in &self.renewed {
            table.row(vec![
                one.name.clone(),
                one.roles.join(","),
                short(&one.key),
                time(one.ended),
                time(one.expires),
                one.certificate.display().to_string(),
            ]);
        }
        table.write(out)?;
        sent(out, self.sent.as_ref(), REPEATED)?;
        writeln!(
            out,
            "members fetch their new certificates with the list. Copy the file by hand to a member whose certificate has expired already or whose program is older: to DATA/identity.crt of a host or registry, which then has to be restarted, or to owner.crt of a submitter"
        )
    }

    json_of_self!();
}

/// The first digits of a key, which tables show and `revoke` accepts.
pub(super) fn short(key: &str) -> String {
    key.chars().take(KEY_DIGITS).collect()
}

/// How many digits of a key tables show.
const KEY_DIGITS: usize = 8;

/// What a new grid is made of.
#[derive(Debug)]
pub(super) struct NewGrid<'a> {
    pub(super) name: &'a str,
    pub(super) ttl: Duration,
    /// Where the registry on this machine listens, and its data directory.
    pub(super) registry: Option<(Address, PathBuf)>,
    /// Options that the next commands need.
    pub(super) options: String,
    pub(super) registry_options: String,
}

/// Makes the authority of a new grid and, if one is wanted, a registry that signs members that have a
/// token.
pub(super) fn init(dir: &Path, new: NewGrid<'_>) -> Result<InitReport, Failure> {
    let secret = new_key().map_err(|cause| Failure::new(ExitStatus::Failed, cause.to_string()))?;
    if let Some((_, data)) = &new.registry
        && data.join("identity.key").exists()
    {
        let message = format!(
            "{} has a key already: it is another registry's",
            data.display()
        );
        return Err(Failure::new(ExitStatus::Usage, message).next("--registry-data DIR"));
    }
    let made = AuthorityDir::create(dir, new.name, secret, validity(new.ttl));
    let mut made = made.map_err(|e| failure(&e))?;
    let registry = match new.registry {
        None => None,
        Some((addr, data)) => {
            make_registry(&mut made, addr, &data)?;
            Some(data)
        }
    };
    Ok(InitReport {
        grid: new.name.to_owned(),
        dir: dir.to_owned(),
        grid_file: grid_path(dir),
        expires: made.expires(),
        registry,
        options: new.options,
        registry_options: new.registry_options,
    })
}

/// Name of the registry that `grid init` makes.
const REGISTRY_NAME: &str = "registry";

/// The registry's certificates end a day before the authority's, which was signed a moment earlier.
const DAY: Duration = Duration::from_secs(86_400);

/// Makes key, certificates, grid file and list of a registry in its data directory.
fn make_registry(authority: &mut AuthorityDir, addr: Address, data: &Path) -> Result<(), Failure> {
    let io_failed = |path: &Path, cause: &(dyn std::error::Error + 'static)| {
        Failure::local(path.display(), cause)
    };
    std::fs::create_dir_all(data).map_err(|cause| io_failed(data, &cause))?;
    let key = data.join("identity.key");
    let secret = new_key().map_err(|cause| io_failed(&key, &cause))?;
    write_key(&key, &secret).map_err(|cause| io_failed(&key, &cause))?;
    let left = Duration::from_secs(authority.expires().saturating_sub(unix_seconds()));
    let validity = validity(left.saturating_sub(DAY));
    let wish = Certify {
        roles: vec![Role::Registry],
        name: REGISTRY_NAME.to_owned(),
        key: secret.id(),
        validity,
        host: Some(HostEntry {
            addr,
            site: None,
            owner: None,
        }),
    };
    let certificate = authority.certify(&wish).map_err(|e| failure(&e))?;
    write_public(&data.join("identity.crt"), &certificate)?;
    // The authority's key is on the same machine: a thief of the registry's key has that one as well, so
    // signing members gives him nothing more.
    let roles = [Role::Donor, Role::Submitter];
    let enrol = authority.delegate(REGISTRY_NAME, &roles, validity);
    write_public(&data.join("enrol.crt"), &enrol.map_err(|e| failure(&e))?)?;
    let grid = Grid {
        owner: None,
        list_file: None,
        ..authority.grid().clone()
    };
    let file = data.join("grid.toml");
    if let Some(list) = &grid.list {
        let path = grid.list_path(&file);
        replace_public(&path, list.bytes()).map_err(|cause| io_failed(&path, &cause))?;
    }
    grid.save(&file).map_err(|cause| io_failed(&file, &cause))
}

/// Signs a certificate.
pub(super) fn sign(dir: &Path, asked: SignArgs) -> Result<SignReport, Failure> {
    let part = match OwnerId::from_hex(&asked.pubkey) {
        Some(key) => PublicPart {
            key,
            name: String::new(),
        },
        None => PublicPart::read(Path::new(&asked.pubkey)).map_err(|cause| {
            Failure::new(ExitStatus::Usage, chain(&cause))
                .next("--pubkey FILE.pub, which ckpt init or ckpt-store init wrote")
        })?,
    };
    let name = asked.name.unwrap_or(part.name);
    if name.is_empty() {
        return Err(Failure::new(ExitStatus::Usage, "a bare key has no name").next("--name NAME"));
    }
    let mut roles: Vec<Role> = asked.role.into_iter().map(Into::into).collect();
    roles.sort_unstable();
    roles.dedup();
    let certify = Certify {
        roles: roles.clone(),
        name: name.clone(),
        key: part.key,
        validity: validity(asked.ttl),
        host: asked.addr.map(|addr| HostEntry {
            addr,
            site: asked.site,
            owner: asked.owner,
        }),
    };
    // Without an address the list does not change, so no member has to be asked.
    let audience = match &certify.host {
        None => Audience::Nobody,
        Some(_) => asked.speaking.audience(),
    };
    let change = |authority: &mut AuthorityDir| authority.certify(&certify);
    let (certificate, _, sent) = members::change(dir, audience, change)?;
    let path = asked
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
        sent,
    })
}

/// Answer of `ckpt grid delegate`.
#[derive(Debug, Serialize)]
pub(super) struct DelegateReport {
    /// Name of the registry.
    registry: String,
    /// The roles that it may certify.
    roles: Vec<&'static str>,
    /// When its certificate for that ends, Unix seconds.
    expires: u64,
    /// That certificate's file.
    certificate: PathBuf,
}

impl Report for DelegateReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let registry = &self.registry;
        let until = time(self.expires);
        writeln!(
            out,
            "{registry} may certify members that present a token ({}), until {until}",
            self.roles.join(", ")
        )?;
        let certificate = self.certificate.display();
        writeln!(
            out,
            "next: put {certificate} on that machine as DATA/enrol.crt; a running registry notices it"
        )
    }

    json_of_self!();
}

/// Makes a certificate that lets a registry sign members.
pub(super) fn delegate(
    dir: &Path,
    registry: &str,
    roles: &[Role],
    ttl: Duration,
    output: Option<PathBuf>,
) -> Result<DelegateReport, Failure> {
    let authority = AuthorityDir::open(dir).map_err(|e| failure(&e))?;
    let validity = validity(ttl);
    let certificate = authority.delegate(registry, roles, validity);
    let certificate = certificate.map_err(|e| failure(&e))?;
    let path = output.unwrap_or_else(|| PathBuf::from(format!("{registry}.enrol.crt")));
    write_public(&path, &certificate)?;
    Ok(DelegateReport {
        registry: registry.to_owned(),
        roles: roles.iter().map(|role| role.name()).collect(),
        expires: validity.from + validity.lasting.as_secs(),
        certificate: path,
    })
}

fn write_public(path: &Path, certificate: &CertificateDer<'_>) -> Result<(), Failure> {
    replace_public(path, certificate_to_pem(certificate).as_bytes())
        .map_err(|cause| Failure::local(format!("certificate {}", path.display()), &cause))
}

/// Takes a host out of the list of the grid.
pub(super) fn remove(dir: &Path, who: &str, audience: Audience) -> Result<RemoveReport, Failure> {
    let change = |authority: &mut AuthorityDir| authority.remove(who);
    let (key, grid, sent) = members::change(dir, audience, change)?;
    Ok(RemoveReport {
        key: key.hex(),
        number: grid.number(),
        sent,
    })
}

/// Renews all certificates that end within some time, and sends them to their members with the list.
pub(super) fn renew(
    dir: &Path,
    within: Duration,
    ttl: Duration,
    output: Option<PathBuf>,
    audience: Audience,
) -> Result<RenewReport, Failure> {
    let output = output.unwrap_or_else(|| dir.join("renewed"));
    std::fs::create_dir_all(&output).map_err(|cause| Failure::local(output.display(), &cause))?;
    let began = unix_seconds();
    let until = began.saturating_add(within.as_secs());
    let mut before = Vec::new();
    let change = |authority: &mut AuthorityDir| {
        before = last_certificates(authority.issued(), began);
        let revoked = &authority.grid().revoked;
        let ends = began.saturating_add(ttl.as_secs());
        // Members would not take a certificate that ends no later than the one that they have.
        before.retain(|one| {
            // What a registry signed is renewed by a registry: with another token.
            let is_own = one.token.is_none();
            is_own && one.expires <= until && one.expires < ends && !revoked.contains(&one.key)
        });
        let wishes: Vec<Certify> = before
            .iter()
            .map(|one| Certify {
                roles: one.roles.clone(),
                name: one.name.clone(),
                key: one.key,
                validity: validity(ttl),
                host: None,
            })
            .collect();
        authority.renew(&wishes, began)
    };
    let (certificates, _, sent) = members::change(dir, audience, change)?;
    let mut renewed = Vec::new();
    for (before, certificate) in before.into_iter().zip(&certificates) {
        let path = output.join(format!("{}.crt", before.name));
        write_public(&path, certificate)?;
        let peer = Peer::from_certificate(certificate);
        renewed.push(Renewed {
            name: before.name,
            roles: before.roles.iter().map(|role| role.name()).collect(),
            key: before.key.hex(),
            ended: before.expires,
            expires: peer.map_or(0, |peer| peer.not_after),
            certificate: path,
        });
    }
    Ok(RenewReport { sent, renewed })
}

/// The members of a record of certificates, each of them once, in the order of their first certificates.
/// Name and end come from a member's last certificate, roles from all valid ones.
pub(super) fn last_certificates(issued: &[Issued], now: u64) -> Vec<Issued> {
    let mut members: Vec<Issued> = Vec::new();
    for one in issued {
        let Some(known) = members.iter_mut().find(|known| known.key == one.key) else {
            members.push(one.clone());
            continue;
        };
        let mut roles = one.roles.clone();
        let older = known.roles.iter().filter(|_| known.expires >= now);
        roles.extend(older.filter(|role| !one.roles.contains(role)));
        let revoked = one.revoked.or(known.revoked);
        *known = Issued {
            roles,
            revoked,
            ..one.clone()
        };
    }
    members
}

/// The validity that begins now and lasts this long.
pub(super) fn validity(lasting: Duration) -> Validity {
    Validity {
        from: unix_seconds(),
        lasting,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(key: u8, roles: &[Role], expires: u64) -> Issued {
        Issued {
            name: format!("m{key}"),
            key: OwnerId([key; 32]),
            roles: roles.to_vec(),
            issued: 0,
            expires,
            revoked: None,
            token: None,
        }
    }

    #[test]
    fn a_key_that_was_signed_twice_is_one_member() {
        let record = [
            certificate(1, &[Role::Donor], 50),
            certificate(2, &[Role::Submitter], 200),
            certificate(1, &[Role::Donor], 300),
            certificate(2, &[Role::Admin], 400),
        ];
        let members = last_certificates(&record, 100);
        let said: Vec<_> = members
            .iter()
            .map(|one| (one.expires, &one.roles))
            .collect();
        assert_eq!(
            said,
            [
                (300, &vec![Role::Donor]),
                (400, &vec![Role::Admin, Role::Submitter])
            ]
        );
        let late = last_certificates(&record, 250);
        assert_eq!(late[1].roles, [Role::Admin], "the other one has ended");
    }
}
