use super::*;

fn at(s: u64) -> SimTime {
    SimTime(s * 1_000_000_000)
}

fn secs(s: u64) -> SimDuration {
    SimDuration::from_millis(1_000 * s)
}

/// Every 10 s, of at least 3 requests each.
fn analysis(limits: CanaryLimits) -> Analysis {
    Analysis {
        interval: secs(10),
        min_requests: 3,
        ..Analysis::usual(limits)
    }
}

fn ttft(ratio: f64) -> CanaryLimits {
    CanaryLimits {
        ttft_ratio: Some(ratio),
        ..CanaryLimits::default()
    }
}

fn served(at_s: u64, by_new: bool, ttft_ms: u64) -> Ended {
    let ttft = SimDuration::from_millis(ttft_ms);
    Ended {
        at: at(at_s),
        by_new,
        failed: false,
        latencies: [Some(ttft), None, Some(ttft)],
    }
}

fn broken(at_s: u64) -> Ended {
    Ended {
        at: at(at_s),
        by_new: true,
        failed: true,
        latencies: [None; 3],
    }
}

/// A judge of a canary that was ready at 100 s, and what it heard of.
fn judge(analysis: Analysis, ended: impl IntoIterator<Item = Ended>) -> Judge {
    let mut judge = Judge::new(analysis);
    judge.begin(at(100));
    ended.into_iter().for_each(|e| judge.observe(e));
    judge
}

#[test]
fn the_nearest_rank_is_a_value_that_was_there() {
    let of = |n: u64, p| nearest_rank((1..=n).rev().map(secs).collect(), p, 1);
    assert_eq!(of(100, 0.99), Some(secs(99)));
    assert_eq!(of(101, 0.99), Some(secs(100)));
    assert_eq!(of(5, 0.5), Some(secs(3)));
    assert_eq!(of(4, 0.5), Some(secs(2)));
    assert_eq!(of(1, 0.001), Some(secs(1)));
    assert_eq!(of(7, 1.0), Some(secs(7)));
    assert_eq!(nearest_rank(vec![secs(1); 4], 0.5, 5), None);
    assert_eq!(nearest_rank(vec![], 0.5, 0), None);
}

/// Old: 100, 110, 120 ms, of which the 99th percentile is 120. New: 100, 100 and 150: 1.25 times as much.
#[test]
fn a_latency_is_compared_with_the_old_revisions_of_the_same_interval() {
    let ended = [
        served(101, false, 100),
        served(102, true, 100),
        served(103, false, 110),
        served(104, true, 100),
        served(105, false, 120),
        served(109, true, 150),
    ];
    for (limit, held) in [(1.25, true), (1.24, false)] {
        let mut judge = judge(analysis(ttft(limit)), ended);
        assert_eq!(judge.next_check(), Some(at(110)));
        judge.check(at(109));
        assert_eq!(
            (judge.verdict(), judge.evidence().last),
            (Verdict::Undecided, None)
        );
        judge.check(at(110));
        let check = judge.evidence().last.unwrap();
        assert_eq!((check.from, check.to, check.held), (at(100), at(110), Some(held)));
        let compared = Compared {
            new: SimDuration::from_millis(150),
            old: SimDuration::from_millis(120),
            limit,
        };
        assert_eq!(check.latencies, [Some(compared), None, None]);
        let verdict = if held { Verdict::Passed } else { Verdict::Failed };
        assert_eq!(judge.verdict(), verdict);
    }
}

/// What ends at the very end of an interval is of the next one, and each interval is seen `metric_age` later.
#[test]
fn intervals_are_half_open_and_metrics_are_old() {
    let analysis = Analysis {
        metric_age: secs(4),
        min_requests: 1,
        ..analysis(CanaryLimits {
            errors: Some(0.5),
            ..CanaryLimits::default()
        })
    };
    let mut judge = judge(analysis, [served(109, true, 1), broken(110)]);
    assert_eq!(judge.next_check(), Some(at(114)));
    judge.check(at(113));
    assert_eq!(judge.evidence().passed, 0);
    judge.check(at(114));
    assert_eq!((judge.evidence().passed, judge.evidence().failed), (1, 0));
    judge.check(at(124));
    let last = judge.evidence().last.unwrap();
    assert_eq!(
        (last.from, last.new),
        (
            at(110),
            Tally {
                requests: 1,
                failed: 1
            }
        )
    );
    assert_eq!(judge.verdict(), Verdict::Failed);
}

