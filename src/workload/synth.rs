//! Synthetic workloads: every random choice drawn once, into integers; one by one ([`stream`]) or all into a trace
//! ([`synthesize`]).

use std::sync::Arc;

use super::arrival::{ArrivalError, ArrivalLaw, MAX_ARRIVALS, Until, expected};
use super::lengths::{LengthError, LengthLaw};
use super::trace::Trace;
use crate::units::SimTime;

mod requests;

pub use requests::{Requests, stream};

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

/// What requests are like, whenever they arrive.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestLaw {
    /// Lengths.
    pub lengths: LengthSource,
    /// Shared beginnings.
    pub prefix: Option<PrefixLaw>,
    /// Priorities with their weights; empty = all 0.
    pub priorities: Vec<(i32, f64)>,
    /// Accepted drafts.
    pub drafts: Option<DraftLaw>,
}

/// One class of requests: an arrival process and laws of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestClass {
    /// Its name; it names its random streams too, so that another class or another order changes no draw.
    pub name: String,
    /// Its share of the requests; shares are weights.
    pub share: f64,
    /// What its requests are like. Its prefix groups are its own.
    pub requests: RequestLaw,
}

/// Who asks.
#[derive(Debug, Clone, PartialEq)]
pub enum Mix {
    /// All requests follow the same laws.
    One(RequestLaw),
    /// Classes, each with its share of the rate, merged in order of time; equal times in the order of the classes.
    Classes(Vec<RequestClass>),
}

impl Mix {
    /// The laws of each class.
    pub fn laws(&self) -> impl Iterator<Item = &RequestLaw> {
        let (one, classes) = match self {
            Self::One(law) => (Some(law), &[] as &[RequestClass]),
            Self::Classes(classes) => (None, classes.as_slice()),
        };
        one.into_iter().chain(classes.iter().map(|c| &c.requests))
    }
}

/// A whole synthetic workload.
#[derive(Debug, Clone, PartialEq)]
pub struct SynthSpec {
    /// Arrivals of all classes together; `None` puts all at time 0 (closed-loop and offline load).
    pub arrivals: Option<ArrivalLaw>,
    /// How many requests, or until when.
    pub until: Until,
    /// The requests.
    pub mix: Mix,
}

/// When requests arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArrivalSpan {
    /// The first.
    pub first: SimTime,
    /// The last.
    pub last: SimTime,
    /// How many.
    pub count: u32,
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
    /// Shares that choose nobody.
    #[error("the shares of the classes must be numbers from 0 on, and one of them above 0")]
    Shares,
    /// More prefix groups than there are numbers for them.
    #[error("the classes have more than 4294967295 prefix groups in all")]
    Groups,
    /// No row to draw from.
    #[error("there are no length rows to draw from")]
    NoRows,
    /// Time without arrivals.
    #[error("a number of requests is needed when nothing states when they arrive")]
    NoCount,
}

/// Draws the workload of one (seed, replication) into memory: what [`stream`] gives, kept.
///
/// # Errors
/// [`SynthError`] naming the part at fault, also when there are more than [`MAX_ARRIVALS`].
pub fn synthesize(spec: &SynthSpec, seed: u64, replication: u64) -> Result<Trace, SynthError> {
    let rate = spec.arrivals.map_or(0.0, |law| law.rate);
    if expected(rate, spec.until) > f64::from(MAX_ARRIVALS) {
        return Err(ArrivalError::TooManyInMemory.into());
    }
    let mut requests = Vec::new();
    if let Until::Count(n) = spec.until {
        requests.reserve_exact(n as usize);
    }
    for request in stream(spec, seed, replication)? {
        if requests.len() >= MAX_ARRIVALS as usize {
            return Err(ArrivalError::TooManyInMemory.into());
        }
        requests.push(request?);
    }
    Ok(Trace { requests })
}

/// When the requests of one (seed, replication) arrive: a pass over the arrivals alone, without memory; `None`
/// when there is none.
///
/// # Errors
/// [`SynthError`] when the arrivals cannot be drawn.
pub fn arrival_span(
    spec: &SynthSpec,
    seed: u64,
    replication: u64,
) -> Result<Option<ArrivalSpan>, SynthError> {
    let mut span: Option<ArrivalSpan> = None;
    for arrival in requests::times(spec, seed, replication)? {
        let (_, last) = arrival?;
        let (first, count) = span.map_or((last, 0), |s| (s.first, s.count));
        span = Some(ArrivalSpan {
            first,
            last,
            count: count + 1,
        });
    }
    Ok(span)
}

#[cfg(test)]
#[path = "synth_tests.rs"]
mod tests;
