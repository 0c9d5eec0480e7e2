//! Service-level objectives: who met them, and at what rate.
//!
//! Attainment is over *offered* requests: rejected and unfinished ones are misses of every target. Latencies
//! count from the intended arrival, so a slow client or a queue before the engine cannot hide.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::funnel::Funnel;
use super::latency::{e2e, tpot_parts, ttft};
use super::tokens::GapProfile;
use crate::record::{RequestRecord, Status};
use crate::units::SimDuration;

/// Targets for each request, and the share of requests that shall meet them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Slo {
    /// Time to first token.
    pub ttft: Option<SimDuration>,
    /// Gap between chunks. A request meets it when its mean gap does, or, with `itl_quantile` q, when at least
    /// a share q of its gaps does (1 = its longest gap does). A request without a gap meets it.
    pub itl: Option<SimDuration>,
    /// The share of a request's gaps that must be within `itl`; `None` judges the mean gap.
    pub itl_quantile: Option<f64>,
    /// Time per output token after the first. A request with one output token meets it.
    pub tpot: Option<SimDuration>,
    /// End-to-end time.
    pub e2e: Option<SimDuration>,
    /// Share of offered requests that shall meet each target (0 to 1).
    pub attainment: Option<f64>,
    /// Largest allowed share of offered requests that do not complete.
    pub errors: Option<f64>,
}

/// A metric that can have a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// Time to first token.
    Ttft,
    /// Gap between chunks.
    Itl,
    /// Time per output token.
    Tpot,
    /// End-to-end time.
    E2e,
}

impl Target {
    /// The usual name in print.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ttft => "TTFT",
            Self::Itl => "ITL",
            Self::Tpot => "TPOT",
            Self::E2e => "E2E",
        }
    }
}

/// How one target was met.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TargetReport {
    /// Which metric.
    pub metric: Target,
    /// How one request is judged.
    pub rule: String,
    /// The target in seconds.
    pub target_s: f64,
    /// Offered requests that met it; null when token times were not kept.
    pub met: Option<u64>,
    /// `met` over offered requests.
    pub attainment: Option<f64>,
    /// The other face of a target: the 99th percentile of those that reached a value is within it. Requests
    /// that failed are not in it.
    pub p99_within: Option<bool>,
}

/// How all targets were met.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SloReport {
    /// Each target by itself.
    pub targets: Vec<TargetReport>,
    /// Offered requests: the divisor of every attainment.
    pub offered: u64,
    /// Requests that met every target.
    pub met: Option<u64>,
    /// `met` over offered requests.
    pub attainment: Option<f64>,
    /// Requests that completed in the window and met every target, whenever they arrived, a second of wall clock: never
    /// more than the throughput, which is of the same time. Null when token times were not kept.
    pub goodput_rps: Option<f64>,
    /// Output tokens of the offered requests that met every target.
    #[serde(default)]
    pub good_output_tokens: Option<u64>,
    /// The share asked for, if one was.
    pub attainment_asked: Option<f64>,
    /// The largest error rate allowed, if one was given.
    pub errors_allowed: Option<f64>,
    /// The joint attainment reaches the share asked for and the error rate is allowed: what a capacity search asks of a
    /// load. Null when nothing was asked, nothing was offered, or a target could not be judged.
    pub holds: Option<bool>,
    /// The weaker rule, each target by itself: every target's attainment reaches the share, whether or not by the same
    /// requests, and the error rate is allowed.
    #[serde(default)]
    pub holds_each: Option<bool>,
}

impl Slo {
    /// The targets that are set.
    pub fn targets(&self) -> impl Iterator<Item = (Target, SimDuration)> + use<> {
        [
            (Target::Ttft, self.ttft),
            (Target::Itl, self.itl),
            (Target::Tpot, self.tpot),
            (Target::E2e, self.e2e),
        ]
        .into_iter()
        .filter_map(|(target, bound)| Some((target, bound?)))
    }

    /// The gap above which a quantile rule counts, if there is one.
    pub fn gap_limit_ns(&self) -> Option<u64> {
        self.itl_quantile.and(self.itl).map(SimDuration::as_nanos)
    }

    /// A completed request meets one target. A request that did not complete never does.
    pub fn meets(
        &self,
        target: Target,
        bound: SimDuration,
        request: &RequestRecord,
        profile: &GapProfile,
    ) -> bool {
        if request.status != Status::Completed {
            return false;
        }
        let mean_within = |span: SimDuration, n: u64| {
            u128::from(span.as_nanos()) <= u128::from(bound.as_nanos()) * u128::from(n)
        };
        match target {
            Target::Ttft => ttft(request).is_some_and(|t| t <= bound),
            Target::E2e => e2e(request).is_some_and(|t| t <= bound),
            Target::Tpot => tpot_parts(request).is_none_or(|(span, n)| mean_within(span, n)),
            Target::Itl => match (self.itl_quantile, profile.gaps()) {
                (_, 0) => true,
                // The tolerance is for products such as 0.7 * 10 that land a bit above the whole number meant.
                (Some(q), gaps) => (gaps - profile.over_limit) as f64 + 1e-9 >= q * gaps as f64,
                (None, gaps) => {
                    let span = request
                        .first_token
                        .zip(request.last_token)
                        .map(|(a, b)| b.since(a));
                    span.is_some_and(|span| mean_within(span, gaps))
                }
            },
        }
    }

