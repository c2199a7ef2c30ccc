//! `ckpt jobs`: what `ckpt run` runs on this machine now, and what would be lost if it failed.

use std::io::{self, Write};

use command_line::time::since;

use crate::commands::Answer;
use crate::commands::render::{Report, Table, count, json_of_self, one_line, shown};
use crate::commands::state_dir::needed_state_dir;
use ckpt_agent::report::{ExitStatus, Failure};
use runner::jobs::{JobsReport, RunningJob, jobs};
use runner::standing::JobState;

/// Longest reason in the table, characters.
const WHY_WIDTH: usize = 100;

/// A report older than this is said to be old, seconds.
const OLD_SECONDS: u64 = 30;

/// Lists the jobs.
pub(crate) fn run() -> Result<Answer, Failure> {
    let found = jobs(&needed_state_dir()?);
    let report = found.map_err(|cause| Failure::new(ExitStatus::LocalIo, cause.to_string()))?;
    let status = match report.unreadable.is_empty() {
        true => ExitStatus::Done,
        false => ExitStatus::LocalIo,
    };
    Ok((Box::new(report), status))
}

const fn state(state: JobState) -> &'static str {
    match state {
        JobState::Starting => "STARTING",
        JobState::Running => "RUNNING",
        JobState::StoppedForOwner => "STOPPED FOR OWNER",
        JobState::Saving => "SAVING",
        JobState::Leaving => "LEAVING",
        JobState::Ending => "ENDING",
    }
}

/// Seconds of work: `40 s`, `12.5 min`, `1.4 h`.
pub(super) fn work(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 3600.0 => format!("{:.1} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}

fn last_save(job: &RunningJob, now: u64) -> String {
    match (job.version, job.saved_at) {
        (None, _) => "none".to_owned(),
        (Some(version), None) => format!("version {version}, restored"),
        (Some(version), Some(at)) => {
            let ago = work(now.saturating_sub(at) as f64);
            format!("version {version}, {ago} ago")
        }
    }
}

fn next_save(job: &RunningJob) -> String {
    match job.next_save_seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 1.0 => "due".to_owned(),
        Some(seconds) => format!("in {}", work(seconds)),
    }
}

fn why(job: &RunningJob, now: u64) -> String {
    let mut said = Vec::new();
    if let Some(why) = &job.why {
        let at = job.since.map(|at| format!("since {}: ", since(at, now)));
        said.push(format!("{}{why}", at.unwrap_or_default()));
    }
    if let Some(why) = &job.not_saved {
        said.push(format!("not saved: {why}"));
    }
    if let Some(host) = &job.standby {
        said.push(format!("{host} stands by"));
    }
    let age = now.saturating_sub(job.reported_at);
    if age > OLD_SECONDS {
        said.push(format!("reported {} ago", work(age as f64)));
    }
    shown(&said.join("; "), WHY_WIDTH)
}

impl Report for JobsReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new(&[
            "JOB",
            "STATE",
            "HOST",
            "LAST SAVE",
            "NEXT SAVE",
            "AT RISK",
            "WITH NOTICE",
            "",
        ]);
        for job in &self.jobs {
            table.row(vec![
                shown(&job.job, 24),
                state(job.state).to_owned(),
                job.host.as_deref().unwrap_or("-").to_owned(),
                last_save(job, self.at),
                next_save(job),
                work(job.at_risk_seconds),
                job.promised_seconds.map_or("-".to_owned(), work),
                why(job, self.at),
            ]);
        }
        if !self.jobs.is_empty() {
            table.write(out)?;
        }
        for one in &self.unreadable {
            let path = one_line(&one.path);
            writeln!(out, "can't be read: {path}: {}", one_line(&one.why))?;
        }
        if self.elsewhere > 0 {
            let jobs = count(self.elsewhere, "job");
            let (run, share) = match self.elsewhere {
                1 => ("runs", "a machine that shares"),
                _ => ("run", "machines that share"),
            };
            writeln!(out, "{jobs} {run} on {share} this state directory")?;
        }
        writeln!(
            out,
            "{} of work at risk in {}",
            work(self.at_risk_seconds),
            count(self.jobs.len(), "job")
        )
    }

    json_of_self!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_shown_with_what_is_at_risk() {
        let job = |name: &str, state| RunningJob {
            job: name.to_owned(),
            state,
            since: None,
            why: None,
            host: None,
            standby: None,
            version: Some(3),
            saved_at: Some(1_790_000_000),
            next_save_seconds: Some(300.0),
            at_risk_seconds: 2520.0,
            promised_seconds: Some(7.0),
            not_saved: None,
            reported_at: 1_790_000_100,
        };
        let report = JobsReport {
            at: 1_790_000_100,
            jobs: vec![
                job("42", JobState::Running),
                RunningJob {
                    since: Some(1_790_000_040),
                    standby: Some("h04".to_owned()),
                    why: Some("the owner needs the processors".to_owned()),
                    not_saved: Some("too few hosts".to_owned()),
                    next_save_seconds: None,
                    ..job("43", JobState::StoppedForOwner)
                },
            ],
            at_risk_seconds: 5040.0,
            ..JobsReport::default()
        };
        let mut text = Vec::new();
        report.human(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[1].contains("RUNNING") && lines[1].contains("version 3, 100 s ago"),
            "{text}"
        );
        assert!(
            lines[1].contains("in 5.0 min") && lines[1].contains("42.0 min"),
            "{text}"
        );
        assert!(lines[2].contains("STOPPED FOR OWNER"), "{text}");
        assert!(
            lines[2].contains(
                ": the owner needs the processors; not saved: too few hosts; h04 stands by"
            ),
            "{text}"
        );
        assert_eq!(lines[3], "1.4 h of work at risk in 2 jobs");
    }
}
