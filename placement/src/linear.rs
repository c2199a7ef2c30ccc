//! Small dense systems of linear equations.

/// Cholesky's factor of a symmetric positive definite `matrix` of `n` rows (row-major, only the lower triangle
/// is read). `None` if the matrix is not positive definite, or of another size.
#[must_use]
fn cholesky(matrix: &[f64], n: usize) -> Option<Vec<f64>> {
    if matrix.len() != n * n {
        return None;
    }
    let mut factor = matrix.to_vec();
    for i in 0..n {
        for j in 0..=i {
            let line = &factor[i * n..i * n + j];
            let other = &factor[j * n..j * n + j];
            let dot: f64 = line.iter().zip(other).map(|(a, b)| a * b).sum();
            let rest = factor[i * n + j] - dot;
            if i != j {
                factor[i * n + j] = rest / factor[j * n + j];
            } else if rest.is_finite() && rest > 0.0 {
                factor[i * n + i] = rest.sqrt();
            } else {
                return None;
            }
        }
    }
    Some(factor)
}

/// Solves `matrix * x = right` for the matrix of which [`cholesky`] made `factor`.
#[must_use]
fn solve_factored(factor: &[f64], right: &[f64]) -> Vec<f64> {
    let n = right.len();
    let mut x = right.to_vec();
    for i in 0..n {
        let dot: f64 = (0..i).map(|k| factor[i * n + k] * x[k]).sum();
        x[i] = (x[i] - dot) / factor[i * n + i];
    }
    for i in (0..n).rev() {
        let dot: f64 = (i + 1..n).map(|k| factor[k * n + i] * x[k]).sum();
        x[i] = (x[i] - dot) / factor[i * n + i];
    }
    x
}

/// Solves `matrix * x = right` for a symmetric positive definite `matrix` (row-major, only the
/// lower triangle is read) by Cholesky's method. `None` if the matrix is not positive definite, or not of
/// `right.len()` rows and columns.
#[must_use]
pub fn solve_positive_definite(matrix: &[f64], right: &[f64]) -> Option<Vec<f64>> {
    Some(solve_factored(&cholesky(matrix, right.len())?, right))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_matrix_that_is_not_positive_definite_has_no_solution() {
        assert_eq!(
            solve_positive_definite(&[1.0, 2.0, 2.0, 1.0], &[1.0, 1.0]),
            None
        );
        assert_eq!(solve_positive_definite(&[f64::NAN], &[1.0]), None);
        assert_eq!(solve_positive_definite(&[1.0, 0.0], &[1.0]), None);
    }

    proptest! {
        #[test]
        fn the_solution_solves_the_system(
            root in prop::collection::vec(-3.0f64..3.0, 25),
            right in prop::collection::vec(-9.0f64..9.0, 5),
        ) {
            let mut matrix = vec![0.0; 25];
            for i in 0..5 {
                for j in 0..5 {
                    let dot: f64 = (0..5).map(|k| root[i * 5 + k] * root[j * 5 + k]).sum();
                    matrix[i * 5 + j] = dot + if i == j { 1.0 } else { 0.0 };
                }
            }
            let x = solve_positive_definite(&matrix, &right).unwrap();
            for i in 0..5 {
                let sum: f64 = (0..5).map(|j| matrix[i * 5 + j] * x[j]).sum();
                prop_assert!((sum - right[i]).abs() < 1e-8);
            }
        }
    }
}
