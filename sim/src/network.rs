//! Links between hosts.

use rand::Rng;

use crate::draw::{Purpose, draws, lognormal};

/// How fast hosts reach each other. Rates are bytes per second.
///
/// Two hosts of one site share a local network. Between two sites there is a path, the same for all
/// their hosts, and each host has a link of its own to the outside, which is slow for some. All
/// transfers of a host share its links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// Network interface of a host, and of the dedicated server.
    pub interface: f64,
    /// Median rate between hosts of a site.
    pub lan_median: f64,
    /// Standard deviation of its logarithm.
    pub lan_spread: f64,
    /// Median rate of one transfer between two sites.
    pub path_median: f64,
    /// Standard deviation of its logarithm.
    pub path_spread: f64,
    /// Median rate of a host's link to the outside.
    pub access_median: f64,
    /// The same for a host behind a slow network.
    pub slow_median: f64,
    /// Share of the hosts that are.
    pub slow_share: f64,
    /// Standard deviation of the logarithm of both.
    pub access_spread: f64,
    /// Median time of a question and answer between sites, seconds.
    pub rtt_median: f64,
    /// Standard deviation of its logarithm.
    pub rtt_spread: f64,
    /// Standard deviation of the logarithm of one transfer's rate around that of its path.
    pub noise: f64,
    /// The same for a short probe.
    pub probe_noise: f64,
}

impl Default for Network {
    /// The spread of paths and the round-trip times are those between cloud regions (Jain et al., NSDI
    /// 2023), whose rates are scaled to a median of 100 Mbit/s; the rest is assumed.
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
pub(crate) struct Place {
    /// The host.
    pub(crate) host: u64,
    /// Its site; hosts without one are each in a site of their own.
    pub(crate) site: u64,
}

impl Network {
    /// Rate of a host's link to the outside.
    pub(crate) fn access(&self, seed: u64, at: Place) -> f64 {
        let mut rng = draws(seed, Purpose::Access, [at.host, 0, 0]);
        let slow = rng.random::<f64>() < self.slow_share;
        let median = if slow {
            self.slow_median
        } else {
            self.access_median
        };
        lognormal(&mut rng, median, self.access_spread)
    }

    /// Usual rate of one transfer between two hosts, before links are shared.
    pub(crate) fn path(&self, seed: u64, a: Place, b: Place) -> f64 {
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

    /// Time of a question and answer, seconds.
    pub(crate) fn round_trip(&self, seed: u64, a: Place, b: Place) -> f64 {
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
