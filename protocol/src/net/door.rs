//! Admits members of the grid to a server, and reports who was refused and why.
//!
//! TLS checks a client's certificate, and reports to the endpoint only that a handshake failed. Here every
//! handshake has a verifier of its own, which keeps the certificate that it refused and the reason.

use std::sync::{Arc, Mutex, PoisonError};

use codec::grant::Grant;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Connection, ConnectionError, Incoming, ServerConfig};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};

use super::endpoint::{
    EndpointConfig, EndpointError, certified, server_config, server_tls, server_verifier,
};
use super::members::{Members, unix_seconds};
use super::trust::CertificateFault;
use crate::identity::{GrantFault, GridId, Peer, PeerError, check_grant};

/// Most characters of a name in a refused certificate that are reported.
const CLAIMED_CHARS_MAX: usize = 64;

/// Completes the handshakes of a server, with members only or with strangers, too.
#[derive(Debug)]
pub struct Door {
    server: ServerConfig,
    certified: Arc<SingleCertAndKey>,
    verifier: Arc<dyn ClientCertVerifier>,
    members: Members,
    grid: GridId,
    strangers: bool,
}

/// Why a client was not admitted.
#[derive(Debug, thiserror::Error)]
pub enum NotAdmitted {
    /// The client's certificate is not accepted.
    #[error("certificate not accepted: {fault}")]
    Refused {
        /// The member that the certificate names. Nothing of it is proved.
        claims: Box<Peer>,
        /// Why the certificate is not accepted.
        fault: CertificateFault,
    },
    /// The handshake failed before the certificate was checked, or for another reason.
    #[error("handshake failed: {0}")]
    Failed(#[from] ConnectionError),
    /// The handshake can't be begun.
    #[error(transparent)]
    Settings(#[from] EndpointError),
    /// A certificate that TLS accepted can't be read.
    #[error(transparent)]
    Peer(#[from] PeerError),
}

impl Door {
    /// A door for the server with these settings, which admits `members`.
    ///
    /// # Errors
    /// When the identity can't be used.
    pub fn new(config: &EndpointConfig, members: Members) -> Result<Self, EndpointError> {
        let verifier = server_verifier(config)?;
        let certified = certified(&config.identity)?;
        let tls = server_tls(Arc::clone(&verifier), Arc::clone(&certified))?;
        Ok(Self {
            server: server_config(config, tls)?,
            certified,
            verifier,
            members,
            grid: GridId::of(&config.authority),
            strangers: false,
        })
    }

    /// Also admits clients without a certificate, which want to join.
    #[must_use]
    pub fn with_strangers(mut self) -> Self {
        self.strangers = true;
        self
    }

    /// The members that are admitted.
    pub const fn members(&self) -> &Members {
        &self.members
    }

    /// Completes a handshake. The caller bounds the wait.
    ///
    /// # Errors
    /// When the client is no member, or none any more.
    pub async fn admit(&self, incoming: Incoming) -> Result<(Connection, Peer), NotAdmitted> {
        let connection = self.handshake(incoming).await?;
        let peer = Peer::of(&connection)?;
        Ok((connection, peer))
    }

    /// As [`Self::admit`]. Returns no peer for a client without a certificate, if such clients are admitted.
    ///
    /// # Errors
    /// When the client is no member any more.
    pub async fn admit_anybody(
        &self,
        incoming: Incoming,
    ) -> Result<(Connection, Option<Peer>), NotAdmitted> {
        let connection = self.handshake(incoming).await?;
        let peer = match connection.peer_identity() {
            None => None,
            Some(_) => Some(Peer::of(&connection)?),
        };
        Ok((connection, peer))
    }

    async fn handshake(&self, incoming: Incoming) -> Result<Connection, NotAdmitted> {
        let recording = Arc::new(RecordingVerifier {
            inner: Arc::clone(&self.verifier),
            members: self.members.clone(),
            grid: self.grid,
            strangers: self.strangers,
            refused: Mutex::new(None),
        });
        let tls = server_tls(Arc::clone(&recording) as _, Arc::clone(&self.certified))?;
        let mut server = self.server.clone();
        server.crypto = Arc::new(
            QuicServerConfig::try_from(tls)
                .map_err(|cause| EndpointError::Verifier(cause.to_string()))?,
        );
        let connected = incoming.accept_with(Arc::new(server))?.await;
        match connected {
            Ok(connection) => Ok(connection),
            Err(cause) => Err(match recording.take() {
                Some((claims, fault)) => NotAdmitted::Refused {
                    claims: Box::new(claims),
                    fault,
                },
                None => cause.into(),
            }),
        }
    }
}

/// The verifier of one handshake, which keeps the certificate that it refused and the reason.
#[derive(Debug)]
struct RecordingVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    members: Members,
    grid: GridId,
    strangers: bool,
    refused: Mutex<Option<(Peer, CertificateFault)>>,
}

impl RecordingVerifier {
    fn take(&self) -> Option<(Peer, CertificateFault)> {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.take()
    }

    fn refuse(&self, shown: &CertificateDer<'_>, fault: CertificateFault) {
        let Ok(mut claims) = Peer::from_certificate(shown) else {
            return;
        };
        claims.name = claims.name.chars().take(CLAIMED_CHARS_MAX).collect();
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *refused = Some((claims, fault));
    }
}

impl RecordingVerifier {
    /// Checks the certificate of a member, which the authority or a registry signed.
    fn verify_member(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<Peer, rustls::Error> {
        self.inner
            .verify_client_cert(end_entity, intermediates, now)
            .inspect_err(|cause| self.refuse(end_entity, CertificateFault::of_error(cause)))?;
        let peer = read(end_entity)?;
        for issuer in intermediates {
            if self.members.is_revoked(&read(issuer)?.id) {
                self.refuse(end_entity, CertificateFault::Revoked);
                return Err(rustls::Error::InvalidCertificate(CertificateError::Revoked));
            }
        }
        self.check(end_entity, &peer)?;
        Ok(peer)
    }

    /// Checks the certificate of a job key: first the certificate of its owner, then the grant.
    fn verify_job_key(
        &self,
        end_entity: &CertificateDer<'_>,
        grant: &Grant,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let Some((owners, above)) = intermediates.split_first() else {
            return Err(rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer,
            ));
        };
        let owner = self.verify_member(owners, above, now)?;
        check_grant(end_entity, grant, &owner, self.grid, now.as_secs()).map_err(|fault| {
            let cause = match fault {
                GrantFault::Time => CertificateError::Expired,
                GrantFault::Signature => CertificateError::BadSignature,
                _ => CertificateError::ApplicationVerificationFailure,
            };
            self.refuse(end_entity, CertificateFault::Other(fault.to_string()));
            rustls::Error::InvalidCertificate(cause)
        })?;
        if self.members.is_revoked(&read(end_entity)?.id) {
            self.refuse(end_entity, CertificateFault::Revoked);
            return Err(rustls::Error::InvalidCertificate(CertificateError::Revoked));
        }
        Ok(())
    }

    /// Checks that a member's key was not revoked and that its certificate has not expired.
    fn check(&self, shown: &CertificateDer<'_>, peer: &Peer) -> Result<(), rustls::Error> {
        self.members.check(peer, unix_seconds()).map_err(|fault| {
            let cause = match fault {
                CertificateFault::Revoked => CertificateError::Revoked,
                _ => CertificateError::Expired,
            };
            self.refuse(shown, fault);
            rustls::Error::InvalidCertificate(cause)
        })
    }
}

fn read(certificate: &CertificateDer<'_>) -> Result<Peer, rustls::Error> {
    Peer::from_certificate(certificate)
        .map_err(|_| rustls::Error::InvalidCertificate(CertificateError::BadEncoding))
}

impl ClientCertVerifier for RecordingVerifier {
    fn client_auth_mandatory(&self) -> bool {
        !self.strangers
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        match read(end_entity)?.grant {
            None => {
                self.verify_member(end_entity, intermediates, now)?;
            }
            Some(grant) => self.verify_job_key(end_entity, &grant, intermediates, now)?,
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let peer = read(cert)?;
        if peer.grant.is_none() {
            return self.inner.verify_tls13_signature(message, cert, dss);
        }
        // The verifier of the TLS library refuses certificates with our extension.
        if dss.scheme == SignatureScheme::ED25519 && peer.id.verify(message, dss.signature()) {
            return Ok(HandshakeSignatureValid::assertion());
        }
        Err(rustls::Error::InvalidCertificate(
            CertificateError::BadSignature,
        ))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
