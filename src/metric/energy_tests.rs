use approx::assert_relative_eq;
use proptest::prelude::*;

use super::*;

const H100: PowerModel = PowerModel {
    idle_w: 75.0,
    dynamic: Dynamic::Phases {
        prefill_w: 700.0,
        decode_w: 380.0,
    },
    cap_w: None,
    frequency_ratio: None,
};

const WEIGHTED: PowerModel = PowerModel {
    idle_w: 100.0,
    dynamic: Dynamic::Weights {
        max_w: 700.0,
        compute: 0.5,
        memory: 0.25,
    },
    cap_w: None,
    frequency_ratio: None,
};

fn secs(s: u64) -> SimTime {
    SimTime(s * 1_000_000_000)
}

const fn prefill(compute: f64, memory: f64) -> Work {
    Work::Prefill { compute, memory }
}

const fn decode(compute: f64, memory: f64) -> Work {
    Work::Decode { compute, memory }
}

fn interval(start: u64, end: u64, work: Work) -> Interval {
    Interval {
        start: secs(start),
        end: secs(end),
        work,
    }
}

fn served() -> ServedWork {
    ServedWork {
        good_requests: 10,
        input_tokens: 1000,
        output_tokens: 100,
        good_output_tokens: 50,
    }
}

#[test]
fn joules_are_watts_times_seconds() {
    let intervals = [
        interval(1, 3, prefill(0.9, 0.1)),
        interval(3, 7, decode(0.1, 0.9)),
        interval(
            8,
            9,
            Work::Mixed {
                compute: 0.5,
                memory: 0.5,
                prefill_share: 0.25,
            },
        ),
    ];
    let group = Devices {
        power: &H100,
        count: 2,
        powered: &[(secs(0), secs(10))],
        intervals: &intervals,
    };
    let energy = Energy::of(&[group], &served(), None).unwrap();
    // A mixed second: 0.25 * 700 + 0.75 * 380 = 460 W.
    assert_relative_eq!(energy.idle_j, 2.0 * 750.0);
    assert_relative_eq!(energy.dynamic_j, 2.0 * (2.0 * 625.0 + 4.0 * 305.0 + 385.0));
    assert_relative_eq!(energy.total_j, energy.idle_j + energy.dynamic_j);
    assert_relative_eq!(energy.by_phase.prefill, 2.0 * 1400.0);
    assert_relative_eq!(energy.by_phase.decode, 2.0 * 1520.0);
    assert_relative_eq!(energy.by_phase.mixed, 2.0 * 460.0);
    assert_relative_eq!(energy.by_phase.waiting, 2.0 * 225.0);
    assert_relative_eq!(energy.by_phase.total(), energy.total_j);
    assert_relative_eq!(energy.j_per_input_token.unwrap(), (2800.0 + 230.0) / 1000.0);
    assert_relative_eq!(energy.j_per_output_token.unwrap(), (3040.0 + 690.0) / 100.0);
    assert_relative_eq!(energy.total_j_per_output_token.unwrap(), energy.total_j / 100.0);
    assert_relative_eq!(energy.j_per_good_request.unwrap(), energy.total_j / 10.0);
    assert_eq!(energy.peak_w, Some(1400.0));
    assert_relative_eq!(energy.mean_w.unwrap(), energy.total_j / 10.0);
    assert_eq!((energy.pue, energy.facility_j), (None, None));
}

