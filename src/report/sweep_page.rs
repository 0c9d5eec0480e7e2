//! The page of a sweep: capacity of every configuration, the knees, and what must be verified live.

use serde_json::Value;

use super::cluster_columns::ClusterColumns;
use super::context::{context, footer, question, slo_text};
use super::figures::{Curve, Goodput, ThroughputLatency};
use super::html::{Block, Page, Section};
use super::limited_by;
use super::plot::Plot;
use super::run_page::extrapolation_note;
use super::table::{Cell, Column, Table};
use crate::explore::capacity::{Capacity, CapacityInterval, Limit};
use crate::explore::grid::axis_names;
use crate::explore::load::{LoadPoint, RunOutcome};
use crate::explore::sweep::{Configuration, ConfigurationOutcome};
use crate::scenario::Plan;
use crate::units::SimDuration;

/// A row a configuration: the value of each axis, then what was found.
pub fn configurations_table(configurations: &[Configuration]) -> Table {
    table_with(configurations, &ClusterColumns::of(configurations))
}

fn table_with(configurations: &[Configuration], of_cluster: &ClusterColumns) -> Table {
    let axes = configurations
        .first()
        .map_or_else(Vec::new, |c| axis_names(&c.setting));
    let keys = axes.len();
    let mut columns: Vec<Column> = axes.into_iter().map(Column::plain).collect();
    columns.extend([
        Column::with_unit("capacity at SLO", "req/s"),
        Column::plain("attainment"),
        Column::with_unit("SLO boundary to verify", "req/s"),
        Column::with_unit("knee to verify", "req/s"),
        Column::with_unit("goodput", "req/s"),
        Column::with_unit("output", "tok/s"),
        Column::with_unit("TTFT p99", "s"),
        Column::with_unit("ITL p99", "s"),
        Column::plain("extrapolated steps"),
    ]);
    columns.extend(of_cluster.columns());
    let limit_of = |c: &Configuration| c.capacity().and_then(|c| c.limited_by);
    let of_limits: Vec<Option<Limit>> = configurations.iter().map(limit_of).collect();
    let any_limit = of_limits.iter().any(Option::is_some);
    if any_limit {
        columns.push(Column::plain("limited by"));
    }
    let any_carried = configurations.iter().any(|c| !c.carried_over.is_empty());
    if any_carried {
        columns.push(Column::plain("carried over"));
    }
    let any_extrapolated = configurations.iter().any(|c| !c.extrapolated.is_empty());
    if any_extrapolated {
        columns.push(Column::plain("extrapolated in"));
    }
    let remarks: Vec<String> = configurations.iter().map(remarks).collect();
    let any_remark = remarks.iter().any(|r| !r.is_empty());
    if any_remark {
        columns.push(Column::plain("remarks"));
    }
    let mut table = Table::new("Configurations", columns).with_keys(keys);
    for ((configuration, remark), limit) in configurations.iter().zip(remarks).zip(of_limits) {
        let mut row = row(configuration);
        row.extend(of_cluster.cells(configuration, reference_point(configuration)));
        row.extend(any_limit.then(|| limit.map(limited_by::name).into()));
        row.extend(any_carried.then(|| configuration.carried_over.join(", ").into()));
        row.extend(any_extrapolated.then(|| in_short(&configuration.extrapolated).into()));
        row.extend(any_remark.then(|| remark.into()));
        table.push(row);
    }
    table.note = Some(table_note(configurations, any_limit));
    table
}

/// What the table's figures are of.
fn table_note(configurations: &[Configuration], any_limit: bool) -> String {
    let is_searched = configurations.iter().any(|c| c.capacity().is_some());
    let at = if is_searched {
        "at the capacity (or at the scenario's load)"
    } else {
        "at the scenario's load"
    };
    let mut note = format!(
        "attainment, goodput, output and latencies {at}, mean over the seeds; goodput is a second of wall clock, and the \
         arrivals that a seed draws are a little more or fewer than the rate says"
    );
    if is_searched {
        note += "; an open upper end of the knee means that no load of the range was saturated";
    }
    if any_limit {
        note += "; limited by: what fails at the lowest load that fails";
    }
    note
}

/// The table for people: without what is empty, with what never varies told once; one configuration alone stands upright.
pub fn shown_table(configurations: &[Configuration]) -> Table {
    let columns = ClusterColumns::for_people(configurations);
    table_with(configurations, &columns).condensed().upright()
}

fn remarks(configuration: &Configuration) -> String {
    match &configuration.outcome {
        ConfigurationOutcome::Infeasible(reason) => format!("infeasible: {reason}"),
        ConfigurationOutcome::Capacity(c) => c.notes.join("; "),
        ConfigurationOutcome::Load(p) if p.livelocked() => {
            "livelock: an engine schedules nothing any more (its run says why), or requests wait for groups that never come".to_owned()
        }
        ConfigurationOutcome::Load(p) if p.saturated() => "saturated".to_owned(),
        ConfigurationOutcome::Load(_) => String::new(),
    }
}

