//! Speaks to clients: one task for each connection, one for each request.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use codec::OwnerId;
use codec::geometry::BLOCK_BYTES_MAX;
use codec::serial::SerialError;
use protocol::identity::{Peer, Role};
use protocol::net::stream::{ExchangeError, GIVEN_UP, read_frame, within, write_frame};
use protocol::wire::Code;
use protocol::wire::limits::{REQUEST_TIMEOUT, STALL_TIMEOUT};
use protocol::wire::message::{
    Claim, HostStatus, PutEnd, PutShard, Refusal, Request, Response, ShardName, StoredShard,
};
use quinn::{Connection, RecvStream, SendStream, VarInt};
use tokio::sync::{Semaphore, mpsc, watch};
use tracing::{debug, info, warn};

use crate::config::MemoryPlan;
use crate::core::catalog::{ClaimAnswer, UnixSeconds};
use crate::disk::Disk;
use crate::store::{ShardWriter, Store};

/// Bytes of blocks that are handed to the writing thread at once.
const BATCH_BYTES: usize = 768 << 10;

/// How long a request waits for a free place before it is told to come later.
const PLACE_TIMEOUT: Duration = Duration::from_secs(2);

/// When a host that has no free place may be asked again.
const BUSY_RETRY_MS: u32 = 2_000;

/// What all requests share.
#[derive(Debug)]
pub struct Context<D> {
    /// The store.
    pub store: Arc<Store<D>>,
    /// The host's name.
    pub name: String,
    /// When it started.
    pub started: Instant,
    writers: Arc<Semaphore>,
    readers: Arc<Semaphore>,
    stopping: watch::Receiver<bool>,
}

impl<D: Disk> Context<D> {
    /// A context with places as `plan` says; `stopping` turns true when the daemon ends.
    pub fn new(
        store: Arc<Store<D>>,
        name: String,
        plan: &MemoryPlan,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        Self {
            store,
            name,
            started: Instant::now(),
            writers: Arc::new(Semaphore::new(plan.writers)),
            readers: Arc::new(Semaphore::new(plan.readers)),
            stopping,
        }
    }
}

/// Seconds since 1970.
pub fn now() -> UnixSeconds {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Serves one connection until it ends.
pub async fn connection<D: Disk>(context: Arc<Context<D>>, connection: Connection) {
    let from = connection.remote_address();
    let peer = match Peer::of(&connection) {
        Ok(peer) => peer,
        Err(cause) => {
            warn!(%from, %cause, "connection refused");
            return connection.close(VarInt::from_u32(2), b"certificate");
        }
    };
    if !peer.has(Role::Submitter) {
        warn!(%from, peer = peer.name, id = %peer.id, roles = ?peer.roles, "connection refused: not a submitter");
        return connection.close(VarInt::from_u32(2), b"role submitter needed");
    }
    debug!(%from, peer = peer.name, "connected");
    loop {
        let (send, recv) = match connection.accept_bi().await {
            Ok(stream) => stream,
            Err(cause) => {
                debug!(%from, %cause, "disconnected");
                return;
            }
        };
        let context = Arc::clone(&context);
        let peer = peer.clone();
        tokio::spawn(async move {
            if let Err(cause) = request(&context, &peer, send, recv).await {
                info!(%from, peer = peer.name, %cause, "request failed");
            }
        });
    }
}

async fn request<D: Disk>(
    context: &Arc<Context<D>>,
    peer: &Peer,
    mut send: SendStream,
    mut recv: RecvStream,
) -> Result<(), ExchangeError> {
    let request = match read_frame::<Request>(&mut recv, REQUEST_TIMEOUT).await {
        Ok(request) => request,
        Err(cause @ ExchangeError::Malformed(_)) => {
            let refusal = Refusal::new(Code::BadRequest, cause.to_string());
            write_frame(&mut send, &Response::Refused(refusal)).await?;
            return Err(cause);
        }
        Err(cause) => return Err(cause),
    };
    let answered = if *context.stopping.borrow() {
        Err(Refusal::new(Code::Stopping, "").into())
    } else {
        let mut exchange = Server {
            context,
            owner: peer.id,
            send: &mut send,
            recv: &mut recv,
        };
        exchange.answer(request).await
    };
    match answered {
        Ok(()) => {}
        Err(Answer::Refusal(refusal)) => {
            info!(peer = peer.name, code = ?refusal.code, detail = refusal.detail, "refused");
            write_frame(&mut send, &Response::Refused(refusal)).await?;
        }
        Err(Answer::Lost(cause)) => {
            // Fails when the stream is gone already.
            let _ = send.reset(GIVEN_UP);
            return Err(cause);
        }
    }
    // What the client may still be sending is of no interest any more.
    let _ = recv.stop(GIVEN_UP);
    let _ = send.finish();
    Ok(())
}

/// How a request ends that is not answered as it was asked.
enum Answer {
    Refusal(Refusal),
    Lost(ExchangeError),
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Self {
        Self::Refusal(refusal)
    }
}

impl From<ExchangeError> for Answer {
    fn from(cause: ExchangeError) -> Self {
        match cause {
            ExchangeError::Malformed(cause) => {
                Self::Refusal(Refusal::new(Code::BadRequest, cause.to_string()))
            }
            cause => Self::Lost(cause),
        }
    }
}

struct Server<'a, D> {
    context: &'a Arc<Context<D>>,
    owner: OwnerId,
    send: &'a mut SendStream,
    recv: &'a mut RecvStream,
}

