//! Waits for the next round. The wait ends early if the machine was suspended or the program was stopped
//! meanwhile: other hosts may then have heard notices that this one missed.

use std::time::Duration;

use tokio::time::Instant;

/// The wait consists of steps of this length. After each step it is checked how long the step really
/// took.
const STEP: Duration = Duration::from_secs(2);

/// A step may take this much longer because the machine is busy. If it took longer still, the machine was
/// suspended or the program stopped.
const LOST_MAX: Duration = Duration::from_secs(4);

/// Pause after an absence, until the network is there again.
const SETTLING: Duration = Duration::from_secs(1);

/// A wait lasts at least this long, even after an absence. Otherwise a machine that loses time in every
/// step would run one round after the other.
const SHORTEST_WAIT: Duration = Duration::from_secs(5);

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waking {
    /// The whole time has passed.
    InTime,
    /// Nothing ran here for a while, and the wait was cut short.
    AfterAbsence,
}

/// Waits for `time`, or until shortly after an absence.
pub(super) async fn sleep(time: Duration) -> Waking {
    let began = Instant::now();
    let until = began + time;
    let mut was_away = false;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return match was_away {
                true => Waking::AfterAbsence,
                false => Waking::InTime,
            };
        }
        if was_away && began.elapsed() >= SHORTEST_WAIT {
            tokio::time::sleep(SETTLING.min(left)).await;
            return Waking::AfterAbsence;
        }
        let step = left.min(STEP);
        let before = uptime();
        tokio::time::sleep(step).await;
        was_away |= excess(before, uptime(), step) > LOST_MAX;
    }
}

/// How much longer than `step` a step took, by the uptime before and after it. Zero if the uptime is
/// unknown.
fn excess(before: Option<Duration>, after: Option<Duration>, step: Duration) -> Duration {
    match (before, after) {
        (Some(before), Some(after)) => after.saturating_sub(before).saturating_sub(step),
        _ => Duration::ZERO,
    }
}

/// Time since the machine was started, time of suspension included. The clock of tokio's timers stands
/// still while the machine is suspended.
fn uptime() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/uptime").ok()?;
    let seconds: f64 = text.split(' ').next()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_is_lost_is_what_a_step_took_longer() {
        let at = |seconds| Some(Duration::from_secs(seconds));
        let step = Duration::from_secs(2);
        assert_eq!(excess(at(10), at(12), step), Duration::ZERO);
        assert_eq!(excess(at(10), at(11), step), Duration::ZERO);
        assert_eq!(excess(at(10), at(100), step), Duration::from_secs(88));
        assert_eq!(excess(None, at(100), step), Duration::ZERO);
        assert!(uptime().is_some());
    }

    #[tokio::test]
    async fn a_short_wait_takes_its_time() {
        let began = Instant::now();
        assert_eq!(sleep(Duration::from_millis(300)).await, Waking::InTime);
        assert!(began.elapsed() >= Duration::from_millis(300));
    }
}
