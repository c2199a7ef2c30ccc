//! Rebuilds shards that others lost. A holder asks the other holders what they have, and what is
//! missing for long it rebuilds from theirs and its own, without any key: ciphertext in, ciphertext
//! out, checked against the manifest that the owner signed.

mod target;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use codec::manifest::{Manifest, Public};
use codec::notice::{agreed_clock, latest_clock};
use codec::{CheckpointId, OwnerId, ShardIndex};
use placement::AvailabilityBitmap;
use protocol::grid::Grid;
use protocol::identity::{HostId, Identity, Revocations};
use protocol::net::endpoint::EndpointError;
use protocol::wire::code::Code;
use protocol::wire::message::{Claim, PutRebuilt, PutShard, Request};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::{debug, info, warn};
use transfer::put::{Meter, PutProgress, put_shard};
use transfer::rebuild::Rebuild;
use transfer::registry::{Registries, Told};
use transfer::roster::{self, Roster};
use transfer::{Fault, HostIndex, Hosts};

use crate::core::Key;
use crate::core::release::{self, Burden};
use crate::core::repair::{Caretaker, Patience, Repair, Situation};
use crate::monitor::Monitor;
use crate::monitor::stance::Stance;
use crate::serve::Clock;
use crate::shards::{Store, StoreError};

/// Bytes in flight to or from each host: repair is not in a hurry.
const WINDOW: u32 = 1 << 20;

/// Shards that are rebuilt in one round, at most; the next round comes soon.
const REPAIRS_PER_ROUND: usize = 16;

/// When a daemon looks for the first time.
const FIRST_LOOK: Duration = Duration::from_secs(10);

/// How long one shard may take.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(4 * 3600);

/// How repair is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairSettings {
    /// Whether shards that others lost are rebuilt. What owners said is heard of all the same.
    pub rebuilds: bool,
    /// Time between two looks.
    pub period: Duration,
    /// How long shards are waited for.
    pub patience: Patience,
    /// Bytes per second that a repair reads and sends, at most.
    pub bytes_per_second: u64,
}

impl Default for RepairSettings {
    fn default() -> Self {
        Self {
            rebuilds: true,
            period: Duration::from_secs(300),
            patience: Patience::default(),
            bytes_per_second: 4 << 20,
        }
    }
}

/// Looks after the checkpoints of which this host holds shards.
#[derive(Debug)]
pub struct Repairer {
    /// The grid, as its file said at the start.
    pub grid: Grid,
    /// The file, which may say something else by now.
    pub grid_file: Option<PathBuf>,
    /// Who this host is.
    pub identity: Identity,
    /// What it holds.
    pub store: Arc<Store>,
    /// Whether its owner needs it.
    pub monitor: Arc<Monitor>,
    /// Its clocks.
    pub clock: Clock,
    /// How it is done.
    pub settings: RepairSettings,
    /// Ways to the others.
    pub links: Links,
}

/// Ways to other hosts and to registries: made once, not in every round.
#[derive(Debug)]
pub struct Links {
    registries: Registries,
    hosts: Mutex<Option<(Roster, Revocations, Hosts)>>,
}

impl Links {
    /// Links of a member of a grid with this authority.
    pub fn new(identity: &Identity, grid: &Grid) -> Self {
        Self {
            registries: Registries::new(identity, grid),
            hosts: Mutex::default(),
        }
    }

    /// The hosts of `roster` in `grid`; the same as last time as long as they are the same.
    fn hosts(
        &self,
        grid: &Grid,
        roster: Roster,
        identity: &Identity,
    ) -> Result<Hosts, EndpointError> {
        let mut known = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        let same = known
            .as_ref()
            .filter(|(hosts, revoked, _)| *hosts == roster && *revoked == grid.revoked);
        if let Some((_, _, hosts)) = same {
            return Ok(hosts.clone());
        }
        let grid = Grid {
            hosts: roster.hosts.clone(),
            ..grid.clone()
        };
        let hosts = Hosts::with_addresses(&grid, roster.elsewhere.clone(), identity, WINDOW)?;
        *known = Some((roster, grid.revoked, hosts.clone()));
        Ok(hosts)
    }
}

/// What was found out in one round.
struct Round {
    hosts: Hosts,
    /// Manifests of what is held here.
    manifests: BTreeMap<CheckpointId, Vec<u8>>,
    publics: BTreeMap<CheckpointId, Public>,
    situations: Vec<Situation>,
    /// Where each shard is.
    places: BTreeMap<CheckpointId, Vec<(ShardIndex, HostIndex)>>,
    /// Hosts that answered.
    alive: Vec<HostIndex>,
}

