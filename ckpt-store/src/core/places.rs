//! Decides who gets a place, who waits for one, and who has to give one up, so that a greedy member
//! leaves enough for the others.
//!
//! All limits that members share are decided here: connections, shards that are received, reads, small
//! requests, and entries of the books. A member has at most its share. Of the members that wait, the one
//! with the fewest places is next. A transfer that hardly moves loses its place to one that waits.
//!
//! Example with 8 places, of which a member may have 6: Ann asks for ten places. She gets six, and four
//! requests wait. Bob asks for three and gets the last two; his third request waits. The next place that
//! becomes free goes to Bob, because he has fewer places than Ann. If no place becomes free, the slowest
//! transfer that Bob's request could replace is ended, provided that it moves less than [`FLOOR_BYTES`]
//! in the time that it is given.

use std::collections::BTreeMap;

use codec::OwnerId;

use super::Millis;

/// A transfer is slow if it moves fewer bytes than this in the time that it is given.
pub const FLOOR_BYTES: u64 = 64 << 10;

/// How many of `all` places one member may have: three quarters, so that others get in.
pub const fn share_of(all: usize) -> usize {
    if all < 2 { 1 } else { all * 3 / 4 }
}

/// Who uses something: a member, and the grant by which it acts, if it acts by one. Before a certificate
/// is known, an address stands for the member. What a grant uses counts as its owner's, and one grant
/// gets at most half of what its owner may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Who<K> {
    /// The member. For a grant, the owner that gave it.
    pub member: K,
    /// The key of the grant; `None` if the member acts for itself.
    pub grant: Option<OwnerId>,
}

impl<K> Who<K> {
    /// A member that acts for itself.
    pub const fn itself(member: K) -> Self {
        Self {
            member,
            grant: None,
        }
    }
}

impl<K> From<K> for Who<K> {
    fn from(member: K) -> Self {
        Self::itself(member)
    }
}

/// How much each member has, and each grant of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tally<K: Ord>(BTreeMap<Who<K>, u64>);

impl<K: Ord> Default for Tally<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Copy> Tally<K> {
    fn get(&self, who: Who<K>) -> u64 {
        self.0.get(&who).copied().unwrap_or(0)
    }

    pub(super) fn of_member(&self, who: Who<K>) -> u64 {
        self.get(Who::itself(who.member))
    }

    /// All members, and how much each has, its grants included.
    pub(super) fn members(&self) -> impl Iterator<Item = (K, u64)> {
        let all = self.0.iter().filter(|(who, _)| who.grant.is_none());
        all.map(|(who, count)| (who.member, *count))
    }

    /// How much a grant has. Zero for a member that acts for itself.
    pub(super) fn of_grant(&self, who: Who<K>) -> u64 {
        who.grant.map_or(0, |_| self.get(who))
    }

    fn change(&mut self, who: Who<K>, change: impl Fn(u64) -> u64) {
        let both = [Some(Who::itself(who.member)), who.grant.map(|_| who)];
        for who in both.into_iter().flatten() {
            match change(self.get(who)) {
                0 => self.0.remove(&who),
                count => self.0.insert(who, count),
            };
        }
    }

    pub(super) fn add(&mut self, who: Who<K>, count: u64) {
        self.change(who, |before| before.saturating_add(count));
    }

    pub(super) fn take(&mut self, who: Who<K>, count: u64) {
        self.change(who, |before| before.saturating_sub(count));
    }
}

/// A supply that has a limit and is shared by members. A member may add to what it has only if it then
/// has no more than what is left for the others. So a single member gets half of all, and a member that
/// comes late still finds room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stock<K: Ord> {
    most: u64,
    all: u64,
    tally: Tally<K>,
}

impl<K: Ord + Copy> Stock<K> {
    /// A supply of `most`, all of it free.
    pub fn new(most: u64) -> Self {
        Self {
            most,
            all: 0,
            tally: Tally::default(),
        }
    }

