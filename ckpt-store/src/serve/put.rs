//! Receives a shard: one task reads the stream, while a thread hashes and writes what came before.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use codec::manifest::{Manifest, Public};
use codec::{CheckpointId, OwnerId, ShardRoot};
use protocol::net::stream::ExchangeError;
use protocol::wire::Code;
use protocol::wire::limits::UNCOMMITTED_LIFETIME;
use protocol::wire::message::{
    Claim, PutEnd, PutRebuilt, PutShard, Refusal, Response, StoredShard,
};
use quinn::RecvStream;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::info;

use super::blocks::{BlockParser, Parsed};
use super::pool::{PLACE_TIMEOUT, Place};
use super::{Answer, Exchange, ServedHost, blocking, busy, pause, stopped, who};
use crate::core::ledger::Whole;
use crate::core::places::Who;
use crate::core::{Denied, Millis};
use crate::shards::{Batch, StoreError, Upload, signed_by};

/// A client that sends nothing for this long loses its shard. The time is that for which an uncommitted
/// shard is kept, because the client may wait for a slow producer. A client that is gone is noticed much
/// earlier, by the idle timeout of its connection.
const SEND_STALL_TIMEOUT: Duration = UNCOMMITTED_LIFETIME;

/// A shard that is being received may take this long to end after the daemon began to stop.
const STOP_PUTS_AFTER: Duration = Duration::from_secs(3);

/// Longest wait until the transfers of a checkpoint have ended whose client asks what is here of them.
const END_TIMEOUT: Duration = Duration::from_secs(3);

/// Pause between two looks whether they have.
const END_PERIOD: Duration = Duration::from_millis(5);

/// Most chunks of the stream that are taken in one step.
const CHUNKS: usize = 32;

/// Whose transfers of which checkpoint.
pub(super) type Transferred = (Who<OwnerId>, CheckpointId);

/// What the owner's manifest promises of a shard that another host brings.
#[derive(Clone)]
struct Promised {
    /// The owner and the grant of the checkpoint.
    whose: Who<OwnerId>,
    public: Arc<Public>,
}

impl Exchange<'_> {
    /// Answers a `PutShard` request.
    pub(super) async fn put_shard(&mut self, put: PutShard) -> Result<(), Answer> {
        let stored = self.take_shard(&put, None).await?;
        self.respond(&Response::Stored(stored)).await
    }

    /// Answers a `PutRebuilt` request. The host that brings the shard is not trusted: the shard has to be
    /// the one whose root the owner signed.
    pub(super) async fn put_rebuilt(&mut self, rebuilt: PutRebuilt) -> Result<(), Answer> {
        let PutRebuilt { put, manifest } = rebuilt;
        let parsed = Manifest::parse(manifest).map_err(StoreError::from)?;
        let public = parsed.public();
        let is_of_manifest = public.checkpoint == put.claim.checkpoint
            && public.job_tag == put.claim.job_tag
            && public.version == put.claim.version
            && public.redundancy == put.redundancy
            && public.block_bytes == put.expected_bytes;
        if !is_of_manifest {
            return Err(StoreError::Mismatch("manifest").into());
        }
        if self.host.parts.store.is_deleted(public) {
            return Err(StoreError::Denied(Denied::Gone).into());
        }
        let owner = public.owner;
        let store = Arc::clone(&self.host.parts.store);
        let promised = Some(Promised {
            whose: signed_by(&parsed),
            public: Arc::new(public.clone()),
        });
        let stored = self.take_shard(&put, promised).await?;
        let manifest = parsed.bytes().to_vec();
        blocking(move || store.commit(owner, manifest)).await?;
        info!(
            peer = self.peer.name, checkpoint = %put.claim.checkpoint, shard = put.shard,
            "rebuilt shard committed"
        );
        self.respond(&Response::Stored(stored)).await
    }

    /// Receives and syncs a shard. The shard is one of the peer's own, or a rebuilt one that `promised`
    /// describes.
    async fn take_shard(
        &mut self,
        put: &PutShard,
        promised: Option<Promised>,
    ) -> Result<StoredShard, Answer> {
        let host = Arc::clone(self.host);
        let place = self.place(&host.writers, "shards").await?;
        let _window = self.connection.open_window();
        let upload = self.begin_put(put, promised).await?;
        self.respond(&Response::Accepted).await?;

        let begun = Instant::now();
        let received = tokio::select! {
            received = receive(&host, self.recv, (upload, (who(self.peer), put.claim.checkpoint)), &place) => received?,
            () = stopped(host.stopping.clone(), STOP_PUTS_AFTER) => {
                return Err(Answer::Refused(Refusal::new(Code::Stopping, "")));
            }
        };
        let now = host.parts.clock.now();
        let Received { upload, end, bytes } = received;
        let stored = blocking(move || upload.finish(now, &end)).await?;
        host.parts.monitor.received(bytes, begun.elapsed());
        info!(
            peer = self.peer.name, checkpoint = %put.claim.checkpoint, version = %put.claim.version,
            shard = put.shard, rows = stored.rows, root = %stored.root, "stored"
        );
        Ok(stored)
    }

    /// Tries to get space: the slowest transfer that takes such space has to give way, and this call
    /// waits until a transfer has ended. Returns false if none is slow. No transfer gives way to a job
    /// key that has used its half.
    async fn cleared(&self, full: Whole) -> bool {
        let of = match full {
            Whole::Host => None,
            Whole::OwnersShare => Some(self.peer.account()),
            Whole::GrantsHalf => return false,
        };
        self.host.writers.cleared(of, PLACE_TIMEOUT).await
    }

    /// Reserves space for a shard. If there is none because slow transfers occupy it, the slowest of
    /// these gives way. If the member's share is used up, only its own transfers give way.
    async fn begin_put(
        &self,
        put: &PutShard,
        promised: Option<Promised>,
    ) -> Result<Upload, Answer> {
        let peer = self.peer.account();
        let who = who(self.peer);
        loop {
            let store = Arc::clone(&self.host.parts.store);
            let put = *put;
            let promised = promised.clone();
            let now = self.host.parts.clock.now();
            let unix_seconds = self.host.parts.clock.unix_seconds();
            let begin = move || {
                Ok(match promised {
                    Some(Promised { whose, public }) => {
                        let of = (whose, peer);
                        store.begin_rebuilt(now, unix_seconds, of, &public, &put)
                    }
                    None => store.begin_put(now, unix_seconds, who, &put),
                })
            };
            match blocking(begin).await? {
                Err(StoreError::Denied(Denied::NoSpace(full))) if self.cleared(full.of).await => {}
                begun => return Ok(begun?),
            }
        }
    }
}

