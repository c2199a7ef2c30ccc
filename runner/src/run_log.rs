//! Reports what happens: in the journal, on standard error, and in the report at the end.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use supervision::ahead::Limit;
use supervision::signals::name;
use supervision::{Doing, Millis, Need, Report, Why};

use super::journal::{Journal, JournalEvent, JournalLine};
use ckpt_agent::unix_time::{unix_millis, unix_seconds};
use machine::open_files::{HiddenProcess, OpenFile, Writing};

/// Most warnings that are reported, since a job could cause any number of them.
const WARNINGS_MAX: usize = 100;

/// How much is printed on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// Each entry of the journal, as a JSON object.
    Json,
    /// A sentence for everything that the supervisor does with the job.
    All,
    /// A sentence for everything that the user should know.
    Important,
    /// Nothing is printed.
    Nothing,
}

impl Says {
    /// Sentences for everything if standard error is a terminal, otherwise only the important ones.
    pub fn usual() -> Self {
        if io::stderr().is_terminal() {
            Self::All
        } else {
            Self::Important
        }
    }
}

/// The log of a run.
#[derive(Debug)]
pub(super) struct RunLog {
    journal: Journal,
    says: Says,
    warnings: Vec<String>,
    has_warned_of_hidden: bool,
    doing: Option<Doing>,
}

impl RunLog {
    /// A log that writes to this journal and prints this much.
    pub(super) const fn new(journal: Journal, says: Says) -> Self {
        Self {
            journal,
            says,
            warnings: Vec::new(),
            has_warned_of_hidden: false,
            doing: None,
        }
    }

    /// The path of the journal.
    pub(super) fn journal_path(&self) -> &Path {
        self.journal.path()
    }

    /// All warnings so far, for the report.
    pub(super) fn into_warnings(self) -> Vec<String> {
        self.warnings
    }

    /// Enters a warning in the journal and the report; beyond [`WARNINGS_MAX`] of them, drops it.
    pub(super) fn warn(&mut self, message: String) {
        if self.warnings.len() >= WARNINGS_MAX {
            return;
        }
        self.warnings.push(message.clone());
        self.enter(JournalEvent::Warning { message });
    }

    /// Warns, once in a run, that the files count as open because a process can't be looked at. Which file a
    /// process is seen to have open is of interest only to those who look for a reason.
    pub(super) fn warn_of(&mut self, writing: &Writing) {
        if let Some(OpenFile { path, .. }) = writing.files.first() {
            tracing::debug!(?path, "a process of the job can write to this file");
        }
        let Some(HiddenProcess { pid, cause }) = &writing.hidden else {
            return;
        };
        if !std::mem::replace(&mut self.has_warned_of_hidden, true) {
            self.warn(format!(
                "the files of process {pid} of the job can't be looked at ({cause}): as long as it is there, the \
                 job's state counts as open for writing; let the job report when it is written \
                 (ckpt notify SAVED=1)"
            ));
        }
    }

    /// Enters the paths of a new job at which nothing is: the user may have mistyped one.
    pub(super) fn say_what_is_missing(&mut self, paths: &[PathBuf]) {
        let missing = paths.iter().filter(|path| path.symlink_metadata().is_err());
        for path in missing.take(WARNINGS_MAX) {
            self.enter(JournalEvent::NothingYet {
                path: path.display().to_string(),
            });
        }
    }

    /// Reports what the supervisor does, if that has changed.
    pub(super) fn doing(&mut self, doing: Doing) {
        if self
            .doing
            .replace(doing)
            .is_some_and(|before| before != doing)
        {
            let state = match doing {
                Doing::Normal => "normal",
                Doing::Lowest => "lowest",
                Doing::Suspended => "suspended",
                Doing::Leaving => "leaving",
                Doing::Stopping => "stopping",
                Doing::Ended => return,
            };
            self.enter(JournalEvent::State {
                state: state.to_owned(),
            });
        }
    }

    /// Enters an event into the journal, and prints it.
    pub(super) fn enter(&mut self, entry: JournalEvent) {
        let line = JournalLine {
            at_ms: unix_millis(),
            entry,
        };
        self.journal.write(&line);
        let text = match self.says {
            Says::Nothing => None,
            Says::Json => serde_json::to_string(&line).ok(),
            Says::All => sentence(&line.entry).map(|(text, _)| format!("ckpt run: {text}")),
            Says::Important => sentence(&line.entry)
                .filter(|(_, is_important)| *is_important)
                .map(|(text, _)| format!("ckpt run: {text}")),
        };
        if let Some(text) = text {
            // Fails if standard error is closed.
            let _ = writeln!(io::stderr(), "{text}");
        }
    }

