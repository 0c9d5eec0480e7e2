use super::fitting::{Formula, Sample, Spec, fit};
use super::read::{AllReduce, Attention, Experts, Gemm};
use super::*;
use crate::steptime::collective::{self, Link};
use crate::steptime::parameters::Param;
use crate::steptime::roofline_fit::RooflineFit;
use approx::assert_relative_eq;

/// A device whose figures are easy to reckon with; no on-chip memory, so every row counts.
fn device() -> Device {
    Device {
        bf16_flops: 1e15,
        fp8_flops: Some(2e15),
        bytes_per_s: 3e12,
        on_chip_bytes: None,
        link: Some((4e11, true)),
    }
}

fn value(part: &PartFit, name: &str) -> f64 {
    part.parameters.iter().find(|p| p.name == name).unwrap().value
}

fn assert_recovered(part: &PartFit, truth: &[(&str, f64)]) {
    for (name, truth) in truth {
        assert_relative_eq!(value(part, name), *truth, max_relative = 0.03);
    }
    let all = &part.held_out[0];
    assert_eq!(all.regime, "all");
    assert!(all.p90_abs < 0.02, "{}: {all:?}", part.part);
}

const SIZES: [f64; 5] = [1024.0, 2048.0, 4096.0, 8192.0, 14336.0];
const ROWS: [f64; 8] = [1.0, 8.0, 32.0, 64.0, 256.0, 512.0, 2048.0, 8192.0];

#[test]
fn known_products_are_recovered_with_the_pass_that_quantises() {
    let rows = |dtype: &str, bytes: f64, peak: f64, quantise: f64| -> Vec<Gemm> {
        let mut rows = Vec::new();
        for (n, k) in SIZES.iter().flat_map(|n| SIZES.map(|k| (*n, k))) {
            for m in ROWS {
                let compute: f64 = 2.0 * m * n * k / peak / 0.8;
                let memory: f64 = (n * k * bytes + m * (k * bytes + n * 2.0)) / 3e12 / 0.85;
                let joined = (compute.powf(2.2) + memory.powf(2.2)).powf(1.0 / 2.2);
                rows.push(Gemm {
                    dtype: dtype.into(),
                    m,
                    n,
                    k,
                    seconds: joined + 5e-6 + quantise * m * k,
                });
            }
        }
        rows
    };
    let mut all = rows("bfloat16", 2.0, 1e15, 0.0);
    all.extend(rows("fp8", 1.0, 2e15, 3e-12));
    let parts = gemm::parts(&all, &device());
    assert_eq!(parts.len(), 2);
    let truth = [("weight_bandwidth", 0.85), ("join", 2.2), ("kernel_time", 5e-6)];
    assert_recovered(&parts[0], &truth);
    assert_relative_eq!(value(&parts[0], "gemm_compute"), 0.8, max_relative = 0.03);
    assert_recovered(&parts[1], &truth);
    assert_recovered(&parts[1], &[("gemm_compute_8bit", 0.8), ("quantise_time", 3e-12)]);
}

fn attention(tokens: f64, sequences: f64, heads: f64, kv_heads: f64, seconds: f64) -> Attention {
    Attention {
        kv_dtype: "bfloat16".into(),
        sequences,
        tokens,
        heads,
        kv_heads,
        head_dim: 128.0,
        seconds,
    }
}

#[test]
fn known_attention_is_recovered() {
    let mut prefill = Vec::new();
    let mut decode = Vec::new();
    for (heads, kv_heads) in [
        (1.0, 1.0),
        (4.0, 1.0),
        (8.0, 2.0),
        (16.0, 4.0),
        (32.0, 8.0),
        (64.0, 8.0),
    ] {
        for exponent in 4..15 {
            let n = f64::from(1 << exponent);
            for sequences in [1.0, 4.0, 16.0, 64.0, 256.0] {
                let pair = 4.0 * heads * 128.0 * sequences / 1e15 / 0.65;
                let throughput: f64 = pair * (n * (n + 1.0) / 2.0 + 900.0 / 2.0 * n);
                let seconds = 1.2e-5 + throughput.max(n * 1.5e-8);
                prefill.push(attention(n, sequences, heads, kv_heads, seconds));
                let memory: f64 = 2.0 * kv_heads * 128.0 * 2.0 * sequences * n.max(150.0) / 3e12 / 0.9;
                decode.push(attention(n, sequences, heads, kv_heads, 1.1e-5 + memory));
            }
        }
    }
    let part = attention::prefill(&prefill, &device()).unwrap();
    assert_recovered(
        &part,
        &[
            ("prefill_attention", 0.65),
            ("prefill_half_length", 900.0),
            ("prefill_key_time", 1.5e-8),
            ("kernel_time", 1.2e-5),
        ],
    );
    let parts = attention::decode(&decode, &device());
    assert_eq!(parts.len(), 1, "there are no rows with an fp8 cache");
    assert_recovered(
        &parts[0],
        &[
            ("kv_bandwidth", 0.9),
            ("kv_least_positions", 150.0),
            ("kernel_time", 1.1e-5),
        ],
    );
}

