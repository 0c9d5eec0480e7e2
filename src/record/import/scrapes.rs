//! Series of a server's gauges: `/metrics` scrapes as JSON lines, or a CSV table.
//!
//! JSON lines hold `unix_s` (or `t_s`) and `set`: the samples of the text exposition that changed since the line
//! before, by their full names with labels. A CSV table has a time column (`unix_s`, `t_s`, `time_s` or `t`, in
//! seconds), `running`, `waiting`, and if it has them `kv_usage` (0 to 1) or `kv_cache_pct` (0 to 100),
//! `finished`, `prompt_tokens`, `output_tokens` and `preemptions`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::{ClientRun, Clock};
use crate::input::{InputError, csv_line, read_text};
use crate::record::scrape::Scrape;

/// Readings of one server in the order of their times.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ScrapeSeries {
    /// The readings; their times start at the first.
    pub scrapes: Vec<Scrape>,
    /// When the first was taken, in seconds since 1970, where the file tells.
    pub first_unix_s: Option<f64>,
    /// When the first was taken on the file's own clock, in seconds.
    pub first_s: f64,
    /// The line of the file that each reading stands in.
    lines: Vec<u64>,
}

impl ScrapeSeries {
    /// The readings on the clock of a client's run, whose time 0 is its first send. `start_s` is the client's first
    /// send on the file's own clock, for files and tools that do not share one; without it and without a common
    /// clock the answer is `None`.
    pub fn on_clock_of(&self, run: &ClientRun, start_s: Option<f64>) -> Option<Vec<Scrape>> {
        let shift = match (start_s, self.first_unix_s, run.clock) {
            (Some(start), _, _) => self.first_s - start,
            (None, Some(unix), Clock::Unix) => unix - run.t0_s,
            _ => return None,
        };
        Some(self.shifted(shift))
    }

    /// Refuses readings of more running requests than there are seats.
    ///
    /// # Errors
    /// [`InputError`] with the file, which is `path`, and the line.
    pub fn check_seats(&self, path: &Path, seats: u64) -> Result<(), InputError> {
        let line_of_excess = self
            .scrapes
            .iter()
            .zip(&self.lines)
            .find(|(s, _)| s.running > seats as f64);
        match line_of_excess {
            Some((s, line)) => Err(wrong_reading(
                path,
                *line,
                "running",
                s.running,
                &format!("up to {seats}, the seats of the server (max_num_seqs of all its replicas)"),
            )),
            None => Ok(()),
        }
    }

    /// The readings with the first of them at `first_at_s`.
    pub fn shifted(&self, first_at_s: f64) -> Vec<Scrape> {
        let moved = |s: &Scrape| Scrape {
            at_s: s.at_s + first_at_s,
            ..*s
        };
        self.scrapes.iter().map(moved).collect()
    }
}

/// Reads a series, plain or gzipped.
///
/// # Errors
/// [`InputError`] for a file that is neither kind, has no running and waiting gauges, or goes back in time.
pub fn read_scrapes(path: &Path) -> Result<ScrapeSeries, InputError> {
    let text = read_text(path)?;
    let mut series = if text.trim_start().starts_with('{') {
        from_lines(path, &text)?
    } else {
        from_table(path, &text)?
    };
    let scrapes = &mut series.scrapes;
    let Some(first) = scrapes.first().map(|s| s.at_s) else {
        return Err(InputError::in_file(path, "holds no reading").allowed("at least one reading"));
    };
    if let Some(row) = scrapes.windows(2).position(|w| w[1].at_s < w[0].at_s) {
        return Err(
            InputError::in_file(path, "its readings go back in time").at(format!("reading {}", row + 1))
        );
    }
    scrapes.iter_mut().for_each(|s| s.at_s -= first);
    series.first_s = first;
    // A running request holds a block; a KV use that is 0 all the same was not measured.
    if !scrapes.iter().any(|s| s.kv_usage.is_some_and(|u| u > 0.0)) {
        scrapes.iter_mut().for_each(|s| s.kv_usage = None);
    }
    Ok(series)
}

fn wrong_reading(path: &Path, line: u64, column: &str, value: f64, allowed: &str) -> InputError {
    InputError::in_file(path, format!("found {value}"))
        .at(format!("line {line}, column {column}"))
        .allowed(format!("allowed: {allowed}"))
}

/// What a reading may be.
#[derive(Clone, Copy)]
enum Kind {
    Time,
    /// Requests, tokens, times.
    Count,
    Share,
    PerCent,
}

/// Largest share that rounding may make of 1.
const MOST_SHARE: f64 = 1.0 + 1e-9;

impl Kind {
    /// The value, if it can be one of its kind.
    fn check(self, path: &Path, line: u64, column: &str, value: f64) -> Result<f64, InputError> {
        let (holds, allowed) = match self {
            Self::Time => (true, ""),
            Self::Count => (value >= 0.0 && value.fract() == 0.0, "a whole number from 0"),
            Self::Share => ((0.0..=MOST_SHARE).contains(&value), "a share from 0 to 1"),
            Self::PerCent => (
                (0.0..=100.0 * MOST_SHARE).contains(&value),
                "a percentage from 0 to 100",
            ),
        };
        if holds {
            Ok(value)
        } else {
            Err(wrong_reading(path, line, column, value, allowed))
        }
    }
}

