//! Functions of statistics that the standard library lacks.

/// Most terms of a series or a continued fraction; the shapes that fits have need less than a tenth of them.
const TERMS_MAX: usize = 10_000;
/// Relative size of the last term that is added.
const PRECISION: f64 = 1e-13;

/// Derivative of the logarithm of the gamma function, for x > 0.
pub(crate) fn digamma(mut x: f64) -> f64 {
    let mut sum = 0.0;
    while x < 10.0 {
        sum -= 1.0 / x;
        x += 1.0;
    }
    let y = 1.0 / (x * x);
    // The asymptotic series (Abramowitz and Stegun, 6.3.18).
    sum + x.ln()
        - 0.5 / x
        - y * (1.0 / 12.0 - y * (1.0 / 120.0 - y * (1.0 / 252.0 - y * (1.0 / 240.0 - y / 132.0))))
}

/// Derivative of [`digamma`], for x > 0.
pub(crate) fn trigamma(mut x: f64) -> f64 {
    let mut sum = 0.0;
    while x < 10.0 {
        sum += 1.0 / (x * x);
        x += 1.0;
    }
    let y = 1.0 / (x * x);
    let series = 1.0 / 6.0 - y * (1.0 / 30.0 - y * (1.0 / 42.0 - y / 30.0));
    sum + 1.0 / x + 0.5 * y + y / x * series
}

/// Probability that a standard normal number is below `z`.
pub(crate) fn normal_below(z: f64) -> f64 {
    0.5 * libm::erfc(-z / std::f64::consts::SQRT_2)
}

/// Probability that a gamma distributed number with this shape and scale 1 is below `x`: the regularised
/// lower incomplete gamma function.
pub(crate) fn gamma_below(shape: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    let front = (shape * x.ln() - x - libm::lgamma(shape)).exp();
    if x < shape + 1.0 {
        (front * series(shape, x)).min(1.0)
    } else {
        (1.0 - front * continued_fraction(shape, x)).clamp(0.0, 1.0)
    }
}

/// `SUM_{n >= 0} x^n / (shape (shape + 1) ... (shape + n))`, which converges fast for `x < shape + 1`.
fn series(shape: f64, x: f64) -> f64 {
    let mut term = 1.0 / shape;
    let mut sum = 1.0 / shape;
    for n in 1..TERMS_MAX {
        term *= x / (shape + n as f64);
        sum += term;
        if term < sum * PRECISION {
            break;
        }
    }
    sum
}

/// The continued fraction of the upper incomplete gamma function by Lentz's method, for `x >= shape + 1`.
fn continued_fraction(shape: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let mut b = x + 1.0 - shape;
    let mut c = 1.0 / TINY;
    let mut d = 1.0 / b;
    let mut h = d;
    for n in 1..TERMS_MAX {
        let a = -(n as f64) * (n as f64 - shape);
        b += 2.0;
        d = a * d + b;
        d = if d.abs() < TINY { TINY } else { d };
        c = b + a / c;
        c = if c.abs() < TINY { TINY } else { c };
        d = 1.0 / d;
        h *= d * c;
        if (d * c - 1.0).abs() < PRECISION {
            break;
        }
    }
    h
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of tables.
    #[test]
    fn functions_are_as_in_tables() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        near(digamma(1.0), -0.577_215_664_901_532_9);
        near(digamma(0.5), -1.963_510_026_021_423_5);
        near(trigamma(1.0), std::f64::consts::PI.powi(2) / 6.0);
        near(trigamma(0.5), std::f64::consts::PI.powi(2) / 2.0);
        near(normal_below(1.959_963_984_540_054), 0.975);
        near(gamma_below(1.0, 2.0), 1.0 - (-2.0f64).exp());
        near(gamma_below(0.5, 0.5), libm::erf(0.5f64.sqrt()));
        near(gamma_below(3.0, 10.0), 1.0 - 61.0 * (-10.0f64).exp());
        near(gamma_below(5.0, 0.0), 0.0);
    }
}
