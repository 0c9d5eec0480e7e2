//! `workload.synthetic`: from what is written to what is drawn.

use std::path::Path;

use super::check::Blame;
use super::load::pattern_law;
use super::quantity::Finite;
use super::schema::{
    FairnessWord, Law, Lengths, LoadKind, PrefixGroups, PriorityClass, Process, RequestClass, Rounding,
    Scenario, Synthetic,
};
use super::work::Files;
use crate::engine::vllm::Policy;
use crate::input::InputError;
use crate::units::{SimDuration, SimTime};
use crate::workload::arrival::{ArrivalLaw, Gaps, Until};
use crate::workload::lengths::LengthLaw;
use crate::workload::synth::{self as class, DraftLaw, LengthSource, Mix, PrefixLaw, RequestLaw, SynthSpec};

/// Checks `workload.synthetic`, and gives what is drawn.
///
/// # Errors
/// [`InputError`] for laws that are none, files that cannot be used, or no request at all.
pub fn draw_spec(
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
        (LoadKind::OpenLoop | LoadKind::ClosedLoop, Some(rate)) => Some(ArrivalLaw {
            gaps,
            rate: rate.0,
            rescale: a.rescale.unwrap_or(false),
            pattern: a.pattern.as_ref().map(pattern_law),
        }),
        _ => None,
    };
    Ok(SynthSpec {
        arrivals,
        until: until(s, scenario, blame)?,
        mix: mix(s, scenario, blame, base, files)?,
    })
}

const PATH: &str = "workload.synthetic";
/// More classes than this are a slip of the hand.
const MAX_CLASSES: usize = 1000;

/// One law for all requests, or one for each class.
fn mix(
    s: &Synthetic,
    scenario: &Scenario,
    blame: &Blame<'_>,
    base: &Path,
    files: &mut Files,
) -> Result<Mix, InputError> {
    let Some(classes) = &s.classes else {
        let Some(lengths) = &s.lengths else {
            return Err(blame.error(
                &format!("{PATH}.lengths"),
                "it is missing",
                "give the lengths of all requests, or classes with lengths of their own",
            ));
        };
        let keys = Keys {
            path: PATH.to_owned(),
            lengths,
            prefix: s.prefix.as_ref(),
            priorities: s.priorities.as_deref(),
            draft_acceptance: s.draft_acceptance,
        };
        return Ok(Mix::One(keys.law(scenario, blame, base, files)?));
    };
    const MOVE: &str = "classes have their own: move it into each of them";
    blame.absent(&format!("{PATH}.lengths"), s.lengths.as_ref(), MOVE)?;
    blame.absent(&format!("{PATH}.prefix"), s.prefix.as_ref(), MOVE)?;
    blame.absent(&format!("{PATH}.priorities"), s.priorities.as_ref(), MOVE)?;
    blame.absent(
        &format!("{PATH}.draft_acceptance"),
        s.draft_acceptance.as_ref(),
        MOVE,
    )?;
    check_classes(classes, scenario, blame)?;
    let mut out = Vec::new();
    for (i, class) in classes.iter().enumerate() {
        let keys = Keys {
            path: format!("{PATH}.classes.{i}"),
            lengths: &class.lengths,
            prefix: class.prefix.as_ref(),
            priorities: class.priorities.as_deref(),
            draft_acceptance: class.draft_acceptance,
        };
        out.push(class::RequestClass {
            name: class.name.clone(),
            share: class.share.0,
            requests: keys.law(scenario, blame, base, files)?,
        });
    }
    Ok(Mix::Classes(out))
}

/// Names that differ, shares that sum to 1, no rescaling of several processes.
fn check_classes(classes: &[RequestClass], scenario: &Scenario, blame: &Blame<'_>) -> Result<(), InputError> {
    let path = format!("{PATH}.classes");
    if classes.is_empty() || classes.len() > MAX_CLASSES {
        let found = format!("found {} classes", classes.len());
        return Err(blame.error(&path, found, format!("allowed: 1 to {MAX_CLASSES}")));
    }
    for (i, class) in classes.iter().enumerate() {
        if class.name.is_empty() || classes[..i].iter().any(|other| other.name == class.name) {
            let found = format!("found the name '{}'", class.name);
            return Err(blame.error(
                &format!("{path}.{i}.name"),
                found,
                "each class needs a name of its own",
            ));
        }
        let share = format!("{path}.{i}.share");
        blame.share(&share, Some(class.share))?;
        blame.positive(&share, Some(class.share))?;
    }
    let sum: f64 = classes.iter().map(|c| c.share.0).sum();
    if (sum - 1.0).abs() > 1e-9 {
        return Err(blame.error(&path, format!("the shares sum to {sum}"), "they must sum to 1"));
    }
    let groups = classes
        .iter()
        .filter_map(|c| c.prefix.as_ref())
        .map(|p| u64::from(p.groups));
    let groups: u64 = groups.sum();
    if groups > u64::from(u32::MAX) {
        let found = format!("the classes have {groups} prefix groups in all");
        return Err(blame.error(&path, found, format!("allowed: up to {}", u32::MAX)));
    }
    if scenario.load.arrival.rescale == Some(true) {
        return Err(blame.error(
            "load.arrival.rescale",
            "each class has arrivals of its own, which are not stretched",
            "leave rescale or the classes out",
        ));
    }
    Ok(())
}

