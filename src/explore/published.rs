//! A published load test as an experiment: what it printed beside what a simulation of it prints, seed by seed, and
//! what it could not show.

mod price;
mod repeated;
mod study_file;

use std::path::{Component, Path, PathBuf};

use rayon::prelude::*;
use serde_json::{Map, Value};

pub use price::Price;
use price::price;
pub use repeated::{BAND, Livelocked, Played, PrintedFigure, Repeated};
use repeated::{played, repeated};
pub use study_file::{CapacitySpec, HypothesisSpec, ScriptSpec, StudyFile, SweepSpec};

use super::grid::combinations;
use super::study::{Study, StudyError};
use super::sweep::{Configuration, run_sweep};
use crate::input::InputError;
use crate::metric::scrape::check_number;
use crate::scenario::{Override, Plan};
use crate::sim::HostTimes;
use crate::steptime::BatchShape;

/// What one step of the test takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepSeconds {
    /// A prompt of the mean length.
    pub prompt_s: f64,
    /// One token for every seat, in the middle of the mean answer.
    pub decode_s: f64,
}

/// The second load generator with another number of workers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkerPoint {
    /// Workers.
    pub workers: u32,
    /// What it prints as tokens a second, and what really came through in words a second.
    pub printed_per_s: f64,
    /// Words of all answers over the wall clock.
    pub words_per_s: f64,
}

/// An explanation played through.
#[derive(Debug)]
pub struct Hypothesis {
    /// What it says and how it differs.
    pub spec: HypothesisSpec,
    /// What came of it.
    pub outcome: Played,
}

/// Everything that a notebook of a published test shows.
#[derive(Debug)]
pub struct Explained {
    /// What was asked.
    pub file: StudyFile,
    /// What the test's part of its machine costs.
    pub price: Option<Price>,
    /// The test.
    pub test: Repeated,
    /// What its steps take.
    pub steps: StepSeconds,
    /// Explanations.
    pub hypotheses: Vec<Hypothesis>,
    /// The second load generator.
    pub script: Option<Repeated>,
    /// The same with other numbers of workers, one seed each.
    pub workers: Vec<WorkerPoint>,
    /// What was varied, in the order of the file.
    pub sweeps: Vec<Vec<Configuration>>,
    /// The capacity search.
    pub capacity: Option<(Plan, Vec<Configuration>)>,
}

/// Plays a study, whose file is at `study`, through. `done` is called after each of its [`parts`].
///
/// # Errors
/// [`StudyError`] when a scenario cannot be run, its load generator prints no figure of a name in the study, or the
/// instance is not the scenario's. A hypothesis that comes to a livelock is a finding, not an error.
pub fn explain(file: StudyFile, study: &Path, done: impl Fn()) -> Result<Explained, StudyError> {
    let base = study.parent().unwrap_or(Path::new(""));
    let plan = Plan::load(&beside(base, &file.scenario), &[])?;
    let price = price(&file, study, &plan)?;
    let test = repeated(&plan, &file.printed, file.seeds)?;
    check_number(test.run.record.end, file.scrape_interval.0)
        .map_err(|e| InputError::new(&file.title, e.to_string()).at("scrape_interval"))?;
    done();
    let mut hypotheses = Vec::new();
    for spec in &file.hypotheses {
        let plan = plan.with(&overrides(&spec.set))?;
        hypotheses.push(Hypothesis {
            spec: spec.clone(),
            outcome: played(&plan, &file.printed, file.seeds)?,
        });
        done();
    }
    let script = match &file.script {
        Some(script) => {
            let plan = Plan::load(&beside(base, &script.scenario), &[])?;
            Some(repeated(&plan, &script.printed, file.seeds)?)
        }
        None => None,
    };
    let workers = script.as_ref().map(|s| by_workers(&s.plan)).transpose()?;
    done();
    let mut sweeps = Vec::new();
    for spec in &file.sweeps {
        let mut set = overrides(&spec.set);
        set.push(axes(&spec.axes));
        sweeps.push(sweep(&plan.with(&set)?)?);
        done();
    }
    let capacity = match &file.capacity {
        Some(spec) => {
            let plan = capacity_plan(&plan, spec)?;
            let found = sweep(&plan)?;
            Some((plan, found))
        }
        None => None,
    };
    done();
    Ok(Explained {
        steps: step_seconds(&test)?,
        file,
        price,
        test,
        hypotheses,
        script,
        workers: workers.unwrap_or_default(),
        sweeps,
        capacity,
    })
}

