//! Keys, certificates and roles of members.
//!
//! Every member of a grid has one Ed25519 key, and the public key is the member's id. The grid's authority,
//! whose key is kept offline, signs certificates that give a key a name and roles. A submitter's key is
//! also the owner key that signs manifests: the owner of a shard is the submitter who may read it.
//!
//! ```text
//! authority -> member (donor, submitter, registry, admin)      signed by the authority
//! authority -> registry -> member                              joined with a token
//! authority -> (registry ->) submitter -> job key              a grant for some of the submitter's jobs
//! ```

mod authority;
mod card;
mod dumps;
mod files;
mod grant_extension;
mod granted;
mod jobkey;
mod join;
mod keyfile;
mod peer;
mod public;
mod revocation;

pub use authority::{Authority, AuthorityError, Enroller, GridId, Validity};
pub use card::{
    CARD_AHEAD_MAX_S, CARD_BYTES_MAX, CARD_CERTIFICATES_MAX, CARD_PART, CardError, CardVerifier,
    KNOWN_AFTER_END_S, MemberCard, Whereabouts, digest_of_days,
};
pub use dumps::keep_out_of_dumps;
pub use files::{directory_of, replace_public, sync_directory_of, write_private};
pub use granted::{GrantFault, certify_grant, check_grant};
pub use jobkey::{
    JOB_KEY_FILE_BYTES_MAX, JobKeyTextError, is_job_key, job_key_from_text, job_key_to_text,
};
pub use join::{JoinToken, JoinTokenError, TokenRole, TokenTerms};
pub use keyfile::{
    AnyKey, KEY_FILE_BYTES_MAX, KeyFileError, RandomError, any_key_from_text, key_from_text,
    key_to_text, new_key, read_any_key, read_key, write_key,
};
pub use peer::{
    ENDS_SOON_DAYS, Peer, PeerError, certificate_from_pem, certificate_to_pem,
    certificates_from_pem, ends_within_days, grant_of,
};
pub use public::{PublicPart, PublicPartError};
pub use revocation::{REVOKED_KEYS_MAX, RevocationError, Revocations};

use codec::OwnerId;
use codec::keys::{JobKeys, Keys};
use codec::seal::OwnerSecret;
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};

/// Most bytes of the name of a grid or a member.
pub const NAME_BYTES_MAX: usize = 63;

/// Whether `name` is allowed as the name of a grid or a member. Names appear in paths, tables and logs, so
/// they have only letters, digits and `.`, `_`, `-`, and don't begin with `.` or `-`.
pub fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && !name.starts_with(['.', '-'])
        && name.chars().all(allowed)
}

/// Whether `label` is allowed as the site or the owner of a host. Strangers choose labels, and programs
/// print them in tables. So labels have letters and digits of any script, spaces within and some signs, and
/// no control characters and nothing that changes the direction of writing.
pub fn is_label(label: &str) -> bool {
    let allowed = |c: char| c.is_alphanumeric() || " ._-/:@+,()#&'".contains(c);
    (1..=NAME_BYTES_MAX).contains(&label.len())
        && !label.starts_with(' ')
        && !label.ends_with(' ')
        && label.chars().all(allowed)
}

/// What a member may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Lends disk space: runs `ckpt-store serve`.
    Donor,
    /// Saves and restores: runs `ckpt`.
    Submitter,
    /// Keeps the list of donors and sends it to members.
    Registry,
    /// Looks after the grid: reads the counts of hosts.
    Admin,
}

impl Role {
    /// All roles, in the order of this definition.
    pub const ALL: [Self; 4] = [Self::Donor, Self::Submitter, Self::Registry, Self::Admin];

    /// The role with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// The role's name, as it is typed and printed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Donor => "donor",
            Self::Submitter => "submitter",
            Self::Registry => "registry",
            Self::Admin => "admin",
        }
    }

    /// The DNS name that stands for this role in certificates. If a client connects to a server by this
    /// name, TLS itself checks the server's role.
    pub const fn dns_name(self) -> &'static str {
        match self {
            Self::Donor => "donor.ckpt.internal",
            Self::Submitter => "submitter.ckpt.internal",
            Self::Registry => "registry.ckpt.internal",
            Self::Admin => "admin.ckpt.internal",
        }
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A host, by its public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub OwnerId);

