//! Versions of the wire protocol. Two programs agree on one in the TLS handshake.

/// A version of the wire protocol. A later version has all messages of an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WireVersion {
    /// `ckpt/1`, the first version.
    One,
    /// `ckpt/2`: further requests, responses and codes at the end of the lists of `ckpt/1`, and
    /// [`super::parts::Parts`].
    Two,
}

impl WireVersion {
    /// All versions that this program speaks, in order of preference.
    pub const ALL: [Self; 2] = [Self::Two, Self::One];

    /// The version's name in the handshake (ALPN, RFC 7301).
    pub const fn alpn(self) -> &'static [u8] {
        match self {
            Self::One => b"ckpt/1",
            Self::Two => b"ckpt/2",
        }
    }

    /// The version with this name.
    pub fn from_alpn(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.alpn() == name)
    }

    /// The names of all versions, in order of preference, as the TLS library takes them.
    pub fn offered() -> Vec<Vec<u8>> {
        Self::ALL.map(|version| version.alpn().to_vec()).into()
    }
}

impl std::fmt::Display for WireVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::One => "ckpt/1",
            Self::Two => "ckpt/2",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_by_the_names_that_they_print() {
        for version in WireVersion::ALL {
            assert_eq!(version.to_string().as_bytes(), version.alpn());
            assert_eq!(WireVersion::from_alpn(version.alpn()), Some(version));
        }
        assert_eq!(WireVersion::from_alpn(b"ckpt/3"), None);
        assert!(WireVersion::ALL.is_sorted_by(|a, b| a > b));
    }
}
