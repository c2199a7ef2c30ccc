//! Addresses that members say they have.

use std::net::{IpAddr, SocketAddr};

/// Ports below are those of the system's services: what is sent there could harm bystanders.
const PORT_MIN: u16 = 1024;

/// Whether a member can be at this address, as far as the address itself shows. Whoever believes an
/// address sends datagrams there: never to groups, everybody, or services of bystanders.
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
