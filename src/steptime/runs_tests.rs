//! Runs of steps take what their steps take one by one, to the nanosecond, under every model.

use std::path::Path;

use proptest::prelude::*;

use super::fitted::TERMS;
use super::graphs::GraphMode;
use super::parameters::SPECS;
use super::*;
use crate::profile::catalog;

const STEPS: usize = 50;

/// What `duration` says of each step of a run.
fn one_by_one(model: &dyn StepTime, batch: &BatchShape) -> Vec<SimDuration> {
    let mut batch = batch.clone();
    (0..STEPS)
        .map(|_| {
            let duration = model.duration(&batch);
            batch.advance(1);
            duration
        })
        .collect()
}

fn at_once(model: &dyn StepTime, batch: &BatchShape) -> Vec<SimDuration> {
    // What stands in the slice before must not matter.
    let mut out = vec![SimDuration(77); STEPS];
    model.durations(batch, &mut out);
    out
}

/// The batch with its decodes of one token counted in the sums alone.
fn unlisted(batch: &BatchShape) -> BatchShape {
    let mut out = BatchShape {
        decodes: Vec::new(),
        decode_seqs: 0,
        decode_tokens: 0,
        decode_context_tokens: 0,
        ..batch.clone()
    };
    for row in &batch.decodes {
        if row.tokens == 1 {
            out.add_decodes(1, u64::from(row.computed) + 1);
        } else {
            out.add_decode(row.tokens, row.computed);
        }
    }
    out
}

fn reversed(batch: &BatchShape) -> BatchShape {
    let mut out = batch.clone();
    out.decodes.reverse();
    out
}

/// Batches around the windows of the models (128, 1024 and 4096 positions) and far beyond.
fn batches() -> impl Strategy<Value = BatchShape> {
    let computed = || prop_oneof![0u32..300, 950u32..1100, 4000u32..4200, 0u32..130_000];
    let tokens = prop_oneof![6 => Just(1u32), 1 => 2u32..5];
    let drafts = any::<bool>();
    let decodes = prop::collection::vec((tokens, computed()), 0..40);
    let prefills = prop_oneof![
        3 => Just(Vec::new()),
        1 => prop::collection::vec((1u32..3000, computed()), 1..4),
    ];
    (prefills, decodes, drafts)
        .prop_map(|(prefills, decodes, drafts)| {
            let mut batch = BatchShape::default();
            for (tokens, computed) in prefills {
                batch.add_prefill(tokens, computed);
            }
            for (tokens, computed) in decodes {
                batch.add_decode(if drafts { tokens } else { 1 }, computed);
            }
            batch
        })
        .prop_filter("a step computes something", |b| !b.is_empty())
}

/// Positive parameters around the priors, within their bounds.
fn parameters() -> impl Strategy<Value = Parameters> {
    prop::collection::vec(-1.0f64..1.0, SPECS.len()).prop_map(|shifts| {
        let mut parameters = Parameters::default();
        for (value, shift) in parameters.0.iter_mut().zip(shifts) {
            *value *= shift.exp();
        }
        parameters.clamped()
    })
}

