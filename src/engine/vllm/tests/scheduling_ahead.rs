//! Scheduling ahead of the device.

use super::*;

/// Drives the depth-2 loop of rules S51 and S52: plans are committed one call late.
fn async_calls(b: &mut Bench, most: usize) -> Vec<Vec<(u32, u32)>> {
    let mut under_way = std::collections::VecDeque::new();
    let mut calls = Vec::new();
    while calls.len() < most && (b.engine.has_unfinished() || !under_way.is_empty()) {
        if b.engine.has_unfinished() {
            b.engine.plan(&mut b.plan);
            calls.push(b.grants());
            under_way.push_back(b.plan.clone());
            if under_way.len() < 2 && !b.plan.grants.is_empty() {
                continue;
            }
        }
        if let Some(plan) = under_way.pop_front() {
            b.engine.commit(&plan, &mut b.result);
        }
    }
    calls
}

#[test]
fn t11_an_arrival_during_step_k_is_first_in_step_k_plus_2() {
    let mut b = asynchronous();
    b.add(10, 50);
    let (mut first, mut second, mut third) = (StepPlan::default(), StepPlan::default(), StepPlan::default());
    b.engine.plan(&mut first);
    // Step 1 runs; step 2 was scheduled before the request below arrived.
    b.engine.plan(&mut second);
    b.add(10, 50);
    b.engine.commit(&first, &mut b.result);
    b.engine.plan(&mut third);
    assert!(second.grants.iter().all(|g| g.id == 0));
    assert!(third.grants.iter().any(|g| g.id == 1));
}

#[test]
fn t12_eos_wastes_one_slot_and_max_tokens_none() {
    let mut b = asynchronous();
    b.add_request(TraceRequest {
        eos_at: Some(5),
        ..TraceRequest::plain(SimTime::ZERO, 10, 100)
    });
    let calls = async_calls(&mut b, 20);
    assert_eq!(calls.iter().filter(|c| !c.is_empty()).count(), 6);

    let mut b = asynchronous();
    b.add(10, 5);
    let calls = async_calls(&mut b, 20);
    assert_eq!(calls.iter().filter(|c| !c.is_empty()).count(), 5);
    assert_eq!(calls[5], []);
}
