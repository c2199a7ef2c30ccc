//! From files to a client: reads the grid file, the lists, key and certificate, and what was learnt of
//! hosts.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use codec::OwnerId;
use codec::seal::OwnerSecret;
use protocol::grid::{Grid, GridError};
use protocol::identity::{
    AnyKey, Identity, KeyFileError, certificate_to_pem, read_any_key, replace_public,
};
use protocol::list::ListFiles;
use transfer::roster::Roster;

use crate::agent;
use crate::knowledge::{self, Notebook};
use crate::report::{ExitStatus, Failure};
use protocol::errors::chain;

/// Reads the grid file and the newest signed list of the grid, which lies beside it or in the state
/// directory.
pub fn load_grid(path: &Path) -> Result<Grid, Failure> {
    let mut grid = Grid::load(path).map_err(|cause| grid_failure(&cause))?;
    let files = list_files(path, &grid);
    if let Some((list, contents)) = files.newest(&grid.authority)
        && list.number() > grid.number()
    {
        grid.follow(list, contents);
    }
    Ok(grid)
}

/// Where the signed list of this grid is kept: beside the grid file, or in a directory of this user.
pub fn list_files(path: &Path, grid: &Grid) -> ListFiles {
    let dir = knowledge::default_dir(|name| std::env::var_os(name));
    let own = dir.map(|dir| dir.join(format!("{}.members", OwnerId(grid.id().0).hex())));
    ListFiles::new(grid.list_path(path), own)
}

/// The hosts of a grid: those of its list, and those that its registries know.
pub async fn roster(
    grid: &mut Grid,
    lists: &ListFiles,
    identity: &Identity,
    notebook: &Notebook,
) -> Roster {
    if grid.registries.is_empty() && grid.etcd.is_empty() {
        Roster {
            hosts: grid.hosts.clone(),
            ..Roster::default()
        }
    } else {
        agent::discover(grid, lists, identity, notebook).await
    }
}

/// What this user keeps of what is learnt of the hosts of this grid.
pub fn notebook(grid: &Grid) -> Notebook {
    notebook_file(grid).map_or_else(Notebook::default, Notebook::at)
}

/// The file of [`notebook`]; `None` if there is no home directory.
pub fn notebook_file(grid: &Grid) -> Option<PathBuf> {
    let dir = knowledge::default_dir(|name| std::env::var_os(name));
    Some(dir?.join(format!("{}.json", OwnerId(grid.id().0).hex())))
}

fn grid_failure(cause: &GridError) -> Failure {
    let failure = Failure::new(ExitStatus::Usage, chain(cause));
    match cause {
        GridError::Io { .. } => failure.next("--grid FILE, or CKPT_GRID=FILE"),
        _ => {
            failure.next("a copy of grid.toml of another member; man 5 ckpt-grid-file has its keys")
        }
    }
}

/// The files of key and certificate.
#[derive(Clone, Debug)]
pub struct Files {
    /// The secret key.
    pub key: PathBuf,
    /// The key's certificate.
    pub certificate: PathBuf,
}

