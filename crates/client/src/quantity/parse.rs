//! Parsing quantities as Go does: which strings are accepted, what they mean, and which are canonical.

use super::number::Number;
use super::{Format, NANO, Quantity};

/// The number of digits that Go parses into 64 bits. A longer string is never kept as it is.
const SHORT_DIGITS: usize = 18;
/// The number of digits, suffix included, up to which Go parses a binary quantity into 64 bits.
const SHORT_BINARY_DIGITS: u32 = 14;
/// The letters that a suffix can have.
const SUFFIX_LETTERS: [char; 12] = ['e', 'E', 'i', 'n', 'u', 'm', 'k', 'K', 'M', 'G', 'T', 'P'];

/// Why a string is not a quantity. The messages are those of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseQuantityError {
    /// The string is not a number with a suffix.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    /// The string has no digits.
    #[error("unable to parse numeric part of quantity")]
    Number,
    /// The suffix is unknown.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// The parts of the string of a quantity.
struct Parts<'a> {
    is_negative: bool,
    /// The digits before the point, without leading zeros; `0` if there are none.
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
    has_digits: bool,
}

/// The factor of a suffix.
#[derive(Clone, Copy)]
enum Scale {
    Ten(i32, Format),
    Two(u32),
}

pub(super) fn parse(text: &str) -> Result<Quantity, ParseQuantityError> {
    let parts = split(text)?;
    let scale = scale(parts.suffix).ok_or(ParseQuantityError::Suffix)?;
    // Where Go parses into 64 bits it needs no digits: a lone sign, point or suffix is zero.
    let is_short = match scale {
        Scale::Ten(exponent, _) => {
            parts.whole.len() + parts.fraction.len() <= SHORT_DIGITS && lowest_exponent(&parts, exponent) >= NANO
        }
        Scale::Two(exponent) => parts.fraction.is_empty() && is_short_binary(parts.whole, exponent),
    };
    if !is_short && !parts.has_digits {
        return Err(ParseQuantityError::Number);
    }
    let text = (text == "0" || (is_short && is_canonical(&parts, scale))).then(|| text.into());
    let (number, format) = match scale {
        Scale::Ten(exponent, format) => (number(&parts, exponent).rounded(NANO), format),
        Scale::Two(exponent) => binary(&number(&parts, 0).times(1 << exponent).rounded(NANO)),
    };
    Ok(Quantity { number: number.negated_if(parts.is_negative), format, text })
}

/// Limits a binary quantity to 2⁶³-1. Binary quantities below 1 become decimal.
fn binary(number: &Number) -> (Number, Format) {
    let largest = Number::from_scaled(i64::MAX.into(), 0);
    let is_fraction = number.signum() != 0 && number.is_magnitude_below(1);
    let format = if is_fraction { Format::DecimalSi } else { Format::BinarySi };
    (number.clone().min(largest), format)
}

fn number(parts: &Parts<'_>, exponent: i32) -> Number {
    let digits = parts.whole.bytes().chain(parts.fraction.bytes());
    Number::from_ascii(false, digits, lowest_exponent(parts, exponent))
}

/// Returns the exponent of the last digit.
fn lowest_exponent(parts: &Parts<'_>, exponent: i32) -> i64 {
    i64::from(exponent).saturating_sub_unsigned(parts.fraction.len() as u64)
}

/// Returns whether Go parses the number into 64 bits: it counts three digits for each factor of 1024.
fn is_short_binary(whole: &str, exponent: u32) -> bool {
    u32::try_from(whole.len()).is_ok_and(|digits| digits.saturating_add(exponent * 3 / 10) <= SHORT_BINARY_DIGITS)
}

/// Returns whether Go takes the string of a short quantity for canonical, by its quick test, and keeps it.
fn is_canonical(parts: &Parts<'_>, scale: Scale) -> bool {
    match scale {
        Scale::Two(_) => parts.whole.parse::<i64>().is_ok_and(|value| value & 7 != 0),
        Scale::Ten(exponent, _) => {
            let digits = || parts.whole.bytes().chain(parts.fraction.bytes());
            let ends_in_zeros = digits().count() >= 3 && digits().rev().take(3).all(|digit| digit == b'0');
            lowest_exponent(parts, exponent) % 3 == 0 && !ends_in_zeros && !parts.whole.starts_with('0')
        }
    }
}

fn split(text: &str) -> Result<Parts<'_>, ParseQuantityError> {
    if text.is_empty() {
        return Err(ParseQuantityError::Format);
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let significant = unsigned.trim_start_matches('0');
    let (whole, rest) = split_digits(significant);
    let (fraction, suffix) = rest.strip_prefix('.').map_or(("", rest), split_digits);
    let exponent = suffix.trim_start_matches(SUFFIX_LETTERS);
    let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
    if !exponent.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(ParseQuantityError::Format);
    }
    Ok(Parts {
        is_negative: text.starts_with('-'),
        whole: if whole.is_empty() { "0" } else { whole },
        fraction,
        suffix,
        has_digits: significant.len() < unsigned.len() || !whole.is_empty() || !fraction.is_empty(),
    })
}

/// Splits a string after its leading digits.
fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn scale(suffix: &str) -> Option<Scale> {
    let decimal = |exponent| Some(Scale::Ten(exponent, Format::DecimalSi));
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
        "Ki" => Some(Scale::Two(10)),
        "Mi" => Some(Scale::Two(20)),
        "Gi" => Some(Scale::Two(30)),
        "Ti" => Some(Scale::Two(40)),
        "Pi" => Some(Scale::Two(50)),
        "Ei" => Some(Scale::Two(60)),
        _ => {
            let exponent: i64 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            // Go keeps the lower 32 bits.
            #[expect(clippy::cast_possible_truncation, reason = "as in Go")]
            Some(Scale::Ten(exponent as i32, Format::DecimalExponent))
        }
    }
}
