//! Frames and raw bytes on a stream; every wait has a bound.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use codec::serial::SerialError;
use quinn::{Connection, ReadError, ReadExactError, RecvStream, SendStream, VarInt, WriteError};

use super::endpoint::spoken;
use crate::wire::WireVersion;
use crate::wire::limits::{FRAME_BYTES_MAX, STALL_TIMEOUT};
use crate::wire::message::{Message, Refusal, Request, Response};

/// Code of a connection that ends because nothing is left to say.
pub const DONE: VarInt = VarInt::from_u32(0);

/// Code of a stream that is given up by either side.
pub const GIVEN_UP: VarInt = VarInt::from_u32(1);

/// Code of a connection whose client has no business here; the reason says why.
pub const NOT_ALLOWED: VarInt = VarInt::from_u32(2);

/// Code of a connection whose host shuts down.
pub const STOPPING: VarInt = VarInt::from_u32(3);

/// Code of a connection whose client's key was revoked.
pub const REVOKED: VarInt = VarInt::from_u32(4);

/// Code of a connection whose client's certificate expired.
pub const EXPIRED: VarInt = VarInt::from_u32(5);

/// Code of a connection of somebody who has as many as one may have.
pub const TOO_MANY: VarInt = VarInt::from_u32(6);

/// Why an exchange with the other side failed.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The connection broke, or the other side gave the stream up.
    #[error("connection lost: {0}")]
    Lost(String),
    /// Nothing came, or nothing was taken, for too long.
    #[error("no progress for {} s", .0.as_secs())]
    Stalled(Duration),
    /// The other side does not keep to the protocol.
    #[error("malformed message: {0}")]
    Malformed(#[from] SerialError),
    /// An answer to another question.
    #[error("unexpected answer: {0}")]
    Unexpected(&'static str),
    /// The host said no.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The other side's program is too old to know the request, which was not sent.
    #[error("its program is older than this one and does not know the request ({needed})")]
    TooOld {
        /// The version of the protocol that the request needs.
        needed: WireVersion,
    },
}

impl From<WriteError> for ExchangeError {
    fn from(cause: WriteError) -> Self {
        lost(&cause)
    }
}

impl From<ReadError> for ExchangeError {
    fn from(cause: ReadError) -> Self {
        lost(&cause)
    }
}

impl From<ReadExactError> for ExchangeError {
    fn from(cause: ReadExactError) -> Self {
        lost(&cause)
    }
}

impl From<quinn::ConnectionError> for ExchangeError {
    fn from(cause: quinn::ConnectionError) -> Self {
        lost(&cause)
    }
}

/// The other side chose some of these words, so they are not printed as they are.
fn lost(cause: &dyn std::error::Error) -> ExchangeError {
    ExchangeError::Lost(cause.to_string().escape_debug().to_string())
}

/// Waits for `future`, but not longer than `limit`.
///
/// # Errors
/// When the time is over, or the future fails.
pub async fn within<T, E: Into<ExchangeError>>(
    limit: Duration,
    future: impl Future<Output = Result<T, E>>,
) -> Result<T, ExchangeError> {
    tokio::time::timeout(limit, future)
        .await
        .map_err(|_| ExchangeError::Stalled(limit))?
        .map_err(Into::into)
}

/// Sends a frame.
///
/// # Errors
/// When it is too long, or the other side does not take it.
pub async fn write_frame(
    stream: &mut SendStream,
    message: &impl Message,
) -> Result<(), ExchangeError> {
    let frame = message.to_frame()?;
    let mut bytes = Vec::with_capacity(4 + frame.len());
    // A frame is at most FRAME_BYTES_MAX long.
    bytes.extend_from_slice(&(frame.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&frame);
    within(STALL_TIMEOUT, stream.write_all(&bytes)).await
}

/// Reads a frame, waiting at most `limit` for all of it.
///
/// # Errors
/// When it does not come, or is not such a message.
pub async fn read_frame<M: Message>(
    stream: &mut RecvStream,
    limit: Duration,
) -> Result<M, ExchangeError> {
    within(limit, async {
        let mut len = [0; 4];
        stream.read_exact(&mut len).await?;
        let actual = u32::from_le_bytes(len) as usize;
        if actual > FRAME_BYTES_MAX {
            return Err(ExchangeError::Malformed(SerialError::TooLong {
                actual,
                limit: FRAME_BYTES_MAX,
            }));
        }
        let frame = read_exact(stream, actual).await?;
        Ok(M::from_frame(&frame)?)
    })
    .await
}

/// Reads `len` bytes, which the caller has checked to be no more than it wants to hold.
///
/// Memory grows with what really comes, not with what was announced.
///
/// # Errors
/// When they do not all come, or come more slowly than one piece each [`STALL_TIMEOUT`].
pub async fn read_exact(stream: &mut RecvStream, len: usize) -> Result<Bytes, ExchangeError> {
    let mut bytes = BytesMut::new();
    while bytes.len() < len {
        let chunk = within(STALL_TIMEOUT, next_chunk(stream, len - bytes.len())).await?;
        if bytes.is_empty() && chunk.len() == len {
            return Ok(chunk);
        }
        if bytes.is_empty() {
            bytes.reserve(len.min(2 << 20));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.freeze())
}

async fn next_chunk(stream: &mut RecvStream, len: usize) -> Result<Bytes, ExchangeError> {
    match stream.read_chunk(len, true).await {
        Ok(Some(chunk)) => Ok(chunk.bytes),
        Ok(None) => Err(ExchangeError::Lost("stream ended early".into())),
        Err(cause) => Err(cause.into()),
    }
}

/// A request that was sent, and the stream on which more follows.
#[derive(Debug)]
pub struct Exchange {
    /// What the client still sends.
    pub send: SendStream,
    /// What the host still sends.
    pub recv: RecvStream,
}

/// Sends a request and reads the first answer; all that takes at most `limit`. The sending side is
/// finished unless the request is one that blocks follow. What the other side would not know is not
/// sent.
///
/// # Errors
/// When the host does not answer, refuses, or is too old to know the request.
pub async fn request(
    connection: &Connection,
    request: &Request,
    limit: Duration,
) -> Result<(Response, Exchange), ExchangeError> {
    let (spoken, needed) = (spoken(connection), request.since());
    if needed > spoken {
        return Err(ExchangeError::TooOld { needed });
    }
    within(limit, async {
        let (send, recv) = connection.open_bi().await?;
        let mut exchange = Exchange { send, recv };
        write_frame(&mut exchange.send, &*request.for_wire(spoken)).await?;
        if !matches!(request, Request::PutShard(_) | Request::PutRebuilt(_)) {
            // Fails only when the stream is closed already, which the answer will tell.
            let _ = exchange.send.finish();
        }
        match read_frame(&mut exchange.recv, limit).await? {
            Response::Refused(refusal) => Err(ExchangeError::Refused(refusal)),
            response => Ok((response.from_wire(), exchange)),
        }
    })
    .await
}
