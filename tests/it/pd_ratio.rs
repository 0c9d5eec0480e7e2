//! The split of a fixed number of groups into prefill and decode that serves most is the one that the printed needs imply.

use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;

use kneeboard::explore::cluster::ClusterOutcome;
use kneeboard::explore::study::{Study, SummaryRun, outcome};
use kneeboard::scenario::{Override, Plan};

use crate::shared::data_set;

/// Seven groups of Llama 3.1 70B on four H100 each.
const SCENARIO: &str = r#"kneeboard: 1
system:
  model: llama-3.1-70b
  accelerator: h100-sxm
  parallel: {tp: 4}
  engine: {version: "0.28.0", max_num_seqs: 256, max_num_batched_tokens: 8192, max_model_len: 8192}
  step_time: {step: 12ms, prefill_token: 70us, decode_row: 60us, decode_context_token: 40ns}
cluster:
  pools:
    - {name: prefill, role: prefill, groups: 4, instance: p5.48xlarge}
    - {name: decode, role: decode, groups: 3, instance: p5.48xlarge}
  router: {policy: least-outstanding, prefill: {policy: least-outstanding}}
  transfer: {fixed: 200us, per_descriptor: 500ns, response: 2ms}
workload: {trace: trace.csv}
load: {model: open-loop, arrival: {process: trace, rate: 10}}
slo: {ttft: 2s, tpot: 40ms, attainment: 0.95}
"#;

const GROUPS: u32 = 7;
const REQUESTS: usize = 3000;

/// Writes (arrival in seconds, prompt, output) as a trace.
fn write_trace(dir: &Path, rows: impl Iterator<Item = (f64, u32, u32)>) {
    let fits = rows.filter(|&(_, input, output)| input > 0 && output > 0 && input + output < 8192);
    let mut text = "arrival_s,input_tokens,output_tokens\n".to_owned();
    for (arrival, input, output) in fits.take(REQUESTS) {
        writeln!(text, "{arrival:.6},{input},{output}").unwrap();
    }
    std::fs::write(dir.join("trace.csv"), text).unwrap();
}

fn text_of(file: &Path) -> String {
    let bytes = std::fs::read(file).unwrap();
    let mut text = String::new();
    if file.extension().is_some_and(|e| e == "gz") {
        flate2::read::GzDecoder::new(&*bytes)
            .read_to_string(&mut text)
            .unwrap();
    } else {
        text = String::from_utf8(bytes).unwrap();
    }
    text
}

/// Columns of a CSV file as numbers, without its heading.
fn rows(file: &Path) -> Vec<Vec<String>> {
    let text = text_of(file);
    let cells = |line: &str| line.split(',').map(str::to_owned).collect();
    text.lines().skip(1).map(cells).collect()
}

/// Seconds since midnight of `2023-11-16 18:17:03.9799600`.
fn seconds(stamp: &str) -> f64 {
    let time = stamp.split(' ').nth(1).unwrap();
    time.split(':')
        .fold(0.0, |sum, part| sum * 60.0 + part.parse::<f64>().unwrap())
}

fn run(dir: &Path, prefill: u32, rate: f64) -> SummaryRun {
    let set = [
        format!("cluster.pools.prefill.groups={prefill}"),
        format!("cluster.pools.decode.groups={}", GROUPS - prefill),
        format!("load.arrival.rate={rate}"),
    ];
    let set: Vec<Override> = set.iter().map(|s| Override::parse(s).unwrap()).collect();
    let plan = Plan::from_text(SCENARIO, "pd.yaml", dir, &set).unwrap();
    Study::of(plan).unwrap().summarise(0, |_| ()).unwrap()
}

fn needs(run: &SummaryRun) -> (f64, f64) {
    let figures = run.figures.clone().unwrap();
    (
        figures.prefill_groups_needed.unwrap(),
        figures.decode_groups_needed.unwrap(),
    )
}

/// The best split at a load that all groups together could just carry, and the one that the needs imply.
fn best_and_implied(dir: &Path) -> (u32, f64) {
    let (prefill, decode) = needs(&run(dir, 4, 10.0));
    let rate = 10.0 * 0.9 * f64::from(GROUPS) / (prefill + decode);
    let implied = prefill / (prefill + decode) * f64::from(GROUPS);
    let goodputs = (1..GROUPS).map(|split| {
        let run = run(dir, split, rate);
        let (p, d) = needs(&run);
        // Whatever the split: the needs are of the load, not of how full the batches of a run were.
        assert!((p / (p + d) * f64::from(GROUPS) - implied).abs() < 1e-9);
        (split, outcome(&run).goodput_rps)
    });
    let best = goodputs.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    (best.0, implied)
}

