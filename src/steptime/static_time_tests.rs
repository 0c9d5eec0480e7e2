use std::path::Path;

use approx::assert_relative_eq;

use super::super::static_fit::tests::fit;
use super::super::static_shape::{SMALLEST_BUCKET, buckets};
use super::*;
use crate::profile::catalog;
use crate::steptime::KvDtype;

const TOKENS: Program = Program::TokenGeneration {
    positions: 1024,
    batch: 4,
};

/// Qwen3-8B on logical cores of trn2, four rows, one bucket of contexts.
pub fn deployment(tp: u32, rows: u32) -> Deployment {
    let here = Path::new("");
    Deployment {
        tp,
        logical_core: Some(2),
        static_shapes: Some(StaticShapes {
            context_buckets: buckets(SMALLEST_BUCKET, 1024),
            prefix_buckets: Vec::new(),
            strict: true,
            token_buckets: vec![1024],
            decode_batches: vec![rows],
            on_device_sampling: true,
            asynchronous: false,
        }),
        ..Deployment::new(
            catalog::model("qwen3-8b", here).unwrap(),
            catalog::accelerator("trn2", here).unwrap(),
        )
    }
}

fn derived(deployment: &Deployment) -> StaticStepTime {
    StaticStepTime::new(deployment, StaticParameters::default(), &[]).unwrap()
}

const fn prompt(tokens: u32) -> Program {
    Program::ContextEncoding { tokens, prefix: 0 }
}

/// By hand, from the profiles: 6.946e9 weights in the layers, 0.622e9 in the head, a quarter of 2900 GB/s.
#[test]
fn decoding_on_one_core_reads_all_weights_and_every_padded_context() {
    let p = StaticParameters::default();
    let roofline = StaticRoofline::new(&deployment(1, 4), p).unwrap();
    let bandwidth = 725e9;
    let weights = 2.0 * (36.0 * (4096.0 * 128.0 * 80.0 + 3.0 * 4096.0 * 12288.0) + 4096.0 * 151_936.0);
    let parts = roofline.parts(TOKENS);
    // Compute is far below the reading, so the smooth maximum adds next to nothing.
    assert_relative_eq!(
        parts.matrices_s,
        weights / (0.65 * bandwidth),
        max_relative = 1e-2
    );
    let kv = 4.0 * 1024.0 * 36.0 * 2.0 * 8.0 * 128.0 * 2.0;
    assert_relative_eq!(parts.attention_s, kv / (0.55 * bandwidth), max_relative = 1e-9);
    assert_relative_eq!(parts.slots_s, 36.0 * 3e-5, max_relative = 1e-9);
    assert_relative_eq!(parts.fixed_s, 36.0 * 2e-5 + 2e-4, max_relative = 1e-9);
    assert!(parts.collectives_s.abs() <= 0.0);
    // Four cores hold a quarter each and talk: 73 rounds of 15 us and 32 KB.
    let four = StaticRoofline::new(&deployment(4, 4), p).unwrap().parts(TOKENS);
    assert_relative_eq!(four.attention_s, parts.attention_s / 4.0, max_relative = 1e-9);
    let link = 0.25 * 512e9 * 0.4;
    let round = 1.5e-5 + 1.5 * 4.0 * 4096.0 * 2.0 / link;
    assert_relative_eq!(four.collectives_s, 73.0 * round, max_relative = 1e-9);
}

#[test]
fn prompts_pay_their_bucket_and_the_way_into_a_slot() {
    let lone = StaticRoofline::new(&deployment(1, 1), StaticParameters::default()).unwrap();
    let slots = StaticRoofline::new(&deployment(1, 4), StaticParameters::default()).unwrap();
    assert!(lone.parts(prompt(256)).slots_s.abs() <= 0.0);
    let elements = 256.0 * 36.0 * 2.0 * 8.0 * 128.0;
    assert_relative_eq!(
        slots.parts(prompt(256)).slots_s,
        elements * 1e-10,
        max_relative = 1e-9
    );
    // A bucket as long as the slot replaces it as a whole.
    assert!(slots.parts(prompt(1024)).slots_s.abs() <= 0.0);
    assert!(lone.parts(prompt(1024)).total_s() > 1.9 * lone.parts(prompt(512)).total_s() - 0.06);
}