#[test]
fn known_all_reduces_are_recovered_over_a_switch_and_over_a_bus() {
    for switched in [true, false] {
        let mut rows = Vec::new();
        for exponent in 8..31 {
            let bytes = f64::from(1 << exponent);
            for ranks in [2, 4, 8] {
                let p = f64::from(ranks);
                let share = 0.8 * 0.9_f64.powf((p / 2.0).log2());
                let ring = 2e-5 + 2.0 * (p - 1.0) * 1e-6 + 2.0 * (p - 1.0) / p * bytes / (4e11 * share);
                let link = Link {
                    latency_s: 5e-6,
                    bytes_per_s: 4e11 * 0.5,
                    all_to_all: true,
                };
                let direct = collective::direct(link, ranks, bytes);
                let seconds = if switched || ranks == 2 {
                    ring.min(direct)
                } else {
                    ring
                };
                rows.push(AllReduce {
                    ranks,
                    bytes,
                    seconds,
                });
            }
        }
        let device = Device {
            link: Some((4e11, switched)),
            ..device()
        };
        let part = super::collective::all_reduce(&rows, &device).unwrap();
        assert_recovered(
            &part,
            &[
                ("allreduce_latency", 5e-6),
                ("allreduce_bandwidth", 0.5),
                ("ring_bandwidth", 0.8),
                ("ring_bandwidth_per_doubling", 0.9),
            ],
        );
    }
    let unlinked = Device {
        link: None,
        ..device()
    };
    assert!(super::collective::all_reduce(&[], &unlinked).is_none());
}

#[test]
fn known_experts_are_recovered() {
    let mut rows = Vec::new();
    for (hidden, width, experts, per_token) in [
        (2048.0, 768.0, 128.0, 8.0),
        (4096.0, 14336.0, 8.0, 2.0),
        (7168.0, 2048.0, 256.0, 8.0),
        (3072.0, 1024.0, 64.0, 4.0),
        (5120.0, 1536.0, 160.0, 6.0),
    ] {
        for tokens in ROWS {
            for routing in ["balanced", "power_law_1.2"] {
                let load: f64 = per_token * tokens / experts;
                let touched = if routing == "balanced" {
                    load.min(1.0)
                } else {
                    1.0 - (1.0 + load / 1.5).powf(-1.5)
                };
                let params = 3.0 * hidden * width;
                let pairs = per_token * tokens;
                let compute: f64 = 2.0 * params * pairs / 1e15 / 0.6;
                let memory: f64 = (params * 2.0 * experts * touched
                    + 2.0 * pairs * (2.0 * hidden + 3.0 * width))
                    / 3e12
                    / 0.9;
                rows.push(Experts {
                    dtype: "bfloat16".into(),
                    routing: routing.into(),
                    tokens,
                    hidden,
                    width,
                    per_token,
                    experts,
                    seconds: (compute.powf(1.3) + memory.powf(1.3)).powf(1.0 / 1.3) + 3e-5,
                });
            }
        }
    }
    let part = moe::experts(&rows, &device()).unwrap();
    assert_recovered(
        &part,
        &[
            ("moe_compute", 0.6),
            ("moe_bandwidth", 0.9),
            ("join", 1.3),
            ("kernel_time", 3e-5),
            ("routing_shape", 1.5),
        ],
    );
}

/// t = x / a: one parameter whose families disagree by a known amount.
struct Ratio;

impl Formula for Ratio {
    type Shape = f64;
    fn specs(&self) -> Vec<Spec> {
        vec![Spec {
            name: "a",
            unit: "1",
            bounds: (0.01, 1.0),
            start: 0.5,
        }]
    }
    fn seconds(&self, p: &[f64], x: &f64) -> f64 {
        x / p[0]
    }
}

