//! `kneeboard profile list|show`.

use std::collections::BTreeMap;

use clap::Subcommand;
use comfy_table::{Table, presets};

use super::{Outcome, print};
use crate::kv::sizing::kv_bytes_per_token;
use crate::profile::{FigureRow, Profile, catalog};

/// What to do with profiles.
#[derive(Debug, Subcommand)]
pub enum ProfileCommand {
    /// List the shipped profiles.
    List,
    /// Show one profile: every figure with its source and its doubts.
    Show {
        /// Name of a shipped profile.
        name: String,
        /// Print the profile's YAML instead, to start one's own from.
        #[arg(long)]
        yaml: bool,
    },
}

/// Runs the command.
pub fn run(command: &ProfileCommand) -> anyhow::Result<Outcome> {
    match command {
        ProfileCommand::List => print(&list()?)?,
        ProfileCommand::Show { name, yaml } => {
            let profile = catalog::any(name)?;
            let text = match catalog::text(name) {
                Some(text) if *yaml => text.to_owned(),
                _ => show(&profile),
            };
            print(&text)?;
        }
    }
    Ok(Outcome::Done)
}

fn list() -> anyhow::Result<String> {
    let mut table = plain_table();
    table.set_header(["kind", "name", "description"]);
    for entry in catalog::current().entries(None) {
        let profile = entry.load()?;
        table.add_row([entry.kind.word(), &entry.name, profile.description()]);
    }
    Ok(format!("{table}\n"))
}

fn show(profile: &Profile) -> String {
    let derived = match profile {
        Profile::Model(m) => format!(
            "KV cache: {} bytes a token at TP 1; weights: {:.2} GiB\n",
            kv_bytes_per_token(m, 1),
            gib(m.weight_bytes_total())
        ),
        _ => String::new(),
    };
    page(
        profile.name(),
        profile.description(),
        &profile.figures(),
        profile.sources(),
        &derived,
    )
}

fn page(
    name: &str,
    description: &str,
    figures: &[FigureRow<'_>],
    sources: &BTreeMap<String, String>,
    derived: &str,
) -> String {
    let mut table = plain_table();
    table.set_header(["figure", "value", "source", "doubt"]);
    for f in figures {
        table.add_row([f.name, &f.value, f.source, f.doubt.unwrap_or("")]);
    }
    let sources: String = sources.iter().map(|(k, v)| format!("  {k}: {v}\n")).collect();
    let figures = if figures.is_empty() {
        "no figure is known\n".to_owned()
    } else {
        format!("{table}\n")
    };
    format!("{name}: {description}\n\n{figures}{derived}\nSources\n{sources}")
}

fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}
