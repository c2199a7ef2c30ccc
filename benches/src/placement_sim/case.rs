//! Worlds with the jobs that run in them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use placement::hazard::HazardModel;
use placement::history::DAY_SECONDS;
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use sim::{Grid, Host, Reading, Settings, World, grid5000};

use crate::traces::Trace;

const HOUR: f64 = 3600.0;
/// Hosts of a grid.
const HOSTS: usize = 40;
/// Most of them that are drawn from one site.
const HOSTS_OF_A_SITE: usize = 4;
/// Fewest hosts that make a grid.
const HOSTS_MIN: usize = 7;
/// A job has as much work as takes it this many evictions on average.
const EVICTIONS: f64 = 3.0;
/// Least and most work of a job, seconds.
const WORK_SECONDS: (f64, f64) = (6.0 * HOUR, 120.0 * HOUR);
/// The trace has to go on for this many times the work.
const ROOM: f64 = 2.5;
/// Share of that time for which something is known of every host.
const KNOWN: f64 = 0.8;
/// Least time before the start for which something is known of every host.
const PAST_SECONDS: u64 = DAY_SECONDS;
/// Tries to find a start with enough hosts.
const TRIES: usize = 200;

/// Share of the time for which the owner takes a host that is shared with guests.
const TAKEN: RangeInclusive<f64> = 0.02..=0.98;

/// Days that the Grid'5000 model goes on, and the seed of its world.
const MODEL_DAYS: u64 = 120;
const MODEL_SEED: u64 = 2007;

/// A world with the jobs that run in it.
#[derive(Debug)]
pub struct Case {
    /// Short name, for tables.
    pub name: String,
    /// What is simulated, for documents.
    pub description: String,
    /// The hosts.
    pub world: World,
    /// The jobs.
    pub settings: Settings,
    /// Turns the past of a host into its chances; knows nothing of this world.
    pub model: HazardModel,
}

impl Case {
    /// The cases that a trace can feed: with the disks of hosts readable while they are up, if it
    /// says when they are not; and, if it has loads, with the states of guests applied to disks. `model`
    /// should not have seen the trace.
    #[must_use]
    pub fn of_trace(trace: &Trace, model: &HazardModel) -> Vec<Self> {
        let mut cases = Vec::new();
        let gone = world(trace, Reading::Gone);
        if gone.hosts().iter().any(goes) {
            let description = format!("{}: disks are read while hosts are up", trace.description);
            cases.push(Self::new(
                trace.name.clone(),
                description,
                gone,
                model.clone(),
            ));
        }
        if trace.hosts.iter().any(|host| !host.loads.is_empty()) {
            let description = format!(
                "{}: disks are read in S1 and S2 only, the papers' states to the letter",
                trace.description
            );
            let world = world(trace, Reading::GuestStates);
            cases.push(Self::new(
                format!("{}, guest states", trace.name),
                description,
                world,
                model.clone(),
            ));
        }
        cases
    }

    /// A trace for jobs alone: what its hosts do as guests see them, and when they are gone.
    #[must_use]
    pub fn of_guests(trace: &Trace, model: &HazardModel) -> Self {
        let world = world(trace, Reading::Gone);
        let description = trace.description.clone();
        Self::new(trace.name.clone(), description, world, model.clone())
    }

    /// The same with those hosts alone that their owners take (S3) for a share of the known time between
    /// 2% and 98%; none where that is all hosts or none.
    #[must_use]
    pub fn of_shared_hosts(trace: &Trace, model: &HazardModel) -> Option<Self> {
        let world = world(trace, Reading::Gone);
        let is_shared = |host: &&Host| {
            let taken = host.share_taken(world.span()).unwrap_or(0.0);
            TAKEN.contains(&taken)
        };
        let hosts: Vec<Host> = world.hosts().iter().filter(is_shared).cloned().collect();
        if hosts.is_empty() || hosts.len() == world.hosts().len() {
            return None;
        }
        let description = format!("{}: shared hosts", trace.description);
        let name = format!("{}, {} shared hosts", trace.name, hosts.len());
        let shared = World::new(hosts, u64::from(trace.sample_seconds));
        Some(Self::new(name, description, shared, model.clone()))
    }

