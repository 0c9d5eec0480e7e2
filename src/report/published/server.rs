//! What happens in the server: where a request's time goes, and how fast it decodes.

use super::{ms, n, printed, text};
use crate::explore::published::{Explained, Repeated};
use crate::kv::sizing;
use crate::metric::Window;
use crate::report::html::{Block, Section};
use crate::report::plot::{Axis, Mark, Plot, Series};
use crate::report::table::{Cell, Column, Table};
use crate::sim::HostTimes;

/// Where the time of a mean request goes, in seconds.
struct Anatomy {
    queue: f64,
    prompt: f64,
    decode: f64,
    stalled: f64,
    tokens: f64,
}

impl Anatomy {
    fn of(outcome: &Repeated, decode_s: f64) -> Self {
        let (mut sums, mut count) = ([0.0; 4], 0.0_f64);
        for r in Window::WHOLE.select(&outcome.run.record) {
            let (Some(begun), Some(first), Some(last)) = (r.first_scheduled, r.first_token, r.last_token)
            else {
                continue;
            };
            sums[0] += begun.since(r.sent).as_secs_f64();
            sums[1] += first.since(begun).as_secs_f64();
            sums[2] += last.since(first).as_secs_f64();
            sums[3] += f64::from(r.output_tokens);
            count += 1.0;
        }
        let [queue, prompt, rest, tokens] = sums.map(|s| s / count.max(1.0));
        let decode = (tokens - 1.0).max(0.0) * decode_s;
        Self {
            queue,
            prompt,
            decode,
            stalled: (rest - decode).max(0.0),
            tokens,
        }
    }

