//! Reads certificates: which member the other side is.

use std::sync::Arc;

use codec::OwnerId;
use codec::grant::{END_SLACK_S, Grant};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::extensions::GeneralName;
use x509_parser::oid_registry::OID_SIG_ED25519;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::Role;
use super::grant_extension::grant_in;

/// A member, as its certificate describes it. The caller makes sure that TLS has checked the certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Public key of the certificate; for a job key, its own. [`Self::account`] is the owner's.
    pub id: OwnerId,
    /// Name of the member; for a job key, that of its owner and `/job-key`.
    pub name: String,
    /// Roles of the member.
    pub roles: Vec<Role>,
    /// When the certificate begins, Unix seconds.
    pub not_before: u64,
    /// When the certificate ends, Unix seconds.
    pub not_after: u64,
    /// The grant of a job key; `None` for a member.
    pub grant: Option<Arc<Grant>>,
}

/// Programs warn of a certificate that ends within this many days.
pub const ENDS_SOON_DAYS: u64 = 30;

/// Whole days from `now` to `end`, Unix seconds, if they are fewer than [`ENDS_SOON_DAYS`].
pub const fn ends_within_days(end: u64, now: u64) -> Option<u64> {
    let days = end.saturating_sub(now) / 86_400;
    if days < ENDS_SOON_DAYS {
        Some(days)
    } else {
        None
    }
}

/// Why a certificate can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// A certificate is missing.
    #[error("no certificate")]
    Missing,
    /// The certificate can't be read.
    #[error("malformed certificate: {0}")]
    Malformed(String),
    /// The key in the certificate is not an Ed25519 key.
    #[error("certificate of {0:?}: not an Ed25519 key")]
    Key(String),
    /// The certificate is for another key than the one that was given.
    #[error("certificate of {name:?} is for key {certified}, not for {key}")]
    OtherKey {
        /// Name in the certificate.
        name: String,
        /// Key in the certificate.
        certified: OwnerId,
        /// Key that was given.
        key: OwnerId,
    },
}

/// The grant in a certificate, with its signature checked; `None` if the certificate has no grant. Whether
/// the grant is for this certificate's key, and is current, is not checked: see [`super::check_grant`].
///
/// # Errors
/// When the certificate can't be read, or its extension has no valid grant.
pub fn grant_of(certificate: &CertificateDer<'_>) -> Result<Option<Grant>, PeerError> {
    grant_in(certificate).map_err(PeerError::Malformed)
}

impl Peer {
    /// Reads a certificate.
    ///
    /// # Errors
    /// When the certificate is malformed, or not for an Ed25519 key.
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

    /// Reads the certificates that a peer shows, its own first. The holder of a job key acts for the key's
    /// owner, whose certificate is the second, and has the role of a submitter if the owner has it.
    ///
    /// # Errors
    /// When a certificate is missing or can't be read.
    pub fn of_chain(chain: &[CertificateDer<'_>]) -> Result<Self, PeerError> {
        let peer = Self::from_certificate(chain.first().ok_or(PeerError::Missing)?)?;
        let Some(grant) = &peer.grant else {
            return Ok(peer);
        };
        let owner = Self::from_certificate(chain.get(1).ok_or(PeerError::Missing)?)?;
        let terms = grant.terms();
        let until = terms.not_after.saturating_add(END_SLACK_S);
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

    /// The owner of the checkpoints that this peer stores and reads: itself, or the owner of its job key.
    pub fn account(&self) -> OwnerId {
        self.grant
            .as_ref()
            .map_or(self.id, |grant| grant.terms().owner)
    }

    /// The peer at the other end of `connection`.
    ///
    /// # Errors
    /// When the peer showed no certificate of a member. TLS does not let that happen.
    pub fn of(connection: &quinn::Connection) -> Result<Self, PeerError> {
        let identity = connection.peer_identity().ok_or(PeerError::Missing)?;
        let chain = identity
            .downcast::<Vec<CertificateDer<'static>>>()
            .map_err(|_| PeerError::Missing)?;
        Self::of_chain(&chain)
    }

    /// The keys that signed the certificates of the peer at the other end of `connection`, without the
    /// authority's. TLS has checked that these keys may sign.
    pub fn issuers_of(connection: &quinn::Connection) -> Vec<OwnerId> {
        let identity = connection.peer_identity();
        let chain = identity.and_then(|any| any.downcast::<Vec<CertificateDer<'static>>>().ok());
        let issuers = chain.iter().flat_map(|chain| chain.iter().skip(1));
        issuers
            .filter_map(|issuer| Some(Self::from_certificate(issuer).ok()?.id))
            .collect()
    }

    /// Whether the certificate is valid at this time, Unix seconds.
    pub const fn is_valid_at(&self, now: u64) -> bool {
        self.not_before <= now && now <= self.not_after
    }

    /// Whether an authority's certificate allows it to delegate, so that a registry may sign certificates.
    ///
    /// # Errors
    /// When the certificate can't be read.
    pub fn may_delegate(authority: &CertificateDer<'_>) -> Result<bool, PeerError> {
        let malformed = |cause: &dyn std::fmt::Display| PeerError::Malformed(cause.to_string());
        let (_, parsed) = X509Certificate::from_der(authority).map_err(|e| malformed(&e))?;
        let constraints = parsed.basic_constraints().map_err(|e| malformed(&e))?;
        let length = constraints.and_then(|found| found.value.path_len_constraint);
        Ok(length.is_none_or(|length| length > 0))
    }

    /// Whole days until the certificate ends, if they are fewer than [`ENDS_SOON_DAYS`]; 0 on the last day
    /// and afterwards.
    pub const fn ends_within_days(&self, now: u64) -> Option<u64> {
        ends_within_days(self.not_after, now)
    }

    /// The roles that a registry may certify, from the certificate that allows it to sign.
    ///
    /// # Errors
    /// When the certificate can't be read.
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

    /// Whether the peer has this role.
    pub fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }
}

/// Reads the first certificate of a PEM text.
///
/// # Errors
/// When the text has no certificate, or a malformed one.
pub fn certificate_from_pem(pem: &str) -> Result<CertificateDer<'static>, PeerError> {
    CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|cause| PeerError::Malformed(cause.to_string()))
}

/// Reads all certificates of a PEM text, in order.
///
/// # Errors
/// When the text is malformed.
pub fn certificates_from_pem(pem: &str) -> Result<Vec<CertificateDer<'static>>, PeerError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|cause| PeerError::Malformed(cause.to_string()))
}

/// A certificate as PEM text.
pub fn certificate_to_pem(certificate: &CertificateDer<'_>) -> String {
    pem::encode(&pem::Pem::new("CERTIFICATE", certificate.to_vec()))
}
