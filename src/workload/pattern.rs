//! A rate that goes with the time of the day and of the week: a daily wave, and weekends of their own.
//!
//! Gaps are drawn in operational time, in which the rate is 1 throughout, and mapped through the inverse of the
//! integrated rate. So every law of gaps keeps its burstiness, and the same draws serve every rate and pattern.

use crate::units::written;
use std::f64::consts::TAU;

/// Seconds of a day.
const DAY: f64 = 86_400.0;
/// Seconds of a week.
const WEEK: f64 = 7.0 * DAY;
/// Radians of the daily wave a second.
const OMEGA: f64 = TAU / DAY;
/// Seconds of a piece of the day, on which the wave is its Taylor series to the fifth power: exact to 1e-15 s.
const PIECE: f64 = 20.0;
/// Pieces of a day.
const PIECES: u32 = 4320;

/// The day of the week that time 0 is the midnight of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub enum Weekday {
    #[default]
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

/// The rate at each hour of a week, as a factor on its mean over the week.
///
/// Within a day the factor is that day's mean times 1 + (`peak_to_mean` - 1) * cos(2 pi (hour - `peak_hour`) / 24).
/// Saturdays and Sundays have `weekend` times the mean of the other days, and all seven days together the mean 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pattern {
    /// Highest rate of a day over the day's mean, 1 to 2; 1 = no wave.
    pub peak_to_mean: f64,
    /// Hour of the highest rate, 0 to 24.
    pub peak_hour: f64,
    /// Mean rate of Saturdays and Sundays over that of the other days, from 0 on; 1 = all days alike.
    pub weekend: f64,
    /// Which day begins at time 0.
    pub starts: Weekday,
}

/// Why a pattern is none.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PatternError {
    /// A parameter outside its range.
    #[error("a pattern with {name} = {}", written(*value))]
    Parameter {
        /// Which.
        name: &'static str,
        /// What it was.
        value: f64,
    },
}

impl Pattern {
    /// Checks the parameters.
    ///
    /// # Errors
    /// [`PatternError`] naming the one at fault.
    pub fn check(&self) -> Result<(), PatternError> {
        for (name, value, low, high) in self.ranges() {
            if !(low..=high).contains(&value) {
                return Err(PatternError::Parameter { name, value });
            }
        }
        Ok(())
    }

    /// Each parameter: its name in a scenario, its value, and the smallest and the largest that is allowed.
    pub fn ranges(&self) -> [(&'static str, f64, f64, f64); 3] {
        [
            ("daily_peak_to_mean", self.peak_to_mean, 1.0, 2.0),
            ("peak_hour", self.peak_hour, 0.0, 24.0),
            ("weekend", self.weekend, 0.0, MAX_WEEKEND),
        ]
    }

    /// The factor on the mean rate at this time, in seconds.
    pub fn factor(&self, secs: f64) -> f64 {
        let day = (secs.rem_euclid(WEEK) / DAY).floor();
        let wave =
            (self.peak_to_mean - 1.0) * (OMEGA * (secs.rem_euclid(DAY) - 3600.0 * self.peak_hour)).cos();
        self.day_mean((day as usize).min(6)) * (1.0 + wave)
    }

    /// The mean factor of the day number `day`, counted from 0 at time 0.
    fn day_mean(&self, day: usize) -> f64 {
        let weekday = 7.0 / (5.0 + 2.0 * self.weekend);
        match (self.starts as usize + day) % 7 {
            5 | 6 => weekday * self.weekend,
            _ => weekday,
        }
    }

    /// From operational time to time; `None` when the two are the same.
    pub(super) fn inverse(self) -> Result<Option<Inverse>, PatternError> {
        self.check()?;
        let flat = |x: f64| (x - 1.0).abs() <= f64::EPSILON;
        Ok((!flat(self.peak_to_mean) || !flat(self.weekend)).then(|| Inverse::new(&self)))
    }
}

/// Weekends busier than this are a slip of the hand.
const MAX_WEEKEND: f64 = 1000.0;

/// The inverse of the integrated factor. It remembers the piece of the day that it was in.
#[derive(Debug, Clone)]
pub(super) struct Inverse {
    amplitude: f64,
    peak: f64,
    day_means: [f64; 7],
    /// Integral up to the start of each day of the week.
    day_starts: [f64; 8],
    piece: Piece,
}

/// The integral over one piece of a day as a polynomial.
#[derive(Debug, Clone, Copy, Default)]
struct Piece {
    /// Time at its start, in seconds.
    starts: f64,
    /// Integral up to its start and its end.
    from: f64,
    to: f64,
    /// Coefficients of the first to the fifth power of the time since its start.
    powers: [f64; 5],
    /// Coefficients of the inverse, which has the time since its start in powers of the integral; `None` where the
    /// rate is so near 0 that five powers are not exact.
    back: Option<[f64; 5]>,
}

impl Inverse {
    fn new(pattern: &Pattern) -> Self {
        let day_means = std::array::from_fn(|day| pattern.day_mean(day));
        let mut day_starts = [0.0; 8];
        for day in 0..7 {
            day_starts[day + 1] = day_starts[day] + DAY * day_means[day];
        }
        Self {
            amplitude: pattern.peak_to_mean - 1.0,
            peak: 3600.0 * pattern.peak_hour,
            day_means,
            day_starts,
            piece: Piece::default(),
        }
    }

