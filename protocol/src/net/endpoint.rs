//! QUIC endpoints: mutual TLS 1.3 within the grid, bounded windows, and large datagrams on paths that pass
//! them.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use quinn::congestion::{BbrConfig, CubicConfig};
use quinn::crypto::rustls::{HandshakeData, QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, Connection, Endpoint, MtuDiscoveryConfig, ServerConfig, TransportConfig,
};
use quinn::{ConnectionError, TransportErrorCode, VarInt};
use quinn_proto::HashedConnectionIdGenerator;
use rustls::client::{Resumption, WantsClientCert, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::sign::any_eddsa_type;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ConfigBuilder, RootCertStore};
use rustls_pki_types::CertificateDer;
use socket2::{Domain, Protocol, Socket, Type};
use zeroize::{Zeroize, Zeroizing};

use super::close::{DONE, EXPIRED, NOT_ALLOWED, REVOKED, STOPPING, TOO_MANY};
use super::connect_error::{ConnectError, IDLE_TIMEOUT};
use super::trust::{CertificateFault, is_no_protocol};
use crate::identity::{HostId, Identity, Peer, Role};
use crate::wire::limits::CONNECT_TIMEOUT;
use crate::wire::{WireVersion, escaped};

/// Bytes that may be in flight on a new connection: four of the largest datagrams. With quinn's 12,000
/// bytes, one probe of the path's largest datagram that is not acknowledged yet fills the window. A
/// connection that is closed then never sends its CONNECTION_CLOSE, because a closed one does not
/// process acknowledgements either, and the host counts it until its idle timeout. (RFC 9002, section
/// 7.2, recommends 14,720; ten datagrams of 1,452 bytes. 26,000 are eighteen of those.)
const INITIAL_WINDOW: u64 = 4 * MTU_MAX as u64;

/// Round trip that is assumed until one was measured. A connection that breaks off before that is kept,
/// with its memory, for nine times as long (RFC 9000, section 10.2). On a slower path, a few datagrams are
/// sent twice.
const INITIAL_RTT: Duration = Duration::from_millis(100);

/// Congestion control: how the rate of sending follows the capacity of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// CUBIC, by losses: fair to other connections, but collapses at a loss of 0.1%.
    Cubic,
    /// BBR, by a model of the path: keeps its rate at some loss.
    Bbr,
}

/// Settings of an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// Key and certificate of this program.
    pub identity: Identity,
    /// Certificate of the grid's authority.
    pub authority: CertificateDer<'static>,
    /// Bytes that one peer may have sent and this program not read yet: bounds the memory that a peer can
    /// take.
    pub receive_window: u32,
    /// The same limit for one stream.
    pub stream_window: u32,
    /// Bytes in flight to one peer.
    pub send_window: u64,
    /// Requests that one peer may have open at once.
    pub streams_max: u32,
    /// Largest datagram that is tried, at most [`MTU_MAX`].
    pub mtu_max: u16,
    /// How the sender adapts to the link.
    pub congestion: Congestion,
    /// Time without a datagram after which the other side is asked for a sign of life.
    pub keep_alive: Duration,
}

/// Largest datagram that path MTU discovery tries.
///
/// quinn hands the system up to ten datagrams at once, and the system takes at most 65,507 bytes. Larger
/// batches vanish without an error; quinn then concludes that the path drops large datagrams, and shrinks
/// them to 1,200 bytes.
pub const MTU_MAX: u16 = 6_500;

/// Largest datagram of endpoints that transfer little. It passes on every path, and quinn's receive buffer,
/// which holds 2,048 of the largest datagrams, takes 3 MiB instead of 13.
pub const MTU_SMALL: u16 = 1_452;

/// Usual value of [`EndpointConfig::keep_alive`].
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Most datagrams that quinn hands to the system at once.
const BATCH_DATAGRAMS_MAX: u32 = 10;

/// Most bytes of one UDP message over IPv4.
const BATCH_BYTES_MAX: u32 = 65_507;

const _: () = assert!(MTU_MAX as u32 * BATCH_DATAGRAMS_MAX <= BATCH_BYTES_MAX);

