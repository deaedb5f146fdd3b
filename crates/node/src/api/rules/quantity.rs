//! Quantities: reading them, comparing them, and the form in which the server gives them back.
//!
//! A quantity is kept in units of 10⁻⁹, to which smaller ones are rounded up. The text of a quantity that came in stays
//! as it is in most cases that are canonical; everything else is written with the biggest suffix that loses nothing.

use serde_json::Value;

const NANO: i128 = 1_000_000_000;
/// How many digits the server reads into 64 bits; what is longer is never kept as it was written.
const SHORT_DIGITS: usize = 18;

/// Why a text is no quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum QuantityError {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Decimal,
    Exponent,
    Binary,
}

/// An amount of something.
#[derive(Clone, Debug)]
pub(super) struct Quantity {
    nanos: i128,
    format: Format,
    /// The text that it was read from, where the server gives back that.
    text: Option<String>,
}

impl Quantity {
    pub(super) fn zero() -> Self {
        Self { nanos: 0, format: Format::Decimal, text: None }
    }

    /// Reads a quantity from JSON, in which it may be a text or a number; absent is 0.
    pub(super) fn of(value: Option<&Value>) -> Result<Self, QuantityError> {
        match value {
            None | Some(Value::Null) => Ok(Self::zero()),
            Some(Value::String(text)) => Self::parse(text.trim()),
            Some(Value::Number(number)) => Self::parse(&number.to_string()),
            Some(_) => Err(QuantityError::Format),
        }
    }

    pub(super) fn parse(text: &str) -> Result<Self, QuantityError> {
        let parts = split(text)?;
        let (format, exponent) = suffix(parts.suffix)?;
        let digits: String = [parts.whole, parts.fraction].concat();
        let places = i32::try_from(parts.fraction.len()).ok().ok_or(QuantityError::Numeric)?;
        let nanos = match format {
            Format::Decimal | Format::Exponent => scale_decimal(&digits, exponent.saturating_sub(places)),
            Format::Binary => {
                let amount = scale_decimal(&digits, -places);
                amount.saturating_mul(1i128.checked_shl(exponent.unsigned_abs()).unwrap_or(i128::MAX))
            }
        };
        // Binary quantities end at 2⁶³-1, and those below 1 are decimal.
        let (nanos, shown) = match format {
            Format::Binary if nanos > i128::from(i64::MAX) * NANO => (i128::from(i64::MAX) * NANO, format),
            Format::Binary if nanos > 0 && nanos < NANO => (nanos, Format::Decimal),
            _ => (nanos, format),
        };
        let canonical =
            text == "0" || (digits.len() <= SHORT_DIGITS && is_canonical(format, exponent, places, &digits, &parts));
        let text = canonical.then(|| text.to_owned());
        Ok(Self { nanos: if parts.negative { -nanos } else { nanos }, format: shown, text })
    }

    pub(super) fn is_positive(&self) -> bool {
        self.nanos > 0
    }

    pub(super) fn is_negative(&self) -> bool {
        self.nanos < 0
    }

    pub(super) fn is_fractional(&self) -> bool {
        self.nanos % NANO != 0
    }

    /// The amount in whole units, rounded up.
    pub(super) fn units(&self) -> i128 {
        ceil(self.nanos, NANO)
    }

    /// The amount in thousandths, rounded up.
    pub(super) fn millis(&self) -> i128 {
        ceil(self.nanos, NANO / 1000)
    }

    pub(super) fn is_whole_millis(&self) -> bool {
        self.nanos % (NANO / 1000) == 0 && i64::try_from(self.millis()).is_ok()
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        let format = if self.nanos == 0 { other.format } else { self.format };
        Self { nanos: self.nanos.saturating_add(other.nanos), format, text: None }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        self.nanos.partial_cmp(&other.nanos)
    }
}

