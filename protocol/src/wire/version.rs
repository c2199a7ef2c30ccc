//! Versions of the wire protocol. Two programs agree on one in the TLS handshake.

/// A version of the wire protocol. A next version is another variant, which [`Self::ALL`] lists first; it has all
/// messages of an earlier one. `ckpt/1` was that of 0.1.0, which no program speaks any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WireVersion {
    /// `ckpt/2`.
    Two,
}

impl WireVersion {
    /// All versions that this program speaks, in order of preference.
    pub const ALL: [Self; 1] = [Self::Two];

    /// The version's name in the handshake (ALPN, RFC 7301).
    pub const fn alpn(self) -> &'static [u8] {
        match self {
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
        for other in [b"ckpt/1", b"ckpt/3"] {
            assert_eq!(WireVersion::from_alpn(other), None);
        }
        assert!(WireVersion::ALL.is_sorted_by(|a, b| a > b));
    }
}
