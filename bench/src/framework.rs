//! The two measured drivers: their programs and arguments, which are the same for both.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::DRIVER;

/// The name of Kubernetes' Go framework in tables.
pub const GO: &str = "Go";

/// A driver's program.
#[derive(Debug, Clone)]
pub struct Framework {
    /// The framework's name in tables.
    pub name: &'static str,
    program: PathBuf,
    /// Arguments before those that both have.
    first: &'static [&'static str],
    /// Arguments after those that both have.
    last: &'static [&'static str],
}

/// The Go driver's client has no rate limit, like ours, and uses protobuf, its fastest encoding.
const GO_CLIENT: &[&str] = &["--qps", "-1", "--content-type", "protobuf"];

impl Framework {
    /// Our framework.
    pub fn ours(program: PathBuf) -> Self {
        Self { name: "Drakkar", program, first: &[], last: &[] }
    }

    /// Another build of our framework, to compare with.
    pub fn other(program: PathBuf) -> Self {
        Self { name: "other", program, first: &[], last: &[] }
    }

    /// Kubernetes' Go framework.
    pub fn go(program: PathBuf) -> Self {
        Self { name: GO, program, first: &["driver"], last: GO_CLIENT }
    }

    /// The command that starts the driver on a node.
    pub fn command(&self, root: &Path, devices: u64) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.first).args(["--driver-name", DRIVER, "--node-name", crate::NODE]);
        command.arg("--kubelet-root-dir").arg(root).arg("--cdi-dir").arg(root.join("cdi"));
        command.args(["--enable-device-metadata", "--metadata-versions", "v1beta1,v1alpha1"]);
        command.args(["--devices", &devices.to_string()]).args(self.last);
        command.env("KUBECONFIG", root.join("kubeconfig"));
        command
    }

    /// The path of the program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The size of the stripped program in MB; `None` if `strip` is not installed.
    pub fn size(&self) -> Option<f64> {
        let directory = tempfile::tempdir().unwrap();
        let stripped = directory.path().join("stripped");
        let is_stripped = Command::new("strip").arg("-o").arg(&stripped).arg(&self.program).status().ok()?.success();
        let size = is_stripped.then(|| std::fs::metadata(stripped)).and_then(Result::ok)?.len();
        Some(crate::to_float(size) / 1e6)
    }
}

/// Builds the Go program into a directory, and returns its path; the error is the reason why it cannot be built.
pub fn build_go(directory: &Path) -> Result<PathBuf, String> {
    build_go_with(directory, "interop", "")
}

/// Builds the Go program with its commands for NRI, which the driver is measured without.
pub fn build_go_with_nri(directory: &Path) -> Result<PathBuf, String> {
    build_go_with(directory, "interop-nri", "nri nri_no_wasm")
}

fn build_go_with(directory: &Path, name: &str, tags: &str) -> Result<PathBuf, String> {
    let program = directory.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/interop");
    let output = Command::new("go")
        .args(["build", "-trimpath", "-tags", tags, "-ldflags", "-s -w", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(source)
        .output()
        .map_err(|error| format!("cannot run `go`: {error}"))?;
    if output.status.success() {
        Ok(program)
    } else {
        Err(format!("cannot build the Go program: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}
