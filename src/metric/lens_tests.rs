use super::*;

fn three() -> ClientRun {
    // Sent at 0, 1, 2; first tokens after 1, 2, 3 s; a gap of 1 s, of 1 s and 3 s, none.
    let request = |sent_s: f64, chunks: &[f64]| ClientRequest {
        sent_s,
        first_s: chunks.first().copied(),
        last_s: chunks.last().copied(),
        end_s: chunks.last().map(|t| t + 0.5),
        chunks_s: chunks.to_vec(),
        input_tokens: Some(10),
        output_tokens: chunks.len() as u32,
        counted_tokens: chunks.len() as u32,
        ..ClientRequest::default()
    };
    ClientRun {
        tool: Tool::VllmBench,
        name: None,
        requests: vec![
            request(0.0, &[1.0, 2.0]),
            request(1.0, &[3.0, 4.0, 7.0]),
            request(2.0, &[5.0]),
            ClientRequest {
                error: Some("refused".into()),
                ..ClientRequest::default()
            },
        ],
        clock: crate::record::import::Clock::Own,
        t0_s: 0.0,
        duration_s: Some(8.0),
        concurrency: None,
        printed: Vec::new(),
        notes: Vec::new(),
    }
}

fn recomputed(tool: Tool, name: &str) -> f64 {
    let run = ClientRun {
        tool,
        printed: vec![(name.to_owned(), 1.0)],
        ..three()
    };
    figures(&run)[0].recomputed.unwrap()
}

#[test]
fn one_word_and_many_meanings_by_hand() {
    let near = |tool, name: &str, expected: f64| {
        let value = recomputed(tool, name);
        assert!(
            (value - expected).abs() < 1e-9,
            "{tool} {name}: {value} instead of {expected}"
        );
    };
    // Gaps 1, 1, 3 s; requests 1 and 2 s a token.
    near(Tool::VllmBench, "mean_itl_ms", 5e3 / 3.0);
    near(Tool::VllmBench, "mean_tpot_ms", 1500.0);
    near(Tool::VllmBench, "p99_ttft_ms", 2980.0);
    near(Tool::VllmBench, "request_throughput", 3.0 / 8.0);
    near(
        Tool::Guidellm,
        "inter_token_latency_ms.successful.mean",
        5e3 / 3.0,
    );
    // TTFT inside: (2 + 6 + 3) / 6 tokens.
    near(
        Tool::Guidellm,
        "time_per_output_token_ms.successful.mean",
        11e3 / 6.0,
    );
    near(Tool::Guidellm, "inter_token_latency_ms.successful.median", 2000.0);
    near(Tool::Guidellm, "request_latency.successful.percentiles.p50", 3.5);
    near(Tool::Aiperf, "inter_token_latency.avg", 1500.0);
    near(
        Tool::InferencePerf,
        "successes.latency.inter_token_latency.mean",
        5.0 / 3.0,
    );
    near(
        Tool::InferencePerf,
        "successes.latency.normalized_time_per_output_token.mean",
        (2.5 / 2.0 + 6.5 / 3.0 + 3.5) / 3.0,
    );
    near(
        Tool::Llmperf,
        "results_inter_token_latency_s_mean",
        (1.0 + 2.0 + 3.0) / 3.0,
    );
    near(Tool::Llmperf, "results_ttft_s_stddev", 1.0);
    near(Tool::GenaiPerf, "request_latency.max", 6000.0);
}

#[test]
fn levels_of_guidellm() {
    let values = (1..=1000).map(|v| (f64::from(v), 1.0)).collect::<Vec<_>>();
    let at = |name: &str| weighted_statistic(values.clone(), name).unwrap();
    assert_eq!(
        (at("p001"), at("p01"), at("p50"), at("p999")),
        (1.0, 10.0, 500.0, 999.0)
    );
}

/// An imported file's own figures, worked out by hand: two answers of 50 tokens in 1 s and 80 in 2 s, 40 a minute.
#[test]
fn llmperf_files_are_recomputed_as_llmperf_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m_100_60_individual_responses.json");
    let answer = |ttft: f64, e2e: f64, tokens: u32| {
        serde_json::json!({"ttft_s": ttft, "end_to_end_latency_s": e2e,
            "inter_token_latency_s": e2e / f64::from(tokens), "number_input_tokens": 100,
            "number_output_tokens": tokens, "error_msg": "", "error_code": null})
    };
    let answers = [answer(0.25, 1.0, 50), answer(0.5, 2.0, 80)];
    std::fs::write(&path, serde_json::to_string(&answers).unwrap()).unwrap();
    let printed = [
        ("results_ttft_s_mean", 0.375),
        ("results_ttft_s_stddev", 0.176_776_695_296_636_9),
        ("results_end_to_end_latency_s_quantiles_p25", 1.25),
        ("results_inter_token_latency_s_mean", 0.0225),
        ("results_request_output_throughput_token_per_s_mean", 45.0),
        ("results_num_requests_started", 2.0),
        ("results_error_rate", 0.0),
        ("results_mean_output_throughput_token_per_s", 130.0 / 3.0),
        ("results_num_completed_requests", 2.0),
        ("results_num_completed_requests_per_min", 40.0),
    ];
    let mut summary = serde_json::json!({"num_concurrent_requests": 2});
    for (name, value) in printed {
        summary[name] = value.into();
    }
    std::fs::write(dir.path().join("m_100_60_summary.json"), summary.to_string()).unwrap();
    let runs = crate::record::import::read(&path, &crate::record::import::ImportOptions::default()).unwrap();
    assert!((runs[0].duration_s.unwrap() - 3.0).abs() < 1e-12);
    let figures = figures(&runs[0]);
    assert_eq!(figures.len(), printed.len());
    for figure in figures {
        assert!(figure.relative_error().is_some_and(|e| e < 1e-12), "{figure:?}");
    }
}
