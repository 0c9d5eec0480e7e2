//! Quantities as users write them: a number with its unit, kept exactly.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::units::SimDuration;

const TIME_UNITS: [(&str, u128); 6] = [
    ("ns", 1_000),
    ("us", 1_000_000),
    ("ms", 1_000_000_000),
    ("s", 1_000_000_000_000),
    ("min", 60_000_000_000_000),
    ("h", 3_600_000_000_000_000),
];
const BYTE_UNITS: [(&str, u128); 7] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

/// In bits a second, so that both bits and bytes are whole.
const RATE_UNITS: [(&str, u128); 10] = [
    ("B/s", 8),
    ("KiB/s", 8 << 10),
    ("MiB/s", 8 << 20),
    ("GiB/s", 8 << 30),
    ("kB/s", 8_000),
    ("MB/s", 8_000_000),
    ("GB/s", 8_000_000_000),
    ("Mbit/s", 1_000_000),
    ("Gbit/s", 1_000_000_000),
    ("Tbit/s", 1_000_000_000_000),
];

/// A duration: `2s`, `80ms`, `1.5us`, `5min`. A bare number is refused, because its unit would be a guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span(pub SimDuration);

/// A cost: a duration that may have fractions of a nanosecond, down to a picosecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Cost {
    /// Picoseconds.
    pub picos: u64,
}

/// An amount of memory: `2GiB`, `512MiB`, `80GB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Size {
    /// Bytes.
    pub bytes: u64,
}

/// A bandwidth: `50GB/s`, `400Gbit/s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Bandwidth {
    /// Bytes a second.
    pub bytes_per_s: u64,
}

/// A number that is neither NaN nor infinite.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default, Serialize)]
#[serde(transparent)]
pub struct Finite(pub f64);

/// Digits with an optional fraction and one of `units`, as a whole number of base units.
fn parse_exact(text: &str, units: &[(&str, u128)]) -> Result<u128, String> {
    let names = || units.iter().map(|(n, _)| *n).collect::<Vec<_>>().join(", ");
    let text = text.trim();
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = (&text[..split], text[split..].trim());
    if unit.is_empty() {
        return Err(format!("'{text}' has no unit; units: {}", names()));
    }
    let Some((_, factor)) = units.iter().find(|(n, _)| *n == unit) else {
        return Err(format!(
            "'{text}' is not a number with a unit; units: {}",
            names()
        ));
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || fraction.len() > 18 || (number.ends_with('.')) {
        return Err(format!("'{text}' does not start with a decimal number"));
    }
    let too_large = || format!("'{text}' is too large");
    let digits: u128 = format!("{whole}{fraction}").parse().map_err(|_| too_large())?;
    let scaled = digits.checked_mul(*factor).ok_or_else(too_large)?;
    let divisor = 10u128.pow(fraction.len() as u32);
    if !scaled.is_multiple_of(divisor) {
        return Err(format!("'{text}' is finer than can be represented"));
    }
    Ok(scaled / divisor)
}

/// The value in the largest unit that gives a whole number.
fn format_exact(base: u128, units: &[(&str, u128)]) -> String {
    let best = units
        .iter()
        .filter(|(_, f)| base.is_multiple_of(*f))
        .max_by_key(|(_, f)| *f);
    match best {
        Some((name, f)) if base > 0 => format!("{}{name}", base / f),
        _ => format!("0{}", units[0].0),
    }
}

impl Span {
    /// Reads `80ms` and the like.
    ///
    /// # Errors
    /// A sentence that says what is wrong and which units there are.
    pub fn parse(text: &str) -> Result<Self, String> {
        let picos = parse_exact(text, &TIME_UNITS)?;
        if !picos.is_multiple_of(1000) {
            return Err(format!("'{text}' is finer than a nanosecond"));
        }
        u64::try_from(picos / 1000)
            .map(|ns| Self(SimDuration(ns)))
            .map_err(|_| format!("'{text}' is longer than the 584 years that simulated time holds"))
    }
}

impl Cost {
    /// Reads `45us`, `0.35ns` and the like.
    ///
    /// # Errors
    /// A sentence that says what is wrong and which units there are.
    pub fn parse(text: &str) -> Result<Self, String> {
        u64::try_from(parse_exact(text, &TIME_UNITS)?)
            .map(|picos| Self { picos })
            .map_err(|_| format!("'{text}' is longer than a cost may be (213 days)"))
    }
}

impl Size {
    /// Reads `2GiB` and the like.
    ///
    /// # Errors
    /// A sentence that says what is wrong and which units there are.
    pub fn parse(text: &str) -> Result<Self, String> {
        u64::try_from(parse_exact(text, &BYTE_UNITS)?)
            .map(|bytes| Self { bytes })
            .map_err(|_| format!("'{text}' is too large"))
    }
}

impl Bandwidth {
    /// Reads `50GB/s`, `400Gbit/s` and the like.
    ///
    /// # Errors
    /// A sentence that says what is wrong and which units there are.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bits = parse_exact(text, &RATE_UNITS)?;
        if !bits.is_multiple_of(8) {
            return Err(format!("'{text}' is no whole number of bytes a second"));
        }
        u64::try_from(bits / 8)
            .map(|bytes_per_s| Self { bytes_per_s })
            .map_err(|_| format!("'{text}' is too large"))
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Bits are read, not written, so that two ways to say it print alike.
        f.write_str(&format_exact(u128::from(self.bytes_per_s) * 8, &RATE_UNITS[..7]))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_exact(u128::from(self.0.as_nanos()) * 1000, &TIME_UNITS))
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Below a nanosecond the largest whole unit does not exist; say it as a fraction of one.
        if self.picos.is_multiple_of(1000) {
            f.write_str(&format_exact(u128::from(self.picos), &TIME_UNITS))
        } else {
            write!(f, "{}.{:03}ns", self.picos / 1000, self.picos % 1000)
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_exact(u128::from(self.bytes), &BYTE_UNITS))
    }
}

