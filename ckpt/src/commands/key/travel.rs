//! `ckpt key export` and `ckpt key import`: one file with all that a new machine needs to reach what was
//! saved, with no registry. The file is a tar archive, encrypted with a passphrase if that is wished
//! (`docs/inside/format.md`, *Copy of a member*).

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use protocol::errors::chain;
use protocol::grid::Grid;
use protocol::identity::{
    Identity, key_from_text, key_to_text, read_key, replace_public, write_private,
};
use protocol::list::GridList;
use serde::Serialize;
use zeroize::Zeroizing;

use crate::commands::args::options::{Global, PassphraseArgs};
use crate::commands::connect::grid_file;
use crate::commands::key::identity::{Files, RETIRED_MAX, files, suffixed};
use crate::commands::passphrase::{Passphrase, ask};
use crate::commands::render::{self, Report, json_of_self};
use crate::commands::sealed_file::{self, SealedFileError, is_archive};
use crate::commands::state_dir::usual_grid_file;
use crate::commands::{Answer, done};
use ckpt_agent::connection::{denied, load_grid, notebook_file};
use ckpt_agent::report::{ExitStatus, Failure};

const KEY: &str = "owner.key";
const CERTIFICATE: &str = "owner.crt";
const GRID: &str = "grid.toml";
const LIST: &str = "grid.members";
const HOSTS: &str = "hosts.json";

/// Most bytes of a file that is read. What is learnt of hosts is the largest part.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Answer of `ckpt key export` and `ckpt key import`.
#[derive(Debug, Serialize)]
pub(super) struct TravelReport {
    /// The public key, hexadecimal.
    id: String,
    /// The file that was written or read.
    file: PathBuf,
    /// What is in it, or what was put in place.
    parts: Vec<String>,
    /// What to do next.
    next: Option<String>,
}

impl Report for TravelReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let file = self.file.display();
        writeln!(out, "key {} ({file}): {}", self.id, self.parts.join(", "))?;
        match &self.next {
            Some(next) => writeln!(out, "next: {next}"),
            None => Ok(()),
        }
    }

    json_of_self!();
}

fn local(path: &Path, cause: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::local(path.display(), cause)
}

/// The parts of the file, by their names in the archive.
#[derive(Debug, Default)]
struct Parts(Vec<(String, Zeroizing<Vec<u8>>)>);

impl Parts {
    fn add(&mut self, name: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.0.push((name.into(), Zeroizing::new(bytes.into())));
    }

    fn get(&self, name: &str) -> Option<&[u8]> {
        let found = self.0.iter().find(|(other, _)| other == name);
        found.map(|(_, bytes)| bytes.as_slice())
    }

    fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.get(name)?).ok()
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|(name, _)| name.clone()).collect()
    }

    fn to_archive(&self) -> io::Result<Zeroizing<Vec<u8>>> {
        let mut archive = tar::Builder::new(Vec::new());
        for (name, bytes) in &self.0 {
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o600);
            archive.append_data(&mut header, name, bytes.as_slice())?;
        }
        Ok(Zeroizing::new(archive.into_inner()?))
    }

    fn of_archive(bytes: &[u8]) -> io::Result<Self> {
        let mut parts = Self::default();
        for entry in tar::Archive::new(bytes).entries()? {
            let mut entry = entry?;
            let name = entry.path()?.to_string_lossy().into_owned();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes)?;
            parts.add(name, bytes);
        }
        Ok(parts)
    }
}

/// Writes the key and all that belongs to it to a new file, or the key alone to standard output for `-`.
pub(super) fn export(
    global: &Global,
    output: &Path,
    passphrase: Option<&PassphraseArgs>,
) -> Result<Answer, Failure> {
    // The same key as all other commands use, so the grid file counts.
    let grid = grid_file(global).map(|path| load_grid(&path)).transpose()?;
    let files = files(global, grid.as_ref())?;
    let secret = read_key(&files.key).map_err(|cause| {
        denied(chain(&cause)).next("--key-file FILE; a new key: ckpt join TOKEN")
    })?;
    let text = key_to_text(&secret);
    if output.as_os_str() == "-" {
        io::stdout()
            .write_all(text.as_bytes())
            .map_err(|cause| local(output, &cause))?;
        return done(render::Text(Vec::new()));
    }
    let parts = gathered(&files, grid.as_ref(), text.as_bytes())?;
    let plain = parts.to_archive().map_err(|cause| local(output, &cause))?;
    let written = match passphrase {
        None => write_private(output, &plain),
        Some(passphrase) => {
            let secret = ask(passphrase, Passphrase::New)?;
            let sealed = sealed_file::seal(&secret, &plain);
            write_private(output, &sealed.map_err(|cause| local(output, &cause))?)
        }
    };
    written.map_err(|cause| local(output, &cause))?;
    let lacks_grid = parts.get(GRID).is_none() || parts.get(CERTIFICATE).is_none();
    let next = match (lacks_grid, passphrase) {
        (true, _) => {
            "keep it offline; it has no certificate or no grid file yet: export again after you joined a grid"
        }
        (false, None) => {
            "it is not encrypted (--seal); keep it offline: who has it can read all that the key saved, and without it or the key nobody can; elsewhere: ckpt key import FILE"
        }
        (false, Some(_)) => {
            "keep it offline: who has it and the passphrase can read all that the key saved, and without it or the key nobody can; elsewhere: ckpt key import FILE"
        }
    };
    done(TravelReport {
        id: secret.id().hex(),
        file: output.to_owned(),
        parts: parts.names(),
        next: Some(next.to_owned()),
    })
}

