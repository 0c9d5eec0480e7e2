use super::*;

fn fit() -> Fit {
    let mut batch = crate::steptime::BatchShape::default();
    batch.add_decode(1, 5);
    Fit {
        kneeboard_fit: FIT_FORMAT,
        fitted_with: "kneeboard 0".into(),
        target: "seconds".into(),
        parameters: parameters(&[8e-3, 0.0, 2e-4, 1e-7, 0.0, 3e-4, 0.0, 6e-7], 4),
        draws: vec![vec![7e-3, 0.0, 2e-4, 1e-7, 0.0, 3e-4, 0.0, 6e-7, 4.0]],
        hull: Hull::of([&batch]),
        host: HostFit::default(),
        front_end: None,
        stalls: vec![ClassStalls {
            scheduler_class: "RR".into(),
            runs: 1,
            count: 9,
            total_s: 0.45,
            share: 0.05,
            median_s: 0.05,
            p90_s: 0.05,
            busy_between_s: Some(0.95),
            limit: Some(BandwidthLimit {
                period_s: 1.0,
                busy_s: 0.95,
                worst_error_share: 0.0,
            }),
        }],
        speed_probe: Some(SpeedProbeFit {
            decode4_cpu_ms: 8.0,
            runs: 3,
            held_out_without: Some(0.06),
            held_out_with: Some(0.04),
        }),
        residuals: vec![RegimeError {
            regime: "all".into(),
            error: StepError::default(),
        }],
        held_out: HeldOut {
            method: "none".into(),
            runs: vec![RunError {
                run: "a/b".into(),
                error: StepError::default(),
                sum_with_probe: Some(0.1),
            }],
        },
        repeats: Vec::new(),
        data: Vec::new(),
    }
}

fn read(text: &str) -> Result<Fit, InputError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fit.yaml");
    std::fs::write(&path, text).unwrap();
    Fit::read(&path)
}

#[test]
fn a_fit_comes_back_as_it_was_written() {
    assert_eq!(read(&fit().to_yaml().unwrap()).unwrap(), fit());
}

#[test]
fn what_is_wrong_in_a_file_is_named() {
    let sealed = fit().to_yaml().unwrap();
    let changed = read(&sealed.replacen("step", "stop", 1)).unwrap_err().to_string();
    assert!(changed.contains("was changed"), "{changed}");
    // Without its seal a file is read as those of before there were seals.
    let (text, _) = sealed.split_once("checksum: ").unwrap();
    for (from, to, parts) in [
        (
            "kneeboard_fit: 1",
            "kneeboard_fit: 2",
            ["fit.yaml", "kneeboard_fit", "format 2"],
        ),
        (
            "name: prefill_token\n",
            "name: prefil_token\n",
            [
                "parameters[2].name",
                "'prefil_token'",
                "did you mean 'prefill_token'",
            ],
        ),
        (
            "name: prefill_token\n",
            "name: step\n",
            ["parameters[2]", "'step'", "twice"],
        ),
        (
            "unit: s/token",
            "unit: ms/token",
            ["parameters[2].unit", "ms/token", "s/token"],
        ),
        (
            "value: 0.008",
            "value: -0.008",
            ["parameters", "step", "at least 0"],
        ),
        ("value: 0.008", "value: .nan", ["parameters", "step", "NaN"]),
        (
            "value: 4.0",
            "value: 4.5",
            ["decode_rows_knee", "4.5", "whole number"],
        ),
        (
            "busy_s: 0.95",
            "busy_s: 1.95",
            ["stalls[0].limit.busy_s", "1.95", "period_s"],
        ),
        (
            "axis: decode_seqs",
            "axis: decode_sqs",
            ["hull[1]", "decode_sqs", "did you mean 'decode_seqs'"],
        ),
        (
            "decode4_cpu_ms: 8.0",
            "decode4_cpu_ms: 0",
            ["speed_probe.decode4_cpu_ms", "0", "milliseconds"],
        ),
        (
            "- - 0.007",
            "- - -0.007",
            ["draws[0]", "coefficients", "at least 0"],
        ),
        ("host:\n", "hots:\n", ["line", "hots", "did you mean 'host'"]),
        (
            "between_steps_s: 0.0",
            "between_steps_s: -1",
            ["host.between_steps_s", "-1", "at least 0"],
        ),
    ] {
        assert!(text.contains(from), "{from} is not in {text}");
        let error = read(&text.replacen(from, to, 1)).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "'{part}' is not in: {error}");
        }
    }
    assert!(read(&text[..text.len() / 2]).is_err());
}

#[test]
fn the_probe_shifts_every_step_by_what_it_takes_more() {
    let mut fit = fit();
    approx::assert_relative_eq!(fit.step_shift_s(9.5).unwrap(), 1.5e-3, max_relative = 1e-12);
    assert_eq!(fit.step_shift_s(f64::NAN), None);
    if let Some(probe) = &mut fit.speed_probe {
        probe.held_out_with = Some(0.07);
    }
    assert_eq!(
        fit.step_shift_s(9.5),
        None,
        "a probe that made left-out runs worse is not used"
    );
}
