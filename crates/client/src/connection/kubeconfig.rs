//! Kubeconfig files.
//!
//! YAML is parsed into [`Value`], and that into the types of `kube`: a YAML parser for each of these types would be half a
//! megabyte of every driver.

#[cfg(test)]
mod tests;

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;

/// The booleans of a kubeconfig, below its lists.
const BOOLEANS: [(&str, &str); 3] = [
    ("clusters", "/cluster/insecure-skip-tls-verify"),
    ("clusters", "/cluster/disable-compression"),
    ("users", "/user/exec/provideClusterInfo"),
];

/// Why a kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KubeconfigError {
    /// One file of a list cannot be used.
    #[error("{}: {source}", .path.display())]
    InList {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<KubeconfigError>,
    },
    /// A list has no files.
    #[error("is no path of a file")]
    NoPath,
    /// A file cannot be read.
    #[error("{0}")]
    Read(#[source] io::Error),
    /// A file is not YAML, or not that of a kubeconfig.
    #[error("is not YAML of a kubeconfig: {0}")]
    Parse(String),
    /// The files do not describe a server.
    #[error("{}", explain(.0))]
    Content(#[source] Box<kube::config::KubeconfigError>),
}

impl From<kube::config::KubeconfigError> for KubeconfigError {
    fn from(error: kube::config::KubeconfigError) -> Self {
        Self::Content(Box::new(error))
    }
}

/// Returns the user's kubeconfig: the variable `KUBECONFIG`, or else `~/.kube/config`.
pub(super) fn default_list() -> PathBuf {
    let variable = env::var_os("KUBECONFIG").filter(|list| files(list).next().is_some());
    let home = || env::home_dir().unwrap_or_else(|| "~".into()).join(".kube/config");
    variable.map_or_else(home, PathBuf::from)
}

/// Reads the configuration of the current context from a list of files.
pub(super) async fn load(list: &Path) -> Result<kube::Config, KubeconfigError> {
    Ok(kube::Config::from_custom_kubeconfig(read(list)?, &KubeConfigOptions::default()).await?)
}

/// Reads a list of files, as `kubectl` does: the first that sets a value wins.
fn read(list: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let mut merged: Option<Kubeconfig> = None;
    for path in files(list.as_os_str()) {
        let documents = read_file(&path).map_err(|error| match path == list {
            true => error,
            false => KubeconfigError::InList { path: path.clone(), source: Box::new(error) },
        })?;
        let mut merged_before = merged.take().unwrap_or_default();
        for document in documents {
            merged_before = merged_before.merge(document)?;
        }
        merged = Some(merged_before);
    }
    merged.ok_or(KubeconfigError::NoPath)
}

fn files(list: &OsStr) -> impl Iterator<Item = PathBuf> {
    env::split_paths(list).filter(|path| !path.as_os_str().is_empty())
}

/// Reads the documents of a file. Their paths become relative to the working directory, or absolute.
fn read_file(path: &Path) -> Result<Vec<Kubeconfig>, KubeconfigError> {
    let text = fs::read(path).and_then(decode).map_err(KubeconfigError::Read)?;
    let mut documents = yaml(&text).map_err(KubeconfigError::Parse)?;
    documents.iter_mut().for_each(read_booleans);
    let mut configs = documents.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    if let Some(directory) = path.parent() {
        configs.iter_mut().for_each(|config| resolve_paths(config, directory));
    }
    Ok(configs)
}

/// Decodes UTF-8 or, with a byte order mark, UTF-16.
fn decode(bytes: Vec<u8>) -> io::Result<String> {
    let utf16 = |bytes: &[u8], unit: fn([u8; 2]) -> u16| match bytes.as_chunks() {
        (units, []) => {
            let units: Vec<u16> = units.iter().copied().map(unit).collect();
            String::from_utf16(&units).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "invalid utf-16: odd number of bytes")),
    };
    let utf8 = |bytes| String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error));
    match bytes.as_slice() {
        [0xFF, 0xFE, bytes @ ..] => utf16(bytes, u16::from_le_bytes),
        [0xFE, 0xFF, bytes @ ..] => utf16(bytes, u16::from_be_bytes),
        [0xEF, 0xBB, 0xBF, bytes @ ..] => utf8(bytes.to_vec()),
        _ => utf8(bytes),
    }
}

/// Parses the documents of a YAML text that are not empty. Only `true` and `false` are booleans. An error is one line.
pub(super) fn yaml(text: &str) -> Result<Vec<Value>, String> {
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
        // The lines after the first show the place in the file.
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        first.strip_prefix("error: ").unwrap_or(first).to_owned()
    })
}