    fn parts(&self) -> [(&'static str, f64); 4] {
        [
            ("waits for a seat", self.queue),
            ("its own prompt", self.prompt),
            ("decode steps", self.decode),
            ("stalled by prompts of others", self.stalled),
        ]
    }
}

/// Why the inter-token figure contains the TTFT.
pub fn inter_token(e: &Explained) -> Section {
    let anatomy = Anatomy::of(&e.test, e.steps.decode_s);
    let e2e: f64 = anatomy.parts().iter().map(|p| p.1).sum();
    let mut table = Table::new(
        "A mean request of the typical seed",
        vec![
            Column::plain("part"),
            Column::with_unit("time", "ms"),
            Column::plain("share of E2E"),
        ],
    );
    for (name, seconds) in anatomy.parts() {
        table.push(vec![name.into(), ms(seconds).into(), Cell::Share(seconds / e2e)]);
    }
    table.push(vec!["E2E".into(), ms(e2e).into(), Cell::Share(1.0)]);
    let mut gaps = Table::new(
        "Four figures that are all called time between tokens",
        vec![
            Column::plain("definition"),
            Column::with_unit("printed", "ms"),
            Column::with_unit("simulated", "ms"),
        ],
    );
    let find = |name: &str| printed(&e.test.figures, name);
    let given = find("results_end_to_end_latency_s_mean")
        .zip(find("results_ttft_s_mean"))
        .zip(find("results_number_output_tokens_mean"));
    let from =
        |of: &dyn Fn(f64, f64, f64) -> f64| given.map(|((e2e, ttft), tokens)| ms(of(e2e, ttft, tokens)));
    let ttft = anatomy.queue + anatomy.prompt;
    let rows: [(&str, Option<f64>, f64); 4] = [
        (
            "E2E over output tokens: llmperf's inter-token latency, with the TTFT inside",
            from(&|e2e, _, tokens| e2e / tokens),
            e2e / anatomy.tokens,
        ),
        (
            "(E2E - TTFT) over output tokens",
            from(&|e2e, ttft, tokens| (e2e - ttft) / tokens),
            (e2e - ttft) / anatomy.tokens,
        ),
        (
            "(E2E - TTFT) over gaps: TPOT, with the stalls inside",
            from(&|e2e, ttft, tokens| (e2e - ttft) / (tokens - 1.0)),
            (e2e - ttft) / (anatomy.tokens - 1.0).max(1.0),
        ),
        ("a decode step by itself", None, e.steps.decode_s),
    ];
    for (name, printed, simulated) in rows {
        gaps.push(vec![name.into(), printed.into(), ms(simulated).into()]);
    }
    let stalls = anatomy.stalled / e.steps.prompt_s;
    Section {
        heading: "What the inter-token figure holds".into(),
        blocks: vec![
            text(format!(
                "llmperf divides a request's whole latency by its tokens, so its inter-token latency holds {} ms (in the \
                 simulated run) of waiting and prompt that come before the first token. What is left is no decode step either: while a \
                 request decodes, {} prompts of others run, {} ms each, and no decode runs beside them.",
                n(ms(ttft)),
                n(stalls),
                n(ms(e.steps.prompt_s))
            )),
            Block::Table(gaps),
            Block::Table(table),
            Block::Plot(parts_plot(&anatomy)),
        ],
    }
}

fn parts_plot(anatomy: &Anatomy) -> Plot {
    let mut at = 0.0;
    let series = anatomy.parts().map(|(name, seconds)| {
        let from = at;
        at += seconds;
        Series {
            name: name.into(),
            mark: Mark::LineAndDots,
            points: vec![(from, 1.0), (at, 1.0)],
        }
    });
    Plot {
        title: "A mean request from its send to its last token, one part after another".into(),
        x: Axis::linear("time since the send", "s"),
        y: Axis::linear("one request", ""),
        series: series.into(),
        guides: Vec::new(),
    }
}

/// How fast it decodes, and what of the memory's bandwidth that uses.
pub fn decode_rate(e: &Explained) -> Section {
    let mut blocks = Vec::new();
    let anatomy = Anatomy::of(&e.test, e.steps.decode_s);
    let find = |name: &str| printed(&e.test.figures, name);
    let given = find("results_end_to_end_latency_s_mean")
        .zip(find("results_ttft_s_mean"))
        .zip(find("results_number_output_tokens_mean"));
    let apparent_s = given.map_or(
        (anatomy.decode + anatomy.stalled) / anatomy.tokens,
        |((e2e, ttft), tokens)| (e2e - ttft) / tokens,
    );
    let mut table = Table::new(
        "Steps a second and the bandwidth that they use",
        vec![
            Column::plain("taken as the decode step"),
            Column::with_unit("step", "ms"),
            Column::with_unit("rate", "steps/s"),
            Column::with_unit("weights read", "GB/s"),
            Column::with_unit("weights and padded KV", "GB/s"),
            Column::plain("weights alone, share of the memory bandwidth"),
        ],
    );
    let deployment = e.test.plan.deployment();
    let bytes = deployment.map(|d| {
        let layers = 0..d.model.layers.value;
        let ranks = f64::from(d.tp);
        let weights = sizing::stage_weights(d, &layers).total() as f64 * ranks;
        let world = e.test.plan.world(HostTimes::default()).engine;
        let shapes = d.static_shapes.as_ref();
        let (rows, positions) = shapes.map_or((world.max_num_seqs, 0), |s| {
            let last = |list: &Vec<u32>| list.last().copied().unwrap_or(0);
            (last(&s.decode_batches), last(&s.token_buckets))
        });
        let kv = sizing::kv_bytes_per_token(&d.model, d.tp) as f64 * ranks;
        let bandwidth = d.accelerator.memory_bandwidth_gb_s.as_ref().map(|f| f.value);
        let share = ranks * d.share_of_device();
        (
            weights,
            kv * f64::from(rows) * f64::from(positions),
            bandwidth.map(|b| b * share),
        )
    });
    for (name, step_s) in [
        ("the mean gap of the printed figures, stalls inside", apparent_s),
        ("the step by itself", e.steps.decode_s),
    ] {
        let rate = 1.0 / step_s;
        let gb = |bytes: f64| bytes * rate / 1e9;
        table.push(vec![
            name.into(),
            ms(step_s).into(),
            rate.into(),
            bytes.map(|b| gb(b.0)).into(),
            bytes.map(|b| gb(b.0 + b.1)).into(),
            bytes
                .and_then(|b| Some(Cell::Share(gb(b.0) / b.2?)))
                .unwrap_or(Cell::Absent),
        ]);
    }
    if let Some((weights, kv, Some(bandwidth))) = bytes {
        let bound_s = (weights + kv) / (bandwidth * 1e9);
        blocks.push(text(format!(
            "Each decode step reads all weights ({} GB) and the padded KV cache of every seat ({} GB, live or not), \
             which the memory could deliver in {} ms at its full bandwidth. A step takes {} ms by itself. The {} beyond \
             that are bandwidth that is not reached, and the fixed cost of layers, collectives and host, which no faster \
             memory would remove; this test alone does not tell the two apart.",
            n(weights / 1e9),
            n(kv / 1e9),
            n(ms(bound_s)),
            n(ms(e.steps.decode_s)),
            Cell::Share(1.0 - bound_s / e.steps.decode_s).display()
        )));
    }
    blocks.push(text(format!(
        "The rate that follows from the printed figures, {} steps a second, counts the stalls as if they were decode \
         steps.",
        n(1.0 / apparent_s)
    )));
    blocks.push(Block::Table(table));
    Section {
        heading: "Decode rate and memory bandwidth".into(),
        blocks,
    }
}
