//! The commands for keys as users type them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use codec::JobScope;
use codec::grant::Rights;
use command_line::time;

use crate::commands::args::options::PassphraseArgs;
use crate::commands::names;

/// Commands for the submitter's key.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Write all that a new machine needs to a new file, to keep offline.
    ///
    /// The file has the key, retired keys, the certificates, the grid file, the list of the grid and where
    /// its hosts were last. `ckpt key import` reads it; no registry has to be there for that.
    Export {
        /// File to write to; - for the key alone, on standard output.
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
        /// Encrypt the file with a passphrase; --passphrase-file does so, too.
        #[arg(long)]
        seal: bool,
        /// The passphrase.
        #[command(flatten)]
        passphrase: PassphraseArgs,
    },
    /// Put what `export` wrote in place on this machine. What is there already stays.
    Import {
        /// The file to read: of `export`, or one with a key alone.
        file: PathBuf,
        /// The passphrase, if the file is encrypted.
        #[command(flatten)]
        passphrase: PassphraseArgs,
    },
    /// Replace the key: create a new key, and later install it with its certificate (--cert).
    ///
    /// The old key is kept as a retired key. With it, `ckpt restore`, list, show, verify, forget and gc
    /// still reach what it saved, until its certificate expires or is revoked.
    Rotate {
        /// Name for the certificate [default: the present name, numbered].
        #[arg(long)]
        name: Option<String>,
        /// Certificate of the new key.
        #[arg(long, value_name = "FILE")]
        cert: Option<PathBuf>,
    },
    /// Create a key for one job or a group of jobs, to use instead of yours on the job's machine.
    ///
    /// The key reveals nothing about your other jobs. Use it as any other key, with --key-file FILE or
    /// CKPT_KEY_FILE=FILE. It needs no certificate.
    #[command(
        after_help = "Example:\n  ckpt key for-job 42 -o job.key\n  ckpt key for-job sweep/ --ttl 30d --rights save,restore,remove -o job.key"
    )]
    ForJob {
        /// The job.
        #[command(flatten)]
        job: ScopeArgs,
        /// How long the key is valid.
        #[arg(long, default_value = "3d", value_parser = time::parse_with_unit, value_name = "TIME")]
        ttl: Duration,
        /// What the key permits: save, restore, remove.
        #[arg(long, default_value = "save,restore", value_name = "RIGHTS")]
        rights: Rights,
        /// File to write the key to.
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
    },
    /// Revoke job keys: all that exist or, with --file, that one and all older ones.
    ///
    /// Hosts pass the revocation on. What a revoked key saved is marked in lists, and is restored only
    /// with --version.
    Revoke {
        /// Newest job key to revoke.
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

/// The job, or the jobs, for which a key is made. The environment names none: a key grants rights.
#[derive(Clone, Debug, Args)]
pub struct ScopeArgs {
    /// The job; with a slash at the end, all jobs whose names begin with PREFIX/. Also by position.
    #[arg(long, value_name = "JOB|PREFIX/", add = names::jobs())]
    pub(super) job: Option<JobScope>,
    /// The job, as with --job.
    #[arg(value_name = "JOB|PREFIX/", add = names::jobs())]
    pub(super) place: Option<JobScope>,
}
