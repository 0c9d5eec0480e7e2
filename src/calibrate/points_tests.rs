use super::*;

const HEADER: &str = "accelerator,model,dtype,kv_dtype,engine,engine_version,tp,load,max_concurrency,request_rate,\
                      num_prompts,input_len,output_len,length_jitter,prefix_reuse,ttft_ms,tpot_ms,e2e_ms,\
                      throughput_tok_s,statistic,boundary";
const GOOD: [&str; 21] = [
    "h100-sxm",
    "llama-3.1-8b",
    "bf16",
    "",
    "vllm",
    "0.15.1",
    "1",
    "closed",
    "4",
    "",
    "40",
    "500",
    "100",
    "0.1",
    "",
    "45.5",
    "8.25",
    "870",
    "450",
    "mean",
    "client",
];

/// The good row with some cells replaced.
fn table(changes: &[(&str, &str)]) -> String {
    let mut cells = GOOD.map(str::to_owned);
    for (column, value) in changes {
        let place = HEADER.split(',').position(|c| c == *column).unwrap();
        cells[place] = (*value).to_owned();
    }
    format!("{HEADER}\n{}\n{}\n", GOOD.join(","), cells.join(","))
}

fn read(text: &str) -> Result<Vec<Point>, InputError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("points.csv");
    std::fs::write(&path, text).unwrap();
    read_points(&path, &PointDefaults::default())
}

#[test]
fn the_first_round_of_a_closed_loop_is_left_out_where_that_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("points.csv");
    std::fs::write(&path, table(&[("max_concurrency", "30")])).unwrap();
    let defaults = PointDefaults {
        drop_first_round: true,
        ..PointDefaults::default()
    };
    let points = read_points(&path, &defaults).unwrap();
    let left_out = |p: &Point| p.run.counted.iter().filter(|c| !**c).count();
    assert_eq!(left_out(&points[0]), 4);
    assert!(!points[0].run.counted[3] && points[0].run.counted[4]);
    // 40 prompts of 30 clients are hardly more than one round.
    assert_eq!(left_out(&points[1]), 0);
}

/// The second row, with these cells.
fn row(changes: &[(&str, &str)]) -> Point {
    read(&table(changes)).unwrap().remove(1)
}

#[track_caller]
fn refused(changes: &[(&str, &str)], parts: &[&str]) {
    let e = read(&table(changes)).unwrap_err().to_string();
    for part in ["points.csv", "line 3"].iter().chain(parts) {
        assert!(e.contains(part), "no '{part}' in: {e}");
    }
}

#[test]
fn a_row_is_a_closed_loop() {
    let point = row(&[]);
    assert_eq!(point.row, 1);
    assert_eq!(point.run.trace.requests.len(), 40);
    assert!(point.run.counted.iter().all(|c| *c));
    assert!(matches!(
        point.run.load,
        LoadModel::ClosedLoop { concurrency: 4, .. }
    ));
    assert!(point.run.client_side);
    let values: Vec<f64> = point.run.observations.iter().map(|o| o.value).collect();
    approx::assert_relative_eq!(
        values.as_slice(),
        [0.0455, 0.00825, 0.87, 450.0].as_slice(),
        max_relative = 1e-12
    );
    for request in &point.run.trace.requests {
        assert!((450..=550).contains(&request.input_tokens) && (90..=110).contains(&request.output_tokens()));
    }
    // vLLM's own defaults are named.
    assert!(
        point.assumptions.iter().any(|a| a.starts_with("max_num_seqs = ")),
        "{:?}",
        point.assumptions
    );
}

#[test]
fn empty_cells_are_unknown_and_what_is_assumed_is_said() {
    let point = row(&[
        ("length_jitter", ""),
        ("num_prompts", ""),
        ("statistic", ""),
        ("boundary", ""),
        ("ttft_ms", ""),
        ("throughput_tok_s", ""),
        ("load", ""),
        ("engine", ""),
    ]);
    assert_eq!(point.run.observations.len(), 2);
    assert_eq!(point.run.trace.requests.len(), 40);
    for part in [
        "length_jitter = 0.2",
        "num_prompts = 10 a client",
        "statistic = mean",
        "boundary = client",
    ] {
        assert!(
            point.assumptions.iter().any(|a| a == part),
            "{part}: {:?}",
            point.assumptions
        );
    }
    let open = row(&[
        ("load", "open"),
        ("max_concurrency", ""),
        ("request_rate", "3"),
        ("num_prompts", "500"),
    ]);
    let last = open.run.trace.requests[499].arrival.as_secs_f64();
    assert!((130.0..205.0).contains(&last), "500 requests at 3/s in {last} s");
}

