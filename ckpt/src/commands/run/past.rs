//! `ckpt runs`: what earlier runs took, and how long another one will take.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use codec::JobId;

use super::jobs::work;
use crate::commands::args::job::TypedJob;
use crate::commands::names;
use crate::commands::render::{self, Report, Table, json_of_self, one_line, shown, time};
use crate::commands::state_dir::{no_state_dir, state_dir};
use crate::commands::{Answer, done};
use ckpt_agent::report::{ExitStatus, Failure};
use runner::history::{HISTORY, History, PastLine};
use runner::kind::{self, Kind, Parameter};
use runner::ledger::Ledger;
use runner::past_report::{JobLedger, LedgerReport, PastRunReport, RunForecastReport, RunsReport};

/// Longest command in the table, characters.
const COMMAND_WIDTH: usize = 60;

/// Longest reason in the table, characters.
const WHY_WIDTH: usize = 80;

/// Options of `runs`.
#[derive(Debug, Args)]
pub struct RunsArgs {
    /// File of the history [default: runs.jsonl in the state directory].
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    /// Predict how long CMD will take, from earlier runs that differ from it only in numbers.
    #[arg(long, requires = "command", conflicts_with_all = ["job", "place"])]
    pub predict: bool,
    /// Only runs of this job.
    #[command(flatten)]
    pub job: TypedJob,
    /// Show at most this many runs, the newest.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 50,
        conflicts_with = "predict"
    )]
    pub last: usize,
    /// Parameter to compare runs by, instead of their command lines; can be given more than once.
    #[arg(long, value_name = "NAME=VALUE", value_parser = Parameter::parse, requires = "command")]
    pub param: Vec<Parameter>,
    /// Only runs whose command differs from CMD only in numbers.
    #[arg(last = true, value_name = "CMD", add = names::paths())]
    pub command: Vec<OsString>,
}

/// The ledger of this machine.
///
/// # Errors
/// When it exists and can't be read.
pub(crate) fn ledger() -> Result<Ledger, Failure> {
    let Some(state) = state_dir() else {
        return Ok(Ledger::default());
    };
    Ledger::read(&Ledger::path(&state))
        .map_err(|cause| Failure::new(ExitStatus::LocalIo, cause.to_string()))
}

/// The path of the history: the named one, or the usual one. `None` without a state directory.
pub(crate) fn history_file(named: Option<PathBuf>) -> Option<PathBuf> {
    named.or_else(|| state_dir().map(|state| state.join(HISTORY)))
}

/// Lists runs, or forecasts one.
pub(crate) fn run(args: RunsArgs) -> Result<Answer, Failure> {
    let path = history_file(args.history);
    let path = path.ok_or_else(|| no_state_dir().next("--history FILE"))?;
    let history = History::read(&path).map_err(|cause| {
        Failure::new(ExitStatus::LocalIo, cause.to_string()).next("--history FILE")
    })?;
    let kind = (!args.command.is_empty()).then(|| Kind::of(&args.command, &args.param));
    let file = path.display().to_string();
    if let (true, Some(kind)) = (args.predict, &kind) {
        return done(forecast(file, &history, kind)?);
    }
    let job = args.job.typed()?;
    let wanted = |run: &&PastLine| {
        let of_job = job.as_ref().is_none_or(|job| job.to_string() == run.job);
        of_job && kind.as_ref().is_none_or(|kind| kind.words == run.words)
    };
    let mut runs: Vec<&PastLine> = history.runs.iter().filter(wanted).collect();
    runs.drain(..runs.len().saturating_sub(args.last));
    let ledger = ledger_report(&ledger()?, job.as_ref());
    done(list(file, &runs, history.unreadable, ledger))
}

fn forecast(file: String, history: &History, kind: &Kind) -> Result<RunForecastReport, Failure> {
    let outlook = history.outlook(kind).ok_or_else(|| {
        let others = render::count(history.runs.len(), "other run");
        let message = format!("no earlier run of {:?} in {file}; {others}", kind.shape());
        Failure::new(ExitStatus::NotFound, message)
            .next("ckpt runs; each run under ckpt run that ends with 0 is recorded")
    })?;
    let speed = machine::speed::measure();
    Ok(RunForecastReport {
        history: file,
        command: kind.line(),
        cpu_seconds: outlook.cpu.cpu_s,
        low_seconds: outlook.cpu.low_s,
        high_seconds: outlook.cpu.high_s,
        share: outlook.cpu.share,
        nearest_seconds: outlook.cpu.nearest_s,
        runs: outlook.cpu.runs,
        outside: outlook
            .outside
            .iter()
            .map(|place| kind.name_of(*place))
            .collect(),
        speed,
        here_seconds: outlook.work_s / speed,
        quiet_seconds: outlook.quiet_s,
    })
}

fn ledger_report(ledger: &Ledger, job: Option<&JobId>) -> LedgerReport {
    let wanted = job.map(ToString::to_string);
    let jobs = ledger.jobs.iter();
    let jobs = jobs.filter(|(job, _)| wanted.as_ref().is_none_or(|wanted| wanted == *job));
    let jobs: Vec<JobLedger> = jobs
        .map(|(job, sum)| JobLedger {
            job: job.clone(),
            sum: *sum,
            why: ledger.why.get(job).cloned(),
        })
        .collect();
    let all = match wanted {
        Some(_) => jobs.first().map(|one| one.sum).unwrap_or_default(),
        None => ledger.all,
    };
    LedgerReport {
        all,
        jobs,
        unreadable: ledger.unreadable,
    }
}

