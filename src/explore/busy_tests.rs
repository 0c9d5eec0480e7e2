use std::path::Path;

use crate::explore::study::Study;
use crate::scenario::Plan;

/// A rollout: four groups in all, two at a time.
const SCENARIO: &str = "
kneeboard: 1
system:
  model: llama-3.1-8b
  accelerator: h100-sxm
  engine: {kind: vllm, version: '0.28.0', max_num_seqs: 32, max_num_batched_tokens: 2048, max_model_len: 8192, num_gpu_blocks: 4000}
  step_time: {step: 10ms}
cluster:
  pools:
    - name: chat
      role: unified
      groups: 2
      rollout: {at: 2s, surge: 1, max_unavailable: 0}
      start: {provision: 1ms, weight_bandwidth: 100GB/s, warm: 1ms}
workload: {synthetic: {num_requests: 100, lengths: {independent: {input: {constant: 100}, output: {constant: 20}}}}}
load: {model: open-loop, arrival: {process: poisson, rate: 10}}
";

/// Busy is a share of the time that groups were up, as in the table of pools, whichever way a run is summarised.
#[test]
fn busy_is_of_the_time_that_groups_were_up() {
    let busy_of = |measure: &str| {
        let study = Study::of(
            Plan::from_text(&(SCENARIO.to_owned() + measure), "s.yaml", Path::new(""), &[]).unwrap(),
        )
        .unwrap();
        let run = study.run(0).unwrap();
        let figures = run.figures.unwrap();
        let streamed = study.summarise(0, |_| ()).unwrap().summary;
        let groups = figures.total.groups;
        let of_pools = figures.total.busy.utilisation;
        (
            groups,
            of_pools,
            run.summary.gauges.utilisation,
            streamed.gauges.utilisation,
        )
    };
    let (groups, of_pools, whole, streamed) = busy_of("");
    assert!(groups > 2 && of_pools.is_some(), "{groups} {of_pools:?}");
    assert_eq!((whole, streamed), (of_pools, of_pools));
    // Of a part of the run it is not known.
    let (.., part, streamed) = busy_of("measure: {warmup: 3s}");
    assert_eq!((part, streamed), (None, None));
}
