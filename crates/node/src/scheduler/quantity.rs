//! Quantities as Kubernetes writes them (`40Gi`, `500m`, `1e3`): parsing, comparing, adding, and the canonical text.
//!
//! A quantity counts billionths, the finest that Kubernetes keeps; what is finer is rounded away from zero. The largest
//! amount is 2^63-1, as there: what is more becomes that.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// Billionths in one.
const ONE: i128 = 1_000_000_000;
/// The largest amount, in billionths.
const MAX: i128 = (i64::MAX as i128) * ONE;
/// More digits after the point than can make a difference.
const MAX_FRACTION: usize = 18;

/// A text that is no quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a quantity: a number with one of the suffixes n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei or an exponent"
)]
pub(crate) struct NotAQuantity(String);

/// How the canonical text of a quantity is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// `k`, `M`, `G`: powers of 1000.
    Decimal,
    /// `Ki`, `Mi`, `Gi`: powers of 1024.
    Binary,
    /// `e3`, `e6`.
    Exponent,
}

/// An amount of something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quantity {
    billionths: i128,
    format: Format,
}

impl Quantity {
    /// A whole number of something.
    pub(crate) fn whole(value: i64) -> Self {
        Self { billionths: i128::from(value) * ONE, format: Format::Decimal }
    }

    pub(crate) fn add(self, other: Self) -> Self {
        Self { billionths: cap(self.billionths.saturating_add(other.billionths)), format: self.format }
    }

    pub(crate) fn sub(self, other: Self) -> Self {
        Self { billionths: cap(self.billionths.saturating_sub(other.billionths)), format: self.format }
    }

    /// The least of `self`, `self + step`, `self + 2 * step`, … that is not below `at_least`, written as `step` is.
    pub(crate) fn step_up_to(self, at_least: Self, step: Self) -> Self {
        let missing = (at_least.billionths - self.billionths).max(0);
        if step.billionths <= 0 {
            return at_least;
        }
        let steps = missing / step.billionths + i128::from(missing % step.billionths != 0);
        Self { billionths: cap(self.billionths + steps * step.billionths), format: step.format }
    }

    /// The whole number that it is, if it is one.
    pub(crate) fn as_whole(self) -> Option<i64> {
        if self.billionths % ONE == 0 { i64::try_from(self.billionths / ONE).ok() } else { None }
    }

    /// The nearest floating-point number.
    #[expect(clippy::cast_precision_loss, reason = "that is what it is for")]
    pub(crate) fn as_float(self) -> f64 {
        self.billionths as f64 / ONE as f64
    }

    /// -1, 0 or 1.
    pub(crate) fn sign(self) -> i64 {
        match self.billionths.cmp(&0) {
            Ordering::Less => -1,
            Ordering::Equal => 0,
            Ordering::Greater => 1,
        }
    }
}

fn cap(billionths: i128) -> i128 {
    billionths.clamp(-MAX, MAX)
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.billionths == other.billionths
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.billionths.cmp(&other.billionths)
    }
}

impl FromStr for Quantity {
    type Err = NotAQuantity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| NotAQuantity(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Quantity> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let number = &rest[..rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len())];
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (ten, two, format) = scale(&rest[number.len()..])?;
    let kept = &fraction[..fraction.len().min(MAX_FRACTION)];
    let cut = fraction[kept.len()..].bytes().any(|digit| digit != b'0');
    let digits = format!("{whole}{kept}");
    let digits = digits.trim_start_matches('0');
    let exponent = ten + 9 - i32::try_from(kept.len()).ok()?;
    let size = if digits.is_empty() { Some(0) } else { scaled(digits, exponent, two) };
    // What does not fit is too much, and cut to the most there is.
    let size = size.map_or(MAX, |size| cap(size.saturating_add(i128::from(cut))));
    Some(Quantity { billionths: if negative { -size } else { size }, format })
}

