//! The page of a pre-flight: the answer, the curves, and how far both can be trusted.

use super::compare::{beyond_table, medians_table, runs_table, scatter};
use super::context::{context, footer, question};
use super::fit_tables::fit_tables;
use super::html::{Block, Page, Section};
use super::plot::Plot;
use super::sweep_page::{best, sweep_limitations, sweep_sections};
use crate::engine::vllm::Policy;
use crate::explore::sweep::Configuration;
use crate::scenario::Plan;
use crate::sim::HostTimes;
use crate::steptime::Fit;
use crate::steptime::KvDtype;
use crate::verify::compare::CompareReport;

/// What the calibration part of a pre-flight found.
#[derive(Debug)]
pub struct Calibrated {
    /// Name of the data set.
    pub dataset: String,
    /// How its runs were given their roles.
    pub split: String,
    /// The fit.
    pub fit: Fit,
    /// Held-out runs beside their simulation.
    pub comparison: CompareReport,
}

/// The page. The plot of predicted against actual is added to `plots`.
pub fn preflight_page(
    plan: &Plan,
    calibrated: Option<&Calibrated>,
    configurations: &[Configuration],
    plots: &mut Vec<(&'static str, Plot)>,
) -> Page {
    let mut sections = sweep_sections(plan, configurations, plots);
    if let Some(live) = live_section(plan, configurations) {
        sections.push(live);
    }
    let mut limitations = sweep_limitations(plan, configurations);
    if let Some(c) = calibrated {
        let scatter = scatter(&c.comparison.captures);
        sections.push(accuracy_section(c, &scatter));
        sections.push(fit_section(c));
        plots.push(("predicted-actual", scatter));
        limitations.push(
            "the machine's speed drifts between runs by more than the fit can know; see the column `machine` of \
             the errors by run"
                .into(),
        );
        if c.fit.stalls.iter().any(|s| s.limit.is_some()) {
            limitations.push(
                "stalls that the machine causes under a real-time scheduling class are in the comparison, not in \
                 the sweep: an engine that runs under such a class carries less"
                    .into(),
            );
        }
    } else {
        limitations
            .push("no held-out runs were compared: nothing here says how far the predictions are off".into());
    }
    Page {
        title: format!("Pre-flight: {}", plan.origin()),
        question: question(plan),
        context: head(plan, calibrated),
        sections,
        limitations,
        footer: footer(),
    }
}

/// The context, with the fit that was made here in the place of the one that the scenario names.
fn head(plan: &Plan, calibrated: Option<&Calibrated>) -> Vec<(String, String)> {
    let mut rows = context(plan);
    if let (Some(c), Some(row)) = (calibrated, rows.iter_mut().find(|(name, _)| name == "step time")) {
        row.1 = format!(
            "fitted here to {} runs of {} (fit.yaml)",
            c.fit.data.len(),
            c.dataset
        );
    }
    rows
}

fn accuracy_section(c: &Calibrated, scatter: &Plot) -> Section {
    let mut blocks = vec![
        Block::Text(format!(
            "Simulated runs beside {} measured runs of {} that the fit has not seen: their own arrivals and knobs. Of \
             their measurements the prediction uses the scheduling class of the process and, where there are any, \
             the speed probes timed before and after the run; nothing that was timed in it.",
            c.comparison.captures.len(),
            c.dataset
        )),
        Block::Table(medians_table(&c.comparison.captures)),
        Block::Table(runs_table(&c.comparison.captures)),
        Block::Plot(scatter.clone()),
    ];
    blocks.push(Block::Table(beyond_table(&c.comparison.captures)));
    blocks.extend(
        c.comparison
            .skipped
            .iter()
            .map(|s| Block::Text(format!("{}: skipped, {}", s.name, s.reason))),
    );
    Section {
        heading: "Predicted against actual".into(),
        blocks,
    }
}

fn fit_section(c: &Calibrated) -> Section {
    let mut blocks = vec![Block::Text(format!("Split of the runs: {}", c.split.trim()))];
    blocks.extend(fit_tables(&c.fit).into_iter().map(Block::Table));
    Section {
        heading: "Fit".into(),
        blocks,
    }
}

/// What to run on the real machine, for the configuration that carries the most.
fn live_section(plan: &Plan, configurations: &[Configuration]) -> Option<Section> {
    let best = best(configurations)?;
    let plan = plan.with(&crate::explore::grid::overrides(&best.setting)).ok()?;
    let capacity = best.capacity()?;
    let rates: Vec<String> = [
        capacity.knee.map(|k| k.from_rps),
        capacity.slo_boundary_rps.map(|b| b[0]),
        capacity.slo_boundary_rps.map(|b| b[1]),
        capacity.knee.and_then(|k| k.to_rps),
    ]
    .into_iter()
    .flatten()
    .map(|r| super::number::significant(r, 3))
    .collect();
    let blocks = [
        "Start the server as it was simulated (MODEL is the name it has there):".to_owned(),
        serve_command(&plan),
        format!(
            "Offer it the same mix at these rates, from the knee to the boundary and past it: {} requests/s. \
             `kneeboard trace synth` writes the requests that were simulated (arrival, lengths, prefixes, \
             priorities) for a client that replays them; `vllm bench serve` with its own data set has other \
             lengths and verifies another mix.",
            rates.join(", ")
        ),
        format!(
            "kneeboard trace synth {} --set load.arrival.rate=RATE -o trace.csv",
            plan.origin()
        ),
    ];
    Some(Section {
        heading: "To run on the real machine".into(),
        blocks: blocks.into_iter().map(Block::Text).collect(),
    })
}

fn serve_command(plan: &Plan) -> String {
    let e = plan.world(HostTimes::default()).engine;
    let written = &plan.scenario.system;
    let onoff = |flag: &str, on: bool| {
        if on {
            format!(" --{flag}")
        } else {
            format!(" --no-{flag}")
        }
    };
    let mut command = format!(
        "vllm serve MODEL --max-num-seqs {} --max-num-batched-tokens {} --max-model-len {} --block-size {}",
        e.max_num_seqs, e.max_num_batched_tokens, e.max_model_len, e.block_size
    );
    command += &onoff("enable-prefix-caching", e.enable_prefix_caching);
    command += &onoff("enable-chunked-prefill", e.enable_chunked_prefill);
    command += &onoff("async-scheduling", e.async_scheduling);
    if let Some(tp) = written.parallel.tp.filter(|&tp| tp > 1) {
        command += &format!(" --tensor-parallel-size {tp}");
    }
    if let Some(pp) = written.parallel.pp.filter(|&pp| pp > 1) {
        command += &format!(" --pipeline-parallel-size {pp}");
    }
    if written.parallel.ep.is_some_and(|ep| ep > 1) {
        command += " --enable-expert-parallel";
    }
    if plan.deployment().is_some_and(|d| d.kv_dtype == KvDtype::Fp8) {
        command += " --kv-cache-dtype fp8";
    }
    if written.engine.enforce_eager == Some(true) {
        command += " --enforce-eager";
    }
    if plan.memory().is_none() {
        let blocks = written.engine.num_gpu_blocks.unwrap_or(e.num_gpu_blocks);
        command += &format!(" --num-gpu-blocks-override {blocks}");
    } else if let Some(cache) = written.engine.kv_cache_memory_bytes {
        command += &format!(" --kv-cache-memory-bytes {}", cache.bytes);
    } else if let Some(share) = written.engine.gpu_memory_utilization {
        command += &format!(" --gpu-memory-utilization {}", share.0);
    }
    if e.long_prefill_token_threshold > 0 {
        command += &format!(
            " --long-prefill-token-threshold {}",
            e.long_prefill_token_threshold
        );
    }
    if e.policy == Policy::Priority {
        command += " --scheduling-policy priority";
    }
    command
}