impl Repairer {
    /// Looks again and again; ends never.
    pub async fn run(self) {
        let mut caretaker = Caretaker::default();
        // One that was away may hold what was deleted meanwhile: it looks soon.
        let mut wait = self.settings.period.min(FIRST_LOOK);
        loop {
            tokio::time::sleep(std::mem::replace(&mut wait, self.settings.period)).await;
            if !matches!(self.monitor.stance(), Stance::Open) {
                continue;
            }
            match self.round(&mut caretaker).await {
                Ok(rebuilt) if rebuilt > 0 => info!(rebuilt, "repaired"),
                Ok(_) => debug!("looked after what is held"),
                Err(why) => warn!(why, "not looked after what is held"),
            }
        }
    }

    fn own(&self) -> OwnerId {
        self.identity.secret.id()
    }

    /// The grid as its file says now; as it said at the start when the file can't be read.
    async fn grid_now(&self) -> Grid {
        let Some(file) = self.grid_file.clone() else {
            return self.grid.clone();
        };
        let read = tokio::task::spawn_blocking(move || Grid::load(&file)).await;
        match read {
            Ok(Ok(grid)) if grid.authority == self.grid.authority => grid,
            _ => self.grid.clone(),
        }
    }

    /// Returns how many shards were rebuilt.
    async fn round(&self, caretaker: &mut Caretaker) -> Result<usize, String> {
        let manifests = self.manifests().await?;
        if manifests.is_empty() {
            return Ok(0);
        }
        let grid = self.grid_now().await;
        let told = self.told(&grid, &manifests).await;
        let holders = (!told.is_empty()).then(|| {
            let holders = told.iter().flat_map(|told| &told.holders);
            holders.copied().collect()
        });
        let asked = caretaker.whom_to_ask(self.own(), holders);
        let is_partial = asked.is_some();
        let mut round = self.find(&grid, &told, &manifests, asked).await?;
        if is_partial && self.store.excess_bytes() > 0 {
            // Whoever has room is wanted now.
            round = self.find(&grid, &told, &manifests, None).await?;
        }
        self.give_back(&round).await;
        if !self.settings.rebuilds {
            return Ok(0);
        }
        let histories = histories(&told);
        let now = self.clock.now();
        let patience = |holder: Option<&OwnerId>| {
            let history = holder.and_then(|holder| histories.get(holder));
            self.settings.patience.with(history)
        };
        let mut repairs = |round: &Round| {
            let answering = round.answering();
            caretaker.repairs(now, self.own(), &round.situations, &answering, patience)
        };
        let mut due = repairs(&round);
        if is_partial && !due.is_empty() {
            // Before anything is rebuilt, everybody is asked: a registry may not know all.
            round = self.find(&grid, &told, &manifests, None).await?;
            due = repairs(&round);
        }
        let mut rebuilt = 0;
        for repair in due.iter().take(REPAIRS_PER_ROUND) {
            if !matches!(self.monitor.stance(), Stance::Open) {
                break;
            }
            let done = tokio::time::timeout(REPAIR_TIMEOUT, self.repair(&round, repair)).await;
            let (checkpoint, shard) = (repair.checkpoint, repair.shard.number());
            match done {
                Ok(Ok(host)) => {
                    info!(%checkpoint, shard, host = round.hosts.name(host), "shard rebuilt");
                    rebuilt += 1;
                }
                Ok(Err(why)) => warn!(%checkpoint, shard, why, "shard not rebuilt"),
                Err(_) => warn!(%checkpoint, shard, "shard not rebuilt in time"),
            }
        }
        Ok(rebuilt)
    }

    /// What registries say of hosts, and of who holds something of these checkpoints.
    async fn told(&self, grid: &Grid, manifests: &[Manifest]) -> Vec<Told> {
        let ids = manifests.iter().map(|one| one.public().checkpoint);
        self.links.registries.ask(grid, ids.collect()).await
    }

