//! Maximum-likelihood fits of the five distributions of the Grid'5000 study, and the distance of the data
//! from each fit (Kolmogorov and Smirnov).

use serde::Serialize;

use crate::sample::Sample;
use crate::special::{digamma, gamma_below, normal_below, trigamma};

/// A family of distributions of positive numbers; a normal distribution has negative ones, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// Parameters: mean, standard deviation.
    Normal,
    /// Parameters: mean and standard deviation of the natural logarithm.
    Lognormal,
    /// Parameter: mean.
    Exponential,
    /// Parameters: shape, scale.
    Weibull,
    /// Parameters: shape, scale.
    Gamma,
}

impl Family {
    /// All families, in the order of the study.
    pub const ALL: [Self; 5] = [
        Self::Normal,
        Self::Lognormal,
        Self::Exponential,
        Self::Weibull,
        Self::Gamma,
    ];

    /// The family's name in figures and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Lognormal => "lognormal",
            Self::Exponential => "exponential",
            Self::Weibull => "Weibull",
            Self::Gamma => "gamma",
        }
    }

    /// Names of the family's parameters.
    #[must_use]
    pub const fn parameters(self) -> &'static [&'static str] {
        match self {
            Self::Normal => &["mean", "sd"],
            Self::Lognormal => &["mu", "sigma"],
            Self::Exponential => &["mean"],
            Self::Weibull | Self::Gamma => &["shape", "scale"],
        }
    }
}

/// A distribution: a family with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distribution {
    /// The family of distributions.
    pub family: Family,
    /// First parameter.
    pub a: f64,
    /// Second parameter; zero where there is none.
    pub b: f64,
}

impl Distribution {
    /// Cumulative distribution function: the probability of a number below `x`.
    #[must_use]
    pub fn below(&self, x: f64) -> f64 {
        let Self { family, a, b } = *self;
        match family {
            Family::Normal => normal_below((x - a) / b),
            _ if x <= 0.0 => 0.0,
            Family::Lognormal => normal_below((x.ln() - a) / b),
            Family::Exponential => -(-x / a).exp_m1(),
            Family::Weibull => -(-(x / b).powf(a)).exp_m1(),
            Family::Gamma => gamma_below(a, x / b),
        }
    }

    /// The distribution of `family` under which the sample is most likely; `None` if the sample has fewer
    /// than two different values, or a value that is not positive.
    #[must_use]
    pub fn fit(family: Family, sample: &Sample) -> Option<Self> {
        let values = sample.values();
        if values.len() < 2 || values.first()?.0 <= 0.0 {
            return None;
        }
        let mean = sample.mean_of(|x| x);
        let (a, b) = match family {
            Family::Normal => {
                let variance = sample.mean_of(|x| (x - mean).powi(2));
                (mean, variance.sqrt())
            }
            Family::Lognormal => {
                let mu = sample.mean_of(f64::ln);
                let variance = sample.mean_of(|x| (x.ln() - mu).powi(2));
                (mu, variance.sqrt())
            }
            Family::Exponential => (mean, 0.0),
            Family::Weibull => weibull(sample)?,
            Family::Gamma => gamma(sample, mean),
        };
        let fitted = Self { family, a, b };
        (a.is_finite() && b.is_finite()).then_some(fitted)
    }

    /// Standard errors of the parameters of a fit to `count` values, from the curvature of the likelihood.
    /// The second is 0 for a family with one parameter.
    #[must_use]
    pub fn standard_errors(&self, count: u64) -> [f64; 2] {
        let Self { family, a, b } = *self;
        let root = (count.max(1) as f64).sqrt();
        let gamma = std::f64::consts::PI.powi(2) / 6.0;
        match family {
            Family::Normal | Family::Lognormal => [b / root, b / (root * 2.0f64.sqrt())],
            Family::Exponential => [a / root, 0.0],
            // The inverse of Fisher's information has 1 + (1 - Euler's constant)^2 6 / pi^2 = 1.1087 for the
            // scale, times (scale / shape)^2.
            Family::Weibull => {
                let euler = 0.577_215_664_901_532_9_f64;
                let of_scale = (1.0 + (1.0 - euler).powi(2) / gamma).sqrt();
                [a / (gamma.sqrt() * root), of_scale * b / (a * root)]
            }
            Family::Gamma => {
                let curvature = a * trigamma(a) - 1.0;
                let of_scale = b * (trigamma(a) / curvature).sqrt();
                [(a / curvature).sqrt() / root, of_scale / root]
            }
        }
    }

