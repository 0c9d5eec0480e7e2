//! `kneeboard profile list|show|check|import-model`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Subcommand;
use clap::builder::PossibleValuesParser;
use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::Value;

use super::{Outcome, print};
use crate::input::{self, InputError};
use crate::kv::sizing::kv_bytes_per_token;
use crate::profile::catalog::{self, Entry, Origin};
use crate::profile::check::{self, Problem, Severity};
use crate::profile::{FigureRow, Kind, Profile, import};

/// What to do with profiles.
#[derive(Debug, Subcommand)]
pub enum ProfileCommand {
    /// List the profiles: those that ship, and those of --profiles.
    List {
        /// Of one kind only.
        #[arg(long, value_parser = PossibleValuesParser::new(Kind::ALL.map(Kind::word)))]
        kind: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show one profile: every figure with its source and its doubts.
    Show {
        /// Name of a profile, a model's repository on Hugging Face, or a .yaml file.
        name: String,
        /// Print the profile's YAML instead, to start one's own from.
        #[arg(long, conflicts_with = "json")]
        yaml: bool,
        /// Print JSON: the profile, its origin, and what follows from it.
        #[arg(long)]
        json: bool,
    },
    /// Check profiles: format, sources, plausible figures and units, contradictions. Exit code 3 if one fails.
    Check {
        /// Files to check; without any, all profiles that ship and those of --profiles.
        files: Vec<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Make a model profile out of a Hugging Face config.json.
    ImportModel {
        /// The model's configuration.
        config: PathBuf,
        /// Name of the profile; without it, that of the repository in the file.
        #[arg(long)]
        name: Option<String>,
        /// File to write; without it, the profile is printed.
        #[arg(short, long)]
        output: Option<PathBuf>,
        /// Replace the file if it is there.
        #[arg(long)]
        overwrite: bool,
    },
}

/// Runs the command.
pub fn run(command: &ProfileCommand) -> anyhow::Result<Outcome> {
    match command {
        ProfileCommand::List { kind, json } => {
            let kind = Kind::ALL.into_iter().find(|k| Some(k.word()) == kind.as_deref());
            print(&list(kind, *json)?)?;
        }
        ProfileCommand::Show { name, yaml, json } => print(&show_one(name, *yaml, *json)?)?,
        ProfileCommand::Check { files, json } => return check_all(files, *json),
        ProfileCommand::ImportModel {
            config,
            name,
            output,
            overwrite,
        } => import_model(config, name.as_deref(), output.as_deref(), *overwrite)?,
    }
    Ok(Outcome::Done)
}

/// One line of the list.
#[derive(Debug, Serialize)]
struct Listed<'a> {
    kind: Kind,
    name: &'a str,
    description: String,
    doubtful_figures: usize,
    figures: usize,
    /// `shipped`, or the file.
    origin: String,
    overrides_shipped: bool,
}

fn listed(entry: &Entry) -> Result<Listed<'_>, InputError> {
    let profile = entry.load()?;
    let figures = profile.figures();
    Ok(Listed {
        kind: entry.kind,
        name: &entry.name,
        description: profile.description().to_owned(),
        doubtful_figures: figures.iter().filter(|f| f.doubt.is_some()).count(),
        figures: figures.len(),
        origin: match &entry.origin {
            Origin::Shipped => "shipped".to_owned(),
            Origin::File(path) => path.display().to_string(),
        },
        overrides_shipped: entry.overrides,
    })
}

fn list(kind: Option<Kind>, json: bool) -> anyhow::Result<String> {
    let rows = catalog::current()
        .entries(kind)
        .map(listed)
        .collect::<Result<Vec<_>, _>>()?;
    if json {
        return Ok(serde_json::to_string_pretty(&rows)? + "\n");
    }
    let mut table = plain_table();
    table.set_header(["kind", "name", "description", "figures", "doubtful", "from"]);
    for row in &rows {
        let from = if row.overrides_shipped {
            format!("{}, in place of the shipped one", row.origin)
        } else {
            row.origin.clone()
        };
        table.add_row([
            row.kind.word(),
            row.name,
            &row.description,
            &row.figures.to_string(),
            &row.doubtful_figures.to_string(),
            &from,
        ]);
    }
    Ok(format!("{table}\n"))
}

/// A profile by name or path: what was read, its text, where it comes from.
fn found(name: &str) -> Result<(Profile, String, String), InputError> {
    match catalog::current().entry(name) {
        Ok(entry) => Ok((entry.load()?, entry.text().to_owned(), entry.place())),
        Err(unknown) => {
            let path = Path::new(name);
            if !path.is_file() {
                return Err(unknown);
            }
            let text = input::read_text(path)?;
            Ok((catalog::from_text(&text, name)?, text, name.to_owned()))
        }
    }
}

fn show_one(name: &str, yaml: bool, json: bool) -> anyhow::Result<String> {
    let (profile, text, place) = found(name)?;
    if yaml {
        return Ok(text);
    }
    if !json {
        return Ok(page(&profile, &place));
    }
    let derived: serde_json::Map<String, Value> = derived(&profile)
        .into_iter()
        .map(|(name, _, value)| (name.to_owned(), value))
        .collect();
    let all = serde_json::json!({"profile": profile, "origin": place, "derived": derived});
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}