/// A line of scrapes.
#[derive(Deserialize)]
struct Line {
    unix_s: Option<f64>,
    t_s: Option<f64>,
    #[serde(default)]
    set: BTreeMap<String, f64>,
}

fn from_lines(path: &Path, text: &str) -> Result<ScrapeSeries, InputError> {
    let (mut samples, mut series) = (BTreeMap::<String, f64>::new(), ScrapeSeries::default());
    for (number, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let wrong = |found: String| InputError::in_file(path, found).at(format!("line {}", number + 1));
        let line: Line = serde_json::from_str(line)
            .map_err(|e| wrong(format!("cannot be used ({e})")).allowed("{\"unix_s\": …, \"set\": {…}}"))?;
        for (name, value) in line.set.into_iter().filter(|(name, _)| is_wanted(name)) {
            // A label without a value yet is not a number; it is left out when samples are summed.
            if value.is_finite() {
                kind_of(&name).check(path, number as u64 + 1, &name, value)?;
            }
            samples.insert(name, value);
        }
        let Some(at_s) = line.unix_s.or(line.t_s).filter(|t| t.is_finite()) else {
            return Err(wrong("has no time".into()).allowed("unix_s or t_s, in seconds"));
        };
        let sum = |metric: &str| sum_of(&samples, metric);
        let (Some(running), Some(waiting)) =
            (sum("vllm:num_requests_running"), sum("vllm:num_requests_waiting"))
        else {
            return Err(wrong("no running or waiting requests are known by then".into())
                .allowed("vllm:num_requests_running and vllm:num_requests_waiting in the first line"));
        };
        if series.scrapes.is_empty() {
            series.first_unix_s = line.unix_s;
        }
        series.lines.push(number as u64 + 1);
        series.scrapes.push(Scrape {
            at_s,
            running,
            waiting,
            kv_usage: mean_of(&samples, "vllm:kv_cache_usage_perc"),
            finished: sum("vllm:request_success_total"),
            prompt_tokens: sum("vllm:prompt_tokens_total"),
            output_tokens: sum("vllm:generation_tokens_total"),
            preemptions: sum("vllm:num_preemptions_total"),
        });
    }
    Ok(series)
}

/// The metrics of which a [`Scrape`] is made: all else is not kept, however many names a file has.
const WANTED: [&str; 7] = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:request_success_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:num_preemptions_total",
];

fn kind_of(sample: &str) -> Kind {
    match metric_of(sample) {
        "vllm:kv_cache_usage_perc" => Kind::Share,
        _ => Kind::Count,
    }
}

/// The name of a sample without its labels.
fn metric_of(sample: &str) -> &str {
    sample.split('{').next().unwrap_or(sample)
}

fn is_wanted(sample: &str) -> bool {
    WANTED.contains(&metric_of(sample))
}

/// Values of a metric under all of its labels.
fn values_of<'a>(samples: &'a BTreeMap<String, f64>, metric: &'a str) -> impl Iterator<Item = f64> + 'a {
    let of_metric = samples.iter().filter(move |(name, _)| metric_of(name) == metric);
    of_metric.map(|(_, value)| *value).filter(|v| v.is_finite())
}

fn sum_of(samples: &BTreeMap<String, f64>, metric: &str) -> Option<f64> {
    values_of(samples, metric).reduce(|a, b| a + b)
}

fn mean_of(samples: &BTreeMap<String, f64>, metric: &str) -> Option<f64> {
    let n = values_of(samples, metric).count();
    sum_of(samples, metric).map(|sum| sum / n as f64)
}

