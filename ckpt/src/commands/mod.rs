//! The command line: one function for each command, and one place for output and exit statuses.

mod anykey;
pub mod args;
mod authority;
mod authority_failure;
pub mod away;
mod backup;
mod bounds;
mod cat;
mod dashboard;
mod demo;
mod doctor;
pub mod doctor_report;
mod grid;
pub mod grid_args;
mod health;
mod identity;
mod jobkey;
mod joining;
pub mod key_args;
mod limits;
mod local_grid;
mod members;
mod metrics_file;
pub mod options;
mod pages;
mod progress;
pub mod rank;
mod render;
mod run;
pub mod run_args;
pub mod runs;
mod sealed_file;
pub mod trace;
mod usage;
pub mod watch;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use clap::{CommandFactory, Parser};
use codec::seal::Cipher;
use command_line::man;
use protocol::grid::Grid;
use protocol::identity::{Identity, keep_out_of_dumps};
use protocol::list::ListFiles;
use serde::Serialize;
use supervision::signals::TERM;
use tracing::Level;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use anykey::AnyKey;
use args::{Cli, Command};
use ckpt_agent::agent::{
    self, ALLOW_EMPTY, AdviseRequest, After, Agent, MEMORY_USUAL, Resources, RestoreRequest,
    RestoreTarget, SaveInput, SaveOptions, SaveRequest, Which,
};
use ckpt_agent::cancel::{Cancel, canceller, next_signal};
use ckpt_agent::connection::{list_files, load_grid, notebook, roster};
use ckpt_agent::image::NamedPath;
use ckpt_agent::image::keeper::Keeper;
use ckpt_agent::report::{
    ExitStatus, Failure, HostNote, Observer, SaveReport, VerifiedCheckpoint, VerifyReport,
};
use key_args::KeyCommand;
use options::Global;
use protocol::errors::chain;
use render::{Report, one_line};

/// How to start a daemon: this program under another name.
#[derive(Clone, Debug)]
pub struct DaemonProgram {
    /// The file to execute.
    pub path: PathBuf,
    /// The name under which it acts as the daemon.
    pub arg0: &'static str,
}

/// What a command returns: a report, and the exit status that belongs to it.
type Outcome = (Box<dyn Report>, ExitStatus);

/// Runs the program. `args` begin with its name.
pub fn main(args: impl IntoIterator<Item = OsString>, daemon: &DaemonProgram) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(usage::said(&error, &args) as u8),
    };
    log_to_stderr(cli.global.verbose);
    render::be_verbose(cli.global.verbose);
    if let Err(cause) = keep_out_of_dumps() {
        tracing::warn!(%cause, "a core dump of this program could contain keys");
    }
    let form = Form::of(&cli);
    let ended = carry_out(cli, &args, daemon);
    let status = match &ended {
        Ok((report, status)) => {
            let code = report.exit_code().unwrap_or(*status as u8);
            match write_report(report.as_ref(), form.json) {
                Ok(()) => code,
                // The reader has closed standard output: the result is not wanted.
                Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => code,
                Err(cause) => {
                    let _ = writeln!(io::stderr(), "ckpt: writing the result: {cause}");
                    report.exit_code().unwrap_or(ExitStatus::LocalIo as u8)
                }
            }
        }
        Err(failure) => {
            let _ = write_failure(failure, form);
            failure.exit_code()
        }
    };
    ExitCode::from(status)
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

/// How and where a command prints its result.
#[derive(Clone, Copy, Debug)]
struct Form {
    /// Whether to print JSON.
    json: bool,
    /// Whether standard output is kept for the image or for the job's output, so that even a failure goes
    /// to standard error.
    is_for_stderr: bool,
}

impl Form {
    fn of(cli: &Cli) -> Self {
        let is_for_stderr = match &cli.command {
            Command::Restore(restore) => {
                let output = restore.output.as_deref();
                output.is_some_and(|path| path.as_os_str() == "-")
            }
            Command::Cat(_) => true,
            Command::Run(run) => !run.check,
            _ => false,
        };
        Self {
            json: cli.global.json,
            is_for_stderr,
        }
    }
}

