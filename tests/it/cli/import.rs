//! `kneeboard import`: what held the run back, with and without the server's gauges.

use std::fmt::Write as _;

use super::support::run_line;

/// Sixty requests, one a second, each 8 s from send to last token: eight in flight.
fn table() -> String {
    let mut text = String::from("arrival_s,ttft_s,e2e_s,input_tokens,output_tokens\n");
    for i in 0..60 {
        writeln!(text, "{i},4.5,8,100,10").unwrap();
    }
    text
}

/// Readings every 2 s from 5 s before the first send on: four run, and four wait.
fn gauges() -> String {
    let mut text = String::from("t,running,waiting,kv_usage\n");
    for i in 0..40 {
        let at = 1000 + 2 * i;
        let (running, waiting) = if (1013..1064).contains(&at) {
            (4, 4)
        } else {
            (0, 0)
        };
        writeln!(text, "{at},{running},{waiting},0.{running}").unwrap();
    }
    text
}

#[test]
fn gauges_beside_the_clients_file_decide() {
    let dir = tempfile::tempdir().unwrap();
    let (file, gauge_file) = (dir.path().join("run.csv"), dir.path().join("gauges.csv"));
    std::fs::write(&file, table()).unwrap();
    std::fs::write(&gauge_file, gauges()).unwrap();
    let verdict = |name: &str, rest: &str, paths: &[&std::path::Path]| {
        let out = dir.path().join(name);
        let mut all = vec![file.as_path(), out.as_path()];
        all.extend(paths);
        let line = format!("import {{}} -o {{}} --json {rest}");
        run_line(&line, &all).with_code(0).json()["runs"][0]["diagnosis"].clone()
    };
    let alone = verdict("alone", "--set max_num_seqs=4", &[]);
    assert_eq!(alone["verdict"], "undecidable");
    let little = |d: &serde_json::Value, key: &str| d["little"][key].as_f64().unwrap();
    // 60 * 8 s over 67 s of wall clock, all of which some request was in flight.
    approx::assert_relative_eq!(little(&alone, "in_flight"), 480.0 / 67.0, max_relative = 1e-9);
    approx::assert_relative_eq!(
        little(&alone, "in_flight_active"),
        480.0 / 67.0,
        max_relative = 1e-9
    );
    // 1 + 2 + … + 7, and 8 in each of the 52 seconds to the last send.
    approx::assert_relative_eq!(
        little(&alone, "in_flight_judged"),
        (28.0 + 52.0 * 8.0) / 59.0,
        max_relative = 1e-9
    );

    let with = "--gauges {} --gauges-start 1005";
    let seats = verdict("seats", &format!("{with} --set max_num_seqs=4"), &[&gauge_file]);
    assert_eq!(seats["verdict"], "server", "{seats}");
    let wide = verdict("wide", &format!("{with} --set max_num_seqs=64"), &[&gauge_file]);
    assert_eq!(wide["verdict"], "server", "{wide}");
    assert!(wide["because"].as_str().unwrap().contains("although seats"));
    // 40 % of 10 blocks are in use: 6 are free, and a prompt needs 7.
    let blocks = format!("{with} --set max_num_seqs=64 --set num_gpu_blocks=11 --set block_size=16");
    assert_eq!(verdict("blocks", &blocks, &[&gauge_file])["verdict"], "kv");
    assert_eq!(verdict("cap", with, &[&gauge_file])["verdict"], "undecidable");

    let out = dir.path().join("text");
    let text = run_line(
        "import {} -o {} --gauges {} --gauges-start 1005 --set max_num_seqs=4",
        &[&file, &out, &gauge_file],
    )
    .with_code(0)
    .stdout;
    assert!(text.contains("What held it back: the server's queue"), "{text}");
    let out = dir.path().join("clocks");
    run_line("import {} -o {} --gauges {}", &[&file, &out, &gauge_file])
        .refused(&["no clock", "--gauges-start"]);
}

#[test]
fn gauges_that_no_server_shows_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (file, gauge_file) = (dir.path().join("run.csv"), dir.path().join("gauges.csv"));
    std::fs::write(&file, table()).unwrap();
    let out = dir.path().join("out");
    let attempt = |text: &str, rest: &str| {
        std::fs::write(&gauge_file, text).unwrap();
        let line = format!("import {{}} -o {{}} --gauges {{}} {rest}");
        run_line(&line, &[&file, &out, &gauge_file])
    };
    let start = "--gauges-start 1005";
    for (text, column) in [
        ("t,running,waiting\n1000,-4,0\n", "column running"),
        ("t,running,waiting\n1000,4,0.5\n", "column waiting"),
        ("t,running,waiting,kv_usage\n1000,4,0,250\n", "column kv_usage"),
    ] {
        attempt(text, start).refused(&["gauges.csv", "line 2", column, "allowed"]);
    }
    let seats = format!("{start} --set max_num_seqs=3");
    attempt(&gauges(), &seats).refused(&["gauges.csv", "line 9", "column running", "found 4", "up to 3"]);
    for wrong in ["nan", "inf"] {
        attempt(&gauges(), &format!("--gauges-start {wrong}"))
            .refused(&["--gauges-start", "number of seconds"]);
    }
}