impl<D: Disk> Server<'_, D> {
    async fn answer(&mut self, request: Request) -> Result<(), Answer> {
        match request {
            Request::Status => self.status().await,
            Request::Claim(claim) => self.claim(claim).await,
            Request::PutShard(put) => self.put_shard(put).await,
            Request::Commit { manifest } => self.commit(manifest).await,
            Request::Find { job_tag, after } => {
                let owner = self.owner;
                let find = move |store: &Store<D>| Ok(store.find(owner, job_tag, after));
                let found = self.blocking(find).await?;
                let count = found.records.len() as u32;
                let more = found.more;
                self.respond(&Response::Found { count, more }).await?;
                for record in &found.records {
                    write_frame(self.send, record).await?;
                }
                Ok(())
            }
            Request::Outline(shard) => self.outline(shard).await,
            Request::Page { shard, page } => {
                let owner = self.owner;
                let page = self
                    .blocking(move |store| store.page(owner, shard, page))
                    .await?;
                let bytes = page.len() as u32;
                self.respond(&Response::Page { bytes }).await?;
                self.write(page).await
            }
            Request::Rows {
                shard,
                first,
                count,
            } => self.rows(shard, first, count).await,
            Request::Forget { checkpoint } => {
                let owner = self.owner;
                let forget = move |store: &Store<D>| store.forget(owner, checkpoint);
                let existed = self.blocking(forget).await?;
                info!(%owner, %checkpoint, existed, "forgotten");
                self.respond(&Response::Forgotten { existed }).await
            }
        }
    }

    async fn status(&mut self) -> Result<(), Answer> {
        let usage = self.blocking(|store| Ok(store.usage())).await?;
        let status = HostStatus {
            name: self.context.name.clone(),
            software: env!("CARGO_PKG_VERSION").to_owned(),
            capacity_bytes: usage.capacity_bytes,
            used_bytes: usage.used_bytes,
            free_bytes: usage.free_bytes,
            shards: usage.shards,
            checkpoints: usage.checkpoints,
            uptime_s: self.context.started.elapsed().as_secs(),
        };
        self.respond(&Response::Status(status)).await
    }

    async fn claim(&mut self, claim: Claim) -> Result<(), Answer> {
        let answer = self.context.store.claim(self.owner, claim, now())?;
        self.respond(&match answer {
            ClaimAnswer::Claimed => Response::Claimed,
            ClaimAnswer::Taken { next } => Response::Taken { next },
        })
        .await
    }

    async fn commit(&mut self, manifest: Vec<u8>) -> Result<(), Answer> {
        let owner = self.owner;
        self.blocking(move |store| store.commit(owner, manifest))
            .await?;
        self.respond(&Response::Committed).await
    }

    async fn outline(&mut self, shard: ShardName) -> Result<(), Answer> {
        let owner = self.owner;
        let outline = self
            .blocking(move |store| store.outline(owner, shard))
            .await?;
        let response = Response::Outline {
            rows: outline.rows,
            block_bytes: outline.block_bytes,
            pages: outline.pages.len() as u64,
        };
        self.respond(&response).await?;
        let hashes: Vec<u8> = outline.pages.iter().flat_map(|page| page.0).collect();
        self.write(hashes).await
    }

    async fn rows(&mut self, shard: ShardName, first: u64, count: u32) -> Result<(), Answer> {
        let readers = Arc::clone(&self.context.readers);
        let _place = place(readers).await?;
        let owner = self.owner;
        let mut reader = self
            .blocking(move |store| store.rows(owner, shard, first, count))
            .await?;
        let bytes = reader.bytes;
        self.respond(&Response::Rows { bytes }).await?;
        loop {
            let read = tokio::task::spawn_blocking(move || {
                let blocks = reader.next_blocks();
                (reader, blocks)
            });
            let (back, blocks) = read.await.map_err(|_| lost("a thread of the host ended"))?;
            reader = back;
            match blocks {
                Ok(Some(blocks)) => self.write(blocks).await?,
                Ok(None) => return Ok(()),
                Err(cause) => {
                    warn!(%cause, checkpoint = %shard.checkpoint, shard = shard.shard, "reading failed");
                    return Err(lost("reading failed"));
                }
            }
        }
    }

    async fn put_shard(&mut self, put: PutShard) -> Result<(), Answer> {
        let writers = Arc::clone(&self.context.writers);
        let _place = place(writers).await?;
        let (owner, store) = (self.owner, Arc::clone(&self.context.store));
        let begin = tokio::task::spawn_blocking(move || store.begin(owner, &put, now()));
        let writer = begin
            .await
            .map_err(|_| lost("a thread of the host ended"))??;
        self.respond(&Response::Accepted).await?;

        // One batch is received while one is written and one waits.
        let (batches, queue) = mpsc::channel::<Incoming>(1);
        let writing = tokio::task::spawn_blocking(move || write_shard(writer, queue));
        let received = self.receive(batches).await;
        let written = writing
            .await
            .map_err(|_| lost("a thread of the host ended"))?;
        match (received, written) {
            (Ok(()), Ok(Some(stored))) => {
                debug!(%owner, checkpoint = %put.claim.checkpoint, shard = put.shard, rows = stored.rows, "stored");
                self.respond(&Response::Stored(stored)).await
            }
            (_, Err(refusal)) => Err(refusal.into()),
            (Err(cause), _) => Err(cause.into()),
            (Ok(()), Ok(None)) => Err(lost("the shard did not end")),
        }
    }

    /// Receives blocks until the end of the shard, or until the writer gives up.
    async fn receive(&mut self, batches: mpsc::Sender<Incoming>) -> Result<(), ExchangeError> {
        let mut batch = Batch::default();
        loop {
            let mut len = [0; 4];
            within(STALL_TIMEOUT, self.recv.read_exact(&mut len)).await?;
            let len = u32::from_le_bytes(len) as usize;
            let ends = len == 0;
            if len > BLOCK_BYTES_MAX {
                return Err(SerialError::TooLong {
                    actual: len,
                    limit: BLOCK_BYTES_MAX,
                }
                .into());
            }
            if !ends {
                self.receive_block(&mut batch, len).await?;
            }
            if (ends || batch.bytes.len() >= BATCH_BYTES)
                && batches
                    .send(Incoming::Blocks(std::mem::take(&mut batch)))
                    .await
                    .is_err()
            {
                return Ok(());
            }
            if ends {
                let mut end = [0; PutEnd::BYTES];
                within(STALL_TIMEOUT, self.recv.read_exact(&mut end)).await?;
                let end = PutEnd::decode(&end);
                // The writer gave up when this fails, and says why.
                let _ = batches.send(Incoming::End(end)).await;
                return Ok(());
            }
        }
    }

    async fn receive_block(&mut self, batch: &mut Batch, len: usize) -> Result<(), ExchangeError> {
        if batch.bytes.capacity() == 0 {
            batch.bytes.reserve(BATCH_BYTES + len);
        }
        let end = batch.bytes.len() + len;
        while batch.bytes.len() < end {
            let left = end - batch.bytes.len();
            let read = async { self.recv.read_chunk(left, true).await.map_err(lost_read) };
            let chunk = within(STALL_TIMEOUT, read).await?;
            let Some(chunk) = chunk else {
                return Err(ExchangeError::Lost("stream ended early".into()));
            };
            batch.bytes.extend_from_slice(&chunk.bytes);
        }
        batch.lens.push(len);
        Ok(())
    }

    async fn respond(&mut self, response: &Response) -> Result<(), Answer> {
        Ok(write_frame(self.send, response).await?)
    }

    async fn write(&mut self, bytes: Vec<u8>) -> Result<(), Answer> {
        let written = within(STALL_TIMEOUT, self.send.write_chunk(bytes.into())).await;
        Ok(written?)
    }

    /// Runs what may wait for the disk on a thread that may wait.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store<D>) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Answer> {
        let store = Arc::clone(&self.context.store);
        let done = tokio::task::spawn_blocking(move || work(&store)).await;
        let done = done.map_err(|_| Refusal::new(Code::Internal, "a thread ended"))?;
        Ok(done?)
    }
}

