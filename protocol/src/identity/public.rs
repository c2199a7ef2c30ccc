//! The public part of a member's key, which goes to the authority to be certified.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use codec::OwnerId;

use super::files::replace_public;
use super::is_name;

const PREFIX: &str = "ckpt-pub-v1";

/// Most bytes that are read of such a file; it is always shorter.
const FILE_BYTES_MAX: u64 = 512;

/// A public key and the name that its holder would like to have. Nothing in it is secret, and it proves
/// nothing: the authority's admin has to make sure of its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicPart {
    /// The key that is to be certified.
    pub key: OwnerId,
    /// The name that its holder asks for.
    pub name: String,
}

/// Why a public part can't be used.
#[derive(Debug, thiserror::Error)]
pub enum PublicPartError {
    /// Reading or writing failed.
    #[error("public key file {path}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Why the system refused it.
        #[source]
        cause: io::Error,
    },
    /// The file has something else.
    #[error("public key file {0} is not `{PREFIX}`, 64 hexadecimal digits and a name")]
    Malformed(PathBuf),
    /// The file has a secret key, which must not leave its machine.
    #[error(
        "{0} holds a secret key, which must not leave its machine; the public part is in the file \
         that ends in .pub"
    )]
    Secret(PathBuf),
}

impl PublicPart {
    /// Reads the text of a public part; `None` if the text is something else.
    pub fn parse(text: &str) -> Option<Self> {
        let line = text.strip_suffix('\n').unwrap_or(text);
        let line = line.strip_suffix('\r').unwrap_or(line);
        let mut words = line.split(' ');
        if words.next() != Some(PREFIX) {
            return None;
        }
        let key = OwnerId::from_hex(words.next()?)?;
        let name = words.next().filter(|name| is_name(name))?.to_owned();
        words.next().is_none().then_some(Self { key, name })
    }

    /// The text of the file: one line.
    pub fn to_text(&self) -> String {
        format!("{PREFIX} {} {}\n", self.key.hex(), self.name)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When the file is missing or has something else.
    pub fn read(path: &Path) -> Result<Self, PublicPartError> {
        let mut text = String::new();
        File::open(path)
            .and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text))
            .map_err(|cause| PublicPartError::Io {
                path: path.to_owned(),
                cause,
            })?;
        Self::parse(&text).ok_or_else(|| {
            if text.starts_with("ckpt-key-") {
                PublicPartError::Secret(path.to_owned())
            } else {
                PublicPartError::Malformed(path.to_owned())
            }
        })
    }

    /// Writes the file, in one step.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn write(&self, path: &Path) -> Result<(), PublicPartError> {
        replace_public(path, self.to_text().as_bytes()).map_err(|cause| PublicPartError::Io {
            path: path.to_owned(),
            cause,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ada() -> PublicPart {
        PublicPart {
            key: OwnerId([0xa5; 32]),
            name: "ada".into(),
        }
    }

    #[test]
    fn the_text_is_as_documented_and_comes_back() {
        let text = ada().to_text();
        assert_eq!(text, format!("ckpt-pub-v1 {} ada\n", "a5".repeat(32)));
        assert_eq!(PublicPart::parse(&text), Some(ada()));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ada.pub");
        ada().write(&path).unwrap();
        assert_eq!(PublicPart::read(&path).unwrap(), ada());
    }

    #[test]
    fn other_text_is_refused() {
        let digits = "a5".repeat(32);
        for text in [
            String::new(),
            format!("ckpt-pub-v1 {digits}"),
            format!("ckpt-pub-v2 {digits} ada"),
            format!("ckpt-pub-v1 {digits} ada b"),
            format!("ckpt-pub-v1 {digits} ../ada"),
            format!("ckpt-pub-v1 {digits}a5 ada"),
            format!("ckpt-pub-v1  {digits} ada"),
        ] {
            assert_eq!(PublicPart::parse(&text), None, "{text}");
        }
    }

    #[test]
    fn a_secret_key_in_its_place_is_named_and_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("owner.key");
        std::fs::write(&path, format!("ckpt-key-v1 {}\n", "0b".repeat(32))).unwrap();
        let refused = PublicPart::read(&path).unwrap_err();
        assert!(matches!(refused, PublicPartError::Secret(_)));
        assert!(!refused.to_string().contains("0b0b"), "{refused}");
    }
}
