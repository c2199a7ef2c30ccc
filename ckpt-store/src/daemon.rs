//! A running daemon: it opens the data directory and the socket, starts all tasks, and stops them in
//! order.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use machine::Machine;
use machine::local::{How, Leaving};
use protocol::identity::Whereabouts;
use protocol::net::close::STOPPING;
use protocol::net::endpoint::{self, EndpointConfig, EndpointError};
use protocol::net::{Door, Members};
use quinn::Endpoint;
use rustix::fs::{FlockOperation, flock};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{error, info, warn};
use web::Server;

use crate::clock::Clock;
use crate::config::{
    CONNECTION_WINDOW, DaemonConfig, LIST_FILE, MemoryPlan, RESERVE_BYTES_MAX, SEND_WINDOW,
    STREAMS_MAX, WRITER_WINDOW,
};
use crate::core::ledger::Quota;
use crate::disk::RealDisk;
use crate::gossip;
use crate::guest_socket::GuestSocket;
use crate::host::Host;
use crate::metrics::{self, DaemonMetrics};
use crate::monitor::preferences::DiskUse;
use crate::monitor::{LOOK_PERIOD, Monitor, MonitorError, SAMPLE_PERIOD};
use crate::others::OtherCards;
use crate::registry::announcer::Announcer;
use crate::repair::{Drained, Links, RepairSettings, Repairer};
use crate::scrub;
use crate::serve::lines::Lines;
use crate::serve::reception::{Reception, Rooms, Visitor};
use crate::serve::{self, ServedHost, Surroundings};
use crate::shards::{Lent, Store, StoreError, Usage};
use crate::status_file::StatusFile;
use crate::tasks::Tasks;

/// How often expired checkpoints are looked for.
const SWEEP_PERIOD: Duration = Duration::from_secs(60);

/// At a stop, requests that are under way may go on for this long.
const STOP_GRACE: Duration = Duration::from_secs(8);

