//! `ckpt run --on`: a job on the machines of the grid.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, CommandFactory};
use codec::grant::Rights;
use codec::keys::{JobKeys, NewJobKeys};
use codec::{JobId, JobScope};
use protocol::grid::Grid;
use protocol::identity::{Identity, is_name, job_key_to_text, new_key};
use supervision::away::{Candidate, MoveTimes, period_ms};

use crate::commands::args::Cli;
use crate::commands::args::options::Global;
use crate::commands::args::run::RunArgs;
use crate::commands::call::Call;
use crate::commands::connect::{connect, grid_file, no_grid_file};
use crate::commands::rank::{Format, RankArgs, report::RankReport};
use crate::commands::render::{Report, json_of_self, one_line};
use crate::commands::run::{Connection, orders, write_end};
use crate::commands::state_dir::state_dir;
use crate::commands::{Answer, rank, runtime};
use ckpt_agent::report::{ExitStatus, Failure};
use ckpt_agent::unix_time::{unix_millis, unix_seconds};
use protocol::errors::chain;
use runner::away::{
    self, Away, AwayOrders, AwayReport, Launcher, LauncherError, Letter, RankFuture, Ranking,
};
use runner::{AgentFuture, Reach, Signals, not_started};

/// For how long a host may act as the job, seconds.
const KEY_SECONDS: u64 = 30 * 86_400;

/// A host on which a job goes on gets the key of the host before for this long, seconds: what is saved builds only on
/// what the same key or the owner's has signed.
const SAME_KEY_SECONDS: u64 = 15 * 86_400;

/// Options that count only on the machine where the user typed the command.
const OWN_OPTIONS: [&str; 18] = [
    "job",
    "on",
    "program",
    "work",
    "cores",
    "needs",
    "standby",
    "report_every",
    "retry",
    "local",
    "evict_exit",
    "after_success",
    "history",
    "command",
    "grid",
    "key_file",
    "key_command",
    "cert_file",
];

/// The option for the form of the answer, which counts only there, too.
const JSON: &str = "json";

/// Carries out the order on standard input, at the other end of a launcher.
pub(crate) fn there() -> Answer {
    let state = state_dir();
    let status = if away::serve(state) {
        ExitStatus::Done
    } else {
        ExitStatus::Failed
    };
    (Box::new(crate::commands::render::Text(Vec::new())), status)
}

/// Runs a job on other machines. `--nice` is for them.
pub(crate) fn run(call: Call<'_>, args: RunArgs) -> Result<Answer, Failure> {
    runtime()?.block_on(move_around(call.global.clone(), args, call.typed))
}

async fn move_around(global: Global, args: RunArgs, typed: &[OsString]) -> Result<Answer, Failure> {
    let ranks = RankArgs {
        work: Duration::ZERO,
        cores: args.on.cores,
        memory: args.on.needs,
        rule: None,
        no_checkpoints: false,
        cost: Duration::from_secs(20),
        delay: Duration::from_secs(60),
        history: args.history.clone(),
        format: Format::Table,
    };
    let orders = away_orders(&global, args, typed).map_err(not_started)?;
    let mut signals = Signals::new()?;
    let connected = signals.unless_asked(connect(&global)).await;
    let connected = connected.map_err(|asked| orders.not_begun(asked))?;
    let connected = connected.map_err(not_started)?;
    let here = Arc::new(Here {
        connection: Connection::new(global, connected),
        ranks,
        key: Mutex::default(),
    });
    let away: Arc<dyn Away> = here.clone();
    let report = away::run(orders, away, signals).await;
    here.connection.close().await;
    Ok((Box::new(report?), ExitStatus::Done))
}

fn away_orders(global: &Global, args: RunArgs, typed: &[OsString]) -> Result<AwayOrders, Failure> {
    let usage = |message: String| Failure::new(ExitStatus::Usage, message);
    let on = args.on.on.clone().unwrap_or_default();
    let launcher = Launcher::parse(&on, &args.on.program).map_err(|cause| {
        let (option, example) = match cause {
            LauncherError::Program(_) => ("--program", "--program ~/bin/ckpt"),
            LauncherError::Empty | LauncherError::Quote | LauncherError::NoHost => {
                ("--on", "--on 'ssh {host} --'")
            }
        };
        usage(format!("{option}: {cause}")).next(example)
    })?;
    let settings = MoveTimes {
        report_ms: period_ms(args.on.report_every.as_secs_f64()),
        retry_ms: period_ms(args.on.retry.as_secs_f64()),
        ..MoveTimes::default()
    };
    let stands_by = args.on.standby;
    let work_seconds = args.on.work.map(|work| work.as_secs_f64());
    let dir =
        std::env::current_dir().map_err(|cause| Failure::local("working directory", &cause))?;
    if dir.file_name().is_none() {
        let message = "--on: the working directory is /, which is not saved";
        return Err(usage(message.to_owned()).next("cd to the directory of the job's files"));
    }
    let orders = orders(global, args)?;
    Ok(AwayOrders {
        dir,
        launcher,
        options: options(typed)?,
        job: orders.job,
        command: orders.command,
        save: orders.save,
        local: orders.local,
        after_success: orders.after_success,
        evict_exit: orders.evict_exit,
        work_seconds,
        settings,
        record: orders.record,
        state_dir: orders.state_dir,
        stands_by,
        says: orders.says,
    })
}