/// Blocks that came, one after the other.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    lens: Vec<usize>,
}

enum Incoming {
    Blocks(Batch),
    End(PutEnd),
}

/// Writes a shard on its own thread; `None` when the client did not end it.
fn write_shard<D: Disk>(
    mut writer: ShardWriter<D>,
    mut queue: mpsc::Receiver<Incoming>,
) -> Result<Option<StoredShard>, Refusal> {
    while let Some(incoming) = queue.blocking_recv() {
        match incoming {
            Incoming::Blocks(batch) => {
                let mut rest = batch.bytes.as_slice();
                for len in batch.lens {
                    let (block, tail) = rest.split_at(len);
                    writer.push(block)?;
                    rest = tail;
                }
            }
            Incoming::End(end) => return writer.finish(&end, now()).map(Some),
        }
    }
    Ok(None)
}

async fn place(places: Arc<Semaphore>) -> Result<tokio::sync::OwnedSemaphorePermit, Refusal> {
    match tokio::time::timeout(PLACE_TIMEOUT, places.acquire_owned()).await {
        Ok(Ok(place)) => Ok(place),
        _ => Err(Refusal {
            retry_after_ms: BUSY_RETRY_MS,
            ..Refusal::new(Code::Busy, "too many transfers at once")
        }),
    }
}

fn lost(what: &str) -> Answer {
    Answer::Lost(ExchangeError::Lost(what.to_owned()))
}

fn lost_read(cause: quinn::ReadError) -> ExchangeError {
    ExchangeError::Lost(cause.to_string())
}
