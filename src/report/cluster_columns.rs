//! Columns of a sweep that only clusters have.

use super::table::{Cell, Column};
use crate::explore::cluster::{ClusterOutcome, PoolOutcome};
use crate::explore::load::{LoadPoint, RunOutcome};
use crate::explore::sweep::Configuration;

type Figure = fn(&ClusterOutcome) -> Option<f64>;
type PoolFigure = fn(&PoolOutcome) -> Option<f64>;

/// Heading, unit, figure.
const FIGURES: [(&str, &str, Figure); 4] = [
    ("cost", "USD/1M good output tokens", |c| {
        c.usd_per_m_good_output_tokens
    }),
    ("energy", "J/good request", |c| c.j_per_good_request),
    ("prefill needed", "groups", |c| c.prefill_groups_needed),
    ("decode needed", "groups", |c| c.decode_groups_needed),
];

/// The same, of each pool.
const POOL_FIGURES: [(&str, &str, PoolFigure); 2] = [
    ("ready, mean", "groups", |p| p.ready_mean),
    ("ready beyond need", "group-h", |p| p.overshoot_group_h),
];

/// Which columns of clusters a sweep has: those in which some configuration has something.
#[derive(Debug)]
pub struct ClusterColumns {
    pools: Vec<PoolColumns>,
    figures: Vec<(&'static str, &'static str, Figure)>,
}

/// What is told of a pool.
#[derive(Debug)]
struct PoolColumns {
    name: String,
    /// Groups at the start.
    at_start: bool,
    /// [`POOL_FIGURES`].
    figures: bool,
}

impl ClusterColumns {
    /// Of a sweep.
    pub fn of(configurations: &[Configuration]) -> Self {
        let runs = || {
            let points = configurations.iter().flat_map(Configuration::points);
            points.flat_map(|p| &p.runs).filter_map(|r| r.cluster.as_ref())
        };
        let is_cluster = runs().next().is_some();
        let pools = configurations.iter().find(|c| !c.groups.is_empty());
        let pools = pools.iter().flat_map(|c| &c.groups).map(|(name, _)| PoolColumns {
            name: name.clone(),
            at_start: true,
            figures: is_cluster,
        });
        Self {
            pools: pools.collect(),
            figures: FIGURES
                .into_iter()
                .filter(|(_, _, figure)| runs().any(|run| figure(run).is_some()))
                .collect(),
        }
    }

    /// The same for people: no groups at the start that an axis tells already, and of a pool that always had all of its
    /// groups ready nothing more.
    pub fn for_people(configurations: &[Configuration]) -> Self {
        let mut columns = Self::of(configurations);
        let axes = configurations.first().map_or(&[][..], |c| &c.setting);
        for (number, pool) in columns.pools.iter_mut().enumerate() {
            let names = [pool.name.clone(), number.to_string()];
            let tells = |(path, _): &(String, serde_json::Value)| {
                names
                    .iter()
                    .any(|name| *path == format!("cluster.pools.{name}.groups"))
            };
            pool.at_start = !axes.iter().any(tells);
            pool.figures &= configurations.iter().any(|c| varies(c, &pool.name));
        }
        columns
    }

    /// Their headings.
    pub fn columns(&self) -> Vec<Column> {
        let groups = self.pools.iter().filter(|pool| pool.at_start);
        let groups = groups.map(|pool| Column::with_unit(format!("{} at start", pool.name), "groups"));
        let of_pools = self.pool_figures();
        let of_pools =
            of_pools.map(|(pool, (name, unit, _))| Column::with_unit(format!("{pool} {name}"), *unit));
        let figures = self
            .figures
            .iter()
            .map(|(name, unit, _)| Column::with_unit(*name, *unit));
        groups.chain(of_pools).chain(figures).collect()
    }

    /// Each pool with each of its figures; nothing where no cluster was run.
    fn pool_figures(
        &self,
    ) -> impl Iterator<Item = (&String, &'static (&'static str, &'static str, PoolFigure))> {
        let pools = self.pools.iter().filter(|pool| pool.figures);
        pools.flat_map(|pool| POOL_FIGURES.iter().map(move |figure| (&pool.name, figure)))
    }

    /// What a configuration has in them, at the load that stands for it.
    pub fn cells(&self, configuration: &Configuration, point: Option<&LoadPoint>) -> Vec<Cell> {
        let groups = self.pools.iter().filter(|pool| pool.at_start).map(|pool| {
            let found = configuration.groups.iter().find(|(name, _)| *name == pool.name);
            found.map(|&(_, n)| u64::from(n)).into()
        });
        let of_pools = self.pool_figures().map(|(pool, (_, _, figure))| {
            let of_run = |r: &RunOutcome| {
                let pools = &r.cluster.as_ref()?.pools;
                figure(pools.iter().find(|p| p.pool == *pool)?)
            };
            point.and_then(|p| p.mean(of_run)).into()
        });
        let figures = self.figures.iter().map(|(_, _, figure)| {
            let of_run = |r: &RunOutcome| r.cluster.as_ref().and_then(figure);
            point.and_then(|p| p.mean(of_run)).into()
        });
        groups.chain(of_pools).chain(figures).collect()
    }
}

/// Whether a pool had at some time other groups ready than at the start.
fn varies(configuration: &Configuration, pool: &str) -> bool {
    let at_start = configuration.groups.iter().find(|(name, _)| name == pool);
    let Some(at_start) = at_start.map(|&(_, n)| f64::from(n)) else {
        return false;
    };
    let runs = configuration.points().iter().flat_map(|p| &p.runs);
    let pools = runs.filter_map(|r| r.cluster.as_ref()).flat_map(|c| &c.pools);
    let means = pools.filter(|p| p.pool == pool).filter_map(|p| p.ready_mean);
    // The tolerance is for means over time.
    means
        .into_iter()
        .any(|mean| (mean - at_start).abs() > 1e-6 * at_start)
}
