//! Job keys: made with the owner's key, and made void.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use codec::JobScope;
use codec::grant::Rights;
use codec::keys::{JobKeys, NewJobKeys};
use command_line::time::utc;
use protocol::identity::{AnyKey, Identity, job_key_to_text, new_key, read_any_key, write_private};
use serde::Serialize;

use crate::commands::connect::Connected;
use crate::commands::render::{Report, json_of_self};
use crate::commands::{Answer, render};
use ckpt_agent::agent::Voided;
use ckpt_agent::report::{ExitStatus, Failure, HostNote};
use ckpt_agent::unix_time::unix_millis;
use protocol::errors::chain;

/// Answer of `ckpt key for-job`.
#[derive(Debug, Serialize)]
pub(super) struct JobKeyReport {
    /// The job, or the prefix followed by a slash.
    job: String,
    /// What the key may be used for.
    rights: String,
    /// The number by which the key can be made void.
    serial: u64,
    /// When the key ends, Unix seconds.
    until: u64,
    /// The file with the key.
    file: PathBuf,
}

impl Report for JobKeyReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { job, rights, .. } = self;
        let file = self.file.display();
        writeln!(
            out,
            "key for job {job} ({rights}) in {file}, valid until {}",
            render::time(self.until)
        )?;
        writeln!(
            out,
            "next: on the job's machine, set CKPT_KEY_FILE={file} and copy the grid file"
        )
    }

    json_of_self!();
}

/// Answer of `ckpt key revoke`.
#[derive(Debug, Serialize)]
struct RevokedJobKeysReport {
    /// Keys with lower serial numbers are void.
    serials_below: u64,
    /// Hosts that know of it, and pass it on.
    heard: Vec<String>,
    /// Hosts that could not be reached.
    silent: Vec<HostNote>,
}

impl Report for RevokedJobKeysReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let below = self.serials_below;
        writeln!(
            out,
            "job keys made before {} are void, for all jobs (serials below {below}); {} hosts are informed",
            utc(below / 1000),
            self.heard.len()
        )?;
        for note in &self.silent {
            writeln!(
                out,
                "{} is not informed ({}): it accepts them until another host informs it",
                note.host, note.what
            )?;
        }
        Ok(())
    }

    json_of_self!();
}

fn needs_owner(connected: &Connected) -> Result<(), Failure> {
    if connected.identity.job.is_some() {
        let message = "this is a job key: only the owner's key can create and revoke job keys";
        return Err(
            Failure::new(ExitStatus::Denied, message).next("--key-file FILE, with the owner's key")
        );
    }
    Ok(())
}

pub(super) async fn revoke(connected: &Connected, file: Option<&Path>) -> Result<Answer, Failure> {
    needs_owner(connected)?;
    let serials_below = match file {
        None => unix_millis(),
        Some(file) => serial_of(file)?.saturating_add(1),
    };
    let Voided { heard, silent } = connected.agent.make_void(serials_below).await?;
    let status = if silent.is_empty() {
        ExitStatus::Done
    } else {
        ExitStatus::Degraded
    };
    let report = RevokedJobKeysReport {
        serials_below,
        heard,
        silent,
    };
    Ok((Box::new(report), status))
}

fn serial_of(file: &Path) -> Result<u64, Failure> {
    let denied = |message: String| {
        Failure::new(ExitStatus::Denied, message).next("a file that ckpt key for-job made")
    };
    match read_any_key(file).map_err(|cause| denied(chain(&cause)))? {
        AnyKey::Job(identity) => {
            let grant = identity
                .job
                .as_ref()
                .map(|keys| keys.grant().terms().serial);
            grant.ok_or_else(|| denied(format!("{} has no grant", file.display())))
        }
        AnyKey::Member(_) => Err(denied(format!("{} is not a job key", file.display()))),
    }
}

/// The properties of a new job key.
pub(super) struct NewJobKey {
    pub(super) job: JobScope,
    pub(super) ttl: Duration,
    pub(super) rights: Rights,
}

pub(super) fn issue(
    connected: &Connected,
    wish: NewJobKey,
    output: &Path,
) -> Result<JobKeyReport, Failure> {
    needs_owner(connected)?;
    let owner = &connected.identity;
    let failed = |cause: &dyn std::error::Error| {
        Failure::new(ExitStatus::Failed, format!("job key: {}", chain(cause)))
    };
    let serial = unix_millis();
    let now = serial / 1000;
    let new = NewJobKeys {
        grid: connected.grid.id().0,
        scope: wish.job.clone(),
        rights: wish.rights,
        serial,
        not_before: now,
        not_after: now.saturating_add(wish.ttl.as_secs()),
    };
    let seed = *new_key().map_err(|cause| failed(&cause))?.seed();
    let until = new.not_after;
    let keys = JobKeys::issue(&owner.secret, seed, new).map_err(|cause| failed(&cause))?;
    let identity = Identity::of_job(owner, keys).map_err(|cause| failed(&cause))?;
    let text = job_key_to_text(&identity).map_err(|cause| failed(&cause))?;
    let text = text.ok_or_else(|| Failure::new(ExitStatus::Failed, "job key: it has no text"))?;
    write_private(output, text.as_bytes())
        .map_err(|cause| Failure::local(output.display(), &cause))?;
    Ok(JobKeyReport {
        job: wish.job.to_string(),
        rights: wish.rights.to_string(),
        serial,
        until,
        file: output.to_owned(),
    })
}
