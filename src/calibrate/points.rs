//! Summary rows of benchmarks: what was served, how it was loaded, what was printed. Empty cells are unknown.

use std::path::Path;

use rand::RngExt;
use rand_distr::{Distribution, Exp};

use super::observed::{Figure, Metric, Observation, ObservedRun, Stat};
use super::scatter::scatter;
use super::table::{Row, Table};
use crate::input::{InputError, nearest, read_text};
use crate::profile::catalog;
use crate::rng::{Purpose, stream};
use crate::scenario::schema::{Engine, Parallel, System};
use crate::scenario::{ResolvedSystem, resolve_system};
use crate::sim::LoadModel;
use crate::steptime::RooflineFit;
use crate::units::{SimDuration, SimTime};
use crate::workload::trace::{Prefix, Trace, TraceRequest};

const COLUMNS: &[&str] = &[
    "accelerator",
    "instance",
    "model",
    "dtype",
    "kv_dtype",
    "engine",
    "engine_version",
    "tp",
    "pp",
    "dp",
    "ep",
    "max_num_seqs",
    "max_num_batched_tokens",
    "load",
    "max_concurrency",
    "request_rate",
    "num_prompts",
    "input_len",
    "output_len",
    "length_jitter",
    "prefix_reuse",
    "ttft_ms",
    "tpot_ms",
    "e2e_ms",
    "throughput_tok_s",
    "statistic",
    "boundary",
];

/// Prompts a client of a closed loop where the row does not say how many there were.
const PROMPTS_PER_CLIENT: u32 = 10;
/// Requests of an open loop where the row does not say how many there were.
const OPEN_PROMPTS: u32 = 1000;
/// Half width of the lengths' uniform law where the row does not say it.
const DEFAULT_JITTER: f64 = 0.2;
/// Seed of the lengths and arrivals: rows of equal load see equal requests.
const SEED: u64 = 1;

/// Where the figures were taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boundary {
    /// By a client over HTTP.
    Client,
    /// At the engine.
    Engine,
}

/// One row, ready to be simulated.
#[derive(Debug, Clone)]
pub struct Point {
    /// Its number, from 0.
    pub row: usize,
    /// What is simulated and what was measured.
    pub run: ObservedRun,
    /// The row's statistic.
    pub stat: Stat,
    /// Its name.
    pub statistic: String,
    /// Where the figures were taken.
    pub boundary: Boundary,
    /// What the row does not say and was assumed, one sentence each.
    pub assumptions: Vec<String>,
}

/// What fills a row's silence.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PointDefaults {
    /// Accelerator profile.
    pub accelerator: Option<String>,
    /// vLLM release.
    pub engine_version: Option<String>,
    /// Number format of the KV cache.
    pub kv_dtype: Option<String>,
    /// The first request of each client of a closed loop, all sent at once, is in no figure. Benchmarks count it:
    /// published means of TTFT are met with it and missed by half without (docs/CALIBRATION.md, h200-fp8-vllm).
    pub drop_first_round: bool,
}

impl PointDefaults {
    /// The same, with what a fit speaks for where nothing is named: its one accelerator, release, KV format.
    #[must_use]
    pub fn or(self, fit: &RooflineFit) -> Self {
        let only = |list: &[String]| match list {
            [one] => Some(one.clone()),
            _ => None,
        };
        let speaks = &fit.speaks_for;
        let release = only(&speaks.engines).and_then(|e| e.strip_prefix("vllm ").map(str::to_owned));
        Self {
            accelerator: self.accelerator.or_else(|| only(&speaks.accelerators)),
            engine_version: self.engine_version.or(release),
            kv_dtype: self.kv_dtype.or_else(|| only(&speaks.kv_dtypes)),
            ..self
        }
    }
}

/// Reads a table of points, every row of which must be usable.
///
/// # Errors
/// [`InputError`] with line and column of what is missing, wrong or implausible.
pub fn read_points(path: &Path, defaults: &PointDefaults) -> Result<Vec<Point>, InputError> {
    read_rows(path, defaults)?.into_iter().collect()
}

/// Reads a table of points; a row that cannot be used is an error of its own and leaves the others alone.
///
/// # Errors
/// [`InputError`] when the table as a whole cannot be read.
pub fn read_rows(
    path: &Path,
    defaults: &PointDefaults,
) -> Result<Vec<Result<Point, InputError>>, InputError> {
    let text = read_text(path)?;
    let table = Table::open(path, &text, COLUMNS, |_, name| {
        matches!(name, "model" | "input_len" | "output_len")
    })?;
    refuse_lookalikes(path, &text)?;
    let points = table.read_rows(|index, row| Ok(point(index, row, path, defaults)))?;
    if points.is_empty() {
        return Err(InputError::in_file(path, "holds no row").allowed("at least one point"));
    }
    Ok(points)
}

