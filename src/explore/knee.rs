//! The knee: where more load begins to cost more latency than it brings throughput.
//!
//! The rule is Kleinrock's power, throughput over response time (L. Kleinrock, "Power and deterministic rules
//! of thumb for probabilistic problems in computer communications", ICC 1979). While power grows, a per cent
//! more load costs less than a per cent more latency; past its maximum it costs more. For M/M/1 the maximum
//! lies at half of the capacity. The knee region runs from the load of greatest power to the first load at
//! which the backlog grows through the run. It is a region and not a point because between the two a small
//! error of the step time becomes a large error of the latency: that is what must be verified live.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::load::LoadPoint;

/// A knee region.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Knee {
    /// Load of greatest power, requests a second.
    pub from_rps: f64,
    /// First saturated load; null when none of the loads is: the region is then open above.
    pub to_rps: Option<f64>,
    /// Mean end-to-end time at `from_rps`.
    pub e2e_at_from_s: f64,
    /// The greatest power lies at the lowest load of the range, so the knee may begin below it.
    pub may_begin_lower: bool,
}

/// Finds the knee in loads of rising rate; `None` with fewer than 3 loads that have a latency.
pub fn find_knee(points: &[LoadPoint]) -> Option<Knee> {
    let with_latency: Vec<(f64, f64)> = points
        .iter()
        .filter_map(|p| Some((p.rate_rps, p.mean(|r| r.e2e_mean_s).filter(|&l| l > 0.0)?)))
        .collect();
    if with_latency.len() < 3 {
        return None;
    }
    let power = |&(rate, latency): &(f64, f64)| rate / latency;
    let best = with_latency
        .iter()
        .enumerate()
        .max_by(|a, b| power(a.1).total_cmp(&power(b.1)))
        .map(|(i, _)| i)?;
    let (from_rps, e2e_at_from_s) = with_latency[best];
    let to_rps = points.iter().find(|p| p.saturated()).map(|p| p.rate_rps);
    Some(Knee {
        from_rps: to_rps.map_or(from_rps, |to| from_rps.min(to)),
        to_rps,
        e2e_at_from_s,
        may_begin_lower: best == 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::load::RunOutcome;

    fn point(rate_rps: f64, e2e_mean_s: f64, saturated: bool) -> LoadPoint {
        let run = RunOutcome {
            targets: Vec::new(),
            attainment: 1.0,
            error_rate: 0.0,
            goodput_rps: rate_rps,
            throughput_rps: rate_rps,
            output_tok_s: 0.0,
            ttft_p50_s: None,
            ttft_p99_s: None,
            e2e_mean_s: Some(e2e_mean_s),
            itl_p99_s: None,
            saturated,
            livelocked: false,
            extrapolated_share: None,
            cluster: None,
        };
        LoadPoint {
            rate_rps,
            runs: vec![run],
        }
    }

    #[test]
    fn m_m_1_has_its_knee_at_half_of_the_capacity() {
        let mu = 10.0;
        let points: Vec<_> = (1..20)
            .map(|i| f64::from(i) * 0.5)
            .map(|r| point(r, 1.0 / (mu - r), r > 9.0))
            .collect();
        let knee = find_knee(&points).unwrap();
        assert!((knee.from_rps - 5.0).abs() < 1e-9, "{knee:?}");
        assert_eq!(knee.to_rps, Some(9.5));
        assert!(!knee.may_begin_lower);
    }

    #[test]
    fn two_loads_are_no_curve() {
        assert_eq!(find_knee(&[point(1.0, 1.0, false), point(2.0, 9.0, true)]), None);
    }

    #[test]
    fn a_range_that_starts_beyond_the_knee_says_so() {
        let points: Vec<_> = [6.0, 7.0, 8.0, 9.0]
            .iter()
            .map(|&r| point(r, 1.0 / (10.0 - r), false))
            .collect();
        let knee = find_knee(&points).unwrap();
        assert!(knee.may_begin_lower && knee.to_rps.is_none());
    }
}