/// Why a daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another daemon uses the same data directory.
    #[error("{0} is in use by another daemon")]
    Locked(PathBuf),
    /// The data directory can't be created, read or locked.
    #[error("data directory {path}")]
    Data {
        /// Path of the data directory.
        path: PathBuf,
        /// The error of the system.
        #[source]
        cause: io::Error,
    },
    /// The content of the data directory can't be used.
    #[error("data directory {path}")]
    Store {
        /// Path of the data directory.
        path: PathBuf,
        /// Why the store can't be opened.
        #[source]
        cause: StoreError,
    },
    /// The monitor can't start.
    #[error(transparent)]
    Monitor(#[from] MonitorError),
    /// The socket can't be opened, or TLS can't be set up.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// Metrics can't be served.
    #[error("metrics: {0}")]
    Metrics(#[from] web::StartError),
}

/// A running daemon. Dropping it ends its tasks.
#[derive(Debug)]
pub struct Daemon {
    endpoint: Endpoint,
    local_addr: SocketAddr,
    members: Members,
    stop: watch::Sender<bool>,
    tasks: Tasks,
    leaver: Repairer,
    host: Arc<Host>,
    rooms: Rooms,
    metrics: Option<Server>,
    _lock: File,
}

/// Everything that is read from the data directory at start.
struct Opened {
    host: Arc<Host>,
    lender: Lender,
}

impl Opened {
    async fn open(config: &DaemonConfig) -> Result<Self, StartError> {
        let clock = Clock::start();
        let data_dir = &config.data_dir;
        let now = clock.unix_seconds();
        let paths = Machine::here();
        let monitor = Monitor::open(data_dir, paths, config.stand_back, config.predictor, now)?;
        let metrics = DaemonMetrics::default();
        let (store, lender) = open_store(config, monitor.disk_use(), clock, &metrics).await?;
        let host = Host::open(data_dir, store, monitor, metrics, clock);
        Ok(Self {
            host: Arc::new(host),
            lender,
        })
    }

    fn repairer(
        &self,
        config: &DaemonConfig,
        members: &Members,
        settings: RepairSettings,
    ) -> Repairer {
        Repairer {
            members: members.clone(),
            identity: config.identity.clone(),
            host: Arc::clone(&self.host),
            settings,
            links: Links::new(&config.identity, &config.grid),
        }
    }

    fn announcer(&self, config: &DaemonConfig, local_addr: SocketAddr) -> Announcer {
        // Registries accept no other name.
        let certified = config.identity.peer().map(|peer| peer.name);
        Announcer {
            identity: config.identity.clone(),
            name: certified.unwrap_or_else(|_| config.name.clone()),
            whereabouts: Whereabouts {
                addr: announced_addr(config, local_addr),
                site: config.site.clone(),
                owner: config.owner.clone(),
            },
            data_dir: config.data_dir.clone(),
            host: Arc::clone(&self.host),
            list_period: config.list_period,
            began_at: self.host.clock.unix_seconds(),
        }
    }
}

/// Settings of the serving endpoint. Its windows have to fit into the daemon's memory.
fn endpoint_settings(config: &DaemonConfig) -> EndpointConfig {
    let identity = config.identity.clone();
    let authority = config.grid.authority.clone();
    let mut settings = EndpointConfig::new(identity, authority);
    settings.receive_window = CONNECTION_WINDOW;
    settings.stream_window = WRITER_WINDOW;
    settings.send_window = SEND_WINDOW;
    settings.streams_max = STREAMS_MAX;
    settings
}

/// What this host knows of the grid. With a grid file the daemon follows that file and newer signed
/// lists; without one the grid stays as it is at the start.
fn members_of(config: &DaemonConfig) -> Members {
    match &config.grid_file {
        Some(file) => {
            let own = Some(config.data_dir.join(LIST_FILE));
            Members::follow(file.clone(), &config.grid, own)
        }
        None => Members::of(&config.grid),
    }
}

/// Accepts connections and serves them, until the endpoint is closed.
async fn accept(reception: Reception, host: Arc<ServedHost>) {
    let serve = move |visitor: Visitor| {
        let host = Arc::clone(&host);
        async move {
            // Always true, because this endpoint accepts no clients without a certificate.
            if let Some(peer) = visitor.peer {
                serve::connection(host, visitor.connection, peer, visitor.members).await;
            }
        }
    };
    reception.accept(serve).await;
}

/// The socket, and what decides who may connect to it.
struct Network {
    settings: EndpointConfig,
    members: Members,
    door: Door,
    endpoint: Endpoint,
    local_addr: SocketAddr,
}

impl Network {
    fn open(config: &DaemonConfig) -> Result<Self, StartError> {
        let settings = endpoint_settings(config);
        let members = members_of(config);
        let door = Door::new(&settings, members.clone())?;
        let endpoint = endpoint::server(&settings, config.listen)?;
        let local_addr = endpoint.local_addr().map_err(|cause| StartError::Data {
            path: config.data_dir.clone(),
            cause,
        })?;
        Ok(Self {
            settings,
            members,
            door,
            endpoint,
            local_addr,
        })
    }
}

/// Starts all tasks: those that answer clients and guests, repairs, scrubs, announcements, and the task that
/// watches the machine. Returns the places of connections.
fn start_tasks(
    tasks: &mut Tasks,
    config: &DaemonConfig,
    opened: Opened,
    network: Network,
    stopping: watch::Receiver<bool>,
) -> Rooms {
    let Network {
        settings,
        members,
        door,
        endpoint,
        local_addr,
    } = network;
    let host = &opened.host;
    let clock = host.clock;
    let lines = Arc::new(Lines::new(clock));
    let plan = MemoryPlan::new(config.memory_bytes);
    let around = Surroundings {
        id: config.identity.secret.id(),
        name: config.name.clone(),
        lines: Arc::clone(&lines),
        stopping,
        members: members.clone(),
        cards: OtherCards::new(&config.data_dir, &config.grid, config.identity.secret.id()),
    };
    let served = ServedHost::new(Arc::clone(host), around, &plan, config.gives_way_after);
    let reception = Reception::new(endpoint, door, plan.connections(), clock, lines);
    let rooms = reception.rooms();
    tasks.spawn(opened.repairer(config, &members, config.repair).run());
    if let Some(settings) = config.scrub {
        tasks.spawn(scrub::run(Arc::clone(host), settings));
    }
    announce_and_gossip(tasks, config, &opened, settings, &members, local_addr);
    tasks.spawn(accept(reception, Arc::new(served)));
    serve_guests(tasks, config, clock, &host.monitor);
    tasks.spawn(sweep(Arc::clone(&host.store), clock));
    let data_dir = config.data_dir.clone();
    let id = config.identity.secret.id();
    let is_revoked = move || members.grid().revoked.contains(&id);
    tasks.spawn(watch_machine(opened, data_dir, rooms.clone(), is_revoked));
    rooms
}

impl Daemon {
    /// Starts a daemon on the current tokio runtime.
    ///
    /// # Errors
    /// When the data directory, the identity or the address can't be used.
    pub async fn start(config: &DaemonConfig) -> Result<Self, StartError> {
        make_private_dir(&config.data_dir).map_err(|cause| StartError::Data {
            path: config.data_dir.clone(),
            cause,
        })?;
        let lock = lock(&config.data_dir).await?;
        let opened = Opened::open(config).await?;
        let network = Network::open(config)?;
        log_start(config, &opened.host.store.usage(None), network.local_addr);
        let (stop, stopping) = watch::channel(false);
        let metrics = serve_metrics(config, &opened.host.metrics)?;
        // A host that leaves the grid hands its shards over without a limit of speed.
        let settings = RepairSettings {
            bytes_per_second: u64::MAX,
            ..RepairSettings::default()
        };
        let leaver = opened.repairer(config, &network.members, settings);
        let endpoint = network.endpoint.clone();
        let members = network.members.clone();
        let local_addr = network.local_addr;
        let host = Arc::clone(&opened.host);
        let mut tasks = Tasks::default();
        let rooms = start_tasks(&mut tasks, config, opened, network, stopping);
        Ok(Self {
            leaver,
            tasks,
            host,
            endpoint,
            local_addr,
            members,
            stop,
            rooms,
            metrics,
            _lock: lock,
        })
    }

    /// What this host knows of the grid.
    pub const fn members(&self) -> &Members {
        &self.members
    }

    /// The address on which the daemon listens.
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The address on which metrics are served, if they are.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(Server::local_addr)
    }

    /// The number of connections that are open now and count against the limits.
    pub fn connections(&self) -> usize {
        self.rooms.taken()
    }

    /// Refuses new shards and hands those that are here over to other hosts, until none is left, `limit` has passed,
    /// or all hosts answer and none of them can take any.
    pub async fn drain(&self, limit: Duration) -> Drained {
        info!(limit_s = limit.as_secs(), "handing shards over");
        self.host.monitor.leave();
        self.host.monitor.announce_end(Leaving {
            how: How::Drain,
            within_s: limit.as_secs(),
        });
        self.leaver.drain(limit).await
    }

    /// Goes on after a drain that failed, as before it.
    pub fn stay(&self, drained: &Drained) {
        info!(left = drained.left, "shards are on no other host: goes on");
        self.leaver.stay(drained);
        self.host.monitor.stay();
    }

    /// Stops the daemon: refuses new requests, and lets those under way end within `STOP_GRACE`. What
    /// was acknowledged is on stable storage already.
    pub async fn stop(self) {
        info!("stopping");
        self.host.monitor.announce_end(Leaving {
            how: How::Stop,
            within_s: STOP_GRACE.as_secs(),
        });
        self.stop.send_replace(true);
        self.endpoint.set_server_config(None);
        if tokio::time::timeout(STOP_GRACE, self.rooms.empty())
            .await
            .is_err()
        {
            warn!("requests are aborted");
        }
        self.endpoint.close(STOPPING, b"shutting down");
        let _ = tokio::time::timeout(Duration::from_secs(1), self.endpoint.wait_idle()).await;
        drop(self.tasks);
        if let Some(metrics) = self.metrics {
            metrics.stop().await;
        }
        self.host.monitor.close();
        self.host.write();
        self.host.traffic.write(self.host.clock.unix_seconds());
        info!("stopped");
    }
}

