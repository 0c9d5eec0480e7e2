//! The highest load that a configuration carries at its SLO (contract section 12).
//!
//! A ladder of loads with the same mix, rising by a constant factor from the lowest to the highest rate asked
//! for; then halving of the interval around the first failure until it is narrow, and more coarsely of the
//! intervals around the ends of the knee; then one load beyond the failure, to see the overload. Each load is run with several seeds, and the same seeds are used at every load (common
//! random numbers), so that a difference between two loads is due to the load.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::knee::{Knee, find_knee};
use super::load::{LoadPoint, RunOutcome};
use crate::metric::goodput::Target;

/// What a load must satisfy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Requirement {
    /// Least share of offered requests within their SLO.
    pub attainment: f64,
    /// Largest share of offered requests that fail.
    pub error_rate: f64,
}

impl Requirement {
    fn run_passes(&self, run: &RunOutcome) -> bool {
        run.attainment >= self.attainment && run.error_rate <= self.error_rate
    }

    /// The load passes: its figures, averaged over the seeds, satisfy the requirement.
    pub fn passes(&self, point: &LoadPoint) -> bool {
        let mean = |f: fn(&RunOutcome) -> f64| point.mean(|r| Some(f(r))).unwrap_or(0.0);
        !point.runs.is_empty()
            && mean(|r| r.attainment) >= self.attainment
            && mean(|r| r.error_rate) <= self.error_rate
    }
}

/// Where and how finely to search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Search {
    /// Lowest rate, requests a second.
    pub lowest_rps: f64,
    /// Highest rate, requests a second.
    pub highest_rps: f64,
    /// Loads of the ladder, both ends included; at least 2.
    pub ladder: u32,
    /// The boundary is narrowed until its two ends differ by less than this share.
    pub precision: f64,
}

/// Capacity of a configuration at its SLO.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Capacity {
    /// Highest load that passes, below the lowest one that fails, requests a second; null when even the lowest
    /// load fails.
    pub capacity_rps: Option<f64>,
    /// Lowest load that fails; null when none of the range does: the capacity is then at least the highest.
    pub fails_at_rps: Option<f64>,
    /// What fails there, mean over the seeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limited_by: Option<Limit>,
    /// Every load that was run, by rate.
    pub points: Vec<LoadPoint>,
    /// From the lowest load that some seed carries at most, to the highest that some seed first fails at: to be
    /// verified live.
    pub slo_boundary_rps: Option<[f64; 2]>,
    /// Where latency begins to grow faster than load, up to saturation: to be verified live.
    pub knee: Option<Knee>,
    /// How far the capacity is known by the draws of the fits behind its step times; null where it was not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<CapacityInterval>,
    /// What does not look as it should: loads that pass above one that fails, and the like.
    pub notes: Vec<String>,
}

/// What fails at the lowest load that fails.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// Too few requests meet all targets: the target that the fewest met, and the share of offered requests that did.
    Target {
        /// Which metric.
        metric: Target,
        /// Share of offered requests that met it.
        attainment: f64,
    },
    /// Too many requests do not complete: their share of those offered. Where they alone keep the targets from being met,
    /// it is them, too.
    Errors {
        /// Share of offered requests that did not complete.
        error_rate: f64,
    },
}

impl Limit {
    fn of(requirement: &Requirement, point: &LoadPoint) -> Option<Self> {
        let attainment = point.mean(|r| Some(r.attainment))?;
        let error_rate = point.mean(|r| Some(r.error_rate))?;
        let targets = point.runs.first()?.targets.iter().map(|t| t.metric);
        let mean = |metric: Target| {
            let of_run = |r: &RunOutcome| Some(r.targets.iter().find(|t| t.metric == metric)?.attainment);
            Some((metric, point.mean(of_run)?))
        };
        let lowest = targets
            .filter_map(mean)
            .reduce(|a, b| if b.1 < a.1 { b } else { a });
        // Requests that do not complete meet no target either.
        let misses_more = |met: f64| 1.0 - met > error_rate + 1e-9;
        match lowest {
            Some((metric, met)) if attainment < requirement.attainment && misses_more(met) => {
                Some(Self::Target {
                    metric,
                    attainment: met,
                })
            }
            _ if error_rate > 0.0 => Some(Self::Errors { error_rate }),
            _ => None,
        }
    }
}

