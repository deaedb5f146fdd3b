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

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use http::uri::{InvalidUri, Scheme};
use kube::config::{AuthInfo, Cluster, Kubeconfig};
use percent_encoding::percent_decode_str;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;

use super::proxy;

/// The booleans of a kubeconfig: the list that has them, if any, and where they are in it.
const BOOLEANS: [(&str, &str); 4] = [
    ("clusters", "/cluster/insecure-skip-tls-verify"),
    ("clusters", "/cluster/disable-compression"),
    ("users", "/user/exec/provideClusterInfo"),
    ("", "/preferences/colors"),
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
    /// The files do not fit together, or a file that they name cannot be used.
    #[error("{0}")]
    Content(#[source] Box<kube::config::KubeconfigError>),
    /// No context is chosen.
    #[error("has no current-context; `kubectl config use-context` sets it")]
    NoCurrentContext,
    /// The chosen context does not exist.
    #[error("its current-context {0:?} is not among its contexts")]
    NoContext(String),
    /// The context's cluster does not exist.
    #[error("the context's cluster {0:?} is not among its clusters")]
    NoCluster(String),
    /// The cluster has no server.
    #[error("the context's cluster has no server")]
    NoServer,
    /// The cluster's server is not a URL.
    #[error("the cluster's server is not a URL: {0}")]
    Server(#[source] InvalidUri),
    /// The cluster's proxy is not a URL.
    #[error("the cluster's proxy-url, or HTTPS_PROXY, is not a URL: {0}")]
    Proxy(#[source] InvalidUri),
    /// The cluster has an authority, and its server is not verified.
    #[error(
        "the context's cluster has certificate-authority and insecure-skip-tls-verify; remove insecure-skip-tls-verify, which \
         trusts any server, or the authority"
    )]
    AuthorityNotUsed,
    /// The certificates of the cluster's authority cannot be used.
    #[error("certificate-authority-data: {0}")]
    Authority(&'static str),
}

impl KubeconfigError {
    fn is_missing(&self) -> bool {
        matches!(self, Self::Read(error) if error.kind() == io::ErrorKind::NotFound)
    }
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
pub(super) fn load(list: &Path) -> Result<kube::Config, KubeconfigError> {
    let kubeconfig = read(list)?;
    let name = kubeconfig.current_context.ok_or(KubeconfigError::NoCurrentContext)?;
    let context = kubeconfig.contexts.into_iter().find(|named| named.name == name).and_then(|named| named.context);
    let context = context.ok_or(KubeconfigError::NoContext(name))?;
    let named = kubeconfig.clusters.into_iter().find(|named| named.name == context.cluster);
    let cluster = named.and_then(|named| named.cluster).ok_or(KubeconfigError::NoCluster(context.cluster))?;
    // As for `kubectl`, a user who does not exist has no credentials.
    let named = kubeconfig.auth_infos.into_iter().find(|named| Some(&named.name) == context.user.as_ref());
    config(&cluster, named.and_then(|named| named.auth_info).unwrap_or_default())
}

fn config(cluster: &Cluster, mut user: AuthInfo) -> Result<kube::Config, KubeconfigError> {
    if let Some(exec) = user.exec.as_mut().filter(|exec| exec.provide_cluster_info) {
        exec.cluster = Some(cluster.try_into()?);
    }
    let server = url(cluster, &mut user)?;
    if has_authority(cluster)
        && cluster.insecure_skip_tls_verify == Some(true)
        && server.scheme() == Some(&Scheme::HTTPS)
    {
        return Err(KubeconfigError::AuthorityNotUsed);
    }
    let proxy = cluster.proxy_url.clone().or_else(|| proxy::of_environment(&server));
    let mut config = kube::Config::new(server);
    config.proxy_url = proxy.as_deref().map(str::parse).transpose().map_err(KubeconfigError::Proxy)?;
    config.accept_invalid_certs = cluster.insecure_skip_tls_verify == Some(true);
    config.tls_server_name = cluster.tls_server_name.clone();
    config.root_cert = cluster.certificate_authority_data.as_deref().map(authorities).transpose()?;
    // The data wins over the file.
    let file = cluster.certificate_authority.as_ref().filter(|_| config.root_cert.is_none());
    config.root_cert_file = file.map(PathBuf::from);
    config.auth_info = user;
    Ok(config)
}

/// Returns the URL of a cluster. Without a scheme it is one of HTTPS if there is anything to protect; a name and a password in it
/// are those of the user, unless the user has credentials.
///
/// A server with `http://` gets the credentials, too, which `kubectl` does not send: the embedded API server needs them.
fn url(cluster: &Cluster, user: &mut AuthInfo) -> Result<Uri, KubeconfigError> {
    let server = cluster.server.as_deref().ok_or(KubeconfigError::NoServer)?;
    let (scheme, rest) = server.split_once("://").map_or((None, server), |(scheme, rest)| (Some(scheme), rest));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (account, host) = authority.rsplit_once('@').map_or((None, authority), |(account, host)| (Some(account), host));
    let has_tls = has_authority(cluster)
        || cluster.insecure_skip_tls_verify == Some(true)
        || user.client_certificate.is_some()
        || user.client_certificate_data.is_some();
    let is_anonymous = user.username.is_none()
        && user.token.is_none()
        && user.token_file.is_none()
        && user.exec.is_none()
        && user.auth_provider.is_none();
    let guess = || if has_tls || !is_anonymous || account.is_some() { "https" } else { "http" };
    let scheme = scheme.unwrap_or_else(guess);
    if let Some(account) = account.filter(|_| is_anonymous) {
        let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let (name, password) = account.split_once(':').unwrap_or((account, ""));
        user.username = Some(decode(name));
        user.password = Some(decode(password).into());
    }
    format!("{scheme}://{host}{path}").parse().map_err(KubeconfigError::Server)
}

fn has_authority(cluster: &Cluster) -> bool {
    cluster.certificate_authority.is_some() || cluster.certificate_authority_data.is_some()
}

/// Decodes the certificates of an authority.
fn authorities(data: &str) -> Result<Vec<Vec<u8>>, KubeconfigError> {
    let pem = STANDARD.decode(data).ok().ok_or(KubeconfigError::Authority("is not base64"))?;
    let certificates = CertificateDer::pem_slice_iter(&pem).map(|certificate| certificate.map(|it| it.to_vec()));
    let certificates: Result<Vec<_>, _> = certificates.collect();
    certificates.ok().ok_or(KubeconfigError::Authority("is not PEM"))
}

/// Reads a list of files, as `kubectl` does: the first that sets a value wins, and those that do not exist are left out if there
/// are others.
fn read(list: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let mut merged: Option<Kubeconfig> = None;
    let mut missing = None;
    for path in files(list.as_os_str()) {
        let documents = match read_file(&path) {
            Ok(documents) => documents,
            Err(error) => {
                let is_missing = error.is_missing();
                let error = match path == list {
                    true => error,
                    false => KubeconfigError::InList { path, source: Box::new(error) },
                };
                if !is_missing {
                    return Err(error);
                }
                missing = missing.or(Some(error));
                continue;
            }
        };
        let mut merged_before = merged.take().unwrap_or_default();
        for document in documents {
            merged_before = merged_before.merge(document)?;
        }
        merged = Some(merged_before);
    }
    merged.ok_or_else(|| missing.unwrap_or(KubeconfigError::NoPath))
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
    configs.iter_mut().for_each(normalize);
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
    let read = |value: &mut Value| match value.as_str().map(str::to_ascii_lowercase).as_deref() {
        Some("y" | "yes" | "on" | "true") => *value = true.into(),
        Some("n" | "no" | "off" | "false") => *value = false.into(),
        _ => {}
    };
    for (list, field) in BOOLEANS {
        if list.is_empty() {
            document.pointer_mut(field).into_iter().for_each(read);
            continue;
        }
        let elements = document.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        elements.filter_map(|element| element.pointer_mut(field)).for_each(read);
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
    // The message shows the value before what was expected.
    let problem = match message.rsplit_once("expected ") {
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

/// Drops texts that are empty, which mean the same as none, and line ends in data, which decoders of base64 ignore.
fn normalize(config: &mut Kubeconfig) {
    let normalize = |text: &mut Option<String>| *text = text.take().filter(|text| !text.is_empty());
    let normalize_data = |data: &mut Option<String>| {
        data.iter_mut().for_each(|data| data.retain(|character| !matches!(character, '\r' | '\n')));
        normalize(data);
    };
    normalize(&mut config.current_context);
    for cluster in config.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        let Cluster { server, certificate_authority, proxy_url, tls_server_name, .. } = cluster;
        [server, certificate_authority, proxy_url, tls_server_name].into_iter().for_each(normalize);
        normalize_data(&mut cluster.certificate_authority_data);
    }
    for user in config.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        let AuthInfo { username, token_file, client_certificate, client_key, impersonate, impersonate_uid, .. } = user;
        [username, token_file, client_certificate, client_key, impersonate, impersonate_uid]
            .into_iter()
            .for_each(normalize);
        normalize_data(&mut user.client_certificate_data);
        user.token = user.token.take().filter(|token| !token.expose_secret().is_empty());
        if let Some(key) = user.client_key_data.take() {
            let mut key = Some(key.expose_secret().to_owned());
            normalize_data(&mut key);
            user.client_key_data = key.map(SecretString::from);
        }
    }
}

/// Makes the paths in a kubeconfig relative to the directory of its file.
fn resolve_paths(config: &mut Kubeconfig, directory: &Path) {
    let resolve = |path: &mut Option<String>| {
        if let Some(path) = path
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
