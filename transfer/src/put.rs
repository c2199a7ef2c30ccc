//! Sends one shard to one host.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use codec::hash::ShardRoot;
use protocol::net::close::GIVEN_UP;
use protocol::net::stream::{Exchange, read_frame};
use protocol::wire::limits::{CONNECT_TIMEOUT, REQUEST_TIMEOUT, SYNC_TIMEOUT};
use protocol::wire::message::{PutEnd, Request, Response};
use quinn::Connection;
use tokio::sync::mpsc;

use super::hosts::{Hosts, unexpected};
use crate::{Fault, HostIndex};

/// Longest wait for a host to accept a shard.
pub const OPEN_TIMEOUT: Duration =
    Duration::from_secs(CONNECT_TIMEOUT.as_secs() + REQUEST_TIMEOUT.as_secs());

/// A command to the sender of a shard.
#[derive(Debug)]
pub enum PutCommand {
    /// Send the block of this row.
    Block(u64, Bytes),
    /// All blocks have been sent; end the shard.
    Finish(PutEnd),
}

/// A report of the sender of a shard.
#[derive(Debug)]
pub enum PutProgress {
    /// The host takes blocks.
    Accepted,
    /// The transport has taken the block of this row.
    Sent(u64),
    /// The host has synced the shard, and the root that it computed is the promised one.
    Stored,
}

/// Measures how fast a host takes a shard.
#[derive(Debug, Default)]
pub struct Meter(Mutex<Measured>);

#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    started: Option<Instant>,
    ended: Option<Instant>,
    bytes: u64,
    /// The part of `bytes` that may not have arrived yet.
    in_flight: u64,
    /// Time in which the transfer waited for the host.
    waited: Duration,
    /// Bytes that the host took in that time.
    waited_bytes: u64,
}

/// What a transfer shows about the connection to its host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MeasuredRate {
    /// The host took this many bytes per second and could not take more.
    Exactly(f64),
    /// The host took this many bytes per second, and there was no more to take.
    AtLeast(f64),
}

/// A transfer of fewer bytes that takes less than [`RATE_TIME_MIN`] shows nothing, because it mostly
/// consists of connecting and syncing.
const RATE_BYTES_MIN: u64 = 4 << 20;

/// A transfer of fewer than [`RATE_BYTES_MIN`] bytes that takes less than this shows nothing.
const RATE_TIME_MIN: Duration = Duration::from_millis(500);

/// A transfer of fewer bytes shows nothing, however long it takes: a busy disk syncs for seconds.
const RATE_BYTES_LEAST: u64 = 256 << 10;

/// A transfer that was given up shows how slow its host is if the transfer waited for the host for this
/// long. Its earlier part had no need to wait.
const RATE_WAIT_MIN: Duration = Duration::from_millis(250);

/// A block that takes less than this did not have to wait.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// The send window is this many congestion windows: while one is in flight, the next one is ready.
const WINDOW_FACTOR: u64 = 2;

/// A new connection needs this send window, bytes: a block, and what the connection may soon have in
/// flight.
const WINDOW_MIN: u64 = 512 << 10;

/// Whether a block was there when its transfer was ready for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Supply {
    /// The block had waited behind others.
    Queued,
    /// The transfer had waited for the block.
    Awaited,
}

