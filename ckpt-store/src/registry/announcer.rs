//! Announces this host to the registries of the grid: that it is there, its state, and what it holds.

use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use codec::OwnerId;
use protocol::grid::{Grid, GridRegistry};
use protocol::identity::{CARD_PART, Identity, MemberCard, Role, Whereabouts};
use protocol::net::endpoint::{EndpointConfig, MTU_SMALL};
use protocol::net::stream::{ExchangeError, request};
use protocol::net::{ConnectError, Members, Sockets, compare_lists};
use protocol::wire::limits::{HOLDS_MAX, REQUEST_TIMEOUT};
use protocol::wire::message::{HoldsPage, Presence, Request, Response, ShardName};
use protocol::wire::parts::Parts;
use quinn::Connection;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, info, warn};
use transfer::etcd::Etcd;

use crate::core::registry::HEARTBEAT;
use crate::host::Host;
use crate::others::OtherCards;

/// An announcement is sent again after this many seconds, even if nothing has changed.
const ANNOUNCEMENT_SECONDS: u64 = 300;

/// Free space is announced in steps of this many bytes.
const FREE_STEP_BYTES: u64 = 1 << 30;

/// Cards of other hosts are compared with each registry after this many list periods: usually each hour.
const LIST_PERIODS_OF_CARDS: u32 = 120;

/// With a registry to which a new connection was made, they are compared sooner: it may have begun anew. After
/// this many list periods, because it may do so often.
const LIST_PERIODS_OF_NEW_CONNECTION: u32 = 6;

/// Announces one host to registries.
#[derive(Debug)]
pub struct Announcer {
    /// The key and certificate of the host, with which it signs its card.
    pub identity: Identity,
    /// The name of the host.
    pub name: String,
    /// Address, site and owner.
    pub whereabouts: Whereabouts,
    /// The data directory, where the cards of other hosts are kept.
    pub data_dir: PathBuf,
    /// What the host consists of.
    pub host: Arc<Host>,
    /// Time after which a registry is asked for a newer list of the grid.
    pub list_period: Duration,
    /// When this run of the daemon began, Unix seconds. What is announced may differ from what the run before
    /// announced, so nothing that was signed before this time holds any more.
    pub began_at: u64,
}

/// The connection to a registry, and when lists of the grid, and cards, were compared over it.
#[derive(Debug, Default)]
struct Link {
    connection: Option<Connection>,
    compared: Option<Instant>,
    /// When cards were compared, and over which connection.
    cards: Option<(Instant, usize)>,
    /// Whether the registry was asked at the last heartbeat whether it reaches this host.
    asks_way: bool,
}

/// Why an announcement did not reach a registry.
#[derive(Debug, thiserror::Error)]
enum NotAnnounced {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error("an unexpected answer")]
    Answer,
}

/// Times the heartbeats to one registry. It logs one line when the registry stops answering and one when
/// it answers again, because a registry may be down for days.
struct Heartbeats<'a> {
    registry: &'a str,
    period: tokio::time::Interval,
    heard: bool,
}

impl<'a> Heartbeats<'a> {
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

    fn note(&mut self, outcome: &Result<(), impl Display>) {
        let registry = self.registry;
        match (outcome, self.heard) {
            (Err(cause), true) => {
                warn!(registry, %cause, "can't announce this host to the registry")
            }
            (Ok(()), false) => info!(registry, "announced this host to the registry again"),
            _ => {}
        }
        self.heard = outcome.is_ok();
    }
}

impl Announcer {
    /// Sends heartbeats to all registries; does not return.
    pub async fn run(self, settings: EndpointConfig, members: Members) {
        let settings = EndpointConfig {
            mtu_max: MTU_SMALL,
            ..settings
        };
        let this = Arc::new(self);
        let mut changes = members.changes();
        loop {
            let grid = Arc::clone(&changes.borrow_and_update());
            this.host.ways.clear();
            let announcing = Self::announce_to_all(&this, &settings, &grid, &members);
            // All registries get everything anew, which they expect.
            let is_other =
                |now: &Arc<Grid>| now.registries != grid.registries || now.etcd != grid.etcd;
            let changed = changes.wait_for(is_other).await.is_ok();
            if !changed {
                announcing.join_all().await;
                return;
            }
        }
    }