    /// Enters a report of the supervisor.
    pub(super) fn report(&mut self, report: &Report, now: Millis) {
        let seconds = |ms: u64| ms as f64 / 1000.0;
        let until = |then: &Millis| seconds(then.since(now));
        let entry = match report {
            Report::Suspended { need, load } => JournalEvent::Suspended {
                need: match need {
                    Need::Processors => "processors",
                    Need::User => "user",
                    Need::Withheld => "withheld",
                },
                load: *load,
            },
            Report::Resumed { after_ms } => JournalEvent::Resumed {
                after_s: seconds(*after_ms),
            },
            Report::Leaving {
                why,
                deadline,
                expected_ms,
                chance,
            } => JournalEvent::Leaving {
                why: reason(*why),
                grace_s: until(deadline),
                expected_s: seconds(*expected_ms),
                chance: *chance,
            },
            Report::CutShort { deadline } => JournalEvent::CutShort {
                grace_s: until(deadline),
            },
            Report::Hurry { deadline } => JournalEvent::Hurry {
                grace_s: until(deadline),
            },
            Report::NoAnswer { retry_at } => JournalEvent::NoAnswer {
                again_s: until(retry_at),
            },
            Report::Quiet { quiet_ms } => JournalEvent::Quiet {
                seconds: seconds(*quiet_ms),
            },
            Report::Overdue { elapsed_ms } => JournalEvent::Overdue {
                seconds: seconds(*elapsed_ms),
            },
            Report::Promise {
                loss_ms,
                interval_ms,
                limit,
            } => JournalEvent::Promise {
                loss_s: seconds(*loss_ms),
                interval_s: seconds(*interval_ms),
                limit: match limit {
                    Limit::None => None,
                    Limit::Line => Some("line"),
                    Limit::Standstill => Some("standstill"),
                },
            },
            Report::NotGone => JournalEvent::NotGone,
            Report::Interrupted { left } => return self.warn(interrupted(*left)),
            // The shell enters these with more details.
            Report::Committed { .. } | Report::SaveFailed { .. } | Report::NothingToSave { .. } => {
                return;
            }
        };
        self.enter(entry);
    }
}

/// Why a job leaves, in words.
pub(super) fn reason(why: Why) -> String {
    match why {
        Why::Load => "the owner needs the processors".to_owned(),
        Why::Memory => "the owner needs the memory".to_owned(),
        Why::MachineLeaves => "the machine leaves the grid".to_owned(),
        Why::Signal(number) => name(number),
        Why::Spot => "the cloud takes the machine back".to_owned(),
        Why::Shutdown => "the machine shuts down".to_owned(),
        Why::TimeLimit => "the time limit of the batch system".to_owned(),
        Why::Hang => "it showed no sign of life".to_owned(),
    }
}

/// What the owner needs, in words.
pub(super) const fn needed(need: Need) -> &'static str {
    match need {
        Need::Processors => "the owner needs the processors",
        Need::User => "somebody uses the machine",
        Need::Withheld => "the owner lends the machine to nobody now",
    }
}

fn interrupted(left: u8) -> String {
    let more = if left == 1 {
        "one more ends"
    } else {
        "more of them end"
    };
    format!(
        "the job is leaving and does not get SIGINT: {more} it at once, and its work since its newest version is then lost"
    )
}

