//! Endpoints and frames over real sockets on loopback.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use codec::seal::OwnerSecret;
use codec::serial::SerialError;
use quinn::{Connection, Endpoint};

use super::close::{DONE, NOT_ALLOWED, STOPPING};
use super::endpoint::{
    Congestion, EndpointConfig, MTU_MAX, client, client_config, client_tls, client_trust, connect,
    connect_error, server, spoken,
};
use super::stream::{Exchange, read_exact, read_frame, request};
use super::stream::{within, write_frame};
use super::{CertificateFault, ConnectError, ExchangeError};
use crate::identity::{Authority, HostId, Identity, Peer, Role, Validity};
use crate::wire::limits::FRAME_BYTES_MAX;
use crate::wire::message::{Record, Refusal, Request, Response};
use crate::wire::{Code, WireVersion};

const LIMIT: Duration = Duration::from_secs(10);

const HOUR: Duration = Duration::from_secs(3600);

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap().as_secs()
}

fn current() -> Validity {
    Validity {
        from: now(),
        lasting: HOUR,
    }
}

fn expired() -> Validity {
    Validity {
        from: now() - 7200,
        lasting: HOUR,
    }
}

fn authority(seed: u8) -> Authority {
    Authority::create(OwnerSecret::new([seed; 32]), "lab", current()).unwrap()
}

fn member(authority: &Authority, seed: u8, role: Role, validity: Validity) -> EndpointConfig {
    let secret = OwnerSecret::new([seed; 32]);
    let name = format!("member-{seed}");
    let certificate = authority.sign(&[role], &name, secret.id(), validity);
    let identity = Identity::new(secret, certificate.unwrap()).unwrap();
    EndpointConfig::new(identity, authority.certificate().clone())
}

fn donor(authority: &Authority) -> EndpointConfig {
    member(authority, 2, Role::Donor, current())
}

fn submitter(authority: &Authority) -> EndpointConfig {
    member(authority, 3, Role::Submitter, current())
}

fn id(config: &EndpointConfig) -> HostId {
    HostId(config.identity.secret.id())
}

fn any() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// A host that answers `Status` with the name of the asker.
struct StatusServer {
    addr: SocketAddr,
    id: HostId,
}

impl StatusServer {
    fn start(config: &EndpointConfig) -> Self {
        Self::serve(server(config, any()).unwrap(), config)
    }

    fn serve(endpoint: Endpoint, config: &EndpointConfig) -> Self {
        let addr = endpoint.local_addr().unwrap();
        tokio::spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                tokio::spawn(async move {
                    if let Ok(connection) = incoming.await {
                        greet(&connection).await;
                    }
                });
            }
        });
        Self {
            addr,
            id: id(config),
        }
    }
}

async fn greet(connection: &Connection) {
    let peer = Peer::of(connection).unwrap();
    if !peer.has(Role::Submitter) {
        return connection.close(NOT_ALLOWED, b"no \x1bsubmitter");
    }
    while let Ok((mut send, mut recv)) = connection.accept_bi().await {
        let response = match read_frame::<Request>(&mut recv, LIMIT).await {
            Ok(Request::Status) => Response::Claimed,
            other => panic!("{other:?}"),
        };
        let name = Response::Refused(Refusal::new(Code::Busy, peer.name.clone()));
        for answer in [response, name] {
            write_frame(&mut send, &answer).await.unwrap();
        }
        send.finish().unwrap();
    }
}

/// Connects and sends a request, so that the host has checked our certificate.
async fn contact(
    config: &EndpointConfig,
    addr: SocketAddr,
    id: HostId,
) -> Result<String, ConnectError> {
    let endpoint = client(config, any()).unwrap();
    let connection = connect(&endpoint, addr, id).await?;
    match request(&connection, &Request::Status, LIMIT).await {
        Ok((Response::Claimed, Exchange { mut recv, .. })) => {
            let Ok(Response::Refused(refusal)) = read_frame(&mut recv, LIMIT).await else {
                panic!("no name");
            };
            Ok(refusal.detail)
        }
        other => {
            let closed = connection.close_reason();
            Err(connect_error(
                &closed.unwrap_or_else(|| panic!("{other:?}")),
            ))
        }
    }
}

