//! The grid's authority, which signs certificates.

use std::time::Duration;

use codec::OwnerId;
use codec::seal::OwnerSecret;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyUsagePurpose, NameConstraints, PKCS_ED25519, PublicKeyData,
    SignatureAlgorithm, SigningKey,
};
use rustls_pki_types::CertificateDer;
use time::OffsetDateTime;

use super::Role;

/// Id of a grid: the hash of its authority's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GridId(pub [u8; 32]);

impl GridId {
    /// The grid whose authority has this certificate.
    pub fn of(authority: &CertificateDer<'_>) -> Self {
        Self(blake3::derive_key("ckpt v1 grid id", authority))
    }
}

impl std::fmt::Display for GridId {
    /// The first eight digits.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        OwnerId(self.0).fmt(f)
    }
}

/// When a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// When it begins, Unix seconds.
    pub from: u64,
    /// How long it lasts.
    pub lasting: Duration,
}

impl Validity {
    /// Certificates are valid from this long before they are made, since the clocks of machines differ.
    const CLOCK_SKEW: Duration = Duration::from_secs(3600);

    fn not_before(self) -> OffsetDateTime {
        date(self.from.saturating_sub(Self::CLOCK_SKEW.as_secs()))
    }

    fn not_after(self) -> OffsetDateTime {
        date(self.from.saturating_add(self.lasting.as_secs()))
    }
}

/// A time for a certificate, at most the last one that a certificate can have.
fn date(unix_seconds: u64) -> OffsetDateTime {
    const YEAR_9999: i64 = 253_402_300_799;
    let seconds = i64::try_from(unix_seconds).unwrap_or(YEAR_9999);
    OffsetDateTime::from_unix_timestamp(seconds.min(YEAR_9999))
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// A certificate can't be made.
#[derive(Debug, thiserror::Error)]
#[error("making a certificate: {0}")]
pub struct AuthorityError(#[from] rcgen::Error);

/// The authority's key and certificate.
#[derive(Debug)]
pub struct Authority {
    secret: OwnerSecret,
    certificate: CertificateDer<'static>,
}

impl Authority {
    /// Makes an authority for the grid called `name`, with a new secret.
    ///
    /// # Errors
    /// When the name can't be put into a certificate.
    pub fn create(
        secret: OwnerSecret,
        name: &str,
        validity: Validity,
    ) -> Result<Self, AuthorityError> {
        let mut params = params(name, validity);
        // One level below: a registry may sign certificates of members that join with a token.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(1));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&Signer::new(&secret))?;
        Ok(Self {
            certificate: certificate.der().clone(),
            secret,
        })
    }

    /// An authority whose key and certificate were read from files.
    pub const fn load(secret: OwnerSecret, certificate: CertificateDer<'static>) -> Self {
        Self {
            secret,
            certificate,
        }
    }

    /// The authority's certificate, which every member knows.
    pub const fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The authority's secret key, to be written to a file.
    pub const fn secret(&self) -> &OwnerSecret {
        &self.secret
    }

    /// Certifies that the member with this public key has this name and these roles.
    ///
    /// # Errors
    /// When the name can't be put into a certificate.
    pub fn sign(
        &self,
        roles: &[Role],
        name: &str,
        key: OwnerId,
        validity: Validity,
    ) -> Result<CertificateDer<'static>, AuthorityError> {
        let issuer = Issuer::from_ca_cert_der(&self.certificate, Signer::new(&self.secret))?;
        member(&issuer, roles, name, key, validity)
    }

    /// Certifies that the registry with this public key may itself sign certificates of members with these
    /// roles and no others: its name constraint has only the DNS names of these roles (RFC 5280, section
    /// 4.2.1.10).
    ///
    /// # Errors
    /// When the name can't be put into a certificate.
    pub fn delegate(
        &self,
        name: &str,
        key: OwnerId,
        roles: &[Role],
        validity: Validity,
    ) -> Result<CertificateDer<'static>, AuthorityError> {
        let mut params = params(name, validity);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.use_authority_key_identifier_extension = true;
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: roles
                .iter()
                .map(|role| GeneralSubtree::DnsName(role.dns_name().into()))
                .collect(),
            excluded_subtrees: Vec::new(),
        });
        let issuer = Issuer::from_ca_cert_der(&self.certificate, Signer::new(&self.secret))?;
        let certificate = params.signed_by(&PublicKey(key), &issuer)?;
        Ok(certificate.der().clone())
    }
}

/// A registry that may sign certificates of members.
#[derive(Debug)]
pub struct Enroller {
    secret: OwnerSecret,
    certificate: CertificateDer<'static>,
}

impl Enroller {
    /// Takes a registry's key, and the certificate that [`Authority::delegate`] made for it.
    pub const fn new(secret: OwnerSecret, certificate: CertificateDer<'static>) -> Self {
        Self {
            secret,
            certificate,
        }
    }

    /// The certificate that allows the registry to sign.
    pub const fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Certifies a member with this role. Members that are shown the certificate check that the registry's
    /// own certificate allows it to sign this role.
    ///
    /// # Errors
    /// When the name can't be put into a certificate.
    pub fn sign(
        &self,
        role: Role,
        name: &str,
        key: OwnerId,
        validity: Validity,
    ) -> Result<CertificateDer<'static>, AuthorityError> {
        let issuer = Issuer::from_ca_cert_der(&self.certificate, Signer::new(&self.secret))?;
        member(&issuer, &[role], name, key, validity)
    }
}

fn member(
    issuer: &Issuer<'_, Signer<'_>>,
    roles: &[Role],
    name: &str,
    key: OwnerId,
    validity: Validity,
) -> Result<CertificateDer<'static>, AuthorityError> {
    let mut params = params(name, validity);
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params.use_authority_key_identifier_extension = true;
    for role in roles {
        let name = role.dns_name().try_into()?;
        params.subject_alt_names.push(rcgen::SanType::DnsName(name));
    }
    let certificate = params.signed_by(&PublicKey(key), issuer)?;
    Ok(certificate.der().clone())
}

pub(super) fn params(name: &str, validity: Validity) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = validity.not_before();
    params.not_after = validity.not_after();
    params
}

pub(super) struct PublicKey(pub(super) OwnerId);

impl PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ED25519
    }
}

pub(super) struct Signer<'a> {
    secret: &'a OwnerSecret,
    public: PublicKey,
}

impl<'a> Signer<'a> {
    pub(super) fn new(secret: &'a OwnerSecret) -> Self {
        Self {
            secret,
            public: PublicKey(secret.id()),
        }
    }
}

impl PublicKeyData for Signer<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.public.der_bytes()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.public.algorithm()
    }
}

impl SigningKey for Signer<'_> {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        Ok(self.secret.sign(message).to_vec())
    }
}
