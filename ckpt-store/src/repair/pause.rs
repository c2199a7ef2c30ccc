//! Waits for the next round, and notices when the machine slept or the program was stopped meanwhile:
//! then other hosts may have heard what this one did not.

use std::time::Duration;

use tokio::time::Instant;

/// How often it is looked whether time was lost.
const LOOK_PERIOD: Duration = Duration::from_secs(2);

/// Time that is lost on a machine that is only busy. Who is away for longer may have missed a notice.
const LOST_MAX: Duration = Duration::from_secs(4);

/// After an absence the network may need a moment.
const SETTLING: Duration = Duration::from_secs(1);

/// A wait is not cut short before this much of it has passed, so that a machine on which time is lost all
/// the time does not look all the time.
const LEAST: Duration = Duration::from_secs(5);

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waking {
    /// The time is over.
    InTime,
    /// Time was lost: nothing ran here for a while.
    AfterAbsence,
}

/// Waits for so long, or until shortly after time was lost.
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
        if was_away && began.elapsed() >= LEAST {
            tokio::time::sleep(SETTLING.min(left)).await;
            return Waking::AfterAbsence;
        }
        let step = left.min(LOOK_PERIOD);
        let before = uptime();
        tokio::time::sleep(step).await;
        was_away |= lost(before, uptime(), step) > LOST_MAX;
    }
}

/// How much longer than `step` it took.
fn lost(before: Option<Duration>, after: Option<Duration>, step: Duration) -> Duration {
    match (before, after) {
        (Some(before), Some(after)) => after.saturating_sub(before).saturating_sub(step),
        _ => Duration::ZERO,
    }
}

/// Time since the machine was started, including that in which it slept: the clock of timers stands
/// still then.
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
        assert_eq!(lost(at(10), at(12), step), Duration::ZERO);
        assert_eq!(lost(at(10), at(11), step), Duration::ZERO);
        assert_eq!(lost(at(10), at(100), step), Duration::from_secs(88));
        assert_eq!(lost(None, at(100), step), Duration::ZERO);
        assert!(uptime().is_some());
    }

    #[tokio::test]
    async fn a_short_wait_takes_its_time() {
        let began = Instant::now();
        assert_eq!(sleep(Duration::from_millis(300)).await, Waking::InTime);
        assert!(began.elapsed() >= Duration::from_millis(300));
    }
}
