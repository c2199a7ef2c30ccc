//! Random draws that depend on their purpose, not on the order in which they are made. So two
//! schemes in the same grid meet the same links, the same compute hosts and the same noise.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The purpose of a draw; draws of different purposes are independent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    Access,
    Path,
    Lan,
    RoundTrip,
    Probe,
    Noise,
    Wipe,
    Breaks,
    Compute,
    Tie,
    Server,
    Begin,
    Save,
}

/// A generator for one draw, which is named by its purpose and three numbers (`keys`).
pub(crate) fn draws(seed: u64, purpose: Purpose, keys: [u64; 3]) -> SmallRng {
    let mut state = mix(seed ^ mix(purpose as u64 + 1));
    for key in keys {
        state = mix(state ^ mix(key.wrapping_add(0x51_7c_c1_b7_27_22_0a_95)));
    }
    SmallRng::seed_from_u64(state)
}

/// Finaliser of SplitMix64.
const fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A number of the standard normal distribution (Box and Muller).
pub(crate) fn normal(rng: &mut SmallRng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()
}

/// A lognormal number with this median and this standard deviation of the natural logarithm.
pub(crate) fn lognormal(rng: &mut SmallRng, median: f64, spread: f64) -> f64 {
    median * (spread * normal(rng)).exp()
}

/// An exponential number with this mean.
pub(crate) fn exponential(rng: &mut SmallRng, mean: f64) -> f64 {
    -mean * (1.0 - rng.random::<f64>()).ln()
}

/// A number of the Weibull distribution with this shape and scale.
pub(crate) fn weibull(rng: &mut SmallRng, shape: f64, scale: f64) -> f64 {
    scale * (-(1.0 - rng.random::<f64>()).ln()).powf(1.0 / shape)
}
