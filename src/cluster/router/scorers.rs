//! Weighted scorers and their pickers (rules D20, D21), as in llm-d and the Gateway API inference extension. Formulas and
//! defaults are those of their sources, with two differences: their active-request scorer takes the most in flight at any
//! target, here at any candidate; and newer token-load scorers add what the request itself would have to compute.

use std::collections::BTreeMap;

use super::draw::Draw;
use super::policy::{Asked, Candidate, Picker, Scorer};
use super::prefix_index::PrefixIndex;
use super::view::View;
use crate::units::SimTime;

/// Queue length from which the load-aware scorer gives nothing: the default of its `threshold`.
const LOAD_AWARE_QUEUE: u32 = 128;
/// Tokens in flight from which the token-load scorer gives nothing: the default of its `queueThresholdTokens`, 128
/// requests of 32,768.
const TOKEN_LOAD_TOKENS: f64 = 4_194_304.0;

/// The sum of weighted scores, and what the scorers remember.
#[derive(Debug)]
pub(super) struct Scored {
    prefixes: Vec<Weighted<PrefixIndex>>,
    others: Vec<Weighted<Plain>>,
    picker: Picker,
    /// Which target served a session last.
    sessions: Option<BTreeMap<u32, u32>>,
    /// Targets by when they last got a cold request, the oldest first.
    cold: Vec<u32>,
    /// Sums of the call under way, by rank.
    sums: Vec<f64>,
    scores: Vec<f64>,
    overlaps: Vec<u32>,
}

#[derive(Debug)]
struct Weighted<T> {
    scorer: T,
    weight: f64,
}

/// A scorer without an index.
#[derive(Debug, Clone, Copy)]
enum Plain {
    Queue,
    Running,
    KvUsage,
    LoadAware,
    ActiveRequest { factor: f64, idle: u32 },
    TokenLoad,
    SessionAffinity,
    NoHitLru,
}

impl Scored {
    pub(super) fn new(scorers: Vec<(Scorer, f64)>, picker: Picker) -> Self {
        let (mut prefixes, mut others) = (Vec::new(), Vec::new());
        let mut sessions = None;
        for (scorer, weight) in scorers {
            let scorer = match scorer {
                Scorer::Prefix(index) => {
                    let scorer = PrefixIndex::new(index);
                    prefixes.push(Weighted { scorer, weight });
                    continue;
                }
                Scorer::Queue => Plain::Queue,
                Scorer::Running => Plain::Running,
                Scorer::KvUsage => Plain::KvUsage,
                Scorer::LoadAware => Plain::LoadAware,
                Scorer::ActiveRequest { factor, idle } => Plain::ActiveRequest { factor, idle },
                Scorer::TokenLoad => Plain::TokenLoad,
                Scorer::SessionAffinity => {
                    sessions = Some(BTreeMap::new());
                    Plain::SessionAffinity
                }
                Scorer::NoHitLru => Plain::NoHitLru,
            };
            others.push(Weighted { scorer, weight });
        }
        Self {
            prefixes,
            others,
            picker,
            sessions,
            cold: Vec::new(),
            sums: Vec::new(),
            scores: Vec::new(),
            overlaps: Vec::new(),
        }
    }

    pub(super) fn choose(
        &mut self,
        now: SimTime,
        asked: &Asked,
        view: &View<'_>,
        draw: Draw,
        believed: &mut Option<u32>,
    ) -> Option<usize> {
        let warm = self.sum_up(now, asked, view);
        let rank = match self.picker {
            Picker::Max => random_highest(&self.sums, draw),
            Picker::WeightedRandom => draw.weighted(&self.sums),
        }?;
        *believed = self.overlaps.get(rank).copied();
        self.sent(now, asked, view.at(rank).target, warm);
        Some(rank)
    }

    /// Fills `sums`, and `overlaps` by the first prefix scorer; whether any prefix scorer found a block anywhere.
    fn sum_up(&mut self, now: SimTime, asked: &Asked, view: &View<'_>) -> bool {
        self.sums.clear();
        self.sums.resize(view.len(), 0.0);
        self.overlaps.clear();
        let mut warm = false;
        for (number, Weighted { scorer, weight }) in self.prefixes.iter_mut().enumerate() {
            for (candidate, sum) in view.iter().zip(&mut self.sums) {
                let overlap = scorer.overlap_tokens(now, asked, candidate);
                warm |= overlap > 0;
                *sum += *weight * clamped(scorer.share(asked, overlap));
                if number == 0 {
                    self.overlaps.push(overlap);
                }
            }
        }
        let session = self.sessions.as_ref().zip(asked.session);
        let last = session.and_then(|(sessions, session)| sessions.get(&session).copied());
        for &Weighted { scorer, weight } in &self.others {
            self.scores.clear();
            match scorer {
                Plain::NoHitLru if warm => self.scores.resize(view.len(), 0.5),
                Plain::NoHitLru => no_hit_lru(&self.cold, view, &mut self.scores),
                scorer => plain(scorer, last, view, &mut self.scores),
            }
            for (sum, score) in self.sums.iter_mut().zip(&self.scores) {
                *sum += weight * clamped(*score);
            }
        }
        warm
    }