/// The 90 % interval of a capacity, by draws of the fits behind its step times.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CapacityInterval {
    /// Draws.
    pub draws: u32,
    /// Its lower end, requests a second; 0 where too many draws carry not even the lowest load of the range.
    pub lo_rps: f64,
    /// Its upper end; null where too many draws carry all of the range.
    pub hi_rps: Option<f64>,
    /// Draws that carry not even the lowest load.
    pub carry_nothing: u32,
    /// Draws that carry every load.
    pub carry_all: u32,
}

/// Finds the capacity. `run_load` runs one load with every seed; `None` says that this load cannot be run (its
/// requests end within the warm-up, say): the search then goes on with the loads that can.
///
/// # Errors
/// The first error of `run_load`.
pub fn find_capacity<E>(
    search: &Search,
    requirement: &Requirement,
    mut run_load: impl FnMut(f64) -> Result<Option<LoadPoint>, E>,
) -> Result<Capacity, E> {
    let mut points: Vec<LoadPoint> = Vec::new();
    for rate in ladder(search) {
        let Some(point) = run_load(rate)? else { break };
        points.push(point);
    }
    narrow(search.precision, &mut points, &mut run_load, |points| {
        let (passes, fails) = boundary(requirement, points);
        passes.zip(fails)
    })?;
    narrow(
        KNEE_PRECISION,
        &mut points,
        &mut run_load,
        last_steady_and_first_saturated,
    )?;
    for _ in 0..PEAK_ROUNDS {
        for rate in beside_greatest_power(&points) {
            points.extend(run_load(rate)?);
        }
        points.sort_by(|a, b| a.rate_rps.total_cmp(&b.rate_rps));
    }
    if let Some(fails_at) = boundary(requirement, &points).1 {
        // One load well past the boundary shows the overload, if the ladder did not already.
        let beyond = 1.25 * fails_at;
        if points.last().is_some_and(|p| p.rate_rps < beyond) {
            points.extend(run_load(beyond)?);
        }
    }
    let livelock = points.iter().find(|p| p.livelocked()).map(|p| p.rate_rps);
    let mut capacity = judge(requirement, points);
    capacity.notes.extend(livelock.map(|rate| {
        format!(
            "from {rate:.3} req/s on a run ended in a livelock, which a longer one may meet at a lower rate: this is no \
             capacity to plan with"
        )
    }));
    Ok(capacity)
}

fn ladder(search: &Search) -> Vec<f64> {
    let steps = search.ladder.max(2) - 1;
    let factor = (search.highest_rps / search.lowest_rps).powf(1.0 / f64::from(steps));
    (0..=steps)
        .map(|i| {
            if i == steps {
                search.highest_rps
            } else {
                search.lowest_rps * factor.powi(i as i32)
            }
        })
        .collect()
}

/// Highest passing rate below the lowest failing one, and the lowest failing one.
fn boundary(requirement: &Requirement, points: &[LoadPoint]) -> (Option<f64>, Option<f64>) {
    let fails_at = points.iter().find(|p| !requirement.passes(p)).map(|p| p.rate_rps);
    let below = points
        .iter()
        .take_while(|p| requirement.passes(p))
        .last()
        .map(|p| p.rate_rps);
    (below, fails_at)
}

/// The ends of the knee are told to this share.
const KNEE_PRECISION: f64 = 0.05;
/// Rounds of looking between the load of greatest power and its neighbours.
const PEAK_ROUNDS: u32 = 2;

/// Halves the interval that `ends` finds until it is narrower than `precision`.
fn narrow<E>(
    precision: f64,
    points: &mut Vec<LoadPoint>,
    run_load: &mut impl FnMut(f64) -> Result<Option<LoadPoint>, E>,
    ends: impl Fn(&[LoadPoint]) -> Option<(f64, f64)>,
) -> Result<(), E> {
    // Halving 40 times resolves any two rates; the bound only guards against a precision of 0.
    for _ in 0..40 {
        let Some((low, high)) = ends(points) else {
            return Ok(());
        };
        if high - low <= precision * low {
            return Ok(());
        }
        let Some(point) = run_load((low * high).sqrt())? else {
            return Ok(());
        };
        let at = points.partition_point(|p| p.rate_rps < point.rate_rps);
        points.insert(at, point);
    }
    Ok(())
}

