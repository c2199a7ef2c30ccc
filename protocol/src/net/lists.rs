//! How members exchange the signed list of their grid.

use bytes::Bytes;
use codec::serial::SerialError;
use quinn::{Connection, RecvStream, SendStream};
use rustls_pki_types::CertificateDer;

use super::stream::{ExchangeError, read_frame, read_noting, request, within, write_frame};
use crate::grid::Grid;
use crate::list::{Contents, GridList, ListError};
use crate::wire::limits::{LIST_BYTES_MAX, LIST_TIMEOUT, REQUEST_TIMEOUT, STALL_TIMEOUT};
use crate::wire::message::{Request, Response};

/// Bytes of a list that are sent at once. If none of them is accepted for [`STALL_TIMEOUT`], sending fails.
const CHUNK_BYTES: usize = 64 << 10;

/// The answer to a list that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// The other side has taken the list over.
    Taken,
    /// The other side already has a list with this number, which is not lower.
    Known(u64),
}

impl From<ListError> for ExchangeError {
    fn from(cause: ListError) -> Self {
        match cause {
            ListError::Body(cause) => Self::Malformed(cause),
            other => Self::Malformed(SerialError::Malformed(other.to_string())),
        }
    }
}

/// Compares the list of `grid` with that of a donor or a registry. If the other side's is newer, fetches,
/// checks and returns it; if ours is newer, sends it.
///
/// # Errors
/// When the other side does not answer, is too old to know the request, or sends a list that the authority
/// did not sign.
pub async fn compare_lists(
    connection: &Connection,
    grid: &Grid,
) -> Result<Option<(GridList, Contents)>, ExchangeError> {
    let (known, newer) = ask_list(connection, grid).await?;
    let number = grid.number();
    if let Some(list) = grid.list.as_ref().filter(|_| known < number) {
        offer_list(connection, list).await?;
    }
    Ok(newer)
}

/// Fetches and checks the list of a donor or a registry, if it is newer than that of `grid`. Sends none.
///
/// # Errors
/// As [`compare_lists`].
pub async fn newer_list(
    connection: &Connection,
    grid: &Grid,
) -> Result<Option<(GridList, Contents)>, ExchangeError> {
    let (_, newer) = ask_list(connection, grid).await?;
    Ok(newer)
}

/// The number of the other side's list, and the list if it is newer than that of `grid`.
async fn ask_list(
    connection: &Connection,
    grid: &Grid,
) -> Result<(u64, Option<(GridList, Contents)>), ExchangeError> {
    let number = grid.number();
    let asked = request(connection, &Request::List { number }, REQUEST_TIMEOUT).await?;
    let (
        Response::List {
            number: known,
            bytes,
        },
        mut exchange,
    ) = asked
    else {
        return Err(ExchangeError::Unexpected("list of the grid"));
    };
    if known <= number {
        return Ok((known, None));
    }
    let recv = &mut exchange.recv;
    let read = receive_list(recv, &grid.authority, known, bytes, |_| ());
    Ok((known, Some(read.await?)))
}

/// Sends a list to a donor or a registry.
///
/// # Errors
/// When the other side does not acknowledge the list.
pub async fn offer_list(
    connection: &Connection,
    list: &GridList,
) -> Result<Offered, ExchangeError> {
    let number = list.number();
    let bytes = length(list);
    let offered = async {
        let (mut send, mut recv) = connection.open_bi().await?;
        write_frame(&mut send, &Request::PutList { number, bytes }).await?;
        // Fails if the other side stops reading; then its answer has the reason.
        let _ = send_bytes(&mut send, list.bytes()).await;
        let _ = send.finish();
        match read_frame(&mut recv, LIST_TIMEOUT).await? {
            Response::Noted => Ok(Offered::Taken),
            Response::List { number, .. } => Ok(Offered::Known(number)),
            Response::Refused(refusal) => Err(ExchangeError::Refused(refusal)),
            _ => Err(ExchangeError::Unexpected("list of the grid")),
        }
    };
    within(LIST_TIMEOUT, offered).await
}

/// Bytes of a list: at most `LIST_BYTES_MAX`, which fit into 32 bits.
fn length(list: &GridList) -> u32 {
    u32::try_from(list.bytes().len()).unwrap_or(u32::MAX)
}

/// Answers a `List` request: sends the list `known` if its number is higher than `asked`.
///
/// # Errors
/// When the asker does not accept the bytes.
pub async fn send_list(
    send: &mut SendStream,
    asked: u64,
    known: Option<&GridList>,
) -> Result<(), ExchangeError> {
    let number = known.map_or(0, GridList::number);
    let newer = known.filter(|list| list.number() > asked);
    let bytes = newer.map_or(0, length);
    write_frame(send, &Response::List { number, bytes }).await?;
    match newer {
        Some(list) => within(LIST_TIMEOUT, send_bytes(send, list.bytes())).await,
        None => Ok(()),
    }
}

/// Reads a list of this number and length from a stream, and checks it. Calls `arrived` with the length of
/// each part that arrives.
///
/// # Errors
/// When the list does not arrive within [`LIST_TIMEOUT`], has another number, or is not signed.
pub async fn receive_list(
    recv: &mut RecvStream,
    authority: &CertificateDer<'_>,
    number: u64,
    bytes: u32,
    arrived: impl FnMut(usize),
) -> Result<(GridList, Contents), ExchangeError> {
    let bytes = bytes as usize;
    if bytes > LIST_BYTES_MAX {
        return Err(ListError::TooLong(bytes).into());
    }
    let bytes = within(LIST_TIMEOUT, read_noting(recv, bytes, arrived)).await?;
    let (list, contents) = GridList::check(authority, bytes)?;
    if list.number() != number {
        return Err(ExchangeError::Unexpected("list of another number"));
    }
    Ok((list, contents))
}

/// Sends a list without copying it, so that a slow receiver costs no memory.
async fn send_bytes(send: &mut SendStream, bytes: &Bytes) -> Result<(), ExchangeError> {
    let mut left = bytes.clone();
    while !left.is_empty() {
        let chunk = left.split_to(left.len().min(CHUNK_BYTES));
        within(STALL_TIMEOUT, send.write_chunk(chunk)).await?;
    }
    Ok(())
}
