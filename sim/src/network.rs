//! Rates of the links between hosts, and round-trip times.

use rand::Rng;

use crate::draw::{Purpose, draws, lognormal};

/// How fast hosts reach each other. Rates are bytes per second.
///
/// Two hosts of one site share a local network. Between two sites there is a path, the same for all
/// their hosts. Each host also has a link of its own to the outside, which is slow for some hosts. All
/// transfers of a host share its links. Rates of links and paths are lognormal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// Network interface of a host, and of the dedicated server.
    pub interface: f64,
    /// Median rate between hosts of a site.
    pub lan_median: f64,
    /// Standard deviation of this rate's natural logarithm.
    pub lan_spread: f64,
    /// Median rate of one transfer between two sites.
    pub path_median: f64,
    /// Standard deviation of this rate's natural logarithm.
    pub path_spread: f64,
    /// Median rate of a host's link to the outside.
    pub access_median: f64,
    /// Median rate of a host's link to the outside, for hosts behind a slow network.
    pub slow_median: f64,
    /// Share of the hosts that are behind a slow network, 0 to 1.
    pub slow_share: f64,
    /// Standard deviation of the natural logarithm of both kinds of links to the outside.
    pub access_spread: f64,
    /// Median round-trip time between two sites, seconds.
    pub rtt_median: f64,
    /// Standard deviation of this time's natural logarithm.
    pub rtt_spread: f64,
    /// Standard deviation of the natural logarithm of one transfer's rate around that of its path.
    pub noise: f64,
    /// Standard deviation of the natural logarithm of the rate that a short probe measures.
    pub probe_noise: f64,
}

impl Default for Network {
    /// The spread of paths and the round-trip times are those between cloud regions (Jain et al., NSDI
    /// 2023), with rates scaled to a median of 100 Mbit/s; the rest is assumed.
    fn default() -> Self {
        Self {
            interface: 125e6,
            lan_median: 100e6,
            lan_spread: 0.2,
            path_median: 12.5e6,
            path_spread: 0.44,
            access_median: 60e6,
            slow_median: 2.5e6,
            slow_share: 0.2,
            access_spread: 0.5,
            rtt_median: 0.153,
            rtt_spread: 0.89,
            noise: 0.3,
            probe_noise: 0.5,
        }
    }
}

/// Where a host is in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// Number of the host.
    pub(crate) host: u64,
    /// Its site; a host without a site has one of its own.
    pub(crate) site: u64,
}

impl Network {
    /// Rate of a host's link to the outside, bytes per second.
    pub(crate) fn access(&self, seed: u64, at: Location) -> f64 {
        let mut rng = draws(seed, Purpose::Access, [at.host, 0, 0]);
        let slow = rng.random::<f64>() < self.slow_share;
        let median = if slow {
            self.slow_median
        } else {
            self.access_median
        };
        lognormal(&mut rng, median, self.access_spread)
    }

    /// Usual rate of one transfer between two hosts that have their links for themselves, bytes per second.
    pub(crate) fn path(&self, seed: u64, a: Location, b: Location) -> f64 {
        if a.site == b.site {
            let keys = [a.host.min(b.host), a.host.max(b.host), 0];
            lognormal(
                &mut draws(seed, Purpose::Lan, keys),
                self.lan_median,
                self.lan_spread,
            )
        } else {
            let keys = [a.site.min(b.site), a.site.max(b.site), 0];
            lognormal(
                &mut draws(seed, Purpose::Path, keys),
                self.path_median,
                self.path_spread,
            )
        }
    }

    /// Round-trip time between two hosts, seconds.
    pub(crate) fn round_trip(&self, seed: u64, a: Location, b: Location) -> f64 {
        if a.site == b.site {
            return 0.001;
        }
        let keys = [a.site.min(b.site), a.site.max(b.site), 0];
        lognormal(
            &mut draws(seed, Purpose::RoundTrip, keys),
            self.rtt_median,
            self.rtt_spread,
        )
    }
}
