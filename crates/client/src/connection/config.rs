//! How to reach an API server, and as whom: what a kubeconfig or the pod's service account says.
//!
//! The types are not those of `kube`: they have fields for all that a kubeconfig may have, and code that parses these.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;

use http::Uri;
use secrecy::SecretString;
use serde_json::Value;

/// The configuration of a client.
#[derive(Clone)]
pub(super) struct Config {
    pub(super) server: Uri,
    /// The certificates that sign the server's, in DER.
    pub(super) root_cert: Option<Vec<Vec<u8>>>,
    /// The file with the certificates that sign the server's. It wins over [`Self::root_cert`].
    pub(super) root_cert_file: Option<PathBuf>,
    /// Whether any server is trusted.
    pub(super) accept_invalid_certs: bool,
    /// The name that the server's certificate has to have, if it is not that of its URL.
    pub(super) tls_server_name: Option<String>,
    pub(super) proxy_url: Option<Uri>,
    pub(super) user: User,
}

/// The user of a kubeconfig. Texts are not empty.
#[derive(Clone, Default)]
pub(super) struct User {
    pub(super) username: Option<String>,
    /// May be empty.
    pub(super) password: Option<SecretString>,
    pub(super) token: Option<SecretString>,
    pub(super) token_file: Option<String>,
    pub(super) client_certificate: Option<String>,
    pub(super) client_certificate_data: Option<String>,
    pub(super) client_key: Option<String>,
    pub(super) client_key_data: Option<SecretString>,
    pub(super) impersonate: Option<String>,
    pub(super) impersonate_uid: Option<String>,
    pub(super) impersonate_groups: Vec<String>,
    pub(super) impersonate_user_extra: BTreeMap<String, Vec<String>>,
    pub(super) auth_provider: Option<AuthProvider>,
    pub(super) exec: Option<Exec>,
}

/// A built-in login, from before exec plugins.
#[derive(Clone, Default)]
pub(super) struct AuthProvider {
    pub(super) name: String,
    pub(super) id_token: Option<SecretString>,
}

/// An exec plugin: a program that prints credentials.
#[derive(Clone, Default)]
pub(super) struct Exec {
    pub(super) api_version: Option<String>,
    pub(super) command: Option<String>,
    pub(super) args: Vec<String>,
    /// Names and values of variables of the environment.
    pub(super) env: Vec<(String, String)>,
    pub(super) install_hint: Option<String>,
    pub(super) interactive_mode: InteractiveMode,
    pub(super) provide_cluster_info: bool,
    /// The description of the cluster for the plugin, with `provideClusterInfo`.
    pub(super) cluster: Option<Value>,
}

/// Whether an exec plugin may or must ask the user.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum InteractiveMode {
    Never,
    #[default]
    IfAvailable,
    Always,
}

impl Config {
    pub(super) fn new(server: Uri) -> Self {
        Self {
            server,
            root_cert: None,
            root_cert_file: None,
            accept_invalid_certs: false,
            tls_server_name: None,
            proxy_url: None,
            user: User::default(),
        }
    }

    /// Applies the variables with which programs that use `kube` are debugged.
    pub(super) fn apply_debug_overrides(&mut self) {
        if let Ok(name) = env::var("KUBE_RS_DEBUG_IMPERSONATE_USER") {
            tracing::warn!(name, "impersonating user");
            self.user.impersonate = Some(name);
        }
        if let Ok(groups) = env::var("KUBE_RS_DEBUG_IMPERSONATE_GROUP") {
            tracing::warn!(groups, "impersonating groups");
            self.user.impersonate_groups = groups.split(',').map(str::to_owned).collect();
        }
        if let Ok(url) = env::var("KUBE_RS_DEBUG_OVERRIDE_URL") {
            tracing::warn!(url, "overriding cluster URL");
            match url.parse() {
                Ok(server) => self.server = server,
                Err(error) => tracing::warn!(%error, "overriding cluster URL failed, using that of the configuration"),
            }
        }
    }
}