#[tokio::test]
async fn members_of_a_grid_know_each_other() {
    let authority = authority(1);
    let host = StatusServer::start(&donor(&authority));
    let named = contact(&submitter(&authority), host.addr, host.id).await;
    assert_eq!(named.unwrap(), "member-3");

    let endpoint = client(&submitter(&authority), any()).unwrap();
    let connection = connect(&endpoint, host.addr, host.id).await.unwrap();
    let peer = Peer::of(&connection).unwrap();
    assert_eq!(HostId(peer.id), host.id);
    assert_eq!(
        (peer.name.as_str(), peer.roles),
        ("member-2", vec![Role::Donor])
    );
}

#[tokio::test]
async fn hosts_of_other_grids_are_refused_even_of_the_same_name() {
    let host = StatusServer::start(&donor(&authority(9)));
    let refused = contact(&submitter(&authority(1)), host.addr, host.id).await;
    let expected = ConnectError::Certificate(CertificateFault::OtherAuthority);
    assert_eq!(refused, Err(expected));

    let other = Authority::create(OwnerSecret::new([9; 32]), "elsewhere", current()).unwrap();
    let host = StatusServer::start(&donor(&other));
    let refused = contact(&submitter(&authority(1)), host.addr, host.id).await;
    let expected = ConnectError::Certificate(CertificateFault::OtherAuthority);
    assert_eq!(refused, Err(expected));
}

#[tokio::test]
async fn a_member_that_is_no_donor_is_refused_as_host() {
    let authority = authority(1);
    for role in [Role::Submitter, Role::Registry, Role::Admin] {
        let host = StatusServer::start(&member(&authority, 4, role, current()));
        let refused = contact(&submitter(&authority), host.addr, host.id).await;
        let expected = ConnectError::Certificate(CertificateFault::Role);
        assert_eq!(refused, Err(expected));
    }
}

#[tokio::test]
async fn a_host_whose_certificate_expired_is_refused() {
    let authority = authority(1);
    let host = StatusServer::start(&member(&authority, 2, Role::Donor, expired()));
    let refused = contact(&submitter(&authority), host.addr, host.id).await;
    let expected = ConnectError::Certificate(CertificateFault::Expired);
    assert_eq!(refused, Err(expected));
}

#[tokio::test]
async fn a_host_with_another_key_than_the_grid_file_names_is_refused() {
    let authority = authority(1);
    let host = StatusServer::start(&donor(&authority));
    let expected = HostId(OwnerSecret::new([7; 32]).id());
    let refused = contact(&submitter(&authority), host.addr, expected).await;
    let actual = host.id;
    assert_eq!(refused, Err(ConnectError::OtherHost { expected, actual }));
}

#[tokio::test]
async fn hosts_refuse_clients_of_other_grids() {
    let ours = authority(1);
    let host = StatusServer::start(&donor(&ours));
    let mut stranger = submitter(&authority(9));
    stranger.authority = ours.certificate().clone();
    let refused = contact(&stranger, host.addr, host.id).await;
    let expected = ConnectError::Rejected(CertificateFault::OtherAuthority);
    assert_eq!(refused, Err(expected));
}

#[tokio::test]
async fn hosts_refuse_clients_whose_certificate_expired() {
    let authority = authority(1);
    let host = StatusServer::start(&donor(&authority));
    let late = member(&authority, 3, Role::Submitter, expired());
    let refused = contact(&late, host.addr, host.id).await;
    let expected = ConnectError::Rejected(CertificateFault::Expired);
    assert_eq!(refused, Err(expected));
}

#[tokio::test]
async fn a_client_learns_why_a_host_turns_it_away() {
    let authority = authority(1);
    let host = StatusServer::start(&donor(&authority));
    let other = member(&authority, 3, Role::Donor, current());
    let refused = contact(&other, host.addr, host.id).await;
    let expected = ConnectError::Rejected(CertificateFault::Other("no \\u{1b}submitter".into()));
    assert_eq!(refused, Err(expected));
}

/// Connects with other TLS settings than ours, and returns the error.
async fn contact_with(tls: rustls::ClientConfig, host: &StatusServer) -> ConnectError {
    let config = client_config(&submitter(&authority(1)), tls).unwrap();
    let mut endpoint = Endpoint::client(any()).unwrap();
    endpoint.set_default_client_config(config);
    match connect(&endpoint, host.addr, host.id).await {
        Ok(connection) => connect_error(&within_limit(connection.closed()).await),
        Err(cause) => cause,
    }
}