/// Everything that there is of a member on this machine.
fn gathered(files: &Files, grid: Option<&Grid>, key: &[u8]) -> Result<Parts, Failure> {
    let mut parts = Parts::default();
    parts.add(KEY, key);
    let mut add_file = |name: String, path: &Path| match fs::read(path) {
        Ok(bytes) => {
            parts.add(name, bytes);
            Ok(())
        }
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(cause) => Err(local(path, &cause)),
    };
    add_file(CERTIFICATE.to_owned(), &files.certificate)?;
    for number in 1..=RETIRED_MAX {
        let retired = format!("retired-{number}");
        add_file(format!("{KEY}.{retired}"), &suffixed(&files.key, &retired))?;
        let certificate = suffixed(&files.certificate, &retired);
        add_file(format!("{CERTIFICATE}.{retired}"), &certificate)?;
    }
    let Some(grid) = grid else {
        return Ok(parts);
    };
    if let Some(path) = notebook_file(grid) {
        add_file(HOSTS.to_owned(), &path)?;
    }
    let failed = |cause: String| Failure::new(ExitStatus::Failed, cause);
    parts.add(GRID, grid.to_send().map_err(failed)?);
    if let Some(list) = &grid.list {
        parts.add(LIST, list.bytes().as_ref());
    }
    Ok(parts)
}

/// Puts what [`export`] wrote in place.
pub(super) fn import(
    global: &Global,
    file: &Path,
    passphrase: &PassphraseArgs,
) -> Result<TravelReport, Failure> {
    let parts = read(file, passphrase)?;
    let refused = |what: &str| {
        let message = format!("{}: {what}", file.display());
        Failure::new(ExitStatus::Usage, message).next("a file that ckpt key export wrote")
    };
    let secret = parts.text(KEY).and_then(key_from_text);
    let secret = secret.ok_or_else(|| refused("there is no key in it"))?;
    let files = files(global, None)?;
    let mut put = Vec::new();
    if files.key.exists() {
        let another = "--key-file FILE and --cert-file FILE, for another place";
        let there = read_key(&files.key);
        let there = there.map_err(|cause| denied(chain(&cause)).next(another))?;
        if there.id() != secret.id() {
            let message = format!("{} is another key", files.key.display());
            return Err(Failure::new(ExitStatus::Usage, message).next(another));
        }
    }
    let grid = imported_grid(&parts).map_err(|what| refused(&what))?;
    if let Some(grid) = &grid {
        put_grid(global, &parts, grid, &mut put)?;
    }
    // Retired keys and the key come before the certificates: with a certificate everything is there.
    let mut keys: Vec<&str> = parts.0.iter().map(|(name, _)| name.as_str()).collect();
    keys.retain(|name| place(&files, name).is_some());
    keys.sort_by_key(|name| name.starts_with(CERTIFICATE));
    for name in keys {
        let target = place(&files, name);
        if let (Some(path), Some(bytes)) = (target, parts.get(name)) {
            put_new(&path, bytes, name, &mut put)?;
        }
    }
    let certificate = fs::read_to_string(&files.certificate).ok();
    let fits = certificate.is_some_and(|pem| Identity::from_pem(secret.clone(), &pem).is_ok());
    let next = match (fits, grid.is_some() || grid_file(global).is_some()) {
        (true, true) => "ckpt list",
        (true, false) => {
            "copy grid.toml of any member, which is no secret, to this user's ckpt directory; then ckpt list"
        }
        (false, _) => {
            "ckpt join TOKEN, with a token for a person from the grid's admin: the key stays"
        }
    };
    Ok(TravelReport {
        id: secret.id().hex(),
        file: file.to_owned(),
        parts: put,
        next: Some(next.to_owned()),
    })
}