    /// The time at which the integrated factor is `area`, both in seconds.
    pub(super) fn time(&mut self, area: f64) -> f64 {
        if !(area >= self.piece.from && area < self.piece.to) {
            if !area.is_finite() {
                return area;
            }
            self.piece = self.locate(area);
        }
        self.piece.starts + self.piece.solve(area)
    }

    /// Integral of the factor of a day of mean 1, up to `secs` after its midnight.
    fn of_day(&self, secs: f64) -> f64 {
        let swing = (OMEGA * (secs - self.peak)).sin() + (OMEGA * self.peak).sin();
        secs + self.amplitude / OMEGA * swing
    }

    fn locate(&self, area: f64) -> Piece {
        let week_area = self.day_starts[7];
        let week = (area / week_area).floor();
        let rest = area - week * week_area;
        // A day without arrivals begins where the next one does, which is the one that is found.
        let day = self.day_starts.partition_point(|s| *s <= rest).clamp(1, 7) - 1;
        let mean = self.day_means[day];
        let in_day = (rest - self.day_starts[day]) / mean;
        let (mut low, mut high) = (0, PIECES);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if self.of_day(f64::from(middle) * PIECE) <= in_day {
                low = middle;
            } else {
                high = middle;
            }
        }
        let begins = f64::from(low) * PIECE;
        let before = week * week_area + self.day_starts[day];
        let (sin, cos) = (OMEGA * (begins - self.peak)).sin_cos();
        let wave = mean * self.amplitude;
        let powers = [
            mean + wave * cos,
            -wave * sin * OMEGA / 2.0,
            -wave * cos * OMEGA.powi(2) / 6.0,
            wave * sin * OMEGA.powi(3) / 24.0,
            wave * cos * OMEGA.powi(4) / 120.0,
        ];
        Piece {
            starts: week * WEEK + day as f64 * DAY + begins,
            from: before + mean * self.of_day(begins),
            to: before + mean * self.of_day(begins + PIECE),
            powers,
            back: reverted(powers),
        }
    }
}

/// The inverse of a power series without a constant, to the fifth power (Abramowitz and Stegun, 3.6.25).
fn reverted([a, b, c, d, e]: [f64; 5]) -> Option<[f64; 5]> {
    // The sixth power, which is left out, is below 42 * PIECE * (b * PIECE / a)^5.
    if (b * PIECE).abs() > 1e-3 * a || (c * PIECE * PIECE).abs() > 1e-5 * a {
        return None;
    }
    // In units of the first coefficient, so that no power of it is lost.
    let (b, c, d, e) = (b / a, c / a, d / a, e / a);
    let scale = 1.0 / a;
    Some([
        scale,
        -b * scale.powi(2),
        (2.0 * b * b - c) * scale.powi(3),
        (5.0 * b * c - d - 5.0 * b.powi(3)) * scale.powi(4),
        (6.0 * b * d + 3.0 * c * c + 14.0 * b.powi(4) - e - 21.0 * b * b * c) * scale.powi(5),
    ])
}

impl Piece {
    fn solve(&self, area: f64) -> f64 {
        let wanted = area - self.from;
        match self.back {
            Some([a, b, c, d, e]) => {
                let at = wanted * (a + wanted * (b + wanted * (c + wanted * (d + wanted * e))));
                at.clamp(0.0, PIECE)
            }
            None => self.search(wanted),
        }
    }

    /// Newton's method, kept inside the piece by halving it where a step leads out.
    fn search(&self, wanted: f64) -> f64 {
        let [a, b, c, d, e] = self.powers;
        let (mut low, mut high) = (0.0, PIECE);
        let mut at = (PIECE * wanted / (self.to - self.from)).clamp(low, high);
        for _ in 0..MOST_STEPS {
            let miss = at * (a + at * (b + at * (c + at * (d + at * e)))) - wanted;
            let slope = a + at * (2.0 * b + at * (3.0 * c + at * (4.0 * d + at * 5.0 * e)));
            if miss > 0.0 {
                high = at;
            } else {
                low = at;
            }
            let mut next = at - miss / slope;
            if !(next >= low && next <= high) {
                next = 0.5 * (low + high);
            }
            let moved = (next - at).abs();
            at = next;
            // What is left is about the square of this step over the seconds to the nearest point without arrivals.
            if moved < 1e-7 {
                break;
            }
        }
        at
    }
}

/// Halving a piece this often is far below a nanosecond.
const MOST_STEPS: u32 = 64;

#[cfg(test)]
#[path = "pattern_tests.rs"]
mod tests;