async fn within_limit<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.unwrap()
}

#[tokio::test]
async fn a_client_without_certificate_is_refused() {
    let authority = authority(1);
    let host = StatusServer::start(&donor(&authority));
    let mut tls = client_trust(&submitter(&authority))
        .unwrap()
        .with_no_client_auth();
    tls.alpn_protocols = WireVersion::offered();
    let expected = ConnectError::Rejected(CertificateFault::Missing);
    assert_eq!(contact_with(tls, &host).await, expected);
}

#[tokio::test]
async fn another_version_of_the_protocol_is_named() {
    let authority = authority(1);
    let host = StatusServer::start(&donor(&authority));
    for other in ["ckpt/1", "ckpt/3"] {
        let mut tls = client_tls(&submitter(&authority)).unwrap();
        tls.alpn_protocols = vec![other.into()];
        assert_eq!(contact_with(tls, &host).await, ConnectError::Protocol);
    }
    let said = ConnectError::Protocol.to_string();
    assert!(
        said.contains("ckpt/2") && said.contains("upgrade"),
        "{said}"
    );
}

/// Connects with a client that offers these versions, and returns the one that both sides agree on.
async fn agreed(host: &StatusServer, offered: &[&[u8]]) -> Result<WireVersion, ConnectError> {
    let mut tls = client_tls(&submitter(&authority(1))).unwrap();
    tls.alpn_protocols = offered.iter().map(|name| name.to_vec()).collect();
    let config = client_config(&submitter(&authority(1)), tls).unwrap();
    let mut endpoint = Endpoint::client(any()).unwrap();
    endpoint.set_default_client_config(config);
    let connection = connect(&endpoint, host.addr, host.id).await?;
    let answered = request(&connection, &Request::Status, LIMIT).await;
    assert!(answered.is_ok(), "{answered:?}");
    Ok(spoken(&connection))
}

#[tokio::test]
async fn the_latest_version_is_spoken_that_both_sides_know() {
    let host = StatusServer::start(&donor(&authority(1)));
    let two = WireVersion::Two.alpn();
    assert_eq!(agreed(&host, &[two]).await, Ok(WireVersion::Two));
    let several: [&[u8]; 3] = [b"ckpt/3", two, b"ckpt/1"];
    assert_eq!(agreed(&host, &several).await, Ok(WireVersion::Two));

    let ours = client(&submitter(&authority(1)), any()).unwrap();
    let connection = connect(&ours, host.addr, host.id).await.unwrap();
    assert_eq!(spoken(&connection), WireVersion::Two);
}

#[tokio::test]
async fn garbage_on_the_port_is_no_answer() {
    let socket = tokio::net::UdpSocket::bind(any()).await.unwrap();
    let addr = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut bytes = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut bytes).await {
            let garbage: Vec<u8> = bytes[..len].iter().map(|byte| byte ^ 0x5a).collect();
            let _ = socket.send_to(&garbage, from).await;
            let _ = socket
                .send_to(b"HTTP/1.1 400 Bad Request\r\n\r\n", from)
                .await;
        }
    });
    let authority = authority(1);
    let refused = contact(&submitter(&authority), addr, id(&donor(&authority))).await;
    assert_eq!(refused, Err(ConnectError::NoAnswer));
}

#[tokio::test]
async fn busy_and_stopping_hosts_say_so() {
    let authority = authority(1);
    let endpoint = server(&donor(&authority), any()).unwrap();
    let addr = endpoint.local_addr().unwrap();
    let id = id(&donor(&authority));
    let accepting = endpoint.clone();
    tokio::spawn(async move {
        accepting.accept().await.unwrap().refuse();
        let connection = accepting.accept().await.unwrap().await.unwrap();
        connection.close(STOPPING, b"");
        connection.closed().await;
    });
    let config = submitter(&authority);
    assert_eq!(contact(&config, addr, id).await, Err(ConnectError::Busy));
    assert_eq!(
        contact(&config, addr, id).await,
        Err(ConnectError::Stopping)
    );
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let authority = authority(1);
    let host = StatusServer::start(&donor(&authority));
    let failed = server(&donor(&authority), host.addr).unwrap_err();
    assert!(failed.to_string().contains(&host.addr.to_string()));
}

