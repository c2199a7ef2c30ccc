//! How a machine that is no member yet joins a grid. It connects to a registry without a certificate, and
//! trusts the registry by the key that its token names.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use codec::OwnerId;
use codec::seal::OwnerSecret;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint, TransportConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::{CertificateError, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::connect_error::ConnectError;
use super::endpoint::{EndpointConfig, EndpointError, client, connect_as, connect_error, provider};
use super::lists::compare_lists;
use super::stream::{ExchangeError, request};
use crate::grid::Grid;
use crate::identity::{GridId, Identity, JoinToken, Peer, PeerError, Role};
use crate::wire::{Code, WireVersion};

use crate::wire::limits::{CONNECT_TIMEOUT, REQUEST_TIMEOUT};
use crate::wire::message::{JoinRequest, Joined, Request, Response};

/// Why a machine could not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// This machine can't make an endpoint.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The registry can't be reached.
    #[error("registry {addr}")]
    Connect {
        /// Address of the registry in the token.
        addr: SocketAddr,
        /// Why it can't be reached.
        #[source]
        cause: ConnectError,
    },
    /// The registry refused the request, or broke off.
    #[error("registry {addr}")]
    Exchange {
        /// Address of the registry.
        addr: SocketAddr,
        /// Why there is no answer.
        #[source]
        cause: ExchangeError,
    },
    /// The registry has an older list of the grid than the token names.
    #[error(
        "registry {addr} has list number {shown} of the grid, but the token names {promised}: try again when the registry has the newer list"
    )]
    Old {
        /// Address of the registry.
        addr: SocketAddr,
        /// Number of the registry's list; 0 for none.
        shown: u64,
        /// The number in the token.
        promised: u64,
    },
    /// The registry sent something else than the token promises.
    #[error("registry {addr} sent {what}")]
    Wrong {
        /// Address of the registry.
        addr: SocketAddr,
        /// What the registry sent, for the message.
        what: String,
    },
}

/// What to try when the registry did not answer.
const AGAIN: &str = "again when the registry runs: ckpt-store registry, on its machine";

impl JoinError {
    /// What whoever joins can try next; `None` after a fault of this machine.
    pub fn next(&self) -> Option<&'static str> {
        match self {
            Self::Exchange { cause, .. } => Some(match cause {
                ExchangeError::Refused(refusal) if refusal.code == Code::Exists => {
                    "--name with another name, or none, so that a number is added; in that member's place: ckpt grid invite --replace NAME"
                }
                ExchangeError::Refused(refusal) if refusal.code == Code::NoSpace => {
                    "a token of another registry: ckpt grid invite --registry NAME"
                }
                ExchangeError::Refused(_) => "a new token from the grid's admin: ckpt grid invite",
                _ => AGAIN,
            }),
            Self::Wrong { .. } => Some("a new token from the grid's admin: ckpt grid invite"),
            Self::Connect { .. } | Self::Old { .. } => Some(AGAIN),
            Self::Endpoint(_) => None,
        }
    }
}

/// An endpoint of a machine that has no certificate yet. It connects only to the holder of `registry`'s
/// key.
///
/// # Errors
/// When no socket can be made.
pub fn stranger(registry: OwnerId, bind: SocketAddr) -> Result<Endpoint, EndpointError> {
    let mut endpoint =
        Endpoint::client(bind).map_err(|cause| EndpointError::Socket { addr: bind, cause })?;
    endpoint.set_default_client_config(client_config(registry)?);
    Ok(endpoint)
}

/// A machine that has joined.
#[derive(Debug)]
pub struct NewMember {
    /// Key and certificate of the machine.
    pub identity: Identity,
    /// The grid, with the list if there is one.
    pub grid: Grid,
}

/// The name that a new member would like to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameWish<'a> {
    /// The name.
    pub name: &'a str,
    /// Whether the registry may add a number to it if it is another member's name.
    pub numbered: bool,
}

