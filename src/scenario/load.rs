//! `load`: how requests are offered.

use super::check::Blame;
use super::client;
use super::provenance::{Provenance, Source};
use super::quantity::{Finite, Span};
use super::schema::{Day, Load, LoadKind, Process, RatePattern, Scenario, Workload};
use crate::input::InputError;
use crate::sim::LoadModel;
use crate::units::{SimDuration, written};
use crate::workload::pattern::{Pattern, Weekday};

/// Fills and checks `load`, and gives the load model.
///
/// # Errors
/// [`InputError`] for keys that do not belong to the load model, or values outside their range.
pub fn resolve_load(
    scenario: &mut Scenario,
    provenance: &mut Provenance,
    origin: &str,
) -> Result<LoadModel, InputError> {
    let replay = matches!(scenario.workload, Workload::Trace(_));
    if scenario.load.model == LoadKind::ClosedLoop && scenario.load.client.is_some() {
        return client::resolve(scenario, provenance, origin, replay);
    }
    let load = &mut scenario.load;
    Blame { origin, provenance }.absent("load.client", load.client.as_ref(), CLOSED_ONLY)?;
    match load.model {
        LoadKind::OpenLoop => {
            let usual = if replay { Process::Trace } else { Process::Poisson };
            provenance.fill(
                "load.arrival.process",
                &mut load.arrival.process,
                Source::Default,
                usual,
            );
            if !replay {
                provenance.fill(
                    "load.arrival.rescale",
                    &mut load.arrival.rescale,
                    Source::Default,
                    false,
                );
            }
            if let (Some(pattern), false) = (&mut load.arrival.pattern, replay) {
                fill_pattern(pattern, provenance, origin)?;
            }
            let blame = Blame { origin, provenance };
            check_open_loop(load, replay, &blame)?;
            Ok(LoadModel::OpenLoop)
        }
        LoadKind::ClosedLoop => {
            let think = provenance.fill(
                "load.think",
                &mut load.think,
                Source::Default,
                Span(SimDuration::ZERO),
            );
            let blame = Blame { origin, provenance };
            no_arrivals(load, &blame)?;
            blame.at_most("load.think", Some(think), client::LONGEST_PAUSE)?;
            let concurrency = concurrency(load, &blame)?;
            Ok(LoadModel::ClosedLoop {
                concurrency,
                think: think.0,
            })
        }
        LoadKind::Offline => {
            let blame = Blame { origin, provenance };
            no_arrivals(load, &blame)?;
            blame.absent("load.concurrency", load.concurrency.as_ref(), CLOSED_ONLY)?;
            blame.absent("load.think", load.think.as_ref(), CLOSED_ONLY)?;
            Ok(LoadModel::Offline)
        }
    }
}

/// The number of clients.
pub(super) fn concurrency(load: &Load, blame: &Blame<'_>) -> Result<u32, InputError> {
    blame.at_least_one("load.concurrency", load.concurrency)?;
    load.concurrency.ok_or_else(|| {
        blame.error(
            "load.concurrency",
            "it is missing",
            "a closed-loop load needs the number of its clients",
        )
    })
}

const CLOSED_ONLY: &str = "it belongs to load.model closed-loop: leave it out";
const OPEN_ONLY: &str = "arrivals belong to load.model open-loop: leave them out (--set load.arrival=null)";

pub(super) fn no_arrivals(load: &Load, blame: &Blame<'_>) -> Result<(), InputError> {
    let a = &load.arrival;
    blame.absent("load.arrival.process", a.process.as_ref(), OPEN_ONLY)?;
    blame.absent("load.arrival.rate", a.rate.as_ref(), OPEN_ONLY)?;
    blame.absent("load.arrival.burstiness", a.burstiness.as_ref(), OPEN_ONLY)?;
    blame.absent("load.arrival.rescale", a.rescale.as_ref(), OPEN_ONLY)?;
    blame.absent("load.arrival.time_scale", a.time_scale.as_ref(), OPEN_ONLY)?;
    blame.absent("load.arrival.pattern", a.pattern.as_ref(), OPEN_ONLY)
}

