//! `ckpt demo`: shows on one machine, with real daemons, what `ckpt` is for, and leaves nothing behind.

mod eviction;
pub(super) mod machine;
mod path;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::Answer;
use super::args::options::Global;
use super::call::Call;
use super::grid::local;
use ckpt_agent::cancel::Cancel;
use ckpt_agent::report::Failure;

/// Hosts of the demonstration: one more than shards.
const HOSTS: u16 = 6;

/// The hosts of the demonstration, which are stopped at the end, also after an error.
pub(crate) struct Hosts {
    folder: TempDir,
}

impl Hosts {
    pub(crate) fn start(call: &Call<'_>) -> Result<Self, Failure> {
        say(call.global, &format!("starting {HOSTS} hosts"));
        let folder = tempfile::Builder::new()
            .prefix("ckpt-demo-")
            .tempdir()
            .map_err(|cause| io_failure("temporary directory", &cause))?;
        let hosts = Self { folder };
        local::up(&hosts.grid_dir(), Some(HOSTS), None, call.daemon)?;
        Ok(hosts)
    }

    /// The folder of the demonstration, which goes with it.
    fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn grid_dir(&self) -> PathBuf {
        self.folder().join("grid")
    }

    fn grid_file(&self) -> PathBuf {
        self.grid_dir().join("grid.toml")
    }

    fn kill(&self, names: &[String]) -> Result<(), Failure> {
        for name in names {
            local::kill(&self.grid_dir(), name)?;
        }
        Ok(())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // A daemon that can't be stopped ends by itself when its files are removed, which comes next.
        let _ = local::down(&self.grid_dir());
    }
}

/// Shows how a job that is evicted goes on, or saves `path` and restores it without two of its hosts.
pub(super) async fn run(
    path: Option<PathBuf>,
    call: Call<'_>,
    cancel: Cancel,
) -> Result<Answer, Failure> {
    match path {
        Some(path) => path::run(&path, call, cancel).await,
        None => eviction::run(call, cancel).await,
    }
}

/// Writes a step of the demonstration to standard error, unless the report is wanted as JSON.
pub(crate) fn say(global: &Global, text: &str) {
    if !global.json {
        // Fails only if standard error is closed.
        let _ = writeln!(io::stderr(), "{text}");
    }
}

pub(crate) fn io_failure(what: &str, cause: &io::Error) -> Failure {
    Failure::local(what, cause)
}