/// `digits * 2^two * 10^ten`, rounded up; nothing if that is too much to count.
fn scaled(digits: &str, ten: i32, two: u32) -> Option<i128> {
    let value = digits.parse::<i128>().ok()?.checked_mul(1_i128.checked_shl(two)?)?;
    let power = 10_i128.checked_pow(ten.unsigned_abs());
    if ten >= 0 {
        value.checked_mul(power?)
    } else {
        // A power that cannot be counted leaves less than the least there is.
        Some(power.map_or(1, |power| value / power + i128::from(value % power != 0)))
    }
}

/// What a suffix multiplies with, as powers of ten and of two.
fn scale(suffix: &str) -> Option<(i32, u32, Format)> {
    let decimal = |ten| Some((ten, 0, Format::Decimal));
    let binary = |two| Some((0, two, Format::Binary));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let exponent: i32 = exponent.strip_prefix('+').unwrap_or(exponent).parse().ok()?;
            (-60..=60).contains(&exponent).then_some((exponent, 0, Format::Exponent))
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.billionths == 0 {
            return f.write_str("0");
        }
        let whole = self.billionths / ONE;
        if self.format == Format::Binary && self.billionths % ONE == 0 && whole.abs() >= 1024 {
            let (mut value, mut suffix) = (whole, 0);
            while value % 1024 == 0 && suffix < 6 {
                value /= 1024;
                suffix += 1;
            }
            return write!(f, "{value}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][suffix]);
        }
        let (mut value, mut thousands) = (self.billionths, 0);
        while value % 1000 == 0 && thousands < 9 {
            value /= 1000;
            thousands += 1;
        }
        if self.format == Format::Exponent {
            let exponent = 3 * i32::try_from(thousands).unwrap_or(0) - 9;
            return if exponent == 0 { write!(f, "{value}") } else { write!(f, "{value}e{exponent}") };
        }
        write!(f, "{value}{}", ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][thousands])
    }
}

#[cfg(test)]
mod tests {
    use super::Quantity;
    use rstest::rstest;

    #[rstest]
    #[case("0", "0")]
    #[case("1", "1")]
    #[case("1024Mi", "1Gi")]
    #[case("40Gi", "40Gi")]
    #[case("1500Mi", "1500Mi")]
    #[case("512", "512")]
    #[case("1000", "1k")]
    #[case("0.5", "500m")]
    #[case(".5Gi", "512Mi")]
    #[case("1.5Gi", "1536Mi")]
    #[case("0.1Ki", "102400m")]
    #[case("1e3", "1e3")]
    #[case("1E", "1E")]
    #[case("12E2", "1200")]
    #[case("100m", "100m")]
    #[case("-2k", "-2k")]
    #[case("0.0000000001", "1n")]
    #[case("99999999999999999999999", "9223372036854775807")]
    fn has_a_canonical_text(#[case] text: &str, #[case] canonical: &str) {
        assert_eq!(text.parse::<Quantity>().unwrap().to_string(), canonical);
    }

    #[rstest]
    #[case("")]
    #[case("Gi")]
    #[case("1GB")]
    #[case("1 Gi")]
    #[case("1.2.3")]
    #[case("--1")]
    #[case("1e")]
    #[case("10gi")]
    fn rejects_what_is_none(#[case] text: &str) {
        assert!(text.parse::<Quantity>().is_err(), "{text:?}");
    }

    #[test]
    fn amounts_of_different_suffixes_compare() {
        let quantity = |text: &str| text.parse::<Quantity>().unwrap();
        assert_eq!(quantity("1Gi"), quantity("1024Mi"));
        assert!(quantity("1G") < quantity("1Gi"));
        assert!(quantity("1500m") > quantity("1"));
        assert_eq!(quantity("1Gi").sub(quantity("512Mi")).to_string(), "512Mi");
    }

    #[test]
    fn steps_go_up_from_the_least() {
        let quantity = |text: &str| text.parse::<Quantity>().unwrap();
        let (min, step) = (quantity("1Gi"), quantity("512Mi"));
        assert_eq!(min.step_up_to(quantity("1100Mi"), step).to_string(), "1536Mi");
        assert_eq!(min.step_up_to(quantity("2Gi"), step).to_string(), "2Gi");
    }
}
