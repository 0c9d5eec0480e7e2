//! What the test could not show: its gauges, its price, other configurations, the capacity at an objective.

use super::curves::Curve;
use super::test::clients;
use super::{n, printed, stairs, text};
use crate::explore::published::{Explained, Price, SweepSpec};
use crate::explore::sweep::Configuration;
use crate::metric::scrape::{MOST_SCRAPES, Scraper};
use crate::record::{RunRecord, Scrape};
use crate::report::context::slo_text;
use crate::report::html::{Block, Section};
use crate::report::number::counted;
use crate::report::plot::{Axis, Mark, Plot, Series};
use crate::report::sweep_page::configurations_table;
use crate::report::table::{Cell, Column, Table};
use crate::units::SimTime;

/// Scrapes in the loaded window from which on a dashboard shows a queue for what it is: fewer could each be chance.
const SCRAPES_THAT_SHOW: f64 = 10.0;
/// Starts of the scrape clock that are tried.
const PHASES: u32 = 200;

/// What a dashboard would have shown.
pub fn scrapes(e: &Explained) -> Section {
    let run = &e.test.run.record;
    let (running, waiting, done) = (Curve::running(run), Curve::waiting(run), Curve::completed(run));
    let (from, to) = Curve::in_flight(run).span_of_largest();
    let end = run.end.as_secs_f64();
    let interval = e.file.scrape_interval.0.as_secs_f64();
    let scraper = Scraper::of(run);
    let joined = around(run, &scraper, interval);
    let dashboard = |value: fn(&Scrape) -> f64| joined.iter().map(|s| (s.at_s, value(s))).collect();
    let mut table = Table::new(
        "Scrape intervals and what they see of this load",
        vec![
            Column::with_unit("interval", "s"),
            Column::with_unit("scrapes while all clients are at work, at least", "1"),
            Column::plain("starts of the clock at which no scrape sees a queue"),
            Column::plain("queue is visible"),
        ],
    );
    let intervals = [interval, interval / 2.0, 2.0, 1.0, 0.5, 0.25, 0.1];
    // Of a long load every scrape clock sees as much as of a part of it; the shortest are left out.
    for each in intervals
        .into_iter()
        .filter(|each| end / each <= MOST_SCRAPES as f64)
    {
        let samples = ((to - from) / each).floor();
        let blind = (0..PHASES).filter(|k| {
            let phase = each * f64::from(*k) / f64::from(PHASES);
            let mut readings = (0u32..)
                .map(|k| phase + f64::from(k) * each)
                .take_while(|at| *at <= end);
            readings.all(|at| scraper.waiting(instant(at)) == 0)
        });
        let blind = blind.count() as u32;
        table.push(vec![
            each.into(),
            samples.into(),
            Cell::Share(f64::from(blind) / f64::from(PHASES)),
            if samples >= SCRAPES_THAT_SHOW { "yes" } else { "no" }.into(),
        ]);
    }
    let gauges = Plot {
        title: format!(
            "Running and waiting: what happened, and a scrape every {} s",
            n(interval)
        ),
        x: Axis::linear("time on the load generator's clock", "s"),
        y: Axis::linear("requests", ""),
        series: vec![
            stairs("running", running.0.clone()),
            stairs("waiting", waiting.0.clone()),
            dots("running, scraped", dashboard(|s| s.running)),
            dots("waiting, scraped", dashboard(|s| s.waiting)),
        ],
        guides: Vec::new(),
    };
    let counters = Plot {
        title: "Requests finished: the counter, and its scrapes as a dashboard joins them".into(),
        x: Axis::linear("time on the load generator's clock", "s"),
        y: Axis::linear("requests finished", ""),
        series: vec![
            stairs("counter", done.0.clone()),
            stairs("scraped", dashboard(|s| s.finished.unwrap_or(0.0))),
        ],
        guides: Vec::new(),
    };
    let largest = (to - from) / SCRAPES_THAT_SHOW;
    Section {
        heading: format!("What a {} s scrape shows of a {} s load", n(interval), n(end)),
        blocks: vec![
            text(format!(
                "A scrape every {} s falls once or twice into the {} s in which all clients are at work: a dashboard \
                 shows gauges at 0 with a point or two between, and counters as stairs whose slope is that of the \
                 scrape interval. A rate over a window of several scrapes spreads the load over idle time. To see the \
                 queue it takes {} scrapes while the load stands, an interval of {} s at most, or a load that lasts {} s \
                 at this one.",
                n(interval),
                n(to - from),
                n(SCRAPES_THAT_SHOW),
                n(largest),
                n(SCRAPES_THAT_SHOW * interval)
            )),
            Block::Table(table),
            Block::Plot(gauges),
            Block::Plot(counters),
        ],
    }
}

/// Where on the scrape clock the test begins in the plots, as a share of the interval: any moment is as good.
const PLOTTED_PHASE: f64 = 0.37;

