use proptest::prelude::*;

use super::super::{LinkConfig, UNITS_PER_BYTE};
use super::*;
use crate::units::SimDuration;

/// Bytes a second that move one byte a nanosecond.
const BYTE_A_NS: u64 = 1_000_000_000;

fn one_link(bandwidth: u64, latency: u64) -> Network {
    Network::new(vec![LinkConfig {
        name: "l".to_owned(),
        bandwidth_bytes_per_s: bandwidth,
        latency: SimDuration(latency),
    }])
    .unwrap()
}

fn ends(net: &mut Network) -> Vec<(u64, TransferId)> {
    let (mut ends, mut done) = (Vec::new(), Vec::new());
    while let Some(at) = net.next_change() {
        net.advance(at, &mut done);
        ends.extend(done.drain(..).map(|id| (at.0, id)));
    }
    ends
}

#[test]
fn a_transfer_that_grows_on_its_link_is_as_one_of_all_its_bytes() {
    let mut net = one_link(BYTE_A_NS, 5);
    let id = net.start(SimTime(0), &[0], 10, None);
    assert!(net.extend(SimTime(9), id, 20));
    assert_eq!(ends(&mut net), [(35, id)]);
    assert_eq!(net.moved(0), 30 * UNITS_PER_BYTE);
}

#[test]
fn one_that_has_left_its_links_grows_no_more() {
    let mut net = one_link(BYTE_A_NS, 5);
    let id = net.start(SimTime(0), &[0], 10, None);
    assert!(!net.extend(SimTime(10), id, 20), "its last byte has left");
    net.set_cap(SimTime(11), id, Some(0));
    assert_eq!(ends(&mut net), [(15, id)]);
    assert!(!net.extend(SimTime(16), id, 1), "it is forgotten");
}

/// At a cap of 1/10 byte a ns it has 1 byte at 10 ns, stalls until 20, and moves the other 9 at the link's rate.
#[test]
fn a_cap_can_be_set_and_lifted() {
    let mut net = one_link(BYTE_A_NS, 0);
    let id = net.start(SimTime(0), &[0], 10, Some(BYTE_A_NS / 10));
    net.set_cap(SimTime(10), id, Some(0));
    assert_eq!(net.next_change(), None, "stalled");
    net.set_cap(SimTime(20), id, None);
    assert_eq!(ends(&mut net), [(29, id)]);
}

/// What one leaves by its cap the other takes.
#[test]
fn a_cap_gives_the_rest_to_others() {
    let mut net = one_link(BYTE_A_NS, 0);
    let a = net.start(SimTime(0), &[0], 100, None);
    let b = net.start(SimTime(0), &[0], 100, None);
    net.set_cap(SimTime(0), a, Some(BYTE_A_NS / 4));
    assert_eq!(
        (net.rate_of(a), net.rate_of(b)),
        (Some(BYTE_A_NS / 4), Some(BYTE_A_NS / 4 * 3))
    );
}

/// Nothing holds it back: each part is gone at once.
#[test]
fn an_unlimited_transfer_grows_in_its_instant() {
    let mut net = one_link(u64::MAX, 0);
    let id = net.start(SimTime(3), &[0], 10, Some(1));
    net.set_cap(SimTime(7), id, None);
    assert!(!net.extend(SimTime(7), id, 5), "it has gone in this instant");
    assert_eq!(ends(&mut net), [(7, id)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever grows and is capped when, exactly the bytes cross.
    #[test]
    fn bytes_are_conserved(
        turns in prop::collection::vec((0..50_u64, 0..2_usize, 0..200_u64, prop::option::of(0..BYTE_A_NS * 2)), 1..40),
        bandwidth in 1..BYTE_A_NS * 3,
    ) {
        let mut net = one_link(bandwidth, 3);
        let mut at = 0;
        let mut flows = [net.start(SimTime(0), &[0], 7, None), net.start(SimTime(0), &[0], 9, None)];
        let (mut given, mut all, mut done) = (16, 2, Vec::new());
        for (gap, which, more, cap) in turns {
            at += gap;
            if !net.extend(SimTime(at), flows[which], more) {
                flows[which] = net.start(SimTime(at), &[0], more, None);
                all += 1;
            }
            net.set_cap(SimTime(at), flows[which], cap);
            net.advance(SimTime(at), &mut done);
            given += more;
        }
        flows.iter().for_each(|&id| net.set_cap(SimTime(at), id, None));
        let ended = done.len() + ends(&mut net).len();
        prop_assert_eq!(ended, all);
        prop_assert_eq!(net.moved(0), u128::from(given) * UNITS_PER_BYTE);
    }
}
