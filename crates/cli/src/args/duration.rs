//! Durations on the command line, as Go's tools write them.

use std::time::Duration;

/// Parses numbers with units, such as `500ms`, `1.5s` or `1m30s`, or a number of seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    parse(text).ok_or_else(|| "not a duration: use a form such as 500ms, 1.5s, 30s, 1m30s or 1h".to_owned())
}

fn parse(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    loop {
        let unit_at = rest.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(unit_at);
        let next_at = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, next) = after.split_at(next_at);
        let unit = match unit {
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            "h" => Duration::from_secs(3600),
            // A number alone.
            "" if number.len() == text.len() => Duration::from_secs(1),
            _ => return None,
        };
        total = total.checked_add(multiply(unit, number)?)?;
        if next.is_empty() {
            return Some(total);
        }
        rest = next;
    }
}

/// Multiplies a unit by a decimal number, to the nanosecond.
fn multiply(unit: Duration, number: &str) -> Option<Duration> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let seconds = unit.as_secs().checked_mul(whole.parse().ok()?)?;
    let nanoseconds = u64::from(unit.subsec_nanos()).checked_mul(whole.parse().ok()?)?;
    // More digits than nanoseconds have do not count.
    let digits = fraction.get(..9).unwrap_or(fraction);
    let billionths = digits.parse::<u64>().ok()? * 10_u64.pow(9 - u32::try_from(digits.len()).ok()?);
    let part = u128::from(billionths) * unit.as_nanos() / 1_000_000_000;
    let whole = Duration::from_secs(seconds).checked_add(Duration::from_nanos(nanoseconds))?;
    whole.checked_add(Duration::from_nanos(u64::try_from(part).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_numbers_with_units() {
        for (text, milliseconds) in [
            ("500ms", 500),
            ("0", 0),
            ("30", 30_000),
            ("1.5", 1500),
            ("30s", 30_000),
            ("1.5s", 1500),
            ("0.25ms", 0),
            ("1m30s", 90_000),
            ("1m1.5s", 61_500),
            ("5m", 300_000),
            ("1.5h", 5_400_000),
            ("1h2m3s4ms", 3_723_004),
        ] {
            assert_eq!(parse_duration(text).map(|parsed| parsed.as_millis()), Ok(milliseconds), "{text}");
        }
        assert_eq!(parse_duration("0.25ms"), Ok(Duration::from_micros(250)));
        let wrong =
            ["", "s", "-1s", "1 s", "1d", "1.s", ".5s", "1..5s", "1m30", "30m 1s", "1S", "99999999999999999999h"];
        for wrong in wrong.into_iter().chain(["18446744073709551615h", "18446744073709551615s18446744073709551615s"]) {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
