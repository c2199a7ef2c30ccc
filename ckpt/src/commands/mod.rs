//! The command line: where each command is carried out, and what it needs for that.

pub mod args;
mod bounds;
mod call;
mod cat;
mod completion;
mod connect;
mod demo;
mod grid;
pub mod health;
mod hosts;
mod key;
mod names;
mod of_job;
mod output;
mod passphrase;
mod progress;
pub mod rank;
mod render;
pub mod run;
mod save;
mod sealed_file;
pub mod spool;
mod state_dir;
pub mod trace;
mod usage;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use command_line::man;
use protocol::identity::keep_out_of_dumps;
use tracing::Level;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use args::{Cli, Command, PlanCommand};
use call::Call;
use ckpt_agent::agent::{self, AdviseRequest, Which};
use ckpt_agent::report::{ExitStatus, Failure, HostNote};
use connect::grid_file;
use output::Form;
use render::Report;

/// How to start a daemon: this program under another name.
#[derive(Clone, Debug)]
pub struct DaemonProgram {
    /// The file to execute.
    pub path: PathBuf,
    /// The name under which it acts as the daemon.
    pub arg0: &'static str,
}

/// What a command returns: a report, and the exit status that belongs to it.
type Answer = (Box<dyn Report>, ExitStatus);

/// Runs the program. `args` begin with its name.
pub fn main(args: impl IntoIterator<Item = OsString>, daemon: &DaemonProgram) -> ExitCode {
    let typed: Vec<OsString> = args.into_iter().collect();
    if let Some(status) = completion::answer(&typed) {
        return status;
    }
    let mut cli = match Cli::try_parse_from(&typed) {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(usage::said(&error, &typed) as u8),
    };
    log_to_stderr(cli.global.verbose);
    render::be_verbose(cli.global.verbose);
    if let Err(cause) = keep_out_of_dumps() {
        tracing::warn!(%cause, "a core dump of this program could contain keys");
    }
    let form = Form::of(&cli);
    let ended = bounds::memory(cli.global.memory).and_then(|memory| {
        cli.global.memory = Some(memory);
        let call = Call {
            global: &cli.global,
            typed: &typed,
            daemon,
        };
        take_up(&cli.command);
        carry_out(cli.command, call)
    });
    output::finish(&ended, form)
}

/// Starts the saving of images that were left in the spool, before a command that saves, restores or lists.
fn take_up(command: &Command) {
    let concerns_it = match command {
        Command::Save(save) if save.detach => false,
        Command::Save(save) => {
            spool::say_failed(save);
            true
        }
        Command::Run(_) | Command::Restore(_) | Command::List(_) | Command::Watch(_) => true,
        _ => false,
    };
    if concerns_it {
        spool::take_up();
    }
}

/// Carries out a command. Each arm says what the command needs. The commands `grid` and `key` are groups, whose own
/// `match` says the same.
fn carry_out(command: Command, call: Call<'_>) -> Result<Answer, Failure> {
    let global = call.global;
    match command {
        // These need nothing but this machine.
        Command::Completions { shell } => completion::script(shell),
        Command::Man { dir } => man_pages(&dir),
        Command::Init { name } => done(key::own::init(global, name.as_deref())?),
        Command::Join { token, name } => done(key::join::join(global, &token, name.as_deref())?),
        Command::Grid(command) => grid::run(command, call.daemon),
        Command::Notify(args) => run::notify(&args),
        Command::Runs(args) => run::past::run(args),
        Command::Jobs => run::jobs::run(),
        Command::Trace(command) => trace::run(command),
        Command::There => Ok(run::on::there()),

        // These need threads, and handle signals themselves.
        Command::Run(args) if args.setup.setup => run::setup::run(call, &args),
        Command::Run(args) if args.on.on.is_some() => run::on::run(call, *args),
        Command::Run(args) => call.threads(run::run(global.clone(), *args)),

        // These need nothing but this machine, and start the process that saves.
        Command::Save(args) if args.detach => spool::detach(global, &args, call.typed),
        Command::List(args) if args.queued => spool::list(args.job.typed()?.as_ref()),

        // These need threads. A signal cancels them, as all below.
        Command::Wait { job } => spool::wait(&call, &job.named()?),
        Command::Spool { job } => spool::save(&call, &job),
        Command::Save(args) => {
            call.cancellable(async |cancel| save::run(global, *args, cancel).await)
        }
        Command::Watch(args) => {
            call.cancellable(async |cancel| run::watch::run(global, *args, cancel).await)
        }
        Command::Health(args) => {
            call.cancellable(async |cancel| health::run(global, args, cancel).await)
        }
        Command::Dashboard(args) => {
            call.cancellable(async |cancel| health::page::run(global, &args, cancel).await)
        }
        Command::Doctor => call.cancellable(async |_| health::doctor::run(global).await),
        Command::Demo { path } => {
            call.cancellable(async |cancel| demo::run(path, call, cancel).await)
        }

        // These need hosts.
        Command::Plan(command) => plan(call, command),
        Command::Rank(args) => plan(call, PlanCommand::Where(args)),
        Command::Advise(args) => plan(call, PlanCommand::When(args)),
        Command::Pool(args) => plan(call, PlanCommand::Pool(args)),
        Command::Map(args) => of_job::map(call, args),
        Command::FetchAhead { job, dir } => {
            call.agent(async |agent| done(run::ahead::run(agent, &job, dir).await?))
        }
        Command::Hosts(args) => call.agent(async |agent| hosts::run(agent, args).await),
        Command::Key(command) => key::run(call, command),

        // These need hosts, and reach what retired keys saved.
        Command::Restore(args) => of_job::restore(call, args),
        Command::Cat(args) => of_job::cat(call, args),
        Command::List(args) => of_job::list(call, args),
        Command::Show { job, version } => of_job::show(call, &job, version),
        Command::Verify(args) => of_job::verify(call, args),
        Command::Forget(args) => of_job::forget(call, args),
        Command::Touch { job, ttl } => of_job::touch(call, &job, ttl),
        Command::Gc(args) => call.keys("", async |keys| {
            keys.gc(args.superseded(), args.dry_run).await
        }),
    }
}

