//! Patterns for paths. Paths are bytes, so patterns are, too.

use std::collections::BTreeSet;

/// A pattern: `*` stands for any characters but `/`, `?` for one of these, `**` for any characters at
/// all; `\` takes the meaning from the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    text: String,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// This path and no other.
    Literal(Vec<u8>),
    /// Has wildcards.
    Parts(Vec<Part>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Byte(u8),
    /// One character that is no slash.
    One,
    /// Any that are no slashes.
    Some,
    /// Any.
    All,
}

impl Glob {
    /// Reads a pattern; `./` before it and slashes behind it have no meaning.
    pub fn new(text: &[u8]) -> Self {
        let written = String::from_utf8_lossy(text).into_owned();
        let mut text = text;
        while let Some(rest) = text.strip_prefix(b"./") {
            text = rest;
        }
        while let Some(rest) = text.strip_suffix(b"/") {
            text = rest;
        }
        let mut parts: Vec<Part> = Vec::with_capacity(text.len());
        let mut bytes = text.iter();
        while let Some(&byte) = bytes.next() {
            let part = match byte {
                b'\\' => Part::Byte(*bytes.next().unwrap_or(&b'\\')),
                b'?' => Part::One,
                b'*' => Part::Some,
                byte => Part::Byte(byte),
            };
            match (part, parts.last_mut()) {
                (Part::Some, Some(last @ (Part::Some | Part::All))) => *last = Part::All,
                _ => parts.push(part),
            }
        }
        let literal = parts.iter().map(|part| match part {
            Part::Byte(byte) => Some(*byte),
            Part::One | Part::Some | Part::All => None,
        });
        let literal: Option<Vec<u8>> = literal.collect();
        Self {
            text: written,
            kind: literal.map_or(Kind::Parts(parts), Kind::Literal),
        }
    }

    /// As it was written, for messages.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The path that it names, if it has no wildcards.
    pub fn literal(&self) -> Option<&[u8]> {
        match &self.kind {
            Kind::Literal(path) => Some(path),
            Kind::Parts(_) => None,
        }
    }

    /// Whether it names `path`.
    pub fn matches(&self, path: &[u8]) -> bool {
        match &self.kind {
            Kind::Literal(literal) => literal == path,
            Kind::Parts(parts) => {
                // Lengths of the beginnings of the path for which the parts so far stand.
                let mut reached = BTreeSet::from([0]);
                for part in parts {
                    reached = part.from(path, &reached);
                }
                reached.contains(&path.len())
            }
        }
    }
}

impl Part {
    /// Where this part can end when it begins at one of these places.
    fn from(self, path: &[u8], begins: &BTreeSet<usize>) -> BTreeSet<usize> {
        let is_plain = |at: &usize| path.get(*at).is_some_and(|&byte| byte != b'/');
        match self {
            Self::Byte(byte) => {
                let fits = begins.iter().filter(|at| path.get(**at) == Some(&byte));
                fits.map(|at| at + 1).collect()
            }
            Self::One => {
                let fits = begins.iter().filter(|at| is_plain(at));
                fits.map(|at| at + character_len(path, *at)).collect()
            }
            Self::Some => {
                let mut ends = BTreeSet::new();
                for &begin in begins {
                    let mut at = begin;
                    // From a place that was reached already, all further ones were, too.
                    while ends.insert(at) && is_plain(&at) {
                        at += 1;
                    }
                }
                ends
            }
            Self::All => {
                let first = begins.first().copied();
                first.map_or_else(BTreeSet::new, |first| (first..=path.len()).collect())
            }
        }
    }
}

/// Bytes of the character of UTF-8 at this place; one where it is something else.
fn character_len(path: &[u8], at: usize) -> usize {
    let rest = path.get(at + 1..).unwrap_or_default();
    let is_character = path.get(at).is_some_and(|&byte| byte >= 0xC0);
    let more = rest.iter().take(3).take_while(|&&byte| byte & 0xC0 == 0x80);
    if is_character { 1 + more.count() } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("**.log", &["a.log", "dump/a/b.log"], &["a.log/b"]),
            ("*/*", &["a/b", "a/", "/b"], &["a", "a/b/c"]),
            ("a**c*e", &["ace", "a/b/cde"], &["a/b/cd/e"]),
            (
                "?.t",
                &["x.t", "ä.t", "\u{1f600}.t"],
                &["xy.t", "/.t", ".t"],
            ),
            (r"\*\?\\", &[r"*?\"], &["ab"]),
            (r"\", &[r"\"], &[""]),
            ("***", &["", "a/b"], &[]),
        ] {
            let glob = Glob::new(pattern.as_bytes());
            for path in paths {
                assert!(glob.matches(path.as_bytes()), "{pattern} {path}");
            }
            for path in others {
                assert!(!glob.matches(path.as_bytes()), "{pattern} {path}");
            }
        }
        assert!(Glob::new(b"?").matches(b"\xff") && !Glob::new(b"?").matches(b"\xff\xff"));
        assert_eq!(Glob::new(br"a\*b").literal(), Some(&b"a*b"[..]));
        assert_eq!(Glob::new(b"a*b").literal(), None);
    }

    #[test]
    fn many_wildcards_take_no_time() {
        let glob = Glob::new("*a".repeat(60).as_bytes());
        let mut path = vec![b'a'; 4096];
        assert!(glob.matches(&path));
        path.push(b'b');
        assert!(!glob.matches(&path));
    }
}