/// The typed options of `ckpt run`, except those for this machine.
fn options(typed: &[OsString]) -> Result<Vec<OsString>, Failure> {
    let mut command = Cli::command();
    command.build();
    let matches = command.clone().try_get_matches_from(typed);
    let matches = matches.map_err(|cause| Failure::new(ExitStatus::Usage, cause.to_string()))?;
    let (Some((_, matches)), Some(run)) = (matches.subcommand(), command.find_subcommand("run"))
    else {
        return Ok(Vec::new());
    };
    let of_host = |id: &str| !OWN_OPTIONS.contains(&id) && id != JSON;
    let arguments = run
        .get_arguments()
        .filter(|one| of_host(one.get_id().as_str()));
    // This machine decides about the checkpoints of a job that has ended.
    let mut options = vec![OsString::from("--after-success=keep")];
    for argument in arguments {
        let Some(name) = argument.get_long() else {
            continue;
        };
        for value in values(matches, argument.get_id().as_str()) {
            let mut option = OsString::from(format!("--{name}"));
            if !matches!(argument.get_action(), ArgAction::SetTrue) {
                option.push("=");
                option.push(value);
            }
            options.push(option);
        }
    }
    Ok(options)
}

/// The typed values of an option.
fn values<'a>(matches: &'a ArgMatches, id: &str) -> Vec<&'a OsStr> {
    let is_typed = matches.value_source(id) == Some(ValueSource::CommandLine);
    let raw = is_typed.then(|| matches.get_raw(id)).flatten();
    raw.into_iter().flatten().collect()
}

/// The connection to the grid, and how to rank its hosts.
struct Here {
    connection: Connection,
    ranks: RankArgs,
    /// The job key for hosts, and when it was made, Unix seconds.
    key: Mutex<Option<(u64, String)>>,
}

impl Reach for Here {
    fn agent(&self) -> AgentFuture<'_> {
        self.connection.agent()
    }

    fn hang_up_if_idle(&self) {
        self.connection.hang_up_if_idle();
    }
}

impl Away for Here {
    fn rank(&self, work_seconds: f64) -> RankFuture<'_> {
        Box::pin(async move {
            let args = RankArgs {
                work: Duration::from_secs_f64(work_seconds),
                ..self.ranks.clone()
            };
            let agent = self.agent().await?;
            match rank::run(&agent, &args).await {
                Ok(report) => Ok(ranking(report, work_seconds)),
                Err(failure) if failure.status == ExitStatus::TooFewHosts => {
                    let notes = failure.hosts.iter();
                    Ok(Ranking {
                        candidates: Vec::new(),
                        unfit: notes
                            .map(|note| format!("{} {}", note.host, note.what))
                            .collect(),
                    })
                }
                Err(failure) => Err(failure),
            }
        })
    }

    fn letter(&self, job: &JobId, has_new_key: bool) -> Result<Letter, Failure> {
        let now = unix_seconds();
        let mut kept = self.key.lock().unwrap_or_else(PoisonError::into_inner);
        let before = kept.take().filter(|_| !has_new_key);
        let same = before.filter(|(made, _)| now < made.saturating_add(SAME_KEY_SECONDS));
        let (made, key) = match same {
            Some(same) => same,
            None => (
                now,
                job_key(&self.connection.grid, &self.connection.identity, job)?,
            ),
        };
        *kept = Some((made, key.clone()));
        Ok(Letter {
            grid: self.grid_text()?,
            key,
        })
    }

    fn sealed_letter(&self, job: &JobId) -> Result<Letter, Failure> {
        let key = sealed_key(&self.connection.grid, &self.connection.identity, job)?;
        Ok(Letter {
            grid: self.grid_text()?,
            key,
        })
    }
}

impl Here {
    fn grid_text(&self) -> Result<String, Failure> {
        let path = grid_file(&self.connection.global);
        let path = path.ok_or_else(|| no_grid_file(&self.connection.global))?;
        std::fs::read_to_string(&path).map_err(|cause| Failure::local(path.display(), &cause))
    }
}

fn key_failed(cause: &dyn std::error::Error) -> Failure {
    Failure::new(ExitStatus::Failed, format!("job key: {}", chain(cause)))
}