    fn announce_to_all(
        this: &Arc<Self>,
        settings: &EndpointConfig,
        grid: &Grid,
        members: &Members,
    ) -> JoinSet<()> {
        let mut announcing = JoinSet::new();
        let sockets = Sockets::new(settings.clone());
        if let Some(etcd) = Etcd::of(grid) {
            let this = Arc::clone(this);
            let id = settings.identity.secret.id();
            announcing.spawn(async move { this.announce_to_etcd(&etcd, id).await });
        }
        for registry in grid.registries.clone() {
            let this = Arc::clone(this);
            let members = members.clone();
            let sockets = sockets.clone();
            announcing.spawn(async move { this.announce_to(&sockets, &registry, &members).await });
        }
        announcing
    }

    async fn announce_to(&self, sockets: &Sockets, registry: &GridRegistry, members: &Members) {
        let mut link = Link::default();
        let mut changes = Heartbeats::of(&registry.name);
        loop {
            changes.beat().await;
            let outcome = self.beat(sockets, registry, &mut link.connection).await;
            if outcome.is_err() {
                link.connection = None;
            }
            changes.note(&outcome);
            self.ask_way(&mut link, registry).await;
            self.compare(&mut link, members).await;
            self.compare_cards(&mut link, members).await;
        }
    }

    /// Asks a registry whether it reaches this host, at every other heartbeat.
    async fn ask_way(&self, link: &mut Link, registry: &GridRegistry) {
        link.asks_way = !link.asks_way;
        let Some(connection) = link.connection.as_ref().filter(|_| link.asks_way) else {
            return;
        };
        let answer = request(connection, &Request::Reached, REQUEST_TIMEOUT).await;
        let answered = match answer {
            Ok((Response::Reached { answered }, _)) => answered,
            // A registry with an earlier version of the program does not know this request.
            Ok(_) | Err(_) => None,
        };
        let is_news = self.host.ways.note(&registry.name, answered);
        let registry = &registry.name;
        match answered.filter(|_| is_news) {
            Some(false) => warn!(
                registry,
                "the registry gets no answer at the address that this host announces, so nobody stores anything \
                 here: let its UDP port through the firewall, forward it, or announce another address (--announce)"
            ),
            Some(true) => info!(registry, "the registry reaches this host"),
            None => {}
        }
        let unreached = self
            .host
            .ways
            .list()
            .iter()
            .filter(|way| !way.answered)
            .count();
        self.host.metrics.unreached(unreached);
    }

    /// Compares the cards of other hosts with a registry, if that is due.
    async fn compare_cards(&self, link: &mut Link, members: &Members) {
        let Some(connection) = link.connection.as_ref() else {
            return;
        };
        let on = connection.stable_id();
        let periods = match link.cards {
            Some((_, last)) if last == on => LIST_PERIODS_OF_CARDS,
            _ => LIST_PERIODS_OF_NEW_CONNECTION,
        };
        let is_due = link
            .cards
            .is_none_or(|(at, _)| at.elapsed() >= self.list_period * periods);
        if !is_due {
            return;
        }
        link.cards = Some((Instant::now(), on));
        let grid = members.grid();
        let now = self.host.clock.unix_seconds();
        let others = OtherCards::new(&self.data_dir, &grid, self.identity.secret.id());
        let own_day = u32::try_from(self.signed_at(now) / 86_400).unwrap_or(u32::MAX);
        match others.compare(connection, grid, (own_day, now)).await {
            Ok(kept) => self.host.metrics.keep_cards(kept),
            // A registry with an earlier version of the program does not know these requests.
            Err(cause) => {
                debug!(%cause, "the cards of other hosts were not compared with a registry");
            }
        }
    }