fn write_report(report: &dyn Report, json: bool) -> io::Result<()> {
    let mut out: Box<dyn Write> = if report.is_for_stderr() {
        // Standard output has the image, or the job's output.
        Box::new(io::stderr().lock())
    } else {
        Box::new(io::stdout().lock())
    };
    if json {
        writeln!(out, "{}", report.json())?;
    } else {
        report.human(&mut out)?;
    }
    out.flush()
}

/// Most hosts of which a failure says one by one that the same kept them from answering.
const ALIKE_MAX: usize = 5;

fn write_failure(failure: &Failure, form: Form) -> io::Result<()> {
    if form.json {
        let object = serde_json::json!({
            "error": failure,
            "exit_code": failure.exit_code(),
        });
        if form.is_for_stderr || failure.image_on_stdout {
            return writeln!(io::stderr(), "{object}");
        }
        return writeln!(io::stdout(), "{object}");
    }
    let mut err = io::stderr().lock();
    writeln!(err, "ckpt: {}", one_line(&failure.message))?;
    let alike = |one: &HostNote, next: &HostNote| one.what == next.what;
    for notes in failure.hosts.chunk_by(alike) {
        write_notes(&mut err, notes)?;
    }
    if let Some(state) = &failure.state {
        writeln!(err, "{}", one_line(state))?;
    }
    if let Some(next) = &failure.next {
        writeln!(err, "try: {}", one_line(next))?;
    }
    Ok(())
}

/// Writes what hosts have to do with a failure, which is the same for all of these. Many are one line.
fn write_notes(err: &mut impl Write, notes: &[HostNote]) -> io::Result<()> {
    if let Some((named, [last, more @ ..])) = notes.split_at_checked(ALIKE_MAX) {
        let names = named.iter().map(|note| one_line(&note.host).into_owned());
        let names = names.collect::<Vec<_>>().join(", ");
        let (more, what) = (more.len() + 1, one_line(&last.what));
        return writeln!(err, "  {names} and {more} more  {what}");
    }
    for note in notes {
        writeln!(err, "  {}  {}", one_line(&note.host), one_line(&note.what))?;
    }
    Ok(())
}

fn carry_out(mut cli: Cli, typed: &[OsString], daemon: &DaemonProgram) -> Result<Outcome, Failure> {
    cli.global.memory = Some(bounds::memory(cli.global.memory)?);
    match cli.command {
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "ckpt", &mut script);
            done(render::Text(script))
        }
        Command::Man { dir } => {
            man::write(Cli::command(), &[pages::GRID_FILE], &dir).map_err(|cause| {
                Failure::new(
                    ExitStatus::LocalIo,
                    format!("man pages in {}: {cause}", dir.display()),
                )
            })?;
            done(render::Text(Vec::new()))
        }
        Command::Grid(command) => grid::run(command, daemon),
        Command::Join { token, name } => done(joining::join(&cli.global, &token, name.as_deref())?),
        Command::Init { name } => done(identity::init(&cli.global, name.as_deref())?),
        Command::Key(KeyCommand::Export { output }) => export(&cli.global, &output),
        Command::Key(KeyCommand::Rotate { name, cert }) => done(identity::rotate(
            &cli.global,
            name.as_deref(),
            cert.as_deref(),
        )?),
        Command::Notify(args) => run::notify(&args),
        Command::Runs(args) => runs::run(args),
        Command::Trace(command) => trace::run(command),
        Command::Run(args) if args.on.on.is_some() => {
            runtime()?.block_on(away::run(cli.global, *args, typed))
        }
        Command::Run(args) => {
            be_nice(&cli.global)?;
            runtime()?.block_on(run::run(cli.global, *args))
        }
        Command::There => Ok(away::there()),
        command => {
            be_nice(&cli.global)?;
            runtime()?.block_on(with_signals(cli.global, command, daemon))
        }
    }
}

fn done(report: impl Report + 'static) -> Result<Outcome, Failure> {
    Ok((Box::new(report), ExitStatus::Done))
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|cause| Failure::new(ExitStatus::Failed, format!("starting threads: {cause}")))
}

fn export(global: &Global, output: &Path) -> Result<Outcome, Failure> {
    let report = identity::export(global, output)?;
    if report.is_on_stdout() {
        return done(render::Text(Vec::new()));
    }
    done(report)
}

