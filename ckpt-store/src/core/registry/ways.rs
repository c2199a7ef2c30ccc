//! Which donors a registry reaches.

use std::net::SocketAddr;

use codec::OwnerId;
use protocol::wire::message::{Presence, UNREACHED_PART};

use super::{Donor, Registry};
use crate::core::Millis;

impl Registry {
    /// Up to `most` donors to which a datagram is to be sent now, and their addresses.
    pub fn to_try(&mut self, now: Millis, most: usize) -> Vec<(OwnerId, SocketAddr)> {
        let alive = self.hosts.iter_mut().filter(|(_, host)| host.is_alive(now));
        let due = alive.filter_map(|(id, host)| {
            let addr = host.presence.addr;
            host.reach.is_due(now, addr).then_some((*id, addr))
        });
        due.take(most).collect()
    }

    /// A donor answered the datagram that was sent to this address.
    pub fn answers(&mut self, now: Millis, id: OwnerId, addr: SocketAddr) {
        if let Some(host) = self.hosts.get_mut(&id) {
            host.reach.answers(now, addr);
        }
    }

    /// Whether a donor answers at the address that it announced; `None` if that is not known yet.
    pub fn is_reached(&self, id: &OwnerId) -> Option<bool> {
        let host = self.hosts.get(id)?;
        host.reach.at(host.presence.addr)
    }

    /// How many of the donors that are heard do not answer at their addresses.
    pub fn unreached(&self, now: Millis) -> usize {
        let hosts = self.hosts.values();
        hosts.filter(|host| host.is_unreached(now)).count()
    }
}

impl Donor {
    /// Whether it is heard and does not answer at the address that it announced.
    fn is_unreached(&self, now: Millis) -> bool {
        self.is_alive(now) && self.reach.at(self.presence.addr) == Some(false)
    }

    /// Its presence, as clients are shown it.
    pub(super) fn shown(&self, now: Millis) -> Presence {
        let mut shown = self.presence.clone();
        if self.is_unreached(now) {
            shown.parts = shown.parts.with(UNREACHED_PART, Vec::new());
        }
        shown
    }
}
