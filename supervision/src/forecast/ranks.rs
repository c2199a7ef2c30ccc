//! Spearman's rank correlation.

/// Spearman's rank correlation of two lists of equal length, -1 to 1; 0 if one list does not vary.
pub(super) fn spearman(one: &[f64], other: &[f64]) -> f64 {
    let one = ranks(one);
    let other = ranks(other);
    let mean = |ranks: &[f64]| ranks.iter().sum::<f64>() / ranks.len().max(1) as f64;
    let mean_one = mean(&one);
    let mean_other = mean(&other);
    let mut both = 0.0;
    let mut of_one = 0.0;
    let mut of_other = 0.0;
    for (a, b) in one.iter().zip(&other) {
        let a = a - mean_one;
        let b = b - mean_other;
        both += a * b;
        of_one += a * a;
        of_other += b * b;
    }
    let spread = (of_one * of_other).sqrt();
    if spread > 0.0 { both / spread } else { 0.0 }
}

/// The rank of each value, counted from 0. Equal values share the mean of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<(f64, usize)> = values.iter().copied().zip(0..).collect();
    order.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut ranks = vec![0.0; values.len()];
    let mut first = 0;
    for equal in order.chunk_by(|one, other| one.0 == other.0) {
        let rank = first as f64 + (equal.len() as f64 - 1.0) / 2.0;
        for (_, place) in equal {
            if let Some(slot) = ranks.get_mut(*place) {
                *slot = rank;
            }
        }
        first += equal.len();
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_go_together_correlate_and_equal_values_share_a_rank() {
        assert_eq!(ranks(&[5.0, 1.0, 5.0, 9.0]), [1.5, 0.0, 1.5, 3.0]);
        let close = |one: f64, other: f64| assert!((one - other).abs() < 1e-12, "{one} {other}");
        close(spearman(&[1.0, 2.0, 3.0], &[1.0, 8.0, 9000.0]), 1.0);
        close(spearman(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]), -1.0);
        close(spearman(&[1.0, 1.0, 1.0], &[3.0, 2.0, 1.0]), 0.0);
        // 1 - 6 * (0 + 1 + 1 + 0) / (4 * 15)
        close(spearman(&[1.0, 2.0, 3.0, 4.0], &[1.0, 3.0, 2.0, 4.0]), 0.8);
        close(spearman(&[], &[]), 0.0);
    }
}
