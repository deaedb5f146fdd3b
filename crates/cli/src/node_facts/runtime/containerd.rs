//! The configuration of containerd.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::{ConfigError, DEFAULT_CDI_DIRS, DEFAULT_NRI_SOCKET, RuntimeConfig, Switch, files_in, paths, read_table};
use crate::node_facts::host::Host;

pub(super) const USUAL_PATH: &str = "/etc/containerd/config.toml";
/// The section of the CRI plugin in version 3 of the file.
const CRI_V3: &str = "io.containerd.cri.v1.runtime";
/// The section of the CRI plugin in version 2 of the file.
const CRI_V2: &str = "io.containerd.grpc.v1.cri";
const NRI: &str = "io.containerd.nri.v1.nri";
/// The largest number of files that are imported.
const MAX_IMPORTS: usize = 100;

pub(super) fn read(host: &Host, path: &Path) -> Result<RuntimeConfig, ConfigError> {
    let mut plugins = Table::new();
    let mut disabled = HashSet::new();
    let mut version = None;
    let mut pending = vec![path.to_owned()];
    let mut seen: HashSet<PathBuf> = HashSet::new();
    while let Some(path) = pending.pop() {
        if seen.len() == MAX_IMPORTS || !seen.insert(path.clone()) {
            continue;
        }
        let mut table = read_table(host, &path)?;
        version = version.or(table.get("version").and_then(Value::as_integer));
        disabled.extend(strings(table.get("disabled_plugins")));
        if let Some(Value::Table(own)) = table.remove("plugins") {
            merge(&mut plugins, own);
        }
        let imports: Vec<String> = strings(table.get("imports")).collect();
        // The last one wins, so it is read last.
        for import in imports.iter().rev() {
            pending.extend(imported(host, &path, import).into_iter().rev());
        }
    }
    let is_v3 = version.is_some_and(|version| version >= 3);
    let section = |name: &str| plugins.get(name).and_then(Value::as_table);
    // containerd 2 converts a file of version 2.
    let cri = if is_v3 { section(CRI_V3).or(section(CRI_V2)) } else { section(CRI_V2).or(section(CRI_V3)) };
    let nri = section(NRI);
    let default = if is_v3 { Switch::On } else { Switch::ByRelease };
    let flag = |table: Option<&Table>, name: &str| table.and_then(|table| table.get(name)).and_then(Value::as_bool);
    let is_disabled = |names: &[&str]| names.iter().any(|name| disabled.contains(*name));
    let default_dirs = || DEFAULT_CDI_DIRS.map(PathBuf::from).to_vec();
    let socket = nri.and_then(|nri| nri.get("socket_path")).and_then(Value::as_str);
    Ok(RuntimeConfig {
        name: "containerd",
        path: path.to_owned(),
        cdi: flag(cri, "enable_cdi").map_or(default, Switch::from_bool),
        cdi_dirs: paths(cri.and_then(|cri| cri.get("cdi_spec_dirs"))).unwrap_or_else(default_dirs),
        nri: if is_disabled(&[NRI, "nri"]) {
            Switch::Off
        } else {
            flag(nri, "disable").map_or(default, |is_disabled| Switch::from_bool(!is_disabled))
        },
        nri_socket: PathBuf::from(socket.unwrap_or(DEFAULT_NRI_SOCKET)),
        cdi_section: if is_v3 {
            "[plugins.\"io.containerd.cri.v1.runtime\"]"
        } else {
            "[plugins.\"io.containerd.grpc.v1.cri\"]"
        },
    })
}

/// Returns the files of an import: a path, or a pattern for the names in a directory, relative to the importing file.
fn imported(host: &Host, importing: &Path, import: &str) -> Vec<PathBuf> {
    let path = importing.parent().unwrap_or(Path::new("/")).join(import);
    match (path.parent(), path.file_name().and_then(|name| name.to_str())) {
        (Some(directory), Some(name)) if name.contains('*') => {
            files_in(host, directory, name.rsplit('*').next().unwrap_or_default())
        }
        _ => vec![path],
    }
}

fn strings(value: Option<&Value>) -> impl Iterator<Item = String> {
    let values = value.and_then(Value::as_array).into_iter().flatten();
    values.filter_map(Value::as_str).map(str::to_owned)
}

/// Adds the values of another file, which win.
fn merge(into: &mut Table, other: Table) {
    for (key, value) in other {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(into)), Value::Table(other)) => merge(into, other),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}
