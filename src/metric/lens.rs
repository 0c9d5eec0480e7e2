//! Other tools' figures, recomputed by their own definitions from an imported run.
//!
//! The same word means different things (contract, section 7; rules M13 to M35): "ITL" is a gap in vLLM's client,
//! a mean of a request in aiperf, weighted by tokens in guidellm, and E2E / n in llmperf. Each figure here has the
//! name and the unit under which its tool writes it, so that an import can be checked against what was printed.

use crate::record::import::{ClientRequest, ClientRun, Tool};

/// A figure under its tool's name.
#[derive(Debug, Clone, PartialEq)]
pub struct LensFigure {
    /// As the tool's file has it.
    pub name: String,
    /// As the tool printed it.
    pub printed: f64,
    /// From the imported requests.
    pub recomputed: Option<f64>,
}

impl LensFigure {
    /// Relative distance of the recomputed figure from the printed one.
    pub fn relative_error(&self) -> Option<f64> {
        let difference = (self.recomputed? - self.printed).abs();
        Some(if self.printed == 0.0 {
            difference
        } else {
            difference / self.printed.abs()
        })
    }
}

/// Every figure that the tool printed and that follows from its requests.
pub fn figures(run: &ClientRun) -> Vec<LensFigure> {
    let lens = Lens::of(run);
    run.printed
        .iter()
        .filter_map(|(name, printed)| {
            Some(LensFigure {
                name: name.clone(),
                printed: *printed,
                recomputed: Some(lens.figure(name)?),
            })
        })
        .collect()
}

/// The figures of these names by the definitions of the run's tool; `None` for one that the tool does not have or that
/// the run does not give.
pub fn figures_named<'n>(
    run: &ClientRun,
    names: impl IntoIterator<Item = &'n str>,
) -> Vec<(&'n str, Option<f64>)> {
    let lens = Lens::of(run);
    names.into_iter().map(|name| (name, lens.figure(name))).collect()
}

/// The completed requests of a run, in the terms that the definitions share. Seconds.
struct Lens<'a> {
    run: &'a ClientRun,
    done: Vec<&'a ClientRequest>,
}

fn ttft(r: &ClientRequest) -> Option<f64> {
    Some(r.first_s? - r.sent_s)
}

fn latency(r: &ClientRequest) -> Option<f64> {
    Some(r.last_s? - r.sent_s)
}

/// From send to the end of the answer, usage and `[DONE]` included.
fn until_end(r: &ClientRequest) -> Option<f64> {
    Some(r.end_s? - r.sent_s)
}

fn decode_span(r: &ClientRequest) -> Option<f64> {
    Some(r.last_s? - r.first_s?)
}

fn after_first(r: &ClientRequest) -> Option<f64> {
    (r.counted_tokens > 1).then(|| f64::from(r.counted_tokens - 1))
}

/// (latency - TTFT) / (n - 1).
fn tpot(r: &ClientRequest) -> Option<f64> {
    Some(decode_span(r)? / after_first(r)?)
}

/// Gaps between chunks.
fn gaps(r: &ClientRequest) -> impl Iterator<Item = f64> + '_ {
    r.chunks_s.windows(2).map(|w| w[1] - w[0])
}

impl<'a> Lens<'a> {
    fn of(run: &'a ClientRun) -> Self {
        Self {
            run,
            done: run.completed().collect(),
        }
    }

    /// A figure by the name that the tool gives it.
    fn figure(&self, name: &str) -> Option<f64> {
        match self.run.tool {
            Tool::VllmBench => self.vllm(name),
            Tool::Guidellm => self.guidellm(name),
            Tool::Aiperf => self.aiperf(name),
            Tool::GenaiPerf => self.genai_perf(name),
            Tool::InferencePerf => self.inference_perf(name),
            Tool::Llmperf => self.llmperf(name),
            Tool::Csv => None,
        }
    }

    fn each(&self, value: impl Fn(&ClientRequest) -> Option<f64>) -> Vec<f64> {
        self.done.iter().filter_map(|r| value(r)).collect()
    }

    fn all_gaps(&self) -> Vec<f64> {
        self.done.iter().flat_map(|r| gaps(r)).collect()
    }

    fn n(&self) -> f64 {
        self.done.len() as f64
    }

    fn input(&self) -> f64 {
        self.done
            .iter()
            .filter_map(|r| r.input_tokens)
            .map(f64::from)
            .sum()
    }

    fn counted(&self) -> f64 {
        self.done.iter().map(|r| f64::from(r.counted_tokens)).sum()
    }