impl EndpointConfig {
    /// Settings for a member with this identity.
    pub const fn new(identity: Identity, authority: CertificateDer<'static>) -> Self {
        Self {
            identity,
            authority,
            receive_window: 8 << 20,
            stream_window: 8 << 20,
            send_window: 8 << 20,
            streams_max: 64,
            mtu_max: MTU_MAX,
            congestion: Congestion::Cubic,
            keep_alive: KEEP_ALIVE,
        }
    }

    fn transport(&self) -> TransportConfig {
        let mut transport = TransportConfig::default();
        transport
            .max_concurrent_bidi_streams(self.streams_max.into())
            .max_concurrent_uni_streams(0_u32.into())
            .receive_window(self.receive_window.into())
            .stream_receive_window(self.stream_window.into())
            .send_window(self.send_window)
            .max_idle_timeout(Some(
                VarInt::from_u32(IDLE_TIMEOUT.as_millis() as u32).into(),
            ))
            .keep_alive_interval(Some(self.keep_alive))
            .initial_rtt(INITIAL_RTT)
            .datagram_receive_buffer_size(None);
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(self.mtu_max.min(MTU_MAX));
        transport.mtu_discovery_config(Some(discovery));
        match self.congestion {
            Congestion::Cubic => {
                let mut cubic = CubicConfig::default();
                cubic.initial_window(INITIAL_WINDOW);
                transport.congestion_controller_factory(Arc::new(cubic))
            }
            Congestion::Bbr => {
                transport.congestion_controller_factory(Arc::new(BbrConfig::default()))
            }
        };
        transport
    }

    fn roots(&self) -> Result<Arc<RootCertStore>, EndpointError> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone())?;
        Ok(Arc::new(roots))
    }
}

/// Why an endpoint can't be made.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The socket can't be made.
    #[error("UDP socket on {addr}")]
    Socket {
        /// Address at which it should listen.
        addr: SocketAddr,
        /// The error of the system.
        #[source]
        cause: io::Error,
    },
    /// The identity or the authority's certificate can't be used.
    #[error("identity or authority: {0}")]
    Tls(#[from] rustls::Error),
    /// The authority's certificate can't be used.
    #[error("authority: {0}")]
    Verifier(String),
}

/// An endpoint that accepts members of the grid with any role; rights are checked for each request. It does
/// not know which keys were revoked: see [`super::Door`].
///
/// # Errors
/// When the socket or the identity can't be used.
pub fn server(config: &EndpointConfig, addr: SocketAddr) -> Result<Endpoint, EndpointError> {
    let failed = |cause| EndpointError::Socket { addr, cause };
    let tls = server_tls(server_verifier(config)?, certified(&config.identity)?)?;
    let server = server_config(config, tls)?;
    let mut settings = quinn::EndpointConfig::default();
    remember_connections(&mut settings, &config.identity);
    let socket = socket(addr).map_err(failed)?;
    endpoint(settings, config.mtu_max, Some(server), socket).map_err(failed)
}

/// An endpoint for connections to donors and registries.
///
/// # Errors
/// When the socket or the identity can't be used.
pub fn client(config: &EndpointConfig, addr: SocketAddr) -> Result<Endpoint, EndpointError> {
    let failed = |cause| EndpointError::Socket { addr, cause };
    let client = client_config(config, client_tls(config)?)?;
    let settings = quinn::EndpointConfig::default();
    let socket = socket(addr).map_err(failed)?;
    let mut endpoint = endpoint(settings, config.mtu_max, None, socket).map_err(failed)?;
    endpoint.set_default_client_config(client);
    Ok(endpoint)
}

/// A verifier that checks that the authority signed a client's certificate and that it is valid now.
pub(super) fn server_verifier(
    config: &EndpointConfig,
) -> Result<Arc<dyn ClientCertVerifier>, EndpointError> {
    WebPkiClientVerifier::builder_with_provider(config.roots()?, provider())
        .build()
        .map_err(|cause| EndpointError::Verifier(cause.to_string()))
}

/// Certificate and key in the form that the TLS library takes.
pub(super) fn certified(identity: &Identity) -> Result<Arc<SingleCertAndKey>, EndpointError> {
    let mut der = identity.private_key();
    let key = any_eddsa_type(&der);
    der.zeroize();
    let certified = CertifiedKey::new(identity.chain(), key?);
    // The TLS library refuses to read a certificate with an extension that it does not know.
    // [`Identity::of_job`] has put the right key into this one.
    if identity.job.is_none() {
        certified.keys_match()?;
    }
    Ok(Arc::new(SingleCertAndKey::from(certified)))
}

