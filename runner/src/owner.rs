//! Observes the machine's owner for a job: one sample a second.

use std::time::{Duration, SystemTime};

use machine::consoles::Consoles;
use machine::{Counters, Guests, Machine, ProcessId, Sampler};
use placement::contention::contended_load;
use placement::state::Thresholds;
use supervision::OwnerSample;

use super::daemon::DaemonSays;

/// The memory has to be short in this many samples in a row before the job has to leave.
const SHORT_SAMPLES: u32 = 3;

/// Available memory below which the memory is short, as a share of the total.
const MEMORY_LEAST: f64 = 0.02;

/// The same limit while pages are swapped.
const MEMORY_LEAST_SWAPPING: f64 = 0.10;

/// Factor by which the largest number of cores that the job took decays with each sample.
const CORES_DECAY: f64 = 0.98;

/// What the user grants the machine's owner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OwnerWish {
    /// Whether the job runs while somebody sits at the machine.
    pub run_if_user_active: bool,
    /// How long the consoles have to be unused before nobody counts as sitting at the machine.
    pub idle_time_to_run: Duration,
    /// Load of the owner above which the job is stopped, 0 to 1, if the user gave one.
    pub suspend_cpu_usage: Option<f64>,
}

impl OwnerWish {
    /// The loads above which the job gets the lowest priority, and above which it is stopped.
    pub fn thresholds(&self) -> Thresholds {
        let usual = Thresholds::LINUX;
        let second = self.suspend_cpu_usage.unwrap_or_else(|| usual.second());
        Thresholds::new(usual.first().min(second), second).unwrap_or(usual)
    }
}

/// Observes the owner of this machine.
#[derive(Debug)]
pub(super) struct Owner {
    wish: OwnerWish,
    sampler: Sampler,
    guests: Guests,
    before: Option<Counters>,
    consoles: Consoles,
    /// Cores that the job takes when it runs: a recent maximum.
    cores: f64,
    short: u32,
    total_memory: f64,
}

impl Owner {
    /// Observes the owner for the job whose first process is `pid`.
    pub(super) fn new(wish: OwnerWish, pid: i32) -> Self {
        let machine = Machine::here();
        let guest = ProcessId::of(&machine, pid);
        Self {
            wish,
            guests: Guests::of(guest),
            sampler: Sampler::new(machine),
            before: None,
            consoles: Consoles::default(),
            cores: 1.0,
            short: 0,
            total_memory: total_memory(),
        }
    }

    /// Cores that the job takes when it runs.
    pub(super) const fn cores(&self) -> f64 {
        self.cores
    }

    /// Takes a sample: what the owner used since the last one, and what the machine's daemon reports.
    pub(super) fn sample(&mut self, is_running: bool, says: Option<DaemonSays>) -> OwnerSample {
        let mut sample = self.sample_here(is_running);
        if let Some(says) = says {
            sample.withheld = says.is_withheld;
            sample.memory_short |= says.memory_short;
            sample.leaving = says.leaving_ms;
        }
        sample
    }

    fn sample_here(&mut self, is_running: bool) -> OwnerSample {
        let Ok(now) = self.sampler.read(&self.guests) else {
            // If the machine can't be read, it counts neither as free nor as in use.
            return OwnerSample::default();
        };
        let Some(before) = self.before.replace(now) else {
            return OwnerSample::default();
        };
        let load = now.load_since(&before);
        let cpus = now.cpus.max(1) as f64;
        if is_running {
            let taken = load.guests * cpus;
            self.cores = taken.max(self.cores * CORES_DECAY).clamp(1.0, cpus);
        }
        OwnerSample {
            load: contended_load(load.owner, cpus, self.cores.ceil().min(cpus)),
            user_active: self.user_is_active(),
            memory_short: self.is_memory_short(&now, &before),
            withheld: false,
            leaving: None,
        }
    }

    fn user_is_active(&mut self) -> bool {
        if self.wish.run_if_user_active {
            // It makes no difference, and some sixty terminals need not be read once a second.
            return false;
        }
        let now = SystemTime::now();
        let machine = self.sampler.machine().clone();
        let used = self.consoles.look(&machine, now);
        let idle = used.and_then(|used| now.duration_since(used).ok());
        idle.is_some_and(|idle| idle < self.wish.idle_time_to_run)
    }

    fn is_memory_short(&mut self, now: &Counters, before: &Counters) -> bool {
        let swapping = now.host_since(before, 0..1).swapping;
        let least = if swapping {
            MEMORY_LEAST_SWAPPING
        } else {
            MEMORY_LEAST
        };
        let is_short = (now.available_memory_bytes as f64) < least * self.total_memory;
        self.short = if is_short { self.short + 1 } else { 0 };
        self.short >= SHORT_SAMPLES
    }
}

fn total_memory() -> f64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) * 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_at_which_a_job_stands_still_is_the_user_s() {
        let wish = |share| OwnerWish {
            run_if_user_active: true,
            idle_time_to_run: Duration::from_secs(180),
            suspend_cpu_usage: share,
        };
        assert_eq!(wish(None).thresholds(), Thresholds::LINUX);
        let thresholds = wish(Some(0.1)).thresholds();
        assert!(thresholds.second() == 0.1 && thresholds.first() == 0.1);
        assert_eq!(wish(Some(0.9)).thresholds().second(), 0.9);
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        let wish = OwnerWish {
            run_if_user_active: true,
            idle_time_to_run: Duration::from_secs(180),
            suspend_cpu_usage: None,
        };
        let mut owner = Owner::new(wish, std::process::id().cast_signed());
        assert_eq!(owner.sample(true, None), OwnerSample::default());
        let says = DaemonSays {
            is_withheld: true,
            memory_short: false,
            leaving_ms: Some(600_000),
        };
        let sample = owner.sample(true, Some(says));
        assert_eq!((sample.withheld, sample.leaving), (true, Some(600_000)));
        let sample = owner.sample(true, None);
        assert!((0.0..=1.0).contains(&sample.load) && !sample.memory_short && !sample.withheld);
        assert!(owner.total_memory > 0.0);
    }
}
