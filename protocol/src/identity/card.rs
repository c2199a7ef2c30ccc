//! The card of a donor: what the donor states of itself, signed by the donor. Whoever keeps it can show
//! others that the donor belongs to the grid, where it was and when, while the donor itself is silent.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use codec::OwnerId;
use codec::seal::OwnerSecret;
use codec::serial::{self, SerialError};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use std::time::Duration;

use super::{Identity, Peer, PeerError, Revocations, Role, is_label, is_name};

/// Most bytes of a card.
pub const CARD_BYTES_MAX: usize = 4096;

/// Most certificates on a card: the donor's, and that of the registry which signed it.
pub const CARD_CERTIFICATES_MAX: usize = 2;

/// A card is not believed that is dated later than this many seconds from now.
pub const CARD_AHEAD_MAX_S: u64 = 86_400;

/// A member is known for this many seconds after its certificate has ended.
pub const KNOWN_AFTER_END_S: u64 = 90 * 86_400;

/// What is signed begins with this, so that no signature of a donor for another purpose is one of a card.
const DOMAIN: &[u8] = b"ckpt v1 member card\0";

const SIGNATURE_BYTES: usize = 64;

/// Number of the part of an announcement ([`crate::wire::message::Presence`]) that is the donor's card. The
/// parts of the announcement of a host's availability have the numbers below.
pub const CARD_PART: u16 = 4;

/// What a card states, before the signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Body {
    /// The donor's certificate, and that of the registry which signed it, if the authority did not.
    chain: Vec<ByteBuf>,
    addr: SocketAddr,
    site: Option<String>,
    owner: Option<String>,
    at: u64,
}