/// Columns of no meaning here are left alone, but one that looks like a column that is absent is a slip.
fn refuse_lookalikes(path: &Path, text: &str) -> Result<(), InputError> {
    let header: Vec<&str> = text
        .lines()
        .next()
        .unwrap_or_default()
        .split(',')
        .map(|c| c.trim().trim_matches('"'))
        .collect();
    let absent = || COLUMNS.iter().copied().filter(|c| !header.contains(c));
    for column in header.iter().filter(|c| !COLUMNS.contains(c)) {
        if nearest(column, absent()).is_some() {
            return Err(
                InputError::in_file(path, format!("the column '{column}' is not known"))
                    .at("line 1")
                    .allowed(COLUMNS.join(", "))
                    .nearest_of(column, absent()),
            );
        }
    }
    Ok(())
}

fn point(index: usize, row: &Row<'_>, path: &Path, defaults: &PointDefaults) -> Result<Point, InputError> {
    let mut assumptions = Vec::new();
    let resolved = system(row, path, defaults, &mut assumptions)?;
    let load = load(row)?;
    let (stat, statistic) = statistic(row, &mut assumptions)?;
    let boundary = match row.text("boundary") {
        "client" | "serving" => Boundary::Client,
        "engine" => Boundary::Engine,
        "" => {
            assumptions.push("boundary = client".to_owned());
            Boundary::Client
        }
        other => {
            return Err(row
                .cell_error("boundary", format!("'{other}'"))
                .allowed("client or engine"));
        }
    };
    let requests = requests(row, load, &resolved, &mut assumptions)?;
    let first_round = match load {
        LoadModel::ClosedLoop { concurrency, .. }
            if defaults.drop_first_round && requests.len() > 2 * concurrency as usize =>
        {
            concurrency as usize
        }
        _ => 0,
    };
    let counted: Vec<bool> = (0..requests.len()).map(|i| i >= first_round).collect();
    let n = counted.iter().filter(|c| **c).count();
    let deployment = resolved.engine.deployment.clone().ok_or_else(|| {
        row.error("names no accelerator")
            .allowed("an accelerator or an instance profile")
    })?;
    let name = format!("row {index}");
    Ok(Point {
        row: index,
        run: ObservedRun {
            name,
            deployment,
            engine: resolved.engine.config,
            load,
            client_side: boundary == Boundary::Client,
            trace: Trace { requests },
            counted,
            observations: observations(row, stat, n)?,
        },
        stat,
        statistic,
        boundary,
        assumptions,
    })
}

