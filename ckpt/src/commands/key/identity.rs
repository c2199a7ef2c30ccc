//! Finding and reading the submitter's key and certificate.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use protocol::grid::Grid;
use protocol::identity::{AnyKey, Identity, JOB_KEY_FILE_BYTES_MAX, any_key_from_text, read_key};
use zeroize::Zeroizing;

use crate::commands::args::options::Global;
use crate::commands::render;

pub(crate) use ckpt_agent::connection::Files;
use ckpt_agent::connection::{self, denied, with_certificate};
use ckpt_agent::report::Failure;
use ckpt_agent::unix_time::unix_seconds;

/// Longest wait for a key command, which may ask the user for a passphrase.
const KEY_COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

/// Most retired keys that are looked for.
pub(crate) const RETIRED_MAX: u32 = 100;

/// The files of key and certificate: those of options and environment, else those of the grid file, else
/// the usual ones.
pub(crate) fn files(global: &Global, grid: Option<&Grid>) -> Result<Files, Failure> {
    connection::files(global.key_file.clone(), global.cert_file.clone(), grid)
}

/// Reads key and certificate of the user.
pub(crate) fn load(global: &Global, files: &Files) -> Result<Identity, Failure> {
    let key = match &global.key_command {
        Some(command) => key_of_command(command)?,
        None => connection::key_of_file(files)?,
    };
    connection::identity(key, files)
}

/// Takes over a certificate that the grid's authority renewed, and reports it once.
pub(crate) fn renewed(identity: Identity, grid: &Grid, files: &Files) -> Identity {
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

/// The identity of a process that has run for long: with the certificate that is in the file by now, or that the grid's
/// admin has renewed since. A job key stays as it is.
pub(crate) fn of_now(identity: &Identity, grid: &Grid, files: &Files) -> Identity {
    let read = match &identity.job {
        None => with_certificate(identity.secret.clone(), &files.certificate).ok(),
        Some(_) => None,
    };
    renewed(read.unwrap_or_else(|| identity.clone()), grid, files)
}

/// Fails if the certificate has ended, before any host has to refuse it. Warns if it ends soon.
pub(crate) fn check_end(identity: &Identity, files: &Files) -> Result<(), Failure> {
    let now = unix_seconds();
    let peer = identity.peer();
    let peer = peer.map_err(|cause| denied(cause.to_string()).next("--cert-file FILE"))?;
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
pub(crate) fn retired(files: &Files) -> Vec<Identity> {
    let of = |number| {
        let key = suffixed(&files.key, &format!("retired-{number}"));
        let certificate = suffixed(&files.certificate, &format!("retired-{number}"));
        with_certificate(read_key(&key).ok()?, &certificate).ok()
    };
    (1..=RETIRED_MAX).rev().filter_map(of).collect()
}

/// Runs a command that prints the key as the text of a key file.
fn key_of_command(command: &str) -> Result<AnyKey, Failure> {
    let failed = |what: String| {
        denied(format!("key command: {what}"))
            .next("the command alone: it has to print what `ckpt key export -o -` prints")
    };
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
    any_key_from_text(&text).ok_or_else(|| failed("its output is not a key".into()))
}

pub(crate) fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use codec::seal::OwnerSecret;

    use ckpt_agent::report::ExitStatus;
    use protocol::identity::{Authority, Role, Validity, certificate_to_pem, key_to_text};

    use super::*;

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

    #[test]
    fn a_process_that_runs_for_long_takes_the_certificate_that_is_in_the_file_by_then() {
        let dir = tempfile::tempdir().unwrap();
        let from = unix_seconds();
        let lasting = |days: u64| Validity {
            from,
            lasting: Duration::from_secs(days * 86_400),
        };
        let authority = Authority::create(OwnerSecret::new([1; 32]), "lab", lasting(99)).unwrap();
        let grid = Grid::new("lab", authority.certificate().clone());
        let secret = OwnerSecret::new([2; 32]);
        let certified = |secret: &OwnerSecret, days: u64| {
            let roles = [Role::Submitter];
            let signed = authority.sign(&roles, "ada", secret.id(), lasting(days));
            Identity::new(secret.clone(), signed.unwrap()).unwrap()
        };
        let files = Files {
            key: dir.path().join("owner.key"),
            certificate: dir.path().join("owner.crt"),
        };
        let days_left = |identity: &Identity| (identity.peer().unwrap().not_after - from) / 86_400;
        let began = certified(&secret, 1);
        // The file is missing, is of another key, or has a later certificate.
        assert_eq!(days_left(&of_now(&began, &grid, &files)), 1);
        for (found, days) in [
            (certified(&OwnerSecret::new([3; 32]), 60), 1),
            (certified(&secret, 30), 30),
        ] {
            let pem = certificate_to_pem(&found.certificate);
            std::fs::write(&files.certificate, pem).unwrap();
            assert_eq!(days_left(&of_now(&began, &grid, &files)), days);
        }
    }
}
