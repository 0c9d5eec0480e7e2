//! What serving burns: joules of the accelerators by phase, watts at the peak, joules a token and a good request.
//!
//! A device draws its idle power as long as it is powered, and dynamic power on top while it computes
//! ([`PowerModel`]). Hosts, network and cooling are not in it; the last comes in by a PUE, if one is given with its
//! source.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cost::ServedWork;
use crate::units::{SimDuration, SimTime};

mod power;

pub use power::{Dynamic, PowerError, PowerModel, Work};

/// A span in which a device computed the same kind of thing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// When it began.
    pub start: SimTime,
    /// When it ended, as it happened: at the device's real clock ([`PowerModel::time_factor`] is already in it).
    pub end: SimTime,
    /// What was computed.
    pub work: Work,
}

/// Devices that do the same at the same time: the ranks of a group.
#[derive(Debug, Clone, Copy)]
pub struct Devices<'a> {
    /// What each draws.
    pub power: &'a PowerModel,
    /// How many.
    pub count: u32,
    /// When they were powered, in order and apart from each other.
    pub powered: &'a [(SimTime, SimTime)],
    /// What they computed, in order, apart from each other, and within `powered`.
    pub intervals: &'a [Interval],
}

/// Power usage effectiveness: what the whole site draws over what its machines draw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pue {
    /// 1 or more.
    pub value: f64,
    /// Who says so; not empty.
    pub source: String,
}

/// Why energy cannot be told.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EnergyError {
    /// The power model contradicts itself.
    #[error("devices {devices}: {error}")]
    Power {
        /// Which of the devices, from 0.
        devices: usize,
        /// What is wrong.
        #[source]
        error: PowerError,
    },
    /// Spans overlap, run backwards, or the devices computed while they had no power.
    #[error(
        "devices {devices}: {what} {index} ends before it starts, overlaps the one before it, or is outside the time with power"
    )]
    Spans {
        /// Which of the devices, from 0.
        devices: usize,
        /// `interval` or `powered span`.
        what: &'static str,
        /// Which of them, from 0.
        index: usize,
    },
    /// A PUE that is none, or that nobody vouches for.
    #[error("PUE {value} with source {source_text:?}; it must be 1 or more and name its source")]
    Pue {
        /// What was given.
        value: f64,
        /// Who was given.
        source_text: String,
    },
}

/// Joules by what was computed.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct JoulesByPhase {
    /// Powered, with nothing to compute.
    pub waiting: f64,
    /// Steps of prompts only, idle power included.
    pub prefill: f64,
    /// Steps of output tokens only.
    pub decode: f64,
    /// Steps of both.
    pub mixed: f64,
    /// Dummy batches of ranks that step together: for neither prompts nor output tokens. Left out where there were none.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub dummy: f64,
}

/// There were none.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_nothing(joules: &f64) -> bool {
    *joules <= 0.0
}

impl JoulesByPhase {
    /// All phases together.
    pub fn total(&self) -> f64 {
        self.waiting + self.prefill + self.decode + self.mixed + self.dummy
    }
}

/// What a run burnt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Energy {
    /// Joules of idle power, over all the time with power.
    pub idle_j: f64,
    /// Joules above it.
    pub dynamic_j: f64,
    /// Both.
    pub total_j: f64,
    /// The same by what was computed.
    pub by_phase: JoulesByPhase,
    /// Joules of prompt work over input tokens: prefill steps, and of mixed ones the prompts' share of the time. Null
    /// without input tokens.
    pub j_per_input_token: Option<f64>,
    /// Joules of output work over output tokens. Waiting is in neither. Null without output tokens.
    pub j_per_output_token: Option<f64>,
    /// All joules over output tokens.
    pub total_j_per_output_token: Option<f64>,
    /// All joules over requests that met every target; null when none did.
    pub j_per_good_request: Option<f64>,
    /// Highest power of all devices together at any instant, in watts; null when nothing was powered.
    pub peak_w: Option<f64>,
    /// Mean from the first to the last instant with power, in watts; null when there is none.
    pub mean_w: Option<f64>,
    /// The PUE used, if one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pue: Option<Pue>,
    /// All joules times the PUE; null without one.
    pub facility_j: Option<f64>,
}

/// Sums over devices.
#[derive(Debug, Default)]
struct Sums {
    idle_j: f64,
    dynamic_j: f64,
    by_phase: JoulesByPhase,
    prompts_j: f64,
    outputs_j: f64,
    /// Changes of power in microwatts: whole numbers, so that the peak does not depend on rounding.
    changes: Vec<(SimTime, i64)>,
}

