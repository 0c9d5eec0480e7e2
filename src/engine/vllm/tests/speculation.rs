//! Drafts: verified, cut, padded, counted.

use super::*;

#[test]
fn drafts_are_verified_and_rejected_ones_rolled_back() {
    // Synchronous speculation, 2 drafts, accepted 2, 0, 1 in turn (rules S42, S60-S62).
    let mut b = Bench::new(VllmConfig {
        num_speculative_tokens: 2,
        ..config("0.32.0", 2048, 100)
    });
    b.add_request(TraceRequest {
        accepted_drafts: vec![2, 0, 1],
        ..TraceRequest::plain(SimTime::ZERO, 10, 8)
    });
    assert_eq!(b.step(), [(0, 10)]);
    let mut tokens = Vec::new();
    while b.engine.has_unfinished() {
        assert_eq!(b.step(), [(0, 3)]);
        tokens.push(b.result.emitted[0].1);
    }
    // 1 token of the prompt's step, then 3 + 1 + 2, then the last one: 8 are asked for.
    assert_eq!(tokens, [3, 1, 2, 1]);
    assert_eq!(b.result.finished, [(0, FinishReason::Length)]);
    assert_eq!(b.result.free_blocks, 99);
}

#[test]
fn drafts_are_cut_to_the_budget_not_the_request_passed_over() {
    let mut b = Bench::new(VllmConfig {
        num_speculative_tokens: 3,
        ..config("0.32.0", 10, 100)
    });
    b.add(5, 20);
    b.add(5, 20);
    b.add(2, 20);
    b.step();
    assert_eq!(b.step(), [(0, 4), (1, 4), (2, 2)]);
}

#[test]
fn an_eagle_drafter_loses_the_last_matched_block() {
    let mut b = Bench::new(VllmConfig {
        enable_prefix_caching: true,
        num_speculative_tokens: 1,
        eagle: true,
        ..config("0.32.0", 2048, 100)
    });
    b.add_request(shared(65, 1));
    b.step();
    b.add_request(shared(65, 1));
    b.step();
    assert_eq!(b.plan.admitted[0].cached_tokens, 48);
}

#[test]
fn an_admission_of_one_token_is_padded_beside_decodes() {
    // Prefix caching finds all but the last token of the second prompt (65 tokens, 4 full blocks).
    let second_admission = |version: &str, running: bool| {
        let mut b = Bench::new(VllmConfig {
            enable_prefix_caching: true,
            num_speculative_tokens: 2,
            ..config(version, 2048, 100)
        });
        b.add_request(TraceRequest {
            max_output_tokens: if running { 20 } else { 1 },
            ..shared(65, 1)
        });
        b.step();
        b.add_request(shared(65, 1));
        b.step();
        b.grants().last().copied()
    };
    for version in ["0.19.1", "0.22.1"] {
        assert_eq!(
            second_admission(version, true),
            Some((1, 1)),
            "{version} never pads"
        );
    }
    for version in ["0.25.1", "0.28.0"] {
        assert_eq!(second_admission(version, true), Some((1, 3)), "{version}");
        assert_eq!(
            second_admission(version, false),
            Some((1, 1)),
            "{version}: nothing decodes"
        );
    }
    assert_eq!(second_admission("0.32.0", true), Some((1, 3)));
    assert_eq!(
        second_admission("0.32.0", false),
        Some((1, 3)),
        "the cached tokens are enough"
    );
}

#[test]
fn the_number_of_drafts_follows_the_number_of_scheduled_requests() {
    let mut b = Bench::new(VllmConfig {
        num_speculative_tokens: 1,
        dynamic_speculation: vec![(1, 4), (2, 2)],
        ..config("0.32.0", 2048, 100)
    });
    b.add(10, 50);
    b.step();
    b.add(10, 50);
    // One request was scheduled before, so it has 4 drafts; two are scheduled now, so each has 2 in the next step.
    assert_eq!(b.step(), [(0, 5), (1, 10)]);
    b.add(10, 50);
    assert_eq!(b.step(), [(0, 3), (1, 3), (2, 10)]);
    assert_eq!(b.step(), [(0, 2), (1, 2), (2, 2)]);
}
