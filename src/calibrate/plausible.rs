//! Times that no server shows: units mixed up, or durations where points in time belong.

use std::path::Path;

use super::assume::TimeUnit;
use super::robust::median;
use super::rows::CaptureRequest;
use crate::input::InputError;

/// A median TTFT above this is a queue of hours, or milliseconds read as seconds.
const LONGEST_TTFT_S: f64 = 1000.0;
/// A median TTFT above this cannot be a queue when the requests took less time to arrive than it lasts.
const LONG_TTFT_S: f64 = 60.0;
/// A median time per token above this is milliseconds read as seconds.
const LONGEST_TPOT_S: f64 = 3.0;
/// A median time per token below this is seconds read as milliseconds: a million tokens a second and request.
const SHORTEST_TPOT_S: f64 = 1e-6;
/// Clocks of the two ends of a request may differ in the last digit written.
const ROUNDING_S: f64 = 2e-6;

/// Checks the times of requests seen by a client. A unit that the manifest states is believed.
///
/// # Errors
/// [`InputError`] that says what is odd and how to mend it.
pub(super) fn check(
    path: &Path,
    requests: &[CaptureRequest],
    stated: Option<TimeUnit>,
) -> Result<(), InputError> {
    let served = || requests.iter().filter(|r| !r.failed);
    let early = served()
        .filter(|r| r.first_token_s.is_some_and(|t| t < r.arrival_s - ROUNDING_S))
        .count();
    if early > 0 {
        return Err(InputError::in_file(
            path,
            format!("{early} requests have a first token before their arrival"),
        )
        .at("first_token_s")
        .allowed(
            "arrival_s, first_token_s and last_token_s are points in time on one clock, in one unit; for columns that \
             hold durations use 'kneeboard import --columns ttft_s=…,e2e_s=…'",
        ));
    }
    let ttft: Vec<f64> = served()
        .filter_map(|r| Some(r.first_token_s? - r.arrival_s))
        .collect();
    let tpot: Vec<f64> = served()
        .filter(|r| r.output_tokens > 1)
        .filter_map(|r| Some((r.last_token_s? - r.first_token_s?) / f64::from(r.output_tokens - 1)))
        .collect();
    if stated.is_some() {
        // A stated unit is believed, but no machine makes a token in less than 20 us, and no client waits a day.
        let impossible =
            median(&tpot).is_some_and(|t| t < 2e-5) || median(&ttft).is_some_and(|t| t > 86_400.0);
        return if impossible {
            Err(
                InputError::in_file(path, "holds times that no machine has in the stated unit")
                    .at("time_unit")
                    .allowed("the unit that the columns are really in: s, ms, us or ns"),
            )
        } else {
            Ok(())
        };
    }
    let arrivals = served().map(|r| r.arrival_s);
    let span = arrivals.clone().fold(0.0, f64::max) - arrivals.fold(f64::INFINITY, f64::min);
    judge(median(&ttft), median(&tpot), span).map_or(Ok(()), |(found, unit)| {
        Err(InputError::in_file(path, found)
            .at("first_token_s")
            .allowed(format!(
                "times are in seconds; if these are {unit}, say \"time_unit\": \"{unit}\" in manifest.json (and \
                 \"time_unit\": \"s\" if they are right)"
            )))
    })
}

/// What is odd about the medians, and the unit that they are likely in.
fn judge(ttft: Option<f64>, tpot: Option<f64>, span: f64) -> Option<(String, &'static str)> {
    if let Some(tpot) = tpot {
        if tpot > LONGEST_TPOT_S {
            return Some((format!("the median time per output token is {tpot} s"), "ms"));
        }
        // Answers that came in one piece have no time between tokens at all.
        if tpot > 0.0 && tpot < SHORTEST_TPOT_S {
            return Some((
                format!(
                    "the median time per output token is {tpot:e} s, a million tokens a second for one request"
                ),
                "s, and something else was divided",
            ));
        }
    }
    let ttft = ttft?;
    if ttft > LONGEST_TTFT_S {
        return Some((format!("the median TTFT is {ttft} s"), "ms"));
    }
    if ttft > LONG_TTFT_S && span < ttft && tpot.is_none_or(|t| t > 1.0) {
        return Some((
            format!("the median TTFT is {ttft} s while all requests arrived within {span} s"),
            "ms",
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::judge;

    #[test]
    fn units_are_told_by_plausibility() {
        // 80 ms and 8 ms a token, as milliseconds.
        assert!(
            judge(Some(80.0), Some(8.0), 20_000.0)
                .unwrap()
                .0
                .contains("per output token")
        );
        assert!(judge(Some(1500.0), None, 20_000.0).unwrap().0.contains("TTFT"));
        assert!(judge(Some(0.0001), Some(1e-7), 20.0).is_some());
        // Single tokens, all sent at once: nothing else could tell.
        assert!(judge(Some(90.0), None, 3.0).is_some());
        // A burst that drains for minutes, a slow host, an answer in one piece.
        assert!(judge(Some(90.0), Some(0.05), 3.0).is_none());
        assert!(judge(Some(2.0), Some(1.5), 100.0).is_none());
        assert!(judge(Some(2.0), Some(0.0), 100.0).is_none());
    }
}
