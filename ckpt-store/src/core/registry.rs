//! What a registry knows: which donors are there, and which shards each holds. All of it may be lost,
//! because donors send it again to a registry that does not know it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Bound;
use std::time::Duration;

use codec::{CheckpointId, OwnerId};
use protocol::identity::{is_label, is_name};
use protocol::net::may_be_announced;
use protocol::wire::limits::{HOLDERS_MAX, HOLDS_MAX};
use protocol::wire::message::{HoldsPage, MemberRecord, Presence, ShardName};

use super::Millis;
use super::places::{Stock, Who};
use super::rhythm::Rhythm;

/// How often donors send a heartbeat.
pub const HEARTBEAT: Duration = Duration::from_secs(10);

/// A donor that sends nothing for this long is forgotten.
pub const FORGET_AFTER: Duration = Duration::from_secs(86_400);

/// Most donors that a registry knows.
pub const HOSTS_MAX: usize = 100_000;

/// Most shards of one donor. A host knows at most half as many checkpoints, and usually holds one shard
/// of each.
pub const SHARDS_PER_HOST_MAX: usize = 1 << 17;

/// Most shards of all donors, those of unfinished lists included. Each takes some 80 bytes. [`Stock`]
/// keeps one donor from taking the room of the others.
pub const SHARDS_MAX: usize = 1 << 23;

/// All parts of a list have to arrive within this time.
const LIST_WITHIN: Duration = Duration::from_secs(120);

/// Why a message of a donor was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotHeard {
    /// The registry knows [`HOSTS_MAX`] donors already.
    #[error("the registry has no room for more donors")]
    Full,
    /// The registry knows [`SHARDS_MAX`] shards already, or this donor has its share of them.
    #[error("the registry has no room for more shards")]
    TooManyShards,
    /// A part has more than [`HOLDS_MAX`] shards, or the list more than [`SHARDS_PER_HOST_MAX`].
    #[error("a list is too long")]
    TooLong,
    /// A text that is not a valid name, site or owner. Others would print it.
    #[error("that is not a valid {0}")]
    NoLabel(&'static str),
    /// A name that is not the one in the donor's certificate: it may be another donor's.
    #[error(
        "the announced name is not the one in the certificate; start ckpt-store serve without --name, or with a newer program"
    )]
    OtherName,
    /// An address at which no donor can be reached.
    #[error("no donor can be at {0}")]
    NoAddress(SocketAddr),
    /// An address other than that from which the donor connects.
    #[error(
        "{addr} is not the address of the connection ({from}), and the grid file does not list it for this donor"
    )]
    Elsewhere {
        /// The address that the donor announced.
        addr: SocketAddr,
        /// The address from which the donor connects.
        from: IpAddr,
    },
    /// A part of a list arrived without the part before it.
    #[error("a part of a list without the one before")]
    OutOfOrder,
    /// The donor has not announced itself.
    #[error("announce yourself first")]
    Unknown,
}

/// What the registry needs from a donor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Whether the donor should announce itself.
    pub announce: bool,
    /// Whether the donor should send the list of its shards.
    pub holdings: bool,
}

/// What a registry knows.
#[derive(Debug)]
pub struct Registry {
    hosts: BTreeMap<OwnerId, Donor>,
    /// The addresses of donors that the grid file lists.
    listed: BTreeMap<OwnerId, SocketAddr>,
    holders: BTreeMap<CheckpointId, Vec<(OwnerId, u8)>>,
    shards: Stock<OwnerId>,
}

impl Default for Registry {
    fn default() -> Self {
        Self {
            hosts: BTreeMap::new(),
            listed: BTreeMap::new(),
            holders: BTreeMap::new(),
            shards: Stock::new(SHARDS_MAX as u64),
        }
    }
}

#[derive(Debug)]
struct Donor {
    presence: Presence,
    rhythm: Rhythm,
    /// Number of the donor's list of shards, and the list.
    held: Option<(u64, Vec<ShardName>)>,
    coming: Option<Coming>,
}

