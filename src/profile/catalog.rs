//! The profiles that ship inside the binary, and the user's own by path.

use std::path::Path;

use super::{Accelerator, Model};
use crate::input::{self, InputError};
use crate::yaml;

macro_rules! shipped {
    ($folder:literal: $($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../../profiles/", $folder, "/", $name, ".yaml")))),+]
    };
}

/// Shipped accelerators: name and text.
pub static ACCELERATORS: &[(&str, &str)] = shipped!("accelerators":
    "a100-sxm-80gb", "h100-sxm", "h200-sxm", "l40s", "trn1", "trn2", "cpu-1core");

/// Shipped models: name and text.
pub static MODELS: &[(&str, &str)] = shipped!("models":
    "tinyllama-1.1b", "llama-3.1-8b", "llama-3.1-70b", "qwen3-8b", "kneeboard-small");

/// Any profile.
#[derive(Debug, Clone, PartialEq)]
pub enum Profile {
    /// A device.
    Accelerator(Box<Accelerator>),
    /// A language model.
    Model(Box<Model>),
}

/// A shipped accelerator by name, or one from a file when `name` is a path.
///
/// # Errors
/// [`InputError`] with the nearest valid name, or with what is wrong in the file.
pub fn accelerator(name: &str, base: &Path) -> Result<Accelerator, InputError> {
    let (text, origin) = find("accelerator", ACCELERATORS, name, base)?;
    let found: Accelerator = yaml::parse(&text, &origin)?;
    check_format(found.kneeboard_profile, &origin)?;
    check_sources(&found.figures(), &found.sources, &origin)?;
    Ok(found)
}

/// A shipped model by name, or one from a file when `name` is a path.
///
/// # Errors
/// [`InputError`] with the nearest valid name, or with what is wrong in the file.
pub fn model(name: &str, base: &Path) -> Result<Model, InputError> {
    let (text, origin) = find("model", MODELS, name, base)?;
    let found: Model = yaml::parse(&text, &origin)?;
    check_format(found.kneeboard_profile, &origin)?;
    check_sources(&found.figures(), &found.sources, &origin)?;
    check_model(&found, &origin)?;
    Ok(found)
}

/// A shipped profile of any kind by its name.
///
/// # Errors
/// [`InputError`] with the nearest valid name.
pub fn any(name: &str) -> Result<Profile, InputError> {
    let here = Path::new("");
    if ACCELERATORS.iter().any(|(n, _)| *n == name) {
        return Ok(Profile::Accelerator(Box::new(accelerator(name, here)?)));
    }
    if MODELS.iter().any(|(n, _)| *n == name) {
        return Ok(Profile::Model(Box::new(model(name, here)?)));
    }
    let names = || ACCELERATORS.iter().chain(MODELS).map(|(n, _)| *n);
    Err(InputError::new("profile", format!("unknown profile '{name}'"))
        .allowed(format!("known: {}", names().collect::<Vec<_>>().join(", ")))
        .nearest_of(name, names()))
}

/// The text of a shipped profile, as it stands in `profiles/`.
pub fn text(name: &str) -> Option<&'static str> {
    ACCELERATORS
        .iter()
        .chain(MODELS)
        .find(|(n, _)| *n == name)
        .map(|(_, t)| *t)
}

fn find(
    kind: &str,
    shipped: &'static [(&'static str, &'static str)],
    name: &str,
    base: &Path,
) -> Result<(String, String), InputError> {
    if name.contains(['/', '\\']) || name.ends_with(".yaml") {
        let path = base.join(name);
        return Ok((input::read_text(&path)?, path.display().to_string()));
    }
    shipped
        .iter()
        .find(|(n, _)| *n == name)
        .map(|(n, t)| ((*t).to_owned(), format!("profile {n}")))
        .ok_or_else(|| {
            let names = shipped.iter().map(|(n, _)| *n);
            InputError::new(format!("{kind} profile"), format!("unknown name '{name}'"))
                .allowed(format!(
                    "known: {}; or a path to a .yaml file",
                    names.clone().collect::<Vec<_>>().join(", ")
                ))
                .nearest_of(name, names)
        })
}

