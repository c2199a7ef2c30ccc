//! The clock of a supervisor. It counts the time that the machine sleeps, and never goes back.

use std::fs;
use std::time::Instant;

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

#[cfg(test)]
mod tests {
    use super::*;

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
