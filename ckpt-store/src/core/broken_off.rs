//! Counts handshakes that the peer broke off. QUIC keeps such a connection for a while (RFC 9000, section
//! 10.2), and memory with it. So a network that recently broke off many handshakes is not answered for a
//! moment.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

/// How long QUIC keeps such a connection, milliseconds: three times what a datagram may take, with slack.
const KEPT_MS: u64 = 2_000;

/// Most connections of one network that are kept at the same time. Further handshakes of that network are
/// not begun.
const PER_NETWORK_MAX: usize = 64;

/// Most connections of all networks that are kept at the same time. Above that only networks that broke
/// off none are answered.
const TOTAL_MAX: usize = 512;

/// Handshakes that were recently broken off. The cost of a call does not depend on how many there are.
#[derive(Debug, Default)]
pub struct BrokenOff {
    /// When each was broken off, in milliseconds of a clock that never goes back, and its network.
    order: VecDeque<(u64, IpAddr)>,
    /// How many of them each network broke off. No count is 0.
    of: BTreeMap<IpAddr, usize>,
}

impl BrokenOff {
    /// A handshake of `network` was broken off.
    pub fn add(&mut self, network: IpAddr, now_ms: u64) {
        self.forget(now_ms);
        self.order.push_back((now_ms, network));
        *self.of.entry(network).or_default() += 1;
    }

    /// Whether another handshake of this network may begin.
    pub fn may_begin(&mut self, network: IpAddr, now_ms: u64) -> bool {
        self.forget(now_ms);
        let of_this = self.of.get(&network).copied().unwrap_or(0);
        of_this < PER_NETWORK_MAX && (self.order.len() < TOTAL_MAX || of_this == 0)
    }

    /// Removes those that are older than [`KEPT_MS`].
    fn forget(&mut self, now_ms: u64) {
        while let Some((at, network)) = self.order.front().copied() {
            if at.saturating_add(KEPT_MS) > now_ms {
                return;
            }
            self.order.pop_front();
            if let Some(count) = self.of.get_mut(&network) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.of.remove(&network);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_that_often_breaks_off_waits_and_no_other_does() {
        let mut broken = BrokenOff::default();
        let bad = IpAddr::from([10, 0, 0, 1]);
        let good = IpAddr::from([10, 0, 0, 2]);
        for _ in 0..PER_NETWORK_MAX {
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

    #[test]
    fn old_breaks_of_connections_are_neither_counted_nor_kept() {
        let mut broken = BrokenOff::default();
        for now in 0..10 {
            broken.add([10, 0, 0, 1].into(), now * KEPT_MS / 4);
            broken.add([10, 0, 1, now as u8].into(), now * KEPT_MS / 4);
        }
        assert_eq!(broken.order.len(), 8, "those of the last four quarters");
        assert_eq!(broken.of.values().sum::<usize>(), broken.order.len());
        assert!(broken.may_begin([10, 0, 0, 1].into(), 10 * KEPT_MS));
        assert!(broken.order.is_empty() && broken.of.is_empty());
    }
}
