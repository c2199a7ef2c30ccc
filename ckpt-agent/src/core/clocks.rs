//! What time it is, where this machine's clock or those of hosts may be wrong.

use codec::notice::{agreed_clock, latest_clock};
use health::ahead;

/// Seconds by which clocks may differ without harm.
pub const CLOCKS_DIFFER_MAX: u64 = 300;

/// The time of day by several clocks at one moment, Unix seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    /// This machine's clock.
    pub own: u64,
    /// Clocks of hosts.
    pub hosts: Vec<u64>,
}

impl Clocks {
    /// The clocks of hosts, as they would show the time `own` of this machine's clock. Of each host: its time, and
    /// this machine's when it was heard.
    pub fn heard(own: u64, hosts: impl Iterator<Item = (u64, u64)>) -> Self {
        let hosts = hosts.map(|(at, heard)| own.saturating_add_signed(ahead(at, heard)));
        Self {
            own,
            hosts: hosts.collect(),
        }
    }

    /// The time after which a version is from the future: not before this machine's clock nor before that of most
    /// hosts.
    pub fn latest(&self) -> u64 {
        latest_clock(self.own, self.hosts.clone())
    }

    /// The time by which something is deleted for its age: not after this machine's clock nor after that of most
    /// hosts.
    pub fn agreed(&self) -> u64 {
        agreed_clock(self.own, self.hosts.clone()).unwrap_or(self.own)
    }

    /// Seconds by which a time is ahead of most hosts' clocks, if that matters.
    pub fn ahead(&self, time: u64) -> Option<u64> {
        let mut hosts = self.hosts.clone();
        hosts.sort_unstable();
        let middle = *hosts.get(hosts.len() / 2)?;
        let ahead = time.checked_sub(middle)?;
        (ahead > CLOCKS_DIFFER_MAX).then_some(ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;

    fn clocks(own: u64, hosts: &[u64]) -> Clocks {
        Clocks {
            own,
            hosts: hosts.to_vec(),
        }
    }

    #[test]
    fn a_time_is_from_the_future_by_most_hosts_clocks() {
        let now = 1000 * DAY;
        let fast = clocks(now + 300 * DAY, &[now, now + 1, now + 2]);
        assert_eq!(fast.ahead(fast.own), Some(300 * DAY - 1));
        assert_eq!(clocks(now, &[now, now + 1]).ahead(now), None);
        // One host that is behind, or ahead, says nothing.
        assert_eq!(clocks(now, &[now - 9 * DAY, now, now]).ahead(now), None);
        assert_eq!(clocks(now, &[now + 9 * DAY, now, now]).ahead(now), None);
        assert_eq!(clocks(now, &[]).ahead(now + 9 * DAY), None);
    }

    #[test]
    fn a_fast_clock_deletes_nothing_and_hides_nothing() {
        let now = 1000 * DAY;
        let fast = clocks(now + 300 * DAY, &[now; 3]);
        assert_eq!(fast.agreed(), now);
        let slow = clocks(now - 300 * DAY, &[now; 3]);
        assert_eq!((slow.agreed(), slow.latest()), (now - 300 * DAY, now));
        assert_eq!(clocks(now, &[]).agreed(), now);
    }
}