/// What says how requests are, of the whole workload or of one class.
struct Keys<'a> {
    path: String,
    lengths: &'a Lengths,
    prefix: Option<&'a PrefixGroups>,
    priorities: Option<&'a [PriorityClass]>,
    draft_acceptance: Option<Finite>,
}

impl Keys<'_> {
    fn law(
        &self,
        scenario: &Scenario,
        blame: &Blame<'_>,
        base: &Path,
        files: &mut Files,
    ) -> Result<RequestLaw, InputError> {
        Ok(RequestLaw {
            drafts: self.draft_law(scenario, blame)?,
            lengths: self.length_source(blame, base, files)?,
            prefix: self.prefix_law(blame)?,
            priorities: self.priorities(scenario, blame)?,
        })
    }

    fn at(&self, key: &str) -> String {
        format!("{}.{key}", self.path)
    }

    fn length_source(
        &self,
        blame: &Blame<'_>,
        base: &Path,
        files: &mut Files,
    ) -> Result<LengthSource, InputError> {
        let path = self.at("lengths");
        match self.lengths {
            Lengths::Fixed(f) => {
                blame.at_least_one(&format!("{path}.fixed.input"), Some(f.input))?;
                blame.at_least_one(&format!("{path}.fixed.output"), Some(f.output))?;
                blame.count(&format!("{path}.fixed.input"), Some(f.input))?;
                blame.count(&format!("{path}.fixed.output"), Some(f.output))?;
                Ok(LengthSource::Fixed {
                    input: f.input,
                    output: f.output,
                })
            }
            Lengths::Independent(i) => Ok(LengthSource::Independent {
                input: law(&i.input, &format!("{path}.independent.input"), blame)?,
                output: law(&i.output, &format!("{path}.independent.output"), blame)?,
            }),
            Lengths::Rows(name) => Ok(LengthSource::Rows(files.rows(&base.join(name))?)),
        }
    }

    fn prefix_law(&self, blame: &Blame<'_>) -> Result<Option<PrefixLaw>, InputError> {
        let Some(p) = self.prefix else { return Ok(None) };
        blame.at_least_one(&self.at("prefix.groups"), Some(p.groups))?;
        blame.at_least_one(&self.at("prefix.tokens"), Some(p.tokens))?;
        blame.share(&self.at("prefix.share"), Some(p.share))?;
        Ok(Some(PrefixLaw {
            groups: p.groups,
            tokens: p.tokens,
            share: p.share.0,
        }))
    }

    fn priorities(&self, scenario: &Scenario, blame: &Blame<'_>) -> Result<Vec<(i32, f64)>, InputError> {
        let path = self.at("priorities");
        let Some(classes) = self.priorities else {
            return Ok(Vec::new());
        };
        for (i, class) in classes.iter().enumerate() {
            blame.share(&format!("{path}.{i}.share"), Some(class.share))?;
        }
        let sum: f64 = classes.iter().map(|c| c.share.0).sum();
        if (sum - 1.0).abs() > 1e-9 {
            return Err(blame.error(&path, format!("the shares sum to {sum}"), "they must sum to 1"));
        }
        let gateway = scenario
            .cluster
            .gateway
            .as_ref()
            .and_then(|g| g.fairness.as_ref());
        let is_gateways = gateway.is_some_and(|f| f.policy == Some(FairnessWord::Priority));
        if scenario.system.engine.scheduling_policy == Some(Policy::Fcfs) && !is_gateways {
            let why = "under scheduling_policy fcfs priorities do nothing: set it, or cluster.gateway.fairness.policy, to priority, \
                       or leave them out";
            return Err(blame.error(&path, "this key has no effect here", why));
        }
        Ok(classes.iter().map(|c| (c.priority, c.share.0)).collect())
    }

    fn draft_law(&self, scenario: &Scenario, blame: &Blame<'_>) -> Result<Option<DraftLaw>, InputError> {
        let path = self.at("draft_acceptance");
        blame.share(&path, self.draft_acceptance)?;
        let drafts = scenario.system.engine.num_speculative_tokens.unwrap_or(0);
        match (drafts, self.draft_acceptance) {
            (0, None) => Ok(None),
            (0, Some(_)) => Err(blame.error(
                &path,
                "this key has no effect here",
                "system.engine.num_speculative_tokens is 0: set it, or leave this out",
            )),
            (_, None) => Err(blame.error(
                &path,
                "it is missing",
                "speculation needs the share of accepted drafts",
            )),
            (k, Some(p)) => Ok(Some(DraftLaw {
                drafts: k.min(255) as u8,
                acceptance: p.0,
            })),
        }
    }
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

fn law(law: &Law, path: &str, blame: &Blame<'_>) -> Result<LengthLaw, InputError> {
    let law = match law {
        Law::Constant(n) => LengthLaw::Constant(*n),
        Law::Uniform(u) => LengthLaw::Uniform {
            min: u.min,
            max: u.max,
        },
        Law::Normal(n) if n.rounding == Some(Rounding::Down) => LengthLaw::NormalRoundedDown {
            mean: n.mean.0,
            std: n.std.0,
            min: n.min,
            max: n.max,
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
