//! Whether and when a save begins again that lost its hosts to too many transfers.
//!
//! A host with more transfers than it can take drops the slowest. Blocks that the other hosts have acknowledged
//! are gone from memory by then, so that a dropped shard can't be sent again if fewer hosts than data shards are
//! left. An image that is still there can be read and sent again when the other transfers have ended.

use std::time::Duration;

use crate::agent::handle::random;
use crate::agent::{SaveInput, SaveRequest};
use crate::core::save::CROWDED_MS;
use crate::report::Failure;

/// Without a deadline, no save begins again later than this after its beginning.
const BEGIN_AGAIN_MAX: Duration = Duration::from_millis(CROWDED_MS);

/// The least wait before the second session; doubles each time.
const WAIT_MIN: Duration = Duration::from_secs(2);

/// Most sessions that begin because this machine slept.
const AFTER_SLEEP_MAX: u32 = 16;

/// Most doublings of the wait.
const DOUBLINGS_MAX: u32 = 4;

/// The restarts of a save.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restarts {
    /// When the last session has to begin, after the beginning of the save. `None`: there is only one session.
    last_begin: Option<Duration>,
    done: u32,
    /// How often the save began again because this machine slept.
    after_sleep: u32,
    /// The deadline of the save.
    deadline: Option<Duration>,
    /// Differs between clients, which were dropped at the same time and should not return at the same time.
    draw: u64,
}

impl Restarts {
    /// Those of a save that begins. A stream can be read only once, and a save that follows a
    /// checkpoint has proposed its own to the witnesses: both have one session.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub(super) fn of(request: &SaveRequest) -> Result<Self, Failure> {
        let is_there = matches!(request.input, SaveInput::Paths(_) | SaveInput::Named(_));
        let may_repeat = is_there && request.options.after.is_none();
        let end = request.options.deadline.unwrap_or(BEGIN_AGAIN_MAX);
        Ok(Self {
            last_begin: may_repeat.then_some(end),
            done: 0,
            after_sleep: 0,
            deadline: request.options.deadline,
            draw: u64::from(u32::from_le_bytes(random()?)),
        })
    }

    /// Whether the image can be read again, and saved as another checkpoint.
    pub(super) const fn may_repeat(&self) -> bool {
        self.last_begin.is_some()
    }

    /// The wait before the next session, `elapsed` after the beginning of the save; `None` if the save ends.
    /// `crowded_for` is the wait that a host with too many transfers named, if there was one.
    pub(super) fn next(
        &mut self,
        crowded_for: Option<Duration>,
        elapsed: Duration,
    ) -> Option<Duration> {
        let named = crowded_for?;
        let last_begin = self.last_begin?;
        let least = named.max(WAIT_MIN * 2_u32.pow(self.done.min(DOUBLINGS_MAX)));
        let share = (self.draw.wrapping_mul(u64::from(self.done) + 1) % 1_000) as f64 / 1_000.0;
        let wait = least.mul_f64(1.0 + share);
        self.done += 1;
        (elapsed + wait < last_begin).then_some(wait)
    }
}

impl Restarts {
    /// The wait before the next session, after this machine slept, `elapsed` after the beginning of the save; `None`
    /// if the save ends.
    pub(super) fn after_sleep(&mut self, elapsed: Duration) -> Option<Duration> {
        self.last_begin?;
        self.after_sleep += 1;
        let is_in_time = self.deadline.is_none_or(|deadline| elapsed < deadline);
        (self.after_sleep <= AFTER_SLEEP_MAX && is_in_time).then_some(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn restarts(last_begin: Option<Duration>) -> Restarts {
        Restarts {
            last_begin,
            done: 0,
            after_sleep: 0,
            deadline: None,
            draw: 77,
        }
    }

    #[test]
    fn a_save_begins_again_later_each_time_and_never_after_its_end() {
        let mut restarts = restarts(Some(BEGIN_AGAIN_MAX));
        let mut elapsed = Duration::ZERO;
        let mut sessions = 0;
        while let Some(wait) = restarts.next(Some(Duration::from_secs(1)), elapsed) {
            assert!(wait >= WAIT_MIN && wait <= WAIT_MIN * 2 * 16, "{wait:?}");
            elapsed += wait;
            sessions += 1;
            assert!(elapsed < BEGIN_AGAIN_MAX);
        }
        assert!((5..30).contains(&sessions), "{sessions}");
    }

    #[test]
    fn a_save_that_lacks_hosts_for_another_reason_ends() {
        let mut restarts = restarts(Some(BEGIN_AGAIN_MAX));
        assert_eq!(restarts.next(None, Duration::ZERO), None);
    }

    #[test]
    fn a_save_begins_again_after_each_sleep_until_its_deadline() {
        let night = Duration::from_secs(8 * 3600);
        let mut restarts = restarts(Some(BEGIN_AGAIN_MAX));
        for _ in 0..AFTER_SLEEP_MAX {
            assert_eq!(restarts.after_sleep(night), Some(Duration::ZERO));
        }
        assert_eq!(restarts.after_sleep(night), None);
        restarts.after_sleep = 0;
        restarts.deadline = Some(night);
        assert_eq!(restarts.after_sleep(night), None);
    }

    #[test]
    fn a_stream_is_not_read_twice() {
        let mut restarts = restarts(None);
        let crowded = Some(Duration::from_secs(1));
        assert_eq!(restarts.next(crowded, Duration::ZERO), None);
        assert_eq!(restarts.after_sleep(Duration::ZERO), None);
    }
}
