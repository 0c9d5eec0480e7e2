//! What results of a plan must say about their own limits.

use std::collections::BTreeSet;

use super::{Plan, WorkSource};
use crate::profile::Facts;
use crate::scenario::machine::Machine;
use crate::sim::HostTimes;
use crate::steptime::BatchShape;
use crate::workload::synth::{LengthSource, RequestLaw};

impl Plan {
    /// What results must say about their own limits.
    pub fn limitations(&self) -> Vec<String> {
        let mut out = Vec::new();
        let independent = |law: &RequestLaw| matches!(law.lengths, LengthSource::Independent { .. });
        if let WorkSource::Draw(spec) = &self.work
            && spec.mix.laws().any(independent)
        {
            out.push("prompt and output lengths are drawn independently of each other".to_owned());
        }
        for (path, used, left_out) in self.files.with_rows_left_out() {
            out.push(format!(
                "lengths are drawn from {used} rows of {}; {left_out} more have 0 input or 0 output tokens and are \
                 left out",
                path.display()
            ));
        }
        if self.memory().is_some() {
            let doubtful = self.doubtful_figures();
            let from = match doubtful.as_slice() {
                [] => String::new(),
                names => format!("; doubtful figures behind it: {}", names.join(", ")),
            };
            out.push(format!(
                "the number of KV blocks is derived from memory figures, not measured{from}"
            ));
        }
        out.extend(self.split_limitations());
        for (number, machine) in self.machines().into_iter().flatten().enumerate() {
            let together = self.cluster().is_some_and(|c| c.steps_together(number));
            if together && machine.host != HostTimes::default() {
                out.push(
                    "host times of a fit (before, between and beside steps) are left out among ranks that step together"
                        .to_owned(),
                );
            }
            let new: Vec<String> = machine
                .limitations
                .into_iter()
                .filter(|l| !out.contains(l))
                .collect();
            out.extend(new);
        }
        out.extend(
            self.cluster()
                .into_iter()
                .flat_map(|c| c.limitations().iter().cloned()),
        );
        out.extend(self.tenants_limitation());
        out.extend(self.livelock_limitation());
        if self.is_replay() && self.engine.config.num_speculative_tokens > 0 {
            out.push("no speculative draft is accepted: a trace file does not say which would be".to_owned());
        }
        out
    }

    /// Under a Neuron plugin requests that hold too few blocks for all seats can stop each other for good (rule N14).
    fn livelock_limitation(&self) -> Option<String> {
        let c = &self.engine.config;
        let all_seats = u64::from(c.max_num_seqs) * u64::from(c.max_model_len.div_ceil(c.block_size.max(1)));
        let short = c.scheduler_cls.is_neuron() && u64::from(c.usable_blocks()) < all_seats;
        short.then(|| {
            format!(
                "{} KV blocks do not hold {} whole sequences, so the plugin can come to a livelock at any load, given \
                 time (rule N14): figures of runs without one hold for runs of that length alone",
                c.usable_blocks(),
                c.max_num_seqs
            )
        })
    }

    /// What the scheduler does not know about how the model is split and what its layers attend to.
    /// Tenants that the gateway's weights or rates name and the trace does not have, where its rows are kept in memory.
    fn tenants_limitation(&self) -> Option<String> {
        let WorkSource::Replay { file, .. } = &self.work else {
            return None;
        };
        let gateway = self.scenario.cluster.gateway.as_ref()?;
        let weighted = gateway.fairness.iter().filter_map(|f| f.weights.as_ref());
        let weighted = weighted.flat_map(|w| w.keys().map(String::as_str));
        let limited = gateway.tenant_rates.iter();
        let limited = limited.flat_map(|r| r.keys().map(String::as_str));
        let mut missing: BTreeSet<&str> = weighted.chain(limited).collect();
        if missing.is_empty() {
            return None;
        }
        for tenant in file.trace.iter().flat_map(|t| &t.requests).map(|r| r.tenant) {
            missing.remove(tenant.to_string().as_str());
        }
        let names: Vec<&str> = missing.into_iter().collect();
        (file.trace.is_some() && !names.is_empty()).then(|| {
            format!(
                "the gateway has weights or rates for tenants that the trace does not have: {}",
                names.join(", ")
            )
        })
    }

    fn split_limitations(&self) -> Vec<String> {
        let mut out = Vec::new();
        let machines = self.machines().into_iter().flatten();
        for (machine, (config, _)) in machines.zip(self.engines()) {
            let stages = config.pipeline_parallel_size;
            if stages > 1 && !knows_stages(&machine) {
                let said = format!(
                    "the {stages} pipeline stages take the same time each: only a roofline fit knows which layers each \
                     has, and the LM head"
                );
                if !out.contains(&said) {
                    out.push(said);
                }
            }
        }
        if self.deployment().is_some_and(|d| d.model.windowed_layers() > 0) {
            out.push(format!(
                "layers with a sliding window share one pool with the others: it is simulated as the {} blocks of \
                 full attention that hold as many requests of max_model_len",
                self.engine.config.num_gpu_blocks
            ));
        }
        out
    }

    /// Figures behind the derived block count that their profiles mark as doubtful.
    fn doubtful_figures(&self) -> Vec<String> {
        let model = self.engine.model.iter().flat_map(Facts::figures);
        let model = model.filter(|f| !f.name.starts_with("published_") && f.name != "active_parameters");
        let device = self.engine.accelerator.iter().flat_map(Facts::figures);
        let memory_only = device.filter(|f| matches!(f.name, "memory_bytes" | "runtime_reserve_bytes"));
        let doubtful = model.chain(memory_only).filter(|f| f.doubt.is_some());
        doubtful.map(|f| f.name.to_owned()).collect()
    }
}

/// Its step times say how long each stage of a pipeline takes.
fn knows_stages(machine: &Machine) -> bool {
    let (mut batch, mut shares) = (BatchShape::default(), Vec::new());
    batch.add_decode(1, 0);
    machine.step_time.stage_shares(&batch, &mut shares);
    !shares.is_empty()
}
