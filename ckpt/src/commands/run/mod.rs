//! The commands `ckpt run` and `ckpt notify`.

pub mod ahead;
pub mod jobs;
pub mod on;
pub mod past;
pub mod setup;
pub mod watch;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::grid::Grid;
use protocol::identity::Identity;
use protocol::list::ListFiles;
use tokio::sync::Mutex;

use super::args::options::{Global, ProgressMode};
use super::args::run::{NotifyArgs, RunArgs, RunSave, Via};
use super::connect::{Connected, agent_for, connect, grid_file};
use super::key::identity::{self, Files};
use super::render::{self, Report, json_of_self, one_line};
use super::{Answer, done};
use ckpt_agent::agent::{Agent, SaveOptions};
use ckpt_agent::connection::load_grid;
use ckpt_agent::image::Exclude;
use ckpt_agent::knowledge;
use ckpt_agent::report::{ExitStatus, Failure, Silent};
use past::history_file;
use runner::report::{RunCheckReport, RunReport};
use runner::{
    self, AgentFuture, Batch, CKPT_NOTIFY, Orders, OwnerWish, Reach, RecordOrders, SavePlan, Says,
    Signals, Way, end_of_time_limit,
};

/// Age at which an agent is replaced by one that looks for hosts anew.
const AGENT_AGE_MAX: Duration = Duration::from_secs(600);

/// Connections to hosts are closed when they have not been used for this long.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// Runs a job under supervision.
pub(super) async fn run(global: Global, args: RunArgs) -> Result<Answer, Failure> {
    let check = args.check;
    let staged = args.staged;
    if staged {
        // In a session of its own, since the process that started it may be gone before it ends. Fails if
        // it leads a session already.
        let _ = rustix::process::setsid();
    }
    let orders = orders(&global, args).map_err(runner::not_started)?;
    if check {
        let connected = connect(&global).await.map_err(runner::not_started)?;
        let reach = Connection::new(global, connected);
        let report = runner::check(&orders, &reach).await?;
        reach.close().await;
        return done(report);
    }
    let mut signals = Signals::new()?;
    let connected = signals.unless_asked(connect(&global)).await;
    let connected = connected.map_err(|asked| asked.not_started(&orders.job, orders.evict_exit))?;
    let connected = connected.map_err(runner::not_started)?;
    let reach = Arc::new(Connection::new(global, connected));
    let shared: Arc<dyn Reach> = reach.clone();
    let report = runner::run(orders, shared, Arc::new(Silent), signals).await?;
    reach.close().await;
    if staged {
        // The process that started it reads the end from a file.
        return done(Quiet(report.exit_code));
    }
    done(report)
}

/// Sends notices to the supervisor whose socket is in the environment. Does nothing without a supervisor.
pub(super) fn notify(args: &NotifyArgs) -> Result<Answer, Failure> {
    let socket = std::env::var_os(CKPT_NOTIFY).filter(|path| !path.is_empty());
    let Some(socket) = socket else {
        // The same script may run without a supervisor.
        return done(render::Text(Vec::new()));
    };
    runner::channel::send(Path::new(&socket), &args.notices).map_err(|cause| {
        let socket = Path::new(&socket).display();
        Failure::new(
            ExitStatus::LocalIo,
            format!("{CKPT_NOTIFY}={socket}: {cause}"),
        )
        .next("start the job with ckpt run: the socket exists only while ckpt run runs")
    })?;
    done(render::Text(Vec::new()))
}

