use proptest::prelude::*;

use super::*;

fn link(name: &str, bandwidth: u64, latency_ns: u64) -> LinkConfig {
    LinkConfig {
        name: name.to_owned(),
        bandwidth_bytes_per_s: bandwidth,
        latency: SimDuration(latency_ns),
    }
}

fn network(links: &[(u64, u64)]) -> Network {
    let configs = links.iter().enumerate();
    Network::new(configs.map(|(i, &(b, l))| link(&format!("l{i}"), b, l)).collect()).unwrap()
}

/// Bytes a second that move one byte a nanosecond.
const BYTE_A_NS: u64 = 1_000_000_000;

/// Wakes the network at each of its changes; when each transfer was done.
fn run_out(net: &mut Network) -> Vec<(u64, TransferId)> {
    let mut ends = Vec::new();
    let mut done = Vec::new();
    while let Some(at) = net.next_change() {
        net.advance(at, &mut done);
        ends.extend(done.drain(..).map(|id| (at.0, id)));
    }
    ends
}

#[test]
fn a_lone_transfer_takes_bytes_over_bandwidth_rounded_up_and_the_latency_of_its_path() {
    let mut net = network(&[(3 * BYTE_A_NS, 50), (5 * BYTE_A_NS, 7)]);
    let id = net.start(SimTime(100), &[1, 0], 10, None);
    assert_eq!(net.rate_of(id), Some(3 * BYTE_A_NS));
    assert_eq!(
        net.next_change(),
        Some(SimTime(104)),
        "10 / 3 ns up: the links are free"
    );
    assert_eq!(run_out(&mut net), [(161, id)]);
    assert_eq!(
        (net.moved(0), net.moved(1)),
        (10 * UNITS_PER_BYTE, 10 * UNITS_PER_BYTE)
    );
    assert_eq!(net.under_way(), 0);
}

/// a moves 10 bytes alone; then both move half a byte a nanosecond until a has moved its 20, after 20 ns more; b has 20
/// left and moves them alone.
#[test]
fn two_transfers_share_while_both_move() {
    let mut net = network(&[(BYTE_A_NS, 0)]);
    let a = net.start(SimTime(0), &[0], 20, None);
    let b = net.start(SimTime(10), &[0], 30, None);
    assert_eq!(run_out(&mut net), [(30, a), (50, b)]);
}

#[test]
fn a_cap_holds_one_back_and_leaves_the_rest_to_the_other() {
    let mut net = network(&[(BYTE_A_NS, 0)]);
    let slow = net.start(SimTime(0), &[0], 10, Some(BYTE_A_NS / 5));
    let fast = net.start(SimTime(0), &[0], 40, None);
    assert_eq!(run_out(&mut net), [(50, slow), (50, fast)]);
}

#[test]
fn infinite_bandwidth_leaves_the_latency_and_without_it_nothing() {
    let mut net = network(&[(u64::MAX, 0), (u64::MAX, 9)]);
    let mut done = Vec::new();
    let at_once = net.start(SimTime(5), &[0], u64::MAX, None);
    assert_eq!(net.next_change(), Some(SimTime(5)));
    net.advance(SimTime(5), &mut done);
    assert_eq!(done, [at_once]);
    let later = net.start(SimTime(5), &[0, 1], 7, None);
    assert_eq!(run_out(&mut net), [(14, later)]);
    assert_eq!(net.moved(0), (u128::from(u64::MAX) + 7) * UNITS_PER_BYTE);
    let capped = net.start(SimTime(20), &[0], 8, Some(BYTE_A_NS));
    assert_eq!(run_out(&mut net), [(28, capped)]);
}

#[test]
fn nothing_to_move_or_nowhere_takes_the_latency_only() {
    let mut net = network(&[(1, 30)]);
    net.set_factor(SimTime(0), 0, 0, 1);
    let empty = net.start(SimTime(0), &[0], 0, None);
    let nowhere = net.start(SimTime(0), &[], 1_000, None);
    assert_eq!(run_out(&mut net), [(0, nowhere), (30, empty)]);
}