/// Fills a pattern: no wave, all days alike, the peak in the early afternoon, time 0 on a Monday.
pub(super) fn fill_pattern(
    pattern: &mut RatePattern,
    provenance: &mut Provenance,
    origin: &str,
) -> Result<(), InputError> {
    const PATH: &str = "load.arrival.pattern";
    let blame = Blame { origin, provenance };
    if pattern.daily_peak_to_mean.is_none() {
        blame.absent(
            "load.arrival.pattern.peak_hour",
            pattern.peak_hour.as_ref(),
            "without a wave there is no peak: give daily_peak_to_mean too",
        )?;
    }
    if pattern.weekend.is_none() {
        blame.absent(
            "load.arrival.pattern.starts",
            pattern.starts.as_ref(),
            "days are all alike: give weekend too",
        )?;
    }
    let mut fill = |key: &str, slot: &mut Option<Finite>, usual: f64| {
        provenance.fill(&format!("{PATH}.{key}"), slot, Source::Default, Finite(usual));
    };
    fill("daily_peak_to_mean", &mut pattern.daily_peak_to_mean, 1.0);
    fill("peak_hour", &mut pattern.peak_hour, 14.0);
    fill("weekend", &mut pattern.weekend, 1.0);
    provenance.fill(
        &format!("{PATH}.starts"),
        &mut pattern.starts,
        Source::Default,
        Day::Monday,
    );
    let blame = Blame { origin, provenance };
    let (law, of) = (pattern_law(pattern), |key: &str| format!("{PATH}.{key}"));
    for (key, value, low, high) in law.ranges() {
        if !(low..=high).contains(&value) {
            return Err(blame.error(
                &of(key),
                format!("found {}", written(value)),
                format!("allowed: {low} to {high}"),
            ));
        }
    }
    Ok(())
}

/// A filled pattern as a law.
pub(super) fn pattern_law(pattern: &RatePattern) -> Pattern {
    let number = |value: Option<Finite>, usual: f64| value.map_or(usual, |v| v.0);
    Pattern {
        peak_to_mean: number(pattern.daily_peak_to_mean, 1.0),
        peak_hour: number(pattern.peak_hour, 14.0),
        weekend: number(pattern.weekend, 1.0),
        starts: match pattern.starts {
            None | Some(Day::Monday) => Weekday::Monday,
            Some(Day::Tuesday) => Weekday::Tuesday,
            Some(Day::Wednesday) => Weekday::Wednesday,
            Some(Day::Thursday) => Weekday::Thursday,
            Some(Day::Friday) => Weekday::Friday,
            Some(Day::Saturday) => Weekday::Saturday,
            Some(Day::Sunday) => Weekday::Sunday,
        },
    }
}

fn check_open_loop(load: &Load, replay: bool, blame: &Blame<'_>) -> Result<(), InputError> {
    blame.absent("load.concurrency", load.concurrency.as_ref(), CLOSED_ONLY)?;
    blame.absent("load.think", load.think.as_ref(), CLOSED_ONLY)?;
    check_arrivals(load, replay, blame)
}

/// Checks `load.arrival` of a load that has arrivals.
pub(super) fn check_arrivals(load: &Load, replay: bool, blame: &Blame<'_>) -> Result<(), InputError> {
    let a = &load.arrival;
    blame.positive("load.arrival.rate", a.rate)?;
    blame.positive("load.arrival.burstiness", a.burstiness)?;
    blame.positive("load.arrival.time_scale", a.time_scale)?;
    let is_trace = a.process == Some(Process::Trace);
    if is_trace != replay {
        return Err(blame.error(
            "load.arrival.process",
            "arrivals and workload do not belong together",
            "process: trace replays the times of workload.trace; a synthetic workload needs poisson, gamma or \
             constant",
        ));
    }
    if a.process == Some(Process::Gamma) && a.burstiness.is_none() {
        return Err(blame.error(
            "load.arrival.burstiness",
            "it is missing",
            "gamma arrivals need their shape",
        ));
    }
    if a.process != Some(Process::Gamma) {
        blame.absent(
            "load.arrival.burstiness",
            a.burstiness.as_ref(),
            "only process: gamma has it",
        )?;
    }
    if replay {
        blame.absent(
            "load.arrival.rescale",
            a.rescale.as_ref(),
            "a replayed trace has its own times",
        )?;
        blame.absent(
            "load.arrival.pattern",
            a.pattern.as_ref(),
            "a replayed trace has its own times",
        )?;
        if a.rate.is_some() && a.time_scale.is_some() {
            return Err(blame.error(
                "load.arrival.time_scale",
                "both rate and time_scale are given",
                "each fixes the load of a replayed trace: keep one",
            ));
        }
        return Ok(());
    }
    check_drawn(load, blame)
}

fn check_drawn(load: &Load, blame: &Blame<'_>) -> Result<(), InputError> {
    let a = &load.arrival;
    blame.absent(
        "load.arrival.time_scale",
        a.time_scale.as_ref(),
        "only process: trace has it",
    )?;
    if a.rescale == Some(true) && a.pattern.is_some() {
        return Err(blame.error(
            "load.arrival.rescale",
            "times cannot both follow a pattern and be stretched to end at n / rate",
            "keep one of rescale and pattern",
        ));
    }
    if a.rate.is_none() {
        return Err(blame.error(
            "load.arrival.rate",
            "it is missing",
            "open-loop arrivals need requests a second",
        ));
    }
    Ok(())
}