fn log_start(config: &DaemonConfig, usage: &Usage, addr: SocketAddr) {
    info!(
        name = config.name, grid = config.grid.name, %addr,
        data = %config.data_dir.display(), capacity_bytes = usage.capacity_bytes,
        free_bytes = usage.free_bytes, shards = usage.counts.shards,
        checkpoints = usage.counts.committed, "serving"
    );
}

/// Starts the announcer, and the task that asks other hosts for newer lists of the grid.
fn announce_and_gossip(
    tasks: &mut Tasks,
    config: &DaemonConfig,
    opened: &Opened,
    settings: EndpointConfig,
    members: &Members,
    local_addr: SocketAddr,
) {
    let announcer = opened.announcer(config, local_addr);
    tasks.spawn(announcer.run(settings, members.clone()));
    let identity = config.identity.clone();
    let watched = Arc::clone(&opened.host.monitor);
    let period = config.list_period;
    tasks.spawn(gossip::run(members.clone(), identity, watched, period));
}

/// Serves metrics, if the configuration says so.
fn serve_metrics(
    config: &DaemonConfig,
    metrics: &DaemonMetrics,
) -> Result<Option<Server>, web::StartError> {
    if let Ok(peer) = config.identity.peer() {
        metrics.certified_until(peer.not_after);
    }
    let Some(settings) = &config.metrics else {
        return Ok(None);
    };
    let server = Server::start(settings, metrics::pages(metrics.registry()))?;
    info!(addr = %server.local_addr(), token = settings.token.is_some(), "serving metrics");
    Ok(Some(server))
}

