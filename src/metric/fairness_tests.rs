use approx::assert_relative_eq;
use proptest::prelude::*;

use super::*;

fn secs(s: u64) -> SimTime {
    SimTime(s * 1_000_000_000)
}

/// A request of `work` prompt tokens and no output.
fn row(tenant: u32, arrival: u64, first: Option<u64>, end: u64, work: u32) -> FairRow {
    FairRow {
        tenant,
        arrival: secs(arrival),
        first_scheduled: first.map(secs),
        end: secs(end),
        input_tokens: work,
        output_tokens: 0,
        cached_tokens: 0,
        kv_byte_seconds: 0.0,
        completed: first.is_some(),
    }
}

fn figures(rows: &[FairRow], weights: &[(u32, f64)]) -> Fairness {
    let weights = weights.iter().copied().collect();
    Fairness::of(rows.iter().copied(), &weights, TokenWeights::default()).unwrap()
}

#[test]
fn who_waits_for_another_is_told_what_was_due() {
    // Both come at 0; tenant 0 is served for 10 s, then tenant 1.
    let both = figures(&[row(0, 0, Some(0), 10, 100), row(1, 0, Some(10), 20, 100)], &[]);
    let [first, second] = &both.tenants[..] else {
        panic!("two tenants")
    };
    assert_relative_eq!(second.backlogged_s, 10.0);
    assert_relative_eq!(second.service_while_backlogged, 0.0);
    assert_relative_eq!(second.entitled_while_backlogged, 50.0, max_relative = 1e-12);
    assert_eq!(second.share_deviation, Some(-1.0));
    assert_eq!(
        (second.queue_age_mean_s, second.queue_age_max_s),
        (Some(10.0), Some(10.0))
    );
    assert_relative_eq!(second.longest_starvation_s, 10.0);
    assert_relative_eq!(first.backlogged_s, 0.0);
    assert_eq!(first.share_deviation, None);
    assert_eq!(both.jain_completed, Some(1.0));
    // The only one to whom something was due got nothing.
    assert_eq!(both.jain_backlogged, None);
}

#[test]
fn service_by_weight_is_no_deviation() {
    // 3 to 1, both with more waiting throughout.
    let rows = [
        row(0, 0, Some(0), 10, 300),
        row(0, 0, Some(10), 10, 0),
        row(1, 0, Some(0), 10, 100),
        row(1, 0, Some(10), 10, 0),
    ];
    let fair = figures(&rows, &[(0, 3.0)]);
    for tenant in &fair.tenants {
        assert_relative_eq!(tenant.share_deviation.unwrap(), 0.0, epsilon = 1e-12);
        assert_relative_eq!(tenant.longest_starvation_s, 0.0);
    }
    assert_relative_eq!(fair.jain_backlogged.unwrap(), 1.0, max_relative = 1e-12);
    assert_relative_eq!(fair.jain_completed.unwrap(), 1.0, max_relative = 1e-12);
    // The same service under equal weights: half as much again, and half too little.
    let equal = figures(&rows, &[]);
    assert_relative_eq!(
        equal.tenants[0].share_deviation.unwrap(),
        0.5,
        max_relative = 1e-12
    );
    assert_relative_eq!(
        equal.tenants[1].share_deviation.unwrap(),
        -0.5,
        max_relative = 1e-12
    );
    // (1.5 + 0.5)^2 / (2 * (2.25 + 0.25))
    assert_relative_eq!(equal.jain_backlogged.unwrap(), 0.8, max_relative = 1e-12);
    assert_relative_eq!(
        equal.jain_completed.unwrap(),
        160_000.0 / 200_000.0,
        max_relative = 1e-12
    );
}

#[test]
fn who_asks_for_less_than_its_share_is_told_apart_from_who_is_short() {
    let less = |rows: &[FairRow], weights: &[(u32, f64)]| -> Vec<bool> {
        figures(rows, weights)
            .tenants
            .iter()
            .map(|t| t.asked_less)
            .collect()
    };
    let [large, small] = [row(0, 0, Some(0), 10, 300), row(1, 0, Some(10), 20, 100)];
    assert_eq!(less(&[large, small], &[]), [false, true]);
    // By a third of its weight it asked for just its share.
    assert_eq!(less(&[large, small], &[(0, 3.0)]), [false, false]);
    // Nor did it leave anything when one of its requests was never served.
    let unserved = row(1, 0, None, 20, 100);
    assert_eq!(less(&[large, small, unserved], &[]), [false, false]);
}

