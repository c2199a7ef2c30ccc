//! Reading certificates: who the other side is.

use std::sync::Arc;

use codec::OwnerId;
use codec::grant::{CLOCK_SLACK_S, Grant};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::extensions::GeneralName;
use x509_parser::oid_registry::OID_SIG_ED25519;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::Role;
use super::granted::grant_of;

/// A member, as its certificate describes it. TLS has checked the certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its public key.
    pub id: OwnerId,
    /// Its name.
    pub name: String,
    /// What it may do.
    pub roles: Vec<Role>,
    /// From when it may do that, Unix seconds.
    pub not_before: u64,
    /// Until when, Unix seconds.
    pub not_after: u64,
    /// What an owner lets it do, when it has the key of a job and is no member itself.
    pub grant: Option<Arc<Grant>>,
}

/// Days before its end from which on there are warnings of it.
pub const ENDS_SOON_DAYS: u64 = 30;

/// Days until `end` (Unix seconds), when these are at most [`ENDS_SOON_DAYS`].
pub const fn ends_within_days(end: u64, now: u64) -> Option<u64> {
    let days = end.saturating_sub(now) / 86_400;
    if days < ENDS_SOON_DAYS {
        Some(days)
    } else {
        None
    }
}

/// A certificate that is none of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// There is none.
    #[error("no certificate")]
    Missing,
    /// It can't be read.
    #[error("malformed certificate: {0}")]
    Malformed(String),
    /// Its key is not an Ed25519 key.
    #[error("certificate of {0:?}: not an Ed25519 key")]
    Key(String),
    /// It is for another key than the one at hand.
    #[error("certificate of {name:?} is for key {certified}, not for {key}")]
    OtherKey {
        /// Whose certificate it is.
        name: String,
        /// The key in it.
        certified: OwnerId,
        /// The key at hand.
        key: OwnerId,
    },
}

