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
            kv_dtype: KvDtype::Bf16,
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
    refused(
        |f| drop(f.parameters.pop()),
        &["parameters", "client_token_time", "missing"],
    );
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

/// The checksum says that nobody edited the file, not that it makes sense.
#[test]
fn programs_that_cannot_be_are_refused_under_a_valid_checksum() {
    refused(
        |f| f.programs[0].tp = 0,
        &["programs[0].tp", "4 rows over 1024", "from 1"],
    );
    refused(|f| f.programs[0].logical_core = 0, &["programs[0].logical_core"]);
    refused(|f| f.programs[0].max_num_seqs = 0, &["programs[0].max_num_seqs"]);
    refused(
        |f| f.programs[0].dtype = "bf61".into(),
        &["programs[0].dtype", "bf16"],
    );
    let decode = |positions, batch| {
        move |f: &mut StaticFit| f.programs[0].program = Program::TokenGeneration { positions, batch }
    };
    refused(decode(1024, 0), &["programs[0].program.batch", "1 to 4"]);
    refused(decode(1024, 5), &["programs[0].program.batch", "1 to 4"]);
    refused(decode(0, 4), &["programs[0].program.positions", "1 to 1024"]);
    let prompt = |tokens, prefix| {
        move |f: &mut StaticFit| f.programs[0].program = Program::ContextEncoding { tokens, prefix }
    };
    refused(prompt(0, 0), &["programs[0].program.tokens"]);
    refused(prompt(128, 2048), &["programs[0].program.prefix", "0 to 1024"]);
    refused(
        |f| f.programs[0].seconds = f64::NAN,
        &["programs[0].seconds", "NaN"],
    );
    let twice = |f: &mut StaticFit| {
        let mut again = f.programs[0].clone();
        again.seconds *= 2.0;
        f.programs.push(again);
    };
    refused(twice, &["programs[1]", "programs[0] again"]);
    let mut other = fit();
    twice(&mut other);
    other.programs[1].kv_dtype = KvDtype::Fp8;
    let text = other.to_yaml().unwrap();
    assert_eq!(StaticFit::from_text(&text, Path::new("f")).unwrap(), other);
}

#[test]
fn ranges_upside_down_and_numbers_that_are_none_are_refused() {
    refused(
        |f| f.parameters[2].interval_90 = (0.9, 0.1),
        &["parameters[2].interval_90", "0.9 to 0.1"],
    );
    refused(
        |f| f.parameters[2].interval_90.1 = f64::INFINITY,
        &["parameters[2].interval_90"],
    );
    refused(
        |f| f.parameters[0].prior = f64::NAN,
        &["parameters[0].prior", "NaN"],
    );
    refused(
        |f| f.parameters[0].prior_log_sd = f64::INFINITY,
        &["parameters[0].prior_log_sd"],
    );
    let range = |low, high| FitRange {
        axis: "tp".into(),
        low,
        high,
    };
    refused(|f| f.hull = vec![range(8.0, 2.0)], &["hull[0] (tp)", "8 to 2"]);
    refused(|f| f.hull = vec![range(f64::NAN, 2.0)], &["hull[0] (tp)"]);
    refused(
        |f| f.hull = vec![range(1.0, 2.0), range(1.0, 4.0)],
        &["hull[1]", "hull[0]"],
    );
    let correlation = Correlation {
        a: "join".into(),
        b: "layer_time".into(),
        r: 1.5,
    };
    refused(
        |f| f.correlation = vec![correlation.clone()],
        &["correlation[0].r", "-1 to 1"],
    );
    let error = FitError {
        of: "all".into(),
        run: "all".into(),
        metric: "s".into(),
        stat: "median".into(),
        actual: None,
        predicted: None,
        rel_error: f64::NAN,
        interval_90: None,
        n: 1,
    };
    refused(|f| f.residuals = vec![error.clone()], &["residuals[0].rel_error"]);
    let inverted = FitError {
        rel_error: 0.0,
        interval_90: Some((2.0, 1.0)),
        ..error.clone()
    };
    refused(
        |f| f.held_out = vec![inverted.clone()],
        &["held_out[0].interval_90"],
    );
}

/// A rank of one core is no rank of two, and no number of ranks lies between others.
#[test]
fn ranks_and_logical_cores_that_nobody_measured_are_named() {
    use super::super::static_time::tests::deployment;
    let on = |tp, cores| Deployment {
        logical_core: Some(cores),
        ..deployment(tp, 4)
    };
    let mut seen = fit();
    seen.hull = vec![FitRange {
        axis: "tp".into(),
        low: 2.0,
        high: 32.0,
    }];
    let beyond = |fit: &StaticFit, d: &Deployment| fit.beyond(d).into_iter().collect::<Vec<_>>();
    for tp in [2, 4, 32] {
        assert!(beyond(&seen, &on(tp, 2)).is_empty(), "{tp}");
    }
    for tp in [1, 3, 8, 16, 64] {
        assert_eq!(beyond(&seen, &on(tp, 2)), ["tp"], "{tp}");
    }
    assert_eq!(beyond(&seen, &on(4, 1)), ["logical_core"]);
    seen.hull.push(FitRange {
        axis: "logical_core".into(),
        low: 1.0,
        high: 2.0,
    });
    assert!(beyond(&seen, &on(4, 1)).is_empty());
}
