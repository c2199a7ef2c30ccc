//! Backups of an authority's directory, encrypted with a passphrase.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use protocol::authority_dir::{MEMBERS_BYTES_MAX, Roll};
use protocol::identity::{replace_public, write_private};
use serde::Serialize;
use zeroize::Zeroizing;

use crate::commands::args::grid::Audience;
use crate::commands::args::options::PassphraseArgs;
use crate::commands::grid::authority_failure::failure;
use crate::commands::grid::members;
use crate::commands::passphrase::{Passphrase, ask};
use crate::commands::render::{Report, json_of_self};
use crate::commands::sealed_file::{self, SealedFileError, is_archive};
use ckpt_agent::report::{ExitStatus, Failure};

/// The only secret file. Every member may read the others.
const KEY_FILE: &str = "authority.key";

/// The files of an authority.
const FILES: [&str; 5] = [
    KEY_FILE,
    "authority.crt",
    "grid.toml",
    "grid.members",
    "members.toml",
];

/// Most bytes of a backup that are read; certificates and lists have limits, too.
const BACKUP_BYTES_MAX: u64 = MEMBERS_BYTES_MAX + (64 << 20);

/// Answer of `ckpt grid backup` and `ckpt grid restore`.
#[derive(Debug, Serialize)]
pub(super) struct BackupReport {
    /// Directory of the authority.
    dir: PathBuf,
    /// The copy.
    file: PathBuf,
    /// Names of the files in the copy.
    files: Vec<String>,
    /// Number of the list of the grid.
    list: u64,
    /// After a restore: how many members answered.
    members_asked: Option<usize>,
    /// After a restore: whether members had a newer list.
    was_behind: Option<bool>,
}

impl Report for BackupReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let dir = self.dir.display();
        let file = self.file.display();
        let list = self.list;
        let Some(asked) = self.members_asked else {
            return match self.was_behind {
                None => writeln!(out, "{file}: copy of {dir}, list number {list}"),
                Some(_) => writeln!(out, "{dir} restored, list number {list}"),
            };
        };
        writeln!(out, "{dir} restored, list number {list}")?;
        match (asked, self.was_behind) {
            (0, _) => writeln!(
                out,
                "no member answered: revoke or remove again what was revoked or removed after this copy was made"
            ),
            (_, Some(true)) => writeln!(
                out,
                "the list is the newest that a member has; certificates signed after this copy was made stay valid, but are not in its record"
            ),
            _ => writeln!(out, "no member has a newer list"),
        }
    }

    json_of_self!();
}

/// Writes a backup.
pub(super) fn write(
    dir: &Path,
    passphrase: &PassphraseArgs,
    file: &Path,
) -> Result<BackupReport, Failure> {
    let roll = Roll::load(dir).map_err(|e| failure(&e))?;
    if file.exists() {
        let message = format!("{} exists already", file.display());
        return Err(Failure::new(ExitStatus::LocalIo, message).next("another FILE"));
    }
    let mut archive = tar::Builder::new(Vec::new());
    let mut files = Vec::new();
    for name in FILES {
        let path = match name {
            "grid.members" => roll.grid.list_path(&dir.join("grid.toml")),
            name => dir.join(name),
        };
        let bytes = match fs::read(&path) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound && name != KEY_FILE => continue,
            read => Zeroizing::new(read.map_err(|cause| local(&path, &cause))?),
        };
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(if name == KEY_FILE { 0o600 } else { 0o644 });
        let added = archive.append_data(&mut header, name, bytes.as_slice());
        added.map_err(|cause| local(&path, &cause))?;
        files.push(name.to_owned());
    }
    let plain = archive.into_inner().map_err(|cause| local(dir, &cause))?;
    let plain = Zeroizing::new(plain);
    let secret = ask(passphrase, Passphrase::New)?;
    let sealed = sealed_file::seal(&secret, &plain).map_err(|cause| local(file, &cause))?;
    write_private(file, &sealed).map_err(|cause| local(file, &cause))?;
    Ok(BackupReport {
        dir: dir.to_owned(),
        file: file.to_owned(),
        files,
        list: roll.grid.number(),
        members_asked: None,
        was_behind: None,
    })
}

