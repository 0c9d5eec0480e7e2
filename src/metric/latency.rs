//! Latencies of requests, each as an exact sample of nanoseconds.
//!
//! Populations (contract, section 7): a latency is recorded for every measured request that reached both of
//! its ends. TTFT, queue time and gaps therefore include requests cut off later; TPOT and E2E are of completed
//! requests.

use super::percentile::Sample;
use super::window::Window;
use crate::record::{RequestRecord, RunRecord, Status, TokenLog};
use crate::units::{SimDuration, SimTime};

/// Time to first token from the intended arrival.
pub fn ttft(request: &RequestRecord) -> Option<SimDuration> {
    request.first_token.map(|t| t.since(request.scheduled))
}

/// End-to-end time of a completed request from the intended arrival.
pub fn e2e(request: &RequestRecord) -> Option<SimDuration> {
    completed_at(request).map(|t| t.since(request.scheduled))
}

/// The decode span and the number of tokens after the first, whose ratio is TPOT. `None` unless the request
/// completed with at least two output tokens.
pub fn tpot_parts(request: &RequestRecord) -> Option<(SimDuration, u64)> {
    let (first, last) = (request.first_token?, completed_at(request)?);
    let after_first = u64::from(request.output_tokens)
        .checked_sub(1)
        .filter(|&n| n > 0)?;
    Some((last.since(first), after_first))
}

/// When a completed request ended.
fn completed_at(request: &RequestRecord) -> Option<SimTime> {
    request.last_token.filter(|_| request.status == Status::Completed)
}

/// The request has a token log (token times can be left out of a run folder to save space).
pub fn keeps_tokens(request: &RequestRecord) -> bool {
    match &request.tokens {
        TokenLog::Segments(segments) => !segments.is_empty(),
        TokenLog::Times(times) => !times.is_empty(),
    }
}

/// One thing for each latency.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct PerLatency<T> {
    pub ttft: T,
    pub ttft_from_send: T,
    pub itl: T,
    pub tpot: T,
    pub e2e: T,
    pub e2e_from_send: T,
    pub stall: T,
    pub queue: T,
    pub prefill: T,
    pub send_lag: T,
    pub step: T,
}

