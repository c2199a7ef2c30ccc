//! `ckpt doctor`: how well each host can be reached.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use protocol::address::Address;
use protocol::net::{ResolveError, resolve};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::agent::Agent;
use crate::core::{Fault, HostIndex};
use crate::unix_time::unix_seconds;

/// How long the search for the largest datagram may take. QUIC's search halves the range from 1,200 to 6,500
/// bytes and tries each size three times; on an Ethernet, the first four sizes are too large.
const MTU_PATIENCE: Duration = Duration::from_secs(4);

/// Once datagrams of [`MTU_USUAL`] bytes get through, the search ends when it found nothing larger for this
/// long.
const MTU_QUIET: Duration = Duration::from_millis(200);

/// If no datagram of this many bytes gets to a host, there is a tunnel on the way.
pub const MTU_USUAL: u16 = 1_400;

/// How long the report that nothing listens at a port may take.
const REFUSAL_PATIENCE: Duration = Duration::from_millis(300);

/// The way to a host, and what was found on it.
#[derive(Clone, Debug)]
pub struct Way {
    /// Name of the host in the grid file or list.
    pub host: String,
    /// The host's address, as the grid file or a registry states it.
    pub addr: Address,
    /// The addresses that a name resolves to, or at which the host was found.
    pub resolved: Result<Vec<SocketAddr>, ResolveError>,
    /// Since when the host is silent, Unix seconds; `None` if a registry hears it, or nobody knows.
    pub silent_since: Option<u64>,
    /// Whether the registries that hear the host do not reach it either.
    pub is_unreached: bool,
    /// Whether the host answered.
    pub found: Result<Reached, Unreached>,
}

/// A host that answered.
#[derive(Clone, Debug)]
pub struct Reached {
    /// Largest datagram that gets to the host, as far as the search went; bytes.
    pub mtu: u16,
    /// Round trip time of a request.
    pub rtt: Duration,
    /// The host's clock, and this machine's at the same time, Unix seconds; `None` when the host did not
    /// state its.
    pub clock: Option<(u64, u64)>,
}

/// A host that did not answer.
#[derive(Clone, Debug)]
pub struct Unreached {
    /// How the attempt failed.
    pub fault: Fault,
    /// Whether its machine answered that nothing listens there; otherwise there was no answer at all.
    pub is_refused: bool,
}

impl Agent {
    /// Tries to reach each host, also those that no registry hears.
    pub async fn ways(&self) -> Vec<Way> {
        let mut trying = JoinSet::new();
        for host in self.hosts.all().chain(self.hosts.absent()) {
            let agent = self.clone();
            trying.spawn(async move { (host, agent.way(host).await) });
        }
        let mut ways = trying.join_all().await;
        ways.sort_by_key(|(host, _)| *host);
        ways.into_iter().filter_map(|(_, way)| way).collect()
    }

    async fn way(&self, host: HostIndex) -> Option<Way> {
        let entry = self.hosts.entry(host)?;
        let addr = entry.addr.clone();
        let found = self.reach(host).await;
        let name = self.hosts.name(host).to_owned();
        let resolved = match (&addr, self.hosts.address(host)) {
            (Address::Ip(_), Some(found)) => Ok(vec![found]),
            (address, _) => resolve(address).await,
        };
        let first = resolved.as_ref().ok().and_then(|all| all.first().copied());
        let found = match found {
            Ok(reached) => Ok(reached),
            Err(fault) => {
                let asking = tokio::task::spawn_blocking(move || first.is_some_and(is_refused));
                Err(Unreached {
                    fault,
                    is_refused: asking.await.unwrap_or(false),
                })
            }
        };
        Some(Way {
            host: name,
            addr,
            resolved,
            silent_since: self.hosts.silent_since(host),
            is_unreached: self.hosts.is_unreached(host),
            found,
        })
    }

    async fn reach(&self, host: HostIndex) -> Result<Reached, Fault> {
        let (_, rtt) = self.hosts.status(host).await?;
        let announced = self.announcement(host).await.ok().flatten();
        let clock = announced.map(|said| (said.at, unix_seconds()));
        let connection = self.hosts.connection(host).await?;
        let mtu = || connection.stats().path.current_mtu;
        let begun = Instant::now();
        let mut last = (mtu(), Instant::now());
        while begun.elapsed() < MTU_PATIENCE && (mtu() < MTU_USUAL || last.1.elapsed() < MTU_QUIET)
        {
            tokio::time::sleep(MTU_QUIET / 10).await;
            // Only an answered request shows soon that the larger datagram tried before it was lost.
            self.hosts.status(host).await?;
            if mtu() != last.0 {
                last = (mtu(), Instant::now());
            }
        }
        Ok(Reached {
            mtu: mtu(),
            rtt,
            clock,
        })
    }
}

/// Whether the machine at an address answers that nothing listens there.
fn is_refused(addr: SocketAddr) -> bool {
    let any: SocketAddr = match addr {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let ask = || -> io::Result<()> {
        let socket = UdpSocket::bind(any)?;
        socket.connect(addr)?;
        socket.set_read_timeout(Some(REFUSAL_PATIENCE))?;
        // A QUIC endpoint drops this datagram.
        socket.send(&[0])?;
        socket.recv(&mut [0]).map(|_| ())
    };
    let answer = ask();
    answer.is_err_and(|cause| cause.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_port_and_a_silent_one_are_distinguished() {
        let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = silent.local_addr().unwrap();
        assert!(!is_refused(addr));
        drop(silent);
        assert!(is_refused(addr));
    }
}
