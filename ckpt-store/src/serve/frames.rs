//! Bounds the memory of requests that are being received. A short request needs no place. A longer one waits
//! for a place before a byte of it is read, so that its bytes stay within the window of its connection.

use std::sync::Arc;
use std::time::Duration;

use codec::OwnerId;
use protocol::identity::Peer;
use protocol::net::stream::{frame_len, read_noting, within};
use protocol::wire::limits::{FRAME_BYTES_MAX, REQUEST_TIMEOUT};
use protocol::wire::message::{Message, Request};
use quinn::RecvStream;

use super::exchange::{Answer, Received};
use super::pool::{Pool, Size};
use super::{busy, who};
use crate::clock::Clock;

/// A request of at most this many bytes needs no place.
pub(crate) const SHORT_BYTES_MAX: usize = 4 << 10;

/// What a place stands for: the bytes of a request, and the message that is made of them.
pub(crate) const PLACE_BYTES: u64 = 2 * FRAME_BYTES_MAX as u64;

/// Places for long requests. A member has at most three quarters of them.
#[derive(Debug)]
pub(crate) struct FramePlaces(Arc<Pool<OwnerId>>);

impl FramePlaces {
    /// So many places, all of them free. A request that moves too little in `gives_way_after` loses its
    /// place if others wait.
    pub(crate) fn new(places: usize, clock: Clock, gives_way_after: Duration) -> Self {
        let queue = places.saturating_mul(4);
        Self(Pool::new(Size { places, queue }, clock, gives_way_after))
    }

    /// Reads a request.
    pub(crate) async fn read(
        &self,
        peer: Option<&Peer>,
        recv: &mut RecvStream,
    ) -> Result<Received, Answer> {
        let len = within(REQUEST_TIMEOUT, frame_len(recv)).await?;
        let Some(peer) = peer.filter(|_| len > SHORT_BYTES_MAX) else {
            // A client without a certificate has the smallest window, and a place of its own.
            let request = self.body(recv, len, |_| ()).await?;
            let place = None;
            return Ok(Received { request, place });
        };
        let place = self.0.enter(who(peer)).await;
        let place = place.ok_or_else(|| busy("other long requests are being received"))?;
        place.waits();
        let arrived = |bytes| {
            place.moved(bytes);
            place.waits();
        };
        let request = tokio::select! {
            read = self.body(recv, len, arrived) => read?,
            () = place.gives_way() => {
                return Err(busy("too slow while another request was waiting"));
            }
        };
        // From here on the request waits for this host, not for its sender.
        place.moved(0);
        let place = Some(place);
        Ok(Received { request, place })
    }

    async fn body(
        &self,
        recv: &mut RecvStream,
        len: usize,
        arrived: impl FnMut(usize),
    ) -> Result<Request, Answer> {
        let frame = within(REQUEST_TIMEOUT, read_noting(recv, len, arrived)).await?;
        Ok(Request::from_frame(&frame)?)
    }
}