/// 40 bytes at one a nanosecond; half speed from 10 to 30, down from 30 to 100.
#[test]
fn a_link_that_is_degraded_slows_and_one_that_is_down_stalls_without_loss() {
    let mut net = network(&[(BYTE_A_NS, 0)]);
    let id = net.start(SimTime(0), &[0], 40, None);
    net.set_factor(SimTime(10), 0, 1, 2);
    net.set_factor(SimTime(30), 0, 0, 1);
    assert_eq!(net.next_change(), None, "stalled");
    assert_eq!(net.moved(0), 20 * UNITS_PER_BYTE);
    net.set_factor(SimTime(100), 0, 1, 1);
    assert_eq!(run_out(&mut net), [(120, id)]);
}

#[test]
fn an_infinite_link_can_be_down_and_is_infinite_again() {
    let mut net = network(&[(u64::MAX, 0)]);
    net.set_factor(SimTime(0), 0, 0, 1);
    let id = net.start(SimTime(1), &[0], 40, None);
    assert_eq!(net.next_change(), None);
    net.set_factor(SimTime(9), 0, 1, 3);
    assert_eq!(run_out(&mut net), [(9, id)]);
}

#[test]
fn a_factor_leaves_a_byte_a_second_at_least_and_never_makes_a_link_infinite() {
    let mut net = network(&[(2, 0), (u64::MAX - 1, 0)]);
    let slow = net.start(SimTime(0), &[0], 5, None);
    let fast = net.start(SimTime(0), &[1], u64::MAX, None);
    net.set_factor(SimTime(0), 0, 1, 3);
    net.set_factor(SimTime(0), 1, 3, 1);
    assert_eq!(
        (net.rate_of(slow), net.rate_of(fast)),
        (Some(1), Some(u64::MAX - 1))
    );
    net.set_factor(SimTime(0), 7, 1, 1);
    assert_eq!(net.rate_of(slow), Some(1), "no such link, no change");
}

#[test]
fn a_cancelled_transfer_tells_what_it_moved_and_leaves_the_link_to_the_others() {
    let mut net = network(&[(BYTE_A_NS, 0)]);
    let a = net.start(SimTime(0), &[0], 100, None);
    let b = net.start(SimTime(0), &[0], 20, None);
    assert_eq!(net.cancel(SimTime(11), a), 5, "5.5 rounded down");
    assert_eq!(net.moved(0), 11 * UNITS_PER_BYTE, "exactly");
    assert_eq!((net.bytes_of(a), net.bytes_of(b)), (None, Some(20)));
    assert_eq!(net.cancel(SimTime(11), a), 0, "it is gone");
    assert_eq!(run_out(&mut net), [(26, b)], "14.5 left, rounded up");
}

#[test]
fn one_that_is_done_but_not_reported_can_still_be_cancelled() {
    let mut net = network(&[(BYTE_A_NS, 0)]);
    let a = net.start(SimTime(0), &[0], 10, None);
    assert_eq!(net.cancel(SimTime(50), a), 10);
    assert_eq!((net.next_change(), net.under_way()), (None, 0));
}

#[test]
fn one_call_reports_all_that_are_done_in_the_order_of_their_starts() {
    let mut net = network(&[(BYTE_A_NS, 3)]);
    let long = net.start(SimTime(0), &[0], 30, None);
    let short = net.start(SimTime(0), &[0], 10, None);
    let mut done = Vec::new();
    net.advance(SimTime(1_000), &mut done);
    assert_eq!(done, [long, short]);
}

#[test]
fn links_without_bandwidth_or_a_name_of_their_own_are_refused() {
    let none = Network::new(vec![link("nic", 1, 0), link("pcie", 0, 0)]).unwrap_err();
    assert_eq!(
        none.to_string(),
        "link pcie (number 1) has a bandwidth of 0 bytes/s; to take it down, use a fault"
    );
    let twice = Network::new(vec![link("nic", 1, 0), link("nic", 2, 0)]).unwrap_err();
    assert!(matches!(
        twice,
        NetworkError::SameName {
            first: 0,
            second: 1,
            ..
        }
    ));
}

#[derive(Debug, Clone)]
enum Act {
    Start {
        path: Vec<u32>,
        bytes: u64,
        cap: Option<u64>,
    },
    Cancel(usize),
    Factor {
        link: u32,
        numerator: u32,
        denominator: u32,
    },
}

#[derive(Debug, Clone)]
struct Story {
    links: Vec<(u64, u64)>,
    acts: Vec<(u64, Act)>,
}

