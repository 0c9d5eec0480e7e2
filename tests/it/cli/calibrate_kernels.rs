//! `kneeboard calibrate kernels`.

use super::support::*;
use crate::shared::data_set;

/// Median and 90th percentile of the absolute error on left-out families that a fit of H100's kernels may have.
/// Each is a fifth above what was measured when the bounds were set; docs/CALIBRATION.md has those figures.
const H100_BOUNDS: [(&str, f64, f64); 6] = [
    ("gemm bfloat16", 0.055, 0.15),
    ("gemm fp8", 0.135, 0.37),
    ("prefill attention", 0.10, 0.34),
    ("decode attention bfloat16", 0.07, 0.21),
    ("all-reduce", 0.055, 0.21),
    ("experts bfloat16", 0.08, 0.25),
];

#[test]
fn kernels_of_an_h100_are_told_for_shapes_that_were_left_out() {
    let Some(kernels) = data_set("kernels of an H100", "kernels") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let fit = dir.path().join("h100.yaml");
    let line = "calibrate kernels {} --accelerator h100-sxm -o {} --json";
    let json = run_line(line, &[&kernels.join("h100_sxm"), &fit])
        .with_code(0)
        .json();
    for (part, median, p90) in H100_BOUNDS {
        let found = json["parts"]
            .as_array()
            .unwrap()
            .iter()
            .find(|p| p["part"] == part);
        let all = &found.unwrap_or_else(|| panic!("no {part}"))["held_out"][0];
        assert!(all["median_abs"].as_f64().unwrap() < median, "{part}: {all}");
        assert!(all["p90_abs"].as_f64().unwrap() < p90, "{part}: {all}");
        assert!(all["bias"].as_f64().unwrap().abs() < 0.02, "{part}: {all}");
    }
    for parameter in json["parts"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|p| p["parameters"].as_array().unwrap())
    {
        assert!(parameter["at_bound"].is_null(), "{parameter}");
    }

    let prior = std::fs::read_to_string(&fit).unwrap();
    assert!(
        prior.contains("door: kernels") && prior.contains("checksum: sha256-"),
        "{prior}"
    );

    // The tables of one device under the name of another.
    let other = dir.path().join("a100.yaml");
    let line = "calibrate kernels {} --accelerator a100-sxm-80gb -o {}";
    run_line(line, &[&kernels.join("h100_sxm"), &other]).refused(&[
        "kernels of NVIDIA H100 80GB HBM3",
        "not 'a100-sxm-80gb'",
        "--accelerator h100-sxm",
    ]);
    // Two devices at once.
    run_line(line, &[&kernels, &other]).refused(&["several devices", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S"]);
    assert!(!other.exists(), "a refused command wrote a fit");
}

#[test]
fn what_is_no_kernel_table_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let fit = dir.path().join("fit.yaml");
    let line = "calibrate kernels {} --accelerator h100-sxm -o {}";
    run_line(line, &[dir.path(), &fit]).refused(&["no kernel table", "gemm_perf.parquet"]);
    std::fs::write(dir.path().join("gemm_perf.parquet"), "m,n,k,latency\n").unwrap();
    run_line(line, &[dir.path(), &fit]).refused(&["gemm_perf.parquet", "not a whole Parquet file"]);
    let line = "calibrate kernels {} --accelerator h100-sxn -o {}";
    run_line(line, &[dir.path(), &fit]).refused(&["h100-sxn", "h100-sxm"]);
    let line = "calibrate kernels --carry-over {} --accelerator l40s -o {}";
    run_line(line, &[&dir.path().join("absent.yaml"), &fit]).refused(&["absent.yaml"]);
    assert!(!fit.exists(), "a refused command wrote a fit");
}
