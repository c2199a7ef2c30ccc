//! The list of revoked keys, signed by the authority.

use std::collections::BTreeSet;

use codec::OwnerId;
use rustls_pki_types::CertificateDer;

use super::{Authority, GridId, Peer};

/// Most keys in a list.
pub const REVOKED_KEYS_MAX: usize = 1 << 16;

/// The beginning of the bytes that are signed. No certificate begins so.
const CONTEXT: &[u8; 16] = b"ckpt v1 revoked ";

/// The keys that the authority revoked. A list with a higher number replaces one with a lower number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revocations {
    number: u64,
    keys: BTreeSet<OwnerId>,
    /// `None` only for the list with which every grid begins: number 0, no keys.
    signature: Option<[u8; 64]>,
}

/// Why a list of revoked keys is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RevocationError {
    /// The list is too long.
    #[error("list of revoked keys has {0} keys, more than {REVOKED_KEYS_MAX}")]
    TooMany(usize),
    /// The grid's authority did not sign the list.
    #[error("list of revoked keys (number {0}) is not signed by the grid's authority")]
    Signature(u64),
}

impl Revocations {
    /// Checks a list that was read, of the grid with this authority.
    ///
    /// # Errors
    /// When the authority has not signed the list, or it is too long.
    pub fn check(
        authority: &CertificateDer<'_>,
        number: u64,
        keys: BTreeSet<OwnerId>,
        signature: [u8; 64],
    ) -> Result<Self, RevocationError> {
        if keys.len() > REVOKED_KEYS_MAX {
            return Err(RevocationError::TooMany(keys.len()));
        }
        let signer =
            Peer::from_certificate(authority).map_err(|_| RevocationError::Signature(number))?;
        let message = message(GridId::of(authority), number, &keys);
        if !signer.id.verify(&message, &signature) {
            return Err(RevocationError::Signature(number));
        }
        Ok(Self {
            number,
            keys,
            signature: Some(signature),
        })
    }

    /// Whether this key is revoked.
    pub fn contains(&self, key: &OwnerId) -> bool {
        self.keys.contains(key)
    }

    /// Number of the list: how many lists the authority has made for this grid.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// All keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &OwnerId> {
        self.keys.iter()
    }

    /// The authority's signature; `None` for the list with which every grid begins.
    pub const fn signature(&self) -> Option<&[u8; 64]> {
        self.signature.as_ref()
    }
}

impl Authority {
    /// Signs the list that follows `current`, with these keys.
    ///
    /// # Errors
    /// When there are too many keys.
    pub fn revoke(
        &self,
        current: &Revocations,
        keys: BTreeSet<OwnerId>,
    ) -> Result<Revocations, RevocationError> {
        if keys.len() > REVOKED_KEYS_MAX {
            return Err(RevocationError::TooMany(keys.len()));
        }
        let number = current.number.saturating_add(1);
        let message = message(GridId::of(self.certificate()), number, &keys);
        Ok(Revocations {
            number,
            signature: Some(self.secret().sign(&message)),
            keys,
        })
    }
}

fn message(grid: GridId, number: u64, keys: &BTreeSet<OwnerId>) -> Vec<u8> {
    let mut message = CONTEXT.to_vec();
    message.extend_from_slice(&grid.0);
    message.extend_from_slice(&number.to_le_bytes());
    for key in keys {
        message.extend_from_slice(&key.0);
    }
    message
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use codec::seal::OwnerSecret;

    use super::*;
    use crate::identity::Validity;

    fn authority(seed: u8) -> Authority {
        let validity = Validity {
            from: 1_800_000_000,
            lasting: Duration::from_secs(3600),
        };
        Authority::create(OwnerSecret::new([seed; 32]), "lab", validity).unwrap()
    }

    fn keys(of: &[u8]) -> BTreeSet<OwnerId> {
        of.iter().map(|byte| OwnerId([*byte; 32])).collect()
    }

    #[test]
    fn a_list_is_believed_only_as_the_authority_signed_it() {
        let lab = authority(1);
        let list = lab.revoke(&Revocations::default(), keys(&[3, 4])).unwrap();
        assert_eq!(list.number(), 1);
        assert!(list.contains(&OwnerId([3; 32])) && !list.contains(&OwnerId([5; 32])));
        let signature = *list.signature().unwrap();
        let check = |authority: &Authority, number, of: &[u8]| {
            Revocations::check(authority.certificate(), number, keys(of), signature)
        };
        assert_eq!(check(&lab, 1, &[3, 4]), Ok(list.clone()));
        assert_eq!(
            check(&lab, 2, &[3, 4]),
            Err(RevocationError::Signature(2)),
            "another number"
        );
        assert_eq!(check(&lab, 1, &[3]), Err(RevocationError::Signature(1)));
        assert_eq!(
            check(&lab, 1, &[3, 4, 5]),
            Err(RevocationError::Signature(1))
        );
        assert_eq!(
            check(&authority(2), 1, &[3, 4]),
            Err(RevocationError::Signature(1)),
            "another authority"
        );
    }

    #[test]
    fn lists_are_counted() {
        let lab = authority(1);
        let first = lab.revoke(&Revocations::default(), keys(&[3])).unwrap();
        let second = lab.revoke(&first, keys(&[])).unwrap();
        assert_eq!(second.number(), 2);
        assert_eq!(second.keys().count(), 0);
    }
}