    /// Whether `who` may add `more`.
    pub fn has_room(&self, who: Who<K>, more: u64) -> bool {
        let member = self.tally.of_member(who);
        let free = self.most.saturating_sub(self.all);
        // The member may have at most half of the free part and its own part together. That is the same
        // as: no more than what is left after it has added `more`.
        let allowed = (free.saturating_add(member)) / 2;
        let is_within = member.saturating_add(more) <= allowed;
        is_within
            && (who.grant.is_none() || self.tally.of_grant(who).saturating_add(more) <= allowed / 2)
    }

    /// Adds `count` without asking for room, for what is already on the disk.
    pub fn add(&mut self, who: Who<K>, count: u64) {
        self.all = self.all.saturating_add(count);
        self.tally.add(who, count);
    }

    /// Takes back `count` that was added for `who`.
    pub fn take(&mut self, who: Who<K>, count: u64) {
        self.all = self.all.saturating_sub(count);
        self.tally.take(who, count);
    }

    /// What all members have together.
    pub const fn all(&self) -> u64 {
        self.all
    }

    /// What a member has, its grants included.
    pub fn of(&self, member: K) -> u64 {
        self.tally.of_member(Who::itself(member))
    }
}

/// Measures how fast a transfer moves. Only the time counts in which the transfer waits for its peer, not
/// the time of the host's own disk or of the pace that the host's owner allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    waited_ms: u64,
    waits_since: Option<Millis>,
    moved: u64,
}

/// How slow a transfer is. The smallest value is the slowest transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slowness {
    /// Bytes that it moved in 1000 seconds of waiting.
    bytes_per_1000_s: u64,
    /// The largest number less the milliseconds of waiting: of two transfers that moved nothing, the one
    /// that has been silent for longer is the slower.
    until_ms: u64,
}

impl Meter {
    /// The transfer begins to wait for its peer.
    pub fn waits(&mut self, now: Millis) {
        self.waits_since.get_or_insert(now);
    }

    /// The peer sent or took `bytes`.
    pub fn moved(&mut self, now: Millis, bytes: u64) {
        self.waited_ms = self.waited(now);
        self.waits_since = None;
        self.moved = self.moved.saturating_add(bytes);
        if self.moved >= FLOOR_BYTES {
            *self = Self::default();
        }
    }

    fn waited(&self, now: Millis) -> u64 {
        let since = self.waits_since.unwrap_or(now);
        self.waited_ms.saturating_add(now.0.saturating_sub(since.0))
    }

    /// How slow the transfer is, if it moved fewer than [`FLOOR_BYTES`] in at least `given_ms` of waiting
    /// for its peer. `None` if it is not slow.
    pub fn slowness(&self, now: Millis, given_ms: u64) -> Option<Slowness> {
        let waited = self.waited(now);
        (waited >= given_ms.max(1)).then(|| Slowness {
            bytes_per_1000_s: self.moved.saturating_mul(1_000_000) / waited.max(1),
            until_ms: u64::MAX - waited,
        })
    }
}

/// One place, or one wait for a place. Later tickets have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// The answer to a request for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A place, which is taken until it is given back.
    In(Ticket),
    /// A position in the queue.
    Waits(Ticket),
    /// No place and no position: the queue is full, or the member has its share of it.
    Refused,
}

#[derive(Clone, Copy, Debug)]
struct Inside<K> {
    who: Who<K>,
    /// It was asked to give way and has not left yet.
    gives_way: bool,
}

/// All places of one kind, and the queue for them.
#[derive(Debug)]
pub struct Places<K: Ord> {
    places: usize,
    /// Most places of one member.
    share: usize,
    /// The last places, which only members get that have none.
    reserve: usize,
    queue: usize,
    next: u64,
    inside: BTreeMap<Ticket, Inside<K>>,
    waiting: BTreeMap<Ticket, Who<K>>,
    tally: Tally<K>,
    queued: Tally<K>,
}

impl<K: Ord + Copy> Places<K> {
    /// At least one place, and a queue for at most `queue` requests.
    pub fn new(places: usize, queue: usize) -> Self {
        Self {
            places: places.max(1),
            share: share_of(places),
            reserve: 0,
            queue,
            next: 0,
            inside: BTreeMap::new(),
            waiting: BTreeMap::new(),
            tally: Tally::default(),
            queued: Tally::default(),
        }
    }