fn check_format(version: u32, origin: &str) -> Result<(), InputError> {
    if version == 1 {
        return Ok(());
    }
    Err(InputError::new(origin, format!("found format version {version}"))
        .at("kneeboard_profile")
        .allowed("allowed: 1"))
}

fn check_sources(
    figures: &[super::FigureRow<'_>],
    sources: &std::collections::BTreeMap<String, String>,
    origin: &str,
) -> Result<(), InputError> {
    match figures.iter().find(|f| !sources.contains_key(f.source)) {
        None => Ok(()),
        Some(f) => Err(InputError::new(origin, format!("unknown source '{}'", f.source))
            .at(f.name)
            .allowed(format!(
                "name one of the profile's sources: {}",
                sources.keys().cloned().collect::<Vec<_>>().join(", ")
            ))
            .nearest_of(f.source, sources.keys().map(String::as_str))),
    }
}

/// Dimensions that contradict each other are mistypes; a few percent are norms, biases and rounding.
fn check_model(model: &Model, origin: &str) -> Result<(), InputError> {
    let counts = [
        ("layers", model.layers.value),
        ("hidden", model.hidden.value),
        ("heads", model.heads.value),
        ("kv_heads", model.kv_heads.value),
        ("head_dim", model.head_dim.value),
        ("vocab", model.vocab.value),
        ("max_positions", model.max_positions.value),
        ("kv_bytes", model.kv_bytes.value),
    ];
    if let Some((name, _)) = counts.iter().find(|(_, v)| *v == 0) {
        return Err(InputError::new(origin, "found 0")
            .at(name)
            .allowed("allowed: at least 1"));
    }
    if model.weight_bytes.value <= 0.0 || !model.weight_bytes.value.is_finite() {
        return Err(
            InputError::new(origin, format!("found {}", model.weight_bytes.value))
                .at("weight_bytes")
                .allowed("allowed: a positive number"),
        );
    }
    if !model.heads.value.is_multiple_of(model.kv_heads.value) {
        return Err(InputError::new(
            origin,
            format!(
                "{} heads cannot share {} kv_heads",
                model.heads.value, model.kv_heads.value
            ),
        )
        .at("kv_heads")
        .allowed("heads must be a multiple of kv_heads"));
    }
    let derived = model.parameters_from_dimensions() as f64;
    let stated = model.parameters.value as f64;
    if (derived / stated - 1.0).abs() > 0.05 {
        return Err(InputError::new(
            origin,
            format!("{stated:.4e} parameters are stated, but the dimensions give {derived:.4e}"),
        )
        .at("parameters")
        .allowed("the two may differ by 5 %: correct the count or the dimensions"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_profile_is_valid_and_bears_its_file_name() {
        let here = Path::new("");
        for (name, _) in ACCELERATORS {
            assert_eq!(accelerator(name, here).unwrap().name, *name);
        }
        for (name, _) in MODELS {
            assert_eq!(model(name, here).unwrap().name, *name);
        }
    }

    #[test]
    fn a_slip_gets_the_nearest_name() {
        let e = accelerator("h100-smx", Path::new("")).unwrap_err();
        assert_eq!(e.nearest.as_deref(), Some("h100-sxm"));
        assert!(e.to_string().contains("known: "), "{e}");
    }

    #[test]
    fn contradicting_dimensions_and_unknown_sources_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let good = text("llama-3.1-8b").unwrap();
        for (from, to, place) in [
            ("layers: {value: 32", "layers: {value: 80", "parameters"),
            ("kv_heads: {value: 8", "kv_heads: {value: 7", "kv_heads"),
            (
                "vocab: {value: 128256, source: aic",
                "vocab: {value: 128256, source: nowhere",
                "vocab",
            ),
        ] {
            let bad = good.replace(from, to);
            assert_ne!(bad, good, "{from}");
            let path = dir.path().join("m.yaml");
            std::fs::write(&path, bad).unwrap();
            let e = model("./m.yaml", dir.path()).unwrap_err();
            assert_eq!(e.place.as_deref(), Some(place), "{e}");
        }
    }
}
