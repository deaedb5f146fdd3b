//! The configuration of the container runtime: whether it resolves CDI devices and from where, and whether it has NRI.
//!
//! | runtime | file | CDI | NRI |
//! |---|---|---|---|
//! | containerd 2 | version 3: `plugins."io.containerd.cri.v1.runtime"`; version 2 is converted | on | on |
//! | containerd 1.7 | version 2: `plugins."io.containerd.grpc.v1.cri"` | off by default | off by default |
//! | CRI-O | `crio.conf`, then `crio.conf.d/*.conf` | on | on |
//!
//! A file that is imported replaces what the importing file says.

mod containerd;
mod crio;

use std::io;
use std::path::{Path, PathBuf};

use toml::Table;

use super::host::Host;

/// The largest configuration that is read.
const MAX_CONFIG: u64 = 4 * 1024 * 1024;
/// Where runtimes look for CDI specs if their configuration does not say it.
const DEFAULT_CDI_DIRS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
/// The NRI socket of runtimes whose configuration does not say it.
pub(crate) const DEFAULT_NRI_SOCKET: &str = "/var/run/nri/nri.sock";

/// What is known of the container runtime.
#[derive(Debug)]
pub(crate) enum Runtime {
    /// No configuration was found. containerd runs without one too.
    Unknown(String),
    /// A configuration that cannot be read.
    Invalid {
        path: PathBuf,
        problem: String,
    },
    Known(RuntimeConfig),
}

/// The configuration of the container runtime, as far as it concerns devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuntimeConfig {
    /// `containerd` or `CRI-O`.
    pub(crate) name: &'static str,
    /// The configuration file.
    pub(crate) path: PathBuf,
    pub(crate) cdi: Switch,
    pub(crate) cdi_dirs: Vec<PathBuf>,
    pub(crate) nri: Switch,
    pub(crate) nri_socket: PathBuf,
    /// The section of CDI in the file, for remedies.
    pub(crate) cdi_section: &'static str,
}

/// Whether something is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Switch {
    On,
    Off,
    /// The default, which depends on the runtime's release.
    ByRelease,
}

impl Switch {
    fn from_bool(is_on: bool) -> Self {
        if is_on { Self::On } else { Self::Off }
    }
}

impl RuntimeConfig {
    /// Whether CDI is on with this release of the runtime, as the node's status names it: `containerd://1.7.27`.
    pub(crate) fn cdi_with(&self, release: Option<&str>) -> Switch {
        resolve(self.cdi, release)
    }

    /// Whether NRI is on with this release of the runtime.
    pub(crate) fn nri_with(&self, release: Option<&str>) -> Switch {
        resolve(self.nri, release)
    }
}

fn resolve(switch: Switch, release: Option<&str>) -> Switch {
    let version = release.and_then(|release| release.strip_prefix("containerd://"));
    match (switch, version.map(|version| version.trim_start_matches('v').starts_with("1."))) {
        (Switch::ByRelease, Some(is_old)) => Switch::from_bool(!is_old),
        (switch, _) => switch,
    }
}

/// Reads the configuration: of containerd at this path or at its usual one, or of CRI-O.
pub(crate) fn read(host: &Host, configured: Option<&Path>) -> Runtime {
    let path = configured.unwrap_or(Path::new(containerd::USUAL_PATH));
    match containerd::read(host, path) {
        Ok(config) => return Runtime::Known(config),
        Err(error) if configured.is_none() && error.is_missing() => {}
        Err(error) => return Runtime::Invalid { path: error.path, problem: error.problem.to_string() },
    }
    match crio::read(host) {
        Ok(Some(config)) => Runtime::Known(config),
        Ok(None) => Runtime::Unknown(format!(
            "neither {} nor {} exists here; give --containerd-config",
            containerd::USUAL_PATH,
            crio::USUAL_PATH
        )),
        Err(error) => Runtime::Invalid { path: error.path, problem: error.problem.to_string() },
    }
}

/// A configuration file that cannot be used.
#[derive(Debug)]
struct ConfigError {
    path: PathBuf,
    problem: io::Error,
}

impl ConfigError {
    fn is_missing(&self) -> bool {
        self.problem.kind() == io::ErrorKind::NotFound
    }
}

fn read_table(host: &Host, path: &Path) -> Result<Table, ConfigError> {
    let failed = |problem| ConfigError { path: path.to_owned(), problem };
    let bytes = host.read(path, MAX_CONFIG).map_err(failed)?;
    let text = std::str::from_utf8(&bytes).map_err(|error| failed(io::Error::other(error)))?;
    text.parse().map_err(|error: toml::de::Error| {
        // The library's text quotes the line, in several lines.
        let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        failed(io::Error::other(format!("line {line}: {}", error.message())))
    })
}

/// Returns the files of a directory with this extension, by name. A directory that does not exist has none.
fn files_in(host: &Host, directory: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = host.directory(directory).and_then(|directory| directory.entries()).unwrap_or_default();
    let names = entries.into_iter().map(|entry| entry.name);
    names.filter(|name| name.ends_with(extension)).map(|name| directory.join(name)).collect()
}

fn paths(value: Option<&toml::Value>) -> Option<Vec<PathBuf>> {
    Some(value?.as_array()?.iter().filter_map(toml::Value::as_str).map(PathBuf::from).collect())
}

#[cfg(test)]
mod tests;