/// Runs a command. The first SIGINT or SIGTERM cancels it, the second ends the program at once.
async fn with_signals(
    global: Global,
    command: Command,
    daemon: &DaemonProgram,
) -> Result<Outcome, Failure> {
    let (canceller, cancel) = canceller();
    let signal = Arc::new(AtomicI32::new(0));
    let seen = Arc::clone(&signal);
    tokio::spawn(async move {
        loop {
            let Some(number) = next_signal().await else {
                return;
            };
            if seen.swap(number, Ordering::SeqCst) != 0 {
                std::process::exit(128 + number);
            }
            canceller.cancel();
        }
    });
    let _catching = bounds::report_long_files();
    let ended = execute(global, command, daemon, cancel).await;
    ended.map_err(|mut failure| {
        let is_term = signal.load(Ordering::SeqCst) == i32::from(TERM);
        if failure.status == ExitStatus::Interrupted && is_term {
            failure.status = ExitStatus::Terminated;
        }
        failure
    })
}

async fn execute(
    global: Global,
    command: Command,
    daemon: &DaemonProgram,
    cancel: Cancel,
) -> Result<Outcome, Failure> {
    if let Command::Demo { path } = command {
        return done(demo::run(path.as_deref(), &global, daemon, cancel).await?);
    }
    let command = match command {
        Command::Doctor => return doctor::run(&global).await,
        Command::Watch(args) => return watch::run(global, *args, cancel).await,
        Command::Health(args) if args.watch => return health::watch(&global, &args, cancel).await,
        Command::Health(args) => return health::run(&global, &args.health).await,
        Command::Dashboard(args) => return dashboard::run(&global, &args, cancel).await,
        Command::Save(save) if save.metrics_file.is_some() => {
            return metrics_file::save(&global, save, cancel).await;
        }
        Command::Advise(advise) if grid_file(&global).is_none() => {
            return done(agent::advise(&advise_request(advise)));
        }
        command => command,
    };
    let connected = connect(&global).await?;
    let observer = progress::observer(global.progress, title(&command));
    let said = match command {
        command @ (Command::Restore(_)
        | Command::Cat(_)
        | Command::List { .. }
        | Command::Show { .. }
        | Command::Verify { .. }
        | Command::Forget(_)
        | Command::Gc { .. }) => {
            let keys = AnyKey::of(&global, &connected).await;
            let said = keys.run(command, observer, cancel).await;
            keys.close().await;
            said
        }
        Command::Key(command) => {
            let Connected { agent, grid, .. } = &connected;
            jobkey::run(agent, grid, &connected.identity, command).await
        }
        command => with_agent(&connected.agent, command, observer, cancel).await,
    };
    connected.agent.close().await;
    said
}

/// Lowers the priority of this thread and of all that it will start. Threads that run already would keep
/// theirs.
fn be_nice(global: &Global) -> Result<(), Failure> {
    let Some(nice) = global.nice else {
        return Ok(());
    };
    rustix::process::setpriority_process(None, nice)
        .map_err(|cause| Failure::new(ExitStatus::Usage, format!("--nice {nice}: {cause}")))
}

const fn title(command: &Command) -> &'static str {
    match command {
        Command::Save(_) => "saving",
        Command::Restore(_) => "restoring",
        Command::Verify { .. } => "verifying",
        _ => "",
    }
}

/// The path of the grid file: the named one, or the one of `ckpt join`. An empty path, as from an empty
/// variable, counts as no name.
fn grid_file(global: &Global) -> Option<PathBuf> {
    let named = global.grid.clone();
    let named = named.filter(|path| !path.as_os_str().is_empty());
    named.or_else(|| joining::usual_grid_file().filter(|path| path.exists()))
}

