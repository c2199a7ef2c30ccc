//! Redeems join tokens, with the certificate that lets a registry sign members.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use codec::OwnerId;
use protocol::grid::Grid;
use protocol::identity::{
    Enroller, Identity, JoinToken, Peer, PeerError, Role, TokenRole, Validity,
    certificate_from_pem, is_name,
};
use protocol::wire::limits::FRAME_BYTES_MAX;
use protocol::wire::message::{JoinRequest, Joined};
use rustls_pki_types::CertificateDer;
use tracing::info;

use super::tokens::{NotRedeemed, Redeemed};
use super::{RegistryConfig, RegistryError};
use crate::core::joiners::{Joiner, Wish};

/// Longest grid file that is sent to a new member. The file of a larger grid is sent without hosts, and
/// the member fetches the signed list.
const GRID_BYTES_MAX: usize = FRAME_BYTES_MAX - (16 << 10);

/// Distinguishes one state of `enrol.crt` from another: its time of change and its length.
type Stamp = (SystemTime, u64);

/// Redeems tokens while `enrol.crt` is in the data directory. The file may be added or replaced while the
/// registry runs.
#[derive(Debug)]
pub(super) struct Enrolments {
    path: PathBuf,
    identity: Identity,
    authority: CertificateDer<'static>,
    redeemed: Arc<Redeemed>,
    known: Mutex<Option<(Stamp, Arc<Enrolment>)>>,
}

impl Enrolments {
    pub(super) fn open(config: &RegistryConfig) -> Result<Self, RegistryError> {
        let path = config.data_dir.join("redeemed");
        let redeemed = Redeemed::open(&path).map_err(|cause| RegistryError::Io { path, cause })?;
        Ok(Self {
            path: config.data_dir.join("enrol.crt"),
            identity: config.identity.clone(),
            authority: config.grid.authority.clone(),
            redeemed: Arc::new(redeemed),
            known: Mutex::default(),
        })
    }

    /// Who joined.
    pub(super) fn redeemed(&self) -> &Arc<Redeemed> {
        &self.redeemed
    }

    /// The present `enrol.crt`; `None` if there is no such file.
    pub(super) fn now(&self) -> Result<Option<Arc<Enrolment>>, RegistryError> {
        let failed = |cause| RegistryError::Io {
            path: self.path.clone(),
            cause,
        };
        let stamp = match stamp(&self.path) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
            stamp => stamp.map_err(failed)?,
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, enrolment)) = known.as_ref()
            && *of == stamp
        {
            return Ok(Some(Arc::clone(enrolment)));
        }
        let pem = fs::read_to_string(&self.path).map_err(failed)?;
        let read = Enrolment::read(&pem, self).map_err(|cause| RegistryError::Enrol {
            path: self.path.clone(),
            cause,
        })?;
        let roles: Vec<&str> = read.roles.iter().map(|role| role.name()).collect();
        info!(
            roles = roles.join(","),
            until = read.until,
            "accepting join tokens"
        );
        let read = Arc::new(read);
        *known = Some((stamp, Arc::clone(&read)));
        Ok(Some(read))
    }
}

fn stamp(path: &Path) -> io::Result<Stamp> {
    let data = fs::metadata(path)?;
    Ok((data.modified()?, data.len()))
}

/// One `enrol.crt`, with which tokens are redeemed.
#[derive(Debug)]
pub(super) struct Enrolment {
    authority: CertificateDer<'static>,
    registry: OwnerId,
    enroller: Enroller,
    /// The roles that the registry may sign.
    roles: Vec<Role>,
    /// When its own right to sign ends, in Unix seconds.
    until: u64,
    redeemed: Arc<Redeemed>,
}

