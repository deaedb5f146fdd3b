//! The configuration of CRI-O.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::{ConfigError, DEFAULT_CDI_DIRS, DEFAULT_NRI_SOCKET, RuntimeConfig, Switch, files_in, paths, read_table};
use crate::node_facts::host::Host;

pub(super) const USUAL_PATH: &str = "/etc/crio";

/// Reads the configuration; `None` if there is none.
pub(super) fn read(host: &Host) -> Result<Option<RuntimeConfig>, ConfigError> {
    let directory = Path::new(USUAL_PATH);
    let mut files = files_in(host, directory, "crio.conf");
    files.extend(files_in(host, &directory.join("crio.conf.d"), ".conf"));
    if files.is_empty() {
        return Ok(None);
    }
    let mut config = RuntimeConfig {
        name: "CRI-O",
        path: files[0].clone(),
        cdi: Switch::On,
        cdi_dirs: DEFAULT_CDI_DIRS.map(PathBuf::from).to_vec(),
        nri: Switch::On,
        nri_socket: PathBuf::from(DEFAULT_NRI_SOCKET),
        cdi_section: "[crio.runtime]",
    };
    for file in files {
        let table = read_table(host, &file)?;
        let section = |name: &str| -> Option<&Table> { table.get("crio")?.get(name)?.as_table() };
        if let Some(dirs) = section("runtime").and_then(|runtime| paths(runtime.get("cdi_spec_dirs"))) {
            config.cdi = Switch::from_bool(!dirs.is_empty());
            config.cdi_dirs = dirs;
            config.path.clone_from(&file);
        }
        if let Some(nri) = section("nri") {
            if let Some(is_on) = nri.get("enable_nri").and_then(Value::as_bool) {
                config.nri = Switch::from_bool(is_on);
            }
            if let Some(socket) = nri.get("nri_listen").and_then(Value::as_str) {
                config.nri_socket = PathBuf::from(socket);
            }
        }
    }
    Ok(Some(config))
}