#[test]
fn the_width_of_a_prior_is_the_spread_over_families_not_the_error_of_the_mean() {
    // Eleven families at a = 0.4 e^(-0.5), 0.4 e^(-0.4), ..., a hundred rows each: the mean is known to a percent,
    // but a shape from another family is not.
    let samples: Vec<_> = (0..1100)
        .map(|i| {
            let offset = f64::from(i % 11) / 10.0 - 0.5;
            let x = f64::from(i + 1) * 1e-6;
            Sample {
                shape: x,
                seconds: x / (0.4 * offset.exp()),
                family: format!("{}", i % 11),
                regime: "all of it".into(),
            }
        })
        .collect();
    let part = fit("ratio", &Ratio, &samples, None).unwrap();
    let a = &part.parameters[0];
    assert_relative_eq!(a.value, 0.4, max_relative = 0.02);
    // The deviations are 0, .1, .1, .2, .2, .3, ...: their median is 0.3.
    assert_relative_eq!(a.log_sd, 0.3 * 1.4826, max_relative = 0.03);
    assert_eq!(a.telling_rows, 1100);
    assert!(!a.at_bound);
    assert!(
        fit("ratio", &Ratio, &samples[..9], None).is_none(),
        "too few rows"
    );

    // An efficiency that would have to be above 1 stands at its bound, and says so.
    let impossible: Vec<_> = samples
        .iter()
        .map(|s| Sample {
            seconds: s.shape / 3.0,
            ..s.clone()
        })
        .collect();
    assert!(fit("ratio", &Ratio, &impossible, None).unwrap().parameters[0].at_bound);
}

fn kernel_fit(accelerator: &str, value: f64) -> KernelFit {
    KernelFit {
        kneeboard_kernel_fit: KERNEL_FIT_FORMAT,
        fitted_with: "test".into(),
        accelerator: accelerator.into(),
        devices: vec![],
        carried_over: false,
        parts: vec![PartFit {
            part: "gemm bfloat16".into(),
            rows: 10,
            families: 5,
            parameters: vec![KernelParameter {
                name: "gemm_compute".into(),
                value,
                unit: "1".into(),
                log_sd: 0.1,
                telling_rows: 10,
                at_bound: false,
            }],
            held_out: vec![],
            note: None,
        }],
        data: vec![],
    }
}

#[test]
fn a_device_without_kernels_gets_the_mean_and_the_spread_between_devices() {
    let accelerator = crate::profile::catalog::accelerator("h100-sxm", Path::new(".")).unwrap();
    let fits = [kernel_fit("one", 0.4), kernel_fit("two", 0.9)];
    let carried = carry_over(&accelerator, &fits).unwrap();
    let p = &carried.parts[0].parameters[0];
    assert_relative_eq!(p.value, 0.6, max_relative = 1e-12);
    // Half the logarithm of 0.9 / 0.4 on either side of the mean: a standard deviation of that times sqrt(2).
    let between = (0.9_f64 / 0.4).ln() / 2.0 * 2.0_f64.sqrt();
    assert_relative_eq!(p.log_sd, between.hypot(0.1), max_relative = 1e-12);
    assert!(carried.carried_over);
    assert_eq!(carried.devices, ["one", "two"]);
    assert!(carry_over(&accelerator, &fits[..1]).is_err());

    // What is written is what is read.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fit.yaml");
    std::fs::write(&path, carried.to_yaml().unwrap()).unwrap();
    assert_eq!(KernelFit::read(&path).unwrap(), carried);
    let text = carried.to_yaml().unwrap().replace("log_sd:", "log_sdd:");
    std::fs::write(&path, text).unwrap();
    assert!(KernelFit::read(&path).unwrap_err().to_string().contains("log_sd"));

    // As a fit of the roofline: what kernels tell is in it, the rest stands at its prior, and it reads back.
    let roofline = carried.to_roofline("h100-kernels", "kneeboard calibrate kernels");
    let text = roofline.to_yaml().unwrap();
    let back = RooflineFit::from_text(&text, &path).unwrap();
    assert_eq!(back, roofline);
    for parameter in &back.parameters {
        let told = parameter.name == "gemm_compute";
        assert_eq!(parameter.identified, told, "{}", parameter.name);
        if !told {
            assert_eq!(
                (parameter.value, parameter.log_sd),
                (parameter.prior, parameter.prior_log_sd)
            );
        }
    }
    assert_relative_eq!(back.values()[Param::GemmCompute], 0.6, max_relative = 1e-9);
    // The draws spread as the width says.
    let logs: Vec<f64> = back
        .parameter_draws()
        .iter()
        .map(|d| d[Param::StepTime].ln())
        .collect();
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    let sd = (logs.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / logs.len() as f64).sqrt();
    assert_relative_eq!(sd, Param::StepTime.spec().prior_log_sd, max_relative = 0.4);
}

#[test]
fn kernels_of_a_faster_device_are_refused() {
    let accelerator = crate::profile::catalog::accelerator("h100-sxm", Path::new(".")).unwrap();
    let rows = KernelRows {
        gemm: vec![Gemm {
            dtype: "bfloat16".into(),
            m: 8192.0,
            n: 8192.0,
            k: 8192.0,
            seconds: 2.0 * 8192.0_f64.powi(3) / 2000e12,
        }],
        devices: ["an unknown card".to_owned()].into(),
        ..KernelRows::default()
    };
    let error = fit_kernels(Path::new("tables"), &rows, &accelerator)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("faster than the peak of 'h100-sxm'") && error.contains("an unknown card"),
        "{error}"
    );
}
