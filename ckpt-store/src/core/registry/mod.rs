//! What a registry knows: which donors belong to the grid, where each was last and when, and which shards
//! each holds. All of it may be lost, because donors send it again to a registry that does not know it: what
//! they hold, and the cards of donors that are silent.

mod ways;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::Bound;
use std::time::Duration;

use codec::{CheckpointId, OwnerId};
use protocol::identity::{
    CARD_PART, KNOWN_AFTER_END_S, MemberCard, digest_of_days, is_label, is_name,
};
use protocol::net::may_be_announced;
use protocol::wire::announcement::Announcement;
use protocol::wire::limits::{HOLDERS_MAX, HOLDS_MAX};
use protocol::wire::message::{CardDay, CardRecord, HoldsPage, MemberRecord, Presence, ShardName};
use protocol::wire::parts::Parts;
use serde::{Deserialize, Serialize};

use super::Millis;
use super::places::{Stock, Who};
use super::reach::Reach;
use super::rhythm::Rhythm;

/// How often donors send a heartbeat.
pub const HEARTBEAT: Duration = Duration::from_secs(10);

/// Of a donor that sends nothing for this long, the list of its shards is dropped. The donor stays.
pub const LISTS_DROPPED_AFTER: Duration = Duration::from_secs(86_400);

/// Most bytes of what a donor announces: several times what an honest donor does.
pub const DONOR_BYTES: usize = 24 << 10;

/// Most bytes of the donors in one answer. The one that exceeds them is still in it.
pub const PAGE_BYTES_MAX: usize = 256 << 10;

/// What each shard takes.
pub const SHARD_BYTES: usize = 80;

/// Most shards of one donor. A host knows at most half as many checkpoints, and usually holds one shard
/// of each.
pub const SHARDS_PER_HOST_MAX: usize = 1 << 17;

/// Most donors of any registry, however much memory it has.
pub const DONORS_MAX: usize = 100_000;

/// How much a registry keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistryLimits {
    /// Most donors, at most [`DONORS_MAX`]. None is dropped to make room: a full registry refuses new ones.
    pub donors: usize,
    /// Most shards of all donors, those of unfinished lists included. [`Stock`] keeps one donor from taking
    /// the room of the others.
    pub shards: usize,
}

/// All parts of a list have to arrive within this time.
const LIST_WITHIN: Duration = Duration::from_secs(120);

/// Why a message of a donor was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotHeard {
    /// The registry knows as many donors as it has room for.
    #[error(
        "the registry has no room for another donor; revoke those that are gone: ckpt grid revoke, or give it more: ckpt-store registry --memory"
    )]
    Full,
    /// The registry knows as many shards as it has room for, or this donor has its share of them.
    #[error("the registry has no room for more shards")]
    TooManyShards,
    /// A part has more than [`HOLDS_MAX`] shards, the list more than [`SHARDS_PER_HOST_MAX`], or an
    /// announcement more than [`DONOR_BYTES`].
    #[error("a list or an announcement is too long")]
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
    donors_max: usize,
    /// Whether a donor was forgotten since the donors were written down last.
    has_forgotten: bool,
}

impl Registry {
    /// A registry that knows nothing yet.
    pub fn new(limits: RegistryLimits) -> Self {
        Self {
            donors_max: limits.donors,
            hosts: BTreeMap::new(),
            listed: BTreeMap::new(),
            holders: BTreeMap::new(),
            shards: Stock::new(limits.shards as u64),
            has_forgotten: false,
        }
    }
}

/// The same moment on the monotonic clock and on the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Of the monotonic clock.
    pub now: Millis,
    /// Of the wall clock, Unix seconds.
    pub unix: u64,
}

impl Moment {
    /// What the wall clock showed when the monotonic clock showed `then`.
    const fn unix_of(self, then: Millis) -> u64 {
        self.unix
            .saturating_sub(self.now.0.saturating_sub(then.0) / 1000)
    }
}