pub(super) fn orders(global: &Global, args: RunArgs) -> Result<Orders, Failure> {
    let variable = |name: &str| std::env::var_os(name);
    let batch = Batch::of(variable).or(args.batch.then_some(Batch::Other));
    let way = match (args.via, args.checkpoint_cmd, args.restart_cmd) {
        (Some(Via::Criu), None, None) => runner::criu::way()?,
        (Some(Via::Criu), ..) => {
            let message =
                "--via criu has commands of its own: leave out --checkpoint-cmd and --restart-cmd";
            return Err(Failure::new(ExitStatus::Usage, message).next("--via criu alone"));
        }
        (Some(Via::Cmd), Some(checkpoint), Some(restart)) => Way::Command {
            checkpoint: checkpoint.into(),
            restart: restart.into(),
        },
        _ => Way::Files {
            paths: paths(args.files)?,
            ask: args.ask,
        },
    };
    let minutes = u64::from(args.idle_time_to_run);
    let is_bound_to_host = matches!(way, Way::Command { .. });
    let job = args.job.named()?;
    let save = SavePlan::new(job.clone(), save_options(args.save)?, is_bound_to_host)?;
    Ok(Orders {
        job,
        command: args.command,
        way,
        append: Exclude::new(args.append).map_err(|cause| {
            Failure::new(ExitStatus::Usage, format!("--append: {cause}"))
                .next("--append 'PATTERN', such as '*.log'")
        })?,
        save,
        staged: args.staged,
        local: args.local,
        is_new: args.new,
        wait: args.wait.unwrap_or_default(),
        grace: args.grace,
        spend: args.spend,
        suspend: args.suspend,
        on_hang: args.on_hang.into(),
        evict_exit: args.evict_exit,
        after_success: args.after_success,
        batch,
        time_limit: end_of_time_limit(variable),
        owner: OwnerWish {
            run_if_user_active: args.run_if_user_active,
            idle_time_to_run: Duration::from_secs(60 * minutes),
            suspend_cpu_usage: args.suspend_cpu_usage.map(|share| f64::from(share) / 100.0),
        },
        mtbf: args.mtbf,
        state_dir: knowledge::default_dir(variable),
        record: RecordOrders {
            history: match args.history {
                Some(path) if path.as_os_str() == "none" => None,
                named => history_file(named),
            },
            parameters: args.param,
            finish_within: args.finish_within,
        },
        says: match global.progress {
            ProgressMode::Json => Says::Json,
            ProgressMode::None => Says::Nothing,
            ProgressMode::Bar => Says::All,
            ProgressMode::Auto if global.verbose => Says::All,
            ProgressMode::Auto => Says::usual(),
        },
    })
}

/// The paths as absolute paths, since the job may have another working directory.
fn paths(given: Vec<PathBuf>) -> Result<Vec<PathBuf>, Failure> {
    let mut paths = Vec::new();
    for path in given {
        let absolute = std::path::absolute(&path).map_err(|cause| {
            Failure::new(ExitStatus::Usage, format!("{}: {cause}", path.display()))
                .next("--files with a file or a directory that has a name")
        })?;
        // Without a trailing slash, which would make a link be followed.
        let absolute: PathBuf = absolute.components().collect();
        if absolute.file_name().is_none() {
            let message = format!(
                "--files {}: the path has no file name to save it under",
                path.display()
            );
            return Err(Failure::new(ExitStatus::Usage, message)
                .next("--files with a file or a directory that has a name"));
        }
        if paths
            .iter()
            .any(|one: &PathBuf| one.file_name() == absolute.file_name())
        {
            let message = format!(
                "--files: two paths have the same file name as {}",
                path.display()
            );
            return Err(Failure::new(ExitStatus::Usage, message)
                .next("name the directory above them instead"));
        }
        paths.push(absolute);
    }
    Ok(paths)
}

/// How the checkpoints of a supervised job are saved.
///
/// # Errors
/// When options contradict each other.
pub(super) fn save_options(save: RunSave) -> Result<SaveOptions, Failure> {
    Ok(SaveOptions {
        deadline: Some(save.deadline),
        ..save.how.options()?
    })
}

/// A connection to the grid whose agent is replaced from time to time.
pub(super) struct Connection {
    pub(super) global: Global,
    pub(super) grid: Grid,
    pub(super) identity: Identity,
    lists: ListFiles,
    files: Files,
    agent: Mutex<Option<HeldAgent>>,
}

/// The agent of a [`Connection`].
struct HeldAgent {
    agent: Agent,
    made: Instant,
    /// When the agent was last seen at work.
    used: Instant,
}

impl HeldAgent {
    fn new(agent: Agent) -> Self {
        let now = Instant::now();
        Self {
            agent,
            made: now,
            used: now,
        }
    }
}

impl Connection {
    pub(super) fn new(global: Global, connected: Connected) -> Self {
        Self {
            global,
            grid: connected.grid,
            identity: connected.identity,
            lists: connected.lists,
            files: connected.files,
            agent: Mutex::new(Some(HeldAgent::new(connected.agent))),
        }
    }

    /// An agent that knows the hosts as they are now, with the certificate of now.
    async fn fresh(&self) -> Result<Agent, Failure> {
        let newest = grid_file(&self.global).and_then(|path| load_grid(&path).ok());
        let mut grid = newest.unwrap_or_else(|| self.grid.clone());
        let identity = identity::of_now(&self.identity, &grid, &self.files);
        agent_for(&self.global, &mut grid, &self.lists, &identity).await
    }

