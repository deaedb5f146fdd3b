//! Quantities (`80Gi`, `1500m`, `1e3`): what number a text means, so that two texts of one number are equal.
//!
//! The API server gives a quantity back in another form than it got it (`1024Mi` comes back as `1Gi`).

/// A quantity in units of 10⁻⁹, as exact as the API is: it rounds up what is finer, and caps what is larger than 2⁶³−1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Nanos(pub(super) i128);

const NANOS: i128 = 1_000_000_000;
const LARGEST: i128 = (i64::MAX as i128) * NANOS;

/// The number that a text means, if it is a quantity.
pub(super) fn parse(text: &str) -> Option<Nanos> {
    let (is_negative, unsigned) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (multiplier, exponent) = scale(suffix)?;
    let magnitude = magnitude(whole, fraction, multiplier, exponent);
    Some(Nanos(if is_negative { -magnitude } else { magnitude }))
}

/// What a suffix stands for: so many, times ten to the power of so much.
fn scale(suffix: &str) -> Option<(i128, i32)> {
    Some(match suffix {
        "" => (1, 0),
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            // More than this is zero or the largest number in any case.
            (1, exponent.parse::<i32>().unwrap_or(if exponent.starts_with('-') { -400 } else { 400 }).clamp(-400, 400))
        }
    })
}

/// The number's size in nanos, rounded up and capped.
fn magnitude(whole: &str, fraction: &str, multiplier: i128, exponent: i32) -> i128 {
    let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
    let places = |text: &str| i32::try_from(text.len()).unwrap_or(i32::MAX);
    // Of the digits of both parts, so many are before the point once the unit is a nano.
    let before = places(whole).saturating_add(exponent).saturating_add(9);
    if !whole.is_empty() && before > 29 {
        return LARGEST;
    }
    let mut digits = whole.bytes().chain(fraction.bytes()).map(|digit| i128::from(digit - b'0'));
    let mut nanos: i128 = 0;
    for _ in 0..before.max(0) {
        // At most 29 digits and a binary factor of 2^60 would not fit together: what is too large is the largest.
        nanos = nanos.saturating_mul(10).saturating_add(digits.next().unwrap_or(0));
    }
    // A binary factor makes whole nanos of some digits that are left.
    let (mut rest, mut unit) = (0i128, 1i128);
    let mut is_inexact = false;
    for digit in digits {
        if unit < NANOS && multiplier > 1 {
            unit *= 10;
            rest = rest * 10 + digit;
        } else {
            is_inexact |= digit != 0;
        }
    }
    let rest = rest * multiplier;
    let rounded_up = rest / unit + i128::from(rest % unit != 0 || is_inexact);
    nanos.saturating_mul(multiplier).saturating_add(rounded_up).min(LARGEST)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("0", 0)]
    #[case("1", NANOS)]
    #[case("+1", NANOS)]
    #[case("-1.5", -1_500_000_000)]
    #[case("1500m", 1_500_000_000)]
    #[case("1e3", 1000 * NANOS)]
    #[case("1E3", 1000 * NANOS)]
    #[case("2e-3", 2_000_000)]
    #[case("1E", LARGEST.min(1_000_000_000_000_000_000 * NANOS))]
    #[case("1Ki", 1024 * NANOS)]
    #[case("0.5Ki", 512 * NANOS)]
    #[case("1.5Gi", 1_610_612_736 * NANOS)]
    #[case(".5", 500_000_000)]
    #[case("5.", 5 * NANOS)]
    #[case("0.0000000001", 1)]
    #[case("100n", 100)]
    #[case("9223372036854775807", LARGEST)]
    #[case("99999999999999999999999999", LARGEST)]
    #[case("8Ei", LARGEST)]
    #[case("00080", 80 * NANOS)]
    fn a_quantity_is_a_number(#[case] text: &str, #[case] nanos: i128) {
        assert_eq!(parse(text), Some(Nanos(nanos)), "{text}");
    }

    #[rstest]
    #[case("")]
    #[case("-")]
    #[case(".")]
    #[case("1.2.3")]
    #[case("1gi")]
    #[case("1 Gi")]
    #[case("Gi")]
    #[case("1e")]
    #[case("1e+")]
    #[case("0x10")]
    #[case("one")]
    fn what_is_none_is_refused(#[case] text: &str) {
        assert_eq!(parse(text), None, "{text}");
    }

    proptest::proptest! {
        #[test]
        fn forms_of_one_number_are_equal(value in 0i64..1 << 40) {
            let plain = parse(&value.to_string()).unwrap();
            proptest::prop_assert_eq!(parse(&format!("{value}000m")).unwrap(), plain);
            proptest::prop_assert_eq!(parse(&format!("{value}.000")).unwrap(), plain);
            proptest::prop_assert_eq!(parse(&format!("{value}Ki")).unwrap(), Nanos(plain.0 * 1024));
        }

        #[test]
        fn nothing_panics(text in "[-+]?[0-9.]{0,40}[a-zA-Z]{0,2}[-+]?[0-9]{0,12}") {
            let _ = parse(&text);
        }
    }
}