/// A list of which only some parts have arrived.
#[derive(Debug)]
struct Coming {
    epoch: u64,
    since: Millis,
    list: Vec<ShardName>,
}

impl Registry {
    /// How many donors there are, and how many shards they hold together.
    pub fn counts(&self) -> (usize, usize) {
        let shards = self.holders.values().map(Vec::len).sum();
        (self.hosts.len(), shards)
    }

    /// Sets the addresses that the grid file lists. The donors at these addresses may announce them from
    /// any other address.
    pub fn list(&mut self, listed: BTreeMap<OwnerId, SocketAddr>) {
        self.listed = listed;
    }

    /// Checks the address that a donor announces, when it connects `from` an address. Clients and other
    /// donors will send datagrams to the announced address, so it must not be that of a bystander.
    ///
    /// # Errors
    /// When no donor can be at `addr`, or the donor connects from elsewhere and the grid file does not
    /// list `addr` as its address.
    pub fn check_address(
        &self,
        id: OwnerId,
        addr: SocketAddr,
        from: IpAddr,
    ) -> Result<(), NotHeard> {
        if self.listed.get(&id) == Some(&addr) {
            return Ok(());
        }
        if !may_be_announced(addr) {
            return Err(NotHeard::NoAddress(addr));
        }
        if addr.ip().to_canonical() != from {
            return Err(NotHeard::Elsewhere { addr, from });
        }
        Ok(())
    }

    /// Enters the announcement of a donor.
    ///
    /// # Errors
    /// When a name, site or owner is not valid, or the registry is full.
    pub fn announce(
        &mut self,
        now: Millis,
        id: OwnerId,
        presence: Presence,
    ) -> Result<Wanted, NotHeard> {
        if !is_name(&presence.name) {
            return Err(NotHeard::NoLabel("name"));
        }
        for (what, label) in [("site", &presence.site), ("owner", &presence.owner)] {
            if label.as_ref().is_some_and(|label| !is_label(label)) {
                return Err(NotHeard::NoLabel(what));
            }
        }
        let count = self.hosts.len();
        match self.hosts.get_mut(&id) {
            Some(host) => {
                host.presence = presence;
                host.rhythm.beat(now);
            }
            None if count >= HOSTS_MAX => return Err(NotHeard::Full),
            None => {
                let host = Donor {
                    presence,
                    rhythm: Rhythm::new(now, HEARTBEAT),
                    held: None,
                    coming: None,
                };
                self.hosts.insert(id, host);
            }
        }
        Ok(Wanted {
            announce: false,
            holdings: self.hosts.get(&id).is_some_and(|host| host.held.is_none()),
        })
    }

    /// Enters a heartbeat. It carries the numbers of the donor's last announcement and list, which show
    /// whether the registry has these.
    pub fn heartbeat(&mut self, now: Millis, id: OwnerId, epoch: u64, holdings: u64) -> Wanted {
        let Some(host) = self.hosts.get_mut(&id) else {
            return Wanted {
                announce: true,
                holdings: true,
            };
        };
        host.rhythm.beat(now);
        Wanted {
            announce: host.presence.epoch != epoch,
            holdings: host
                .held
                .as_ref()
                .is_none_or(|(known, _)| *known != holdings),
        }
    }

