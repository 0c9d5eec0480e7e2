use super::*;
use crate::rng::{Purpose, stream};
use crate::units::SimTime;
use crate::workload::arrival::{ArrivalLaw, Arrivals, Gaps, Until};

const WEEKDAYS: Pattern = Pattern {
    peak_to_mean: 1.6,
    peak_hour: 14.0,
    weekend: 0.6,
    starts: Weekday::Monday,
};

fn times(gaps: Gaps, rate: f64, pattern: Option<Pattern>, until: Until) -> Vec<f64> {
    let law = ArrivalLaw {
        gaps,
        rate,
        rescale: false,
        pattern,
    };
    let arrivals = Arrivals::new([(law, stream(5, Purpose::Arrivals, 0))], until).unwrap();
    arrivals.map(|a| a.unwrap().1.as_secs_f64()).collect()
}

/// The integral of the factor by Simpson's rule, which shares nothing with the polynomials.
fn integral(pattern: &Pattern, to: f64) -> f64 {
    let steps = 20 * (to / 3600.0).ceil() as u32;
    let h = to / f64::from(steps);
    let simpson = |i: u32| {
        let a = f64::from(i) * h;
        // Just inside the step, because days meet in jumps.
        let f = |x: f64| pattern.factor(x);
        h / 6.0 * (f(a + 1e-6) + 4.0 * f(a + h / 2.0) + f(a + h - 1e-6))
    };
    (0..steps).map(simpson).sum()
}

#[test]
fn the_mean_over_a_week_is_one_and_the_peak_is_where_it_should_be() {
    assert!((integral(&WEEKDAYS, WEEK) / WEEK - 1.0).abs() < 1e-9);
    let weekday = 7.0 / (5.0 + 1.2);
    assert!((WEEKDAYS.factor(14.0 * 3600.0) - 1.6 * weekday).abs() < 1e-12);
    assert!((WEEKDAYS.factor(2.0 * 3600.0) - 0.4 * weekday).abs() < 1e-12);
    assert!((WEEKDAYS.factor(5.0 * DAY + 14.0 * 3600.0) - 0.6 * 1.6 * weekday).abs() < 1e-12);
    let saturday = Pattern {
        starts: Weekday::Saturday,
        ..WEEKDAYS
    };
    assert!((saturday.factor(14.0 * 3600.0) - 0.6 * 1.6 * weekday).abs() < 1e-12);
    assert!((saturday.factor(2.0 * DAY + 14.0 * 3600.0) - 1.6 * weekday).abs() < 1e-12);
}

/// To the nanosecond, at every kind of place: pieces' ends, midnights, weekends, later weeks, no arrivals at all.
#[test]
fn the_inverse_undoes_the_integral() {
    let silent = Pattern {
        peak_to_mean: 2.0,
        peak_hour: 7.3,
        weekend: 0.0,
        starts: Weekday::Friday,
    };
    for pattern in [WEEKDAYS, silent] {
        let mut inverse = pattern.inverse().unwrap().unwrap();
        // Exact integrals of whole hours are compared with the inverse's own closed form, its closed form with
        // Simpson's rule.
        for hour in [1u32, 7, 14, 20, 23, 25, 121, 130, 165] {
            let secs = f64::from(hour) * 3600.0;
            let area = integral(&pattern, secs);
            let factor = pattern.factor(secs);
            if factor > 0.01 {
                let got = inverse.time(area);
                assert!((got - secs).abs() < 2e-3, "hour {hour}: {got} s, not {secs} s");
            }
        }
        for i in 0..20_000u32 {
            let area = 2.5 * WEEK * f64::from(i) / 20_000.0;
            let secs = inverse.time(area);
            let day = (secs / DAY).floor();
            let (week, weekday) = ((day / 7.0).floor(), (day % 7.0) as usize);
            let back = week * inverse.day_starts[7]
                + inverse.day_starts[weekday]
                + inverse.day_means[weekday] * inverse.of_day(secs - day * DAY);
            let slope = pattern.factor(secs).max(1e-3);
            assert!(
                (back - area).abs() < 5e-10 * slope.max(1.0),
                "{area} {secs} {back}"
            );
        }
    }
}

