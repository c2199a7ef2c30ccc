//! How long the machine that a job runs on is expected to stay, and how fast hosts take an image.

use std::num::NonZeroU32;
use std::time::Duration;

use codec::Redundancy;
use codec::grant::Grant;
use placement::SurvivalCurve;
use placement::objective::Width;
use placement::redundancy::narrowed;
use protocol::wire::announcement::Announced;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::agent::Agent;
use crate::core::place::{FIRST_RATE, presence_of_unknown};
use crate::core::pooled::blend;
use crate::core::{Fault, HostIndex};
use crate::models::ModelsReport;
use crate::report::Failure;
use crate::unix_time::unix_seconds;

/// Most hosts on this machine that are asked.
const ASKED_MAX: usize = 3;

/// Most other hosts that are asked; in a larger grid, every n-th host is.
const NEIGHBOURS_MAX: usize = 40;

/// How long other hosts are waited for after this machine's own has answered.
const NEIGHBOURS_PATIENCE: Duration = Duration::from_secs(1);

/// Most hosts on whose past models are judged.
const JUDGED_MAX: usize = 200;

/// Step, in seconds, and number of steps of a curve made from a mean time between failures.
const STEP: NonZeroU32 = NonZeroU32::new(60).unwrap();
const STEPS: usize = 600;

/// How long a machine, and a guest job on it, are expected to survive.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineOutlook {
    /// Source of the prediction, for messages.
    pub source: String,
    /// Name of the host of the grid that runs on this machine, if there is one.
    pub host: Option<String>,
    /// Probability that the machine is there without interruption up to a time.
    pub presence: SurvivalCurve,
    /// Probability that the owner leaves the machine to guests without interruption up to a time.
    pub guest: SurvivalCurve,
    /// Bytes of an image that hosts are expected to take per second; `None` where no host was measured.
    pub stores_bytes_per_second: Option<f64>,
}

impl MachineOutlook {
    /// The outlook of a machine that goes away without warning once in `mtbf` seconds on average.
    pub fn given(mtbf: f64) -> Self {
        let curve = SurvivalCurve::exponential(STEP, STEPS, 1.0 / mtbf.max(1.0));
        Self {
            source: "the given mean time between failures".to_owned(),
            host: None,
            presence: curve.clone(),
            guest: curve,
            stores_bytes_per_second: None,
        }
    }

    /// The outlook of a machine of which nothing is known.
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

/// A host's announcement about its machine.
#[derive(Clone, Debug)]
pub struct HostSays {
    /// Name of the host.
    pub host: String,
    /// The announcement; `None` when the host makes none.
    pub said: Result<Option<Announced>, String>,
}

impl Agent {
    /// The announcement of a host. `None` if the host announces nothing.
    ///
    /// # Errors
    /// When the host does not answer, or its announcement is not valid.
    pub(crate) async fn announcement(&self, host: HostIndex) -> Result<Option<Announced>, Fault> {
        self.hosts.announcement(host).await
    }

    /// Which models make the forecasts of hosts, and how good they have been.
    pub async fn models(&self) -> ModelsReport {
        let answers = self.announcements().await.into_iter();
        let announced = answers.filter_map(|host| host.said.ok()?);
        let announced: Vec<Announced> = announced.take(JUDGED_MAX).collect();
        let judging = tokio::task::spawn_blocking(move || ModelsReport::of(&announced));
        judging.await.unwrap_or_else(|_| ModelsReport::of(&[]))
    }

    /// Asks every host for its announcement. In the order of the grid.
    pub async fn announcements(&self) -> Vec<HostSays> {
        let mut answers = self.ask_each(self.hosts.all()).join_all().await;
        answers.sort_by_key(|(host, _)| *host);
        blend(
            answers
                .iter_mut()
                .filter_map(|(_, said)| said.as_mut().ok()?.as_mut()),
        );
        let says = answers.into_iter().map(|(host, said)| HostSays {
            host: self.hosts.name(host).to_owned(),
            said: said.map_err(|fault| fault.to_string()),
        });
        says.collect()
    }

    /// The grant of this key, if it is a job key.
    pub fn grant(&self) -> Option<&Grant> {
        self.keys.grant()
    }

    /// The outlook of this machine, or of the named host: what its daemon announces, mixed with the model of the
    /// pool. If no daemon of it answers, that of an unknown machine.
    ///
    /// # Errors
    /// When the named host is not one of the grid.
    pub async fn outlook(&self, compute_host: Option<&str>) -> Result<MachineOutlook, Failure> {
        let Some((host, said)) = self.machine(compute_host).await? else {
            return Ok(MachineOutlook::of_unknown());
        };
        Ok(MachineOutlook {
            source: format!("host {host} on this machine"),
            host: Some(host),
            presence: said.presence,
            guest: said.guest,
            stores_bytes_per_second: None,
        })
    }

    /// Name and forecast of the host on this machine, or of the named host, mixed with the model of the pool: the
    /// forecast that `ckpt hosts` shows. `None` if it is no host of the grid, or does not answer.
    ///
    /// # Errors
    /// When the named host is not one of the grid.
    pub(crate) async fn machine(
        &self,
        compute_host: Option<&str>,
    ) -> Result<Option<(String, Announced)>, Failure> {
        let here = self.hosts_of_machine(compute_host).await?;
        if here.is_empty() {
            return Ok(None);
        }
        Ok(self.neighbours_of(here).await.here)
    }

