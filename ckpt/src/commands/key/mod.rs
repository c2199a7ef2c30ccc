//! The commands `ckpt key`, `init` and `join`, and the keys that other commands use.

pub(super) mod any;
pub(super) mod identity;
mod job;
pub(super) mod join;
pub(super) mod own;
mod travel;

use super::args::key::KeyCommand;
use super::call::Call;
use super::{Answer, done};
use ckpt_agent::report::{ExitStatus, Failure};

/// Runs a command for keys.
pub(crate) fn run(call: Call<'_>, command: KeyCommand) -> Result<Answer, Failure> {
    match command {
        KeyCommand::Export {
            output,
            seal,
            passphrase,
        } => {
            if seal && output.as_os_str() == "-" {
                let message = "--output - writes the key alone, as it is";
                return Err(Failure::new(ExitStatus::Usage, message).next("--seal --output FILE"));
            }
            let is_sealed = seal || passphrase.passphrase_file.is_some();
            let passphrase = is_sealed.then_some(&passphrase);
            travel::export(call.global, &output, passphrase)
        }
        KeyCommand::Import { file, passphrase } => {
            done(travel::import(call.global, &file, &passphrase)?)
        }
        KeyCommand::Rotate { name, cert } => {
            done(own::rotate(call.global, name.as_deref(), cert.as_deref())?)
        }
        KeyCommand::ForJob {
            job,
            ttl,
            rights,
            output,
        } => call.connected(async |connected, _| {
            let job = job.named()?;
            let wish = job::NewJobKey { job, ttl, rights };
            done(job::issue(connected, wish, &output)?)
        }),
        KeyCommand::Revoke { file } => {
            call.connected(async |connected, _| job::revoke(connected, file.as_deref()).await)
        }
    }
}
