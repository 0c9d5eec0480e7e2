//! Facts about accelerators, models, instances and engines, each figure with its source.

pub mod accelerator;
pub mod catalog;
pub mod check;
pub mod engine;
pub mod figure;
pub mod import;
pub mod instance;
pub mod model;

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use accelerator::{Accelerator, Platform};
pub use catalog::Catalog;
pub use engine::EngineDefaults;
pub use figure::{Figure, FigureRow};
pub use instance::Instance;
pub use model::{Mla, Model, Moe, Window};

/// The kinds of profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A device.
    Accelerator,
    /// A language model.
    Model,
    /// A machine that can be rented.
    Instance,
    /// The defaults of a serving engine.
    Engine,
}

impl Kind {
    /// Every kind, in the order of listings.
    pub const ALL: [Self; 4] = [Self::Accelerator, Self::Model, Self::Instance, Self::Engine];

    /// The word in a profile's `kind`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Accelerator => "accelerator",
            Self::Model => "model",
            Self::Instance => "instance",
            Self::Engine => "engine",
        }
    }

    /// The folder of its profiles.
    pub fn folder(self) -> &'static str {
        match self {
            Self::Accelerator => "accelerators",
            Self::Model => "models",
            Self::Instance => "instances",
            Self::Engine => "engines",
        }
    }
}

/// What all kinds of profile have in common.
pub trait Facts: DeserializeOwned + Serialize + Clone + Send + Sync + 'static {
    /// Their kind.
    const KIND: Kind;

    /// Format version as the file states it.
    fn format(&self) -> u32;
    /// Name used in scenarios.
    fn name(&self) -> &str;
    /// Other names under which it is found.
    fn aliases(&self) -> Vec<&str>;
    /// One line about it.
    fn description(&self) -> &str;
    /// Sources by key.
    fn sources(&self) -> &BTreeMap<String, String>;
    /// Remarks that belong to no single figure.
    fn notes(&self) -> &[String];
    /// Every known figure, in the order of the file.
    fn figures(&self) -> Vec<FigureRow<'_>>;
    /// What contradicts itself or cannot be, beyond the ranges of single figures.
    fn contradictions(&self) -> Vec<check::Problem>;
}

/// The members of [`Facts`] that every type keeps in fields of the same name.
macro_rules! common_facts {
    ($kind:expr) => {
        const KIND: crate::profile::Kind = $kind;

        fn format(&self) -> u32 {
            self.kneeboard_profile
        }

        fn name(&self) -> &str {
            &self.name
        }

        fn description(&self) -> &str {
            &self.description
        }

        fn sources(&self) -> &std::collections::BTreeMap<String, String> {
            &self.sources
        }

        fn notes(&self) -> &[String] {
            &self.notes
        }
    };
}
pub(crate) use common_facts;

/// Any profile.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Profile {
    /// A device.
    Accelerator(Box<Accelerator>),
    /// A language model.
    Model(Box<Model>),
    /// A machine that can be rented.
    Instance(Box<Instance>),
    /// The defaults of a serving engine.
    Engine(Box<EngineDefaults>),
}

impl Profile {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Accelerator(p) => p.name(),
            Self::Model(p) => p.name(),
            Self::Instance(p) => p.name(),
            Self::Engine(p) => p.name(),
        }
    }

    /// One line about it.
    pub fn description(&self) -> &str {
        match self {
            Self::Accelerator(p) => p.description(),
            Self::Model(p) => p.description(),
            Self::Instance(p) => p.description(),
            Self::Engine(p) => p.description(),
        }
    }

    /// Every known figure, in the order of the file.
    pub fn figures(&self) -> Vec<FigureRow<'_>> {
        match self {
            Self::Accelerator(p) => p.figures(),
            Self::Model(p) => p.figures(),
            Self::Instance(p) => p.figures(),
            Self::Engine(p) => p.figures(),
        }
    }

    /// Sources by key.
    pub fn sources(&self) -> &BTreeMap<String, String> {
        match self {
            Self::Accelerator(p) => p.sources(),
            Self::Model(p) => p.sources(),
            Self::Instance(p) => p.sources(),
            Self::Engine(p) => p.sources(),
        }
    }

    /// Remarks that belong to no single figure.
    pub fn notes(&self) -> &[String] {
        match self {
            Self::Accelerator(p) => p.notes(),
            Self::Model(p) => p.notes(),
            Self::Instance(p) => p.notes(),
            Self::Engine(p) => p.notes(),
        }
    }

    /// Other names under which it is found.
    pub fn aliases(&self) -> Vec<&str> {
        match self {
            Self::Accelerator(p) => p.aliases(),
            Self::Model(p) => p.aliases(),
            Self::Instance(p) => p.aliases(),
            Self::Engine(p) => p.aliases(),
        }
    }
}