    /// The model of Grid'5000.
    #[must_use]
    pub fn of_grid5000() -> Self {
        let description = "model after the published fits: 1,296 nodes in 15 clusters";
        let world = grid5000::world(MODEL_SEED, MODEL_DAYS);
        Self::new(
            "grid5000".into(),
            description.into(),
            world,
            HazardModel::pretrained(),
        )
    }

    fn new(name: String, description: String, world: World, model: HazardModel) -> Self {
        let span = world.span();
        let middle = span.start.midpoint(span.end);
        let stay = world.mean_time_to_eviction(span.start..middle);
        let work = (EVICTIONS * stay / HOUR).round() * HOUR;
        let settings = Settings {
            work_seconds: work.clamp(WORK_SECONDS.0, WORK_SECONDS.1),
            ..Settings::default()
        };
        Self {
            name,
            description,
            world,
            settings,
            model,
        }
    }

    /// Up to `count` grids that begin in the later half of the trace.
    #[must_use]
    pub fn grids(&self, count: usize) -> Vec<Grid> {
        (0..count as u64)
            .filter_map(|seed| self.grid(seed))
            .collect()
    }

    fn grid(&self, seed: u64) -> Option<Grid> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let span = self.world.span();
        let room = (ROOM * self.settings.work_seconds) as u64;
        let first = span.start.midpoint(span.end);
        let last = span.end.saturating_sub(room).max(first + 1);
        for _ in 0..TRIES {
            let start = rng.random_range(first..last);
            let window = start..start + room;
            let past = span.start..start;
            let fits = |host: &Host| {
                host.usable(start).is_some()
                    && host.known_seconds(window.clone()) as f64 >= KNOWN * room as f64
                    && host.known_seconds(past.clone()) >= PAST_SECONDS
            };
            let hosts = self.world.hosts().iter().enumerate();
            let fitting: Vec<usize> = hosts.filter(|(_, h)| fits(h)).map(|(i, _)| i).collect();
            if fitting.len() >= HOSTS_MIN {
                let hosts = self.draw(&mut rng, &fitting);
                return Some(Grid { hosts, start, seed });
            }
        }
        None
    }

    /// Draws sites, and of each some hosts, until there are enough.
    fn draw(&self, rng: &mut SmallRng, fitting: &[usize]) -> Vec<usize> {
        let mut sites: BTreeMap<(Option<u32>, usize), Vec<usize>> = BTreeMap::new();
        for host in fitting {
            let site = self.world.hosts()[*host].site();
            // Hosts of unknown site are each in one of their own.
            let key = (site, if site.is_none() { *host } else { 0 });
            sites.entry(key).or_default().push(*host);
        }
        let mut sites: Vec<Vec<usize>> = sites.into_values().collect();
        sites.shuffle(rng);
        let mut drawn = Vec::new();
        for site in &sites {
            let some = site.choose_multiple(rng, HOSTS_OF_A_SITE.min(HOSTS - drawn.len()));
            drawn.extend(some.copied());
        }
        // With few sites, more of each.
        let mut rest: Vec<usize> = fitting
            .iter()
            .copied()
            .filter(|host| !drawn.contains(host))
            .collect();
        rest.shuffle(rng);
        rest.truncate(HOSTS - drawn.len());
        drawn.extend(rest);
        drawn.sort_unstable();
        drawn
    }
}

/// Whether a host is ever away.
fn goes(host: &Host) -> bool {
    host.away_at_some_time()
}

fn world(trace: &Trace, reading: Reading) -> World {
    let mut names: BTreeMap<String, u32> = BTreeMap::new();
    let mut number = |kind: &str, name: &str| {
        let next = names.len() as u32;
        (!name.is_empty()).then(|| *names.entry(format!("{kind} {name}")).or_insert(next))
    };
    let hosts = trace.hosts.iter().map(|host| {
        Host::new(
            host.timeline.clone(),
            host.loads.clone(),
            number("site", &host.site),
            number("owner", &host.owner),
            reading,
        )
    });
    World::new(hosts.collect(), u64::from(trace.sample_seconds))
}