    /// Asks hosts, all of them or `only` some, what they hold of the checkpoints that are held here,
    /// and what their owners said of them meanwhile: what is gone is not among what is returned.
    async fn find(
        &self,
        grid: &Grid,
        told: &[Told],
        manifests: &[Manifest],
        only: Option<BTreeSet<OwnerId>>,
    ) -> Result<Round, String> {
        let roster = roster::merge(&grid.hosts, told, &[], &grid.revoked);
        let hosts = self.links.hosts(grid, roster, &self.identity);
        let hosts = hosts.map_err(|cause| cause.to_string())?;
        let asked = manifests.iter().map(|one| one.public().checkpoint);
        let asked: Arc<Vec<CheckpointId>> = Arc::new(asked.collect());
        let mut asking = JoinSet::new();
        let is_asked = |host: &HostIndex| {
            let entry = hosts.entry(*host);
            let ids = only.as_ref().zip(entry);
            ids.is_none_or(|(only, entry)| only.contains(&entry.id.0))
        };
        for host in hosts.all().filter(is_asked) {
            let (hosts, asked) = (hosts.clone(), Arc::clone(&asked));
            asking.spawn(async move { (host, hosts.peer_held(host, &asked).await) });
        }
        let mut alive = Vec::new();
        let mut found: BTreeMap<CheckpointId, Vec<(u8, HostIndex)>> = BTreeMap::new();
        for (host, answer) in asking.join_all().await {
            match answer {
                Ok(held) => {
                    alive.push(host);
                    for shard in held {
                        found
                            .entry(shard.checkpoint)
                            .or_default()
                            .push((shard.shard, host));
                    }
                }
                Err(fault) => debug!(host = hosts.name(host), %fault, "does not say what it holds"),
            }
        }
        alive.sort_unstable();
        self.hear(&hosts, &alive).await;
        let mut round = Round {
            hosts,
            manifests: BTreeMap::new(),
            publics: BTreeMap::new(),
            situations: Vec::new(),
            places: BTreeMap::new(),
            alive,
        };
        // A host that heard of a deletion lacks its shard: that is nothing to be rebuilt.
        let still: BTreeSet<_> = self
            .store
            .held()
            .into_iter()
            .map(|one| one.checkpoint)
            .collect();
        let still_held = |one: &&Manifest| still.contains(&one.public().checkpoint);
        for manifest in manifests.iter().filter(still_held) {
            let public = manifest.public().clone();
            let places = found.remove(&public.checkpoint).unwrap_or_default();
            round.enter(public, manifest.bytes().to_vec(), places);
        }
        Ok(round)
    }

    async fn manifests(&self) -> Result<Vec<Manifest>, String> {
        let store = Arc::clone(&self.store);
        let reading = tokio::task::spawn_blocking(move || store.manifests());
        reading.await.map_err(|cause| cause.to_string())
    }

    /// What all hosts hold of what is held here.
    async fn everybody(&self) -> Result<Round, String> {
        let manifests = self.manifests().await?;
        let grid = self.grid_now().await;
        let told = self.told(&grid, &manifests).await;
        self.find(&grid, &told, &manifests, None).await
    }

    /// Hands the shards that are here over to other hosts, most endangered first, until all are or the
    /// time is up. Returns how many were handed over, and how many were not.
    pub async fn drain(&self, limit: Duration) -> (usize, usize) {
        let until = tokio::time::Instant::now() + limit;
        let shards = self.store.held().len();
        if shards == 0 {
            return (0, 0);
        }
        let round = match self.everybody().await {
            Ok(round) => round,
            Err(why) => {
                warn!(why, "nothing is handed over");
                return (0, shards);
            }
        };
        let moves = moves(&round.situations, self.own());
        let elsewhere = shards.saturating_sub(moves.len());
        let mut moved = elsewhere;
        for shard in &moves {
            let moving = tokio::time::timeout_at(until, self.repair(&round, shard)).await;
            let (checkpoint, number) = (shard.checkpoint, shard.shard.number());
            match moving {
                Ok(Ok(host)) => {
                    let host = round.hosts.name(host);
                    info!(%checkpoint, shard = number, host, "shard handed over");
                    moved += 1;
                }
                Ok(Err(why)) => warn!(%checkpoint, shard = number, why, "shard not handed over"),
                Err(_) => break,
            }
        }
        (moved, shards - moved)
    }