    /// Kolmogorov's and Smirnov's D: the largest distance of the sample's cumulative distribution from
    /// this one.
    #[must_use]
    pub fn distance(&self, sample: &Sample) -> f64 {
        let total = sample.count().max(1) as f64;
        let mut before = 0u64;
        let mut largest = 0.0f64;
        for (value, count) in sample.values() {
            let below = self.below(*value);
            largest = largest.max((below - before as f64 / total).abs());
            before += count;
            largest = largest.max((before as f64 / total - below).abs());
        }
        largest
    }
}

/// Most steps of a search; each is a bisection or a step of Newton's method.
const STEPS_MAX: usize = 200;

/// Shape k and scale of the Weibull fit. With the values x, the shape is the zero of the rising function
/// `SUM x^k ln x / SUM x^k - 1 / k - mean ln x`, found by Newton's method between brackets; the scale is
/// `(mean x^k)^(1/k)`.
fn weibull(sample: &Sample) -> Option<(f64, f64)> {
    // Divided by the largest value, powers of the values do not overflow.
    let largest = sample.values().last()?.0;
    let logs: Vec<(f64, f64)> = sample
        .values()
        .iter()
        .map(|(x, count)| ((x / largest).ln(), *count as f64))
        .collect();
    let total: f64 = logs.iter().map(|(_, count)| count).sum();
    let mean_log = logs.iter().map(|(y, count)| y * count).sum::<f64>() / total;
    let sums = |shape: f64| {
        let mut sums = [0.0; 3];
        for (y, count) in &logs {
            let power = (shape * y).exp() * count;
            for (sum, term) in sums.iter_mut().zip([power, power * y, power * y * y]) {
                *sum += term;
            }
        }
        sums
    };
    let mut low = 0.0f64;
    let mut high = f64::INFINITY;
    let mut shape = 1.0f64;
    for _ in 0..STEPS_MAX {
        let [s0, s1, s2] = sums(shape);
        let value = s1 / s0 - 1.0 / shape - mean_log;
        if value > 0.0 {
            high = high.min(shape);
        } else {
            low = low.max(shape);
        }
        let slope = s2 / s0 - (s1 / s0).powi(2) + 1.0 / (shape * shape);
        let newton = shape - value / slope;
        let middle = if high.is_finite() {
            0.5 * (low + high)
        } else {
            2.0 * shape
        };
        let next = if newton > low && newton < high {
            newton
        } else {
            middle
        };
        if (next - shape).abs() < 1e-12 * shape {
            break;
        }
        shape = next;
    }
    let scale = largest * (sums(shape)[0] / total).powf(1.0 / shape);
    Some((shape, scale))
}

/// Shape k and scale of the gamma fit: the zero of `ln k - digamma(k) - (ln mean x - mean ln x)` by Newton's
/// method from Minka's approximation, and `mean x / k`.
fn gamma(sample: &Sample, mean: f64) -> (f64, f64) {
    let gap = mean.ln() - sample.mean_of(f64::ln);
    let mut shape = (3.0 - gap + ((gap - 3.0).powi(2) + 24.0 * gap).sqrt()) / (12.0 * gap);
    for _ in 0..STEPS_MAX {
        let value = shape.ln() - digamma(shape) - gap;
        let next = shape - value / (1.0 / shape - trigamma(shape));
        let next = if next > 0.0 { next } else { 0.5 * shape };
        if (next - shape).abs() < 1e-12 * shape {
            break;
        }
        shape = next;
    }
    (shape, mean / shape)
}

