//! Numbers for readers: enough digits to decide by, no more.

/// A number with `digits` significant digits: no exponent between 1e-4 and 1e15, thousands set apart by commas,
/// nothing but digits that mean something after the point.
pub fn significant(x: f64, digits: usize) -> String {
    if !x.is_finite() {
        return x.to_string();
    }
    if x == 0.0 {
        return "0".into();
    }
    let rounded = format!("{:.*e}", digits.saturating_sub(1), x);
    let exponent: i32 = rounded
        .split_once('e')
        .and_then(|(_, e)| e.parse().ok())
        .unwrap_or(0);
    if !(-4..15).contains(&exponent) {
        return rounded;
    }
    let decimals = usize::try_from(digits as i32 - 1 - exponent).unwrap_or(0);
    let plain = format!("{x:.decimals$}");
    match plain.split_once('.') {
        Some((whole, part)) => format!("{}.{part}", with_commas(whole)),
        None => with_commas(&plain),
    }
}

/// [`significant`] without the zeros that end a fraction: for axis ticks, where 0.500 is 0.5.
pub fn short(x: f64) -> String {
    let text = significant(x, 3);
    let (mantissa, exponent) = text
        .split_once('e')
        .map_or((&text[..], None), |(m, e)| (m, Some(e)));
    let mantissa = match mantissa.contains('.') {
        true => mantissa.trim_end_matches('0').trim_end_matches('.'),
        false => mantissa,
    };
    exponent.map_or_else(|| mantissa.to_owned(), |e| format!("{mantissa}e{e}"))
}

/// A whole number with thousands set apart.
pub fn whole(n: u64) -> String {
    with_commas(&n.to_string())
}

fn with_commas(digits: &str) -> String {
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |d| ("-", d));
    let mut text = String::from(sign);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count with its noun: `1 replica`, `3 replicas`.
pub fn counted(n: u64, noun: &str) -> String {
    let ending = if n == 1 { "" } else { "s" };
    format!("{n} {noun}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_that_mean_something() {
        let cases = [
            (0.0, "0"),
            (0.012_344_9, "0.01234"),
            (1.0, "1.000"),
            (9.9999, "10.00"),
            (123.456, "123.5"),
            (12_345.6, "12,346"),
            (-1_234_567.0, "-1,234,567"),
            (1.5e-7, "1.500e-7"),
            (f64::INFINITY, "inf"),
        ];
        for (x, want) in cases {
            assert_eq!(significant(x, 4), want);
        }
        assert_eq!(whole(1_000_000), "1,000,000");
        assert_eq!(whole(999), "999");
    }

    #[test]
    fn ticks_are_short() {
        let got = [0.5, 10.0, 200.0, 0.001, 2500.0, 1e20, 0.0, 2e-9].map(short);
        assert_eq!(got, ["0.5", "10", "200", "0.001", "2,500", "1e20", "0", "2e-9"]);
    }
}