fn list(
    history: String,
    runs: &[&PastLine],
    unreadable: usize,
    ledger: LedgerReport,
) -> RunsReport {
    let error = |forecast: f64, truth: f64| (forecast / truth.max(f64::MIN_POSITIVE) - 1.0).abs();
    let reports: Vec<PastRunReport> = runs
        .iter()
        .map(|run| PastRunReport {
            ended_at: run.ended_at,
            job: run.job.clone(),
            command: kind::line(&run.words, &run.numbers),
            cpu_seconds: run.cpu_s,
            work_seconds: run.work_s,
            elapsed_seconds: run.elapsed_s,
            starts: run.starts,
            speed: run.speed,
            forecast_seconds: run.forecast.map(|one| one.cpu_s),
            low_seconds: run.forecast.and_then(|one| one.low_s),
            high_seconds: run.forecast.and_then(|one| one.high_s),
            error: run.forecast.map(|one| error(one.cpu_s, run.cpu_s)),
            nearest_error: run.forecast.map(|one| error(one.nearest_s, run.cpu_s)),
        })
        .collect();
    let inside: Vec<bool> = reports
        .iter()
        .filter_map(|run| {
            let (low, high) = run.low_seconds.zip(run.high_seconds)?;
            Some((low..=high).contains(&run.cpu_seconds))
        })
        .collect();
    let share = inside.iter().filter(|is_inside| **is_inside).count() as f64 / inside.len() as f64;
    RunsReport {
        history,
        unreadable,
        forecast_runs: reports.iter().filter(|run| run.error.is_some()).count(),
        mean_error: mean(reports.iter().filter_map(|run| run.error)),
        nearest_mean_error: mean(reports.iter().filter_map(|run| run.nearest_error)),
        inside: (!inside.is_empty()).then_some(share),
        runs: reports,
        ledger,
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), one| (sum + one, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

fn seconds(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 1000.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

fn between(low: Option<f64>, high: Option<f64>) -> String {
    let ends = low.zip(high);
    ends.map_or("-".to_owned(), |(low, high)| {
        format!("{} to {}", seconds(low), seconds(high))
    })
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.1}%", share * 100.0))
}

impl Report for RunsReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let head = [
            "ENDED",
            "JOB",
            "CPU S",
            "FORECAST",
            "INTERVAL",
            "ERROR",
            "ELAPSED S",
            "STARTS",
            "COMMAND",
        ];
        let mut table = Table::new(&head);
        for run in &self.runs {
            table.row(vec![
                time(run.ended_at),
                shown(&run.job, 24),
                seconds(run.cpu_seconds),
                run.forecast_seconds.map_or("-".to_owned(), seconds),
                between(run.low_seconds, run.high_seconds),
                percent(run.error),
                seconds(run.elapsed_seconds),
                run.starts.to_string(),
                shown(&run.command, COMMAND_WIDTH),
            ]);
        }
        if self.runs.is_empty() {
            writeln!(out, "no runs in {}", one_line(&self.history))?;
        } else {
            table.write(out)?;
        }
        if self.forecast_runs > 0 {
            writeln!(
                out,
                "mean error of {}: {}; of the nearest run alone: {}; in their interval: {}",
                render::count(self.forecast_runs, "forecast"),
                percent(self.mean_error),
                percent(self.nearest_mean_error),
                percent(self.inside),
            )?;
        }
        if self.unreadable > 0 {
            let lines = render::count(self.unreadable, "line");
            writeln!(out, "{lines} of {} can't be read", one_line(&self.history))?;
        }
        write_ledger(out, &self.ledger)
    }

    json_of_self!();
}

fn write_ledger(out: &mut dyn Write, ledger: &LedgerReport) -> io::Result<()> {
    if !ledger.jobs.is_empty() {
        let head = ["JOB", "EVICTIONS", "SURVIVED", "RESCUED", "LOST", "WHY"];
        let mut table = Table::new(&head);
        for one in &ledger.jobs {
            table.row(vec![
                shown(&one.job, 24),
                one.sum.evictions.to_string(),
                one.sum.survived.to_string(),
                work(one.sum.rescued_seconds),
                work(one.sum.lost_seconds),
                shown(one.why.as_deref().unwrap_or("-"), WHY_WIDTH),
            ]);
        }
        table.write(out)?;
        let all = &ledger.all;
        writeln!(
            out,
            "{} of {} survived: {} of work rescued, {} lost",
            all.survived,
            render::count(
                usize::try_from(all.evictions).unwrap_or(usize::MAX),
                "eviction"
            ),
            work(all.rescued_seconds),
            work(all.lost_seconds),
        )?;
    }
    if ledger.unreadable > 0 {
        let lines = render::count(ledger.unreadable, "line");
        writeln!(out, "{lines} of the ledger can't be read")?;
    }
    Ok(())
}

impl Report for RunForecastReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "run        {}", one_line(&self.command))?;
        writeln!(
            out,
            "processor  {} s at reference speed, from {}",
            seconds(self.cpu_seconds),
            render::count(self.runs, "earlier run")
        )?;
        if let Some(share) = self.share {
            let ends = between(self.low_seconds, self.high_seconds);
            writeln!(out, "interval   {ends} s in {:.0}% of runs", share * 100.0)?;
        }
        writeln!(
            out,
            "here       {} s, if it gets the share of the machine that earlier runs got (speed {:.2})",
            seconds(self.here_seconds),
            self.speed
        )?;
        writeln!(
            out,
            "nearest    {} s, from the most similar run alone",
            seconds(self.nearest_seconds)
        )?;
        if !self.outside.is_empty() {
            let names = self.outside.join(", ");
            writeln!(
                out,
                "note       {} lies outside the range of all earlier runs: this is a guess",
                one_line(&names)
            )?;
        }
        Ok(())
    }

    json_of_self!();
}
