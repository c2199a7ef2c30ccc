//! What is to be expected of the machine that a job runs on.

use std::num::NonZeroU32;

use codec::Redundancy;
use codec::grant::Grant;
use placement::SurvivalCurve;
use protocol::wire::announcement::Announced;
use tokio::task::JoinSet;

use super::Agent;
use crate::core::HostIndex;
use crate::core::place::{FIRST_RATE, presence_of_unknown};
use crate::report::Failure;
use crate::unix_time::unix_seconds;

/// Hosts on this machine that are asked, one after the other.
const ASKED_MAX: usize = 3;

/// Other hosts that are asked, at most: every n-th of a large grid.
const NEIGHBOURS_MAX: usize = 40;

/// Step and number of steps of a curve that is made of a mean time between failures.
const STEP: NonZeroU32 = NonZeroU32::new(60).unwrap();
const STEPS: usize = 600;

/// Survival of a machine, and of a guest job on it.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineOutlook {
    /// Who says so.
    pub source: String,
    /// The host that this machine is in the grid, if it is one.
    pub host: Option<String>,
    /// Probability that the machine is there all the time.
    pub presence: SurvivalCurve,
    /// Probability that its owner leaves it to guests all the time.
    pub guest: SurvivalCurve,
    /// Bytes of an image that its hosts are expected to take in a second; none where no host was measured.
    pub stores_bytes_per_second: Option<f64>,
}

impl MachineOutlook {
    /// Of a machine that goes without warning once in `mtbf` seconds.
    pub fn given(mtbf: f64) -> Self {
        let curve = SurvivalCurve::exponential(STEP, STEPS, 1.0 / mtbf.max(1.0));
        Self {
            source: "the mean time between failures that was given".to_owned(),
            host: None,
            presence: curve.clone(),
            guest: curve,
            stores_bytes_per_second: None,
        }
    }

    /// Of a machine of which nothing is known.
    pub fn of_unknown() -> Self {
        let curve = presence_of_unknown();
        Self {
            source: "an average machine: nothing is known of this one".to_owned(),
            host: None,
            presence: curve.clone(),
            guest: curve,
            stores_bytes_per_second: None,
        }
    }
}

/// What a host says of its machine.
#[derive(Clone, Debug)]
pub struct HostSays {
    /// The host.
    pub host: String,
    /// What it says of itself; none when it says nothing, as earlier programs do.
    pub said: Result<Option<Announced>, String>,
}

impl Agent {
    /// What every host says of its own availability, in the order of the grid.
    pub async fn announcements(&self) -> Vec<HostSays> {
        let mut asking = JoinSet::new();
        for host in self.hosts.all() {
            let agent = self.clone();
            asking.spawn(async move { (host, agent.hosts.announcement(host).await) });
        }
        let mut answers = asking.join_all().await;
        answers.sort_by_key(|(host, _)| *host);
        let says = answers.into_iter().map(|(host, said)| HostSays {
            host: self.hosts.name(host).to_owned(),
            said: said.map_err(|fault| fault.to_string()),
        });
        says.collect()
    }

    /// What this key may, if it is a job key.
    pub fn grant(&self) -> Option<&Grant> {
        self.keys.grant()
    }

    /// What the daemon on this machine, or the host that is named, announces; that of an unknown machine
    /// when none answers.
    ///
    /// # Errors
    /// When the host that is named is not one of the grid.
    pub async fn outlook(&self, compute_host: Option<&str>) -> Result<MachineOutlook, Failure> {
        let named = self.compute_host(compute_host)?;
        let asked: Vec<HostIndex> = named.map_or_else(|| self.hosts_here(), |named| vec![named]);
        for host in asked.into_iter().take(ASKED_MAX) {
            if let Ok(Some(announced)) = self.hosts.announcement(host).await {
                return Ok(MachineOutlook {
                    source: format!("host {} on this machine", self.hosts.name(host)),
                    host: Some(self.hosts.name(host).to_owned()),
                    presence: announced.presence,
                    guest: announced.guest,
                    stores_bytes_per_second: None,
                });
            }
        }
        Ok(MachineOutlook::of_unknown())
    }

