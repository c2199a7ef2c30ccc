//! Why a certificate is not accepted: TLS alerts and errors as reasons on which people can act.
//!
//! TLS alerts travel as QUIC crypto errors (RFC 9001, section 4.8); the numbers are those of
//! RFC 8446, section 6.2.

use quinn::{TransportErrorCode, VarInt};
use rustls::CertificateError;

use super::close::{EXPIRED, NOT_ALLOWED, REVOKED};
use crate::wire::escaped;

/// Why a certificate is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateFault {
    /// Another authority signed it.
    #[error("signed by the authority of another grid; compare the grid files of both sides")]
    OtherAuthority,
    /// The certificate does not have the role that is needed.
    #[error("it lacks the role that is needed; ask the grid's admin to sign it for that role")]
    Role,
    /// The certificate has expired, or is not valid yet.
    #[error(
        "expired or not valid yet; ask the grid's admin to renew it, or set the clocks of both sides"
    )]
    Expired,
    /// The authority revoked the key.
    #[error("revoked by the grid's authority; ask its admin")]
    Revoked,
    /// No certificate was shown.
    #[error("no certificate was sent")]
    Missing,
    /// Another reason, in the words of TLS.
    #[error("{0}")]
    Other(String),
}

impl CertificateFault {
    /// The reason in an error of TLS.
    pub(super) fn of_error(cause: &rustls::Error) -> Self {
        let rustls::Error::InvalidCertificate(cause) = cause else {
            return Self::Other(cause.to_string());
        };
        match cause {
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => Self::Expired,
            CertificateError::Revoked => Self::Revoked,
            // `BadSignature`: the issuer has the authority's name and another key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                Self::OtherAuthority
            }
            other => Self::Other(other.to_string()),
        }
    }

    /// The code with which a connection is closed for this reason.
    pub const fn close_code(&self) -> VarInt {
        match self {
            Self::Revoked => REVOKED,
            Self::Expired => EXPIRED,
            _ => NOT_ALLOWED,
        }
    }

    /// The reason in a TLS alert; `None` if the alert is not about a certificate.
    pub(super) fn of_alert(code: TransportErrorCode, reason: &str) -> Option<Self> {
        const CRYPTO_ERRORS: u64 = 0x100;
        match u64::from(code).checked_sub(CRYPTO_ERRORS)? {
            // bad_certificate: the DNS name, which stands for the role, does not match, or the
            // certificate can't be read.
            42 => Some(Self::Role),
            44 => Some(Self::Revoked),
            45 => Some(Self::Expired),
            // unknown_ca; decrypt_error: the issuer has the authority's name and another key.
            48 | 51 => Some(Self::OtherAuthority),
            116 => Some(Self::Missing),
            // unsupported_certificate, certificate_unknown, access_denied.
            43 | 46 | 49 => Some(Self::Other(escaped(reason))),
            _ => None,
        }
    }
}

/// Whether an error code means that the two sides have no protocol version in common.
pub(super) fn is_no_protocol(code: TransportErrorCode) -> bool {
    const NO_APPLICATION_PROTOCOL: u8 = 120;
    code == TransportErrorCode::crypto(NO_APPLICATION_PROTOCOL)
}
