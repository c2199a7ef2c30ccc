//! Saves that go on after their command: `ckpt save --detach` sets an image aside, a process of its own saves it, and
//! `ckpt wait` waits for that.

mod aside;
mod queue;
pub mod report;

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command as Process, Stdio};
use std::time::Duration;

use clap::Parser;
use codec::JobId;

use self::aside::{Found, Wish, keep, places, prepare, take};
use self::queue::{Entry, NewEntry, Outcome, Queue, queues};
use self::report::{DetachedReport, How, QueuedReport, QueuedSave, WaitReport};
use super::args::options::{Global, usage};
use super::args::{Cli, Command, Save};
use super::call::Call;
use super::connect::grid_file;
use super::render::Report;
use super::save::{detached_save, job_of, names};
use super::state_dir::{needed_state_dir, state_dir};
use super::{Answer, done};
use ckpt_agent::cancel::Cancel;
use ckpt_agent::image::Exclude;
use ckpt_agent::report::{ExitStatus, Failure, SaveReport};
use ckpt_agent::unix_time::unix_seconds;

/// Time from one look for the end of a save to the next.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// Options that are done with once an image is set aside.
const OWN_OPTIONS: [&str; 3] = ["--detach", "--take", "--link"];

fn local(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failure {
    Failure::local("the spool", &*cause.into())
}

/// Sets an image aside, and starts the process that saves it.
pub(super) fn detach(global: &Global, save: &Save, typed: &[OsString]) -> Result<Answer, Failure> {
    let state = needed_state_dir()?;
    let job = job_of(save)?;
    let queue = Queue::of(&state, &job);
    let wish = match (save.take, save.link) {
        (true, _) => Wish::Take,
        (_, true) => Wish::Link,
        _ => Wish::Copy,
    };
    if wish == Wish::Copy && (save.xattrs || save.owners) {
        let message = "--detach copies files without --xattrs and --owners: add --take or --link";
        return Err(usage(message.to_owned()).next("--detach --take, or --detach --link"));
    }
    let paths = absolute(names(save)?)?;
    let exclude = save.how.excluded()?;
    let mut entry = entry(global, typed, &job)?;
    let new = queue.begin(&state).map_err(local)?;
    if let Err(cause) = set_aside(
        &new,
        &mut entry,
        &paths,
        wish,
        &exclude,
        save.accept_changed,
    ) {
        let undone = new.abandon();
        let more = undone
            .err()
            .map_or(String::new(), |more| format!("; {more}"));
        return Err(local(format!("{cause}{more}")));
    }
    let number = queue.commit(new).map_err(local)?;
    start_saver(&job)?;
    done(DetachedReport {
        job,
        number,
        how: entry.how,
        bytes: entry.bytes,
    })
}

fn set_aside(
    new: &NewEntry,
    entry: &mut Entry,
    paths: &[(PathBuf, PathBuf)],
    wish: Wish,
    exclude: &Exclude,
    accepts_changes: bool,
) -> std::io::Result<()> {
    entry.paths = places(&new.dir, paths)?;
    entry.how = match wish {
        Wish::Take => How::Taken,
        Wish::Link => How::Linked,
        Wish::Copy => How::Shared,
    };
    let from: Vec<PathBuf> = paths.iter().map(|(from, _)| from.clone()).collect();
    let found = Found::of(&from, exclude)?;
    entry.bytes = found.bytes;
    // What is about to happen is known before it does, so that it can be undone after a kill.
    new.write(entry)?;
    prepare(&new.dir, &entry.paths)?;
    if wish == Wish::Take {
        return take(&new.dir, &entry.paths);
    }
    let how = keep(
        &new.dir,
        &entry.paths,
        wish,
        &found,
        exclude,
        accepts_changes,
    )?;
    if std::mem::replace(&mut entry.how, how) == how {
        return Ok(());
    }
    // Replacing a file waits for the disk, on ext4.
    new.write(entry)
}

/// Absolute paths, with the names under which they are stored.
fn absolute(named: Vec<(PathBuf, PathBuf)>) -> Result<Vec<(PathBuf, PathBuf)>, Failure> {
    let absolute = named.into_iter().map(|(path, name)| {
        let absolute = std::path::absolute(&path).map_err(local)?;
        let components: PathBuf = absolute.components().collect();
        let is_link = components
            .symlink_metadata()
            .map_err(|cause| local(format!("{}: {cause}", path.display())))?
            .is_symlink();
        if is_link {
            let message = format!("{}: --detach takes no link", path.display());
            let target = components.read_link().unwrap_or_default();
            let next = format!("name what it leads to, {}", target.display());
            return Err(usage(message).next(next));
        }
        Ok((components, name))
    });
    absolute.collect()
}

fn entry(global: &Global, typed: &[OsString], job: &JobId) -> Result<Entry, Failure> {
    let given: Vec<&str> = typed.iter().filter_map(|word| word.to_str()).collect();
    if given.len() != typed.len() {
        // Names are kept apart from the words, and may have any bytes; the words go into a text file.
        let message = "--detach: a word of the command line is not UTF-8";
        return Err(usage(message.to_owned()).next("name the directory above the file"));
    }
    let args = given.into_iter().filter(|word| !OWN_OPTIONS.contains(word));
    let file = |path: Option<PathBuf>| {
        let path = path.filter(|path| !path.as_os_str().is_empty());
        path.map(|path| std::path::absolute(&path).unwrap_or(path))
    };
    Ok(Entry {
        job: job.to_string(),
        at: unix_seconds(),
        args: args.map(str::to_owned).collect(),
        dir: std::env::current_dir().map_err(local)?,
        grid: file(grid_file(global)),
        key_file: file(global.key_file.clone()),
        cert_file: file(global.cert_file.clone()),
        paths: Vec::new(),
        how: How::Shared,
        bytes: 0,
    })
}

/// Starts a process that saves what is queued for a job. If one runs already, the new one ends at once.
fn start_saver(job: &JobId) -> Result<(), Failure> {
    let mut saver = Process::new("/proc/self/exe");
    saver
        .arg0("ckpt")
        .args(["spool", "--", job.as_str()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    // It is not waited for: it outlives this process.
    let started = saver.spawn().map(drop);
    started.map_err(|cause| local(format!("the process that saves can't be started: {cause}")))
}

/// Starts the saving of images that were left behind, such as by a machine that was switched off.
pub(super) fn take_up() {
    let Some(left) = state_dir().and_then(|state| queues(&state).ok()) else {
        return;
    };
    for queue in left {
        // A kill may have left files half taken.
        if let Ok(Some(_lock)) = queue.lock()
            && let Err(cause) = queue.tidy()
        {
            tracing::warn!(%cause, "an image that was half set aside stays so");
        }
        let newest = queue
            .numbers()
            .ok()
            .and_then(|numbers| numbers.last().copied());
        let job = newest.and_then(|newest| queue.entry(newest).ok()?.job.parse().ok());
        if let Some(job) = job {
            // Fails if no process can be started; the next command tries again.
            let _ = start_saver(&job);
        }
    }
}

/// Says once, before another save, that the last detached save of its job has failed.
pub(super) fn say_failed(save: &Save) {
    let (Some(state), Ok(job)) = (state_dir(), job_of(save)) else {
        return;
    };
    let queue = Queue::of(&state, &job);
    let failed = queue
        .outcome()
        .filter(|one| one.json.is_none() && !one.is_reported);
    if let Some(failed) = failed {
        let ago = unix_seconds().saturating_sub(failed.at);
        let text = super::render::one_line(&failed.text).into_owned();
        let _ = writeln!(
            std::io::stderr(),
            "ckpt: warning: a detached save of job {job} failed {ago} s ago: {text}"
        );
        let _ = queue.note(&Outcome {
            is_reported: true,
            ..failed
        });
    }
}

/// Saves what is queued for a job.
pub(super) fn save(call: &Call<'_>, job: &JobId) -> Result<Answer, Failure> {
    call.cancellable(async |cancel| save_all(job, cancel).await)
}

/// Saves what is queued for a job, the newest image first, until nothing is or a save fails.
async fn save_all(job: &JobId, cancel: Cancel) -> Result<Answer, Failure> {
    let _ = rustix::process::setsid();
    let queue = Queue::of(&needed_state_dir()?, job);
    loop {
        // The lock of the queue is held while the saver's is taken and given back: whoever queues an image finds this
        // process, or starts another.
        let Some(lock) = queue.lock().map_err(local)? else {
            break;
        };
        let Some(saver) = queue.become_saver().map_err(local)? else {
            break;
        };
        let Some(number) = queue.next().map_err(local)? else {
            break;
        };
        drop(lock);
        let outcome = save_one(&queue, number, cancel.clone()).await;
        let lock = queue.lock().map_err(local)?;
        queue.ended(&outcome).map_err(local)?;
        let newer = queue.numbers().map_err(local)?;
        let is_last = newer.last().is_none_or(|newest| *newest <= number);
        drop(saver);
        drop(lock);
        if outcome.json.is_none() && is_last {
            break;
        }
    }
    done(super::render::Text(Vec::new()))
}

async fn save_one(queue: &Queue, number: u64, cancel: Cancel) -> Outcome {
    let before = queue.outcome();
    let saved = match queue.entry(number) {
        Ok(entry) => save_entry(entry, cancel).await,
        Err(cause) => Err(local(cause)),
    };
    match saved {
        Ok((report, status)) => {
            let mut text = Vec::new();
            // Fails never: it is written to memory.
            let _ = report.human(&mut text);
            let text = String::from_utf8_lossy(&text).into_owned();
            Outcome {
                json: Some(report.json()),
                ..Outcome::now(number, before.as_ref(), status as u8, text)
            }
        }
        Err(failure) => {
            let status = failure.exit_code();
            Outcome::now(number, before.as_ref(), status, failure.message)
        }
    }
}

/// Saves an image as the command would have that set it aside.
async fn save_entry(entry: Entry, cancel: Cancel) -> Result<(SaveReport, ExitStatus), Failure> {
    let cli = Cli::try_parse_from(&entry.args);
    let cli = cli.map_err(|cause| Failure::new(ExitStatus::Usage, cause.to_string()))?;
    let Command::Save(save) = cli.command else {
        return Err(local("an entry is no save"));
    };
    // Relative paths of options, such as --metrics-file, are meant from there. Fails if it is gone.
    let _ = std::env::set_current_dir(&entry.dir);
    let global = Global {
        grid: entry.grid.or(cli.global.grid),
        key_file: entry.key_file.or(cli.global.key_file),
        cert_file: entry.cert_file.or(cli.global.cert_file),
        ..cli.global
    };
    let job = entry.job.parse().map_err(local)?;
    let paths = entry.paths.into_iter().map(|path| (path.at, path.name));
    detached_save(&global, *save, job, paths.collect(), cancel).await
}

/// Waits until what is queued for a job is saved, and ends as that save.
pub(super) fn wait(call: &Call<'_>, job: &JobId) -> Result<Answer, Failure> {
    call.cancellable(async |cancel| wait_for(job, cancel).await)
}

async fn wait_for(job: &JobId, mut cancel: Cancel) -> Result<Answer, Failure> {
    let queue = Queue::of(&needed_state_dir()?, job);
    if !queue.dir().is_dir() {
        return Err(nothing_queued(job));
    }
    let before = queue.outcome();
    let wanted = queue.numbers().map_err(local)?.last().copied();
    let Some(wanted) = wanted else {
        return answer(job, &queue, before.ok_or_else(|| nothing_queued(job))?);
    };
    start_saver(job)?;
    loop {
        let now = queue.outcome().filter(|now| now.number >= wanted);
        let is_new = now.as_ref().map(|now| now.attempt) != before.as_ref().map(|one| one.attempt);
        if let Some(now) = now.filter(|_| is_new) {
            return answer(job, &queue, now);
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_PERIOD) => {}
            () = cancel.cancelled() => {
                let message = format!("the save of job {job} goes on");
                return Err(Failure::new(ExitStatus::Interrupted, message)
                    .next(format!("ckpt wait {job}; ckpt list --queued")));
            }
        }
    }
}

fn nothing_queued(job: &JobId) -> Failure {
    let message = format!("no image of job {job} was set aside");
    Failure::new(ExitStatus::NotFound, message).next("ckpt save --detach; ckpt list --queued")
}

fn answer(job: &JobId, queue: &Queue, outcome: Outcome) -> Result<Answer, Failure> {
    let _ = queue.note(&Outcome {
        is_reported: true,
        ..outcome.clone()
    });
    let status = ExitStatus::ALL
        .into_iter()
        .find(|(status, _)| *status as u8 == outcome.status);
    let status = status.map_or(ExitStatus::Failed, |(status, _)| status);
    match outcome.json {
        Some(json) => Ok((
            Box::new(WaitReport {
                text: outcome.text,
                json,
            }),
            status,
        )),
        None => {
            let mut failure = Failure::new(status, outcome.text);
            if queue.numbers().is_ok_and(|numbers| !numbers.is_empty()) {
                failure.state = Some(format!(
                    "the image of job {job} stays in the spool, and is tried again"
                ));
                failure.next = Some(format!("ckpt wait {job}"));
            }
            Err(failure)
        }
    }
}

/// Lists what is queued.
pub(super) fn list(only: Option<&JobId>) -> Result<Answer, Failure> {
    let mut saves = Vec::new();
    for queue in queues(&needed_state_dir()?).map_err(local)? {
        let lock = queue.lock().map_err(local)?;
        let outcome = queue.outcome();
        for number in queue.numbers().map_err(local)? {
            let entry = queue.entry(number).map_err(local)?;
            if only.is_some_and(|only| only.as_str() != entry.job) {
                continue;
            }
            let failed = outcome
                .as_ref()
                .filter(|one| one.number == number && one.json.is_none());
            let state = match (queue.has_begun(number), failed) {
                (true, _) => "saving",
                (false, Some(_)) => "failed",
                (false, None) => "queued",
            };
            saves.push(QueuedSave {
                job: entry.job,
                state,
                set_aside_at: entry.at,
                how: entry.how,
                bytes: entry.bytes,
                error: failed.map(|failed| failed.text.clone()),
            });
        }
        drop(lock);
    }
    done(QueuedReport {
        bytes: saves.iter().map(|save| save.bytes).sum(),
        saves,
    })
}
