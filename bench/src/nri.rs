//! The round trip of an NRI event: a plugin on `drakkar-nri` beside one on containerd's Go library, both with the runtime's side
//! of containerd's own library, each in a process of its own.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::process::Process;
use crate::table::{Table, percentile};
use crate::{micros, to_float};

/// How many events are measured.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Events before the measurement.
    pub warm_up: u64,
    /// Events that are measured.
    pub events: u64,
}

impl Scale {
    /// For figures.
    pub const FULL: Self = Self { warm_up: 1_000, events: 10_000 };
    /// For a test.
    pub const TEST: Self = Self { warm_up: 10, events: 50 };
}

/// A plugin that answers `RunPodSandbox` at once.
#[derive(Debug)]
pub struct NriPlugin {
    /// The name in tables.
    pub name: &'static str,
    program: PathBuf,
    arguments: &'static [&'static str],
}

impl NriPlugin {
    /// Our client.
    pub fn ours(program: PathBuf) -> Self {
        Self { name: "Drakkar", program, arguments: &[] }
    }

    /// containerd's Go library.
    pub fn go(program: PathBuf) -> Self {
        Self { name: "Go", program, arguments: &["nri-stub", "--quiet"] }
    }
}

/// Measures a plugin. The runtime is the Go program with the tag `nri`.
pub fn round(scale: Scale, runtime: &Path, plugin: &NriPlugin, table: &mut Table) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nri.sock");
    let mut runtime = Runtime::start(runtime, &socket);
    let mut command = Command::new(&plugin.program);
    command.args(plugin.arguments).arg("--socket").arg(&socket).stdout(Stdio::null());
    let process = Process::new(command.spawn().unwrap());
    runtime.wait(|line| line["plugins"] == 1);
    runtime.measure(scale.warm_up);
    let before = process.processor_time();
    let mut times = runtime.measure(scale.events);
    let used = process.processor_time() - before;
    for (name, percent) in [("NRI round trip, p50", 50), ("NRI round trip, p99", 99)] {
        table.add_cost(plugin.name, name, "us", micros(percentile(&mut times, percent)));
    }
    table.add_cost(plugin.name, "NRI: processor time per event", "us", micros(used) / to_float(scale.events));
    table.add_cost(plugin.name, "NRI: memory of the plugin", "MB", process.memory());
    table.add_cost(plugin.name, "NRI: memory of the plugin, without its program", "MB", process.anonymous_memory());
}

/// The runtime's side.
#[derive(Debug)]
pub(crate) struct Runtime {
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    _process: Process,
}

impl Runtime {
    pub(crate) fn start(program: &Path, socket: &Path) -> Self {
        let mut command = Command::new(program);
        command.arg("nri-runtime").arg("--socket").arg(socket).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::new(command.spawn().unwrap());
        let (input, output) = process.pipes();
        let mut runtime = Self { input, lines: BufReader::new(output).lines(), _process: process };
        runtime.wait(|line| line["plugins"] == 0);
        runtime
    }

    /// Announces an event about a pod, and returns how long the plugins took.
    pub(crate) fn event(&mut self, event: &str, pod: &Value) -> Duration {
        writeln!(self.input, "{}", json!({"event": event, "pod": pod})).unwrap();
        let reply = self.wait(|line| line["event"] == event);
        assert_eq!(reply["error"], Value::Null, "{event}");
        Duration::from_nanos(reply["nanoseconds"][0].as_u64().unwrap())
    }

    /// Reads lines until one satisfies a condition.
    pub(crate) fn wait(&mut self, condition: impl Fn(&Value) -> bool) -> Value {
        loop {
            let line: Value = serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap();
            if condition(&line) {
                return line;
            }
        }
    }

    fn measure(&mut self, count: u64) -> Vec<Duration> {
        let pod = json!({
            "id": "5f1d0c0e9a7b", "name": "train-0", "uid": "6b0d7f5e-3f55-4f0b-9d6c-1c8d3f3f9e21", "namespace": "default",
            "labels": {"app": "train", "pod-template-hash": "5d4f8c7b9"}, "annotations": {"example.com/network": "rdma"},
            "linux": {"namespaces": [{"type": "network", "path": "/var/run/netns/cni-6b0d7f5e"}, {"type": "ipc"}]},
            "ips": ["10.0.0.7"],
        });
        writeln!(self.input, "{}", json!({"event": "measure", "pod": pod, "count": count})).unwrap();
        let reply = self.wait(|line| line["event"] == "measure");
        assert_eq!(reply["error"], Value::Null, "the runtime");
        let times = reply["nanoseconds"].as_array().unwrap();
        times.iter().map(|nanos| Duration::from_nanos(nanos.as_u64().unwrap())).collect()
    }
}
