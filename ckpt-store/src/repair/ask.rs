//! Asks other hosts which shards they hold of the checkpoints that this host holds, and which notices of
//! owners they have heard.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use codec::notice::Notice;
use codec::{OwnerId, ShardIndex};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};
use transfer::{Fault, HostIndex, Hosts};

use super::Repairer;
use super::links::Around;
use crate::clock::Clock;
use crate::core::Key;
use crate::core::notices::OwnedJob;
use crate::core::repair::{Caretaker, Situation};
use crate::shards::{Holding, Store, StoreError};

/// How many hosts are asked at the same time which shards they hold.
const ASKED_AT_ONCE: usize = 32;

/// How many hosts are asked at the same time for notices.
const HEARD_AT_ONCE: usize = 4;

/// How many notices are entered in one step on a blocking thread.
const ENTERED_AT_ONCE: usize = 16;

/// What other hosts answered about some checkpoints.
#[derive(Debug, Default)]
pub(super) struct HolderAnswers {
    /// What this host holds, without the checkpoints that turned out to be deleted.
    pub(super) holdings: Vec<Holding>,
    /// Which shards of which checkpoints other hosts claim to hold.
    claims: BTreeMap<Key, Vec<(ShardIndex, OwnerId)>>,
    /// The hosts that answered, and this one.
    pub(super) answering: BTreeSet<OwnerId>,
    /// The clocks of these hosts, in Unix seconds.
    pub(super) clocks: BTreeMap<OwnerId, u64>,
}

impl HolderAnswers {
    /// The situation of each checkpoint: which shards are proved, claimed or failed.
    pub(super) fn situations(
        &self,
        caretaker: &mut Caretaker,
        repairer: &Repairer,
    ) -> Vec<Situation> {
        let now = repairer.host.clock.now();
        let own = repairer.own();
        let situation = |one: &Holding| {
            let claims = self.claims_of(&one.key);
            let of = (one.key, one.redundancy);
            caretaker.situation(now, own, of, &one.shards, claims)
        };
        self.holdings.iter().map(situation).collect()
    }

    fn claims_of(&self, key: &Key) -> &[(ShardIndex, OwnerId)] {
        self.claims.get(key).map_or(&[], Vec::as_slice)
    }

    /// Which hosts claim which shard of a checkpoint, for reading. Hosts that proved their shard come
    /// first.
    pub(super) fn sources(
        &self,
        around: &Around,
        situation: &Situation,
    ) -> Vec<(ShardIndex, HostIndex)> {
        let claims = self.claims_of(&situation.key).iter();
        let is_open = |(shard, host): &&(ShardIndex, OwnerId)| {
            let holders = situation.held.get(shard);
            !holders.is_some_and(|holders| holders.contains(host))
        };
        let mut claims: Vec<_> = claims.collect();
        claims.sort_by_key(|claim| (is_open(claim), **claim));
        let of = claims.into_iter();
        of.filter_map(|(shard, host)| Some((*shard, around.index(host)?)))
            .collect()
    }

    /// Adds the claim of a host that has just received a shard.
    pub(super) fn add(&mut self, key: Key, shard: ShardIndex, host: OwnerId) {
        let claims = self.claims.entry(key).or_default();
        if !claims.contains(&(shard, host)) {
            claims.push((shard, host));
        }
    }
}

