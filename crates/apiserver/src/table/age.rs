//! How long ago something happened, with two or three significant figures: `5s`, `3m20s`, `2d5h`.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

/// What is shown in place of a time that is not set.
const UNKNOWN: &str = "<unknown>";

/// Shows how long ago a time was.
pub(super) fn since(time: &Value, now: Timestamp) -> String {
    match parse(time) {
        Some(time) => show(now.as_second() - time.as_second()),
        None => UNKNOWN.to_owned(),
    }
}

/// Reads a time of an object.
pub(super) fn parse(time: &Value) -> Option<Timestamp> {
    time.as_str()?.parse().ok()
}

/// Shows a number of seconds.
fn show(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let two = |large: i64, large_unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{large}{large_unit}"),
        small => format!("{large}{large_unit}{small}{small_unit}"),
    };
    match seconds {
        // Clocks differ a little.
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        _ if seconds < 2 * MINUTE => format!("{seconds}s"),
        _ if seconds < 10 * MINUTE => two(seconds / MINUTE, "m", seconds % MINUTE, "s"),
        _ if seconds < 3 * HOUR => format!("{}m", seconds / MINUTE),
        _ if seconds < 8 * HOUR => two(seconds / HOUR, "h", seconds % HOUR / MINUTE, "m"),
        _ if seconds < 2 * DAY => format!("{}h", seconds / HOUR),
        _ if seconds < 8 * DAY => two(seconds / DAY, "d", seconds % DAY / HOUR, "h"),
        _ if seconds < 2 * YEAR => format!("{}d", seconds / DAY),
        _ if seconds < 8 * YEAR => two(seconds / YEAR, "y", seconds % YEAR / DAY, "d"),
        _ => format!("{}y", seconds / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(-2, "<invalid>")]
    #[case(-1, "0s")]
    #[case(0, "0s")]
    #[case(119, "119s")]
    #[case(120, "2m")]
    #[case(200, "3m20s")]
    #[case(601, "10m")]
    #[case(3 * 3600 - 1, "179m")]
    #[case(3 * 3600 + 60, "3h1m")]
    #[case(8 * 3600 + 1, "8h")]
    #[case(48 * 3600, "2d")]
    #[case(53 * 3600, "2d5h")]
    #[case(9 * 86_400, "9d")]
    #[case(2 * 365 * 86_400 + 86_400, "2y1d")]
    #[case(9 * 365 * 86_400, "9y")]
    fn ages_are_shown_as_kubernetes_shows_them(#[case] seconds: i64, #[case] shown: &str) {
        assert_eq!(show(seconds), shown);
    }

    #[test]
    fn a_time_that_is_not_set_has_no_age() {
        assert_eq!(since(&Value::Null, Timestamp::now()), "<unknown>");
        assert_eq!(since(&json!("2026-01-01T00:00:00Z"), "2026-01-01T00:01:00Z".parse().unwrap()), "60s");
    }
}
