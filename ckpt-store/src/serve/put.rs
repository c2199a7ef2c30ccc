//! Receives a shard: one task reads the stream while a thread hashes and writes what came before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use protocol::net::stream::ExchangeError;
use protocol::wire::Code;
use protocol::wire::limits::UNCOMMITTED_LIFETIME;
use protocol::wire::message::{PutEnd, PutShard, Refusal, Response};
use quinn::RecvStream;
use tokio::task::JoinHandle;
use tracing::info;

use super::blocks::{BlockParser, Parsed};
use super::{Answer, Exchange, Host, blocking, pause, place, stopped};
use crate::shards::{Batch, StoreError, Upload};

/// A client that sends nothing for this long has lost its shard. As long as an uncommitted shard
/// lives, because the client may wait for a slow producer; one that is gone is noticed much earlier
/// by the connection's own idle timeout.
const SEND_STALL_TIMEOUT: Duration = UNCOMMITTED_LIFETIME;

/// How long shards that are coming in may take to end once the daemon is told to stop.
const STOP_PUTS_AFTER: Duration = Duration::from_secs(3);

/// Chunks of the stream that are taken at once.
const CHUNKS: usize = 32;

impl Exchange<'_> {
    /// Answers a `PutShard` request.
    pub(super) async fn put_shard(&mut self, put: PutShard) -> Result<(), Answer> {
        let host = Arc::clone(self.host);
        let _place = place(&host.writers, "shards are being written").await?;
        let _window = self.connection.open_window();
        let (store, owner) = (Arc::clone(&host.store), self.peer.id);
        let (now, unix_seconds) = (host.clock.now(), host.clock.unix_seconds());
        let upload = blocking(move || store.begin_put(now, unix_seconds, owner, &put)).await?;
        self.respond(&Response::Accepted).await?;

        let begun = Instant::now();
        let received = tokio::select! {
            received = receive(&host, self.recv, upload) => received?,
            () = stopped(host.stopping.clone(), STOP_PUTS_AFTER) => {
                return Err(Answer::Refused(Refusal::new(Code::Stopping, "")));
            }
        };
        let now = host.clock.now();
        let Received { upload, end, bytes } = received;
        let stored = blocking(move || upload.finish(now, &end)).await?;
        host.monitor.received(bytes, begun.elapsed());
        info!(
            peer = self.peer.name, checkpoint = %put.claim.checkpoint, version = %put.claim.version,
            shard = put.shard, rows = stored.rows, root = %stored.root, "stored"
        );
        self.respond(&Response::Stored(stored)).await
    }
}

/// A batch that is being written: what comes back is used again.
type Writing = JoinHandle<Result<(Box<Upload>, Batch), StoreError>>;

/// A shard that has arrived.
struct Received {
    upload: Box<Upload>,
    end: PutEnd,
    /// Bytes of the stream.
    bytes: u64,
}

/// Reads and writes blocks until the end of the transfer.
async fn receive(host: &Host, recv: &mut RecvStream, upload: Upload) -> Result<Received, Answer> {
    let mut bytes = 0;
    let mut parser = BlockParser::new();
    let mut filling = Batch::default();
    // An empty batch to begin with: then there is always one to wait for.
    let mut writing = write(Box::new(upload), Batch::default());
    let mut chunks: [Bytes; CHUNKS] = std::array::from_fn(|_| Bytes::new());
    loop {
        let count = next_chunks(recv, &mut chunks).await?;
        let arrived = chunks[..count].iter().map(Bytes::len).sum();
        let allowed = host.monitor.rates().receive;
        host.receiving.pass(arrived, allowed).await;
        bytes += arrived as u64;
        for chunk in &mut chunks[..count] {
            let chunk = std::mem::take(chunk);
            let mut rest = &chunk[..];
            loop {
                match parser.feed(&mut rest, &mut filling)? {
                    Parsed::More => break,
                    Parsed::Full => {
                        let (upload, spare) = written(writing).await?;
                        writing = write(upload, std::mem::replace(&mut filling, spare));
                    }
                    Parsed::End(end) => {
                        let (upload, _) = written(writing).await?;
                        let (upload, _) = written(write(upload, filling)).await?;
                        return Ok(Received { upload, end, bytes });
                    }
                }
            }
        }
    }
}

fn write(mut upload: Box<Upload>, mut batch: Batch) -> Writing {
    tokio::task::spawn_blocking(move || {
        if !batch.is_empty() {
            upload.write(&batch)?;
            batch.clear();
        }
        Ok((upload, batch))
    })
}

async fn written(writing: Writing) -> Result<(Box<Upload>, Batch), Answer> {
    match writing.await {
        Ok(done) => Ok(done?),
        Err(panicked) => Err(Answer::internal(&panicked)),
    }
}

/// The next chunks of the stream; at least one.
async fn next_chunks(recv: &mut RecvStream, chunks: &mut [Bytes]) -> Result<usize, Answer> {
    match pause(SEND_STALL_TIMEOUT, recv.read_chunks(chunks)).await? {
        Ok(Some(count)) => Ok(count),
        Ok(None) => Err(lost("the client ended the transfer early")),
        Err(cause) => Err(lost(&cause.to_string())),
    }
}

fn lost(what: &str) -> Answer {
    Answer::Lost(ExchangeError::Lost(what.to_owned()))
}
