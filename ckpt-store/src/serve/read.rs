//! Sends what is stored: records, outlines, pages of tables, and rows.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use codec::manifest::Manifest;
use codec::{CheckpointId, JobTag, OwnerId};
use direct_io::READ_BYTES;
use protocol::net::stream::ExchangeError;
use protocol::wire::limits::STALL_TIMEOUT;
use protocol::wire::message::{Record, Response, RowRun, ShardName};

use super::buffers::Buffers;
use super::pool::Place;
use super::scope::Scope;
use super::{Answer, Exchange, blocking, pause, too_slow};
use crate::config::{QUESTION_WINDOW, READER_WINDOW};
use crate::shards::RowBytes;

/// The end of an answer has this long to arrive at the client, and as long as its bytes take at the slowest
/// rate. Then the stream is reset, because its bytes stay in memory until they are acknowledged.
const DRAIN_GRACE: Duration = Duration::from_secs(2);

/// The slowest rate, bytes a second: a quarter of a link of 1 Mbit/s, over which a restore reads from
/// several hosts.
const SLOWEST_RATE: u64 = 32 << 10;

impl Exchange<'_> {
    /// Answers a `Find` request.
    pub(super) async fn find(
        &mut self,
        job_tag: Option<JobTag>,
        after: Option<CheckpointId>,
    ) -> Result<(), Answer> {
        let place = self.place(&self.host.questions, "answers").await?;
        let _window = self.connection.open_send_window(QUESTION_WINDOW);
        let (records, more) = self.found(job_tag, after).await?;
        let count = u32::try_from(records.len()).unwrap_or(u32::MAX);
        self.respond(&Response::Found { count, more }).await?;
        for record in &records {
            self.send_record(&place, record, record.manifest.len())
                .await?;
        }
        self.drain(&place).await
    }

    /// Records of the checkpoints after `after`, at least one if there are any, and whether there are
    /// more. A job key gets those of its own jobs only.
    async fn found(
        &self,
        job_tag: Option<JobTag>,
        mut after: Option<CheckpointId>,
    ) -> Result<(Vec<Record>, bool), Answer> {
        let owner = self.peer.account();
        let scope = self.connection.scope.as_ref();
        let job_tag = job_tag.or_else(|| scope.and_then(Scope::only_job));
        loop {
            let store = Arc::clone(&self.host.parts.store);
            let (mut records, more) = blocking(move || store.find(owner, job_tag, after)).await?;
            let Some(scope) = scope else {
                return Ok((records, more));
            };
            records.retain(|record| {
                let parsed = Manifest::parse(record.manifest.clone());
                parsed.is_ok_and(|manifest| {
                    after = Some(manifest.public().checkpoint);
                    scope.has_manifest(&manifest)
                })
            });
            if !records.is_empty() || !more {
                return Ok((records, more));
            }
        }
    }

    /// Answers an `Outline` request.
    pub(super) async fn outline(&mut self, shard: ShardName) -> Result<(), Answer> {
        let place = self.place(&self.host.questions, "answers").await?;
        let _window = self.connection.open_send_window(QUESTION_WINDOW);
        let owner = self.owner_for(&shard)?;
        let store = Arc::clone(&self.host.parts.store);
        let reader = blocking(move || store.open_shard(owner, &shard)).await?;
        let outline = &reader.footer().outline;
        let response = Response::Outline {
            rows: outline.rows,
            block_bytes: outline.block_bytes,
            pages: outline.pages.len() as u64,
        };
        self.respond(&response).await?;
        let hashes: Vec<u8> = outline.pages.iter().flat_map(|page| page.0).collect();
        self.write(&place, vec![hashes.into()]).await?;
        self.drain(&place).await
    }

    /// Answers a `Page` request.
    pub(super) async fn page(&mut self, shard: ShardName, page: u64) -> Result<(), Answer> {
        let place = self.place(&self.host.questions, "answers").await?;
        let owner = self.owner_for(&shard)?;
        let store = Arc::clone(&self.host.parts.store);
        let page = blocking(move || store.page(owner, &shard, page)).await?;
        let bytes = u32::try_from(page.len()).unwrap_or(u32::MAX);
        self.respond(&Response::Page { bytes }).await?;
        self.write(&place, vec![page.into()]).await
    }

    /// Answers a `Rows` or a `RowRuns` request.
    pub(super) async fn rows(&mut self, shard: ShardName, runs: Vec<RowRun>) -> Result<(), Answer> {
        let place = self.place(&self.host.readers, "reads").await?;
        let _window = self.connection.open_send_window(READER_WINDOW);
        let owner = self.owner_for(&shard)?;
        let store = Arc::clone(&self.host.parts.store);
        let buffers = Arc::clone(&self.connection.buffers);
        // Most answers are one piece, so one blocking thread opens the shard and reads it.
        let opening = blocking(move || {
            let mut rows = store.rows(owner, &shard, &runs)?;
            let bytes = rows.bytes();
            let first = next(&mut rows, &buffers);
            Ok((bytes, rows, first))
        });
        let (bytes, mut rows, first) = opening.await?;
        self.respond(&Response::Rows { bytes }).await?;
        let mut piece = first.map_err(|cause| unreadable(&cause))?;
        while !piece.is_empty() {
            let now = piece;
            if rows.bytes() == 0 {
                self.write(&place, now).await?;
                break;
            }
            // The next piece is read while this one is sent.
            let reading = read(rows, Arc::clone(&self.connection.buffers));
            self.write(&place, now).await?;
            (rows, piece) = reading.await.map_err(|cause| Answer::internal(&cause))??;
        }
        self.drain(&place).await
    }

    /// Sends bytes. Each bit of progress gives the client more time. A client that takes the bytes too
    /// slowly loses its place if others wait.
    async fn write(&mut self, place: &Place<OwnerId>, mut rest: Vec<Bytes>) -> Result<(), Answer> {
        let allowed = self.host.parts.monitor.rates().send;
        let bytes = rest.iter().map(Bytes::len).sum();
        self.host.sending.pass(bytes, allowed).await;
        let mut rest = rest.as_mut_slice();
        while !rest.is_empty() {
            place.waits();
            let written = tokio::select! {
                written = pause(STALL_TIMEOUT, self.send.write_chunks(rest)) => written?,
                () = place.gives_way() => return Err(too_slow()),
            };
            let written = written.map_err(ExchangeError::from)?;
            place.moved(written.bytes);
            rest = rest.get_mut(written.chunks..).unwrap_or_default();
        }
        Ok(())
    }

    /// Ends the answer and waits until the client has it. A client that takes too long, or is slow while
    /// others wait, loses the rest.
    async fn drain(&mut self, place: &Place<OwnerId>) -> Result<(), Answer> {
        // An error means that the client has closed the stream, so there is nothing to wait for.
        if self.send.finish().is_err() {
            return Ok(());
        }
        let in_flight = Duration::from_secs(self.connection.send_window() / SLOWEST_RATE);
        place.waits();
        tokio::select! {
            arrived = tokio::time::timeout(DRAIN_GRACE + in_flight, self.send.stopped()) => {
                arrived.map(drop).map_err(|_| too_slow())
            }
            () = place.gives_way() => Err(too_slow()),
        }
    }
}

type Reading = tokio::task::JoinHandle<Result<(RowBytes, Vec<Bytes>), Answer>>;

fn read(mut rows: RowBytes, buffers: Arc<Buffers>) -> Reading {
    tokio::task::spawn_blocking(move || {
        let piece = next(&mut rows, &buffers).map_err(|cause| unreadable(&cause))?;
        Ok((rows, piece))
    })
}

/// Ends an answer early, also its first piece: a refusal would be about the whole shard, and other rows of it can be read.
fn unreadable(cause: &io::Error) -> Answer {
    tracing::error!(%cause, "reading a shard");
    Answer::Lost(ExchangeError::Lost("reading failed".into()))
}

/// Reads the next piece: runs of blocks. There are none at the end.
fn next(rows: &mut RowBytes, buffers: &Arc<Buffers>) -> io::Result<Vec<Bytes>> {
    let mut buffer = buffers.take();
    let piece = rows.next(&mut buffer.memory, READ_BYTES)?;
    Ok(buffer.share(piece))
}
