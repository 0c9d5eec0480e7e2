//! The front end between client and engine, from captures that hold both clocks.

use super::observe::Capture;
use super::robust::median;
use crate::input::InputError;
use crate::steptime::fit_file::FrontEndTimes;

/// What the way between client and engine takes, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FrontEndFit {
    /// From the client's send to the engine's receipt, mean.
    pub inbound_s: f64,
    /// The same, median.
    pub inbound_median_s: f64,
    /// From the end of the step to the client's first token, mean.
    pub outbound_s: f64,
    /// The same, median.
    pub outbound_median_s: f64,
    /// How much later each further token came than the one before it, mean over requests; near 0 when the
    /// client keeps up.
    pub per_output_token_s: f64,
    /// Requests behind it.
    pub n: u64,
    /// The outer times are the client's; else the API server's, and the client's own way is missing.
    pub client: bool,
}

/// The front end of a fit, from the captures among them that hold a client's clock beside the engine's. Means are
/// taken since they add up to the mean TTFT; a drift between tokens that is negative or below a microsecond is noise.
pub fn front_end_times(captures: &[Capture]) -> Option<FrontEndTimes> {
    let fit = front_end_over(captures).ok().filter(|f| f.client)?;
    Some(FrontEndTimes {
        inbound_s: fit.inbound_s.max(0.0),
        outbound_s: fit.outbound_s.max(0.0),
        per_output_token_s: Some(fit.per_output_token_s).filter(|&d| d > 1e-6).unwrap_or(0.0),
        requests: fit.n,
    })
}

/// The front end as a capture shows it; `None` unless it has the engine's and the outer times of the same
/// requests. Where only some have a client's times (warm-ups have none), those count.
pub fn front_end_of(capture: &Capture) -> Option<FrontEndFit> {
    if !capture.has_steps() {
        return None;
    }
    let client = capture.requests.iter().any(|r| r.outer.is_some_and(|o| o.client));
    let (mut inbound, mut outbound, mut drift) = (Vec::new(), Vec::new(), Vec::new());
    for request in &capture.requests {
        let Some(outer) = request.outer.filter(|o| o.client == client) else {
            continue;
        };
        let (Some(first), Some(last)) = (request.first_token_s, request.last_token_s) else {
            continue;
        };
        inbound.push(request.arrival_s - outer.sent_s);
        outbound.push(outer.first_token_s - first);
        if request.output_tokens > 1 {
            let later = (outer.last_token_s - outer.first_token_s) - (last - first);
            drift.push(later / f64::from(request.output_tokens - 1));
        }
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    Some(FrontEndFit {
        inbound_s: mean(&inbound),
        inbound_median_s: median(&inbound)?,
        outbound_s: mean(&outbound),
        outbound_median_s: median(&outbound)?,
        per_output_token_s: mean(&drift),
        n: inbound.len() as u64,
        client,
    })
}

/// The front end over several captures, each request counting once.
///
/// # Errors
/// [`InputError`] when none of them has both clocks.
pub fn front_end_over(captures: &[Capture]) -> Result<FrontEndFit, InputError> {
    let mut fits: Vec<FrontEndFit> = captures.iter().filter_map(front_end_of).collect();
    // The API server's times lack the client's part, so they do not mix with a client's.
    let client = fits.iter().any(|f| f.client);
    fits.retain(|f| f.client == client);
    let n: u64 = fits.iter().map(|f| f.n).sum();
    if n == 0 {
        return Err(
            InputError::new("captures", "none has both the client's and the engine's times")
                .allowed("captures made with 'kneeboard import --engine'"),
        );
    }
    let mean =
        |value: fn(&FrontEndFit) -> f64| fits.iter().map(|f| value(f) * f.n as f64).sum::<f64>() / n as f64;
    Ok(FrontEndFit {
        inbound_s: mean(|f| f.inbound_s),
        inbound_median_s: mean(|f| f.inbound_median_s),
        outbound_s: mean(|f| f.outbound_s),
        outbound_median_s: mean(|f| f.outbound_median_s),
        per_output_token_s: mean(|f| f.per_output_token_s),
        n,
        client,
    })
}