impl Repairer {
    /// Asks other hosts which shards they hold of the checkpoints in `holdings`, and then asks those that
    /// answered for the notices of these jobs. With `only`, no other hosts are asked. `holdings` has at
    /// most [`protocol::wire::limits::PEER_HOLDS_ASKED_MAX`] entries. A checkpoint that a notice deleted
    /// is removed from the result.
    pub(super) async fn ask_holders(
        &self,
        around: &Around,
        holdings: Vec<Holding>,
        only: Option<&BTreeSet<OwnerId>>,
    ) -> HolderAnswers {
        let own = self.own();
        let holdings = Arc::new(holdings);
        let places = Arc::new(Semaphore::new(ASKED_AT_ONCE));
        let mut asking = JoinSet::new();
        let asked = around.others();
        let asked = asked
            .filter(|(id, _)| only.is_none_or(|only| only.contains(id)) && !around.is_silent(id));
        for (id, host) in asked {
            let hosts = around.hosts.clone();
            let holdings = Arc::clone(&holdings);
            let places = Arc::clone(&places);
            asking.spawn(async move {
                let _place = places.acquire().await;
                (id, held_by(&hosts, host, own, &holdings).await)
            });
        }
        let mut answers = HolderAnswers::default();
        for (id, answer) in asking.join_all().await {
            match answer {
                Ok(held) => {
                    answers.answering.insert(id);
                    for (key, shard) in held {
                        answers.add(key, shard, id);
                    }
                }
                Err(fault) => {
                    if matches!(fault, Fault::Gone(_) | Fault::Silent(_) | Fault::Stalled(_)) {
                        around.set_silent(id);
                    }
                    let host = around.name(&id);
                    debug!(host, %fault, "the host does not report what it holds");
                }
            }
        }
        answers.clocks = self
            .fetch_notices(around, &answers.answering, &holdings)
            .await;
        answers.answering.insert(own);
        // A host that heard of a deletion holds no shard of that checkpoint any more. Such a shard is not
        // missing, so the checkpoint has to leave the list before missing shards are looked for.
        let keys = holdings.iter().map(|one| one.key).collect();
        answers.holdings = self.host.store.holdings_of(&keys);
        answers
    }

    /// Asks hosts for their notices about the jobs of `holdings` and enters these. Returns the hosts'
    /// clocks.
    async fn fetch_notices(
        &self,
        around: &Around,
        from: &BTreeSet<OwnerId>,
        holdings: &[Holding],
    ) -> BTreeMap<OwnerId, u64> {
        let jobs: BTreeSet<OwnedJob> = holdings.iter().map(|one| one.job).collect();
        let jobs: Arc<Vec<OwnedJob>> = Arc::new(jobs.into_iter().collect());
        let places = Arc::new(Semaphore::new(HEARD_AT_ONCE));
        let mut asking = JoinSet::new();
        for id in from {
            let (Some(host), id) = (around.index(id), *id) else {
                continue;
            };
            let mut hearing = around.hosts.fetch_notices(host, Arc::clone(&jobs));
            let places = Arc::clone(&places);
            let store = Arc::clone(&self.host.store);
            let clock = self.host.clock;
            asking.spawn(async move {
                let _place = places.acquire().await;
                loop {
                    let mut some = Vec::new();
                    while some.len() < ENTERED_AT_ONCE
                        && let Some(notice) = hearing.next().await?
                    {
                        some.push(notice);
                    }
                    if some.is_empty() {
                        return Ok::<_, Fault>(hearing.clock().map(|time| (id, time)));
                    }
                    enter(Arc::clone(&store), clock, some).await;
                }
            });
        }
        let mut clocks = BTreeMap::new();
        for answer in asking.join_all().await {
            match answer {
                Ok(clock) => clocks.extend(clock),
                Err(fault) => debug!(%fault, "the host sends no notices"),
            }
        }
        clocks
    }
}

/// Enters notices, and removes the checkpoints that they declare gone.
async fn enter(store: Arc<Store>, clock: Clock, heard: Vec<Notice>) {
    let entering = tokio::task::spawn_blocking(move || {
        let now = clock.now();
        let own_clock = clock.unix_seconds();
        let removed = heard
            .iter()
            .map(|notice| store.notice(now, own_clock, notice));
        removed.sum::<Result<usize, StoreError>>()
    });
    match entering.await {
        Ok(Ok(0)) => {}
        Ok(Ok(removed)) => info!(removed, "removed deleted checkpoints"),
        Ok(Err(cause)) => warn!(%cause, "can't remove deleted checkpoints"),
        Err(panicked) => warn!(%panicked, "a thread ended"),
    }
}

/// The shards that a host claims to hold of these checkpoints.
async fn held_by(
    hosts: &Hosts,
    host: HostIndex,
    own: OwnerId,
    holdings: &[Holding],
) -> Result<Vec<(Key, ShardIndex)>, Fault> {
    let keys: Vec<_> = holdings
        .iter()
        .map(|one| (one.key.owner, one.key.checkpoint))
        .collect();
    let found = hosts.peer_holds(host, own, rand::random(), &keys).await?;
    let of = found.into_iter().filter_map(|(place, shards)| {
        let holding = holdings.get(place)?;
        let all = holding.redundancy.shards();
        let held = all.filter(move |shard| shards.has(*shard));
        Some(held.map(|shard| (holding.key, shard)))
    });
    Ok(of.flatten().collect())
}
