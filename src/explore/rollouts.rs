//! What a rollout did to requests: each revision before, during and after it.

use std::collections::BTreeMap;

use super::outcome::summary_options;
use crate::cluster::lifecycle::Phase;
use crate::metric::latency::ttft;
use crate::metric::tokens::TokenGaps;
use crate::metric::{Sample, Slo, Stats};
use crate::record::{ClusterRecord, JobRecord, RequestRecord, RunRecord, Status};
use crate::scenario::Plan;
use crate::units::SimTime;

/// One rollout of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutFigures {
    /// Pool whose groups it replaces.
    pub pool: String,
    /// When it began, in seconds.
    pub began_s: f64,
    /// When all groups were of one revision and ready; none when it was under way at the end of the run.
    pub ended_s: Option<f64>,
    /// When the new revision was given up, if it was.
    pub rolled_back_s: Option<f64>,
    /// Groups of the pool that are ready: the fewest at an instant while it lasted.
    pub ready_fewest: u64,
    /// Groups that exist (starting, ready, draining): the most at an instant while it lasted.
    pub existing_most: u64,
    /// How requests fared, by when they were due and who answered them. Combinations without requests are left out.
    pub served: Vec<RevisionFigures>,
}

/// When a request was due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Period {
    /// Before the rollout began.
    Before,
    /// While it lasted.
    During,
    /// After it had ended.
    After,
}

impl Period {
    /// In print.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::During => "during",
            Self::After => "after",
        }
    }
}

/// Requests of one period that one revision answered.
#[derive(Debug, Clone, PartialEq)]
pub struct RevisionFigures {
    /// When they were due.
    pub period: Period,
    /// Who answered; none for requests that no group answered: they failed, timed out or were rejected, and count for no
    /// revision.
    pub revision: Option<u32>,
    /// Groups of the revision that answered any of them.
    pub groups: u64,
    /// Requests that were due.
    pub offered: u64,
    /// Of these, requests that did not complete.
    pub errors: u64,
    /// Completed within all targets, over offered; without targets, completed over offered.
    pub attainment: f64,
    /// Time to first token of those that got one, seconds.
    pub ttft: Stats,
    /// Gaps between chunks, seconds.
    pub itl: Stats,
}

/// The rollouts that began in a run, by their beginning.
pub fn rollouts(plan: &Plan, run: &RunRecord, cluster: &ClusterRecord) -> Vec<RolloutFigures> {
    let began = cluster.timeline.iter().filter(|e| e.event == "rollout_began");
    let of_pool = |name: &str| cluster.pools.iter().position(|pool| pool == name);
    let judge = Judge {
        slo: summary_options(plan).slo,
        run,
        cluster,
    };
    began
        .filter_map(|event| Some(judge.rollout(of_pool(&event.what)? as u32, event.at)))
        .collect()
}

struct Judge<'a> {
    slo: Slo,
    run: &'a RunRecord,
    cluster: &'a ClusterRecord,
}

