//! Tells the registries of a grid that this host is there, how it is, and what it holds.

use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use codec::OwnerId;
use protocol::grid::{Grid, GridRegistry};
use protocol::identity::Role;
use protocol::net::endpoint::{EndpointConfig, MTU_SMALL};
use protocol::net::stream::{ExchangeError, request};
use protocol::net::{ConnectError, Members, Sockets, compare_lists};
use protocol::wire::limits::{HOLDS_MAX, REQUEST_TIMEOUT};
use protocol::wire::message::{HoldsPage, Presence, Request, Response, ShardName};
use protocol::wire::parts::Parts;
use quinn::Connection;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};
use transfer::etcd::Etcd;

use crate::core::registry::HEARTBEAT;
use crate::monitor::Monitor;
use crate::serve::Clock;
use crate::shards::Store;

/// Seconds after which an announcement is made anew, whatever has changed.
const ANNOUNCEMENT_SECONDS: u64 = 300;

/// Free space is announced anew when it has changed by so many bytes.
const FREE_STEP_BYTES: u64 = 1 << 30;

/// What does not change while the daemon runs.
#[derive(Clone, Debug)]
pub struct Card {
    /// The host's name.
    pub name: String,
    /// Where it can be reached.
    pub addr: SocketAddr,
    /// What fails together with it.
    pub site: Option<String>,
    /// Whose machine it is.
    pub owner: Option<String>,
}

/// Tells registries of a host.
#[derive(Debug)]
pub struct Announcer {
    /// Where and who it is.
    pub card: Card,
    /// What it holds.
    pub store: Arc<Store>,
    /// How it is.
    pub monitor: Arc<Monitor>,
    /// Its clocks.
    pub clock: Clock,
    /// Time after which a registry is asked for a newer list of the grid.
    pub list_period: Duration,
}

/// The connection to a registry, and when lists of the grid were compared on it.
#[derive(Debug, Default)]
struct Link {
    connection: Option<Connection>,
    compared: Option<Instant>,
}

/// Why a registry was not told.
#[derive(Debug, thiserror::Error)]
enum Untold {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error("another answer")]
    Answer,
}

/// Times the heartbeats of one registry, and logs when it begins not to hear them and when it hears
/// again: one line each, for it may be down for days.
struct Changes<'a> {
    registry: &'a str,
    period: tokio::time::Interval,
    heard: bool,
}

impl<'a> Changes<'a> {
    fn of(registry: &'a str) -> Self {
        let mut period = tokio::time::interval(HEARTBEAT);
        period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        Self {
            registry,
            period,
            heard: true,
        }
    }

    async fn beat(&mut self) {
        self.period.tick().await;
    }

    fn note(&mut self, told: &Result<(), impl Display>) {
        let registry = self.registry;
        match (told, self.heard) {
            (Err(cause), true) => warn!(registry, %cause, "registry not told"),
            (Ok(()), false) => info!(registry, "registry told again"),
            _ => {}
        }
        self.heard = told.is_ok();
    }
}

impl Announcer {
    /// Tells all registries again and again; ends never.
    pub async fn run(self, settings: EndpointConfig, members: Members) {
        let settings = EndpointConfig {
            mtu_max: MTU_SMALL,
            ..settings
        };
        let this = Arc::new(self);
        let mut changes = members.changes();
        loop {
            let grid = Arc::clone(&changes.borrow_and_update());
            let telling = Self::tell_all(&this, &settings, &grid, &members);
            // Others are told from scratch, which registries expect.
            let is_other =
                |now: &Arc<Grid>| now.registries != grid.registries || now.etcd != grid.etcd;
            let changed = changes.wait_for(is_other).await.is_ok();
            if !changed {
                telling.join_all().await;
                return;
            }
        }
    }

    fn tell_all(
        this: &Arc<Self>,
        settings: &EndpointConfig,
        grid: &Grid,
        members: &Members,
    ) -> JoinSet<()> {
        let mut telling = JoinSet::new();
        let sockets = Sockets::new(settings.clone());
        if let Some(etcd) = Etcd::of(grid) {
            let (this, id) = (Arc::clone(this), settings.identity.secret.id());
            telling.spawn(async move { this.tell_etcd(&etcd, id).await });
        }
        for registry in grid.registries.clone() {
            let (this, members, sockets) = (Arc::clone(this), members.clone(), sockets.clone());
            telling.spawn(async move { this.tell(&sockets, &registry, &members).await });
        }
        telling
    }

