//! The list of a grid: its hosts, its registries and its revoked keys, numbered and signed by the authority.
//! Members pass the list on, so that a change has to be made in one place only.
//!
//! ```text
//! magic 8 | grid 32 | number 8 | body (bincode) | signature 64
//! ```
//!
//! A list with a higher number replaces one with a lower number, never the other way round.

pub(crate) mod entries;
mod files;

use bytes::Bytes;
use codec::OwnerId;
use codec::serial::{self, SerialError};
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::address::Address;
use crate::identity::{
    Authority, GridId, HostId, Peer, RevocationError, Revocations, is_label, is_name,
};
use crate::wire::limits::LIST_BYTES_MAX;

use entries::{GridHost, GridRegistry, is_etcd};
pub use files::ListFiles;

const MAGIC: &[u8; 8] = b"CKPTLST1";

/// The beginning of the bytes that are signed. No certificate and no list of revoked keys begins so.
const CONTEXT: &[u8; 16] = b"ckpt v1 list    ";

const GRID_BYTES: usize = 32;
const NUMBER_BYTES: usize = 8;
const SIGNATURE_BYTES: usize = 64;

/// A list as the authority signed it.
#[derive(Clone, PartialEq, Eq)]
pub struct GridList {
    number: u64,
    bytes: Bytes,
}

impl std::fmt::Debug for GridList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GridList({}, {} bytes)", self.number, self.bytes.len())
    }
}

/// The content of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The storage hosts that belong to the grid.
    pub hosts: Vec<GridHost>,
    /// The registries that belong to the grid.
    pub registries: Vec<GridRegistry>,
    /// `host:port` of the members of an etcd cluster that serves as a registry, too.
    pub etcd: Vec<String>,
    /// Keys that no longer belong to a member.
    pub revoked: Revocations,
    /// Certificates that were renewed, each for the member whose key it names.
    pub renewed: Vec<CertificateDer<'static>>,
}

/// Number of the part with renewed certificates: a list of their bytes (DER).
const RENEWED_PART: u16 = 1;