/// Connects to the grid with the identity that options and environment name.
async fn connect(global: &Global) -> Result<Connected, Failure> {
    let (path, mut grid) = named_grid(global)?;
    if !grid.etcd.is_empty() && !agent::KNOWS_ETCD {
        let _ = writeln!(
            io::stderr(),
            "ckpt: warning: the grid file names etcd as a registry, but this program was built without etcd (--features etcd)"
        );
    }
    let files = identity::files(global, Some(&grid))?;
    let identity = identity::load(global, &files)?;
    let identity = identity::renewed(identity, &grid, &files);
    identity::check_end(&identity, &files)?;
    let lists = list_files(&path, &grid);
    Ok(Connected {
        agent: agent_for(global, &mut grid, &lists, &identity).await?,
        grid,
        lists,
        files,
        identity,
    })
}

/// The path of the grid file that options and environment name, and its contents with the newest list.
fn named_grid(global: &Global) -> Result<(PathBuf, Grid), Failure> {
    let path = grid_file(global).ok_or_else(|| {
        Failure::new(ExitStatus::Usage, "no grid file")
            .next("--grid FILE, or CKPT_GRID=FILE; a grid on this machine: ckpt grid up --dir DIR")
    })?;
    let grid = load_grid(&path)?;
    Ok((path, grid))
}

/// An agent, and what other agents can be made from.
struct Connected {
    agent: Agent,
    grid: Grid,
    lists: ListFiles,
    files: identity::Files,
    identity: Identity,
}

async fn agent_for(
    global: &Global,
    grid: &mut Grid,
    lists: &ListFiles,
    identity: &Identity,
) -> Result<Agent, Failure> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let resources = Resources {
        memory_bytes: global.memory.unwrap_or(MEMORY_USUAL),
        cpus: global.cpus.map_or(cpus, usize::from).max(1),
        bytes_per_second: global.bandwidth,
    };
    let notebook = notebook(grid);
    let roster = roster(grid, lists, identity, &notebook).await;
    let agent = Agent::new(grid, roster, identity, resources, notebook)?;
    Ok(agent.with_lists(grid, lists.clone()))
}

fn saved(report: SaveReport) -> Outcome {
    let complete = report.holders.iter().all(|holder| holder.host.is_some());
    let status = if complete && report.warnings.is_empty() {
        ExitStatus::Done
    } else {
        ExitStatus::Degraded
    };
    (Box::new(report), status)
}

async fn with_agent(
    agent: &Agent,
    command: Command,
    observer: Arc<dyn Observer>,
    cancel: Cancel,
) -> Result<Outcome, Failure> {
    match command {
        Command::Save(save) => {
            let report = agent.save(save_request(*save)?, observer, cancel).await?;
            Ok(saved(report))
        }
        Command::Touch { job, ttl } => heard(agent.touch(&job, ttl).await?, |one| &one.unheard),
        Command::Hosts(args::HostsArgs { model: true, .. }) => done(agent.models()),
        Command::Hosts(args::HostsArgs { for_job: None, .. }) => ask_hosts(agent).await,
        Command::Hosts(hosts) => {
            let redundancy = options::code(hosts.data, hosts.parity)?;
            let wish = hosts.placing.wish();
            let Some(job) = hosts.for_job else {
                return ask_hosts(agent).await;
            };
            done(agent.hosts_for_job(&job, redundancy, &wish).await?)
        }
        Command::Rank(args) => done(rank::run(agent, &args).await?),
        Command::Advise(advise) => done(agent.advise(&advise_request(advise)).await?),
        Command::Restore(_)
        | Command::Cat(_)
        | Command::List { .. }
        | Command::Show { .. }
        | Command::Verify { .. }
        | Command::Forget(_)
        | Command::Gc { .. }
        | Command::Dashboard(_)
        | Command::Grid(_)
        | Command::Init { .. }
        | Command::Join { .. }
        | Command::Key(_)
        | Command::Health(_)
        | Command::Doctor
        | Command::Run(_)
        | Command::Watch(_)
        | Command::There
        | Command::Notify(_)
        | Command::Runs(_)
        | Command::Trace(_)
        | Command::Demo { .. }
        | Command::Completions { .. }
        | Command::Man { .. } => Err(Failure::new(ExitStatus::Usage, "not a grid command")),
    }
}

/// Asks all hosts for their state. The status is `TooFewHosts` if none answers.
async fn ask_hosts(agent: &Agent) -> Result<Outcome, Failure> {
    let report = agent.hosts().await?;
    let status = match report.summary.up {
        0 => ExitStatus::TooFewHosts,
        _ => ExitStatus::Done,
    };
    Ok((Box::new(report), status))
}

