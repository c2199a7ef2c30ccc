//! A UDP relay in front of a server. It acts as a bad network: it can drop, delay and throttle packets.
//! It replaces the kernel's `netem` on machines that do not have it.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use rand::Rng;
use tokio::net::UdpSocket;
use tokio::time::Instant;

/// Longest queue of a throttled link; a packet that would wait longer is dropped.
const QUEUE_MAX: Duration = Duration::from_millis(200);

/// The relay forgets a client that sent nothing for this long.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// What the network does to packets, both ways.
#[derive(Debug, Default)]
pub struct Link {
    cut: AtomicBool,
    loss_per_mille: AtomicU32,
    delay_ms: AtomicU32,
    bytes_per_s: AtomicU64,
    /// When the throttled link is free again.
    free_at: Mutex<Option<Instant>>,
}

/// A relay; dropping its runtime ends it.
#[derive(Clone, Debug)]
pub struct Relay {
    /// The address to which clients send.
    pub addr: SocketAddr,
    link: Arc<Link>,
}

impl Link {
    /// How long to hold a packet of `bytes` bytes; `None` if the packet is dropped.
    fn hold(&self, bytes: usize) -> Option<Duration> {
        if self.cut.load(Ordering::Relaxed) {
            return None;
        }
        let loss = self.loss_per_mille.load(Ordering::Relaxed);
        if loss > 0 && rand::rng().random_range(0..1000) < loss {
            return None;
        }
        let delay = Duration::from_millis(self.delay_ms.load(Ordering::Relaxed).into());
        let rate = self.bytes_per_s.load(Ordering::Relaxed);
        if rate == 0 {
            return Some(delay);
        }
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let from = free_at.map_or(now, |at| at.max(now));
        if from - now > QUEUE_MAX {
            return None;
        }
        let until = from + Duration::from_secs_f64(bytes as f64 / rate as f64);
        *free_at = Some(until);
        Some(delay + (until - now))
    }
}

impl Relay {
    /// A relay to `server`. Needs a tokio runtime around it.
    ///
    /// # Errors
    /// When no socket can be opened.
    pub async fn to(server: SocketAddr) -> Result<Self> {
        let front = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?);
        let addr = front.local_addr()?;
        let link = Arc::new(Link::default());
        tokio::spawn(forward(front, server, Arc::clone(&link)));
        Ok(Self { addr, link })
    }

    /// Drops all packets, or ends that.
    pub fn cut(&self, cut: bool) {
        self.link.cut.store(cut, Ordering::Relaxed);
    }

    /// Drops `loss_per_mille` of a thousand packets, delays each by `delay_ms`, and lets `bytes_per_s`
    /// bytes per second through; 0 means no limit.
    pub fn weather(&self, loss_per_mille: u32, delay_ms: u32, bytes_per_s: u64) {
        let link = &self.link;
        link.loss_per_mille.store(loss_per_mille, Ordering::Relaxed);
        link.delay_ms.store(delay_ms, Ordering::Relaxed);
        link.bytes_per_s.store(bytes_per_s, Ordering::Relaxed);
    }
}

/// Forwards packets of clients to the server. Each client has a socket of its own, so that the server
/// sees different addresses.
async fn forward(front: Arc<UdpSocket>, server: SocketAddr, link: Arc<Link>) {
    let mut clients: HashMap<SocketAddr, (Arc<UdpSocket>, Instant)> = HashMap::new();
    let mut buffer = vec![0; 65_536];
    loop {
        // Fails if the server did not run when the last packet arrived; a network ignores that.
        let Ok((len, from)) = front.recv_from(&mut buffer).await else {
            continue;
        };
        let now = Instant::now();
        clients.retain(|_, (_, seen)| now - *seen < FORGET_AFTER);
        let back = match clients.get_mut(&from) {
            Some((socket, seen)) => {
                *seen = now;
                Arc::clone(socket)
            }
            None => {
                let Ok(socket) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await else {
                    continue;
                };
                let socket = Arc::new(socket);
                if socket.connect(server).await.is_err() {
                    continue;
                }
                tokio::spawn(answer(
                    Arc::clone(&socket),
                    Arc::clone(&front),
                    from,
                    Arc::clone(&link),
                ));
                clients.insert(from, (Arc::clone(&socket), now));
                socket
            }
        };
        let Some(hold) = link.hold(len) else { continue };
        if hold.is_zero() {
            let _ = back.send(&buffer[..len]).await;
            continue;
        }
        let packet = buffer[..len].to_vec();
        tokio::spawn(async move {
            tokio::time::sleep(hold).await;
            let _ = back.send(&packet).await;
        });
    }
}

async fn answer(back: Arc<UdpSocket>, front: Arc<UdpSocket>, to: SocketAddr, link: Arc<Link>) {
    let mut buffer = vec![0; 65_536];
    loop {
        match tokio::time::timeout(FORGET_AFTER, back.recv(&mut buffer)).await {
            Err(_) => return,
            // The server does not run at the moment.
            Ok(Err(_)) => {}
            Ok(Ok(len)) => {
                let Some(hold) = link.hold(len) else { continue };
                if hold.is_zero() {
                    let _ = front.send_to(&buffer[..len], to).await;
                    continue;
                }
                let front = Arc::clone(&front);
                let packet = buffer[..len].to_vec();
                tokio::spawn(async move {
                    tokio::time::sleep(hold).await;
                    let _ = front.send_to(&packet, to).await;
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn echo() -> Result<SocketAddr> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let addr = socket.local_addr()?;
        tokio::spawn(async move {
            let mut buffer = [0; 2000];
            while let Ok((len, from)) = socket.recv_from(&mut buffer).await {
                let _ = socket.send_to(&buffer[..len], from).await;
            }
        });
        Ok(addr)
    }

    #[tokio::test]
    async fn packets_come_back_unless_the_link_is_cut() -> Result<()> {
        let relay = Relay::to(echo().await?).await?;
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        client.connect(relay.addr).await?;
        let mut buffer = [0; 10];
        client.send(b"one").await?;
        assert_eq!(client.recv(&mut buffer).await?, 3);
        relay.cut(true);
        client.send(b"three").await?;
        let lost = tokio::time::timeout(Duration::from_millis(200), client.recv(&mut buffer));
        assert!(lost.await.is_err());
        relay.cut(false);
        relay.weather(0, 50, 0);
        let asked = Instant::now();
        client.send(b"late").await?;
        assert_eq!(client.recv(&mut buffer).await?, 4);
        assert!(asked.elapsed() >= Duration::from_millis(100), "both ways");
        Ok(())
    }
}