    pub(super) async fn close(&self) {
        if let Some(held) = self.agent.lock().await.take() {
            held.agent.close().await;
        }
    }
}

impl Reach for Connection {
    fn agent(&self) -> AgentFuture<'_> {
        Box::pin(async {
            let mut held = self.agent.lock().await;
            if let Some(held) = &*held
                && held.made.elapsed() < AGENT_AGE_MAX
            {
                return Ok(held.agent.clone());
            }
            let fresh = match (self.fresh().await, &*held) {
                (Ok(mut fresh), Some(held)) => {
                    fresh.take_over(&held.agent);
                    fresh
                }
                (Ok(fresh), None) => fresh,
                // The hosts that were known may still be there.
                (Err(_), Some(held)) => return Ok(held.agent.clone()),
                (Err(failure), None) => return Err(failure),
            };
            if let Some(old) = held.replace(HeldAgent::new(fresh.clone())) {
                // It is not closed: a save may still use a clone of it, whose end closes it.
                old.agent.note_down().await;
            }
            Ok(fresh)
        })
    }

    fn hang_up_if_idle(&self) {
        // A locked agent is about to be used.
        let Ok(mut held) = self.agent.try_lock() else {
            return;
        };
        let Some(held) = held.as_mut() else { return };
        if held.agent.is_shared() {
            held.used = Instant::now();
        } else if held.used.elapsed() >= IDLE_MAX {
            held.agent.hang_up_unless_shared();
        }
    }
}

/// A report of nothing but an exit status.
struct Quiet(u8);

impl Report for Quiet {
    fn human(&self, _: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }

    fn json(&self) -> String {
        String::new()
    }

    fn is_for_stderr(&self) -> bool {
        true
    }

    fn exit_code(&self) -> Option<u8> {
        Some(self.0)
    }
}

impl Report for RunReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let version = self.version.map_or("no checkpoint".to_owned(), |version| {
            format!("version {version}")
        });
        writeln!(
            out,
            "ckpt run: job {}: work {:.1} s, suspended {:.1} s, in checkpoints {:.1} s, lost {:.1} s; {} saved, {} failed; {version}",
            self.job,
            self.work_seconds,
            self.suspended_seconds,
            self.checkpoint_seconds,
            self.lost_seconds,
            render::count(
                usize::try_from(self.checkpoints).unwrap_or(usize::MAX),
                "checkpoint"
            ),
            self.failed_saves,
        )?;
        if let Some(obstacle) = &self.obstacle {
            writeln!(
                out,
                "ckpt run: {:.0} s of work are in no checkpoint: {}",
                self.lost_seconds,
                one_line(obstacle)
            )?;
        }
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

/// The last line of a run: who ended the job, and with which exit status.
pub(super) fn write_end(
    out: &mut dyn Write,
    ended_by: &str,
    why: &str,
    exit_code: u8,
) -> io::Result<()> {
    let why = one_line(why);
    writeln!(
        out,
        "ckpt run: ended_by {ended_by}: {why}; exit status {exit_code}"
    )
}

impl Report for RunCheckReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        match self.version {
            Some(version) => writeln!(out, "version    {version} would be restored")?,
            None => writeln!(
                out,
                "version    none: the job would start from the beginning"
            )?,
        }
        writeln!(out, "owner      {}", one_line(&self.owner))?;
        for control in &self.control {
            let works = if control.works {
                "works"
            } else {
                "does not work"
            };
            let what = one_line(&control.what);
            writeln!(out, "control    {} {works}: {what}", control.name)?;
        }
        match self.interval_seconds {
            Some(seconds) => writeln!(
                out,
                "interval   {seconds:.0} s, if a checkpoint stops the job for {:.1} s",
                self.cost_seconds
            )?,
            None => writeln!(out, "interval   none: no checkpoint is worth its cost")?,
        }
        writeln!(out, "outlook    {}", one_line(&self.outlook))?;
        writeln!(out, "grace      {:.0} s", self.grace_seconds)?;
        writeln!(out, "key        {}", one_line(&self.key))?;
        writeln!(out, "journal    {}", one_line(&self.journal))?;
        for note in &self.notes {
            writeln!(out, "note       {}", one_line(note))?;
        }
        Ok(())
    }

    json_of_self!();
}
