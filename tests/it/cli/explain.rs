//! `kneeboard explain`: the published load test that ships, and studies that are none.

use serde_json::Value;

use super::support::*;

const STUDY: &str = "scenarios/studies/trn1-tinyllama.yaml";

/// The published test within its goals: medians over 200 seeds of every TTFT and E2E figure within 10 %, throughput within
/// 3 %, and every printed figure inside the band of the seeds, with at most five fitted constants.
#[test]
fn the_published_test_is_reproduced() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let study = repository(STUDY);
    run_line("explain {} -o {}", &[&study, &out]).with_code(0);
    let figures = json_file(&out.join("figures.json"));
    assert_eq!(figures["seeds"], 200);
    let test = figures["test"].as_array().unwrap();
    assert!(test.len() >= 18, "{}", test.len());
    for f in test {
        let number = |key: &str| f[key].as_f64().unwrap();
        let name = f["name"].as_str().unwrap();
        let off = number("median") / number("printed") - 1.0;
        let most = if name.contains("throughput") || name.contains("per_min") {
            0.03
        } else {
            0.10
        };
        assert!(off.abs() <= most, "{name}: {:+.1} %", 100.0 * off);
        let band = [0, 1].map(|i| f["band"][i].as_f64().unwrap());
        // The least TTFT is the same at every seed; what was printed has four digits.
        assert!(
            (band[0] - 5e-5..=band[1] + 5e-5).contains(&number("printed")),
            "{name}: {} outside of {band:?}",
            number("printed")
        );
    }
    let text = std::fs::read_to_string(study).unwrap();
    let fitted = text
        .split("fitted:")
        .nth(1)
        .unwrap()
        .split("\nprinted:")
        .next()
        .unwrap();
    assert!(fitted.matches("\n  - ").count() <= 5, "{fitted}");
}

#[test]
fn the_folder_holds_a_notebook_and_what_it_shows_and_is_the_same_twice() {
    let dir = tempfile::tempdir().unwrap();
    let study = repository(STUDY);
    let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
    run_line("explain {} -o {} --seeds 3", &[&study, &a]).with_code(0);
    let one_thread = kneeboard()
        .env("RAYON_NUM_THREADS", "1")
        .args([
            "explain",
            study.to_str().unwrap(),
            "-o",
            b.to_str().unwrap(),
            "--seeds",
            "3",
        ])
        .output()
        .unwrap();
    assert!(one_thread.status.success());
    assert_eq!(differences(&a, &b), Vec::<String>::new());
    let notebook: Value = json_file(&a.join("notebook.ipynb"));
    let cells = notebook["cells"].as_array().unwrap();
    let shown: Vec<String> = cells
        .iter()
        .filter(|c| c["cell_type"] == "code")
        .filter_map(|c| c["source"].as_array()?.last()?.as_str())
        .filter_map(|line| Some(line.split('"').nth(1)?.to_owned()))
        .filter(|path| path.contains('/'))
        .collect();
    assert!(shown.len() > 20, "{shown:?}");
    for path in shown {
        assert!(a.join(&path).is_file(), "{path}");
    }
    let html = std::fs::read_to_string(a.join("report.html")).unwrap();
    for words in [
        "in flight at concurrency",
        "throughput",
        "max_num_seqs",
        "USD",
        "scrape",
        "Capacity",
    ] {
        assert!(html.contains(words), "{words}");
    }
}

#[test]
fn studies_that_cannot_be_played_are_refused_with_their_reason() {
    let dir = tempfile::tempdir().unwrap();
    let good = std::fs::read_to_string(repository(STUDY)).unwrap();
    let scenario = repository("scenarios/trn1-tinyllama-llmperf.yaml");
    let head = |printed: &str, more: &str| {
        format!(
            "kneeboard_study: 1\ntitle: t\nsource: s\nscenario: {}\nseeds: 2\nscrape_interval: 1s\nprinted: {printed}\n{more}",
            scenario.display()
        )
    };
    let ttft = "{results_ttft_s_mean: 0.2}";
    for (text, parts) in [
        (
            good.replace("kneeboard_study: 1", "kneeboard_study: 2"),
            vec!["kneeboard_study", "allowed: 1"],
        ),
        (
            good.replace("seeds: 200", "seeds: 0"),
            vec!["seeds", "1 to 10000"],
        ),
        (good.replace("seeds: 200", "seads: 200"), vec!["seads", "seeds"]),
        (
            good.replace("scrape_interval: 10s", "scrape_interval: 1ns"),
            vec!["scrape_interval", "found 1ns", "from 1ms"],
        ),
        (
            good.replace("ttft_s_mean: 0.2538", "ttft_s_mean: -1"),
            vec!["results_ttft_s_mean", "above 0"],
        ),
        (
            good.replace("printed_again:\n  results_mean", "printed_again:\n  results_maen"),
            vec![
                "printed_again.results_maen_output",
                "did you mean 'results_mean_output",
            ],
        ),
        (
            good.replace("axes: {system.parallel.tp: [1, 2]}", "axes: {}"),
            vec!["sweeps.1.axes", "empty"],
        ),
        (
            head(ttft, "capacity: {axes: {}, rate: [1, 2], num_requests: 10}"),
            vec!["capacity.axes", "empty"],
        ),
        (
            head(ttft, "hypotheses: [{name: n, says: s}, {name: n, says: t}]"),
            vec!["hypotheses.1.name", "'n'"],
        ),
        (
            head(ttft, "instance: trn1.2xlage"),
            vec![
                "study.yaml, instance",
                "trn1.2xlage",
                "did you mean 'trn1.2xlarge'",
            ],
        ),
        (
            head(ttft, "instance: p5.48xlarge"),
            vec!["study.yaml, instance", "holds h100-sxm", "runs on trn1"],
        ),
        (head("{}", ""), vec!["printed", "empty"]),
        (
            head("{results_tttf_s_mean: 0.2}", ""),
            vec!["llmperf", "results_tttf_s_mean"],
        ),
        (
            head(ttft, "hypotheses: [{name: n, says: s, set: {system.engin: 1}}]"),
            vec!["engin", "engine"],
        ),
        (
            head(ttft, "sweeps: [{title: t, axes: {load.concurrency: []}}]"),
            vec!["load.concurrency"],
        ),
        (
            head(
                ttft,
                "script: {scenario: nowhere.yaml, printed: {min_latency_s: 1}}",
            ),
            vec!["nowhere.yaml"],
        ),
    ] {
        let path = dir.path().join("study.yaml");
        std::fs::write(&path, text).unwrap();
        run_line("explain {} -o {}", &[&path, &dir.path().join("out")]).refused(&parts);
        assert!(!dir.path().join("out/notebook.ipynb").exists());
    }
    let plain = repository("scenarios/closed-loop.yaml");
    let text = head(ttft, "").replace(&scenario.display().to_string(), &plain.display().to_string());
    std::fs::write(dir.path().join("study.yaml"), text).unwrap();
    run_line(
        "explain {} -o {}",
        &[&dir.path().join("study.yaml"), &dir.path().join("out")],
    )
    .refused(&["load.client", "llmperf"]);
}