/// The load before the first saturated one, and that one.
fn last_steady_and_first_saturated(points: &[LoadPoint]) -> Option<(f64, f64)> {
    let first = points.iter().position(LoadPoint::saturated)?;
    Some((points[first.checked_sub(1)?].rate_rps, points[first].rate_rps))
}

/// Rates between the load of greatest power and its neighbours.
fn beside_greatest_power(points: &[LoadPoint]) -> Vec<f64> {
    let Some(knee) = find_knee(points) else {
        return Vec::new();
    };
    let Some(best) = points.iter().position(|p| p.rate_rps >= knee.from_rps) else {
        return Vec::new();
    };
    let middle = |a: usize, b: usize| Some((points.get(a)?.rate_rps * points.get(b)?.rate_rps).sqrt());
    let below = best.checked_sub(1).and_then(|below| middle(below, best));
    let far = |rate: &f64| (rate / points[best].rate_rps).ln().abs() > KNEE_PRECISION / 2.0;
    below
        .into_iter()
        .chain(middle(best, best + 1))
        .filter(far)
        .collect()
}

/// The region of the boundary: where the mean over the seeds changes from passing to failing, widened to where
/// each seed alone does.
fn boundary_region(requirement: &Requirement, points: &[LoadPoint], (passes, fails): (f64, f64)) -> [f64; 2] {
    let seeds = points.first().map_or(0, |p| p.runs.len());
    let (mut low, mut high) = (passes, fails);
    for seed in 0..seeds {
        let carries = |p: &LoadPoint| p.runs.get(seed).is_some_and(|r| requirement.run_passes(r));
        let first_failing = points.iter().position(|p| !carries(p));
        let Some(at) = first_failing else { continue };
        high = high.max(points[at].rate_rps);
        // A seed that fails at the lowest load is known to lie below the range only.
        low = low.min(points[at.saturating_sub(1)].rate_rps);
    }
    [low, high]
}

