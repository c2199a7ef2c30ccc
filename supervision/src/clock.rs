//! Time as the supervisor counts it.

/// Milliseconds since some fixed moment, of a clock that goes on while the machine sleeps and never
/// goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// This moment and `ms` milliseconds more.
    #[must_use]
    pub const fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// This moment less `ms` milliseconds; the beginning of the clock at the earliest.
    #[must_use]
    pub const fn minus(self, ms: u64) -> Self {
        Self(self.0.saturating_sub(ms))
    }

    /// Milliseconds since `earlier`; zero when that is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Seconds of some milliseconds.
pub(crate) const fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

/// Milliseconds of some seconds, to the nearest; what is no number of seconds from now on is none.
pub(crate) fn millis(seconds: f64) -> u64 {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "a conversion from f64 keeps to the range of the target"
    )]
    let ms = (seconds * 1000.0).round() as u64;
    ms
}