    /// Bytes of an image that hosts are expected to take in a second from here, with `redundancy`: that of
    /// the slowest of the fastest hosts which suffice, for each data shard, and no more than this machine
    /// can send. A host that was never measured counts as one of 100 Mbit/s; where none was, so does the link
    /// of this machine. None where there is no host.
    pub fn stores_bytes_per_second(&self, redundancy: Redundancy) -> Option<f64> {
        let known = self.notebook.read(unix_seconds());
        let hosts = self.hosts.all();
        let measured: Vec<Option<f64>> = hosts
            .map(|host| self.measured(&known, host).map(|rate| rate.median()))
            .collect();
        let uplink = known.uplink(unix_seconds());
        image_rate(&measured, uplink, redundancy.data(), redundancy.total())
    }

    /// What the daemon on this machine, or the host that is named, announces, and what up to 40 other hosts
    /// of the grid do; hosts that do not answer or announce nothing are left out.
    ///
    /// # Errors
    /// When the host that is named is not one of the grid.
    pub async fn neighbours(&self, compute_host: Option<&str>) -> Result<Neighbours, Failure> {
        let named = self.compute_host(compute_host)?;
        let here: Vec<HostIndex> = named.map_or_else(|| self.hosts_here(), |named| vec![named]);
        let others: Vec<HostIndex> = self.hosts.all().filter(|one| !here.contains(one)).collect();
        let step = others.len().div_ceil(NEIGHBOURS_MAX).max(1);
        let mut asking = JoinSet::new();
        let first_here = here.iter().take(ASKED_MAX);
        for host in first_here.chain(others.iter().step_by(step)).copied() {
            let agent = self.clone();
            asking.spawn(async move { (host, agent.hosts.announcement(host).await) });
        }
        let mut said = Neighbours::default();
        for (host, announced) in asking.join_all().await {
            let Ok(Some(announced)) = announced else {
                continue;
            };
            if here.contains(&host) {
                // Several daemons on this machine have all seen the same owner.
                said.here = Some(announced);
            } else {
                said.others.push(announced);
            }
        }
        Ok(said)
    }
}

/// What hosts announce, from where a job runs.
#[derive(Clone, Debug, Default)]
pub struct Neighbours {
    /// The machine itself, if it is one of the grid.
    pub here: Option<Announced>,
    /// Others.
    pub others: Vec<Announced>,
}

/// The rate at which `data + parity` hosts take an image, from what was measured of all hosts.
fn image_rate(
    measured: &[Option<f64>],
    uplink: Option<f64>,
    data: usize,
    total: usize,
) -> Option<f64> {
    // A first checkpoint had better be foreseen too long than too short.
    let is_known = measured.iter().any(Option::is_some);
    let uplink = uplink.or((!is_known).then_some(FIRST_RATE));
    let mut rates: Vec<f64> = measured
        .iter()
        .map(|rate| rate.unwrap_or(FIRST_RATE))
        .collect();
    rates.sort_by(|a, b| b.total_cmp(a));
    let slowest = rates.get(total.saturating_sub(1)).or(rates.last())?;
    let of_hosts = slowest * data as f64;
    let of_uplink = uplink.map_or(f64::INFINITY, |all| all * data as f64 / total.max(1) as f64);
    Some(of_hosts.min(of_uplink)).filter(|rate| *rate > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_stored_as_fast_as_the_slowest_host_that_is_needed() {
        let rate = |measured: &[Option<f64>], uplink| image_rate(measured, uplink, 3, 5);
        let five = [10e6, 40e6, 30e6, 50e6, 20e6, 5e6].map(Some);
        assert_eq!(rate(&five, None), Some(30e6));
        assert_eq!(rate(&five, Some(25e6)), Some(15e6));
        // The others are not measured, or are not there.
        assert_eq!(
            rate(&[Some(50e6), None, None, None, None], None),
            Some(3.0 * FIRST_RATE)
        );
        assert_eq!(rate(&[Some(2e6)], None), Some(6e6));
        // Nothing is: as if this machine had a link of 100 Mbit/s.
        assert_eq!(rate(&[None; 5], None), Some(FIRST_RATE * 3.0 / 5.0));
        assert_eq!(rate(&[], None), None);
    }
}
