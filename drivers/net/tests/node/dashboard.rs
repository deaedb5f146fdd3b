//! The dashboard's queries on a real Prometheus that scrapes the driver.
//!
//! Without Prometheus the test says so and passes. With `DRAKKAR_REQUIRE_PROMTOOL` it has to be there: Debian's package `prometheus` has both.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use drakkar_node::assert_eventually;
use serde_json::{Value, json};

use crate::support::Bench;

const DASHBOARD: &str = include_str!("../../../../deploy/dashboards/drakkar.json");

/// Queries that have results only after what did not happen here: a call of the kubelet that fails as a whole.
const WITHOUT_RESULTS: [&str; 1] = ["Calls that ended with an error"];

/// A Prometheus that scrapes one target every second.
struct Prometheus {
    process: Child,
    address: SocketAddr,
}

impl Prometheus {
    /// Starts it; `None` if it is not installed.
    fn start(directory: &Path, target: SocketAddr) -> Option<Self> {
        let config = directory.join("prometheus.yml");
        let scrape = json!({"job_name": "drakkar-net", "scrape_interval": "1s", "scrape_timeout": "1s", "static_configs": [{"targets": [target]}]});
        // JSON is YAML.
        std::fs::write(&config, json!({"scrape_configs": [scrape]}).to_string()).unwrap();
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
            .arg("--web.listen-address=127.0.0.1:0")
            .stderr(Stdio::piped());
        let mut process = match command.spawn() {
            Ok(process) => process,
            Err(error) => {
                assert!(std::env::var_os("DRAKKAR_REQUIRE_PROMTOOL").is_none(), "prometheus: {error}");
                eprintln!("skipped: prometheus: {error}");
                return None;
            }
        };
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
        let address = |line: String| {
            let (_, address) = line.split_once("msg=\"Listening on\" address=")?;
            address.split_whitespace().next()?.parse().ok()
        };
        let address = log.find_map(address).expect("prometheus says where it listens");
        // A pipe that nobody reads would stop it.
        std::thread::spawn(move || log.for_each(drop));
        Some(Self { process, address })
    }

    /// The result of a query now.
    fn query(&self, query: &str) -> Vec<Value> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // Version 1.0 of HTTP has no chunks.
        write!(stream, "GET /api/v1/query?query={encoded} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let body: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{query}: {error}: {answer}"));
        assert_eq!(body["status"], "success", "{query}: {body}");
        body["data"]["result"].as_array().unwrap().clone()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The titles of the panels and their queries, with all drivers, jobs and instances chosen.
fn queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let mut query = target["expr"].as_str().unwrap().replace("$__rate_interval", "1m");
            for variable in ["$driver", "$job", "$instance"] {
                query = query.replace(variable, ".*");
            }
            queries.push((panel["title"].as_str().unwrap().to_owned(), query));
        }
    }
    assert!(queries.len() > 30, "{queries:?}");
    queries
}

#[tokio::test(flavor = "multi_thread")]
async fn every_query_of_the_dashboard_has_results() {
    let Some(bench) = Bench::start().await else { return };
    let directory = tempfile::tempdir().unwrap();
    let target = bench.driver.as_ref().unwrap().helper().http_address().unwrap();
    let Some(prometheus) = Prometheus::start(directory.path(), target) else { return };
    // One claim that becomes a pod's, and one that cannot be prepared.
    bench.pod("pod", "fast0", json!({"interfaceName": "data0"})).await.running().await.unwrap();
    bench.status("pod", true).await;
    let wrong = bench.pod("wrong", "fast1", json!({"mtu": 12})).await;
    assert_eventually!(wrong.events().await.unwrap().iter().any(|event| event.contains("must be from 68 to 65535")));
    let mut waiting = queries();
    waiting.retain(|(title, query)| {
        if WITHOUT_RESULTS.contains(&title.as_str()) {
            prometheus.query(query);
        }
        !WITHOUT_RESULTS.contains(&title.as_str())
    });
    // Rates need two scrapes.
    assert_eventually!(
        within Duration::from_secs(120),
        {
            waiting.retain(|(_, query)| prometheus.query(query).is_empty());
            waiting.is_empty()
        },
        "no results: {waiting:#?}"
    );
    // The values of a dashboard are those of the driver.
    assert_eq!(prometheus.query("drakkar_net_attached_interfaces")[0]["value"][1], "1");
    bench.node.pod("default", "pod").await.unwrap().delete().await.unwrap();
}