/// Joins a grid: sends the token to its registry, and gets a certificate and the grid file.
///
/// # Errors
/// When the registry can't be reached, refuses, is not the one that the token names, or has an older list
/// of the grid than the token names.
pub async fn join(
    token: &JoinToken,
    secret: OwnerSecret,
    wish: NameWish<'_>,
) -> Result<NewMember, JoinError> {
    let addr = token.terms.addr;
    let any: SocketAddr = match addr {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0; 8], 0).into(),
    };
    let endpoint = stranger(token.terms.registry.0, any)?;
    let failed = |cause| JoinError::Connect { addr, cause };
    let connecting = endpoint
        .connect(addr, Role::Registry.dns_name())
        .map_err(|cause| failed(ConnectError::Other(cause.to_string())))?;
    let connection = tokio::time::timeout(CONNECT_TIMEOUT, connecting)
        .await
        .map_err(|_| failed(ConnectError::NoAnswer))?
        .map_err(|cause| failed(connect_error(&cause)))?;
    let NameWish { name, numbered } = wish;
    let text = token.to_text();
    let asked = Request::Join(JoinRequest {
        signature: secret.sign(&JoinRequest::signed(&text, name)).to_vec(),
        token: text,
        name: name.to_owned(),
        key: secret.id(),
        numbered,
    });
    let answered = request(&connection, &asked, REQUEST_TIMEOUT).await;
    connection.close(0_u32.into(), b"");
    // Time for the datagram that closes the connection to leave.
    let _ = tokio::time::timeout(Duration::from_secs(1), endpoint.wait_idle()).await;
    let joined = match answered {
        Ok((Response::Joined(joined), _)) => *joined,
        Ok(_) => {
            let what = "an unexpected answer".into();
            return Err(JoinError::Wrong { addr, what });
        }
        Err(cause) => return Err(JoinError::Exchange { addr, cause }),
    };
    let mut member = read(token, secret, joined).map_err(|what| JoinError::Wrong { addr, what })?;
    fetch_list(token, any, &mut member).await?;
    Ok(member)
}

/// Fetches the list of the grid, with the machine's new identity. A registry that is too old for lists has
/// none.
async fn fetch_list(
    token: &JoinToken,
    any: SocketAddr,
    member: &mut NewMember,
) -> Result<(), JoinError> {
    let addr = token.terms.addr;
    let authority = member.grid.authority.clone();
    let settings = EndpointConfig::new(member.identity.clone(), authority);
    let endpoint = client(&settings, any)?;
    let connected = connect_as(&endpoint, addr, token.terms.registry, Role::Registry).await;
    let connection = connected.map_err(|cause| JoinError::Connect { addr, cause })?;
    let fetched = compare_lists(&connection, &member.grid).await;
    connection.close(0_u32.into(), b"");
    let _ = tokio::time::timeout(Duration::from_secs(1), endpoint.wait_idle()).await;
    match fetched {
        Ok(Some((list, contents))) => member.grid.follow(list, contents),
        Ok(None) => {}
        Err(ExchangeError::Refused(_)) => {}
        Err(cause) => return Err(JoinError::Exchange { addr, cause }),
    }
    let shown = member.grid.number();
    let promised = token.terms.list;
    if shown < promised {
        return Err(JoinError::Old {
            addr,
            shown,
            promised,
        });
    }
    Ok(())
}

fn read(token: &JoinToken, secret: OwnerSecret, joined: Joined) -> Result<NewMember, String> {
    let grid = Grid::parse(&joined.grid, std::path::Path::new(""))
        .map_err(|cause| format!("something that is not a grid file: {cause}"))?;
    if GridId::of(&grid.authority) != token.grid {
        return Err("the file of another grid".into());
    }
    // These settings are about the registry's machine.
    let grid = Grid {
        owner: None,
        list_file: None,
        ..grid
    };
    let mut identity = Identity::new(secret, CertificateDer::from(joined.certificate))
        .map_err(|cause: PeerError| cause.to_string())?;
    let role = token.terms.role.role();
    if !identity.peer().is_ok_and(|peer| peer.has(role)) {
        return Err(format!("a certificate that is not for a {role}"));
    }
    identity.issuer = Some(CertificateDer::from(joined.issuer));
    Ok(NewMember { identity, grid })
}

fn client_config(registry: OwnerId) -> Result<ClientConfig, EndpointError> {
    let verifier = Arc::new(Pinned {
        registry,
        provider: provider(),
    });
    let mut tls = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    tls.alpn_protocols = WireVersion::offered();
    let quic = QuicClientConfig::try_from(tls)
        .map_err(|cause| EndpointError::Verifier(cause.to_string()))?;
    let mut config = ClientConfig::new(Arc::new(quic));
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(0_u32.into())
        .max_concurrent_uni_streams(0_u32.into());
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// Accepts one key and no other. The key belongs to the grid, because the authority signed the token that
/// names it.
#[derive(Debug)]
struct Pinned {
    registry: OwnerId,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let refused = |cause| Err(rustls::Error::InvalidCertificate(cause));
        match Peer::from_certificate(end_entity) {
            Ok(peer) if peer.id != self.registry || !peer.has(Role::Registry) => {
                refused(CertificateError::ApplicationVerificationFailure)
            }
            Ok(peer) if !peer.is_valid_at(now.as_secs()) => refused(CertificateError::Expired),
            Ok(_) => Ok(ServerCertVerified::assertion()),
            Err(_) => refused(CertificateError::BadEncoding),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.3 only".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