    /// From the first send to the last instant that `end` gives.
    fn span(&self, end: impl Fn(&ClientRequest) -> Option<f64>) -> Option<f64> {
        let ends = self.each(end);
        let starts = self.each(|r| Some(r.sent_s));
        let span = max(&ends)? - min(&starts)?;
        (span > 0.0).then_some(span)
    }

    /// `vllm bench serve`: mean_, median_, std_ or pNN_ of a latency, in ms (rules M13 to M17).
    fn vllm(&self, name: &str) -> Option<f64> {
        let duration = self.run.duration_s.filter(|d| *d > 0.0);
        let output: f64 = self.done.iter().map(|r| f64::from(r.output_tokens)).sum();
        match name {
            "completed" => return Some(self.n()),
            "total_input_tokens" => return Some(self.input()),
            "total_output_tokens" => return Some(output),
            "request_throughput" => return Some(self.n() / duration?),
            "output_throughput" => return Some(output / duration?),
            "total_token_throughput" => return Some((self.input() + output) / duration?),
            "max_output_tokens_per_s" => return self.fullest_second(),
            "max_concurrent_requests" => return self.most_in_a_second(),
            _ => {}
        }
        let (statistic, metric) = name.strip_suffix("_ms")?.split_once('_')?;
        let mut values = match metric {
            "ttft" => self.each(ttft),
            "tpot" => self.each(tpot),
            "itl" => self.all_gaps(),
            "e2el" => self.each(latency),
            "client_queue_time" => self.each(|r| r.queued_s),
            "e2el_including_client_queue" => self.each(|r| Some(r.queued_s? + latency(r)?)),
            _ => return None,
        };
        Some(statistic_of(&mut values, statistic, Spread::Population)? * 1e3)
    }

    /// Chunks in the fullest second, counted from the first send (rule M17).
    fn fullest_second(&self) -> Option<f64> {
        let bins = self
            .done
            .iter()
            .flat_map(|r| r.chunks_s.iter().map(|t| t.floor() as i64));
        let mut counts = std::collections::BTreeMap::<i64, u64>::new();
        bins.for_each(|bin| *counts.entry(bin).or_default() += 1);
        counts.values().max().map(|&n| n as f64)
    }

    /// Requests that touch the fullest second, both ends included (rule M17).
    fn most_in_a_second(&self) -> Option<f64> {
        let mut counts = std::collections::BTreeMap::<i64, u64>::new();
        for r in &self.done {
            let (from, to) = (r.sent_s.floor() as i64, r.last_s?.floor() as i64);
            (from..=to).for_each(|bin| *counts.entry(bin).or_default() += 1);
        }
        counts.values().max().map(|&n| n as f64)
    }

    /// guidellm: `METRIC.successful.STAT`; latencies of the run in s, all else in ms. Percentiles are the first
    /// value whose share of the weight reaches the level; ITL and TPOT weigh by tokens.
    fn guidellm(&self, name: &str) -> Option<f64> {
        let (metric, statistic) = name.split_once(".successful.")?;
        let statistic = statistic.strip_prefix("percentiles.").unwrap_or(statistic);
        let span = || self.span(|r| r.end_s);
        let rate = |total: f64| Some(total / span()?).filter(|_| statistic == "mean");
        let even = |value: fn(&ClientRequest) -> Option<f64>, scale: f64| {
            self.done
                .iter()
                .filter_map(|r| Some((value(r)? * scale, 1.0)))
                .collect::<Vec<_>>()
        };
        let weighted = match metric {
            "requests_per_second" => return rate(self.n()),
            "output_tokens_per_second" => return rate(self.counted()),
            "prompt_tokens_per_second" => return rate(self.input()),
            "tokens_per_second" => return rate(self.input() + self.counted()),
            "request_latency" => even(until_end, 1.0),
            "time_to_first_token_ms" => even(ttft, 1e3),
            "inter_token_latency_ms" => self
                .done
                .iter()
                .filter_map(|r| Some((tpot(r)? * 1e3, after_first(r)?)))
                .collect(),
            "time_per_output_token_ms" => self
                .done
                .iter()
                .filter(|r| r.counted_tokens > 0)
                .filter_map(|r| {
                    let n = f64::from(r.counted_tokens);
                    Some((latency(r)? / n * 1e3, n))
                })
                .collect(),
            "prompt_token_count" => even(|r| r.input_tokens.map(f64::from), 1.0),
            "output_token_count" => even(|r| Some(f64::from(r.counted_tokens)), 1.0),
            _ => return None,
        };
        weighted_statistic(weighted, statistic)
    }