/// The directory of key and certificate, unless options or the grid file name other files.
pub fn default_dir(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| {
        variable(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let config = set("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    let config = config.or_else(|| Some(set("HOME")?.join(".config")));
    Some(config?.join("ckpt"))
}

/// The files of key and certificate: those of the options, else those of the grid file, else the usual
/// ones.
pub fn files(
    key: Option<PathBuf>,
    certificate: Option<PathBuf>,
    grid: Option<&Grid>,
) -> Result<Files, Failure> {
    let owner = grid.and_then(|grid| grid.owner.as_ref());
    let default = default_dir(|name| std::env::var_os(name));
    let default = |name: &str| default.as_ref().map(|dir| dir.join(name));
    let certificate = certificate.or_else(|| {
        let beside = key.as_ref().map(|key| key.with_extension("crt"));
        beside.filter(|path| path.exists())
    });
    let key = key
        .or_else(|| owner.map(|owner| owner.key.clone()))
        .or_else(|| default("owner.key"));
    let certificate = certificate
        .or_else(|| owner.map(|owner| owner.certificate.clone()))
        .or_else(|| default("owner.crt"))
        // A job key needs no certificate, so this file may be missing.
        .or_else(|| key.as_ref().map(|key| key.with_extension("crt")));
    match (key, certificate) {
        (Some(key), Some(certificate)) => Ok(Files { key, certificate }),
        _ => Err(
            Failure::new(ExitStatus::Usage, "no key file, and no home directory")
                .next("--key-file and --cert-file, or CKPT_KEY_FILE and CKPT_CERT_FILE"),
        ),
    }
}

/// The identity under which the client acts: a member's key with its certificate, or a job key alone.
pub fn identity(key: AnyKey, files: &Files) -> Result<Identity, Failure> {
    match key {
        AnyKey::Member(secret) => with_certificate(secret, &files.certificate),
        AnyKey::Job(identity) => Ok(*identity),
    }
}

/// Reads the key.
pub fn key_of_file(files: &Files) -> Result<AnyKey, Failure> {
    read_any_key(&files.key).map_err(|cause| {
        let failure = denied(chain(&cause));
        failure.next(match &cause {
            KeyFileError::Mode { path, .. } => format!("chmod 600 {}", path.display()),
            _ if files.key.exists() => "--key-file FILE, with a file that ckpt key for-job made, or the key of a member".to_owned(),
            _ => "ckpt key import FILE, with a copy of your key; if you never had one: ckpt join TOKEN, or ckpt init, and ask the grid's admin to sign its .pub file".to_owned(),
        })
    })
}

/// Takes over a certificate that the grid's authority renewed and sent with the list of the grid. Also
/// returns the Unix time at which the new certificate ends, if it could be written to the file. If not,
/// it is taken from the list each time.
pub fn renewed(identity: Identity, grid: &Grid, files: &Files) -> (Identity, Option<u64>) {
    let end = identity.peer().map_or(u64::MAX, |peer| peer.not_after);
    let newer = grid.renewed_for(&identity.secret.id(), end);
    let Some(certificate) = newer.filter(|_| identity.job.is_none()) else {
        return (identity, None);
    };
    let pem = certificate_to_pem(certificate);
    let Ok(renewed) = Identity::from_pem(identity.secret.clone(), &pem) else {
        return (identity, None);
    };
    let is_written = replace_public(&files.certificate, pem.as_bytes()).is_ok();
    let until = renewed.peer().map_or(0, |peer| peer.not_after);
    (renewed, is_written.then_some(until))
}

/// The identity of a member: its key, with the certificate from this file.
pub fn with_certificate(secret: OwnerSecret, path: &Path) -> Result<Identity, Failure> {
    let pem = fs::read_to_string(path).map_err(|cause| {
        denied(format!("certificate {}: {cause}", path.display()))
            .next("ckpt key import FILE, with what ckpt key export wrote; or ckpt join TOKEN, which keeps the key; or ask the grid's admin to sign your .pub file")
    })?;
    Identity::from_pem(secret, &pem).map_err(|cause| {
        denied(format!("{}: {cause}", path.display())).next(
            "ckpt key import FILE in another home, or with --key-file and --cert-file; a key alone: move this certificate away, then ckpt join TOKEN",
        )
    })
}

/// The failure that key, certificate or role do not allow the command.
pub fn denied(message: String) -> Failure {
    Failure::new(ExitStatus::Denied, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &'static [(&str, &str)]) -> Option<PathBuf> {
        default_dir(move |name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).into())
        })
    }

    #[test]
    fn the_default_follows_the_users_settings() {
        let dir = with(&[("XDG_CONFIG_HOME", "/x"), ("HOME", "/h")]);
        assert_eq!(dir, Some("/x/ckpt".into()));
        let dir = with(&[("XDG_CONFIG_HOME", "x"), ("HOME", "/h")]);
        assert_eq!(dir, Some("/h/.config/ckpt".into()));
        assert_eq!(with(&[]), None);
    }
}
