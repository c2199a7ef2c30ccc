//! `ckpt join`: a submitter joins a grid with a token.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use command_line::secret::secret;
use protocol::identity::{
    JoinToken, TokenRole, certificate_to_pem, is_name, new_key, read_key, replace_public, write_key,
};
use protocol::net::join::{JoinError, NameWish, NewMember, join as redeem};
use serde::Serialize;

use crate::commands::args::options::Global;
use crate::commands::key::identity;
use crate::commands::key::own::user_name;
use crate::commands::render::{Report, json_of_self, time};
use crate::commands::runtime;
use crate::commands::state_dir::usual_grid_file;
use ckpt_agent::report::{ExitStatus, Failure};
use protocol::errors::chain;

/// Answer of `ckpt join`.
#[derive(Debug, Serialize)]
pub(crate) struct JoinReport {
    /// Name of the new member.
    name: String,
    /// Name of the grid.
    grid: String,
    /// The public key, hexadecimal.
    id: String,
    /// The secret key's file.
    key: PathBuf,
    /// The certificate's file.
    certificate: PathBuf,
    /// The grid file.
    grid_file: PathBuf,
    /// When the certificate ends, Unix seconds.
    expires: u64,
    #[serde(skip)]
    options: String,
}

impl Report for JoinReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { name, grid, .. } = self;
        writeln!(
            out,
            "{name} may save and restore in grid {grid} until {}",
            time(self.expires)
        )?;
        let key = self.key.display();
        writeln!(
            out,
            "{key} decrypts all that you save, and nothing can be read without it; keep a copy elsewhere: ckpt key export -o FILE"
        )?;
        writeln!(out, "next: ckpt{} save --job JOB FILE", self.options)
    }

    json_of_self!();
}

/// Redeems a token. Makes the key in its usual place, unless it exists, and writes the grid file beside
/// it.
pub(crate) fn join(
    global: &Global,
    token: &str,
    name: Option<&str>,
) -> Result<JoinReport, Failure> {
    let usage = |message: String| Failure::new(ExitStatus::Usage, message);
    let token = secret(token).map_err(|cause| failed(Path::new(token), &cause))?;
    let token = JoinToken::parse(&token).map_err(|cause| {
        usage(cause.to_string()).next("the whole token, as ckpt grid invite printed it")
    })?;
    if token.terms.role != TokenRole::Submitter {
        return Err(usage("the token is for a donor".into()).next("ckpt-store join TOKEN"));
    }
    // A name that nobody chose gets a number if another person has it.
    let numbered = name.is_none();
    let name = name.map_or_else(user_name, str::to_owned);
    if !is_name(&name) {
        let message = format!("name {name:?}: only letters, digits, . _ - are allowed");
        return Err(usage(message).next("--name NAME"));
    }
    let files = identity::files(global, None)?;
    let named = global.grid.clone();
    let named = named.filter(|path| !path.as_os_str().is_empty());
    let options = named
        .as_ref()
        .map_or_else(String::new, |path| format!(" --grid {}", path.display()));
    let grid_file = named
        .or_else(usual_grid_file)
        .ok_or_else(|| usage("no home directory".into()).next("--grid FILE"))?;
    refuse_members(&grid_file, &files.certificate)?;
    for path in [&files.key, &files.certificate, &grid_file] {
        if let Some(dir) = path.parent().filter(|dir| *dir != Path::new("")) {
            fs::create_dir_all(dir).map_err(|cause| failed(dir, &cause))?;
        }
    }
    if !files.key.exists() {
        let secret = new_key().map_err(|cause| failed(&files.key, &cause))?;
        write_key(&files.key, &secret).map_err(|cause| failed(&files.key, &cause))?;
    }
    let secret = read_key(&files.key).map_err(|cause| failed(&files.key, &cause))?;
    let joined = runtime()?.block_on(redeem(
        &token,
        secret,
        NameWish {
            name: &name,
            numbered,
        },
    ));
    let joined = joined.map_err(|cause| not_joined(&cause))?;
    write_membership(&joined, &grid_file, &files.certificate)?;
    let grid = joined.grid;
    let who = joined.identity;
    let peer = who.peer().ok();
    Ok(JoinReport {
        expires: peer.as_ref().map_or(0, |peer| peer.not_after),
        name: peer.map_or(name, |peer| peer.name),
        grid: grid.name,
        id: who.secret.id().hex(),
        key: files.key,
        certificate: files.certificate,
        grid_file,
        options,
    })
}

/// Refuses whoever belongs to a grid already.
fn refuse_members(grid_file: &Path, certificate: &Path) -> Result<(), Failure> {
    for there in [grid_file, certificate] {
        if there.exists() {
            let message = format!("{} exists already: you belong to a grid", there.display());
            let next = match grid_file.exists() {
                true => "another --grid FILE with --key-file and --cert-file".to_owned(),
                false => format!(
                    "ckpt key import FILE; or copy grid.toml of any member, which is no secret, to {}",
                    grid_file.display()
                ),
            };
            return Err(Failure::new(ExitStatus::Usage, message).next(next));
        }
    }
    Ok(())
}

fn failed(path: &Path, cause: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::local(path.display(), cause)
}

/// Writes the grid's list, the grid file and the certificate.
fn write_membership(
    joined: &NewMember,
    grid_file: &Path,
    certificate: &Path,
) -> Result<(), Failure> {
    let grid = &joined.grid;
    let who = &joined.identity;
    if let Some(list) = &grid.list {
        let path = grid.list_path(grid_file);
        replace_public(&path, list.bytes()).map_err(|cause| failed(&path, &cause))?;
    }
    grid.save(grid_file)
        .map_err(|cause| failed(grid_file, &cause))?;
    let chain = std::iter::once(&who.certificate).chain(&who.issuer);
    let pem: String = chain.map(certificate_to_pem).collect();
    // The certificate comes last: if it exists, everything else does.
    replace_public(certificate, pem.as_bytes()).map_err(|cause| failed(certificate, &cause))
}

fn not_joined(cause: &JoinError) -> Failure {
    let status = match cause {
        JoinError::Exchange { .. } | JoinError::Wrong { .. } => ExitStatus::Denied,
        JoinError::Connect { .. } | JoinError::Old { .. } => ExitStatus::TooFewHosts,
        JoinError::Endpoint(_) => ExitStatus::Failed,
    };
    let mut failure = Failure::new(status, chain(cause));
    failure.next = cause.next().map(str::to_owned);
    failure
}
