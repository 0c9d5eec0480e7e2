use super::*;

fn fit() -> RooflineFit {
    RooflineFit {
        kneeboard_fit: ROOFLINE_FIT_FORMAT,
        form: Form::Roofline,
        name: "test".into(),
        fitted_with: "kneeboard 0".into(),
        door: Door::Steps,
        command: "none".into(),
        speaks_for: SpeaksFor::default(),
        parameters: SPECS
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
        draws: vec![SPECS.map(|s| s.prior).to_vec()],
        misfit: vec![Misfit {
            metric: "step".into(),
            stat: "run".into(),
            log_sd: 0.02,
            n: 3,
        }],
        hull: Vec::new(),
        residuals: Vec::new(),
        held_out: Vec::new(),
        data: Vec::new(),
        notes: vec!["a note".into()],
    }
}

/// What reading says of a fit that was changed and sealed anew, as a program would that writes nonsense.
#[track_caller]
fn refused(change: impl Fn(&mut RooflineFit), parts: &[&str]) {
    let mut wrong = fit();
    change(&mut wrong);
    told(&wrong.to_yaml().unwrap(), parts);
}

#[track_caller]
fn told(text: &str, parts: &[&str]) {
    let e = RooflineFit::from_text(text, Path::new("fit.yaml"))
        .unwrap_err()
        .to_string();
    for part in ["fit.yaml"].iter().chain(parts) {
        assert!(e.contains(part), "no '{part}' in: {e}");
    }
}

#[test]
fn what_is_written_is_read_again() {
    let text = fit().to_yaml().unwrap();
    assert_eq!(RooflineFit::from_text(&text, Path::new("f")).unwrap(), fit());
    assert_eq!(fit().values(), Parameters::default());
    assert_eq!(fit().parameter_draws(), [Parameters::default()]);
    assert_eq!(fit().misfit("step", "run"), Some(0.02));
    assert_eq!(fit().misfit("step", "new_model"), None);
}

#[test]
fn a_changed_a_cut_and_an_unsealed_file_are_refused() {
    let text = fit().to_yaml().unwrap();
    told(&text.replace("a note", "a lie"), &["checksum", "was changed"]);
    told(&text[..text.len() / 2], &["checksum", "cut off"]);
    let body = &text[..text.rfind("checksum:").unwrap()];
    told(body, &["has no checksum"]);
    told("", &["has no checksum"]);
}

#[test]
fn another_format_and_unknown_keys_are_refused_with_the_nearest() {
    refused(|f| f.kneeboard_fit = 99, &["kneeboard_fit", "99", "2"]);
    let body = serde_saphyr::to_string(&fit()).unwrap();
    told(
        &seal(&body.replace("misfit:", "misfits:")),
        &["misfits", "misfit"],
    );
    told(&seal("form: roofline\n"), &["kneeboard_fit", "missing"]);
}

#[test]
fn parameters_that_are_missing_unknown_or_out_of_bounds_are_refused() {
    refused(
        |f| {
            f.parameters.remove(4);
        },
        &["parameters[4]", "kv_bandwidth"],
    );
    refused(
        |f| {
            f.parameters.pop();
        },
        &["parameters", "client_token_time", "missing"],
    );
    refused(
        |f| f.parameters[2].name = "weight_bandwith".into(),
        &["parameters[2]", "weight_bandwith", "weight_bandwidth"],
    );
    refused(
        |f| f.parameters[9].unit = "ms".into(),
        &["parameters[9]", "layer_time", "ms"],
    );
    refused(
        |f| f.parameters[0].value = 1.5,
        &["parameters[0].value", "1.5", "0.05 to 1"],
    );
    refused(|f| f.parameters[0].value = f64::NAN, &["parameters[0].value"]);
    refused(
        |f| f.parameters[1].log_sd = -0.2,
        &["parameters[1].log_sd", "-0.2"],
    );
    refused(
        |f| f.parameters.push(f.parameters[0].clone()),
        &["parameters[22]", "more parameters"],
    );
}

#[test]
fn draws_and_misfits_that_are_none_are_refused() {
    refused(
        |f| {
            f.draws[0].pop();
        },
        &["draws[0]", "22 positive numbers"],
    );
    refused(|f| f.draws[0][3] = -1.0, &["draws[0]"]);
    refused(|f| f.draws[0][3] = f64::INFINITY, &["draws[0]"]);
    refused(|f| f.misfit[0].log_sd = -0.1, &["misfit[0].log_sd", "-0.1"]);
}
