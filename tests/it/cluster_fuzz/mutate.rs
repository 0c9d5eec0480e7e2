//! Scenarios spoilt at random: keys left out, put in, and given values that nobody means.

use serde_json::{Value, json};

use super::dice::Dice;

/// Values of every type, and beyond every bound.
fn odd(d: &mut Dice) -> Value {
    let numbers = [0.0, -1.0, 1e300, -1e300, 1e-300, 0.5, 1e9, 4e9, 1e19];
    let words = [
        "0s",
        "1ns",
        "584y",
        "500000h",
        "5e3s",
        "0B/s",
        "1B/s",
        "9999999TB/s",
        "1B",
        "16777216GiB",
        "",
        "unified/0",
        "nobody",
        "auto",
        "trace",
        "-1ms",
        "\u{0}",
        "precise",
        "drr",
    ];
    match d.int(0, 9) {
        0..=2 => json!(d.pick(&numbers)),
        3 => json!(d.pick(&[0u64, 1, 2, 7, 4096, 65_536, 4_294_967_295, u64::MAX])),
        4..=6 => json!(d.pick(&words)),
        7 => d.pick(&[json!(null), json!(true), json!(false)]),
        8 => d.pick(&[json!([]), json!([[]]), json!(["a", "a"])]),
        _ => d.pick(&[
            json!({}),
            json!({"0": {}}),
            json!({"mtbf_hours": 1e-9, "repair": "0s"}),
        ]),
    }
}

/// An extreme of the same type, which is read, and then has to be judged.
fn extreme(d: &mut Dice, value: &Value) -> Value {
    let spans = ["0s", "1ns", "1us", "1h", "9000h", "500000h", "5124095h"];
    match value {
        Value::Number(n) if n.is_u64() => {
            json!(d.pick(&[0u64, 1, 2, 3, 100, 4096, 65_536, 1 << 30, 4_294_967_295]))
        }
        Value::Number(_) => json!(d.pick(&[0.0, -1.0, 1e-12, 1e-3, 1.0, 1.5, 1e3, 1e9, 1e300])),
        Value::String(s) if s.ends_with("B/s") => json!(d.pick(&["0B/s", "1B/s", "1kB/s", "1000000GB/s"])),
        Value::String(s) if s.ends_with('B') => json!(d.pick(&["0B", "1B", "1000000GB"])),
        Value::String(s) if s.starts_with(|c: char| c.is_ascii_digit()) => json!(d.pick(&spans)),
        Value::Bool(b) => json!(!b),
        _ => odd(d),
    }
}

/// All places in a tree below its root.
fn places(value: &Value, at: &str, all: &mut Vec<String>) {
    let below: Vec<(String, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(k, v)| (format!("{at}/{k}"), v)).collect(),
        Value::Array(list) => list
            .iter()
            .enumerate()
            .map(|(i, v)| (format!("{at}/{i}"), v))
            .collect(),
        _ => return,
    };
    for (place, value) in below {
        places(value, &place, all);
        all.push(place);
    }
}

/// Does one to three things to a scenario. `donor` gives keys that belong elsewhere.
pub fn spoil(scenario: &mut Value, donor: &Value, seed: u64) {
    let d = &mut Dice::new(seed);
    for _ in 0..d.int(1, 3) {
        let mut all = Vec::new();
        places(scenario, "", &mut all);
        let place = d.pick(&all);
        let (parent, key) = place.rsplit_once('/').unwrap();
        match d.int(0, 9) {
            0 => remove(scenario.pointer_mut(parent).unwrap(), key),
            1 => {
                // A part of another scenario, in the same place.
                if let (Some(part), Some(slot)) = (donor.pointer(&place), scenario.pointer_mut(&place)) {
                    *slot = part.clone();
                }
            }
            2 => twice(scenario.pointer_mut(parent).unwrap(), key),
            3 => *scenario.pointer_mut(&place).unwrap() = odd(d),
            _ => {
                let slot = scenario.pointer_mut(&place).unwrap();
                *slot = extreme(d, slot);
            }
        }
    }
}

fn remove(parent: &mut Value, key: &str) {
    match parent {
        Value::Object(map) => drop(map.remove(key)),
        Value::Array(list) => drop(list.remove(key.parse().unwrap())),
        _ => {}
    }
}

/// An item of a list stands there again; a key of a map gets a neighbour that nobody knows.
fn twice(parent: &mut Value, key: &str) {
    match parent {
        Value::Array(list) => list.push(list[key.parse::<usize>().unwrap()].clone()),
        Value::Object(map) => drop(map.insert(format!("{key}s"), json!(1))),
        _ => {}
    }
}
