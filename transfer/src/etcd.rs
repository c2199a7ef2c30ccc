//! etcd as a registry, for grids that already run an etcd. Each host is a key with a lease, which the
//! host's heartbeats renew.
//!
//! ```text
//! ckpt/<grid>/hosts/<host>               MemberRecord
//! ckpt/<grid>/holds/<checkpoint>/<host>  numbers of shards, a byte each
//! ```
//!
//! Ids are in hexadecimal. The records are trusted as little as those of any registry: a host has to
//! prove its key when a client connects to it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use codec::{CheckpointId, OwnerId};
use etcd_client::{
    Client, ConnectOptions, EventType, GetOptions, LeaseKeepAliveStream, LeaseKeeper, PutOptions,
    WatchOptions, WatchStream,
};
use protocol::grid::Grid;
use protocol::wire::message::{MemberRecord, Message, Presence, ShardName};
use tokio::sync::Mutex;

use crate::registry_answer::HOSTS_MAX;

/// Time limit for each request to etcd.
const PATIENCE: Duration = Duration::from_secs(3);

/// A host counts as gone after this many heartbeats did not arrive.
const MISSED_BEATS: u32 = 3;

/// Why a request to etcd failed.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// etcd refused it, or can't be reached.
    #[error("etcd: {0}")]
    Etcd(#[from] etcd_client::Error),
    /// The answer took too long.
    #[error("etcd: no answer within {} s", PATIENCE.as_secs())]
    Late,
    /// The lease ended before it was renewed.
    #[error("etcd: the lease of this host has expired")]
    LeaseOver,
    /// etcd has more hosts than any grid.
    #[error("etcd: {0} hosts are listed, at most {HOSTS_MAX} are accepted")]
    TooMany(usize),
    /// A record is too long.
    #[error("etcd: {0}")]
    Serial(#[from] codec::serial::SerialError),
}

/// A client of the grid's etcd.
#[derive(Debug)]
pub struct Etcd {
    endpoints: Vec<String>,
    prefix: String,
    known: Mutex<Option<KnownMembers>>,
    written: Mutex<Option<Written>>,
}

/// The known hosts, and the stream of their changes.
struct KnownMembers {
    changes: WatchStream,
    members: BTreeMap<Vec<u8>, MemberRecord>,
}

impl std::fmt::Debug for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Written")
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for KnownMembers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KnownMembers").finish_non_exhaustive()
    }
}

/// What was written to etcd for this host, and the lease under which it was written.
struct Written {
    client: Client,
    lease: i64,
    keeper: LeaseKeeper,
    kept: LeaseKeepAliveStream,
    epoch: Option<u64>,
    held: BTreeMap<CheckpointId, Vec<u8>>,
}

impl Etcd {
    /// A client of the etcd that the grid file names; `None` if it names none.
    pub fn of(grid: &Grid) -> Option<Self> {
        (!grid.etcd.is_empty()).then(|| Self {
            endpoints: grid.etcd.clone(),
            prefix: format!("ckpt/{}/", OwnerId(grid.id().0).hex()),
            known: Mutex::default(),
            written: Mutex::default(),
        })
    }

    async fn connect(&self) -> Result<Client, EtcdError> {
        let options = ConnectOptions::new()
            .with_connect_timeout(PATIENCE)
            .with_timeout(PATIENCE);
        in_time(Client::connect(&self.endpoints, Some(options))).await
    }

    /// The donors that there are. The first call reads all of them; later calls apply the changes that
    /// etcd has sent since.
    ///
    /// # Errors
    /// When etcd does not answer as it should.
    pub async fn members(&self) -> Result<Vec<MemberRecord>, EtcdError> {
        let mut slot = self.known.lock().await;
        let mut seen = match slot.take() {
            Some(seen) => seen,
            None => self.read_members().await?,
        };
        if !seen.follow() {
            seen = self.read_members().await?;
        }
        let members = seen.members.values().cloned().collect();
        *slot = Some(seen);
        Ok(members)
    }

    async fn read_members(&self) -> Result<KnownMembers, EtcdError> {
        let mut client = self.connect().await?;
        let hosts = format!("{}hosts/", self.prefix);
        let options = GetOptions::new()
            .with_prefix()
            .with_limit(HOSTS_MAX as i64 + 1);
        let mut found = in_time(client.get(hosts.clone(), Some(options))).await?;
        let from = found.header().map_or(0, |header| header.revision() + 1);
        let kvs = found.take_kvs();
        if kvs.len() > HOSTS_MAX {
            return Err(EtcdError::TooMany(kvs.len()));
        }
        let entry = |kv: etcd_client::KeyValue| {
            let record = MemberRecord::from_frame(kv.value()).ok()?;
            Some((kv.key().to_vec(), record))
        };
        let options = WatchOptions::new().with_prefix().with_start_revision(from);
        let changes = in_time(client.watch(hosts, Some(options))).await?;
        Ok(KnownMembers {
            changes,
            members: kvs.into_iter().filter_map(entry).collect(),
        })
    }

