//! The states of a host, and how readings of its load become states.
//!
//! For guest jobs a host has the five states of the semi-Markov papers ([`AvailabilityState`]). For shards
//! it has other states ([`StorageState`]), since a disk can be used while the CPU is busy.

use std::fmt::{self, Debug};
use std::ops::Range;

/// A finite set of states, some of which are failures.
pub trait ModelState: Copy + Eq + Debug + 'static {
    /// Every state, in the order of [`index`](Self::index).
    const ALL: &'static [Self];

    /// Position of this state in [`ALL`](Self::ALL).
    fn index(self) -> usize;

    /// Whether a guest that runs on the host, or a shard that is being stored, is lost when the host enters
    /// this state.
    fn is_failure(self) -> bool;
}

/// The five states of a host as seen by a guest job, S1 to S5 of the papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AvailabilityState {
    /// S1: the owner's load is below the first threshold.
    Idle,
    /// S2: the owner's load is between the thresholds; a guest runs at lowest priority.
    Busy,
    /// S3: the owner's load stays above the second threshold; guests must end.
    CpuTaken,
    /// S4: not enough free memory for a guest.
    Thrashing,
    /// S5: revoked by its owner, crashed, or switched off.
    Gone,
}

impl ModelState for AvailabilityState {
    const ALL: &'static [Self] = &[
        Self::Idle,
        Self::Busy,
        Self::CpuTaken,
        Self::Thrashing,
        Self::Gone,
    ];

    fn index(self) -> usize {
        self as usize
    }

    fn is_failure(self) -> bool {
        !matches!(self, Self::Idle | Self::Busy)
    }
}

impl fmt::Display for AvailabilityState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::CpuTaken => "cpu taken",
            Self::Thrashing => "no memory",
            Self::Gone => "gone",
        })
    }
}

/// The states of a host's disk as seen by a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StorageState {
    /// The owner's disk load is below the first threshold: the daemon serves at full rate.
    FullRate,
    /// The owner's disk load is between the thresholds: the daemon serves at a limited rate.
    Limited,
    /// The owner's disk load stays above the second threshold: no new shards, slow reads.
    Contended,
    /// Quota or free space is exhausted: no new shards; reads are not affected.
    NoSpace,
    /// The host can't be reached; its data usually come back.
    Offline,
}

impl StorageState {
    /// Whether a shard that is already there can be read.
    #[must_use]
    pub const fn is_readable(self) -> bool {
        !matches!(self, Self::Offline)
    }
}

impl ModelState for StorageState {
    const ALL: &'static [Self] = &[
        Self::FullRate,
        Self::Limited,
        Self::Contended,
        Self::NoSpace,
        Self::Offline,
    ];

    fn index(self) -> usize {
        self as usize
    }

    /// A store in progress fails; data that are already there are not lost.
    fn is_failure(self) -> bool {
        !matches!(self, Self::FullRate | Self::Limited)
    }
}

impl fmt::Display for StorageState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::FullRate => "full rate",
            Self::Limited => "limited",
            Self::Contended => "contended",
            Self::NoSpace => "no space",
            Self::Offline => "offline",
        })
    }
}

/// Whether a host can be reached at all, and so whether a shard can be read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Presence {
    /// The host answers, however slowly.
    Here,
    /// The host does not answer; its data usually come back.
    Away,
}

impl ModelState for Presence {
    const ALL: &'static [Self] = &[Self::Here, Self::Away];

    fn index(self) -> usize {
        self as usize
    }

    fn is_failure(self) -> bool {
        self == Self::Away
    }
}

impl From<StorageState> for Presence {
    fn from(state: StorageState) -> Self {
        if state.is_readable() {
            Self::Here
        } else {
            Self::Away
        }
    }
}

/// The two load thresholds Th1 and Th2, as shares of the whole resource: 0 < Th1 <= Th2 <= 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    first: f64,
    second: f64,
}

/// The numbers offered are not a pair of thresholds.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("thresholds {first} and {second}: expected 0 < first <= second <= 1")]
pub struct ThresholdsError {
    /// The first number offered.
    pub first: f64,
    /// The second number offered.
    pub second: f64,
}

impl Thresholds {
    /// 20% and 60%, measured on the papers' Linux machines.
    pub const LINUX: Self = Self {
        first: 0.2,
        second: 0.6,
    };

    /// Thresholds from shares of the resource.
    ///
    /// # Errors
    /// [`ThresholdsError`] unless `0 < first <= second <= 1`.
    pub fn new(first: f64, second: f64) -> Result<Self, ThresholdsError> {
        if 0.0 < first && first <= second && second <= 1.0 {
            Ok(Self { first, second })
        } else {
            Err(ThresholdsError { first, second })
        }
    }

    /// Th1: below it the owner does not notice a guest.
    #[must_use]
    pub const fn first(self) -> f64 {
        self.first
    }