fn from_table(path: &Path, text: &str) -> Result<ScrapeSeries, InputError> {
    let mut table = csv::Reader::from_reader(text.as_bytes());
    let broken = |e: csv::Error| InputError::in_file(path, format!("is no table ({e})"));
    let headings = table.headers().map_err(broken)?.clone();
    let column = |names: &[&str]| headings.iter().position(|h| names.contains(&h.trim()));
    let needed = |names: &[&str]| {
        column(names).ok_or_else(|| {
            InputError::in_file(path, format!("has no column {}", names.join(" or ")))
                .allowed("a time column (unix_s, t_s, time_s or t), running and waiting")
        })
    };
    let unix = column(&["unix_s"]);
    let time = unix.map_or_else(|| needed(&["t_s", "time_s", "t"]), Ok)?;
    let running = needed(&["running", "num_requests_running"])?;
    let waiting = needed(&["waiting", "num_requests_waiting"])?;
    let share = column(&["kv_usage", "kv_cache_usage_perc"]);
    let per_cent = column(&["kv_cache_pct"]);
    let [finished, prompt, output, preemptions] =
        ["finished", "prompt_tokens", "output_tokens", "preemptions"].map(|name| column(&[name]));
    let mut series = ScrapeSeries::default();
    for row in table.records() {
        let row = row.map_err(broken)?;
        let line = csv_line(text, row.position());
        let value = |column: usize, kind: Kind| {
            let text = row.get(column).unwrap_or_default().trim();
            let name = headings.get(column).unwrap_or_default().trim();
            let number = text.parse::<f64>().ok().filter(|v| v.is_finite());
            let number = number.ok_or_else(|| {
                InputError::in_file(path, format!("'{text}' is no number"))
                    .at(format!("line {line}, column {name}"))
            })?;
            kind.check(path, line, name, number)
        };
        let optional = |column: Option<usize>, kind: Kind| column.map(|c| value(c, kind)).transpose();
        let at_s = value(time, Kind::Time)?;
        if series.scrapes.is_empty() {
            series.first_unix_s = unix.map(|_| at_s);
        }
        let per_cent = optional(per_cent, Kind::PerCent)?.map(|p| p / 100.0);
        series.lines.push(line);
        series.scrapes.push(Scrape {
            at_s,
            running: value(running, Kind::Count)?,
            waiting: value(waiting, Kind::Count)?,
            kv_usage: optional(share, Kind::Share)?.or(per_cent),
            finished: optional(finished, Kind::Count)?,
            prompt_tokens: optional(prompt, Kind::Count)?,
            output_tokens: optional(output, Kind::Count)?,
            preemptions: optional(preemptions, Kind::Count)?,
        });
    }
    Ok(series)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, text: &str) -> Result<ScrapeSeries, InputError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        read_scrapes(&path)
    }

    #[test]
    fn lines_hold_what_changed() {
        let text = concat!(
            r#"{"unix_s":100.0,"set":{"vllm:num_requests_running{engine=\"0\"}":1,"vllm:num_requests_running{engine=\"1\"}":2,"vllm:num_requests_waiting":0,"vllm:kv_cache_usage_perc{engine=\"0\"}":0.5,"vllm:kv_cache_usage_perc{engine=\"1\"}":0.1}}"#,
            "\n",
            r#"{"unix_s":101.5,"set":{"vllm:num_requests_running{engine=\"1\"}":5,"process_open_fds":3}}"#,
            "\n"
        );
        let series = read("m.jsonl", text).unwrap();
        assert_eq!(series.first_unix_s, Some(100.0));
        let seen: Vec<_> = series
            .scrapes
            .iter()
            .map(|s| (s.at_s, s.running, s.waiting))
            .collect();
        assert_eq!(seen, [(0.0, 3.0, 0.0), (1.5, 6.0, 0.0)]);
        assert_eq!(series.scrapes[1].kv_usage, Some(0.3));
        assert!((series.shifted(-1.0)[1].at_s - 0.5).abs() < 1e-12);
    }

    #[test]
    fn a_kv_use_of_zero_under_load_was_not_measured() {
        let series = read("t.csv", "t,running,waiting,kv_cache_pct\n1,9,0,0.0\n2,19,1,0.0\n").unwrap();
        assert_eq!(series.scrapes[1].kv_usage, None);
        let series = read("t.csv", "t,running,waiting,kv_cache_pct\n1,9,0,0\n2,19,1,25\n").unwrap();
        assert_eq!(series.scrapes[1].kv_usage, Some(0.25));
    }

    #[test]
    fn more_running_requests_than_seats_are_refused() {
        let series = read("t.csv", "t,running,waiting\n1,16,0\n2,17,1\n").unwrap();
        let path = Path::new("t.csv");
        assert!(series.check_seats(path, 17).is_ok());
        let error = series.check_seats(path, 16).unwrap_err().to_string();
        assert!(
            error.contains("line 3, column running") && error.contains("up to 16"),
            "{error}"
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        let error = |text: &str| read("t.csv", text).unwrap_err().to_string();
        assert!(error("t,running\n1,2\n").contains("waiting"));
        assert!(error("t,running,waiting\n1,x,0\n").contains("line 2, column running"));
        assert!(error("t,running,waiting\n2,1,0\n1,1,0\n").contains("back in time"));
        assert!(error("t,running,waiting\n").contains("no reading"));
        assert!(error("{\"unix_s\": 3}\n").contains("line 1"));
        for (text, place) in [
            ("t,running,waiting\n1,2,0\n2,-1,0\n", "line 3, column running"),
            ("t,running,waiting\n1,2,0.5\n", "line 2, column waiting"),
            (
                "t,running,waiting,kv_usage\n1,2,0,250\n",
                "line 2, column kv_usage",
            ),
            (
                "t,running,waiting,kv_cache_pct\n1,2,0,101\n",
                "line 2, column kv_cache_pct",
            ),
            (
                "t,running,waiting,preemptions\n1,2,0,-3\n",
                "line 2, column preemptions",
            ),
            (
                "{\"unix_s\": 3, \"set\": {\"vllm:num_requests_running\": 1.5, \"vllm:num_requests_waiting\": 0}}\n",
                "line 1, column vllm:num_requests_running",
            ),
        ] {
            assert!(error(text).contains(place), "{text}: {}", error(text));
        }
    }
}
