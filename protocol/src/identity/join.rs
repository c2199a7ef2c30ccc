//! Join tokens. The authority signs a token, and with it one machine can join the grid as a donor or a
//! submitter, at a registry and until the token ends.
//!
//! ```text
//! ckpt-join-v2/ROLE/GRID/REGISTRY/ADDRESS/LIST/EXPIRES/NONCE/SIGNATURE
//! ```
//!
//! `ROLE` is `donor` or `submitter`; `GRID` the grid id and `REGISTRY` the registry's public key, both in
//! hexadecimal; `ADDRESS` an IP address with port; `LIST` the number of the grid's list; `EXPIRES` Unix
//! seconds; `NONCE` 16 bytes and `SIGNATURE` the Ed25519 signature of all text before it, both in
//! hexadecimal.
//!
//! Anybody who has a token can become a member, so a token has to be kept like a password.

use std::net::SocketAddr;

use codec::OwnerId;
use rustls_pki_types::CertificateDer;

use super::{Authority, GridId, HostId, Peer, Role};

const PREFIX: &str = "ckpt-join-v2/";

/// Most bytes of the text of a token.
const TOKEN_BYTES_MAX: usize = 512;

/// The role that a token gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRole {
    /// A host that lends disk space.
    Donor,
    /// A submitter, who saves and restores.
    Submitter,
}

impl TokenRole {
    /// The role in the certificate.
    pub const fn role(self) -> Role {
        match self {
            Self::Donor => Role::Donor,
            Self::Submitter => Role::Submitter,
        }
    }

    /// The role with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Donor, Self::Submitter];
        all.into_iter().find(|one| one.role().name() == name)
    }
}

/// The content of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenTerms {
    /// The registry that redeems the token. The machine connects to the holder of this key only.
    pub registry: HostId,
    /// Address of that registry.
    pub addr: SocketAddr,
    /// The role that the token gives.
    pub role: TokenRole,
    /// Number of the grid's list when the token was made. The machine accepts no older list.
    pub list: u64,
    /// When the token ends, Unix seconds.
    pub expires: u64,
    /// Identifies the token, so that the registry redeems it only once.
    pub nonce: [u8; 16],
}

/// A join token. The registry makes the first machine or person that shows it a member of the grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinToken {
    /// The grid to which it admits.
    pub grid: GridId,
    /// The content of the token.
    pub terms: TokenTerms,
    signature: [u8; 64],
}

/// Why a token is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinTokenError {
    /// The text does not begin as a token does.
    #[error("that is not a join token: tokens begin with {PREFIX}donor/ or {PREFIX}submitter/")]
    Malformed,
    /// The text begins as a token does, and the rest is malformed.
    #[error(
        "the join token is incomplete or has extra characters: copy all of it and nothing else"
    )]
    Damaged,
    /// The token is of another grid.
    #[error("the token is for another grid")]
    OtherGrid,
    /// The authority did not sign the token.
    #[error("the token is not signed by the grid's authority")]
    Signature,
    /// The token has ended.
    #[error("the token has expired; ask the grid's admin for a new one: ckpt grid invite")]
    Expired,
}

impl JoinToken {
    /// A token with these terms, signed by the authority.
    pub fn sign(authority: &Authority, terms: TokenTerms) -> Self {
        let mut token = Self {
            grid: GridId::of(authority.certificate()),
            terms,
            signature: [0; 64],
        };
        token.signature = authority.secret().sign(token.body().as_bytes());
        token
    }

    fn body(&self) -> String {
        let TokenTerms {
            registry,
            addr,
            role,
            list,
            expires,
            nonce,
        } = self.terms;
        let grid = OwnerId(self.grid.0).hex();
        let registry = registry.hex();
        let nonce = codec::CheckpointId(nonce).hex();
        let role = role.role();
        format!("{PREFIX}{role}/{grid}/{registry}/{addr}/{list}/{expires}/{nonce}/")
    }

    /// The text of the token.
    pub fn to_text(&self) -> String {
        self.body() + &codec::hex::encode(&self.signature)
    }

    /// Reads the text of a token. The signature is not checked: see [`Self::check`].
    ///
    /// # Errors
    /// When the text is no token.
    pub fn parse(text: &str) -> Result<Self, JoinTokenError> {
        let text = text.trim();
        let rest = text.strip_prefix(PREFIX).ok_or(JoinTokenError::Malformed)?;
        let read = Self::read(rest).filter(|token| token.to_text() == text);
        // Each token has exactly one text, so a redeemed token can't be used again in other letters.
        read.filter(|_| text.len() <= TOKEN_BYTES_MAX)
            .ok_or(JoinTokenError::Damaged)
    }

