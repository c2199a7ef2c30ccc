//! Certificates of job keys. The owner of the jobs signs them, and a critical extension has the grant.
//!
//! A program that does not know a critical extension has to refuse the certificate (RFC 5280, section 4.2).
//! So no program takes a job key for its owner's key.

use codec::OwnerId;
use codec::grant::Grant;
use codec::seal::OwnerSecret;
use rcgen::{ExtendedKeyUsagePurpose, IsCa, Issuer, KeyUsagePurpose};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::authority::{AuthorityError, PublicKey, Signer, Validity, params};
use super::grant_extension::extension_with;
use super::{GridId, Peer, PeerError, Role};

/// Why the certificate of a job key is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantFault {
    /// A certificate can't be read.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The owner did not sign the certificate.
    #[error("the certificate of the job key is not signed by the key's owner")]
    Signature,
    /// The owner is not a submitter.
    #[error("the owner of the job key is not certified as a submitter")]
    Role,
    /// Certificate and grant do not belong together.
    #[error("the {0} of the job key differs from that of its grant")]
    Mismatch(&'static str),
    /// The grant has ended, or has not begun.
    #[error("the job key has expired, or is not valid yet")]
    Time,
}

/// Certifies the key of `grant`. Its holder shows this certificate together with `owners`, the owner's.
///
/// # Errors
/// When the owner's certificate can't be read.
pub fn certify_grant(
    owner: &OwnerSecret,
    owners: &CertificateDer<'static>,
    grant: &Grant,
) -> Result<CertificateDer<'static>, AuthorityError> {
    let terms = grant.terms();
    let validity = Validity {
        from: terms.not_before,
        lasting: std::time::Duration::from_secs(terms.not_after.saturating_sub(terms.not_before)),
    };
    let mut params = params("job key", validity);
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    params.custom_extensions.push(extension_with(grant));
    let issuer = Issuer::from_ca_cert_der(owners, Signer::new(owner))?;
    let certificate = params.signed_by(&PublicKey(OwnerId(terms.key.0)), &issuer)?;
    Ok(certificate.der().clone())
}

/// Checks the certificate of a job key at `now` (Unix seconds). The caller has checked the certificate of
/// `owner`.
///
/// # Errors
/// When `owner` did not sign the certificate, it does not fit the grant, or the grant is for another grid
/// or time.
pub fn check_grant(
    certificate: &CertificateDer<'_>,
    grant: &Grant,
    owner: &Peer,
    grid: GridId,
    now: u64,
) -> Result<(), GrantFault> {
    let malformed = |cause: &dyn std::fmt::Display| PeerError::Malformed(cause.to_string());
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|e| malformed(&e))?;
    let signature = parsed.signature_value.data.as_ref();
    if !owner.id.verify(parsed.tbs_certificate.as_ref(), signature) {
        return Err(GrantFault::Signature);
    }
    if !owner.has(Role::Submitter) || owner.grant.is_some() {
        return Err(GrantFault::Role);
    }
    let terms = grant.terms();
    if terms.owner != owner.id {
        return Err(GrantFault::Mismatch("owner"));
    }
    if parsed.public_key().subject_public_key.data.as_ref() != terms.key.0 {
        return Err(GrantFault::Mismatch("key"));
    }
    if terms.grid != grid.0 {
        return Err(GrantFault::Mismatch("grid"));
    }
    if !terms.is_let_in(now) {
        return Err(GrantFault::Time);
    }
    Ok(())
}
