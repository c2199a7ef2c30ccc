//! The syntax of the patterns of `--path` and `--exclude`, and which paths they match. Paths are bytes.

use globset::{Candidate, Error, GlobBuilder, GlobSet, GlobSetBuilder};

/// Bytes that are wildcards, or begin one, when no `\` stands before them.
const WILDCARDS: &[u8] = b"*?[{";

/// A pattern for whole paths: `*` stands for any bytes but `/`, `?` for one such byte, `[a-z]` for one of
/// a range, `{a,b}` for either, `**` between slashes for any number of directories; after `\` a wildcard
/// is an ordinary character.
#[derive(Clone, Debug)]
pub struct Glob {
    text: String,
    /// The path that the pattern names, if it has no wildcards.
    literal: Option<Vec<u8>>,
    /// The pattern as a path: `a[1].t` also matches a file with exactly that name.
    written: Vec<u8>,
    set: GlobSet,
}

/// Why a text is not a valid pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    /// A bracket that is not closed, or a similar mistake.
    #[error(transparent)]
    Syntax(#[from] Error),
    /// The pattern has wildcards and is not valid UTF-8.
    #[error("a pattern with wildcards has to be UTF-8")]
    NoText,
}

/// Parses a pattern in the syntax of [`Glob`].
///
/// # Errors
/// When it is not a valid pattern.
pub fn pattern(text: &str) -> Result<globset::Glob, Error> {
    GlobBuilder::new(text)
        .literal_separator(true)
        .backslash_escape(true)
        .build()
}

impl Glob {
    /// Parses a pattern. Any `./` before it and slashes after it are ignored.
    ///
    /// # Errors
    /// When it is not a valid pattern.
    pub fn new(text: &[u8]) -> Result<Self, GlobError> {
        let shown = String::from_utf8_lossy(text).into_owned();
        let mut text = text;
        while let Some(rest) = text.strip_prefix(b"./") {
            text = rest;
        }
        while let Some(rest) = text.strip_suffix(b"/") {
            text = rest;
        }
        let literal = literal(text);
        let mut set = GlobSetBuilder::new();
        match (&literal, std::str::from_utf8(text)) {
            (Some(_), _) => {}
            (None, Ok(text)) => {
                set.add(pattern(text)?);
            }
            (None, Err(_)) => return Err(GlobError::NoText),
        }
        Ok(Self {
            text: shown,
            literal,
            written: text.to_vec(),
            set: set.build()?,
        })
    }

    /// The pattern as the user wrote it, for messages.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The only path that the pattern names; `None` when it has wildcards.
    pub fn literal(&self) -> Option<&[u8]> {
        self.literal.as_deref()
    }

    /// Whether the pattern matches the whole of `path`.
    pub fn matches(&self, path: &[u8]) -> bool {
        match &self.literal {
            Some(literal) => literal == path,
            None => {
                path == self.written || self.set.is_match_candidate(&Candidate::from_bytes(path))
            }
        }
    }
}

/// The path that a pattern without wildcards names: the text with its `\` resolved. `None` when there is
/// a wildcard.
fn literal(text: &[u8]) -> Option<Vec<u8>> {
    let mut path = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'\\' => path.push(*bytes.next().unwrap_or(&b'\\')),
            byte if WILDCARDS.contains(&byte) => return None,
            byte => path.push(byte),
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn glob(text: &str) -> Glob {
        Glob::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn patterns_name_paths() {
        for (pattern, paths, others) in [
            ("dump/a", &["dump/a"][..], &["dump/ab", "a", "dump"][..]),
            ("./dump//", &["dump"], &["dump/a"]),
            (
                "dump/*.log",
                &["dump/.log", "dump/a.log"],
                &["dump/a/b.log", "dump/a.logs"],
            ),
            ("**/*.log", &["a.log", "dump/a/b.log"], &["a.log/b"]),
            ("a/**/e", &["a/e", "a/b/c/e"], &["e", "b/a/e"]),
            ("run/**", &["run/a", "run/a/b"], &["run"]),
            ("*/*", &["a/b"], &["a", "a/b/c"]),
            ("?.t", &["x.t"], &["xy.t", "/.t", ".t"]),
            ("[a-c]{1,2}", &["a1", "c2"], &["d1", "a3"]),
            ("a[1].t", &["a1.t", "a[1].t"], &["a[2].t"]),
            (r"\*\?\\", &[r"*?\"], &["ab"]),
            (r"\", &[r"\"], &[""]),
            ("**", &["", "a/b"], &[]),
        ] {
            for path in paths {
                assert!(glob(pattern).matches(path.as_bytes()), "{pattern} {path}");
            }
            for path in others {
                assert!(!glob(pattern).matches(path.as_bytes()), "{pattern} {path}");
            }
        }
        assert_eq!(glob(r"a\*b").literal(), Some(&b"a*b"[..]));
        assert_eq!(glob("a*b").literal(), None);
    }

    #[test]
    fn names_need_not_be_text() {
        assert!(glob("?").matches(b"\xff") && !glob("?").matches(b"\xff\xff"));
        assert!(glob("*").matches("ä\u{1f600}".as_bytes()));
        assert!(Glob::new(b"\xff").unwrap().matches(b"\xff"));
        assert_eq!(Glob::new(b"\xff*").err(), Some(GlobError::NoText));
    }

    #[test]
    fn text_that_is_no_pattern_is_refused() {
        for wrong in ["[", "{a", "a{b,c}d}"] {
            assert!(Glob::new(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn many_wildcards_take_no_time() {
        let glob = glob(&"*a".repeat(60));
        let mut path = vec![b'a'; 4096];
        assert!(glob.matches(&path));
        path.push(b'b');
        assert!(!glob.matches(&path));
    }
}
