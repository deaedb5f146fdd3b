//! The headers with which a driver authenticates itself: those of a kubeconfig's user or of the pod's service account.

mod exec;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use rustls::sign::CertifiedKey;
use secrecy::ExposeSecret as _;

use self::exec::Plugin;
use super::config::{AuthProvider, Config, User};
use super::reloaded::Reloaded;
use super::tls::Identity;

/// The bytes of a key of `as-user-extra` that are escaped in the name of a header: all that a name may not have, and `%`.
const ESCAPED: AsciiSet = NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'*')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

/// Why there are no credentials. Never contains one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// The user has an `auth-provider` that is not supported.
    #[error("auth-provider {name}: {remedy}")]
    Provider {
        /// The name of the provider.
        name: String,
        /// What to use instead.
        remedy: &'static str,
    },
    /// A value cannot be sent in a header.
    #[error("{field}: has a character that a header cannot have")]
    Header {
        /// The field of the kubeconfig's user.
        field: &'static str,
    },
    /// The file with the token cannot be used.
    #[error("tokenFile {}: {source}", .path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The error of the system, or what is wrong with the content.
        source: io::Error,
    },
    /// The exec plugin failed.
    #[error("exec plugin {command}: {problem}")]
    Exec {
        /// The plugin's command, without arguments.
        command: String,
        /// What went wrong.
        problem: String,
    },
}

/// The credentials of a configuration.
#[derive(Debug)]
pub(crate) struct Credentials {
    /// The headers that never change.
    fixed: HeaderMap,
    token: Token,
}

/// What a request was sent with.
#[derive(Debug, Clone)]
pub(super) struct Used {
    pub(super) authorization: Option<HeaderValue>,
    /// The client certificate of its connection.
    pub(super) identity: Option<Arc<CertifiedKey>>,
}

/// Where the token comes from.
#[derive(Debug)]
enum Token {
    /// There is none, or it is among the headers that never change.
    Fixed,
    File(Reloaded<HeaderValue, CredentialsError>),
    Exec(Box<Plugin>),
}

impl Credentials {
    /// Reads the credentials of a configuration, or runs its exec plugin.
    pub(super) async fn new(config: &Config) -> Result<Self, CredentialsError> {
        let user = &config.user;
        let mut fixed = impersonation(user)?;
        if let Some(header) = fixed_authorization(user)? {
            fixed.insert(AUTHORIZATION, header);
            return Ok(Self { fixed, token: Token::Fixed });
        }
        let fixed_token = fixed_token(user)?;
        let token = match (&user.token_file, &user.exec) {
            (Some(path), _) => Token::File(token_file(path.into(), fixed_token)?),
            (_, Some(exec)) if fixed_token.is_none() => Token::Exec(Box::new(Plugin::run_first(exec.clone()).await?)),
            _ => {
                fixed.extend(fixed_token.map(|header| (AUTHORIZATION, header)));
                Token::Fixed
            }
        };
        Ok(Self { fixed, token })
    }

    /// Returns the headers for the next requests.
    pub(super) async fn headers(&self) -> Result<HeaderMap, CredentialsError> {
        let mut headers = self.fixed.clone();
        let token = match &self.token {
            Token::Fixed => None,
            Token::File(file) => Some(file.get()),
            Token::Exec(plugin) => plugin.header().await?,
        };
        if let Some(token) = token {
            headers.insert(AUTHORIZATION, token);
        }
        Ok(headers)
    }

    /// Gets other credentials for the next requests if there may be some: the server has refused these.
    pub(super) fn refuse(&self, used: Used) {
        match &self.token {
            Token::Fixed => {}
            Token::File(file) => file.expire(),
            Token::Exec(plugin) => plugin.refuse(used),
        }
    }

    /// Returns the client certificate that the exec plugin renews.
    pub(super) fn identity(&self) -> Option<Arc<Identity>> {
        match &self.token {
            Token::Exec(plugin) => plugin.identity(),
            Token::Fixed | Token::File(_) => None,
        }
    }
}

