//! What daemon and registry have in common: they serve each connection, receive requests, and end them.

use std::net::SocketAddr;
use std::time::Duration;

use codec::OwnerId;
use codec::serial::SerialError;
use protocol::identity::Peer;
use protocol::net::close::GIVEN_UP;
use protocol::net::stream::{ExchangeError, write_frame};
use protocol::net::{CertificateFault, link_of};
use protocol::wire::Code;
use protocol::wire::message::{Refusal, Request, Response};
use quinn::{Connection, RecvStream, SendStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{Instrument, debug, info, info_span, warn};

use super::lines::Lines;
use super::pool::Place;
use super::rules::{Rule, Server};
use crate::metrics::{Ended, Requests, UNREADABLE};

/// A request counts as ended if its answer has not arrived at the client after this time.
const ARRIVE_TIMEOUT: Duration = Duration::from_secs(2);

/// How a request ends that is not answered as asked.
pub(crate) enum Answer {
    /// The client is sent a refusal.
    Refused(Refusal),
    /// The stream ends early: the client is gone, or an answer has begun that can't be completed.
    Lost(ExchangeError),
}

impl Answer {
    /// A refusal that will not change.
    pub(crate) fn refuse(code: Code, why: impl Into<String>) -> Self {
        Self::Refused(Refusal::new(code, why))
    }
}

impl From<ExchangeError> for Answer {
    fn from(cause: ExchangeError) -> Self {
        match cause {
            ExchangeError::Malformed(cause) => cause.into(),
            cause @ (ExchangeError::Lost(_)
            | ExchangeError::Stalled(_)
            | ExchangeError::Unexpected(_)
            | ExchangeError::Refused(_)) => Self::Lost(cause),
        }
    }
}

impl From<SerialError> for Answer {
    fn from(cause: SerialError) -> Self {
        Self::refuse(Code::BadRequest, cause.to_string())
    }
}

/// Serves the requests of one connection, each in a task of its own, until the connection ends or `gone`
/// says why the peer is no longer a member. When the server stops, the connection ends after its last
/// request.
pub(crate) async fn serve_requests<R>(
    connection: &Connection,
    peer: Option<&Peer>,
    gone: impl Future<Output = CertificateFault>,
    mut stopping: watch::Receiver<bool>,
    mut serve: impl FnMut(SendStream, RecvStream) -> R,
) where
    R: Future<Output = ()> + Send + 'static,
{
    let from = connection.remote_address();
    let name = peer.map(|peer| &*peer.name);
    let id = peer.map(|peer| tracing::field::display(&peer.id));
    // Each line about this connection and its requests has the name that the client's log has, too.
    let span = info_span!("link", id = link_of(connection));
    span.in_scope(|| debug!(%from, peer = name, id, "connected"));
    let mut gone = std::pin::pin!(gone);
    let mut requests = JoinSet::new();
    loop {
        tokio::select! {
            stream = connection.accept_bi() => match stream {
                Ok((send, recv)) => {
                    requests.spawn(serve(send, recv).instrument(span.clone()));
                }
                Err(cause) => {
                    span.in_scope(|| debug!(%from, peer = name, %cause, "disconnected"));
                    return;
                }
            },
            Some(_) = requests.join_next() => {}
            fault = &mut gone => {
                warn!(%from, peer = name, id, %fault, "connection ended");
                return connection.close(fault.close_code(), fault.to_string().as_bytes());
            }
            _ = stopping.wait_for(|stop| *stop), if requests.is_empty() => return,
        }
    }
}

/// A request, and the place of its bytes if it is long. It is in memory until it is answered, so it has the
/// place until then.
pub(crate) struct Received {
    pub(crate) request: Request,
    pub(crate) place: Option<Place<OwnerId>>,
}

/// One request: where it comes from, and the name of its rule.
pub(crate) struct Asked<'a> {
    from: SocketAddr,
    peer: Option<&'a Peer>,
    request: &'static str,
}

impl<'a> Asked<'a> {
    /// Waits for a request that is being read from its stream.
    pub(crate) async fn read(
        connection: &Connection,
        peer: Option<&'a Peer>,
        reading: impl Future<Output = Result<Received, Answer>>,
    ) -> (Self, Result<Received, Answer>) {
        let read = reading.await;
        let name_of = |read: &Received| Rule::of(&read.request).name;
        let asked = Self {
            from: connection.remote_address(),
            peer,
            request: read.as_ref().map_or(UNREADABLE, name_of),
        };
        (asked, read)
    }

    /// Counts and logs how the request ended, sends a refusal if it is one, and ends the stream once the
    /// client has the answer.
    pub(crate) async fn end(
        self,
        server: Server,
        requests: &Requests,
        lines: &Lines,
        answered: Result<(), Answer>,
        (mut send, mut recv): (SendStream, RecvStream),
    ) {
        let Self {
            from,
            peer,
            request,
        } = self;
        let name = peer.map(|peer| &*peer.name);
        let id = peer.map(|peer| peer.id);
        requests.count(request, ended(&answered));
        match answered {
            Ok(()) => debug!(request, "answered"),
            Err(Answer::Refused(refusal)) => {
                let Refusal { code, detail, .. } = &refusal;
                if let Some(held_back) = lines.about(id) {
                    let id = id.map(tracing::field::display);
                    info!(%from, peer = name, id, request, ?code, detail, held_back, "refused");
                }
                // An error means that the client is gone.
                let _ = write_frame(&mut send, &Response::Refused(refusal)).await;
            }
            // Clients that take the first answer of several registries leave the others.
            Err(Answer::Lost(cause)) if server == Server::Registry => {
                debug!(%from, request, %cause, "gave up a request");
                let _ = send.reset(GIVEN_UP);
            }
            Err(Answer::Lost(cause)) => {
                if let Some(held_back) = lines.about(id) {
                    info!(%from, peer = name, request, %cause, held_back, "gave up a request");
                }
                let _ = send.reset(GIVEN_UP);
            }
        }
        // The rest of what the client sends is not needed.
        let _ = recv.stop(GIVEN_UP);
        let _ = send.finish();
        // A server that stops would otherwise cut off an answer that is on its way.
        let _ = tokio::time::timeout(ARRIVE_TIMEOUT, send.stopped()).await;
    }
}

const fn ended(answered: &Result<(), Answer>) -> Ended {
    match answered {
        Ok(()) => Ended::Answered,
        Err(Answer::Refused(_)) => Ended::Refused,
        Err(Answer::Lost(_)) => Ended::Lost,
    }
}
