//! Command line of the daemon.

mod calibrate;
mod classad;
mod guest;
mod history;
mod inspect;
mod joining;
mod leaving;
mod log;
mod metrics;
mod owner;
mod pages;
mod quota;
mod refusal;
mod renewal;
mod running;
mod settings;

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{CommandFactory, Parser, Subcommand};
use command_line::{man, size, time};
use machine::heaps;
use machine::local::{SOCKET_NAME, socket_in, user_socket};
use placement::absence::RepairWaits;
use protocol::address::Address;
use protocol::grid::Grid;
use protocol::identity::{Identity, Role, is_label, keep_out_of_dumps, read_key, replace_public};
use protocol::net::endpoint::EndpointError;
use protocol::net::resolve_here;
use protocol::places::UsualDir;
use tracing::warn;

use self::log::{LogFormat, log_to_stderr};
use crate::config::{DaemonConfig, GIVES_WAY_AFTER, LIST_FILE, MEMORY_USUAL};
use crate::core::ledger::Quota;
use crate::daemon::{Daemon, StartError};
use crate::monitor::outlook::Predictor;
use crate::priority;
use crate::registry::{RegistryConfig, RegistryError, RegistryServer};
use crate::repair::RepairSettings;
use crate::scrub::ScrubSettings;
use refusal::Refusal;

/// Stores shards of checkpoints on this machine's disk.
#[derive(Debug, Parser)]
#[command(name = "ckpt-store", version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create this machine's key, and the file from which the grid's admin makes its certificate.
    Init {
        /// Data directory [default: ckpt/store, or ckpt/registry, below $XDG_DATA_HOME; without that
        /// /var/lib for root and ~/.local/share for others].
        #[arg(long)]
        data: Option<PathBuf>,
        /// Name for the certificate [default: the machine's name].
        #[arg(long)]
        name: Option<String>,
        /// Role of the machine.
        #[arg(long, value_enum, default_value = "donor")]
        role: joining::ServerRole,
    },
    /// Join a grid with a token from its admin.
    ///
    /// Creates this machine's key, gets a certificate for it from the registry that the token names, and
    /// fetches the grid file and the list of members.
    #[command(
        after_help = "Example:\n  ckpt-store join ckpt-join-v2/donor/...\n  ckpt-store serve"
    )]
    Join {
        /// The token. It is as secret as a password and works once. `-` reads it from standard input, and
        /// `@FILE` from a file, so that it is not in the list of processes.
        #[arg(env = "CKPT_JOIN_TOKEN", hide_env_values = true)]
        token: String,
        /// Data directory [default: ckpt/store below $XDG_DATA_HOME; without that /var/lib for root and
        /// ~/.local/share for others].
        #[arg(long)]
        data: Option<PathBuf>,
        /// Name for the certificate [default: the machine's name].
        #[arg(long)]
        name: Option<String>,
    },
    /// Run the daemon until SIGTERM or SIGINT.
    Serve(Box<Serve>),
    /// Run a registry, which keeps the addresses of donors for clients, until SIGTERM or SIGINT.
    #[command(
        after_help = "It needs a certificate with the role registry, as DATA/identity.crt. With DATA/enrol.crt, which `ckpt grid delegate` makes, it accepts join tokens.\n\nExample:\n  ckpt grid init --name lab --registry 10.0.0.9:7601\n  ckpt-store registry"
    )]
    Registry(RegistryArgs),
    /// Show what the machine lends and to whom, its transfers, and what the daemon does now.
    ///
    /// Also shows why the daemon stands back, if it does. Works when no daemon runs, too.
    Status {
        #[command(flatten)]
        store: StoreDir,
        /// Print one JSON object instead of text.
        #[arg(long)]
        json: bool,
        /// Print what a job may expect of this machine, as attributes for HTCondor's STARTD_CRON.
        #[arg(long, conflicts_with = "json")]
        classad: bool,
    },
    /// Export when this machine was idle, busy, taken by its owner or gone, as a trace.
    ///
    /// `ckpt trace describe` reads the trace. The daemon may run meanwhile.
    #[command(
        after_help = "Example:\n  ckpt-store history -o lab/$(hostname)\n  ckpt trace describe lab"
    )]
    History(history::History),
    /// Pause the daemon: it takes no new shards, answers reads slowly and repairs nothing.
    ///
    /// It does the same by itself when the owner needs the machine.
    #[command(after_help = "Example:\n  ckpt-store pause 2h\n  ckpt-store resume")]
    Pause {
        #[command(flatten)]
        store: StoreDir,
        /// How long to pause, such as 2h [default: until `ckpt-store resume`].
        #[arg(value_parser = time::parse, value_name = "TIME")]
        time: Option<Duration>,
    },
    /// End a pause.
    Resume {
        #[command(flatten)]
        store: StoreDir,
    },
    /// Measure the load from which a guest slows down the owner's programs, for the daemon to use.
    ///
    /// Takes about four minutes. The machine should be idle otherwise.
    Calibrate(calibrate::Calibrate),
    #[command(hide = true)]
    CalibrateGuest(calibrate::Guest),
    /// Run a command as a guest: the daemon doesn't count its load as the owner's.
    ///
    /// The same holds for all processes that the command starts.
    Guest(guest::Guest),
    #[command(hide = true)]
    GuestReporter(guest::Reporter),
    /// Hand all shards over to other hosts and end the daemon, before the machine leaves for good.
    ///
    /// A host takes no second shard of a checkpoint, so the grid needs a host more than checkpoints have shards. Ends
    /// with 0 if the data directory can be deleted, and with 1 if shards are on no other host: the daemon goes on.
    Drain {
        #[command(flatten)]
        store: StoreDir,
        /// Time limit for handing the shards over.
        #[arg(long, value_parser = time::parse, value_name = "TIME", default_value = "10min")]
        within: Duration,
        /// End the daemon even if shards are on no other host. It serves them again when it is started.
        #[arg(long)]
        force: bool,
    },
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the man pages of all commands (section 1) and of preferences.toml (section 5).
    Man {
        /// Directory to write to.
        #[arg(long, default_value = ".")]
        dir: PathBuf,
    },
    /// Read every block of every shard and report damage. Works when no daemon runs, too.
    Check {
        #[command(flatten)]
        store: StoreDir,
        /// Print one JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
}

