//! Counts of the system since it started, and the loads that follow from the difference of two readings.

use std::ops::Range;

use placement::contention::free_for_guests;
use placement::state::{DiskReading, HostReading};

/// A machine counts as thrashing if more than this many pages of 4 KiB are moved to or from swap per second:
/// 1 MiB/s.
const SWAPPING_PAGES_PER_SECOND: f64 = 256.0;

/// A reading: counts of the system and of some processes since a fixed moment, and memory at present. Ticks
/// are clock ticks, summed over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Ticks in which a CPU ran any process.
    pub busy_ticks: u64,
    /// All ticks, busy or not.
    pub all_ticks: u64,
    /// Number of CPUs that are on.
    pub cpus: usize,
    /// Busy ticks of this process.
    pub own_ticks: u64,
    /// Busy ticks of guests, their children that have ended included.
    pub guest_ticks: u64,
    /// Pages moved to and from swap.
    pub swapped_pages: u64,
    /// Memory that a new process could have at present, bytes.
    pub available_memory_bytes: u64,
    /// Memory of guests at present, bytes: it would be available without them.
    pub guest_memory_bytes: u64,
    /// The disk that holds the shards; `None` if the system has no counts of it.
    pub disk: Option<DiskCounters>,
}

/// Counts of one disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounters {
    /// Milliseconds in which the disk was busy.
    pub busy_ms: u64,
    /// Bytes moved to and from the disk.
    pub bytes: u64,
    /// Bytes moved for this process and for guests, as far as they are known.
    pub foreign_bytes: u64,
}

/// CPU time used, as shares of the time of all CPUs, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Share used by all processes.
    pub all: f64,
    /// Share used by guests.
    pub guests: f64,
    /// Share used by the owner: by neither guests nor this process.
    pub owner: f64,
}

impl Counters {
    /// The CPU load between the reading `earlier` and this one.
    #[must_use]
    pub fn load_since(&self, earlier: &Self) -> Load {
        let all = since(self.all_ticks, earlier.all_ticks);
        let busy = since(self.busy_ticks, earlier.busy_ticks);
        let guests = since(self.guest_ticks, earlier.guest_ticks);
        let foreign = guests + since(self.own_ticks, earlier.own_ticks);
        Load {
            all: share(busy, all),
            guests: share(guests.min(busy), all),
            owner: share((busy - foreign).max(0.0), all),
        }
    }

    /// The owner's CPU load since the reading `earlier`, and the memory at present. `interval` is the time
    /// between both readings, Unix seconds.
    #[must_use]
    pub fn host_since(&self, earlier: &Self, interval: Range<u64>) -> HostReading {
        let seconds = interval.end.saturating_sub(interval.start).max(1) as f64;
        let swapped = since(self.swapped_pages, earlier.swapped_pages);
        HostReading {
            interval,
            owner_cpu: self.load_since(earlier).owner,
            free_memory_bytes: free_for_guests(
                self.available_memory_bytes,
                self.guest_memory_bytes,
            ),
            swapping: swapped / seconds > SWAPPING_PAGES_PER_SECOND,
        }
    }

    /// The owner's use of the disk since the reading `earlier`, `elapsed_ms` before. The system does not
    /// report for whom a disk was busy, so the busy time is divided in proportion to the bytes. A disk
    /// without counts is taken for idle.
    #[must_use]
    pub fn disk_since(
        &self,
        earlier: &Self,
        interval: Range<u64>,
        elapsed_ms: f64,
        room_bytes: u64,
    ) -> DiskReading {
        let owner_busy = match (&self.disk, &earlier.disk) {
            (Some(now), Some(before)) => {
                let busy = share(since(now.busy_ms, before.busy_ms), elapsed_ms);
                let bytes = since(now.bytes, before.bytes);
                busy * (1.0 - share(since(now.foreign_bytes, before.foreign_bytes), bytes))
            }
            _ => 0.0,
        };
        DiskReading {
            interval,
            owner_busy,
            room_bytes,
        }
    }
}

/// The increase of a counter; 0 if it went backwards.
fn since(now: u64, before: u64) -> f64 {
    now.saturating_sub(before) as f64
}

/// `part / whole` from 0 to 1; 0 if `whole` is 0.
fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 {
        (part / whole).clamp(0.0, 1.0)
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BEFORE: Counters = Counters {
        busy_ticks: 1000,
        all_ticks: 10_000,
        cpus: 2,
        own_ticks: 300,
        guest_ticks: 200,
        swapped_pages: 0,
        available_memory_bytes: 7,
        guest_memory_bytes: 0,
        disk: Some(DiskCounters {
            busy_ms: 100,
            bytes: 1 << 20,
            foreign_bytes: 0,
        }),
    };

    #[test]
    fn the_use_of_the_daemon_and_of_guests_is_not_the_owners_load() {
        let now = Counters {
            busy_ticks: 1900,
            all_ticks: 11_200,
            own_ticks: 350,
            guest_ticks: 450,
            available_memory_bytes: 9,
            guest_memory_bytes: 20,
            ..BEFORE
        };
        let reading = now.host_since(&BEFORE, 100..106);
        assert!((reading.owner_cpu - 0.5).abs() < 1e-12, "{reading:?}");
        assert_eq!(reading.free_memory_bytes, 29);
        let load = now.load_since(&BEFORE);
        assert_eq!(
            (load.all, load.guests, load.owner),
            (0.75, 250.0 / 1200.0, 0.5)
        );
        assert!(!reading.swapping);
    }

    #[test]
    fn the_disk_is_busy_for_the_owner_as_far_as_the_bytes_are_his() {
        let disk = DiskCounters {
            busy_ms: 3100,
            bytes: 5 << 20,
            foreign_bytes: 3 << 20,
        };
        let now = Counters {
            disk: Some(disk),
            ..BEFORE
        };
        let reading = now.disk_since(&BEFORE, 100..106, 6000.0, 55);
        assert!((reading.owner_busy - 0.125).abs() < 1e-12, "{reading:?}");
        assert_eq!(reading.room_bytes, 55);
        let none = Counters { disk: None, ..now };
        assert_eq!(none.disk_since(&BEFORE, 0..6, 6000.0, 1).owner_busy, 0.0);
    }

    #[test]
    fn more_than_a_mebibyte_of_swap_a_second_is_swapping() {
        let pages = |swapped_pages| Counters {
            swapped_pages,
            ..BEFORE
        };
        assert!(!pages(1536).host_since(&BEFORE, 0..6).swapping);
        assert!(pages(1537).host_since(&BEFORE, 0..6).swapping);
    }

    proptest! {
        #[test]
        fn any_counts_give_shares(a in any::<[u64; 10]>(), b in any::<[u64; 10]>()) {
            let counters = |x: [u64; 10]| Counters {
                busy_ticks: x[0],
                all_ticks: x[1],
                cpus: 1,
                own_ticks: x[2],
                guest_ticks: x[8],
                swapped_pages: x[3],
                available_memory_bytes: x[4],
                guest_memory_bytes: x[9],
                disk: Some(DiskCounters { busy_ms: x[5], bytes: x[6], foreign_bytes: x[7] }),
            };
            let a = counters(a);
            let b = counters(b);
            let host = a.host_since(&b, 5..5);
            prop_assert!((0.0..=1.0).contains(&host.owner_cpu));
            let disk = a.disk_since(&b, 5..5, 0.5, 0);
            prop_assert!((0.0..=1.0).contains(&disk.owner_busy));
        }
    }
}
