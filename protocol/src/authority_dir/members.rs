//! The record of all certificates that an authority signed.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use codec::{CheckpointId, OwnerId};
use serde::{Deserialize, Serialize};

use super::{AuthorityDirError, at};
use crate::identity::{Role, is_name, replace_public};

/// Most bytes of a record.
pub const MEMBERS_BYTES_MAX: u64 = 64 << 20;

/// A certificate that was signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    /// Name of the member.
    pub name: String,
    /// Public key of the member.
    pub key: OwnerId,
    /// Roles of the member.
    pub roles: Vec<Role>,
    /// When the certificate was signed, Unix seconds.
    pub issued: u64,
    /// When the certificate ends, Unix seconds.
    pub expires: u64,
    /// When the key was revoked, Unix seconds.
    pub revoked: Option<u64>,
    /// The number of the token with which the member joined, if a registry signed the certificate. Then the
    /// name is as the registry reported it.
    pub token: Option<[u8; 16]>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    #[serde(default)]
    certificates: Vec<IssuedText>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IssuedText {
    name: String,
    key: String,
    roles: Vec<String>,
    issued: u64,
    expires: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revoked: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

impl IssuedText {
    fn read(self) -> Result<Issued, String> {
        let name = self.name;
        if !is_name(&name) {
            return Err(format!("{name:?} is not a valid name"));
        }
        let key = OwnerId::from_hex(&self.key)
            .ok_or_else(|| format!("{name}: key is not 64 hexadecimal digits"))?;
        let role = |role: &String| {
            Role::from_name(role).ok_or_else(|| format!("{name}: {role:?} is not a role"))
        };
        let token = self.token.as_deref().map(|token| {
            let number = CheckpointId::from_hex(token).map(|number| number.0);
            number.ok_or_else(|| format!("{name}: token is not 32 hexadecimal digits"))
        });
        let roles = self.roles.iter().map(role).collect::<Result<_, _>>()?;
        Ok(Issued {
            name,
            key,
            roles,
            issued: self.issued,
            expires: self.expires,
            revoked: self.revoked,
            token: token.transpose()?,
        })
    }

    fn write(issued: &Issued) -> Self {
        Self {
            name: issued.name.clone(),
            key: issued.key.hex(),
            roles: issued.roles.iter().map(Role::to_string).collect(),
            issued: issued.issued,
            expires: issued.expires,
            revoked: issued.revoked,
            token: issued.token.map(|token| CheckpointId(token).hex()),
        }
    }
}

/// Reads the text of a record.
///
/// # Errors
/// A description of the mistake.
pub fn parse_members(text: &str) -> Result<Vec<Issued>, String> {
    let file: FileText = toml::from_str(text).map_err(|cause| cause.message().to_owned())?;
    file.certificates
        .into_iter()
        .map(IssuedText::read)
        .collect()
}

/// The text of a record.
///
/// # Errors
/// When a value can't be written as TOML.
pub(super) fn to_text(issued: &[Issued]) -> Result<String, String> {
    let certificates = issued.iter().map(IssuedText::write).collect();
    toml::to_string(&FileText { certificates }).map_err(|cause| cause.to_string())
}

/// Reads a record. No file means that nothing was signed yet.
pub(super) fn load(path: &Path) -> Result<Vec<Issued>, AuthorityDirError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(at(path)(cause)),
    };
    let malformed = |what| AuthorityDirError::Members {
        path: path.to_owned(),
        what,
    };
    if fs::metadata(path).map_err(at(path))?.len() > MEMBERS_BYTES_MAX {
        return Err(malformed(format!("larger than {MEMBERS_BYTES_MAX} bytes")));
    }
    let mut text = String::new();
    file.take(MEMBERS_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(at(path))?;
    parse_members(&text).map_err(malformed)
}

pub(super) fn save(path: &Path, issued: &[Issued]) -> Result<(), AuthorityDirError> {
    let text = to_text(issued).map_err(|what| AuthorityDirError::Members {
        path: path.to_owned(),
        what,
    })?;
    replace_public(path, text.as_bytes()).map_err(at(path))
}
