//! Job keys as text. One file has all that the machine of a job needs beside the grid file:
//!
//! ```text
//! ckpt-job-key-v1 HEXADECIMAL          the keys (codec::keys::JobKeys)
//! -----BEGIN CERTIFICATE----- ...      certificate of the job key, signed by its owner
//! -----BEGIN CERTIFICATE----- ...      certificate of the owner
//! -----BEGIN CERTIFICATE----- ...      certificate of the registry that signed the owner's, if one did
//! ```

use codec::keys::{JOB_KEYS_BYTES_MAX, JobKeys, JobKeysError, Keys};
use zeroize::Zeroizing;

use super::peer::{certificate_to_pem, certificates_from_pem};
use super::{Identity, PeerError, Role};

const PREFIX: &str = "ckpt-job-key-v1 ";

/// Most bytes that are read of such a file; it is always shorter.
pub const JOB_KEY_FILE_BYTES_MAX: usize = 2 * JOB_KEYS_BYTES_MAX + (32 << 10);

/// Why a text is no job key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobKeyTextError {
    /// The text has another form.
    #[error(
        "not a job key: `{PREFIX}`, hexadecimal digits and two or three certificates are expected"
    )]
    Form,
    /// The keys can't be read.
    #[error(transparent)]
    Keys(#[from] JobKeysError),
    /// A certificate can't be read.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The certificates are for other keys.
    #[error("the certificates do not belong to the key")]
    OtherKey,
}

/// Whether a text begins as that of a job key.
pub fn is_job_key(text: &str) -> bool {
    text.starts_with(PREFIX)
}

/// The text of a job key, which is secret; `None` for a member's own identity.
///
/// # Errors
/// When the keys can't be encoded.
pub fn job_key_to_text(identity: &Identity) -> Result<Option<Zeroizing<String>>, JobKeysError> {
    let Some(keys) = &identity.job else {
        return Ok(None);
    };
    let bytes = keys.encode()?;
    // Enough capacity from the beginning: a string that grows leaves copies of the secret in memory.
    let mut text = Zeroizing::new(String::with_capacity(JOB_KEY_FILE_BYTES_MAX));
    text.push_str(PREFIX);
    for byte in bytes.iter() {
        text.extend(
            [byte >> 4, byte & 15].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])),
        );
    }
    text.push('\n');
    for certificate in identity.chain() {
        text.push_str(&certificate_to_pem(&certificate));
    }
    Ok(Some(text))
}

/// Reads what [`job_key_to_text`] writes.
///
/// # Errors
/// When the text is something else, or its parts do not belong together.
pub fn job_key_from_text(text: &str) -> Result<Identity, JobKeyTextError> {
    let rest = text.strip_prefix(PREFIX).ok_or(JobKeyTextError::Form)?;
    let (digits, pem) = rest.split_once('\n').ok_or(JobKeyTextError::Form)?;
    let bytes = bytes_of_hex(digits.trim_end()).ok_or(JobKeyTextError::Form)?;
    let keys = JobKeys::decode(&bytes)?;
    let mut chain = certificates_from_pem(pem)?.into_iter();
    let (Some(certificate), Some(owners)) = (chain.next(), chain.next()) else {
        return Err(JobKeyTextError::Form);
    };
    let above = chain.next();
    if chain.next().is_some() {
        return Err(JobKeyTextError::Form);
    }
    let identity = Identity {
        secret: Keys::from(keys.clone()).identity().clone(),
        certificate,
        issuer: Some(owners),
        above,
        job: Some(Box::new(keys)),
    };
    let peer = identity.peer()?;
    let grant = identity.job.as_ref().map(|keys| keys.grant());
    let is_own = peer.id == identity.secret.id() && peer.grant.as_deref() == grant;
    if is_own && peer.has(Role::Submitter) {
        Ok(identity)
    } else {
        Err(JobKeyTextError::OtherKey)
    }
}

fn bytes_of_hex(digits: &str) -> Option<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(digits.len() / 2));
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    for [high, low] in pairs {
        let value = |digit: &u8| char::from(*digit).to_digit(16);
        bytes.push((value(high)? << 4 | value(low)?) as u8);
    }
    rest.is_empty().then_some(bytes)
}
