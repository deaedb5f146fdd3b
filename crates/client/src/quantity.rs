//! Quantities, with the semantics of Kubernetes' Go package.
//!
//! A quantity is a number ([`number`]), the format in which it is written, and the string that it was parsed from where an API
//! server returns that string unchanged. Equality, order and hash are those of the number alone.

mod number;
mod parse;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Add, Sub};
use std::str::FromStr;

use number::Number;
pub use parse::ParseQuantityError;

/// The exponent of ten of the smallest fraction that a quantity keeps.
const NANO: i64 = -9;
/// The largest number of digits before the point with which a quantity is written in the binary format. Parsed quantities have
/// at most 19; only sums have more.
const MAX_BINARY_DIGITS: i64 = 10_000;

/// The format of the canonical string of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Powers of 1000: `n`, `u`, `m`, none, `k`, `M`, `G`, `T`, `P`, `E`.
    DecimalSi,
    /// Powers of 1024: `Ki`, `Mi`, `Gi`, `Ti`, `Pi`, `Ei`.
    BinarySi,
    /// Exponents of ten: `e3`, `e-6`.
    DecimalExponent,
}

/// A quantity of a resource: `80Gi`, `1500m`, `1e3`.
///
/// Two quantities are equal if their numbers are: `1Gi` equals `1024Mi`. [`Display`](fmt::Display) writes the canonical string,
/// which is what an API server stores.
#[derive(Clone, Debug)]
pub struct Quantity {
    number: Number,
    format: Format,
    /// The string that it was parsed from, if that is the canonical one.
    text: Option<Box<str>>,
}

impl Quantity {
    /// Returns zero, the value of a quantity that is missing in an object.
    pub const fn zero() -> Self {
        Self { number: Number::zero(), format: Format::DecimalSi, text: None }
    }

    /// Returns the format of the canonical string.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the sign: -1, 0 or 1.
    pub fn signum(&self) -> i8 {
        self.number.signum()
    }

    /// Returns whether the quantity is greater than zero.
    pub fn is_positive(&self) -> bool {
        self.signum() > 0
    }

    /// Returns whether the quantity is less than zero.
    pub fn is_negative(&self) -> bool {
        self.signum() < 0
    }

    /// Returns whether the quantity is a multiple of ten to the power of `exponent`: an integer for 0, a number of thousandths
    /// for -3.
    pub fn is_multiple_of(&self, exponent: i32) -> bool {
        self.number.exponent() >= i64::from(exponent) || self.number.signum() == 0
    }

    /// Returns the quantity in units of ten to the power of `exponent`, rounded away from zero; `None` if it does not fit.
    pub fn scaled(&self, exponent: i32) -> Option<i128> {
        self.number.scaled(i64::from(exponent))
    }

    /// Returns the quantity as an integer; `None` if it is not one, or does not fit.
    pub fn to_i64(&self) -> Option<i64> {
        if self.is_multiple_of(0) { i64::try_from(self.scaled(0)?).ok() } else { None }
    }

    /// Returns the nearest floating-point number.
    pub fn to_f64(&self) -> f64 {
        self.number.to_f64()
    }

    /// Returns a string that is the same for equal quantities and different for others, for digests and keys. It is not in the
    /// format of an API server.
    pub fn exact(&self) -> impl fmt::Display + '_ {
        &self.number
    }

    /// Returns the least of `self`, `self + step`, `self + 2 * step`, … that is not below `at_least`, in the format of `step`.
    ///
    /// Returns `at_least` if `step` is not positive, or if a number is too large (about 10²⁹).
    pub fn step_up_to(&self, at_least: &Self, step: &Self) -> Self {
        let stepped = || {
            let [from, to, step_size] = [self, at_least, step].map(|quantity| quantity.scaled(-9));
            let (from, to, step_size) = (from?, to?, step_size.filter(|size| *size > 0)?);
            let missing = to.checked_sub(from)?.max(0);
            let steps = missing / step_size + i128::from(missing % step_size != 0);
            let number = Number::from_scaled(from.checked_add(steps.checked_mul(step_size)?)?, NANO);
            Some(Self { number, format: step.format, text: None })
        };
        stepped().unwrap_or_else(|| at_least.clone())
    }

    /// Adds or subtracts, in the format of `self`, or of `other` if `self` is zero.
    fn combine(&self, other: &Self, is_difference: bool) -> Self {
        let format = if self.signum() == 0 { other.format } else { self.format };
        let number = self.number.plus(&other.number, is_difference);
        Self { number, format, text: None }
    }
}

impl Default for Quantity {
    fn default() -> Self {
        Self::zero()
    }
}

impl From<i64> for Quantity {
    fn from(whole: i64) -> Self {
        Self { number: Number::from_scaled(whole.into(), 0), format: Format::DecimalSi, text: None }
    }
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse::parse(text)
    }
}

impl Add for &Quantity {
    type Output = Quantity;

    fn add(self, other: Self) -> Quantity {
        self.combine(other, false)
    }
}

impl Sub for &Quantity {
    type Output = Quantity;

    fn sub(self, other: Self) -> Quantity {
        self.combine(other, true)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Quantity {}

impl Hash for Quantity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.number.cmp(&other.number)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(text) = &self.text {
            return f.write_str(text);
        }
        if self.signum() == 0 {
            return f.write_str("0");
        }
        // As in Go, small numbers and fractions are decimal even if they were parsed as binary.
        let is_binary = self.format == Format::BinarySi
            && self.is_multiple_of(0)
            && self.number.digits_before_point() <= MAX_BINARY_DIGITS
            && !self.number.is_magnitude_below(1024);
        if is_binary {
            let (amount, thousands) = self.number.without_factors_of_1024(6);
            return write!(f, "{amount}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][thousands]);
        }
        let (amount, exponent) = self.number.in_thousands();
        let suffix = match exponent {
            _ if self.format == Format::DecimalExponent => None,
            -9..=18 => usize::try_from((exponent + 9) / 3).ok(),
            _ => None,
        };
        match suffix {
            Some(suffix) => write!(f, "{amount}{}", ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][suffix]),
            None if exponent == 0 => f.write_str(&amount),
            None => write!(f, "{amount}e{exponent}"),
        }
    }
}