/// What follows from the figures: name, text with the unit, value.
fn derived(profile: &Profile) -> Vec<(&'static str, String, Value)> {
    match profile {
        Profile::Model(m) => {
            let kv = kv_bytes_per_token(m, 1);
            let weights = m.weight_bytes_total();
            vec![
                (
                    "kv_bytes_per_token_tp1",
                    format!("KV cache: {kv} bytes a token at TP 1"),
                    kv.into(),
                ),
                (
                    "weight_bytes_total",
                    format!("weights: {:.2} GiB", gib(weights)),
                    weights.into(),
                ),
            ]
        }
        Profile::Instance(i) => i.usd_per_accelerator_h().map_or_else(Vec::new, |usd| {
            vec![(
                "usd_per_accelerator_h",
                format!("price of one accelerator: {usd:.4} USD an hour"),
                usd.into(),
            )]
        }),
        Profile::Accelerator(_) | Profile::Engine(_) => Vec::new(),
    }
}

fn page(profile: &Profile, place: &str) -> String {
    let mut out = format!("{}: {}\n", profile.name(), profile.description());
    let aliases = profile.aliases();
    if !aliases.is_empty() {
        out += &format!("also: {}\n", aliases.join(", "));
    }
    out += &format!("from: {place}\n\n{}", figures(&profile.figures()));
    let lines: Vec<_> = derived(profile).into_iter().map(|(_, text, _)| text).collect();
    if !lines.is_empty() {
        out += &format!("{}\n", lines.join("; "));
    }
    out += &section("Notes", profile.notes().iter().map(|n| format!("  {n}\n")));
    out + &section("Sources", sources(profile.sources()))
}

fn sources(sources: &BTreeMap<String, String>) -> impl Iterator<Item = String> {
    sources.iter().map(|(key, text)| format!("  {key}: {text}\n"))
}

fn section(title: &str, lines: impl Iterator<Item = String>) -> String {
    let lines: String = lines.collect();
    if lines.is_empty() {
        return lines;
    }
    format!("\n{title}\n{lines}")
}

fn figures(figures: &[FigureRow<'_>]) -> String {
    if figures.is_empty() {
        return "no figure is known\n".to_owned();
    }
    let mut table = plain_table();
    table.set_header(["figure", "value", "source", "doubt"]);
    for f in figures {
        table.add_row([f.name, &f.value, f.source, f.doubt.unwrap_or("")]);
    }
    format!("{table}\n")
}

/// One profile that was checked.
#[derive(Debug, Serialize)]
struct Checked {
    /// The file, or `profile NAME`.
    profile: String,
    problems: Vec<Problem>,
}

fn check_all(files: &[PathBuf], json: bool) -> anyhow::Result<Outcome> {
    let catalog = catalog::current();
    let mut checked = Vec::new();
    if files.is_empty() {
        checked.extend(catalog.entries(None).map(|entry| Checked {
            profile: entry.place(),
            problems: check::text(catalog, entry.text(), &entry.name, Some(entry.kind)),
        }));
    }
    for file in files {
        let text = input::read_text(file)?;
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        checked.push(Checked {
            profile: file.display().to_string(),
            problems: check::text(catalog, &text, &stem, None),
        });
    }
    let count = |severity| {
        let all = checked.iter().flat_map(|c| &c.problems);
        all.filter(|p| p.severity == severity).count()
    };
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    if json {
        print(&(serde_json::to_string_pretty(&checked)? + "\n"))?;
    } else {
        let mut out = String::new();
        for one in &checked {
            for problem in &one.problems {
                let word = match problem.severity {
                    Severity::Error => "error",
                    Severity::Warning => "warning",
                };
                out += &format!("{word}: {}, {problem}\n", one.profile);
            }
        }
        let counted = |n: usize, noun: &str| format!("{n} {noun}{}", if n == 1 { "" } else { "s" });
        out += &format!(
            "{} checked: {}, {}\n",
            counted(checked.len(), "profile"),
            counted(errors, "error"),
            counted(warnings, "warning")
        );
        print(&out)?;
    }
    Ok(if errors > 0 {
        Outcome::CheckFailed
    } else {
        Outcome::Done
    })
}

fn import_model(
    config: &Path,
    name: Option<&str>,
    output: Option<&Path>,
    overwrite: bool,
) -> anyhow::Result<()> {
    // The profile is found by the name of its file, so that is what it is called where nothing else is said.
    let stem = output.and_then(Path::file_stem).map(|s| s.to_string_lossy());
    if let (Some(name), Some(stem)) = (name, stem.as_deref())
        && name != stem
    {
        return Err(InputError::new(
            "--name",
            format!("'{name}' is not the name of the file, '{stem}'"),
        )
        .allowed("leave --name out, or write to a file of that name")
        .into());
    }
    let model = import::model(
        &input::read_text(config)?,
        &config.display().to_string(),
        name.or(stem.as_deref()),
    )?;
    let text = import::to_yaml(&model);
    let Some(path) = output else {
        return Ok(print(&text)?);
    };
    if path.exists() && !overwrite {
        return Err(InputError::in_file(path, "is there already")
            .allowed("name another file with -o, or give --overwrite to replace it")
            .into());
    }
    input::write_atomic(path, |w| w.write_all(text.as_bytes()))
        .with_context(|| format!("{}: cannot be written", path.display()))?;
    let doubtful = Profile::Model(Box::new(model));
    for figure in doubtful.figures().iter().filter(|f| f.doubt.is_some()) {
        super::stdout::complain(&format!(
            "{} = {}: {}",
            figure.name,
            figure.value,
            figure.doubt.unwrap_or("")
        ));
    }
    Ok(())
}

fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}
