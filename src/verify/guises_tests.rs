use std::path::Path;

use super::*;
use crate::profile::catalog;
use crate::steptime::BatchShape;
use crate::steptime::fit_parts::{FitRange, FittedParameter, Misfit, SpeaksFor};
use crate::steptime::parameters::SPECS;
use crate::steptime::roofline_fit::{Door, Form};

fn fit() -> RooflineFit {
    let misfit = |metric: &str, stat: &str, log_sd: f64| Misfit {
        metric: metric.into(),
        stat: stat.into(),
        log_sd,
        n: 4,
    };
    let mut drawn = SPECS.map(|s| s.prior);
    drawn[0] *= 0.9;
    RooflineFit {
        kneeboard_fit: 2,
        form: Form::Roofline,
        name: "test".into(),
        fitted_with: "test".into(),
        door: Door::Points,
        command: "none".into(),
        speaks_for: SpeaksFor {
            accelerators: vec!["h100-sxm".into()],
            dtypes: vec!["bf16".into()],
            kv_dtypes: vec!["bf16".into()],
            engines: Vec::new(),
            models: vec!["llama-3.1-8b".into()],
        },
        parameters: SPECS
            .iter()
            .map(|s| FittedParameter {
                name: s.name.into(),
                value: s.prior,
                unit: s.unit.into(),
                log_sd: s.prior_log_sd,
                interval_90: s.bounds,
                prior: s.prior,
                prior_log_sd: s.prior_log_sd,
                identified: false,
            })
            .collect(),
        correlation: Vec::new(),
        draws: vec![SPECS.map(|s| s.prior).to_vec(), drawn.to_vec()],
        misfit: vec![
            misfit("step", "run", 0.02),
            misfit("step", "new_model", 0.05),
            misfit("ttft_s", "p50", 0.04),
            misfit("ttft_s", "p99", 0.2),
            misfit("e2e_s", "any", 0.03),
        ],
        hull: vec![FitRange {
            axis: "tp".into(),
            low: 1.0,
            high: 2.0,
        }],
        residuals: Vec::new(),
        held_out: Vec::new(),
        data: Vec::new(),
        notes: Vec::new(),
    }
}

fn deployment(model: &str, accelerator: &str, tp: u32) -> Deployment {
    let here = Path::new("");
    Deployment {
        tp,
        ..Deployment::new(
            catalog::model(model, here).unwrap(),
            catalog::accelerator(accelerator, here).unwrap(),
        )
    }
}

fn guises(deployment: &Deployment) -> Guises {
    Guises::roofline(&fit(), Path::new("fit.yaml"), deployment, true).unwrap()
}

/// Standard deviation of the logarithms of the guises' speeds.
fn spread(guises: &Guises) -> f64 {
    let logs: Vec<f64> = guises.others.iter().map(|o| o.speed.ln()).collect();
    (logs.iter().map(|l| l * l).sum::<f64>() / logs.len() as f64).sqrt()
}

#[test]
fn inside_of_what_the_fit_knows_runs_scatter_as_held_out_ones_did() {
    let known = guises(&deployment("llama-3.1-8b", "h100-sxm", 2));
    assert!(known.beyond.is_empty());
    assert_eq!(known.others.len(), GUISES);
    approx::assert_relative_eq!(spread(&known), 0.02, max_relative = 1e-9);
    // Draws take turns: the second makes matrix products slower.
    let mut batch = BatchShape::default();
    batch.add_prefill(4000, 0);
    let time = |m: &MachineModel| m.step_time.duration(&batch);
    assert_eq!(time(&known.others[0]), time(&known.best));
    assert!(time(&known.others[1]) > time(&known.best));
    approx::assert_relative_eq!(known.best.speed, 1.0);
    assert!(known.best.front_end.inbound > SimDuration::ZERO);
    let engine = Guises::roofline(
        &fit(),
        Path::new("f"),
        &deployment("llama-3.1-8b", "h100-sxm", 1),
        false,
    );
    assert_eq!(engine.unwrap().best.front_end, FrontEnd::default());
}

#[test]
fn what_the_fit_has_not_seen_is_named_and_widens() {
    let beyond = |d: &Deployment| {
        let g = guises(d);
        (g.beyond.iter().cloned().collect::<Vec<_>>().join(" "), spread(&g))
    };
    let (axes, sd) = beyond(&deployment("llama-3.1-70b", "h100-sxm", 4));
    assert_eq!(axes, "model tp");
    approx::assert_relative_eq!(sd, 0.05_f64.hypot(NEW_SPLIT), max_relative = 1e-9);
    let (axes, sd) = beyond(&deployment("llama-3.1-8b", "a100-sxm-80gb", 1));
    assert_eq!(axes, "accelerator");
    assert!(sd >= NEW_DEVICE, "{sd}");
    let narrow = Deployment {
        dtype: crate::steptime::WeightDtype::Fp8,
        ..deployment("llama-3.1-8b", "h100-sxm", 1)
    };
    let (axes, sd) = beyond(&narrow);
    assert_eq!(axes, "dtype");
    assert!(sd >= NEW_FORMAT, "{sd}");
}

#[test]
fn misfit_of_a_figure_is_its_own_or_its_metric_s_widest() {
    let g = guises(&deployment("llama-3.1-8b", "h100-sxm", 1));
    approx::assert_relative_eq!(g.misfit("ttft_s", "p50"), 0.04);
    approx::assert_relative_eq!(g.misfit("ttft_s", "mean"), 0.2);
    approx::assert_relative_eq!(g.misfit("e2e_s", "p99"), 0.03);
    let elsewhere = guises(&deployment("llama-3.1-8b", "a100-sxm-80gb", 1));
    assert!(elsewhere.misfit("ttft_s", "p50") > NEW_DEVICE_LATENCY);
}
