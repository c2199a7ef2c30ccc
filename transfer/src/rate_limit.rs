//! Keeps transfers within a rate, over all connections together.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// This much time's worth of bytes may pass at once before a transfer has to wait.
const BURST: Duration = Duration::from_millis(100);

/// The limit on one direction of all transfers.
#[derive(Debug, Default)]
pub struct RateLimit {
    /// The time at which everything that has passed so far would have passed at the rate.
    paid_until: Mutex<Option<Instant>>,
}

impl RateLimit {
    /// Waits until `bytes` may pass at `rate` bytes per second; `None` is no limit.
    pub async fn pass(&self, bytes: usize, rate: Option<f64>) {
        let Some(rate) = rate else { return };
        let wait = self.book(Instant::now(), bytes, rate);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// Books the time that `bytes` take at `rate`. Returns how long to wait before they may pass.
    fn book(&self, now: Instant, bytes: usize, rate: f64) -> Duration {
        let cost = Duration::try_from_secs_f64(bytes as f64 / rate).unwrap_or(Duration::MAX);
        let mut paid_until = self
            .paid_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let begin = paid_until.map_or(now, |until| until.max(now));
        *paid_until = begin.checked_add(cost).or(*paid_until);
        begin.duration_since(now).saturating_sub(BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_transfers_stay_within_the_rate() {
        let limit = RateLimit::default();
        let now = Instant::now();
        let waits: Vec<Duration> = (0..5).map(|_| limit.book(now, 500, 1000.0)).collect();
        let seconds: Vec<f64> = waits.iter().map(Duration::as_secs_f64).collect();
        assert_eq!(seconds, [0.0, 0.4, 0.9, 1.4, 1.9]);
        let later = now + Duration::from_secs(60);
        assert_eq!(limit.book(later, 500, 1000.0), Duration::ZERO);
    }

    #[tokio::test]
    async fn without_a_limit_no_transfer_waits() {
        let limit = RateLimit::default();
        for _ in 0..1000 {
            limit.pass(1 << 30, None).await;
        }
        assert!(limit.paid_until.lock().unwrap().is_none());
    }
}