    fn sent(&mut self, now: SimTime, asked: &Asked, target: u32, warm: bool) {
        for Weighted { scorer, .. } in &mut self.prefixes {
            scorer.sent(now, asked, target);
        }
        if let Some((sessions, session)) = self.sessions.as_mut().zip(asked.session) {
            sessions.insert(session, target);
        }
        let ranks_cold = self.others.iter().any(|w| matches!(w.scorer, Plain::NoHitLru));
        if ranks_cold && !warm {
            self.cold.retain(|&other| other != target);
            self.cold.push(target);
        }
    }

    pub(super) fn left(&mut self, target: u32) {
        for Weighted { scorer, .. } in &mut self.prefixes {
            scorer.forget(target);
        }
        self.cold.retain(|&other| other != target);
    }
}

/// Scores of a scorer that needs nothing but the candidates and the target `last` of the session.
fn plain(scorer: Plain, last: Option<u32>, view: &View<'_>, scores: &mut Vec<f64>) {
    let most_in_flight = view
        .iter()
        .map(|candidate| candidate.in_flight)
        .max()
        .unwrap_or(0);
    match scorer {
        Plain::Queue => fewest(view, |candidate| candidate.waiting, scores),
        Plain::Running => fewest(view, |candidate| candidate.running, scores),
        Plain::KvUsage => scores.extend(view.iter().map(|candidate| 1.0 - candidate.kv_usage)),
        Plain::LoadAware => scores.extend(view.iter().map(|candidate| load_aware(candidate.waiting))),
        Plain::ActiveRequest { factor, idle } => scores.extend(view.iter().map(|candidate| {
            if candidate.in_flight <= idle {
                1.0
            } else {
                f64::from(most_in_flight - candidate.in_flight) / f64::from(most_in_flight) * factor
            }
        })),
        Plain::TokenLoad => scores.extend(
            view.iter()
                .map(|candidate| 1.0 - (candidate.in_flight_tokens as f64 / TOKEN_LOAD_TOKENS).min(1.0)),
        ),
        Plain::SessionAffinity => scores.extend(
            view.iter()
                .map(|candidate| f64::from(u8::from(last == Some(candidate.target)))),
        ),
        Plain::NoHitLru => {}
    }
}

/// (max - x)/(max - min), or 1 for all.
fn fewest(view: &View<'_>, count: impl Fn(&Candidate) -> u32 + Copy, scores: &mut Vec<f64>) {
    let counts = view.iter().map(count);
    let (low, high) = counts
        .clone()
        .fold((u32::MAX, 0), |(low, high), x| (low.min(x), high.max(x)));
    scores.extend(counts.map(|x| {
        if high == low {
            1.0
        } else {
            f64::from(high - x) / f64::from(high - low)
        }
    }));
}

/// 0.5 with nothing waiting, and down to 0 at 128 waiting.
fn load_aware(waiting: u32) -> f64 {
    0.5 * (1.0 - f64::from(waiting.min(LOAD_AWARE_QUEUE)) / f64::from(LOAD_AWARE_QUEUE))
}

/// 1 - place/(n - 1), where those that never got a cold request come first, by their numbers, and then the others, the
/// least recent first.
fn no_hit_lru(cold: &[u32], view: &View<'_>, scores: &mut Vec<f64>) {
    let steps = view.len().saturating_sub(1).max(1) as f64;
    scores.resize(view.len(), 0.0);
    let never = view
        .iter()
        .map(|candidate| candidate.target)
        .filter(|target| !cold.contains(target));
    let places = never.chain(cold.iter().copied());
    let ranks = places.filter_map(|target| view.rank_of(target));
    for (place, rank) in ranks.enumerate() {
        scores[rank] = 1.0 - place as f64 / steps;
    }
}

/// Into 0 to 1; what is not a number scores nothing.
fn clamped(score: f64) -> f64 {
    if score.is_nan() {
        0.0
    } else {
        score.clamp(0.0, 1.0)
    }
}

/// Any of the highest, with equal chance.
fn random_highest(sums: &[f64], draw: Draw) -> Option<usize> {
    let highest = sums.iter().copied().max_by(f64::total_cmp)?;
    let is_highest = |sum: &f64| sum.total_cmp(&highest).is_eq();
    let equals = sums.iter().filter(|sum| is_highest(sum)).count();
    let which = draw.index(equals)?;
    let ranks = sums.iter().enumerate().filter(|(_, sum)| is_highest(sum));
    ranks.map(|(rank, _)| rank).nth(which)
}
