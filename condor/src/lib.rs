//! The two plug-ins by which HTCondor keeps checkpoints of its jobs on a grid:
//! `docs/use/recipes/htcondor.md`.
//!
//! HTCondor calls the transfer plug-in once for a checkpoint, with the list of all its files. It calls
//! the clean-up plug-in for each file of a checkpoint that it does not need any more. Here a checkpoint
//! of HTCondor is a version of the job. The number that HTCondor gave it is a label of the version.
//!
//! The job's ad, and the variables in it, are read in `settings`; the list of files is read, and the answer
//! to HTCondor written, in `transfer`; arguments are read in `call`, and addresses in `address`.

#![cfg_attr(
    not(test),
    deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)
)]

pub mod address;
mod call;
pub mod classad;
mod cleanup;
pub mod environment;
mod log;
mod settings;
mod transfer;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;

use protocol::identity::keep_out_of_dumps;

use self::call::{CleanupCall, Direction, PluginCall};
use self::classad::{CLASSADS_BYTES_MAX, parse_ads};
use self::log::Log;
use self::settings::{Surroundings, usage};
use self::transfer::{Item, Transfer, TransferOutcome, answer, items, said};
use ckpt_agent::cancel::next_signal;
use ckpt_agent::client::{Cancel, canceller};
use ckpt_agent::report::{ExitStatus, Failure};
use ckpt_agent::unix_time::unix_seconds;

/// Name under which the program is the transfer plug-in.
pub const PLUGIN: &str = "ckpt_plugin";

/// Name under which the program is the clean-up plug-in.
pub const CLEANUP: &str = "ckpt_cleanup";

const VARIABLES: &str = "\
In the job's environment (condor_submit: environment) or that of the program:
  CKPT_GRID=FILE       grid file; else /etc/ckpt/GRID.toml
  CKPT_KEY_FILE=FILE   key; else /etc/ckpt/GRID.key
  CKPT_CERT_FILE=FILE  certificate of the key, where it is not beside the key
  CKPT_RETRY=10min     for how long too few hosts are tried again
  CKPT_TTL=30d         lease of the job's checkpoints, or none
  CKPT_KEEP=3          versions to keep
  CKPT_DATA=3 CKPT_PARITY=2
  CKPT_TARGET=0.999    probability of being able to restart, instead of these two
  CKPT_LOG=NAME        log in the sandbox, instead of the system's
";

/// Runs the transfer plug-in. `args` begin with the program's name.
pub fn plugin(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let call = match PluginCall::parse(args.into_iter().skip(1)) {
        Ok(call) => call,
        Err(why) => return wrong_call(PLUGIN, &why),
    };
    match call {
        PluginCall::Capabilities => print(&format!(
            "MultipleFileSupport = true\nPluginType = \"FileTransfer\"\nPluginVersion = \"{}\"\n\
             ProtocolVersion = 2\nSupportedMethods = \"ckpt\"\n",
            env!("CARGO_PKG_VERSION")
        )),
        PluginCall::Help => print(&format!(
            "Moves files of HTCondor's jobs to ckpt://GRID/PREFIX/JOB/NUMBER/FILE and back.\n\n\
             Usage: {PLUGIN} -classad\n       {PLUGIN} -infile FILE -outfile FILE [-upload]\n\n{VARIABLES}"
        )),
        PluginCall::Transfer {
            infile,
            outfile,
            direction,
        } => {
            let mut outcomes = Vec::new();
            let ended = with_runtime(async |cancel| {
                let bytes = settings::read(&infile, CLASSADS_BYTES_MAX as u64);
                let failed = |cause: String| usage(format!("{}: {cause}", infile.display()));
                let bytes = bytes.map_err(|cause| failed(cause.to_string()))?;
                let ads = parse_ads(&bytes).map_err(|cause| failed(cause.to_string()))?;
                outcomes = transfer_all(&items(&ads)?, direction, cancel).await;
                Ok(())
            });
            let answers: Vec<String> = outcomes.iter().map(|one| answer(one, direction)).collect();
            // `fs::write` also shortens a longer file that is there already.
            let written = fs::write(&outfile, answers.join("\n") + "\n");
            if let Err(failure) = &ended {
                complain(PLUGIN, &said(failure));
            }
            if let Err(cause) = &written {
                complain(PLUGIN, &format!("{}: {cause}", outfile.display()));
            }
            let all_moved = outcomes.iter().all(|one| one.ended.is_ok());
            // Status 2 would ask HTCondor to renew the credentials.
            ExitCode::from(u8::from(ended.is_err() || written.is_err() || !all_moved))
        }
    }
}

