//! Kubeconfig files.
//!
//! YAML is parsed into [`Value`], and that is read by [`document`]: a YAML parser for each type would be half a megabyte of every
//! driver, and one of `serde` for values still a hundred kilobytes.

mod document;
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
use percent_encoding::percent_decode_str;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};

#[cfg(test)]
pub(super) use self::document::user;
use self::document::{Cluster, Kubeconfig};
use super::config::{Config, User};
use super::proxy;

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
    /// The files or documents do not fit together.
    #[error("its {0} is not that of the files or documents before it")]
    Mismatch(&'static str),
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
    /// The file with the certificates of the cluster's authority cannot be read.
    #[error("certificate-authority {}: {source}", .path.display())]
    AuthorityFile {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The certificates of the cluster's authority cannot be used.
    #[error("certificate-authority-data: {0}")]
    Authority(&'static str),
}

impl KubeconfigError {
    fn is_missing(&self) -> bool {
        matches!(self, Self::Read(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

/// Returns the user's kubeconfig: the variable `KUBECONFIG`, or else `~/.kube/config`.
pub(super) fn default_list() -> PathBuf {
    let variable = env::var_os("KUBECONFIG").filter(|list| files(list).next().is_some());
    let home = || env::home_dir().unwrap_or_else(|| "~".into()).join(".kube/config");
    variable.map_or_else(home, PathBuf::from)
}

/// Reads the configuration of the current context from a list of files.
pub(super) fn load(list: &Path) -> Result<Config, KubeconfigError> {
    let kubeconfig = read(list)?;
    let name = kubeconfig.current_context.ok_or(KubeconfigError::NoCurrentContext)?;
    let context = kubeconfig.contexts.into_iter().find(|named| named.name == name);
    let context = context.ok_or(KubeconfigError::NoContext(name))?.value;
    let cluster = kubeconfig.clusters.into_iter().find(|named| named.name == context.cluster);
    let cluster = cluster.ok_or(KubeconfigError::NoCluster(context.cluster))?.value;
    // As for `kubectl`, a user who does not exist has no credentials.
    let user = kubeconfig.users.into_iter().find(|named| Some(&named.name) == context.user.as_ref());
    config(cluster, user.map(|named| named.value).unwrap_or_default())
}

fn config(cluster: Cluster, mut user: User) -> Result<Config, KubeconfigError> {
    if let Some(exec) = user.exec.as_mut().filter(|exec| exec.provide_cluster_info) {
        exec.cluster = Some(cluster_info(&cluster)?);
    }
    let server = url(&cluster, &mut user)?;
    if has_authority(&cluster) && cluster.insecure_skip_tls_verify && server.scheme() == Some(&Scheme::HTTPS) {
        return Err(KubeconfigError::AuthorityNotUsed);
    }
    let proxy = cluster.proxy_url.or_else(|| proxy::of_environment(&server));
    let mut config = Config::new(server);
    config.proxy_url = proxy.as_deref().map(str::parse).transpose().map_err(KubeconfigError::Proxy)?;
    config.accept_invalid_certs = cluster.insecure_skip_tls_verify;
    config.tls_server_name = cluster.tls_server_name;
    config.root_cert = cluster.certificate_authority_data.as_deref().map(authorities).transpose()?;
    // The data wins over the file.
    let file = cluster.certificate_authority.filter(|_| config.root_cert.is_none());
    config.root_cert_file = file.map(PathBuf::from);
    config.user = user;
    Ok(config)
}

/// Returns the description of a cluster for an exec plugin.
fn cluster_info(cluster: &Cluster) -> Result<Value, KubeconfigError> {
    let read = |path: &String| {
        let content = fs::read(path).map(|content| STANDARD.encode(content));
        content.map_err(|source| KubeconfigError::AuthorityFile { path: path.into(), source })
    };
    let authority = match &cluster.certificate_authority_data {
        Some(data) => Some(data.clone()),
        None => cluster.certificate_authority.as_ref().map(read).transpose()?,
    };
    let mut info = json!({
        "server": cluster.server,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify.then_some(true),
        "certificate-authority-data": authority,
        "proxy-url": cluster.proxy_url,
        "tls-server-name": cluster.tls_server_name,
        "config": cluster.exec_extension,
    });
    info.as_object_mut().into_iter().for_each(|info| info.retain(|_, value| !value.is_null()));
    Ok(info)
}

/// Returns the URL of a cluster. Without a scheme it is one of HTTPS if there is anything to protect; a name and a password in it
/// are those of the user, unless the user has credentials.
///
/// A server with `http://` gets the credentials, too, which `kubectl` does not send: the embedded API server needs them.
fn url(cluster: &Cluster, user: &mut User) -> Result<Uri, KubeconfigError> {
    let server = cluster.server.as_deref().ok_or(KubeconfigError::NoServer)?;
    let (scheme, rest) = server.split_once("://").map_or((None, server), |(scheme, rest)| (Some(scheme), rest));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (account, host) = authority.rsplit_once('@').map_or((None, authority), |(account, host)| (Some(account), host));
    let has_tls = has_authority(cluster)
        || cluster.insecure_skip_tls_verify
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
            merged_before.merge(document)?;
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
    let documents = yaml(&text).map_err(KubeconfigError::Parse)?;
    let configs = documents.iter().map(Kubeconfig::read).collect::<Result<Vec<_>, _>>();
    let mut configs = configs.map_err(|mistake| KubeconfigError::Parse(mistake.to_string()))?;
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

/// Makes the paths in a kubeconfig relative to the directory of its file.
fn resolve_paths(config: &mut Kubeconfig, directory: &Path) {
    let resolve = |path: &mut Option<String>| {
        if let Some(path) = path
            && let Some(resolved) = directory.join(&*path).to_str()
        {
            *path = resolved.to_owned();
        }
    };
    for named in &mut config.clusters {
        resolve(&mut named.value.certificate_authority);
    }
    for user in config.users.iter_mut().map(|named| &mut named.value) {
        resolve(&mut user.client_certificate);
        resolve(&mut user.client_key);
        resolve(&mut user.token_file);
        // A command without a separator is looked up in `PATH`.
        if let Some(exec) = user.exec.as_mut().filter(|exec| exec.command.as_ref().is_some_and(|it| it.contains('/'))) {
            resolve(&mut exec.command);
        }
    }
}
