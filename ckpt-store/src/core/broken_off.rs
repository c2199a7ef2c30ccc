//! Handshakes that came to nothing. QUIC keeps such a connection for a while (RFC 9000, section 10.2), and
//! its memory with it; so who has broken off many lately is not answered for a moment.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// How long such a connection is kept, milliseconds: three times what a datagram may take, with slack.
const KEPT_MS: u64 = 2_000;

/// How many of one network are kept at once; further ones of it are not begun.
const OF_ONE_MAX: usize = 64;

/// How many are kept of all networks together.
const ALL_MAX: usize = 512;

/// When handshakes of each network broke off, in milliseconds of a clock that never goes back.
#[derive(Debug, Default)]
pub struct BrokenOff {
    of: BTreeMap<IpAddr, Vec<u64>>,
}

impl BrokenOff {
    /// One of this network did.
    pub fn add(&mut self, network: IpAddr, now_ms: u64) {
        self.forget(now_ms);
        self.of.entry(network).or_default().push(now_ms);
    }

    /// Whether another handshake of this network may begin.
    pub fn may_begin(&mut self, network: IpAddr, now_ms: u64) -> bool {
        self.forget(now_ms);
        let all: usize = self.of.values().map(Vec::len).sum();
        let of_this = self.of.get(&network).map_or(0, Vec::len);
        of_this < OF_ONE_MAX && (all < ALL_MAX || of_this == 0)
    }

    fn forget(&mut self, now_ms: u64) {
        self.of.retain(|_, times| {
            times.retain(|at| at.saturating_add(KEPT_MS) > now_ms);
            !times.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_breaks_off_often_waits_and_nobody_else_does() {
        let mut broken = BrokenOff::default();
        let (bad, good) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        for _ in 0..OF_ONE_MAX {
            assert!(broken.may_begin(bad, 5));
            broken.add(bad, 5);
        }
        assert!(!broken.may_begin(bad, 5));
        assert!(broken.may_begin(good, 5));
        assert!(broken.may_begin(bad, 5 + KEPT_MS));
    }

    #[test]
    fn many_networks_leave_room_for_one_that_never_broke_off() {
        let mut broken = BrokenOff::default();
        for number in 0..=u8::MAX {
            broken.add([10, 0, 1, number].into(), 5);
            broken.add([10, 0, 1, number].into(), 5);
        }
        assert!(!broken.may_begin([10, 0, 1, 7].into(), 5));
        assert!(broken.may_begin([10, 0, 2, 7].into(), 5));
    }
}