#[derive(Debug)]
struct Donor {
    /// Its card is among the parts.
    presence: Presence,
    heard: Heard,
    stated: Option<Stated>,
    /// Number of the donor's list of shards, and the list.
    held: Option<(u64, Vec<ShardName>)>,
    coming: Option<Coming>,
    /// Whether it was alive when it was written down last; `None` if it has changed since.
    written: Option<bool>,
    reach: Reach,
}

/// When a donor was heard last.
#[derive(Debug)]
enum Heard {
    /// By this registry, since it started.
    Here(Rhythm),
    /// At this time, Unix seconds: before the start, or by others.
    Before(u64),
}

/// What the card of a donor states, as far as the registry decides by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stated {
    at: u64,
    day: u32,
    certified_until: u64,
    issuer: Option<OwnerId>,
}

impl Stated {
    fn of(card: &MemberCard) -> Self {
        Self {
            at: card.at(),
            day: card.day(),
            certified_until: card.certified_until(),
            issuer: card.issuer(),
        }
    }
}

/// A donor, as a registry writes it down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownDonor {
    /// Public key of the donor.
    pub id: OwnerId,
    /// When it was heard last, Unix seconds.
    pub seen_at: u64,
    /// Its name.
    pub name: String,
    /// Where it was.
    pub addr: SocketAddr,
    /// Its site.
    pub site: Option<String>,
    /// The owner of the machine.
    pub owner: Option<String>,
    /// Bytes that it lent.
    pub capacity_bytes: u64,
    /// Bytes that could still be stored there.
    pub free_bytes: u64,
    /// Its card; empty if its program made none.
    #[serde(with = "serde_bytes")]
    pub card: Vec<u8>,
}

