//! The clock of a supervisor. It counts the time that the machine sleeps, and never goes back.

use std::fs;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use supervision::Millis;

/// Milliseconds since the machine started, with a resolution of 10 ms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// Replaces the start of the machine if `/proc/uptime` can't be read.
    started: Instant,
}

impl Clock {
    /// A clock that counts from the start of the machine.
    pub(super) fn new() -> Self {
        Self {
            started: Instant::now(),
        }
    }

    /// Milliseconds since the machine was started; where that is not known, since this clock was made.
    pub(super) fn now(&self) -> Millis {
        let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
        let up = text.split_whitespace().next().and_then(milliseconds);
        let since = || u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Millis(up.unwrap_or_else(since))
    }
}

fn milliseconds(text: &str) -> Option<u64> {
    let (whole, hundredths) = text.split_once('.')?;
    let (whole, hundredths): (u64, u64) = (whole.parse().ok()?, hundredths.parse().ok()?);
    Some(whole * 1000 + hundredths * 10)
}

/// Notices that the machine was suspended: the time by which one clock of the system stands still meanwhile. Unlike
/// `ckpt_agent`'s watch, it does not count that this process was stopped, while which the job works.
#[derive(Debug)]
pub(super) struct SuspensionWatch {
    asleep_ms: u64,
}

impl SuspensionWatch {
    /// Watches from now on.
    pub(super) fn new() -> Self {
        Self {
            asleep_ms: asleep_ms(),
        }
    }

    /// How long the machine has slept since the last call, milliseconds.
    pub(super) fn slept_ms(&mut self) -> u64 {
        self.slept_until(asleep_ms())
    }

    fn slept_until(&mut self, now: u64) -> u64 {
        let slept = now.saturating_sub(std::mem::replace(&mut self.asleep_ms, now));
        if slept < SLEEP_MIN_MS { 0 } else { slept }
    }
}

/// Shorter sleeps are errors of reading two clocks one after the other, milliseconds.
const SLEEP_MIN_MS: u64 = 500;

/// How long the machine has slept since its start, milliseconds.
fn asleep_ms() -> u64 {
    let awake = awake_ms();
    read_ms(ClockId::Boottime).saturating_sub(awake)
}

/// How long the machine was awake since its start, milliseconds.
pub(super) fn awake_ms() -> u64 {
    read_ms(ClockId::Monotonic)
}

fn read_ms(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let whole = u64::try_from(now.tv_sec).unwrap_or_default();
    whole * 1000 + u64::try_from(now.tv_nsec).unwrap_or_default() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_is_noticed_once_and_an_awake_machine_has_not_slept() {
        let mut watch = SuspensionWatch::new();
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert_eq!(watch.slept_ms(), 0);
        let before = watch.asleep_ms;
        assert_eq!(watch.slept_until(before + 3_600_000), 3_600_000);
        assert_eq!(watch.slept_until(before + 3_600_010), 0);
    }

    #[test]
    fn the_clock_is_read_in_milliseconds_and_goes_on() {
        assert_eq!(milliseconds("12345.67"), Some(12_345_670));
        assert_eq!(milliseconds("x"), None);
        let clock = Clock::new();
        let first = clock.now();
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert!(clock.now().since(first) >= 10 && first.0 > 0);
    }
}
