//! Pools of places for connections and requests. [`crate::core::places`] decides who gets a place; this
//! module lets tasks wait and wakes them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use crate::clock::Clock;
use crate::core::places::{Entry, Meter, Places, Slowness, Ticket, Who};

/// A request waits at most this long for a place before it is refused as busy.
pub const PLACE_TIMEOUT: Duration = Duration::from_secs(3);

/// A waiting request checks this often whether a slow transfer occupies a place that it could have.
const HURRY_PERIOD: Duration = Duration::from_millis(250);

/// The size of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// How many places there are.
    pub places: usize,
    /// How many requests may wait for a place; with 0 none does.
    pub queue: usize,
}

/// What one member may have of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Most places of one member.
    pub most: usize,
    /// The last places, which only members get that have none.
    pub reserve: usize,
}

/// Places of one kind. `K` names members.
#[derive(Debug)]
pub struct Pool<K: Ord + Copy> {
    clock: Clock,
    /// A transfer has to move [`crate::core::places::FLOOR_BYTES`] in this time while others wait.
    given_ms: u64,
    state: Mutex<State<K>>,
    left: Notify,
}

#[derive(Debug)]
struct State<K: Ord + Copy> {
    places: Places<K>,
    pulses: BTreeMap<Ticket, Arc<Pulse>>,
    waiting: BTreeMap<Ticket, oneshot::Sender<()>>,
}

/// The progress of a transfer that has a place, and the signal to give way.
#[derive(Debug, Default)]
struct Pulse {
    meter: Mutex<Meter>,
    gives_way: Notify,
}

/// A place in a pool. It is given back when this value is dropped.
#[derive(Debug)]
pub struct Place<K: Ord + Copy> {
    pool: Arc<Pool<K>>,
    ticket: Ticket,
    pulse: Arc<Pulse>,
}

impl<K: Ord + Copy> Pool<K> {
    /// A pool of which all places are free. A transfer that moves too little in `given` loses its place
    /// if others wait.
    pub fn new(size: Size, clock: Clock, given: Duration) -> Arc<Self> {
        let share = Share {
            most: usize::MAX,
            reserve: 0,
        };
        Self::with_share(size, share, clock, given)
    }

