//! Timestamps to the second, as in the Kubernetes API.
//!
//! Go's times reach from year 0 to year 9999, and `9999-12-31T23:59:59Z` is in use for "never". The date crates end a day
//! earlier and accept more than RFC 3339. Only files of other writers have timestamps.

use std::fmt;
use std::str::FromStr;

use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A point in time, to the second.
///
/// It is parsed from any RFC 3339 text of the years 0 to 9999, without fractions of a second, and printed in UTC. Go's
/// zero time (`0001-01-01T00:00:00Z`) means "no time" and is serialized as `null`, as in Go.
///
/// ```
/// use drakkar_metadata::Time;
///
/// let time: Time = "2008-01-01T01:01:01.5+02:00".parse()?;
/// assert_eq!(time.to_string(), "2007-12-31T23:01:01Z");
/// assert_eq!(time.unix_seconds(), 1_199_142_061);
/// # Ok::<(), drakkar_metadata::TimeError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(i64);

/// An invalid time, or one outside the years 0 to 9999.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an RFC 3339 time of the years 0 to 9999, for example 2026-01-31T23:59:59Z")]
pub struct TimeError;

const DAY: i64 = 24 * 60 * 60;

impl Time {
    /// 0000-01-01T00:00:00Z.
    const MIN: i64 = -719_528 * DAY;
    /// 9999-12-31T23:59:59Z.
    const MAX: i64 = 2_932_897 * DAY - 1;
    /// 0001-01-01T00:00:00Z.
    const GO_ZERO: i64 = -719_162 * DAY;

    /// Creates a time from the seconds since 1970-01-01T00:00:00Z.
    pub fn from_unix_seconds(seconds: i64) -> Result<Self, TimeError> {
        if (Self::MIN..=Self::MAX).contains(&seconds) { Ok(Self(seconds)) } else { Err(TimeError) }
    }

    /// Returns the seconds since 1970-01-01T00:00:00Z.
    pub fn unix_seconds(self) -> i64 {
        self.0
    }

    fn is_zero(self) -> bool {
        self.0 == Self::GO_ZERO
    }

    /// Returns whether a field with this value is omitted, as Go omits a zero time.
    pub(crate) fn is_absent_or_zero(time: &Option<Self>) -> bool {
        time.is_none_or(Self::is_zero)
    }
}

impl FromStr for Time {
    type Err = TimeError;

    fn from_str(text: &str) -> Result<Self, TimeError> {
        let mut rest = Digits(text.as_bytes());
        let mut parse = || {
            let year = rest.number(4)?;
            let month = rest.after(b'-')?.number(2)?;
            let day = rest.after(b'-')?.number(2)?;
            let hour = rest.after(b'T')?.number(2)?;
            let minute = rest.after(b':')?.number(2)?;
            let second = rest.after(b':')?.number(2)?;
            rest.skip_fraction()?;
            let offset = rest.offset()?;
            let valid = (1..=12).contains(&month)
                && (1..=days_in_month(year, month)).contains(&day)
                && hour < 24
                && minute < 60
                && second < 60;
            let in_day = hour * 3600 + minute * 60 + second;
            valid.then_some(days_since_1970(year, month, day) * DAY + in_day - offset)
        };
        parse().ok_or(TimeError).and_then(Self::from_unix_seconds)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date(self.0.div_euclid(DAY));
        let second = self.0.rem_euclid(DAY);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.is_zero() { serializer.serialize_unit() } else { serializer.collect_str(self) }
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TimeVisitor;

        // An error from the visitor has the position of the text; a later one would have the position after it.
        impl Visitor<'_> for TimeVisitor {
            type Value = Time;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an RFC 3339 time")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Time, E> {
                text.parse().ok().ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_str(TimeVisitor)
    }
}

/// The unparsed rest of a text.
struct Digits<'a>(&'a [u8]);