impl Judge<'_> {
    fn rollout(&self, pool: u32, began: SimTime) -> RolloutFigures {
        let name = self.cluster.pools[pool as usize].clone();
        let when = |event: &str| {
            let of_pool = self.cluster.timeline.iter().filter(|e| e.at >= began);
            // Some say more of it behind the pool's name.
            let is_of_pool = |what: &str| {
                what.strip_prefix(&name)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
            };
            let mut told = of_pool.filter(|e| e.event == event && is_of_pool(&e.what));
            told.next().map(|e| e.at)
        };
        let ended = when("rollout_done").or_else(|| when("rolled_back"));
        let until = ended.unwrap_or(self.run.end).max(began);
        RolloutFigures {
            began_s: began.as_secs_f64(),
            ended_s: ended.map(SimTime::as_secs_f64),
            rolled_back_s: when("rollback").map(SimTime::as_secs_f64),
            ready_fewest: self.extreme(pool, began, until, |phase| phase == Phase::Ready, i64::min),
            existing_most: self.extreme(pool, began, until, Phase::exists, i64::max),
            served: self.served(pool, began, ended),
            pool: name,
        }
    }

    /// The fewest or the most groups of a pool in some phase at the instants of `[from, until)` at which any changes.
    fn extreme(
        &self,
        pool: u32,
        from: SimTime,
        until: SimTime,
        counts: impl Fn(Phase) -> bool,
        pick: fn(i64, i64) -> i64,
    ) -> u64 {
        let mut changes: Vec<(SimTime, i64)> = Vec::new();
        for group in self.cluster.groups.iter().filter(|g| g.pool == pool) {
            let mut was = false;
            for &(at, phase) in &group.phases {
                let is = counts(phase);
                if is != was {
                    changes.push((at, if is { 1 } else { -1 }));
                }
                was = is;
            }
        }
        changes.sort_unstable();
        let mut levels: Vec<(SimTime, i64)> = vec![(SimTime::ZERO, 0)];
        for (at, change) in changes {
            let (last, level) = levels[levels.len() - 1];
            if last == at {
                levels.pop();
            }
            levels.push((at, level + change));
        }
        let first = levels.partition_point(|level| level.0 <= from);
        let before = first.checked_sub(1).map_or(0, |i| levels[i].1);
        let later = levels[first..].iter().take_while(|level| level.0 < until);
        let extreme = later.map(|level| level.1).fold(before, pick);
        u64::try_from(extreme).unwrap_or(0)
    }

    fn served(&self, pool: u32, began: SimTime, ended: Option<SimTime>) -> Vec<RevisionFigures> {
        let gaps = TokenGaps::new(self.run, self.slo.gap_limit_ns());
        // Nobody's requests come last in each period.
        let mut rows = BTreeMap::<(Period, bool, Option<u32>), Vec<(&RequestRecord, Option<u32>)>>::new();
        for (request, job) in self.run.requests.iter().zip(&self.cluster.jobs) {
            if request.status == Status::Surplus {
                continue;
            }
            let period = match request.scheduled {
                due if due < began => Period::Before,
                due if ended.is_none_or(|ended| due < ended) => Period::During,
                _ => Period::After,
            };
            let group = self.group_of(pool, job);
            let revision = group.map(|g| self.cluster.groups[g as usize].revision);
            // Those that another pool answered are none of this rollout's.
            if revision.is_none() && job.group.is_some() {
                continue;
            }
            let row = rows.entry((period, revision.is_none(), revision)).or_default();
            row.push((request, group));
        }
        rows.into_iter()
            .map(|((period, _, revision), requests)| self.figures(period, revision, &requests, &gaps))
            .collect()
    }

    /// The group of a pool that did a request's prompt or its answer.
    fn group_of(&self, pool: u32, job: &JobRecord) -> Option<u32> {
        [job.group, job.prefill_group].into_iter().flatten().find(|&g| {
            self.cluster
                .groups
                .get(g as usize)
                .is_some_and(|g| g.pool == pool)
        })
    }

    fn figures(
        &self,
        period: Period,
        revision: Option<u32>,
        requests: &[(&RequestRecord, Option<u32>)],
        gaps: &TokenGaps<'_>,
    ) -> RevisionFigures {
        let mut groups: Vec<u32> = requests.iter().filter_map(|(_, group)| *group).collect();
        groups.sort_unstable();
        groups.dedup();
        let all = || requests.iter().map(|(request, _)| *request);
        let good = all().filter(|r| self.is_good(r, gaps)).count();
        let ttft = all().filter_map(|r| Some(ttft(r)?.as_nanos()));
        RevisionFigures {
            period,
            revision,
            groups: groups.len() as u64,
            offered: requests.len() as u64,
            errors: all().filter(|r| !r.status.is_served()).count() as u64,
            attainment: good as f64 / requests.len().max(1) as f64,
            ttft: Sample::from_values(ttft).stats_s(),
            itl: gaps.pooled(all()).stats_s(),
        }
    }

    fn is_good(&self, request: &RequestRecord, gaps: &TokenGaps<'_>) -> bool {
        let profile = match self.slo.itl {
            Some(_) => gaps.profile(request, self.slo.gap_limit_ns()),
            None => Default::default(),
        };
        let mut targets = self.slo.targets();
        request.status == Status::Completed
            && targets.all(|(target, bound)| self.slo.meets(target, bound, request, &profile))
    }
}

#[cfg(test)]
#[path = "rollouts_tests.rs"]
mod tests;