/// What became of the card of a donor that another donor brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learnt {
    /// It adds something.
    News,
    /// The registry knows as much or more of the donor.
    Known,
    /// The registry knows as many donors as it has room for.
    Full,
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

    /// Enters the announcement of a donor. `card` is the one among its parts, if it is good.
    ///
    /// # Errors
    /// When a name, site or owner is not valid, or the registry is full.
    pub fn announce(
        &mut self,
        now: Millis,
        id: OwnerId,
        mut presence: Presence,
        card: Option<&MemberCard>,
    ) -> Result<Wanted, NotHeard> {
        check_texts(&presence.name, &presence.site, &presence.owner)?;
        // Clients get the parts. A card that is not good stays here.
        presence.parts = card.map_or_else(Parts::default, card_part);
        if bytes_of(&presence) > DONOR_BYTES {
            return Err(NotHeard::TooLong);
        }
        let count = self.hosts.len();
        match self.hosts.get_mut(&id) {
            Some(host) => host.announced(now, presence, card),
            None if count >= self.donors_max => return Err(NotHeard::Full),
            None => {
                let host = Donor {
                    presence,
                    heard: Heard::Here(Rhythm::new(now, HEARTBEAT)),
                    stated: card.map(Stated::of),
                    held: None,
                    coming: None,
                    written: None,
                    reach: Reach::default(),
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
        host.beat(now);
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

    /// Enters the card of a donor that somebody else brought: the donor counts as silent, last heard at the
    /// time of the card. The registry's own ears count more: a card neither moves a donor that the registry
    /// hears, nor one that it has heard after the time of the card. The caller has checked that the card is
    /// good, its address too, and not early.
    pub fn learn(&mut self, at: Moment, card: &MemberCard, addr: SocketAddr) -> Learnt {
        let seen_at = card.at().min(at.unix);
        let presence = presence_of(card, addr);
        let count = self.hosts.len();
        match self.hosts.get_mut(&card.id()) {
            Some(host) => {
                let is_older = host.stated.is_some_and(|stated| stated.at >= card.at());
                if host.is_alive(at.now) || is_older || host.seen_at(at) >= seen_at {
                    return Learnt::Known;
                }
                host.presence = presence;
                host.heard = Heard::Before(seen_at);
                host.stated = Some(Stated::of(card));
                host.written = None;
            }
            None if count >= self.donors_max => return Learnt::Full,
            None => {
                let host = Donor {
                    presence,
                    heard: Heard::Before(seen_at),
                    stated: Some(Stated::of(card)),
                    held: None,
                    coming: None,
                    written: None,
                    reach: Reach::default(),
                };
                self.hosts.insert(card.id(), host);
            }
        }
        Learnt::News
    }

    /// Enters a donor that was written down earlier, with its card if that is still good. A donor that is
    /// known already stays as it is.
    ///
    /// # Errors
    /// When its name, site, owner or address is not valid, or the registry is full.
    pub fn recall(&mut self, known: KnownDonor, card: Option<&MemberCard>) -> Result<(), NotHeard> {
        check_texts(&known.name, &known.site, &known.owner)?;
        let is_listed = self.listed.get(&known.id) == Some(&known.addr);
        if !is_listed && !may_be_announced(known.addr) {
            return Err(NotHeard::NoAddress(known.addr));
        }
        if self.hosts.len() >= self.donors_max {
            return Err(NotHeard::Full);
        }
        let presence = Presence {
            name: known.name,
            addr: known.addr,
            site: known.site,
            owner: known.owner,
            capacity_bytes: known.capacity_bytes,
            free_bytes: known.free_bytes,
            epoch: 0,
            announcement: Announcement::default(),
            parts: card.map_or_else(Parts::default, card_part),
        };
        self.hosts.entry(known.id).or_insert(Donor {
            presence,
            heard: Heard::Before(known.seen_at),
            stated: card.map(Stated::of),
            held: None,
            coming: None,
            written: Some(false),
            reach: Reach::default(),
        });
        Ok(())
    }

    /// All donors, to be written down, if one has changed or fell silent since they were written down last.
    pub fn to_write_down(&mut self, at: Moment) -> Option<Vec<KnownDonor>> {
        let is_same = |host: &Donor| host.written == Some(host.is_alive(at.now));
        if !self.has_forgotten && self.hosts.values().all(is_same) {
            return None;
        }
        Some(self.all_to_write_down(at))
    }

    /// All donors, to be written down.
    pub fn all_to_write_down(&mut self, at: Moment) -> Vec<KnownDonor> {
        self.has_forgotten = false;
        let hosts = self.hosts.iter_mut().map(|(id, host)| {
            host.written = Some(host.is_alive(at.now));
            host.to_write_down(*id, at)
        });
        hosts.collect()
    }

    /// All keys of donors of which there are cards, and the day of each card.
    fn days_after(&self, after: Option<OwnerId>) -> impl Iterator<Item = (OwnerId, u32)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.hosts.range((from, Bound::Unbounded));
        rest.filter_map(|(id, host)| Some((*id, host.stated?.day)))
    }

    /// How many cards there are.
    pub fn cards_kept(&self) -> usize {
        self.days_after(None).count()
    }

    /// Hash of which cards there are, and of which day each is.
    pub fn digest_of_cards(&self) -> [u8; 32] {
        digest_of_days(self.days_after(None))
    }

    /// The days of up to `most` cards of donors with keys above `after`, in ascending order, and whether
    /// there are more.
    pub fn card_days(&self, after: Option<OwnerId>, most: usize) -> (Vec<CardDay>, bool) {
        let mut rest = self.days_after(after);
        let days = rest
            .by_ref()
            .take(most)
            .map(|(id, day)| CardDay { id, day });
        let days = days.collect();
        (days, rest.next().is_some())
    }

    /// The cards of these donors, as far as there are any.
    pub fn cards(&self, ids: &[OwnerId]) -> Vec<CardRecord> {
        let card = |id: &OwnerId| {
            let presence = &self.hosts.get(id)?.presence;
            Some(CardRecord {
                card: presence.parts.get(CARD_PART)?.to_vec(),
                addr: presence.addr,
            })
        };
        ids.iter().filter_map(card).collect()
    }

    /// Up to `most` donors with keys above `after`, in ascending order, of some [`PAGE_BYTES_MAX`] together,
    /// and whether there are more.
    pub fn members(
        &self,
        at: Moment,
        after: Option<OwnerId>,
        most: usize,
    ) -> (Vec<MemberRecord>, bool) {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = self.hosts.range((from, Bound::Unbounded));
        let mut bytes = 0;
        let mut records = Vec::new();
        while records.len() < most && bytes < PAGE_BYTES_MAX {
            let Some((id, host)) = rest.next() else {
                break;
            };
            bytes += bytes_of(&host.presence);
            records.push(MemberRecord {
                id: *id,
                silent_ms: host.silent_ms(at),
                alive: host.is_alive(at.now),
                presence: host.shown(at.now),
            });
        }
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

    /// The names of all donors, with their keys.
    pub fn names(&self) -> BTreeSet<(String, OwnerId)> {
        let hosts = self.hosts.iter();
        hosts
            .map(|(id, host)| (host.presence.name.clone(), *id))
            .collect()
    }

    /// Forgets donors that are no members any more: those with a key that `is_revoked`, and those whose
    /// certificate ended long ago. Of a donor without a card, whose program is an earlier one, nobody knows
    /// when that was, so it is forgotten as long after its last word. Drops the lists of donors that have
    /// been silent for long, and those that were not completed in time. Returns how many donors were
    /// forgotten.
    pub fn expire(&mut self, at: Moment, is_revoked: impl Fn(&OwnerId) -> bool) -> usize {
        let is_older = |since: Millis, limit: Duration| since.after(limit) < at.now;
        let mut gone = Vec::new();
        let mut dropped: Vec<(OwnerId, Vec<ShardName>)> = Vec::new();
        for (id, host) in &mut self.hosts {
            let issuer = host.stated.and_then(|stated| stated.issuer);
            let certified_until = host
                .stated
                .map_or_else(|| host.seen_at(at), |stated| stated.certified_until);
            let is_over = certified_until.saturating_add(KNOWN_AFTER_END_S) < at.unix;
            // A member that is there proves with each connection that it is one.
            let has_ended = is_over && !host.is_alive(at.now);
            let is_gone = is_revoked(id) || issuer.is_some_and(|key| is_revoked(&key)) || has_ended;
            if is_gone {
                gone.push(*id);
            }
            let given_up = host
                .coming
                .take_if(|one| is_gone || is_older(one.since, LIST_WITHIN));
            self.shards
                .take(Who::itself(*id), lines_of(given_up.as_ref()));
            let is_long_silent = match &host.heard {
                Heard::Here(rhythm) => is_older(rhythm.last(), LISTS_DROPPED_AFTER),
                Heard::Before(_) => true,
            };
            let held = host.held.take_if(|_| is_gone || is_long_silent);
            dropped.extend(held.map(|(_, list)| (*id, list)));
        }
        for (id, list) in dropped {
            self.shards.take(Who::itself(id), list.len() as u64);
            self.unlist(id, &list);
        }
        for id in &gone {
            self.hosts.remove(id);
        }
        self.has_forgotten |= !gone.is_empty();
        gone.len()
    }
}

/// What an entry of a donor takes besides what it announces.
const ENTRY_BYTES: usize = 512;

/// Bytes that a donor takes by what it announces.
fn bytes_of(presence: &Presence) -> usize {
    let texts = [
        Some(&presence.name),
        presence.site.as_ref(),
        presence.owner.as_ref(),
    ];
    let texts: usize = texts.into_iter().flatten().map(String::len).sum();
    let said = &presence.announcement;
    let curves = size_of::<u16>() * (said.presence.len() + said.guest.len());
    let bitmaps = said.presence_bitmap.len() + said.guest_bitmap.len();
    let card = presence.parts.get(CARD_PART).map_or(0, <[u8]>::len);
    ENTRY_BYTES + texts + curves + bitmaps + card
}

impl Donor {
    /// Takes over what the donor announces of itself at `now`.
    fn announced(&mut self, now: Millis, presence: Presence, card: Option<&MemberCard>) {
        let before = &self.presence;
        let is_same = before.name == presence.name
            && before.addr == presence.addr
            && before.site == presence.site
            && before.owner == presence.owner
            && card.map(MemberCard::certified_until)
                == self.stated.map(|stated| stated.certified_until);
        if !is_same {
            self.written = None;
        }
        let kept = std::mem::replace(&mut self.presence, presence).parts;
        match card {
            Some(card) => self.stated = Some(Stated::of(card)),
            // Its program may be an earlier one again. Its last card is as good as it was.
            None => self.presence.parts = kept,
        }
        self.beat(now);
    }

    fn beat(&mut self, now: Millis) {
        match &mut self.heard {
            Heard::Here(rhythm) => rhythm.beat(now),
            Heard::Before(_) => self.heard = Heard::Here(Rhythm::new(now, HEARTBEAT)),
        }
    }

    fn is_alive(&self, now: Millis) -> bool {
        match &self.heard {
            Heard::Here(rhythm) => rhythm.is_alive(now),
            Heard::Before(_) => false,
        }
    }

    /// When it was heard last, Unix seconds.
    const fn seen_at(&self, at: Moment) -> u64 {
        match &self.heard {
            Heard::Here(rhythm) => at.unix_of(rhythm.last()),
            Heard::Before(unix) => *unix,
        }
    }

    const fn silent_ms(&self, at: Moment) -> u64 {
        match &self.heard {
            Heard::Here(rhythm) => at.now.0.saturating_sub(rhythm.last().0),
            Heard::Before(unix) => at.unix.saturating_sub(*unix).saturating_mul(1000),
        }
    }

    fn to_write_down(&self, id: OwnerId, at: Moment) -> KnownDonor {
        let presence = &self.presence;
        let card = presence.parts.get(CARD_PART);
        KnownDonor {
            id,
            seen_at: self.seen_at(at),
            name: presence.name.clone(),
            addr: presence.addr,
            site: presence.site.clone(),
            owner: presence.owner.clone(),
            capacity_bytes: presence.capacity_bytes,
            free_bytes: presence.free_bytes,
            card: card.map(<[u8]>::to_vec).unwrap_or_default(),
        }
    }
}

/// Checks texts that others will print.
fn check_texts(name: &str, site: &Option<String>, owner: &Option<String>) -> Result<(), NotHeard> {
    if !is_name(name) {
        return Err(NotHeard::NoLabel("name"));
    }
    for (what, label) in [("site", site), ("owner", owner)] {
        if label.as_ref().is_some_and(|label| !is_label(label)) {
            return Err(NotHeard::NoLabel(what));
        }
    }
    Ok(())
}

/// The parts of an announcement that has this card.
fn card_part(card: &MemberCard) -> Parts {
    // A card that is too long for an announcement is left out.
    Parts::default().with(CARD_PART, card.bytes().to_vec())
}

/// What is known of a donor of which only the card is known.
fn presence_of(card: &MemberCard, addr: SocketAddr) -> Presence {
    let whereabouts = card.whereabouts();
    Presence {
        name: card.name().to_owned(),
        addr,
        site: whereabouts.site.clone(),
        owner: whereabouts.owner.clone(),
        capacity_bytes: 0,
        free_bytes: 0,
        epoch: 0,
        announcement: Announcement::default(),
        parts: card_part(card),
    }
}

fn lines_of(coming: Option<&Coming>) -> u64 {
    coming.map_or(0, |coming| coming.list.len() as u64)
}

#[cfg(test)]
mod tests {
    use codec::seal::OwnerSecret;
    use proptest::prelude::*;
    use protocol::identity::{Authority, Enroller, Identity, Role, Validity, Whereabouts};

    use super::*;

    const LIMITS: RegistryLimits = RegistryLimits {
        donors: 1000,
        shards: 1 << 20,
    };

    const DAY: u64 = 86_400;

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

    /// The wall clock shows 1,000 days more than the monotonic one.
    fn at(millis: u64) -> Moment {
        Moment {
            now: Millis(millis),
            unix: 1000 * DAY + millis / 1000,
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
        let mut registry = Registry::new(LIMITS);
        let wanted = registry.heartbeat(Millis(0), id(1), 7, 3);
        assert!(wanted.announce && wanted.holdings);
        let wanted = registry
            .announce(Millis(1), id(1), presence("h1", 7), None)
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
        let mut registry = Registry::new(LIMITS);
        registry
            .announce(Millis(0), id(1), presence("h1", 1), None)
            .unwrap();
        registry
            .holds(Millis(0), id(1), page(1, true, true, &[(5, 0)]))
            .unwrap();
        let alive = |registry: &Registry, now| registry.members(at(now), None, 10).0[0].alive;
        assert!(alive(&registry, 20_000) && !alive(&registry, 200_000));
        assert_eq!(registry.expire(at(200_000), |_| false), 0);
        assert_eq!(
            holders(&registry, 5).len(),
            1,
            "it may come back with its shards"
        );
        assert_eq!(registry.expire(at(90_000_000), |_| false), 0);
        assert_eq!(
            registry.counts(),
            (1, 0),
            "its list is dropped, not the donor"
        );
        assert_eq!((registry.shards.all(), registry.holders.len()), (0, 0));
        // Its program is an earlier one, which makes no card.
        let months = 90 * DAY * 1000;
        assert_eq!(registry.expire(at(months), |_| false), 0);
        let record = &registry.members(at(months), None, 10).0[0];
        assert_eq!((record.silent_ms, record.alive), (months, false));
        assert_eq!(registry.expire(at(months + 1000), |_| false), 1);
        assert_eq!(registry.counts(), (0, 0));
    }

    fn lab() -> Authority {
        let validity = Validity {
            from: 0,
            lasting: Duration::from_secs(1 << 32),
        };
        Authority::create(OwnerSecret::new([1; 32]), "lab", validity).unwrap()
    }

    /// A card that the donor `seed` signed on the day `day` at this port. Its certificate ends on day 1,400,
    /// and a registry with the seed 99 signed it.
    fn card(seed: u8, day: u64, port: u16) -> MemberCard {
        let donor = OwnerSecret::new([seed; 32]);
        let registry = OwnerSecret::new([99; 32]);
        let lasting = |days| Validity {
            from: 900 * DAY,
            lasting: Duration::from_secs(days * DAY),
        };
        let enrol = lab().delegate("reg", registry.id(), &[Role::Donor], lasting(900));
        let enroller = Enroller::new(registry, enrol.unwrap());
        let name = format!("h{seed}");
        let certificate = enroller.sign(Role::Donor, &name, donor.id(), lasting(500));
        let identity = Identity {
            issuer: Some(enroller.certificate().clone()),
            ..Identity::new(donor, certificate.unwrap()).unwrap()
        };
        let whereabouts = Whereabouts {
            addr: ([10, 0, 0, 1], port).into(),
            site: Some("lab".into()),
            owner: None,
        };
        MemberCard::sign(&identity, whereabouts, day * DAY).unwrap()
    }

    fn learn(registry: &mut Registry, millis: u64, card: &MemberCard) -> Learnt {
        registry.learn(at(millis), card, card.whereabouts().addr)
    }

    fn port(registry: &Registry, id: OwnerId) -> u16 {
        registry.hosts[&id].presence.addr.port()
    }

    #[test]
    fn a_member_is_known_until_it_is_revoked_or_its_certificate_is_long_over() {
        let card = card(5, 1000, 7600);
        let announced = |registry: &mut Registry| {
            let said = presence("h5", 1);
            registry
                .announce(Millis(0), card.id(), said, Some(&card))
                .unwrap();
        };
        let mut registry = Registry::new(LIMITS);
        announced(&mut registry);
        let last = (490 * DAY) * 1000;
        assert_eq!(registry.expire(at(last), |_| false), 0);
        assert_eq!(registry.expire(at(last + 1000), |_| false), 1);
        for key in [card.id(), OwnerSecret::new([99; 32]).id()] {
            announced(&mut registry);
            assert_eq!(registry.expire(at(0), |other| *other == key), 1);
            assert_eq!(registry.counts(), (0, 0));
        }
    }

    #[test]
    fn a_registry_learns_of_silent_donors_and_trusts_its_own_ears_more() {
        let mut registry = Registry::new(LIMITS);
        let old = card(5, 997, 7605);
        assert_eq!(learn(&mut registry, 0, &old), Learnt::News);
        let record = registry.members(at(0), None, 10).0.remove(0);
        assert_eq!((record.alive, record.silent_ms), (false, 3 * DAY * 1000));
        assert_eq!(record.presence.name, "h5");
        assert_eq!(record.presence.parts.get(CARD_PART), Some(old.bytes()));
        assert_eq!(learn(&mut registry, 0, &old), Learnt::Known);
        assert_eq!(learn(&mut registry, 0, &card(5, 996, 7606)), Learnt::Known);
        assert_eq!(learn(&mut registry, 0, &card(5, 998, 7607)), Learnt::News);
        assert_eq!(port(&registry, old.id()), 7607, "the newer card wins");
        // The registry hears the donor itself. No card moves it, not even one of tomorrow.
        let wanted = registry.heartbeat(Millis(1000), old.id(), 9, 9);
        assert!(wanted.announce, "only the card was known");
        let said = presence("h5", 9);
        registry
            .announce(Millis(1000), old.id(), said, None)
            .unwrap();
        assert_eq!(
            learn(&mut registry, 2000, &card(5, 1001, 7608)),
            Learnt::Known
        );
        // Silent since, it is not moved by a card from before that.
        assert_eq!(
            learn(&mut registry, 500_000, &card(5, 1000, 7608)),
            Learnt::Known
        );
        assert_eq!(port(&registry, old.id()), 7600);
        let later = 3 * DAY * 1000;
        assert_eq!(
            learn(&mut registry, later, &card(5, 1002, 7608)),
            Learnt::News
        );
        assert_eq!(port(&registry, old.id()), 7608);
        // The time of a card is not believed to be in the future.
        assert_eq!(learn(&mut registry, 0, &card(6, 1001, 7609)), Learnt::News);
        let last = registry.members(at(0), None, 10).0;
        assert!(
            last.iter()
                .any(|one| one.presence.name == "h6" && one.silent_ms == 0)
        );
    }

    #[test]
    fn both_sides_find_what_the_other_lacks() {
        let mut registry = Registry::new(LIMITS);
        let cards = [card(5, 997, 7600), card(6, 998, 7600), card(7, 999, 7600)];
        for card in &cards {
            learn(&mut registry, 0, card);
        }
        registry
            .announce(Millis(0), id(1), presence("old", 1), None)
            .unwrap();
        let mut days: Vec<_> = cards.iter().map(|card| (card.id(), card.day())).collect();
        days.sort_unstable();
        assert_eq!(registry.digest_of_cards(), digest_of_days(days.clone()));
        let (first, more) = registry.card_days(None, 2);
        let (rest, none) = registry.card_days(Some(first[1].id), 2);
        let all = first.iter().chain(&rest).map(|one| (one.id, one.day));
        assert_eq!((all.collect::<Vec<_>>(), more, none), (days, true, false));
        let found = registry.cards(&[cards[1].id(), id(1), id(9)]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].card, cards[1].bytes());
    }

    #[test]
    fn what_is_written_down_is_there_after_a_restart() {
        let mut registry = Registry::new(LIMITS);
        assert_eq!(registry.to_write_down(at(0)), None);
        let card = card(5, 1000, 7600);
        let said = presence("h5", 1);
        registry
            .announce(Millis(0), card.id(), said.clone(), Some(&card))
            .unwrap();
        registry
            .announce(Millis(0), id(1), presence("h1", 1), None)
            .unwrap();
        let written = registry.to_write_down(at(0)).unwrap();
        assert_eq!(
            registry.to_write_down(at(1000)),
            None,
            "nothing has changed"
        );
        registry.heartbeat(Millis(1000), card.id(), 1, 1);
        registry
            .announce(Millis(1000), card.id(), said, Some(&card))
            .unwrap();
        assert_eq!(
            registry.to_write_down(at(1000)),
            None,
            "it is only heard again"
        );
        let silent = registry.to_write_down(at(900_000)).unwrap();
        assert_eq!(silent.len(), 2, "they fell silent");
        assert_eq!(
            silent.iter().map(|one| one.seen_at).max(),
            Some(1000 * DAY + 1)
        );

        let mut next = Registry::new(LIMITS);
        for donor in written {
            let own = (donor.id == card.id()).then_some(&card);
            next.recall(donor, own).unwrap();
        }
        assert_eq!(next.to_write_down(at(0)), None);
        let records = next.members(at(60_000), None, 10).0;
        assert!(
            records
                .iter()
                .all(|one| !one.alive && one.silent_ms == 60_000)
        );
        assert_eq!(next.cards(&[card.id()])[0].card, card.bytes());
        next.expire(at(0), |key| *key == id(1));
        assert_eq!(next.to_write_down(at(0)).unwrap().len(), 1);
    }

    #[test]
    fn a_full_registry_refuses_new_members_and_drops_none() {
        let mut registry = Registry::new(LIMITS);
        for number in 0..LIMITS.donors {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&(number as u64).to_le_bytes());
            registry
                .announce(Millis(0), OwnerId(key), presence("h", 1), None)
                .unwrap();
        }
        let more = registry.announce(Millis(0), id(255), presence("h", 1), None);
        assert_eq!(more, Err(NotHeard::Full));
        assert_eq!(learn(&mut registry, 0, &card(5, 999, 7600)), Learnt::Full);
        assert_eq!(registry.counts().0, LIMITS.donors);
        let again = registry.announce(Millis(0), OwnerId([0; 32]), presence("h", 2), None);
        assert!(again.is_ok());
    }

    #[test]
    fn reports_that_a_host_may_not_make_are_refused() {
        let mut registry = Registry::new(LIMITS);
        let holds = registry.holds(Millis(0), id(1), page(1, true, true, &[]));
        assert_eq!(holds, Err(NotHeard::Unknown));
        for name in [
            "x".repeat(64),
            "h1\nh09  10.0.0.9:7600".into(),
            String::new(),
        ] {
            let announced = registry.announce(Millis(0), id(1), presence(&name, 1), None);
            assert_eq!(announced, Err(NotHeard::NoLabel("name")));
        }
        let trick = Some("\u{1b}]0;owned\u{7}\u{1b}[2J".to_owned());
        let mut said = presence("h1", 1);
        said.site.clone_from(&trick);
        let announced = registry.announce(Millis(0), id(1), said, None);
        assert_eq!(announced, Err(NotHeard::NoLabel("site")));
        let mut said = presence("h1", 1);
        said.owner = trick;
        let announced = registry.announce(Millis(0), id(1), said, None);
        assert_eq!(announced, Err(NotHeard::NoLabel("owner")));
        registry
            .announce(Millis(0), id(1), presence("h1", 1), None)
            .unwrap();
        let holds = registry.holds(Millis(0), id(1), page(1, false, true, &[(1, 1)]));
        assert_eq!(holds, Err(NotHeard::OutOfOrder));
        let many = vec![(1, 1); HOLDS_MAX + 1];
        let holds = registry.holds(Millis(0), id(1), page(1, true, true, &many));
        assert_eq!(holds, Err(NotHeard::TooLong));
        assert_eq!(registry.names(), BTreeSet::from([("h1".to_owned(), id(1))]));
    }

    #[test]
    fn no_host_announces_the_address_of_a_bystander() {
        let mut registry = Registry::new(LIMITS);
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
        let mut registry = Registry::new(LIMITS);
        for number in 1..=5 {
            let name = format!("h{number}");
            registry
                .announce(Millis(0), id(number), presence(&name, 1), None)
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
        let mut registry = Registry::new(LIMITS);
        registry
            .announce(Millis(0), id(1), presence("h1", 1), None)
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
        registry.expire(at(200_000), |_| false);
        assert_eq!(
            registry.shards.all(),
            0,
            "a list without an end takes no room"
        );
    }

    #[test]
    fn members_come_in_pages() {
        let mut registry = Registry::new(LIMITS);
        for number in 1..=5 {
            registry
                .announce(Millis(0), id(number), presence("h", 1), None)
                .unwrap();
        }
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let (page, more) = registry.members(at(0), after, 2);
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
            let mut registry = Registry::new(LIMITS);
            for number in 1..4 {
                registry.announce(Millis(0), id(number), presence("h", 1), None).unwrap();
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
