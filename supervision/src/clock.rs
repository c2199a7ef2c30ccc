//! Time as the supervisor counts it.

/// Milliseconds since a fixed moment, which the caller chooses, on a clock that never goes back. The clock of
/// a supervisor also counts the time that the machine sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// The moment `ms` milliseconds later.
    #[must_use]
    pub const fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
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

/// Milliseconds as seconds.
pub(crate) const fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

/// Seconds as milliseconds, rounded. NaN and negative numbers give 0; what is too large gives `u64::MAX`.
pub(crate) fn millis(seconds: f64) -> u64 {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "a conversion from f64 keeps to the range of the target"
    )]
    let ms = (seconds * 1000.0).round() as u64;
    ms
}
