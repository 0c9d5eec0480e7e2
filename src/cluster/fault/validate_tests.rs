use proptest::prelude::*;

use super::super::super::topology::tests::example;
use super::*;
use crate::cluster::fault::Fallback;
use crate::units::SimDuration;

fn links() -> Vec<LinkConfig> {
    let name = "nic".to_owned();
    vec![LinkConfig {
        name,
        bandwidth_bytes_per_s: 1,
        latency: SimDuration::ZERO,
    }]
}

fn at(at: u64, duration: Option<u64>, kind: FaultKind) -> Fault {
    Fault {
        at: SimTime(at),
        duration: duration.map(SimDuration),
        kind,
    }
}

fn error(faults: &[Fault]) -> String {
    validate(faults, &example(), &links()).unwrap_err().to_string()
}

#[test]
fn what_is_not_there_cannot_fail_and_the_error_says_what_is() {
    let fine = at(0, None, FaultKind::NodeLoss { node: 2 });
    let alone = |kind| error(&[fine, at(5, None, kind)]);
    assert_eq!(
        alone(FaultKind::NodeLoss { node: 3 }),
        "fault 1 (node_loss): there is no node 3; there are 3 nodes (0 to 2)"
    );
    assert_eq!(
        alone(FaultKind::ZoneLoss { zone: 2 }),
        "fault 1 (zone_loss): there is no zone 2; there are 2 zones (0 to 1)"
    );
    assert_eq!(
        alone(FaultKind::LinkDown { link: 1 }),
        "fault 1 (link_down): there is no link 1; there is 1 link (0)"
    );
    assert_eq!(
        alone(FaultKind::KernelFallback {
            on: Fallback::Group(3),
            factor: Ratio::ONE
        }),
        "fault 1 (kernel_fallback): there is no group 3; there are 3 groups (0 to 2)"
    );
    assert_eq!(
        alone(FaultKind::RankCrash { group: 1, rank: 1 }),
        "fault 1 (rank_crash): group 1 has no rank 1; there is 1 rank (0)"
    );
    let none = validate(&[at(0, None, FaultKind::LinkDown { link: 0 })], &example(), &[]).unwrap_err();
    assert!(none.to_string().ends_with("there are no links"), "{none}");
}

#[test]
fn factors_of_zero_and_of_the_wrong_side_are_refused() {
    let link = |n, d| {
        error(&[at(
            0,
            None,
            FaultKind::LinkDegradation {
                link: 0,
                factor: Ratio::new(n, d),
            },
        )])
    };
    let slow = |n, d| {
        error(&[at(
            0,
            None,
            FaultKind::SlowRank {
                group: 0,
                factor: Ratio::new(n, d),
            },
        )])
    };
    assert!(link(0, 1).contains("a factor of 0/1 is not above zero") && link(0, 1).contains("link_down"));
    assert!(link(3, 2).contains("would make it faster"));
    assert!(slow(2, 0).contains("a factor of 2/0 is not above zero"));
    assert!(slow(1, 2).contains("would make it faster") && slow(1, 2).contains("1/1 or more"));
    let same = at(
        0,
        None,
        FaultKind::WeightStoreSlow {
            factor: Ratio::new(3, 3),
        },
    );
    assert_eq!(validate(&[same], &example(), &links()), Ok(()));
}

#[test]
fn a_flush_is_over_at_once() {
    let flush = at(0, Some(1), FaultKind::PrefixCacheFlush { group: 0 });
    assert_eq!(
        error(&[flush]),
        "fault 0 (prefix_cache_flush) is over at once; leave its duration out"
    );
}

#[test]
fn overlaps_of_one_kind_on_one_target_are_named_by_both_places() {
    let loss = |from, lasts| at(from, lasts, FaultKind::NodeLoss { node: 0 });
    assert_eq!(
        error(&[loss(20_000_000, Some(5)), loss(0, Some(30_000_000))]),
        "faults 1 and 0 (node_loss on node 0) overlap: the second starts at 20 ms, the first ends at 30 ms; end the \
         first before, or leave one out"
    );
    assert!(error(&[loss(0, None), loss(9, None)]).contains("the first never ends"));
    assert!(
        error(&[loss(4, Some(0)), loss(4, Some(0))]).contains("overlap"),
        "twice at once"
    );
}

#[test]
fn other_targets_other_kinds_and_neighbours_in_time_do_not_overlap() {
    let faults = [
        at(0, Some(10), FaultKind::NodeLoss { node: 0 }),
        at(10, Some(10), FaultKind::NodeLoss { node: 0 }),
        at(0, None, FaultKind::NodeLoss { node: 1 }),
        at(5, None, FaultKind::ZoneLoss { zone: 0 }),
        at(5, None, FaultKind::GroupCrash { group: 0 }),
        at(6, None, FaultKind::GroupCrash { group: 0 }),
        at(
            6,
            None,
            FaultKind::LinkDegradation {
                link: 0,
                factor: Ratio::new(1, 2),
            },
        ),
        at(6, None, FaultKind::LinkDown { link: 0 }),
    ];
    assert_eq!(validate(&faults, &example(), &links()), Ok(()));
}

proptest! {
    /// Against every pair looked at.
    #[test]
    fn an_overlap_is_found_when_there_is_one(
        spans in prop::collection::vec((0..2_u32, 0..40_u64, prop::option::weighted(0.9, 0..8_u64)), 0..8),
    ) {
        let fault = |&(node, from, lasts): &(u32, u64, Option<u64>)| at(from, lasts, FaultKind::NodeLoss { node });
        let faults: Vec<Fault> = spans.iter().map(fault).collect();
        let clash = |a: &Fault, b: &Fault| {
            let (a, b) = if a.at <= b.at { (a, b) } else { (b, a) };
            a.kind == b.kind && (a.at == b.at || a.ends().is_none_or(|end| b.at < end))
        };
        let pairs = faults.iter().enumerate().flat_map(|(i, a)| faults[..i].iter().map(move |b| (a, b)));
        let expected = pairs.into_iter().any(|(a, b)| clash(a, b));
        let found = validate(&faults, &example(), &links());
        prop_assert_eq!(found.is_err(), expected);
        if let Err(FaultError::Overlap { first, second, .. }) = found {
            prop_assert!(clash(&faults[first], &faults[second]));
        }
    }
}
