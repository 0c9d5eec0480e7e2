//! Whatever a scenario asks for, its batches run programs that were compiled for it.

use std::path::Path;
use std::sync::Arc;

use kneeboard::explore::study::Study;
use kneeboard::input::InputError;
use kneeboard::scenario::{Machine, Plan};
use kneeboard::steptime::{BatchShape, Program, StaticShapes, StepTime};
use kneeboard::units::SimDuration;
use proptest::prelude::*;

/// Every step takes a millisecond, and runs what was compiled.
#[derive(Debug)]
struct Compiled {
    shapes: StaticShapes,
    programs: Vec<Program>,
}

impl StepTime for Compiled {
    fn duration(&self, batch: &BatchShape) -> SimDuration {
        for program in self.shapes.programs(batch) {
            assert!(
                self.programs.contains(&program),
                "{program} was never compiled: {batch:?}"
            );
        }
        SimDuration::from_millis(1)
    }

    fn needs_decode_rows(&self) -> bool {
        true
    }
}

fn plan(engine: &str, lengths: (u32, u32)) -> Result<Plan, InputError> {
    let (input, output) = lengths;
    let text = format!(
        r#"kneeboard: 1
system:
  model: qwen3-8b
  accelerator: trn2
  engine: {{kind: neuron, seq_len: 3000, {engine}}}
  parallel: {{tp: 4}}
  fit: trn2-neuron
workload: {{synthetic: {{num_requests: 12, lengths: {{fixed: {{input: {input}, output: {output}}}}}}}}}
load: {{model: open-loop, arrival: {{process: constant, rate: 100}}}}
measure: {{seed: 1}}
"#
    );
    Plan::from_text(&text, "test", Path::new(env!("CARGO_MANIFEST_DIR")), &[])
}

fn shapes(plan: &Plan) -> StaticShapes {
    plan.deployment().unwrap().static_shapes.clone().unwrap()
}

fn runs_compiled_programs_alone(plan: Plan) {
    let shapes = shapes(&plan);
    let machine = Machine {
        step_time: Arc::new(Compiled {
            programs: shapes.all_programs(),
            shapes,
        }),
        ..plan.machine().unwrap()
    };
    Study::on(machine, plan).run(0).unwrap();
}

/// Rules N21, N26, N41: which prefixes a prompt's later part may have behind it.
#[test]
fn prompts_that_are_cut_have_programs_for_what_is_computed() {
    let of = |engine: &str| shapes(&plan(engine, (100, 2)).unwrap());
    let native = r#"version: "0.24.0.1.1.0", max_num_seqs: 4, pa_num_blocks: 400"#;
    // A budget below the longest prompt cuts it, and a later segment reads the whole context.
    let segmented = of(&format!("{native}, max_num_batched_tokens: 1024"));
    assert_eq!(segmented.prefix_buckets, [3000]);
    assert_eq!(segmented.context_buckets, [128, 256, 512, 1024]);
    assert_eq!(segmented.all_programs().len(), 4 * 2 + 3);
    let whole = of(&format!("{native}, max_num_batched_tokens: 4096"));
    assert!(whole.prefix_buckets.is_empty(), "no prompt is ever cut");
    let caching = of(&format!("{native}, enable_prefix_caching: true"));
    assert_eq!(caching.prefix_buckets, [512, 1024, 2048, 3000]);
    // Under 0.2.0 vLLM's own scheduler alone cuts prompts, over a cache in blocks.
    let own = r#"version: "0.2.0", max_num_seqs: 4, disable_neuron_custom_scheduler: true, block_size: 32"#;
    let cut = of(&format!("{own}, enable_chunked_prefill: true"));
    assert_eq!(cut.prefix_buckets, [512, 1024, 2048, 3000]);
    assert_eq!(cut.context_buckets, [512, 1024, 2048, 3000]);
    assert!(of(own).prefix_buckets.is_empty());
    assert!(
        of(r#"version: "0.2.0", max_num_seqs: 4"#)
            .prefix_buckets
            .is_empty()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_run_meets_a_program_that_was_not_compiled(
        native in any::<bool>(),
        own in any::<bool>(),
        chunked in any::<bool>(),
        caching in any::<bool>(),
        budget in 4u32..3500,
        seats in 1u32..5,
        input in 1u32..2900,
        output in 1u32..60,
    ) {
        let mut engine = format!("max_num_seqs: {seats}, enable_prefix_caching: {caching}");
        // Memory holds 400 blocks of 32 tokens, and few of 3000.
        if native || own || caching {
            engine += ", pa_num_blocks: 400";
        }
        if native {
            engine += &format!(r#", version: "0.24.0.1.1.0", max_num_batched_tokens: {budget}"#);
        } else if own {
            let budget = if chunked { budget } else { 3000 };
            engine += &format!(
                r#", version: "0.2.0", disable_neuron_custom_scheduler: true, block_size: 32, enable_chunked_prefill: {chunked}, max_num_batched_tokens: {budget}"#
            );
        } else {
            engine += r#", version: "0.2.0""#;
        }
        runs_compiled_programs_alone(plan(&engine, (input, output)).unwrap());
    }
}
