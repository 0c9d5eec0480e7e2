//! Choices by a seed.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use serde_json::{Value, json};

/// What a case draws its choices from.
pub struct Dice(Pcg64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(Pcg64::seed_from_u64(seed))
    }

    /// From `low` to `high`, both included.
    pub fn int(&mut self, low: u64, high: u64) -> u64 {
        self.0.random_range(low..=high)
    }

    /// True so many times of a hundred.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.int(1, 100) <= chance
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.int(0, from.len() as u64 - 1) as usize].clone()
    }

    /// A duration as users write it.
    pub fn ms(&mut self, low: u64, high: u64) -> Value {
        json!(format!("{}ms", self.int(low, high)))
    }

    /// A number with a fraction.
    pub fn number(&mut self, low: f64, high: f64) -> f64 {
        let share = self.int(0, 1000) as f64 / 1000.0;
        ((low + share * (high - low)) * 1000.0).round() / 1000.0
    }
}

/// Gives `map` a key so many times of a hundred.
pub fn sometimes(
    map: &mut Value,
    dice: &mut Dice,
    chance: u64,
    key: &str,
    value: impl FnOnce(&mut Dice) -> Value,
) {
    if dice.percent(chance) {
        map[key] = value(dice);
    }
}