/// TLS settings of a server. Sessions are never resumed: a resumed one would skip the check of the
/// certificate.
pub(super) fn server_tls(
    verifier: Arc<dyn ClientCertVerifier>,
    certified: Arc<SingleCertAndKey>,
) -> Result<rustls::ServerConfig, EndpointError> {
    let mut tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(certified);
    tls.alpn_protocols = WireVersion::offered();
    tls.session_storage = Arc::new(NoServerSessionStorage {});
    tls.send_tls13_tickets = 0;
    Ok(tls)
}

pub(super) fn server_config(
    config: &EndpointConfig,
    tls: rustls::ServerConfig,
) -> Result<ServerConfig, EndpointError> {
    let crypto = QuicServerConfig::try_from(tls)
        .map_err(|cause| EndpointError::Verifier(cause.to_string()))?;
    let mut server = ServerConfig::with_crypto(Arc::new(crypto));
    server.transport_config(Arc::new(config.transport()));
    // Limits of handshakes that the program has not accepted yet, and of bytes that arrive meanwhile.
    server.max_incoming(256);
    server.incoming_buffer_size(16 << 10);
    server.incoming_buffer_size_total(1 << 20);
    Ok(server)
}

pub(super) fn client_tls(config: &EndpointConfig) -> Result<rustls::ClientConfig, EndpointError> {
    let mut tls = client_trust(config)?.with_client_cert_resolver(certified(&config.identity)?);
    tls.alpn_protocols = WireVersion::offered();
    tls.resumption = Resumption::disabled();
    Ok(tls)
}

pub(super) fn client_trust(
    config: &EndpointConfig,
) -> Result<ConfigBuilder<rustls::ClientConfig, WantsClientCert>, EndpointError> {
    let verifier = WebPkiServerVerifier::builder_with_provider(config.roots()?, provider())
        .build()
        .map_err(|cause| EndpointError::Verifier(cause.to_string()))?;
    Ok(rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_webpki_verifier(verifier))
}

pub(super) fn client_config(
    config: &EndpointConfig,
    tls: rustls::ClientConfig,
) -> Result<ClientConfig, EndpointError> {
    let crypto = QuicClientConfig::try_from(tls)
        .map_err(|cause| EndpointError::Verifier(cause.to_string()))?;
    let mut client = ClientConfig::new(Arc::new(crypto));
    client.transport_config(Arc::new(config.transport()));
    Ok(client)
}

/// Derives the keys of connection ids and of stateless resets from the identity, so that a host that was
/// restarted recognises its earlier connections. It then resets them at once (RFC 9000, section 10.3);
/// otherwise their clients would wait for [`IDLE_TIMEOUT`].
fn remember_connections(settings: &mut quinn::EndpointConfig, identity: &Identity) {
    let derive = |context| Zeroizing::new(blake3::derive_key(context, identity.secret.seed()));
    let reset = derive("ckpt v1 stateless reset key");
    settings.reset_key(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &*reset)));
    let ids = derive("ckpt v1 connection id key");
    let ids = ids.first_chunk().map_or(0, |key| u64::from_le_bytes(*key));
    settings.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
}

fn endpoint(
    mut settings: quinn::EndpointConfig,
    mtu_max: u16,
    server: Option<ServerConfig>,
    socket: UdpSocket,
) -> io::Result<Endpoint> {
    settings
        .max_udp_payload_size(mtu_max.min(MTU_MAX))
        .map_err(io::Error::other)?;
    Endpoint::new(settings, server, socket, Arc::new(quinn::TokioRuntime))
}

/// A socket with buffers that hold a burst of datagrams; the system's default of 208 KiB loses some.
fn socket(addr: SocketAddr) -> io::Result<UdpSocket> {
    const BUFFER: usize = 8 << 20;
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
    // The system may grant less; that costs speed, not correctness.
    let _ = socket.set_recv_buffer_size(BUFFER);
    let _ = socket.set_send_buffer_size(BUFFER);
    socket.bind(&addr.into())?;
    Ok(socket.into())
}

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Connects to the donor `id` at `addr`.
///
/// With TLS 1.3, the handshake of a client ends before the host has checked the client's certificate. A
/// host that does not accept the certificate closes the connection soon after; [`connect_error`] gives the
/// reason.
///
/// # Errors
/// When the donor can't be reached, or another member answers.
pub async fn connect(
    endpoint: &Endpoint,
    addr: SocketAddr,
    id: HostId,
) -> Result<Connection, ConnectError> {
    connect_as(endpoint, addr, id, Role::Donor).await
}

