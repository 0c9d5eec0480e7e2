//! `workload` and `load`: from what is written to what is drawn or replayed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::check::Blame;
use super::provenance::{Provenance, Source};
use super::quantity::Span;
use super::schema::{Law, Lengths, Load, LoadKind, Process, Scenario, Synthetic, Workload};
use crate::input::InputError;
use crate::sim::LoadModel;
use crate::units::{SimDuration, SimTime};
use crate::workload::arrival::{ArrivalLaw, Gaps, Until};
use crate::workload::formats::csv;
use crate::workload::lengths::LengthLaw;
use crate::workload::synth::{DraftLaw, LengthSource, Mix, PrefixLaw, RequestLaw, SynthSpec};
use crate::workload::trace::Trace;

/// Files read for a plan, kept so that the plans of a sweep share them.
#[derive(Debug, Clone, Default)]
pub struct Files {
    traces: BTreeMap<PathBuf, Arc<Trace>>,
    rows: BTreeMap<PathBuf, Arc<[(u32, u32)]>>,
}

/// Where the requests come from.
#[derive(Debug, Clone)]
pub enum WorkSource {
    /// Rows of a file, arrivals times `time_scale`.
    Replay {
        /// The file.
        path: PathBuf,
        /// The rows.
        trace: Arc<Trace>,
        /// Factor on arrival times.
        time_scale: f64,
    },
    /// Drawn by seed and replication.
    Draw(SynthSpec),
}

impl Files {
    fn trace(&mut self, path: &Path) -> Result<Arc<Trace>, InputError> {
        if let Some(found) = self.traces.get(path) {
            return Ok(found.clone());
        }
        let trace = Arc::new(csv::read_trace(path)?);
        self.traces.insert(path.to_owned(), trace.clone());
        Ok(trace)
    }

    fn rows(&mut self, path: &Path) -> Result<Arc<[(u32, u32)]>, InputError> {
        if let Some(found) = self.rows.get(path) {
            return Ok(found.clone());
        }
        let rows: Arc<[(u32, u32)]> = csv::read_length_rows(path)?.into();
        self.rows.insert(path.to_owned(), rows.clone());
        Ok(rows)
    }
}

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
    let load = &mut scenario.load;
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
            blame.at_least_one("load.concurrency", load.concurrency)?;
            let Some(concurrency) = load.concurrency else {
                return Err(blame.error(
                    "load.concurrency",
                    "it is missing",
                    "a closed-loop load needs the number of its clients",
                ));
            };
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

const CLOSED_ONLY: &str = "it belongs to load.model closed-loop: leave it out";
const OPEN_ONLY: &str = "arrivals belong to load.model open-loop: leave them out (--set load.arrival=null)";

fn no_arrivals(load: &Load, blame: &Blame<'_>) -> Result<(), InputError> {
    let a = &load.arrival;
    blame.absent("load.arrival.process", a.process.as_ref(), OPEN_ONLY)?;
    blame.absent("load.arrival.rate", a.rate.as_ref(), OPEN_ONLY)?;
    blame.absent("load.arrival.burstiness", a.burstiness.as_ref(), OPEN_ONLY)?;
    blame.absent("load.arrival.rescale", a.rescale.as_ref(), OPEN_ONLY)?;
    blame.absent("load.arrival.time_scale", a.time_scale.as_ref(), OPEN_ONLY)
}

fn check_open_loop(load: &Load, replay: bool, blame: &Blame<'_>) -> Result<(), InputError> {
    let a = &load.arrival;
    blame.absent("load.concurrency", load.concurrency.as_ref(), CLOSED_ONLY)?;
    blame.absent("load.think", load.think.as_ref(), CLOSED_ONLY)?;
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
        if a.rate.is_some() && a.time_scale.is_some() {
            return Err(blame.error(
                "load.arrival.time_scale",
                "both rate and time_scale are given",
                "each fixes the load of a replayed trace: keep one",
            ));
        }
        return Ok(());
    }
    blame.absent(
        "load.arrival.time_scale",
        a.time_scale.as_ref(),
        "only process: trace has it",
    )?;
    if a.rate.is_none() {
        return Err(blame.error(
            "load.arrival.rate",
            "it is missing",
            "open-loop arrivals need requests a second",
        ));
    }
    Ok(())
}

