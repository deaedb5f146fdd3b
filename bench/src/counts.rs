//! What a claim costs, in counts that do not depend on the speed of the machine: system calls and allocations of the driver from
//! the prepare of a claim to its unprepare.
//!
//! System calls are counted by `perf stat`, which does not slow the driver down as `strace` does, allocations by `bench-counted`: the
//! same driver with an allocator that counts.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::Cluster;
use crate::framework::Framework;
use crate::memory_directory;
use crate::peers::{Driver, Kubelet, Node};
use crate::to_float;

/// The largest numbers with which the counts pass, as docs/PERFORMANCE.md has them.
pub const LIMITS: Counts = Counts { system_calls: Some(44.0), allocations: 160.0 };

/// The number of claims, each of which is prepared and unprepared before the next.
const CLAIMS: u64 = 200;

/// The costs of a claim that is prepared and unprepared.
#[derive(Debug, Clone, Copy)]
pub struct Counts {
    /// System calls; `None` if `perf` cannot count them here.
    pub system_calls: Option<f64>,
    /// Allocations and reallocations.
    pub allocations: f64,
}

impl Counts {
    /// Returns what exceeds the limits.
    pub fn excess(&self, limits: &Self) -> Vec<String> {
        let system_calls = self.system_calls.zip(limits.system_calls);
        let pairs = [("system calls", system_calls), ("allocations", Some((self.allocations, limits.allocations)))];
        let above = pairs.into_iter().filter_map(|(what, pair)| Some((what, pair?)));
        above
            .filter(|(_, (count, limit))| count > limit)
            .map(|(what, (count, limit))| format!("{count:.1} {what} for a claim, the limit is {limit:.0}"))
            .collect()
    }
}

/// Counts. `driver` is `bench-driver`, `counted` is `bench-counted`.
pub async fn measure(driver: &Path, counted: &Path, cluster: &Cluster) -> Counts {
    Counts {
        system_calls: system_calls(driver, cluster).await,
        // The difference has neither the start nor the end of the driver.
        allocations: (allocations(counted, cluster, 2 * CLAIMS).await - allocations(counted, cluster, CLAIMS).await)
            / to_float(CLAIMS),
    }
}

async fn start(program: &Path, cluster: &Cluster, variables: &[(&str, &Path)]) -> (Driver, Kubelet) {
    let node = Node::new(&memory_directory(), cluster);
    let mut command = Framework::ours(program.to_owned()).command(node.root(), 0);
    command.envs(variables.iter().copied());
    let driver = node.start_command("Drakkar", command).await;
    let kubelet = driver.kubelet().await;
    (driver, kubelet)
}

async fn claims(kubelet: &Kubelet, count: u64) {
    for claim in 0..count {
        kubelet.prepare(claim..claim + 1).await;
        kubelet.unprepare(claim..claim + 1).await;
    }
}

async fn allocations(counted: &Path, cluster: &Cluster, count: u64) -> f64 {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("allocations");
    let (driver, kubelet) = start(counted, cluster, &[("DRAKKAR_ALLOCATIONS", &file)]).await;
    claims(&kubelet, count).await;
    drop(kubelet);
    driver.stop().await;
    to_float(std::fs::read_to_string(file).unwrap().parse().unwrap())
}

async fn system_calls(program: &Path, cluster: &Cluster) -> Option<f64> {
    let (driver, kubelet) = start(program, cluster, &[]).await;
    // Opens connections and directories.
    claims(&kubelet, CLAIMS / 4).await;
    let directory = tempfile::tempdir().unwrap();
    let summary = directory.path().join("summary");
    let perf = Command::new("perf")
        .args(["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-p", &driver.process.id().to_string(), "-o"])
        .arg(&summary)
        .stderr(Stdio::null())
        .spawn();
    let count = match perf {
        Ok(perf) => count(perf, &kubelet, &summary).await,
        Err(_not_installed) => None,
    };
    drop(kubelet);
    driver.stop().await;
    count
}

/// Counts the system calls of claims with a running `perf`.
async fn count(mut perf: Child, kubelet: &Kubelet, summary: &Path) -> Option<f64> {
    let descriptors = format!("/proc/{}/fd", perf.id());
    let is_counting = || {
        let mut links = std::fs::read_dir(&descriptors).into_iter().flatten().flatten();
        links.any(|entry| std::fs::read_link(entry.path()).is_ok_and(|link| link.ends_with("anon_inode:[perf_event]")))
    };
    while !is_counting() {
        // It ends at once where it may not count.
        if perf.try_wait().unwrap().is_some() {
            return None;
        }
        tokio::task::yield_now().await;
    }
    claims(kubelet, CLAIMS).await;
    kill_process(Pid::from_child(&perf), Signal::INT).unwrap();
    perf.wait().unwrap();
    let summary = std::fs::read_to_string(summary).unwrap();
    let total = summary.lines().find(|line| line.contains("raw_syscalls:sys_enter"))?.split(',').next()?;
    Some(to_float(total.parse().ok()?) / to_float(CLAIMS))
}
