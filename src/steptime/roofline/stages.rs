//! What each stage of a pipeline takes of a step (rule S68).

use super::{Roofline, collective};
use crate::steptime::BatchShape;
use crate::steptime::parameters::Param;
use crate::steptime::stages::{has_experts, stage_layers};

impl Roofline {
    /// Seconds of each pipeline stage, in order; together the step. Each has its layers as vLLM deals them out. The first
    /// one has the embedding's exchange and the host's time too, the last one the LM head, its exchange, and the fixed
    /// times of step and rows (sampling); the way to the next stage counts with the stage that sends.
    pub fn stages_s(&self, batch: &BatchShape) -> Vec<f64> {
        let model = &self.deployment.model;
        let parts = self.parts(batch);
        let mode = self.deployment.run_mode(batch);
        let tokens = f64::from(mode.computed_tokens());
        let exchange = self.exchange(tokens, f64::from(batch.num_seqs()));
        let mlp_s = self.gemm(&self.mlp, tokens, self.arithmetic);
        let experts_s = self.experts.map_or(0.0, |e| parts.experts_s / e.layers.max(1.0));
        let once_s = self.once_s(batch);
        // Windowed layers lie among the others: attention is the same in all stages.
        let any_layer_s = (parts.dense_s - self.mlp_layers * mlp_s
            + parts.elementwise_s
            + parts.prefill_attention_s
            + parts.decode_attention_s
            + (parts.fixed_s - once_s))
            / self.layers.max(1.0)
            + exchange.layer_s;
        let layers = stage_layers(model.layers.value, self.deployment.pp);
        let last = layers.len().saturating_sub(1);
        let stage_s = |(stage, layers): (usize, &std::ops::Range<u32>)| {
            let with_experts = layers.clone().filter(|&l| has_experts(model, l)).count() as f64;
            let all = f64::from(layers.end - layers.start);
            let mut seconds = all * any_layer_s + with_experts * experts_s + (all - with_experts) * mlp_s;
            if stage == 0 {
                seconds += exchange.embedding_s + parts.host_s;
            }
            seconds += if stage == last {
                parts.lm_head_s + exchange.logits_s + once_s
            } else {
                exchange.stage_s
            };
            seconds.max(0.0)
        };
        layers.iter().enumerate().map(stage_s).collect()
    }

    /// Fixed times that a step has once, whatever its layers.
    fn once_s(&self, batch: &BatchShape) -> f64 {
        let p = &self.parameters;
        let mixed = if batch.prefill_seqs > 0 {
            p[Param::MixedStepTime]
        } else {
            0.0
        };
        p[Param::StepTime] + f64::from(batch.num_seqs()) * p[Param::RowTime] + mixed
    }

    /// What ranks and stages exchange, by what it is for.
    fn exchange(&self, tokens: f64, rows: f64) -> Exchange {
        let Some(link) = self.link else {
            return Exchange::default();
        };
        let tp = self.deployment.tp;
        let message = tokens * self.hidden * super::ACTIVATION_BYTES;
        let reduce_s = collective::all_reduce(link, tp, message);
        let logits = rows * self.vocab_per_rank * f64::from(tp) * super::ACTIVATION_BYTES;
        Exchange {
            layer_s: self.reduces_per_layer * reduce_s,
            embedding_s: reduce_s,
            logits_s: collective::all_gather(link, tp, logits),
            stage_s: collective::point_to_point(link, message),
        }
    }
}

/// Seconds of exchange.
#[derive(Debug, Clone, Copy, Default)]
struct Exchange {
    /// Of the ranks, a layer.
    layer_s: f64,
    /// Of the ranks, after the embedding.
    embedding_s: f64,
    /// Of the ranks, for the logits.
    logits_s: f64,
    /// From one stage to the next.
    stage_s: f64,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::profile::catalog;
    use crate::steptime::{Deployment, Parameters, StepTime};

    fn roofline(model: &str, tp: u32, pp: u32) -> Roofline {
        let here = Path::new("");
        let deployment = Deployment {
            tp,
            pp,
            ..Deployment::new(
                catalog::model(model, here).unwrap(),
                catalog::accelerator("h100-sxm", here).unwrap(),
            )
        };
        Roofline::new(deployment, Parameters::default()).unwrap()
    }

    fn batches() -> [BatchShape; 3] {
        let [mut decodes, mut prompt, mut mixed] = [(); 3].map(|()| BatchShape::default());
        (0..40).for_each(|row| decodes.add_decode(1, 100 + 50 * row));
        prompt.add_prefill(3000, 500);
        mixed.add_prefill(700, 0);
        mixed.add_decode(1, 2000);
        [decodes, prompt, mixed]
    }

    #[test]
    fn stages_add_up_to_the_step() {
        for (model, tp, pp) in [
            ("llama-3.1-70b", 2, 4),
            ("llama-3.1-8b", 1, 3),
            ("mixtral-8x7b", 2, 2),
            ("deepseek-v2-lite", 1, 2),
            ("gpt-oss-20b", 1, 5),
        ] {
            let roofline = roofline(model, tp, pp);
            for batch in batches() {
                let stages = roofline.stages_s(&batch);
                let (sum, step) = (stages.iter().sum::<f64>(), roofline.parts(&batch).total_s());
                assert_eq!(stages.len(), pp as usize);
                assert!((sum - step).abs() < 1e-9 * step, "{model}: {stages:?} for {step}");
            }
        }
    }

    /// 32 layers over 3: 10, 11 and 11, in vLLM's order 11, 11, 10; the LM head comes on top of the last.
    #[test]
    fn stages_have_their_layers_and_the_last_one_the_head() {
        let roofline = roofline("llama-3.1-8b", 1, 3);
        let [decodes, ..] = batches();
        let stages = roofline.stages_s(&decodes);
        let parts = roofline.parts(&decodes);
        let layer = (parts.dense_s + parts.decode_attention_s + parts.elementwise_s) / 32.0;
        assert!((stages[0] - stages[1] - parts.host_s).abs() < 1e-12);
        assert!(stages[1] > 11.0 * layer && stages[1] < 11.5 * layer + 1e-3);
        assert!(stages[2] - stages[1] > parts.lm_head_s - 2.0 * layer);
        let mut shares = vec![7];
        roofline.stage_shares(&decodes, &mut shares);
        assert_eq!(shares.len(), 3);
        super::tests::roofline("llama-3.1-8b", 2, 1).stage_shares(&decodes, &mut shares);
        assert!(shares.is_empty());
    }
}
