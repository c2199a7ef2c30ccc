//! Paths of the files that describe a machine.

use std::path::{Path, PathBuf};

/// The files that describe a machine, below one root directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    root: PathBuf,
}

impl Machine {
    /// The machine that this program runs on.
    #[must_use]
    pub fn here() -> Self {
        Self::at("/")
    }

    /// The machine whose directories `proc`, `sys` and `dev` are in `root`.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The path, from here, of a file that is called `absolute` on that machine.
    #[must_use]
    pub fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let absolute = absolute.as_ref();
        self.root
            .join(absolute.strip_prefix("/").unwrap_or(absolute))
    }

    /// The machine's `/proc`.
    #[must_use]
    pub fn proc(&self) -> PathBuf {
        self.path("/proc")
    }

    /// The directory of a process in `/proc`.
    #[must_use]
    pub fn process(&self, pid: i32) -> PathBuf {
        self.proc().join(pid.to_string())
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::here()
    }
}