    /// A completed request meets every target that is set.
    pub fn meets_all(&self, request: &RequestRecord, profile: &GapProfile) -> bool {
        let meets = |(target, bound)| self.meets(target, bound, request, profile);
        request.status == Status::Completed && self.targets().all(meets)
    }

    /// Whether shares of requests that met the targets, `None` where that is not known, and errors are as asked; `None`
    /// when nothing was asked.
    pub(super) fn holds(
        &self,
        met: impl IntoIterator<Item = Option<f64>>,
        error_rate: Option<f64>,
    ) -> Option<bool> {
        if self.attainment.is_none() && self.errors.is_none() {
            return None;
        }
        let mut holds = match self.errors {
            Some(allowed) => error_rate? <= allowed,
            None => true,
        };
        if let Some(asked) = self.attainment {
            for share in met {
                holds &= share? >= asked;
            }
        }
        Some(holds)
    }

    fn rule(&self, target: Target) -> String {
        match (target, self.itl_quantile) {
            (Target::Itl, Some(q)) => format!("at least {q} of its gaps within the target"),
            (Target::Itl, None) => "its mean gap between chunks within the target".into(),
            (Target::Tpot, _) => "its mean time per token after the first within the target".into(),
            (Target::Ttft | Target::E2e, _) => "its value from the intended arrival within the target".into(),
        }
    }
}

/// How many requests met each target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Judged {
    /// By target, in the order of [`Target`].
    met: [u64; 4],
    /// Met every target that is set.
    all: u64,
    /// Output tokens of those.
    output_tokens: u64,
}

impl Judged {
    /// Judges one request.
    pub fn count(&mut self, slo: &Slo, request: &RequestRecord, profile: &GapProfile) {
        let mut all = true;
        for (target, bound) in slo.targets() {
            let meets = slo.meets(target, bound, request, profile);
            self.met[target as usize] += u64::from(meets);
            all &= meets;
        }
        if all && request.status == Status::Completed {
            self.all += 1;
            self.output_tokens += u64::from(request.output_tokens);
        }
    }

    /// Adds the counts of other requests.
    pub fn merge(&mut self, other: &Self) {
        let counts = self.met.iter_mut().zip(other.met);
        counts.for_each(|(a, b)| *a += b);
        self.all += other.all;
        self.output_tokens += other.output_tokens;
    }
}

/// What was measured, as far as targets need it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured<'a> {
    /// How many of the offered requests met each target.
    pub judged: &'a Judged,
    /// False when token times were not kept: gaps cannot be judged.
    pub gaps_known: bool,
    /// 99th percentiles of the latencies by target, in the order of [`Target`], in nanoseconds.
    pub p99_ns: [Option<f64>; 4],
    /// The funnel of the offered requests.
    pub funnel: &'a Funnel,
    /// Of all requests, those that completed in the window and met every target, if that is known.
    pub good_in_window: Option<u64>,
    /// Wall clock of the window.
    pub duration: SimDuration,
}