/// Dense and of experts, with and without windows, MLA, on one device and on several.
fn rooflines() -> impl Strategy<Value = Roofline> {
    let models = prop::sample::select(vec![
        "llama-3.1-8b",
        "mistral-7b-v0.1",
        "gemma-3-4b",
        "gpt-oss-20b",
        "mixtral-8x7b",
        "deepseek-v2-lite",
    ]);
    let devices = prop::sample::select(vec!["h100-sxm", "l40s"]);
    let tp = prop::sample::select(vec![1u32, 2, 4]);
    (models, devices, tp, any::<(bool, bool, bool)>(), parameters()).prop_map(
        |(model, device, tp, (asynchronous, experts, eager), parameters)| {
            let here = Path::new("");
            let mut deployment = Deployment::new(
                catalog::model(model, here).unwrap(),
                catalog::accelerator(device, here).unwrap(),
            );
            deployment.tp = tp;
            if experts {
                deployment.ep = tp;
            }
            if eager {
                deployment.graph_mode = GraphMode::None;
            }
            deployment.asynchronous = asynchronous;
            Roofline::new(deployment, parameters).unwrap()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_roofline_s_runs_are_its_steps(model in rooflines(), batch in batches()) {
        let expected = one_by_one(&model, &batch);
        prop_assert_eq!(&at_once(&model, &batch), &expected);
        let sums = unlisted(&batch);
        prop_assert_eq!(at_once(&model, &sums), one_by_one(&model, &sums));
        if batch.decode_tokens == batch.decode_seqs {
            prop_assert_eq!(&one_by_one(&model, &reversed(&batch)), &expected);
        }
        if !model.needs_decode_rows() {
            prop_assert_eq!(&one_by_one(&model, &sums), &expected);
        }
    }

    #[test]
    fn runs_of_static_shapes_are_their_steps(
        batch in batches(),
        asynchronous in any::<bool>(),
        on_device_sampling in any::<bool>(),
        longest in prop::sample::select(vec![100u32, 1024, 5000]),
    ) {
        let mut deployment = static_time::tests::deployment(4, 64);
        let shapes = deployment.static_shapes.as_mut().unwrap();
        shapes.token_buckets = static_shape::buckets(static_shape::SMALLEST_BUCKET, longest);
        shapes.decode_batches = static_shape::batch_buckets(64);
        (shapes.asynchronous, shapes.on_device_sampling) = (asynchronous, on_device_sampling);
        let model = StaticStepTime::new(&deployment, StaticParameters::default(), &[]).unwrap();
        let expected = one_by_one(&model, &batch);
        prop_assert_eq!(&at_once(&model, &batch), &expected);
        if batch.decode_tokens == batch.decode_seqs {
            prop_assert_eq!(&one_by_one(&model, &reversed(&batch)), &expected);
        }
    }

    #[test]
    fn a_fit_s_runs_are_its_steps(
        coefficients in prop::array::uniform8(prop_oneof![Just(0.0), 1e-9f64..1e-2, 1e3f64..1e9]),
        knee in 0u32..30,
        batch in batches(),
    ) {
        let coefficients: [f64; TERMS] = coefficients;
        prop_assume!(coefficients.iter().any(|c| *c > 0.0));
        let model = FittedStepTime::new(coefficients, knee).unwrap();
        let expected = one_by_one(&model, &batch);
        prop_assert_eq!(&at_once(&model, &batch), &expected);
        prop_assert_eq!(&at_once(&model, &unlisted(&batch)), &expected);
    }

    #[test]
    fn stated_costs_runs_are_their_steps(
        costs in prop::array::uniform7(prop_oneof![
            Just(0u64), 0u64..10_000, 0u64..20_000_000_000, (u64::MAX / 100_000)..u64::MAX / 1_000, any::<u64>(),
        ]),
        batch in batches(),
    ) {
        let [step_ps, any_prefill_ps, prefill_row_ps, prefill_token_ps, prefill_context_token_ps, decode_row_ps,
            decode_context_token_ps] = costs;
        let model = LinearStepTime {
            step_ps, any_prefill_ps, prefill_row_ps, prefill_token_ps, prefill_context_token_ps, decode_row_ps,
            decode_context_token_ps,
        };
        let expected = one_by_one(&model, &batch);
        prop_assert_eq!(&at_once(&model, &batch), &expected);
        prop_assert_eq!(&at_once(&model, &unlisted(&batch)), &expected);
        // Each step in 128 bits, as the definition has it.
        let mut later = batch;
        for duration in expected {
            let products = [
                (step_ps, 1),
                (any_prefill_ps, u64::from(later.prefill_seqs > 0)),
                (prefill_row_ps, u64::from(later.prefill_seqs)),
                (prefill_token_ps, u64::from(later.prefill_tokens)),
                (prefill_context_token_ps, later.prefill_token_context),
                (decode_row_ps, u64::from(later.decode_seqs)),
                (decode_context_token_ps, later.decode_context_tokens),
            ];
            let ps: u128 = products.iter().map(|&(c, n)| u128::from(c) * u128::from(n)).sum();
            prop_assert_eq!(u128::from(duration.as_nanos()), ((ps + 500) / 1000).min(u128::from(u64::MAX)));
            later.advance(1);
        }
    }
}

#[test]
fn only_windows_need_decodes_one_by_one() {
    let needs = |model: &str| {
        let here = Path::new("");
        let deployment = Deployment::new(
            catalog::model(model, here).unwrap(),
            catalog::accelerator("h100-sxm", here).unwrap(),
        );
        Roofline::new(deployment, Parameters::default())
            .unwrap()
            .needs_decode_rows()
    };
    assert!(!needs("llama-3.1-8b"));
    assert!(!needs("deepseek-v2-lite"));
    assert!(needs("mistral-7b-v0.1"));
    assert!(needs("gpt-oss-20b"));
}

#[test]
fn a_window_cuts_single_rows_and_not_their_mean() {
    // Two rows, one far beyond a window of 128 and one at its start, cost other than two of their mean length.
    let here = Path::new("");
    let deployment = Deployment::new(
        catalog::model("gpt-oss-20b", here).unwrap(),
        catalog::accelerator("h100-sxm", here).unwrap(),
    );
    let roofline = Roofline::new(deployment, Parameters::default()).unwrap();
    let seconds = |computed: &[u32]| {
        let mut batch = BatchShape::default();
        computed.iter().for_each(|&c| batch.add_decode(1, c));
        roofline.parts(&batch).decode_attention_s
    };
    assert!(seconds(&[0, 600]) < seconds(&[300, 300]));
    // One more position of context still costs its share in the layers without a window.
    assert!(seconds(&[0, 601]) > seconds(&[0, 600]));
}