    /// Th2: while the load stays above it, a guest slows the owner down whatever the guest's priority.
    #[must_use]
    pub const fn second(self) -> f64 {
        self.second
    }
}

impl Default for Thresholds {
    fn default() -> Self {
        Self::LINUX
    }
}

/// Seconds for which the load has to stay above Th2 before the state changes to S3 or, for disks,
/// [`StorageState::Contended`].
pub const TRANSIENT_SECONDS: u64 = 60;

/// What a guest depends on: the owner's mean CPU load over an interval, and the memory at its end.
#[derive(Clone, Debug, PartialEq)]
pub struct HostReading {
    /// The interval that the load is the mean of, Unix seconds.
    pub interval: Range<u64>,
    /// CPU share of the owner's processes, 0 to 1.
    pub owner_cpu: f64,
    /// Memory that a guest could have without taking it from the owner.
    pub free_memory_bytes: u64,
    /// Whether pages were swapped in or out in the interval.
    pub swapping: bool,
}

/// Turns readings into S1 to S4. A peak above Th2 that is shorter than [`TRANSIENT_SECONDS`] does not change
/// the state. S5 shows as a time without readings: [`silence`].
#[derive(Clone, Debug)]
pub struct HostClassifier {
    load: LoadLevel,
    guest_memory_bytes: u64,
}

impl HostClassifier {
    /// A classifier for guests that need `guest_memory_bytes` of memory; with less the state is S4.
    #[must_use]
    pub const fn new(thresholds: Thresholds, guest_memory_bytes: u64) -> Self {
        Self {
            load: LoadLevel::new(thresholds),
            guest_memory_bytes,
        }
    }

    /// The state at the end of the reading's interval.
    pub fn observe(&mut self, reading: &HostReading) -> AvailabilityState {
        let level = self.load.observe(reading.owner_cpu, &reading.interval);
        if reading.swapping || reading.free_memory_bytes < self.guest_memory_bytes {
            return AvailabilityState::Thrashing;
        }
        match level {
            Level::Light => AvailabilityState::Idle,
            Level::Heavy => AvailabilityState::Busy,
            Level::Taken => AvailabilityState::CpuTaken,
        }
    }
}

/// What a shard depends on: the owner's mean disk load over an interval, and the room at its end.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskReading {
    /// The interval that the load is the mean of, Unix seconds.
    pub interval: Range<u64>,
    /// Share of the time in which the disk was busy for the owner, 0 to 1.
    pub owner_busy: f64,
    /// Bytes that may still be stored: the smaller of quota and free space.
    pub room_bytes: u64,
}

/// Turns readings into the storage states; short peaks are treated as by [`HostClassifier`].
#[derive(Clone, Debug)]
pub struct DiskClassifier {
    load: LoadLevel,
    least_room_bytes: u64,
}

impl DiskClassifier {
    /// A classifier that calls the disk full when less than `least_room_bytes` is left.
    #[must_use]
    pub const fn new(thresholds: Thresholds, least_room_bytes: u64) -> Self {
        Self {
            load: LoadLevel::new(thresholds),
            least_room_bytes,
        }
    }

    /// The state at the end of the reading's interval.
    pub fn observe(&mut self, reading: &DiskReading) -> StorageState {
        let level = self.load.observe(reading.owner_busy, &reading.interval);
        if reading.room_bytes < self.least_room_bytes {
            return StorageState::NoSpace;
        }
        match level {
            Level::Light => StorageState::FullRate,
            Level::Heavy => StorageState::Limited,
            Level::Taken => StorageState::Contended,
        }
    }
}

/// The time from the last heartbeat of the monitor until now, if it is longer than the monitor may be
/// silent: the host was gone (S5, offline) in that time. `None` if the clock went backwards. All times are
/// Unix seconds.
#[must_use]
pub fn silence(
    last_heartbeat_unix: u64,
    now_unix: u64,
    longest_silence_seconds: u64,
) -> Option<Range<u64>> {
    let silent = now_unix.saturating_sub(last_heartbeat_unix) > longest_silence_seconds;
    silent.then_some(last_heartbeat_unix..now_unix)
}

/// A load relative to the thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// Below the threshold Th1.
    Light,
    /// From Th1 to Th2.
    Heavy,
    /// Above Th2 for [`TRANSIENT_SECONDS`].
    Taken,
}

/// Follows the level of a load. A peak above Th2 leaves the level unchanged until it has lasted
/// [`TRANSIENT_SECONDS`].
#[derive(Clone, Debug)]
struct LoadLevel {
    thresholds: Thresholds,
    level: Level,
    /// When the load rose above Th2, Unix seconds; `None` while it is not above.
    above_since: Option<u64>,
}

impl LoadLevel {
    const fn new(thresholds: Thresholds) -> Self {
        Self {
            thresholds,
            level: Level::Light,
            above_since: None,
        }
    }

