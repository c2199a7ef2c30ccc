//! The token that a client has to show.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use subtle::ConstantTimeEq as _;

/// Shortest token, bytes.
const TOKEN_BYTES_MIN: usize = 16;

/// Longest token, bytes.
const TOKEN_BYTES_MAX: usize = 256;

/// What others may not do with the file: every user read it, anybody but its owner write it. A group may read it,
/// so that a service can.
const OTHERS: u32 = 0o027;

/// A secret that a client has to show. It is not printed.
#[derive(Clone)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Why a token can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file can't be read.
    #[error("token file {path}: {cause}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
    /// Every user of this machine can read the file, or others than its owner can write it.
    #[error(
        "every user of this machine can read the token file {0}, or others than its owner can write it; run chmod 600 {0}"
    )]
    Public(PathBuf),
    /// The content is no token.
    #[error(
        "token file {0}: a token has 16 to 256 letters, digits or signs, without spaces; to make one: openssl rand -hex 32"
    )]
    Unfit(PathBuf),
}

impl Token {
    /// The token in a file. White space at its ends does not count.
    ///
    /// # Errors
    /// When the file can't be read, is open to other users ([`TokenError::Public`]), or has no token in it.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let failed = |cause| TokenError::Io {
            path: path.to_owned(),
            cause,
        };
        let file = File::open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.mode() & OTHERS != 0 {
            return Err(TokenError::Public(path.to_owned()));
        }
        let mut text = String::new();
        let most = TOKEN_BYTES_MAX as u64 * 2;
        file.take(most).read_to_string(&mut text).map_err(failed)?;
        Self::new(text.trim()).ok_or_else(|| TokenError::Unfit(path.to_owned()))
    }

    /// `None` if the text is too short, too long, or has other characters than visible ASCII.
    pub fn new(text: &str) -> Option<Self> {
        let is_fit = (TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_fit.then(|| Self(text.to_owned()))
    }

    /// Whether `shown` is this token. The time that it takes depends on the lengths alone.
    pub fn is(&self, shown: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(shown).into()
    }
}