#[test]
fn a_flat_pattern_gives_exactly_the_times_of_none() {
    let flat = Pattern {
        peak_to_mean: 1.0,
        weekend: 1.0,
        ..WEEKDAYS
    };
    for gaps in [Gaps::Constant, Gaps::Poisson, Gaps::Gamma(0.5)] {
        let until = Until::Count(1000);
        let (with, without) = (times(gaps, 0.3, Some(flat), until), times(gaps, 0.3, None, until));
        assert!(with.iter().zip(&without).all(|(a, b)| a.total_cmp(b).is_eq()));
    }
}

/// Each hour's count is the integrated rate, within 4.5 standard deviations of a count with the index of dispersion
/// 1 / burstiness; and so is the count of the week.
#[test]
fn counts_follow_the_rate() {
    let (rate, shape) = (0.5, 0.5);
    let end = Until::Time(SimTime(WEEK as u64 * 1_000_000_000));
    let arrivals = times(Gaps::Gamma(shape), rate, Some(WEEKDAYS), end);
    let near = |count: usize, mean: f64| (count as f64 - mean).abs() < 4.5 * (mean / shape).sqrt() + 1.0;
    assert!(
        near(arrivals.len(), rate * WEEK),
        "{} in the week",
        arrivals.len()
    );
    let mut worst: f64 = 0.0;
    for hour in 0..168 {
        let (from, to) = (f64::from(hour) * 3600.0, f64::from(hour + 1) * 3600.0);
        let count = arrivals.iter().filter(|t| (from..to).contains(*t)).count();
        let mean = rate * 3600.0 * WEEKDAYS.factor(0.5 * (from + to));
        assert!(near(count, mean), "hour {hour}: {count}, expected {mean:.0}");
        worst = worst.max((mean - rate * 3600.0).abs());
    }
    assert!(worst > 0.5 * rate * 3600.0, "the hours differ");
}

/// Variance over mean of counts in stretches of operational time: 1 / burstiness for a renewal process of gamma gaps
/// (long stretches), whatever the rate does meanwhile. 1,000 stretches: standard error of a variance sqrt(2/1000).
#[test]
fn bursts_keep_the_index_of_dispersion_of_their_law() {
    for shape in [0.5, 2.0] {
        let n = 200_000;
        let arrivals = times(Gaps::Gamma(shape), 1.0, Some(WEEKDAYS), Until::Count(n));
        let ends: Vec<f64> = {
            let mut inverse = WEEKDAYS.inverse().unwrap().unwrap();
            (1..=1000).map(|i| inverse.time(f64::from(i) * 190.0)).collect()
        };
        let mut counts = vec![0.0; ends.len()];
        for t in &arrivals {
            if let Some(count) = counts.get_mut(ends.partition_point(|e| e <= t)) {
                *count += 1.0;
            }
        }
        let mean = counts.iter().sum::<f64>() / 1000.0;
        let variance = counts.iter().map(|c| (c - mean).powi(2)).sum::<f64>() / 999.0;
        let index = variance / mean;
        assert!(
            (index * shape - 1.0).abs() < 4.0 * (2.0_f64 / 1000.0).sqrt(),
            "{shape}: {index}"
        );
    }
}

#[test]
fn parameters_outside_their_range_are_refused() {
    for bad in [
        Pattern {
            peak_to_mean: 0.9,
            ..WEEKDAYS
        },
        Pattern {
            peak_to_mean: 2.1,
            ..WEEKDAYS
        },
        Pattern {
            peak_hour: -1.0,
            ..WEEKDAYS
        },
        Pattern {
            weekend: f64::NAN,
            ..WEEKDAYS
        },
    ] {
        assert!(bad.check().is_err(), "{bad:?}");
    }
}