#[test]
fn the_peak_is_of_all_devices_together() {
    let (early, late) = (
        [interval(0, 5, prefill(1.0, 0.0))],
        [interval(4, 6, decode(0.0, 1.0))],
    );
    let next = [interval(5, 6, prefill(1.0, 0.0))];
    let group = |intervals| Devices {
        power: &H100,
        count: 1,
        powered: &[(SimTime(0), SimTime(10_000_000_000))],
        intervals,
    };
    let peak = |groups: &[Devices<'_>]| Energy::of(groups, &served(), None).unwrap().peak_w;
    assert_eq!(peak(&[group(&early), group(&late)]), Some(1080.0));
    // One ends as the other begins: never both.
    assert_eq!(peak(&[group(&early), group(&next)]), Some(775.0));
}

#[test]
fn without_power_nothing_is_burnt() {
    let spans = [(secs(0), secs(2)), (secs(8), secs(10))];
    let busy = [interval(8, 10, decode(0.2, 0.8))];
    let group = Devices {
        power: &H100,
        count: 1,
        powered: &spans,
        intervals: &busy,
    };
    let energy = Energy::of(&[group], &ServedWork::default(), None).unwrap();
    assert_relative_eq!(energy.total_j, 150.0 + 760.0);
    assert_relative_eq!(energy.mean_w.unwrap(), 91.0);
    assert_eq!(
        (
            energy.j_per_input_token,
            energy.j_per_output_token,
            energy.j_per_good_request
        ),
        (None, None, None)
    );
    let none = Energy::of(&[], &served(), None).unwrap();
    assert_eq!((none.total_j, none.peak_w, none.mean_w), (0.0, None, None));
}

#[test]
fn utilisation_is_weighted() {
    // 100 + 600 * (0.5 * 0.8 + 0.25 * 0.4) = 400.
    assert_relative_eq!(WEIGHTED.watts(&prefill(0.8, 0.4)), 400.0);
    let heavy = PowerModel {
        dynamic: Dynamic::Weights {
            max_w: 700.0,
            compute: 1.0,
            memory: 1.0,
        },
        ..WEIGHTED
    };
    assert_relative_eq!(heavy.watts(&prefill(0.9, 0.9)), 700.0);
}

#[test]
fn a_slower_clock_burns_less_and_takes_longer_where_compute_binds() {
    let half = PowerModel {
        frequency_ratio: Some(0.5),
        ..H100
    };
    // 625 W / 8, for twice as long: a quarter of the dynamic energy.
    let prompts = prefill(0.9, 0.3);
    assert_relative_eq!(half.dynamic_w(&prompts), 78.125);
    assert_relative_eq!(half.time_factor(&prompts), 2.0);
    let whole_s = SimDuration::from_millis(1000);
    assert_eq!(half.interval(secs(1), whole_s, prompts).end, secs(3));
    // Memory binds: as long as before, an eighth of the dynamic energy.
    let outputs = decode(0.3, 0.9);
    assert_relative_eq!(half.dynamic_w(&outputs), 305.0 / 8.0);
    assert_relative_eq!(half.time_factor(&outputs), 1.0);
    // Until compute, twice as long, is the longer one: 0.6 / 0.5 over 0.9.
    assert_relative_eq!(half.time_factor(&decode(0.6, 0.9)), 1.2 / 0.9);
    // Utilisations unknown.
    assert_relative_eq!(half.time_factor(&prefill(0.0, 0.0)), 2.0);
    assert_relative_eq!(half.time_factor(&decode(0.0, 0.0)), 1.0);
    let mixed = Work::Mixed {
        compute: 0.0,
        memory: 0.0,
        prefill_share: 0.5,
    };
    assert_relative_eq!(half.time_factor(&mixed), 1.5);
    assert_relative_eq!(H100.time_factor(&prompts), 1.0);
}

#[test]
fn a_cap_slows_only_what_would_exceed_it() {
    // (153.125 - 75) / 625 = 1 / 8: half the clock for prompts.
    let capped = PowerModel {
        cap_w: Some(153.125),
        ..H100
    };
    let prompts = prefill(0.9, 0.3);
    assert_relative_eq!(capped.clock(&prompts), 0.5, max_relative = 1e-12);
    assert_relative_eq!(capped.watts(&prompts), 153.125, max_relative = 1e-12);
    assert_relative_eq!(capped.time_factor(&prompts), 2.0, max_relative = 1e-12);
    let high = PowerModel {
        cap_w: Some(400.0),
        ..H100
    };
    assert_relative_eq!(high.watts(&decode(0.1, 0.9)), 380.0);
    assert_relative_eq!(high.clock(&decode(0.1, 0.9)), 1.0);
    // The clock that is set may be the lower one.
    let both = PowerModel {
        frequency_ratio: Some(0.25),
        ..capped
    };
    assert_relative_eq!(both.clock(&prompts), 0.25);
}

#[test]
fn a_pue_needs_a_source() {
    let of = |value, source: &str| {
        let source = source.into();
        Energy::of(
            &[Devices {
                power: &H100,
                count: 1,
                powered: &[(SimTime(0), SimTime(1_000_000_000))],
                intervals: &[],
            }],
            &served(),
            Some(Pue { value, source }),
        )
    };
    assert_relative_eq!(of(1.2, "AWS, 2023").unwrap().facility_j.unwrap(), 90.0);
    assert!(matches!(of(1.2, " "), Err(EnergyError::Pue { .. })));
    assert!(matches!(of(0.9, "x"), Err(EnergyError::Pue { .. })));
    assert!(matches!(of(f64::NAN, "x"), Err(EnergyError::Pue { .. })));
}

#[test]
fn spans_that_make_no_sense_are_refused() {
    let of = |powered: &[(SimTime, SimTime)], intervals: &[Interval]| {
        let group = Devices {
            power: &H100,
            count: 1,
            powered,
            intervals,
        };
        Energy::of(&[group], &served(), None).map(|energy| energy.total_j)
    };
    let spans = |what, index| {
        Err(EnergyError::Spans {
            devices: 0,
            what,
            index,
        })
    };
    let on = [(secs(0), secs(5)), (secs(6), secs(9))];
    let busy = |start, end| interval(start, end, decode(0.1, 0.9));
    assert_eq!(of(&on, &[busy(1, 3), busy(2, 4)]), spans("interval", 1));
    assert_eq!(of(&on, &[busy(1, 3), busy(4, 7)]), spans("interval", 1));
    assert_eq!(of(&on, &[busy(3, 1)]), spans("interval", 0));
    assert_eq!(of(&on, &[busy(8, 10)]), spans("interval", 0));
    assert_eq!(of(&[on[1], on[0]], &[]), spans("powered span", 1));
    assert!(of(&on, &[busy(0, 5), busy(6, 9)]).is_ok());
    let beyond = of(&on, &[interval(1, 2, decode(1.5, 0.0))]);
    assert!(matches!(
        beyond,
        Err(EnergyError::Power {
            error: PowerError::Share { .. },
            ..
        })
    ));
}

#[test]
fn power_models_that_make_no_sense_are_refused() {
    let with = |change: &dyn Fn(&mut PowerModel)| {
        let mut model = H100;
        change(&mut model);
        model.check().unwrap_err()
    };
    assert!(matches!(with(&|m| m.idle_w = -1.0), PowerError::Watts { .. }));
    assert!(matches!(
        with(&|m| m.idle_w = 500.0),
        PowerError::Watts { what: "decode_w", .. }
    ));
    assert!(matches!(with(&|m| m.cap_w = Some(75.0)), PowerError::Cap { .. }));
    assert!(matches!(
        with(&|m| m.cap_w = Some(f64::NAN)),
        PowerError::Cap { .. }
    ));
    assert_eq!(
        with(&|m| m.frequency_ratio = Some(0.0)),
        PowerError::Frequency(0.0)
    );
    assert_eq!(
        with(&|m| m.frequency_ratio = Some(1.5)),
        PowerError::Frequency(1.5)
    );
    let weights = Dynamic::Weights {
        max_w: 700.0,
        compute: -0.1,
        memory: 0.0,
    };
    assert!(matches!(
        with(&|m| m.dynamic = weights),
        PowerError::Weight { .. }
    ));
}

proptest! {
    /// Slower clocks never draw more and never take less time; a cap always holds.
    #[test]
    fn clocks_and_caps_are_monotone(
        compute in 0.0f64..1.0,
        memory in 0.0f64..1.0,
        slow in 0.05f64..1.0,
        more in 0.0f64..1.0,
        cap in 101.0f64..800.0,
    ) {
        let fast = slow + (1.0 - slow) * more;
        let at = |ratio| PowerModel { frequency_ratio: Some(ratio), ..WEIGHTED };
        let work = prefill(compute, memory);
        prop_assert!(at(slow).watts(&work) <= at(fast).watts(&work) + 1e-9);
        prop_assert!(at(slow).time_factor(&work) >= at(fast).time_factor(&work) - 1e-9);
        prop_assert!(at(slow).time_factor(&work) <= 1.0 / slow + 1e-9);
        let capped = PowerModel { cap_w: Some(cap), ..at(fast) };
        prop_assert!(capped.watts(&work) <= cap + 1e-9);
        prop_assert!(capped.time_factor(&work) >= at(fast).time_factor(&work) - 1e-9);
    }
}
