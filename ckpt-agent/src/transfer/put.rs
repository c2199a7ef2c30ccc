//! Sends one shard to one host.

use std::time::Duration;

use bytes::Bytes;
use codec::hash::ShardRoot;
use protocol::net::stream::{Exchange, GIVEN_UP, read_frame};
use protocol::wire::limits::{CONNECT_TIMEOUT, REQUEST_TIMEOUT, SYNC_TIMEOUT};
use protocol::wire::message::{PutEnd, PutShard, Request, Response};
use tokio::sync::mpsc;

use super::hosts::{Hosts, unexpected};
use crate::core::{Fault, HostIndex};

/// Longest wait for a host to accept a shard.
pub const OPEN_TIMEOUT: Duration =
    Duration::from_secs(CONNECT_TIMEOUT.as_secs() + REQUEST_TIMEOUT.as_secs());

/// What the sender of a shard is told.
#[derive(Debug)]
pub enum PutCommand {
    /// Send the block of this row.
    Block(u64, Bytes),
    /// That was all.
    Finish(PutEnd),
}

/// What it tells.
#[derive(Debug)]
pub enum PutProgress {
    /// The host takes blocks.
    Accepted,
    /// The transport took the block of this row.
    Sent(u64),
    /// The host has synced the shard, and computed the root that was promised.
    Stored,
}

/// Offers a shard to `host`, sends what `commands` say, and waits for the host to sync it. Ends
/// early, and has the host drop the shard, when `commands` closes.
///
/// # Errors
/// When the host refuses, is lost, or has stored something else than was sent.
pub async fn put_shard(
    hosts: Hosts,
    host: HostIndex,
    put: PutShard,
    mut commands: mpsc::UnboundedReceiver<PutCommand>,
    mut tell: impl FnMut(PutProgress),
) -> Result<(), Fault> {
    let (response, mut exchange) = hosts
        .request(host, &Request::PutShard(put), REQUEST_TIMEOUT)
        .await?;
    if response != Response::Accepted {
        return Err(unexpected("put"));
    }
    tell(PutProgress::Accepted);
    while let Some(command) = commands.recv().await {
        match command {
            PutCommand::Block(row, block) => {
                send_block(&mut exchange, block).await?;
                tell(PutProgress::Sent(row));
            }
            PutCommand::Finish(end) => {
                finish(&mut exchange, &end).await?;
                tell(PutProgress::Stored);
                return Ok(());
            }
        }
    }
    // Given up: fails when the stream is gone already, which comes to the same.
    let _ = exchange.send.reset(GIVEN_UP);
    Ok(())
}

/// How long this may take is the session's to decide.
async fn send_block(exchange: &mut Exchange, block: Bytes) -> Result<(), Fault> {
    let len = u32::try_from(block.len()).unwrap_or(u32::MAX).to_le_bytes();
    let mut chunks = [Bytes::copy_from_slice(&len), block];
    if exchange.send.write_all_chunks(&mut chunks).await.is_err() {
        return Err(reason(exchange).await);
    }
    Ok(())
}

async fn finish(exchange: &mut Exchange, end: &PutEnd) -> Result<(), Fault> {
    let mut bytes = 0_u32.to_le_bytes().to_vec();
    bytes.extend_from_slice(&end.encode());
    if exchange.send.write_all(&bytes).await.is_err() {
        return Err(reason(exchange).await);
    }
    // Fails when the host has stopped the stream, and then it says why.
    let _ = exchange.send.finish();
    match read_frame(&mut exchange.recv, SYNC_TIMEOUT).await? {
        Response::Stored(stored) if is_promised(stored.root, stored.rows, end) => Ok(()),
        Response::Stored(_) => Err(Fault::Lied("root of the stored shard".into())),
        Response::Refused(refusal) => {
            Err(protocol::net::stream::ExchangeError::Refused(refusal).into())
        }
        _ => Err(unexpected("end of put")),
    }
}

fn is_promised(root: ShardRoot, rows: u64, end: &PutEnd) -> bool {
    root == end.root && rows == end.rows
}

/// A host that takes no more has usually said why.
async fn reason(exchange: &mut Exchange) -> Fault {
    match read_frame(&mut exchange.recv, REQUEST_TIMEOUT).await {
        Ok(Response::Refused(refusal)) => {
            protocol::net::stream::ExchangeError::Refused(refusal).into()
        }
        Ok(_) => unexpected("put"),
        Err(cause) => cause.into(),
    }
}
