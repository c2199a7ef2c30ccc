//! The clocks of a daemon or a registry.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::core::Millis;

/// Two clocks: a monotonic clock and the wall clock. The monotonic clock is tokio's, as that of timers is, so
/// a test that stops tokio's time stops both.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
}

impl Clock {
    /// A monotonic clock that starts now.
    pub fn start() -> Self {
        Self {
            started: Instant::now(),
        }
    }

    /// The time since the start.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// The time of the monotonic clock.
    pub fn now(&self) -> Millis {
        Millis::default().after(self.uptime())
    }

    /// The time of the wall clock, in Unix seconds.
    pub fn unix_seconds(&self) -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_clock_stands_still_with_tokios_time_and_goes_on_with_its_timers() {
        let clock = Clock::start();
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(clock.uptime(), Duration::ZERO);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(clock.now(), Millis(3_600_000));
    }
}
