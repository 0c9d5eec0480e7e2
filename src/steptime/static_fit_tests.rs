use super::*;

/// A fit at the priors, with one measured program of a Qwen3-8B on four logical cores of trn2.
pub fn fit() -> StaticFit {
    StaticFit {
        kneeboard_fit: STATIC_FIT_FORMAT,
        form: StaticForm::StaticShape,
        name: "test".into(),
        fitted_with: "kneeboard 0".into(),
        command: "none".into(),
        speaks_for: SpeaksFor::default(),
        parameters: STATIC_SPECS
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
        draws: vec![STATIC_SPECS.map(|s| s.prior).to_vec()],
        misfit: Vec::new(),
        hull: Vec::new(),
        programs: vec![MeasuredProgram {
            accelerator: "trn2".into(),
            model: "qwen3-8b".into(),
            dtype: "bf16".into(),
            tp: 4,
            logical_core: 2,
            max_num_seqs: 4,
            max_model_len: 1024,
            program: Program::TokenGeneration {
                positions: 1024,
                batch: 4,
            },
            seconds: 0.0123,
            n: 3,
            source: "a test".into(),
        }],
        residuals: Vec::new(),
        held_out: Vec::new(),
        data: Vec::new(),
        notes: vec!["a note".into()],
    }
}

#[track_caller]
fn refused(change: impl Fn(&mut StaticFit), parts: &[&str]) {
    let mut wrong = fit();
    change(&mut wrong);
    let e = StaticFit::from_text(&wrong.to_yaml().unwrap(), Path::new("fit.yaml"))
        .unwrap_err()
        .to_string();
    for part in ["fit.yaml"].iter().chain(parts) {
        assert!(e.contains(part), "no '{part}' in: {e}");
    }
}

#[test]
fn what_is_written_is_read_again_and_knows_its_form() {
    let text = fit().to_yaml().unwrap();
    assert_eq!(StaticFit::from_text(&text, Path::new("f")).unwrap(), fit());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fit.yaml");
    std::fs::write(&path, &text).unwrap();
    let read = super::super::AnyFit::read(&path).unwrap();
    assert_eq!(read, super::super::AnyFit::StaticShape(Box::new(fit())));
}

#[test]
fn nonsense_is_refused_with_its_place() {
    refused(|f| f.kneeboard_fit = 9, &["kneeboard_fit", "9"]);
    refused(|f| drop(f.parameters.pop()), &["parameters", "16"]);
    refused(
        |f| f.parameters[1].name = "x".into(),
        &["parameters[1]", "weight_bandwidth"],
    );
    refused(
        |f| f.parameters[0].value = 2.0,
        &["parameters[0].value", "matrix_compute"],
    );
    refused(|f| f.draws[0][3] = -1.0, &["draws[0]"]);
    refused(|f| f.programs[0].seconds = 0.0, &["programs[0].seconds"]);
    refused(|f| f.programs[0].seconds = 1e9, &["programs[0].seconds"]);
}
