//! The requests of many drivers to one API server: at their start, while pods come and go, when the server restarts, and when
//! the drivers are updated.
//!
//! All drivers run in this process, each with its own client, sockets and files; the API server is the embedded one, over TCP.
//! Its log is compared with `docs/SCALE.md`, and the program fails if they differ. Requests are counted, not timed: the speed of
//! server and drivers on the same processors says nothing about a cluster.
//!
//! `cargo bench -p drakkar-plugin --bench scale -- --nodes 500 --seconds 20 --pods 30`, or with `-- --test` 20 nodes. A node
//! takes about 12 file descriptors (`ulimit -n`). On a machine that cannot keep up, pods start late: the delay is printed, and
//! the peak is not compared. `TMPDIR` has the nodes' directories.

#![allow(clippy::unwrap_used, reason = "an experiment that cannot be set up has no result")]

mod expectation;
mod fleet;
mod traffic;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use drakkar_node::ApiServer;
use drakkar_node::api::{Config, Fault, Filter, Resource, Times};
use futures::future::join_all;
use futures::stream::{self, StreamExt as _};
use tokio::time::{Instant, sleep, sleep_until};

use expectation::{Expectation, SPREAD, after_outage, spread};
use fleet::{Errors, Node, Timing};
use traffic::Traffic;

/// The time limit of each wait.
const TIMEOUT: Duration = Duration::from_secs(180);
/// The pods per minute and node.
const PODS: u64 = 30;
/// The delay of pods above which the peak is not compared.
const MAX_DELAY: Duration = Duration::from_millis(500);
/// The duration of a restart of the server.
const OUTAGE: Duration = Duration::from_secs(3);
/// The number of parts in which the drivers are updated.
const PARTS: usize = 10;

/// The size of the experiment.
struct Scale {
    nodes: usize,
    seconds: u64,
    /// The time between two pods on a node.
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

    /// The number of pods on each node.
    fn pods(&self) -> usize {
        let time = Duration::from_secs(self.seconds);
        usize::try_from((time.as_millis() / self.pod.as_millis()).max(1)).unwrap()
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
        println!("\n{} nodes: as expected", scale.nodes);
    }
    ExitCode::from(u8::from(!differences.is_empty()))
}