    /// The donors that hold shards of any of these checkpoints.
    ///
    /// # Errors
    /// When etcd does not answer as it should.
    pub async fn holders(
        &self,
        checkpoints: &[CheckpointId],
    ) -> Result<BTreeSet<OwnerId>, EtcdError> {
        let mut holders = BTreeSet::new();
        if checkpoints.is_empty() {
            return Ok(holders);
        }
        let mut client = self.connect().await?;
        for checkpoint in checkpoints {
            let prefix = format!("{}holds/{}/", self.prefix, checkpoint.hex());
            let options = GetOptions::new().with_prefix().with_keys_only();
            let found = in_time(client.get(prefix.clone(), Some(options))).await?;
            let hosts = found.kvs().iter().filter_map(|kv| {
                let host = kv.key_str().ok()?.strip_prefix(&prefix)?;
                OwnerId::from_hex(host)
            });
            holders.extend(hosts);
        }
        Ok(holders)
    }

    /// A heartbeat of a host: renews its lease, and writes what has changed. `epoch` is the number of the
    /// presence, and `period` is the time between two heartbeats.
    ///
    /// # Errors
    /// When etcd does not answer as it should. The next heartbeat writes everything anew.
    pub async fn beat(
        &self,
        id: OwnerId,
        epoch: u64,
        presence: impl FnOnce() -> Presence,
        held: &[ShardName],
        period: Duration,
    ) -> Result<(), EtcdError> {
        let mut slot = self.written.lock().await;
        let mut written = match slot.take() {
            Some(written) => written,
            None => self.begin(period).await?,
        };
        written.renew().await?;
        if written.epoch != Some(epoch) {
            let record = MemberRecord {
                id,
                silent_ms: 0,
                alive: true,
                presence: presence(),
            };
            let key = format!("{}hosts/{}", self.prefix, id.hex());
            written.put(key, record.to_frame()?).await?;
            written.epoch = Some(epoch);
        }
        let mut now: BTreeMap<CheckpointId, Vec<u8>> = BTreeMap::new();
        for shard in held {
            now.entry(shard.checkpoint).or_default().push(shard.shard);
        }
        let key = |of: &CheckpointId| format!("{}holds/{}/{}", self.prefix, of.hex(), id.hex());
        for (checkpoint, shards) in &now {
            if written.held.get(checkpoint) != Some(shards) {
                written.put(key(checkpoint), shards.clone()).await?;
            }
        }
        for checkpoint in written.held.keys().filter(|of| !now.contains_key(of)) {
            in_time(written.client.delete(key(checkpoint), None)).await?;
        }
        written.held = now;
        *slot = Some(written);
        Ok(())
    }

    async fn begin(&self, period: Duration) -> Result<Written, EtcdError> {
        let mut client = self.connect().await?;
        let ttl = (period * MISSED_BEATS).as_secs().max(1);
        let granted = in_time(client.lease_grant(ttl.cast_signed(), None)).await?;
        let lease = granted.id();
        let (keeper, kept) = in_time(client.lease_keep_alive(lease)).await?;
        Ok(Written {
            client,
            lease,
            keeper,
            kept,
            epoch: None,
            held: BTreeMap::new(),
        })
    }
}

impl Written {
    async fn renew(&mut self) -> Result<(), EtcdError> {
        in_time(self.keeper.keep_alive()).await?;
        match in_time(self.kept.message()).await? {
            Some(kept) if kept.ttl() > 0 => Ok(()),
            _ => Err(EtcdError::LeaseOver),
        }
    }

    async fn put(&mut self, key: String, value: Vec<u8>) -> Result<(), EtcdError> {
        let options = PutOptions::new().with_lease(self.lease);
        in_time(self.client.put(key, value, Some(options))).await?;
        Ok(())
    }
}

impl KnownMembers {
    /// Applies all changes that have arrived. Returns whether the stream goes on.
    fn follow(&mut self) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        loop {
            let message = std::pin::pin!(self.changes.message());
            let response = match Future::poll(message, &mut context) {
                std::task::Poll::Pending => return true,
                std::task::Poll::Ready(Ok(Some(response))) if !response.canceled() => response,
                std::task::Poll::Ready(_) => return false,
            };
            for event in response.events() {
                let Some(kv) = event.kv() else { continue };
                let put = event.event_type() == EventType::Put;
                let record = MemberRecord::from_frame(kv.value()).ok();
                match record.filter(|_| put && self.members.len() < HOSTS_MAX) {
                    Some(record) => self.members.insert(kv.key().to_vec(), record),
                    None => self.members.remove(kv.key()),
                };
            }
        }
    }
}

async fn in_time<T>(
    asked: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, EtcdError> {
    let answered = tokio::time::timeout(PATIENCE, asked).await;
    Ok(answered.map_err(|_| EtcdError::Late)??)
}