/// Reads the file, decrypted. A file with a key alone is one part.
fn read(file: &Path, passphrase: &PassphraseArgs) -> Result<Parts, Failure> {
    let opened = File::open(file).map_err(|cause| local(file, &cause))?;
    let mut bytes = Zeroizing::new(Vec::new());
    let mut limited = opened.take(FILE_BYTES_MAX);
    limited
        .read_to_end(&mut bytes)
        .map_err(|cause| local(file, &cause))?;
    let text = std::str::from_utf8(&bytes).ok();
    if let Some(secret) = text.and_then(key_from_text) {
        let mut parts = Parts::default();
        parts.add(KEY, key_to_text(&secret).as_bytes());
        return Ok(parts);
    }
    let plain = match is_archive(&bytes) {
        true => bytes,
        false => {
            let refused = |cause: SealedFileError| {
                let status = match cause {
                    SealedFileError::Passphrase => ExitStatus::Denied,
                    _ => ExitStatus::Usage,
                };
                let message = format!("{}: {cause}", file.display());
                Failure::new(status, message).next("a file that ckpt key export wrote")
            };
            // Nobody is asked for a passphrase that can't help.
            sealed_file::check(&bytes).map_err(refused)?;
            let secret = ask(passphrase, Passphrase::Existing)?;
            sealed_file::open(&secret, &bytes).map_err(refused)?
        }
    };
    Parts::of_archive(&plain).map_err(|cause| local(file, &cause))
}

fn imported_grid(parts: &Parts) -> Result<Option<Grid>, String> {
    let Some(text) = parts.text(GRID) else {
        return Ok(None);
    };
    let grid = Grid::parse(text, Path::new(""));
    grid.map(Some)
        .map_err(|cause| format!("its grid file: {cause}"))
}

/// Puts grid file, list and what was learnt of hosts in place, unless they are there.
fn put_grid(
    global: &Global,
    parts: &Parts,
    grid: &Grid,
    put: &mut Vec<String>,
) -> Result<(), Failure> {
    let named = global.grid.clone();
    let named = named.filter(|path| !path.as_os_str().is_empty());
    let path = named
        .or_else(usual_grid_file)
        .ok_or_else(|| Failure::new(ExitStatus::Usage, "no home directory").next("--grid FILE"))?;
    if path.exists() {
        let there = load_grid(&path)?;
        if there.id() != grid.id() {
            let message = format!("{} is the file of another grid", path.display());
            return Err(Failure::new(ExitStatus::Usage, message)
                .next("another --grid FILE, with --key-file and --cert-file"));
        }
    }
    let list = grid.list_path(&path);
    // A list that the authority did not sign would be passed over by all commands; it is not put there.
    let bytes = parts.get(LIST).filter(|bytes| {
        let checked = GridList::check(&grid.authority, bytes.to_vec().into());
        checked.is_ok()
    });
    if let Some(bytes) = bytes {
        put_new(&list, bytes, LIST, put)?;
    }
    if let (Some(path), Some(bytes)) = (notebook_file(grid), parts.get(HOSTS)) {
        put_new(&path, bytes, HOSTS, put)?;
    }
    match parts.get(GRID) {
        Some(bytes) => put_new(&path, bytes, GRID, put),
        None => Ok(()),
    }
}

/// Where a part of the archive that is a key or a certificate belongs.
fn place(files: &Files, name: &str) -> Option<PathBuf> {
    let of = |path: &Path, stem: &str| {
        let rest = name.strip_prefix(stem)?;
        if rest.is_empty() {
            return Some(path.to_owned());
        }
        let retired = rest.strip_prefix('.')?;
        let number: u32 = retired.strip_prefix("retired-")?.parse().ok()?;
        let known = (1..=RETIRED_MAX).contains(&number);
        known.then(|| suffixed(path, &format!("retired-{number}")))
    };
    of(&files.key, KEY).or_else(|| of(&files.certificate, CERTIFICATE))
}

/// Writes a file that is not there yet.
fn put_new(path: &Path, bytes: &[u8], name: &str, put: &mut Vec<String>) -> Result<(), Failure> {
    if path.exists() {
        return Ok(());
    }
    if let Some(dir) = path.parent().filter(|dir| *dir != Path::new("")) {
        fs::create_dir_all(dir).map_err(|cause| local(dir, &cause))?;
    }
    let is_secret = name.starts_with(KEY) || name == HOSTS;
    let written = match is_secret {
        true => write_private(path, bytes),
        false => replace_public(path, bytes),
    };
    written.map_err(|cause| local(path, &cause))?;
    put.push(path.display().to_string());
    Ok(())
}