    /// Enters a part of the list of what a donor holds. A shard that the list names twice counts once:
    /// that happens because two owners may choose the same id for a checkpoint.
    ///
    /// # Errors
    /// When the donor is unknown, or the part does not continue its list, or there are too many shards.
    pub fn holds(&mut self, now: Millis, id: OwnerId, page: HoldsPage) -> Result<(), NotHeard> {
        let host = self.hosts.get_mut(&id).ok_or(NotHeard::Unknown)?;
        let who = Who::itself(id);
        if page.first {
            let coming = Coming {
                epoch: page.epoch,
                since: now,
                list: Vec::new(),
            };
            let before = host.coming.replace(coming);
            self.shards.take(who, lines_of(before.as_ref()));
        }
        let Some(coming) = host.coming.as_mut().filter(|one| one.epoch == page.epoch) else {
            return Err(NotHeard::OutOfOrder);
        };
        let is_long = page.shards.len() > HOLDS_MAX
            || coming.list.len() + page.shards.len() > SHARDS_PER_HOST_MAX;
        let more = page.shards.len() as u64;
        if is_long || !self.shards.has_room(who, more) {
            let given_up = host.coming.take();
            self.shards.take(who, lines_of(given_up.as_ref()));
            return Err(if is_long {
                NotHeard::TooLong
            } else {
                NotHeard::TooManyShards
            });
        }
        self.shards.add(who, more);
        coming.list.extend(page.shards);
        if page.last {
            self.complete(id);
        }
        Ok(())
    }

    /// Replaces the list of a donor by the one that has just become complete.
    fn complete(&mut self, id: OwnerId) {
        let Some(host) = self.hosts.get_mut(&id) else {
            return;
        };
        let Some(Coming {
            epoch, mut list, ..
        }) = host.coming.take()
        else {
            return;
        };
        let said = list.len();
        list.sort_unstable();
        list.dedup();
        list.shrink_to_fit();
        let doubles = said - list.len();
        let entered = list.clone();
        let before = host.held.replace((epoch, list));
        let before = before.map(|(_, list)| list).unwrap_or_default();
        let gone = (doubles + before.len()) as u64;
        self.shards.take(Who::itself(id), gone);
        self.unlist(id, &before);
        for shard in entered {
            let holders = self.holders.entry(shard.checkpoint).or_default();
            holders.push((id, shard.shard));
        }
    }

    fn unlist(&mut self, id: OwnerId, shards: &[ShardName]) {
        for shard in shards {
            if let Some(holders) = self.holders.get_mut(&shard.checkpoint) {
                holders.retain(|holder| *holder != (id, shard.shard));
                if holders.is_empty() {
                    self.holders.remove(&shard.checkpoint);
                }
            }
        }
    }

    /// Up to `most` donors with keys above `after`, in ascending order, and whether there are more.
    pub fn members(
        &self,
        now: Millis,
        after: Option<OwnerId>,
        most: usize,
    ) -> (Vec<MemberRecord>, bool) {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = self.hosts.range((from, Bound::Unbounded));
        let records = rest.by_ref().take(most).map(|(id, host)| MemberRecord {
            id: *id,
            silent_ms: now.0.saturating_sub(host.rhythm.last().0),
            alive: host.rhythm.is_alive(now),
            presence: host.presence.clone(),
        });
        let records = records.collect();
        (records, rest.next().is_some())
    }

    /// Which donors hold which shards of a checkpoint. The first shard of every donor comes before the
    /// second of any, so that a donor that claims many shards displaces no other donor from an answer of
    /// [`HOLDERS_MAX`].
    pub fn holders(&self, checkpoint: CheckpointId) -> Vec<(OwnerId, u8)> {
        let found = self.holders.get(&checkpoint);
        let mut counts: BTreeMap<OwnerId, usize> = BTreeMap::new();
        let mut ranked: Vec<(usize, (OwnerId, u8))> = Vec::new();
        for holder in found.into_iter().flatten() {
            let count = counts.entry(holder.0).or_default();
            ranked.push((*count, *holder));
            *count += 1;
        }
        ranked.sort_by_key(|(rank, _)| *rank);
        let holders = ranked.into_iter().map(|(_, holder)| holder);
        holders.take(HOLDERS_MAX).collect()
    }

    /// Whether a donor of this name with another key is there.
    pub fn has_name(&self, name: &str, other_than: OwnerId) -> bool {
        let mut hosts = self.hosts.iter();
        hosts.any(|(id, host)| host.presence.name == name && *id != other_than)
    }