/// Moves files. Every file gets an answer, whatever fails.
async fn transfer_all(
    items: &[Item],
    direction: Direction,
    cancel: Cancel,
) -> Vec<TransferOutcome> {
    let begun = unix_seconds();
    let mut connecting_s = 0.0;
    let ended = match Surroundings::of_transfer() {
        Ok(surroundings) => {
            let mut log = Log::new(PLUGIN, &surroundings);
            let mut transfer = Transfer {
                surroundings: &surroundings,
                log: &mut log,
                cancel,
                connecting: std::time::Duration::ZERO,
            };
            let ended = match direction {
                Direction::Upload => {
                    let bytes = transfer.upload(items).await;
                    bytes.map(|bytes| bytes.into_iter().map(Ok).collect())
                }
                Direction::Download => transfer.download(items).await,
            };
            connecting_s = transfer.connecting.as_secs_f64();
            let failures = ended.as_ref().map_or_else(
                |failure| vec![said(failure)],
                |each: &Vec<Result<u64, Failure>>| {
                    let mut lines: Vec<String> = each
                        .iter()
                        .filter_map(|one| one.as_ref().err())
                        .map(said)
                        .collect();
                    lines.dedup();
                    lines
                },
            );
            for line in failures {
                log.warn(&line);
            }
            ended
        }
        Err(failure) => {
            complain(PLUGIN, &said(&failure));
            Err(failure)
        }
    };
    let mut ended = ended.map(Vec::into_iter);
    let outcome = |item: &Item| TransferOutcome {
        item: item.clone(),
        ended: match &mut ended {
            Ok(each) => match each.next() {
                Some(Ok(bytes)) => Ok(bytes),
                Some(Err(failure)) => Err((failure.status, said(&failure))),
                None => Err((ExitStatus::Failed, "not moved".into())),
            },
            Err(failure) => Err((failure.status, said(failure))),
        },
        times: (begun, unix_seconds()),
        connecting_s,
    };
    items.iter().map(outcome).collect()
}

/// Runs the clean-up plug-in. `args` begin with the program's name.
pub fn cleanup(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let call = match CleanupCall::parse(args.into_iter().skip(1)) {
        Ok(call) => call,
        Err(why) => return wrong_call(CLEANUP, &why),
    };
    let CleanupCall::Delete {
        from,
        file,
        job_ad,
        may_be_missing,
    } = call
    else {
        return print(&format!(
            "Removes a checkpoint of one of HTCondor's jobs, with the first of its files.\n\n\
             Usage: {CLEANUP} -from URL -delete FILE -jobad FILE [-ignore-missing-files]\n\n\
             Exit status 0: it is removed. 3, 5: hosts that may hold parts of it were not informed; call it again later.\n\n\
             {VARIABLES}"
        ));
    };
    let ended = with_runtime(async |cancel| {
        cleanup::remove(&from, &file, job_ad.as_deref(), may_be_missing, cancel).await
    });
    match ended {
        Ok(status) => ExitCode::from(status as u8),
        Err(failure) => ExitCode::from(failure.exit_code()),
    }
}

/// Runs `act` in a runtime, and cancels it at SIGTERM or SIGINT.
fn with_runtime<R>(act: impl AsyncFnOnce(Cancel) -> Result<R, Failure>) -> Result<R, Failure> {
    // If this fails, the keys are as safe as in any other program.
    let _ = keep_out_of_dumps();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime
        .map_err(|cause| Failure::new(ExitStatus::Failed, format!("starting threads: {cause}")))?;
    runtime.block_on(async {
        let (canceller, cancel) = canceller();
        tokio::spawn(async move {
            if next_signal().await.is_some() {
                canceller.cancel();
            }
        });
        act(cancel).await
    })
}

fn print(text: &str) -> ExitCode {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    ExitCode::from(u8::from(written.is_err()))
}

fn complain(name: &str, what: &str) {
    let _ = writeln!(io::stderr(), "{name}: {what}");
}

/// Status 1, because HTCondor gives status 2 of a plug-in another meaning.
fn wrong_call(name: &str, why: &str) -> ExitCode {
    complain(name, why);
    complain(name, "try: --help");
    ExitCode::FAILURE
}