    async fn tell(&self, sockets: &Sockets, registry: &GridRegistry, members: &Members) {
        let mut link = Link::default();
        let mut changes = Changes::of(&registry.name);
        loop {
            changes.beat().await;
            let told = self.beat(sockets, registry, &mut link.connection).await;
            if told.is_err() {
                link.connection = None;
            }
            changes.note(&told);
            self.compare(&mut link, members).await;
        }
    }

    /// Asks a registry for a newer list of the grid, or has it take ours, if that is due.
    async fn compare(&self, link: &mut Link, members: &Members) {
        let is_due = link
            .compared
            .is_none_or(|at| at.elapsed() >= self.list_period);
        let Some(connection) = link.connection.as_ref().filter(|_| is_due) else {
            return;
        };
        link.compared = Some(Instant::now());
        match compare_lists(connection, &members.grid()).await {
            Ok(None) => {}
            Ok(Some((list, contents))) => {
                members.hear(list, contents).await;
            }
            // An earlier program does not know the question.
            Err(cause) => debug!(%cause, "no list of the grid from a registry"),
        }
    }

    async fn tell_etcd(&self, etcd: &Etcd, id: OwnerId) {
        let mut changes = Changes::of("etcd");
        loop {
            changes.beat().await;
            let (held, _) = self.held();
            let epoch = self.epoch();
            let presence = || self.presence(epoch);
            let told = etcd.beat(id, epoch, presence, &held, HEARTBEAT).await;
            changes.note(&told);
        }
    }

    async fn beat(
        &self,
        sockets: &Sockets,
        registry: &GridRegistry,
        slot: &mut Option<Connection>,
    ) -> Result<(), Untold> {
        let connection = match slot.take().filter(|one| one.close_reason().is_none()) {
            Some(connection) => connection,
            None => {
                sockets
                    .connect(&registry.addr, registry.id, Role::Registry)
                    .await?
            }
        };
        let connection = slot.insert(connection);
        let (held, holdings) = self.held();
        let epoch = self.epoch();
        let beat = Request::Heartbeat { epoch, holdings };
        let mut wanted = ask(connection, &beat).await?;
        if wanted.0 {
            let presence = Box::new(self.presence(epoch));
            let still = ask(connection, &Request::Announce(presence)).await?;
            wanted.1 |= still.1;
        }
        if wanted.1 {
            for page in pages(&held, holdings) {
                match request(connection, &Request::Holds(page), REQUEST_TIMEOUT).await? {
                    (Response::Noted, _) => {}
                    _ => return Err(Untold::Answer),
                }
            }
        }
        Ok(())
    }

    /// What is held, and a number for exactly this.
    fn held(&self) -> (Vec<ShardName>, u64) {
        let held = self.store.held();
        let mut hasher = DefaultHasher::new();
        for shard in &held {
            (shard.checkpoint, shard.shard).hash(&mut hasher);
        }
        (held, hasher.finish())
    }

    /// A number for how it is, which changes when that is worth telling.
    fn epoch(&self) -> u64 {
        let now = self.clock.unix_seconds();
        let announced = self.monitor.announced(now);
        let mut hasher = DefaultHasher::new();
        (
            now / ANNOUNCEMENT_SECONDS,
            self.store.usage(None).free_bytes / FREE_STEP_BYTES,
            announced.storage_state.to_string(),
            announced.guest_state.to_string(),
            announced.refuses_for_s > 0,
        )
            .hash(&mut hasher);
        hasher.finish()
    }

    fn presence(&self, epoch: u64) -> Presence {
        let usage = self.store.usage(None);
        Presence {
            name: self.card.name.clone(),
            addr: self.card.addr,
            site: self.card.site.clone(),
            owner: self.card.owner.clone(),
            capacity_bytes: usage.capacity_bytes,
            free_bytes: usage.free_bytes,
            epoch,
            announcement: self.monitor.announced(self.clock.unix_seconds()).to_wire(),
            parts: Parts::default(),
        }
    }
}

/// What the registry still wants: an announcement, the list of shards.
async fn ask(connection: &Connection, asked: &Request) -> Result<(bool, bool), Untold> {
    match request(connection, asked, REQUEST_TIMEOUT).await? {
        (Response::Heard { announce, holdings }, _) => Ok((announce, holdings)),
        _ => Err(Untold::Answer),
    }
}

/// The list of what is held, made page by page: it can be long.
fn pages(held: &[ShardName], epoch: u64) -> impl Iterator<Item = HoldsPage> {
    let parts = held.len().div_ceil(HOLDS_MAX).max(1);
    (0..parts).map(move |part| HoldsPage {
        epoch,
        first: part == 0,
        last: part + 1 == parts,
        shards: held
            .iter()
            .skip(part * HOLDS_MAX)
            .take(HOLDS_MAX)
            .copied()
            .collect(),
    })
}
