//! What the drivers of many nodes ask of one API server: at their start, while pods come and go, when the server restarts, and
//! when the drivers are updated.
//!
//! All drivers are in this process, each with a client, sockets and files of its own; the API server is the embedded one, over
//! TCP. What it was asked is compared with what `docs/SCALE.md` says, and the program fails where that differs. Requests are
//! counted, not timed: how fast server and drivers are on the same processors says nothing about a cluster.
//!
//! `cargo bench -p drakkar-plugin --bench scale -- --nodes 500 --seconds 20 --pods 30`, or with `-- --test` 20 nodes. A node
//! takes about 12 file descriptors (`ulimit -n`). On a machine that cannot keep up with the pods, they come later than they
//! should, which is told, and their worst second is not compared. `TMPDIR` says where the nodes' directories are.

#![allow(clippy::unwrap_used, reason = "an experiment that cannot be set up has nothing to show")]

mod fleet;
mod paper;
mod traffic;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use drakkar_node::ApiServer;
use drakkar_node::api::{Config, Fault, Filter, Resource, Times};
use futures::future::join_all;
use futures::stream::{self, StreamExt as _};
use tokio::time::{Instant, sleep, sleep_until};

use fleet::{Node, Timing, Troubles};
use paper::{Paper, SPREAD, after_outage, spread};
use traffic::Traffic;

/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(180);
/// How many pods a node gets in a minute.
const PODS: u64 = 30;
/// How late a pod may be for the worst second to tell something.
const LATE: Duration = Duration::from_millis(500);
/// How long the server is away when it restarts.
const OUTAGE: Duration = Duration::from_secs(3);
/// In how many parts the drivers are updated.
const PARTS: usize = 10;

/// How much is done.
struct Scale {
    nodes: usize,
    seconds: u64,
    /// How long after a pod the next one comes.
    pod: Duration,
    orphan_grace: Duration,
}

impl Scale {
    fn from_arguments() -> Self {
        let arguments: Vec<String> = std::env::args().collect();
        let number = |name: &str| {
            let at = arguments.iter().position(|argument| argument == name)?;
            Some(arguments.get(at + 1).and_then(|number| number.parse::<u64>().ok()).unwrap())
        };
        let is_test = arguments.iter().any(|argument| argument == "--test");
        let (nodes, seconds, grace) = if is_test { (20, 4, 6) } else { (500, 20, 10) };
        Self {
            nodes: usize::try_from(number("--nodes").unwrap_or(nodes)).unwrap(),
            seconds: number("--seconds").unwrap_or(seconds),
            pod: Duration::from_secs(60).div_f64(f64::from(u32::try_from(number("--pods").unwrap_or(PODS)).unwrap())),
            orphan_grace: Duration::from_secs(grace),
        }
    }
}

fn main() -> ExitCode {
    let scale = Scale::from_arguments();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let differences = runtime.block_on(run(&scale));
    for difference in &differences {
        eprintln!("error: {difference}");
    }
    if differences.is_empty() {
        println!("\n{} nodes: as on paper", scale.nodes);
    }
    ExitCode::from(u8::from(!differences.is_empty()))
}

