//! Exec plugins: programs that print credentials, in the API `client.authentication.k8s.io`.

use std::fmt;
use std::io::{self, IsTerminal as _};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use http::header::HeaderValue;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::config::{ExecConfig, ExecInteractiveMode};
use rustls::sign::CertifiedKey;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::{CredentialsError, Used, bearer};
use crate::connection::tls::{Identity, TlsError, certified_key};
use crate::connection::{is_same, kubeconfig, lock};

/// The time before the expiration of a credential at which it is renewed.
const MARGIN: SignedDuration = SignedDuration::from_secs(60);
/// The number of characters of a plugin's message that an error has.
const MAX_MESSAGE: usize = 300;

/// An exec plugin and what it printed last.
pub(super) struct Plugin {
    config: Arc<ExecConfig>,
    state: Mutex<State>,
    /// What the server has refused last.
    refused: std::sync::Mutex<Option<Used>>,
    identity: Option<Arc<Identity>>,
}

#[derive(Default)]
struct State {
    credential: Option<Credential>,
    /// The current run. It survives the request that has started it, so that a plugin that hangs is not started again and again.
    run: Option<JoinHandle<Result<Credential, String>>>,
}

/// What a plugin prints.
struct Credential {
    token: Option<HeaderValue>,
    identity: Option<Arc<CertifiedKey>>,
    /// Without it, a credential is used until the server refuses it.
    expires: Option<Timestamp>,
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin").field("command", &self.config.command).finish_non_exhaustive()
    }
}

impl Plugin {
    /// Runs a plugin for the first time, which shows whether it has client certificates.
    pub(super) async fn run_first(config: ExecConfig) -> Result<Self, CredentialsError> {
        let config = Arc::new(config);
        let mut state = State::default();
        let identity = state.run(&config).await?.identity.take();
        let identity = identity.map(|key| Arc::new(Identity::Plugin(std::sync::Mutex::new(key))));
        Ok(Self { config, state: Mutex::new(state), refused: std::sync::Mutex::default(), identity })
    }

    /// Returns the header of the current token. Runs the plugin if it expires, or if the server has refused it.
    pub(super) async fn header(&self) -> Result<Option<HeaderValue>, CredentialsError> {
        // Held while the plugin runs: other requests wait for the same credential.
        let mut state = self.state.lock().await;
        if let Some(refused) = lock(&self.refused).take() {
            state.credential = state.credential.take().filter(|current| !self.is_with(current, &refused));
        }
        if let Some(valid) = state.credential.as_ref().filter(|credential| credential.is_valid()) {
            return Ok(valid.token.clone());
        }
        let fresh = state.run(&self.config).await?;
        if let (Some(identity), Some(fresh)) = (&self.identity, fresh.identity.take()) {
            identity.replace(fresh);
        }
        Ok(fresh.token.clone())
    }

    /// Runs the plugin for the next request, unless it has run since this credential.
    pub(super) fn refuse(&self, used: Used) {
        *lock(&self.refused) = Some(used);
    }

    /// Whether a request was sent with this credential, and not with one before it.
    fn is_with(&self, credential: &Credential, used: &Used) -> bool {
        let identity = self.identity.as_ref().map(|identity| identity.current());
        credential.token == used.authorization && is_same(identity.as_ref(), used.identity.as_ref())
    }

    pub(super) fn identity(&self) -> Option<Arc<Identity>> {
        self.identity.clone()
    }
}

impl State {
    /// Runs a plugin, or waits for its current run.
    async fn run(&mut self, config: &Arc<ExecConfig>) -> Result<&mut Credential, CredentialsError> {
        let run = self.run.get_or_insert_with(|| {
            let config = config.clone();
            tokio::task::spawn_blocking(move || run(&config))
        });
        let credential = run.await.unwrap_or_else(|error| Err(error.to_string()));
        self.run = None;
        let command = || config.command.clone().unwrap_or_default();
        let credential = credential.map_err(|problem| CredentialsError::Exec { command: command(), problem })?;
        Ok(self.credential.insert(credential))
    }
}