impl Peer {
    /// Reads a certificate.
    ///
    /// # Errors
    /// When it is malformed or not for an Ed25519 key.
    pub fn from_certificate(certificate: &CertificateDer<'_>) -> Result<Self, PeerError> {
        let malformed = |cause: &dyn std::fmt::Display| PeerError::Malformed(cause.to_string());
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|e| malformed(&e))?;
        let name = parsed
            .subject()
            .iter_common_name()
            .next()
            .and_then(|name| name.as_str().ok())
            .unwrap_or_default()
            .to_owned();
        let key = parsed.public_key();
        let id: Option<[u8; 32]> = key.subject_public_key.data.as_ref().try_into().ok();
        let Some(id) = id.filter(|_| key.algorithm.algorithm == OID_SIG_ED25519) else {
            return Err(PeerError::Key(name));
        };
        let names = parsed
            .subject_alternative_name()
            .map_err(|e| malformed(&e))?
            .map(|extension| extension.value.general_names.as_slice())
            .unwrap_or_default();
        let roles = Role::ALL
            .into_iter()
            .filter(|role| names.contains(&GeneralName::DNSName(role.dns_name())))
            .collect();
        let validity = parsed.validity();
        let seconds = |time: x509_parser::time::ASN1Time| u64::try_from(time.timestamp());
        Ok(Self {
            id: OwnerId(id),
            name,
            roles,
            not_before: seconds(validity.not_before).unwrap_or(0),
            not_after: seconds(validity.not_after).unwrap_or(0),
            grant: grant_of(certificate)?.map(Arc::new),
        })
    }

    /// Reads the certificates that somebody shows, the own one first. Who has a job key acts for the
    /// key's owner, whose certificate is the second, and is a submitter if the owner is one.
    ///
    /// # Errors
    /// When one is missing or can't be read.
    pub fn of_chain(chain: &[CertificateDer<'_>]) -> Result<Self, PeerError> {
        let peer = Self::from_certificate(chain.first().ok_or(PeerError::Missing)?)?;
        let Some(grant) = &peer.grant else {
            return Ok(peer);
        };
        let owner = Self::from_certificate(chain.get(1).ok_or(PeerError::Missing)?)?;
        let terms = grant.terms();
        let until = terms.not_after.saturating_add(CLOCK_SLACK_S);
        let is_submitter = owner.has(Role::Submitter) && owner.id == terms.owner;
        Ok(Self {
            name: format!("{}/job-key", owner.name),
            roles: is_submitter
                .then_some(Role::Submitter)
                .into_iter()
                .collect(),
            not_before: owner.not_before,
            not_after: owner.not_after.min(until),
            ..peer
        })
    }

    /// Whose checkpoints it stores and reads: its own, or those of the owner of its job key.
    pub fn account(&self) -> OwnerId {
        self.grant
            .as_ref()
            .map_or(self.id, |grant| grant.terms().owner)
    }

    /// Who is at the other end of `connection`.
    ///
    /// # Errors
    /// When it showed no certificate of ours, which TLS does not let happen.
    pub fn of(connection: &quinn::Connection) -> Result<Self, PeerError> {
        let identity = connection.peer_identity().ok_or(PeerError::Missing)?;
        let chain = identity
            .downcast::<Vec<CertificateDer<'static>>>()
            .map_err(|_| PeerError::Missing)?;
        Self::of_chain(&chain)
    }

    /// Who signed the certificate of whoever is at the other end of `connection`, if that was not the
    /// authority itself. TLS has checked that they might.
    pub fn issuers_of(connection: &quinn::Connection) -> Vec<OwnerId> {
        let identity = connection.peer_identity();
        let chain = identity.and_then(|any| any.downcast::<Vec<CertificateDer<'static>>>().ok());
        let issuers = chain.iter().flat_map(|chain| chain.iter().skip(1));
        issuers
            .filter_map(|issuer| Some(Self::from_certificate(issuer).ok()?.id))
            .collect()
    }

    /// Whether its certificate is valid at this time, Unix seconds.
    pub const fn is_valid_at(&self, now: u64) -> bool {
        self.not_before <= now && now <= self.not_after
    }

    /// Whether an authority's certificate lets it delegate: whether certificates may be signed by
    /// somebody whom it certified.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn may_delegate(authority: &CertificateDer<'_>) -> Result<bool, PeerError> {
        let malformed = |cause: &dyn std::fmt::Display| PeerError::Malformed(cause.to_string());
        let (_, parsed) = X509Certificate::from_der(authority).map_err(|e| malformed(&e))?;
        let constraints = parsed.basic_constraints().map_err(|e| malformed(&e))?;
        let length = constraints.and_then(|found| found.value.path_len_constraint);
        Ok(length.is_none_or(|length| length > 0))
    }

    /// Days that its certificate is good for still, when these are at most [`ENDS_SOON_DAYS`]; 0 on the
    /// last day and afterwards.
    pub const fn ends_within_days(&self, now: u64) -> Option<u64> {
        ends_within_days(self.not_after, now)
    }

    /// Which roles a registry may give others, as its certificate for that says.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn delegated(certificate: &CertificateDer<'_>) -> Result<Vec<Role>, PeerError> {
        let malformed = |cause: &dyn std::fmt::Display| PeerError::Malformed(cause.to_string());
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|e| malformed(&e))?;
        let constraints = parsed.name_constraints().map_err(|e| malformed(&e))?;
        let permitted = constraints.and_then(|found| found.value.permitted_subtrees.as_ref());
        let names: Vec<&GeneralName<'_>> = permitted
            .into_iter()
            .flatten()
            .map(|subtree| &subtree.base)
            .collect();
        let is_named = |role: &Role| names.contains(&&GeneralName::DNSName(role.dns_name()));
        Ok(Role::ALL.into_iter().filter(is_named).collect())
    }

    /// Whether it may do what `role` says.
    pub fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }
}

/// Reads the first certificate of a PEM text.
///
/// # Errors
/// When there is none.
pub fn certificate_from_pem(pem: &str) -> Result<CertificateDer<'static>, PeerError> {
    CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|cause| PeerError::Malformed(cause.to_string()))
}

/// Reads all certificates of a PEM text, in order.
///
/// # Errors
/// When there is something else.
pub fn certificates_from_pem(pem: &str) -> Result<Vec<CertificateDer<'static>>, PeerError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|cause| PeerError::Malformed(cause.to_string()))
}

/// A certificate as PEM text.
pub fn certificate_to_pem(certificate: &CertificateDer<'_>) -> String {
    pem::encode(&pem::Pem::new("CERTIFICATE", certificate.to_vec()))
}