async fn run(scale: &Scale) -> Vec<String> {
    let server = ApiServer::start(Config::default()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let troubles = Troubles::default();
    let made = stream::iter(0..scale.nodes).map(|number| Node::new(&server, number, &directory, &troubles));
    let mut fleet = Fleet {
        nodes: made.buffered(16).collect().await,
        server,
        troubles,
        timing: Timing { orphan_grace: scale.orphan_grace, publish_within: Duration::ZERO },
        differences: Vec::new(),
    };
    fleet.first_start().await;
    fleet.steady(scale).await;
    fleet.restart_of_the_server(false).await;
    fleet.restart_of_the_server(true).await;
    fleet.rolling_update().await;
    fleet.all_at_once().await;
    join_all(fleet.nodes.iter_mut().map(Node::stop)).await;
    fleet.differences
}

/// The nodes, and the server that they have in common.
struct Fleet {
    server: ApiServer,
    nodes: Vec<Node>,
    troubles: Troubles,
    timing: Timing,
    differences: Vec<String>,
}

impl Fleet {
    /// All drivers start in the same moment, and nothing is published yet.
    async fn first_start(&mut self) {
        let timing = self.timing;
        self.server.clear_requests();
        join_all(self.nodes.iter_mut().map(|node| node.start(timing))).await;
        join_all(self.nodes.iter().map(Node::published)).await;
        self.until("watch resourceslices", self.nodes.len()).await;
        self.compare(
            "first start of all drivers in the same moment",
            &Paper {
                each: &[
                    ("list resourceslices", 1),
                    ("watch resourceslices", 1),
                    ("get nodes", 1),
                    ("create resourceslices", 1),
                ],
                of: self.nodes.len(),
                peak: None,
            },
        );
        self.nothing_was_told("first start");
    }

    /// Pods come and go: on each node one after the other, which another one makes room for.
    async fn steady(&mut self, scale: &Scale) {
        self.server.clear_requests();
        let (time, period) = (Duration::from_secs(scale.seconds), scale.pod);
        let pods = usize::try_from((time.as_millis() / period.as_millis()).max(1)).unwrap();
        let begin = Instant::now() + Duration::from_millis(100);
        let count = u32::try_from(self.nodes.len()).unwrap();
        let nodes = (0..).zip(&self.nodes).map(|(number, node): (u32, _)| async move {
            // Not all in the same moment: users of different nodes know nothing of each other.
            let first = begin + period * number / count;
            let mut late = Duration::ZERO;
            for pod in 0..pods {
                let due = first + period * u32::try_from(pod).unwrap();
                sleep_until(due).await;
                if pod > 0 {
                    node.end_of_pod(pod - 1).await;
                }
                node.pod(pod).await;
                late = late.max(due.elapsed());
            }
            late
        });
        let late = join_all(nodes).await.into_iter().max().unwrap_or_default();
        let of = pods * self.nodes.len();
        self.until("patch resourceclaims", of).await;
        // Pods that are late come together when the machine has time for them, which is not the drivers' doing.
        let peak = (late < LATE).then(|| spread(3 * self.nodes.len(), period));
        let phase = format!("pods come and go: one in {} s on each node, with device status", period.as_secs_f64());
        self.compare(&phase, &Paper { each: &[("get resourceclaims", 2), ("patch resourceclaims", 1)], of, peak });
        println!("{:34} {:>7.1} s", "a pod was late by at most", late.as_secs_f64());
        join_all(self.nodes.iter().map(|node| node.end_of_pod(pods - 1))).await;
        self.nothing_was_told("steady state");
    }

    /// The server goes away and comes back, and meanwhile every driver has something to tell it. If it has lost what happened
    /// before, everybody has to list.
    async fn restart_of_the_server(&mut self, loses_history: bool) {
        let nodes = self.nodes.len();
        self.server.stop().await;
        self.nodes.iter().for_each(|node| node.report(0));
        sleep(OUTAGE).await;
        if loses_history {
            let filter = Filter::any().verb("watch").resource(Resource::ResourceSlice);
            self.server.faults().fail(filter, Fault::Gone, Times::Next(nodes));
        }
        self.server.clear_requests();
        self.server.resume().await.unwrap();
        self.until("watch resourceslices", nodes).await;
        self.until("patch resourceclaims", nodes).await;
        self.server.faults().clear();
        let same: &[_] = &[("watch resourceslices", 1), ("get resourceclaims", 1), ("patch resourceclaims", 1)];
        let lost: &[_] = &[
            ("watch resourceslices (410)", 1),
            ("list resourceslices", 1),
            ("watch resourceslices", 1),
            ("get resourceclaims", 1),
            ("patch resourceclaims", 1),
        ];
        let (phase, each) = match loses_history {
            false => ("the API server restarts, away for 3 s", same),
            true => ("the API server restarts, away for 3 s, and knows nothing of before", lost),
        };
        let peak = Some(after_outage(each.len() * nodes, OUTAGE));
        self.compare(phase, &Paper { each, of: nodes, peak });
        self.troubles.lock().unwrap().clear();
    }

    /// A new version of the driver that has the same to publish, on a tenth of the nodes at a time.
    async fn rolling_update(&mut self) {
        let (nodes, timing) = (self.nodes.len(), self.timing);
        self.hold_claims().await;
        for part in self.nodes.chunks_mut(nodes.div_ceil(PARTS)) {
            join_all(part.iter_mut().map(Node::stop)).await;
            join_all(part.iter_mut().map(|node| node.start(timing))).await;
            join_all(part.iter().map(Node::published)).await;
        }
        self.until("watch resourceslices", nodes).await;
        self.until("get resourceclaims", nodes).await;
        self.compare(
            "rolling update of the driver, a tenth of the nodes at a time, one claim in use",
            &Paper {
                each: &[("list resourceslices", 1), ("watch resourceslices", 1), ("get resourceclaims", 1)],
                of: nodes,
                peak: None,
            },
        );
        self.nothing_was_told("rolling update");
    }

    /// All drivers start in the same moment, told to take their time.
    async fn all_at_once(&mut self) {
        let nodes = self.nodes.len();
        let timing = Timing { publish_within: SPREAD, ..self.timing };
        join_all(self.nodes.iter_mut().map(Node::stop)).await;
        self.server.clear_requests();
        join_all(self.nodes.iter_mut().map(|node| node.start(timing))).await;
        join_all(self.nodes.iter().map(Node::published)).await;
        self.until("watch resourceslices", nodes).await;
        self.until("get resourceclaims", nodes).await;
        // Claims are looked up between the grace and half as long again, which is when some still publish.
        let lookups = spread(nodes, timing.orphan_grace / 2);
        self.compare(
            "start of all drivers in the same moment, publishing within 10 s, one claim in use",
            &Paper {
                each: &[("list resourceslices", 1), ("watch resourceslices", 1), ("get resourceclaims", 1)],
                of: nodes,
                peak: Some(spread(2 * nodes, SPREAD) + lookups),
            },
        );
        self.nothing_was_told("start of all drivers");
    }

    /// On each node a pod that stays.
    async fn hold_claims(&mut self) {
        self.server.clear_requests();
        // Their start is not what is looked at.
        stream::iter(&self.nodes).for_each_concurrent(16, |node| node.pod(0)).await;
        self.until("patch resourceclaims", self.nodes.len()).await;
        self.server.clear_requests();
    }

    /// Waits until the drivers have made so many requests of a kind.
    async fn until(&self, kind: &str, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let made = Traffic::of_drivers(&self.server).count(kind);
            if made >= count {
                return;
            }
            assert!(Instant::now() < deadline, "waited in vain: {kind}: {made} of {count}: {:?}", self.troubles);
            sleep(Duration::from_millis(200)).await;
        }
    }

    fn compare(&mut self, phase: &str, paper: &Paper) {
        let traffic = Traffic::of_drivers(&self.server);
        self.differences.extend(paper.compare(phase, self.nodes.len(), &traffic));
    }

    fn nothing_was_told(&mut self, phase: &str) {
        let troubles = std::mem::take(&mut *Arc::clone(&self.troubles).lock().unwrap());
        self.differences
            .extend(troubles.first().map(|first| format!("{phase}: drivers were told of trouble: {first}")));
    }
}
