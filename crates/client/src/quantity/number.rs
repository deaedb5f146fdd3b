//! Decimal numbers of any size: a sign, digits, and an exponent of ten.
//!
//! Each number has one representation, without zeros at either end of the digits. So comparing needs no arithmetic, and a
//! number such as `1e1000000000` takes no more memory than 1.

use std::cmp::Ordering;
use std::fmt;

/// The largest number of zeros that an addition uses to align two numbers.
const MAX_GAP: i64 = 10_000;
/// The digits of the largest `i128`.
const MAX_I128_DIGITS: i64 = 39;

/// `digits * 10^exponent`, with a sign.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Number {
    is_negative: bool,
    /// The digits from the highest to the lowest, each from 0 to 9; the first and the last are not 0. Zero has no digits.
    digits: Vec<u8>,
    exponent: i64,
}

impl Number {
    pub(super) const fn zero() -> Self {
        Self { is_negative: false, digits: Vec::new(), exponent: 0 }
    }

    /// Creates a number of these ASCII digits, times ten to the power of `exponent`.
    pub(super) fn from_ascii(is_negative: bool, digits: impl Iterator<Item = u8>, exponent: i64) -> Self {
        Self::new(is_negative, digits.map(|digit| digit - b'0').collect(), exponent)
    }

    /// Creates the number `value`, times ten to the power of `exponent`.
    pub(super) fn from_scaled(value: i128, exponent: i64) -> Self {
        Self::from_ascii(value < 0, value.unsigned_abs().to_string().bytes(), exponent)
    }

    fn new(is_negative: bool, mut digits: Vec<u8>, mut exponent: i64) -> Self {
        let leading = digits.iter().take_while(|digit| **digit == 0).count();
        digits.drain(..leading);
        while digits.last() == Some(&0) {
            digits.pop();
            exponent += 1;
        }
        if digits.is_empty() { Self::zero() } else { Self { is_negative, digits, exponent } }
    }

    pub(super) fn signum(&self) -> i8 {
        match (self.digits.is_empty(), self.is_negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        }
    }

    pub(super) fn exponent(&self) -> i64 {
        self.exponent
    }

    pub(super) fn negated_if(mut self, is_negative: bool) -> Self {
        self.is_negative = is_negative && !self.digits.is_empty();
        self
    }

    /// Returns the number of digits before the point; 0 or less for numbers below 1.
    pub(super) fn digits_before_point(&self) -> i64 {
        length(&self.digits) + self.exponent
    }

    /// Returns whether the number without its sign is below `limit`.
    pub(super) fn is_magnitude_below(&self, limit: i64) -> bool {
        self.compare_magnitude(&Self::from_scaled(limit.into(), 0)).is_lt()
    }

    fn compare_magnitude(&self, other: &Self) -> Ordering {
        match (self.digits.is_empty(), other.digits.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            // Without trailing zeros, the longer of two that begin alike is the larger.
            (false, false) => self
                .digits_before_point()
                .cmp(&other.digits_before_point())
                .then_with(|| self.digits.cmp(&other.digits)),
        }
    }

    /// Multiplies by a factor.
    pub(super) fn times(&self, factor: u64) -> Self {
        let mut digits = Vec::with_capacity(self.digits.len() + 20);
        let mut carry = 0u128;
        for digit in self.digits.iter().rev() {
            carry += u128::from(*digit) * u128::from(factor);
            digits.push(low_digit(carry));
            carry /= 10;
        }
        while carry > 0 {
            digits.push(low_digit(carry));
            carry /= 10;
        }
        digits.reverse();
        Self::new(self.is_negative, digits, self.exponent)
    }

    /// Rounds away from zero to a multiple of ten to the power of `exponent`.
    pub(super) fn rounded(&self, exponent: i64) -> Self {
        if self.digits.is_empty() || self.exponent >= exponent {
            return self.clone();
        }
        let kept = usize::try_from(self.digits_before_point() - exponent).unwrap_or(0);
        // The last digit is not zero, so the number is no multiple: the digits that are kept are incremented.
        let mut digits = self.digits[..kept].to_vec();
        let nines = digits.iter().rev().take_while(|digit| **digit == 9).count();
        digits[kept - nines..].fill(0);
        match digits[..kept - nines].last_mut() {
            Some(digit) => *digit += 1,
            None => digits.insert(0, 1),
        }
        Self::new(self.is_negative, digits, exponent)
    }

    /// Returns the number in units of ten to the power of `exponent`, rounded away from zero.
    pub(super) fn scaled(&self, exponent: i64) -> Option<i128> {
        let rounded = self.rounded(exponent);
        let zeros = rounded.exponent - exponent;
        if rounded.digits.is_empty() {
            return Some(0);
        }
        if length(&rounded.digits) + zeros > MAX_I128_DIGITS {
            return None;
        }
        let zeros = std::iter::repeat_n(0, usize::try_from(zeros).ok()?);
        let digits = rounded.digits.iter().copied().chain(zeros);
        let magnitude =
            digits.map(i128::from).try_fold(0i128, |value, digit| value.checked_mul(10)?.checked_add(digit))?;
        Some(if rounded.is_negative { -magnitude } else { magnitude })
    }

