//! The owner's load as a guest meets it.

/// Load of the owner on the cores that a guest takes, 0 to 1; the thresholds apply to this number. The
/// machine has `cores` cores, the owner's processes keep the share `load` of all of them busy, and the
/// guest uses `guest_cores`. The owner's load fills the other cores first, where it does not disturb the
/// guest. With no core or an unknown load the result is 1.
#[must_use]
pub fn contended(load: f64, cores: f64, guest_cores: f64) -> f64 {
    // NaN fails each of these comparisons.
    let known = load.is_finite() && cores > 0.0 && guest_cores > 0.0;
    if !known {
        return 1.0;
    }
    let guest_cores = guest_cores.min(cores);
    ((load * cores - (cores - guest_cores)) / guest_cores).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_load_on_the_guest_s_cores_counts() {
        for (load, cores, guest, expected) in [
            (0.5, 1.0, 1.0, 0.5),
            (0.5, 4.0, 1.0, 0.0),
            (0.8, 4.0, 1.0, 0.2),
            (0.8, 4.0, 2.0, 0.6),
            (0.5, 4.0, 4.0, 0.5),
            (0.97, 16.0, 2.0, 0.76),
        ] {
            let found = contended(load, cores, guest);
            assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        }
        assert_eq!(contended(f64::NAN, 4.0, 1.0), 1.0);
        assert_eq!(contended(0.1, 0.0, 1.0), 1.0);
        assert_eq!(contended(0.3, 2.0, 5.0), 0.3);
    }
}
