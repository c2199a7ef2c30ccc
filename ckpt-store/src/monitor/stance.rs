//! Whether the owner of the machine can spare it now.

use placement::state::{AvailabilityState, StorageState};
use protocol::wire::Withheld;

use super::history::States;
use super::preferences::MonitorSettings;

/// A host that stands back because of load may be asked again after this many seconds. It is the time
/// that load has to last before it counts.
const LOAD_RETRY_SECONDS: u32 = 60;

/// The same for a host that stands back because it runs on its battery.
const BATTERY_RETRY_SECONDS: u32 = 300;

/// What the host does for others now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stance {
    /// The host does everything that is asked of it.
    Open,
    /// The host takes no new shards, and reads are slow.
    StandBack(Reason),
    /// The host only answers that it is closed.
    Closed(Reason),
}

/// Why a host does not do everything that is asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// What keeps the host from it.
    pub what: Withheld,
    /// Seconds after which the host may be asked again.
    pub retry_after_s: u32,
}

impl Stance {
    /// Why the host does not do everything that is asked of it, and for how long. `None` if it does.
    #[must_use]
    pub const fn reason(self) -> Option<Reason> {
        match self {
            Self::Open => None,
            Self::StandBack(reason) | Self::Closed(reason) => Some(reason),
        }
    }

    /// Why the host does not do everything that is asked of it. `None` if it does.
    #[must_use]
    pub const fn what(self) -> Option<Withheld> {
        match self.reason() {
            None => None,
            Some(reason) => Some(reason.what),
        }
    }

    /// Seconds for which new shards are refused; 0 if they are not refused.
    #[must_use]
    pub const fn refuses_for_s(self) -> u32 {
        match self {
            Self::Open => 0,
            Self::StandBack(reason) | Self::Closed(reason) => reason.retry_after_s,
        }
    }
}

/// What the monitor knows of the daemon's stance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StanceReport {
    /// What the host does for others.
    pub stance: Stance,
    /// Since when the stance has been the same, in Unix seconds.
    pub since: u64,
    /// When the stance will be open again, in Unix seconds, if that is known.
    pub until: Option<u64>,
    /// A program that is running and during which the owner wants the machine alone.
    pub program: Option<String>,
    /// Why the present preferences are not in force.
    pub preferences_error: Option<String>,
}

/// What counts besides the states of the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Circumstances {
    /// Hour of the day, local time, 0 to 24.
    pub hour: f64,
    /// Whether the machine runs on its battery.
    pub on_battery: bool,
    /// Whether a program runs during which the owner wants the machine alone.
    pub is_wanted_alone: bool,
    /// The owner's orders, which count whatever the machine does.
    pub orders: OwnerOrders,
}

/// What follows now from the owner's orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerOrders {
    /// Seconds until the host may be asked whether the owner's pause is over; `None` if there is no
    /// pause.
    pub paused_for: Option<u32>,
    /// Seconds until the owner's limit on transfers allows more bytes; 0 if it allows more now.
    pub transfers_in: u32,
}

/// The stance that the owner's orders demand. `None` if they demand none.
#[must_use]
pub fn stance_of(orders: OwnerOrders) -> Option<Stance> {
    let reason = |what, retry_after_s| Reason {
        what,
        retry_after_s,
    };
    if orders.transfers_in > 0 {
        return Some(Stance::Closed(reason(
            Withheld::Transfers,
            orders.transfers_in,
        )));
    }
    let paused_for = orders.paused_for?;
    Some(Stance::StandBack(reason(
        Withheld::Paused,
        paused_for.max(1),
    )))
}

/// The stance of the host in these states and circumstances.
#[must_use]
pub fn stance(states: States, circumstances: Circumstances, settings: &MonitorSettings) -> Stance {
    let reason = |what, retry_after_s| Reason {
        what,
        retry_after_s,
    };
    if let Some(stance @ Stance::Closed(_)) = stance_of(circumstances.orders) {
        return stance;
    }
    let closed_for = settings.net_hours.seconds_until(circumstances.hour);
    if closed_for > 0 {
        return Stance::Closed(reason(Withheld::NetworkHours, closed_for));
    }
    if let Some(stance) = stance_of(circumstances.orders) {
        return stance;
    }
    let refused_for = settings.hours.seconds_until(circumstances.hour);
    if refused_for > 0 {
        return Stance::StandBack(reason(Withheld::Hours, refused_for));
    }
    if circumstances.is_wanted_alone {
        return Stance::StandBack(reason(Withheld::Program, LOAD_RETRY_SECONDS));
    }
    if circumstances.on_battery && !settings.run_on_batteries {
        return Stance::StandBack(reason(Withheld::Battery, BATTERY_RETRY_SECONDS));
    }
    match (states.guest, states.storage) {
        (AvailabilityState::CpuTaken, _) => {
            Stance::StandBack(reason(Withheld::Cpu, LOAD_RETRY_SECONDS))
        }
        (AvailabilityState::Thrashing, _) => {
            Stance::StandBack(reason(Withheld::Memory, LOAD_RETRY_SECONDS))
        }
        (_, StorageState::Contended) => {
            Stance::StandBack(reason(Withheld::Disk, LOAD_RETRY_SECONDS))
        }
        // The store checks whether the disk is full: what replaces an old version may still fit.
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
        is_wanted_alone: false,
        orders: OwnerOrders {
            paused_for: None,
            transfers_in: 0,
        },
    };

    fn settings() -> MonitorSettings {
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
    fn the_owners_preferences_come_before_the_machines_state() {
        let calm = states(AvailabilityState::Idle, StorageState::FullRate);
        let at = |orders, is_wanted_alone| {
            let circumstances = Circumstances {
                orders,
                is_wanted_alone,
                ..NOON
            };
            stance(calm, circumstances, &settings())
        };
        let pause = OwnerOrders {
            paused_for: Some(90),
            transfers_in: 0,
        };
        let paused = at(pause, true);
        assert!(matches!(
            paused,
            Stance::StandBack(Reason {
                what: Withheld::Paused,
                ..
            })
        ));
        assert_eq!(paused.refuses_for_s(), 90);
        let moved_enough = OwnerOrders {
            transfers_in: 70,
            ..pause
        };
        let closed = at(moved_enough, false);
        assert!(matches!(
            closed,
            Stance::Closed(Reason {
                what: Withheld::Transfers,
                ..
            })
        ));
        assert_eq!(closed.refuses_for_s(), 70);
        let alone = at(OwnerOrders::default(), true);
        assert!(matches!(
            alone,
            Stance::StandBack(Reason {
                what: Withheld::Program,
                ..
            })
        ));
        assert_eq!(stance_of(OwnerOrders::default()), None);
    }

    #[test]
    fn the_owners_hours_and_battery_are_kept() {
        let calm = states(AvailabilityState::Idle, StorageState::FullRate);
        let night = MonitorSettings {
            hours: Hours::Between(18.0, 8.0),
            ..settings()
        };
        assert_eq!(stance(calm, NOON, &night).refuses_for_s(), 6 * 3600);
        let closed = MonitorSettings {
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
        let allowed = MonitorSettings {
            run_on_batteries: true,
            ..settings()
        };
        assert_eq!(stance(calm, battery, &allowed), Stance::Open);
    }
}
