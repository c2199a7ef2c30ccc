//! Whether donors can be reached from outside. A registry sends a datagram to the address that a donor announces,
//! which is the one from which the donor connects or one that the grid file lists. A donor behind a firewall hears
//! from its registry without it, and would otherwise never learn why nobody gives it shards.

use std::net::SocketAddr;
use std::time::Duration;

use super::Millis;

/// Least time between two datagrams to one donor, whatever it announces.
pub const TRY_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// How many datagrams in a row get no answer from a donor that is not reached.
pub const TRIES: u8 = 3;

/// A donor that answered is tried again after this time.
const ANSWERED_PERIOD: Duration = Duration::from_secs(30);

/// A donor that was not reached is tried again after this time.
const UNREACHED_PERIOD: Duration = Duration::from_secs(15);

/// What is known of the way to one donor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// The address that was tried last.
    addr: Option<SocketAddr>,
    /// Whether the donor answered there; `None` before it did or [`TRIES`] were in vain.
    answered: Option<bool>,
    /// Tries since the last answer.
    tries: u8,
    /// When it may be tried next.
    next: Millis,
}

impl Reach {
    /// Whether a datagram is to be sent to `addr` now. The caller then sends one.
    pub fn is_due(&mut self, now: Millis, addr: SocketAddr) -> bool {
        if self.addr != Some(addr) {
            *self = Self {
                addr: Some(addr),
                next: self.next,
                ..Self::default()
            };
        }
        if now < self.next {
            return false;
        }
        if self.tries >= TRIES {
            self.answered = Some(false);
            self.tries = 0;
        }
        self.tries += 1;
        self.next = now.after(match self.answered {
            Some(false) => UNREACHED_PERIOD,
            Some(true) | None => TRY_AGAIN_AFTER,
        });
        true
    }

    /// The donor answered from `addr`.
    pub fn answers(&mut self, now: Millis, addr: SocketAddr) {
        if self.addr == Some(addr) {
            self.answered = Some(true);
            self.tries = 0;
            self.next = now.after(ANSWERED_PERIOD);
        }
    }

    /// Whether the donor answers at `addr`; `None` if that is not known yet.
    pub fn at(&self, addr: SocketAddr) -> Option<bool> {
        self.answered.filter(|_| self.addr == Some(addr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ([u8; 4], u16) = ([10, 0, 0, 1], 7600);
    const OTHER: ([u8; 4], u16) = ([10, 0, 0, 1], 7601);

    /// Runs the clock by seconds, and returns when datagrams were sent. The donor answers while `is_there`.
    fn sent(reach: &mut Reach, seconds: std::ops::Range<u64>, is_there: bool) -> Vec<u64> {
        let mut all = Vec::new();
        for second in seconds {
            let now = Millis(second * 1000);
            if reach.is_due(now, ONE.into()) {
                all.push(second);
                if is_there {
                    reach.answers(now, ONE.into());
                }
            }
        }
        all
    }

    #[test]
    fn within_a_minute_it_is_known_whether_a_donor_is_reached() {
        let mut reach = Reach::default();
        assert_eq!(reach.at(ONE.into()), None);
        assert_eq!(sent(&mut reach, 0..16, false), [0, 5, 10, 15]);
        assert_eq!(reach.at(ONE.into()), Some(false));
        assert_eq!(sent(&mut reach, 16..46, false), [30, 45]);
        assert_eq!(sent(&mut reach, 46..61, true), [60]);
        assert_eq!(reach.at(ONE.into()), Some(true));
        assert_eq!(sent(&mut reach, 61..121, true), [90, 120]);
        // Lost answers are nothing unusual. After three, the address counts as closed.
        assert_eq!(sent(&mut reach, 121..161, false), [150, 155, 160]);
        assert_eq!(reach.at(ONE.into()), Some(true));
        assert_eq!(sent(&mut reach, 161..166, false), [165]);
        assert_eq!(reach.at(ONE.into()), Some(false));
    }

    #[test]
    fn a_donor_that_announces_one_address_after_the_other_gets_no_more_datagrams() {
        let mut reach = Reach::default();
        let addresses = [SocketAddr::from(ONE), OTHER.into()];
        let mut sent = 0;
        for (second, addr) in (0..600).zip(addresses.into_iter().cycle()) {
            let now = Millis(second * 1000);
            sent += u64::from(reach.is_due(now, addr));
            assert_eq!(reach.at(addr), None, "what was found of another address");
        }
        assert!(sent <= 600 / TRY_AGAIN_AFTER.as_secs(), "{sent}");
    }

    #[test]
    fn an_answer_from_elsewhere_does_not_count() {
        let mut reach = Reach::default();
        assert!(reach.is_due(Millis(0), ONE.into()));
        reach.answers(Millis(1), OTHER.into());
        assert_eq!(reach.at(ONE.into()), None);
        reach.answers(Millis(1), ONE.into());
        assert_eq!(reach.at(OTHER.into()), None);
        assert_eq!(reach.at(ONE.into()), Some(true));
    }
}