#[test]
fn a_scenario_is_no_study_and_a_study_no_scenario() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let scenario = repository("scenarios/trn1-tinyllama-llmperf.yaml");
    run_line("explain {} -o {}", &[&scenario, &out])
        .refused(&["is a scenario, not a study", "kneeboard simulate"]);
    for command in ["simulate {} -o {}", "sweep {} -o {}"] {
        run_line(command, &[&repository(STUDY), &out])
            .refused(&["is a study, not a scenario", "kneeboard explain"]);
    }
}

/// A small study of the published test, with more in it.
fn small(dir: &std::path::Path, more: &str) -> std::path::PathBuf {
    let scenario = repository("scenarios/trn1-tinyllama-llmperf.yaml");
    let path = dir.join("study.yaml");
    let text = format!(
        "kneeboard_study: 1\ntitle: t\nsource: s\nscenario: {}\nseeds: 2\nscrape_interval: 1s\n\
         printed: {{results_ttft_s_mean: 0.25, results_mean_output_throughput_token_per_s: 335.4}}\n{more}",
        scenario.display()
    );
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_hypothesis_that_livelocks_is_a_finding_and_the_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let study = small(
        dir.path(),
        "hypotheses:\n\
         - {name: as it was, says: s.}\n\
         - {name: too few blocks, says: s., set: {system.engine.pa_num_blocks: 2}}\n\
         - {name: slower clients, says: s., set: {load.think: 30ms}}\n",
    );
    let ended = run_line("explain {} -o {}", &[&study, &out]).with_code(0);
    assert!(
        ended
            .stdout
            .contains("'too few blocks': a livelock at 2 of 2 seeds"),
        "{}",
        ended.stdout
    );
    let figures = json_file(&out.join("figures.json"));
    let count = |i: usize| figures["hypotheses"][i][1].as_array().unwrap().len();
    assert_eq!([count(0), count(1), count(2)], [2, 0, 2]);
    assert_eq!(figures["livelocked"], serde_json::json!([["too few blocks", 2]]));
    let html = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(html.contains("The engine comes to a livelock at 2 of 2 seeds, the first of them 0"));
    // Where it is the test itself, that is said, and llmperf is not blamed.
    let text = std::fs::read_to_string(&study).unwrap();
    let scenario = repository("scenarios/trn1-tinyllama-llmperf.yaml");
    let few = std::fs::read_to_string(&scenario)
        .unwrap()
        .replace("pa_num_blocks: 4", "pa_num_blocks: 2");
    std::fs::write(dir.path().join("few.yaml"), few).unwrap();
    let text = text.replace(&scenario.display().to_string(), "few.yaml");
    std::fs::write(&study, text).unwrap();
    let ended = run_line("explain {} -o {} --overwrite", &[&study, &out]);
    ended.refused(&["few.yaml", "comes to a livelock at 2 of 2 seeds"]);
    assert!(!ended.stderr.contains("llmperf"), "{}", ended.stderr);
}

#[test]
fn a_part_of_an_instance_is_priced_as_that_part() {
    let dir = tempfile::tempdir().unwrap();
    let usd = |instance: &str| {
        let out = dir.path().join(instance);
        let study = small(dir.path(), &format!("instance: {instance}\n"));
        run_line("explain {} -o {}", &[&study, &out]).with_code(0);
        std::fs::read_to_string(out.join("report.html")).unwrap()
    };
    let whole = usd("trn1.2xlarge");
    assert!(whole.contains("on trn1.2xlarge at 1.344 USD an hour") || whole.contains("at 1.34 USD an hour"));
    assert!(!whole.contains("priced at that share"));
    // 16 chips at 21.5 USD an hour: the test uses one of them.
    let part = usd("trn1.32xlarge");
    assert!(part.contains("on trn1.32xlarge at 1.34 USD an hour"));
    assert!(part.contains("The test uses 1 accelerator, and a trn1.32xlarge holds 16"));
}
