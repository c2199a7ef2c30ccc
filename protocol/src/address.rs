//! The address of a host or registry, as in files, flags and the list of the grid.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Most bytes of a host name, from DNS.
const NAME_BYTES_MAX: usize = 253;

/// Most bytes of a part of a host name between dots, from DNS.
const LABEL_BYTES_MAX: usize = 63;

/// An IP address or a host name, with a port. A name is resolved each time when a connection is made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Address {
    /// An IP address with its port; the port is 0 while it is not known yet.
    Ip(SocketAddr),
    /// A host name with its port, looked up at each connection.
    Name(NamedAddress),
}

/// A host name, in lower case, and a port that is not 0.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamedAddress {
    name: String,
    port: u16,
}

/// The text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not an address: ADDRESS:PORT or HOSTNAME:PORT is expected, such as 10.0.0.1:7600"
)]
pub struct AddressError(String);

impl Address {
    /// IP address and port; `None` for a host name.
    pub const fn ip(&self) -> Option<SocketAddr> {
        match self {
            Self::Ip(addr) => Some(*addr),
            Self::Name(_) => None,
        }
    }

    /// The port; 0 stands for a port that is not known yet.
    pub const fn port(&self) -> u16 {
        match self {
            Self::Ip(addr) => addr.port(),
            Self::Name(named) => named.port,
        }
    }
}

impl NamedAddress {
    /// The host name, in lower case.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The port, which is not 0.
    pub const fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(addr) => fmt::Display::fmt(addr, f),
            Self::Name(NamedAddress { name, port }) => write!(f, "{name}:{port}"),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Ok(addr) = text.parse() {
            return Ok(Self::Ip(addr));
        }
        let parts = text.rsplit_once(':');
        let named = parts.and_then(|(name, port)| {
            let port = port.parse().ok().filter(|port| *port != 0)?;
            let name = name.to_ascii_lowercase();
            is_host_name(&name).then_some(NamedAddress { name, port })
        });
        named
            .map(Self::Name)
            .ok_or_else(|| AddressError(text.chars().take(NAME_BYTES_MAX).collect()))
    }
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Self {
        Self::Ip(addr)
    }
}

impl TryFrom<String> for Address {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

/// Whether `name` is a host name. A name whose last part is a number is most likely a mistyped IP address,
/// and refused.
fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(is_plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    name.len() <= NAME_BYTES_MAX
        && name.split('.').all(is_label)
        && !last.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_come_back_as_they_were_typed() {
        for text in [
            "10.0.0.1:7600",
            "[2001:db8::1]:0",
            "localhost:1",
            "lab-3.example.org:65535",
            "node_7:7600",
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(address.ip().is_none(), text.contains(['l', 'n']), "{text}");
        }
        let named: Address = "Lab-3:7600".parse().unwrap();
        assert_eq!(named.to_string(), "lab-3:7600");
    }

    #[test]
    fn text_that_is_neither_name_nor_address_is_refused() {
        let long = format!("{}:1", "a".repeat(64));
        for text in [
            "",
            "lab",
            "lab:",
            ":7600",
            "lab:0",
            "lab:65536",
            "10.0.0:7600",
            "256.1.1.1:7600",
            "-lab:7600",
            "lab..x:7600",
            "a b:7600",
            "lab/x:7600",
            "\u{1b}[2J:7600",
            "2001:db8::1:7600",
            &long,
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