/// Fits the sizes of groups: whole numbers that were rounded from x, where log2 x has a Weibull distribution
/// and x below 1 counts as 1. Returns the most likely distribution of log2 x and the standard errors of its
/// parameters; `None` with fewer than three different sizes.
///
/// A plain fit to the logarithms can't use the sizes of 1, whose logarithm is zero.
#[must_use]
pub fn fit_rounded_weibull(sizes: &Sample) -> Option<(Distribution, [f64; 2])> {
    if sizes.values().len() < 3 || sizes.values().first()?.0 < 1.0 {
        return None;
    }
    let of = |at: [f64; 2]| Distribution {
        family: Family::Weibull,
        a: at[0].exp(),
        b: at[1].exp(),
    };
    let cost = |at: [f64; 2]| {
        let distribution = of(at);
        let above = |x: f64| {
            if x < 1.0 {
                0.0
            } else {
                distribution.below(x.log2())
            }
        };
        let terms = sizes.values().iter().map(|(size, count)| {
            let low = if *size < 1.5 { 0.0 } else { above(size - 0.5) };
            let share = (above(size + 0.5) - low).max(f64::MIN_POSITIVE);
            -share.ln() * *count as f64
        });
        terms.sum::<f64>()
    };
    let best = descend([0.0, 1.0], cost);
    let errors = errors_at(best, cost);
    let fitted = of(best);
    Some((fitted, [errors[0] * fitted.a, errors[1] * fitted.b]))
}

/// The lowest point of a smooth function of two numbers, by pattern search (Hooke and Jeeves): ever smaller
/// steps along the axes and along the last direction that helped.
fn descend(mut at: [f64; 2], cost: impl Fn([f64; 2]) -> f64) -> [f64; 2] {
    let mut best = cost(at);
    let mut step = 0.5;
    while step > 1e-9 {
        let before = at;
        for axis in 0..2 {
            for sign in [1.0, -1.0] {
                let mut tried = at;
                if let Some(value) = tried.get_mut(axis) {
                    *value += sign * step;
                }
                let value = cost(tried);
                if value < best {
                    (at, best) = (tried, value);
                    break;
                }
            }
        }
        let further = [2.0 * at[0] - before[0], 2.0 * at[1] - before[1]];
        let value = cost(further);
        if value < best {
            (at, best) = (further, value);
        } else if at == before {
            step *= 0.5;
        }
    }
    at
}