fn row(configuration: &Configuration) -> Vec<Cell> {
    let capacity = configuration.capacity();
    let point = reference_point(configuration);
    let mean = |f: fn(&RunOutcome) -> Option<f64>| point.and_then(|p| p.mean(f)).into();
    let extrapolated: Cell = point
        .and_then(|p| p.mean(|r| r.extrapolated_share))
        .map_or(Cell::Absent, Cell::Share);
    let values = configuration.setting.iter().map(|(_, value)| match value {
        Value::String(text) => text.as_str().into(),
        other => other.to_string().into(),
    });
    let found = [
        capacity.and_then(|c| c.capacity_rps).into(),
        point
            .and_then(|p| p.mean(|r| Some(r.attainment)))
            .map_or(Cell::Absent, Cell::Share),
        capacity
            .and_then(|c| c.slo_boundary_rps)
            .map(|[lo, hi]| range(lo, Some(hi)))
            .into(),
        capacity
            .and_then(|c| c.knee)
            .map(|k| range(k.from_rps, k.to_rps))
            .into(),
        mean(|r| Some(r.goodput_rps)),
        mean(|r| Some(r.output_tok_s)),
        mean(|r| r.ttft_p99_s),
        mean(|r| r.itl_p99_s),
        extrapolated,
    ];
    values.chain(found).collect()
}

fn range(from: f64, to: Option<f64>) -> String {
    let digits = |x: f64| super::number::significant(x, 3);
    format!("{} to {}", digits(from), to.map_or_else(|| "open".into(), digits))
}

/// The load whose figures stand for the configuration: at its capacity, or the only one.
fn reference_point(configuration: &Configuration) -> Option<&LoadPoint> {
    match &configuration.outcome {
        ConfigurationOutcome::Load(point) => Some(point),
        ConfigurationOutcome::Capacity(c) => {
            let at = c.capacity_rps?;
            c.points.iter().rfind(|p| p.rate_rps <= at)
        }
        ConfigurationOutcome::Infeasible(_) => None,
    }
}

/// Every load of every configuration, a row a run.
pub fn points_table(configurations: &[Configuration]) -> Table {
    let names = [
        ("configuration", None),
        ("offered", Some("requests/s")),
        ("repeat", None),
        ("attainment", None),
        ("error_rate", None),
        ("goodput", Some("requests/s")),
        ("throughput", Some("requests/s")),
        ("output", Some("tokens/s")),
        ("ttft_p50", Some("s")),
        ("ttft_p99", Some("s")),
        ("e2e_mean", Some("s")),
        ("itl_p99", Some("s")),
        ("saturated", None),
        ("extrapolated_share", None),
        ("usd_per_m_good_output_tokens", Some("USD")),
        ("usd_per_good_request", Some("USD")),
        ("j_per_good_request", Some("J")),
        ("prefill_groups_needed", None),
        ("decode_groups_needed", None),
    ];
    let columns = names
        .iter()
        .map(|(name, unit)| unit.map_or_else(|| Column::plain(*name), |u| Column::with_unit(*name, u)))
        .collect();
    let mut table = Table::new("Loads", columns);
    for configuration in configurations {
        for point in configuration.points() {
            for (repeat, run) in point.runs.iter().enumerate() {
                table.push(point_row(&configuration.label, point.rate_rps, repeat, run));
            }
        }
    }
    table
}

fn point_row(label: &str, rate_rps: f64, repeat: usize, run: &RunOutcome) -> Vec<Cell> {
    let cluster = run.cluster.clone().unwrap_or_default();
    vec![
        label.into(),
        rate_rps.into(),
        (repeat as u64).into(),
        run.attainment.into(),
        run.error_rate.into(),
        run.goodput_rps.into(),
        run.throughput_rps.into(),
        run.output_tok_s.into(),
        run.ttft_p50_s.into(),
        run.ttft_p99_s.into(),
        run.e2e_mean_s.into(),
        run.itl_p99_s.into(),
        run.saturated.to_string().into(),
        run.extrapolated_share.into(),
        cluster.usd_per_m_good_output_tokens.into(),
        cluster.usd_per_good_request.into(),
        cluster.j_per_good_request.into(),
        cluster.prefill_groups_needed.into(),
        cluster.decode_groups_needed.into(),
    ]
}

fn curves(
    configurations: &[Configuration],
    x: impl Fn(&LoadPoint) -> Option<f64>,
    y: impl Fn(&LoadPoint) -> Option<f64>,
) -> Vec<Curve> {
    configurations
        .iter()
        .filter(|c| c.is_feasible())
        .map(|c| {
            (
                c.label.clone(),
                c.points().iter().filter_map(|p| x(p).zip(y(p))).collect(),
            )
        })
        .collect()
}