    fn observe(&mut self, share: f64, interval: &Range<u64>) -> Level {
        if share > self.thresholds.second {
            let since = *self.above_since.get_or_insert(interval.start);
            if interval.end.saturating_sub(since) >= TRANSIENT_SECONDS {
                self.level = Level::Taken;
            }
        } else {
            self.above_since = None;
            // A share that is not a number must not count as light.
            let light = share < self.thresholds.first;
            self.level = if light { Level::Light } else { Level::Heavy };
        }
        self.level
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn states(loads: &[f64], seconds: u64) -> Vec<AvailabilityState> {
        let mut classifier = HostClassifier::new(Thresholds::LINUX, 100);
        let reading = |(i, &owner_cpu): (usize, &f64)| {
            let start = i as u64 * seconds;
            HostReading {
                interval: start..start + seconds,
                owner_cpu,
                free_memory_bytes: 1000,
                swapping: false,
            }
        };
        loads
            .iter()
            .enumerate()
            .map(|x| classifier.observe(&reading(x)))
            .collect()
    }

    #[test]
    fn thresholds_separate_idle_from_busy() {
        use AvailabilityState::{Busy, Idle};
        assert_eq!(
            states(&[0.0, 0.19, 0.2, 0.6, 0.1], 6),
            [Idle, Idle, Busy, Busy, Idle]
        );
    }

    #[test]
    fn a_peak_shorter_than_a_minute_leaves_the_state() {
        let mut loads = vec![0.1];
        loads.extend([0.9; 9]);
        loads.push(0.1);
        assert!(
            states(&loads, 6)
                .iter()
                .all(|&s| s == AvailabilityState::Idle)
        );
        loads[0] = 0.4;
        assert!(
            states(&loads[..10], 6)
                .iter()
                .all(|&s| s == AvailabilityState::Busy)
        );
    }

    #[test]
    fn a_minute_above_the_second_threshold_takes_the_cpu() {
        let states = states(&[0.9; 12], 6);
        assert_eq!(states[8], AvailabilityState::Idle);
        assert_eq!(states[9], AvailabilityState::CpuTaken);
    }

    #[test]
    fn a_mean_over_five_minutes_is_no_transient_peak() {
        assert_eq!(states(&[0.9], 300), [AvailabilityState::CpuTaken]);
    }

    #[test]
    fn too_little_memory_for_a_guest_is_thrashing() {
        let mut classifier = HostClassifier::new(Thresholds::LINUX, 100);
        let mut reading = HostReading {
            interval: 0..6,
            owner_cpu: 0.0,
            free_memory_bytes: 99,
            swapping: false,
        };
        assert_eq!(classifier.observe(&reading), AvailabilityState::Thrashing);
        reading.free_memory_bytes = 100;
        assert_eq!(classifier.observe(&reading), AvailabilityState::Idle);
        reading.swapping = true;
        assert_eq!(classifier.observe(&reading), AvailabilityState::Thrashing);
    }

    #[test]
    fn a_full_disk_takes_no_shards_and_is_still_readable() {
        let mut classifier = DiskClassifier::new(Thresholds::LINUX, 10);
        let reading = DiskReading {
            interval: 0..60,
            owner_busy: 0.9,
            room_bytes: 9,
        };
        assert_eq!(classifier.observe(&reading), StorageState::NoSpace);
        let reading = DiskReading {
            room_bytes: 10,
            ..reading
        };
        assert_eq!(classifier.observe(&reading), StorageState::Contended);
        assert!(StorageState::NoSpace.is_readable() && StorageState::NoSpace.is_failure());
    }

    #[test]
    fn silence_longer_than_allowed_means_gone() {
        assert_eq!(silence(100, 118, 18), None);
        assert_eq!(silence(100, 119, 18), Some(100..119));
        assert_eq!(silence(100, 50, 18), None);
    }

    #[test]
    fn indices_follow_the_order_of_all() {
        for (i, state) in AvailabilityState::ALL.iter().enumerate() {
            assert_eq!(state.index(), i);
        }
        for (i, state) in StorageState::ALL.iter().enumerate() {
            assert_eq!(state.index(), i);
        }
    }

    #[test]
    fn thresholds_out_of_order_are_refused() {
        assert!(Thresholds::new(0.6, 0.2).is_err());
        assert!(Thresholds::new(f64::NAN, 0.2).is_err());
        assert!(Thresholds::new(0.0, 0.2).is_err());
        assert_eq!(Thresholds::new(0.2, 0.6), Ok(Thresholds::LINUX));
    }

    proptest! {
        #[test]
        fn any_readings_give_states(
            readings in prop::collection::vec((any::<f64>(), any::<u64>(), any::<u64>()), 0..50),
        ) {
            let mut classifier = HostClassifier::new(Thresholds::LINUX, 100);
            for (owner_cpu, start, end) in readings {
                let interval = start..end;
                let free_memory_bytes = 200;
                let reading =
                    HostReading { interval, owner_cpu, free_memory_bytes, swapping: false };
                classifier.observe(&reading);
            }
        }
    }
}
