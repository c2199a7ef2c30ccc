//! The extension of a job key's certificate that has the grant.

use codec::grant::{GRANT_BYTES_MAX, Grant};
use rcgen::CustomExtension;
use rustls_pki_types::CertificateDer;
use x509_parser::asn1_rs::Oid;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Object identifier of the extension with the grant. Below 2.25, anybody may use a random number (ITU-T
/// X.667).
const GRANT_OID: [u64; 3] = [2, 25, 5_868_236_471_925_204_393];

/// DER tag of a string of bytes.
const OCTET_STRING: u8 = 4;

/// The extension for a certificate.
pub(super) fn extension_with(grant: &Grant) -> CustomExtension {
    let mut extension = CustomExtension::from_oid_content(&GRANT_OID, octets(grant.bytes()));
    extension.set_criticality(true);
    extension
}

/// The grant in a certificate, with its signature checked; `None` if the certificate has none.
///
/// # Errors
/// A text that says what is wrong: the certificate can't be read, or its extension has no valid grant.
pub(super) fn grant_in(certificate: &CertificateDer<'_>) -> Result<Option<Grant>, String> {
    let malformed = |cause: &dyn std::fmt::Display| cause.to_string();
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|e| malformed(&e))?;
    let oid = Oid::from(&GRANT_OID).map_err(|e| malformed(&format!("{e:?}")))?;
    let found = parsed
        .get_extension_unique(&oid)
        .map_err(|e| malformed(&e))?;
    let Some(extension) = found else {
        return Ok(None);
    };
    let inner = match extension.value {
        [OCTET_STRING, 0x82, _, _, inner @ ..] | [OCTET_STRING, 0x81, _, inner @ ..] => inner,
        [OCTET_STRING, _, inner @ ..] => inner,
        _ => return Err("extension of a grant".into()),
    };
    if octets(inner) != extension.value || !extension.critical {
        return Err("extension of a grant".into());
    }
    Grant::parse(inner).map(Some).map_err(|e| malformed(&e))
}

/// The DER encoding of a string of at most [`GRANT_BYTES_MAX`] bytes.
fn octets(bytes: &[u8]) -> Vec<u8> {
    const _: () = assert!(GRANT_BYTES_MAX <= u16::MAX as usize);
    let [low, high] = u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_le_bytes();
    let head: &[u8] = match (high, low) {
        (0, 0..=0x7f) => &[OCTET_STRING, low],
        (0, _) => &[OCTET_STRING, 0x81, low],
        _ => &[OCTET_STRING, 0x82, high, low],
    };
    [head, bytes].concat()
}