    /// aiperf: `METRIC.STAT`, ms; the standard deviation is that of the population.
    fn aiperf(&self, name: &str) -> Option<f64> {
        let (metric, statistic) = name.split_once('.')?;
        // Throughputs divide by the span between the file's two instants, which is longer than the requests'.
        let duration = self.run.duration_s.filter(|d| *d > 0.0);
        let mean = |value: Option<f64>| value.filter(|_| statistic == "avg");
        let mut values = match metric {
            "request_count" => return mean(Some(self.n())),
            "request_throughput" => return mean(Some(self.n() / duration?)),
            "output_token_throughput" => return mean(Some(self.counted() / duration?)),
            "total_output_tokens" | "total_osl" => return mean(Some(self.counted())),
            "total_isl" => return mean(Some(self.input())),
            "benchmark_duration" => return mean(self.span(|r| r.last_s)),
            "time_to_first_token" => scaled(self.each(ttft), 1e3),
            "request_latency" => scaled(self.each(latency), 1e3),
            "inter_token_latency" => scaled(self.each(tpot), 1e3),
            "inter_chunk_latency" => scaled(self.all_gaps(), 1e3),
            "time_to_second_token" => scaled(self.each(|r| gaps(r).next()), 1e3),
            "output_sequence_length" | "output_token_count" => {
                self.each(|r| Some(f64::from(r.counted_tokens)))
            }
            "input_sequence_length" => self.each(|r| r.input_tokens.map(f64::from)),
            _ => return None,
        };
        statistic_of(&mut values, statistic, Spread::Population)
    }

    /// genai-perf: `METRIC.STAT`, ms. What its own tokenizer counted cannot be recomputed.
    fn genai_perf(&self, name: &str) -> Option<f64> {
        let (metric, statistic) = name.split_once('.')?;
        let mut values = match metric {
            "request_count" => return Some(self.n()).filter(|_| statistic == "avg"),
            "request_throughput" => {
                return Some(self.n() / self.span(|r| r.last_s)?).filter(|_| statistic == "avg");
            }
            "time_to_first_token" => scaled(self.each(ttft), 1e3),
            "request_latency" => scaled(self.each(latency), 1e3),
            "time_to_second_token" => scaled(self.each(|r| gaps(r).next()), 1e3),
            _ => return None,
        };
        statistic_of(&mut values, statistic, Spread::Population)
    }

    /// inference-perf: `successes.latency.METRIC.STAT` and `successes.throughput.METRIC`, seconds.
    fn inference_perf(&self, name: &str) -> Option<f64> {
        if let Some(metric) = name.strip_prefix("successes.throughput.") {
            let span = self.span(|r| r.end_s)?;
            return Some(match metric {
                "requests_per_sec" => self.n() / span,
                "input_tokens_per_sec" => self.input() / span,
                "output_tokens_per_sec" => self.counted() / span,
                "total_tokens_per_sec" => (self.input() + self.counted()) / span,
                _ => return None,
            });
        }
        let (metric, statistic) = name.strip_prefix("successes.latency.")?.split_once('.')?;
        let mut values = match metric {
            "request_latency" => self.each(until_end),
            "time_to_first_token" => self.each(ttft),
            "time_per_output_token" => self.each(tpot),
            "inter_token_latency" => self.all_gaps(),
            "normalized_time_per_output_token" => {
                let n = |r: &ClientRequest| (r.counted_tokens > 0).then(|| f64::from(r.counted_tokens));
                self.each(|r| Some(until_end(r)? / n(r)?))
            }
            _ => return None,
        };
        statistic_of(&mut values, statistic, Spread::Population)
    }