    /// Forgets donors that have been silent for long, and lists that were not completed in time. Returns
    /// how many donors were forgotten.
    pub fn expire(&mut self, now: Millis) -> usize {
        let is_older = |since: Millis, limit: Duration| since.after(limit) < now;
        let mut gone = Vec::new();
        for (id, host) in &mut self.hosts {
            let is_gone = is_older(host.rhythm.last(), FORGET_AFTER);
            if is_gone {
                gone.push(*id);
            }
            let given_up = host
                .coming
                .take_if(|one| is_gone || is_older(one.since, LIST_WITHIN));
            self.shards
                .take(Who::itself(*id), lines_of(given_up.as_ref()));
        }
        for id in &gone {
            let held = self.hosts.remove(id).and_then(|host| host.held);
            let held = held.map(|(_, list)| list).unwrap_or_default();
            self.shards.take(Who::itself(*id), held.len() as u64);
            self.unlist(*id, &held);
        }
        gone.len()
    }
}

fn lines_of(coming: Option<&Coming>) -> u64 {
    coming.map_or(0, |coming| coming.list.len() as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::wire::announcement::Announcement;
    use protocol::wire::parts::Parts;

    use super::*;

    fn presence(name: &str, epoch: u64) -> Presence {
        Presence {
            name: name.into(),
            addr: ([10, 0, 0, 1], 7600).into(),
            site: None,
            owner: None,
            capacity_bytes: 10,
            free_bytes: 5,
            epoch,
            announcement: Announcement::default(),
            parts: Parts::default(),
        }
    }

    fn id(number: u8) -> OwnerId {
        OwnerId([number; 32])
    }

    fn page(epoch: u64, first: bool, last: bool, shards: &[(u8, u8)]) -> HoldsPage {
        let name = |(checkpoint, shard): &(u8, u8)| ShardName {
            checkpoint: CheckpointId([*checkpoint; 16]),
            shard: *shard,
        };
        HoldsPage {
            epoch,
            first,
            last,
            shards: shards.iter().map(name).collect(),
        }
    }

    fn holders(registry: &Registry, checkpoint: u8) -> Vec<(OwnerId, u8)> {
        registry.holders(CheckpointId([checkpoint; 16]))
    }

    #[test]
    fn a_registry_that_forgot_hears_everything_again() {
        let mut registry = Registry::default();
        let wanted = registry.heartbeat(Millis(0), id(1), 7, 3);
        assert!(wanted.announce && wanted.holdings);
        let wanted = registry
            .announce(Millis(1), id(1), presence("h1", 7))
            .unwrap();
        assert!(!wanted.announce && wanted.holdings);
        registry
            .holds(Millis(0), id(1), page(3, true, false, &[(5, 0)]))
            .unwrap();
        assert_eq!(holders(&registry, 5), [], "only a whole list counts");
        registry
            .holds(Millis(0), id(1), page(3, false, true, &[(6, 1)]))
            .unwrap();
        assert_eq!(holders(&registry, 5), [(id(1), 0)]);
        let wanted = registry.heartbeat(Millis(2), id(1), 7, 3);
        assert_eq!(wanted, Wanted::default());
        assert!(registry.heartbeat(Millis(3), id(1), 8, 3).announce);
        assert!(registry.heartbeat(Millis(4), id(1), 7, 4).holdings);
        registry
            .holds(Millis(0), id(1), page(4, true, true, &[(6, 1), (7, 2)]))
            .unwrap();
        assert_eq!(
            (holders(&registry, 5), holders(&registry, 7)),
            (vec![], vec![(id(1), 2)])
        );
        assert_eq!(registry.counts(), (1, 2));
    }

    #[test]
    fn a_silent_host_is_dead_and_later_forgotten() {
        let mut registry = Registry::default();
        registry
            .announce(Millis(0), id(1), presence("h1", 1))
            .unwrap();
        registry
            .holds(Millis(0), id(1), page(1, true, true, &[(5, 0)]))
            .unwrap();
        let alive = |registry: &Registry, now| registry.members(Millis(now), None, 10).0[0].alive;
        assert!(alive(&registry, 20_000) && !alive(&registry, 200_000));
        assert_eq!(registry.expire(Millis(200_000)), 0);
        assert_eq!(
            holders(&registry, 5).len(),
            1,
            "it may come back with its shards"
        );
        assert_eq!(registry.expire(Millis(90_000_000)), 1);
        assert_eq!((registry.counts(), registry.holders.len()), ((0, 0), 0));
    }

    #[test]
    fn reports_that_a_host_may_not_make_are_refused() {
        let mut registry = Registry::default();
        let holds = registry.holds(Millis(0), id(1), page(1, true, true, &[]));
        assert_eq!(holds, Err(NotHeard::Unknown));
        for name in [
            "x".repeat(64),
            "h1\nh09  10.0.0.9:7600".into(),
            String::new(),
        ] {
            let announced = registry.announce(Millis(0), id(1), presence(&name, 1));
            assert_eq!(announced, Err(NotHeard::NoLabel("name")));
        }
        let trick = Some("\u{1b}]0;owned\u{7}\u{1b}[2J".to_owned());
        let mut said = presence("h1", 1);
        said.site.clone_from(&trick);
        let announced = registry.announce(Millis(0), id(1), said);
        assert_eq!(announced, Err(NotHeard::NoLabel("site")));
        let mut said = presence("h1", 1);
        said.owner = trick;
        let announced = registry.announce(Millis(0), id(1), said);
        assert_eq!(announced, Err(NotHeard::NoLabel("owner")));
        registry
            .announce(Millis(0), id(1), presence("h1", 1))
            .unwrap();
        let holds = registry.holds(Millis(0), id(1), page(1, false, true, &[(1, 1)]));
        assert_eq!(holds, Err(NotHeard::OutOfOrder));
        let many = vec![(1, 1); HOLDS_MAX + 1];
        let holds = registry.holds(Millis(0), id(1), page(1, true, true, &many));
        assert_eq!(holds, Err(NotHeard::TooLong));
        assert!(registry.has_name("h1", id(2)) && !registry.has_name("h1", id(1)));
    }

    #[test]
    fn no_host_announces_the_address_of_a_bystander() {
        let mut registry = Registry::default();
        let addr = |text: &str| text.parse::<SocketAddr>().unwrap();
        let own = addr("10.0.0.1:7600");
        let bystander = addr("192.0.2.7:7600");
        let check = |registry: &Registry, at| registry.check_address(id(1), at, own.ip());
        assert_eq!(check(&registry, own), Ok(()));
        let from = own.ip();
        let elsewhere = NotHeard::Elsewhere {
            addr: bystander,
            from,
        };
        assert_eq!(check(&registry, bystander), Err(elsewhere));
        for bad in ["10.0.0.1:53", "224.0.0.1:7600", "255.255.255.255:7600"] {
            assert_eq!(
                check(&registry, addr(bad)),
                Err(NotHeard::NoAddress(addr(bad)))
            );
        }
        // The grid file lists this address for this donor.
        registry.list([(id(1), bystander)].into());
        assert_eq!(check(&registry, bystander), Ok(()));
        assert!(registry.check_address(id(2), bystander, from).is_err());
    }

    #[test]
    fn a_donor_that_claims_everything_pushes_no_other_out() {
        let mut registry = Registry::default();
        for number in 1..=5 {
            let name = format!("h{number}");
            registry
                .announce(Millis(0), id(number), presence(&name, 1))
                .unwrap();
        }
        let all: Vec<(u8, u8)> = (0..=255).map(|shard| (7, shard)).collect();
        for _ in 0..8 {
            registry
                .holds(Millis(0), id(1), page(1, true, false, &all))
                .unwrap();
            for _ in 0..6 {
                registry
                    .holds(Millis(0), id(1), page(1, false, false, &all))
                    .unwrap();
            }
            registry
                .holds(Millis(0), id(1), page(1, false, true, &all))
                .unwrap();
        }
        for number in 2..=5 {
            registry
                .holds(Millis(0), id(number), page(1, true, true, &[(7, number)]))
                .unwrap();
        }
        let found = holders(&registry, 7);
        for number in 2..=5 {
            assert!(found[..5].contains(&(id(number), number)), "{number}");
        }
        assert_eq!(found.len(), 260, "what is said twice counts once");
        assert_eq!(registry.shards.of(id(1)), 256);
    }

    #[test]
    fn one_donor_leaves_room_for_the_lists_of_others() {
        let mut registry = Registry::default();
        registry
            .announce(Millis(0), id(1), presence("h1", 1))
            .unwrap();
        let many: Vec<(u8, u8)> = (0..HOLDS_MAX)
            .map(|at| (at as u8, (at >> 8) as u8))
            .collect();
        registry
            .holds(Millis(0), id(1), page(1, true, false, &many))
            .unwrap();
        let mut said = HOLDS_MAX;
        let refused = loop {
            match registry.holds(Millis(0), id(1), page(1, false, false, &many)) {
                Ok(()) => said += HOLDS_MAX,
                Err(refused) => break refused,
            }
        };
        assert_eq!((refused, said), (NotHeard::TooLong, SHARDS_PER_HOST_MAX));
        assert_eq!(registry.shards.all(), 0, "what was given up takes no room");
        registry
            .holds(Millis(0), id(1), page(2, true, false, &many))
            .unwrap();
        registry.expire(Millis(200_000));
        assert_eq!(
            registry.shards.all(),
            0,
            "a list without an end takes no room"
        );
    }

    #[test]
    fn members_come_in_pages() {
        let mut registry = Registry::default();
        for number in 1..=5 {
            registry
                .announce(Millis(0), id(number), presence("h", 1))
                .unwrap();
        }
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let (page, more) = registry.members(Millis(0), after, 2);
            seen.extend(page.iter().map(|record| record.id));
            after = seen.last().copied();
            if !more {
                break;
            }
        }
        assert_eq!(seen, (1..=5).map(id).collect::<Vec<_>>());
    }

    proptest! {
        /// Whatever donors send in whatever order, the index is that of their latest complete lists.
        #[test]
        fn the_index_follows_the_lists(said in prop::collection::vec(
            (1..4_u8, 0..3_u64, any::<bool>(), any::<bool>(), prop::collection::vec((0..3_u8, 0..3_u8), 0..4)), 0..40,
        )) {
            let mut registry = Registry::default();
            for number in 1..4 {
                registry.announce(Millis(0), id(number), presence("h", 1)).unwrap();
            }
            for (number, epoch, first, last, shards) in said {
                let _ = registry.holds(Millis(0), id(number), page(epoch, first, last, &shards));
            }
            let mut expected: Vec<_> = registry.hosts.iter().flat_map(|(id, host)| {
                let list = host.held.iter().flat_map(|(_, list)| list);
                list.map(|shard| (shard.checkpoint, *id, shard.shard))
            }).collect();
            let mut actual: Vec<_> = registry.holders.iter().flat_map(|(checkpoint, holders)| {
                holders.iter().map(|(id, shard)| (*checkpoint, *id, *shard))
            }).collect();
            expected.sort_unstable();
            actual.sort_unstable();
            expected.dedup();
            actual.dedup();
            prop_assert_eq!(expected, actual);
            let listed = registry.hosts.values().map(|host| {
                host.held.as_ref().map_or(0, |(_, list)| list.len() as u64) + lines_of(host.coming.as_ref())
            });
            prop_assert_eq!(registry.shards.all(), listed.sum::<u64>());
        }
    }
}