/// Goodput against offered load, and latency against throughput, with a name for the file of each.
pub fn sweep_plots(plan: &Plan, configurations: &[Configuration]) -> Vec<(&'static str, Plot)> {
    let best = best(configurations);
    let capacity = best.and_then(Configuration::capacity);
    let goodput = Goodput {
        curves: curves(
            configurations,
            |p| Some(p.rate_rps),
            |p| p.mean(|r| Some(r.goodput_rps)),
        ),
        attainment: Some(plan.slo.attainment),
        knee: capacity
            .and_then(|c| c.knee)
            .and_then(|k| Some((k.from_rps, k.to_rps?))),
        capacity_rps: capacity.and_then(|c| c.capacity_rps),
    };
    // A target belongs on the percentile that it is asked at; on another one its line would mislead.
    let at_p99 = |target: Option<SimDuration>| {
        target
            .filter(|_| plan.slo.attainment >= 0.99)
            .map(|t| t.as_secs_f64())
    };
    let throughput = |p: &LoadPoint| p.mean(|r| Some(r.output_tok_s));
    let latency = |name: &str, y: fn(&RunOutcome) -> Option<f64>, target_s| {
        let curves = curves(configurations, throughput, |p| p.mean(y));
        ThroughputLatency {
            latency: name.to_owned(),
            curves,
            target_s,
        }
        .plot()
    };
    vec![
        ("goodput", goodput.plot()),
        (
            "throughput-ttft",
            latency("TTFT p99", |r| r.ttft_p99_s, at_p99(plan.slo.ttft)),
        ),
        ("throughput-e2e", latency("E2E mean", |r| r.e2e_mean_s, None)),
    ]
}

/// The configuration of the highest capacity; the first of equals.
pub fn best(configurations: &[Configuration]) -> Option<&Configuration> {
    let capacity = |c: &Configuration| c.capacity().and_then(|c| c.capacity_rps);
    configurations
        .iter()
        .filter(|c| capacity(c).is_some())
        .reduce(|a, b| if capacity(b) > capacity(a) { b } else { a })
}

/// The answer in a sentence, and what must be verified live before it is trusted.
pub fn verdict(plan: &Plan, configurations: &[Configuration]) -> Vec<String> {
    let Some(best) = best(configurations) else {
        return without_capacity(configurations);
    };
    let Some(capacity) = best.capacity() else {
        return Vec::new();
    };
    let carried = capacity.capacity_rps.unwrap_or(0.0);
    let at_least = if capacity.fails_at_rps.is_none() {
        "at least "
    } else {
        ""
    };
    let who = match configurations.len() {
        1 if best.setting.is_empty() => "As written it carries".to_owned(),
        1 => format!("{} carries", best.label),
        _ => format!("{} carries the most:", best.label),
    };
    let mut lines = vec![format!(
        "{who} {at_least}{} requests/s with {}.",
        super::number::significant(carried, 3),
        slo_text(plan)
    )];
    lines.extend(
        capacity
            .fails_at_rps
            .zip(capacity.limited_by)
            .map(|(rate, limit)| {
                format!(
                    "At {} requests/s it fails: {}.",
                    super::number::significant(rate, 3),
                    limited_by::text(limit, plan)
                )
            }),
    );
    if !best.carried_over.is_empty() {
        lines.push(format!(
            "Its step times are carried over (extrapolation): the fit does not speak for its {}.",
            best.carried_over.join(", ")
        ));
    }
    if !best.extrapolated.is_empty() {
        lines.push(format!(
            "It leaves what the fit has seen (extrapolation) in {}.",
            best.extrapolated.join(", ")
        ));
    }
    lines.extend(capacity.interval.as_ref().map(interval_text));
    lines.extend(not_told_apart(best, configurations));
    lines.extend(to_verify(capacity));
    lines
}

/// Marks of extrapolation for a narrow column: of each pool how many there are, and the only one by its name.
fn in_short(marks: &[String]) -> String {
    let mut pools: Vec<(&str, Vec<&str>)> = Vec::new();
    for mark in marks {
        let (pool, matter) = mark.split_once(": ").unwrap_or(("", mark));
        match pools.iter_mut().find(|(name, _)| *name == pool) {
            Some((_, matters)) => matters.push(matter),
            None => pools.push((pool, vec![matter])),
        }
    }
    let of_pool = pools
        .into_iter()
        .map(|(pool, matters)| match (pool, matters.as_slice()) {
            ("", matters) => matters.join(", "),
            (pool, [matter]) => format!("{pool}: {matter}"),
            (pool, matters) => format!("{pool}: {} matters", matters.len()),
        });
    of_pool.collect::<Vec<_>>().join("; ")
}

