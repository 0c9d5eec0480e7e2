//! Requests drawn one by one, in order of arrival: memory does not grow with their number.

use rand::RngExt;
use rand_pcg::Pcg64;

use super::{DraftLaw, LengthSource, Mix, PrefixLaw, RequestLaw, SynthError, SynthSpec};
use crate::rng::{self, Purpose};
use crate::units::SimTime;
use crate::workload::arrival::{ArrivalError, Arrivals, MAX_STREAMED, Until};
use crate::workload::trace::{Prefix, TraceRequest};

/// Verifications after which a request's accepted drafts repeat.
const DRAFT_CYCLE: u32 = 64;

/// The requests of one (seed, replication), in order of arrival.
///
/// Each purpose draws from a stream of its own, so drawing late gives what drawing beforehand gives. After an
/// error there is no further request.
#[derive(Debug, Clone)]
pub struct Requests {
    times: Times,
    classes: Vec<ClassDraws>,
    failed: bool,
}

/// Draws the requests of one (seed, replication) as they are asked for.
///
/// # Errors
/// [`SynthError`] for arrivals or shares that are none. What is wrong with a length is told where it is drawn.
pub fn stream(spec: &SynthSpec, seed: u64, replication: u64) -> Result<Requests, SynthError> {
    let times = times(spec, seed, replication)?;
    let mut classes: Vec<ClassDraws> = Vec::new();
    let mut groups = 0u32;
    let names: Vec<Option<&str>> = match &spec.mix {
        Mix::One(_) => vec![None],
        Mix::Classes(classes) => classes.iter().map(|c| Some(c.name.as_str())).collect(),
    };
    for (law, name) in spec.mix.laws().zip(names) {
        let place = (classes.len() as u32, groups);
        let draws = ClassDraws::new(law, place, |purpose| chance(seed, purpose, replication, name));
        classes.push(draws);
        let own = law.prefix.map_or(0, |p| p.groups.max(1));
        groups = groups.checked_add(own).ok_or(SynthError::Groups)?;
    }
    Ok(Requests {
        times,
        classes,
        failed: false,
    })
}

impl Iterator for Requests {
    type Item = Result<TraceRequest, SynthError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let drawn = self.times.next()?.and_then(|(class, arrival)| {
            // The class numbers come from the same list.
            self.classes[class].request(arrival)
        });
        self.failed = drawn.is_err();
        Some(drawn)
    }
}

fn chance(seed: u64, purpose: Purpose, replication: u64, class: Option<&str>) -> Pcg64 {
    match class {
        None => rng::stream(seed, purpose, replication),
        Some(name) => rng::class_stream(seed, purpose, replication, name),
    }
}

/// When requests arrive, and of which class they are.
#[derive(Debug, Clone)]
pub(super) enum Times {
    Drawn(Arrivals),
    /// All at time 0, the class chosen by its share.
    AtOnce {
        left: u32,
        shares: Vec<f64>,
        rng: Pcg64,
    },
}

pub(super) fn times(spec: &SynthSpec, seed: u64, replication: u64) -> Result<Times, SynthError> {
    let shares: Vec<(Option<&str>, f64)> = match &spec.mix {
        Mix::One(_) => vec![(None, 1.0)],
        Mix::Classes(classes) => classes.iter().map(|c| (Some(c.name.as_str()), c.share)).collect(),
    };
    let total: f64 = shares.iter().map(|(_, share)| share).sum();
    if !(total.is_finite() && total > 0.0) || shares.iter().any(|(_, s)| *s < 0.0) {
        return Err(SynthError::Shares);
    }
    let Some(law) = spec.arrivals else {
        return match spec.until {
            Until::Count(n) if n <= MAX_STREAMED => Ok(Times::AtOnce {
                left: n,
                shares: shares.iter().map(|(_, s)| *s).collect(),
                rng: rng::stream(seed, Purpose::Mix, replication),
            }),
            Until::Count(_) => Err(ArrivalError::TooMany.into()),
            Until::Time(_) => Err(SynthError::NoCount),
        };
    };
    let laws = shares.iter().map(|(name, share)| {
        let mut own = law;
        own.rate = law.rate * (share / total);
        (own, chance(seed, Purpose::Arrivals, replication, *name))
    });
    Ok(Times::Drawn(Arrivals::new(laws, spec.until)?))
}

