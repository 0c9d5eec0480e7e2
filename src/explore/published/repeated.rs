//! A scenario at many seeds, beside what was printed.

use rayon::prelude::*;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::calibrate::robust::quantile;
use crate::explore::study::{Study, StudyError, StudyRun};
use crate::input::InputError;
use crate::metric::tool::View;
use crate::scenario::Plan;

/// The band of the seeds that is shown.
pub const BAND: (f64, f64) = (0.05, 0.95);

/// A printed figure beside the simulated ones.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PrintedFigure {
    /// The load generator's name for it.
    pub name: String,
    /// What was printed.
    pub printed: f64,
    /// Median over the seeds.
    pub median: f64,
    /// [`BAND`] of the seeds.
    pub band: (f64, f64),
}

impl PrintedFigure {
    /// The median's distance from what was printed, as a share of it.
    pub fn relative_error(&self) -> f64 {
        self.median / self.printed - 1.0
    }

    /// The printed figure lies within the band, to the digits that were printed.
    pub fn is_inside(&self) -> bool {
        let rounding = 0.5 * 10_f64.powi(-decimals(self.printed));
        (self.band.0 - rounding..=self.band.1 + rounding).contains(&self.printed)
    }
}

/// Decimals that a number is written with.
fn decimals(x: f64) -> i32 {
    let text = x.to_string();
    text.split_once('.')
        .map_or(0, |(_, fraction)| fraction.len() as i32)
}

/// A scenario at many seeds.
#[derive(Debug)]
pub struct Repeated {
    /// The scenario.
    pub plan: Plan,
    /// Printed figures and simulated ones.
    pub figures: Vec<PrintedFigure>,
    /// The seed whose figures are nearest to the medians, and its run.
    pub typical: u64,
    /// That run.
    pub run: StudyRun,
}

/// What came of a scenario.
#[derive(Debug)]
pub enum Played {
    /// Every seed went through.
    Through(Repeated),
    /// Seeds came to a livelock, and with them the test.
    Livelocked(Livelocked),
}

/// A scenario that comes to a livelock.
#[derive(Debug)]
pub struct Livelocked {
    /// The scenario.
    pub plan: Plan,
    /// The first seed that came to one.
    pub seed: u64,
    /// Its run, up to there.
    pub run: StudyRun,
    /// How many seeds came to one.
    pub livelocked: u32,
}

impl Played {
    /// The scenario.
    pub fn plan(&self) -> &Plan {
        match self {
            Self::Through(repeated) => &repeated.plan,
            Self::Livelocked(livelocked) => &livelocked.plan,
        }
    }

    /// The run that is shown: the typical seed's, or that of the first livelock.
    pub fn run(&self) -> &StudyRun {
        match self {
            Self::Through(repeated) => &repeated.run,
            Self::Livelocked(livelocked) => &livelocked.run,
        }
    }

    /// Printed figures beside simulated ones; none of a livelock.
    pub fn figures(&self) -> &[PrintedFigure] {
        match self {
            Self::Through(repeated) => &repeated.figures,
            Self::Livelocked(_) => &[],
        }
    }
}