impl Energy {
    /// The energy of some devices over the spans given.
    ///
    /// # Errors
    /// [`EnergyError`] for power models, spans and a PUE that make no sense.
    pub fn of(devices: &[Devices<'_>], served: &ServedWork, pue: Option<Pue>) -> Result<Self, EnergyError> {
        if let Some(pue) = &pue
            && (!pue.value.is_finite() || pue.value < 1.0 || pue.source.trim().is_empty())
        {
            return Err(EnergyError::Pue {
                value: pue.value,
                source_text: pue.source.clone(),
            });
        }
        let mut sums = Sums::default();
        for (index, devices) in devices.iter().enumerate() {
            check(index, devices)?;
            sums.add(devices);
        }
        let total_j = sums.idle_j + sums.dynamic_j;
        let per = |joules: f64, count: u64| (count > 0).then(|| joules / count as f64);
        let ends = devices.iter().flat_map(|d| d.powered);
        let from = ends.clone().map(|&(from, _)| from).min();
        let to = ends.map(|&(_, to)| to).max();
        let seconds = from
            .zip(to)
            .map(|(from, to)| to.since(from).as_secs_f64())
            .filter(|&s| s > 0.0);
        Ok(Self {
            idle_j: sums.idle_j,
            dynamic_j: sums.dynamic_j,
            total_j,
            by_phase: sums.by_phase,
            j_per_input_token: per(sums.prompts_j, served.input_tokens),
            j_per_output_token: per(sums.outputs_j, served.output_tokens),
            total_j_per_output_token: per(total_j, served.output_tokens),
            j_per_good_request: per(total_j, served.good_requests),
            peak_w: seconds.map(|_| peak_w(sums.changes)),
            mean_w: seconds.map(|s| total_j / s),
            facility_j: pue.as_ref().map(|pue| total_j * pue.value),
            pue,
        })
    }
}

impl Sums {
    fn add(&mut self, devices: &Devices<'_>) {
        let count = f64::from(devices.count);
        let idle_w = devices.power.idle_w * count;
        let mut powered = SimDuration::ZERO;
        for &(from, to) in devices.powered {
            powered += to.since(from);
            self.change(from, to, idle_w);
        }
        let mut computing = SimDuration::ZERO;
        for interval in devices.intervals {
            let span = interval.end.since(interval.start);
            computing += span;
            let dynamic_w = devices.power.dynamic_w(&interval.work) * count;
            self.change(interval.start, interval.end, dynamic_w);
            let dynamic_j = dynamic_w * span.as_secs_f64();
            let joules = dynamic_j + idle_w * span.as_secs_f64();
            self.dynamic_j += dynamic_j;
            *match interval.work {
                Work::Prefill { .. } => &mut self.by_phase.prefill,
                Work::Decode { .. } => &mut self.by_phase.decode,
                Work::Mixed { .. } => &mut self.by_phase.mixed,
                Work::Dummy { .. } => &mut self.by_phase.dummy,
            } += joules;
            if matches!(interval.work, Work::Dummy { .. }) {
                continue;
            }
            let prompts = interval.work.prefill_share();
            self.prompts_j += joules * prompts;
            self.outputs_j += joules * (1.0 - prompts);
        }
        self.idle_j += idle_w * powered.as_secs_f64();
        self.by_phase.waiting += idle_w * SimDuration(powered.0 - computing.0).as_secs_f64();
    }

    fn change(&mut self, from: SimTime, to: SimTime, watts: f64) {
        let microwatts = (watts * 1e6).round() as i64;
        if to > from {
            self.changes.push((from, microwatts));
            self.changes.push((to, -microwatts));
        }
    }
}

/// The highest sum of the changes; at one instant what ends goes before what begins.
fn peak_w(mut changes: Vec<(SimTime, i64)>) -> f64 {
    changes.sort_unstable();
    let (mut now, mut peak) = (0i64, 0i64);
    for (_, change) in changes {
        now = now.saturating_add(change);
        peak = peak.max(now);
    }
    peak as f64 / 1e6
}

fn check(devices: usize, given: &Devices<'_>) -> Result<(), EnergyError> {
    given
        .power
        .check()
        .map_err(|error| EnergyError::Power { devices, error })?;
    let bad = |what, index| EnergyError::Spans { devices, what, index };
    let mut before = SimTime::ZERO;
    for (index, &(from, to)) in given.powered.iter().enumerate() {
        if from < before || to < from {
            return Err(bad("powered span", index));
        }
        before = to;
    }
    let (mut before, mut span) = (SimTime::ZERO, 0);
    for (index, interval) in given.intervals.iter().enumerate() {
        interval
            .work
            .check()
            .map_err(|error| EnergyError::Power { devices, error })?;
        while given.powered.get(span).is_some_and(|&(_, to)| to < interval.end) {
            span += 1;
        }
        let within = given
            .powered
            .get(span)
            .is_some_and(|&(from, _)| from <= interval.start);
        if !within || interval.start < before || interval.end < interval.start {
            return Err(bad("interval", index));
        }
        before = interval.end;
    }
    Ok(())
}

#[cfg(test)]
#[path = "energy_tests.rs"]
mod tests;