impl Meter {
    fn update(&self, change: impl FnOnce(&mut Measured)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn begin(&self) {
        self.update(|measured| measured.started = Some(Instant::now()));
    }

    /// Counts a block that took `waited` to be handed to the connection.
    fn count(&self, bytes: u64, waited: Duration, supply: Supply, in_flight: u64) {
        self.update(|measured| {
            measured.bytes += bytes;
            measured.in_flight = in_flight;
            measured.waited += waited;
            if supply == Supply::Queued || waited >= WAIT_MIN {
                measured.waited_bytes += bytes;
            }
        });
    }

    fn end(&self, waited: Duration) {
        self.update(|measured| {
            measured.waited += waited;
            measured.in_flight = 0;
            measured.ended = Some(Instant::now());
        });
    }

    /// The rate so far. `None` if too little was sent.
    pub fn rate(&self) -> Option<MeasuredRate> {
        let measured = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if measured.ended.is_none() && measured.waited >= RATE_WAIT_MIN {
            let bytes = measured.waited_bytes.saturating_sub(measured.in_flight);
            let rate = bytes.max(1) as f64 / measured.waited.as_secs_f64();
            return Some(MeasuredRate::Exactly(rate));
        }
        let end = measured.ended.unwrap_or_else(Instant::now);
        let took = end.checked_duration_since(measured.started?)?;
        let bytes = measured.bytes.saturating_sub(measured.in_flight);
        let is_short = bytes < RATE_BYTES_MIN && took < RATE_TIME_MIN;
        if is_short || bytes < RATE_BYTES_LEAST {
            return None;
        }
        let rate = bytes as f64 / took.as_secs_f64().max(1e-6);
        let host_was_slower = measured.waited * 2 > took;
        Some(if host_was_slower {
            MeasuredRate::Exactly(rate)
        } else {
            MeasuredRate::AtLeast(rate)
        })
    }
}

/// Offers a shard to `host` with `put`, which is a `PutShard` or a `PutRebuilt`. Then sends the blocks
/// that arrive as `commands`, and waits until the host has synced the shard. If `commands` is closed
/// early, the host drops the shard.
///
/// # Errors
/// When the host refuses, is lost, or has stored something else than was sent.
pub async fn put_shard(
    hosts: Hosts,
    host: HostIndex,
    put: Request,
    commands: mpsc::UnboundedReceiver<PutCommand>,
    meter: &Meter,
    report: impl FnMut(PutProgress),
) -> Result<(), Fault> {
    let put = put_all(&hosts, host, put, commands, meter, report).await;
    put.map_err(|fault| hosts.blamed(host, fault))
}

async fn put_all(
    hosts: &Hosts,
    host: HostIndex,
    put: Request,
    mut commands: mpsc::UnboundedReceiver<PutCommand>,
    meter: &Meter,
    mut report: impl FnMut(PutProgress),
) -> Result<(), Fault> {
    let (response, mut exchange) = hosts.request(host, &put, REQUEST_TIMEOUT).await?;
    if response != Response::Accepted {
        return Err(unexpected("put"));
    }
    let connection = hosts.connection(host).await?;
    let mut in_flight = fit_window(&connection, hosts.window());
    meter.begin();
    report(PutProgress::Accepted);
    loop {
        let supply = if commands.is_empty() {
            Supply::Awaited
        } else {
            Supply::Queued
        };
        let command = tokio::select! {
            biased;
            command = commands.recv() => command,
            // While there is nothing to send, the end of the connection would not be noticed otherwise.
            // What was sent and never arrived keeps the memory for which the next blocks wait.
            cause = connection.closed() => {
                drop((connection, exchange));
                hosts.hang_up(host).await;
                return Err(Fault::Gone(cause.to_string()));
            }
        };
        let Some(command) = command else { break };
        match command {
            PutCommand::Block(row, block) => {
                hosts.may_send(block.len()).await;
                let bytes = block.len() as u64;
                let begun = Instant::now();
                send_block(&mut exchange, block).await?;
                meter.count(bytes, begun.elapsed(), supply, in_flight);
                in_flight = fit_window(&connection, hosts.window());
                report(PutProgress::Sent(row));
            }
            PutCommand::Finish(end) => {
                let begun = Instant::now();
                finish(&mut exchange, &end).await?;
                meter.end(begun.elapsed());
                report(PutProgress::Stored);
                return Ok(());
            }
        }
    }
    // The transfer was given up. An error means that the stream has ended already.
    let _ = exchange.send.reset(GIVEN_UP);
    Ok(())
}

/// Sets the send window to what keeps the connection to a host busy, at most `most` bytes. With a larger
/// window a slow host would seem to take megabytes at once. Returns the window in bytes.
fn fit_window(connection: &Connection, most: u32) -> u64 {
    let most = u64::from(most);
    let full = connection.stats().path.cwnd.saturating_mul(WINDOW_FACTOR);
    let window = full.clamp(WINDOW_MIN.min(most), most);
    connection.set_send_window(window);
    window
}

/// Sends one block. There is no time limit here, because the session decides how long a block may take.
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
    // An error means that the host has stopped the stream. Its answer has the reason.
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

/// The reason for which a host takes no more. It has usually sent one.
async fn reason(exchange: &mut Exchange) -> Fault {
    match read_frame(&mut exchange.recv, REQUEST_TIMEOUT).await {
        Ok(Response::Refused(refusal)) => {
            protocol::net::stream::ExchangeError::Refused(refusal).into()
        }
        Ok(_) => unexpected("put"),
        Err(cause) => cause.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rate of a transfer that took `took_ms`, of which it waited for `waited_ms`.
    fn rate(bytes: u64, took_ms: u64, waited_ms: u64) -> Option<MeasuredRate> {
        let now = Instant::now();
        let meter = Meter(Mutex::new(Measured {
            started: now.checked_sub(Duration::from_millis(took_ms)),
            ended: Some(now),
            bytes,
            in_flight: 0,
            waited: Duration::from_millis(waited_ms),
            waited_bytes: bytes,
        }));
        meter.rate()
    }

    #[test]
    fn a_host_that_is_waited_for_shows_its_rate() {
        assert_eq!(
            rate(10_000_000, 1000, 900),
            Some(MeasuredRate::Exactly(1e7))
        );
        assert_eq!(
            rate(10_000_000, 1000, 100),
            Some(MeasuredRate::AtLeast(1e7))
        );
    }

    #[test]
    fn short_transfers_measure_nothing() {
        assert_eq!(rate(1000, 30, 30), None);
        assert!(rate(1 << 20, 3000, 2900).is_some());
        assert_eq!(rate(0, 3000, 2900), None);
        // What changed in a large image, on a host whose disk is busy.
        assert_eq!(rate(100, 800, 790), None);
        assert_eq!(rate(100_000, 9000, 8900), None);
        assert_eq!(Meter::default().rate(), None);
    }

    #[test]
    fn a_transfer_that_was_given_up_measures_what_its_host_took_meanwhile() {
        let meter = Meter::default();
        meter.begin();
        let none = Duration::ZERO;
        let long = Duration::from_millis(400);
        // These blocks did not wait.
        meter.count(3_000_000, none, Supply::Awaited, 0);
        assert_eq!(meter.rate(), None, "too short");
        meter.count(300_000, long, Supply::Awaited, 200_000);
        meter.count(300_000, none, Supply::Queued, 200_000);
        assert_eq!(meter.rate(), Some(MeasuredRate::Exactly(1e6)));
    }
}