/// Both ends of one stream.
struct Pair {
    near: Exchange,
    far: Exchange,
    connection: Connection,
    _endpoints: [Endpoint; 2],
}

/// A stream on which the client has sent `first`.
async fn pair(config: impl Fn(EndpointConfig) -> EndpointConfig, first: &[u8]) -> Pair {
    let authority = authority(1);
    let host = config(donor(&authority));
    let listening = server(&host, any()).unwrap();
    let addr = listening.local_addr().unwrap();
    let endpoint = client(&config(submitter(&authority)), any()).unwrap();
    let (connected, accepted) = tokio::join!(connect(&endpoint, addr, id(&host)), async {
        listening.accept().await.unwrap().await.unwrap()
    });
    let connection = connected.unwrap();
    let (mut send, recv) = connection.open_bi().await.unwrap();
    send.write_all(first).await.unwrap();
    let near = Exchange { send, recv };
    let (send, recv) = within_limit(accepted.accept_bi()).await.unwrap();
    Pair {
        near,
        far: Exchange { send, recv },
        connection,
        _endpoints: [endpoint, listening],
    }
}

fn framed(len: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(len).unwrap().to_le_bytes().to_vec();
    frame.extend_from_slice(bytes);
    frame
}

async fn read_sent(bytes: Vec<u8>) -> Result<Record, ExchangeError> {
    let mut pair = pair(|config| config, &bytes[..1]).await;
    let mut send = pair.near.send;
    let sending = tokio::spawn(async move {
        let _ = send.write_all(&bytes[1..]).await;
        let _ = send.finish();
        let _ = send.stopped().await;
    });
    let read = read_frame(&mut pair.far.recv, LIMIT).await;
    drop(pair.far);
    within_limit(sending).await.unwrap();
    read
}

fn record(bytes: usize) -> Record {
    Record {
        manifest: vec![7; bytes],
        shards: vec![],
    }
}

#[tokio::test]
async fn the_longest_frame_passes_and_a_longer_one_is_refused() {
    // The manifest's length takes five bytes, the empty list of shards one.
    let longest = record(FRAME_BYTES_MAX - 6);
    let mut pair = pair(|config| config, &framed(2, &[0, 0])).await;
    let short = read_frame::<Record>(&mut pair.far.recv, LIMIT).await;
    assert_eq!(short.unwrap(), record(0));
    let (sent, read) = tokio::join!(
        write_frame(&mut pair.near.send, &longest),
        read_frame::<Record>(&mut pair.far.recv, LIMIT)
    );
    sent.unwrap();
    assert_eq!(read.unwrap(), longest);

    let longer = write_frame(&mut pair.near.send, &record(FRAME_BYTES_MAX - 5)).await;
    let too_long = SerialError::TooLong {
        actual: FRAME_BYTES_MAX + 1,
        limit: FRAME_BYTES_MAX,
    };
    assert!(matches!(longer, Err(ExchangeError::Malformed(cause)) if cause == too_long));
    let read = read_sent(framed(FRAME_BYTES_MAX + 1, &[])).await;
    assert!(matches!(read, Err(ExchangeError::Malformed(cause)) if cause == too_long));
}

#[tokio::test]
async fn truncated_and_padded_frames_are_refused() {
    use crate::wire::message::Message;
    let frame = record(3).to_frame().unwrap();
    for kept in 0..frame.len() {
        let read = read_sent(framed(frame.len(), &frame[..kept])).await;
        assert!(matches!(read, Err(ExchangeError::Lost(_))), "{read:?}");
    }
    let read = read_sent(vec![1, 0, 0]).await;
    assert!(matches!(read, Err(ExchangeError::Lost(_))), "{read:?}");
    let padded = [frame.as_slice(), &[0]].concat();
    let read = read_sent(framed(padded.len(), &padded)).await;
    let trailing = SerialError::Trailing(1);
    assert!(matches!(read, Err(ExchangeError::Malformed(cause)) if cause == trailing));
}