#[test]
fn starvation_ends_with_service_or_with_the_wait() {
    let rows = [
        // Served 5..8 while another one waits on: starved 0..5 and 8..20.
        row(7, 0, Some(5), 8, 10),
        row(7, 2, Some(20), 21, 10),
        // Gave up at 40, as the next one came: one starvation of 30..44.
        row(7, 30, None, 40, 10),
        row(7, 40, Some(44), 45, 10),
    ];
    let tenant = &figures(&rows, &[]).tenants[0];
    assert_relative_eq!(tenant.longest_starvation_s, 14.0);
    assert_relative_eq!(tenant.backlogged_s, 20.0 + 14.0);
    assert_relative_eq!(tenant.queue_age_mean_s.unwrap(), (5.0 + 18.0 + 10.0 + 4.0) / 4.0);
    assert_eq!(tenant.queue_age_max_s, Some(18.0));
}

#[test]
fn sums_and_shares() {
    let mut rows = [
        row(1, 0, Some(0), 1, 100),
        row(1, 0, Some(1), 2, 50),
        row(2, 0, Some(0), 1, 50),
        row(2, 0, None, 3, 70),
    ];
    rows[0].output_tokens = 20;
    rows[1].output_tokens = 5;
    rows[1].completed = false;
    rows[0].cached_tokens = 30;
    rows[2].cached_tokens = 10;
    rows[0].kv_byte_seconds = 600.0;
    rows[2].kv_byte_seconds = 200.0;
    let fair = figures(&rows, &[]);
    let [one, two] = &fair.tenants[..] else {
        panic!("two tenants")
    };
    assert_eq!((one.offered, one.admitted, one.completed), (2, 2, 1));
    assert_eq!((two.offered, two.admitted, two.completed), (2, 1, 1));
    assert_relative_eq!(one.admitted_work, 140.0 + 60.0);
    assert_relative_eq!(one.completed_work, 140.0);
    assert_relative_eq!(two.admitted_work, 50.0);
    assert_relative_eq!(one.completed_share.unwrap(), 140.0 / 190.0);
    assert_eq!((one.kv_share, two.kv_share), (Some(0.75), Some(0.25)));
    assert_eq!(
        (one.cached_share_of_all, two.cached_share_of_all),
        (Some(0.75), Some(0.25))
    );
    assert_relative_eq!(one.cached_share_of_input.unwrap(), 0.2);
    assert_relative_eq!(two.cached_share_of_input.unwrap(), 10.0 / 120.0);
}

#[test]
fn nothing_is_null_not_zero() {
    let none = figures(&[], &[(3, 2.0)]);
    assert_eq!(
        (none.tenants.len(), none.jain_completed, none.jain_backlogged),
        (0, None, None)
    );
    let refused = &figures(&[row(0, 5, None, 5, 10)], &[]).tenants[0];
    assert_eq!(
        (
            refused.completed_share,
            refused.kv_share,
            refused.cached_share_of_all,
            refused.share_deviation
        ),
        (None, None, None, None)
    );
    assert_eq!(refused.queue_age_max_s, Some(0.0));
    assert_eq!(jain_index(&[]), None);
    assert_eq!(jain_index(&[0.0, 0.0]), None);
    assert_eq!(jain_index(&[5.0, 0.0, 0.0, 0.0]), Some(0.25));
}

#[test]
fn weights_that_are_none_are_refused() {
    let of = |weight| Fairness::of(std::iter::empty(), &[(1, weight)].into(), TokenWeights::default());
    assert_eq!(
        of(0.0),
        Err(FairnessError::Weight {
            tenant: 1,
            weight: 0.0
        })
    );
    assert!(of(f64::NAN).is_err());
    let token = TokenWeights {
        input: 1.0,
        output: -1.0,
    };
    let which = Fairness::of(std::iter::empty(), &BTreeMap::new(), token).unwrap_err();
    assert!(matches!(which, FairnessError::Token { which: "output", .. }));
}

