//! The submitter's key: making, copying and replacing it.
//!
//! ```text
//! KEY               the secret key, 0600        (default: $XDG_CONFIG_HOME/ckpt/owner.key)
//! KEY.pub           its public part, for the grid's admin
//! owner.crt         the certificate, beside it
//! KEY.next(.pub)    a new key that waits for its certificate
//! KEY.retired-N, owner.crt.retired-N            earlier ones: what they saved can still be restored
//! ```

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use protocol::errors::chain;
use protocol::identity::{PublicPart, is_name, new_key, read_key, replace_public, write_key};
use serde::Serialize;

use crate::commands::args::options::Global;
use crate::commands::key::identity::{RETIRED_MAX, files, suffixed};
use crate::commands::render::{Report, json_of_self};
use ckpt_agent::connection::{denied, with_certificate};
use ckpt_agent::report::{ExitStatus, Failure};

fn failed(path: &Path, cause: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::local(path.display(), cause)
}

/// Answer of `ckpt init` and `ckpt key rotate`.
#[derive(Debug, Serialize)]
pub(crate) struct KeyReport {
    /// The public key, hexadecimal.
    id: String,
    /// The secret key's file.
    key: PathBuf,
    /// The public part for the admin, if it was written.
    public: Option<PathBuf>,
    /// The path of the certificate.
    certificate: PathBuf,
    /// Whether the key existed before.
    existed: bool,
    /// What to do next.
    next: Option<String>,
}

impl Report for KeyReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let was = if self.existed {
            ", existed already"
        } else {
            ""
        };
        writeln!(out, "key {} ({}{was})", self.id, self.key.display())?;
        if let Some(public) = &self.public {
            writeln!(out, "public part {}", public.display())?;
        }
        if let Some(next) = &self.next {
            writeln!(out, "next: {next}")?;
        }
        Ok(())
    }

    json_of_self!();
}

/// Makes a key, unless one exists, and its public part.
pub(crate) fn init(global: &Global, name: Option<&str>) -> Result<KeyReport, Failure> {
    let files = files(global, None)?;
    make_key(&files.key, &files.certificate, name)
}

fn make_key(key: &Path, certificate: &Path, name: Option<&str>) -> Result<KeyReport, Failure> {
    let name = name.map_or_else(user_name, str::to_owned);
    if !is_name(&name) {
        let message = format!("name {name:?}: only letters, digits, . _ - are allowed");
        return Err(Failure::new(ExitStatus::Usage, message).next("--name NAME"));
    }
    if let Some(dir) = key.parent().filter(|dir| *dir != Path::new("")) {
        fs::create_dir_all(dir).map_err(|cause| failed(dir, &cause))?;
    }
    let existed = key.exists();
    if !existed {
        let secret = new_key().map_err(|cause| failed(key, &cause))?;
        write_key(key, &secret).map_err(|cause| failed(key, &cause))?;
    }
    let id = read_key(key).map_err(|cause| failed(key, &cause))?.id();
    let public = suffixed(key, "pub");
    let part = PublicPart {
        key: id,
        name: name.clone(),
    };
    part.write(&public)
        .map_err(|cause| failed(&public, &cause))?;
    Ok(KeyReport {
        id: id.hex(),
        key: key.to_owned(),
        next: Some(format!(
            "give {} to the grid's admin (ckpt grid sign --role submitter --pubkey {name}.pub); then put the certificate from the admin at {}",
            public.display(),
            certificate.display()
        )),
        public: Some(public),
        certificate: certificate.to_owned(),
        existed,
    })
}

/// The name of the next key after one of this name. It gets a number, because no two valid keys of a grid
/// may have the same name.
fn name_after(name: &str) -> String {
    let numbered = name.rsplit_once('-');
    let numbered = numbered.and_then(|(stem, number)| Some((stem, number.parse::<u32>().ok()?)));
    match numbered {
        Some((stem, number @ 2..)) => format!("{stem}-{}", number.saturating_add(1)),
        _ => format!("{name}-2"),
    }
}

pub(crate) fn user_name() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    user.ok()
        .filter(|name| is_name(name))
        .unwrap_or_else(|| "submitter".into())
}

/// Replaces the key in two steps. Without a certificate: makes the next key. With its certificate: puts
/// both in place, and retires the present ones.
pub(crate) fn rotate(
    global: &Global,
    name: Option<&str>,
    certificate: Option<&Path>,
) -> Result<KeyReport, Failure> {
    let files = files(global, None)?;
    let next = suffixed(&files.key, "next");
    let Some(certificate) = certificate else {
        let present = read_key(&files.key).map_err(|cause| {
            denied(chain(&cause)).next("--key-file FILE, with your present key")
        })?;
        let certified = with_certificate(present, &files.certificate).ok();
        let certified = certified.and_then(|identity| Some(identity.peer().ok()?.name));
        let following = certified.map(|name| name_after(&name));
        let name = name.or(following.as_deref());
        let mut report = make_key(&next, &files.certificate, name)?;
        report.next = report.public.as_ref().map(|public| {
            format!(
                "have {} signed, then: ckpt key rotate --cert CERTIFICATE",
                public.display()
            )
        });
        return Ok(report);
    };
    let secret = read_key(&next)
        .map_err(|cause| denied(chain(&cause)).next("first: ckpt key rotate, without --cert"))?;
    let id = secret.id().hex();
    with_certificate(secret, certificate).map_err(|failure| {
        failure.next("--cert FILE, with the certificate that ckpt grid sign made of the next key")
    })?;
    let number = (1..=RETIRED_MAX)
        .find(|number| !suffixed(&files.key, &format!("retired-{number}")).exists())
        .ok_or_else(|| {
            Failure::new(ExitStatus::Failed, "too many retired keys")
                .next("export the key, then move the oldest retired ones away")
        })?;
    let retired = format!("retired-{number}");
    let moves = [
        // Links first: after a crash in between, the present key and certificate are still in place.
        (&files.certificate, suffixed(&files.certificate, &retired)),
        (&files.key, suffixed(&files.key, &retired)),
    ];
    for (from, to) in &moves {
        fs::hard_link(from, to).map_err(|cause| failed(to, &cause))?;
    }
    let pem = fs::read(certificate).map_err(|cause| failed(certificate, &cause))?;
    replace_public(&files.certificate, &pem).map_err(|cause| failed(&files.certificate, &cause))?;
    fs::rename(&next, &files.key).map_err(|cause| failed(&files.key, &cause))?;
    let public = suffixed(&files.key, "pub");
    fs::rename(suffixed(&next, "pub"), &public).map_err(|cause| failed(&public, &cause))?;
    Ok(KeyReport {
        id,
        key: files.key.clone(),
        public: Some(public),
        certificate: files.certificate.clone(),
        existed: false,
        next: Some(format!(
            "save running jobs again; restore what the old key saved with {}",
            suffixed(&files.key, &retired).display()
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_next_key_is_numbered() {
        for (name, next) in [
            ("ada", "ada-2"),
            ("ada-2", "ada-3"),
            ("h-1", "h-1-2"),
            ("-", "--2"),
        ] {
            assert_eq!(name_after(name), next);
        }
    }
}
