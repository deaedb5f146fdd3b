//! `/statusz` and `/flagz` in the format of Kubernetes components (KEP-4827, KEP-4828): plain text for people.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use drakkar_metadata::Time;
use drakkar_metadata::show::Printable;

use super::pages::{Check, PATHS, Pages};

/// The second line of both pages, in the words of Kubernetes.
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
                       guarantees and is for debugging purposes only.";

impl Pages {
    /// Returns the page `/statusz`: the lines of Kubernetes, without those about Go, and the state of the instance.
    pub(super) fn statusz(&self, now: SystemTime) -> String {
        let started = self.metrics.started();
        let result = |check: Check, success: &str| {
            check.run(self).map_or_else(|error| error.to_string(), |()| success.to_owned())
        };
        let lines = [
            ("Started", unix_date(started)),
            ("Up", uptime(started, now)),
            ("Binary version", self.version.clone()),
            ("Paths", PATHS.join(" ")),
            ("Framework", concat!("drakkar-plugin ", env!("CARGO_PKG_VERSION")).to_owned()),
            ("Registration", result(Check::Registration, "registered")),
            ("Servers", result(Check::Servers, "alive")),
            ("Prepared claims", self.metrics.prepared_claims().to_string()),
            ("Published resources", self.publishing.line()),
        ];
        let additional = self.status.iter().map(|(name, value)| (name.as_str(), value.clone()));
        let mut text = self.header("statusz");
        text.push('\n');
        for (name, value) in lines.into_iter().chain(additional) {
            // Writing to a string cannot fail.
            writeln!(text, "{}: {}", Printable::whole(name), Printable::whole(value)).ok();
        }
        text
    }

    /// Returns the page `/flagz`: a line for each flag, in the order of their names.
    pub(super) fn flagz(&self) -> String {
        let mut text = self.header("flagz");
        for (name, value) in &self.flags {
            // Writing to a string cannot fail.
            writeln!(text, "{}={}", Printable::whole(name), Printable::whole(value)).ok();
        }
        text
    }

    fn header(&self, page: &str) -> String {
        format!("\n{} {page}\n{WARNING}\n", self.driver)
    }
}

/// Formats a time as RFC 3339.
pub(super) fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let time = i64::try_from(seconds).ok().and_then(|seconds| Time::from_unix_seconds(seconds).ok());
    time.map_or_else(|| "unknown".to_owned(), |time| time.to_string())
}

/// Formats the time since the start as Kubernetes does.
pub(super) fn uptime(started: SystemTime, now: SystemTime) -> String {
    let up = now.duration_since(started).unwrap_or_default().as_secs();
    format!("{} hr {:02} min {:02} sec", up / 3600, up / 60 % 60, up % 60)
}

/// Formats a time as `date` does, which is how Kubernetes prints the start: `Wed Oct 16 21:03:43 UTC 2024`.
fn unix_date(time: SystemTime) -> String {
    const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let text = rfc3339(time);
    let formatted = || {
        let (date, clock) = text.strip_suffix('Z')?.split_once('T')?;
        let mut parts = date.split('-');
        let year = parts.next()?;
        let month = MONTHS.get(parts.next()?.parse::<usize>().ok()?.checked_sub(1)?)?;
        let day: u8 = parts.next()?.parse().ok()?;
        // The first of January 1970 was a Thursday.
        let days = time.duration_since(UNIX_EPOCH).ok()?.as_secs() / 86_400;
        let weekday = DAYS.get(usize::try_from((days + 4) % 7).ok()?)?;
        Some(format!("{weekday} {month} {day:2} {clock} UTC {year}"))
    };
    formatted().unwrap_or_else(|| text.clone())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_start_is_printed_as_kubernetes_prints_it() {
        for (seconds, text) in [
            (0, "Thu Jan  1 00:00:00 UTC 1970"),
            (1_729_112_623, "Wed Oct 16 21:03:43 UTC 2024"),
            (1_725_603_591, "Fri Sep  6 06:19:51 UTC 2024"),
            (951_782_400, "Tue Feb 29 00:00:00 UTC 2000"),
        ] {
            assert_eq!(unix_date(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn the_uptime_is_printed_as_kubernetes_prints_it() {
        let up = |seconds| uptime(UNIX_EPOCH, UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(up(16), "0 hr 00 min 16 sec");
        assert_eq!(up(100 * 3600 + 61), "100 hr 01 min 01 sec");
        assert_eq!(uptime(UNIX_EPOCH + Duration::from_secs(1), UNIX_EPOCH), "0 hr 00 min 00 sec");
    }
}
