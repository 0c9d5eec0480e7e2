//! Matrix products: ((F / (P e_c))^q + (B / (W e_m))^q)^(1/q) + t0, and for 8-bit ones a pass that quantises the
//! activations.
//!
//! That pass takes about 3 ps an element on H100, H200, L40S and RTX PRO 6000 alike, whatever their memory
//! bandwidth is, so it is a time an element and not a volume of bytes.

use super::fitting::{Formula, Sample, Spec, fit};
use super::read::Gemm;
use super::{Device, PartFit};
use crate::steptime::roofline::join;

/// Sizes of the products of language models: below, one kernel's launch is all there is.
const LEAST_FEATURES: f64 = 1024.0;
/// Tokens of a step, at most.
const MOST_TOKENS: f64 = 16384.0;
/// Weights that are read from the on-chip memory say nothing about the memory; those below this share of it are
/// kept, because their time is the fixed one in either case.
pub const SMALL_SHARE: f64 = 1.0 / 16.0;

struct Product {
    compute_s: f64,
    memory_s: f64,
    activations: f64,
}

struct Products {
    quantised: bool,
}

impl Formula for Products {
    type Shape = Product;

    fn specs(&self) -> Vec<Spec> {
        let spec = |name, unit, bounds, start| Spec {
            name,
            unit,
            bounds,
            start,
        };
        let compute = if self.quantised {
            "gemm_compute_8bit"
        } else {
            "gemm_compute"
        };
        let mut specs = vec![
            spec(compute, "1", (0.02, 1.0), 0.7),
            spec("weight_bandwidth", "1", (0.02, 1.0), 0.8),
            spec("join", "1", (0.8, 16.0), 2.5),
            spec("kernel_time", "s", (1e-8, 1e-3), 4e-6),
        ];
        if self.quantised {
            specs.push(spec("quantise_time", "s/element", (1e-15, 1e-9), 3e-12));
        }
        specs
    }

    fn seconds(&self, p: &[f64], s: &Product) -> f64 {
        let quantise = if self.quantised { p[4] * s.activations } else { 0.0 };
        join(s.compute_s / p[0], s.memory_s / p[1], p[2]) + p[3] + quantise
    }
}

/// Fits the products of each number format whose peak is known.
pub fn parts(rows: &[Gemm], device: &Device) -> Vec<PartFit> {
    [
        ("bfloat16", 2.0, Some(device.bf16_flops)),
        ("fp8", 1.0, device.fp8_flops),
    ]
    .into_iter()
    .filter_map(|(dtype, bytes, peak)| part(rows, device, dtype, bytes, peak?))
    .collect()
}

fn part(rows: &[Gemm], device: &Device, dtype: &str, bytes: f64, peak: f64) -> Option<PartFit> {
    let wanted = |r: &&Gemm| {
        let weights = r.n * r.k * bytes;
        r.dtype == dtype
            && r.n >= LEAST_FEATURES
            && r.k >= LEAST_FEATURES
            && r.m <= MOST_TOKENS
            && device.outside_cache(weights, 1.0)
    };
    let samples: Vec<_> = rows
        .iter()
        .filter(wanted)
        .map(|r| {
            // Activations go in in the format of the weights and come out in 16 bits.
            let moved = r.n * r.k * bytes + r.m * (r.k * bytes + r.n * 2.0);
            Sample {
                shape: Product {
                    compute_s: 2.0 * r.m * r.n * r.k / peak,
                    memory_s: moved / device.bytes_per_s,
                    activations: r.m * r.k,
                },
                seconds: r.seconds,
                family: format!("{} x {}", r.n, r.k),
                regime: regime(r.m).to_owned(),
            }
        })
        .collect();
    let formula = Products {
        quantised: bytes < 2.0,
    };
    fit(&format!("gemm {dtype}"), &formula, &samples, None)
}

fn regime(m: f64) -> &'static str {
    match m {
        m if m <= 8.0 => "m 1 to 8",
        m if m <= 64.0 => "m 9 to 64",
        m if m <= 256.0 => "m 65 to 256",
        m if m <= 1024.0 => "m 257 to 1024",
        _ => "m over 1024",
    }
}
