use super::*;
use approx::assert_relative_eq;

const TRUE: [f64; TERMS] = [8e-3, 4e-4, 2.4e-4, 2.1e-7, 5e-5, 3.3e-4, 7e-4, 6e-7];

/// Batches of all kinds, by a small linear congruence.
fn batches(count: usize, mut state: u64) -> Vec<BatchShape> {
    let mut draw = |limit: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % limit) as u32
    };
    (0..count)
        .map(|_| {
            let mut batch = BatchShape::default();
            for _ in 0..draw(3) {
                batch.add_prefill(1 + draw(400), draw(600));
            }
            for _ in 0..1 + draw(20) {
                batch.add_decode(1, 10 + draw(900));
            }
            batch
        })
        .collect()
}

fn run(count: usize, seed: u64, knee: u32, offset: f64) -> RunSteps {
    let batches = batches(count, seed);
    let seconds = batches
        .iter()
        .map(|b| offset + terms(b, knee).iter().zip(&TRUE).map(|(x, c)| x * c).sum::<f64>())
        .collect();
    RunSteps { batches, seconds }
}

#[test]
fn known_parameters_come_back_from_exact_data() {
    let (a, b) = (run(300, 1, 6, 0.0), run(200, 2, 6, 0.0));
    let fit = fit(&[&a, &b]);
    assert_eq!(fit.knee, 6);
    for (got, want) in fit.coefficients.iter().zip(TRUE) {
        assert_relative_eq!(*got, want, max_relative = 1e-9);
    }
    assert!(fit.own_steps.iter().all(|s| (s - TRUE[0]).abs() < 1e-11));
}

#[test]
fn runs_on_slower_and_faster_machines_share_one_shape() {
    let runs = [run(300, 1, 6, -1e-3), run(300, 2, 6, 0.0), run(300, 3, 6, 2e-3)];
    let fit = fit(&runs.iter().collect::<Vec<_>>());
    assert_eq!(fit.knee, 6);
    for (got, want) in fit.coefficients.iter().zip(TRUE) {
        assert_relative_eq!(*got, want, max_relative = 1e-9);
    }
    for (got, want) in fit.own_steps.iter().zip([7e-3, 8e-3, 10e-3]) {
        assert_relative_eq!(*got, want, max_relative = 1e-9);
    }
}

#[test]
fn a_tenth_of_wild_steps_hardly_moves_the_fit() {
    let mut dirty = run(1000, 5, 6, 0.0);
    // Noise of 1 % everywhere, and every tenth step takes three times as long.
    for (i, s) in dirty.seconds.iter_mut().enumerate() {
        *s *= 1.0 + 0.01 * ((i * 7919 % 201) as f64 / 100.0 - 1.0);
        if i % 10 == 0 {
            *s *= 3.0;
        }
    }
    let fit = fit(&[&dirty]);
    let model = |b: &BatchShape| {
        terms(b, fit.knee)
            .iter()
            .zip(&fit.coefficients)
            .map(|(x, c)| x * c)
            .sum::<f64>()
    };
    let errors: Vec<f64> = run(1000, 5, 6, 0.0)
        .seconds
        .iter()
        .zip(&dirty.batches)
        .map(|(truth, b)| model(b) / truth - 1.0)
        .collect();
    let centre = median(&errors).unwrap();
    let spread: Vec<f64> = errors.iter().map(|e| (e - centre).abs()).collect();
    assert!(
        median(&spread).unwrap() < 0.01,
        "shape off by {:?}",
        median(&spread)
    );
}

#[test]
fn quantiles_interpolate() {
    assert_eq!(median(&[]), None);
    assert_eq!(quantile(&[3.0, 1.0, 2.0, 10.0], 0.5), Some(2.5));
    // numpy.quantile([1, 2, 3, 10], 0.9) = 7.9
    assert_relative_eq!(
        quantile(&[3.0, 1.0, 2.0, 10.0], 0.9).unwrap(),
        7.9,
        max_relative = 1e-15
    );
}