impl Iterator for Times {
    type Item = Result<(usize, SimTime), SynthError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Drawn(arrivals) => Some(arrivals.next()?.map_err(SynthError::Arrivals)),
            Self::AtOnce { left, shares, rng } => {
                *left = left.checked_sub(1)?;
                let class = match shares.as_slice() {
                    [_] => 0,
                    many => weighted(many.iter().copied(), rng),
                };
                Some(Ok((class, SimTime::ZERO)))
            }
        }
    }
}

/// The laws of a class and the chance that each of them draws from.
#[derive(Debug, Clone)]
struct ClassDraws {
    law: RequestLaw,
    /// Its number: the tenant of its requests.
    number: u32,
    /// Prefix groups of the classes before it.
    first_group: u32,
    lengths: Pcg64,
    /// Rows of lengths drawn ahead, last one first.
    ahead: Vec<(u32, u32)>,
    prefixes: Pcg64,
    priorities: Pcg64,
    acceptance: Pcg64,
}

/// Rows of lengths are drawn so many at a time, so that the processor waits for their memory once, not for each.
const AHEAD: usize = 64;

impl ClassDraws {
    fn new(law: &RequestLaw, (number, first_group): (u32, u32), rng: impl Fn(Purpose) -> Pcg64) -> Self {
        Self {
            law: law.clone(),
            number,
            first_group,
            lengths: rng(Purpose::Lengths),
            ahead: Vec::new(),
            prefixes: rng(Purpose::Prefixes),
            priorities: rng(Purpose::Classes),
            acceptance: rng(Purpose::Acceptance),
        }
    }

    fn request(&mut self, arrival: SimTime) -> Result<TraceRequest, SynthError> {
        let (input, output) = match self.ahead.pop() {
            Some(lengths) => lengths,
            None => self.draw_lengths()?,
        };
        let mut request = TraceRequest::plain(arrival, input, output);
        request.tenant = self.number;
        if let Some(law) = self.law.prefix {
            request.prefix = law.draw(input, self.first_group, &mut self.prefixes);
            request.session = request.prefix.map(|p| p.group);
        }
        if !self.law.priorities.is_empty() {
            let weights = self.law.priorities.iter().map(|(_, w)| *w);
            request.priority = self.law.priorities[weighted(weights, &mut self.priorities)].0;
        }
        if let Some(law) = self.law.drafts {
            request.accepted_drafts = law.draw(output, &mut self.acceptance);
        }
        Ok(request)
    }
}

impl ClassDraws {
    fn draw_lengths(&mut self) -> Result<(u32, u32), SynthError> {
        let source = &self.law.lengths;
        if matches!(source, LengthSource::Rows(_)) {
            for _ in 0..AHEAD {
                self.ahead.push(source.draw(&mut self.lengths)?);
            }
            self.ahead.reverse();
            return self.ahead.pop().ok_or(SynthError::NoRows);
        }
        source.draw(&mut self.lengths)
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
    fn draw(self, input: u32, first_group: u32, rng: &mut Pcg64) -> Option<Prefix> {
        let member = rng.random::<f64>() < self.share;
        let group = first_group + rng.random_range(0..self.groups.max(1));
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

/// The place of one of the weights, each with the chance of its share; the last when rounding leaves none.
fn weighted(weights: impl ExactSizeIterator<Item = f64> + Clone, rng: &mut Pcg64) -> usize {
    let total: f64 = weights.clone().sum();
    let last = weights.len().saturating_sub(1);
    let mut left = rng.random::<f64>() * total;
    for (place, weight) in weights.enumerate() {
        left -= weight;
        if left < 0.0 {
            return place;
        }
    }
    last
}
