//! Hosts in place of others: a client that looks anew which hosts there are keeps the connections that it has.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use protocol::grid::GridHost;
use protocol::identity::HostId;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::hosts::{Inner, Slot};
use crate::{HostIndex, Hosts};

impl Hosts {
    /// Takes over what `before` knows, before anybody else uses these hosts: the limits of rates, which both share,
    /// the jobs below a prefix, and the hosts that can't be reached at the addresses that they still have.
    pub fn take_over(&mut self, before: &Self) {
        let Some(inner) = Arc::get_mut(&mut self.0) else {
            return;
        };
        let before = &*before.0;
        inner.sending = Arc::clone(&before.sending);
        inner.receiving = Arc::clone(&before.receiving);
        let paths = before.paths.lock().unwrap_or_else(PoisonError::into_inner);
        inner.paths = paths.clone().into();
        for (host, former) in inner.in_both(before) {
            if inner.addresses(host) == before.addresses(former) {
                inner.watches.take_over(host, &before.watches, former);
            }
        }
    }

    /// Uses the connections that `before` has, before anybody else uses these hosts, unless this is another identity
    /// or a key was revoked since. If either closes a connection, it is closed for both.
    pub fn share_connections(&mut self, before: &Self) {
        let Some(inner) = Arc::get_mut(&mut self.0) else {
            return;
        };
        let before = &*before.0;
        if inner.certificate != before.certificate || inner.revoked != before.revoked {
            return;
        }
        for (host, former) in inner.in_both(before) {
            // A locked slot belongs to a connection that is being made.
            let slot = before.connections.get(former.0).map(Mutex::try_lock);
            if let Some(Ok(slot)) = slot
                && let Slot::Made(connection) = &*slot
                && connection.close_reason().is_none()
                && let Some(own) = inner.connections.get_mut(host.0)
            {
                *own.get_mut() = Slot::Made(connection.clone());
                inner.watches.begin(host, connection);
                inner.names.look(&inner.hosts, host, connection);
            }
        }
    }

    /// Connects to all hosts that are there. Whoever asks afterwards waits neither for connections nor for hosts that
    /// can't be reached.
    pub async fn connect_to_all(&self) {
        let mut connecting = JoinSet::new();
        for host in self.all() {
            let hosts = self.clone();
            connecting.spawn(async move { hosts.connection(host).await.is_ok() });
        }
        // Which hosts can't be reached is noted where connections are made.
        while connecting.join_next().await.is_some() {}
    }
}

impl Inner {
    /// The hosts that are here and in `before`, each with its number there.
    fn in_both(&self, before: &Self) -> Vec<(HostIndex, HostIndex)> {
        let numbered = |hosts: &[GridHost]| -> Vec<(HostId, HostIndex)> {
            let all = hosts.iter().enumerate();
            all.map(|(at, host)| (host.id, HostIndex(at))).collect()
        };
        let former: BTreeMap<HostId, HostIndex> = numbered(&before.hosts).into_iter().collect();
        let own = numbered(&self.hosts).into_iter();
        own.filter_map(|(id, host)| Some((host, *former.get(&id)?)))
            .collect()
    }
}
