//! Both frameworks in one run: ours, Go's, ours, Go's, so that whatever else the machine does slows both down.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cluster::{CLAIM, Cluster};
use crate::floor;
use crate::framework::Framework;
use crate::table::Table;
use crate::{files, memory_directory, prepare, starting};

/// How much is done for a figure.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// How often everything is measured.
    pub rounds: usize,
    /// Starts of which the median is taken.
    pub starts: usize,
    /// Of calls and claims.
    pub prepare: prepare::Scale,
    /// Files that are decoded, and encoded.
    pub files: u64,
}

impl Scale {
    /// For figures.
    pub const FULL: Self =
        Self { rounds: 5, starts: 3, prepare: prepare::Scale { calls: 500, batches: 10, kept: 1000 }, files: 20_000 };
    /// To see that it works.
    pub const TEST: Self =
        Self { rounds: 1, starts: 1, prepare: prepare::Scale { calls: 2, batches: 1, kept: 2 }, files: 1 };
}

/// What is measured, and where.
#[derive(Debug)]
pub struct Contest {
    /// Ours first, and Go's if it can be had.
    pub frameworks: Vec<Framework>,
    /// A directory that is not in memory.
    pub disk: PathBuf,
}

/// Measures all of it, in rounds.
pub async fn run(scale: Scale, contest: &Contest) -> Table {
    let go = contest.frameworks.get(1);
    let cluster = Cluster::start(go.map(|go| claim_in_protobuf(go.program())));
    let mut table = Table::default();
    for round in 0..scale.rounds {
        eprintln!("round {} of {}", round + 1, scale.rounds);
        for framework in &contest.frameworks {
            one_round(scale, framework, &contest.disk, &cluster, &mut table).await;
        }
        floor::measure(scale.prepare.calls, &contest.disk, &cluster, &mut table);
    }
    for framework in &contest.frameworks {
        if let Some(size) = framework.size() {
            table.less(framework.name, "binary, stripped", "MB", size);
        }
    }
    table
}

async fn one_round(scale: Scale, framework: &Framework, disk: &Path, cluster: &Cluster, table: &mut Table) {
    let (memory, of) = (memory_directory(), framework.name);
    starting::measure(&memory, framework, cluster, scale.starts, table).await;

    let (driver, _) = starting::start(&memory, framework, cluster, starting::FEW).await;
    let kubelet = driver.kubelet().await;
    prepare::memory(scale.prepare, of, &driver, &kubelet, table).await;
    prepare::measure(scale.prepare, of, cluster, &driver, &kubelet, table).await;
    drop(kubelet);
    driver.end().await;

    let (driver, _) = starting::start(disk, framework, cluster, starting::FEW).await;
    let kubelet = driver.kubelet().await;
    let names = ("prepare on the disk", "unprepare on the disk", "");
    prepare::calls(scale.prepare, of, names, &kubelet, table).await;
    drop(kubelet);
    driver.end().await;

    match of {
        "Go" => files::go(of, framework.program(), scale.files, table),
        _ => files::ours(of, scale.files, table),
    }
}

/// The claim as the Go program writes it.
fn claim_in_protobuf(program: &Path) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("claim.json");
    std::fs::write(&path, CLAIM).unwrap();
    let output = Command::new(program).arg("protobuf").arg(path).output().unwrap();
    assert!(output.status.success(), "interop protobuf: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// What the figures were measured on.
pub fn machine() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(0, Into::into);
    let model = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1).map(str::to_owned));
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default().to_owned();
    let model = model.unwrap_or_else(|| "processor of unknown make".to_owned());
    format!("{processors} cores ({model}), Linux {}, load {load}", kernel.trim())
}
