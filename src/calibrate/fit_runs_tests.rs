//! Both doors on runs that the simulator itself made: what was put in must come out.

use super::*;
use crate::calibrate::observed::{Figure, Metric, Observation, Samples, Stat};
use crate::calibrate::points::{PointDefaults, read_points};
use crate::calibrate::roofline_file::{FitHead, parameters, roofline_file};
use crate::calibrate::scatter::scatter;
use crate::steptime::roofline_fit::Door;

/// Runs as rows of a table describe them, without measured figures.
fn runs(rows: &[&str]) -> Vec<ObservedRun> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("points.csv");
    let header = "accelerator,model,dtype,engine_version,tp,load,max_concurrency,request_rate,num_prompts,input_len,\
                  output_len,length_jitter";
    std::fs::write(&path, format!("{header}\n{}\n", rows.join("\n"))).unwrap();
    let points = read_points(&path, &PointDefaults::default()).unwrap();
    points.into_iter().map(|p| p.run).collect()
}

/// Gives every run the figures that it shows under `truth`.
fn observe(runs: &mut [ObservedRun], truth: &Parameters, figures: &[Figure]) {
    for run in runs {
        let samples = Samples::of(&run.simulate(truth).unwrap(), &run.counted);
        run.observations = figures
            .iter()
            .map(|&figure| Observation {
                figure,
                value: samples.figure(figure),
                log_sd: scatter(figure, samples.count()),
            })
            .collect();
    }
}

/// Not the priors, and not farther from them than the priors say.
fn truth() -> Parameters {
    let mut out = Parameters::default();
    for (spec, z) in SPECS.iter().zip([0.7, -0.9, 0.4, -0.5, 1.0].into_iter().cycle()) {
        out[spec.param] = (spec.prior.ln() + z * spec.prior_log_sd).exp();
    }
    out.clamped()
}

const fn figure(metric: Metric, stat: Stat) -> Figure {
    Figure { metric, stat }
}

fn file(runs: &[ObservedRun], options: RunFitOptions) -> (RunFit, String) {
    let priors = Priors::default();
    let fit = fit_runs(runs, &priors, options, &|_| ()).unwrap();
    let head = FitHead {
        name: "test".into(),
        door: Door::Events,
        command: "none".into(),
        data: Vec::new(),
        notes: Vec::new(),
        engines: Vec::new(),
    };
    let text = roofline_file(head, runs, &priors, &fit)
        .unwrap()
        .to_yaml()
        .unwrap();
    (fit, text)
}

/// The truth lies in the 90 % intervals of nearly all parameters that the runs move, and the figures are met.
#[track_caller]
fn recovered(runs: &[ObservedRun], fit: &RunFit, known: &[Param]) {
    let truth = truth();
    let table = parameters(&Priors::default(), fit);
    // The search went as deep as the truth lies.
    let log = log_priors(&Priors::default(), &fit.responsive);
    let x: Vec<f64> = fit.responsive.iter().map(|p| truth[*p].ln()).collect();
    let model = Model::new(runs.iter().collect(), &Priors::default(), &fit.responsive);
    let residuals = model.at(&x).unwrap();
    let at_truth = posterior::loss(&residuals, &vec![1.0; residuals.len()], &x, &log);
    let deep = fit.posterior.loss;
    assert!(deep <= at_truth + 1.0, "loss {deep}, at the truth {at_truth}");
    let outside: Vec<&str> = fit
        .responsive
        .iter()
        .map(|p| &table[*p as usize])
        .filter(|p| {
            let value = truth[Param::named(&p.name).unwrap()];
            !(p.interval_90.0..=p.interval_90.1).contains(&value)
        })
        .map(|p| p.name.as_str())
        .collect();
    assert!(
        outside.len() <= 2,
        "outside of their intervals: {outside:?}; {table:#?}; losses {deep}, {at_truth}"
    );
    for param in known {
        let row = &table[*param as usize];
        assert!(!outside.contains(&row.name.as_str()), "{row:?}");
        assert!(row.log_sd < 0.8 * row.prior_log_sd, "{row:?}");
    }
    for f in &fit.fitted {
        let o = runs[f.run].observations[f.observation];
        if o.figure.metric == Metric::Tpot {
            approx::assert_relative_eq!(f.predicted, o.value, max_relative = 0.01);
        }
    }
}

#[test]
fn request_times_of_simulated_runs_give_their_parameters_back_on_any_number_of_threads() {
    let mut runs = runs(&[
        "h100-sxm,llama-3.1-8b,bf16,0.15.1,1,open,,2,150,1200,80,0.5",
        "h100-sxm,llama-3.1-8b,bf16,0.15.1,1,open,,12,200,1200,80,0.5",
        "h100-sxm,llama-3.1-8b,bf16,0.15.1,2,open,,8,200,1200,80,0.5",
        "h100-sxm,llama-3.1-70b,bf16,0.15.1,4,open,,3,150,1200,80,0.5",
    ]);
    let figures = [
        figure(Metric::Tpot, Stat::Mean),
        figure(Metric::Ttft, Stat::Mean),
        figure(Metric::Ttft, Stat::Quantile(0.1)),
        figure(Metric::Ttft, Stat::Quantile(0.5)),
        figure(Metric::Ttft, Stat::Quantile(0.9)),
        figure(Metric::E2e, Stat::Mean),
    ];
    observe(&mut runs, &truth(), &figures);
    let options = RunFitOptions {
        hold_out: false,
        ..RunFitOptions::default()
    };
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(|| file(&runs, options))
    };
    let (fit, text) = on(2);
    recovered(&runs, &fit, &[Param::WeightBandwidth]);
    assert_eq!(
        text,
        on(1).1,
        "the same seed gives the same bytes on 1 and 2 threads"
    );
    let other = RunFitOptions { seed: 2, ..options };
    assert_ne!(
        file(&runs, other).0.draws,
        fit.draws,
        "another seed draws otherwise"
    );
}

#[test]
fn summary_rows_of_simulated_runs_give_their_parameters_back() {
    let mut runs = runs(&[
        "h100-sxm,llama-3.1-8b,bf16,0.15.1,1,closed,1,,20,500,100,0.2",
        "h100-sxm,llama-3.1-8b,bf16,0.15.1,1,closed,32,,160,500,100,0.2",
        "h100-sxm,llama-3.1-8b,bf16,0.15.1,1,closed,8,,80,4000,100,0.2",
        "h100-sxm,llama-3.1-8b,bf16,0.15.1,2,closed,16,,160,1000,100,0.2",
        "h100-sxm,llama-3.1-70b,bf16,0.15.1,4,closed,16,,80,1000,100,0.2",
    ]);
    let figures = [
        figure(Metric::Ttft, Stat::Mean),
        figure(Metric::Tpot, Stat::Mean),
        figure(Metric::E2e, Stat::Mean),
        figure(Metric::OutputThroughput, Stat::Value),
    ];
    observe(&mut runs, &truth(), &figures);
    let (fit, text) = file(&runs, RunFitOptions::default());
    recovered(&runs, &fit, &[Param::WeightBandwidth]);
    // Runs, models and splits are left out in turn; a model's only run but once.
    let left: Vec<&str> = fit.left_out.iter().map(|l| l.what.as_str()).collect();
    assert_eq!(left.len(), 5 + 1 + 1, "{left:?}");
    assert!(text.contains("new_model"));
}