/// The data directory of a daemon.
#[derive(Debug, clap::Args)]
struct StoreDir {
    /// Data directory [default: that of `ckpt-store join`].
    #[arg(long)]
    data: Option<PathBuf>,
}

impl StoreDir {
    /// Calls `act` with the data directory, which has to exist.
    fn with(self, act: impl FnOnce(&Path) -> Result<ExitCode>) -> Result<ExitCode> {
        let data = joining::data_dir(self.data, UsualDir::Store)?;
        ensure!(
            data.is_dir(),
            Refusal::new(
                format!("there is no data directory {}", data.display()),
                "--data DIR; ckpt-store join TOKEN makes one"
            )
        );
        act(&data)
    }
}

#[derive(Debug, clap::Args)]
struct Serve {
    /// Grid file [default: grid.toml in the data directory].
    #[arg(long, env = "CKPT_GRID")]
    grid: Option<PathBuf>,
    /// Data directory with identity.key and identity.crt [default: that of `ckpt-store join`].
    #[arg(long)]
    data: Option<PathBuf>,
    /// Address or host name, and port, to listen on; port 0 takes a free one [default: as in the list of
    /// the grid, or 0.0.0.0:7600].
    #[arg(long, value_name = "ADDR")]
    listen: Option<Address>,
    /// Address at which others reach this host; registries pass it on [default: --listen].
    #[arg(long, value_name = "ADDR")]
    announce: Option<SocketAddr>,
    /// Building, campus or cloud zone: machines at one site may fail together [default: as in the grid
    /// file].
    #[arg(long)]
    site: Option<String>,
    /// Owner of the machine [default: as in the grid file].
    #[arg(long)]
    owner: Option<String>,
    /// Name in logs and answers; registries know the host by the name in its certificate [default: that
    /// one].
    #[arg(long)]
    name: Option<String>,
    /// Space to lend, such as 10GiB [default: the space of the shards held at start, plus 90% of the free
    /// space, minus --reserve].
    #[arg(long, value_parser = size::parse)]
    capacity: Option<u64>,
    /// Largest share of one submitter: a size, or a percentage of the lent space. 100% sets no limit.
    #[arg(long, value_parser = quota::parse, value_name = "SIZE|PERCENT", default_value = "50%")]
    quota: Quota,
    /// Disk space that always stays free [default: 5% of the disk, at most 10GiB].
    #[arg(long, value_parser = size::parse)]
    reserve: Option<u64>,
    /// Memory of the daemon: what members can make it take stays within this, from 96MiB on.
    #[arg(long, value_parser = size::parse, default_value = MEMORY_USUAL)]
    memory: u64,
    /// File to write the address to once the daemon answers.
    #[arg(long)]
    ready_file: Option<PathBuf>,
    /// Run at normal priority instead of nice 19 and idle I/O.
    #[arg(long)]
    normal_priority: bool,
    /// Socket at which guests of this machine register [default: guests.sock in $RUNTIME_DIRECTORY;
    /// without that, in the data directory and, as an ordinary user, also in $XDG_RUNTIME_DIR/ckpt-store].
    #[arg(long, value_name = "PATH")]
    guest_socket: Option<PathBuf>,
    /// Don't rebuild shards that other hosts lost.
    #[arg(long)]
    no_repair: bool,
    /// Time after which a missing shard is rebuilt, such as 2h [default: 15min to 24h, by how long its
    /// holder was usually away].
    #[arg(long, value_parser = time::parse, value_name = "TIME", env = "CKPT_REPAIR_AFTER")]
    repair_after: Option<Duration>,
    /// Time between two searches for missing shards.
    #[arg(long, value_parser = time::parse, value_name = "TIME", default_value = "5min", env = "CKPT_REPAIR_PERIOD")]
    repair_period: Duration,
    /// Most bytes per second that the repair of a shard reads from other hosts.
    #[arg(long, value_parser = size::parse, value_name = "SIZE", default_value = "4MiB")]
    repair_rate: u64,
    /// Most bytes per day for checking that other hosts hold what they claim, such as 10MiB [default: a
    /// thousandth of the bytes held, or what a check of all within --scrub-pass needs].
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    check_budget: Option<u64>,
    /// Hand shards over to other hosts when the daemon is stopped, within this time.
    #[arg(long, value_parser = time::parse, value_name = "TIME", env = "CKPT_DRAIN_ON_EXIT")]
    drain_on_exit: Option<Duration>,
    /// Don't read held shards to find damage.
    #[arg(long)]
    no_scrub: bool,
    /// Time in which all shards are read once for damage, while the owner does not need the machine.
    #[arg(long, value_parser = time::parse, value_name = "TIME", default_value = "14d", env = "CKPT_SCRUB_PASS")]
    scrub_pass: Duration,
    /// Time between two requests to other hosts and registries for a newer list of the grid.
    #[arg(long, value_parser = time::parse, value_name = "TIME", default_value = "30s", env = "CKPT_LIST_PERIOD")]
    list_period: Duration,
    /// Never stand back for the machine's owner; for tests.
    #[arg(long)]
    no_stand_back: bool,
    /// Model that forecasts how long this machine stays.
    #[arg(long, value_enum, default_value = "blend", env = "CKPT_PREDICTOR")]
    predictor: Predictor,
    #[command(flatten)]
    metrics: metrics::MetricsArgs,
    /// Form of the log on standard error; RUST_LOG sets the level.
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
    /// Most bytes of the log, if standard error is a file that was opened to append: it then begins anew.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    log_max: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct RegistryArgs {
    /// Grid file [default: grid.toml in the data directory].
    #[arg(long, env = "CKPT_GRID")]
    grid: Option<PathBuf>,
    /// Data directory with identity.key and identity.crt [default: that of `ckpt grid init --registry`].
    #[arg(long)]
    data: Option<PathBuf>,
    /// Address or host name, and port, to listen on; port 0 takes a free one [default: as in the list of
    /// the grid].
    #[arg(long, value_name = "ADDR")]
    listen: Option<Address>,
    /// File to write the address to once the registry answers.
    #[arg(long)]
    ready_file: Option<PathBuf>,
    /// Most memory that members can make the registry take, such as 2GiB: it bounds connections, donors and
    /// shards. 2GiB is enough for some 6,000 members that are connected at the same time.
    #[arg(long, default_value = "2GiB", value_parser = size::parse, value_name = "SIZE")]
    memory: u64,
    #[command(flatten)]
    metrics: metrics::MetricsArgs,
    /// Form of the log on standard error; RUST_LOG sets the level.
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
}