/// Checks `workload` and reads its files.
///
/// # Errors
/// [`InputError`] for laws that are none, files that cannot be used, or no request at all.
pub fn resolve_workload(
    scenario: &mut Scenario,
    provenance: &mut Provenance,
    origin: &str,
    base: &Path,
    files: &mut Files,
) -> Result<WorkSource, InputError> {
    let blame = Blame { origin, provenance };
    match &scenario.workload {
        Workload::Trace(name) => {
            let path = base.join(name);
            let trace = files.trace(&path)?;
            let time_scale = time_scale(&scenario.load, &trace, &blame)?;
            Ok(WorkSource::Replay {
                path,
                trace,
                time_scale,
            })
        }
        Workload::Synthetic(s) => draw_spec(s, scenario, &blame, base, files).map(WorkSource::Draw),
    }
}

/// The mean rate of n rows is n over the time of the last arrival.
fn time_scale(load: &Load, trace: &Trace, blame: &Blame<'_>) -> Result<f64, InputError> {
    let Some(rate) = load.arrival.rate else {
        return Ok(load.arrival.time_scale.map_or(1.0, |f| f.0));
    };
    let last = trace.requests.last().map_or(0.0, |r| r.arrival.as_secs_f64());
    if last <= 0.0 {
        return Err(blame.error(
            "load.arrival.rate",
            "all rows of the trace arrive at time 0",
            "such a trace has no time axis to stretch: leave the rate out",
        ));
    }
    Ok(trace.requests.len() as f64 / last / rate.0)
}

fn draw_spec(
    s: &Synthetic,
    scenario: &Scenario,
    blame: &Blame<'_>,
    base: &Path,
    files: &mut Files,
) -> Result<SynthSpec, InputError> {
    let a = &scenario.load.arrival;
    let gaps = match (a.process, a.burstiness) {
        (Some(Process::Constant), _) => Gaps::Constant,
        (Some(Process::Gamma), Some(shape)) => Gaps::Gamma(shape.0),
        _ => Gaps::Poisson,
    };
    let arrivals = match (scenario.load.model, a.rate) {
        (LoadKind::OpenLoop, Some(rate)) => Some(ArrivalLaw {
            gaps,
            rate: rate.0,
            rescale: a.rescale.unwrap_or(false),
            pattern: None,
        }),
        _ => None,
    };
    let drafts = draft_law(s, scenario, blame)?;
    Ok(SynthSpec {
        arrivals,
        until: until(s, scenario, blame)?,
        mix: Mix::One(RequestLaw {
            lengths: length_source(&s.lengths, blame, base, files)?,
            prefix: prefix_law(s, blame)?,
            priorities: priorities(s, scenario, blame)?,
            drafts,
        }),
    })
}

fn until(s: &Synthetic, scenario: &Scenario, blame: &Blame<'_>) -> Result<Until, InputError> {
    const PATH: &str = "workload.synthetic.num_requests";
    blame.at_least_one(PATH, s.num_requests)?;
    let m = &scenario.measure;
    if s.num_requests.is_none() && scenario.load.arrival.rescale == Some(true) {
        let path = "load.arrival.rescale";
        return Err(blame.error(
            path,
            "there is no number of requests to end at n / rate",
            "give num_requests",
        ));
    }
    match (s.num_requests, m.window, scenario.load.model) {
        (Some(n), _, _) => Ok(Until::Count(n)),
        (None, Some(window), LoadKind::OpenLoop) => {
            let warmup = m.warmup.map_or(SimDuration::ZERO, |w| w.0);
            Ok(Until::Time(SimTime::ZERO + warmup + window.0))
        }
        (None, _, LoadKind::OpenLoop) => {
            Err(blame.error(PATH, "it is missing", "give it, or the period measure.window"))
        }
        (None, ..) => Err(blame.error(PATH, "it is missing", "a load without arrivals needs it")),
    }
}