fn judge(requirement: &Requirement, points: Vec<LoadPoint>) -> Capacity {
    let (capacity_rps, fails_at_rps) = boundary(requirement, &points);
    let mut notes = Vec::new();
    let fails_at = fails_at_rps.unwrap_or(f64::INFINITY);
    for p in points
        .iter()
        .filter(|p| p.rate_rps > fails_at && requirement.passes(p))
    {
        notes.push(format!(
            "not monotone: {:.3} req/s passes although {fails_at:.3} req/s fails; the capacity is the lower one",
            p.rate_rps
        ));
    }
    if fails_at_rps.is_none() {
        notes.push(
            "no load of the range fails: the capacity is at least the highest rate; search higher".into(),
        );
    }
    if capacity_rps.is_none() {
        notes.push("even the lowest load fails: search lower, or the SLO cannot be met at all".into());
    }
    let slo_boundary_rps = capacity_rps
        .zip(fails_at_rps)
        .map(|ends| boundary_region(requirement, &points, ends));
    let knee = find_knee(&points);
    let failing = points.iter().find(|p| Some(p.rate_rps) == fails_at_rps);
    let limited_by = failing.and_then(|point| Limit::of(requirement, point));
    Capacity {
        limited_by,
        capacity_rps,
        fails_at_rps,
        points,
        slo_boundary_rps,
        knee,
        interval: None,
        notes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::load::TargetOutcome;
    use std::convert::Infallible;

    const NEED: Requirement = Requirement {
        attainment: 0.99,
        error_rate: 0.0,
    };
    const SEARCH: Search = Search {
        lowest_rps: 1.0,
        highest_rps: 64.0,
        ladder: 7,
        precision: 0.01,
    };

    fn point(rate: f64, attainments: &[f64], latency_s: f64, saturated: bool) -> LoadPoint {
        let runs = attainments
            .iter()
            .map(|&attainment| RunOutcome {
                attainment,
                targets: Vec::new(),
                error_rate: 0.0,
                goodput_rps: rate * attainment,
                throughput_rps: rate,
                output_tok_s: rate * 100.0,
                ttft_p50_s: Some(latency_s),
                ttft_p99_s: Some(latency_s),
                e2e_mean_s: Some(latency_s),
                itl_p99_s: Some(0.01),
                saturated,
                livelocked: false,
                extrapolated_share: None,
                cluster: None,
            })
            .collect();
        LoadPoint { rate_rps: rate, runs }
    }

    fn search(attainment: impl Fn(f64) -> f64) -> Capacity {
        find_capacity::<Infallible>(&SEARCH, &NEED, |r| {
            Ok(Some(point(r, &[attainment(r)], 1.0, false)))
        })
        .unwrap()
    }

    #[test]
    fn a_sharp_boundary_is_found_to_the_precision() {
        let c = search(|r| if r <= 17.3 { 1.0 } else { 0.5 });
        let (passes, fails) = (c.capacity_rps.unwrap(), c.fails_at_rps.unwrap());
        assert!(
            passes <= 17.3 && fails > 17.3 && fails - passes <= 0.01 * passes,
            "{passes} {fails}"
        );
        assert!(c.points.windows(2).all(|w| w[0].rate_rps < w[1].rate_rps));
        assert!(
            c.points.last().unwrap().rate_rps >= 1.25 * fails,
            "the overload is seen"
        );
    }

    #[test]
    fn what_fails_is_told_from_what_is_asked() {
        let mut failing = point(8.0, &[0.98], 1.0, false);
        let run = &mut failing.runs[0];
        run.error_rate = 0.01;
        let met = |metric, attainment| TargetOutcome { metric, attainment };
        run.targets = vec![met(Target::Ttft, 0.985), met(Target::Tpot, 0.99)];
        let asked = |attainment, error_rate| Requirement {
            attainment,
            error_rate,
        };
        let of = |asked: Requirement, point: &LoadPoint| Limit::of(&asked, point);
        let ttft = Limit::Target {
            metric: Target::Ttft,
            attainment: 0.985,
        };
        let errors = Limit::Errors { error_rate: 0.01 };
        assert_eq!(of(asked(0.99, 0.02), &failing), Some(ttft));
        // Enough meet their targets: the errors are too many.
        assert_eq!(of(asked(0.95, 0.0), &failing), Some(errors));
        // Nothing but the errors keeps the targets from being met.
        failing.runs[0].targets = vec![met(Target::Ttft, 0.99)];
        failing.runs[0].attainment = 0.99;
        assert_eq!(of(asked(0.995, 0.0), &failing), Some(errors));
    }

    #[test]
    fn ends_of_the_range_are_said_not_invented() {
        let all = search(|_| 1.0);
        assert_eq!((all.capacity_rps, all.fails_at_rps), (Some(64.0), None));
        assert!(all.notes[0].contains("at least"));
        let none = search(|_| 0.0);
        assert_eq!((none.capacity_rps, none.fails_at_rps), (None, Some(1.0)));
        assert_eq!(none.slo_boundary_rps, None);
    }

    #[test]
    fn a_load_that_passes_above_a_failing_one_is_reported() {
        let c = search(|r| {
            if r < 5.0 || (30.0..40.0).contains(&r) {
                1.0
            } else {
                0.0
            }
        });
        assert!(c.capacity_rps.unwrap() < 5.0);
        assert!(
            c.notes.iter().any(|n| n.contains("not monotone")),
            "{:?}",
            c.notes
        );
    }

    #[test]
    fn seeds_that_disagree_widen_the_boundary() {
        let c = find_capacity::<Infallible>(&SEARCH, &NEED, |r| {
            // One seed fails from 8 req/s, the other from 20; their mean fails from 8.
            let at = |limit: f64| if r < limit { 1.0 } else { 0.0 };
            Ok(Some(point(r, &[at(8.0), at(20.0)], 1.0, false)))
        })
        .unwrap();
        let [lo, hi] = c.slo_boundary_rps.unwrap();
        assert!(lo < 8.0 && hi >= 16.0, "{lo} {hi}");
    }

    #[test]
    fn a_load_that_cannot_be_run_does_not_lose_the_others() {
        let c = find_capacity::<Infallible>(&SEARCH, &NEED, |r| {
            Ok((r < 20.0).then(|| point(r, &[if r < 9.0 { 1.0 } else { 0.0 }], 1.0, false)))
        })
        .unwrap();
        assert!(c.capacity_rps.unwrap() < 9.0 && c.fails_at_rps.unwrap() >= 9.0);
        assert!(c.points.iter().all(|p| p.rate_rps < 20.0));
    }
}