/// Makes an authority's directory from a backup.
pub(super) fn read(
    dir: &Path,
    passphrase: &PassphraseArgs,
    file: &Path,
    audience: Audience,
) -> Result<BackupReport, Failure> {
    for name in FILES {
        let path = dir.join(name);
        if path.exists() {
            let message = format!("{} exists already", path.display());
            return Err(Failure::new(ExitStatus::Usage, message).next("another --dir DIR"));
        }
    }
    let mut sealed = Vec::new();
    let opened = File::open(file).map_err(|cause| local(file, &cause))?;
    opened
        .take(BACKUP_BYTES_MAX)
        .read_to_end(&mut sealed)
        .map_err(|cause| local(file, &cause))?;
    let plain = opened_backup(passphrase, file, sealed)?;
    fs::create_dir_all(dir).map_err(|cause| local(dir, &cause))?;
    let files = unpack(&plain, dir, file)?;
    let (members_asked, was_behind) = match audience {
        Audience::Nobody => (None, Some(false)),
        Audience::Members => {
            let (was_behind, answered) = members::catch_up(dir)?;
            (Some(answered), Some(was_behind))
        }
    };
    let roll = Roll::load(dir).map_err(|e| failure(&e))?;
    Ok(BackupReport {
        dir: dir.to_owned(),
        file: file.to_owned(),
        files,
        list: roll.grid.number(),
        members_asked,
        was_behind,
    })
}

/// The archive in a backup. A plain archive, such as another program decrypted, is taken as it is.
fn opened_backup(
    passphrase: &PassphraseArgs,
    file: &Path,
    sealed: Vec<u8>,
) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let sealed = Zeroizing::new(sealed);
    let name = file.display();
    let refused = |cause: SealedFileError| {
        let status = match cause {
            SealedFileError::Passphrase => ExitStatus::Denied,
            _ => ExitStatus::Usage,
        };
        let failure = Failure::new(status, format!("{name}: {cause}"));
        match cause {
            SealedFileError::Age => failure.next(format!(
                "age --decrypt {name} | ckpt grid restore /dev/stdin"
            )),
            SealedFileError::Passphrase => failure.next("the passphrase with which it was made"),
            _ => failure.next("a file that ckpt grid backup wrote"),
        }
    };
    if is_archive(&sealed) {
        return Ok(sealed);
    }
    // Nobody is asked for a passphrase that can't help.
    sealed_file::check(&sealed).map_err(refused)?;
    let secret = ask(passphrase, Passphrase::Existing)?;
    sealed_file::open(&secret, &sealed).map_err(refused)
}

/// Writes the files of a backup. The key comes last, since a directory with a key counts as an
/// authority's.
fn unpack(plain: &[u8], dir: &Path, file: &Path) -> Result<Vec<String>, Failure> {
    let mut found: Vec<(&str, Zeroizing<Vec<u8>>)> = Vec::new();
    let mut archive = tar::Archive::new(plain);
    for entry in archive.entries().map_err(|cause| local(file, &cause))? {
        let mut entry = entry.map_err(|cause| local(file, &cause))?;
        let path = entry
            .path()
            .map_err(|cause| local(file, &cause))?
            .into_owned();
        let known = FILES.iter().find(|name| path == Path::new(name));
        let Some(name) = known else {
            continue;
        };
        let mut bytes = Zeroizing::new(Vec::new());
        entry
            .read_to_end(&mut bytes)
            .map_err(|cause| local(file, &cause))?;
        found.push((name, bytes));
    }
    found.sort_by_key(|(name, _)| *name == KEY_FILE);
    if found.last().is_none_or(|(name, _)| *name != KEY_FILE) {
        let message = format!("{}: not a copy of an authority", file.display());
        return Err(
            Failure::new(ExitStatus::Usage, message).next("a file that ckpt grid backup wrote")
        );
    }
    for (name, bytes) in &found {
        let path = dir.join(name);
        let written = match *name {
            KEY_FILE => write_private(&path, bytes),
            _ => replace_public(&path, bytes),
        };
        written.map_err(|cause| local(&path, &cause))?;
    }
    Ok(found.iter().map(|(name, _)| (*name).to_owned()).collect())
}

fn local(path: &Path, cause: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::local(path.display(), cause)
}
