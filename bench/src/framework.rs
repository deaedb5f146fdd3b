//! The two drivers that are measured: what to start, and with which arguments. Both have the same.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::DRIVER;

/// A driver's program.
#[derive(Debug, Clone)]
pub struct Framework {
    /// As figures call it.
    pub name: &'static str,
    program: PathBuf,
    /// What comes before the arguments that both have.
    first: &'static [&'static str],
    /// What comes after them.
    last: &'static [&'static str],
}

/// The Go driver's client has no rate limit, as ours has none, and speaks protobuf, which is the fastest for it.
const GO_CLIENT: &[&str] = &["--qps", "-1", "--content-type", "protobuf"];

impl Framework {
    /// Ours.
    pub fn ours(program: PathBuf) -> Self {
        Self { name: "Drakkar", program, first: &[], last: &[] }
    }

    /// Kubernetes' own, in Go.
    pub fn go(program: PathBuf) -> Self {
        Self { name: "Go", program, first: &["driver"], last: GO_CLIENT }
    }

    /// How it is started on a node.
    pub fn command(&self, root: &Path, devices: u64) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.first).args(["--driver-name", DRIVER, "--node-name", crate::NODE]);
        command.arg("--kubelet-root-dir").arg(root).arg("--cdi-dir").arg(root.join("cdi"));
        command.args(["--enable-device-metadata", "--metadata-versions", "v1beta1,v1alpha1"]);
        command.args(["--devices", &devices.to_string()]).args(self.last);
        command.env("KUBECONFIG", root.join("kubeconfig"));
        command
    }

    /// The program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The size of the program without symbols, in MB, if there is a `strip` here.
    pub fn size(&self) -> Option<f64> {
        let directory = tempfile::tempdir().unwrap();
        let stripped = directory.path().join("stripped");
        let is_stripped = Command::new("strip").arg("-o").arg(&stripped).arg(&self.program).status().ok()?.success();
        let size = is_stripped.then(|| std::fs::metadata(stripped)).and_then(Result::ok)?.len();
        Some(crate::to_float(size) / 1e6)
    }
}

/// Builds the Go program into a directory.
///
/// `Err` says why it cannot be had here.
pub fn build_go(directory: &Path) -> Result<PathBuf, String> {
    let program = directory.join("interop");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/interop");
    let output = Command::new("go")
        .args(["build", "-trimpath", "-ldflags", "-s -w", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(source)
        .output()
        .map_err(|error| format!("there is no Go here: {error}"))?;
    match output.status.success() {
        true => Ok(program),
        false => Err(format!("Go cannot build it: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
