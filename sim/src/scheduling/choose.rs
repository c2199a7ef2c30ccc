//! Chooses the host of a job's next stay.

use std::collections::BTreeMap;

use placement::rank::{Failure, LoadForecast, LoadProfile, Place, Rule, mean_seconds, rank};
use placement::state::ModelState;
use rand::seq::SliceRandom;

use super::stay::Stay;
use super::{Choice, Ground, Keeping, Stand};
use crate::draw::{Purpose, draws};
use crate::knowledge::Knowledge;
use crate::outcome::JobOutcome;

/// Chooses hosts for one job, and keeps what it learns of the hosts.
pub(super) struct Chooser<'a> {
    knowledge: Knowledge<'a>,
    /// Load profiles of hosts, and the Unix second up to which each has been fed.
    profiles: BTreeMap<usize, (LoadProfile, u64)>,
}

impl<'a> Chooser<'a> {
    pub(super) const fn new(knowledge: Knowledge<'a>) -> Self {
        Self {
            knowledge,
            profiles: BTreeMap::new(),
        }
    }

    pub(super) const fn knowledge(&mut self) -> &mut Knowledge<'a> {
        &mut self.knowledge
    }

    /// A host that can be used now; `None` if there is none. `keys` are the numbers of the job and of its
    /// start.
    pub(super) fn choose(
        &mut self,
        ground: &Ground<'a>,
        stand: &Stand,
        choice: Choice,
        keys: [u64; 2],
    ) -> Option<usize> {
        let unix = ground.unix(stand.now);
        let hosts = 0..self.knowledge.grid.hosts.len();
        let is_free = |host: &usize| self.knowledge.host(*host).usable(unix) == Some(true);
        let mut free: Vec<usize> = hosts.filter(is_free).collect();
        // Of hosts that are equal, the first in this random order is taken.
        let mut rng = draws(
            self.knowledge.grid.seed,
            Purpose::Compute,
            [keys[0], keys[1], 2],
        );
        free.shuffle(&mut rng);
        match choice {
            Choice::Random => free.first().copied(),
            Choice::LeastLoad => free
                .iter()
                .min_by(|a, b| {
                    self.last_load(**a, unix)
                        .total_cmp(&self.last_load(**b, unix))
                })
                .copied(),
            Choice::Falcon => self.first(&free, ground, stand, Rule::Falcon),
            Choice::Expected => self.first(&free, ground, stand, Rule::Expected),
            Choice::Foresight => self.foreseen(&free, ground, stand),
        }
    }

    /// The best of the free hosts by a rule of `ckpt plan where`.
    fn first(
        &mut self,
        free: &[usize],
        ground: &Ground<'_>,
        stand: &Stand,
        rule: Rule,
    ) -> Option<usize> {
        let unix = ground.unix(stand.now);
        let work = ground.jobs.work_seconds - stand.saved;
        let places: Vec<Place> = free
            .iter()
            .map(|host| self.place(*host, ground, unix, work))
            .collect();
        let best = rank(&places, work, rule).first()?.place;
        free.get(best).copied()
    }

    /// A host as [`rank`] sees it.
    fn place(&mut self, host: usize, ground: &Ground<'_>, unix: u64, work: f64) -> Place {
        let load = self.load(host, unix).unwrap_or_default();
        let (stays, _) = self.knowledge.guest(host, unix);
        let delay_seconds = ground.jobs.restart_seconds;
        let failure = match ground.keeping {
            Keeping::Nothing => Failure::Everything { delay_seconds },
            Keeping::Checkpoints | Keeping::Leaving(_) => Failure::with_checkpoints(
                delay_seconds,
                ground.jobs.checkpoint_seconds,
                1.0 - load.over(work),
                mean_seconds(&stays),
            ),
        };
        Place {
            // Traces do not hold the speed of hosts.
            speed: 1.0,
            load,
            stays,
            failure,
        }
    }

    /// The load forecast that a host announces, from its load in the past while guests could run.
    fn load(&mut self, host: usize, unix: u64) -> Option<LoadForecast> {
        let of = self.knowledge.host(host);
        let begin = unix.saturating_sub(crate::knowledge::HISTORY_SECONDS);
        let length = self.knowledge.world.load_seconds;
        let (profile, seen) = self
            .profiles
            .entry(host)
            .or_insert_with(|| (LoadProfile::new(begin), begin));
        let first = of.loads.partition_point(|(at, _)| *at < *seen);
        let over = of.loads.iter().skip(first);
        for (at, load) in over.take_while(|(at, _)| at + length <= unix) {
            let is_usable = of
                .guest
                .state_at(*at)
                .is_some_and(|state| !state.is_failure());
            if is_usable {
                profile.observe(*at..at + length, f64::from(*load));
            }
            *seen = at + length;
        }
        profile.forecast()
    }

    /// The last load that was measured before `unix`, 0 to 1.
    fn last_load(&self, host: usize, unix: u64) -> f64 {
        let of = self.knowledge.host(host);
        let length = self.knowledge.world.load_seconds;
        let over = of.loads.partition_point(|(at, _)| at + length <= unix);
        let last = over.checked_sub(1).and_then(|index| of.loads.get(index));
        last.map_or(0.0, |(_, load)| f64::from(*load))
    }

    /// The free host with the best stay, which is found by running the stay on each of them.
    fn foreseen(&mut self, free: &[usize], ground: &Ground<'_>, stand: &Stand) -> Option<usize> {
        let mut best: Option<(usize, (bool, f64))> = None;
        for host in free {
            let mut knowledge = self.knowledge.clone();
            let stay = Stay::new(ground, &mut knowledge, *host, *stand);
            let left = stay.run(&mut JobOutcome::default());
            let value = if left.done { -left.at } else { left.saved };
            if best.is_none_or(|(_, before)| (left.done, value) > before) {
                best = Some((*host, (left.done, value)));
            }
        }
        best.map(|(host, _)| host)
    }
}