/// Standard errors at the lowest point of a negative log likelihood: square roots of the diagonal of the
/// inverse of its second derivatives, which are taken as differences.
fn errors_at(at: [f64; 2], cost: impl Fn([f64; 2]) -> f64) -> [f64; 2] {
    const STEP: f64 = 1e-3;
    let moved = |x: f64, y: f64| cost([at[0] + x * STEP, at[1] + y * STEP]);
    let here = moved(0.0, 0.0);
    let square = STEP * STEP;
    let xx = (moved(1.0, 0.0) - 2.0 * here + moved(-1.0, 0.0)) / square;
    let yy = (moved(0.0, 1.0) - 2.0 * here + moved(0.0, -1.0)) / square;
    let corners = moved(1.0, 1.0) - moved(1.0, -1.0) - moved(-1.0, 1.0) + moved(-1.0, -1.0);
    let xy = corners / (4.0 * square);
    let determinant = xx * yy - xy * xy;
    [(yy / determinant).sqrt(), (xx / determinant).sqrt()]
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// The test vector of the specification: eight lengths in seconds.
    fn lengths() -> Sample {
        let seconds = [604, 1207, 2817, 3600, 9000, 600, 15000, 1800];
        Sample::of_seconds(seconds.to_vec())
    }

    fn check(family: Family, sample: &Sample, a: f64, b: f64, distance: f64) {
        let fitted = Distribution::fit(family, sample).unwrap();
        let near = |x: f64, y: f64| (x - y).abs() <= 1e-5 * y.abs().max(1.0);
        assert!(near(fitted.a, a) && near(fitted.b, b), "{fitted:?}");
        let found = fitted.distance(sample);
        assert!((found - distance).abs() < 1e-5, "{found}");
    }

    #[test]
    fn fits_are_those_of_the_test_vectors() {
        let log2 = lengths().above(1.0, f64::log2);
        check(Family::Weibull, &log2, 7.66526, 11.92880, 0.14518);
        check(Family::Weibull, &lengths(), 0.94239, 4200.13, 0.17115);
        check(Family::Lognormal, &lengths(), 7.78061, 1.09976, 0.14474);
        check(Family::Exponential, &lengths(), 4328.5, 0.0, 0.18531);
    }

    #[test]
    fn a_fit_is_the_most_likely_of_its_neighbours() {
        let density = |d: Distribution, x: f64| (d.below(x * 1.0001) - d.below(x)).ln();
        let likelihood = |d: Distribution| {
            let terms = lengths();
            let terms = terms.values().iter();
            terms
                .map(|(x, count)| density(d, *x) * *count as f64)
                .sum::<f64>()
        };
        for family in Family::ALL {
            let best = Distribution::fit(family, &lengths()).unwrap();
            for (x, y) in [(0.98, 1.0), (1.02, 1.0), (1.0, 0.98), (1.0, 1.02)] {
                let other = Distribution {
                    a: best.a * x,
                    b: best.b * y,
                    ..best
                };
                assert!(likelihood(best) >= likelihood(other), "{best:?} {other:?}");
            }
        }
    }

    fn drawn(family: Family, a: f64, b: f64, count: usize, rng: &mut SmallRng) -> Vec<f64> {
        // Inverts the distribution function by bisection, which works for every family.
        let distribution = Distribution { family, a, b };
        let draw = |share: f64| {
            let mut low = -50.0;
            let mut high = 200.0;
            for _ in 0..80 {
                let middle = 0.5 * (low + high);
                if distribution.below(middle) < share {
                    low = middle;
                } else {
                    high = middle;
                }
            }
            low
        };
        (0..count).map(|_| draw(rng.random())).collect()
    }

    /// Fits of many samples lie around the truth as far as the standard errors say.
    #[test]
    fn standard_errors_are_those_of_many_fits() {
        let mut rng = SmallRng::seed_from_u64(5);
        let cases = [
            (Family::Normal, 20.0, 2.0),
            (Family::Lognormal, 2.339, 0.2636),
            (Family::Exponential, 5.0, 0.0),
            (Family::Weibull, 9.66772, 12.23796),
            (Family::Gamma, 3.0, 2.0),
        ];
        for (family, a, b) in cases {
            let mut squares = [0.0; 2];
            let count = 400;
            let rounds = 200;
            for _ in 0..rounds {
                let sample = Sample::new(drawn(family, a, b, count, &mut rng));
                let fitted = Distribution::fit(family, &sample).unwrap();
                let errors = fitted.standard_errors(count as u64);
                squares[0] += ((fitted.a - a) / errors[0]).powi(2) / f64::from(rounds);
                if b > 0.0 {
                    squares[1] += ((fitted.b - b) / errors[1]).powi(2) / f64::from(rounds);
                }
            }
            assert!((0.7..1.35).contains(&squares[0]), "{family:?} {squares:?}");
            assert!(
                b == 0.0 || (0.7..1.35).contains(&squares[1]),
                "{family:?} {squares:?}"
            );
        }
    }

    #[test]
    fn sizes_that_were_rounded_give_back_what_they_were_drawn_from() {
        let mut rng = SmallRng::seed_from_u64(6);
        let drawn = drawn(Family::Weibull, 1.58526, 2.614, 7473, &mut rng);
        let sizes = drawn.iter().map(|y| y.exp2().round().max(1.0)).collect();
        let (fitted, errors) = fit_rounded_weibull(&Sample::new(sizes)).unwrap();
        let off = [
            (fitted.a - 1.58526) / errors[0],
            (fitted.b - 2.614) / errors[1],
        ];
        assert!(
            off[0].abs() < 2.5 && off[1].abs() < 2.5,
            "{fitted:?} {errors:?}"
        );
        assert!(errors[0] < 0.03 && errors[1] < 0.03, "{errors:?}");
    }

    #[test]
    fn values_that_can_not_be_fitted_give_no_fit() {
        for values in [vec![], vec![5.0], vec![5.0, 5.0], vec![0.0, 5.0]] {
            let sample = Sample::new(values);
            for family in Family::ALL {
                assert!(Distribution::fit(family, &sample).is_none());
            }
            assert!(fit_rounded_weibull(&sample).is_none());
        }
    }
}
