use super::*;

fn cores(number: usize) -> Cores {
    Cores {
        number,
        taken: BinaryHeap::new(),
    }
}

#[test]
fn one_core_takes_work_in_its_order() {
    let mut one = cores(1);
    let mut work = |at, cost| one.work(SimTime(at), SimDuration(cost)).0;
    assert_eq!([work(0, 5), work(1, 3), work(2, 0)], [5, 8, 8]);
    // Free since 8.
    assert_eq!([work(20, 4), work(24, 1)], [24, 25]);
}

#[test]
fn the_core_that_is_free_first_takes_the_next_work() {
    let mut two = cores(2);
    let mut work = |at, cost| two.work(SimTime(at), SimDuration(cost)).0;
    assert_eq!([work(0, 10), work(0, 4), work(1, 2), work(2, 1)], [10, 4, 6, 7]);
    // One is free since 7, the other at 10.
    assert_eq!([work(8, 9), work(9, 1)], [17, 11]);
}

#[test]
fn only_work_that_takes_time_needs_a_machine() {
    let clients = Clients {
        kind: ClientKind::Plain,
        concurrency: 1,
        think: SimDuration::ZERO,
        think_per_token: SimDuration::ZERO,
        machine: Some(ClientMachine {
            cores: 1,
            send_cost: SimDuration::ZERO,
            chunk_cost: SimDuration::ZERO,
        }),
    };
    assert!(!clients.watch_tokens() && !clients.see_for_themselves());
    let thinking = Clients {
        think_per_token: SimDuration(1),
        ..clients
    };
    assert!(thinking.watch_tokens());
    let paused = Clients {
        machine: None,
        ..thinking
    };
    assert!(!paused.watch_tokens());
    let whole = Clients {
        kind: ClientKind::ThreadPool,
        ..paused
    };
    assert!(whole.see_for_themselves() && !whole.watch_tokens());
}
