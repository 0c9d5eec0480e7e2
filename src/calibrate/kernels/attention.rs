//! Attention of one layer.
//!
//! Prefill: t0 + max(4 H d / (P e) * sum(pairs + n_half / 2 * n), keys * tau). The first is the throughput of the
//! whole device, with a cost of each query token beside its pairs: the rate is e * n / (n + n_half) of the peak.
//! The second is one block of threads that walks all keys of its queries, because prefill kernels do not split
//! them: it decides for few heads, and for small chunks after a long context.
//!
//! Decode: t0 + sum(max(s, s_min)) * bytes of a position / (W e): every sequence costs at least a tile of positions.
//! Caches that fit in the on-chip memory are left out.

use super::fitting::{Formula, Sample, Spec, fit};
use super::read::Attention;
use super::{Device, PartFit};
use crate::steptime::attention::pairs;

/// Head size of most models; others reach less (64) or more (256) of the peak.
const HEAD_DIM: f64 = 128.0;
/// Sequences of a decode step, at most.
const MOST_SEQUENCES: f64 = 1024.0;
/// A cache has to be this much larger than the on-chip memory: half of one that is as large still stays there.
const CACHE_MARGIN: f64 = 2.0;

struct Prompt {
    /// Seconds of one pair of a query and a key at the peak, all heads and sequences.
    pair_s: f64,
    tokens: f64,
}

struct Prefill;

impl Formula for Prefill {
    type Shape = Prompt;

    fn specs(&self) -> Vec<Spec> {
        vec![
            Spec {
                name: "prefill_attention",
                unit: "1",
                bounds: (0.02, 1.0),
                start: 0.6,
            },
            Spec {
                name: "prefill_half_length",
                unit: "tokens",
                bounds: (1.0, 2e4),
                start: 800.0,
            },
            Spec {
                name: "prefill_key_time",
                unit: "s",
                bounds: (1e-10, 1e-6),
                start: 2e-8,
            },
            Spec {
                name: "kernel_time",
                unit: "s",
                bounds: (1e-8, 1e-3),
                start: 1e-5,
            },
        ]
    }

    fn seconds(&self, p: &[f64], s: &Prompt) -> f64 {
        let throughput = s.pair_s / p[0] * (pairs(s.tokens, 0.0, f64::INFINITY) + p[1] / 2.0 * s.tokens);
        p[3] + throughput.max(s.tokens * p[2])
    }
}

/// Fits prefill attention.
pub fn prefill(rows: &[Attention], device: &Device) -> Option<PartFit> {
    let samples: Vec<_> = rows
        .iter()
        .filter(|r| r.kv_dtype == "bfloat16" && r.head_dim == HEAD_DIM && r.tokens >= 16.0)
        .map(|r| Sample {
            shape: Prompt {
                pair_s: 4.0 * r.heads * r.head_dim * r.sequences / device.bf16_flops,
                tokens: r.tokens,
            },
            seconds: r.seconds,
            family: heads(r),
            regime: prompt_regime(r.tokens).to_owned(),
        })
        .collect();
    fit(
        "prefill attention",
        &Prefill,
        &samples,
        Some("rows without prior context only: the tables hold no others".into()),
    )
}

struct Cache {
    /// Seconds that one position of every sequence takes at the full bandwidth.
    position_s: f64,
    positions: f64,
}

struct Decode;

impl Formula for Decode {
    type Shape = Cache;

    fn specs(&self) -> Vec<Spec> {
        vec![
            Spec {
                name: "kv_bandwidth",
                unit: "1",
                bounds: (0.02, 1.0),
                start: 0.85,
            },
            Spec {
                name: "kv_least_positions",
                unit: "tokens",
                bounds: (1.0, 2e3),
                start: 100.0,
            },
            Spec {
                name: "kernel_time",
                unit: "s",
                bounds: (1e-8, 1e-3),
                start: 1e-5,
            },
        ]
    }

    fn seconds(&self, p: &[f64], s: &Cache) -> f64 {
        let memory = s.position_s * s.positions.max(p[1]) / p[0];
        p[2] + memory
    }
}

/// Fits decode attention over a cache of each number format.
pub fn decode(rows: &[Attention], device: &Device) -> Vec<PartFit> {
    [("bfloat16", 2.0), ("fp8", 1.0)]
        .into_iter()
        .filter_map(|(dtype, bytes)| decode_part(rows, device, dtype, bytes))
        .collect()
}

fn decode_part(rows: &[Attention], device: &Device, dtype: &str, bytes: f64) -> Option<PartFit> {
    let position = |r: &Attention| 2.0 * r.kv_heads * r.head_dim * bytes * r.sequences;
    let samples: Vec<_> = rows
        .iter()
        .filter(|r| {
            r.kv_dtype == dtype
                && r.head_dim == HEAD_DIM
                // With as many KV heads as heads, older kernels leave most of the device idle: a case of its own.
                && r.heads > r.kv_heads
                && r.sequences <= MOST_SEQUENCES
                && device.outside_cache(position(r) * r.tokens, CACHE_MARGIN)
        })
        .map(|r| Sample {
            shape: Cache {
                position_s: position(r) / device.bytes_per_s,
                positions: r.tokens,
            },
            seconds: r.seconds,
            family: heads(r),
            regime: cache_regime(r, device.in_cache(position(r) * r.tokens)),
        })
        .collect();
    fit(
        &format!("decode attention {dtype}"),
        &Decode,
        &samples,
        Some("grouped-query heads only".into()),
    )
}

fn heads(r: &Attention) -> String {
    format!("{} heads, {} kv heads", r.heads, r.kv_heads)
}

fn prompt_regime(tokens: f64) -> &'static str {
    match tokens {
        n if n <= 128.0 => "up to 128 tokens",
        n if n <= 512.0 => "129 to 512 tokens",
        n if n <= 2048.0 => "513 to 2048 tokens",
        _ => "over 2048 tokens",
    }
}

fn cache_regime(r: &Attention, small: bool) -> String {
    let size = if small { "small caches" } else { "large caches" };
    let sequences = match r.sequences {
        b if b <= 8.0 => "1 to 8 sequences",
        b if b <= 64.0 => "9 to 64 sequences",
        _ => "over 64 sequences",
    };
    format!("{size}, {sequences}")
}