    /// The same places, of which one member has at most `share`.
    #[must_use]
    pub fn with_share(mut self, share: usize) -> Self {
        self.share = self.share.min(share.max(1));
        self
    }

    /// The same places, the last `reserve` of which only members get that have none.
    #[must_use]
    pub fn with_reserve(mut self, reserve: usize) -> Self {
        self.reserve = reserve.min(self.places.saturating_sub(1));
        self
    }

    /// Whether no place is taken.
    pub fn is_empty(&self) -> bool {
        self.inside.is_empty()
    }

    /// How many places are taken.
    pub fn taken(&self) -> usize {
        self.inside.len()
    }

    /// Whether all places are taken.
    pub fn is_full(&self) -> bool {
        self.taken() >= self.places
    }

    /// Asks for a place.
    pub fn enter(&mut self, who: Who<K>) -> Entry {
        let ticket = self.ticket();
        if self.inside.len() < self.places && self.is_within(who) {
            self.take(ticket, who);
            return Entry::In(ticket);
        }
        if self.waiting.len() >= self.queue || !has_less(&self.queued, who, share_of(self.queue)) {
            return Entry::Refused;
        }
        self.waiting.insert(ticket, who);
        self.queued.add(who, 1);
        Entry::Waits(ticket)
    }

    /// Takes a place even if all are taken. In that case, of the member with the most places, the oldest
    /// place has to be given up; the second ticket of the result is that place.
    pub fn push_in(&mut self, who: Who<K>) -> (Ticket, Option<Ticket>) {
        let staying = self.inside.iter().filter(|(_, one)| !one.gives_way);
        let is_full = staying.clone().count() >= self.places;
        let pushed = staying
            .filter(|_| is_full)
            .map(|(ticket, one)| (self.tally.of_member(one.who), std::cmp::Reverse(*ticket)))
            .max()
            .map(|(_, std::cmp::Reverse(ticket))| ticket);
        self.mark(pushed);
        let ticket = self.ticket();
        self.take(ticket, who);
        (ticket, pushed)
    }

    /// Ends a place or a wait. Returns the ticket that gets the place that has become free.
    pub fn leave(&mut self, ticket: Ticket) -> Option<Ticket> {
        if let Some(who) = self.waiting.remove(&ticket) {
            self.queued.take(who, 1);
            return None;
        }
        let left = self.inside.remove(&ticket)?;
        self.tally.take(left.who, 1);
        self.admit()
    }

    /// Finds a place for `waiter`, whose wait has become long: chooses the slowest of the places that the
    /// waiter could have, marks it as giving way, and returns it. `slowness` is `None` for a place that
    /// is not slow. No more places give way than requests wait.
    pub fn give_way(
        &mut self,
        waiter: Ticket,
        slowness: impl Fn(Ticket) -> Option<Slowness>,
    ) -> Option<Ticket> {
        let who = *self.waiting.get(&waiter)?;
        // A member that has its share could not use the place of another member.
        let of = (!self.is_within(who)).then_some(who.member);
        let concerns = |one: &Who<K>| of.is_none_or(|member| member == one.member);
        let leaving = self.inside.values().filter(|one| one.gives_way);
        let leaving = leaving.filter(|one| concerns(&one.who)).count();
        let waiting = self.waiting.values().filter(|one| concerns(one)).count();
        if leaving >= waiting {
            return None;
        }
        self.slowest(of, slowness)
    }

    /// Chooses the slowest place, of one member or of all, and marks it as giving way.
    pub fn slowest(
        &mut self,
        of: Option<K>,
        slowness: impl Fn(Ticket) -> Option<Slowness>,
    ) -> Option<Ticket> {
        let staying = self.inside.iter().filter(|(_, one)| !one.gives_way);
        let slow = staying
            .filter(|(_, one)| of.is_none_or(|member| member == one.who.member))
            .filter_map(|(ticket, _)| Some((slowness(*ticket)?, *ticket)));
        let slowest = slow.min().map(|(_, ticket)| ticket);
        self.mark(slowest);
        slowest
    }