fn stories() -> impl Strategy<Value = Story> {
    let bandwidth = prop_oneof![3 => 1_000_000..50_000_000_000_u64, 1 => 1..50_u64, 1 => Just(u64::MAX)];
    let latency = prop_oneof![Just(0), 0..5_000_u64];
    prop::collection::vec((bandwidth, latency), 1..5).prop_flat_map(|links| {
        let numbers: Vec<u32> = (0..links.len() as u32).collect();
        let n = numbers.len();
        let path = prop::sample::subsequence(numbers, 0..=n);
        let cap = prop::option::weighted(0.3, 1_000..5_000_000_000_u64);
        let bytes = prop_oneof![1 => Just(0), 5 => 1..100_000_u64, 1 => 1..1_000_000_000_u64];
        let start = (path, bytes, cap).prop_map(|(path, bytes, cap)| Act::Start { path, bytes, cap });
        let factor = (0..n as u32, 0..4_u32, 1..4_u32);
        let factor = factor.prop_map(|(link, numerator, denominator)| Act::Factor {
            link,
            numerator,
            denominator,
        });
        let act = prop_oneof![6 => start, 1 => (0..40_usize).prop_map(Act::Cancel), 1 => factor];
        let gap = prop_oneof![Just(0), 0..3_000_u64, 0..100_000_000_u64];
        (Just(links), prop::collection::vec((gap, act), 1..40))
            .prop_map(|(links, acts)| Story { links, acts })
    })
}

/// What came of a story: when each transfer was seen to be done, and what crossed each link.
#[derive(Debug, PartialEq)]
struct Outcome {
    done: BTreeMap<TransferId, u64>,
    moved: Vec<u128>,
}

