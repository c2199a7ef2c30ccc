//! Addresses for servers whose address has to be known before they start, and stays theirs while they are
//! down.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::process::getuid;

/// Ports that [`free_address`] may return.
const PORTS: RangeInclusive<u16> = 10_000..=65_000;

/// The ports that client sockets get, if the kernel does not say: Linux's usual range.
const CLIENT_PORTS: RangeInclusive<u16> = 32_768..=60_999;

/// Ports that this process has, each with the lock that keeps other test processes from binding it, also
/// while its server is down.
static GIVEN: Mutex<BTreeMap<u16, File>> = Mutex::new(BTreeMap::new());

/// Ports that the kernel gives to sockets that do not ask for one.
fn client_ports() -> RangeInclusive<u16> {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut bounds = range.split_whitespace().map(str::parse);
    match (bounds.next(), bounds.next()) {
        (Some(Ok(first)), Some(Ok(last))) => first..=last,
        _ => CLIENT_PORTS,
    }
}

/// Reserves a port among all test processes of this user; `None` if one of them has it.
fn reserve(port: u16) -> Result<Option<File>> {
    let dir = format!("ckpt-test-ports-{}", getuid().as_raw());
    let dir: PathBuf = std::env::temp_dir().join(dir);
    fs::create_dir_all(&dir)?;
    let mut options = File::options();
    let file = options
        .create(true)
        .append(true)
        .open(dir.join(port.to_string()))?;
    let is_ours = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
    Ok(is_ours.then_some(file))
}

/// A loopback address that is free for UDP and TCP. Until this process ends, neither another test process
/// nor a client socket gets the address, so a restarted server finds it free.
///
/// # Errors
/// When none is free, or locks can't be kept in the folder for temporary files.
pub fn free_address() -> Result<SocketAddr> {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_free = |port: u16| {
        let addr = (Ipv4Addr::LOCALHOST, port);
        UdpSocket::bind(addr).is_ok() && TcpListener::bind(addr).is_ok()
    };
    let clients = client_ports();
    // Test processes that run at the same time begin their search at different ports.
    let first = rand::random_range(PORTS);
    let ports = (first..=*PORTS.end()).chain(*PORTS.start()..first);
    for port in ports.filter(|port| !clients.contains(port)) {
        if given.contains_key(&port) {
            continue;
        }
        if let Some(lock) = reserve(port)?
            && is_free(port)
        {
            given.insert(port, lock);
            return Ok((Ipv4Addr::LOCALHOST, port).into());
        }
    }
    bail!("no free port")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_given_port_is_out_of_reach_of_client_sockets_and_of_other_test_processes() -> Result<()> {
        let port = free_address()?.port();
        assert!(!client_ports().contains(&port));
        // The lock belongs to an open file, so a second open fails here as in another process.
        assert!(reserve(port)?.is_none());
        assert_ne!(free_address()?.port(), port);
        Ok(())
    }

    #[test]
    fn a_port_comes_back_when_its_lock_is_gone() -> Result<()> {
        // `free_address` never returns this port.
        let port = *PORTS.end() + 1;
        let lock = reserve(port)?.context("somebody has it")?;
        assert!(reserve(port)?.is_none());
        drop(lock);
        assert!(reserve(port)?.is_some());
        Ok(())
    }
}
