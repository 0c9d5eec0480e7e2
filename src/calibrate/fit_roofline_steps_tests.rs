use std::path::Path;

use rand::RngExt;
use rand_distr::{Distribution, StandardNormal};

use super::*;
use crate::profile::catalog;
use crate::rng::{Purpose, stream};

/// Steps of two models under two degrees of parallelism, with the times that the roofline gives them under `truth`:
/// runs differ by `between`, steps by `within`.
fn runs(truth: &Parameters, steps: usize, between: f64, within: f64) -> Vec<StepsRun> {
    let here = Path::new("");
    let device = catalog::accelerator("h100-sxm", here).unwrap();
    let mut rng = stream(7, Purpose::Noise, 0);
    let mut out = Vec::new();
    for (number, (model, tp, asynchronous)) in [
        ("llama-3.1-8b", 1, true),
        ("llama-3.1-8b", 2, true),
        ("llama-3.1-70b", 4, true),
        ("llama-3.1-70b", 8, false),
        ("mixtral-8x7b", 2, false),
        ("llama-3.1-8b", 1, false),
    ]
    .into_iter()
    .enumerate()
    {
        let deployment = Deployment {
            tp,
            asynchronous,
            ..Deployment::new(catalog::model(model, here).unwrap(), device.clone())
        };
        let roofline = Roofline::new(deployment.clone(), *truth).unwrap();
        let speed: f64 = between * Distribution::<f64>::sample(&StandardNormal, &mut rng);
        let mut made = RunSteps::default();
        for _ in 0..steps {
            let mut batch = BatchShape::default();
            for _ in 0..rng.random_range(0..200_u32) {
                batch.add_decode(1, rng.random_range(1..8000));
            }
            for _ in 0..rng.random_range(0..4_u32) {
                batch.add_prefill(rng.random_range(8..2000), rng.random_range(0..4) * 1000);
            }
            if batch.is_empty() {
                continue;
            }
            let noise: f64 = within * Distribution::<f64>::sample(&StandardNormal, &mut rng);
            made.seconds
                .push(roofline.parts(&batch).total_s() * (speed + noise).exp());
            made.batches.push(batch);
        }
        out.push(StepsRun {
            name: format!("run {number}"),
            deployment,
            steps: made,
        });
    }
    out
}

/// Somewhere else than the priors.
fn truth() -> Parameters {
    let mut out = Parameters::default();
    for (spec, move_by) in SPECS.iter().zip([0.2, -0.5, 0.6, -0.3, 0.4].into_iter().cycle()) {
        out[spec.param] = (spec.prior.ln() + move_by * spec.prior_log_sd).exp();
    }
    out.clamped()
}

fn options() -> RunFitOptions {
    RunFitOptions {
        hold_out: false,
        ..RunFitOptions::default()
    }
}

const WELL_KNOWN: [Param; 8] = [
    Param::GemmCompute,
    Param::WeightBandwidth,
    Param::KvBandwidth,
    Param::PrefillAttention,
    Param::LayerTime,
    Param::RowTime,
    Param::AllReduceBandwidth,
    Param::MixedLayerTime,
];

#[test]
fn without_noise_known_parameters_come_back_to_a_millionth() {
    let truth = truth();
    let fit = fit_roofline_steps(
        &runs(&truth, 200, 0.0, 0.0),
        &Priors::default(),
        options(),
        &|_| (),
    )
    .unwrap();
    let found = &fit.fit;
    let mut told = Vec::new();
    for (j, param) in found.responsive.iter().enumerate() {
        let claimed = found.posterior.covariance[[j, j]].sqrt();
        let off = (found.parameters[*param] / truth[*param] - 1.0).abs();
        // What the fit itself claims to know: its least scatter of 1e-7, over many steps and weak slopes.
        if claimed < 1e-5 {
            assert!(off < 1e-6, "{} is off by {off:e}", param.spec().name);
            told.push(*param);
        }
    }
    for param in WELL_KNOWN {
        assert!(told.contains(&param), "{} is not told", param.spec().name);
    }
    assert!(fit.residuals.iter().all(|r| r.error.p90_abs < 1e-6));
}