async fn run(scale: &Scale) -> Vec<String> {
    let server = ApiServer::start(Config::default()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let errors = Errors::default();
    let pods = scale.pods();
    let nodes = stream::iter(0..scale.nodes).map(|number| Node::new(&server, number, pods, &directory, &errors));
    let mut fleet = Fleet {
        nodes: nodes.buffered(16).collect().await,
        server,
        errors,
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

/// The nodes and their server.
struct Fleet {
    server: ApiServer,
    nodes: Vec<Node>,
    errors: Errors,
    timing: Timing,
    differences: Vec<String>,
}

impl Fleet {
    /// Starts all drivers at the same moment, with nothing published yet.
    async fn first_start(&mut self) {
        let timing = self.timing;
        self.server.clear_requests();
        join_all(self.nodes.iter_mut().map(|node| node.start(timing))).await;
        join_all(self.nodes.iter().map(Node::published)).await;
        self.until("watch resourceslices", self.nodes.len()).await;
        self.compare(
            "first start of all drivers at the same moment",
            &Expectation {
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
        self.expect_no_errors("first start");
    }

    /// Starts pods on each node, one after the other. Each pod ends before the next one starts.
    async fn steady(&mut self, scale: &Scale) {
        self.server.clear_requests();
        let period = scale.pod;
        let pods = scale.pods();
        let begin = Instant::now() + Duration::from_millis(100);
        let count = u32::try_from(self.nodes.len()).unwrap();
        let nodes = (0..).zip(&self.nodes).map(|(number, node): (u32, _)| async move {
            // Pods of different nodes are independent of each other, so they do not start together.
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
        // Late pods start together, which is not caused by the drivers.
        let peak = (late < MAX_DELAY).then(|| spread(2 * self.nodes.len(), period));
        let phase = format!("pods come and go: one in {} s on each node, with device status", period.as_secs_f64());
        self.compare(
            &phase,
            &Expectation { each: &[("get resourceclaims", 1), ("patch resourceclaims", 1)], of, peak },
        );
        println!("{:34} {:>7.1} s", "the longest delay of a pod", late.as_secs_f64());
        join_all(self.nodes.iter().map(|node| node.end_of_pod(pods - 1))).await;
        self.expect_no_errors("steady state");
    }

    /// Restarts the server while every driver has a status to report, for a claim in use. If it loses its history, every driver
    /// has to list.
    async fn restart_of_the_server(&mut self, loses_history: bool) {
        let nodes = self.nodes.len();
        self.hold_claims().await;
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
        let same: &[_] = &[("watch resourceslices", 1), ("patch resourceclaims", 1)];
        let lost: &[_] = &[
            ("watch resourceslices (410)", 1),
            ("list resourceslices", 1),
            ("watch resourceslices", 1),
            ("patch resourceclaims", 1),
        ];
        let (phase, each) = if loses_history {
            ("the API server restarts, down for 3 s, and loses its history", lost)
        } else {
            ("the API server restarts, down for 3 s", same)
        };
        let peak = Some(after_outage(each.len() * nodes, OUTAGE));
        self.compare(phase, &Expectation { each, of: nodes, peak });
        self.errors.lock().unwrap().clear();
    }

    /// Updates the driver, with the same devices, on a tenth of the nodes at a time.
    async fn rolling_update(&mut self) {
        let nodes = self.nodes.len();
        let timing = self.timing;
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
            &Expectation {
                each: &[("list resourceslices", 1), ("watch resourceslices", 1), ("get resourceclaims", 1)],
                of: nodes,
                peak: None,
            },
        );
        self.expect_no_errors("rolling update");
    }

    /// Starts all drivers at the same moment, with a delayed first publish.
    async fn all_at_once(&mut self) {
        let nodes = self.nodes.len();
        let timing = Timing { publish_within: SPREAD, ..self.timing };
        join_all(self.nodes.iter_mut().map(Node::stop)).await;
        self.server.clear_requests();
        join_all(self.nodes.iter_mut().map(|node| node.start(timing))).await;
        join_all(self.nodes.iter().map(Node::published)).await;
        self.until("watch resourceslices", nodes).await;
        self.until("get resourceclaims", nodes).await;
        // Claims are looked up between the grace and one and a half times the grace, while some drivers still publish.
        let lookups = spread(nodes, timing.orphan_grace / 2);
        self.compare(
            "start of all drivers at the same moment, publishing within 10 s, one claim in use",
            &Expectation {
                each: &[("list resourceslices", 1), ("watch resourceslices", 1), ("get resourceclaims", 1)],
                of: nodes,
                peak: Some(spread(2 * nodes, SPREAD) + lookups),
            },
        );
        self.expect_no_errors("start of all drivers");
    }

    /// Starts a pod on each node, which keeps running. The kubelet may prepare its claim again.
    async fn hold_claims(&mut self) {
        self.server.clear_requests();
        // Their start is not part of the phase.
        stream::iter(&self.nodes).for_each_concurrent(16, |node| node.pod(0)).await;
        self.until("patch resourceclaims", self.nodes.len()).await;
        self.server.clear_requests();
    }

    /// Waits until the drivers have made this number of requests of a kind.
    async fn until(&self, kind: &str, count: usize) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let made = Traffic::of_drivers(&self.server).count(kind);
            if made >= count {
                return;
            }
            assert!(Instant::now() < deadline, "timed out: {kind}: {made} of {count}: {:?}", self.errors);
            sleep(Duration::from_millis(200)).await;
        }
    }

    fn compare(&mut self, phase: &str, expectation: &Expectation) {
        let traffic = Traffic::of_drivers(&self.server);
        self.differences.extend(expectation.compare(phase, self.nodes.len(), &traffic));
    }

    fn expect_no_errors(&mut self, phase: &str) {
        let errors = std::mem::take(&mut *Arc::clone(&self.errors).lock().unwrap());
        self.differences.extend(errors.first().map(|first| format!("{phase}: a driver reported an error: {first}")));
    }
}