/// Durations of the steps that a test is made of.
fn step_seconds(test: &Repeated) -> Result<StepSeconds, InputError> {
    let machine = test.plan.machine()?;
    let counted = test.run.record.requests.len().max(1) as f64;
    let mean = |of: fn(&crate::record::RequestRecord) -> u32| {
        let sum: f64 = test.run.record.requests.iter().map(|r| f64::from(of(r))).sum();
        (sum / counted).round().max(1.0) as u32
    };
    let (input, output) = (mean(|r| r.input_tokens), mean(|r| r.output_tokens));
    let mut prompt = BatchShape::default();
    prompt.add_prefill(input, 0);
    let mut decode = BatchShape::default();
    for _ in 0..test.plan.world(HostTimes::default()).engine.max_num_seqs {
        decode.add_decode(1, input + output / 2);
    }
    let seconds = |batch: &BatchShape| machine.step_time.duration(batch).as_secs_f64();
    Ok(StepSeconds {
        prompt_s: seconds(&prompt),
        decode_s: seconds(&decode),
    })
}

/// A script's speed and the server's, by the number of workers.
fn by_workers(plan: &Plan) -> Result<Vec<WorkerPoint>, StudyError> {
    const WORKERS: [u32; 7] = [1, 2, 3, 4, 5, 8, 12];
    let point = |workers: u32| {
        let plan = plan.with(&[Override::new("load.concurrency", workers)])?;
        let view = plan.view();
        let run = Study::of(plan)?.run(0)?;
        let figures = view.map_or(Vec::new(), |v| v.figures(&run.record));
        let of = |name: &str| figures.iter().find(|f| f.name == name).and_then(|f| f.value);
        let rate = of("words_per_response").zip(of("requests_per_second"));
        Ok(WorkerPoint {
            workers,
            printed_per_s: of("tokens_per_second").unwrap_or(0.0),
            words_per_s: rate.map_or(0.0, |(words, rate)| words * rate),
        })
    };
    WORKERS.into_par_iter().map(point).collect()
}

/// How often [`explain`] says that a part is done.
pub fn parts(file: &StudyFile) -> u64 {
    (3 + file.hypotheses.len() + file.sweeps.len()) as u64
}

/// A path relative to a folder, without steps down and up again.
fn beside(base: &Path, path: &str) -> PathBuf {
    let mut found = PathBuf::new();
    for part in base.join(path).components() {
        let down = matches!(found.components().next_back(), Some(Component::Normal(_)));
        if part == Component::ParentDir && down {
            found.pop();
        } else {
            found.push(part);
        }
    }
    found
}

fn overrides(set: &Map<String, Value>) -> Vec<Override> {
    set.iter()
        .map(|(path, value)| Override::new(path, value.clone()))
        .collect()
}

fn axes(axes: &Map<String, Value>) -> Override {
    Override::new("sweep.axes", Value::Object(axes.clone()))
}

fn sweep(plan: &Plan) -> Result<Vec<Configuration>, StudyError> {
    let settings = combinations(plan.axes()).ok_or_else(|| {
        InputError::new(plan.origin(), "asks for too many configurations")
            .at("sweep.axes")
            .allowed("fewer axes or fewer values")
    })?;
    run_sweep(plan, None, &settings, |_, _| Ok(()))
}

/// The scenario under open arrivals, searched for its capacity.
fn capacity_plan(plan: &Plan, spec: &CapacitySpec) -> Result<Plan, InputError> {
    let mut set = overrides(&spec.set);
    let [low, high] = spec.rate.map(|r| r.0);
    set.extend([
        Override::new(
            "load",
            serde_json::json!({"model": "open-loop", "arrival": {"process": "poisson", "rate": low}}),
        ),
        Override::new("workload.synthetic.num_requests", spec.num_requests),
        Override::new("sweep.search.capacity", serde_json::json!({"rate": [low, high]})),
        axes(&spec.axes),
    ]);
    plan.with(&set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_go_down_and_up_no_more_than_they_must() {
        assert_eq!(beside(Path::new("a/b"), "../c.yaml"), Path::new("a/c.yaml"));
        assert_eq!(beside(Path::new(""), "../c.yaml"), Path::new("../c.yaml"));
        assert_eq!(beside(Path::new("/a"), "../../c.yaml"), Path::new("/../c.yaml"));
    }
}