/// The readings of a dashboard with an idle stretch on both sides of the run, which it joins with the rest.
fn around(run: &RunRecord, scraper: &Scraper, interval: f64) -> Vec<Scrape> {
    let phase = PLOTTED_PHASE * interval;
    let before = Scrape {
        at_s: phase - interval,
        finished: Some(0.0),
        ..Scrape::default()
    };
    let last = run.end.as_secs_f64() + 2.0 * interval;
    let readings = (0u32..)
        .map(|k| phase + f64::from(k) * interval)
        .take_while(|at| *at <= last);
    let during = readings.map(|at| Scrape {
        at_s: at,
        ..scraper.read(instant(at))
    });
    std::iter::once(before).chain(during).collect()
}

fn instant(second: f64) -> SimTime {
    SimTime::try_from_secs_f64(second).unwrap_or_default()
}

fn dots(name: &str, points: Vec<(f64, f64)>) -> Series {
    Series {
        name: name.into(),
        mark: Mark::Dots,
        points,
    }
}

/// What a million output tokens cost, and what that leaves out.
pub fn price(e: &Explained) -> Section {
    let mut blocks = Vec::new();
    let rate = printed(&e.test.figures, "results_mean_output_throughput_token_per_s");
    if let (Some(price), Some(rate)) = (&e.price, rate) {
        let usd_h = price.usd_h();
        let per_million = |tokens_per_s: f64| usd_h / 3600.0 / tokens_per_s * 1e6;
        let mut table = Table::new(
            format!(
                "USD a million output tokens on {} at {} USD an hour",
                price.instance,
                n(usd_h)
            ),
            vec![
                Column::plain("counted"),
                Column::with_unit("output tokens", "1/s"),
                Column::with_unit("cost", "USD"),
            ],
        );
        let mut row = |name: &str, tokens_per_s: f64| {
            table.push(vec![
                name.into(),
                tokens_per_s.into(),
                per_million(tokens_per_s).into(),
            ]);
        };
        row("as printed: the load generator's clock", rate);
        let busy = while_busy(e);
        row("only while all clients are at work (simulated)", busy);
        let slo = e.test.run.summary.slo.as_ref().and_then(|s| s.attainment);
        if let Some(attainment) = slo.filter(|a| *a > 0.0) {
            row(
                "the same, tokens of requests within the objective alone (simulated)",
                busy * attainment,
            );
        }
        for share in [0.5, 0.2] {
            row(
                &format!(
                    "as printed, the machine loaded {} % of the time",
                    n(100.0 * share)
                ),
                rate * share,
            );
        }
        blocks.push(text(format!(
            "{} USD an hour over {} tokens/s are {} USD a million output tokens. That leaves out: the hours in which the \
             machine is rented and not loaded; the input tokens, {} for each output token, for which the price pays too; \
             requests that miss the objective ({}); starts, compilation and failed runs; storage, network and whatever \
             serves beside the model; and discounts of longer terms.",
            n(usd_h),
            n(rate),
            n(per_million(rate)),
            n(input_over_output(e)),
            slo_text(&e.test.plan)
        )));
        blocks.extend(share(price).map(text));
        blocks.push(Block::Table(table));
    } else {
        blocks.push(text(
            "The study names no instance with a price, or no printed rate of output tokens.",
        ));
    }
    Section {
        heading: "What a million tokens cost, and what that leaves out".into(),
        blocks,
    }
}

/// What part of its machine a test uses, where that is not just one whole machine.
fn share(price: &Price) -> Option<String> {
    (price.used != price.accelerators).then(|| {
        format!(
            "The test uses {}, and a {} holds {}: it is priced at that share of the {} USD an hour that the whole machine \
             costs. Machines are rented whole, so the figures hold where all of their accelerators are at work.",
            counted(u64::from(price.used), "accelerator"),
            price.instance,
            price.accelerators,
            n(price.instance_usd_h)
        )
    })
}

/// Output tokens a second while all clients are at work.
fn while_busy(e: &Explained) -> f64 {
    let run = &e.test.run.record;
    let (from, to) = Curve::in_flight(run).span_of_largest();
    let tokens = run.requests.iter().flat_map(|r| run.token_times(r));
    let within = tokens.filter(|t| (from..to).contains(&t.as_secs_f64())).count();
    within as f64 / (to - from)
}

fn input_over_output(e: &Explained) -> f64 {
    let find = |name: &str| printed(&e.test.figures, name);
    match find("results_number_input_tokens_mean").zip(find("results_number_output_tokens_mean")) {
        Some((input, output)) => input / output,
        None => {
            let tokens = &e.test.run.summary.tokens;
            tokens.input as f64 / tokens.output.max(1) as f64
        }
    }
}