/// Connects to the member `id` at `addr`, whose certificate has to have this role.
///
/// # Errors
/// As [`connect`].
pub async fn connect_as(
    endpoint: &Endpoint,
    addr: SocketAddr,
    id: HostId,
    role: Role,
) -> Result<Connection, ConnectError> {
    let connecting = endpoint
        .connect(addr, role.dns_name())
        .map_err(|cause| ConnectError::Other(cause.to_string()))?;
    let connection = tokio::time::timeout(CONNECT_TIMEOUT, connecting)
        .await
        .map_err(|_| ConnectError::NoAnswer)?
        .map_err(|cause| connect_error(&cause))?;
    let actual = HostId(Peer::of(&connection)?.id);
    if actual != id {
        connection.close(DONE, b"another host was meant");
        return Err(ConnectError::OtherHost {
            expected: id,
            actual,
        });
    }
    Ok(connection)
}

/// The name of this connection in logs. Both sides have the same one, from the keys of their session, and nobody
/// else.
pub fn link_of(connection: &Connection) -> String {
    let mut bytes = [0; 8];
    // Fails before the handshake is complete; then there is nothing to follow.
    let _ = connection.export_keying_material(&mut bytes, b"ckpt link", b"");
    codec::hex::encode(&bytes)
}

/// The version of the protocol on which both sides of `connection` agreed.
pub fn spoken(connection: &Connection) -> WireVersion {
    let agreed = connection.handshake_data();
    let agreed = agreed.and_then(|any| any.downcast::<HandshakeData>().ok());
    let name = agreed.and_then(|agreed| agreed.protocol);
    // QUIC demands that a version was agreed on. If there is none all the same, the oldest is safe.
    name.and_then(|name| WireVersion::from_alpn(&name))
        .unwrap_or(WireVersion::Two)
}

/// Why a connection could not be made, or was closed.
pub fn connect_error(cause: &ConnectionError) -> ConnectError {
    // The other side may have chosen part of the text, so control characters are escaped.
    let other = || ConnectError::Other(escaped(&cause.to_string()));
    match cause {
        ConnectionError::TimedOut => ConnectError::Silent,
        ConnectionError::VersionMismatch => ConnectError::Protocol,
        ConnectionError::TransportError(error) if is_no_protocol(error.code) => {
            ConnectError::Protocol
        }
        ConnectionError::TransportError(error) => {
            CertificateFault::of_alert(error.code, &error.reason)
                .map_or_else(other, ConnectError::Certificate)
        }
        ConnectionError::ConnectionClosed(close) if is_no_protocol(close.error_code) => {
            ConnectError::Protocol
        }
        ConnectionError::ConnectionClosed(close)
            if close.error_code == TransportErrorCode::CONNECTION_REFUSED =>
        {
            ConnectError::Busy
        }
        ConnectionError::ConnectionClosed(close) => {
            let reason = String::from_utf8_lossy(&close.reason);
            CertificateFault::of_alert(close.error_code, &reason)
                .map_or_else(other, ConnectError::Rejected)
        }
        ConnectionError::ApplicationClosed(close) if close.error_code == NOT_ALLOWED => {
            let reason = String::from_utf8_lossy(&close.reason);
            ConnectError::Rejected(CertificateFault::Other(escaped(&reason)))
        }
        ConnectionError::ApplicationClosed(close) if close.error_code == REVOKED => {
            ConnectError::Rejected(CertificateFault::Revoked)
        }
        ConnectionError::ApplicationClosed(close) if close.error_code == EXPIRED => {
            ConnectError::Rejected(CertificateFault::Expired)
        }
        ConnectionError::ApplicationClosed(close) if close.error_code == STOPPING => {
            ConnectError::Stopping
        }
        ConnectionError::ApplicationClosed(close) if close.error_code == TOO_MANY => {
            ConnectError::Busy
        }
        _ => other(),
    }
}