    /// Hears from the other hosts what owners said while this one was away, and ends leases.
    async fn hear(&self, hosts: &Hosts, alive: &[HostIndex]) {
        let own = self.own();
        let jobs = Arc::new(self.store.jobs());
        let mut asking = JoinSet::new();
        for host in alive {
            let entry = hosts.entry(*host);
            if entry.is_none_or(|entry| entry.id.0 == own) {
                continue;
            }
            let (hosts, host, jobs) = (hosts.clone(), *host, Arc::clone(&jobs));
            asking.spawn(async move { (host, hosts.notices(host, &jobs).await) });
        }
        let (mut clocks, mut heard) = (Vec::new(), Vec::new());
        for (host, answer) in asking.join_all().await {
            match answer {
                Ok((clock, notices)) => {
                    clocks.push(clock);
                    heard.extend(notices);
                }
                // An earlier program does not know the question.
                Err(fault) => debug!(host = hosts.name(host), %fault, "tells no notices"),
            }
        }
        let own_clock = self.clock.unix_seconds();
        let latest = latest_clock(own_clock, clocks.clone());
        self.store.hear_clock(latest);
        let clock = agreed_clock(own_clock, clocks);
        let (store, now) = (Arc::clone(&self.store), self.clock.now());
        let hearing = tokio::task::spawn_blocking(move || -> Result<usize, StoreError> {
            let mut removed = 0;
            for notice in &heard {
                removed += store.notice(now, own_clock, notice)?;
            }
            if let Some(clock) = clock {
                removed += store.end_leases(now, clock)?;
            }
            Ok(removed)
        });
        match hearing.await {
            Ok(Ok(0)) => {}
            Ok(Ok(removed)) => info!(removed, "what is not wanted any more is removed"),
            Ok(Err(cause)) => warn!(%cause, "what is not wanted any more is still here"),
            Err(panicked) => warn!(%panicked, "a thread ended"),
        }
    }

    /// When more is here than is lent: hands shards over.
    async fn give_back(&self, round: &Round) {
        let over = self.store.excess_bytes();
        if over == 0 {
            return;
        }
        info!(over, "more is held than is lent");
        for burden in release::choose(over, self.burdens(round)) {
            if self.store.excess_bytes() == 0 {
                break;
            }
            let (checkpoint, number) = (burden.key.checkpoint, burden.shard.number());
            match self.release(round, burden).await {
                Ok(()) => info!(%checkpoint, shard = number, "shard given back"),
                Err(why) => warn!(%checkpoint, shard = number, why, "shard not given back"),
            }
        }
    }

    fn burdens(&self, round: &Round) -> Vec<Burden> {
        let own = self.own();
        let superseded = self.store.superseded();
        let mut burdens = Vec::new();
        for situation in &round.situations {
            let Some(public) = round.publics.get(&situation.checkpoint) else {
                continue;
            };
            let key = Key {
                owner: public.owner,
                checkpoint: situation.checkpoint,
            };
            let mine = situation.held.iter();
            for (shard, holders) in mine.filter(|(_, holders)| holders.contains(&own)) {
                burdens.push(Burden {
                    key,
                    shard: *shard,
                    bytes: self.store.shard_bytes(key, *shard),
                    is_superseded: superseded.contains(&key),
                    is_elsewhere: holders.len() > 1,
                    spare: situation.spare(),
                });
            }
        }
        burdens.retain(|burden| burden.bytes > 0);
        burdens
    }

    /// Hands a shard over unless another host has it, and removes it here.
    async fn release(&self, round: &Round, burden: Burden) -> Result<(), String> {
        let Burden { key, shard, .. } = burden;
        if !burden.is_elsewhere {
            let repair = Repair {
                checkpoint: key.checkpoint,
                shard,
                spare: burden.spare.unwrap_or(0),
            };
            let moving = tokio::time::timeout(REPAIR_TIMEOUT, self.repair(round, &repair));
            let moved = moving.await.map_err(|_| "not in time".to_owned());
            if let Err(why) = moved.and_then(|moved| moved) {
                // The owner of the machine needs the space, and nobody else has any: an old version
                // can miss a shard.
                if !burden.is_superseded || burden.spare.unwrap_or(0) == 0 {
                    return Err(why);
                }
            }
        }
        let (store, now) = (Arc::clone(&self.store), self.clock.now());
        let releasing = tokio::task::spawn_blocking(move || store.release(now, key, shard));
        let released = releasing.await.map_err(|cause| cause.to_string())?;
        released.map_err(|cause| cause.to_string())
    }

    /// Rebuilds a shard on another host; returns which.
    async fn repair(&self, round: &Round, repair: &Repair) -> Result<HostIndex, String> {
        let public = round.publics.get(&repair.checkpoint).ok_or("forgotten")?;
        let manifest = round.manifests.get(&repair.checkpoint).ok_or("forgotten")?;
        let places = round.places.get(&repair.checkpoint).ok_or("forgotten")?;
        let free = round.targets(repair);
        let targets = target::choose(&round.hosts, free, places, public).await;
        if targets.is_empty() {
            return Err("no other host has room for it".into());
        }
        let mut last = String::new();
        for target in targets {
            match self
                .rebuild(round, repair, public, manifest, places, target)
                .await
            {
                Ok(()) => return Ok(target),
                Err(fault) => {
                    last = format!("{}: {fault}", round.hosts.name(target));
                    if is_vain_elsewhere(&fault) {
                        break;
                    }
                }
            }
        }
        Err(last)
    }