fn agrees(name: &str, dir: &Path) -> (u32, f64) {
    let (best, implied) = best_and_implied(dir);
    // There is at least one group of each kind.
    let possible = implied.clamp(1.0, f64::from(GROUPS - 1));
    assert!(
        (f64::from(best) - possible).abs() <= 1.0,
        "{name}: most is served with {best} prefill groups of {GROUPS}, the needs imply {implied:.2}"
    );
    (best, implied)
}

#[test]
fn the_best_split_of_a_prefill_heavy_trace_is_the_one_that_its_needs_imply() {
    let Some(data) = data_set("pd_ratio", "workloads") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let code = rows(&data.join("azure-2023-code/AzureLLMInferenceTrace_code.csv.gz"));
    let first = seconds(&code[0][0]);
    write_trace(
        dir.path(),
        code.iter().map(|r| {
            (
                seconds(&r[0]) - first,
                r[1].parse().unwrap(),
                r[2].parse().unwrap(),
            )
        }),
    );
    let (best, implied) = agrees("Azure code", dir.path());
    assert!(best >= 5 && implied > 5.0, "{best}, {implied}");
}

#[test]
fn the_best_split_of_a_conversation_is_the_one_that_its_needs_imply() {
    let Some(data) = data_set("pd_ratio", "workloads") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let conversation = rows(&data.join("peer-speed/W2_conv_poisson3_n10000.csv"));
    let row = |r: &Vec<String>| {
        (
            r[1].parse().unwrap(),
            r[2].parse().unwrap(),
            r[3].parse().unwrap(),
        )
    };
    write_trace(dir.path(), conversation.iter().map(row));
    agrees("conversation", dir.path());
}

#[test]
fn the_best_split_of_a_decode_heavy_list_is_the_one_that_its_needs_imply() {
    let Some(data) = data_set("pd_ratio", "workloads") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let reasoning = rows(&data.join("length-lists/deepseek-r1.csv.gz"));
    // The list has no times: evenly spaced.
    let row = |(i, r): (usize, &Vec<String>)| (i as f64 * 0.1, r[0].parse().unwrap(), r[1].parse().unwrap());
    write_trace(dir.path(), reasoning.iter().enumerate().map(row));
    let (best, implied) = agrees("reasoning", dir.path());
    assert!(best <= 2 && implied < 2.0, "{best}, {implied}");
}

#[test]
fn what_a_run_costs_is_the_same_with_and_without_its_record() {
    let dir = tempfile::tempdir().unwrap();
    write_trace(
        dir.path(),
        (0..200).map(|i| (f64::from(i) * 0.05, 500 + i, 40 + i % 30)),
    );
    let plan = Plan::from_text(SCENARIO, "pd.yaml", dir.path(), &[]).unwrap();
    let study = Study::of(plan).unwrap();
    let whole = ClusterOutcome::of(study.run(0).unwrap().figures.as_ref().unwrap());
    let streamed = study.summarise(0, |_| ()).unwrap().figures.unwrap();
    let pairs = [
        (
            whole.usd_per_m_good_output_tokens,
            streamed.usd_per_m_good_output_tokens,
        ),
        (whole.usd_per_good_request, streamed.usd_per_good_request),
        (whole.j_per_good_request, streamed.j_per_good_request),
        (whole.prefill_groups_needed, streamed.prefill_groups_needed),
        (whole.decode_groups_needed, streamed.decode_groups_needed),
    ];
    for (whole, streamed) in pairs {
        let (whole, streamed) = (whole.unwrap(), streamed.unwrap());
        assert!(
            whole > 0.0 && (streamed / whole - 1.0).abs() < 1e-6,
            "{whole} {streamed}"
        );
    }
    assert_eq!(whole.pools.len(), 2);
    for (whole, streamed) in whole.pools.iter().zip(&streamed.pools) {
        assert_eq!(
            (&whole.pool, whole.ready_max),
            (&streamed.pool, streamed.ready_max)
        );
        let near = |a: Option<f64>, b: Option<f64>| (a.unwrap() - b.unwrap()).abs() < 1e-9;
        assert!(
            near(whole.ready_mean, streamed.ready_mean),
            "{whole:?} {streamed:?}"
        );
        assert!(
            near(whole.overshoot_group_h, streamed.overshoot_group_h),
            "{whole:?} {streamed:?}"
        );
    }
    assert!(
        whole.pools.iter().any(|p| p.overshoot_group_h.unwrap() > 0.0),
        "{:?}",
        whole.pools
    );
}