impl std::fmt::Display for Quantity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(text) = &self.text {
            return f.write_str(text);
        }
        let small = self.nanos.abs() < 1024 * NANO;
        match self.format {
            Format::Binary if !small => {
                let mut units = self.units();
                let mut exponent = 0;
                while units % 1024 == 0 && exponent < 6 {
                    units /= 1024;
                    exponent += 1;
                }
                write!(f, "{units}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][exponent])
            }
            format => {
                let (mut amount, mut exponent) = (self.nanos, -9);
                while amount != 0 && amount % 1000 == 0 && exponent < 18 {
                    amount /= 1000;
                    exponent += 3;
                }
                match (format, exponent) {
                    _ if amount == 0 => write!(f, "0"),
                    (Format::Exponent, 0) => write!(f, "{amount}"),
                    (Format::Exponent, _) => write!(f, "{amount}e{exponent}"),
                    _ => {
                        let suffixes = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
                        let suffix = usize::try_from((exponent + 9) / 3).ok().and_then(|index| suffixes.get(index));
                        write!(f, "{amount}{}", suffix.copied().unwrap_or_default())
                    }
                }
            }
        }
    }
}

struct Parts<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

fn split(text: &str) -> Result<Parts<'_>, QuantityError> {
    if text.is_empty() {
        return Err(QuantityError::Format);
    }
    let negative = text.starts_with('-');
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let unsigned = unsigned.trim_start_matches('0');
    let end = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (whole, rest) = unsigned.split_at(end(unsigned));
    let whole = if whole.is_empty() { "0" } else { whole };
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(end(rest)),
        None => ("", rest),
    };
    let exponent = suffix.trim_start_matches(['e', 'E', 'i', 'n', 'u', 'm', 'k', 'K', 'M', 'G', 'T', 'P']);
    let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
    if !exponent.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(QuantityError::Format);
    }
    Ok(Parts { negative, whole, fraction, suffix })
}

/// The format of a suffix, and its exponent: of 10, or of 2 for binary ones.
fn suffix(text: &str) -> Result<(Format, i32), QuantityError> {
    let decimal =
        [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
    let binary = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
    let of = |table: &[(&str, i32)]| table.iter().find(|(name, _)| *name == text).map(|(_, exponent)| *exponent);
    if let Some(exponent) = of(&decimal) {
        return Ok((Format::Decimal, exponent));
    }
    if let Some(exponent) = of(&binary) {
        return Ok((Format::Binary, exponent));
    }
    let exponent = text.strip_prefix(['e', 'E']).and_then(|exponent| exponent.parse().ok());
    exponent.map(|exponent| (Format::Exponent, exponent)).ok_or(QuantityError::Suffix)
}

/// Digits times a power of 10, in units of 10⁻⁹, rounded up; what is too big for that is as big as can be.
fn scale_decimal(digits: &str, exponent: i32) -> i128 {
    let Ok(amount) = digits.parse::<i128>() else { return i128::MAX };
    let exponent = exponent.saturating_add(9);
    let power = 10i128.checked_pow(exponent.unsigned_abs());
    match (exponent >= 0, power) {
        (true, Some(power)) => amount.saturating_mul(power),
        (true, None) if amount == 0 => 0,
        (true, None) => i128::MAX,
        (false, Some(power)) => ceil(amount, power),
        (false, None) => i128::from(amount > 0),
    }
}

/// Whether the text of a quantity is given back as it came.
fn is_canonical(format: Format, exponent: i32, places: i32, digits: &str, parts: &Parts<'_>) -> bool {
    match format {
        Format::Binary => {
            let room = 15 - i32::try_from(parts.whole.len()).unwrap_or(i32::MAX) - exponent * 3 / 10 - 1;
            places == 0 && room >= 0 && digits.parse::<i64>().is_ok_and(|value| value & 7 != 0)
        }
        Format::Decimal | Format::Exponent => {
            let scale = exponent - places;
            scale >= -9 && scale % 3 == 0 && !digits.ends_with("000") && !digits.starts_with('0')
        }
    }
}

/// Rounds up, for amounts on both sides of 0.
fn ceil(amount: i128, unit: i128) -> i128 {
    amount.div_euclid(unit) + i128::from(amount.rem_euclid(unit) != 0)
}