impl Credential {
    fn is_valid(&self) -> bool {
        self.expires.is_none_or(|expires| expires.duration_since(Timestamp::now()) > MARGIN)
    }

    /// Reads what a plugin has printed.
    fn parse(stdout: &[u8]) -> Result<Self, String> {
        let document = document(stdout).ok_or("printed no ExecCredential")?;
        let text = |field| document["status"][field].as_str().filter(|text: &&str| !text.is_empty());
        let token = text("token").map(|token| bearer("token", token)).transpose().map_err(|error| error.to_string())?;
        let identity = match (text("clientCertificateData"), text("clientKeyData")) {
            (None, None) => None,
            (Some(certificate), Some(key)) => {
                let identity = certified_key(certificate.as_bytes(), key.as_bytes());
                Some(identity.map_err(|error: TlsError| error.to_string())?)
            }
            _ => return Err("printed only one of clientCertificateData and clientKeyData".to_owned()),
        };
        if token.is_none() && identity.is_none() {
            return Err("printed neither a token nor a client certificate".to_owned());
        }
        let expires = text("expirationTimestamp").map(str::parse).transpose();
        let expires = expires.ok().ok_or("expirationTimestamp: is not a time in RFC 3339")?;
        Ok(Self { token, identity, expires })
    }
}

/// Parses JSON or, as `kubectl` does, YAML.
fn document(stdout: &[u8]) -> Option<Value> {
    serde_json::from_slice(stdout)
        .ok()
        .or_else(|| kubeconfig::yaml(str::from_utf8(stdout).ok()?).ok()?.into_iter().next())
}

/// Runs a plugin and reads what it prints. Blocks.
fn run(config: &ExecConfig) -> Result<Credential, String> {
    let output = execute(config)?;
    if output.status.success() { Credential::parse(&output.stdout) } else { Err(describe_failure(&output)) }
}

/// Executes the command of a plugin and waits for its end.
fn execute(config: &ExecConfig) -> Result<Output, String> {
    let program = config.command.as_ref().filter(|command| !command.is_empty()).ok_or("has no command")?;
    let is_terminal = io::stdin().is_terminal();
    if config.interactive_mode == Some(ExecInteractiveMode::Always) && !is_terminal {
        return Err("needs a terminal: its interactiveMode is Always".to_owned());
    }
    let is_interactive = is_terminal && config.interactive_mode != Some(ExecInteractiveMode::Never);
    let mut spec = json!({ "interactive": is_interactive });
    if let Some(cluster) = config.cluster.as_ref().filter(|_| config.provide_cluster_info) {
        spec["cluster"] = serde_json::to_value(cluster).map_err(|error| error.to_string())?;
    }
    let info = json!({ "kind": "ExecCredential", "apiVersion": config.api_version, "spec": spec });
    let mut command = Command::new(program);
    command.args(config.args.iter().flatten()).env("KUBERNETES_EXEC_INFO", info.to_string());
    for variable in config.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            command.env(name, value);
        }
    }
    for name in config.drop_env.iter().flatten() {
        command.env_remove(name);
    }
    if is_interactive {
        command.stdin(Stdio::inherit()).stderr(Stdio::inherit());
    } else {
        command.stdin(Stdio::null());
    }
    command.output().map_err(|error| match config.install_hint.as_deref().map(str::trim) {
        Some(hint) if error.kind() == io::ErrorKind::NotFound && !hint.is_empty() => {
            format!("{error}; {}", hint.replace('\n', " "))
        }
        _ => error.to_string(),
    })
}

/// Returns the exit status of a plugin and the first line of its messages. Its output may contain credentials.
fn describe_failure(output: &Output) -> String {
    let messages = String::from_utf8_lossy(&output.stderr);
    match messages.lines().map(str::trim).find(|line| !line.is_empty()) {
        Some(line) => format!("{}: {}", output.status, line.chars().take(MAX_MESSAGE).collect::<String>()),
        None => output.status.to_string(),
    }
}