/// Runs the program. `args` include its name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = match Args::try_parse_from(args) {
        Ok(args) => args,
        Err(usage) => {
            // An error means that nothing reads the output.
            let _ = usage.print();
            return ExitCode::from(if usage.use_stderr() { 2 } else { 0 });
        }
    };
    if let Err(cause) = keep_out_of_dumps() {
        warn!(%cause, "a core dump of this program could contain keys");
    }
    let done = match args.command {
        Command::Init { data, name, role } => joining::init(data, name, role),
        Command::Join { token, data, name } => joining::join(&token, data, name),
        Command::Serve(serve) => run(*serve),
        Command::Registry(args) => run_registry(args),
        Command::Calibrate(args) => calibrate::calibrate(&args),
        Command::CalibrateGuest(args) => calibrate::guest(&args),
        Command::Guest(args) => guest::guest(&args),
        Command::GuestReporter(args) => guest::reporter(args),
        Command::Drain {
            store,
            within,
            force,
        } => store.with(|data| leaving::drain(data, within, force)),
        Command::Pause { store, time } => store.with(|data| owner::pause(data, time)),
        Command::Resume { store } => store.with(owner::resume),
        Command::Status {
            store,
            json,
            classad,
        } => store.with(|data| match classad {
            true => classad::status(data),
            false => inspect::status(data, json),
        }),
        Command::History(args) => history::history(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "ckpt-store", &mut script);
            let written = std::io::stdout().write_all(&script);
            written.context("writing").map(|()| ExitCode::SUCCESS)
        }
        Command::Man { dir } => man::write(Args::command(), &[pages::PREFERENCES], &dir)
            .with_context(|| format!("man pages in {}", dir.display()))
            .map(|()| ExitCode::SUCCESS),
        Command::Check { store, json } => store.with(|data| inspect::check(data, json)),
    };
    match done {
        Ok(code) => code,
        // The reader of the output has closed it and wants no more.
        Err(cause) if is_broken_pipe(&cause) => ExitCode::SUCCESS,
        Err(cause) => {
            let mut err = std::io::stderr().lock();
            let _ = writeln!(err, "ckpt-store: {cause:#}");
            if let Some(refusal) = cause.downcast_ref::<Refusal>() {
                let _ = writeln!(err, "try: {}", refusal.next());
            }
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(cause: &anyhow::Error) -> bool {
    let io = cause.downcast_ref::<std::io::Error>();
    io.is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
}

fn run(args: Serve) -> Result<ExitCode> {
    log_to_stderr(args.log_format, args.log_max);
    let ready_file = args.ready_file.clone();
    let drain = args.drain_on_exit;
    let data = joining::data_dir(args.data.clone(), UsualDir::Store)?;
    let request = data.join("drain");
    // A request that an earlier run left behind.
    let _ = fs::remove_file(&request);
    if !args.normal_priority
        && let Err(cause) = priority::stand_back()
    {
        warn!(%cause, "running at normal priority");
    }
    let mut config = config(args, data)?;
    let runtime = runtime()?;
    runtime.block_on(async {
        // One future for the whole loop, because a signal between two of them would be lost.
        let mut stop = std::pin::pin!(stop_signal());
        let mut daemon = Daemon::start(&config).await?;
        loop {
            if let Some(path) = &ready_file {
                write_ready(path, daemon.local_addr())?;
            }
            let period = config.list_period;
            let data = &config.data_dir;
            let identity = tokio::select! {
                stopped = &mut stop => {
                    stopped?;
                    stop.set(stop_signal());
                    if leaves(&daemon, &request, drain, stop.as_mut()).await {
                        break;
                    }
                    continue;
                }
                identity = renewal::renewed(daemon.members(), &config.identity, data, period) => identity,
            };
            // TLS keeps a certificate as long as its endpoint lives, so the daemon starts anew with the
            // new one.
            config.grid = (*daemon.members().grid()).clone();
            config.listen = daemon.local_addr();
            keep_address(&mut config.metrics, daemon.metrics_addr());
            config.identity = identity;
            daemon.stop().await;
            let is_taken = |cause: &StartError| {
                matches!(cause, StartError::Endpoint(EndpointError::Socket { .. }))
            };
            daemon = renewal::begin_again(async || Daemon::start(&config).await, is_taken).await?;
        }
        daemon.stop().await;
        Ok(ExitCode::SUCCESS)
    })
}

/// Hands shards over if somebody wants that of a daemon that was asked to stop. Returns whether it stops.
async fn leaves(
    daemon: &Daemon,
    request: &Path,
    on_exit: Option<Duration>,
    again: impl Future<Output = Result<()>>,
) -> bool {
    let on_exit = on_exit.map(|within| leaving::Wish {
        within,
        stays: false,
    });
    let Some(wish) = leaving::requested(request).or(on_exit) else {
        return true;
    };
    let drained = tokio::select! {
        drained = daemon.drain(wish.within) => drained,
        // A second signal ends the drain at once. Without an answer, nobody takes the shards for handed over.
        _ = again => return true,
    };
    let stays = wish.stays && drained.left > 0;
    if stays {
        daemon.stay(&drained);
    }
    leaving::answer(request, &drained, stays);
    !stays
}

fn run_registry(args: RegistryArgs) -> Result<ExitCode> {
    log_to_stderr(args.log_format, None);
    let data_dir = joining::data_dir(args.data, UsualDir::Registry)?;
    let grid_file = joining::grid_file(args.grid, &data_dir);
    let grid = Grid::load_with(&grid_file, Some(data_dir.join(LIST_FILE)))?;
    let identity = load_identity(&data_dir)?;
    let peer = identity.peer()?;
    if !peer.has(Role::Registry) {
        let message = format!(
            "the certificate of {:?} is not that of a registry",
            peer.name
        );
        bail!(Refusal::new(
            message,
            "ckpt grid sign --role registry, by the grid's authority"
        ));
    }
    let mut registries = grid.registries.iter();
    let listed = registries.find(|registry| registry.id.0 == peer.id);
    let listen = args.listen.or(listed.map(|registry| registry.addr.clone()));
    let listen = listen.context(Refusal::new(
        "the list of the grid does not name this registry",
        "--listen ADDRESS:PORT",
    ))?;
    let listen = own_address(&listen)?;
    joining::warn_of_end(&peer);
    let identity = renewal::newer(&grid, &identity, &data_dir).unwrap_or(identity);
    let mut config = RegistryConfig {
        grid,
        grid_file,
        identity,
        data_dir,
        listen,
        metrics: args.metrics.settings()?,
        memory_bytes: args.memory,
    };
    let runtime = runtime()?;
    runtime.block_on(async {
        let mut stop = std::pin::pin!(stop_signal());
        let mut registry = RegistryServer::start(config.clone())?;
        loop {
            if let Some(path) = &args.ready_file {
                write_ready(path, registry.local_addr())?;
            }
            let identity = tokio::select! {
                stopped = &mut stop => {
                    registry.stop().await;
                    return stopped.map(|()| ExitCode::SUCCESS);
                }
                identity = renewal::renewed(
                    registry.members(),
                    &config.identity,
                    &config.data_dir,
                    Duration::ZERO,
                ) => identity,
            };
            config.grid = (*registry.members().grid()).clone();
            config.listen = registry.local_addr();
            keep_address(&mut config.metrics, registry.metrics_addr());
            config.identity = identity;
            registry.stop().await;
            let is_taken = |cause: &RegistryError| {
                matches!(cause, RegistryError::Endpoint(EndpointError::Socket { .. }))
            };
            let start = async || RegistryServer::start(config.clone());
            registry = renewal::begin_again(start, is_taken).await?;
        }
    })
}

fn config(args: Serve, data_dir: PathBuf) -> Result<DaemonConfig> {
    let grid_file = joining::grid_file(args.grid, &data_dir);
    let grid = Grid::load_with(&grid_file, Some(data_dir.join(LIST_FILE)))?;
    let identity = load_identity(&data_dir)?;
    let identity = renewal::newer(&grid, &identity, &data_dir).unwrap_or(identity);
    let peer = identity.peer()?;
    joining::warn_of_end(&peer);
    if !peer.has(Role::Donor) {
        let message = format!("the certificate of {:?} is not that of a donor", peer.name);
        bail!(Refusal::new(
            message,
            "ckpt-store join TOKEN, with another --data DIR"
        ));
    }
    let listed = grid.hosts.iter().find(|host| host.id.0 == peer.id);
    let listed_addr = listed.map(|host| host.addr.clone());
    let usual = || listed_addr.unwrap_or(Address::Ip(joining::LISTEN_USUAL));
    let listen = own_address(&args.listen.unwrap_or_else(usual))?;
    let (site, owner) = listed.map_or((None, None), |host| (host.site.clone(), host.owner.clone()));
    for (option, label) in [("--site", &args.site), ("--owner", &args.owner)] {
        check_label(option, label.as_deref())?;
    }
    // The registry would refuse the whole announcement because of a label that is not valid.
    let [site, owner] = [site, owner].map(|listed| listed.filter(|label| is_label(label)));
    let patience = args
        .repair_after
        .map_or_else(RepairWaits::default, |time| RepairWaits {
            least: time,
            usual: time,
            most: time,
        });
    let repair = RepairSettings {
        rebuilds: !args.no_repair,
        period: args.repair_period,
        patience,
        bytes_per_second: args.repair_rate,
        proof_valid: args.scrub_pass,
        proof_bytes_per_day: args.check_budget,
    };
    let named = args
        .guest_socket
        .or_else(|| runtime_socket(std::env::var_os("RUNTIME_DIRECTORY")));
    Ok(DaemonConfig {
        metrics: args.metrics.settings()?,
        guest_sockets: named.map_or_else(|| guest_sockets(&data_dir), |one| vec![one]),
        repair,
        scrub: (!args.no_scrub).then_some(ScrubSettings {
            pass: args.scrub_pass,
            ..ScrubSettings::default()
        }),
        announce: args.announce,
        site: args.site.or(site),
        owner: args.owner.or(owner),
        grid,
        grid_file: Some(grid_file),
        gives_way_after: GIVES_WAY_AFTER,
        identity,
        name: args.name.unwrap_or(peer.name),
        data_dir,
        listen,
        list_period: args.list_period,
        capacity_bytes: args.capacity,
        quota: args.quota,
        reserve_bytes: args.reserve,
        memory_bytes: args.memory,
        stand_back: !args.no_stand_back,
        predictor: args.predictor,
    })
}

/// The address to listen on. Of the addresses of a name, that is the first one of this machine.
fn own_address(listen: &Address) -> Result<SocketAddr> {
    if let Some(addr) = listen.ip() {
        return Ok(addr);
    }
    let found = resolve_here(listen).with_context(|| format!("listening on {listen}"))?;
    // Only an address of this machine can be bound to.
    let is_here = |addr: &&SocketAddr| UdpSocket::bind((addr.ip(), 0)).is_ok();
    found.iter().find(is_here).copied().with_context(|| {
        let found: Vec<String> = found.iter().map(|addr| addr.ip().to_string()).collect();
        let found = found.join(", ");
        Refusal::new(
            format!("listening on {listen}: {found} is not an address of this machine"),
            "--listen 0.0.0.0:PORT, which listens on all addresses",
        )
    })
}

/// The default sockets for guests: one in the data directory and, for an ordinary user, one where all of
/// this user's programs look for it.
fn guest_sockets(data_dir: &Path) -> Vec<PathBuf> {
    let mut sockets = vec![socket_in(data_dir)];
    if !rustix::process::geteuid().is_root() {
        sockets.extend(user_socket(|name| std::env::var_os(name)));
    }
    sockets
}

/// Has metrics stay at the address at which they are served.
const fn keep_address(settings: &mut Option<web::Settings>, served: Option<SocketAddr>) {
    if let (Some(settings), Some(served)) = (settings, served) {
        settings.listen = served;
    }
}

/// The socket in the first of the directories that systemd created for this service.
fn runtime_socket(directories: Option<OsString>) -> Option<PathBuf> {
    let directories = directories?;
    let first = std::env::split_paths(&directories).next()?;
    first.is_absolute().then(|| first.join(SOCKET_NAME))
}

fn load_identity(data: &Path) -> Result<Identity> {
    let secret = read_key(&data.join("identity.key")).context(Refusal::new(
        "this machine has no key of a member",
        "ckpt-store join TOKEN; or ckpt-store init, and a certificate from the grid's admin",
    ))?;
    let path = data.join("identity.crt");
    let pem = fs::read_to_string(&path).with_context(|| {
        Refusal::new(
            format!("certificate {}", path.display()),
            "ckpt-store join TOKEN; or ckpt grid sign, by the grid's admin",
        )
    })?;
    Ok(Identity::from_pem(secret, &pem)?)
}

fn check_label(option: &str, label: Option<&str>) -> Result<()> {
    ensure!(
        label.is_none_or(is_label),
        Refusal::new(
            format!("{option}: letters, digits, spaces and ._-/:@+,()#&' only, 63 bytes at most"),
            format!("{option} with a shorter or plainer name")
        )
    );
    Ok(())
}

/// The threads on which a daemon or a registry runs.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    heaps::share();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
}

/// Replaces the file in one step, so that a reader sees no file or the whole address. Other users may
/// have write access to the directory, so links that they put there are not followed.
fn write_ready(path: &Path, addr: SocketAddr) -> Result<()> {
    replace_public(path, addr.to_string().as_bytes())
        .with_context(|| format!("ready file {}", path.display()))
}

/// Ends at the first signal to stop that arrives after this function was called, even if that is before
/// the future is polled. Without the handlers that are set here, a signal would end the process.
fn stop_signal() -> impl Future<Output = Result<()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let terminate = signal(SignalKind::terminate());
    let interrupt = signal(SignalKind::interrupt());
    async move {
        let mut terminate = terminate?;
        let mut interrupt = interrupt?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ready_file_is_not_written_through_planted_links() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        fs::write(&victim, "untouched").unwrap();
        for planted in ["ready", "ready.new", "ready.tmp"] {
            std::os::unix::fs::symlink(&victim, dir.path().join(planted)).unwrap();
        }
        let ready = dir.path().join("ready");
        write_ready(&ready, ([127, 0, 0, 1], 7600).into()).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        assert_eq!(fs::read_to_string(&ready).unwrap(), "127.0.0.1:7600");
        assert!(!fs::symlink_metadata(&ready).unwrap().is_symlink());
    }
}
