//! The speed of a processor of this machine, relative to a fixed reference.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Steps of one run, which takes about a millisecond: so some runs are not interrupted on a busy machine.
const STEPS: u32 = 200_000;

/// Number of runs, of which the fastest counts.
const TRIES: u32 = 24;

/// Time of one run on a processor of speed 1: five nanoseconds for each step, about the time of a server of
/// the 2020s. The number is arbitrary but must never change: speeds in histories and announcements are
/// relative to it.
const REFERENCE: Duration = Duration::from_nanos(1_000_000);

/// Words of the table that is read: 32 KiB, which fit into the innermost cache.
const TABLE_WORDS: usize = 4096;

/// Measures the speed of one processor of this machine; 1 is the speed of the reference. The measurement
/// takes some 30 ms. Other work on the machine does not change the result, unless it leaves no processor free
/// for a millisecond in all that time.
#[must_use]
pub fn measure() -> f64 {
    let table: Vec<u64> = (0..TABLE_WORDS as u64)
        .map(|word| word.wrapping_mul(0x9E37_79B9_7F4A_7C15))
        .collect();
    let tries = (0..TRIES).map(|seed| {
        let began = Instant::now();
        black_box(work(u64::from(seed), &table));
        began.elapsed()
    });
    let best = tries
        .min()
        .unwrap_or(REFERENCE)
        .max(Duration::from_nanos(1));
    REFERENCE.as_secs_f64() / best.as_secs_f64()
}

/// One run: steps of integer arithmetic, floating-point arithmetic and a table look-up, each of which depends
/// on the one before.
#[inline(never)]
fn work(seed: u64, table: &[u64]) -> f64 {
    let mut word = seed | 1;
    let mut fraction = 0.5_f64;
    for _ in 0..STEPS {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        let place = word as usize % TABLE_WORDS;
        let found = table.get(place).copied().unwrap_or_default();
        fraction = fraction * 0.999 + (found >> 40) as f64 * 1e-9;
    }
    fraction + (word >> 63) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_measurements_of_one_machine_agree() {
        let one = measure();
        let other = measure();
        assert!(one > 0.01 && one < 100.0, "{one}");
        assert!(one / other < 3.0 && other / one < 3.0, "{one} {other}");
    }
}
