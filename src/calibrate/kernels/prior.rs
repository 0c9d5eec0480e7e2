//! A fit of kernels as a fit of the roofline: what kernels tell, and the general priors for everything else.

use rand_distr::{Distribution, StandardNormal};

use super::{KernelFit, KernelParameter};
use crate::rng::{Purpose, stream};
use crate::steptime::fit_parts::{FitData, FitError, FittedParameter, Misfit, SpeaksFor};
use crate::steptime::parameters::{PARAMS, Param, Parameters, SPECS};
use crate::steptime::roofline_fit::{Door, Form, ROOFLINE_FIT_FORMAT, RooflineFit};

/// Parameter vectors drawn.
const DRAWS: u64 = 24;
/// Seed of the draws.
const SEED: u64 = 1;
/// The 95th percentile of a standard normal law.
const NORMAL_95: f64 = 1.644_853_6;
/// A median absolute error times this estimates a normal standard deviation.
const MEDIAN_TO_SIGMA: f64 = 1.4826;
/// Matrix products of a dense layer: query, key and value together, output, gate and up together, down.
const PRODUCTS_OF_A_LAYER: f64 = 4.0;

/// Which parameter of the roofline each parameter of a part is.
const SHARED: [(&str, &str, Param); 11] = [
    ("gemm bfloat16", "gemm_compute", Param::GemmCompute),
    ("gemm bfloat16", "weight_bandwidth", Param::WeightBandwidth),
    ("gemm bfloat16", "join", Param::Join),
    ("gemm fp8", "gemm_compute_8bit", Param::GemmCompute8Bit),
    ("prefill attention", "prefill_attention", Param::PrefillAttention),
    (
        "prefill attention",
        "prefill_half_length",
        Param::PrefillHalfLength,
    ),
    ("prefill attention", "prefill_key_time", Param::PrefillKeyTime),
    ("decode attention bfloat16", "kv_bandwidth", Param::KvBandwidth),
    ("experts bfloat16", "moe_efficiency", Param::MoeEfficiency),
    ("all-reduce", "allreduce_latency", Param::AllReduceLatency),
    ("all-reduce", "allreduce_bandwidth", Param::AllReduceBandwidth),
];

impl KernelFit {
    /// The fit as a fit of the roofline under `name`, made by `command`.
    pub fn to_roofline(&self, name: &str, command: &str) -> RooflineFit {
        let told = self.told();
        let parameters: Vec<FittedParameter> = SPECS
            .iter()
            .map(|spec| {
                let found = told.iter().find(|t| t.0 == spec.param);
                let (value, log_sd) = found.map_or((spec.prior, spec.prior_log_sd), |t| (t.1, t.2));
                let value = value.clamp(spec.bounds.0, spec.bounds.1);
                let far = (NORMAL_95 * log_sd).exp();
                FittedParameter {
                    name: spec.name.into(),
                    value,
                    unit: spec.unit.into(),
                    log_sd,
                    interval_90: ((value / far).max(spec.bounds.0), (value * far).min(spec.bounds.1)),
                    prior: spec.prior,
                    prior_log_sd: spec.prior_log_sd,
                    identified: found.is_some(),
                }
            })
            .collect();
        let draws = draws(&parameters);
        RooflineFit {
            kneeboard_fit: ROOFLINE_FIT_FORMAT,
            form: Form::Roofline,
            name: name.into(),
            fitted_with: self.fitted_with.clone(),
            door: Door::Kernels,
            command: command.into(),
            speaks_for: self.speaks_for(),
            parameters,
            correlation: Vec::new(),
            draws,
            misfit: self.misfit(),
            hull: Vec::new(),
            residuals: Vec::new(),
            held_out: self.held_out(),
            data: self
                .data
                .iter()
                .filter_map(|d| {
                    Some(FitData {
                        run: d.file.clone(),
                        sha256: d.sha256.clone()?,
                        n: d.used,
                    })
                })
                .collect(),
            notes: self.notes(),
        }
    }

    fn find(&self, part: &str, name: &str) -> Option<&KernelParameter> {
        let part = self.parts.iter().find(|p| p.part == part)?;
        part.parameters.iter().find(|p| p.name == name)
    }

