//! Synthetic workloads: every random choice drawn once, into a trace of integers.

use std::sync::Arc;

use rand::RngExt;
use rand_pcg::Pcg64;

use super::arrival::{self, ArrivalError, Gaps, Until};
use super::lengths::{LengthError, LengthLaw};
use super::trace::{Prefix, Trace, TraceRequest};
use crate::rng::{Purpose, stream};
use crate::units::SimTime;

/// Verifications after which a request's accepted drafts repeat.
const DRAFT_CYCLE: u32 = 64;

/// Where prompt and output lengths come from (contract section 4).
#[derive(Debug, Clone, PartialEq)]
pub enum LengthSource {
    /// All requests alike.
    Fixed {
        /// Prompt tokens.
        input: u32,
        /// Output tokens.
        output: u32,
    },
    /// Two independent draws: stated as such in every report.
    Independent {
        /// Prompt tokens.
        input: LengthLaw,
        /// Output tokens.
        output: LengthLaw,
    },
    /// Rows of (prompt, output) tokens drawn with replacement: the joint law of real requests.
    Rows(Arc<[(u32, u32)]>),
}

/// Shared prompt beginnings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefixLaw {
    /// Number of groups, equally likely.
    pub groups: u32,
    /// Shared leading tokens; a shorter prompt shares all it has.
    pub tokens: u32,
    /// Share of the requests that belong to a group, 0 to 1.
    pub share: f64,
}

/// Speculative drafts that the model accepts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DraftLaw {
    /// Drafts in a verification.
    pub drafts: u8,
    /// Chance that a draft is accepted, given that all before it were.
    pub acceptance: f64,
}

/// Arrivals, when the load model has any.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ArrivalLaw {
    /// Law of the gaps.
    pub gaps: Gaps,
    /// Requests a second.
    pub rate: f64,
    /// vLLM's rescaling (rule M10).
    pub rescale: bool,
}

/// A whole synthetic workload.
#[derive(Debug, Clone, PartialEq)]
pub struct SynthSpec {
    /// Arrivals; `None` puts all at time 0 (closed-loop and offline load).
    pub arrivals: Option<ArrivalLaw>,
    /// How many requests, or until when.
    pub until: Until,
    /// Lengths.
    pub lengths: LengthSource,
    /// Shared beginnings.
    pub prefix: Option<PrefixLaw>,
    /// Priorities with their weights; empty = all 0.
    pub priorities: Vec<(i32, f64)>,
    /// Accepted drafts.
    pub drafts: Option<DraftLaw>,
}

/// Why a workload could not be drawn.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SynthError {
    /// The arrivals.
    #[error("arrivals: {0}")]
    Arrivals(#[from] ArrivalError),
    /// The prompt lengths.
    #[error("input lengths: {0}")]
    Input(LengthError),
    /// The output lengths.
    #[error("output lengths: {0}")]
    Output(LengthError),
    /// No row to draw from.
    #[error("there are no length rows to draw from")]
    NoRows,
    /// Time without arrivals.
    #[error("a number of requests is needed when nothing states when they arrive")]
    NoCount,
}

/// Draws the workload of one (seed, replication).
///
/// # Errors
/// [`SynthError`] naming the part at fault.
pub fn synthesize(spec: &SynthSpec, seed: u64, replication: u64) -> Result<Trace, SynthError> {
    let rng = |purpose| stream(seed, purpose, replication);
    let arrivals = arrival_times(spec, &mut rng(Purpose::Arrivals))?;
    let (mut lengths, mut prefixes) = (rng(Purpose::Lengths), rng(Purpose::Prefixes));
    let (mut classes, mut acceptance) = (rng(Purpose::Classes), rng(Purpose::Acceptance));
    let mut requests = Vec::with_capacity(arrivals.len());
    for arrival in arrivals {
        let (input, output) = spec.lengths.draw(&mut lengths)?;
        requests.push(TraceRequest {
            prefix: spec.prefix.and_then(|law| law.draw(input, &mut prefixes)),
            priority: draw_priority(&spec.priorities, &mut classes),
            accepted_drafts: spec
                .drafts
                .map_or(Vec::new(), |law| law.draw(output, &mut acceptance)),
            ..TraceRequest::plain(arrival, input, output)
        });
    }
    Ok(Trace { requests })
}