    async fn rebuild(
        &self,
        round: &Round,
        repair: &Repair,
        public: &Public,
        manifest: &[u8],
        places: &[(ShardIndex, HostIndex)],
        target: HostIndex,
    ) -> Result<(), Fault> {
        let (commands, queue) = mpsc::unbounded_channel();
        let (sent, watching) = watch::channel(0);
        let sources = places.iter().copied();
        let sources = sources.filter(|(_, host)| *host != target);
        let rebuild = Rebuild {
            hosts: round.hosts.clone(),
            public: public.clone(),
            shard: repair.shard,
            sources: sources.collect(),
            commands,
            sent: watching,
            bytes_per_second: Some(self.settings.bytes_per_second),
        };
        let put = PutShard {
            claim: Claim {
                job_tag: public.job_tag,
                version: public.version,
                checkpoint: public.checkpoint,
            },
            redundancy: public.redundancy,
            shard: repair.shard.number(),
            expected_bytes: public.block_bytes,
        };
        let request = Request::PutRebuilt(Box::new(PutRebuilt {
            put,
            manifest: manifest.to_vec(),
        }));
        let meter = Meter::default();
        let tell = |progress| {
            if let PutProgress::Sent(row) = progress {
                sent.send_replace(row + 1);
            }
        };
        let putting = put_shard(round.hosts.clone(), target, request, queue, &meter, tell);
        // Both have to end well; when one fails, the other is dropped.
        tokio::try_join!(rebuild.run(), putting).map(|_| ())
    }
}

impl Round {
    /// Hosts that may take a shard.
    fn targets(&self, repair: &Repair) -> Vec<HostIndex> {
        let mut situations = self.situations.iter();
        let Some(situation) = situations.find(|one| one.checkpoint == repair.checkpoint) else {
            return Vec::new();
        };
        let ids = situation.targets(&self.answering(), repair.shard);
        let is_free = |host: &&HostIndex| {
            let entry = self.hosts.entry(**host);
            entry.is_some_and(|entry| ids.contains(&entry.id.0))
        };
        self.alive.iter().filter(is_free).copied().collect()
    }

    fn answering(&self) -> BTreeSet<OwnerId> {
        let ids = self.alive.iter().filter_map(|host| self.hosts.entry(*host));
        ids.map(|entry| entry.id.0).collect()
    }

    fn enter(&mut self, public: Public, manifest: Vec<u8>, found: Vec<(u8, HostIndex)>) {
        let mut held: BTreeMap<ShardIndex, BTreeSet<OwnerId>> = BTreeMap::new();
        let mut places = Vec::new();
        for (number, host) in found {
            let id = self.hosts.entry(host).map(|entry| entry.id);
            let (Some(shard), Some(HostId(id))) = (public.redundancy.shard(number), id) else {
                continue;
            };
            held.entry(shard).or_default().insert(id);
            places.push((shard, host));
        }
        places.sort_unstable();
        self.situations.push(Situation {
            checkpoint: public.checkpoint,
            redundancy: public.redundancy,
            held,
        });
        self.places.insert(public.checkpoint, places);
        self.manifests.insert(public.checkpoint, manifest);
        self.publics.insert(public.checkpoint, public);
    }
}

/// Whether another host need not be tried: somebody else has rebuilt the shard on this one, or is doing
/// it; or it can't be rebuilt now.
fn is_vain_elsewhere(fault: &Fault) -> bool {
    let exists = matches!(fault, Fault::Refused { code, .. } if *code == Code::Exists);
    exists || matches!(fault, Fault::Starved)
}

/// Shards that nobody but `own` has, most endangered first.
fn moves(situations: &[Situation], own: OwnerId) -> Vec<Repair> {
    let mut moves: Vec<Repair> = situations
        .iter()
        .flat_map(|situation| {
            let alone = situation.held.iter();
            let alone = alone.filter(|(_, holders)| holders.iter().all(|holder| *holder == own));
            alone.map(|(shard, _)| Repair {
                checkpoint: situation.checkpoint,
                shard: *shard,
                spare: situation.spare().unwrap_or(0),
            })
        })
        .collect();
    moves.sort_by_key(|one| (one.spare, one.checkpoint, one.shard));
    moves
}

/// The pasts that hosts announced.
fn histories(told: &[Told]) -> BTreeMap<OwnerId, AvailabilityBitmap> {
    let records = told.iter().flat_map(|told| &told.members);
    records
        .filter_map(|record| {
            let said = record.presence.announcement.check().ok()?;
            Some((record.id, said.presence_bitmap))
        })
        .collect()
}
