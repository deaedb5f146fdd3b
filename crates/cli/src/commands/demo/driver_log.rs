//! The end of a driver's log, for a failed demo.

use std::collections::HashMap;

use drakkar_node::DriverProcess;

use crate::exit::Failure;

/// The number of lines that are shown.
const LINES: usize = 20;

/// Adds the end of the driver's log to a failure.
pub(super) fn attach(failure: Failure, process: &DriverProcess) -> Failure {
    let log = process.log().unwrap_or_else(|error| format!("the log cannot be read: {error}"));
    let lines = last_lines(&anstream::adapter::strip_str(&log).to_string());
    if lines.is_empty() {
        return failure.or_hint(
            "the driver printed nothing; its environment has KUBECONFIG, NODE_NAME, KUBELET_ROOT_DIR and CDI_DIR",
        );
    }
    failure.excerpt("The driver's log, the newest line last:", lines)
}

/// Returns the last lines of a log. Of lines that differ only in times, the newest is returned, with the number of them.
fn last_lines(log: &str) -> Vec<String> {
    let mut positions: HashMap<String, (usize, usize)> = HashMap::new();
    let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    for (position, line) in lines.iter().enumerate() {
        let (last, count) = positions.entry(without_times(line)).or_default();
        *last = position;
        *count += 1;
    }
    let mut newest: Vec<(usize, usize)> = positions.into_values().collect();
    newest.sort_unstable();
    let start = newest.len().saturating_sub(LINES);
    let show = |&(position, count): &(usize, usize)| match count {
        1 => lines[position].to_owned(),
        count => format!("{}  ({count} times)", lines[position]),
    };
    newest[start..].iter().map(show).collect()
}

/// Removes what differs when a program says the same again: timestamps and durations.
fn without_times(line: &str) -> String {
    let words = line.split_whitespace().map(|word| {
        let value = word.rsplit_once('=').map_or(word, |(_, value)| value);
        let digits = value.trim_end_matches(|c: char| c.is_alphabetic() || ",;)".contains(c));
        let is_number = digits.starts_with(|c: char| c.is_ascii_digit())
            && digits.chars().all(|c| c.is_ascii_digit() || "-+:.T".contains(c));
        let has_unit = digits.len() < value.trim_end_matches([',', ';', ')']).len();
        let is_clock = digits.matches(':').count() >= 2;
        if is_number && (has_unit || is_clock) { "" } else { word }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_lines_come_last_and_repetitions_are_counted() {
        let log = "2026-01-01T10:00:00.1Z  INFO started\n\
            2026-01-01T10:00:01.2Z  WARN publishing failed, retrying delay=1.2s\n\
            2026-01-01T10:00:02.3Z  INFO registered\n\
            2026-01-01T10:00:04.4Z  WARN publishing failed, retrying delay=2.5s\n\n";
        let expected = [
            "2026-01-01T10:00:00.1Z  INFO started",
            "2026-01-01T10:00:02.3Z  INFO registered",
            "2026-01-01T10:00:04.4Z  WARN publishing failed, retrying delay=2.5s  (2 times)",
        ];
        assert_eq!(last_lines(log), expected);
        assert_eq!(last_lines("I0101 10:00:00.000001 1 main.go:3] x\nI0101 10:00:01.000002 1 main.go:3] x\n").len(), 1);
    }

    #[test]
    fn different_devices_are_different_lines() {
        assert_eq!(last_lines("prepared gpu-0\nprepared gpu-1\nport 80\nport 81\nat 0000:03:00.0\n").len(), 5);
    }

    #[test]
    fn a_long_log_is_cut_at_its_beginning() {
        let log: String = (0..100).map(|index| format!("line {index}\n")).collect();
        let lines = last_lines(&log);
        assert_eq!((lines.len(), lines[19].as_str()), (LINES, "line 99"));
        assert_eq!(last_lines("\n \n"), Vec::<String>::new());
    }
}
