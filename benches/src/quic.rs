//! The network stage alone: bytes over QUIC on loopback with the settings of the program.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use codec::seal::OwnerSecret;
use protocol::identity::{Authority, HostId, Identity, Role, Validity};
use protocol::net::endpoint::{self, EndpointConfig};
use quinn::Endpoint;

/// Bytes of one write to a stream, about as many as a block has.
const WRITE_BYTES: usize = 256 << 10;

/// Sends `total` bytes over `hosts` connections at the same time, in equal parts.
///
/// # Errors
/// When an endpoint can't be made or a connection breaks.
pub fn transfer(total: usize, hosts: usize) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let (authority, client) = members(0)?;
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = EndpointConfig::new(client, authority.certificate().clone());
        let client = endpoint::client(&config, any)?;
        let mut transfers = tokio::task::JoinSet::new();
        for host in 1..=hosts {
            let (_, identity) = members(host as u8)?;
            let id = HostId(identity.secret.id());
            let config = EndpointConfig::new(identity, authority.certificate().clone());
            let server = endpoint::server(&config, any)?;
            let addr = server.local_addr()?;
            tokio::spawn(receive(server));
            let client = client.clone();
            transfers.spawn(async move { send(&client, addr, id, total / hosts).await });
        }
        while let Some(done) = transfers.join_next().await {
            done??;
        }
        Ok(())
    })
}

/// An authority, the same in each call, and a member whose certificate it signed.
fn members(number: u8) -> Result<(Authority, Identity)> {
    let validity = Validity {
        from: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / 86_400 * 86_400,
        lasting: Duration::from_secs(7 * 86_400),
    };
    let authority = Authority::create(OwnerSecret::new([200; 32]), "bench", validity)?;
    let secret = OwnerSecret::new([number; 32]);
    let roles = [Role::Donor, Role::Submitter];
    let certificate = authority.sign(&roles, "member", secret.id(), validity)?;
    Ok((authority, Identity::new(secret, certificate)?))
}

async fn receive(server: Endpoint) -> Result<()> {
    let connection = server.accept().await.context("closed")?.await?;
    let (mut send, mut recv) = connection.accept_bi().await?;
    while recv.read_chunk(WRITE_BYTES, true).await?.is_some() {}
    send.write_all(&[1]).await?;
    send.finish()?;
    // Dropping the endpoint earlier could lose the answer.
    connection.closed().await;
    Ok(())
}

async fn send(client: &Endpoint, addr: SocketAddr, id: HostId, bytes: usize) -> Result<()> {
    let connection = endpoint::connect(client, addr, id).await?;
    let (mut send, mut recv) = connection.open_bi().await?;
    let block = bytes::Bytes::from(vec![7; WRITE_BYTES]);
    let mut left = bytes;
    while left > 0 {
        let len = left.min(WRITE_BYTES);
        send.write_chunk(block.slice(..len)).await?;
        left -= len;
    }
    send.finish()?;
    recv.read_exact(&mut [0]).await?;
    Ok(())
}
