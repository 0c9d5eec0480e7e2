//! Non-negative least squares by the active-set method of Lawson and Hanson (Solving Least Squares Problems,
//! 1974, chapter 23), on a matrix first reduced to a square one by Householder reflections.

use ndarray::{Array2, ArrayView2};

/// The `x >= 0` that minimises `|a x - b|`. Columns that the data cannot tell apart get 0.
///
/// # Panics
/// When `b` is not as long as `a` has rows: a broken caller.
pub fn nnls(a: ArrayView2<'_, f64>, b: &[f64]) -> Vec<f64> {
    assert_eq!(a.nrows(), b.len(), "one target a row");
    let columns = a.ncols();
    let norms: Vec<f64> = (0..columns)
        .map(|j| a.column(j).iter().map(|v| v * v).sum::<f64>().sqrt())
        .map(|n| if n > 0.0 { n } else { 1.0 })
        .collect();
    let mut scaled = a.to_owned();
    for (j, norm) in norms.iter().enumerate() {
        scaled.column_mut(j).mapv_inplace(|v| v / norm);
    }
    let mut target = b.to_vec();
    triangularise(&mut scaled, &mut target);
    let rows = columns.min(a.nrows());
    let square = scaled
        .slice_axis(ndarray::Axis(0), ndarray::Slice::from(..rows))
        .to_owned();
    let solution = lawson_hanson(&square, &target[..rows]);
    solution.iter().zip(&norms).map(|(x, n)| x / n).collect()
}

/// Applies Householder reflections so that `a` is upper triangular; `b` follows.
fn triangularise(a: &mut Array2<f64>, b: &mut [f64]) {
    let (rows, columns) = a.dim();
    for k in 0..columns.min(rows) {
        let norm = (k..rows).map(|i| a[[i, k]] * a[[i, k]]).sum::<f64>().sqrt();
        if norm <= 0.0 {
            continue;
        }
        // The sign that adds, so that nothing cancels.
        let alpha = if a[[k, k]] > 0.0 { -norm } else { norm };
        let mut v: Vec<f64> = (k..rows).map(|i| a[[i, k]]).collect();
        v[0] -= alpha;
        let vv: f64 = v.iter().map(|x| x * x).sum();
        for j in k..columns {
            let dot: f64 = v.iter().enumerate().map(|(i, x)| x * a[[k + i, j]]).sum();
            let factor = 2.0 * dot / vv;
            for (i, x) in v.iter().enumerate() {
                a[[k + i, j]] -= factor * x;
            }
        }
        let dot: f64 = v.iter().zip(&b[k..]).map(|(x, y)| x * y).sum();
        let factor = 2.0 * dot / vv;
        for (i, x) in v.iter().enumerate() {
            b[k + i] -= factor * x;
        }
    }
}

fn lawson_hanson(a: &Array2<f64>, b: &[f64]) -> Vec<f64> {
    let columns = a.ncols();
    let size = b.iter().map(|v| v * v).sum::<f64>().sqrt();
    let tolerance = 16.0 * f64::EPSILON * size * columns as f64;
    let mut x = vec![0.0; columns];
    let mut passive = vec![false; columns];
    let mut barred = vec![false; columns];
    // Every round strictly lowers the residual, so it ends; the bound is for rounding alone.
    for _ in 0..10 * columns.max(1) {
        let gradient = gradient(a, b, &x);
        let Some(enter) = (0..columns)
            .filter(|&j| !passive[j] && !barred[j] && gradient[j] > tolerance)
            .max_by(|&i, &j| gradient[i].total_cmp(&gradient[j]))
        else {
            break;
        };
        passive[enter] = true;
        let first = solve_passive(a, b, &passive);
        if first[enter] <= 0.0 {
            // Only rounding made its gradient positive.
            passive[enter] = false;
            barred[enter] = true;
            continue;
        }
        barred.fill(false);
        move_to_feasible(a, b, &mut x, &mut passive, first);
    }
    x
}

/// Moves `x` towards the passive set's solution, dropping variables that would turn negative.
fn move_to_feasible(a: &Array2<f64>, b: &[f64], x: &mut [f64], passive: &mut [bool], first: Vec<f64>) {
    let mut goal = first;
    loop {
        let blocking = (0..x.len())
            .filter(|&j| passive[j] && goal[j] <= 0.0)
            .map(|j| (x[j] / (x[j] - goal[j]), j))
            .filter(|(ratio, _)| ratio.is_finite())
            .min_by(|p, q| p.0.total_cmp(&q.0));
        let Some((ratio, leaving)) = blocking else {
            for j in 0..x.len() {
                x[j] = if passive[j] { goal[j].max(0.0) } else { 0.0 };
            }
            return;
        };
        for j in 0..x.len() {
            if passive[j] {
                x[j] += ratio * (goal[j] - x[j]);
            }
        }
        x[leaving] = 0.0;
        for j in 0..x.len() {
            if passive[j] && x[j] <= 0.0 {
                passive[j] = false;
                x[j] = 0.0;
            }
        }
        goal = solve_passive(a, b, passive);
    }
}