/// Runs a scenario at many seeds and keeps what its load generator prints, or how it came to a livelock.
///
/// # Errors
/// [`StudyError`] when it cannot be run, or its load generator prints no figure of a name.
pub(super) fn played(plan: &Plan, printed: &Map<String, Value>, seeds: u32) -> Result<Played, StudyError> {
    let view = plan.view().ok_or_else(|| {
        InputError::new(
            plan.origin(),
            "its load has no load generator whose figures are known",
        )
        .at("load.client")
        .allowed("kind: llmperf, thread-pool or vllm-bench")
    })?;
    let study = Study::of(plan.clone())?;
    let names: Vec<(&str, f64)> = printed
        .iter()
        .filter_map(|(name, value)| Some((name.as_str(), value.as_f64()?)))
        .collect();
    let one = |seed| {
        let run = study.run(seed)?;
        if !run.summary.livelocks.is_empty() {
            return Ok(None);
        }
        printed_by(view, &run, &names)
            .map(Some)
            .map_err(|name| not_printed(plan, view, name).into())
    };
    let by_seed: Vec<Option<Vec<f64>>> = (0..u64::from(seeds))
        .into_par_iter()
        .map(one)
        .collect::<Result<_, StudyError>>()?;
    if let Some(seed) = (0..)
        .zip(&by_seed)
        .find_map(|(seed, f)| f.is_none().then_some(seed))
    {
        return Ok(Played::Livelocked(Livelocked {
            run: study.run(seed)?,
            plan: plan.clone(),
            seed,
            livelocked: by_seed.iter().filter(|f| f.is_none()).count() as u32,
        }));
    }
    let by_seed: Vec<Vec<f64>> = by_seed.into_iter().flatten().collect();
    let figures: Vec<PrintedFigure> = names
        .iter()
        .enumerate()
        .map(|(index, &(name, printed))| {
            let mut values: Vec<f64> = by_seed.iter().map(|figures| figures[index]).collect();
            values.sort_by(f64::total_cmp);
            let at = |q| quantile(&values, q).unwrap_or(f64::NAN);
            PrintedFigure {
                name: name.to_owned(),
                printed,
                median: at(0.5),
                band: (at(BAND.0), at(BAND.1)),
            }
        })
        .collect();
    let typical = nearest_to_medians(&by_seed, &figures);
    Ok(Played::Through(Repeated {
        run: study.run(typical)?,
        plan: plan.clone(),
        figures,
        typical,
    }))
}

/// As [`played`], for a scenario that says nothing where it comes to a livelock.
///
/// # Errors
/// As [`played`], and [`InputError`] for a livelock.
pub(super) fn repeated(
    plan: &Plan,
    printed: &Map<String, Value>,
    seeds: u32,
) -> Result<Repeated, StudyError> {
    match played(plan, printed, seeds)? {
        Played::Through(repeated) => Ok(repeated),
        Played::Livelocked(l) => Err(InputError::new(
            plan.origin(),
            format!(
                "comes to a livelock at {} of {seeds} seeds, the first of them {}, so that it prints nothing to compare",
                l.livelocked, l.seed
            ),
        )
        .at("system.engine")
        .allowed("give it more KV blocks, or play the livelock through as a hypothesis of a study that does not come to one")
        .into()),
    }
}

fn not_printed(plan: &Plan, view: View, name: &str) -> InputError {
    InputError::new(
        plan.origin(),
        format!("{} prints no '{name}' of this run", view.name()),
    )
    .at("printed")
    .allowed("a figure that the load generator prints, under its own name")
}

/// What the load generator prints of a run, by these names; the name that it does not print, otherwise.
fn printed_by<'n>(view: View, run: &StudyRun, names: &[(&'n str, f64)]) -> Result<Vec<f64>, &'n str> {
    let all = view.figures(&run.record);
    let find = |name: &str| all.iter().find(|f| f.name == name).and_then(|f| f.value);
    names.iter().map(|&(name, _)| find(name).ok_or(name)).collect()
}

/// The seed whose figures are, taken together, nearest to the medians.
fn nearest_to_medians(by_seed: &[Vec<f64>], figures: &[PrintedFigure]) -> u64 {
    let distance = |values: &[f64]| -> f64 {
        let pairs = values.iter().zip(figures);
        pairs
            .map(|(value, figure)| (value / figure.median).ln().abs())
            .sum()
    };
    let distances = by_seed.iter().map(|values| distance(values));
    (0..)
        .zip(distances)
        .min_by(|a: &(u64, f64), b| a.1.total_cmp(&b.1))
        .map_or(0, |(seed, _)| seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_figure_is_inside_to_its_last_digit() {
        let figure = |printed, low, high| PrintedFigure {
            name: String::new(),
            printed,
            median: 1.0,
            band: (low, high),
        };
        assert!(figure(0.0532, 0.05323, 0.05324).is_inside());
        assert!(!figure(0.0532, 0.05326, 0.0534).is_inside());
        assert!(figure(3.0, 2.0, 2.6).is_inside());
        assert!(!figure(3.0, 2.0, 2.4).is_inside());
    }
}