impl<T> PerLatency<T> {
    /// The same for each, with its name.
    pub fn map<U>(self, mut f: impl FnMut(&'static str, T) -> U) -> PerLatency<U> {
        PerLatency {
            ttft: f("ttft", self.ttft),
            ttft_from_send: f("ttft_from_send", self.ttft_from_send),
            itl: f("itl", self.itl),
            tpot: f("tpot", self.tpot),
            e2e: f("e2e", self.e2e),
            e2e_from_send: f("e2e_from_send", self.e2e_from_send),
            stall: f("stall", self.stall),
            queue: f("queue", self.queue),
            prefill: f("prefill", self.prefill),
            send_lag: f("send_lag", self.send_lag),
            step: f("step", self.step),
        }
    }
}

/// Takes in values.
pub(super) trait Pool {
    /// One more value.
    fn note(&mut self, nanoseconds: u64);
}

impl Pool for Vec<u64> {
    fn note(&mut self, nanoseconds: u64) {
        self.push(nanoseconds);
    }
}

impl<P: Pool> PerLatency<P> {
    /// Notes all latencies of a measured request but its gaps; `longest_gap_ns` is the longest of them.
    pub fn note(&mut self, r: &RequestRecord, longest_gap_ns: Option<u64>) {
        let note = |pool: &mut P, span: Option<SimDuration>| {
            if let Some(span) = span {
                pool.note(span.as_nanos());
            }
        };
        note(&mut self.ttft, ttft(r));
        note(&mut self.ttft_from_send, r.first_token.map(|t| t.since(r.sent)));
        let tpot = tpot_parts(r).map(|(span, n)| SimDuration((span.as_nanos() + n / 2) / n));
        note(&mut self.tpot, tpot);
        note(&mut self.e2e, e2e(r));
        note(&mut self.e2e_from_send, completed_at(r).map(|t| t.since(r.sent)));
        note(&mut self.stall, longest_gap_ns.map(SimDuration));
        let queue = r.first_scheduled.zip(r.enqueued).map(|(to, from)| to.since(from));
        note(&mut self.queue, queue);
        let prefill = r
            .first_token
            .zip(r.first_scheduled)
            .map(|(to, from)| to.since(from));
        note(&mut self.prefill, prefill);
        note(
            &mut self.send_lag,
            r.sent_at().map(|sent| sent.since(r.scheduled)),
        );
    }
}

/// The times to first token of the requests that arrive in the window.
pub fn ttft_sample(run: &RunRecord, window: &Window) -> Sample {
    let measured = window.select(run);
    Sample::from_values(measured.filter_map(|r| Some(ttft(r)?.as_nanos())))
}

/// Durations in nanoseconds of the steps that start in the window, replicas pooled, in no particular order.
pub(super) fn step_durations(run: &RunRecord, window: Window) -> impl Iterator<Item = u64> + Clone + '_ {
    let steps = run
        .replicas
        .iter()
        .flat_map(|r| r.step_starts.iter().zip(&r.step_ends));
    steps
        .filter(move |(start, _)| window.contains(**start))
        .map(|(&start, &end)| end.since(start).as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::fixture::{MS, expand, random_run, three_requests};
    use crate::metric::tokens::{ChunkInstants, TokenGaps};
    use proptest::prelude::*;

    fn of(run: &RunRecord) -> PerLatency<Sample> {
        let gaps = TokenGaps::new(run, None);
        let mut values = PerLatency::<Vec<u64>>::default();
        for r in &run.requests {
            values.note(r, gaps.profile(r, None).longest_ns);
        }
        values.step = step_durations(run, Window::WHOLE).collect();
        let mut samples = values.map(|_, values| Sample::from_values(values));
        samples.itl = gaps.pooled(&run.requests);
        assert_eq!(samples.ttft, ttft_sample(run, &Window::WHOLE));
        samples
    }

    fn in_ms(sample: &Sample) -> Vec<(f64, u64)> {
        sample.counts().map(|(v, c)| (v as f64 / MS as f64, c)).collect()
    }

    #[test]
    fn the_timeline_by_hand() {
        let latencies = of(&three_requests());
        assert_eq!(in_ms(&latencies.ttft), [(10.0, 1), (16.0, 1), (19.0, 1)]);
        assert_eq!(
            in_ms(&latencies.ttft_from_send),
            [(10.0, 1), (14.0, 1), (19.0, 1)]
        );
        assert_eq!(in_ms(&latencies.itl), [(8.0, 3), (14.0, 1)]);
        assert_eq!(in_ms(&latencies.tpot), [(5.5, 1), (8.0, 1)]);
        assert_eq!(in_ms(&latencies.e2e), [(19.0, 1), (26.0, 1), (38.0, 1)]);
        assert_eq!(in_ms(&latencies.e2e_from_send), [(19.0, 1), (26.0, 1), (36.0, 1)]);
        assert_eq!(in_ms(&latencies.stall), [(8.0, 1), (14.0, 1)]);
        assert_eq!(in_ms(&latencies.queue), [(0.0, 1), (6.0, 1), (9.0, 1)]);
        assert_eq!(in_ms(&latencies.prefill), [(8.0, 1), (10.0, 2)]);
        assert_eq!(in_ms(&latencies.send_lag), [(0.0, 3), (2.0, 1)]);
        assert_eq!(in_ms(&latencies.step), [(8.0, 2), (10.0, 2), (14.0, 1)]);
    }

    #[test]
    fn itl_and_tpot_weigh_requests_differently() {
        // Two requests of one timeline: a long one at 8 ms a token, a short one at 14 ms. TPOT weighs them
        // alike, ITL by their gaps.
        let mut run = three_requests();
        run.requests.truncate(2);
        let spaced = |step: u64, n: u64| TokenLog::Times((0..n).map(|i| SimTime(i * step * MS)).collect());
        for (request, step, n) in [(0, 8, 6), (1, 14, 2)] {
            let r = &mut run.requests[request];
            r.tokens = spaced(step, n);
            (r.first_token, r.last_token) = (Some(SimTime(0)), Some(SimTime(step * (n - 1) * MS)));
            r.output_tokens = n as u32;
        }
        let latencies = of(&run);
        assert_eq!(latencies.tpot.mean(), Some(11.0 * MS as f64));
        assert_eq!(latencies.itl.mean(), Some(9.0 * MS as f64));
    }

    #[test]
    fn an_unfinished_request_has_a_ttft_but_no_e2e() {
        let mut run = three_requests();
        run.requests[1].status = Status::Unfinished;
        let latencies = of(&run);
        assert_eq!(
            (latencies.ttft.n(), latencies.e2e.n(), latencies.tpot.n()),
            (3, 2, 1)
        );
    }

    proptest! {
        #[test]
        fn gaps_by_segments_equal_gaps_by_expanded_times(run in random_run()) {
            let by_segments = of(&run);
            let by_times = of(&expand(&run));
            prop_assert_eq!(by_segments, by_times);
        }

        #[test]
        fn questions_about_one_request_equal_those_of_its_times(run in random_run(), limit in 0u64..40, at in 0u64..300) {
            let expanded = expand(&run);
            let (gaps, naive) = (TokenGaps::new(&run, Some(limit)), TokenGaps::new(&expanded, Some(limit)));
            for (a, b) in run.requests.iter().zip(&expanded.requests) {
                prop_assert_eq!(gaps.profile(a, Some(limit)), naive.profile(b, Some(limit)));
                let (from, to) = (SimTime(at), SimTime(at + 50));
                prop_assert_eq!(gaps.tokens_within(a, from, to), naive.tokens_within(b, from, to));
            }
            let sum = |chunks: ChunkInstants<'_>| Sample::from_counts(chunks.counts().map(|(t, n)| (t.0, n)).collect());
            prop_assert_eq!(sum(gaps.chunks(&run.requests)), sum(naive.chunks(&expanded.requests)));
        }

        /// The end-to-end time is the first token's plus every gap after it, to the nanosecond.
        #[test]
        fn e2e_is_ttft_plus_gaps(run in random_run()) {
            let gaps = TokenGaps::new(&run, None);
            for request in &run.requests {
                if let (Some(ttft), Some(e2e)) = (ttft(request), e2e(request)) {
                    let between = gaps.pooled([request]).sum();
                    prop_assert_eq!(u128::from(e2e.as_nanos()), u128::from(ttft.as_nanos()) + between);
                }
            }
        }
    }
}