/// The system of a row: what it says, the rest by vLLM's defaults.
fn system(
    row: &Row<'_>,
    path: &Path,
    defaults: &PointDefaults,
    assumptions: &mut Vec<String>,
) -> Result<ResolvedSystem, InputError> {
    let base = path.parent().unwrap_or(Path::new(""));
    let origin = format!("{}, {}", path.display(), row.line_text());
    let given = |column: &'static str| Some(row.text(column).to_owned()).filter(|t| !t.is_empty());
    if let Some(engine) = given("engine").filter(|e| !e.eq_ignore_ascii_case("vllm")) {
        return Err(row.cell_error("engine", format!("'{engine}'")).allowed("vllm"));
    }
    let accelerator = match (given("accelerator"), given("instance")) {
        (Some(name), _) => Some(name),
        (None, Some(instance)) => Some(catalog::instance(&instance, base)?.accelerator.value),
        (None, None) => {
            let name = defaults.accelerator.clone();
            if let Some(name) = &name {
                assumptions.push(format!("accelerator = {name}"));
            }
            name
        }
    };
    let version = match (given("engine_version"), &defaults.engine_version) {
        (Some(version), _) => Some(version),
        (None, Some(version)) => {
            assumptions.push(format!("engine_version = {version}"));
            Some(version.clone())
        }
        (None, None) => None,
    };
    let mut format = |column: &'static str, otherwise: Option<&String>| {
        let short = match (row.text(column), otherwise) {
            ("", Some(assumed)) => {
                assumptions.push(format!("{column} = {assumed}"));
                assumed.as_str()
            }
            ("", None) => "auto",
            ("bfloat16", _) => "bf16",
            ("float16" | "half", _) => "fp16",
            ("fp8_e4m3" | "fp8_e5m2", _) => "fp8",
            (other, _) => other,
        };
        serde_json::Value::String(short.to_owned())
    };
    let (dtype, kv_dtype) = (
        format("dtype", None),
        format("kv_dtype", defaults.kv_dtype.as_ref()),
    );
    let placed = |column: &str, e: InputError| row.cell_error(column, e.to_string());
    let system = System {
        model: given("model"),
        accelerator,
        dtype: Some(crate::yaml::from_value(dtype, &origin).map_err(|e| placed("dtype", e))?),
        kv_dtype: Some(crate::yaml::from_value(kv_dtype, &origin).map_err(|e| placed("kv_dtype", e))?),
        engine: Engine {
            version,
            max_num_seqs: optional_count(row, "max_num_seqs")?,
            max_num_batched_tokens: optional_count(row, "max_num_batched_tokens")?,
            // Prompts drawn at random share nothing; with reuse the cache must be on, which is the default.
            ..Engine::default()
        },
        parallel: Parallel {
            tp: optional_count(row, "tp")?,
            pp: optional_count(row, "pp")?,
            dp: optional_count(row, "dp")?,
            ep: optional_count(row, "ep")?,
        },
        ..System::default()
    };
    let resolved = match resolve_system(system.clone(), &origin, base) {
        Ok(resolved) => resolved,
        Err(whole) => {
            // Servers are started with a shorter max_model_len where the model's own does not fit the memory.
            let longest = longest_request(row)?.next_multiple_of(1024);
            let shorter = System {
                engine: Engine {
                    max_model_len: Some(longest),
                    ..system.engine.clone()
                },
                ..system
            };
            let resolved = resolve_system(shorter, &origin, base).map_err(|_| whole)?;
            assumptions.push(format!(
                "max_model_len = {longest} (the model's own does not fit; it holds the longest request)"
            ));
            resolved
        }
    };
    let e = &resolved.system.engine;
    for (knob, value) in [
        ("version", e.version.clone()),
        ("max_num_seqs", e.max_num_seqs.map(|v| v.to_string())),
        (
            "max_num_batched_tokens",
            e.max_num_batched_tokens.map(|v| v.to_string()),
        ),
        ("num_gpu_blocks", e.num_gpu_blocks.map(|v| v.to_string())),
        ("async_scheduling", e.async_scheduling.map(|v| v.to_string())),
    ] {
        if let (Some(source), Some(value)) = (resolved.assumed(knob), value) {
            assumptions.push(format!("{knob} = {value} ({source})"));
        }
    }
    Ok(resolved)
}

fn load(row: &Row<'_>) -> Result<LoadModel, InputError> {
    let concurrency = optional_count(row, "max_concurrency")?;
    let rate = optional_number(row, "request_rate")?;
    if rate.is_some_and(|r| !(1e-6..=1e6).contains(&r)) {
        return Err(row
            .cell_error("request_rate", row.text("request_rate"))
            .allowed("requests a second, above 0; nothing for a closed loop"));
    }
    match (row.text("load"), concurrency, rate) {
        ("closed" | "closed-loop", Some(concurrency), _) | ("", Some(concurrency), None) => {
            Ok(LoadModel::ClosedLoop {
                concurrency,
                think: SimDuration::ZERO,
            })
        }
        ("open" | "open-loop", _, Some(_)) | ("", None, Some(_)) => Ok(LoadModel::OpenLoop),
        ("closed" | "closed-loop", None, _) => Err(row
            .cell_error("max_concurrency", "is empty")
            .allowed("the number of clients of a closed loop")),
        ("open" | "open-loop", _, None) => Err(row
            .cell_error("request_rate", "is empty")
            .allowed("requests a second of an open loop")),
        ("", _, _) => Err(row
            .cell_error("load", "is empty")
            .allowed("closed with max_concurrency, or open with request_rate")),
        (other, _, _) => Err(row
            .cell_error("load", format!("'{other}'"))
            .allowed("closed or open")),
    }
}