    /// The named host, or those on this machine.
    async fn hosts_of_machine(
        &self,
        compute_host: Option<&str>,
    ) -> Result<Vec<HostIndex>, Failure> {
        let named = self.compute_host(compute_host).await?;
        Ok(named.map_or_else(|| self.hosts_here(), |named| vec![named]))
    }

    /// Bytes of an image per second that hosts are expected to take from here with the code `given` or,
    /// without one, the code of a save to the hosts that are not silent. The fastest `data + parity` hosts
    /// take the shards; the slowest of these sets the rate of each shard, and this machine's link limits the
    /// sum. A host that was never measured counts as one with 100 Mbit/s; if no
    /// host was measured, so does the link of this machine. `None` where there is no host.
    pub fn stores_bytes_per_second(&self, given: Option<Redundancy>) -> Option<f64> {
        let there = self.hosts.all().filter(|host| !self.hosts.is_silent(*host));
        let (data, total) = expected_code(given, there.count());
        let known = self.notebook.read(unix_seconds());
        let hosts = self.hosts.all();
        let measured: Vec<Option<f64>> = hosts
            .map(|host| self.measured(&known, host).map(|rate| rate.median()))
            .collect();
        let uplink = known.uplink(unix_seconds());
        image_rate(&measured, uplink, data, total)
    }

    /// What the host on this machine, or the named host, and up to 40 other hosts of the grid announce, mixed with
    /// the model of these. Hosts that do not answer or announce nothing are left out, and so are others that take
    /// much longer than this machine's own.
    ///
    /// # Errors
    /// When the named host is not one of the grid.
    pub async fn neighbours(&self, compute_host: Option<&str>) -> Result<Neighbours, Failure> {
        let here = self.hosts_of_machine(compute_host).await?;
        Ok(self.neighbours_of(here).await)
    }

    async fn neighbours_of(&self, here: Vec<HostIndex>) -> Neighbours {
        let others: Vec<HostIndex> = self.hosts.all().filter(|one| !here.contains(one)).collect();
        let step = others.len().div_ceil(NEIGHBOURS_MAX).max(1);
        let others = others.into_iter().step_by(step);
        let asking_here = self.ask_each(here.into_iter().take(ASKED_MAX));
        let mut asking = self.ask_each(others);
        // Several daemons on this machine have all seen the same owner, so any of them will do.
        let mut answers = asking_here.join_all().await;
        answers.sort_by_key(|(host, _)| *host);
        let first = answers.into_iter().find_map(|(host, said)| {
            let name = self.hosts.name(host);
            match said {
                Ok(said) => Some((name.to_owned(), said?)),
                Err(cause) => {
                    tracing::warn!(host = name, %cause, "the machine's own prediction is not known");
                    None
                }
            }
        });
        let mut said = Neighbours {
            here: first,
            others: Vec::new(),
        };
        let until = Instant::now() + NEIGHBOURS_PATIENCE;
        while let Ok(Some(answer)) = timeout_at(until, asking.join_next()).await {
            said.others
                .extend(answer.ok().and_then(|(_, said)| said.ok()?));
        }
        let own = said.here.iter_mut().map(|(_, said)| said);
        blend(own.chain(&mut said.others));
        said
    }

    fn ask_each(&self, hosts: impl IntoIterator<Item = HostIndex>) -> JoinSet<Announcement> {
        let mut asking = JoinSet::new();
        for host in hosts {
            let agent = self.clone();
            asking.spawn(async move { (host, agent.announcement(host).await) });
        }
        asking
    }
}

/// A host, and what it announces, if it does.
type Announcement = (HostIndex, Result<Option<Announced>, Fault>);

/// The announcements of the machine that a job runs on, and of others.
#[derive(Clone, Debug, Default)]
pub struct Neighbours {
    /// Name and announcement of the machine itself, if it is a host of the grid.
    pub here: Option<(String, Announced)>,
    /// Those of at most 40 other hosts of the grid.
    pub others: Vec<Announced>,
}

/// Data shards and all shards of a save to `hosts` hosts.
fn expected_code(given: Option<Redundancy>, hosts: usize) -> (usize, usize) {
    if let Some(given) = given {
        return (given.data(), given.total());
    }
    let narrow = narrowed(Width::FALCON, |_| hosts);
    let least = Redundancy::NARROWEST;
    narrow.map_or((least.data(), least.total()), |code| {
        (code.data(), code.total())
    })
}

/// Bytes per second at which `total` hosts take an image, from the measured rates of all hosts.
fn image_rate(
    measured: &[Option<f64>],
    uplink: Option<f64>,
    data: usize,
    total: usize,
) -> Option<f64> {
    // For a first checkpoint, an estimate that is too long does less harm than one that is too short.
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
        // The others were not measured, or do not exist.
        assert_eq!(
            rate(&[Some(50e6), None, None, None, None], None),
            Some(3.0 * FIRST_RATE)
        );
        assert_eq!(rate(&[Some(2e6)], None), Some(6e6));
        // No host was measured, so this machine's link counts as 100 Mbit/s.
        assert_eq!(rate(&[None; 5], None), Some(FIRST_RATE * 3.0 / 5.0));
        assert_eq!(rate(&[], None), None);
    }

    #[test]
    fn the_code_is_that_of_the_save_to_come() {
        assert_eq!([9, 5].map(|hosts| expected_code(None, hosts)), [(3, 5); 2]);
        let few = [4, 3, 2].map(|hosts| expected_code(None, hosts));
        assert_eq!(few, [(2, 4), (1, 3), (1, 3)]);
        assert_eq!(expected_code(Some(Redundancy::DEFAULT), 3), (3, 5), "given");
    }
}
