//! What a row of requests says of the world outside of the engine: its times there, and whether it was served.

use super::table::Row;
use crate::input::InputError;

/// What a client, or the API server on its behalf, saw of a request; seconds from the start of the run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OuterTimes {
    /// The request was sent, or the API server called the engine.
    pub sent_s: f64,
    /// The first token arrived.
    pub first_token_s: f64,
    /// The last token arrived.
    pub last_token_s: f64,
    /// The times are the client's; else the API server's.
    pub client: bool,
}

/// A status other than a good one, or the text of an error.
pub(super) fn has_failed(row: &Row<'_>) -> Result<bool, InputError> {
    let status = match row.text("status").to_ascii_lowercase().as_str() {
        "" | "ok" | "success" | "successful" | "completed" => false,
        "error" | "errored" | "failed" | "incomplete" | "cancelled" | "rejected" => true,
        other => {
            return Err(row
                .cell_error("status", format!("'{other}' is no known status"))
                .allowed("ok or completed; error, incomplete, cancelled or rejected"));
        }
    };
    let error = row.text("error");
    Ok(status || !matches!(error, "" | "0" | "false" | "False"))
}

/// The times outside of the engine: a client's before the API server's.
pub(super) fn outer_times(row: &Row<'_>) -> Result<Option<OuterTimes>, InputError> {
    for (columns, client) in [
        (
            ["client_send_s", "client_first_token_s", "client_last_token_s"],
            true,
        ),
        (["api_call_s", "api_first_s", "api_last_s"], false),
    ] {
        if !columns.iter().all(|c| row.has(c)) {
            continue;
        }
        let [sent, first, last] = columns.map(|c| row.optional_seconds(c));
        if let (Some(sent_s), Some(first_token_s), Some(last_token_s)) = (sent?, first?, last?) {
            return Ok(Some(OuterTimes {
                sent_s,
                first_token_s,
                last_token_s,
                client,
            }));
        }
    }
    Ok(None)
}
