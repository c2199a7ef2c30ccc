//! Time as pure logic counts it.

use std::time::Duration;

/// Milliseconds since a fixed moment, which the caller chooses, on a clock that never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// The moment `ms` milliseconds later.
    #[must_use]
    pub const fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// The moment `duration` later.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        self.plus(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    /// The moment `ms` milliseconds earlier, but not before the beginning of the clock.
    #[must_use]
    pub const fn minus(self, ms: u64) -> Self {
        Self(self.0.saturating_sub(ms))
    }

    /// Milliseconds from `earlier` to this moment; 0 if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