/// Opens the sockets for guests. A daemon can work without them, so a failure is only logged.
fn serve_guests(tasks: &mut Tasks, config: &DaemonConfig, clock: Clock, monitor: &Arc<Monitor>) {
    let mut are_heard = false;
    for path in &config.guest_sockets {
        match GuestSocket::bind(path) {
            Ok(socket) => {
                tasks.spawn(socket.serve(Arc::clone(monitor), clock));
                are_heard = true;
            }
            // An example is a path that several daemons of one user share.
            Err(cause) if are_heard => {
                info!(path = %path.display(), %cause, "can't listen for guests at this socket, too");
            }
            Err(cause) => {
                warn!(path = %path.display(), %cause, "can't listen for guests: their load counts as the owner's");
            }
        }
    }
    if are_heard {
        tasks.spawn(watch_guests(clock, Arc::clone(monitor)));
    }
}

/// Reads the CPU's counters every second while there are guests.
async fn watch_guests(clock: Clock, monitor: Arc<Monitor>) {
    let mut count = monitor.guest_count();
    let mut period = tokio::time::interval(LOOK_PERIOD);
    period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while count.wait_for(|count| *count > 0).await.is_ok() {
        period.tick().await;
        let monitor = Arc::clone(&monitor);
        let looked =
            tokio::task::spawn_blocking(move || monitor.read_for_guests(clock.unix_seconds()));
        if let Err(panicked) = looked.await {
            error!(cause = %panicked, "a thread ended");
        }
    }
}

/// The address that the daemon announces to registries.
fn announced_addr(config: &DaemonConfig, local_addr: SocketAddr) -> SocketAddr {
    let mut addr = config.announce.unwrap_or(local_addr);
    if addr.port() == 0 {
        addr.set_port(local_addr.port());
    }
    addr
}

/// Opens the shards in the data directory. Where the preferences of the machine's owner and the command
/// line both set a limit, the stricter one holds.
async fn open_store(
    config: &DaemonConfig,
    disk_use: DiskUse,
    clock: Clock,
    metrics: &DaemonMetrics,
) -> Result<(Store, Lender), StartError> {
    let path = config.data_dir.clone();
    let failed = |cause| StartError::Data {
        path: config.data_dir.clone(),
        cause,
    };
    let disk_bytes = RealDisk::size_bytes(&path).map_err(failed)?;
    let default_reserve = (disk_bytes / 20).min(RESERVE_BYTES_MAX);
    let disk = RealDisk::new(path.clone(), 0).measured(metrics.syncs.clone());
    let disk = Arc::new(disk);
    let lender = Lender {
        disk: Arc::clone(&disk),
        disk_bytes,
        least_reserve: config.reserve_bytes.unwrap_or(default_reserve),
        capacity: config.capacity_bytes,
        quota: config.quota,
    };
    let lent = lender.lend(disk_use);
    let now = clock.now();
    let unix_seconds = clock.unix_seconds();
    let opening = tokio::task::spawn_blocking(move || Store::open(disk, lent, now, unix_seconds));
    let opened = opening.await.map_err(|e| failed(io::Error::other(e)))?;
    let (store, loaded) = opened.map_err(|cause| StartError::Store { path, cause })?;
    info!(?loaded, "data directory read");
    Ok((store, lender))
}

/// Computes how much is lent, from the owner's preferences and the command line. The stricter limit
/// holds.
#[derive(Debug)]
struct Lender {
    disk: Arc<RealDisk>,
    disk_bytes: u64,
    least_reserve: u64,
    capacity: Option<u64>,
    quota: Quota,
}

impl Lender {
    /// Sets the reserve of the disk, and returns what is lent.
    fn lend(&self, disk_use: DiskUse) -> Lent {
        let wanted_free = disk_use.least_free_bytes.unwrap_or(0);
        self.disk.set_reserve(self.least_reserve.max(wanted_free));
        let allowed = disk_use.most(self.disk_bytes);
        Lent {
            capacity: self.capacity.into_iter().chain(allowed).min(),
            quota: self.quota,
        }
    }
}

