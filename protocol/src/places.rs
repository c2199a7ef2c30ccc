//! Where files are unless it is said otherwise.

use std::ffi::OsString;
use std::path::PathBuf;

/// What a directory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The authority of a grid.
    Authority,
    /// A registry.
    Registry,
    /// A host's shards.
    Store,
}

impl Place {
    const fn name(self) -> &'static str {
        match self {
            Self::Authority => "authority",
            Self::Registry => "registry",
            Self::Store => "store",
        }
    }

    /// Its usual directory: below `$XDG_DATA_HOME/ckpt`; where that is not set `/var/lib/ckpt` for the
    /// system's administrator and `~/.local/share/ckpt` for others.
    pub fn usual(
        self,
        variable: impl Fn(&str) -> Option<OsString>,
        is_root: bool,
    ) -> Option<PathBuf> {
        let set = |name| {
            let value = variable(name).filter(|value| !value.is_empty());
            value.map(PathBuf::from).filter(|path| path.is_absolute())
        };
        let base = match set("XDG_DATA_HOME") {
            Some(base) => base,
            None if is_root => PathBuf::from("/var/lib"),
            None => set("HOME")?.join(".local/share"),
        };
        Some(base.join("ckpt").join(self.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_follow_the_users_settings() {
        let of = |variables: &'static [(&str, &str)], is_root| {
            let variable = move |name: &str| {
                let found = variables.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).into())
            };
            Place::Store.usual(variable, is_root)
        };
        let home: &[(&str, &str)] = &[("HOME", "/h")];
        assert_eq!(of(home, false), Some("/h/.local/share/ckpt/store".into()));
        assert_eq!(of(home, true), Some("/var/lib/ckpt/store".into()));
        let both: &[(&str, &str)] = &[("HOME", "/h"), ("XDG_DATA_HOME", "/d")];
        assert_eq!(of(both, true), Some("/d/ckpt/store".into()));
        assert_eq!(of(&[("XDG_DATA_HOME", "d")], false), None);
    }
}
