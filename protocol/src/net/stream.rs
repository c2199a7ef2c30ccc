//! Frames and raw bytes on a stream; every wait has a bound.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use codec::serial::SerialError;
use quinn::{Connection, ReadError, ReadExactError, RecvStream, SendStream, WriteError};

use crate::wire::escaped;
use crate::wire::limits::{FRAME_BYTES_MAX, STALL_TIMEOUT};
use crate::wire::message::{Message, Refusal, Request, Response};

/// Why an exchange with the other side failed.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The connection broke, or the other side gave the stream up.
    #[error("connection lost: {0}")]
    Lost(String),
    /// No byte was received, or none was accepted, for this long.
    #[error("no progress for {} s", .0.as_secs())]
    Stalled(Duration),
    /// The other side does not keep to the protocol.
    #[error("malformed message: {0}")]
    Malformed(#[from] SerialError),
    /// The answer does not belong to the request.
    #[error("unexpected answer: {0}")]
    Unexpected(&'static str),
    /// The other side refused the request.
    #[error("refused: {0}")]
    Refused(Refusal),
}

impl From<WriteError> for ExchangeError {
    fn from(cause: WriteError) -> Self {
        connection_lost(&cause)
    }
}

impl From<ReadError> for ExchangeError {
    fn from(cause: ReadError) -> Self {
        connection_lost(&cause)
    }
}

impl From<ReadExactError> for ExchangeError {
    fn from(cause: ReadExactError) -> Self {
        connection_lost(&cause)
    }
}

impl From<quinn::ConnectionError> for ExchangeError {
    fn from(cause: quinn::ConnectionError) -> Self {
        connection_lost(&cause)
    }
}

/// A lost connection. The other side may have chosen part of the text, so control characters are escaped.
fn connection_lost(cause: &dyn std::error::Error) -> ExchangeError {
    ExchangeError::Lost(escaped(&cause.to_string()))
}

/// Waits for `future`, but not longer than `limit`.
///
/// # Errors
/// When the future is not ready within `limit`, or fails.
pub async fn within<T, E: Into<ExchangeError>>(
    limit: Duration,
    future: impl Future<Output = Result<T, E>>,
) -> Result<T, ExchangeError> {
    tokio::time::timeout(limit, future)
        .await
        .map_err(|_| ExchangeError::Stalled(limit))?
        .map_err(Into::into)
}

/// Sends a message as one frame.
///
/// # Errors
/// When the message is too long, or the other side does not accept its bytes.
pub async fn write_frame(
    stream: &mut SendStream,
    message: &impl Message,
) -> Result<(), ExchangeError> {
    let frame = message.to_frame()?;
    let mut bytes = Vec::with_capacity(4 + frame.len());
    // A frame is at most FRAME_BYTES_MAX long. The other side refuses a longer one by its length.
    let length = u32::try_from(frame.len()).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&frame);
    within(STALL_TIMEOUT, stream.write_all(&bytes)).await
}

/// Reads a frame, waiting at most `limit` for all of it.
///
/// # Errors
/// When the frame does not arrive in time, or is not a message of this type.
pub async fn read_frame<M: Message>(
    stream: &mut RecvStream,
    limit: Duration,
) -> Result<M, ExchangeError> {
    within(limit, async {
        let len = frame_len(stream).await?;
        let frame = read_exact(stream, len).await?;
        Ok::<_, ExchangeError>(M::from_frame(&frame)?)
    })
    .await
}

/// Reads the length of a frame, which follows, and checks it. The caller waits for as long as it wants.
///
/// # Errors
/// When the stream ends before, or the frame is longer than any may be.
pub async fn frame_len(stream: &mut RecvStream) -> Result<usize, ExchangeError> {
    let mut len = [0; 4];
    stream.read_exact(&mut len).await?;
    let actual = u32::from_le_bytes(len) as usize;
    if actual > FRAME_BYTES_MAX {
        return Err(ExchangeError::Malformed(SerialError::TooLong {
            actual,
            limit: FRAME_BYTES_MAX,
        }));
    }
    Ok(actual)
}

/// Reads `len` bytes. The caller has checked that it wants to hold this many in memory.
///
/// Memory grows with the bytes that arrive, not with the length that was announced.
///
/// # Errors
/// When the stream ends before, or no byte arrives for [`STALL_TIMEOUT`].
pub async fn read_exact(stream: &mut RecvStream, len: usize) -> Result<Bytes, ExchangeError> {
    read_noting(stream, len, |_| ()).await
}

/// As [`read_exact`]; calls `arrived` with the length of each part that arrives.
///
/// # Errors
/// As [`read_exact`].
pub async fn read_noting(
    stream: &mut RecvStream,
    len: usize,
    mut arrived: impl FnMut(usize),
) -> Result<Bytes, ExchangeError> {
    let mut bytes = BytesMut::new();
    while bytes.len() < len {
        let chunk = within(STALL_TIMEOUT, next_chunk(stream, len - bytes.len())).await?;
        arrived(chunk.len());
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

/// The stream of a request, after the first answer.
#[derive(Debug)]
pub struct Exchange {
    /// For bytes that the client still has to send.
    pub send: SendStream,
    /// For bytes that the server still has to send.
    pub recv: RecvStream,
}

/// Sends a request and reads the first answer, within `limit`. Ends the sending side of the stream, unless
/// blocks follow this kind of request.
///
/// # Errors
/// When the other side does not answer, or refuses.
pub async fn request(
    connection: &Connection,
    request: &Request,
    limit: Duration,
) -> Result<(Response, Exchange), ExchangeError> {
    within(limit, async {
        let (send, recv) = connection.open_bi().await?;
        let mut exchange = Exchange { send, recv };
        write_frame(&mut exchange.send, request).await?;
        if !matches!(request, Request::PutShard(_) | Request::PutRebuilt(_)) {
            // Fails only if the stream is closed already; then reading the answer fails, too.
            let _ = exchange.send.finish();
        }
        match read_frame(&mut exchange.recv, limit).await? {
            Response::Refused(refusal) => Err(ExchangeError::Refused(refusal)),
            response => Ok((response, exchange)),
        }
    })
    .await
}
