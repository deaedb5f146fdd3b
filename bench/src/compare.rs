//! The comparison of both frameworks. They alternate in one run, so that other load on the host slows both down.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cluster::{CLAIM, Cluster};
use crate::floor;
use crate::framework::{Framework, GO};
use crate::table::Table;
use crate::{files, memory_directory, prepare, starting};

/// How often things are measured.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// The number of rounds, in each of which everything is measured.
    pub rounds: usize,
    /// The number of starts, of which the median is taken.
    pub starts: usize,
    /// The scale of prepare and unprepare calls.
    pub prepare: prepare::Scale,
    /// The number of times that a file is decoded and encoded.
    pub files: u64,
}

impl Scale {
    /// The scale for published figures.
    pub const FULL: Self =
        Self { rounds: 5, starts: 3, prepare: prepare::Scale { calls: 500, batches: 10, kept: 1000 }, files: 20_000 };
    /// The scale for tests.
    pub const TEST: Self =
        Self { rounds: 1, starts: 1, prepare: prepare::Scale { calls: 2, batches: 1, kept: 2 }, files: 1 };
}

/// The frameworks to compare, and where their files are.
#[derive(Debug)]
pub struct Comparison {
    /// Ours, then Go's if it is available, or another build of ours.
    pub frameworks: Vec<Framework>,
    /// A directory on a disk, not in memory.
    pub disk: PathBuf,
}

/// Measures everything, in rounds.
pub async fn run(scale: Scale, comparison: &Comparison) -> Table {
    let cluster = comparison.cluster();
    let mut table = Table::default();
    for round in 0..scale.rounds {
        eprintln!("round {} of {}", round + 1, scale.rounds);
        for framework in &comparison.frameworks {
            one_round(scale, framework, &comparison.disk, &cluster, &mut table).await;
        }
        floor::measure(scale.prepare.calls, &comparison.disk, &cluster, &mut table);
    }
    for framework in &comparison.frameworks {
        if let Some(size) = framework.size() {
            table.add_cost(framework.name, "binary, stripped", "MB", size);
        }
    }
    table
}

/// Measures only prepare and unprepare calls in memory, in rounds: seconds instead of minutes.
pub async fn claims(scale: Scale, comparison: &Comparison) -> Table {
    let cluster = comparison.cluster();
    let mut table = Table::default();
    for _ in 0..scale.rounds {
        for framework in &comparison.frameworks {
            let (driver, _) = starting::start(&memory_directory(), framework, &cluster, starting::FEW).await;
            let kubelet = driver.kubelet().await;
            prepare::measure(scale.prepare, framework.name, &cluster, &driver, &kubelet, &mut table).await;
            drop(kubelet);
            driver.stop().await;
        }
    }
    table
}

impl Comparison {
    /// Starts an API server with the claim as the Go program encodes it, if there is one.
    fn cluster(&self) -> Cluster {
        let go = self.frameworks.iter().find(|framework| framework.name == GO);
        Cluster::start(go.map(|go| claim_in_protobuf(go.program())))
    }
}

async fn one_round(scale: Scale, framework: &Framework, disk: &Path, cluster: &Cluster, table: &mut Table) {
    let memory = memory_directory();
    let label = framework.name;
    starting::measure(&memory, framework, cluster, scale.starts, table).await;

    let (driver, _) = starting::start(&memory, framework, cluster, starting::FEW).await;
    let kubelet = driver.kubelet().await;
    prepare::memory(scale.prepare, label, &driver, &kubelet, table).await;
    prepare::measure(scale.prepare, label, cluster, &driver, &kubelet, table).await;
    drop(kubelet);
    driver.stop().await;

    let (driver, _) = starting::start(disk, framework, cluster, starting::FEW).await;
    let kubelet = driver.kubelet().await;
    let names = ("prepare on the disk", "unprepare on the disk", "");
    prepare::calls(scale.prepare, label, names, &kubelet, table).await;
    drop(kubelet);
    driver.stop().await;

    match label {
        GO => files::go(label, framework.program(), scale.files, table),
        _ => files::ours(label, scale.files, table),
    }
}

/// The claim as the Go program encodes it.
fn claim_in_protobuf(program: &Path) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("claim.json");
    std::fs::write(&path, CLAIM).unwrap();
    let output = Command::new(program).arg("protobuf").arg(path).output().unwrap();
    assert!(output.status.success(), "interop protobuf: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// A description of the host on which the figures were measured.
pub fn host() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(0, Into::into);
    let model = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1).map(str::to_owned));
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default().to_owned();
    let model = model.unwrap_or_else(|| "unknown processor".to_owned());
    format!("{processors} cores ({model}), Linux {}, load {load}", kernel.trim())
}