/// What the test did not vary.
pub fn sweeps(e: &Explained) -> Section {
    let mut blocks = vec![text(format!(
        "The test measured one configuration at one load of {} clients. The same scenario, varied; each row is one seed. \
         Only the programs of the test itself are known; what other seats, buckets and ranks take is the fitted model's \
         extrapolation.",
        n(clients(&e.test))
    ))];
    for (spec, configurations) in e.file.sweeps.iter().zip(&e.sweeps) {
        blocks.push(Block::Table(sweep_table(spec, configurations)));
        blocks.push(Block::Plot(sweep_plot(
            spec,
            configurations,
            "output tokens",
            "1/s",
            |c| mean(c, |r| Some(r.output_tok_s)),
        )));
        blocks.push(Block::Plot(sweep_plot(
            spec,
            configurations,
            "TTFT p50",
            "s",
            |c| mean(c, |r| r.ttft_p50_s),
        )));
    }
    Section {
        heading: "What the test did not vary".into(),
        blocks,
    }
}

type Outcome = crate::explore::load::RunOutcome;

fn mean(c: &Configuration, of: impl Fn(&Outcome) -> Option<f64>) -> Option<f64> {
    c.points().first().and_then(|p| p.mean(of))
}

fn sweep_table(spec: &SweepSpec, configurations: &[Configuration]) -> Table {
    let mut table = Table::new(
        spec.title.clone(),
        vec![
            Column::plain("configuration"),
            Column::with_unit("requests", "1/s"),
            Column::with_unit("output tokens", "1/s"),
            Column::with_unit("TTFT p50", "s"),
            Column::with_unit("TTFT p99", "s"),
            Column::with_unit("E2E mean", "s"),
            Column::plain("within the objective"),
        ],
    );
    for c in configurations {
        let mut row = vec![Cell::from(c.label.as_str())];
        if c.is_feasible() {
            row.extend([
                mean(c, |r| Some(r.throughput_rps)).into(),
                mean(c, |r| Some(r.output_tok_s)).into(),
                mean(c, |r| r.ttft_p50_s).into(),
                mean(c, |r| r.ttft_p99_s).into(),
                mean(c, |r| r.e2e_mean_s).into(),
                mean(c, |r| Some(r.attainment)).map_or(Cell::Absent, Cell::Share),
            ]);
        } else if let crate::explore::sweep::ConfigurationOutcome::Infeasible(why) = &c.outcome {
            row.push(why.as_str().into());
        }
        table.push(row);
    }
    table
}

/// A figure over the first axis, one line for each value of the others.
fn sweep_plot(
    spec: &SweepSpec,
    configurations: &[Configuration],
    what: &str,
    unit: &str,
    of: impl Fn(&Configuration) -> Option<f64>,
) -> Plot {
    let mut series: Vec<Series> = Vec::new();
    for c in configurations {
        let Some((x, others)) = c.setting.split_first() else {
            continue;
        };
        let Some(point) = x.1.as_f64().zip(of(c)) else {
            continue;
        };
        let words: Vec<String> = others
            .iter()
            .map(|(path, value)| format!("{} {value}", last_key(path)))
            .collect();
        let name = if words.is_empty() {
            what.to_owned()
        } else {
            words.join(", ")
        };
        match series.iter_mut().find(|s| s.name == name) {
            Some(s) => s.points.push(point),
            None => series.push(Series {
                name,
                mark: Mark::LineAndDots,
                points: vec![point],
            }),
        }
    }
    let axis = spec
        .axes
        .keys()
        .next()
        .map_or("", |path| in_words(last_key(path)));
    Plot {
        title: format!("{}: {what}", spec.title),
        x: Axis::linear(axis, ""),
        y: Axis::linear(what, unit),
        series,
        guides: Vec::new(),
    }
}

fn last_key(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// A knob as the label of an axis.
fn in_words(key: &str) -> &str {
    match key {
        "tp" => "tensor-parallel degree (TP)",
        "pp" => "pipeline-parallel degree (PP)",
        "ep" => "expert-parallel degree (EP)",
        "max_num_seqs" => "seats (max_num_seqs)",
        "concurrency" => "clients (concurrency)",
        other => other,
    }
}

/// The capacity at the scenario's objective, under open arrivals.
pub fn capacity(e: &Explained) -> Option<Section> {
    let (plan, configurations) = e.capacity.as_ref()?;
    let spec = e.file.capacity.as_ref()?;
    let axes = SweepSpec {
        title: "Highest open load within the objective".into(),
        axes: spec.axes.clone(),
        set: spec.set.clone(),
    };
    let plot = sweep_plot(&axes, configurations, "capacity", "requests/s", |c| {
        c.capacity().and_then(|found| found.capacity_rps)
    });
    Some(Section {
        heading: "Capacity at an objective".into(),
        blocks: vec![
            text(format!(
                "A closed loop of a few clients slows down with the server and cannot show what load it carries. Under \
                 Poisson arrivals of the same requests, the highest rate at which {}:",
                slo_text(plan)
            )),
            Block::Table(configurations_table(configurations)),
            Block::Plot(plot),
            text(
                "Only the test's own programs are known: what other seats and buckets take is the fitted model's \
                 extrapolation, which may be off by tens of per cent.",
            ),
            text(
                "The region around each of these rates is where a live test should be made, not a substitute for it.",
            ),
        ],
    })
}