/// How sure the capacity is.
fn interval_text(interval: &CapacityInterval) -> String {
    let mut text = format!(
        "By {} draws of the fits behind its step times, 90 % interval of that capacity: {} requests/s",
        interval.draws,
        range(interval.lo_rps, interval.hi_rps)
    );
    if interval.carry_nothing > 0 {
        text += &format!("; {} carry not even the lowest load", interval.carry_nothing);
    }
    if interval.carry_all > 0 {
        text += &format!("; {} carry every load of the range", interval.carry_all);
    }
    text + "."
}

/// Configurations whose capacity lies within the region in which the best one's is known.
fn not_told_apart(best: &Configuration, configurations: &[Configuration]) -> Option<String> {
    let low = best.capacity()?.slo_boundary_rps?[0];
    let near: Vec<&str> = configurations
        .iter()
        .filter(|c| !std::ptr::eq(*c, best))
        .filter(|c| {
            c.capacity()
                .and_then(|c| c.capacity_rps)
                .is_some_and(|rate| rate >= low)
        })
        .map(|c| c.label.as_str())
        .collect();
    (!near.is_empty()).then(|| format!("These runs do not tell it apart from: {}.", near.join("; ")))
}

fn without_capacity(configurations: &[Configuration]) -> Vec<String> {
    if !configurations.iter().any(Configuration::is_feasible) {
        return vec!["No configuration can be run.".into()];
    }
    let searched = configurations.iter().any(|c| c.capacity().is_some());
    let failed = searched.then(|| "No configuration carries any load of the range at the SLO.".into());
    failed.into_iter().collect()
}

fn to_verify(capacity: &Capacity) -> Vec<String> {
    let digits = |x: f64| super::number::significant(x, 3);
    let mut lines = Vec::new();
    if let Some([lo, hi]) = capacity.slo_boundary_rps {
        lines.push(format!(
            "Verify live, SLO boundary: {} to {} requests/s.",
            digits(lo),
            digits(hi)
        ));
    }
    if let Some(knee) = capacity.knee {
        let begins_lower = if knee.may_begin_lower {
            " (it may begin below the range)"
        } else {
            ""
        };
        lines.push(format!(
            "Verify live, knee: {} requests/s{begins_lower}; within it a small error of the step time becomes a \
             large error of the latency.",
            range(knee.from_rps, knee.to_rps)
        ));
    }
    lines
}

/// The sections of a sweep.
pub fn sweep_sections(
    plan: &Plan,
    configurations: &[Configuration],
    plots: &[(&'static str, Plot)],
) -> Vec<Section> {
    let mut first: Vec<Block> = verdict(plan, configurations)
        .into_iter()
        .map(Block::Text)
        .collect();
    first.push(Block::Table(shown_table(configurations)));
    let drawn = plots.iter().map(|(_, plot)| Block::Plot(plot.clone())).collect();
    vec![
        Section {
            heading: "Capacity and knees".into(),
            blocks: first,
        },
        Section {
            heading: "Curves".into(),
            blocks: drawn,
        },
    ]
}

/// What a sweep's figures may not be used for.
pub fn sweep_limitations(plan: &Plan, configurations: &[Configuration]) -> Vec<String> {
    let mut limitations = plan.limitations();
    let shares = configurations
        .iter()
        .flat_map(Configuration::points)
        .flat_map(|p| &p.runs)
        .filter_map(|r| r.extrapolated_share);
    limitations.extend(extrapolation_note(shares));
    let carried = configurations
        .iter()
        .filter(|c| !c.carried_over.is_empty())
        .count();
    if carried > 0 && configurations.len() > 1 {
        limitations.push(format!(
            "step times of {carried} of {} configurations are carried over (extrapolation): the column `carried over` \
             names what of each the fit does not speak for",
            configurations.len()
        ));
    }
    if plan.is_cluster() {
        limitations.push(
            "figures of a sweep have no intervals: how far the fits behind step times may be off is told for a run of one \
             configuration (simulate), and with --intervals for the best capacity"
                .into(),
        );
    }
    limitations.push(
        "the knee is read off simulated loads by Kleinrock's power; the interval holds for the seeds that were \
         run, not for other mixes"
            .into(),
    );
    limitations
}

/// The page of a sweep.
pub fn sweep_page(plan: &Plan, configurations: &[Configuration], plots: &[(&'static str, Plot)]) -> Page {
    Page {
        title: format!("Sweep: {}", plan.origin()),
        question: question(plan),
        context: context(plan),
        sections: sweep_sections(plan, configurations, plots),
        limitations: sweep_limitations(plan, configurations),
        footer: footer(),
    }
}