/// A batch that is being written on a thread. The upload and the emptied batch come back.
type Writing = JoinHandle<Result<(Box<Upload>, Batch), StoreError>>;

/// A shard that has arrived completely.
struct Received {
    upload: Box<Upload>,
    end: PutEnd,
    /// Bytes of the stream.
    bytes: u64,
}

/// Reads and writes blocks until the end of the transfer. If the transfer fails, the unfinished shard is
/// removed or put aside before this returns, so that the client can begin again at once.
async fn receive(
    host: &ServedHost,
    recv: &mut RecvStream,
    (upload, of): (Upload, Transferred),
    place: &Place<OwnerId>,
) -> Result<Received, Answer> {
    let ends = host.ended.subscribe();
    let mut writer = Writer::new(upload);
    let received = tokio::select! {
        () = is_ended(ends, of) => Err(transfer_lost("the client asked what is here of it")),
        received = receive_into(host, recv, &mut writer, place) => received,
        () = place.gives_way() => Err(busy("too slow while others were waiting")),
    };
    match &received {
        // The client is gone, or its connection is.
        Err(Answer::Lost(_)) => writer.break_off(host.parts.clock.now()).await,
        Err(_) => writer.discard().await,
        Ok(_) => {}
    }
    received
}

async fn receive_into(
    host: &ServedHost,
    recv: &mut RecvStream,
    writer: &mut Writer,
    place: &Place<OwnerId>,
) -> Result<Received, Answer> {
    let mut bytes = 0;
    let mut parser = BlockParser::new();
    let mut filling = Batch::default();
    let mut chunks: [Bytes; CHUNKS] = std::array::from_fn(|_| Bytes::new());
    loop {
        place.waits();
        let count = next_chunks(recv, &mut chunks).await?;
        let arrived = chunks[..count].iter().map(Bytes::len).sum();
        place.moved(arrived);
        let allowed = host.parts.monitor.rates().receive;
        host.receiving.pass(arrived, allowed).await;
        bytes += arrived as u64;
        for chunk in &mut chunks[..count] {
            let chunk = std::mem::take(chunk);
            let mut rest = &chunk[..];
            loop {
                match parser.feed(&mut rest, &mut filling)? {
                    Parsed::More => break,
                    Parsed::Full => {
                        writer.write(&mut filling).await?;
                    }
                    Parsed::End(end) => {
                        writer.write(&mut filling).await?;
                        let (upload, _) = writer.written().await?;
                        return Ok(Received { upload, end, bytes });
                    }
                }
            }
        }
    }
}

