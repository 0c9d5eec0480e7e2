use std::sync::Arc;

use super::*;
use crate::workload::arrival::Gaps;
use crate::workload::trace::TraceRequest;

fn law() -> RequestLaw {
    RequestLaw {
        lengths: LengthSource::Independent {
            input: LengthLaw::Uniform { min: 10, max: 400 },
            output: LengthLaw::Lognormal {
                median: 60.0,
                sigma: 0.7,
                min: 1,
                max: 512,
            },
        },
        prefix: Some(PrefixLaw {
            groups: 4,
            tokens: 96,
            share: 0.5,
        }),
        priorities: vec![(0, 3.0), (5, 1.0)],
        drafts: None,
    }
}

fn arrivals(gaps: Gaps, rate: f64) -> Option<ArrivalLaw> {
    Some(ArrivalLaw {
        gaps,
        rate,
        rescale: false,
        pattern: None,
    })
}

fn spec_of(law: RequestLaw) -> SynthSpec {
    SynthSpec {
        arrivals: arrivals(Gaps::Poisson, 2.0),
        until: Until::Count(2000),
        mix: Mix::One(law),
    }
}

fn spec() -> SynthSpec {
    spec_of(law())
}

#[test]
fn a_seed_and_a_replication_fix_every_row() {
    let base = synthesize(&spec(), 1, 0).unwrap();
    assert_eq!(base, synthesize(&spec(), 1, 0).unwrap());
    assert_ne!(base, synthesize(&spec(), 1, 1).unwrap());
    assert_ne!(base, synthesize(&spec(), 2, 0).unwrap());
}

#[test]
fn another_rate_or_share_leaves_the_other_choices_alone() {
    let base = synthesize(&spec(), 1, 0).unwrap();
    let mut changed = spec_of(RequestLaw {
        prefix: Some(PrefixLaw {
            groups: 4,
            tokens: 96,
            share: 0.9,
        }),
        ..law()
    });
    changed.arrivals = arrivals(Gaps::Constant, 9.0);
    let other = synthesize(&changed, 1, 0).unwrap();
    for (a, b) in base.requests.iter().zip(&other.requests) {
        assert_eq!(
            (a.input_tokens, a.max_output_tokens),
            (b.input_tokens, b.max_output_tokens)
        );
        assert_eq!(a.priority, b.priority);
        if a.prefix.is_some() {
            assert_eq!(a.prefix, b.prefix, "members stay members as the share rises");
        }
    }
}

/// Binomial counts within four standard deviations.
#[test]
fn shares_and_weights_are_met() {
    let t = synthesize(&spec(), 1, 0).unwrap();
    let near = |count: usize, p: f64| {
        let (mean, sd) = (2000.0 * p, (2000.0 * p * (1.0 - p)).sqrt());
        assert!(
            (count as f64 - mean).abs() < 4.0 * sd,
            "{count} of 2000, expected {mean}"
        );
    };
    near(t.requests.iter().filter(|r| r.prefix.is_some()).count(), 0.5);
    near(t.requests.iter().filter(|r| r.priority == 5).count(), 0.25);
    for r in &t.requests {
        assert!(
            r.prefix
                .is_none_or(|p| p.group < 4 && p.shared_tokens == r.input_tokens.min(96))
        );
    }
}

#[test]
fn rows_are_drawn_jointly() {
    let rows: Arc<[(u32, u32)]> = vec![(10, 100), (20, 200)].into();
    let s = spec_of(RequestLaw {
        lengths: LengthSource::Rows(rows),
        ..law()
    });
    let t = synthesize(&s, 1, 0).unwrap();
    assert!(
        t.requests
            .iter()
            .all(|r| r.max_output_tokens == 10 * r.input_tokens)
    );
    let first = t.requests.iter().filter(|r| r.input_tokens == 10).count();
    assert!((first as f64 - 1000.0).abs() < 4.0 * 500f64.sqrt(), "{first}");
}

/// With chance a and k drafts, the mean accepted is a + a^2 + ... + a^k.
#[test]
fn accepted_drafts_have_their_mean() {
    let s = spec_of(RequestLaw {
        drafts: Some(DraftLaw {
            drafts: 3,
            acceptance: 0.6,
        }),
        ..law()
    });
    let t = synthesize(&s, 1, 0).unwrap();
    let all: Vec<f64> = t
        .requests
        .iter()
        .flat_map(|r| r.accepted_drafts.iter().map(|a| f64::from(*a)))
        .collect();
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    assert!(
        (mean - (0.6 + 0.36 + 0.216)).abs() < 4.0 * 1.2 / (all.len() as f64).sqrt(),
        "{mean}"
    );
}

#[test]
fn the_first_rows_do_not_change_between_releases() {
    let t = synthesize(&spec(), 1, 0).unwrap();
    let rows: Vec<_> = t.requests[..3]
        .iter()
        .map(|r| {
            (
                r.arrival.0,
                r.input_tokens,
                r.max_output_tokens,
                r.prefix.map(|p| p.group),
                r.priority,
            )
        })
        .collect();
    assert_eq!(rows, PINNED);
}

const PINNED: [(u64, u32, u32, Option<u32>, i32); 3] = [
    (640_311_690, 345, 124, None, 0),
    (1_216_957_850, 97, 10, None, 0),
    (1_820_111_684, 370, 83, Some(0), 5),
];