fn make_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}

/// How long to wait for the lock of the data directory. A daemon that was killed holds the lock until its
/// last thread has ended, which may be in the middle of a write to the disk.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// Locks the data directory for this process alone, and writes the process id into the lock file.
///
/// # Errors
/// When another daemon holds the lock, or the file can't be written.
async fn lock(data_dir: &Path) -> Result<File, StartError> {
    let path = data_dir.join("lock");
    let failed = |cause| StartError::Data {
        path: path.clone(),
        cause,
    };
    let mut options = File::options();
    let file = options
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(failed)?;
    let asked = Instant::now();
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if asked.elapsed() > LOCK_PATIENCE {
            return Err(StartError::Locked(data_dir.to_owned()));
        }
        tokio::time::sleep(LOCK_RETRY).await;
    }
    let pid = std::process::id().to_string();
    let written = file
        .set_len(0)
        .and_then(|()| std::os::unix::fs::FileExt::write_all_at(&file, pid.as_bytes(), 0));
    written.map_err(failed)?;
    Ok(file)
}

async fn watch_machine(opened: Opened, data: PathBuf, rooms: Rooms, is_revoked: impl Fn() -> bool) {
    let Opened { host, lender } = opened;
    let mut forecasts = Forecasts::default();
    let last = Arc::new(Mutex::new(None));
    let mut disk_use = host.monitor.disk_use();
    let mut period = tokio::time::interval(SAMPLE_PERIOD);
    period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        period.tick().await;
        if host.monitor.disk_use() != disk_use {
            disk_use = host.monitor.disk_use();
            host.store.lend(lender.lend(disk_use));
            info!(?disk_use, "the owner's limits have changed");
        }
        let host = Arc::clone(&host);
        let last = Arc::clone(&last);
        let data = data.clone();
        let connections = rooms.taken();
        let forecasts_now = forecasts.is_due();
        let is_revoked = is_revoked();
        let sampled = tokio::task::spawn_blocking(move || {
            let now = host.clock.unix_seconds();
            host.write();
            host.traffic.write_if_due(now);
            let usage = host.store.usage(None);
            host.monitor
                .sample(now, usage.free_bytes, &host.traffic.days(now));
            let report = host.monitor.stance_report();
            let reached = host.ways.list();
            host.metrics.hold(&usage);
            host.metrics.stand(report.stance);
            host.metrics.moved(connections, host.traffic.since_start());
            let (counted_at, census) = host.checking.counted();
            host.metrics.count(counted_at, &census);
            if forecasts_now {
                let presence = host.monitor.announced(now).presence;
                host.metrics.expect(|seconds| presence.at(seconds).value());
            }
            let status = StatusFile {
                is_revoked,
                ..StatusFile::of(report, &usage, reached, now)
            };
            save_status(&data, &last, status);
        });
        if let Err(panicked) = sampled.await {
            error!(cause = %panicked, "a thread ended");
        }
    }
}

/// Spaces the forecasts out that are exported: one takes more time than all else that is looked up.
#[derive(Debug, Default)]
struct Forecasts(Option<Instant>);

impl Forecasts {
    const PERIOD: Duration = Duration::from_secs(60);

    fn is_due(&mut self) -> bool {
        let is_due = self.0.is_none_or(|last| last.elapsed() >= Self::PERIOD);
        if is_due {
            self.0 = Some(Instant::now());
        }
        is_due
    }
}

/// Writes the state of the daemon to its file, if it has changed.
fn save_status(data: &Path, before: &Mutex<Option<StatusFile>>, status: StatusFile) {
    let mut before = before.lock().unwrap_or_else(PoisonError::into_inner);
    if !status.is_news(before.as_ref()) {
        return;
    }
    if let Err(cause) = status.save(data) {
        warn!(%cause, "can't write the daemon's state");
    }
    *before = Some(status);
}

async fn sweep(store: Arc<Store>, clock: Clock) {
    let mut period = tokio::time::interval(SWEEP_PERIOD);
    loop {
        period.tick().await;
        let store = Arc::clone(&store);
        let swept = tokio::task::spawn_blocking(move || store.sweep(clock.now())).await;
        if let Err(panicked) = swept {
            error!(cause = %panicked, "a thread ended");
        }
    }
}