    /// As [`Self::new`]; one member has at most `share` of the places.
    pub fn with_share(size: Size, share: Share, clock: Clock, given: Duration) -> Arc<Self> {
        Arc::new(Self {
            clock,
            given_ms: u64::try_from(given.as_millis()).unwrap_or(u64::MAX),
            state: Mutex::new(State {
                places: Places::new(size.places, size.queue)
                    .with_share(share.most)
                    .with_reserve(share.reserve),
                pulses: BTreeMap::new(),
                waiting: BTreeMap::new(),
            }),
            left: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many places are taken.
    pub fn taken(&self) -> usize {
        self.state().places.taken()
    }

    /// Whether all places are taken.
    pub fn is_full(&self) -> bool {
        self.state().places.is_full()
    }

    /// A place if one is free now, `None` otherwise.
    pub fn try_enter(self: &Arc<Self>, who: Who<K>) -> Option<Place<K>> {
        self.ask(who)
            .filter(|(_, waits)| waits.is_none())
            .map(|(place, _)| place)
    }

    /// Waits for a place for at most [`PLACE_TIMEOUT`]. A slow transfer that occupies a place has to give
    /// way.
    pub async fn enter(self: &Arc<Self>, who: Who<K>) -> Option<Place<K>> {
        let (place, waits) = self.ask(who)?;
        let Some(mut granted) = waits else {
            return Some(place);
        };
        let mut hurry = tokio::time::interval(HURRY_PERIOD);
        let waiting = async {
            loop {
                tokio::select! {
                    biased;
                    granted = &mut granted => return granted.is_ok(),
                    _ = hurry.tick() => self.hurry(place.ticket),
                }
            }
        };
        // Without a grant, dropping `place` leaves the queue. With a grant that came too late, it passes
        // the place on.
        let granted = timeout(PLACE_TIMEOUT, waiting).await;
        granted.unwrap_or(false).then_some(place)
    }

    /// Takes a place even if all are taken. In that case, of the member with the most places, the oldest
    /// place has to be given up.
    pub fn push_in(self: &Arc<Self>, who: Who<K>) -> Place<K> {
        let mut state = self.state();
        let (ticket, pushed) = state.places.push_in(who);
        state.wake(pushed);
        let pulse = state.pulse(ticket);
        drop(state);
        self.place(ticket, pulse)
    }

    /// Has the slowest transfer give way, of one member or of all, and waits for at most `limit` until a
    /// place is given back. Returns false if no transfer is slow or the time is over.
    pub async fn cleared(&self, of: Option<K>, limit: Duration) -> bool {
        let mut left = std::pin::pin!(self.left.notified());
        // From here on, no place is given back unnoticed.
        left.as_mut().enable();
        let is_one_slow = {
            let mut state = self.state();
            let State { places, pulses, .. } = &mut *state;
            let slowest = places.slowest(of, |ticket| self.slowness(pulses, ticket));
            state.wake(slowest);
            slowest.is_some()
        };
        is_one_slow && timeout(limit, left).await.is_ok()
    }

    /// Waits until no place is taken.
    pub async fn empty(&self) {
        loop {
            let mut left = std::pin::pin!(self.left.notified());
            left.as_mut().enable();
            if self.state().places.is_empty() {
                return;
            }
            left.await;
        }
    }

    fn ask(self: &Arc<Self>, who: Who<K>) -> Option<(Place<K>, Option<oneshot::Receiver<()>>)> {
        let mut state = self.state();
        let (ticket, waits) = match state.places.enter(who) {
            Entry::In(ticket) => (ticket, None),
            Entry::Waits(ticket) => {
                let (grant, granted) = oneshot::channel();
                state.waiting.insert(ticket, grant);
                (ticket, Some(granted))
            }
            Entry::Refused => return None,
        };
        let pulse = state.pulse(ticket);
        drop(state);
        Some((self.place(ticket, pulse), waits))
    }

    fn place(self: &Arc<Self>, ticket: Ticket, pulse: Arc<Pulse>) -> Place<K> {
        Place {
            pool: Arc::clone(self),
            ticket,
            pulse,
        }
    }

    fn hurry(&self, waiter: Ticket) {
        let mut state = self.state();
        let State { places, pulses, .. } = &mut *state;
        let slowest = places.give_way(waiter, |ticket| self.slowness(pulses, ticket));
        state.wake(slowest);
    }

    fn slowness(&self, pulses: &BTreeMap<Ticket, Arc<Pulse>>, of: Ticket) -> Option<Slowness> {
        let meter = *pulses.get(&of)?.meter();
        meter.slowness(self.clock.now(), self.given_ms)
    }
}

impl<K: Ord + Copy> State<K> {
    fn pulse(&mut self, ticket: Ticket) -> Arc<Pulse> {
        Arc::clone(self.pulses.entry(ticket).or_default())
    }

    fn wake(&self, gives_way: Option<Ticket>) {
        if let Some(pulse) = gives_way.and_then(|ticket| self.pulses.get(&ticket)) {
            pulse.gives_way.notify_one();
        }
    }
}

impl Pulse {
    fn meter(&self) -> MutexGuard<'_, Meter> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord + Copy> Place<K> {
    /// Notes that the transfer waits for its peer from now on.
    pub fn waits(&self) {
        self.pulse.meter().waits(self.pool.clock.now());
    }

    /// Notes that the peer sent or took `bytes`.
    pub fn moved(&self, bytes: usize) {
        let now = self.pool.clock.now();
        self.pulse.meter().moved(now, bytes as u64);
    }

    /// Ends when this place has to be given up.
    pub async fn gives_way(&self) {
        self.pulse.gives_way.notified().await;
    }
}

impl<K: Ord + Copy> Drop for Place<K> {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        state.pulses.remove(&self.ticket);
        state.waiting.remove(&self.ticket);
        let next = state.places.leave(self.ticket);
        if let Some(grant) = next.and_then(|next| state.waiting.remove(&next)) {
            // An error means that the request stopped waiting just now. Its `Place` is dropped and passes
            // the place on.
            let _ = grant.send(());
        }
        drop(state);
        self.pool.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: Who<u8> = Who::itself(1);
    const BOB: Who<u8> = Who::itself(2);
    const CYD: Who<u8> = Who::itself(3);

    fn pool(places: usize, queue: usize, given: Duration) -> Arc<Pool<u8>> {
        Pool::new(Size { places, queue }, Clock::start(), given)
    }

    #[tokio::test]
    async fn a_waiting_request_gets_the_place_of_one_that_ends() {
        let pool = pool(2, 2, Duration::from_secs(3600));
        let ann = pool.try_enter(ANN).unwrap();
        let bob = pool.try_enter(BOB).unwrap();
        assert!(pool.try_enter(CYD).is_none());
        let waiting = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { pool.enter(CYD).await.is_some() }
        });
        tokio::task::yield_now().await;
        drop(ann);
        assert!(waiting.await.unwrap());
        drop(bob);
        pool.empty().await;
        let state = pool.state();
        assert!(state.pulses.is_empty() && state.waiting.is_empty());
    }

    #[tokio::test]
    async fn a_request_that_stops_waiting_leaves_nothing_behind() {
        let pool = pool(1, 1, Duration::from_secs(3600));
        let ann = pool.try_enter(ANN).unwrap();
        let waiting = timeout(Duration::from_millis(5), pool.enter(BOB)).await;
        assert!(waiting.is_err());
        drop(ann);
        assert!(pool.try_enter(CYD).is_some());
        pool.empty().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_a_place_as_long_as_it_may_and_no_longer() {
        let clock = Clock::start();
        let pool = Pool::new(
            Size {
                places: 1,
                queue: 1,
            },
            clock,
            Duration::from_secs(3600),
        );
        let ann = pool.try_enter(ANN).unwrap();
        assert!(pool.enter(BOB).await.is_none());
        assert_eq!(clock.uptime(), PLACE_TIMEOUT);
        let waiting = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { pool.enter(CYD).await.is_some() }
        });
        tokio::time::sleep(PLACE_TIMEOUT - Duration::from_millis(1)).await;
        drop(ann);
        assert!(waiting.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_transfer_gives_way_once_it_moved_too_little_for_the_given_time() {
        let given = Duration::from_secs(2);
        let clock = Clock::start();
        let pool = pool(1, 1, given);
        let ann = pool.try_enter(ANN).unwrap();
        ann.waits();
        let serving = tokio::spawn(async move { ann.gives_way().await });
        assert!(pool.enter(BOB).await.is_some());
        serving.await.unwrap();
        let took = clock.uptime();
        assert!(
            took >= given && took <= given + 2 * HURRY_PERIOD,
            "{took:?}"
        );
    }

    #[tokio::test]
    async fn slow_transfers_give_way_only_to_waiting_requests() {
        let pool = pool(1, 1, Duration::ZERO);
        let ann = pool.try_enter(ANN).unwrap();
        assert!(
            !pool.cleared(None, PLACE_TIMEOUT).await,
            "it waits for nobody"
        );
        ann.waits();
        tokio::time::sleep(Duration::from_millis(2)).await;
        let serving = tokio::spawn(async move { ann.gives_way().await });
        assert!(pool.enter(BOB).await.is_some());
        serving.await.unwrap();
    }
}
