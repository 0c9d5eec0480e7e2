use proptest::prelude::*;

use super::super::super::topology::tests::example;
use super::super::super::topology::{Node, Placement};
use super::super::validate;
use super::*;

const HOUR: u64 = 3_600_000_000_000;

fn rate(mtbf_hours: f64, repair_hours: u64) -> Option<Rate> {
    Some(Rate {
        mtbf_hours,
        repair: SimDuration(repair_hours * HOUR),
    })
}

fn all(mtbf_hours: f64) -> Rates {
    let rate = rate(mtbf_hours, 2);
    Rates {
        device: rate,
        node: rate,
        zone: rate,
        link: rate,
    }
}

fn links() -> Vec<LinkConfig> {
    let link = |name: &str| LinkConfig {
        name: name.to_owned(),
        bandwidth_bytes_per_s: 1,
        latency: SimDuration::ZERO,
    };
    vec![link("nic"), link("spine")]
}

fn drawn(rates: &Rates, topology: &Topology, hours: u64, seed: u64) -> Vec<Fault> {
    timeline(rates, topology, &links(), SimDuration(hours * HOUR), seed, 0).unwrap()
}

fn of_kind(faults: &[Fault], label: &str) -> Vec<Fault> {
    faults
        .iter()
        .filter(|fault| fault.kind.label() == label)
        .copied()
        .collect()
}

#[test]
fn the_same_seed_gives_the_same_faults_and_another_seed_or_replication_others() {
    let draw = |seed, replication| {
        timeline(
            &all(50.0),
            &example(),
            &links(),
            SimDuration(500 * HOUR),
            seed,
            replication,
        )
        .unwrap()
    };
    assert_eq!(draw(1, 0), draw(1, 0));
    assert_ne!(draw(1, 0), draw(2, 0));
    assert_ne!(draw(1, 0), draw(1, 1));
    assert!(!draw(1, 0).is_empty() && draw(1, 0).is_sorted_by_key(|fault| fault.at));
}

#[test]
fn what_is_added_shifts_nobody_elses_faults() {
    let before = drawn(&all(50.0), &example(), 1_000, 7);
    let mut larger = example();
    larger.nodes.push(Node {
        name: "n3".to_owned(),
        zone: 1,
    });
    larger.groups.push(Placement {
        name: "g3".to_owned(),
        ranks: vec![3],
    });
    let mut after = drawn(&all(50.0), &larger, 1_000, 7);
    let number = after.len();
    after.retain(|f| {
        !matches!(
            f.kind,
            FaultKind::NodeLoss { node: 3 } | FaultKind::RankCrash { group: 3, .. }
        )
    });
    assert!(after.len() < number);
    assert_eq!(after, before);
}

#[test]
fn a_part_keeps_its_faults_where_its_number_changes_and_where_others_have_other_rates() {
    let only_nodes = |hours| Rates {
        node: rate(50.0, 2),
        link: rate(hours, 1),
        ..Rates::default()
    };
    let before = of_kind(&drawn(&only_nodes(9.0), &example(), 1_000, 7), "node_loss");
    assert_eq!(
        of_kind(&drawn(&only_nodes(77.0), &example(), 1_000, 7), "node_loss"),
        before
    );
    let mut turned = example();
    turned.nodes.reverse();
    let back = |mut fault: Fault| {
        if let FaultKind::NodeLoss { node } = &mut fault.kind {
            *node = 2 - *node;
        }
        fault
    };
    let after = of_kind(&drawn(&only_nodes(9.0), &turned, 1_000, 7), "node_loss");
    assert_eq!(after.into_iter().map(back).collect::<Vec<_>>(), before);
}

#[test]
fn a_longer_horizon_adds_faults_after_the_shorter_one_only() {
    let (short, long) = (
        drawn(&all(30.0), &example(), 300, 3),
        drawn(&all(30.0), &example(), 900, 3),
    );
    let early: Vec<Fault> = long.into_iter().filter(|fault| fault.at.0 < 300 * HOUR).collect();
    assert_eq!(early, short);
}

/// 8 000 cycles of 10 h + 2 h: a standard error of 0.9 % of the count.
#[test]
fn as_many_faults_as_the_rates_say() {
    let rates = Rates {
        zone: rate(10.0, 2),
        ..Rates::default()
    };
    let mut one = example();
    one.zones.truncate(1);
    let count = drawn(&rates, &one, 96_000, 1).len() as f64;
    assert!((count / 8_000.0 - 1.0).abs() < 0.03, "{count}");
}

#[test]
fn a_device_without_repair_time_crashes_all_the_same() {
    let rates = Rates {
        device: rate(10.0, 0),
        ..Rates::default()
    };
    let faults = drawn(&rates, &example(), 100, 1);
    assert!(!faults.is_empty() && faults.iter().all(|fault| fault.duration.is_none()));
}

/// A mean of a third of a picosecond: one fault a nanosecond, never two.
#[test]
fn faults_of_one_part_are_a_nanosecond_apart_at_least() {
    let rates = Rates {
        zone: rate(1e-16, 0),
        ..Rates::default()
    };
    let mut one = example();
    one.zones.truncate(1);
    let faults = timeline(&rates, &one, &[], SimDuration(1_000), 1, 0).unwrap();
    assert!(faults.iter().map(|fault| fault.at.0).eq(1..1_000));
}

#[test]
fn no_rates_and_no_time_give_no_faults() {
    assert_eq!(drawn(&Rates::default(), &example(), 1_000, 1), []);
    assert_eq!(drawn(&all(1.0), &example(), 0, 1), []);
    assert_eq!(
        drawn(&all(1e300), &example(), 1_000, 1),
        [],
        "longer than time itself"
    );
}

#[test]
fn rates_that_are_no_times_and_rates_without_end_are_refused() {
    for hours in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let rates = Rates {
            link: rate(hours, 0),
            ..Rates::default()
        };
        let error = timeline(&rates, &example(), &links(), SimDuration(HOUR), 1, 0).unwrap_err();
        assert!(
            matches!(error, RateError::NotATime { what: "link", .. }),
            "{error}"
        );
    }
    let rates = Rates {
        node: rate(1e-9, 0),
        ..Rates::default()
    };
    assert_eq!(
        timeline(&rates, &example(), &links(), SimDuration(HOUR), 1, 0),
        Err(RateError::TooMany {
            what: "node",
            before: SimDuration(HOUR)
        })
    );
}

/// The constants are what their comments derive.
#[test]
fn published_rates_follow_from_the_counts() {
    let device_hours = 16_384.0 * 54.0 * 24.0;
    let gpu = f64::from(148 + 72 + 19 + 17 + 6 + 6);
    let network = f64::from(35 + 7);
    let near = |hours: f64, count: f64| (device_hours / count / hours - 1.0).abs() < 0.005;
    assert!(near(INTERRUPTION_MTBF_DEVICE_HOURS, 419.0));
    assert!(near(DEVICE_MTBF_HOURS, gpu));
    assert!(near(LINK_MTBF_HOURS, network));
    assert!(near(HOST_MTBF_DEVICE_HOURS, 419.0 - gpu - network));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_is_drawn_is_valid(seed: u64, mtbf in 0.5..100.0_f64, repair in 0..5_u64, hours in 0..500_u64) {
        let rate = rate(mtbf, repair);
        let rates = Rates { device: rate, node: rate, zone: rate, link: rate };
        let faults = drawn(&rates, &example(), hours, seed);
        prop_assert_eq!(validate(&faults, &example(), &links()), Ok(()));
        prop_assert!(faults.iter().all(|fault| fault.at.0 < hours * HOUR));
    }
}
