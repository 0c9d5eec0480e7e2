//! Whether a call log is whole and says the same everywhere. A log that lost calls agrees with an engine as far as it
//! goes, which proves less than it seems to.

use std::collections::BTreeSet;
use std::path::Path;

use super::{Call, Log};
use crate::input::InputError;

/// The plugin whose scheduler is modelled, as its logs name it.
const PLUGIN: &str = "vllm-neuron 0.2.0";

/// Refuses a log whose calls skip numbers, that ends before its requests do, or whose head contradicts itself.
pub(super) fn check(log: &Log, text: &str, path: &Path) -> Result<(), InputError> {
    plugin(log, path)?;
    let Some(last) = log.calls.last() else {
        // That it records nothing is said of every kind of record.
        return Ok(());
    };
    let at = |index: usize| format!("line {}, calls[{index}]", line_of_call(text, index));
    let first = log.calls[0].call.min(1);
    for (index, (call, due)) in log.calls.iter().zip(first..).enumerate() {
        if call.call != due {
            return Err(
                InputError::in_file(path, format!("call {} where call {due} is due", call.call))
                    .at(at(index))
                    .allowed("calls are numbered without a gap: some may be lost"),
            );
        }
    }
    livelock(log, last, path)?;
    end(log, last).map_err(|found| {
        InputError::in_file(path, found)
            .at(at(log.calls.len() - 1))
            .allowed("the log may have been cut short: record it to the end")
    })
}

/// The scheduler's class and the plugin that it is from belong together.
fn plugin(log: &Log, path: &Path) -> Result<(), InputError> {
    let wrong = |found: String| {
        InputError::in_file(path, found)
            .at("plugin")
            .allowed(format!("known: {PLUGIN}"))
    };
    let of_plugin = log.scheduler.as_deref().is_some_and(|name| name != "Scheduler");
    match &log.plugin {
        // The release may be followed by a commit.
        Some(plugin) if plugin.split(" (").next() == Some(PLUGIN) => Ok(()),
        Some(plugin) => Err(wrong(format!("'{plugin}' is no plugin that is modelled"))),
        None if of_plugin => Err(wrong(format!(
            "none is named, but '{}' is a plugin's scheduler",
            log.scheduler.as_deref().unwrap_or_default()
        ))),
        None => Ok(()),
    }
}

fn livelock(log: &Log, last: &Call, path: &Path) -> Result<(), InputError> {
    let from = log.livelock_from;
    if let Some(told) = log.livelock
        && told != (from > 0)
    {
        return Err(
            InputError::in_file(path, format!("'{told}', but livelock_from is {from}"))
                .at("livelock")
                .allowed("true where livelock_from names a call, false where it is 0"),
        );
    }
    if from > last.call {
        return Err(
            InputError::in_file(path, format!("call {from}, but the last call is {}", last.call))
                .at("livelock_from")
                .allowed("a call of the log, or 0 for no livelock"),
        );
    }
    Ok(())
}

/// What is missing at the end: a run goes on until every request has finished, or nothing moves any more.
fn end(log: &Log, last: &Call) -> Result<(), String> {
    if !last.idle && last.processed.is_none() {
        return Err(format!("call {} is the last and has no result", last.call));
    }
    if log.livelock_from > 0 {
        return Ok(());
    }
    let finished: BTreeSet<&str> = log
        .calls
        .iter()
        .flat_map(|c| &c.finished)
        .map(String::as_str)
        .collect();
    let open = log.requests.iter().find(|r| !finished.contains(r.id.as_str()));
    match open {
        None => Ok(()),
        Some(request) => Err(format!(
            "call {} is the last, and request {} has not finished",
            last.call, request.id
        )),
    }
}

/// The line, from 1, of the call number `index` of the list: each has the key `call` once.
fn line_of_call(text: &str, index: usize) -> usize {
    let is_key = |&(at, key): &(usize, &str)| text[at + key.len()..].trim_start().starts_with(':');
    let place = text.match_indices("\"call\"").filter(is_key).nth(index);
    text[..place.map_or(0, |p| p.0)].matches('\n').count() + 1
}
