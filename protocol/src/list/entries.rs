//! Hosts and registries as a list names them.

use crate::address::Address;
use crate::identity::HostId;

/// A storage host, as the grid file or the list of the grid names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GridHost {
    /// Name of the host.
    pub name: String,
    /// Address at which it listens.
    pub addr: Address,
    /// Public key of the host.
    pub id: HostId,
    /// Site, such as a building, a campus or a cloud zone: machines of one site tend to fail together.
    pub site: Option<String>,
    /// Owner of the machine.
    pub owner: Option<String>,
}

/// A registry, as the grid file names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GridRegistry {
    /// Name of the registry.
    pub name: String,
    /// Address at which it listens.
    pub addr: Address,
    /// Public key of the registry.
    pub id: HostId,
}

/// Whether this is `host:port`.
pub(crate) fn is_etcd(addr: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_[]:".contains(c);
    addr.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && host.chars().all(is_plain) && port.parse::<u16>().is_ok()
    })
}
