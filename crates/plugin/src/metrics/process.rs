//! Metrics of the process, read from `/proc/self` at each scrape, with the names that Prometheus' own clients use.
//!
//! A value that cannot be read is omitted: a scrape without it is better than none.

use std::fmt::Error;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Unit;

/// The collector of the process metrics.
#[derive(Debug, Clone, Copy)]
pub(super) struct Process {
    started: SystemTime,
}

impl Process {
    /// Reads when this process started. Falls back to the current time.
    pub(super) fn new() -> Self {
        Self { started: started().unwrap_or_else(SystemTime::now) }
    }

    /// Returns when this process started.
    pub(super) fn started(self) -> SystemTime {
        self.started
    }
}

/// Reads the start time, which the kernel has as ticks since boot. Read once: the boot time moves when the clock is set.
fn started() -> Option<SystemTime> {
    let boot = fs::read_to_string("/proc/stat").ok()?.lines().find_map(boot_time)?;
    let ticks = Stat::parse(&fs::read_to_string("/proc/self/stat").ok()?)?.start_ticks;
    UNIX_EPOCH.checked_add(Duration::from_secs(boot))?.checked_add(Duration::from_secs_f64(in_seconds(ticks)))
}

/// Returns the boot time if this line of `/proc/stat` has it.
fn boot_time(line: &str) -> Option<u64> {
    line.strip_prefix("btime ")?.trim().parse().ok()
}

/// The fields of `/proc/self/stat` that are used.
#[derive(Debug, PartialEq)]
struct Stat {
    cpu_ticks: u64,
    start_ticks: u64,
    resident_pages: u64,
}

impl Stat {
    /// Parses the file. Its second field is the program name in parentheses, which can itself have spaces and parentheses.
    fn parse(text: &str) -> Option<Self> {
        let (_, after_name) = text.rsplit_once(')')?;
        let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
        // Fields are counted from 1, and the first one after the name is the third.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self { cpu_ticks: field(14)? + field(15)?, start_ticks: field(22)?, resident_pages: field(24)? })
    }
}

/// Returns the soft limit for open files from `/proc/self/limits`, or `None` if it is `unlimited`.
fn max_fds(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

fn in_seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut gauge = |name, help, unit: Option<&Unit>, value: f64| {
            let metric = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)
        };
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let help = "Start time of the process, in seconds since the Unix epoch.";
        gauge("process_start_time", help, Some(&Unit::Seconds), started)?;
        // One of the entries is the directory that is being read.
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            gauge("process_open_fds", "Open file descriptors.", None, entries.count().saturating_sub(1) as f64)?;
        }
        if let Some(max) = fs::read_to_string("/proc/self/limits").ok().as_deref().and_then(max_fds) {
            gauge("process_max_fds", "Maximum number of open file descriptors.", None, max as f64)?;
        }
        let Some(stat) = fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(Stat::parse) else {
            return Ok(());
        };
        let resident = stat.resident_pages as f64 * rustix::param::page_size() as f64;
        gauge("process_resident_memory", "Resident memory size.", Some(&Unit::Bytes), resident)?;
        let cpu = ConstCounter::new(in_seconds(stat.cpu_ticks));
        let help = "Total user and system CPU time.";
        cpu.encode(encoder.encode_descriptor("process_cpu", help, Some(&Unit::Seconds), ConstCounter::<f64>::TYPE)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_parentheses_and_spaces_is_parsed() {
        let rest = "S 1 1 1 0 -1 4194560 100 0 0 0 70 30 0 0 20 0 4 0 5000 9000000 1234 18446744073709551615";
        let expected = Some(Stat { cpu_ticks: 100, start_ticks: 5000, resident_pages: 1234 });
        assert_eq!(Stat::parse(&format!("17 (driver) {rest}")), expected);
        assert_eq!(Stat::parse(&format!("17 (a) b (c) 1 2 3) {rest}")), expected);
        assert_eq!(Stat::parse("17 (driver) S 1 1"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn the_soft_limit_for_open_files_is_found() {
        let limits = "Limit      Soft Limit  Hard Limit  Units\nMax open files            1024      524288   files\n";
        assert_eq!(max_fds(limits), Some(1024));
        assert_eq!(max_fds("Max open files   unlimited   unlimited  files"), None);
        assert_eq!(max_fds(""), None);
    }

    #[test]
    fn this_process_started_recently() {
        let age = Process::new().started().elapsed().unwrap();
        assert!(age < Duration::from_secs(24 * 3600), "{age:?}");
    }
}