    /// llmperf: `results_METRIC_STAT`, seconds; pandas' standard deviation is that of a sample (rule M32).
    fn llmperf(&self, name: &str) -> Option<f64> {
        let name = name.strip_prefix("results_")?;
        let n = |r: &ClientRequest| (r.counted_tokens > 0).then(|| f64::from(r.counted_tokens));
        let known: [(&str, Vec<f64>); 6] = [
            ("ttft_s_", self.each(ttft)),
            ("end_to_end_latency_s_", self.each(latency)),
            ("inter_token_latency_s_", self.each(|r| Some(latency(r)? / n(r)?))),
            (
                "number_input_tokens_",
                self.each(|r| r.input_tokens.map(f64::from)),
            ),
            ("number_output_tokens_", self.each(n)),
            (
                "request_output_throughput_token_per_s_",
                self.each(|r| Some(n(r)? / latency(r).filter(|l| *l > 0.0)?)),
            ),
        ];
        let started = self.run.requests.len() as f64;
        let duration = self.run.duration_s.filter(|d| *d > 0.0);
        match name {
            "num_completed_requests" => return Some(self.n()),
            // Not those that were sent: the answers that it counted.
            "num_requests_started" => return Some(started),
            "number_errors" => return Some(started - self.n()),
            "error_rate" => return (started > 0.0).then(|| (started - self.n()) / started),
            "mean_output_throughput_token_per_s" => return Some(self.counted() / duration?),
            "num_completed_requests_per_min" => return Some(self.n() / duration? * 60.0),
            _ => {}
        }
        let (statistic, mut values) = known
            .into_iter()
            .find_map(|(prefix, v)| Some((name.strip_prefix(prefix)?.to_owned(), v)))?;
        let statistic = statistic.strip_prefix("quantiles_").unwrap_or(&statistic);
        statistic_of(&mut values, statistic, Spread::Sample)
    }
}

fn scaled(mut values: Vec<f64>, by: f64) -> Vec<f64> {
    values.iter_mut().for_each(|v| *v *= by);
    values
}

/// Which standard deviation.
#[derive(Clone, Copy)]
pub(super) enum Spread {
    /// Divided by n.
    Population,
    /// Divided by n - 1.
    Sample,
}

/// A statistic by the names that tools give it; percentiles interpolate linearly as numpy's.
pub(super) fn statistic_of(values: &mut [f64], statistic: &str, spread: Spread) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    values.sort_by(f64::total_cmp);
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    match statistic {
        "mean" | "avg" => Some(mean),
        "median" => percentile(values, 50.0),
        "min" => values.first().copied(),
        "max" => values.last().copied(),
        "sum" => Some(values.iter().sum()),
        "count" => Some(n),
        "std" | "stddev" => {
            let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
            let divisor = match spread {
                Spread::Population => n,
                Spread::Sample => n - 1.0,
            };
            (divisor > 0.0).then(|| (squares / divisor).sqrt())
        }
        other => {
            let level: f64 = other.strip_prefix('p')?.parse().ok()?;
            percentile(values, level)
        }
    }
}

/// The percentile at `level` per cent of sorted values, linear between neighbours.
fn percentile(sorted: &[f64], level: f64) -> Option<f64> {
    if !(0.0..=100.0).contains(&level) {
        return None;
    }
    let place = (sorted.len() - 1) as f64 * level / 100.0;
    let (below, share) = (place.floor() as usize, place.fract());
    let low = *sorted.get(below)?;
    let high = sorted.get(below + 1).copied().unwrap_or(low);
    Some(low + (high - low) * share)
}

/// guidellm's statistics of (value, weight): the percentile is the first value at which the share of the weight
/// reaches the level.
fn weighted_statistic(mut values: Vec<(f64, f64)>, statistic: &str) -> Option<f64> {
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let weight: f64 = values.iter().map(|v| v.1).sum();
    if weight <= 0.0 {
        return None;
    }
    let sum: f64 = values.iter().map(|v| v.0 * v.1).sum();
    let level = match statistic {
        "mean" => return Some(sum / weight),
        "total_sum" => return Some(sum),
        "count" => return Some(weight),
        "min" => return values.first().map(|v| v.0),
        "max" => return values.last().map(|v| v.0),
        "variance" | "std_dev" => {
            let mean = sum / weight;
            let variance = values.iter().map(|v| v.1 * (v.0 - mean).powi(2)).sum::<f64>() / weight;
            return Some(if statistic == "variance" {
                variance
            } else {
                variance.sqrt()
            });
        }
        "median" => 0.5,
        // p001 is 0.1 %, p50 is 50 %, p999 is 99.9 %.
        other => {
            let digits = other.strip_prefix('p')?;
            let share: f64 = digits.parse().ok()?;
            share / 10f64.powi(i32::try_from(digits.len()).ok()?)
        }
    };
    let mut reached = 0.0;
    for (value, w) in &values {
        reached += w;
        if reached / weight >= level - 1e-12 {
            return Some(*value);
        }
    }
    values.last().map(|v| v.0)
}

fn max(values: &[f64]) -> Option<f64> {
    values.iter().copied().reduce(f64::max)
}

fn min(values: &[f64]) -> Option<f64> {
    values.iter().copied().reduce(f64::min)
}

#[cfg(test)]
#[path = "lens_tests.rs"]
mod tests;
