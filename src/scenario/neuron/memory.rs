//! Memory of a logical core on Neuron: the native plugin's block count (rule N43), and whether a plan fits at all.

use super::NeuronEngine;
use crate::input::InputError;
use crate::kv::MAX_BLOCKS;
use crate::kv::sizing::{self, KvLayout};
use crate::scenario::check::Blame;
use crate::scenario::provenance::{Provenance, Source};
use crate::scenario::quantity::Finite;
use crate::scenario::schema::Engine;
use crate::steptime::Deployment;

const GIB: f64 = (1_u64 << 30) as f64;

impl NeuronEngine {
    /// Derives the block count from memory where it is open, and checks that weights and KV cache fit on a logical
    /// core. Memory that is not known is not judged.
    ///
    /// # Errors
    /// [`InputError`] when they do not fit, or when memory is to decide and is not known.
    pub fn fit_in_memory(
        &mut self,
        e: &mut Engine,
        deployment: Option<&Deployment>,
        provenance: &mut Provenance,
        origin: &str,
    ) -> Result<(), InputError> {
        const PATH: &str = "system.engine.num_gpu_blocks";
        let known = deployment.and_then(|d| Some((d, d.rank_memory_bytes()?)));
        let Some((deployment, memory)) = known else {
            return if self.blocks_from_memory {
                Err(Blame { origin, provenance }.error(
                    PATH,
                    "it is not given and cannot be derived",
                    "give pa_num_blocks, or name both system.model and system.accelerator",
                ))
            } else {
                Ok(())
            };
        };
        let layers = 0..deployment.model.layers.value;
        let weights = sizing::stage_weights(deployment, &layers).total() as f64;
        let layout = KvLayout::of_stage(deployment, self.config.block_size, &layers);
        let block = layout.block_bytes() as f64;
        if self.blocks_from_memory {
            let usual = Finite(self.config.behaviour.gpu_memory_utilization);
            let path = "system.engine.gpu_memory_utilization";
            let share = provenance.fill(path, &mut e.gpu_memory_utilization, Source::Default, usual);
            let used = weights + e.runtime_reserve.map_or(0.0, |s| s.bytes as f64);
            let stated = e.kv_cache_memory_bytes.map(|s| s.bytes as f64);
            let cache = stated.unwrap_or_else(|| native_cache(memory * share.0, used));
            let blocks = ((cache / block) as u32).clamp(2, MAX_BLOCKS);
            let source = Source::Derived("memory of a logical core (rule N43)".into());
            self.config.num_gpu_blocks = provenance.fill(PATH, &mut e.num_gpu_blocks, source, blocks);
        }
        let cache = block * f64::from(self.config.usable_blocks());
        if weights + cache > memory {
            return Err(Blame { origin, provenance }.error(
                "system.engine.max_num_seqs",
                format!(
                    "weights of {:.2} GiB and {:.2} GiB of KV cache exceed the {:.2} GiB of a logical core",
                    weights / GIB,
                    cache / GIB,
                    memory / GIB
                ),
                "use fewer seats, a smaller seq_len, fewer blocks, or a larger system.parallel.tp",
            ));
        }
        Ok(())
    }
}

/// KV budget of the native plugin in bytes (rule N43), out of what it may take and what is in use.
fn native_cache(may_take: f64, used: f64) -> f64 {
    (may_take - used).min(0.3 * may_take).max(GIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_native_budget_is_a_share_of_memory_and_at_least_one_gib() {
        let gib = |may_take: f64, used: f64| native_cache(may_take * GIB, used * GIB) / GIB;
        for (used, expected) in [(4.0, 6.0), (17.0, 3.0), (19.9, 1.0)] {
            assert!((gib(20.0, used) - expected).abs() < 1e-9, "{used}");
        }
    }
}