fn arrival_times(spec: &SynthSpec, rng: &mut Pcg64) -> Result<Vec<SimTime>, SynthError> {
    match (spec.arrivals, spec.until) {
        (Some(law), until) => Ok(arrival::times(law.gaps, law.rate, until, law.rescale, rng)?),
        (None, Until::Count(n)) if n <= arrival::MAX_ARRIVALS => Ok(vec![SimTime::ZERO; n as usize]),
        (None, Until::Count(_)) => Err(ArrivalError::TooMany.into()),
        (None, Until::Time(_)) => Err(SynthError::NoCount),
    }
}

impl LengthSource {
    fn draw(&self, rng: &mut Pcg64) -> Result<(u32, u32), SynthError> {
        match self {
            Self::Fixed { input, output } => Ok((*input, *output)),
            Self::Independent { input, output } => Ok((
                input.sample(rng).map_err(SynthError::Input)?,
                output.sample(rng).map_err(SynthError::Output)?,
            )),
            Self::Rows(rows) if rows.is_empty() => Err(SynthError::NoRows),
            // u64 and not usize: the draws must be the same on every platform.
            Self::Rows(rows) => Ok(rows[rng.random_range(0..rows.len() as u64) as usize]),
        }
    }
}

impl PrefixLaw {
    /// Both choices are always drawn, so that another share leaves the groups of the others as they were.
    fn draw(self, input: u32, rng: &mut Pcg64) -> Option<Prefix> {
        let member = rng.random::<f64>() < self.share;
        let group = rng.random_range(0..self.groups.max(1));
        member.then_some(Prefix {
            group,
            shared_tokens: self.tokens.min(input),
            greedy_outputs: false,
        })
    }
}

impl DraftLaw {
    fn draw(self, output: u32, rng: &mut Pcg64) -> Vec<u8> {
        let mut verification = || {
            let mut accepted = 0;
            while accepted < self.drafts && rng.random::<f64>() < self.acceptance {
                accepted += 1;
            }
            accepted
        };
        (0..output.min(DRAFT_CYCLE)).map(|_| verification()).collect()
    }
}