fn gradient(a: &Array2<f64>, b: &[f64], x: &[f64]) -> Vec<f64> {
    let residual: Vec<f64> = a
        .rows()
        .into_iter()
        .zip(b)
        .map(|(row, target)| target - row.iter().zip(x).map(|(v, w)| v * w).sum::<f64>())
        .collect();
    a.columns()
        .into_iter()
        .map(|column| column.iter().zip(&residual).map(|(v, r)| v * r).sum())
        .collect()
}

/// Unconstrained least squares over the passive columns; 0 elsewhere and where a column depends on others.
fn solve_passive(a: &Array2<f64>, b: &[f64], passive: &[bool]) -> Vec<f64> {
    let kept: Vec<usize> = (0..passive.len()).filter(|&j| passive[j]).collect();
    let mut sub = a.select(ndarray::Axis(1), &kept);
    let mut target = b.to_vec();
    triangularise(&mut sub, &mut target);
    let mut x = vec![0.0; passive.len()];
    let rows = sub.nrows();
    for (k, &j) in kept.iter().enumerate().rev() {
        // Columns have unit length, so the pivot is the part that the columns before cannot explain.
        if k >= rows || sub[[k, k]].abs() < 1e-11 {
            continue;
        }
        let known: f64 = (k + 1..kept.len()).map(|l| sub[[k, l]] * x[kept[l]]).sum();
        x[j] = (target[k] - known) / sub[[k, k]];
    }
    x
}

#[cfg(test)]
mod tests {
    use super::nnls;
    use approx::assert_abs_diff_eq;
    use ndarray::array;
    use proptest::prelude::*;

    #[test]
    fn an_interior_solution_is_the_ordinary_one() {
        // Normal equations by hand: points (0,1), (1,3), (2,5) lie on 1 + 2 t.
        let a = array![[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]];
        let x = nnls(a.view(), &[1.0, 3.0, 5.0]);
        assert_abs_diff_eq!(x[0], 1.0, epsilon = 1e-13);
        assert_abs_diff_eq!(x[1], 2.0, epsilon = 1e-13);
    }

    #[test]
    fn a_negative_coefficient_is_held_at_zero_and_the_rest_refitted() {
        // Points (0,3), (1,2), (2,1): the free slope is -1, so the best constant alone is their mean, 2.
        let a = array![[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]];
        let x = nnls(a.view(), &[3.0, 2.0, 1.0]);
        assert_abs_diff_eq!(x[0], 2.0, epsilon = 1e-13);
        assert_abs_diff_eq!(x[1], 0.0, epsilon = 1e-13);
    }

    #[test]
    fn larger_cases_agree_with_another_implementation() {
        // scipy.optimize.nnls 1.17.1. The first is also 13 / 21.25 by hand.
        let a = array![[1.0, 2.0], [3.0, 4.0], [-5.0, 0.5], [1.0, 1.0]];
        let x = nnls(a.view(), &[1.0, 2.0, 4.0, 1.0]);
        assert_abs_diff_eq!(x[0], 0.0, epsilon = 1e-15);
        assert_abs_diff_eq!(x[1], 0.611_764_705_882_353, epsilon = 1e-13);
        let a = array![
            [1.0, 2.0, 3.0, 1.0],
            [4.0, 1.0, 2.0, 0.5],
            [2.0, 3.0, 1.0, -1.0],
            [0.5, 0.2, 4.0, 2.0],
            [1.0, 5.0, 2.0, 3.0],
            [-1.0, 2.0, 0.3, 1.0]
        ];
        let x = nnls(a.view(), &[2.0, 1.0, 3.0, -1.0, 4.0, 2.0]);
        for (got, want) in x
            .iter()
            .zip([0.013_278_631_239_727_175, 0.873_594_160_508_367_1, 0.0, 0.0])
        {
            assert_abs_diff_eq!(*got, want, epsilon = 1e-12);
        }
    }

    #[test]
    fn columns_that_are_zero_or_equal_do_no_harm() {
        let a = array![[1.0, 1.0, 0.0], [2.0, 2.0, 0.0], [3.0, 3.0, 0.0]];
        let x = nnls(a.view(), &[2.0, 4.0, 6.0]);
        assert_abs_diff_eq!(x[0] + x[1], 2.0, epsilon = 1e-12);
        assert_abs_diff_eq!(x[2], 0.0, epsilon = 1e-15);
        assert_eq!(nnls(ndarray::Array2::zeros((0, 2)).view(), &[]), vec![0.0, 0.0]);
    }

    proptest! {
        /// The conditions of Karush, Kuhn and Tucker hold at the answer, and they are sufficient.
        #[test]
        fn the_answer_is_optimal(values in proptest::collection::vec(-1.0..1.0f64, 48), b in proptest::collection::vec(-1.0..1.0f64, 12)) {
            let a = ndarray::Array2::from_shape_vec((12, 4), values).unwrap();
            let x = nnls(a.view(), &b);
            let residual: Vec<f64> = (0..12).map(|i| b[i] - (0..4).map(|j| a[[i, j]] * x[j]).sum::<f64>()).collect();
            for j in 0..4 {
                let gradient: f64 = (0..12).map(|i| a[[i, j]] * residual[i]).sum();
                prop_assert!(x[j] >= 0.0);
                prop_assert!(gradient <= 1e-9, "gradient {gradient}");
                prop_assert!(x[j] * gradient.abs() <= 1e-9, "x {} gradient {gradient}", x[j]);
            }
        }
    }
}
