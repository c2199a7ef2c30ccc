//! Numbers of formats. A format that changes gets a new number, so a program that meets a number which it
//! does not know can say what to do.

/// The version that wrote the first formats of manifests, notices and promises, which nobody reads any more.
const FIRST: &str = "0.1.0";

/// A format that this program does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("format {found} is not known to this version: {}", self.remedy())]
pub struct UnknownFormat {
    found: u16,
    known: u16,
}

impl UnknownFormat {
    /// Checks that the format `found` is the one that this program knows.
    ///
    /// # Errors
    /// When it is another one.
    pub const fn check(found: u16, known: u16) -> Result<(), Self> {
        if found == known {
            Ok(())
        } else {
            Err(Self { found, known })
        }
    }

    /// The format of bytes that begin as `magic` does, but for the digit at its end; `None` if they begin
    /// otherwise, or have the same digit.
    pub fn by_magic(bytes: &[u8], magic: &[u8; 8]) -> Option<Self> {
        let (known, kind) = magic.split_last()?;
        let digit = |byte: u8| byte.is_ascii_digit().then(|| u16::from(byte - b'0'));
        let found = digit(*bytes.strip_prefix(kind)?.first()?)?;
        Self::check(found, digit(*known)?).err()
    }

    fn remedy(self) -> String {
        if self.found < self.known {
            return format!(
                "ckpt {FIRST} wrote it; restore the job with that version and save it with this one"
            );
        }
        "a newer version wrote it; upgrade ckpt".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_format_says_what_to_do() {
        let by_magic = |bytes: &[u8]| UnknownFormat::by_magic(bytes, b"CKPTMAN2");
        for same in [
            b"CKPTMAN2 and more".as_slice(),
            b"CKPTNOT1",
            b"CKPTMANx",
            b"CKPTMAN",
            b"",
        ] {
            assert_eq!(by_magic(same), None);
        }
        let first = by_magic(b"CKPTMAN1...").unwrap().to_string();
        assert!(first.starts_with("format 1 is not known to this version: ckpt 0.1.0 wrote it"));
        let next = by_magic(b"CKPTMAN3").unwrap().to_string();
        assert!(next.ends_with("upgrade ckpt"), "{next}");
        assert_eq!(UnknownFormat::check(2, 2), Ok(()));
    }
}
