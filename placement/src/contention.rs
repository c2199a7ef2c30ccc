//! What a running guest takes from the owner: a load on some cores, and memory.

/// The owner's load on the cores that a guest takes, 0 to 1, to which
/// [`Thresholds`](crate::state::Thresholds) apply: `(load * cores - (cores - taken)) / taken`, at least 0.
///
/// `load` is the owner's share of all `cores`, 0 to 1; the guest uses `taken` cores. The owner is assumed to
/// fill the other cores first, so the result is 0 as long as they suffice.
#[must_use]
pub fn contended_load(load: f64, cores: f64, taken: f64) -> f64 {
    let cores = cores.max(1.0);
    // If `taken` is zero or no number, the guest is assumed to want one core.
    let taken = if taken > 0.0 { taken.min(cores) } else { 1.0 };
    let contended = (load * cores - (cores - taken)) / taken;
    // A load that is not a number must not count as light.
    if contended.is_nan() {
        1.0
    } else {
        contended.clamp(0.0, 1.0)
    }
}

/// Memory that guests could have, bytes: what is available, and what they use already.
#[must_use]
pub const fn free_for_guests(available_bytes: u64, guest_bytes: u64) -> u64 {
    available_bytes.saturating_add(guest_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_owner_s_load_counts_on_the_cores_that_the_guest_takes() {
        // Load, cores, cores taken, contended load; computed independently.
        let vectors = [
            (0.5, 1.0, 1.0, 0.5),
            (0.5, 4.0, 1.0, 0.0),
            (0.8, 4.0, 1.0, 0.2),
            (0.8, 4.0, 2.0, 0.6),
            (0.5, 4.0, 4.0, 0.5),
            (0.97, 16.0, 2.0, 0.76),
        ];
        for (load, cores, taken, expected) in vectors {
            let found = contended_load(load, cores, taken);
            assert!(
                (found - expected).abs() < 1e-12,
                "{load} {cores} {taken}: {found}"
            );
        }
    }

    #[test]
    fn a_guest_s_own_memory_is_free_for_it() {
        assert_eq!(free_for_guests(100, 400), 500);
        assert_eq!(free_for_guests(u64::MAX, 1), u64::MAX);
    }

    proptest! {
        #[test]
        fn any_numbers_give_a_share(load in any::<f64>(), cores in any::<f64>(), taken in any::<f64>()) {
            prop_assert!((0.0..=1.0).contains(&contended_load(load, cores, taken)));
        }
    }
}