#[tokio::test]
async fn a_frame_that_drips_in_is_given_up_in_time() {
    let mut pair = pair(|config| config, &framed(1000, &[])).await;
    let mut send = pair.near.send;
    let dripping = tokio::spawn(async move {
        let mut drops = tokio::time::interval(Duration::from_millis(10));
        loop {
            drops.tick().await;
            if send.write_all(&[0]).await.is_err() {
                return;
            }
        }
    });
    let limit = Duration::from_millis(300);
    let begin = Instant::now();
    let read = read_frame::<Record>(&mut pair.far.recv, limit).await;
    assert!(matches!(read, Err(ExchangeError::Stalled(l)) if l == limit));
    assert!(begin.elapsed() < Duration::from_secs(5));
    dripping.abort();
}

#[tokio::test]
async fn a_host_that_never_answers_is_given_up_in_time() {
    let pair = pair(|config| config, b".").await;
    let limit = Duration::from_millis(200);
    let answer = request(&pair.connection, &Request::Status, limit).await;
    assert!(matches!(answer, Err(ExchangeError::Stalled(l)) if l == limit));
}

#[tokio::test]
async fn streams_beyond_the_limit_wait() {
    let pair = pair(
        |mut config| {
            config.streams_max = 2;
            config
        },
        b".",
    )
    .await;
    let _second = pair.connection.open_bi().await.unwrap();
    let limit = Duration::from_millis(200);
    let third = within(limit, pair.connection.open_bi()).await;
    assert!(matches!(third, Err(ExchangeError::Stalled(_))));
    let one_way = within(limit, pair.connection.open_uni()).await;
    assert!(matches!(one_way, Err(ExchangeError::Stalled(_))));
}

#[tokio::test]
async fn a_peer_cannot_have_more_in_flight_than_its_window() {
    const WINDOW: u32 = 100_000;
    let mut pair = pair(
        |mut config| {
            config.receive_window = WINDOW;
            config
        },
        b".",
    )
    .await;
    let sent = Arc::new(std::sync::atomic::AtomicUsize::new(1));
    let counted = Arc::clone(&sent);
    let sending = tokio::spawn(async move {
        while let Ok(written) = pair.near.send.write(&[0; 1000]).await {
            counted.fetch_add(written, std::sync::atomic::Ordering::Relaxed);
        }
    });
    let window = WINDOW as usize;
    let full = || sent.load(std::sync::atomic::Ordering::Relaxed) >= window;
    within_limit(async {
        while !full() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let more = tokio::time::timeout(Duration::from_millis(200), async {
        while sent.load(std::sync::atomic::Ordering::Relaxed) <= window {
            tokio::task::yield_now().await;
        }
    });
    assert!(more.await.is_err(), "more than the window was taken");
    let read = read_exact(&mut pair.far.recv, 2 * window).await;
    assert_eq!(read.unwrap().len(), 2 * window);
    sending.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_transfers_keep_large_datagrams() {
    const BYTES: usize = 32 << 20;
    for congestion in [Congestion::Cubic, Congestion::Bbr] {
        let mut pair = pair(
            |mut config| {
                config.congestion = congestion;
                config.mtu_max = u16::MAX;
                config
            },
            b".",
        )
        .await;
        let mut send = pair.near.send;
        let sending = tokio::spawn(async move {
            let block = vec![0x5a; 1 << 20];
            for _ in 0..BYTES / block.len() {
                send.write_all(&block).await.unwrap();
            }
            send.finish().unwrap();
        });
        let read = read_exact(&mut pair.far.recv, BYTES + 1).await.unwrap();
        assert!(read[1..].iter().all(|byte| *byte == 0x5a));
        sending.await.unwrap();
        let path = pair.connection.stats().path;
        assert_eq!(path.black_holes_detected, 0, "{path:?}");
        assert!(path.current_mtu > 1200 && path.current_mtu <= MTU_MAX);
        pair.connection.close(DONE, b"");
    }
}

#[test]
fn an_identity_is_a_key_and_its_own_certificate() {
    let authority = authority(1);
    let key = OwnerSecret::new([2; 32]);
    let other = OwnerSecret::new([3; 32]);
    let certificate = authority.sign(&[Role::Donor], "h1", key.id(), current());
    let refused = Identity::new(other, certificate.unwrap()).unwrap_err();
    assert!(refused.to_string().contains("\"h1\""), "{refused}");
}