fn statistic(row: &Row<'_>, assumptions: &mut Vec<String>) -> Result<(Stat, String), InputError> {
    let text = row.text("statistic");
    let stat = match text {
        "" => {
            assumptions.push("statistic = mean".to_owned());
            return Ok((Stat::Mean, "mean".to_owned()));
        }
        "mean" | "avg" | "average" => Stat::Mean,
        "median" | "p50" => Stat::Quantile(0.5),
        "p90" => Stat::Quantile(0.9),
        "p95" => Stat::Quantile(0.95),
        "p99" => Stat::Quantile(0.99),
        other => {
            return Err(row
                .cell_error("statistic", format!("'{other}'"))
                .allowed("mean, median, p90, p95 or p99"));
        }
    };
    Ok((stat, text.to_owned()))
}

/// The requests of a row: lengths uniform within the jitter, arrivals of a Poisson process where the loop is open.
fn requests(
    row: &Row<'_>,
    load: LoadModel,
    resolved: &ResolvedSystem,
    assumptions: &mut Vec<String>,
) -> Result<Vec<TraceRequest>, InputError> {
    let (input, output) = (needed_count(row, "input_len")?, needed_count(row, "output_len")?);
    let jitter = match optional_number(row, "length_jitter")? {
        Some(jitter) => jitter,
        None => {
            assumptions.push(format!("length_jitter = {DEFAULT_JITTER}"));
            DEFAULT_JITTER
        }
    };
    if !(0.0..=1.0).contains(&jitter) {
        return Err(row
            .cell_error("length_jitter", jitter.to_string())
            .allowed("a share of the length, 0 to 1"));
    }
    let reuse = optional_number(row, "prefix_reuse")?.unwrap_or(0.0);
    if !(0.0..=1.0).contains(&reuse) {
        return Err(row
            .cell_error("prefix_reuse", reuse.to_string())
            .allowed("the share of a prompt that others have too, 0 to 1"));
    }
    let count = match (optional_count(row, "num_prompts")?, load) {
        (Some(count), _) => count,
        (None, LoadModel::ClosedLoop { concurrency, .. }) => {
            assumptions.push(format!("num_prompts = {PROMPTS_PER_CLIENT} a client"));
            concurrency.saturating_mul(PROMPTS_PER_CLIENT)
        }
        (None, _) => {
            assumptions.push(format!("num_prompts = {OPEN_PROMPTS}"));
            OPEN_PROMPTS
        }
    };
    if count > MAX_PROMPTS {
        return Err(row
            .cell_error("num_prompts", count.to_string())
            .allowed(format!("at most {MAX_PROMPTS}")));
    }
    let rate = optional_number(row, "request_rate")?;
    let gaps = Exp::new(rate.unwrap_or(1.0)).map_err(|e| row.cell_error("request_rate", e.to_string()))?;
    let mut lengths = stream(SEED, Purpose::Lengths, 0);
    let mut arrivals = stream(SEED, Purpose::Arrivals, 0);
    let mut draw = |length: u32| -> u32 {
        let spread = (f64::from(length) * jitter).floor() as u32;
        lengths.random_range(length - spread..=length + spread).max(1)
    };
    let longest = resolved.engine.config.max_model_len;
    let mut at = 0.0;
    let mut out = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let (input_tokens, output_tokens) = (draw(input), draw(output));
        if input_tokens + output_tokens > longest {
            return Err(row
                .cell_error("input_len", format!("{input_tokens} + {output_tokens} tokens"))
                .allowed(format!("prompt and answer within max_model_len {longest}")));
        }
        if load == LoadModel::OpenLoop {
            at += gaps.sample(&mut arrivals);
        }
        let arrival = SimTime::try_from_secs_f64(at).map_err(|e| row.error(e.to_string()))?;
        out.push(TraceRequest {
            prefix: (reuse > 0.0).then(|| Prefix {
                group: 0,
                shared_tokens: (f64::from(input) * reuse).floor() as u32,
                greedy_outputs: false,
            }),
            ..TraceRequest::plain(arrival, input_tokens, output_tokens)
        });
    }
    Ok(out)
}

/// Tokens of the longest request that a row's lengths can give.
fn longest_request(row: &Row<'_>) -> Result<u32, InputError> {
    let jitter = optional_number(row, "length_jitter")?
        .unwrap_or(DEFAULT_JITTER)
        .min(1.0);
    let most = |length: u32| length.saturating_add((f64::from(length) * jitter) as u32);
    let (input, output) = (needed_count(row, "input_len")?, needed_count(row, "output_len")?);
    Ok(most(input).saturating_add(most(output)).min(1 << 24))
}

/// Most requests of a row.
const MAX_PROMPTS: u32 = 1_000_000;

