//! Hosts, and what happens to them over the whole trace.

use std::ops::Range;

use placement::history::Timeline;
use placement::joint::{DomainId, Domains};
use placement::state::{AvailabilityState, ModelState};

/// In which states the disk of a host can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Only when the host is gone (S5): a disk can be read while the processor is busy.
    Gone,
    /// In all states in which a guest can't run (S3, S4, S5), which is what the papers say.
    GuestStates,
}

/// A host with its whole past and future.
#[derive(Clone, Debug)]
pub struct Host {
    /// States as a guest sees them.
    pub(crate) guest: Timeline<AvailabilityState>,
    /// States of the disk: in a failure state it can't be read.
    pub(crate) disk: Timeline<AvailabilityState>,
    /// Load samples from which it is predicted when the disk can be read.
    pub(crate) disk_loads: Vec<(u64, f32)>,
    /// Load samples: beginning in Unix seconds, and load from 0 to 1.
    pub(crate) loads: Vec<(u64, f32)>,
    pub(crate) domains: Domains,
}

/// All hosts of a trace.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub(crate) hosts: Vec<Host>,
    /// Length of the interval that a load sample is the mean of, seconds.
    pub(crate) load_seconds: u64,
}

/// Some hosts of a world that form a grid from a moment on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Indices into the world's hosts.
    pub hosts: Vec<usize>,
    /// When the jobs begin, Unix seconds.
    pub start: u64,
    /// Seed of everything that is random in the grid.
    pub seed: u64,
}

impl Host {
    /// A host with these states, site and owner. `loads` are the load samples, if there are any: beginning
    /// in Unix seconds, and load from 0 to 1.
    #[must_use]
    pub fn new(
        guest: Timeline<AvailabilityState>,
        loads: Vec<(u64, f32)>,
        site: Option<u32>,
        owner: Option<u32>,
        reading: Reading,
    ) -> Self {
        let (disk, disk_loads) = match reading {
            Reading::GuestStates => (guest.clone(), loads.clone()),
            Reading::Gone => {
                let mut disk = Timeline::new(guest.start());
                for run in guest.runs(0..u64::MAX) {
                    let state = run.state.map(|state| match state {
                        AvailabilityState::Gone => state,
                        _ => AvailabilityState::Idle,
                    });
                    disk.push(run.span, state);
                }
                (disk, Vec::new())
            }
        };
        Self {
            guest,
            disk,
            disk_loads,
            loads,
            domains: [site.map(DomainId), owner.map(DomainId)],
        }
    }

    /// The host's states, as a guest sees them.
    #[must_use]
    pub const fn timeline(&self) -> &Timeline<AvailabilityState> {
        &self.guest
    }

    /// Number of the host's site.
    #[must_use]
    pub fn site(&self) -> Option<u32> {
        self.domains[0].map(|domain| domain.0)
    }

    /// Seconds of `window` for which the host's state is known.
    #[must_use]
    pub fn known_seconds(&self, window: Range<u64>) -> u64 {
        let known = self
            .guest
            .runs(window.clone())
            .filter(|run| run.state.is_some());
        known
            .map(|run| run.span.end.min(window.end) - run.span.start.max(window.start))
            .sum()
    }

    /// Share of the known time in `window` for which the owner needs the host (S3); `None` if nothing is
    /// known.
    #[must_use]
    pub fn share_taken(&self, window: Range<u64>) -> Option<f64> {
        let mut taken = 0;
        let mut known = 0;
        for run in self.guest.runs(window.clone()) {
            let seconds = run.span.end.min(window.end) - run.span.start.max(window.start);
            let Some(state) = run.state else { continue };
            known += seconds;
            if state == AvailabilityState::CpuTaken {
                taken += seconds;
            }
        }
        (known > 0).then(|| taken as f64 / known as f64)
    }

    /// Whether the trace has a time at which the host's disk can't be read.
    #[must_use]
    pub fn away_at_some_time(&self) -> bool {
        Self::first_failure(&self.disk, 0).is_some()
    }

    /// Whether a guest can run on the host at `time` (Unix seconds); `None` if that is unknown.
    #[must_use]
    pub fn usable(&self, time: u64) -> Option<bool> {
        self.guest.state_at(time).map(|state| !state.is_failure())
    }

    /// Whether the host's disk can be read at `time` (Unix seconds); `None` if that is unknown.
    #[must_use]
    pub fn here(&self, time: u64) -> Option<bool> {
        self.disk.state_at(time).map(|state| !state.is_failure())
    }

    /// Whether the host is away at `time` and has been for as many `seconds`, Unix seconds.
    pub(crate) fn is_away_since(&self, time: u64, seconds: u64) -> bool {
        let mut window = self.disk.runs(time.saturating_sub(seconds)..time + 1);
        window.all(|run| run.state.is_some_and(AvailabilityState::is_failure))
    }

    /// Seconds of `window` in which guests are known to be able to run, and the number of times that this
    /// ended with a failure.
    #[must_use]
    pub fn usable_seconds_and_failures(&self, window: Range<u64>) -> (u64, u64) {
        let mut seconds = 0;
        let mut failures = 0;
        let mut was_usable = false;
        for run in self.guest.runs(window.clone()) {
            let usable = run.state.is_some_and(|state| !state.is_failure());
            if usable {
                seconds += run.span.end.min(window.end) - run.span.start.max(window.start);
            } else if was_usable && run.state.is_some() {
                failures += 1;
            }
            was_usable = usable;
        }
        (seconds, failures)
    }

    /// The first moment from `time` on at which the host is known to be in a failure state, Unix seconds.
    pub(crate) fn first_failure(timeline: &Timeline<AvailabilityState>, time: u64) -> Option<u64> {
        timeline
            .runs(time..u64::MAX)
            .find(|run| run.state.is_some_and(ModelState::is_failure))
            .map(|run| run.span.start.max(time))
    }

    /// Share of the known time in `window` in which the host's disk can be read; `None` if nothing is known.
    pub(crate) fn share_here(&self, window: Range<u64>) -> Option<f64> {
        let mut here = 0;
        let mut known = 0;
        for run in self.disk.runs(window.clone()) {
            let seconds = run.span.end.min(window.end) - run.span.start.max(window.start);
            let Some(state) = run.state else { continue };
            known += seconds;
            here += if state.is_failure() { 0 } else { seconds };
        }
        (known > 0).then(|| here as f64 / known as f64)
    }
}

impl World {
    /// A world of these hosts, whose load samples are means over `load_seconds`.
    #[must_use]
    pub const fn new(hosts: Vec<Host>, load_seconds: u64) -> Self {
        Self {
            hosts,
            load_seconds,
        }
    }

    /// The hosts.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// From the first to the last moment of which anything is known, Unix seconds.
    #[must_use]
    pub fn span(&self) -> Range<u64> {
        let starts = self.hosts.iter().map(|host| host.guest.start());
        let ends = self.hosts.iter().map(|host| host.guest.end());
        starts.min().unwrap_or(0)..ends.max().unwrap_or(0)
    }

    /// Mean time for which a guest runs on a host before it has to leave, seconds: the usable time of all
    /// hosts in `window`, divided by the number of failures plus one.
    #[must_use]
    pub fn mean_time_to_eviction(&self, window: Range<u64>) -> f64 {
        let sums = self
            .hosts
            .iter()
            .map(|host| host.usable_seconds_and_failures(window.clone()));
        let (seconds, failures) = sums.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        seconds as f64 / (failures + 1) as f64
    }
}
