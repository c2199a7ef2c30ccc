//! Tokens with which a machine joins a grid by itself: signed by the authority, good for one donor
//! and for some time, redeemed at a registry.
//!
//! ```text
//! ckpt-join-v1/GRID/REGISTRY/ADDRESS/EXPIRES/NONCE/SIGNATURE
//! ```
//!
//! Grid id and registry's key in hexadecimal, address with port, Unix seconds, 16 bytes and the
//! Ed25519 signature of all that is before it in hexadecimal. Who has the token can become a donor; it
//! is to be passed on like a password.

use std::net::SocketAddr;

use codec::OwnerId;
use rustls_pki_types::CertificateDer;

use super::{Authority, GridId, HostId, Peer};

const PREFIX: &str = "ckpt-join-v1";

/// Longest text of a token.
const TOKEN_BYTES_MAX: usize = 512;

/// A token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinToken {
    /// The grid.
    pub grid: GridId,
    /// The registry that redeems it: nobody else can pretend to.
    pub registry: HostId,
    /// Where that registry listens.
    pub addr: SocketAddr,
    /// When it ends, Unix seconds.
    pub expires: u64,
    /// Names the token: each is redeemed once.
    pub nonce: [u8; 16],
    signature: [u8; 64],
}

/// A token that is not redeemed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinTokenError {
    /// Not a token.
    #[error("that is no join token: they begin with {PREFIX}/")]
    Malformed,
    /// Of another grid.
    #[error("the token is of another grid")]
    OtherGrid,
    /// Not signed by the authority.
    #[error("the token is not signed by the grid's authority")]
    Signature,
    /// Too late.
    #[error("the token has expired; the grid's admin makes a new one: ckpt grid invite")]
    Expired,
}

impl JoinToken {
    /// Signs a token.
    pub fn sign(
        authority: &Authority,
        registry: HostId,
        addr: SocketAddr,
        expires: u64,
        nonce: [u8; 16],
    ) -> Self {
        let mut token = Self {
            grid: GridId::of(authority.certificate()),
            registry,
            addr,
            expires,
            nonce,
            signature: [0; 64],
        };
        token.signature = authority.secret().sign(token.body().as_bytes());
        token
    }

    fn body(&self) -> String {
        let (grid, registry) = (OwnerId(self.grid.0).hex(), self.registry.hex());
        let nonce = codec::CheckpointId(self.nonce).hex();
        let (addr, expires) = (self.addr, self.expires);
        format!("{PREFIX}/{grid}/{registry}/{addr}/{expires}/{nonce}/")
    }

    /// Its text.
    pub fn to_text(&self) -> String {
        let (halves, _) = self.signature.as_chunks::<32>();
        let signature: String = halves.iter().map(|half| OwnerId(*half).hex()).collect();
        self.body() + &signature
    }

    /// Reads a text.
    ///
    /// # Errors
    /// When it is no token.
    pub fn parse(text: &str) -> Result<Self, JoinTokenError> {
        Self::read(text.trim()).ok_or(JoinTokenError::Malformed)
    }

    fn read(text: &str) -> Option<Self> {
        if text.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let mut parts = text.split('/');
        if parts.next() != Some(PREFIX) {
            return None;
        }
        let grid = OwnerId::from_hex(parts.next()?)?;
        let registry = HostId::from_hex(parts.next()?)?;
        let addr = parts.next()?.parse().ok()?;
        let expires = parts.next()?.parse().ok()?;
        let nonce = codec::CheckpointId::from_hex(parts.next()?)?.0;
        let (first, second) = parts.next()?.split_at_checked(64)?;
        let halves = [OwnerId::from_hex(first)?.0, OwnerId::from_hex(second)?.0];
        let token = Self {
            grid: GridId(grid.0),
            registry,
            addr,
            expires,
            nonce,
            signature: halves.as_flattened().try_into().ok()?,
        };
        // One text for each token: what was redeemed can't come again in other letters.
        (parts.next().is_none() && token.to_text() == text).then_some(token)
    }

    /// Checks that the authority signed it and that it has not ended.
    ///
    /// # Errors
    /// When it is not to be redeemed; the error says why.
    pub fn check(&self, authority: &CertificateDer<'_>, now: u64) -> Result<(), JoinTokenError> {
        if GridId::of(authority) != self.grid {
            return Err(JoinTokenError::OtherGrid);
        }
        let signer = Peer::from_certificate(authority).map_err(|_| JoinTokenError::Signature)?;
        if !signer.id.verify(self.body().as_bytes(), &self.signature) {
            return Err(JoinTokenError::Signature);
        }
        if now > self.expires {
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
        let registry = HostId(OwnerId([7; 32]));
        JoinToken::sign(
            authority,
            registry,
            ([10, 0, 0, 1], 7600).into(),
            1000,
            [3; 16],
        )
    }

    #[test]
    fn a_token_is_good_for_its_grid_and_time() {
        let (lab, other) = (authority(1), authority(2));
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
    fn nothing_in_it_can_be_changed() {
        let lab = authority(1);
        let text = token(&lab).to_text();
        for (from, to) in [
            ("/1000/", "/9000/"),
            ("10.0.0.1", "10.0.0.2"),
            ("0707", "0708"),
        ] {
            let changed = JoinToken::parse(&text.replacen(from, to, 1)).unwrap();
            let refused = changed.check(lab.certificate(), 1000);
            assert_eq!(refused, Err(JoinTokenError::Signature), "{from}");
        }
        let upper = text
            .to_ascii_uppercase()
            .replacen("CKPT-JOIN-V1", PREFIX, 1);
        assert_eq!(JoinToken::parse(&upper), Err(JoinTokenError::Malformed));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(ckpt-join-v1/)?[0-9a-f/:.]{0,400}") {
            let _ = JoinToken::parse(&text);
        }
    }
}