#[test]
fn every_bad_cell_is_told_with_line_and_column() {
    for (column, value, allowed) in [
        ("accelerator", "h100-sxn", "h100-sxm"),
        ("model", "llama-3.1-8c", "llama-3.1-8b"),
        ("dtype", "bf17", "bf16"),
        ("kv_dtype", "fp9", "fp8"),
        ("engine", "sglang", "vllm"),
        ("engine_version", "0.0.1", "0."),
        ("tp", "0", "whole number"),
        ("tp", "1.5", "whole number"),
        ("tp", "two", "a number"),
        ("load", "closedd", "closed or open"),
        ("load", "open", "requests a second"),
        ("max_concurrency", "", "number of clients"),
        ("max_concurrency", "-4", "a number"),
        ("num_prompts", "1e8", "at most"),
        ("input_len", "", "whole number"),
        ("input_len", "nan", "a number"),
        ("input_len", "1e6", "max_model_len"),
        ("output_len", "0", "whole number"),
        ("length_jitter", "20", "0 to 1"),
        ("prefix_reuse", "50", "0 to 1"),
        ("statistic", "p42", "p99"),
        ("boundary", "gateway", "client or engine"),
        ("ttft_ms", "fast", "a number"),
        ("ttft_ms", "inf", "a number"),
    ] {
        refused(&[(column, value)], &[allowed]);
    }
    for column in [
        "load",
        "tp",
        "engine",
        "statistic",
        "boundary",
        "ttft_ms",
        "length_jitter",
        "input_len",
        "dtype",
    ] {
        refused(&[(column, "?")], &[&format!("column {column}")]);
    }
    for rate in ["0", "1e9"] {
        refused(
            &[("load", "open"), ("max_concurrency", ""), ("request_rate", rate)],
            &["column request_rate", "above 0"],
        );
    }
}

#[test]
fn seconds_among_milliseconds_are_noticed() {
    // The same row with one column, or all, in seconds.
    for (column, seconds) in [("ttft_ms", "0.0455"), ("tpot_ms", "0.00825"), ("e2e_ms", "0.870")] {
        refused(&[(column, seconds)], &[&format!("column {column}"), "seconds"]);
    }
    // Slow systems, whose seconds are plausible milliseconds taken alone.
    refused(
        &[("ttft_ms", "2.5"), ("tpot_ms", "60"), ("e2e_ms", "8500")],
        &["ttft_ms", "seconds"],
    );
    refused(
        &[("ttft_ms", "2500"), ("tpot_ms", "60"), ("e2e_ms", "8.5")],
        &["e2e_ms", "seconds"],
    );
    refused(&[("ttft_ms", ""), ("e2e_ms", "8.5")], &["e2e_ms", "seconds"]);
    refused(
        &[("ttft_ms", "45"), ("tpot_ms", "8"), ("e2e_ms", "870000")],
        &["e2e_ms"],
    );
    // A tail beside a long queue is no mistake.
    row(&[
        ("ttft_ms", "60000"),
        ("tpot_ms", "40"),
        ("e2e_ms", "65000"),
        ("statistic", "p99"),
    ]);
}

#[test]
fn columns_are_checked_before_rows() {
    let e = |text: &str| read(text).unwrap_err().to_string();
    let slip = e("model,input_len,output_len,tpot_msec
llama-3.1-8b,1,1,1
");
    assert!(
        slip.contains("'tpot_msec'") && slip.contains("did you mean 'tpot_ms'"),
        "{slip}"
    );
    assert!(e("model,input_len\n").contains("output_len"));
    assert!(e("model,input_len,output_len\n").contains("holds no row"));
    let cut = table(&[]);
    assert!(e(cut.trim_end().trim_end_matches(",client")).contains("line 3"));
}