    fn read(text: &str) -> Option<Self> {
        if text.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let mut parts = text.split('/');
        let role = TokenRole::from_name(parts.next()?)?;
        let grid = OwnerId::from_hex(parts.next()?)?;
        let registry = HostId::from_hex(parts.next()?)?;
        let addr = parts.next()?.parse().ok()?;
        let list = parts.next()?.parse().ok()?;
        let expires = parts.next()?.parse().ok()?;
        let nonce = codec::CheckpointId::from_hex(parts.next()?)?.0;
        let signature = codec::hex::decode_exact(parts.next()?)?;
        let token = Self {
            grid: GridId(grid.0),
            terms: TokenTerms {
                registry,
                addr,
                role,
                list,
                expires,
                nonce,
            },
            signature,
        };
        parts.next().is_none().then_some(token)
    }

    /// Checks that the authority signed the token and that it has not ended at `now`, Unix seconds.
    ///
    /// # Errors
    /// When the token must not be redeemed.
    pub fn check(&self, authority: &CertificateDer<'_>, now: u64) -> Result<(), JoinTokenError> {
        if GridId::of(authority) != self.grid {
            return Err(JoinTokenError::OtherGrid);
        }
        let signer = Peer::from_certificate(authority).map_err(|_| JoinTokenError::Signature)?;
        if !signer.id.verify(self.body().as_bytes(), &self.signature) {
            return Err(JoinTokenError::Signature);
        }
        if now > self.terms.expires {
            return Err(JoinTokenError::Expired);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use codec::seal::OwnerSecret;
    use proptest::prelude::*;

    use super::*;
    use crate::identity::Validity;

    fn authority(seed: u8) -> Authority {
        let validity = Validity {
            from: 0,
            lasting: Duration::from_secs(1 << 32),
        };
        Authority::create(OwnerSecret::new([seed; 32]), "lab", validity).unwrap()
    }

    fn token(authority: &Authority) -> JoinToken {
        let terms = TokenTerms {
            registry: HostId(OwnerId([7; 32])),
            addr: ([10, 0, 0, 1], 7600).into(),
            role: TokenRole::Donor,
            list: 44,
            expires: 1000,
            nonce: [3; 16],
        };
        JoinToken::sign(authority, terms)
    }

    #[test]
    fn the_fault_of_a_wrong_token_is_named() {
        let text = token(&authority(1)).to_text();
        for damaged in [format!("{text}0"), text[..text.len() - 1].to_owned()] {
            assert_eq!(JoinToken::parse(&damaged), Err(JoinTokenError::Damaged));
        }
        for none in ["ckpt-pub-v1 12", "ckpt-join-v1/12"] {
            assert_eq!(JoinToken::parse(none), Err(JoinTokenError::Malformed));
        }
    }

    #[test]
    fn a_token_is_good_for_its_grid_and_time() {
        let lab = authority(1);
        let other = authority(2);
        let token = token(&lab);
        let read = JoinToken::parse(&format!(" {}\n", token.to_text())).unwrap();
        assert_eq!(read, token);
        assert_eq!(read.check(lab.certificate(), 1000), Ok(()));
        let late = read.check(lab.certificate(), 1001);
        assert_eq!(late, Err(JoinTokenError::Expired));
        let elsewhere = read.check(other.certificate(), 1000);
        assert_eq!(elsewhere, Err(JoinTokenError::OtherGrid));
    }

    #[test]
    fn no_byte_of_a_token_can_be_changed() {
        let lab = authority(1);
        let text = token(&lab).to_text();
        for (from, to) in [
            ("/1000/", "/9000/"),
            ("/44/", "/45/"),
            ("/donor/", "/submitter/"),
            ("10.0.0.1", "10.0.0.2"),
            ("0707", "0708"),
        ] {
            let changed = JoinToken::parse(&text.replacen(from, to, 1)).unwrap();
            let refused = changed.check(lab.certificate(), 1000);
            assert_eq!(refused, Err(JoinTokenError::Signature), "{from}");
        }
        let upper = text.to_ascii_uppercase();
        let upper = upper.replacen("CKPT-JOIN-V2/DONOR/", "ckpt-join-v2/donor/", 1);
        assert_eq!(JoinToken::parse(&upper), Err(JoinTokenError::Damaged));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(ckpt-join-v2/(donor/)?)?[0-9a-f/:.]{0,400}") {
            let _ = JoinToken::parse(&text);
        }
    }
}
