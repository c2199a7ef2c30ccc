//! The submitter's key: making, finding, copying and replacing it.
//!
//! ```text
//! KEY               the secret key, 0600        (default: $XDG_CONFIG_HOME/ckpt/owner.key)
//! KEY.pub           its public part, for the grid's admin
//! owner.crt         the certificate, beside it
//! KEY.next(.pub)    a new key that waits for its certificate
//! KEY.retired-N, owner.crt.retired-N            earlier ones: what they saved can still be restored
//! ```

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use protocol::grid::Grid;
use protocol::identity::{
    AnyKey, Identity, JOB_KEY_FILE_BYTES_MAX, PublicPart, any_key_from_text, is_name, key_to_text,
    new_key, read_key, replace_public, write_key, write_private,
};
use serde::Serialize;
use zeroize::Zeroizing;

use super::options::Global;
use super::render::{self, Report, json_of_self};
use super::{grid_file, load_grid};
pub(super) use ckpt_agent::connection::Files;
use ckpt_agent::connection::{self, denied, with_certificate};
use ckpt_agent::report::{ExitStatus, Failure};
use ckpt_agent::unix_time::unix_seconds;
use protocol::errors::chain;

/// Longest wait for a key command, which may ask the user for a passphrase.
const KEY_COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

/// Most retired keys that are looked for.
const RETIRED_MAX: u32 = 100;

/// The files of key and certificate: those of options and environment, else those of the grid file, else
/// the usual ones.
pub(super) fn files(global: &Global, grid: Option<&Grid>) -> Result<Files, Failure> {
    connection::files(global.key_file.clone(), global.cert_file.clone(), grid)
}

/// Reads key and certificate of the user.
pub(super) fn load(global: &Global, files: &Files) -> Result<Identity, Failure> {
    let key = match &global.key_command {
        Some(command) => key_of_command(command)?,
        None => connection::key_of_file(files)?,
    };
    connection::identity(key, files)
}

/// Takes over a certificate that the grid's authority renewed, and reports it once.
pub(super) fn renewed(identity: Identity, grid: &Grid, files: &Files) -> Identity {
    let (identity, written_until) = connection::renewed(identity, grid, files);
    if let Some(until) = written_until {
        // Fails only if standard error is closed.
        let _ = writeln!(
            io::stderr(),
            "ckpt: note: the grid's admin renewed your certificate ({}), until {}",
            files.certificate.display(),
            render::time(until)
        );
    }
    identity
}

/// Fails if the certificate has ended, before any host has to refuse it. Warns if it ends soon.
pub(super) fn check_end(identity: &Identity, files: &Files) -> Result<(), Failure> {
    let now = unix_seconds();
    let peer = identity.peer().map_err(|cause| denied(cause.to_string()))?;
    let what = match &identity.job {
        None => format!("your certificate ({})", files.certificate.display()),
        Some(_) => format!(
            "the job key ({}), or its owner's certificate,",
            files.key.display()
        ),
    };
    let next = match &identity.job {
        None => {
            "ask the grid's admin to renew it (ckpt grid renew); if it has expired, put the new one in its place by hand"
        }
        Some(_) => "ask the key's owner for a new one: ckpt key for-job",
    };
    let until = render::time(peer.not_after);
    if now > peer.not_after {
        return Err(denied(format!("{what} expired {until}")).next(next));
    }
    // Job keys are made for days, so they always end soon.
    if let Some(days) = peer
        .ends_within_days(now)
        .filter(|_| identity.job.is_none())
    {
        let when = match days {
            0 => "today".to_owned(),
            1 => "in 1 day".to_owned(),
            days => format!("in {days} days"),
        };
        // Fails only if standard error is closed.
        let _ = writeln!(
            io::stderr(),
            "ckpt: warning: {what} expires {when} ({until}): {next}"
        );
    }
    Ok(())
}

/// Identities with earlier keys, the newest first. Those that can't be read are left out.
pub(super) fn retired(files: &Files) -> Vec<Identity> {
    let of = |number| {
        let key = suffixed(&files.key, &format!("retired-{number}"));
        let certificate = suffixed(&files.certificate, &format!("retired-{number}"));
        with_certificate(read_key(&key).ok()?, &certificate).ok()
    };
    (1..=RETIRED_MAX).rev().filter_map(of).collect()
}