fn man_pages(dir: &Path) -> Result<Answer, Failure> {
    man::write(Cli::command(), &[grid::man_page::GRID_FILE], dir)
        .map_err(|cause| Failure::local(format!("man pages in {}", dir.display()), &cause))?;
    done(render::Text(Vec::new()))
}

fn log_to_stderr(verbose: bool) {
    let usual = if verbose { Level::INFO } else { Level::ERROR };
    let wanted = std::env::var("RUST_LOG").ok();
    let wanted: Option<Targets> = wanted.and_then(|wanted| wanted.parse().ok());
    let log = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .with_writer(io::stderr)
        .with_filter(wanted.unwrap_or_else(|| Targets::new().with_default(usual)));
    // Fails if there is a logger already, which then stays.
    let _ = tracing_subscriber::registry().with(log).try_init();
}

fn done(report: impl Report + 'static) -> Result<Answer, Failure> {
    Ok((Box::new(report), ExitStatus::Done))
}

/// The status is `Done` if all hosts that hold shards know of the change, else `Degraded`.
fn heard<R: Report + 'static>(
    report: R,
    unheard: impl FnOnce(&R) -> &Vec<HostNote>,
) -> Result<Answer, Failure> {
    let status = if unheard(&report).is_empty() {
        ExitStatus::Done
    } else {
        ExitStatus::Degraded
    };
    Ok((Box::new(report), status))
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|cause| Failure::new(ExitStatus::Failed, format!("starting threads: {cause}")))
}

fn which(version: Option<codec::Version>) -> Which {
    version.map_or(Which::Newest, Which::Version)
}

/// On which host and when a job had best run.
fn plan(call: Call<'_>, command: PlanCommand) -> Result<Answer, Failure> {
    match command {
        PlanCommand::Where(args) => call.agent(async |agent| done(rank::run(agent, &args).await?)),
        // This one needs no hosts.
        PlanCommand::When(args) if grid_file(call.global).is_none() => {
            done(agent::advise(&advice(args)?))
        }
        PlanCommand::When(args) => {
            let wish = advice(args)?;
            call.agent(async |agent| done(agent.advise(&wish).await?))
        }
        PlanCommand::Pool(args) => {
            call.agent(async |agent| done(agent.pool(args.job_length).await?))
        }
    }
}

fn advice(advise: args::Advise) -> Result<AdviseRequest, Failure> {
    let seconds = |time: Option<std::time::Duration>| time.map(|time| time.as_secs_f64());
    Ok(AdviseRequest {
        job_seconds: advise.job_length.as_secs_f64(),
        job: advise.job.typed()?,
        cost_seconds: seconds(advise.cost),
        restore_seconds: seconds(advise.restore),
        mtbf_seconds: seconds(advise.mtbf),
        compute_host: advise.compute_host.filter(|name| !name.is_empty()),
    })
}
