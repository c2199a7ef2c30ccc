//! Whether the owner of the machine can spare it now.

use placement::state::{AvailabilityState, StorageState};

use super::history::States;
use super::preferences::Settings;

/// Seconds after which a host that stands back for load may be asked again: the time that load has
/// to last before it counts.
const LOAD_RETRY_SECONDS: u32 = 60;

/// The same for a machine on its battery.
const BATTERY_RETRY_SECONDS: u32 = 300;

/// What the host does for others now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stance {
    /// All that it is asked.
    Open,
    /// No new shards, slow reads.
    StandBack(Reason),
    /// Nothing but saying so.
    Closed(Reason),
}

/// Why a host does not do all that it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// In words that fit after "the host stands back:".
    pub why: &'static str,
    /// Seconds after which it may be asked again.
    pub retry_after_s: u32,
}

impl Stance {
    /// Seconds for which new shards are refused; 0 when they are not.
    #[must_use]
    pub const fn refuses_for_s(self) -> u32 {
        match self {
            Self::Open => 0,
            Self::StandBack(reason) | Self::Closed(reason) => reason.retry_after_s,
        }
    }
}

/// What counts besides the states.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Circumstances {
    /// Hour of the day, local time, 0 to 24.
    pub hour: f64,
    /// Whether the machine runs on its battery.
    pub on_battery: bool,
}

/// What the host does in these states and circumstances.
#[must_use]
pub fn stance(states: States, circumstances: Circumstances, settings: &Settings) -> Stance {
    let reason = |why, retry_after_s| Reason { why, retry_after_s };
    let closed_for = settings.net_hours.seconds_until(circumstances.hour);
    if closed_for > 0 {
        return Stance::Closed(reason(
            "its owner allows no network at this hour",
            closed_for,
        ));
    }
    let refused_for = settings.hours.seconds_until(circumstances.hour);
    if refused_for > 0 {
        let why = "its owner allows no new shards at this hour";
        return Stance::StandBack(reason(why, refused_for));
    }
    if circumstances.on_battery && !settings.run_on_batteries {
        return Stance::StandBack(reason("it runs on its battery", BATTERY_RETRY_SECONDS));
    }
    match (states.guest, states.storage) {
        (AvailabilityState::CpuTaken, _) => {
            Stance::StandBack(reason("its owner needs the CPU", LOAD_RETRY_SECONDS))
        }
        (AvailabilityState::Thrashing, _) => {
            Stance::StandBack(reason("its owner needs the memory", LOAD_RETRY_SECONDS))
        }
        (_, StorageState::Contended) => {
            Stance::StandBack(reason("its owner needs the disk", LOAD_RETRY_SECONDS))
        }
        // A full disk is the store's affair: what replaces an old version may still fit.
        _ => Stance::Open,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::preferences::{self, Hours};

    const NOON: Circumstances = Circumstances {
        hour: 12.0,
        on_battery: false,
    };

    fn settings() -> Settings {
        preferences::load(std::path::Path::new("/nowhere")).unwrap()
    }

    fn states(guest: AvailabilityState, storage: StorageState) -> States {
        States { guest, storage }
    }

    #[test]
    fn the_owners_load_comes_first() {
        use AvailabilityState::{Busy, CpuTaken, Idle, Thrashing};
        use StorageState::{Contended, FullRate, Limited, NoSpace};
        let at = |guest, storage| stance(states(guest, storage), NOON, &settings());
        for open in [at(Idle, FullRate), at(Busy, Limited), at(Idle, NoSpace)] {
            assert_eq!(open, Stance::Open);
        }
        for back in [
            at(CpuTaken, FullRate),
            at(Thrashing, FullRate),
            at(Idle, Contended),
        ] {
            assert!(matches!(back, Stance::StandBack(_)), "{back:?}");
            assert_eq!(back.refuses_for_s(), 60);
        }
    }

    #[test]
    fn the_owners_hours_and_battery_are_kept() {
        let calm = states(AvailabilityState::Idle, StorageState::FullRate);
        let night = Settings {
            hours: Hours::Between(18.0, 8.0),
            ..settings()
        };
        assert_eq!(stance(calm, NOON, &night).refuses_for_s(), 6 * 3600);
        let closed = Settings {
            net_hours: Hours::Between(13.0, 14.0),
            ..settings()
        };
        assert!(matches!(
            stance(calm, NOON, &closed),
            Stance::Closed(Reason {
                retry_after_s: 3600,
                ..
            })
        ));
        let battery = Circumstances {
            on_battery: true,
            ..NOON
        };
        assert!(matches!(
            stance(calm, battery, &settings()),
            Stance::StandBack(_)
        ));
        let allowed = Settings {
            run_on_batteries: true,
            ..settings()
        };
        assert_eq!(stance(calm, battery, &allowed), Stance::Open);
    }
}
