//! Notices that this machine, or this process, slept: it was suspended or stopped. Hosts are not to blame for what
//! did not happen meanwhile.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinHandle;

/// Time between two looks at the clocks.
const LOOK_PERIOD: Duration = Duration::from_millis(500);

/// A longer time between two looks is sleep. A machine with too much to do is late by less.
const SLEPT_MIN: Duration = Duration::from_secs(5);

/// What the clocks showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    /// The time since the start of the machine, with the time in which it was suspended.
    with_suspension: Duration,
    /// The same without that time: what timers count.
    timers: Duration,
}

impl Look {
    fn now() -> Self {
        let read = |clock| {
            let time = clock_gettime(clock);
            let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
            let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
            Duration::from_secs(seconds) + Duration::from_nanos(nanoseconds)
        };
        Self {
            with_suspension: read(ClockId::Boottime),
            timers: read(ClockId::Monotonic),
        }
    }
}

/// How long it was slept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slept {
    /// How often.
    pub(crate) times: u32,
    /// How long in all.
    pub(crate) all: Duration,
    /// How much of that the timers counted.
    pub(crate) by_timers: Duration,
}

#[derive(Debug)]
struct Clocks {
    last: Look,
    slept: Slept,
}

impl Clocks {
    fn look(&mut self, now: Look) -> Slept {
        let gap = now
            .with_suspension
            .saturating_sub(self.last.with_suspension);
        if gap >= SLEPT_MIN {
            self.slept.times += 1;
            self.slept.all += gap;
            self.slept.by_timers += now.timers.saturating_sub(self.last.timers);
        }
        self.last = now;
        self.slept
    }
}

/// Looks at the clocks all the time, for as long as it exists.
#[derive(Debug)]
pub(crate) struct SleepWatch {
    clocks: Arc<Mutex<Clocks>>,
    looking: JoinHandle<()>,
}

impl SleepWatch {
    /// Begins to watch.
    pub(crate) fn start() -> Self {
        let last = Look::now();
        let slept = Slept::default();
        let clocks = Arc::new(Mutex::new(Clocks { last, slept }));
        let looked_at = Arc::clone(&clocks);
        let looking = tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK_PERIOD).await;
                lock(&looked_at).look(Look::now());
            }
        });
        Self { clocks, looking }
    }

    /// How long it was slept since the start.
    pub(crate) fn slept(&self) -> Slept {
        lock(&self.clocks).look(Look::now())
    }
}

impl Drop for SleepWatch {
    fn drop(&mut self) {
        self.looking.abort();
    }
}

fn lock(clocks: &Mutex<Clocks>) -> MutexGuard<'_, Clocks> {
    clocks.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_gap_is_sleep_and_suspension_counts_although_timers_do_not_see_it() {
        let at = |with_suspension, timers| Look {
            with_suspension: Duration::from_millis(with_suspension),
            timers: Duration::from_millis(timers),
        };
        let mut clocks = Clocks {
            last: at(1000, 500),
            slept: Slept::default(),
        };
        assert_eq!(clocks.look(at(1500, 1000)), Slept::default());
        assert_eq!(clocks.look(at(5500, 5000)), Slept::default());
        // Stopped: the timers went on.
        let stopped = clocks.look(at(30_500, 30_000));
        assert_eq!((stopped.times, stopped.by_timers.as_secs()), (1, 25));
        // Suspended: they did not.
        let suspended = clocks.look(at(3_630_500, 30_100));
        assert_eq!((suspended.times, suspended.by_timers.as_secs()), (2, 25));
        assert_eq!(suspended.all.as_secs(), 3625);
    }
}