    fn mark(&mut self, ticket: Option<Ticket>) {
        if let Some(one) = ticket.and_then(|ticket| self.inside.get_mut(&ticket)) {
            one.gives_way = true;
        }
    }

    /// Gives a free place to the waiting request whose member has the fewest places; among equals, to the
    /// oldest request.
    fn admit(&mut self) -> Option<Ticket> {
        if self.inside.len() >= self.places {
            return None;
        }
        let may = self.waiting.iter().filter(|(_, who)| self.is_within(**who));
        let least = may.min_by_key(|&(ticket, who)| {
            (
                self.tally.of_member(*who),
                self.tally.of_grant(*who),
                *ticket,
            )
        });
        let (&ticket, &who) = least?;
        self.waiting.remove(&ticket);
        self.queued.take(who, 1);
        self.take(ticket, who);
        Some(ticket)
    }

    fn is_within(&self, who: Who<K>) -> bool {
        let is_new = self.tally.of_member(who) == 0;
        let open = self.places.saturating_sub(self.reserve);
        (is_new || self.inside.len() < open) && has_less(&self.tally, who, self.share)
    }

    fn take(&mut self, ticket: Ticket, who: Who<K>) {
        let gives_way = false;
        self.inside.insert(ticket, Inside { who, gives_way });
        self.tally.add(who, 1);
    }

    const fn ticket(&mut self) -> Ticket {
        self.next += 1;
        Ticket(self.next)
    }
}