/// Runs a command that prints the key as the text of a key file.
fn key_of_command(command: &str) -> Result<AnyKey, Failure> {
    let failed = |what: String| denied(format!("key command: {what}"));
    let mut child = Command::new("sh")
        .args(["-c", command])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|cause| failed(cause.to_string()))?;
    let Some(out) = child.stdout.take() else {
        return Err(failed("no output".into()));
    };
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        // Enough capacity for the whole text: growing would leave copies of the secret in memory.
        let mut text = Zeroizing::new(String::with_capacity(JOB_KEY_FILE_BYTES_MAX + 1));
        let read = out
            .take(JOB_KEY_FILE_BYTES_MAX as u64)
            .read_to_string(&mut text);
        // Fails if the caller has given up.
        let _ = sender.send(read.map(|_| text));
    });
    let Ok(text) = receiver.recv_timeout(KEY_COMMAND_TIMEOUT) else {
        // Fails if the command has just ended.
        let _ = child.kill();
        let _ = child.wait();
        let limit = KEY_COMMAND_TIMEOUT.as_secs();
        return Err(failed(format!("it printed nothing for {limit} s")));
    };
    let ended = child.wait().map_err(|cause| failed(cause.to_string()))?;
    if !ended.success() {
        return Err(failed(format!("it ended with {ended}")));
    }
    let text = text.map_err(|cause| failed(cause.to_string()))?;
    any_key_from_text(&text).ok_or_else(|| {
        failed("its output is not a key such as `ckpt key export -o -` prints".into())
    })
}

fn failed(path: &Path, cause: &dyn std::error::Error) -> Failure {
    let message = format!("{}: {}", path.display(), chain(cause));
    Failure::new(ExitStatus::LocalIo, message)
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

/// Answer of `init`, `key export` and `key rotate`.
#[derive(Debug, Serialize)]
pub(super) struct KeyReport {
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
pub(super) fn init(global: &Global, name: Option<&str>) -> Result<KeyReport, Failure> {
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

pub(super) fn user_name() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    user.ok()
        .filter(|name| is_name(name))
        .unwrap_or_else(|| "submitter".into())
}

/// Writes the key to a new file, or to standard output for `-`.
pub(super) fn export(global: &Global, output: &Path) -> Result<KeyReport, Failure> {
    // The same key as all other commands use, so the grid file counts.
    let grid = grid_file(global).map(|path| load_grid(&path)).transpose()?;
    let files = files(global, grid.as_ref())?;
    let secret = read_key(&files.key).map_err(|cause| denied(chain(&cause)))?;
    let text = key_to_text(&secret);
    if output.as_os_str() == "-" {
        io::stdout()
            .write_all(text.as_bytes())
            .map_err(|cause| failed(output, &cause))?;
    } else {
        write_private(output, text.as_bytes()).map_err(|cause| failed(output, &cause))?;
    }
    Ok(KeyReport {
        id: secret.id().hex(),
        key: output.to_owned(),
        public: None,
        certificate: files.certificate,
        existed: false,
        next: Some("keep it offline: it decrypts all that the key saved, and nothing can be read without it".into()),
    })
}

impl KeyReport {
    /// Whether the key went to standard output.
    pub(super) fn is_on_stdout(&self) -> bool {
        self.key.as_os_str() == "-"
    }
}

/// Replaces the key in two steps. Without a certificate: makes the next key. With its certificate: puts
/// both in place, and retires the present ones.
pub(super) fn rotate(
    global: &Global,
    name: Option<&str>,
    certificate: Option<&Path>,
) -> Result<KeyReport, Failure> {
    let files = files(global, None)?;
    let next = suffixed(&files.key, "next");
    let Some(certificate) = certificate else {
        let present = read_key(&files.key).map_err(|cause| denied(chain(&cause)))?;
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
    with_certificate(secret, certificate)?;
    let number = (1..=RETIRED_MAX)
        .find(|number| !suffixed(&files.key, &format!("retired-{number}")).exists())
        .ok_or_else(|| Failure::new(ExitStatus::Failed, "too many retired keys"))?;
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
    use codec::seal::OwnerSecret;

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

    #[test]
    fn a_command_gives_the_key_or_says_why_not() {
        let text = key_to_text(&OwnerSecret::new([3; 32]));
        let read = key_of_command(&format!("printf '%s' '{}'", text.trim_end())).unwrap();
        let AnyKey::Member(secret) = read else {
            panic!("a job key")
        };
        assert_eq!(secret.seed(), &[3; 32]);
        let refused = key_of_command("echo nothing").unwrap_err();
        assert_eq!(refused.status, ExitStatus::Denied);
        assert!(!refused.message.contains("nothing "), "{}", refused.message);
        let refused = key_of_command("exit 3").unwrap_err();
        assert!(refused.message.contains('3'), "{}", refused.message);
        // A command that prints without end is stopped reading, and does not hang.
        assert!(key_of_command("yes").is_err());
    }
}
