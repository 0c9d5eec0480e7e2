//! Layers of experts: t0 + ((F / (P e))^q + (B / (W e_m))^q)^(1/q) with the weights of the experts that the tokens
//! touch.
//!
//! Balanced routing touches min(E, k T) experts. Skewed routing touches E (1 - (1 + k T / (E z))^-z): even routing
//! with popularities spread like a gamma law of shape z (z without end is even routing). Padding to tiles of rows
//! shows nowhere in the data: while it matters, weights take longer.

use super::fitting::{Formula, Sample, Spec, fit};
use super::read::Experts;
use super::{Device, PartFit};
use crate::steptime::roofline::join;

/// Tokens of a step, at most.
const MOST_TOKENS: f64 = 16384.0;
/// Narrower slices of experts are not what anyone serves.
const LEAST_WIDTH: f64 = 128.0;
/// What tells the Nemotron shapes apart, see [`gated`].
const LATENT_HIDDEN: f64 = 2688.0;
const LATENT_PER_TOKEN: f64 = 22.0;

struct Layer {
    compute_s: f64,
    /// Seconds of the weights of one expert, and of the activations, at the full bandwidth.
    expert_s: f64,
    activations_s: f64,
    experts: f64,
    /// Pairs of a token and an expert, for each expert.
    load: f64,
    balanced: bool,
}

struct ExpertLayers;

impl Formula for ExpertLayers {
    type Shape = Layer;

    fn specs(&self) -> Vec<Spec> {
        vec![
            Spec {
                name: "moe_compute",
                unit: "1",
                bounds: (0.02, 1.0),
                start: 0.6,
            },
            Spec {
                name: "moe_bandwidth",
                unit: "1",
                bounds: (0.02, 1.0),
                start: 0.85,
            },
            Spec {
                name: "join",
                unit: "1",
                bounds: (0.8, 16.0),
                start: 1.3,
            },
            Spec {
                name: "kernel_time",
                unit: "s",
                bounds: (1e-8, 1e-3),
                start: 3e-5,
            },
            Spec {
                name: "routing_shape",
                unit: "1",
                bounds: (0.2, 100.0),
                start: 1.5,
            },
        ]
    }

    fn seconds(&self, p: &[f64], s: &Layer) -> f64 {
        let touched = if s.balanced {
            s.load.min(1.0)
        } else {
            1.0 - (1.0 + s.load / p[4]).powf(-p[4])
        };
        let memory = s.expert_s * s.experts * touched + s.activations_s;
        join(s.compute_s / p[0], memory / p[1], p[2]) + p[3]
    }
}

/// Fits expert layers in bf16.
///
/// 8-bit expert kernels are left alone: those of the tables differ by a factor of five between devices, and no
/// formula of bytes and operations tells why.
pub fn experts(rows: &[Experts], device: &Device) -> Option<PartFit> {
    let samples: Vec<_> = rows
        .iter()
        .filter(|r| r.dtype == "bfloat16" && r.tokens <= MOST_TOKENS && r.width >= LEAST_WIDTH && gated(r))
        .map(|r| {
            let params = 3.0 * r.hidden * r.width;
            let pairs = r.per_token * r.tokens;
            Sample {
                shape: Layer {
                    compute_s: 2.0 * params * pairs / device.bf16_flops,
                    expert_s: params * 2.0 / device.bytes_per_s,
                    activations_s: 2.0 * pairs * (2.0 * r.hidden + 3.0 * r.width) / device.bytes_per_s,
                    experts: r.experts,
                    load: pairs / r.experts,
                    balanced: r.routing == "balanced",
                },
                seconds: r.seconds,
                family: format!("hidden {}, {} experts of {}", r.hidden, r.experts, r.width),
                regime: regime(r),
            }
        })
        .collect();
    fit(
        "experts bfloat16",
        &ExpertLayers,
        &samples,
        Some("without expert parallelism".into()),
    )
}

/// Whether an expert has three matrices. The tables do not say; the Nemotron shapes among them (hidden 2688, or 22
/// experts a token) have two and work in a smaller latent space.
fn gated(r: &Experts) -> bool {
    r.hidden != LATENT_HIDDEN && r.per_token != LATENT_PER_TOKEN
}

fn regime(r: &Experts) -> String {
    let routing = if r.routing == "balanced" {
        "balanced"
    } else {
        "skewed"
    };
    let tokens = match r.tokens {
        t if t <= 8.0 => "1 to 8 tokens",
        t if t <= 64.0 => "9 to 64 tokens",
        t if t <= 512.0 => "65 to 512 tokens",
        _ => "over 512 tokens",
    };
    format!("{routing}, {tokens}")
}