/// An entry in words, and whether it is important. `None` if another entry reports the same.
fn sentence(entry: &JournalEvent) -> Option<(String, bool)> {
    let (text, is_important) = match entry {
        JournalEvent::Started { version, aside, .. } => return Some(start(*version, aside)),
        JournalEvent::State { state } if state == "lowest" => (
            "the owner uses the machine: the job runs at the lowest priority".to_owned(),
            false,
        ),
        JournalEvent::State { state } if state == "normal" => (
            "the machine is free: the job runs at normal priority".to_owned(),
            false,
        ),
        // The last line of the output says how the job ended.
        JournalEvent::State { .. } | JournalEvent::Ended { .. } => return None,
        JournalEvent::Suspended { need, load } => (suspended(need, *load), true),
        JournalEvent::Resumed { after_s } => (format!("resumed after {after_s:.0} s"), true),
        JournalEvent::Hurry { grace_s } => (
            format!("less time than announced: {grace_s:.0} s are left"),
            true,
        ),
        JournalEvent::Quiet { seconds } => (
            format!(
                "the job has shown neither progress nor processor time, input or output for {seconds:.0} s"
            ),
            true,
        ),
        JournalEvent::Overdue { seconds } => (
            format!("the job has run for {seconds:.0} s, three times as long as predicted"),
            true,
        ),
        JournalEvent::Forecast { .. }
        | JournalEvent::Expected { .. }
        | JournalEvent::Late { .. } => {
            return foreseen(entry);
        }
        JournalEvent::NotGone => ("processes of the job survive SIGKILL".to_owned(), true),
        JournalEvent::Warning { message } => (message.clone(), true),
        JournalEvent::Asked { .. }
        | JournalEvent::NoAnswer { .. }
        | JournalEvent::NothingYet { .. }
        | JournalEvent::NoCheckpoint { .. }
        | JournalEvent::CutShort { .. }
        | JournalEvent::WaitsForVersion { .. }
        | JournalEvent::Saving { .. }
        | JournalEvent::SetAside { .. }
        | JournalEvent::NotSetAside { .. }
        | JournalEvent::Saved { .. }
        | JournalEvent::Promise { .. }
        | JournalEvent::SaveFailed { .. }
        | JournalEvent::Leaving { .. } => return checkpoint(entry),
        JournalEvent::Staged { .. }
        | JournalEvent::StandsBy { .. }
        | JournalEvent::RunsThere { .. }
        | JournalEvent::EndedThere { .. }
        | JournalEvent::LeftAlone { .. }
        | JournalEvent::Lost { .. }
        | JournalEvent::Better { .. }
        | JournalEvent::Waits { .. }
        | JournalEvent::BroughtBack { .. } => return elsewhere(entry),
    };
    Some((text, is_important))
}

/// [`sentence`] for entries on the end of the job.
fn foreseen(entry: &JournalEvent) -> Option<(String, bool)> {
    Some(match entry {
        JournalEvent::Forecast {
            cpu_s,
            low_s,
            high_s,
            runs,
            used_s,
            ..
        } => {
            let interval = low_s.zip(*high_s);
            let interval = interval.map_or(String::new(), |(low, high)| {
                format!(" ({low:.1} to {high:.1})")
            });
            let text = format!(
                "predicted from {runs} earlier runs: {cpu_s:.1} s{interval} of processor time at reference speed; {used_s:.1} s are used"
            );
            (text, false)
        }
        JournalEvent::Expected { remaining_s, .. } => {
            (format!("the job should end in {remaining_s:.0} s"), false)
        }
        JournalEvent::Late {
            remaining_s,
            left_s,
            ..
        } => {
            let needs = remaining_s.map_or_else(
                || "nothing is known of what it still needs".to_owned(),
                |remaining_s| format!("it needs {remaining_s:.0} s more"),
            );
            let text = if *left_s > 0.0 {
                format!(
                    "the job will be late: {needs}, and {left_s:.0} s of --finish-within are left"
                )
            } else {
                format!("the job is late: --finish-within is over, and {needs}")
            };
            (text, true)
        }
        _ => return None,
    })
}

/// The loss that can be promised, and whether that is less than the user may expect.
fn promise(loss_s: f64, interval_s: f64, limit: Option<&str>) -> (String, bool) {
    let text = match limit {
        Some("line") => format!(
            "this job changes faster than the line carries; at most {loss_s:.0} s can be promised (--spend sets the share of the line)"
        ),
        Some(_) => format!(
            "this job stands still for each checkpoint; at most {loss_s:.0} s can be promised"
        ),
        // The hazards decide when it is saved.
        None if interval_s >= 86_400.0 => format!("with notice at most {loss_s:.0} s are lost"),
        None => format!(
            "saved every {interval_s:.0} s of work: with notice at most {loss_s:.0} s are lost"
        ),
    };
    (text, limit.is_some())
}

fn suspended(need: &str, load: f64) -> String {
    let since = clock_time(unix_seconds());
    match need {
        "user" => format!("stopped at {since}: somebody uses the machine"),
        "withheld" => format!("stopped at {since}: the owner lends the machine to nobody now"),
        _ => format!(
            "stopped at {since}: the owner needs the machine (load {:.0}%)",
            load * 100.0
        ),
    }
}

/// The time of the day, UTC.
fn clock_time(unix_s: u64) -> String {
    let of_day = unix_s % 86_400;
    let hours = of_day / 3600;
    let minutes = of_day / 60 % 60;
    format!("{hours:02}:{minutes:02}:{:02} UTC", of_day % 60)
}

