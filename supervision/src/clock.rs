//! Seconds and milliseconds. The clock of a supervisor also counts the time that the machine sleeps.

pub use placement::clock::Millis;

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
