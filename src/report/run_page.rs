//! The page of simulated runs of one scenario.

use super::compare::intervals_table;
use super::context::{context, footer, question};
use super::figures::{Curve, Distribution};
use super::html::{Block, Page, Section};
use super::plot::Plot;
use super::run_tables::summary_tables;
use super::tool_tables::tool_tables;
use crate::explore::study::{Study, StudyError, StudyRun, summary_options};
use crate::input::InputError;
use crate::metric::Sample;
use crate::metric::cluster::ClusterSeries;
use crate::metric::latency::ttft_sample;
use crate::metric::tokens::TokenGaps;
use crate::record::RunRecord;
use crate::scenario::Plan;
use crate::verify::predicted::Prediction;

/// Points of a distribution curve.
const POINTS: usize = 400;

/// The distributions of TTFT and ITL, a curve a replication, with a name for the file of each.
pub fn distributions(plan: &Plan, runs: &[StudyRun]) -> Vec<(&'static str, Plot)> {
    let window = summary_options(plan).window;
    let curves = |figure: &dyn Fn(&RunRecord) -> Sample| -> Vec<Curve> {
        runs.iter()
            .enumerate()
            .map(|(i, run)| {
                let points = figure(&run.record).distribution(POINTS);
                let seconds = points
                    .into_iter()
                    .map(|(ns, share)| (ns as f64 / 1e9, share))
                    .collect();
                (format!("run {i}"), seconds)
            })
            .collect()
    };
    let target = |t: Option<crate::units::SimDuration>| t.map(|t| t.as_secs_f64());
    let plot = |latency: &str, curves, target_s| {
        Distribution {
            latency: latency.to_owned(),
            curves,
            target_s,
        }
        .plot()
    };
    let ttft = curves(&|run| ttft_sample(run, &window));
    let itl = curves(&|run| TokenGaps::new(run, None).pooled(window.select(run)));
    vec![
        ("ttft", plot("TTFT", ttft, target(plan.slo.ttft))),
        ("itl", plot("ITL", itl, target(plan.slo.itl))),
    ]
}

/// What a cluster's first replication looked like over time; nothing of replicas apart.
///
/// # Errors
/// [`StudyError`] for records that cannot be summarised.
pub fn cluster_plots(study: &Study, runs: &[StudyRun]) -> Result<Vec<(&'static str, Plot)>, StudyError> {
    let plan = study.plan();
    let first = runs
        .first()
        .and_then(|run| Some((run, run.cluster.as_ref()?, run.figures.as_ref()?)));
    let (Some((run, cluster, figures)), Some(options)) = (first, study.cluster_options(plan)?) else {
        return Ok(Vec::new());
    };
    let series = ClusterSeries::of(&run.record, cluster, &options)
        .map_err(|e| InputError::new(plan.origin(), e.to_string()))?;
    Ok(super::cluster::plots(figures, &series))
}

/// The page; the plots of the cluster stand with the first run's figures.
pub fn run_page(
    plan: &Plan,
    runs: &[StudyRun],
    plots: &[(&'static str, Plot)],
    of_cluster: &[(&'static str, Plot)],
    intervals: &Prediction,
) -> Page {
    let view = plan.view();
    let mut sections: Vec<Section> = runs
        .iter()
        .enumerate()
        .map(|(i, run)| {
            let mut blocks: Vec<Block> = summary_tables(&run.summary)
                .into_iter()
                .map(Block::Table)
                .collect();
            let as_printed = view.map_or_else(Vec::new, |view| tool_tables(view, &run.record));
            blocks.extend(as_printed.into_iter().map(Block::Table));
            blocks.extend(run.summary.notes.iter().map(|n| Block::Text(n.clone())));
            Section {
                heading: format!("Run {i}"),
                blocks,
            }
        })
        .collect();
    for (i, run, figures) in runs
        .iter()
        .enumerate()
        .filter_map(|(i, r)| Some((i, r, r.figures.as_ref()?)))
    {
        let plots = if i == 0 { of_cluster } else { &[] };
        let section = super::cluster::section(figures, &run.rollouts, plots);
        let heading = if runs.len() > 1 {
            format!("{}, run {i}", section.heading)
        } else {
            section.heading
        };
        sections.push(Section { heading, ..section });
    }
    sections.extend(intervals_section(intervals));
    sections.push(Section {
        heading: "Distributions".into(),
        blocks: plots.iter().map(|(_, plot)| Block::Plot(plot.clone())).collect(),
    });
    let mut limitations = plan.limitations();
    limitations.extend(extrapolation_note(
        runs.iter().filter_map(|r| r.extrapolated_share),
    ));
    Page {
        title: format!("Simulated: {}", plan.origin()),
        question: question(plan),
        context: context(plan),
        sections,
        limitations,
        footer: footer(),
    }
}

/// The intervals, and what there is to say of them.
fn intervals_section(intervals: &Prediction) -> Option<Section> {
    let table = (!intervals.figures.is_empty()).then(|| Block::Table(intervals_table(&intervals.figures)));
    let notes = intervals.notes.iter().cloned().map(Block::Text);
    let blocks: Vec<Block> = table.into_iter().chain(notes).collect();
    (!blocks.is_empty()).then(|| Section {
        heading: "How sure this is".into(),
        blocks,
    })
}

/// A word on batches outside of what the step times were fitted to.
pub fn extrapolation_note(shares: impl Iterator<Item = f64>) -> Option<String> {
    let largest = shares.fold(0.0, f64::max);
    (largest > 0.0).then(|| {
        format!(
            "extrapolated: in up to {:.1} % of the steps the batch lies outside of what the step times were \
             fitted to (the largest share of any load that was run, overload included)",
            100.0 * largest
        )
    })
}