impl Digits<'_> {
    /// Parses a number of exactly `digits` digits.
    fn number(&mut self, digits: usize) -> Option<i64> {
        let (head, rest) = self.0.split_at_checked(digits)?;
        self.0 = rest;
        head.iter().try_fold(0, |number, byte| byte.is_ascii_digit().then(|| number * 10 + i64::from(byte - b'0')))
    }

    /// Skips a byte, which must be next.
    fn after(&mut self, byte: u8) -> Option<&mut Self> {
        self.0 = self.0.strip_prefix(&[byte])?;
        Some(self)
    }

    /// Skips an optional fraction of a second, of at least one digit.
    fn skip_fraction(&mut self) -> Option<()> {
        if let [b'.' | b',', rest @ ..] = self.0 {
            let end = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
            self.0 = &rest[end..];
            return (end > 0).then_some(());
        }
        Some(())
    }

    /// Parses the offset from UTC, which ends the text, into seconds.
    fn offset(&mut self) -> Option<i64> {
        let sign = match self.0 {
            b"Z" => return Some(0),
            [b'+', ..] => 1,
            [b'-', ..] => -1,
            _ => return None,
        };
        self.0 = &self.0[1..];
        let hours = self.number(2)?;
        let minutes = self.after(b':')?.number(2)?;
        (self.0.is_empty() && hours <= 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
    }
}

fn days_in_month(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns the days from 1970-01-01 to a date.
///
/// Years start in March, so that the leap day is the last day of a year, in eras of 400 years, which all have the same
/// number of days.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Returns the year, month and day of a number of days after 1970-01-01.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = (era * 400 + year_of_era, if month < 10 { month + 3 } else { month - 9 });
    (year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_of_ten_thousand_years_is_printed_and_parsed_back() {
        let mut expected = (0, 1, 1);
        for days in Time::MIN / DAY..=Time::MAX / DAY {
            assert_eq!(date(days), expected);
            assert_eq!(days_since_1970(expected.0, expected.1, expected.2), days);
            let (year, month, day) = &mut expected;
            *day += 1;
            if *day > days_in_month(*year, *month) {
                (*day, *month) = (1, *month + 1);
            }
            if *month > 12 {
                (*month, *year) = (1, *year + 1);
            }
        }
        assert_eq!(expected, (10_000, 1, 1));
    }

    #[test]
    fn times_are_normalised_to_seconds_in_utc() {
        for (text, normal) in [
            ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z"),
            ("2008-01-01T01:01:01.999999999999+02:00", "2007-12-31T23:01:01Z"),
            ("2008-02-29T23:59:59,5-24:00", "2008-03-01T23:59:59Z"),
            ("1969-12-31T23:59:59.5Z", "1969-12-31T23:59:59Z"),
            ("0000-01-01T00:00:00Z", "0000-01-01T00:00:00Z"),
            ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(text.parse::<Time>().map(|time| time.to_string()).as_deref(), Ok(normal), "{text}");
        }
    }

    #[test]
    fn a_text_that_is_not_rfc_3339_is_refused() {
        for text in [
            "",
            "yesterday",
            "2024-05-01",
            "2024-05-01 10:00:00Z",
            "2024-05-01t10:00:00Z",
            "2024-05-01T10:00:00z",
            "2024-05-01T10:00Z",
            "20240501T100000Z",
            "2024-05-01T10:00:00",
            "2024-05-01T10:00:00.Z",
            "2024-05-01T10:00:00+0200",
            "2024-05-01T10:00:00+02",
            "2024-05-01T10:00:00+02:00:30",
            "2024-05-01T10:00:00+25:00",
            "2024-05-01T10:00:00+02:60",
            "2024-05-01T10:00:00Z[UTC]",
            "2024-05-01T10:00:00Z ",
            "2024-05-01T10:00:60Z",
            "2024-05-01T10:60:00Z",
            "2024-05-01T24:00:00Z",
            "2024-00-01T10:00:00Z",
            "2024-13-01T10:00:00Z",
            "2024-05-00T10:00:00Z",
            "2024-04-31T10:00:00Z",
            "2023-02-29T10:00:00Z",
            "1900-02-29T10:00:00Z",
            "+002024-05-01T10:00:00Z",
            "-001-05-01T10:00:00Z",
            "0000-01-01T00:00:00+05:00",
            "9999-12-31T23:59:59-05:00",
            "２024-05-01T10:00:00Z",
        ] {
            assert_eq!(text.parse::<Time>(), Err(TimeError), "{text}");
        }
        assert!(Time::from_unix_seconds(Time::MAX + 1).is_err());
        assert!(Time::from_unix_seconds(Time::MIN - 1).is_err());
    }

    #[test]
    fn the_zero_time_of_go_is_null() {
        let zero: Time = "0001-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(zero.unix_seconds(), Time::GO_ZERO);
        assert_eq!(serde_json::to_string(&zero).unwrap(), "null");
    }
}
