//! The names of hosts that only registries report. The certificate that a host shows has its name.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use protocol::grid::GridHost;
use protocol::identity::{HostId, Peer, is_name};
use protocol::net::link_of;
use protocol::net::stream::ExchangeError;
use protocol::wire::message::Request;
use quinn::Connection;

use crate::HostIndex;
use crate::roster::with_key;

/// The names of all hosts of a client, as far as certificates have shown them.
#[derive(Debug)]
pub(crate) struct Names(Vec<Name>);

/// The name of one host.
#[derive(Debug)]
enum Name {
    /// It is in the list of the grid, which the authority signed.
    Listed,
    /// Registries report one. A connection shows the true one.
    Reported(OnceLock<Certified>),
}

/// A name in a certificate.
#[derive(Debug)]
pub(crate) struct Certified {
    pub(crate) name: String,
    /// The name under which the host is shown, if that is not the one that registries report.
    shown: Option<String>,
}

impl Names {
    /// No certificate was seen. `reported` are the hosts whose names only registries report.
    pub(crate) fn new(hosts: &[GridHost], reported: &BTreeSet<HostId>) -> Self {
        let of = |host: &GridHost| match reported.contains(&host.id) {
            true => Name::Reported(OnceLock::new()),
            false => Name::Listed,
        };
        Self(hosts.iter().map(of).collect())
    }

    pub(crate) fn certified(&self, host: HostIndex) -> Option<&Certified> {
        match self.0.get(host.0)? {
            Name::Listed => None,
            Name::Reported(certified) => certified.get(),
        }
    }

    pub(crate) fn is_listed(&self, host: HostIndex) -> bool {
        matches!(self.0.get(host.0), Some(Name::Listed))
    }

    /// The name under which a host is shown, if its certificate has another one than registries report.
    pub(crate) fn shown(&self, host: HostIndex) -> Option<&str> {
        self.certified(host)?.shown.as_deref()
    }

    /// Looks at the name in the certificate of `host`, which is one of `hosts`.
    pub(crate) fn look(&self, hosts: &[GridHost], host: HostIndex, connection: &Connection) {
        if let Ok(peer) = Peer::of(connection) {
            tracing::debug!(host = peer.name, link = link_of(connection), "connected");
            self.note(hosts, host, peer.name);
        }
    }

    fn note(&self, hosts: &[GridHost], host: HostIndex, name: String) {
        let (Some(Name::Reported(slot)), Some(entry)) = (self.0.get(host.0), hosts.get(host.0))
        else {
            return;
        };
        if slot.get().is_some() {
            return;
        }
        let shown = if entry.name == name || entry.name == with_key(&name, entry.id) {
            None
        } else {
            let others = (0..hosts.len()).map(HostIndex).filter(|at| *at != host);
            // A name that is only reported of another host takes none from this one.
            let mut taken = others.filter(|at| match self.certified(*at) {
                Some(certified) => certified.name == name,
                None => self.is_listed(*at) && hosts.get(at.0).is_some_and(|at| at.name == name),
            });
            Some(match (is_name(&name), taken.next()) {
                (true, None) => name.clone(),
                (true, Some(_)) => with_key(&name, entry.id),
                (false, _) => with_key("host", entry.id),
            })
        };
        if let Some(certified) = &shown {
            let key = entry.id;
            let reported = &entry.name;
            tracing::warn!(%key, reported, certified, "a registry reports another name of a host than its certificate has");
        }
        // Another connection may have shown the certificate just now.
        let _ = slot.set(Certified { name, shown });
    }
}

/// Logs that a host was asked, with the names that the host's log has, too.
pub(crate) fn note_asked(
    host: &str,
    connection: &Connection,
    asked: &Request,
    fault: Option<&ExchangeError>,
) {
    tracing::debug!(
        host,
        link = link_of(connection),
        checkpoint = asked.checkpoint().map(tracing::field::display),
        fault = fault.map(tracing::field::display),
        "asked"
    );
}

#[cfg(test)]
mod tests {
    use codec::OwnerId;
    use protocol::address::Address;

    use super::*;

    fn host(number: u8, name: &str) -> GridHost {
        GridHost {
            name: name.into(),
            addr: Address::Ip(([10, 0, 0, 1], 7000).into()),
            id: HostId(OwnerId([number; 32])),
            site: None,
            owner: None,
        }
    }

    /// How hosts are shown whose certificates have these names. The first host is listed.
    fn shown(reported: &[&str], certified: &[&str]) -> Vec<Option<String>> {
        let hosts: Vec<GridHost> = (1..).zip(reported).map(|(n, name)| host(n, name)).collect();
        let unlisted = hosts.iter().skip(1).map(|host| host.id).collect();
        let names = Names::new(&hosts, &unlisted);
        for (at, name) in certified.iter().enumerate() {
            names.note(&hosts, HostIndex(at), (*name).to_owned());
        }
        let all = (0..hosts.len()).map(HostIndex);
        all.map(|host| names.shown(host).map(str::to_owned))
            .collect()
    }

    #[test]
    fn the_certificate_has_the_name_and_the_list_outranks_it() {
        let other = |name: &str| Some(name.to_owned());
        // The list is the authority's word, as the certificate is; it is the newer one.
        assert_eq!(shown(&["h1", "h2"], &["old", "h2"]), [None, None]);
        assert_eq!(shown(&["h1", "h2"], &["h1", "evil"]), [None, other("evil")]);
        // A suffix that this client gave is none of the name.
        assert_eq!(shown(&["h1", "h2-02020202"], &["h1", "h2"]), [None, None]);
        let forged = shown(&["h1", "h2-03030303"], &["h1", "h2"]);
        assert_eq!(forged, [None, other("h2")]);
        // Case counts.
        assert_eq!(shown(&["h1", "H2"], &["h1", "h2"]), [None, other("h2")]);
        // Two names that were exchanged are exchanged back.
        let exchanged = shown(&["h1", "h3", "h2"], &["h1", "h2", "h3"]);
        assert_eq!(exchanged, [None, other("h2"), other("h3")]);
        // A name that a listed host has is not given twice, and no name that is none is shown.
        let twice = shown(&["h1", "h2", "h3"], &["h1", "h1", "\u{1b}[2J"]);
        assert_eq!(twice, [None, other("h1-02020202"), other("host-03030303")]);
    }
}
