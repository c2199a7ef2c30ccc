//! Addresses for servers that have to know theirs before they start.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

/// Below the ports that kernels hand out to clients: one of those that is free now may be somebody
/// else's before the server has started.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// An address of loopback that is free for UDP and TCP, and is given once only.
///
/// # Errors
/// When none is free.
pub fn free_address() -> Result<SocketAddr> {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_free = |port: u16| {
        let addr = (Ipv4Addr::LOCALHOST, port);
        UdpSocket::bind(addr).is_ok() && TcpListener::bind(addr).is_ok()
    };
    // Programs that run side by side begin at different places.
    let first = rand::random_range(PORTS);
    let mut ports = (first..PORTS.end).chain(PORTS.start..first);
    let port = ports.find(|port| !given.contains(port) && is_free(*port));
    let port = port.context("no free port")?;
    given.insert(port);
    Ok((Ipv4Addr::LOCALHOST, port).into())
}