    /// Compares lists of the grid with a registry, if that is due: the side with the older list gets the
    /// newer one.
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
                members.take_over(list, contents).await;
            }
            Err(cause) => debug!(%cause, "a registry sends no list of the grid"),
        }
    }

    async fn announce_to_etcd(&self, etcd: &Etcd, id: OwnerId) {
        let mut changes = Heartbeats::of("etcd");
        loop {
            changes.beat().await;
            let (held, _) = self.held();
            let epoch = self.epoch();
            let presence = || self.presence(epoch);
            let outcome = etcd.beat(id, epoch, presence, &held, HEARTBEAT).await;
            changes.note(&outcome);
        }
    }

    async fn beat(
        &self,
        sockets: &Sockets,
        registry: &GridRegistry,
        slot: &mut Option<Connection>,
    ) -> Result<(), NotAnnounced> {
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
                    _ => return Err(NotAnnounced::Answer),
                }
            }
        }
        Ok(())
    }

    /// The shards that this host holds, and a hash of this list.
    fn held(&self) -> (Vec<ShardName>, u64) {
        let held = self.host.store.held();
        let mut hasher = DefaultHasher::new();
        for shard in &held {
            (shard.checkpoint, shard.shard).hash(&mut hasher);
        }
        (held, hasher.finish())
    }

    /// A hash of the state that is announced. It changes when the state should be announced again: a registry that
    /// has an announcement with this hash asks for no other one.
    fn epoch(&self) -> u64 {
        let now = self.host.clock.unix_seconds();
        let announced = self.host.monitor.announced(now);
        let mut hasher = DefaultHasher::new();
        (&self.name, &self.whereabouts, self.signed_at(now)).hash(&mut hasher);
        (
            self.host.store.usage(None).free_bytes / FREE_STEP_BYTES,
            announced.storage_state.to_string(),
            announced.guest_state.to_string(),
            announced.refuses_for_s > 0,
        )
            .hash(&mut hasher);
        hasher.finish()
    }

    /// The time of the card that is announced at `now`. It changes when the announcement does.
    const fn signed_at(&self, now: u64) -> u64 {
        let period_began_at = now - now % ANNOUNCEMENT_SECONDS;
        if period_began_at < self.began_at && self.began_at <= now {
            self.began_at
        } else {
            period_began_at
        }
    }

    fn presence(&self, epoch: u64) -> Presence {
        let usage = self.host.store.usage(None);
        let whereabouts = self.whereabouts.clone();
        let now = self.host.clock.unix_seconds();
        Presence {
            name: self.name.clone(),
            addr: whereabouts.addr,
            site: whereabouts.site.clone(),
            owner: whereabouts.owner.clone(),
            capacity_bytes: usage.capacity_bytes,
            free_bytes: usage.free_bytes,
            epoch,
            announcement: self.host.monitor.announced(now).to_wire(),
            parts: self.card(whereabouts, self.signed_at(now)),
        }
    }

    /// The card of this host as a part of its announcement; no part if it can't be signed.
    fn card(&self, whereabouts: Whereabouts, at: u64) -> Parts {
        match MemberCard::sign(&self.identity, whereabouts, at) {
            Ok(card) => Parts::default().with(CARD_PART, card.bytes().to_vec()),
            Err(cause) => {
                debug!(%cause, "this host announces itself without a card");
                Parts::default()
            }
        }
    }
}

/// Sends a request. Returns whether the registry needs an announcement, and whether it needs the list of
/// shards.
async fn ask(connection: &Connection, asked: &Request) -> Result<(bool, bool), NotAnnounced> {
    match request(connection, asked, REQUEST_TIMEOUT).await? {
        (Response::Heard { announce, holdings }, _) => Ok((announce, holdings)),
        _ => Err(NotAnnounced::Answer),
    }
}

/// Splits the list of shards into pages, one at a time because the list can be long.
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