/// Writes one batch after the other on a blocking thread.
struct Writer {
    /// `None` only after a batch has failed or the upload was taken out.
    writing: Option<Writing>,
}

impl Writer {
    fn new(upload: Upload) -> Self {
        // Starts with an empty batch, so that there is always a batch to wait for.
        Self {
            writing: Some(start(Box::new(upload), Batch::default())),
        }
    }

    /// Waits for the batch before and begins to write this one. Leaves empty buffers in `filled`.
    async fn write(&mut self, filled: &mut Batch) -> Result<(), Answer> {
        let (upload, spare) = self.written().await?;
        self.writing = Some(start(upload, std::mem::replace(filled, spare)));
        Ok(())
    }

    async fn written(&mut self) -> Result<(Box<Upload>, Batch), Answer> {
        let Some(writing) = self.writing.as_mut() else {
            return Err(Answer::Refused(Refusal::new(
                Code::Internal,
                "no shard is being written",
            )));
        };
        let done = writing.await;
        self.writing = None;
        match done {
            Ok(done) => Ok(done?),
            Err(panicked) => Err(Answer::internal(&panicked)),
        }
    }

    /// Waits for the thread, then keeps the rows of the unfinished shard.
    async fn break_off(&mut self, now: Millis) {
        if let Ok((upload, _)) = self.written().await {
            // If that panics, the file is removed at the next start.
            let _ = tokio::task::spawn_blocking(move || upload.break_off(now)).await;
        }
    }

    /// Waits for the thread, then removes the unfinished shard.
    async fn discard(&mut self) {
        if let Ok(unfinished) = self.written().await {
            // Removing a file may wait for the disk. If that panics, the file is removed at the next
            // start.
            let _ = tokio::task::spawn_blocking(move || drop(unfinished)).await;
        }
    }
}

fn start(mut upload: Box<Upload>, mut batch: Batch) -> Writing {
    tokio::task::spawn_blocking(move || {
        if !batch.is_empty() {
            upload.write(&batch)?;
            batch.clear();
        }
        Ok((upload, batch))
    })
}

/// Reads the next chunks of the stream, at least one, and returns their number.
async fn next_chunks(recv: &mut RecvStream, chunks: &mut [Bytes]) -> Result<usize, Answer> {
    match pause(SEND_STALL_TIMEOUT, recv.read_chunks(chunks)).await? {
        Ok(Some(count)) => Ok(count),
        Ok(None) => Err(transfer_lost("the client ended the transfer early")),
        Err(cause) => Err(transfer_lost(&cause.to_string())),
    }
}

/// Ends when the client of a checkpoint's transfers has asked what is here of them: it does not go on with them.
async fn is_ended(mut ends: broadcast::Receiver<Transferred>, of: Transferred) {
    loop {
        match ends.recv().await {
            Ok(ended) if ended == of => return,
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

impl Exchange<'_> {
    /// Answers a `RowsHeld` request, after the transfers of the checkpoint have ended.
    pub(super) async fn rows_held(&mut self, claim: Claim) -> Result<(), Answer> {
        let place = self.place(&self.host.changes, "small changes").await?;
        let who = who(self.peer);
        let store = Arc::clone(&self.host.parts.store);
        let until = Instant::now() + END_TIMEOUT;
        while store.is_receiving(who, &claim) && Instant::now() < until {
            // Fails if no transfer runs any more.
            let _ = self.host.ended.send((who, claim.checkpoint));
            tokio::time::sleep(END_PERIOD).await;
        }
        let now = self.host.parts.clock.now();
        let shards = store.rows_held(now, who, &claim);
        drop(place);
        self.respond(&Response::RowsHeld { shards }).await
    }

    /// Answers an `EndEarly` request.
    pub(super) async fn end_early(
        &mut self,
        put: PutShard,
        rows: u64,
        root: ShardRoot,
    ) -> Result<(), Answer> {
        let _place = self.place(&self.host.changes, "small changes").await?;
        let store = Arc::clone(&self.host.parts.store);
        let who = who(self.peer);
        let now = self.host.parts.clock.now();
        let stored = blocking(move || store.end_early(now, who, &put, rows, root)).await?;
        info!(
            peer = self.peer.name, checkpoint = %put.claim.checkpoint, shard = put.shard, rows,
            "ended a shard whose transfer broke off"
        );
        self.respond(&Response::Stored(stored)).await
    }
}

fn transfer_lost(what: &str) -> Answer {
    Answer::Lost(ExchangeError::Lost(what.to_owned()))
}
