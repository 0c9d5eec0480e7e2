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