/// Visits a string through `parse`, and says for numbers that a unit is needed.
struct Text<T> {
    parse: fn(&str) -> Result<T, String>,
    example: &'static str,
}

impl<T> Visitor<'_> for Text<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a number with its unit, such as {}", self.example)
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).map_err(|e| E::custom(format!("{e} (such as {})", self.example)))
    }
    fn visit_u64<E: de::Error>(self, n: u64) -> Result<T, E> {
        self.visit_str(&n.to_string())
    }
    fn visit_i64<E: de::Error>(self, n: i64) -> Result<T, E> {
        self.visit_str(&n.to_string())
    }
    fn visit_f64<E: de::Error>(self, n: f64) -> Result<T, E> {
        self.visit_str(&n.to_string())
    }
}

macro_rules! text_quantity {
    ($type:ident, $example:literal, $pattern:literal, $about:literal) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(de: D) -> Result<Self, D::Error> {
                de.deserialize_str(Text { parse: $type::parse, example: $example })
            }
        }
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, ser: S) -> Result<S::Ok, S::Error> {
                ser.collect_str(self)
            }
        }
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "string", "pattern": $pattern, "description": $about})
            }
        }
    };
}

text_quantity!(
    Span,
    "80ms",
    r"^[0-9]+(\.[0-9]+)? *(ns|us|ms|s|min|h)$",
    "A duration with its unit: 2s, 80ms, 1.5us, 5min. Bare numbers are refused."
);
text_quantity!(
    Cost,
    "45us",
    r"^[0-9]+(\.[0-9]+)? *(ns|us|ms|s|min|h)$",
    "A duration with its unit; fractions of a nanosecond down to 0.001ns are kept."
);
text_quantity!(
    Bandwidth,
    "50GB/s",
    r"^[0-9]+(\.[0-9]+)? *(B|kB|MB|GB|KiB|MiB|GiB|Mbit|Gbit|Tbit)/s$",
    "A bandwidth with its unit: 50GB/s, 400Gbit/s."
);
text_quantity!(
    Size,
    "2GiB",
    r"^[0-9]+(\.[0-9]+)? *(B|KiB|MiB|GiB|kB|MB|GB)$",
    "An amount of memory with its unit: 2GiB, 512MiB, 80GB."
);

impl<'de> Deserialize<'de> for Finite {
    fn deserialize<D: Deserializer<'de>>(de: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(de)?;
        if value.is_finite() {
            return Ok(Self(value));
        }
        Err(de::Error::custom(format!(
            "found {value}, but a finite number is needed"
        )))
    }
}

impl JsonSchema for Finite {
    fn schema_name() -> Cow<'static, str> {
        "Finite".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "number", "description": "A finite number."})
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn spans_are_exact() {
        for (text, ns) in [
            ("2s", 2_000_000_000),
            ("80ms", 80_000_000),
            ("1.5us", 1500),
            ("0.1s", 100_000_000),
            ("5min", 300_000_000_000),
            ("7 ns", 7),
            ("0s", 0),
        ] {
            assert_eq!(Span::parse(text), Ok(Span(SimDuration(ns))), "{text}");
        }
        assert_eq!(Cost::parse("0.35ns").map(|c| c.picos), Ok(350));
        assert_eq!(Size::parse("1.5GiB").map(|s| s.bytes), Ok(3 << 29));
    }

    #[test]
    fn what_is_no_span_is_refused() {
        for bad in [
            "",
            "5",
            "ms",
            "-5ms",
            "5m",
            "1.2.3s",
            "1.s",
            ".5s",
            "0.5ns",
            "nan s",
            "1e3s",
            "999999999999h",
        ] {
            assert!(Span::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(ns in any::<u64>(), picos in any::<u64>(), bytes in any::<u64>()) {
            let span = Span(SimDuration(ns));
            prop_assert_eq!(Span::parse(&span.to_string()), Ok(span));
            prop_assert_eq!(Cost::parse(&Cost { picos }.to_string()), Ok(Cost { picos }));
            prop_assert_eq!(Size::parse(&Size { bytes }.to_string()), Ok(Size { bytes }));
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = (Span::parse(&text), Cost::parse(&text), Size::parse(&text));
        }
    }
}
