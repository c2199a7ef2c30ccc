//! `ckpt save`: saves files, a stream or the output of a command.

mod metrics_file;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use codec::JobId;
use codec::seal::Cipher;
use protocol::errors::chain;

use super::args::Save;
use super::args::options::{Global, usage};
use super::connect::connect;
use super::{Answer, progress};
use ckpt_agent::agent::{ALLOW_EMPTY, After, SaveInput, SaveOptions, SaveRequest};
use ckpt_agent::cancel::Cancel;
use ckpt_agent::image::NamedPath;
use ckpt_agent::image::keeper::Keeper;
use ckpt_agent::report::{ExitStatus, Failure, SaveReport};

/// Saves, and enters how that went into the metrics file, if there is one.
pub(super) async fn run(global: &Global, save: Save, cancel: Cancel) -> Result<Answer, Failure> {
    let metrics = save.metrics_file.clone();
    let ended = attempt(global, save, cancel).await;
    if let Some(path) = metrics {
        metrics_file::enter(&path, ended.as_ref().ok());
    }
    ended.map(saved)
}

async fn attempt(global: &Global, save: Save, cancel: Cancel) -> Result<SaveReport, Failure> {
    send(global, save_request(save)?, cancel).await
}

async fn send(
    global: &Global,
    request: SaveRequest,
    cancel: Cancel,
) -> Result<SaveReport, Failure> {
    let agent = connect(global).await?.agent;
    let observer = progress::observer(global.progress, "saving");
    let report = agent.save(request, observer, cancel).await;
    agent.close().await;
    report
}

fn saved(report: SaveReport) -> Answer {
    let status = status_of(&report);
    (Box::new(report), status)
}

fn status_of(report: &SaveReport) -> ExitStatus {
    let complete = report.holders.iter().all(|holder| holder.host.is_some());
    if complete && report.warnings.is_empty() {
        ExitStatus::Done
    } else {
        ExitStatus::Degraded
    }
}

/// The job of a save.
///
/// # Errors
/// When the words can be read in two ways, or name no job.
pub(super) fn job_of(save: &Save) -> Result<JobId, Failure> {
    save.job_and_paths().map(|(job, _)| job)
}

/// The paths of a save, with the names under which they are stored.
///
/// # Errors
/// When they are no files that can be set aside.
pub(super) fn names(save: &Save) -> Result<Vec<(PathBuf, PathBuf)>, Failure> {
    let (_, paths) = save.job_and_paths()?;
    if paths.is_empty() || paths.iter().any(|path| path.as_os_str() == "-") {
        return Err(usage("--detach sets files aside, and none is named".into())
            .next("ckpt save --detach JOB PATH..."));
    }
    let named = paths.iter().map(|path| {
        let named = NamedPath::of_argument(path);
        let named = named.map_err(|cause| usage(chain(&cause)).next("PATH=NAME"))?;
        let name = named.stored_name().ok_or_else(|| {
            let path = path.display();
            usage(format!("{path} has no name to store it under")).next("PATH=NAME")
        })?;
        Ok((named.into_path(), name))
    });
    named.collect()
}

/// Saves content that was set aside, under the names that it had.
pub(super) async fn detached_save(
    global: &Global,
    save: Save,
    job: JobId,
    paths: Vec<(PathBuf, PathBuf)>,
    cancel: Cancel,
) -> Result<(SaveReport, ExitStatus), Failure> {
    let metrics = save.metrics_file.clone();
    let named = paths
        .into_iter()
        .map(|(path, name)| NamedPath::renamed(path, name.as_os_str()));
    let named: Vec<NamedPath> = named
        .collect::<Result<_, _>>()
        .map_err(|cause| usage(chain(&cause)))?;
    let request = request_of(save, job, SaveInput::Named(named))?;
    let ended = send(global, request, cancel).await;
    if let Some(path) = metrics {
        metrics_file::enter(&path, ended.as_ref().ok());
    }
    ended.map(|report| {
        let status = status_of(&report);
        (report, status)
    })
}

fn save_request(save: Save) -> Result<SaveRequest, Failure> {
    let (job, paths) = save.job_and_paths()?;
    let input = save_input(&save, &job, paths)?;
    request_of(save, job, input)
}

fn request_of(save: Save, job: JobId, input: SaveInput) -> Result<SaveRequest, Failure> {
    let mut options = save.how.options()?;
    options.placement.explain = save.explain;
    if save.no_encryption {
        let _ = writeln!(
            io::stderr(),
            "ckpt: warning: --no-encryption: every host that gets a shard can read the image"
        );
        options.cipher = Cipher::None;
    }
    Ok(SaveRequest {
        job,
        input,
        options: SaveOptions {
            full: save.full,
            deadline: save.deadline,
            skip_unreadable: save.skip_unreadable,
            accept_changed: save.accept_changed,
            extended_attributes: save.xattrs,
            owners: save.owners,
            allow_empty: save.allow_empty,
            after: save.after.map(|which| After {
                which,
                strength: save.fence.into(),
                is_unfenced: save.unfenced,
            }),
            ..options
        },
    })
}

/// What is saved.
///
/// # Errors
/// When the arguments can't be combined, or standard input can't be an image.
fn save_input(save: &Save, job: &JobId, paths: &[PathBuf]) -> Result<SaveInput, Failure> {
    Ok(match paths {
        [] => SaveInput::Command(save.command.clone(), Some(Keeper::of_this_program())),
        [only] if only.as_os_str() == "-" => {
            if io::stdin().is_terminal() {
                return Err(usage("standard input is a terminal, not an image".into())
                    .next("PRODUCER | ckpt save JOB -"));
            }
            if is_null_device(io::stdin()) && !save.allow_empty {
                let message =
                    format!("cannot save job {job}: standard input is closed or /dev/null");
                return Err(usage(message).next(ALLOW_EMPTY));
            }
            SaveInput::Stdin
        }
        paths if paths.iter().any(|path| path.as_os_str() == "-") => {
            return Err(
                usage("standard input (-) can't be combined with other paths".into())
                    .next("./- for a file that is called -"),
            );
        }
        paths => {
            let named = paths.iter().map(|path| NamedPath::of_argument(path));
            let named = named.collect::<Result<Vec<NamedPath>, _>>();
            SaveInput::Named(named.map_err(|cause| usage(chain(&cause)).next("PATH=NAME"))?)
        }
    })
}

/// Whether this is `/dev/null`, which Rust opens in the place of a standard stream that is closed.
fn is_null_device(file: impl std::os::fd::AsFd) -> bool {
    const NULL: (u32, u32) = (1, 3);
    rustix::fs::fstat(file).is_ok_and(|stat| {
        let device = (
            rustix::fs::major(stat.st_rdev),
            rustix::fs::minor(stat.st_rdev),
        );
        rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device() && device == NULL
    })
}