/// Hash of which donors somebody knows, and of which day the card of each is. `known` is in ascending order
/// of keys. Registries and donors compare these hashes before they compare anything else.
pub fn digest_of_days(known: impl IntoIterator<Item = (OwnerId, u32)>) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("ckpt v1 days of member cards");
    for (id, day) in known {
        hasher.update(&id.0);
        hasher.update(&day.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

/// Where a donor is, as it announces it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Whereabouts {
    /// Its address. An unspecified IP address stands for the one from which it connects to registries.
    pub addr: SocketAddr,
    /// Its site.
    pub site: Option<String>,
    /// The owner of the machine.
    pub owner: Option<String>,
}

/// A card whose signatures were checked.
#[derive(Clone, PartialEq, Eq)]
pub struct MemberCard {
    bytes: Vec<u8>,
    peer: Peer,
    issuer: Option<OwnerId>,
    whereabouts: Whereabouts,
    at: u64,
}

/// Why bytes are not a card that counts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CardError {
    /// The bytes are not those of a card.
    #[error("malformed card: {0}")]
    Malformed(#[from] SerialError),
    /// A card has one certificate or two.
    #[error("a card with {0} certificates")]
    Certificates(usize),
    /// A certificate can't be read.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The certificate is not that of a donor of this grid, or was not valid when the card was signed.
    #[error("the certificate on the card: {0}")]
    Chain(String),
    /// The key in the certificate did not sign the card.
    #[error("the card is not signed by the key in its certificate")]
    Signature,
    /// A text that is not a valid name, site or owner. Others would print it.
    #[error("the card has no valid {0}")]
    Label(&'static str),
    /// The certificates can't be put on a card.
    #[error("the identity is not that of a donor")]
    NoDonor,
}

/// Checks cards of one grid.
#[derive(Clone, Debug)]
pub struct CardVerifier(Arc<WebPkiServerVerifier>);

impl CardVerifier {
    /// A verifier for the grid whose authority has this certificate.
    ///
    /// # Errors
    /// When the certificate can't be used as an authority's.
    pub fn new(authority: &CertificateDer<'_>) -> Result<Self, CardError> {
        let chain = |cause: &dyn std::fmt::Display| CardError::Chain(cause.to_string());
        let mut roots = RootCertStore::empty();
        let authority = authority.clone().into_owned();
        roots.add(authority).map_err(|cause| chain(&cause))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        Ok(Self(verifier.map_err(|cause| chain(&cause))?))
    }

    /// The card in these bytes, if it is that of a donor at `addr` that is not revoked; `None` otherwise.
    pub fn read_at(
        &self,
        bytes: &[u8],
        addr: SocketAddr,
        revoked: &Revocations,
    ) -> Option<MemberCard> {
        let card = self.read(bytes).ok()?;
        (card.is_at(addr) && !card.is_revoked(revoked)).then_some(card)
    }

    /// Reads a card and checks it as TLS would check the donor at the time of the card: the certificates
    /// lead to the authority, are those of a donor and were valid then; and that the donor signed the card.
    /// Whether keys were revoked since, and whether the time of the card is in the future, is left to
    /// [`MemberCard::is_revoked`] and [`MemberCard::is_early`].
    ///
    /// # Errors
    /// When any of this does not hold.
    pub fn read(&self, bytes: &[u8]) -> Result<MemberCard, CardError> {
        if bytes.len() > CARD_BYTES_MAX {
            return Err(SerialError::TooLong {
                actual: bytes.len(),
                limit: CARD_BYTES_MAX,
            }
            .into());
        }
        let split = bytes.len().checked_sub(SIGNATURE_BYTES);
        let parts = split.and_then(|at| bytes.split_at_checked(at));
        let (body, signature) = parts.ok_or(CardError::Signature)?;
        let read: Body = serial::decode(body, CARD_BYTES_MAX)?;
        let chain: Vec<CertificateDer<'_>> = read
            .chain
            .iter()
            .map(|one| CertificateDer::from(one.as_slice()))
            .collect();
        let (Some((first, above)), true) =
            (chain.split_first(), chain.len() <= CARD_CERTIFICATES_MAX)
        else {
            return Err(CardError::Certificates(chain.len()));
        };
        // Costs less than the certificates, so a wrong card is found out sooner.
        let peer = Peer::from_certificate(first)?;
        if !peer.id.verify(&[DOMAIN, body].concat(), signature) {
            return Err(CardError::Signature);
        }
        self.check_chain(first, above, read.at)?;
        let issuer = above.first().map(Peer::from_certificate).transpose()?;
        for (what, label) in [("site", &read.site), ("owner", &read.owner)] {
            if label.as_ref().is_some_and(|label| !is_label(label)) {
                return Err(CardError::Label(what));
            }
        }
        if !is_name(&peer.name) {
            return Err(CardError::Label("name"));
        }
        Ok(MemberCard {
            bytes: bytes.to_vec(),
            peer,
            issuer: issuer.map(|issuer| issuer.id),
            whereabouts: Whereabouts {
                addr: read.addr,
                site: read.site,
                owner: read.owner,
            },
            at: read.at,
        })
    }

    fn check_chain(
        &self,
        certificate: &CertificateDer<'_>,
        above: &[CertificateDer<'_>],
        at: u64,
    ) -> Result<(), CardError> {
        let chain = |cause: &dyn std::fmt::Display| CardError::Chain(cause.to_string());
        let donor = ServerName::try_from(Role::Donor.dns_name()).map_err(|cause| chain(&cause))?;
        let then = UnixTime::since_unix_epoch(Duration::from_secs(at));
        let checked = self
            .0
            .verify_server_cert(certificate, above, &donor, &[], then);
        checked.map_err(|cause| chain(&cause)).map(|_| ())
    }
}

impl MemberCard {
    /// Signs a card for the donor with this identity at `at`, Unix seconds.
    ///
    /// # Errors
    /// When the identity is not a donor's, or a label is not valid or too long.
    pub fn sign(identity: &Identity, whereabouts: Whereabouts, at: u64) -> Result<Self, CardError> {
        let chain = identity.chain();
        let peer = identity.peer()?;
        let fits = chain.len() <= CARD_CERTIFICATES_MAX && peer.grant.is_none();
        if !fits || !peer.has(Role::Donor) {
            return Err(CardError::NoDonor);
        }
        let issuer = chain.get(1).map(Peer::from_certificate).transpose()?;
        let body = Body {
            chain: chain
                .iter()
                .map(|one| ByteBuf::from(one.to_vec()))
                .collect(),
            addr: whereabouts.addr,
            site: whereabouts.site.clone(),
            owner: whereabouts.owner.clone(),
            at,
        };
        let body = serial::encode(&body, CARD_BYTES_MAX - SIGNATURE_BYTES)?;
        let bytes = Self::sign_body(&identity.secret, &body);
        Ok(Self {
            bytes,
            peer,
            issuer: issuer.map(|issuer| issuer.id),
            whereabouts,
            at,
        })
    }

    /// A card with any body, signed by `secret`: for tests of those who read cards.
    pub fn sign_body(secret: &OwnerSecret, body: &[u8]) -> Vec<u8> {
        let signature = secret.sign(&[DOMAIN, body].concat());
        [body, &signature].concat()
    }

    /// The bytes of the card, signature included.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The donor's key.
    pub const fn id(&self) -> OwnerId {
        self.peer.id
    }

    /// The donor's name, as its certificate has it.
    pub fn name(&self) -> &str {
        &self.peer.name
    }

    /// Where the donor was, as it announced it.
    pub const fn whereabouts(&self) -> &Whereabouts {
        &self.whereabouts
    }

    /// The registry that signed the donor's certificate; `None` if the authority did.
    pub const fn issuer(&self) -> Option<OwnerId> {
        self.issuer
    }

    /// When the donor signed the card, Unix seconds by its own clock.
    pub const fn at(&self) -> u64 {
        self.at
    }

    /// The day on which the donor signed the card, counted from 1970. Two cards of one day count as equal
    /// when registries and donors compare what they know.
    pub const fn day(&self) -> u32 {
        let day = self.at / 86_400;
        // The year 11,761,191 is late enough.
        if day > u32::MAX as u64 {
            u32::MAX
        } else {
            #[allow(
                clippy::cast_possible_truncation,
                reason = "was compared with the maximum"
            )]
            {
                day as u32
            }
        }
    }

    /// When the donor's certificate ends, Unix seconds.
    pub const fn certified_until(&self) -> u64 {
        self.peer.not_after
    }

    /// Whether `addr` is where the donor stated to be: its address or, if its IP address was unspecified,
    /// any address with its port.
    pub fn is_at(&self, addr: SocketAddr) -> bool {
        let own = self.whereabouts.addr;
        own == addr || (own.ip().is_unspecified() && own.port() == addr.port())
    }

    /// The donor's address, with `ip` if the donor stated an unspecified one.
    pub const fn addr_from(&self, ip: IpAddr) -> SocketAddr {
        let own = self.whereabouts.addr;
        if own.ip().is_unspecified() {
            SocketAddr::new(ip, own.port())
        } else {
            own
        }
    }

    /// Whether the key of the donor was revoked, or that of the registry which signed its certificate.
    pub fn is_revoked(&self, revoked: &Revocations) -> bool {
        let issuer = self.issuer.iter();
        issuer
            .chain([&self.peer.id])
            .any(|key| revoked.contains(key))
    }

    /// Whether the card is dated later than clocks may differ from `now`, Unix seconds.
    pub const fn is_early(&self, now: u64) -> bool {
        self.at > now.saturating_add(CARD_AHEAD_MAX_S)
    }

    /// Whether the donor is still known at `now`, Unix seconds: its certificate has not ended long ago.
    pub const fn is_current(&self, now: u64) -> bool {
        now <= self.peer.not_after.saturating_add(KNOWN_AFTER_END_S)
    }
}

impl std::fmt::Debug for MemberCard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemberCard")
            .field("id", &self.peer.id)
            .field("name", &self.peer.name)
            .field("addr", &self.whereabouts.addr)
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    use super::*;
    use crate::identity::{Authority, Enroller, Validity};
    use crate::wire::limits::PARTS_BYTES_MAX;

    const DAY: u64 = 86_400;

    fn validity(days: u64) -> Validity {
        Validity {
            from: DAY,
            lasting: Duration::from_secs(days * DAY),
        }
    }

    fn authority(seed: u8) -> Authority {
        let lasting = validity(1000);
        Authority::create(OwnerSecret::new([seed; 32]), &"g".repeat(63), lasting).unwrap()
    }

    /// A donor that joined with a token; registry and donor have the longest names.
    fn joined(lab: &Authority, roles: &[Role], role: Role) -> Identity {
        let secret = OwnerSecret::new([2; 32]);
        let registry = OwnerSecret::new([3; 32]);
        let enrol = lab.delegate(&"r".repeat(63), registry.id(), roles, validity(900));
        let enroller = Enroller::new(registry, enrol.unwrap());
        let name = "d".repeat(63);
        let certificate = enroller.sign(role, &name, secret.id(), validity(100));
        Identity {
            issuer: Some(enroller.certificate().clone()),
            ..Identity::new(secret, certificate.unwrap()).unwrap()
        }
    }

    fn donor(lab: &Authority) -> Identity {
        joined(lab, &[Role::Donor, Role::Submitter], Role::Donor)
    }

    fn whereabouts() -> Whereabouts {
        Whereabouts {
            addr: "[2001:db8::1]:7600".parse().unwrap(),
            site: Some("s".repeat(63)),
            owner: Some("o".repeat(63)),
        }
    }

    fn read(lab: &Authority, bytes: &[u8]) -> Result<MemberCard, CardError> {
        CardVerifier::new(lab.certificate()).unwrap().read(bytes)
    }

    #[test]
    fn the_longest_card_comes_back_and_fits_into_an_announcement() {
        let lab = authority(1);
        let card = MemberCard::sign(&donor(&lab), whereabouts(), 5 * DAY + 7).unwrap();
        assert!(
            card.bytes().len() <= PARTS_BYTES_MAX,
            "{}",
            card.bytes().len()
        );
        let back = read(&lab, card.bytes()).unwrap();
        assert_eq!(back, card);
        assert_eq!((back.name().len(), back.day()), (63, 5));
        assert_eq!(back.certified_until(), 101 * DAY);
        assert_eq!(back.whereabouts(), &whereabouts());
        assert!(back.is_current(191 * DAY) && !back.is_current(191 * DAY + 1));
        assert!(!back.is_early(4 * DAY + 7) && back.is_early(4 * DAY + 6));
    }

    #[test]
    fn a_card_counts_for_its_grid_role_and_time_only() {
        let lab = authority(1);
        let other = authority(9);
        let sign = |who: &Identity, at| MemberCard::sign(who, whereabouts(), at);
        let card = sign(&donor(&lab), 5 * DAY).unwrap();
        let elsewhere = read(&other, card.bytes());
        assert!(
            matches!(elsewhere, Err(CardError::Chain(_))),
            "{elsewhere:?}"
        );
        // Signed when the certificate had ended.
        let late = sign(&donor(&lab), 102 * DAY).unwrap();
        assert!(matches!(read(&lab, late.bytes()), Err(CardError::Chain(_))));
        // A submitter makes no card, and a registry that may certify submitters only makes no donor.
        let ada = joined(&lab, &[Role::Donor, Role::Submitter], Role::Submitter);
        assert_eq!(sign(&ada, 5 * DAY), Err(CardError::NoDonor));
        let forged = sign(&joined(&lab, &[Role::Submitter], Role::Donor), 5 * DAY).unwrap();
        assert!(matches!(
            read(&lab, forged.bytes()),
            Err(CardError::Chain(_))
        ));
        let mut labels = whereabouts();
        labels.site = Some("\u{1b}[2J".into());
        let card = MemberCard::sign(&donor(&lab), labels, 5 * DAY).unwrap();
        assert_eq!(read(&lab, card.bytes()), Err(CardError::Label("site")));
    }

    #[test]
    fn the_registry_that_certified_a_donor_may_be_revoked_too() {
        let lab = authority(1);
        let card = MemberCard::sign(&donor(&lab), whereabouts(), 5 * DAY).unwrap();
        let none = Revocations::default();
        assert!(!card.is_revoked(&none));
        for key in [[2; 32], [3; 32]] {
            let keys = BTreeSet::from([OwnerSecret::new(key).id()]);
            assert!(card.is_revoked(&lab.revoke(&none, keys).unwrap()));
        }
    }

    #[test]
    fn only_an_unspecified_address_is_filled_in() {
        let lab = authority(1);
        let at = |addr: &str| {
            let addr = addr.parse().unwrap();
            let whereabouts = Whereabouts {
                addr,
                ..whereabouts()
            };
            MemberCard::sign(&donor(&lab), whereabouts, 5 * DAY).unwrap()
        };
        let is_at = |card: &MemberCard, addr: &str| card.is_at(addr.parse().unwrap());
        let open = at("0.0.0.0:7600");
        assert!(is_at(&open, "10.0.0.1:7600") && !is_at(&open, "10.0.0.1:7601"));
        assert_eq!(
            open.addr_from([10, 0, 0, 1].into()).to_string(),
            "10.0.0.1:7600"
        );
        let fixed = at("10.0.0.2:7600");
        assert!(is_at(&fixed, "10.0.0.2:7600") && !is_at(&fixed, "10.0.0.1:7600"));
        assert_eq!(
            fixed.addr_from([10, 0, 0, 1].into()).to_string(),
            "10.0.0.2:7600"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// No byte of a card can be changed, left out or added.
        #[test]
        fn a_changed_card_is_refused(at in any::<prop::sample::Index>(), bit in 0..8_u8, cut in 0..3_u8) {
            let lab = authority(1);
            let card = MemberCard::sign(&donor(&lab), whereabouts(), 5 * DAY).unwrap();
            let mut bytes = card.bytes().to_vec();
            match cut {
                0 => { bytes.remove(at.index(card.bytes().len())); }
                1 => bytes.insert(at.index(card.bytes().len()), bit),
                _ => bytes[at.index(card.bytes().len())] ^= 1 << bit,
            }
            prop_assume!(bytes != card.bytes());
            prop_assert!(read(&lab, &bytes).is_err());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
            prop_assert!(read(&authority(1), &bytes).is_err());
        }
    }
}