/// Two of ten may fail at a limit of 0.2, three may not; failures need no old revision beside them.
#[test]
fn errors_are_a_share_of_the_canarys_own_requests() {
    let limits = CanaryLimits {
        errors: Some(0.2),
        ..CanaryLimits::default()
    };
    for (failed, verdict) in [(2, Verdict::Passed), (3, Verdict::Failed)] {
        let well = (0..10 - failed).map(|_| served(101, true, 1));
        let mut judge = judge(analysis(limits), well.chain((0..failed).map(|_| broken(105))));
        judge.check(at(110));
        assert_eq!(judge.verdict(), verdict);
    }
}

#[test]
fn too_few_requests_say_nothing() {
    // Enough of the old revision, two of the new one.
    let ended = (0..9)
        .map(|_| served(101, false, 1))
        .chain([served(102, true, 900), served(103, true, 900)]);
    let mut judge = judge(analysis(ttft(1.2)), ended);
    judge.check(at(110));
    assert_eq!(
        (judge.verdict(), judge.evidence().unknown),
        (Verdict::Undecided, 1)
    );
    // In the next interval there are enough, and the verdict stands on that check.
    for _ in 0..3 {
        judge.observe(served(111, false, 1));
        judge.observe(served(111, true, 1));
    }
    judge.check(at(120));
    judge.check(at(130));
    let evidence = judge.evidence();
    assert_eq!((evidence.passed, evidence.failed, evidence.unknown), (1, 0, 2));
    assert_eq!(evidence.last.unwrap().to, at(120));
    assert_eq!(judge.verdict(), Verdict::Passed);
}

#[test]
fn so_many_checks_may_fail() {
    let analysis = Analysis {
        failure_limit: 1,
        min_requests: 1,
        ..analysis(CanaryLimits {
            errors: Some(0.0),
            ..CanaryLimits::default()
        })
    };
    let mut judge = judge(analysis, [broken(101), served(111, true, 1), broken(121)]);
    judge.check(at(120));
    assert_eq!(judge.verdict(), Verdict::Passed, "one failed, one passed");
    judge.check(at(200));
    assert_eq!(judge.verdict(), Verdict::Failed);
    assert_eq!(
        judge.evidence().last.unwrap().to,
        at(130),
        "it stops at the last straw"
    );
}

#[test]
fn evidence_reads_as_a_sentence() {
    let ended = [1, 2, 3].map(|_| served(101, true, 150));
    let ended = ended
        .into_iter()
        .chain([1, 2, 3].map(|_| served(101, false, 100)));
    let mut judge = judge(analysis(ttft(1.2)), ended);
    judge.check(at(110));
    assert_eq!(
        judge.evidence().to_string(),
        "0 checks passed, 1 failed, 0 had too few requests; 100.000 to 110.000 s: 0 of 3 requests failed, 0 of 3 of the old \
         revision, TTFT p99 0.1500 s to the old revision's 0.1000 s (limit 1.2 times)"
    );
}

#[test]
fn analyses_that_could_not_judge_are_refused() {
    let good = analysis(ttft(1.2));
    assert_eq!(good.check(secs(10)), Ok(()));
    let refused = |analysis: Analysis| analysis.check(secs(60)).unwrap_err();
    assert_eq!(
        refused(Analysis {
            interval: secs(0),
            ..good
        }),
        AnalysisError::Interval
    );
    assert_eq!(
        refused(Analysis {
            min_requests: 0,
            ..good
        }),
        AnalysisError::NoRequests
    );
    assert_eq!(
        refused(Analysis {
            limits: CanaryLimits::default(),
            ..good
        }),
        AnalysisError::NoLimits
    );
    for percentile in [0.0, 1.01, f64::NAN] {
        assert!(matches!(
            refused(Analysis { percentile, ..good }),
            AnalysisError::Percentile(_)
        ));
    }
    for limits in [
        ttft(0.0),
        ttft(f64::INFINITY),
        CanaryLimits {
            errors: Some(1.0),
            ..ttft(1.0)
        },
    ] {
        assert!(matches!(
            refused(Analysis { limits, ..good }),
            AnalysisError::Limit { .. }
        ));
    }
    let late = Analysis {
        metric_age: secs(51),
        ..good
    };
    assert_eq!(
        refused(late),
        AnalysisError::HoldTooShort {
            hold: 60.0,
            first: 61.0
        }
    );
}
