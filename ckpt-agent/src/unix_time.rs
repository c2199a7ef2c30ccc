//! The time of day of this machine. A clock that is set before 1970 gives 0.

use std::time::{SystemTime, UNIX_EPOCH};

/// This machine's clock, seconds since 1970.
pub fn unix_seconds() -> u64 {
    unix_millis() / 1000
}

/// This machine's clock, milliseconds since 1970.
pub fn unix_millis() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}