/// Returns the header of other credentials that the kubeconfig itself has.
fn fixed_authorization(user: &User) -> Result<Option<HeaderValue>, CredentialsError> {
    if let Some(provider) = &user.auth_provider {
        return bearer("id-token", id_token(provider)?).map(Some);
    }
    if let (Some(name), Some(password)) = (&user.username, &user.password) {
        let encoded = STANDARD.encode(format!("{name}:{}", password.expose_secret()));
        return sensitive("password", &format!("Basic {encoded}")).map(Some);
    }
    Ok(None)
}

/// Returns the header of the token that the kubeconfig itself has.
fn fixed_token(user: &User) -> Result<Option<HeaderValue>, CredentialsError> {
    user.token.as_ref().map(|token| bearer("token", token.expose_secret())).transpose()
}

/// Reads the token of a file, as `kubectl` does: until it can be read first, `otherwise` is used.
fn token_file(
    path: PathBuf,
    otherwise: Option<HeaderValue>,
) -> Result<Reloaded<HeaderValue, CredentialsError>, CredentialsError> {
    Reloaded::new(move |last| {
        let otherwise = || otherwise.clone().filter(|_| last.is_none());
        read_token(&path).or_else(|error| otherwise().ok_or(error))
    })
}

/// Returns the token of an `auth-provider`, which `kubectl` has replaced by exec plugins.
fn id_token(provider: &AuthProvider) -> Result<&str, CredentialsError> {
    let remedy = match (provider.name.as_str(), &provider.id_token) {
        ("oidc", Some(token)) => return Ok(token.expose_secret()),
        ("oidc", None) => "has no id-token; log in again, or use an exec plugin, such as kubelogin",
        ("gcp", _) => "was removed in Kubernetes 1.26; use the exec plugin gke-gcloud-auth-plugin",
        ("azure", _) => "was removed in Kubernetes 1.26; use the exec plugin kubelogin",
        _ => "is not supported; use an exec plugin",
    };
    Err(CredentialsError::Provider { name: provider.name.clone(), remedy })
}

fn read_token(path: &Path) -> Result<HeaderValue, CredentialsError> {
    let error = |source| CredentialsError::TokenFile { path: path.to_owned(), source };
    let invalid = |problem: &str| error(io::Error::new(io::ErrorKind::InvalidData, problem));
    let token = fs::read_to_string(path).map_err(error)?;
    match token.trim() {
        "" => Err(invalid("is empty")),
        token => bearer("tokenFile", token).ok().ok_or_else(|| invalid("has a character that a header cannot have")),
    }
}

fn bearer(field: &'static str, token: &str) -> Result<HeaderValue, CredentialsError> {
    sensitive(field, &format!("Bearer {token}"))
}

/// Makes a value that `Debug` does not show.
fn sensitive(field: &'static str, value: &str) -> Result<HeaderValue, CredentialsError> {
    let mut value = header(field, value)?;
    value.set_sensitive(true);
    Ok(value)
}

fn header(field: &'static str, value: &str) -> Result<HeaderValue, CredentialsError> {
    HeaderValue::from_str(value).ok().ok_or(CredentialsError::Header { field })
}

/// Returns the headers of a user who acts as another one.
fn impersonation(user: &User) -> Result<HeaderMap, CredentialsError> {
    let mut headers = HeaderMap::new();
    if let Some(name) = &user.impersonate {
        headers.insert("impersonate-user", header("as", name)?);
    }
    if let Some(uid) = &user.impersonate_uid {
        headers.insert("impersonate-uid", header("as-uid", uid)?);
    }
    for group in &user.impersonate_groups {
        headers.append("impersonate-group", header("as-groups", group)?);
    }
    for (key, values) in &user.impersonate_user_extra {
        const FIELD: &str = "as-user-extra";
        let name = format!("impersonate-extra-{}", percent_encode(key.as_bytes(), &ESCAPED));
        let name = HeaderName::try_from(name).ok().ok_or(CredentialsError::Header { field: FIELD })?;
        for value in values {
            headers.append(&name, header(FIELD, value)?);
        }
    }
    Ok(headers)
}