/// Reads the other words of YAML 1.1 for booleans, only where a boolean is expected: `no` and `on` are also names.
fn read_booleans(document: &mut Value) {
    for (list, field) in BOOLEANS {
        let elements = document.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for value in elements.filter_map(|element| element.pointer_mut(field)) {
            match value.as_str() {
                Some("yes" | "Yes" | "YES" | "on" | "On" | "ON") => *value = true.into(),
                Some("no" | "No" | "NO" | "off" | "Off" | "OFF") => *value = false.into(),
                _ => {}
            }
        }
    }
}

fn parse(document: &Value) -> Result<Kubeconfig, KubeconfigError> {
    let parsed = serde_json::from_value(document.clone());
    parsed.map_err(|error| KubeconfigError::Parse(explain_type(document, &error.to_string())))
}

/// Says which value has the wrong type, but not the value: it may be a token.
fn explain_type(document: &Value, message: &str) -> String {
    let (path, culprit) = find_culprit(document, &|document| document, message);
    let found = match culprit {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    };
    let problem = match message.split_once("expected ") {
        Some((_, "a string")) if !culprit.is_array() && !culprit.is_object() => {
            format!("{found} instead of a string: put it in quotes")
        }
        Some((_, expected)) => format!("{found} instead of {expected}"),
        None => message.to_owned(),
    };
    if path.is_empty() { problem } else { format!("{}: {problem}", path.trim_start_matches('.')) }
}

/// Finds the innermost value without which a document does not have an error. `whole` puts a node back into the document.
fn find_culprit<'a>(node: &'a Value, whole: &dyn Fn(Value) -> Value, message: &str) -> (String, &'a Value) {
    let is_cause = |without: Value| {
        let error = serde_json::from_value::<Kubeconfig>(whole(without)).err();
        error.is_none_or(|error| error.to_string() != message)
    };
    match node {
        Value::Object(map) => {
            let with = |key: &String, child: Option<Value>| {
                let mut map = map.clone();
                match child {
                    Some(child) => map.insert(key.clone(), child),
                    None => map.remove(key),
                };
                Value::Object(map)
            };
            if let Some((key, child)) = map.iter().find(|(key, _)| is_cause(with(key, None))) {
                let (path, culprit) = find_culprit(child, &|child| whole(with(key, Some(child))), message);
                return (format!(".{key}{path}"), culprit);
            }
        }
        Value::Array(list) => {
            let with = |index: usize, child: Option<Value>| {
                let mut list = list.clone();
                list.splice(index..=index, child);
                Value::Array(list)
            };
            if let Some((index, child)) = list.iter().enumerate().find(|(index, _)| is_cause(with(*index, None))) {
                let (path, culprit) = find_culprit(child, &|child| whole(with(index, Some(child))), message);
                return (format!("[{index}]{path}"), culprit);
            }
        }
        _ => {}
    }
    (String::new(), node)
}

/// Makes the paths in a kubeconfig relative to the directory of its file.
fn resolve_paths(config: &mut Kubeconfig, directory: &Path) {
    let resolve = |path: &mut Option<String>| {
        if let Some(path) = path
            && !path.is_empty()
            && let Some(resolved) = directory.join(&*path).to_str()
        {
            *path = resolved.to_owned();
        }
    };
    for cluster in config.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        resolve(&mut cluster.certificate_authority);
    }
    for user in config.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        resolve(&mut user.client_certificate);
        resolve(&mut user.client_key);
        resolve(&mut user.token_file);
        // A command without a separator is looked up in `PATH`.
        if let Some(exec) = user.exec.as_mut().filter(|exec| exec.command.as_ref().is_some_and(|it| it.contains('/'))) {
            resolve(&mut exec.command);
        }
    }
}

/// Says in one line what is wrong with a kubeconfig, whose path the reader knows already.
fn explain(error: &kube::config::KubeconfigError) -> String {
    use kube::config::KubeconfigError as Error;
    match error {
        Error::CurrentContextNotSet => "has no current-context; `kubectl config use-context` sets it".to_owned(),
        Error::LoadContext(name) => format!("its current-context {name:?} is not among its contexts"),
        Error::LoadClusterOfContext(name) => format!("the context's cluster {name:?} is not among its clusters"),
        Error::MissingClusterUrl => "the context's cluster has no server".to_owned(),
        Error::ParseClusterUrl(error) => format!("the cluster's server is not a URL: {error}"),
        error => error.to_string(),
    }
}