#[test]
fn noisy_steps_give_intervals_that_hold_the_truth_and_the_same_seed_the_same_draws() {
    let truth = truth();
    let runs = runs(&truth, 120, 0.02, 0.05);
    let priors = Priors::default();
    let fit = fit_roofline_steps(&runs, &priors, options(), &|_| ()).unwrap();
    let parameters = roofline_file::parameters(&priors, &fit.fit);
    let held = parameters
        .iter()
        .filter(|p| {
            let value = truth[Param::named(&p.name).unwrap()];
            (p.interval_90.0..=p.interval_90.1).contains(&value)
        })
        .count();
    assert!(
        held >= 18,
        "{held} of {} intervals hold the truth",
        parameters.len()
    );
    let kv = parameters.iter().find(|p| p.name == "kv_bandwidth").unwrap();
    assert!(kv.identified && kv.log_sd < 0.08, "{kv:?}");
    let front = parameters.iter().find(|p| p.name == "front_end_in").unwrap();
    assert!(
        !front.identified && front.log_sd >= front.prior_log_sd,
        "{front:?}"
    );

    let pool = |threads: usize| {
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap()
    };
    let again = pool(1).install(|| fit_roofline_steps(&runs, &priors, options(), &|_| ()).unwrap());
    assert_eq!(fit, again);
}

#[test]
fn runs_models_and_splits_are_left_out_and_the_file_says_what_it_does_not_know() {
    let runs = runs(&truth(), 60, 0.02, 0.05);
    let priors = Priors::default();
    let fit = fit_roofline_steps(&runs, &priors, RunFitOptions::default(), &|_| ()).unwrap();
    let left: Vec<&str> = fit.left_out.iter().map(|(what, _)| what.as_str()).collect();
    // The only run of a model or a split is left out once.
    assert_eq!(left.len(), 6 + 2 + 2, "{left:?}");
    assert!(left.contains(&"model llama-3.1-8b") && left.contains(&"tp 2"));
    let head = FitHead {
        name: "test".into(),
        door: crate::steptime::roofline_fit::Door::Steps,
        command: "none".into(),
        data: Vec::new(),
        notes: Vec::new(),
        engines: vec!["vllm 0.15.1".into()],
    };
    let file = steps_file(head.clone(), &runs, &priors, &fit);
    let text = file.to_yaml().unwrap();
    assert_eq!(RooflineFit::from_text(&text, Path::new("f")).unwrap(), file);
    let sd = |stat: &str| file.misfit("step", stat).unwrap();
    assert!((LEAST_SPEED..0.08).contains(&sd("run")), "{}", sd("run"));
    assert!(sd("new_model") >= sd("run"));
    assert!(file.notes.iter().any(|n| n.contains("front_end_in")));
    assert!(file.notes.iter().any(|n| n.contains("scheduled ahead")));
    let decode = file
        .residuals
        .iter()
        .find(|r| r.of.starts_with("decode only, over") && r.stat == "p50")
        .unwrap();
    assert!(decode.rel_error.abs() < 0.03, "{decode:?}");

    // One run alone: no error on others, so none is claimed.
    let one = &runs[..1];
    let fit = fit_roofline_steps(one, &priors, RunFitOptions::default(), &|_| ()).unwrap();
    let file = steps_file(head, one, &priors, &fit);
    assert!(file.held_out.is_empty());
    assert!(file.misfit("step", "run").unwrap() >= UNTESTED_SPEED);
    assert!(file.notes.iter().any(|n| n.contains("only 1 run")));
}

#[test]
fn a_sample_keeps_every_kind_of_batch() {
    let mut runs = runs(&truth(), 300, 0.0, 0.0);
    runs.truncate(2);
    let whole = sample(&runs, 10_000);
    assert!(
        whole
            .iter()
            .zip(&runs)
            .all(|(s, r)| s.len() == r.steps.seconds.len())
    );
    let some = sample(&runs, 100);
    for (kept, run) in some.iter().zip(&runs) {
        assert!(kept.len() < run.steps.seconds.len() / 2, "{}", kept.len());
        let kinds = |which: &mut dyn Iterator<Item = usize>| -> BTreeSet<&str> {
            which.map(|i| errors::regime(&run.steps.batches[i]).1).collect()
        };
        assert_eq!(
            kinds(&mut kept.iter().copied()),
            kinds(&mut (0..run.steps.seconds.len()))
        );
    }
    let rows = rows_of_sample(&runs, &some);
    assert!(rows.is_sorted() && rows.len() == some[0].len() + some[1].len());
}