#[test]
fn what_a_favour_costs_the_others() {
    // Tenant 1 goes first with the favour, last without it.
    let without = figures(&[row(0, 0, Some(0), 10, 100), row(1, 0, Some(10), 20, 100)], &[]);
    let with = figures(&[row(0, 0, Some(10), 20, 100), row(1, 0, Some(0), 10, 100)], &[]);
    let costs = cost_to_victims(&without, &with, &[1].into());
    assert_eq!(costs.len(), 1);
    assert_eq!((costs[0].tenant, costs[0].completed_lost), (0, 0));
    assert_eq!(costs[0].queue_age_mean_added_s, Some(10.0));
    assert_relative_eq!(costs[0].starvation_added_s, 10.0);
    assert_eq!(costs[0].share_deviation_lost, None);
    let alone = figures(&[row(1, 0, Some(0), 10, 100)], &[]);
    assert_eq!(cost_to_victims(&alone, &with, &[1].into()), []);
}

/// Second by second: service and what was due, by the words of the definition.
fn by_hand(rows: &[FairRow], weights: &[f64], horizon: u64) -> Vec<(f64, f64, f64)> {
    let mut sums = vec![(0.0, 0.0, 0.0); weights.len()];
    for second in 0..horizon {
        let now = secs(second);
        let mut waits = vec![false; weights.len()];
        let mut rates = vec![0.0; weights.len()];
        let mut active = vec![false; weights.len()];
        for row in rows {
            let begins = row.first_scheduled.unwrap_or(row.end);
            let tenant = row.tenant as usize;
            waits[tenant] |= row.arrival <= now && now < begins;
            active[tenant] |= row.arrival <= now && now < row.end;
            if begins <= now && now < row.end {
                rates[tenant] += f64::from(row.input_tokens) / row.end.since(begins).as_secs_f64();
            }
        }
        let all: f64 = rates.iter().sum();
        let of_active = |(&w, &a): (&f64, &bool)| if a { w } else { 0.0 };
        let active_weight: f64 = weights.iter().zip(&active).map(of_active).sum();
        for tenant in (0..weights.len()).filter(|&tenant| waits[tenant]) {
            sums[tenant].0 += 1.0;
            sums[tenant].1 += rates[tenant];
            sums[tenant].2 += all * weights[tenant] / active_weight;
        }
    }
    sums
}

proptest! {
    #[test]
    fn the_pass_agrees_with_the_definition(
        drawn in prop::collection::vec((0u32..4, 0u64..40, 0u64..20, 1u64..20, 0u32..500, any::<bool>()), 1..40),
        weights in prop::collection::vec(0.25f64..4.0, 4),
    ) {
        let rows: Vec<FairRow> = drawn
            .into_iter()
            .map(|(tenant, arrival, wait, service, work, served)| {
                let first = arrival + wait;
                row(tenant, arrival, served.then_some(first), first + service, work)
            })
            .collect();
        let named: Vec<(u32, f64)> = (0..).zip(weights.iter().copied()).collect();
        let fair = figures(&rows, &named);
        let expected = by_hand(&rows, &weights, 100);
        for tenant in &fair.tenants {
            let (backlogged, service, entitled) = expected[tenant.tenant as usize];
            assert_relative_eq!(tenant.backlogged_s, backlogged);
            assert_relative_eq!(tenant.service_while_backlogged, service, max_relative = 1e-9, epsilon = 1e-6);
            assert_relative_eq!(tenant.entitled_while_backlogged, entitled, max_relative = 1e-9, epsilon = 1e-6);
            prop_assert!(tenant.longest_starvation_s <= tenant.backlogged_s);
            prop_assert!(tenant.queue_age_max_s.unwrap() <= tenant.backlogged_s);
        }
        let jain = fair.jain_completed.unwrap_or(1.0);
        prop_assert!((0.25 - 1e-12..=1.0 + 1e-12).contains(&jain));
        // The order of the rows does not matter beyond rounding.
        let mut turned = rows.clone();
        turned.reverse();
        for (a, b) in figures(&turned, &named).tenants.iter().zip(&fair.tenants) {
            assert_relative_eq!(a.entitled_while_backlogged, b.entitled_while_backlogged, max_relative = 1e-9, epsilon = 1e-6);
            assert_relative_eq!(a.longest_starvation_s, b.longest_starvation_s);
        }
    }
}
