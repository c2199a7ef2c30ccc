//! What is to be expected of the machine that a job runs on.

use std::num::NonZeroU32;

use codec::grant::Grant;
use placement::SurvivalCurve;
use protocol::wire::announcement::Announced;
use tokio::task::JoinSet;

use super::Agent;
use crate::core::HostIndex;
use crate::core::place::presence_of_unknown;
use crate::report::Failure;

/// Hosts on this machine that are asked, one after the other.
const ASKED_MAX: usize = 3;

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
                });
            }
        }
        Ok(MachineOutlook::of_unknown())
    }
}
