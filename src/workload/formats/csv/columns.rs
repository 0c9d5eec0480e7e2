//! The columns of a trace, and what other tools call them.

use csv::StringRecord;

use crate::input::InputError;

/// Every column a trace may have.
pub const COLUMNS: [&str; 13] = [
    "id",
    "arrival_s",
    "arrival_ns",
    "input_tokens",
    "output_tokens",
    "prefix_group",
    "prefix_tokens",
    "session",
    "priority",
    "eos_at",
    "seed",
    "tenant",
    "session_id",
];

/// Names of the same columns in the files of others, with ours.
pub const ALIASES: [(&str, &str); 13] = [
    ("request_id", "id"),
    ("arrived_at", "arrival_s"),
    ("prefill", "input_tokens"),
    ("decode", "output_tokens"),
    ("ContextTokens", "input_tokens"),
    ("GeneratedTokens", "output_tokens"),
    ("input_length", "input_tokens"),
    ("output_length", "output_tokens"),
    ("num_prefill_tokens", "input_tokens"),
    ("num_decode_tokens", "output_tokens"),
    ("TIMESTAMP", UNREAD),
    ("num_total_tokens", UNREAD),
    ("pd_ratio", UNREAD),
];

/// Known, but nothing is read from it.
const UNREAD: &str = "";

/// Where each column stands in a file's rows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Places {
    pub arrival_s: Option<usize>,
    pub arrival_ns: Option<usize>,
    pub input_tokens: Option<usize>,
    pub output_tokens: Option<usize>,
    pub prefix_group: Option<usize>,
    pub prefix_tokens: Option<usize>,
    pub session: Option<usize>,
    pub priority: Option<usize>,
    pub eos_at: Option<usize>,
    pub tenant: Option<usize>,
    pub session_id: Option<usize>,
}

/// Our name of a column, whatever the file calls it.
fn meaning(name: &str) -> Option<&'static str> {
    let own = COLUMNS.iter().find(|own| **own == name).copied();
    own.or_else(|| {
        ALIASES
            .iter()
            .find(|(alias, _)| *alias == name)
            .map(|(_, own)| *own)
    })
}

/// Finds the columns of a header; unknown, doubled and missing ones are errors.
pub(super) fn places(header: &StringRecord, origin: &str) -> Result<Places, InputError> {
    let error = |found: String| {
        InputError::new(origin, found)
            .at("line 1")
            .allowed(format!("columns: {}", COLUMNS.join(", ")))
    };
    let mut places = Places::default();
    let mut seen: Vec<&str> = Vec::new();
    for (i, name) in header.iter().enumerate() {
        let Some(own) = meaning(name) else {
            let known = COLUMNS.into_iter().chain(ALIASES.iter().map(|(alias, _)| *alias));
            return Err(error(format!("unknown column '{name}'")).nearest_of(name, known));
        };
        if own != UNREAD && seen.contains(&own) {
            let what = if own == name {
                format!("the column '{name}' is given twice")
            } else {
                format!("the column '{name}' means {own}, which is given twice")
            };
            return Err(error(what));
        }
        seen.push(own);
        match own {
            "arrival_s" => places.arrival_s = Some(i),
            "arrival_ns" => places.arrival_ns = Some(i),
            "input_tokens" => places.input_tokens = Some(i),
            "output_tokens" => places.output_tokens = Some(i),
            "prefix_group" => places.prefix_group = Some(i),
            "prefix_tokens" => places.prefix_tokens = Some(i),
            "session" => places.session = Some(i),
            "priority" => places.priority = Some(i),
            "eos_at" => places.eos_at = Some(i),
            "tenant" => places.tenant = Some(i),
            "session_id" => places.session_id = Some(i),
            _ => {}
        }
    }
    for needed in ["input_tokens", "output_tokens"] {
        if !seen.contains(&needed) {
            return Err(error(format!("the column '{needed}' is missing")));
        }
    }
    Ok(places)
}