/// Plays a story and counts on its own what must have crossed each link.
fn play(story: &Story, wake_at_changes: bool) -> Result<Outcome, TestCaseError> {
    let mut net = network(&story.links);
    let mut expected = vec![0_u128; story.links.len()];
    let mut alive: BTreeMap<TransferId, (Vec<u32>, u64)> = BTreeMap::new();
    let mut outcome = Outcome {
        done: BTreeMap::new(),
        moved: Vec::new(),
    };
    let (mut now, mut seen) = (0, Vec::new());
    let mut report =
        |net: &mut Network, at: u64, alive: &mut BTreeMap<_, (Vec<u32>, u64)>, expected: &mut [u128]| {
            net.advance(SimTime(at), &mut seen);
            prop_assert!(seen.is_sorted());
            for id in seen.drain(..) {
                let (path, bytes): (Vec<u32>, u64) = alive
                    .remove(&id)
                    .expect("done once, and not after a cancellation");
                path.iter()
                    .for_each(|&l| expected[l as usize] += u128::from(bytes) * UNITS_PER_BYTE);
                outcome.done.insert(id, at);
            }
            Ok(())
        };
    for (gap, act) in &story.acts {
        now += gap;
        while let Some(at) = net.next_change().filter(|at| wake_at_changes && at.0 <= now) {
            report(&mut net, at.0, &mut alive, &mut expected)?;
        }
        report(&mut net, now, &mut alive, &mut expected)?;
        match act {
            Act::Start { path, bytes, cap } => {
                let id = net.start(SimTime(now), path, *bytes, *cap);
                alive.insert(id, (path.clone(), *bytes));
            }
            Act::Cancel(nth) => {
                let id = TransferId(*nth as u64);
                let units = net.moved_of(id).unwrap_or(0);
                prop_assert_eq!(u128::from(net.cancel(SimTime(now), id)), units / UNITS_PER_BYTE);
                let path = alive.remove(&id).map_or(Vec::new(), |(path, _)| path);
                path.iter().for_each(|&l| expected[l as usize] += units);
            }
            Act::Factor {
                link,
                numerator,
                denominator,
            } => {
                net.set_factor(SimTime(now), *link, *numerator, *denominator);
            }
        }
        for (l, &crossed) in expected.iter().enumerate() {
            let under_way = alive.iter().filter(|(_, (path, _))| path.contains(&(l as u32)));
            let under_way: u128 = under_way.map(|(&id, _)| net.moved_of(id).unwrap()).sum();
            prop_assert_eq!(net.moved(l as u32), crossed + under_way);
        }
    }
    for l in 0..story.links.len() as u32 {
        net.set_factor(SimTime(now), l, 1, 1);
    }
    while let Some(at) = net.next_change() {
        report(&mut net, at.0, &mut alive, &mut expected)?;
    }
    prop_assert!(alive.is_empty() && net.under_way() == 0 && net.events.is_empty());
    prop_assert!(net.links.iter().all(|l| l.flowing.is_empty()));
    outcome.moved = (0..story.links.len() as u32).map(|l| net.moved(l)).collect();
    prop_assert_eq!(&outcome.moved, &expected);
    Ok(outcome)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Bytes are conserved on every link at every instant, through cancellations and degradations, and what happens does
    /// not depend on how often one looks.
    #[test]
    fn bytes_are_conserved_and_looking_changes_nothing(story in stories()) {
        let woken = play(&story, true)?;
        let late = play(&story, false)?;
        prop_assert_eq!(&woken.moved, &late.moved);
        for (id, at) in &woken.done {
            prop_assert!(at <= &late.done[id]);
        }
    }

    #[test]
    fn rates_are_those_of_all_transfers_shared_at_once(story in stories()) {
        let mut net = network(&story.links);
        let mut now = SimTime::ZERO;
        for (gap, act) in &story.acts {
            now += SimDuration(*gap);
            match act {
                Act::Start { path, bytes, cap } => { net.start(now, path, *bytes, *cap); }
                Act::Cancel(nth) => { net.cancel(now, TransferId(*nth as u64)); }
                Act::Factor { link, numerator, denominator } => net.set_factor(now, *link, *numerator, *denominator),
            }
            let flowing: Vec<&Transfer> = net.transfers.values().filter(|t| t.flowing).collect();
            let flows: Vec<Flow<'_>> = flowing.iter().map(|t| Flow { path: &t.path, cap: t.cap }).collect();
            let mut room: Vec<u64> = net.links.iter().map(|l| l.capacity).collect();
            let rates = fair::rates(&flows, &mut room);
            prop_assert_eq!(flowing.iter().map(|t| t.rate).collect::<Vec<_>>(), rates);
        }
    }

    /// The last of n is done when n times the bytes have crossed, but for the nanosecond that each end may waste.
    #[test]
    fn n_equal_transfers_take_n_times_one(n in 1..40_u64, bytes in 1..1_000_000_u64, bandwidth in 40..50_000_000_000_u64) {
        let mut net = network(&[(bandwidth, 0)]);
        for _ in 0..n {
            net.start(SimTime(0), &[0], bytes, None);
        }
        let last = run_out(&mut net).last().unwrap().0;
        let fluid = (u128::from(n * bytes) * UNITS_PER_BYTE).div_ceil(u128::from(bandwidth)) as u64;
        prop_assert!((fluid..=fluid + n).contains(&last), "{last} against {fluid}");
    }

    #[test]
    fn n_equal_transfers_take_exactly_n_times_one_where_nothing_is_rounded(
        n in 1..40_u64, ns in 1..1_000_000_u64, share in 1..50_u64,
    ) {
        let mut net = network(&[(n * share * BYTE_A_NS, 0)]);
        for _ in 0..n {
            net.start(SimTime(0), &[0], ns * share * n, None);
        }
        let ends = run_out(&mut net);
        prop_assert!(ends.len() as u64 == n && ends.iter().all(|&(at, _)| at == n * ns));
    }

    #[test]
    fn more_bandwidth_makes_nobody_later(
        bandwidth in 1_000..1_000_000_000_u64, more in 0..1_000_000_000_u64,
        starts in prop::collection::vec((0..10_000_u64, 1..5_000_u64), 1..30),
    ) {
        let ends = |bandwidth| {
            let mut net = network(&[(bandwidth, 0)]);
            let (mut at, mut done, mut ends) = (0, Vec::new(), BTreeMap::new());
            for (gap, bytes) in &starts {
                at += gap;
                while let Some(change) = net.next_change().filter(|change| change.0 <= at) {
                    net.advance(change, &mut done);
                    ends.extend(done.drain(..).map(|id| (id, change.0)));
                }
                net.start(SimTime(at), &[0], *bytes, None);
            }
            ends.extend(run_out(&mut net).into_iter().map(|(at, id)| (id, at)));
            ends
        };
        let (before, after) = (ends(bandwidth), ends(bandwidth + more));
        prop_assert!(before.iter().all(|(id, at)| after[id] <= *at));
    }
}
