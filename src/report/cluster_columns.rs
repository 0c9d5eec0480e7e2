//! Columns of a sweep that only clusters have.

use super::table::{Cell, Column};
use crate::explore::cluster::ClusterOutcome;
use crate::explore::load::{LoadPoint, RunOutcome};
use crate::explore::sweep::Configuration;

type Figure = fn(&ClusterOutcome) -> Option<f64>;

/// Heading, unit, figure.
const FIGURES: [(&str, &str, Figure); 4] = [
    ("cost", "USD/1M good output tokens", |c| {
        c.usd_per_m_good_output_tokens
    }),
    ("energy", "J/good request", |c| c.j_per_good_request),
    ("prefill needed", "groups", |c| c.prefill_groups_needed),
    ("decode needed", "groups", |c| c.decode_groups_needed),
];

/// Which columns of clusters a sweep has: those in which some configuration has something.
#[derive(Debug)]
pub struct ClusterColumns {
    pools: Vec<String>,
    figures: Vec<(&'static str, &'static str, Figure)>,
}

impl ClusterColumns {
    /// Of a sweep.
    pub fn of(configurations: &[Configuration]) -> Self {
        let runs = || {
            let points = configurations.iter().flat_map(Configuration::points);
            points.flat_map(|p| &p.runs).filter_map(|r| r.cluster.as_ref())
        };
        Self {
            pools: configurations
                .iter()
                .find(|c| !c.groups.is_empty())
                .map_or_else(Vec::new, |c| {
                    c.groups.iter().map(|(pool, _)| pool.clone()).collect()
                }),
            figures: FIGURES
                .into_iter()
                .filter(|(_, _, figure)| runs().any(|run| figure(run).is_some()))
                .collect(),
        }
    }

    /// Their headings.
    pub fn columns(&self) -> Vec<Column> {
        let groups = self
            .pools
            .iter()
            .map(|pool| Column::with_unit(pool.as_str(), "groups"));
        let figures = self
            .figures
            .iter()
            .map(|(name, unit, _)| Column::with_unit(*name, *unit));
        groups.chain(figures).collect()
    }

    /// What a configuration has in them, at the load that stands for it.
    pub fn cells(&self, configuration: &Configuration, point: Option<&LoadPoint>) -> Vec<Cell> {
        let groups = self.pools.iter().map(|pool| {
            let found = configuration.groups.iter().find(|(name, _)| name == pool);
            found.map(|&(_, n)| u64::from(n)).into()
        });
        let figures = self.figures.iter().map(|(_, _, figure)| {
            let of_run = |r: &RunOutcome| r.cluster.as_ref().and_then(figure);
            point.and_then(|p| p.mean(of_run)).into()
        });
        groups.chain(figures).collect()
    }
}
