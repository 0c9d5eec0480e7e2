//! What every plot must survive, and that its CSV holds what it shows.

use super::*;
use crate::report::figures::{
    Distribution, Goodput, Histogram, MeasuredDistribution, OverTime, PredictedActual, ThroughputLatency,
};

fn all_with(points: &[(f64, f64)]) -> Vec<Plot> {
    let curves = vec![("a".to_owned(), points.to_vec())];
    let (target_s, attainment) = (Some(0.2), Some(0.99));
    vec![
        ThroughputLatency {
            latency: "TTFT p99".into(),
            curves: curves.clone(),
            target_s,
        }
        .plot(),
        Distribution {
            latency: "ITL".into(),
            curves: curves.clone(),
            target_s,
        }
        .plot(),
        Goodput {
            curves: curves.clone(),
            attainment,
            knee: Some((1.0, 2.0)),
            capacity_rps: Some(1.5),
        }
        .plot(),
        PredictedActual {
            quantity: "latency".into(),
            unit: "s".into(),
            groups: curves.clone(),
        }
        .plot(),
        OverTime {
            title: "running".into(),
            quantity: "requests".into(),
            unit: String::new(),
            curves: curves.clone(),
            readings: curves.clone(),
            load: Some((1.0, 2.0)),
        }
        .plot(),
        MeasuredDistribution {
            quantity: "TTFT".into(),
            unit: "s".into(),
            curves,
            measured: points.to_vec(),
        }
        .plot(),
        Histogram {
            quantity: "TTFT".into(),
            unit: "s".into(),
            values: points.iter().map(|p| p.0).collect(),
            bins: 7,
            measured: vec![("median".into(), 0.2)],
        }
        .plot(),
    ]
}

#[test]
fn any_data_can_be_drawn() {
    let hard = [
        0.0,
        -1.0,
        1.0,
        1e-300,
        1e300,
        f64::MAX,
        f64::NAN,
        f64::INFINITY,
        0.5,
    ];
    let pairs: Vec<(f64, f64)> = hard.iter().flat_map(|&x| hard.map(|y| (x, y))).collect();
    let mut cases: Vec<Vec<(f64, f64)>> = pairs.iter().map(|&p| vec![p]).collect();
    cases.push(pairs);
    for points in cases {
        for plot in all_with(&points) {
            let svg = plot.svg();
            assert!(
                svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"),
                "{svg}"
            );
            assert!(
                !svg.contains("NaN") && !svg.contains("not drawn") && !svg.contains("#010203"),
                "{points:?}"
            );
        }
    }
}

#[test]
fn no_data_says_so() {
    for plot in all_with(&[]) {
        assert!(plot.svg().contains("no data"), "{}", plot.title);
    }
    for plot in all_with(&[(10.0, 0.1)]) {
        assert!(!plot.svg().contains("no data"), "{}", plot.title);
    }
}

#[test]
fn axes_have_titles_with_units() {
    let plots = all_with(&[(100.0, 0.05), (200.0, 0.4)]);
    let [curve, distribution, goodput, scatter, gauges, measured, histogram] = &plots[..] else {
        panic!("seven plots");
    };
    for (plot, x, y) in [
        (curve, "output throughput (tokens/s)", "TTFT p99 (ms)"),
        (distribution, "ITL (s)", "share at or below"),
        (goodput, "offered load (requests/s)", "goodput (requests/s)"),
        (scatter, "actual latency (s)", "predicted latency (s)"),
        (gauges, "time (s)", "requests"),
        (measured, "TTFT (s)", "share at or below"),
        (histogram, "TTFT (s)", "values"),
    ] {
        let svg = plot.svg();
        assert!(svg.contains(x) && svg.contains(y), "{svg}");
    }
}

#[test]
fn csv_holds_points_and_guides() {
    let plot = &all_with(&[(100.0, 0.05)])[0];
    let want = "kind,name,output throughput (tokens/s),TTFT p99 (ms)\npoint,a,100,50\nhorizontal,target 200 ms,,200\n";
    assert_eq!(plot.csv(), want);
}

#[test]
fn a_file_of_its_own_brings_its_ink() {
    let plot = &all_with(&[(100.0, 0.05)])[0];
    assert!(plot.svg_file().contains("prefers-color-scheme"));
    assert!(!plot.svg().contains("<style>"));
    assert!(plot.svg().contains("currentColor"));
}

#[test]
fn forbidden_characters_do_not_break_the_drawing() {
    let mut plot = all_with(&[(1.0, 1.0)]).remove(2);
    plot.series[0].name = "a\u{0}b\u{b}<c>&".into();
    let svg = plot.svg();
    assert!(svg.contains("a b &lt;c&gt;&amp;"), "{svg}");
}

#[test]
fn a_plot_is_written_with_its_data_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "ttft", &all_with(&[(1.0, 0.1)])[1]).unwrap();
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    assert!(read("ttft.svg").contains("Distribution of ITL"));
    assert_eq!(read("ttft.csv"), all_with(&[(1.0, 0.1)])[1].csv());
}

#[test]
fn a_histogram_counts_every_value_once() {
    let plot = Histogram {
        quantity: "TTFT".into(),
        unit: "s".into(),
        values: vec![1.0, 1.1, 2.0, 3.0, f64::NAN],
        bins: 4,
        measured: vec![("measured".into(), 2.5)],
    }
    .plot();
    assert_eq!(
        plot.series[0].points,
        [(1.25, 2.0), (1.75, 0.0), (2.25, 1.0), (2.75, 1.0)]
    );
    // Four bars of three kinds of height, and the frame of none: one rectangle each.
    let bars = |plot: &Plot| plot.svg().matches("<rect").count();
    let mut fewer = plot.clone();
    fewer.series[0].points.pop();
    assert_eq!(bars(&plot), bars(&fewer) + 1);
    assert_eq!(plot.guides[0].label(), "measured 2.5 s");
}

#[test]
fn stairs_hold_a_value_until_the_next() {
    let plot = |mark| {
        let series = Series {
            name: String::new(),
            mark,
            points: vec![(0.0, 1.0), (1.0, 3.0), (2.0, 0.0)],
        };
        Plot {
            title: "t".into(),
            x: Axis::linear("time", "s"),
            y: Axis::linear("running", "requests"),
            series: vec![series],
            guides: Vec::new(),
        }
    };
    let corners = |mark| {
        let svg = plot(mark).svg();
        let data = svg
            .split("<polyline")
            .find(|l| l.contains("#2F7ED8"))
            .unwrap_or_default();
        let points = data
            .split("points=\"")
            .nth(1)
            .and_then(|p| p.split('"').next())
            .unwrap_or_default();
        points.split_whitespace().count()
    };
    assert_eq!((corners(Mark::Line), corners(Mark::Stairs)), (3, 5));
}
