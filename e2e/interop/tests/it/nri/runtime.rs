//! A runtime on containerd's own library, in a process of its own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use drakkar_interop::Program;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// A test that waits longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(60);

pub async fn patiently<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes too long")
}

/// A runtime that plugins connect to.
pub struct GoRuntime {
    child: Child,
    input: ChildStdin,
    lines: mpsc::UnboundedReceiver<Value>,
    /// Lines that nobody has waited for yet.
    others: Vec<Value>,
}

impl GoRuntime {
    /// Starts a runtime and waits until it listens.
    pub async fn start(program: &Program, socket: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(program.path());
        command.arg("nri-runtime").arg("--socket").arg(socket).args(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = mpsc::unbounded_channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        let input = child.stdin.take().unwrap();
        let mut runtime = Self { child, input, lines, others: Vec::new() };
        let first = runtime.wait(|_| true).await;
        runtime.others.push(first);
        runtime
    }

    /// Waits for a line of output.
    pub async fn wait(&mut self, condition: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.others.iter().position(&condition) {
            return self.others.remove(at);
        }
        loop {
            let line = patiently(self.lines.recv()).await.expect("the runtime has ended");
            if condition(&line) {
                return line;
            }
            self.others.push(line);
        }
    }

    /// Waits until so many plugins are connected and synchronized.
    pub async fn plugins(&mut self, count: u64) {
        self.wait(|line| line["plugins"] == count).await;
    }

    /// Relays an event to the plugins, and returns the outcome: the result, or the error that the pod or container fails with.
    pub async fn relay(&mut self, event: &str, pod: &Value, container: &Value) -> Result<Value, String> {
        writeln!(self.input, "{}", json!({"event": event, "pod": pod, "container": container})).unwrap();
        let reply = self.wait(|line| line["event"] == event).await;
        match reply["error"].as_str() {
            Some(error) => Err(error.to_owned()),
            None => Ok(reply["result"].clone()),
        }
    }

    pub async fn pod(&mut self, event: &str, name: &str) -> Result<Value, String> {
        self.relay(event, &pod(name), &json!({})).await
    }

    /// Kills it, as a crash would.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for GoRuntime {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A pod in JSON.
pub fn pod(name: &str) -> Value {
    json!({
        "id": format!("sandbox-{name}"), "name": name, "uid": format!("uid-{name}"), "namespace": "default",
        "linux": {"namespaces": [{"type": "network", "path": format!("/run/netns/{name}")}]},
    })
}