/// What the row measured, checked for units.
fn observations(row: &Row<'_>, stat: Stat, n: usize) -> Result<Vec<Observation>, InputError> {
    let mut out = Vec::new();
    for (column, metric, per_unit, range) in [
        ("ttft_ms", Metric::Ttft, 1e-3, (1.0, 3.6e6)),
        ("tpot_ms", Metric::Tpot, 1e-3, (0.5, 1e4)),
        ("e2e_ms", Metric::E2e, 1e-3, (1.0, 3.6e7)),
        ("throughput_tok_s", Metric::OutputThroughput, 1.0, (1e-3, 1e8)),
    ] {
        let Some(value) = optional_number(row, column)? else {
            continue;
        };
        if !(range.0..=range.1).contains(&value) {
            return Err(row
                .cell_error(column, format!("{value} is not plausible"))
                .allowed(format!(
                    "{} to {}; are these seconds, or microseconds? The column wants what its name says",
                    range.0, range.1
                )));
        }
        let figure = Figure {
            metric,
            stat: if metric == Metric::OutputThroughput {
                Stat::Value
            } else {
                stat
            },
        };
        // A printed figure is rounded, of unknown run-to-run spread, and its load is known but roughly.
        let log_sd = scatter(figure, n).hypot(if metric == Metric::Ttft { 0.08 } else { 0.02 });
        out.push(Observation {
            figure,
            value: value * per_unit,
            log_sd,
        });
    }
    same_units(row, &out)?;
    Ok(out)
}

/// Latencies of one row beside each other: seconds among milliseconds stand out, whatever the machine.
fn same_units(row: &Row<'_>, observed: &[Observation]) -> Result<(), InputError> {
    let of = |m: Metric| observed.iter().find(|o| o.figure.metric == m).map(|o| o.value);
    let (ttft, tpot, e2e) = (of(Metric::Ttft), of(Metric::Tpot), of(Metric::E2e));
    let wrong = |column: &str, found: &str| {
        Err(row.cell_error(column, found).allowed(
            "milliseconds in every latency column, as their names say: are these seconds, or is another column?",
        ))
    };
    // A prompt's first step takes about as long as a step that decodes, or longer.
    if ttft
        .zip(tpot)
        .is_some_and(|(ttft, tpot)| ttft < LEAST_TTFT * tpot)
    {
        return wrong("ttft_ms", "is far shorter than the time of one token");
    }
    let tokens = f64::from(needed_count(row, "output_len")?) - 1.0;
    let parts = match (ttft, tpot) {
        (Some(ttft), Some(tpot)) => ttft + tokens * tpot,
        (Some(ttft), None) => ttft,
        (None, Some(tpot)) => tokens * tpot,
        (None, None) => 0.0,
    };
    if e2e.is_some_and(|e2e| e2e * UNLIKE < parts) {
        return wrong(
            "e2e_ms",
            "is far shorter than the times to the first token and between tokens",
        );
    }
    if ttft.is_some() && tpot.is_some() && e2e.is_some_and(|e2e| e2e > UNLIKE * parts) {
        return wrong(
            "e2e_ms",
            "is far longer than the times to the first token and between tokens",
        );
    }
    Ok(())
}

/// Share of a token's time below which a time to first token is no such.
const LEAST_TTFT: f64 = 0.1;
/// Factor by which one statistic of a sum may differ from the sum of its parts' (a p99 of one, a mean of the other).
const UNLIKE: f64 = 20.0;

fn optional_number(row: &Row<'_>, column: &'static str) -> Result<Option<f64>, InputError> {
    let text = row.text(column);
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse::<f64>() {
        Ok(v) if v.is_finite() && v >= 0.0 => Ok(Some(v)),
        _ => Err(row
            .cell_error(column, format!("'{text}'"))
            .allowed("a number of at least 0, or nothing where it is unknown")),
    }
}

fn optional_count(row: &Row<'_>, column: &'static str) -> Result<Option<u32>, InputError> {
    match optional_number(row, column)? {
        None => Ok(None),
        // Tables of data frames write whole numbers as 16.0.
        Some(v) if (1.0..=1e9).contains(&v) && v.fract() <= 0.0 => Ok(Some(v as u32)),
        Some(v) => Err(row
            .cell_error(column, v.to_string())
            .allowed("a whole number from 1")),
    }
}

fn needed_count(row: &Row<'_>, column: &'static str) -> Result<u32, InputError> {
    optional_count(row, column)?.ok_or_else(|| {
        row.cell_error(column, "is empty")
            .allowed("a whole number from 1")
    })
}

#[cfg(test)]
#[path = "points_tests.rs"]
mod tests;
