//! A published load test as an experiment: what it printed beside what a simulation of it prints, seed by seed, and
//! what it could not show.

use std::path::{Component, Path, PathBuf};

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::grid::combinations;
use super::study::{Study, StudyError, StudyRun};
use super::sweep::{Configuration, run_sweep};
use crate::calibrate::robust::quantile;
use crate::input::{InputError, read_text};
use crate::metric::scrape::check_number;
use crate::metric::tool::View;
use crate::scenario::SHORTEST_SCRAPE;
use crate::scenario::quantity::{Finite, Span};
use crate::scenario::{Override, Plan};
use crate::sim::HostTimes;
use crate::steptime::BatchShape;
use crate::yaml;

/// Most seeds of a study: enough for any band, few enough to end.
const MOST_SEEDS: u32 = 10_000;
/// The band of the seeds that is shown.
pub const BAND: (f64, f64) = (0.05, 0.95);

/// A study file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StudyFile {
    /// Format version; 1.
    pub kneeboard_study: u32,
    /// Heading of the notebook.
    pub title: String,
    /// Where the printed figures come from.
    pub source: String,
    /// The scenario of the test, relative to this file.
    pub scenario: String,
    /// Instance profile that names the price.
    pub instance: Option<String>,
    /// How many seeds the figures are shown over.
    pub seeds: u32,
    /// The constants of the scenario that were fitted to the printed figures, in words.
    #[serde(default)]
    pub fitted: Vec<String>,
    /// What the load generator printed, under its own names.
    pub printed: Map<String, Value>,
    /// The same of another run of the same test.
    #[serde(default)]
    pub printed_again: Map<String, Value>,
    /// Explanations that are played through side by side.
    #[serde(default)]
    pub hypotheses: Vec<HypothesisSpec>,
    /// How often a dashboard would have scraped the server's gauges.
    pub scrape_interval: Span,
    /// A second load generator on the same server.
    pub script: Option<ScriptSpec>,
    /// What the test did not vary.
    #[serde(default)]
    pub sweeps: Vec<SweepSpec>,
    /// A search for the highest load at the scenario's SLO.
    pub capacity: Option<CapacitySpec>,
}

/// An explanation to be played through.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HypothesisSpec {
    /// Its name.
    pub name: String,
    /// What it says.
    pub says: String,
    /// How the scenario differs under it: dotted paths and values.
    #[serde(default)]
    pub set: Map<String, Value>,
}

/// A second load generator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScriptSpec {
    /// Its scenario, relative to the study file.
    pub scenario: String,
    /// What it printed.
    pub printed: Map<String, Value>,
}

/// Something that is varied at the test's own load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SweepSpec {
    /// What it shows.
    pub title: String,
    /// Dotted paths and the values they take.
    pub axes: Map<String, Value>,
    /// What else differs from the scenario.
    #[serde(default)]
    pub set: Map<String, Value>,
}

/// A capacity search over configurations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CapacitySpec {
    /// Dotted paths and the values they take.
    pub axes: Map<String, Value>,
    /// Lowest and highest rate, requests a second.
    pub rate: [Finite; 2],
    /// Requests of each run.
    pub num_requests: u32,
    /// What else differs from the scenario.
    #[serde(default)]
    pub set: Map<String, Value>,
}

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
    pub outcome: Repeated,
}

/// Everything that a notebook of a published test shows.
#[derive(Debug)]
pub struct Explained {
    /// What was asked.
    pub file: StudyFile,
    /// Folder that the file's paths start from.
    pub base: PathBuf,
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

impl StudyFile {
    /// Reads and checks a study file.
    ///
    /// # Errors
    /// [`InputError`] for what it does not hold.
    pub fn read(path: &Path) -> Result<Self, InputError> {
        let file: Self = yaml::parse(&read_text(path)?, &path.display().to_string())?;
        let wrong = |place: &str, found: String, allowed: &str| {
            Err(InputError::in_file(path, found).at(place).allowed(allowed))
        };
        if file.kneeboard_study != 1 {
            let found = format!("found version {}", file.kneeboard_study);
            return wrong("kneeboard_study", found, "allowed: 1");
        }
        if file.seeds == 0 || file.seeds > MOST_SEEDS {
            let found = format!("found {}", file.seeds);
            return wrong("seeds", found, &format!("allowed: 1 to {MOST_SEEDS}"));
        }
        if file.scrape_interval < SHORTEST_SCRAPE {
            let found = format!("found {}", file.scrape_interval);
            return wrong(
                "scrape_interval",
                found,
                &format!("allowed: from {SHORTEST_SCRAPE}"),
            );
        }
        let script = file.script.as_ref().map(|s| ("script.printed", &s.printed));
        for (place, printed) in [("printed", &file.printed), ("printed_again", &file.printed_again)]
            .into_iter()
            .chain(script)
        {
            for (name, value) in printed {
                if value.as_f64().is_none_or(|v| !v.is_finite() || v <= 0.0) {
                    let found = format!("found {value}");
                    return wrong(&format!("{place}.{name}"), found, "allowed: a number above 0");
                }
            }
        }
        if file.printed.is_empty() {
            return wrong(
                "printed",
                "it is empty".into(),
                "name what the load generator printed",
            );
        }
        Ok(file)
    }
}

/// Plays a study through. `done` is called after each of its [`parts`].
///
/// # Errors
/// [`StudyError`] when a scenario cannot be run, or its load generator prints no figure of a name in the study.
pub fn explain(file: StudyFile, base: &Path, done: impl Fn()) -> Result<Explained, StudyError> {
    let plan = Plan::load(&beside(base, &file.scenario), &[])?;
    let test = repeated(&plan, &file.printed, file.seeds)?;
    check_number(test.run.record.end, file.scrape_interval.0)
        .map_err(|e| InputError::new(&file.title, e.to_string()).at("scrape_interval"))?;
    done();
    let mut hypotheses = Vec::new();
    for spec in &file.hypotheses {
        let plan = plan.with(&overrides(&spec.set))?;
        hypotheses.push(Hypothesis {
            spec: spec.clone(),
            outcome: repeated(&plan, &file.printed, file.seeds)?,
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
        base: base.to_owned(),
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

/// Runs a scenario at many seeds and keeps what its load generator prints.
fn repeated(plan: &Plan, printed: &Map<String, Value>, seeds: u32) -> Result<Repeated, StudyError> {
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
    let by_seed: Vec<Vec<f64>> = (0..u64::from(seeds))
        .into_par_iter()
        .map(|seed| {
            let run = study.run(seed)?;
            printed_by(view, &run, &names).map_err(|name| {
                InputError::new(
                    plan.origin(),
                    format!("{} prints no '{name}' of this run", view.name()),
                )
                .at("printed")
                .allowed("a figure that the load generator prints, under its own name")
                .into()
            })
        })
        .collect::<Result<_, StudyError>>()?;
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
    Ok(Repeated {
        run: study.run(typical)?,
        plan: plan.clone(),
        figures,
        typical,
    })
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
    fn paths_go_down_and_up_no_more_than_they_must() {
        assert_eq!(beside(Path::new("a/b"), "../c.yaml"), Path::new("a/c.yaml"));
        assert_eq!(beside(Path::new(""), "../c.yaml"), Path::new("../c.yaml"));
        assert_eq!(beside(Path::new("/a"), "../../c.yaml"), Path::new("/../c.yaml"));
    }

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
