//! A process and the counts around it, and whether they have grown. Shared by all soaks: of the embedded node, of the network driver and of
//! the real cluster.

/// A process as the kernel sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) kilobytes: u64,
    pub(crate) descriptors: usize,
    pub(crate) threads: u64,
}

impl Process {
    /// Looks at a running process.
    pub(crate) fn of(process: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let number = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        Self {
            kilobytes: number("VmRSS:"),
            descriptors: std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count(),
            threads: number("Threads:"),
        }
    }

    /// Its memory in megabytes.
    pub(crate) fn megabytes(self) -> f64 {
        self.kilobytes as f64 / 1000.0
    }

    /// Returns what has grown. Allocators keep some memory, so a tenth and a megabyte are no growth, nor is what a pool may hold: threads of
    /// file work, and connections to the API server. All pods together would need far more.
    pub(crate) fn growth_since(self, first: Self, name: &str) -> Vec<String> {
        let compared = [
            ("kB of memory", first.kilobytes, self.kilobytes, first.kilobytes * 11 / 10 + 1024),
            ("descriptors", first.descriptors as u64, self.descriptors as u64, first.descriptors as u64 + 8),
            ("threads", first.threads, self.threads, first.threads + 4),
        ];
        let grown = compared.into_iter().filter(|(_, _, now, limit)| now > limit);
        grown.map(|(what, before, now, _)| format!("{name}: {before} {what}, then {now}")).collect()
    }
}

/// Returns which counts have grown: each is named, with the number before and now.
pub(crate) fn growth_of_counts<const N: usize>(counts: [(&str, usize, usize); N]) -> Vec<String> {
    let grown = counts.into_iter().filter(|(_, before, now)| now > before);
    grown.map(|(what, before, now)| format!("{what}: {before}, then {now}")).collect()
}

#[test]
fn growth_is_found_and_pools_are_none() {
    let first = Process { kilobytes: 10_000, descriptors: 20, threads: 6 };
    let pooled = Process { kilobytes: 12_024, descriptors: 28, threads: 10 };
    assert_eq!(pooled.growth_since(first, "driver"), Vec::<String>::new());
    let more = Process { kilobytes: 12_025, descriptors: 29, threads: 11 };
    let expected =
        ["driver: 10000 kB of memory, then 12025", "driver: 20 descriptors, then 29", "driver: 6 threads, then 11"];
    assert_eq!(more.growth_since(first, "driver"), expected);
    assert_eq!(growth_of_counts([("files", 3, 4), ("slices", 2, 2), ("devices", 8, 7)]), ["files: 3, then 4"]);
}
