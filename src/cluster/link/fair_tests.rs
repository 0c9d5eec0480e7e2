use proptest::prelude::*;

use super::*;

fn share(bandwidths: &[u64], flows: &[(&[u32], u64)]) -> Vec<u64> {
    let flows: Vec<Flow<'_>> = flows.iter().map(|&(path, cap)| Flow { path, cap }).collect();
    rates(&flows, &mut bandwidths.to_vec())
}

const ANY: u64 = UNBOUNDED;

#[test]
fn one_link_is_cut_evenly_and_the_remainder_goes_to_the_earliest() {
    assert_eq!(share(&[10], &[(&[0_u32] as &[u32], ANY); 3]), [4, 3, 3]);
    assert_eq!(share(&[2], &[(&[0_u32] as &[u32], ANY); 3]), [1, 1, 0]);
    assert_eq!(
        share(&[0], &[(&[0_u32] as &[u32], ANY); 2]),
        [0, 0],
        "a link that is down"
    );
}

#[test]
fn what_a_cap_leaves_goes_to_the_others() {
    assert_eq!(share(&[10], &[(&[0], 1), (&[0], ANY), (&[0], ANY)]), [1, 5, 4]);
    assert_eq!(share(&[10], &[(&[0], 0), (&[0], ANY)]), [0, 10]);
}

/// The textbook's line network: one flow over both links, one on each.
#[test]
fn a_long_flow_is_held_by_its_tightest_link_and_the_others_take_the_rest() {
    assert_eq!(
        share(&[10, 4], &[(&[0, 1], ANY), (&[0], ANY), (&[1], ANY)]),
        [2, 8, 2]
    );
}

#[test]
fn a_flow_that_no_link_limits_has_its_cap_or_no_limit() {
    assert_eq!(
        share(
            &[UNBOUNDED, 7],
            &[(&[0], ANY), (&[0], 9), (&[], ANY), (&[0, 1], ANY)]
        ),
        [UNBOUNDED, 9, UNBOUNDED, 7]
    );
}

/// Five of ten get one more on the first link; the second has room for three of them only.
#[test]
fn a_remainder_does_not_overfill_another_link() {
    let mut flows: Vec<(&[u32], u64)> = vec![(&[0, 1], ANY); 5];
    flows.extend(vec![(&[0_u32] as &[u32], ANY); 5]);
    assert_eq!(share(&[25, 13], &flows), [3, 3, 3, 2, 2, 3, 3, 2, 2, 2]);
}

#[derive(Debug, Clone)]
struct Case {
    bandwidths: Vec<u64>,
    flows: Vec<(Vec<u32>, u64)>,
}

fn cases() -> impl Strategy<Value = Case> {
    let bandwidth = prop_oneof![0..40_u64, 0..10_000_000_000_u64, Just(UNBOUNDED)];
    let cap = prop_oneof![3 => Just(UNBOUNDED), 1 => 0..20_u64, 1 => 0..1_000_000_000_u64];
    prop::collection::vec(bandwidth, 1..6).prop_flat_map(move |bandwidths| {
        let links: Vec<u32> = (0..bandwidths.len() as u32).collect();
        let most = links.len();
        let flow = (prop::sample::subsequence(links, 0..=most), cap.clone());
        (Just(bandwidths), prop::collection::vec(flow, 1..25))
            .prop_map(|(bandwidths, flows)| Case { bandwidths, flows })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_link_is_overfull_and_no_flow_can_gain_but_from_a_slower_or_equal_one(case in cases()) {
        let flows: Vec<Flow<'_>> = case.flows.iter().map(|(path, cap)| Flow { path, cap: *cap }).collect();
        let mut room = case.bandwidths.clone();
        let rates = rates(&flows, &mut room);
        let load = |link: u32| -> Vec<u64> {
            flows.iter().zip(&rates).filter(|(f, _)| f.path.contains(&link)).map(|(_, &rate)| rate).collect()
        };
        for (link, &bandwidth) in case.bandwidths.iter().enumerate() {
            if bandwidth != UNBOUNDED {
                let used: u128 = load(link as u32).iter().map(|&rate| u128::from(rate)).sum();
                prop_assert_eq!(used + u128::from(room[link]), u128::from(bandwidth));
            }
        }
        for (flow, &rate) in flows.iter().zip(&rates) {
            prop_assert!(rate <= flow.cap);
            let held_back = flow.path.iter().any(|&link| {
                case.bandwidths[link as usize] != UNBOUNDED
                    && room[link as usize] == 0
                    && load(link).iter().all(|&other| other <= rate + 1)
            });
            prop_assert!(rate == flow.cap || held_back, "{rate} of {:?} could rise", flow);
        }
    }

    #[test]
    fn equal_flows_differ_by_one_at_most_and_the_earlier_is_never_the_slower(
        bandwidth in 0..1_000_000_u64, n in 1..60_usize,
    ) {
        let rates = share(&[bandwidth], &vec![(&[0_u32] as &[u32], ANY); n]);
        prop_assert_eq!(rates.iter().sum::<u64>(), bandwidth);
        prop_assert!(rates.is_sorted_by(|a, b| a >= b));
        prop_assert!(rates[0] - rates[n - 1] <= 1);
    }
}
