//! A running daemon: endpoint, store, expiry, and how they end.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use protocol::net::endpoint::{self, EndpointConfig, EndpointError};
use quinn::{Endpoint, VarInt};
use rustix::fs::{FlockOperation, flock};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tracing::{debug, info, warn};

use crate::config::{DaemonConfig, MemoryPlan};
use crate::disk::RealDisk;
use crate::serve::{self, Context};
use crate::store::Store;

/// How often expired shards are looked for.
const EXPIRY_PERIOD: Duration = Duration::from_secs(60);

/// How long requests that are under way at a stop may go on.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Why a daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another daemon runs on the same data.
    #[error("{0} is in use by another daemon")]
    Locked(PathBuf),
    /// The data directory.
    #[error("data directory {path}")]
    Data {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// The network.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

/// A running daemon.
#[derive(Debug)]
pub struct Daemon {
    endpoint: Endpoint,
    local_addr: SocketAddr,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
    expiring: JoinHandle<()>,
    places: Arc<Semaphore>,
    connections: usize,
    _lock: File,
}

impl Daemon {
    /// Starts a daemon within the current tokio runtime.
    ///
    /// # Errors
    /// When data directory, identity or address can't be used.
    pub async fn start(config: &DaemonConfig) -> Result<Self, StartError> {
        let failed = |cause| StartError::Data {
            path: config.data_dir.clone(),
            cause,
        };
        fs::create_dir_all(&config.data_dir).map_err(failed)?;
        let lock = lock(&config.data_dir)?;
        let disk = RealDisk::new(&config.data_dir);
        let (capacity, reserve) = (config.capacity_bytes, config.reserve_bytes);
        let opened = tokio::task::spawn_blocking(move || Store::open(disk, capacity, reserve));
        let (store, findings) = opened
            .await
            .map_err(io::Error::other)
            .and_then(|opened| opened)
            .map_err(failed)?;
        for finding in findings {
            warn!(path = %finding.path.display(), what = finding.what, "found at start");
        }
        let store = Arc::new(store);
        let plan = MemoryPlan::new(config.memory_bytes);
        let mut settings =
            EndpointConfig::new(config.identity.clone(), config.grid.authority.clone());
        settings.receive_window = plan.receive_window;
        settings.send_window = plan.send_window;
        let endpoint = endpoint::server(&settings, config.listen)?;
        let local_addr = endpoint.local_addr().map_err(failed)?;
        let (stop, stopping) = watch::channel(false);
        let context = Context::new(Arc::clone(&store), config.name.clone(), &plan, stopping);
        let places = Arc::new(Semaphore::new(plan.connections));
        let usage = store.usage();
        info!(
            name = config.name, addr = %local_addr, data = %config.data_dir.display(),
            capacity_bytes = usage.capacity_bytes, shards = usage.shards, "serving"
        );
        Ok(Self {
            accepting: tokio::spawn(accept(
                endpoint.clone(),
                Arc::new(context),
                Arc::clone(&places),
            )),
            expiring: tokio::spawn(expire(store)),
            endpoint,
            local_addr,
            stop,
            places,
            connections: plan.connections,
            _lock: lock,
        })
    }

    /// Where it listens.
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Refuses new requests, lets those under way end within a bound, and stops. What was
    /// acknowledged is on stable storage already.
    pub async fn stop(self) {
        info!("stopping");
        self.stop.send_replace(true);
        self.endpoint.set_server_config(None);
        // All places free: no connection is left.
        let all = u32::try_from(self.connections).unwrap_or(u32::MAX);
        let idle = self.places.acquire_many(all);
        if tokio::time::timeout(STOP_GRACE, idle).await.is_err() {
            debug!("connections are cut");
        }
        self.endpoint.close(VarInt::from_u32(3), b"shutting down");
        let _ = tokio::time::timeout(Duration::from_secs(1), self.endpoint.wait_idle()).await;
        self.accepting.abort();
        self.expiring.abort();
        info!("stopped");
    }
}

/// Takes the data directory for this process alone; the file holds its process id.
///
/// # Errors
/// When another daemon has it, or the directory can't be written.
fn lock(data_dir: &Path) -> Result<File, StartError> {
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
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(StartError::Locked(data_dir.to_owned()));
    }
    let pid = std::process::id().to_string();
    let written = file
        .set_len(0)
        .and_then(|()| std::os::unix::fs::FileExt::write_all_at(&file, pid.as_bytes(), 0));
    written.map_err(failed)?;
    Ok(file)
}

async fn accept(endpoint: Endpoint, context: Arc<Context<RealDisk>>, places: Arc<Semaphore>) {
    while let Some(incoming) = endpoint.accept().await {
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            warn!(from = %incoming.remote_address(), "connection refused: too many");
            incoming.refuse();
            continue;
        };
        let context = Arc::clone(&context);
        tokio::spawn(async move {
            let from = incoming.remote_address();
            match incoming.await {
                Ok(connection) => serve::connection(context, connection).await,
                Err(cause) => warn!(%from, %cause, "handshake failed"),
            }
            drop(place);
        });
    }
}

async fn expire(store: Arc<Store<RealDisk>>) {
    let mut period = tokio::time::interval(EXPIRY_PERIOD);
    loop {
        period.tick().await;
        let store = Arc::clone(&store);
        let expired = tokio::task::spawn_blocking(move || store.expire(serve::now())).await;
        match expired {
            Ok(Ok(expired)) if !expired.is_empty() => {
                info!(
                    checkpoints = expired.len(),
                    "removed what was never committed"
                );
            }
            Ok(Err(cause)) => warn!(%cause, "removing what was never committed"),
            _ => {}
        }
    }
}
