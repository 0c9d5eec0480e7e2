//! The whole simulator, not only the engine, keeps the virtual clock of the golden cases.

use std::path::{Path, PathBuf};

use super::*;
use crate::sim::{FrontEnd, HostTimes, LoadModel, WorldConfig, run};
use crate::steptime::StepTime;
use crate::units::SimDuration;
use crate::workload::trace::Trace;

#[derive(Debug)]
struct Priced(Cost);

impl StepTime for Priced {
    fn duration(&self, batch: &BatchShape) -> SimDuration {
        SimDuration(self.0.of(batch))
    }
}

fn assert_world_keeps_the_clock(folder: &Path) {
    let config = read_config(&folder.join("config.json")).unwrap();
    let steps = read_steps(&first_existing(folder, &STEP_FILES).unwrap()).unwrap();
    let world = WorldConfig {
        engine: engine_config(&config, folder).unwrap(),
        replicas: 1,
        load: LoadModel::OpenLoop,
        host: HostTimes::default(),
        front_end: FrontEnd::default(),
        stall: None,
        deadline: None,
    };
    let trace = Trace {
        requests: read_trace(&folder.join("trace.csv")).unwrap(),
    };
    let record = run(&world, &Priced(config.cost_ns), &trace).unwrap();
    let busy: Vec<&Step> = steps.iter().filter(|s| !s.sched.is_empty()).collect();
    let name = folder.display();
    let replica = &record.replicas[0];
    assert_eq!(replica.step_ends.len(), busy.len(), "{name}");
    for (i, step) in busy.iter().enumerate() {
        let (start, end) = (
            step.start.unwrap_or(step.t),
            step.end.unwrap_or(step.t + step.dur),
        );
        assert_eq!(
            (replica.step_starts[i], replica.step_ends[i]),
            (SimTime(start), SimTime(end)),
            "{name}, step {}",
            step.step
        );
        assert_eq!(
            (replica.running[i], replica.waiting[i]),
            (step.run, step.wait),
            "{name}, step {}",
            step.step
        );
    }
    let preempted: usize = steps.iter().map(|s| s.pre.len()).sum();
    assert_eq!(replica.preemptions, preempted as u64, "{name}");
}

#[test]
fn the_world_keeps_the_virtual_clock_of_the_golden_cases() {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/scheduler-golden");
    let mut cases: Vec<PathBuf> = std::fs::read_dir(own)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    cases.sort();
    assert!(cases.len() >= 15);
    cases.iter().for_each(|c| assert_world_keeps_the_clock(c));
}