    /// Parameters of the roofline with value and width, as far as kernels tell them.
    fn told(&self) -> Vec<(Param, f64, f64)> {
        let mut told: Vec<_> = SHARED
            .iter()
            .filter_map(|&(part, name, param)| {
                // What stands at its bound is what the data could not settle.
                let p = self.find(part, name).filter(|p| !p.at_bound)?;
                Some((param, p.value, p.log_sd))
            })
            .collect();
        let product = self.find("gemm bfloat16", "kernel_time");
        let attention = self.find("decode attention bfloat16", "kernel_time");
        if let (Some(product), Some(attention)) = (product, attention) {
            // Small kernels between them are in no table, and launches in a graph overlap: the general width stays.
            let width = Param::LayerTime.spec().prior_log_sd;
            let time = PRODUCTS_OF_A_LAYER * product.value + attention.value;
            told.push((
                Param::LayerTime,
                time,
                width.max(product.log_sd).max(attention.log_sd),
            ));
        }
        told
    }

    fn speaks_for(&self) -> SpeaksFor {
        let has = |part: &str| self.parts.iter().any(|p| p.part == part);
        let named = |names: &[(&str, &str)]| -> Vec<String> {
            names
                .iter()
                .filter(|(part, _)| has(part))
                .map(|(_, n)| (*n).to_owned())
                .collect()
        };
        SpeaksFor {
            accelerators: vec![self.accelerator.clone()],
            dtypes: named(&[("gemm bfloat16", "bf16"), ("gemm fp8", "fp8")]),
            kv_dtypes: named(&[
                ("decode attention bfloat16", "bf16"),
                ("decode attention fp8", "fp8"),
            ]),
            ..SpeaksFor::default()
        }
    }

    /// How far single shapes lie from the fit: a layer has a handful of them, over and over.
    fn misfit(&self) -> Vec<Misfit> {
        let errors = self
            .parts
            .iter()
            .find(|p| p.part == "gemm bfloat16")
            .and_then(|p| p.held_out.first());
        errors
            .map(|e| Misfit {
                metric: "step".into(),
                stat: "any".into(),
                log_sd: MEDIAN_TO_SIGMA * e.median_abs,
                n: u32::try_from(e.rows).unwrap_or(u32::MAX),
            })
            .into_iter()
            .collect()
    }

    fn held_out(&self) -> Vec<FitError> {
        let mut out = Vec::new();
        for part in &self.parts {
            for e in &part.held_out {
                for (stat, value) in [
                    ("bias", e.bias),
                    ("median_abs", e.median_abs),
                    ("p90_abs", e.p90_abs),
                ] {
                    out.push(FitError {
                        of: part.part.clone(),
                        run: e.regime.clone(),
                        metric: "kernel_s".into(),
                        stat: stat.into(),
                        actual: None,
                        predicted: None,
                        rel_error: value,
                        interval_90: None,
                        n: u32::try_from(e.rows).unwrap_or(u32::MAX),
                    });
                }
            }
        }
        out
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![
            "From kernels alone: they know no host, no scheduler, no front end and none of the small kernels in \
             between; what is not identified stands at the general prior."
                .to_owned(),
        ];
        if self.carried_over {
            notes.push(format!(
                "Carried over: mean and spread of the kernels of {}.",
                self.devices.join(", ")
            ));
        }
        if let Some(quantise) = self.find("gemm fp8", "quantise_time") {
            notes.push(format!(
                "Quantising activations took {:.2e} s an element beside the 8-bit products.",
                quantise.value
            ));
        }
        if let (Some(ring), Some(more)) = (
            self.find("all-reduce", "ring_bandwidth"),
            self.find("all-reduce", "ring_bandwidth_per_doubling"),
        ) {
            notes.push(format!(
                "Large all-reduces (and all of more than two ranks over PCIe) reach {:.2} of the link between two \
                 ranks and {:.2} times that with each doubling of the ranks.",
                ring.value, more.value
            ));
        }
        notes
    }
}

/// Independent draws of all parameters.
fn draws(parameters: &[FittedParameter]) -> Vec<Vec<f64>> {
    (0..DRAWS)
        .map(|i| {
            let mut rng = stream(SEED, Purpose::Bootstrap, i);
            let mut vector = [0.0; PARAMS];
            for (drawn, p) in vector.iter_mut().zip(parameters) {
                let z: f64 = StandardNormal.sample(&mut rng);
                *drawn = p.value * (z * p.log_sd).exp();
            }
            Parameters(vector).clamped().0.to_vec()
        })
        .collect()
}
