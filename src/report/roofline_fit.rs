//! A fit of parameters, of the roofline or of static shapes, as tables.

use comfy_table::{Table, presets};

use super::number;
use crate::steptime::fit_parts::{FitError, FittedParameter, Misfit};
use crate::steptime::{RooflineFit, StaticFit};

/// The fit: parameters, what is left out and by how much it missed, notes.
pub fn fit_text(fit: &RooflineFit) -> String {
    text(&Parts {
        title: format!("fit {} ({:?}): {}", fit.name, fit.door, fit.command),
        parameters: &fit.parameters,
        residuals: &fit.residuals,
        held_out: &fit.held_out,
        misfit: &fit.misfit,
        notes: &fit.notes,
    })
}

/// The same of a fit of static shapes.
pub fn static_fit_text(fit: &StaticFit) -> String {
    text(&Parts {
        title: format!("fit {} (programs): {}", fit.name, fit.command),
        parameters: &fit.parameters,
        residuals: &fit.residuals,
        held_out: &fit.held_out,
        misfit: &fit.misfit,
        notes: &fit.notes,
    })
}

/// What the tables show.
struct Parts<'a> {
    title: String,
    parameters: &'a [FittedParameter],
    residuals: &'a [FitError],
    held_out: &'a [FitError],
    misfit: &'a [Misfit],
    notes: &'a [String],
}

fn text(fit: &Parts<'_>) -> String {
    let mut out = vec![fit.title.clone(), String::new()];
    let mut t = table(&[
        "parameter",
        "value",
        "unit",
        "90 % interval",
        "prior",
        "known from",
    ]);
    for p in fit.parameters {
        t.add_row(vec![
            p.name.clone(),
            significant(p.value),
            p.unit.clone(),
            format!(
                "{} to {}",
                significant(p.interval_90.0),
                significant(p.interval_90.1)
            ),
            significant(p.prior),
            if p.identified { "data" } else { "prior" }.to_owned(),
        ]);
    }
    out.push(t.to_string());
    out.push(String::new());
    out.push("Errors, (predicted - actual) / actual:".to_owned());
    let mut t = table(&["left out", "run", "figure", "actual", "predicted", "error"]);
    // Without anything left out, how well the fitted figures are met is all there is to show.
    let fitted: Vec<&FitError> = fit
        .residuals
        .iter()
        .filter(|e| fit.held_out.is_empty() && e.actual.is_some())
        .collect();
    for e in fit.held_out.iter().chain(fitted) {
        t.add_row(vec![
            e.of.clone(),
            e.run.clone(),
            format!("{} {}", e.metric, e.stat),
            e.actual.map_or("-".into(), significant),
            e.predicted.map_or("-".into(), significant),
            format!("{:+.1} %", 100.0 * e.rel_error),
        ]);
    }
    out.push(t.to_string());
    out.push(String::new());
    let mut t = table(&[
        "figure",
        "missed by (one standard deviation)",
        "figures behind it",
    ]);
    for m in fit.misfit {
        t.add_row(vec![
            format!("{} {}", m.metric, m.stat),
            format!("{:.1} %", 100.0 * m.log_sd),
            m.n.to_string(),
        ]);
    }
    out.push(t.to_string());
    out.extend(fit.notes.iter().map(|n| format!("note: {n}")));
    out.join("\n")
}

fn significant(x: f64) -> String {
    number::significant(x, 4)
}

fn table(header: &[&str]) -> Table {
    let mut t = Table::new();
    t.load_style(presets::NOTHING).set_header(header.to_vec());
    t
}
