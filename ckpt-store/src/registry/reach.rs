//! Tries whether donors can be reached from outside ([`crate::core::reach`]). A datagram in a version of QUIC that
//! nobody speaks makes any QUIC server answer which versions it speaks: no connection, no signature, and an answer
//! that is a twentieth of the question. It comes from a port of its own, to which no donor has ever sent anything,
//! so a firewall that lets only answers through stops it.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use codec::OwnerId;
use tokio::net::UdpSocket;
use tracing::{debug, warn};

use super::Shared;
use crate::core::Millis;
use crate::core::reach::TRY_AGAIN_AFTER;

/// How often donors are looked for to which a datagram is due.
const PERIOD: Duration = Duration::from_secs(1);

/// Most datagrams in one [`PERIOD`]: 10,000 donors are tried within 30 s.
const DATAGRAMS_MAX: usize = 512;

/// Bytes of a datagram. Servers answer no shorter one that has an unknown version (RFC 9000, section 5.2.2).
const DATAGRAM_BYTES: usize = 1200;

/// A version that is reserved for this (RFC 9000, section 15).
const NO_VERSION: [u8; 4] = [0x1a, 0x2a, 0x3a, 0x4a];

/// Bytes of each of the two connection ids, which are random, and which the answer has in turn.
const ID_BYTES: usize = 8;

/// Most bytes of an answer that are read. The head and the ids are enough.
const ANSWER_BYTES: usize = 64;

/// The random ids of a datagram, which only its receiver knows: first that of the receiver, then that of the sender.
type Ids = [u8; 2 * ID_BYTES];

/// A datagram without an answer so far.
struct Sent {
    id: OwnerId,
    addr: SocketAddr,
    at: Millis,
}

/// Sends datagrams to donors, and notes who answers. Does not return.
pub(super) async fn try_donors(shared: Arc<Shared>, listens_on: IpAddr) {
    let socket = match UdpSocket::bind((listens_on, 0)).await {
        Ok(socket) => socket,
        Err(cause) => return warn!(%cause, "does not try whether donors can be reached"),
    };
    let mut sent: BTreeMap<Ids, Sent> = BTreeMap::new();
    let mut period = tokio::time::interval(PERIOD);
    let mut answer = [0; ANSWER_BYTES];
    loop {
        tokio::select! {
            _ = period.tick() => {
                let now = shared.clock.now();
                sent.retain(|_, one| one.at.after(TRY_AGAIN_AFTER) >= now);
                let due = shared.registry().to_try(now, DATAGRAMS_MAX);
                for (id, addr) in due {
                    match send(&socket, addr).await {
                        Ok(ids) => _ = sent.insert(ids, Sent { id, addr, at: now }),
                        Err(cause) => debug!(%addr, %cause, "can't send a datagram to a donor"),
                    }
                }
                let unreached = shared.registry().unreached(now);
                shared.metrics.unreached(unreached);
            }
            received = socket.recv_from(&mut answer) => {
                // An error here is the answer to an earlier datagram, whose port is closed.
                let Ok((bytes, from)) = received else { continue };
                let ids = answer.get(..bytes).and_then(ids_of_answer);
                let Some(one) = ids.and_then(|ids| sent.remove(&ids)) else { continue };
                if canonical(from) == canonical(one.addr) {
                    shared.registry().answers(shared.clock.now(), one.id, one.addr);
                }
            }
        }
    }
}

/// An address of IPv4, also where a socket of IPv6 receives from it.
fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

async fn send(socket: &UdpSocket, addr: SocketAddr) -> io::Result<Ids> {
    let ids: Ids = rand::random();
    let to = match (socket.local_addr()?, addr.ip()) {
        (SocketAddr::V6(_), IpAddr::V4(ip)) => (ip.to_ipv6_mapped(), addr.port()).into(),
        _ => addr,
    };
    socket.send_to(&datagram(ids), to).await?;
    Ok(ids)
}

/// A long header (RFC 9000, section 17.2) with the reserved version, and zeros.
fn datagram(ids: Ids) -> Vec<u8> {
    let (to, from) = ids.split_at(ID_BYTES);
    let mut all = vec![0xc0];
    all.extend_from_slice(&NO_VERSION);
    for id in [to, from] {
        all.push(ID_BYTES as u8);
        all.extend_from_slice(id);
    }
    all.resize(DATAGRAM_BYTES, 0);
    all
}

/// The ids of the datagram that this answers, if it is the list of versions of a QUIC server (RFC 9000, section
/// 17.2.1): version 0, and both ids in turn.
fn ids_of_answer(bytes: &[u8]) -> Option<Ids> {
    let (&[head, 0, 0, 0, 0, length], rest) = bytes.split_first_chunk::<6>()? else {
        return None;
    };
    let (from, rest) = rest.split_first_chunk::<ID_BYTES>()?;
    let (other_length, rest) = rest.split_first()?;
    let to = rest.first_chunk::<ID_BYTES>()?;
    let is_long = head & 0x80 != 0;
    let lengths = [length, *other_length];
    let is_ours = is_long && lengths == [ID_BYTES as u8; 2];
    is_ours.then(|| {
        let mut ids = Ids::default();
        let (first, second) = ids.split_at_mut(ID_BYTES);
        first.copy_from_slice(to);
        second.copy_from_slice(from);
        ids
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer_to(datagram: &[u8]) -> Vec<u8> {
        let mut all = vec![0xe5, 0, 0, 0, 0];
        all.extend_from_slice(&datagram[14..23]);
        all.extend_from_slice(&datagram[5..14]);
        all.extend_from_slice(&[0, 0, 0, 1]);
        all
    }

    #[test]
    fn only_the_list_of_versions_that_a_server_sends_to_this_datagram_is_an_answer() {
        let ids: Ids = std::array::from_fn(|number| number as u8);
        let sent = datagram(ids);
        assert_eq!(sent.len(), DATAGRAM_BYTES);
        let answer = answer_to(&sent);
        assert!(answer.len() * 20 < sent.len());
        assert_eq!(ids_of_answer(&answer), Some(ids));
        assert_eq!(ids_of_answer(&sent), None, "a relay that sends it back");
        for short in 0..23 {
            assert_eq!(ids_of_answer(&answer[..short]), None);
        }
        for (at, byte) in [(0, 0x40), (1, 1), (5, 7), (14, 9)] {
            let mut other = answer.clone();
            other[at] = byte;
            assert_eq!(ids_of_answer(&other), None, "{at}");
        }
        let mut other = answer;
        other[6] ^= 1;
        assert_ne!(ids_of_answer(&other), Some(ids));
    }
}