fn start(version: Option<u64>, aside: &[String]) -> (String, bool) {
    let from = match version {
        Some(version) => format!("the job continues from version {version}"),
        None => "the job starts from the beginning: it has no checkpoint".to_owned(),
    };
    if aside.is_empty() {
        return (from, false);
    }
    (
        format!(
            "{from}; the files that were here are kept as {}",
            aside.join(", ")
        ),
        true,
    )
}

/// [`sentence`] for entries on other machines.
fn elsewhere(entry: &JournalEvent) -> Option<(String, bool)> {
    Some(match entry {
        JournalEvent::Staged {
            version,
            files,
            seconds,
            ..
        } => (
            format!("{files} files saved as version {version} in {seconds:.1} s"),
            false,
        ),
        JournalEvent::StandsBy {
            host,
            version,
            is_complete,
            ..
        } => {
            let version = version.map_or("no version".to_owned(), |one| format!("version {one}"));
            let part = if *is_complete { "" } else { " in part" };
            (format!("{host} stands by with {version}{part}"), false)
        }
        JournalEvent::RunsThere { host, after_s } => {
            let after = after_s.map_or(String::new(), |after| format!(", after {after:.1} s"));
            (format!("the job runs on {host}{after}"), true)
        }
        JournalEvent::EndedThere {
            host,
            exit_code,
            why,
            ..
        } => (format!("ended on {host} with {exit_code}: {why}"), false),
        JournalEvent::LeftAlone { host, seconds } => (
            format!("the job does not run on {host}, which is not tried again for {seconds:.0} s"),
            true,
        ),
        JournalEvent::Lost { host, seconds } => (
            format!(
                "{host} sends no reports: the job continues elsewhere; {host} is not tried again for {seconds:.0} s"
            ),
            true,
        ),
        JournalEvent::Better { host, there } => (
            format!("the job would end much earlier on {there}: it leaves {host}"),
            true,
        ),
        JournalEvent::Waits { seconds } => (
            format!("no host is free: hosts are asked again in {seconds:.0} s"),
            true,
        ),
        JournalEvent::BroughtBack { files, seconds, .. } => {
            (format!("{files} files came back in {seconds:.1} s"), false)
        }
        _ => return None,
    })
}

/// [`sentence`] for entries on checkpoints.
fn checkpoint(entry: &JournalEvent) -> Option<(String, bool)> {
    Some(match entry {
        JournalEvent::Asked { .. } => ("asked for a checkpoint".to_owned(), false),
        JournalEvent::NoAnswer { again_s } => (
            format!("the job wrote no checkpoint when asked; again in {again_s:.0} s"),
            true,
        ),
        JournalEvent::Promise {
            loss_s,
            interval_s,
            limit,
        } => promise(*loss_s, *interval_s, *limit),
        JournalEvent::NothingYet { path } => (
            format!("there is nothing at {path} (--files) yet: nothing is saved until the job writes it"),
            true,
        ),
        JournalEvent::NoCheckpoint { why, unsaved_s } => (
            format!("no checkpoint can be taken, {unsaved_s:.0} s of work are not saved: {why}"),
            true,
        ),
        JournalEvent::CutShort { grace_s } => (
            format!(
                "the job has not written its last checkpoint: it is ended, and the {grace_s:.0} s left are for saving \
                 what it has"
            ),
            true,
        ),
        JournalEvent::WaitsForVersion { seconds } => (
            format!("the newest version can't be restored now: it is waited for up to {seconds:.0} s"),
            true,
        ),
        JournalEvent::Saving { is_torn: true, .. } => (
            "saving the files as they are, marked: the job may have been writing them when it ended"
                .to_owned(),
            true,
        ),
        JournalEvent::Saving { is_final: true, .. } => ("saving the last checkpoint".to_owned(), false),
        JournalEvent::Saving { .. } => ("saving a checkpoint".to_owned(), false),
        JournalEvent::SetAside { by } => (format!("the files are set aside by {by}"), false),
        JournalEvent::NotSetAside { why } => (
            format!("the job stands still while its files are read: {why}"),
            false,
        ),
        JournalEvent::Saved {
            version, seconds, ..
        } => (format!("version {version} saved in {seconds:.1} s"), false),
        JournalEvent::SaveFailed { message, status } => {
            (format!("not saved (status {status}): {message}"), true)
        }
        JournalEvent::Leaving {
            why,
            grace_s,
            expected_s,
            ..
        } => (
            format!(
                "leaving: {why}; {grace_s:.0} s left, the last checkpoint is expected to take {expected_s:.1} s"
            ),
            true,
        ),
        _ => return None,
    })
}