fn length_source(
    lengths: &Lengths,
    blame: &Blame<'_>,
    base: &Path,
    files: &mut Files,
) -> Result<LengthSource, InputError> {
    const PATH: &str = "workload.synthetic.lengths";
    match lengths {
        Lengths::Fixed(f) => {
            blame.at_least_one(&format!("{PATH}.fixed.input"), Some(f.input))?;
            blame.at_least_one(&format!("{PATH}.fixed.output"), Some(f.output))?;
            blame.count(&format!("{PATH}.fixed.input"), Some(f.input))?;
            blame.count(&format!("{PATH}.fixed.output"), Some(f.output))?;
            Ok(LengthSource::Fixed {
                input: f.input,
                output: f.output,
            })
        }
        Lengths::Independent(i) => Ok(LengthSource::Independent {
            input: law(&i.input, &format!("{PATH}.independent.input"), blame)?,
            output: law(&i.output, &format!("{PATH}.independent.output"), blame)?,
        }),
        Lengths::Rows(name) => Ok(LengthSource::Rows(files.rows(&base.join(name))?)),
    }
}

fn law(law: &Law, path: &str, blame: &Blame<'_>) -> Result<LengthLaw, InputError> {
    let law = match law {
        Law::Constant(n) => LengthLaw::Constant(*n),
        Law::Uniform(u) => LengthLaw::Uniform {
            min: u.min,
            max: u.max,
        },
        Law::Normal(n) => LengthLaw::Normal {
            mean: n.mean.0,
            std: n.std.0,
            min: n.min,
            max: n.max,
        },
        Law::Lognormal(l) => LengthLaw::Lognormal {
            median: l.median.0,
            sigma: l.sigma.0,
            min: l.min,
            max: l.max,
        },
    };
    law.check().map_err(|e| {
        blame.error(
            path,
            e.to_string(),
            "parameters must be above 0, and 1 <= min <= max <= 1073741824",
        )
    })?;
    Ok(law)
}

fn prefix_law(s: &Synthetic, blame: &Blame<'_>) -> Result<Option<PrefixLaw>, InputError> {
    let Some(p) = &s.prefix else { return Ok(None) };
    blame.at_least_one("workload.synthetic.prefix.groups", Some(p.groups))?;
    blame.at_least_one("workload.synthetic.prefix.tokens", Some(p.tokens))?;
    blame.share("workload.synthetic.prefix.share", Some(p.share))?;
    Ok(Some(PrefixLaw {
        groups: p.groups,
        tokens: p.tokens,
        share: p.share.0,
    }))
}

fn priorities(s: &Synthetic, scenario: &Scenario, blame: &Blame<'_>) -> Result<Vec<(i32, f64)>, InputError> {
    use crate::engine::vllm::Policy;
    const PATH: &str = "workload.synthetic.priorities";
    let Some(classes) = &s.priorities else {
        return Ok(Vec::new());
    };
    for (i, class) in classes.iter().enumerate() {
        blame.share(&format!("{PATH}.{i}.share"), Some(class.share))?;
    }
    let sum: f64 = classes.iter().map(|c| c.share.0).sum();
    if (sum - 1.0).abs() > 1e-9 {
        return Err(blame.error(PATH, format!("the shares sum to {sum}"), "they must sum to 1"));
    }
    if scenario.system.engine.scheduling_policy == Some(Policy::Fcfs) {
        let why = "under scheduling_policy fcfs priorities do nothing: set it to priority, or leave them out";
        return Err(blame.error(PATH, "this key has no effect here", why));
    }
    Ok(classes.iter().map(|c| (c.priority, c.share.0)).collect())
}

fn draft_law(s: &Synthetic, scenario: &Scenario, blame: &Blame<'_>) -> Result<Option<DraftLaw>, InputError> {
    const PATH: &str = "workload.synthetic.draft_acceptance";
    blame.share(PATH, s.draft_acceptance)?;
    let drafts = scenario.system.engine.num_speculative_tokens.unwrap_or(0);
    match (drafts, s.draft_acceptance) {
        (0, None) => Ok(None),
        (0, Some(_)) => Err(blame.error(
            PATH,
            "this key has no effect here",
            "system.engine.num_speculative_tokens is 0: set it, or leave this out",
        )),
        (_, None) => Err(blame.error(
            PATH,
            "it is missing",
            "speculation needs the share of accepted drafts",
        )),
        (k, Some(p)) => Ok(Some(DraftLaw {
            drafts: k.min(255) as u8,
            acceptance: p.0,
        })),
    }
}