fn draw_priority(classes: &[(i32, f64)], rng: &mut Pcg64) -> i32 {
    let total: f64 = classes.iter().map(|(_, w)| w).sum();
    let mut left = rng.random::<f64>() * total;
    for (priority, weight) in classes {
        left -= weight;
        if left < 0.0 {
            return *priority;
        }
    }
    classes.last().map_or(0, |(p, _)| *p)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> SynthSpec {
        SynthSpec {
            arrivals: Some(ArrivalLaw {
                gaps: Gaps::Poisson,
                rate: 2.0,
                rescale: false,
            }),
            until: Until::Count(2000),
            lengths: LengthSource::Independent {
                input: LengthLaw::Uniform { min: 10, max: 400 },
                output: LengthLaw::Lognormal {
                    median: 60.0,
                    sigma: 0.7,
                    min: 1,
                    max: 512,
                },
            },
            prefix: Some(PrefixLaw {
                groups: 4,
                tokens: 96,
                share: 0.5,
            }),
            priorities: vec![(0, 3.0), (5, 1.0)],
            drafts: None,
        }
    }

    #[test]
    fn a_seed_and_a_replication_fix_every_row() {
        let base = synthesize(&spec(), 1, 0).unwrap();
        assert_eq!(base, synthesize(&spec(), 1, 0).unwrap());
        assert_ne!(base, synthesize(&spec(), 1, 1).unwrap());
        assert_ne!(base, synthesize(&spec(), 2, 0).unwrap());
    }

    #[test]
    fn another_rate_or_share_leaves_the_other_choices_alone() {
        let base = synthesize(&spec(), 1, 0).unwrap();
        let mut changed = spec();
        changed.arrivals = Some(ArrivalLaw {
            gaps: Gaps::Constant,
            rate: 9.0,
            rescale: false,
        });
        changed.prefix = Some(PrefixLaw {
            groups: 4,
            tokens: 96,
            share: 0.9,
        });
        let other = synthesize(&changed, 1, 0).unwrap();
        for (a, b) in base.requests.iter().zip(&other.requests) {
            assert_eq!(
                (a.input_tokens, a.max_output_tokens),
                (b.input_tokens, b.max_output_tokens)
            );
            assert_eq!(a.priority, b.priority);
            if a.prefix.is_some() {
                assert_eq!(a.prefix, b.prefix, "members stay members as the share rises");
            }
        }
    }

    /// Binomial counts within four standard deviations.
    #[test]
    fn shares_and_weights_are_met() {
        let t = synthesize(&spec(), 1, 0).unwrap();
        let near = |count: usize, p: f64| {
            let (mean, sd) = (2000.0 * p, (2000.0 * p * (1.0 - p)).sqrt());
            assert!(
                (count as f64 - mean).abs() < 4.0 * sd,
                "{count} of 2000, expected {mean}"
            );
        };
        near(t.requests.iter().filter(|r| r.prefix.is_some()).count(), 0.5);
        near(t.requests.iter().filter(|r| r.priority == 5).count(), 0.25);
        for r in &t.requests {
            assert!(
                r.prefix
                    .is_none_or(|p| p.group < 4 && p.shared_tokens == r.input_tokens.min(96))
            );
        }
    }

    #[test]
    fn rows_are_drawn_jointly() {
        let rows: Arc<[(u32, u32)]> = vec![(10, 100), (20, 200)].into();
        let s = SynthSpec {
            lengths: LengthSource::Rows(rows),
            ..spec()
        };
        let t = synthesize(&s, 1, 0).unwrap();
        assert!(
            t.requests
                .iter()
                .all(|r| r.max_output_tokens == 10 * r.input_tokens)
        );
        let first = t.requests.iter().filter(|r| r.input_tokens == 10).count();
        assert!((first as f64 - 1000.0).abs() < 4.0 * 500f64.sqrt(), "{first}");
    }

    /// With chance a and k drafts, the mean accepted is a + a^2 + ... + a^k.
    #[test]
    fn accepted_drafts_have_their_mean() {
        let s = SynthSpec {
            drafts: Some(DraftLaw {
                drafts: 3,
                acceptance: 0.6,
            }),
            ..spec()
        };
        let t = synthesize(&s, 1, 0).unwrap();
        let all: Vec<f64> = t
            .requests
            .iter()
            .flat_map(|r| r.accepted_drafts.iter().map(|a| f64::from(*a)))
            .collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        assert!(
            (mean - (0.6 + 0.36 + 0.216)).abs() < 4.0 * 1.2 / (all.len() as f64).sqrt(),
            "{mean}"
        );
    }

    #[test]
    fn the_first_rows_do_not_change_between_releases() {
        let t = synthesize(&spec(), 1, 0).unwrap();
        let rows: Vec<_> = t.requests[..3]
            .iter()
            .map(|r| {
                (
                    r.arrival.0,
                    r.input_tokens,
                    r.max_output_tokens,
                    r.prefix.map(|p| p.group),
                    r.priority,
                )
            })
            .collect();
        assert_eq!(rows, PINNED);
    }

    const PINNED: [(u64, u32, u32, Option<u32>, i32); 3] = [
        (640_311_690, 345, 124, None, 0),
        (1_216_957_850, 97, 10, None, 0),
        (1_820_111_684, 370, 83, Some(0), 5),
    ];

    #[test]
    fn nothing_to_draw_from_is_an_error() {
        let s = SynthSpec {
            lengths: LengthSource::Rows(Arc::from([])),
            ..spec()
        };
        assert_eq!(synthesize(&s, 1, 0), Err(SynthError::NoRows));
        let s = SynthSpec {
            arrivals: None,
            until: Until::Time(SimTime(5)),
            ..spec()
        };
        assert_eq!(synthesize(&s, 1, 0), Err(SynthError::NoCount));
    }
}