impl HostId {
    /// All digits, in lower-case hexadecimal.
    pub fn hex(&self) -> String {
        self.0.hex()
    }

    /// Reads what [`Self::hex`] writes.
    pub fn from_hex(text: &str) -> Option<Self> {
        OwnerId::from_hex(text).map(Self)
    }
}

impl std::fmt::Debug for HostId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostId({})", self.hex())
    }
}

impl std::fmt::Display for HostId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A member's key with the certificate that the authority gave it.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The secret half of the key.
    pub secret: OwnerSecret,
    /// The certificate of the key.
    pub certificate: CertificateDer<'static>,
    /// The certificate of the registry or owner that signed `certificate`; `None` if the authority did.
    pub issuer: Option<CertificateDer<'static>>,
    /// The certificate of the registry that signed `issuer`: for a job key whose owner joined with a token.
    pub above: Option<CertificateDer<'static>>,
    /// The job keys, if this is the identity of a job key; `None` for a member's own.
    pub job: Option<Box<JobKeys>>,
}

impl Identity {
    /// Puts key and certificate together.
    ///
    /// # Errors
    /// When the certificate is for another key, or is not that of a member.
    pub fn new(
        secret: OwnerSecret,
        certificate: CertificateDer<'static>,
    ) -> Result<Self, PeerError> {
        let peer = Peer::from_certificate(&certificate)?;
        if peer.id != secret.id() {
            return Err(PeerError::OtherKey {
                name: peer.name,
                certified: peer.id,
                key: secret.id(),
            });
        }
        Ok(Self {
            secret,
            certificate,
            issuer: None,
            above: None,
            job: None,
        })
    }

    /// Puts a key and the text of a certificate file together: the member's certificate and, if a
    /// registry signed it, that registry's.
    ///
    /// # Errors
    /// When the certificate is for another key, or is not that of a member.
    pub fn from_pem(secret: OwnerSecret, pem: &str) -> Result<Self, PeerError> {
        let mut chain = certificates_from_pem(pem)?.into_iter();
        let first = chain.next().ok_or(PeerError::Missing)?;
        let issuer = chain.next();
        Ok(Self {
            issuer,
            ..Self::new(secret, first)?
        })
    }

    /// Makes the identity of job keys, with a certificate that `owner` signs.
    ///
    /// # Errors
    /// When the owner's certificate can't be read.
    pub fn of_job(owner: &Self, keys: JobKeys) -> Result<Self, AuthorityError> {
        let certificate = certify_grant(&owner.secret, &owner.certificate, keys.grant())?;
        Ok(Self {
            secret: Keys::from(keys.clone()).identity().clone(),
            certificate,
            issuer: Some(owner.certificate.clone()),
            above: owner.issuer.clone(),
            job: Some(Box::new(keys)),
        })
    }

    /// The keys for checkpoints: those of all jobs of a member, or those of the job key.
    pub fn keys(&self) -> Keys {
        match &self.job {
            None => self.secret.clone().into(),
            Some(keys) => Keys::Job(keys.clone()),
        }
    }

    /// The certificates to show to the other side, its own first.
    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        let others = self.issuer.iter().chain(&self.above).cloned();
        std::iter::once(self.certificate.clone())
            .chain(others)
            .collect()
    }

    /// The member that this identity is, as others read it from the certificates.
    ///
    /// # Errors
    /// Never for an identity that [`Self::new`] made.
    pub fn peer(&self) -> Result<Peer, PeerError> {
        Peer::of_chain(&self.chain())
    }

    /// The key in the form that the TLS library takes; the caller has to erase it.
    pub(crate) fn private_key(&self) -> PrivatePkcs8KeyDer<'static> {
        /// PKCS #8 version 1 with algorithm Ed25519, up to the seed (RFC 8410, section 7).
        const PREFIX: [u8; 16] = [
            0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22,
            0x04, 0x20,
        ];
        PrivatePkcs8KeyDer::from([PREFIX.as_slice(), self.secret.seed()].concat())
    }
}
