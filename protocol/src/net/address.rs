//! Addresses that members claim to have.

use std::net::{IpAddr, SocketAddr};

/// Ports below this one belong to services of the system, which datagrams of ours could harm.
const PORT_MIN: u16 = 1024;

/// Whether a member may announce this address. Other members send datagrams there, so broadcast and
/// multicast addresses and the ports of system services are refused.
pub fn may_be_announced(addr: SocketAddr) -> bool {
    let ip = addr.ip().to_canonical();
    let is_for_many = match ip {
        IpAddr::V4(ip) => ip.is_broadcast() || ip.is_multicast(),
        IpAddr::V6(ip) => ip.is_multicast(),
    };
    addr.port() >= PORT_MIN && !is_for_many && !ip.is_unspecified()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_everybody_and_services_are_no_addresses_of_members() {
        let may = |addr: &str| may_be_announced(addr.parse().unwrap());
        for good in ["10.0.0.1:7600", "127.0.0.1:1024", "[2001:db8::1]:7600"] {
            assert!(may(good), "{good}");
        }
        for bad in [
            "10.0.0.1:53",
            "10.0.0.1:0",
            "224.0.0.251:5353",
            "255.255.255.255:7600",
            "0.0.0.0:7600",
            "[::]:7600",
            "[ff02::1]:7600",
            "[::ffff:224.0.0.1]:7600",
        ] {
            assert!(!may(bad), "{bad}");
        }
    }
}