/// A job key for this job alone, or the key of this process if that is a job key itself.
fn job_key(grid: &Grid, owner: &Identity, job: &JobId) -> Result<String, Failure> {
    if owner.job.is_some() {
        return text_of(owner);
    }
    let rights = Rights::SAVE.and(Rights::RESTORE).and(Rights::REMOVE);
    let keys = issue(grid, owner, job, rights)?;
    text_of(&Identity::of_job(owner, keys).map_err(|cause| key_failed(&cause))?)
}

/// A key that can fetch the versions of this job and open none.
fn sealed_key(grid: &Grid, owner: &Identity, job: &JobId) -> Result<String, Failure> {
    let no_owner = || {
        let message = "a job key can't make the key of a host that stands by";
        Failure::new(ExitStatus::Denied, message).next("the owner's key, or leave out --standby")
    };
    if owner.job.is_some() {
        return Err(no_owner());
    }
    let keys = issue(grid, owner, job, Rights::RESTORE)?;
    let sealed = keys.without_secrets().ok_or_else(no_owner)?;
    text_of(&Identity::of_job(owner, sealed).map_err(|cause| key_failed(&cause))?)
}

fn text_of(identity: &Identity) -> Result<String, Failure> {
    let none = || Failure::new(ExitStatus::Failed, "job key: it has no text");
    let text = job_key_to_text(identity).map_err(|cause| key_failed(&cause))?;
    text.map(|text| text.to_string()).ok_or_else(none)
}

/// Keys for this job alone, for a host.
fn issue(grid: &Grid, owner: &Identity, job: &JobId, rights: Rights) -> Result<JobKeys, Failure> {
    let serial = unix_millis();
    let new = NewJobKeys {
        grid: grid.id().0,
        scope: JobScope::Job(job.clone()),
        rights,
        serial,
        not_before: serial / 1000,
        not_after: (serial / 1000).saturating_add(KEY_SECONDS),
    };
    let seed = *new_key().map_err(|cause| key_failed(&cause))?.seed();
    JobKeys::issue(&owner.secret, seed, new).map_err(|cause| key_failed(&cause))
}

fn ranking(report: RankReport, work_seconds: f64) -> Ranking {
    let mut ranking = Ranking::default();
    for note in report.unfit.iter().chain(&report.silent) {
        ranking.unfit.push(format!("{} {}", note.host, note.what));
    }
    for host in report.hosts {
        if !is_name(&host.host) {
            let name = one_line(&host.host).into_owned();
            ranking
                .unfit
                .push(format!("{name}: no name for a launcher"));
            continue;
        }
        let expected = host.expected_seconds.unwrap_or(f64::MAX);
        let one = Candidate::new(host.host, work_seconds, host.speed, host.load, expected);
        ranking.candidates.push(one);
    }
    ranking
}

impl Report for AwayReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let starts = match self.starts {
            1 => "once".to_owned(),
            starts => format!("{starts} times"),
        };
        let files = self.changed_files.map_or(String::new(), |files| {
            format!(
                "; {} came back",
                crate::commands::render::count(files, "file")
            )
        });
        writeln!(
            out,
            "ckpt run: job {}: started {starts} ({}){files}",
            self.job,
            one_line(&self.hosts.join(", "))
        )?;
        write_end(out, self.ended_by, &self.why, self.exit_code)
    }

    json_of_self!();

    fn is_for_stderr(&self) -> bool {
        true
    }

    fn exit_code(&self) -> Option<u8> {
        Some(self.exit_code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(words: &[&str]) -> Vec<String> {
        let words = [&["ckpt"], words].concat();
        let words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
        let options = options(&words).unwrap().into_iter();
        options.map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn hosts_get_the_options_that_were_typed_and_none_of_this_machine() {
        let words = [
            "--json",
            "run",
            "--on",
            "ssh {host} --",
            "--job",
            "42",
            "--work=2h",
            "--batch",
            "--suspend",
            "1m",
            "--allow-degraded",
            "--exclude",
            "a b",
            "--exclude=c'",
            "--nice",
            "5",
            "--local",
            "--after-success",
            "forget",
            "--run-if-user-active",
            "false",
            "--",
            "./sim",
            "--grace",
            "1s",
        ];
        let expected = [
            "--after-success=keep",
            "--suspend=1m",
            "--batch",
            "--run-if-user-active=false",
            "--allow-degraded=0",
            "--exclude=a b",
            "--exclude=c'",
            "--nice=5",
        ];
        assert_eq!(typed(&words), expected);
    }

    #[test]
    fn every_option_of_this_machine_is_one() {
        let mut command = Cli::command();
        command.build();
        let run = command.find_subcommand("run").unwrap();
        let ids: Vec<&str> = run
            .get_arguments()
            .map(|one| one.get_id().as_str())
            .collect();
        for id in OWN_OPTIONS.iter().chain([&JSON]) {
            assert!(ids.contains(id), "{id}");
        }
    }
}
