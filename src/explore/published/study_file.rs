//! The file of a study: what was printed, and what is asked.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::input::{InputError, read_text};
use crate::scenario::SHORTEST_SCRAPE;
use crate::scenario::quantity::{Finite, Span};
use crate::yaml;

/// Most seeds of a study: enough for any band, few enough to end.
const MOST_SEEDS: u32 = 10_000;

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

impl StudyFile {
    /// Reads and checks a study file.
    ///
    /// # Errors
    /// [`InputError`] for what it does not hold.
    pub fn read(path: &Path) -> Result<Self, InputError> {
        let text = read_text(path)?;
        if yaml::has_key(&text, "kneeboard") && !yaml::has_key(&text, "kneeboard_study") {
            return Err(InputError::in_file(path, "is a scenario, not a study").allowed(
                "run it with kneeboard simulate, sweep or capacity; a study (docs/FORMATS.md) names it under scenario",
            ));
        }
        let file: Self = yaml::parse(&text, &path.display().to_string())?;
        file.check().map_err(|e| InputError {
            origin: path.display().to_string(),
            ..e
        })?;
        Ok(file)
    }

    /// What types cannot say; the origin of its errors is for the caller to name.
    fn check(&self) -> Result<(), InputError> {
        if self.kneeboard_study != 1 {
            let found = format!("found version {}", self.kneeboard_study);
            return Err(wrong("kneeboard_study", found, "allowed: 1"));
        }
        if self.seeds == 0 || self.seeds > MOST_SEEDS {
            let found = format!("found {}", self.seeds);
            return Err(wrong("seeds", found, format!("allowed: 1 to {MOST_SEEDS}")));
        }
        if self.scrape_interval < SHORTEST_SCRAPE {
            let found = format!("found {}", self.scrape_interval);
            return Err(wrong(
                "scrape_interval",
                &found,
                format!("allowed: from {SHORTEST_SCRAPE}"),
            ));
        }
        self.check_printed()?;
        self.check_hypotheses()?;
        let sweeps = self.sweeps.iter().enumerate();
        let sweeps = sweeps.map(|(i, sweep)| (format!("sweeps.{i}.axes"), &sweep.axes));
        let capacity = self
            .capacity
            .iter()
            .map(|c| ("capacity.axes".to_owned(), &c.axes));
        match sweeps.chain(capacity).find(|(_, axes)| axes.is_empty()) {
            None => Ok(()),
            Some((place, _)) => Err(wrong(
                place,
                "it is empty, so nothing is varied",
                "give a dotted path and its values, as {system.engine.max_num_seqs: [2, 4]}",
            )),
        }
    }

    fn check_printed(&self) -> Result<(), InputError> {
        let script = self.script.as_ref().map(|s| ("script.printed", &s.printed));
        let again = ("printed_again", &self.printed_again);
        for (place, printed) in [("printed", &self.printed), again].into_iter().chain(script) {
            for (name, value) in printed {
                if value.as_f64().is_none_or(|v| !v.is_finite() || v <= 0.0) {
                    let (place, found) = (format!("{place}.{name}"), format!("found {value}"));
                    return Err(wrong(place, found, "allowed: a number above 0"));
                }
            }
        }
        if self.printed.is_empty() {
            return Err(wrong(
                "printed",
                "it is empty",
                "name what the load generator printed",
            ));
        }
        let known = || self.printed.keys().map(String::as_str);
        match self
            .printed_again
            .keys()
            .find(|name| !self.printed.contains_key(*name))
        {
            None => Ok(()),
            Some(name) => Err(wrong(
                format!("printed_again.{name}"),
                format!(
                    "'{name}' is not among the figures under printed, so there is nothing to compare it with"
                ),
                "give it there too",
            )
            .nearest_of(name, known())),
        }
    }

    fn check_hypotheses(&self) -> Result<(), InputError> {
        let mut seen = BTreeSet::new();
        for (i, hypothesis) in self.hypotheses.iter().enumerate() {
            if !seen.insert(hypothesis.name.as_str()) {
                return Err(wrong(
                    format!("hypotheses.{i}.name"),
                    format!("'{}' is the name of another one too", hypothesis.name),
                    "each needs a name of its own",
                ));
            }
        }
        Ok(())
    }
}

fn wrong(place: impl Display, found: impl Into<String>, allowed: impl Into<String>) -> InputError {
    InputError::new("", found).at(place).allowed(allowed)
}