impl Enrolment {
    fn read(pem: &str, of: &Enrolments) -> Result<Self, String> {
        let wrong = |cause: PeerError| cause.to_string();
        let certificate = certificate_from_pem(pem).map_err(wrong)?;
        let own = Peer::from_certificate(&certificate).map_err(wrong)?;
        let registry = of.identity.secret.id();
        if own.id != registry {
            return Err("it is for another key".into());
        }
        Ok(Self {
            authority: of.authority.clone(),
            registry,
            roles: Peer::delegated(&certificate).map_err(wrong)?,
            enroller: Enroller::new(of.identity.secret.clone(), certificate),
            until: own.not_after,
            redeemed: Arc::clone(&of.redeemed),
        })
    }

    /// Checks that the token is valid for this registry, and that the client has the private key.
    pub(super) fn check(&self, wish: &JoinRequest, now: u64) -> Result<JoinToken, String> {
        let token = JoinToken::parse(&wish.token).map_err(|cause| cause.to_string())?;
        token
            .check(&self.authority, now)
            .map_err(|cause| cause.to_string())?;
        if token.terms.registry.0 != self.registry {
            return Err("the token is for another registry".into());
        }
        let role = token.terms.role.role();
        if !self.roles.contains(&role) {
            return Err(format!("this registry may not sign a {role}"));
        }
        // Others print the name.
        if !is_name(&wish.name) {
            return Err("that is not a valid name".into());
        }
        let signed = JoinRequest::signed(&wish.token, &wish.name);
        let signature: Option<[u8; 64]> = wish.signature.as_slice().try_into().ok();
        if !signature.is_some_and(|signature| wish.key.verify(&signed, &signature)) {
            return Err("the key is not that of the connection".into());
        }
        Ok(token)
    }

    /// Redeems a token that was checked, and signs a certificate.
    pub(super) fn join(
        &self,
        wish: &JoinRequest,
        token: &JoinToken,
        (grid, mut others): (&Grid, BTreeSet<(String, OwnerId)>),
        now: u64,
    ) -> Result<Joined, NotRedeemed> {
        let refused = |cause: &dyn std::fmt::Display| NotRedeemed::Refused(cause.to_string());
        if grid.revoked.contains(&wish.key) {
            return Err(refused(&"the key was revoked"));
        }
        let hosts = grid.hosts.iter().map(|one| (one.name.clone(), one.id.0));
        let registries = grid.registries.iter();
        let registries = registries.map(|one| (one.name.clone(), one.id.0));
        others.extend(hosts.chain(registries));
        let wanted = Wish {
            key: wish.key,
            name: &wish.name,
            numbered: wish.numbered,
            others: &others,
        };
        let terms = &token.terms;
        let text = text_for(grid).map_err(|cause| refused(&cause))?;
        let validity = Validity {
            from: now,
            lasting: Duration::from_secs(self.until.saturating_sub(now)),
        };
        // From here on the token is used up, whatever happens to the answer. The same key may ask again if
        // the answer did not arrive.
        let token = (terms.nonce, wish.key);
        let certificate = self.redeemed.redeem(token, now, |joiners| {
            let name = joiners.name_for(wanted, |key| grid.revoked.contains(key))?;
            let role = terms.role.role();
            let signed = self.enroller.sign(role, &name, wish.key, validity);
            let joiner = Joiner {
                key: wish.key,
                role: terms.role,
                name,
                token: terms.nonce,
                token_expires: terms.expires,
                at: now,
                until: self.until,
                seen_at: now,
            };
            Ok((joiner, signed.map_err(|cause| refused(&cause))?))
        })?;
        Ok(Joined {
            certificate: certificate.to_vec(),
            issuer: self.enroller.certificate().to_vec(),
            grid: text,
        })
    }

    /// Whether this registry redeems tokens for such members.
    pub(super) fn signs(&self, role: TokenRole) -> bool {
        self.roles.contains(&role.role())
    }
}

/// The grid file for a new member: without what is about this machine, and at most [`GRID_BYTES_MAX`]
/// long.
fn text_for(grid: &Grid) -> Result<String, String> {
    let text = grid.to_send()?;
    if text.len() <= GRID_BYTES_MAX {
        return Ok(text);
    }
    let without_hosts = Grid {
        hosts: Vec::new(),
        ..grid.clone()
    };
    without_hosts.to_send()
}