impl SloReport {
    /// The report on the offered requests. `None` when no target is set.
    pub(super) fn of(slo: &Slo, measured: &Measured<'_>) -> Option<Self> {
        let offered = measured.funnel.offered;
        let share = |met: Option<u64>| met.filter(|_| offered > 0).map(|met| met as f64 / offered as f64);
        let known = |target| target != Target::Itl || measured.gaps_known;
        let targets: Vec<TargetReport> = slo
            .targets()
            .map(|(target, bound)| {
                let met = known(target).then_some(measured.judged.met[target as usize]);
                TargetReport {
                    metric: target,
                    rule: slo.rule(target),
                    target_s: bound.as_secs_f64(),
                    met,
                    attainment: share(met),
                    p99_within: measured.p99_ns[target as usize].map(|p99| p99 <= bound.as_nanos() as f64),
                }
            })
            .collect();
        if targets.is_empty() {
            return None;
        }
        let met = targets
            .iter()
            .all(|t| t.met.is_some())
            .then_some(measured.judged.all);
        let seconds = measured.duration.as_secs_f64();
        let errors = measured.funnel.error_rate();
        Some(Self {
            offered,
            met,
            attainment: share(met),
            goodput_rps: measured
                .good_in_window
                .filter(|_| seconds > 0.0)
                .map(|good| good as f64 / seconds),
            good_output_tokens: met.map(|_| measured.judged.output_tokens),
            attainment_asked: slo.attainment,
            errors_allowed: slo.errors,
            holds: slo.holds([share(met)], errors),
            holds_each: slo.holds(targets.iter().map(|t| t.attainment), errors),
            targets,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::fixture::{MS, three_requests};
    use crate::metric::summary::{Summary, SummaryOptions};
    use crate::record::RunRecord;
    use approx::assert_relative_eq;

    fn ms(ms: u64) -> Option<SimDuration> {
        Some(SimDuration(ms * MS))
    }

    fn report(run: &RunRecord, slo: &Slo) -> Option<SloReport> {
        let options = SummaryOptions {
            slo: *slo,
            ..SummaryOptions::default()
        };
        Summary::of(run, &options).slo
    }

    #[test]
    fn attainment_is_over_offered_requests() {
        // TTFT 10, 16, 19 ms and one rejected.
        let report = report(
            &three_requests(),
            &Slo {
                ttft: ms(16),
                ..Slo::default()
            },
        )
        .unwrap();
        assert_eq!(
            (report.offered, report.met, report.attainment),
            (4, Some(2), Some(0.5))
        );
        assert_relative_eq!(report.goodput_rps.unwrap(), 2.0 / 0.060);
        assert_eq!(report.targets[0].p99_within, Some(false));
        assert_eq!(report.holds, None);
    }

    #[test]
    fn the_joint_count_asks_for_every_target() {
        // TTFT <= 16: the first two; E2E <= 30: the first and the third.
        let slo = Slo {
            ttft: ms(16),
            e2e: ms(30),
            ..Slo::default()
        };
        let report = report(&three_requests(), &slo).unwrap();
        let met: Vec<_> = report.targets.iter().map(|t| t.met).collect();
        assert_eq!((met, report.met), (vec![Some(2), Some(2)], Some(1)));
    }

    #[test]
    fn itl_is_judged_by_the_mean_gap_or_by_a_share_of_gaps() {
        // Gaps 8, 8 (mean 8) and 8, 14 (mean 11); the third request has none. TPOT 8, 5.5.
        let met = |itl, itl_quantile| {
            let slo = Slo {
                itl: ms(itl),
                itl_quantile,
                ..Slo::default()
            };
            report(&three_requests(), &slo).unwrap().met
        };
        assert_eq!(met(11, None), Some(3));
        assert_eq!(met(10, None), Some(2));
        assert_eq!(met(8, Some(0.5)), Some(3));
        assert_eq!(met(8, Some(0.51)), Some(2));
        assert_eq!(met(13, Some(1.0)), Some(2));
        assert_eq!(met(14, Some(1.0)), Some(3));
        let slo = Slo {
            tpot: ms(6),
            ..Slo::default()
        };
        assert_eq!(report(&three_requests(), &slo).unwrap().met, Some(2));
    }

    #[test]
    fn what_was_asked_holds_only_with_the_errors() {
        let asked = |attainment, errors| {
            let slo = Slo {
                ttft: ms(20),
                attainment,
                errors,
                ..Slo::default()
            };
            report(&three_requests(), &slo).unwrap().holds
        };
        assert_eq!(asked(Some(0.75), None), Some(true));
        assert_eq!(asked(Some(0.76), None), Some(false));
        assert_eq!(asked(Some(0.75), Some(0.25)), Some(true));
        assert_eq!(asked(Some(0.75), Some(0.24)), Some(false));
    }

    #[test]
    fn targets_that_hold_each_by_itself_need_not_hold_together() {
        // As above: two of four meet each, one meets both.
        let slo = Slo {
            ttft: ms(16),
            e2e: ms(30),
            attainment: Some(0.5),
            ..Slo::default()
        };
        let report = report(&three_requests(), &slo).unwrap();
        assert_eq!(
            (report.attainment, report.holds, report.holds_each),
            (Some(0.25), Some(false), Some(true))
        );
    }

    #[test]
    fn goodput_is_of_what_ended_in_the_window_whenever_it_arrived() {
        let options = |from, to| SummaryOptions {
            slo: Slo {
                ttft: ms(19),
                ..Slo::default()
            },
            window: crate::metric::Window {
                from: crate::units::SimTime(from * MS),
                to: Some(crate::units::SimTime(to * MS)),
            },
            ..SummaryOptions::default()
        };
        let run = three_requests();
        let ends: Vec<u64> = run
            .requests
            .iter()
            .filter_map(|r| Some(r.last_token?.as_nanos() / MS))
            .collect();
        for (from, to) in [(0, 20), (5, 40), (30, 60)] {
            let summary = Summary::of(&run, &options(from, to));
            let within = ends.iter().filter(|&&end| from <= end && end < to).count();
            let seconds = (to - from) as f64 / 1e3;
            assert_relative_eq!(summary.slo.unwrap().goodput_rps.unwrap(), within as f64 / seconds);
            assert_relative_eq!(summary.throughput.request_rps.unwrap(), within as f64 / seconds);
        }
    }

    #[test]
    fn no_target_no_report() {
        assert_eq!(report(&three_requests(), &Slo::default()), None);
    }

    #[test]
    fn nothing_offered_is_null_not_zero() {
        let slo = Slo {
            ttft: ms(1),
            attainment: Some(0.9),
            ..Slo::default()
        };
        let report = report(&RunRecord::default(), &slo).unwrap();
        assert_eq!(
            (report.attainment, report.goodput_rps, report.holds),
            (None, None, None)
        );
    }
}
