use std::path::Path;

use super::*;
use crate::explore::study::Study;
use crate::metric::SummaryOptions;
use crate::record::RunRecord;

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
      autoscale: {schedule: [{at: 0.5s, groups: 2}, {at: 700s, groups: 3}]}
      rollout: {at: 600s, surge: 1, max_unavailable: 0}
faults:
  - {at: 1s, kind: prefix-cache-flush, group: chat/0}
  - {at: 1200s, kind: group-crash, group: chat/0}
workload: {synthetic: {num_requests: 20, lengths: {independent: {input: {constant: 100}, output: {constant: 20}}}}}
load: {model: open-loop, arrival: {process: poisson, rate: 5}}
";

/// Both ways to summarise a run say it, in order of time, and only of what was not reached.
#[test]
fn what_comes_after_the_end_is_told() {
    let plan = Plan::from_text(SCENARIO, "s.yaml", Path::new(""), &[]).unwrap();
    let study = Study::of(plan).unwrap();
    let of = |summary: &Summary| -> Vec<String> {
        let never = summary.notes.iter().filter(|n| n.contains("never happened"));
        never.cloned().collect()
    };
    let run = study.run(0).unwrap();
    let told = of(&run.summary);
    let begins = [
        "rollout of chat at 600 s: the run ended at ",
        "step of the schedule of chat at 700 s: ",
        "fault group_crash at 1200 s: ",
    ];
    assert_eq!(told.len(), begins.len(), "{told:?}");
    for (note, begin) in told.iter().zip(begins) {
        assert!(note.starts_with(begin), "{note}");
    }
    assert_eq!(of(&study.summarise(0, |_| ()).unwrap().summary), told);
}

#[test]
fn many_of_them_are_counted() {
    let fault = "\n  - {at: 1200s, kind: group-crash, group: chat/0}";
    let faults: String = (0..20)
        .map(|i| fault.replace("1200", &(1200 + i).to_string()))
        .collect();
    let many = SCENARIO.replace(fault, &faults);
    let plan = Plan::from_text(&many, "s.yaml", Path::new(""), &[]).unwrap();
    let mut summary = Summary::of(&RunRecord::default(), &SummaryOptions::default());
    tell_unreached(&plan, SimTime(2_000_000_000), &mut summary);
    assert_eq!(summary.notes.len(), MOST + 1);
    assert_eq!(
        summary.notes[MOST],
        "14 more faults, rollouts and steps of schedules lie after the run's end"
    );
}