/// Why a list is refused, or can't be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// The list is too long.
    #[error("list of the grid: it has {0} bytes, more than {LIST_BYTES_MAX}")]
    TooLong(usize),
    /// The bytes do not begin as a list does, or are too few.
    #[error("that is not a list of a grid")]
    NoList,
    /// The list is of another grid.
    #[error("list of another grid")]
    OtherGrid,
    /// The grid's authority did not sign the list.
    #[error("list of the grid (number {0}) is not signed by the grid's authority")]
    Signature(u64),
    /// The signed body can't be read.
    #[error("list of the grid: {0}")]
    Body(#[from] SerialError),
    /// The revoked keys in the list are refused.
    #[error(transparent)]
    Revoked(#[from] RevocationError),
}

#[derive(Serialize, Deserialize)]
struct Body {
    hosts: Vec<HostBody>,
    registries: Vec<RegistryBody>,
    etcd: Vec<String>,
    revoked: Option<RevokedBody>,
    /// Fields that were added later, each a number and bytes. Unknown numbers are passed over.
    parts: Vec<(u16, ByteBuf)>,
}

#[derive(Serialize, Deserialize)]
struct HostBody {
    name: String,
    /// As text: an IP address or, for programs that know names, a host name, and a port.
    addr: String,
    id: OwnerId,
    site: Option<String>,
    owner: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct RegistryBody {
    name: String,
    addr: String,
    id: OwnerId,
}

#[derive(Serialize, Deserialize)]
struct RevokedBody {
    number: u64,
    keys: Vec<OwnerId>,
    signature: ByteBuf,
}

impl GridList {
    /// Signs a list with this number.
    ///
    /// # Errors
    /// When the list is too long.
    pub fn sign(
        authority: &Authority,
        number: u64,
        contents: &Contents,
    ) -> Result<Self, ListError> {
        let body = serial::encode(&contents.to_body()?, LIST_BYTES_MAX)?;
        let bytes = Self::sign_body(authority, number, &body);
        if bytes.len() > LIST_BYTES_MAX {
            return Err(ListError::TooLong(bytes.len()));
        }
        Ok(Self {
            number,
            bytes: bytes.into(),
        })
    }

    /// Signs any bytes as the body of a list, so that tests can reach the parser behind the signature.
    pub fn sign_body(authority: &Authority, number: u64, body: &[u8]) -> Vec<u8> {
        let grid = GridId::of(authority.certificate());
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&grid.0);
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(body);
        let signature = authority.secret().sign(&signed(&bytes));
        bytes.extend_from_slice(&signature);
        bytes
    }

    /// Reads a list of the grid with this authority. The signature is checked before the body is read.
    ///
    /// # Errors
    /// When the list must not be believed.
    pub fn check(
        authority: &CertificateDer<'_>,
        bytes: Bytes,
    ) -> Result<(Self, Contents), ListError> {
        if bytes.len() > LIST_BYTES_MAX {
            return Err(ListError::TooLong(bytes.len()));
        }
        let (claims, signature) = bytes.split_last_chunk().ok_or(ListError::NoList)?;
        let signature: &[u8; SIGNATURE_BYTES] = signature;
        let rest = claims.strip_prefix(MAGIC).ok_or(ListError::NoList)?;
        let (grid, rest) = rest
            .split_first_chunk::<GRID_BYTES>()
            .ok_or(ListError::NoList)?;
        let (number, body) = rest
            .split_first_chunk::<NUMBER_BYTES>()
            .ok_or(ListError::NoList)?;
        if *grid != GridId::of(authority).0 {
            return Err(ListError::OtherGrid);
        }
        let number = u64::from_le_bytes(*number);
        let signer = Peer::from_certificate(authority).map_err(|_| ListError::Signature(number))?;
        if !signer.id.verify(&signed(claims), signature) {
            return Err(ListError::Signature(number));
        }
        let body: Body = serial::decode(body, LIST_BYTES_MAX)?;
        let contents = Contents::of_body(authority, body)?;
        Ok((Self { number, bytes }, contents))
    }

    /// Number of the list. Each list of a grid has a higher number than those before.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// The list as it is sent and stored, signature included.
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

fn signed(claims: &[u8]) -> Vec<u8> {
    [CONTEXT.as_slice(), claims].concat()
}

impl Contents {
    fn to_body(&self) -> Result<Body, SerialError> {
        let hosts = self.hosts.iter().map(|host| HostBody {
            name: host.name.clone(),
            addr: host.addr.to_string(),
            id: host.id.0,
            site: host.site.clone(),
            owner: host.owner.clone(),
        });
        let registries = self.registries.iter().map(|registry| RegistryBody {
            name: registry.name.clone(),
            addr: registry.addr.to_string(),
            id: registry.id.0,
        });
        let revoked = self.revoked.signature().map(|signature| RevokedBody {
            number: self.revoked.number(),
            keys: self.revoked.keys().copied().collect(),
            signature: signature.to_vec().into(),
        });
        let renewed: Vec<ByteBuf> = self.renewed.iter().map(|one| one.to_vec().into()).collect();
        let mut parts = Vec::new();
        if !renewed.is_empty() {
            parts.push((
                RENEWED_PART,
                serial::encode(&renewed, LIST_BYTES_MAX)?.into(),
            ));
        }
        Ok(Body {
            hosts: hosts.collect(),
            registries: registries.collect(),
            etcd: self.etcd.clone(),
            revoked,
            parts,
        })
    }

    /// Reads a body. Hosts and registries that this program can't use are left out: their address or name
    /// is not valid here, or their key is revoked.
    fn of_body(authority: &CertificateDer<'_>, body: Body) -> Result<Self, ListError> {
        let revoked = match body.revoked {
            None => Revocations::default(),
            Some(RevokedBody {
                number,
                keys,
                signature,
            }) => {
                let signature = signature.as_slice().try_into();
                let signature = signature.map_err(|_| RevocationError::Signature(number))?;
                Revocations::check(authority, number, keys.into_iter().collect(), signature)?
            }
        };
        let renewed = body.parts.iter().find(|(kind, _)| *kind == RENEWED_PART);
        let renewed = renewed.map_or_else(Vec::new, |(_, bytes)| renewed_of(bytes, &revoked));
        let host = |host: HostBody| {
            let addr: Address = host.addr.parse().ok()?;
            let is_good = is_name(&host.name) && !revoked.contains(&host.id);
            is_good.then(|| GridHost {
                name: host.name,
                addr,
                id: HostId(host.id),
                site: host.site.filter(|label| is_label(label)),
                owner: host.owner.filter(|label| is_label(label)),
            })
        };
        let registry = |registry: RegistryBody| {
            let addr: Address = registry.addr.parse().ok()?;
            let is_good = is_name(&registry.name) && !revoked.contains(&registry.id);
            is_good.then_some(GridRegistry {
                name: registry.name,
                addr,
                id: HostId(registry.id),
            })
        };
        Ok(Self {
            hosts: body.hosts.into_iter().filter_map(host).collect(),
            registries: body.registries.into_iter().filter_map(registry).collect(),
            etcd: body.etcd.into_iter().filter(|addr| is_etcd(addr)).collect(),
            revoked,
            renewed,
        })
    }
}

/// The certificates of a part, without those that can't be read or whose key is revoked.
fn renewed_of(bytes: &[u8], revoked: &Revocations) -> Vec<CertificateDer<'static>> {
    let read: Result<Vec<ByteBuf>, SerialError> = serial::decode(bytes, LIST_BYTES_MAX);
    let certificates = read.unwrap_or_default().into_iter();
    let certificates = certificates.map(|one| CertificateDer::from(one.into_vec()));
    let is_good = |one: &CertificateDer<'_>| {
        Peer::from_certificate(one).is_ok_and(|peer| !revoked.contains(&peer.id))
    };
    certificates.filter(is_good).collect()
}

#[cfg(test)]
mod tests;