/// Whether `who` has less than a share, and its grant less than half of one.
fn has_less<K: Ord + Copy>(tally: &Tally<K>, who: Who<K>, share: usize) -> bool {
    let (share, half) = (share as u64, (share / 2).max(1) as u64);
    tally.of_member(who) < share && (who.grant.is_none() || tally.of_grant(who) < half)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ANN: Who<u8> = Who::itself(1);
    const BOB: Who<u8> = Who::itself(2);
    const CYD: Who<u8> = Who::itself(3);

    fn granted(member: u8, grant: u8) -> Who<u8> {
        Who {
            member,
            grant: Some(OwnerId([grant; 32])),
        }
    }

    fn fill(places: &mut Places<u8>, who: Who<u8>) -> Vec<Ticket> {
        let mut inside = Vec::new();
        loop {
            match places.enter(who) {
                Entry::In(ticket) => inside.push(ticket),
                Entry::Waits(ticket) => {
                    places.leave(ticket);
                    return inside;
                }
                Entry::Refused => return inside,
            }
        }
    }

    #[test]
    fn one_member_leaves_a_quarter_and_one_grant_half_of_that() {
        let mut places = Places::new(8, 0);
        assert_eq!(fill(&mut places, granted(1, 9)).len(), 3);
        assert_eq!(fill(&mut places, granted(1, 8)).len(), 3);
        assert_eq!(fill(&mut places, ANN).len(), 0);
        assert_eq!(fill(&mut places, BOB).len(), 2);
        assert_eq!(fill(&mut Places::new(0, 0), ANN).len(), 1);
    }

    #[test]
    fn two_members_leave_the_last_places_to_those_that_have_none() {
        let mut places = Places::new(8, 0).with_reserve(2);
        assert_eq!(fill(&mut places, ANN).len(), 6);
        assert_eq!(fill(&mut places, BOB).len(), 1);
        assert_eq!(fill(&mut places, CYD).len(), 1);
        assert!(places.is_full());
    }

    #[test]
    fn the_member_with_the_least_is_next() {
        let mut places = Places::new(4, 8);
        let ann = fill(&mut places, ANN);
        let bob = fill(&mut places, BOB);
        assert_eq!((ann.len(), bob.len()), (3, 1));
        let Entry::Waits(of_bob) = places.enter(BOB) else {
            panic!("bob got a place");
        };
        let Entry::Waits(of_cyd) = places.enter(CYD) else {
            panic!("cyd got a place");
        };
        assert_eq!(places.leave(ann[0]), Some(of_cyd));
        assert_eq!(places.leave(ann[1]), Some(of_bob));
        assert_eq!(places.leave(ann[2]), None);
    }

    #[test]
    fn the_queue_has_shares_too() {
        let mut places = Places::new(1, 4);
        let _inside = places.enter(ANN);
        let mut waits = 0;
        while let Entry::Waits(_) = places.enter(ANN) {
            waits += 1;
            assert!(waits < 10);
        }
        assert_eq!(waits, 3);
        assert!(matches!(places.enter(BOB), Entry::Waits(_)));
        assert_eq!(places.enter(CYD), Entry::Refused);
    }

    #[test]
    fn the_slowest_gives_way_and_not_more_than_wait() {
        let mut places = Places::new(4, 8);
        let ann = fill(&mut places, ANN);
        let bob = fill(&mut places, BOB);
        let Entry::Waits(cyd) = places.enter(CYD) else {
            panic!("cyd got a place");
        };
        let slowness = |ticket: Ticket| {
            let mut meter = Meter::default();
            meter.waits(Millis(0));
            meter.moved(Millis(0), if ticket == bob[0] { 1 } else { 100 });
            meter.waits(Millis(0));
            meter.slowness(Millis(10_000), 10_000)
        };
        assert_eq!(places.give_way(cyd, |_| None), None);
        assert_eq!(places.give_way(cyd, slowness), Some(bob[0]));
        assert_eq!(places.give_way(cyd, slowness), None, "one is on its way");
        // Ann has her share, so only a place of her own can be given to her request.
        let Entry::Waits(of_ann) = places.enter(ANN) else {
            panic!("ann got more than her share");
        };
        assert_eq!(places.give_way(of_ann, slowness), Some(ann[0]));
        assert_eq!(places.leave(ann[0]), Some(cyd));
        assert_eq!(places.give_way(cyd, slowness), None, "it has its place");
    }

    #[test]
    fn a_newcomer_takes_the_oldest_place_of_the_greediest_member() {
        let mut places = Places::new(3, 0);
        let (first, none) = places.push_in(ANN);
        assert_eq!(none, None);
        places.push_in(BOB);
        let (second, _) = places.push_in(ANN);
        assert_eq!(places.push_in(CYD).1, Some(first));
        // It was asked and has not left yet, so it is not asked a second time.
        assert_eq!(places.push_in(CYD).1, Some(second));
        assert_eq!(places.leave(first), None);
    }

    #[test]
    fn only_waiting_for_the_peer_counts_as_slow() {
        let mut meter = Meter::default();
        assert_eq!(meter.slowness(Millis(60_000), 10_000), None);
        meter.waits(Millis(60_000));
        assert_eq!(meter.slowness(Millis(69_999), 10_000), None);
        assert!(meter.slowness(Millis(70_000), 10_000).is_some());
        meter.moved(Millis(70_000), FLOOR_BYTES - 1);
        assert!(meter.slowness(Millis(70_000), 10_000).is_some());
        meter.moved(Millis(70_001), 1);
        assert_eq!(meter.slowness(Millis(99_000), 10_000), None);
    }

    #[test]
    fn of_two_that_move_nothing_the_longer_silent_is_slower() {
        let silent_since = |since| {
            let mut meter = Meter::default();
            meter.waits(Millis(since));
            meter.slowness(Millis(50_000), 10_000)
        };
        assert!(silent_since(1_000) < silent_since(2_000));
    }

    #[test]
    fn a_late_member_finds_room_in_a_stock() {
        let mut stock = Stock::new(1000);
        for (who, expected) in [(ANN, 500), (BOB, 250), (CYD, 125)] {
            while stock.has_room(who, 1) {
                stock.add(who, 1);
            }
            assert_eq!(stock.of(who.member), expected);
        }
        assert!(!stock.has_room(ANN, 1) && stock.has_room(ANN, 0) == (stock.of(1) * 2 <= 625));
        stock.take(ANN, 500);
        assert_eq!((stock.of(1), stock.all()), (0, 375));
    }

    #[test]
    fn a_grant_gets_half_of_what_its_owner_may_have_in_a_stock() {
        let mut stock = Stock::new(1000);
        while stock.has_room(granted(1, 9), 1) {
            stock.add(granted(1, 9), 1);
        }
        assert_eq!(stock.of(1), 250);
        while stock.has_room(ANN, 1) {
            stock.add(ANN, 1);
        }
        assert_eq!(stock.of(1), 500);
    }

    #[derive(Clone, Debug)]
    enum Act {
        Enter(Who<u8>),
        Leave(usize),
        GiveWay(usize),
    }

    fn act() -> impl Strategy<Value = Act> {
        let who = (0..4_u8, prop::option::of(0..2_u8)).prop_map(|(member, grant)| Who {
            member,
            grant: grant.map(|grant| OwnerId([grant; 32])),
        });
        prop_oneof![
            3 => who.prop_map(Act::Enter),
            2 => any::<usize>().prop_map(Act::Leave),
            1 => any::<usize>().prop_map(Act::GiveWay),
        ]
    }

    /// Checks that no member has more than its share, and that no place is free that a waiting member
    /// could have.
    fn check(places: &Places<u8>) -> Result<(), TestCaseError> {
        prop_assert!(places.inside.len() <= places.places);
        prop_assert!(places.waiting.len() <= places.queue);
        let share = share_of(places.places) as u64;
        for (who, count) in &places.tally.0 {
            let most = if who.grant.is_some() {
                (share / 2).max(1)
            } else {
                share
            };
            prop_assert!(*count <= most, "{who:?} has {count}");
            let inside = places.inside.values().filter(|one| {
                one.who.member == who.member && (who.grant.is_none() || one.who.grant == who.grant)
            });
            prop_assert_eq!(inside.count() as u64, *count);
        }
        let could = places.waiting.values().any(|who| places.is_within(*who));
        prop_assert!(!could || places.inside.len() == places.places);
        Ok(())
    }

    proptest! {
        #[test]
        fn shares_hold_in_any_history(
            places in 1..9_usize, queue in 0..9_usize, acts in prop::collection::vec(act(), 0..200),
        ) {
            let mut places = Places::new(places, queue);
            let mut tickets: Vec<Ticket> = Vec::new();
            for act in acts {
                match act {
                    Act::Enter(who) => match places.enter(who) {
                        Entry::In(ticket) | Entry::Waits(ticket) => tickets.push(ticket),
                        Entry::Refused => {}
                    },
                    Act::Leave(at) if !tickets.is_empty() => {
                        let ticket = tickets.swap_remove(at % tickets.len());
                        let newcomers: Vec<Who<u8>> = places.waiting.values().copied()
                            .filter(|who| places.tally.of_member(*who) == 0).collect();
                        if let Some(next) = places.leave(ticket) {
                            let who = places.inside[&next].who;
                            let had = places.tally.of_member(who) - 1;
                            prop_assert!(had == 0 || newcomers.is_empty(), "{who:?} had {had}");
                        }
                    }
                    Act::GiveWay(at) if !tickets.is_empty() => {
                        let mut meter = Meter::default();
                        meter.waits(Millis(0));
                        let slow = |_| meter.slowness(Millis(20_000), 10_000);
                        places.give_way(tickets[at % tickets.len()], slow);
                        let leaving = places.inside.values().filter(|one| one.gives_way).count();
                        prop_assert!(leaving <= places.places);
                    }
                    _ => {}
                }
                check(&places)?;
            }
            for ticket in tickets {
                places.leave(ticket);
            }
            prop_assert!(places.is_empty() && places.tally.0.is_empty() && places.queued.0.is_empty());
        }

        #[test]
        fn no_member_adds_more_to_a_stock_than_it_leaves(
            acts in prop::collection::vec((0..5_u8, 1..40_u64, any::<bool>()), 0..300),
        ) {
            let mut stock = Stock::new(1000);
            for (member, count, adds) in acts {
                let who = Who::itself(member);
                if !adds {
                    stock.take(who, count.min(stock.of(member)));
                } else if stock.has_room(who, count) {
                    stock.add(who, count);
                    prop_assert!(stock.of(member) <= 1000 - stock.all());
                }
            }
        }
    }
}