fn which(version: Option<codec::Version>) -> Which {
    version.map_or(Which::Newest, Which::Version)
}

fn save_request(save: args::Save) -> Result<SaveRequest, Failure> {
    let input = save_input(&save)?;
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
        job: save.job,
        input,
        options: SaveOptions {
            full: save.full,
            deadline: save.deadline,
            skip_unreadable: save.skip_unreadable,
            accept_changed: save.accept_changed,
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
fn save_input(save: &args::Save) -> Result<SaveInput, Failure> {
    let usage = |message: String| Failure::new(ExitStatus::Usage, message);
    Ok(match save.paths.as_slice() {
        [] => SaveInput::Command(save.command.clone(), Some(Keeper::of_this_program())),
        [only] if only.as_os_str() == "-" => {
            if io::stdin().is_terminal() {
                return Err(usage("standard input is a terminal, not an image".into()));
            }
            if is_null_device(io::stdin()) && !save.allow_empty {
                let message = format!(
                    "cannot save job {}: standard input is closed or /dev/null",
                    save.job
                );
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
            SaveInput::Named(named.map_err(|cause| usage(chain(&cause)))?)
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

fn advise_request(advise: args::Advise) -> AdviseRequest {
    let seconds = |time: Option<std::time::Duration>| time.map(|time| time.as_secs_f64());
    AdviseRequest {
        job_seconds: advise.job_length.as_secs_f64(),
        job: advise.job,
        cost_seconds: seconds(advise.cost),
        restore_seconds: seconds(advise.restore),
        mtbf_seconds: seconds(advise.mtbf),
        compute_host: advise.compute_host.filter(|name| !name.is_empty()),
    }
}

fn restore_request(restore: args::Restore) -> RestoreRequest {
    RestoreRequest {
        job: restore.job,
        which: which(restore.version),
        sought: restore.filter.sought(),
        target: match restore.output {
            None => RestoreTarget::Default,
            Some(path) if path.as_os_str() == "-" => RestoreTarget::Stdout,
            Some(path) => RestoreTarget::Path(path),
        },
        if_exists: restore.if_exists,
        least_data: restore.data,
        is_new: restore.new,
        force: restore.force,
        set_id_bits: restore.set_id_bits,
        globs: restore.path,
        dry_run: restore.dry_run,
    }
}

/// The status is `Done` if all hosts that hold shards know of the change, else `Degraded`.
fn heard<R: Report + 'static>(
    report: R,
    unheard: impl FnOnce(&R) -> &Vec<HostNote>,
) -> Result<Outcome, Failure> {
    let status = if unheard(&report).is_empty() {
        ExitStatus::Done
    } else {
        ExitStatus::Degraded
    };
    Ok((Box::new(report), status))
}

/// The worst result of a verification. A lost checkpoint is worse than one whose hosts are only away.
fn verify_status(report: &VerifyReport) -> ExitStatus {
    let any = |is: fn(&VerifiedCheckpoint) -> bool| report.checkpoints.iter().any(is);
    if any(|one| one.lost) {
        ExitStatus::Damaged
    } else if any(|one| one.can_lose.is_none()) {
        ExitStatus::TooFewHosts
    } else if any(|one| !one.bad.is_empty()) {
        ExitStatus::Degraded
    } else {
        ExitStatus::Done
    }
}

/// Any report as one JSON object.
fn to_json(report: &impl Serialize) -> String {
    serde_json::to_string(report).unwrap_or_else(|cause| format!("{{\"error\":\"{cause}\"}}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_hosts_with_one_reason_are_one_line() {
        let note = |at: usize| HostNote {
            host: format!("m{at}"),
            what: "away".to_owned(),
        };
        let written = |count: usize| {
            let notes: Vec<HostNote> = (1..=count).map(note).collect();
            let mut out = Vec::new();
            write_notes(&mut out, &notes).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written(2), "  m1  away\n  m2  away\n");
        assert_eq!(written(5).lines().count(), 5);
        assert_eq!(written(64), "  m1, m2, m3, m4, m5 and 59 more  away\n");
    }
}