    pub(super) fn to_f64(&self) -> f64 {
        // Always parses: `Display` writes a float literal, and numbers that are too large become infinite.
        self.to_string().parse().unwrap_or(f64::NAN)
    }

    /// Returns the sum, or with `is_difference` the difference. If the numbers are too far apart, returns the larger one.
    pub(super) fn plus(&self, other: &Self, is_difference: bool) -> Self {
        let other_negative = other.is_negative != is_difference;
        if other.digits.is_empty() {
            return self.clone();
        }
        if self.digits.is_empty() {
            return other.clone().negated_if(other_negative);
        }
        let (larger, smaller, is_negative) = match self.compare_magnitude(other) {
            Ordering::Less => (other, self, other_negative),
            _ => (self, other, self.is_negative),
        };
        let exponent = self.exponent.min(other.exponent);
        if larger.exponent - exponent > MAX_GAP + length(&smaller.digits) {
            return larger.clone().negated_if(is_negative);
        }
        let sum = if self.is_negative == other_negative {
            add(larger.lowest_first(exponent), smaller.lowest_first(exponent))
        } else {
            subtract(larger.lowest_first(exponent), smaller.lowest_first(exponent))
        };
        Self::new(is_negative, sum, exponent)
    }

    /// Returns the digits from the lowest to the highest, with the zeros that a lower exponent needs.
    fn lowest_first(&self, exponent: i64) -> impl Iterator<Item = u8> {
        let zeros = usize::try_from(self.exponent - exponent).unwrap_or(0);
        std::iter::repeat_n(0, zeros).chain(self.digits.iter().rev().copied())
    }

    /// Divides an integer by the highest power of 1024 that divides it. Returns the quotient and the power, which is at most
    /// `at_most`.
    pub(super) fn without_factors_of_1024(&self, at_most: usize) -> (String, usize) {
        let mut digits = self.digits.clone();
        digits.resize(digits.len() + usize::try_from(self.exponent).unwrap_or(0), 0);
        let mut power = 0;
        while power < at_most
            && let Some(quotient) = divide_by_1024(&digits)
        {
            digits = quotient;
            power += 1;
        }
        (self.signed(&digits), power)
    }

    /// Returns the digits for the highest possible exponent that is a multiple of 3, and that exponent.
    pub(super) fn in_thousands(&self) -> (String, i64) {
        let zeros = self.exponent.rem_euclid(3);
        let mut digits = self.digits.clone();
        digits.resize(digits.len() + usize::try_from(zeros).unwrap_or(0), 0);
        (self.signed(&digits), self.exponent - zeros)
    }

    fn signed(&self, digits: &[u8]) -> String {
        let sign = self.is_negative.then_some('-');
        sign.into_iter().chain(digits.iter().map(|digit| char::from(b'0' + digit))).collect()
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Number {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_sign = self.signum().cmp(&other.signum());
        by_sign.then_with(|| {
            let by_magnitude = self.compare_magnitude(other);
            if self.is_negative { by_magnitude.reverse() } else { by_magnitude }
        })
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.digits.is_empty() {
            return f.write_str("0");
        }
        write!(f, "{}e{}", self.signed(&self.digits), self.exponent)
    }
}

fn length(digits: &[u8]) -> i64 {
    // Cannot fail: a vector has at most isize::MAX bytes.
    i64::try_from(digits.len()).unwrap_or(i64::MAX)
}

fn low_digit(value: u128) -> u8 {
    u8::try_from(value % 10).unwrap_or(0)
}

/// Adds two numbers, given as digits from the lowest to the highest. The first must not have fewer digits.
fn add(larger: impl Iterator<Item = u8>, mut smaller: impl Iterator<Item = u8>) -> Vec<u8> {
    let mut carry = 0;
    let mut sum: Vec<u8> = larger
        .map(|digit| {
            let sum = digit + smaller.next().unwrap_or(0) + carry;
            carry = sum / 10;
            sum % 10
        })
        .collect();
    sum.push(carry);
    sum.reverse();
    sum
}

/// Subtracts two numbers, given as digits from the lowest to the highest. The first must not be smaller.
fn subtract(larger: impl Iterator<Item = u8>, mut smaller: impl Iterator<Item = u8>) -> Vec<u8> {
    let mut borrow = 0;
    let mut difference: Vec<u8> = larger
        .map(|digit| {
            let taken = smaller.next().unwrap_or(0) + borrow;
            borrow = u8::from(digit < taken);
            digit + 10 * borrow - taken
        })
        .collect();
    difference.reverse();
    difference
}

/// Divides an integer by 1024; `None` if there is a remainder.
fn divide_by_1024(digits: &[u8]) -> Option<Vec<u8>> {
    let mut remainder = 0u32;
    let mut quotient = Vec::with_capacity(digits.len());
    for digit in digits {
        remainder = remainder * 10 + u32::from(*digit);
        // The remainder was below 1024, so this quotient has one digit.
        quotient.push(u8::try_from(remainder / 1024).ok()?);
        remainder %= 1024;
    }
    let leading = quotient.iter().take_while(|digit| **digit == 0).count();
    quotient.drain(..leading);
    (remainder == 0 && !quotient.is_empty()).then_some(quotient)
}