#[test]
fn nothing_to_draw_from_is_an_error() {
    let s = spec_of(RequestLaw {
        lengths: LengthSource::Rows(Arc::from([])),
        ..law()
    });
    assert_eq!(synthesize(&s, 1, 0), Err(SynthError::NoRows));
    let s = SynthSpec {
        arrivals: None,
        until: Until::Time(SimTime(5)),
        ..spec()
    };
    assert_eq!(synthesize(&s, 1, 0), Err(SynthError::NoCount));
}

/// What is drawn one by one is what a whole trace holds, and the span is that of its arrivals.
#[test]
fn the_span_and_the_stream_are_those_of_the_trace() {
    let rescaled = SynthSpec {
        arrivals: Some(ArrivalLaw {
            rescale: true,
            ..spec().arrivals.unwrap()
        }),
        ..spec()
    };
    let timed = SynthSpec {
        until: Until::Time(SimTime(400_000_000_000)),
        ..spec()
    };
    for s in [spec(), rescaled, timed, classes(&[("chat", 0.7), ("code", 0.3)])] {
        let whole = synthesize(&s, 4, 1).unwrap().requests;
        let streamed: Vec<TraceRequest> = stream(&s, 4, 1).unwrap().map(Result::unwrap).collect();
        assert_eq!(whole, streamed);
        let span = arrival_span(&s, 4, 1).unwrap().unwrap();
        let (first, last) = (whole[0].arrival, whole[whole.len() - 1].arrival);
        assert_eq!(
            (span.first, span.last, span.count as usize),
            (first, last, whole.len())
        );
        assert!(whole.is_sorted_by_key(|r| r.arrival));
    }
}

#[test]
fn more_than_memory_holds_is_streamed() {
    let long = SynthSpec {
        until: Until::Count(100_000_000),
        ..spec()
    };
    assert!(stream(&long, 1, 0).unwrap().take(1000).all(|r| r.is_ok()));
    let refused = synthesize(&long, 1, 0).unwrap_err().to_string();
    assert!(refused.contains("--summary-only"), "{refused}");
    let longer = SynthSpec {
        until: Until::Count(u32::MAX),
        ..spec()
    };
    assert!(stream(&longer, 1, 0).is_err());
}

/// Classes of constant lengths, by which they are told apart: 10 tokens the first, 20 the second.
fn classes(shares: &[(&str, f64)]) -> SynthSpec {
    let class = |(name, share): &(&str, f64)| RequestClass {
        name: (*name).to_owned(),
        share: *share,
        requests: RequestLaw {
            lengths: LengthSource::Fixed {
                input: name.len() as u32 * 100,
                output: 1,
            },
            ..law()
        },
    };
    SynthSpec {
        mix: Mix::Classes(shares.iter().map(class).collect()),
        ..spec()
    }
}

/// Binomial counts within four standard deviations; each class alone is a Poisson process of its share of the rate.
#[test]
fn classes_have_their_shares_and_rates() {
    let trace = synthesize(&classes(&[("chat", 0.7), ("legal", 0.3)]), 1, 0)
        .unwrap()
        .requests;
    let chat: Vec<_> = trace.iter().filter(|r| r.input_tokens == 400).collect();
    let sd = (2000.0_f64 * 0.7 * 0.3).sqrt();
    assert!((chat.len() as f64 - 1400.0).abs() < 4.0 * sd, "{}", chat.len());
    // The last of n arrivals of a Poisson process is at n / rate, give or take sqrt(n) / rate.
    let (n, last) = (chat.len() as f64, chat[chat.len() - 1].arrival.as_secs_f64());
    assert!((last - n / 1.4).abs() < 4.0 * n.sqrt() / 1.4, "{last}");
    let groups: Vec<u32> = chat.iter().filter_map(|r| r.prefix.map(|p| p.group)).collect();
    assert!(groups.iter().all(|g| *g < 4));
    let others = trace.iter().filter(|r| r.input_tokens == 500);
    assert!(others.filter_map(|r| r.prefix).all(|p| (4..8).contains(&p.group)));
}

#[test]
fn a_further_class_changes_no_draw_of_the_others() {
    let of_chat = |shares: &[(&str, f64)], rate: f64| {
        let mut s = classes(shares);
        s.arrivals = arrivals(Gaps::Poisson, rate);
        s.until = Until::Time(SimTime(100_000_000_000));
        let all = synthesize(&s, 1, 0).unwrap().requests;
        all.into_iter()
            .filter(|r| r.input_tokens == 400)
            .map(|r| (r.arrival, r.priority))
            .collect::<Vec<_>>()
    };
    // The same 2 requests a second of chat, alone, before and behind another class.
    let alone = of_chat(&[("chat", 1.0)], 2.0);
    assert_eq!(alone, of_chat(&[("chat", 0.5), ("legal", 0.5)], 4.0));
    assert_eq!(alone, of_chat(&[("legal", 0.5), ("chat", 0.5)], 4.0));
}

#[test]
fn classes_that_all_arrive_at_once_are_mixed_by_their_shares() {
    let s = SynthSpec {
        arrivals: None,
        ..classes(&[("chat", 0.7), ("legal", 0.3)])
    };
    let trace = synthesize(&s, 1, 0).unwrap().requests;
    let early = trace[..200].iter().filter(|r| r.input_tokens == 400).count() as f64;
    assert!((early - 140.0).abs() < 4.0 * (200.0_f64 * 0.21).sqrt(), "{early}");
    let none = classes(&[("chat", 0.0), ("legal", 0.0)]);
    assert_eq!(stream(&none, 1, 0).map(|_| ()), Err(SynthError::Shares));
}