#[test]
fn a_step_is_the_sum_of_its_programs_and_does_not_depend_on_live_rows() {
    let times = derived(&deployment(4, 4));
    let mut one = BatchShape::default();
    one.add_decode(1, 10);
    let mut four = one.clone();
    four.add_decode(1, 400);
    four.add_decode(1, 1000);
    assert_eq!(times.duration(&one), times.duration(&four));
    let mut prompts = BatchShape::default();
    prompts.add_prefill(100, 0);
    prompts.add_prefill(700, 0);
    let host = StaticParameters::default()[StaticParam::HostStepTime];
    let sum = times.step_s(prompt(128)) + times.step_s(prompt(1024)) - host;
    assert_eq!(times.duration(&prompts), step_of(sum));
}

#[test]
fn a_measured_program_replaces_the_derived_one_on_its_own_deployment_alone() {
    let fit = fit();
    let of = |d: &Deployment| StaticStepTime::new(d, fit.values(), &fit.programs).unwrap();
    let own = of(&deployment(4, 4));
    assert_relative_eq!(own.step_s(TOKENS), 0.0123, max_relative = 1e-12);
    assert_eq!(own.derived_programs().count(), own.programs() - 1);
    let other = of(&deployment(1, 4));
    assert_eq!(other.derived_programs().count(), other.programs());
    assert!((other.step_s(TOKENS) - 0.0123).abs() > 1e-3);
    let narrow = Deployment {
        kv_dtype: KvDtype::Fp8,
        ..deployment(4, 4)
    };
    let narrow = of(&narrow);
    assert_eq!(
        narrow.derived_programs().count(),
        narrow.programs(),
        "a cache of another format is another program"
    );
}

#[test]
fn working_ahead_hides_the_host_behind_a_repeated_batch_and_sampling_never() {
    let with = |asynchronous, on_device_sampling| {
        let mut d = deployment(4, 4);
        let shapes = d.static_shapes.as_mut().unwrap();
        (shapes.asynchronous, shapes.on_device_sampling) = (asynchronous, on_device_sampling);
        derived(&d)
    };
    let mut batch = BatchShape::default();
    batch.add_decode(1, 10);
    let again = BatchShape {
        repeated: Some(true),
        ..batch.clone()
    };
    let ahead = with(true, true);
    let saved = ahead.duration(&batch).as_nanos() - ahead.duration(&again).as_nanos();
    assert_eq!(saved, 500_000, "the host's half millisecond");
    // The first step in another bucket is another program, for which nobody works ahead.
    let mut buckets = deployment(4, 4);
    if let Some(shapes) = &mut buckets.static_shapes {
        (shapes.asynchronous, shapes.token_buckets) = (true, vec![128, 1024]);
    }
    let crossing = derived(&buckets);
    let at = |computed| {
        let mut batch = BatchShape::default();
        batch.add_decode(1, computed);
        batch.repeated = Some(true);
        batch
    };
    let step = |computed| crossing.duration(&at(computed)).as_nanos();
    assert_eq!(step(128) - step(129), 500_000);
    let mut run = [SimDuration::ZERO; 6];
    crossing.durations(&at(125), &mut run);
    assert_eq!(
        run.map(|d| d.as_nanos()),
        [125, 126, 127, 128, 129, 130].map(step)
    );
    let waits = with(false, true);
    assert_eq!(waits.duration(&batch), waits.duration(&again));
    assert_eq!(waits.duration(&batch), ahead.duration(&batch));
    let on_host = with(false, false);
    let sampling = (on_host.duration(&batch).as_nanos() - waits.duration(&batch).as_nanos()) as f64 / 1e9;
    assert!(sampling > 4.0 * 151_936.0 * 5.8e-9, "{sampling}");
}

#[test]
fn without_shapes_there_are_no_step_times() {
    let mut none = deployment(1, 1);
    none.static_shapes = None;
    let e = StaticStepTime::new(&none, StaticParameters::default(), &[]).unwrap_err();
    assert_eq!(e, StaticError::NoShapes);
    let mut blind = deployment(4, 1);
    blind.accelerator.scaleup_gb_s = None;
    assert!(StaticStepTime::new(&blind, StaticParameters::default(), &[]).is_err());
}
