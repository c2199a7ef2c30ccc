//! The usual directories of the programs, which apply unless a flag names another one.

use std::ffi::OsString;
use std::path::PathBuf;

/// The purpose of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsualDir {
    /// Files of a grid's authority.
    Authority,
    /// Files of a registry.
    Registry,
    /// Shards of a host.
    Store,
}

impl UsualDir {
    const fn name(self) -> &'static str {
        match self {
            Self::Authority => "authority",
            Self::Registry => "registry",
            Self::Store => "store",
        }
    }

    /// The usual directory: below `$XDG_DATA_HOME/ckpt`; if that is not set, below `/var/lib/ckpt` for root
    /// and below `~/.local/share/ckpt` for other users. `variable` reads an environment variable.
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
            UsualDir::Store.usual(variable, is_root)
        };
        let home: &[(&str, &str)] = &[("HOME", "/h")];
        assert_eq!(of(home, false), Some("/h/.local/share/ckpt/store".into()));
        assert_eq!(of(home, true), Some("/var/lib/ckpt/store".into()));
        let both: &[(&str, &str)] = &[("HOME", "/h"), ("XDG_DATA_HOME", "/d")];
        assert_eq!(of(both, true), Some("/d/ckpt/store".into()));
        assert_eq!(of(&[("XDG_DATA_HOME", "d")], false), None);
    }
}
