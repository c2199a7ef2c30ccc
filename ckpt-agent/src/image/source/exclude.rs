//! Patterns for files that a save leaves out.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{Candidate, Error, Glob, GlobSet, GlobSetBuilder};

use crate::core::glob;

/// Patterns for files that are left out. A pattern with a slash, other than at its end, is for the path below
/// the directory that the user named; one without a slash is for the name of a file or directory anywhere
/// below it. With a directory, everything below it is left out. The syntax is that of [`glob::Glob`].
#[derive(Clone, Debug, Default)]
pub struct Exclude(GlobSet);

/// Parses a pattern.
///
/// # Errors
/// When it is not a valid pattern.
pub fn exclude_pattern(text: &str) -> Result<Glob, Error> {
    let text = text.strip_suffix('/').unwrap_or(text);
    let anywhere = if text.contains('/') { "" } else { "**/" };
    let pattern = format!("{anywhere}{}", text.strip_prefix('/').unwrap_or(text));
    glob::pattern(&pattern)
}

impl Exclude {
    /// Leaves out files that match any of these patterns.
    ///
    /// # Errors
    /// When they are too many or too long to be compiled.
    pub fn new(patterns: Vec<Glob>) -> Result<Self, Error> {
        let mut all = GlobSetBuilder::new();
        for pattern in patterns {
            all.add(pattern);
        }
        all.build().map(Self)
    }

    /// Whether the file with this path below the named directory is left out.
    pub fn leaves_out(&self, below: &[u8]) -> bool {
        !self.0.is_empty() && self.0.is_match_candidate(&Candidate::from_bytes(below))
    }

    /// Whether `path` is left out of a save for which the user named `root`.
    pub fn leaves_out_path(&self, root: &Path, path: &Path) -> bool {
        let below = path.strip_prefix(root).unwrap_or(path);
        self.leaves_out(below.as_os_str().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_out(patterns: &[&str], path: &str) -> bool {
        let patterns = patterns.iter().map(|text| exclude_pattern(text).unwrap());
        let exclude = Exclude::new(patterns.collect()).unwrap();
        exclude.leaves_out(path.as_bytes())
    }

    #[test]
    fn names_fit_anywhere_and_paths_where_they_say() {
        assert!(!left_out(&[], "a"));
        for path in ["core", "a/core", "a/b/core"] {
            assert!(left_out(&["*.tmp", "core"], path), "{path}");
        }
        assert!(!left_out(&["core"], "a/core.c"));
        assert!(left_out(&["/cache"], "cache") && !left_out(&["/cache"], "a/cache"));
        assert!(left_out(&["cache/"], "a/cache"));
        assert!(left_out(&["run/*.log"], "run/1.log"));
        assert!(!left_out(&["run/*.log"], "run/old/1.log"));
        assert!(left_out(&["run/**"], "run/old/1.log"));
        assert!(exclude_pattern("[").is_err());
    }

    #[test]
    fn names_need_not_be_text() {
        let pattern = exclude_pattern("*.tmp").unwrap();
        let exclude = Exclude::new(vec![pattern]).unwrap();
        assert!(exclude.leaves_out(b"dir/\xff\xfe.tmp"));
    }
}
