//! Exec plugins: programs that print credentials, in the API `client.authentication.k8s.io`.

use std::fmt;
use std::io::{self, IsTerminal as _};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::thread;

use http::header::HeaderValue;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use rustls::sign::CertifiedKey;
use serde_json::{Value, json};
use tokio::sync::{Mutex, oneshot};

use super::{CredentialsError, Used, bearer};
use crate::connection::config::{Exec, InteractiveMode};
use crate::connection::tls::{Identity, TlsError, certified_key};
use crate::connection::{kubeconfig, lock};

/// The time before the expiration of a credential at which it is renewed.
const MARGIN: SignedDuration = SignedDuration::from_secs(60);
/// The number of characters of a plugin's message that an error has.
const MAX_MESSAGE: usize = 300;

/// An exec plugin and what it printed last.
pub(super) struct Plugin {
    config: Arc<Exec>,
    state: Mutex<State>,
    /// What the server has refused last.
    refused: std::sync::Mutex<Option<Used>>,
    identity: Option<Arc<Identity>>,
}

#[derive(Default)]
struct State {
    credential: Option<Credential>,
    /// The current run. It survives the request that has started it, so that a plugin that hangs is not started again and again.
    run: Option<oneshot::Receiver<Result<Credential, String>>>,
    /// Whether the last run failed, and the credential before it is used.
    is_failing: bool,
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
    pub(super) async fn run_first(config: Exec) -> Result<Self, CredentialsError> {
        let config = Arc::new(config);
        let mut state = State::default();
        let mut first = state.run(&config).await?;
        let identity = first.identity.take();
        let identity = identity.map(|key| Arc::new(Identity::Plugin(std::sync::Mutex::new(key))));
        state.credential = Some(first);
        Ok(Self { config, state: Mutex::new(state), refused: std::sync::Mutex::default(), identity })
    }

    /// Returns the header of the current token. Runs the plugin if it expires soon, or if the server has refused it.
    pub(super) async fn header(&self) -> Result<Option<HeaderValue>, CredentialsError> {
        // Held while the plugin runs: other requests wait for the same credential.
        let mut state = self.state.lock().await;
        if let Some(refused) = lock(&self.refused).take() {
            state.credential = state.credential.take().filter(|current| !self.is_with(current, &refused));
        }
        if let Some(valid) = state.credential.as_ref().filter(|credential| credential.lasts(MARGIN)) {
            return Ok(valid.token.clone());
        }
        let mut fresh = match state.run(&self.config).await {
            Ok(fresh) => fresh,
            Err(error) => return state.after_failure(error),
        };
        if let (Some(identity), Some(fresh)) = (&self.identity, fresh.identity.take()) {
            identity.replace(fresh);
        }
        state.is_failing = false;
        Ok(state.credential.insert(fresh).token.clone())
    }

    /// Runs the plugin for the next request, unless it has run since this credential.
    pub(super) fn refuse(&self, used: Used) {
        *lock(&self.refused) = Some(used);
    }

    /// Whether a request was sent with this credential, and not with one before it.
    fn is_with(&self, credential: &Credential, used: &Used) -> bool {
        let is_certificate_before = match (&self.identity, &used.identity) {
            (Some(own), Some(used)) => !Arc::ptr_eq(&own.current(), used),
            // The connection has none without TLS, and that of the kubeconfig if the plugin prints none: it says nothing about
            // the plugin's credential.
            _ => false,
        };
        credential.token == used.authorization && !is_certificate_before
    }

    pub(super) fn identity(&self) -> Option<Arc<Identity>> {
        self.identity.clone()
    }
}

impl State {
    /// Runs a plugin, or waits for its current run.
    async fn run(&mut self, config: &Arc<Exec>) -> Result<Credential, CredentialsError> {
        let result = match &mut self.run {
            Some(run) => run.await,
            none => match start(config.clone()) {
                Ok(run) => none.insert(run).await,
                Err(error) => Ok(Err(error.to_string())),
            },
        };
        self.run = None;
        let credential = result.unwrap_or_else(|_ended| Err("its thread ended without a result".to_owned()));
        let command = || config.command.clone().unwrap_or_default();
        credential.map_err(|problem| CredentialsError::Exec { command: command(), problem })
    }

    /// Returns the last token if it is still valid: the server accepts it, so a plugin that fails some time before its expiration
    /// fails no request.
    fn after_failure(&mut self, error: CredentialsError) -> Result<Option<HeaderValue>, CredentialsError> {
        let Some(last) = self.credential.as_ref().filter(|last| last.lasts(SignedDuration::ZERO)) else {
            return Err(error);
        };
        if !self.is_failing {
            tracing::warn!(%error, "renewing a credential failed, using the last one until it expires");
        }
        self.is_failing = true;
        Ok(last.token.clone())
    }
}

impl Credential {
    /// Whether it is valid for longer than some time.
    fn lasts(&self, time: SignedDuration) -> bool {
        self.expires.is_none_or(|expires| expires.duration_since(Timestamp::now()) > time)
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

/// Starts a run of a plugin, on a thread of its own: the end of a runtime waits for the blocking work on its threads, and a plugin
/// that hangs would keep the process from ending.
fn start(config: Arc<Exec>) -> io::Result<oneshot::Receiver<Result<Credential, String>>> {
    let (sender, receiver) = oneshot::channel();
    let work = move || {
        // Nobody waits for it any more if the driver ends.
        let _ = sender.send(run(&config));
    };
    thread::Builder::new().name("exec-plugin".to_owned()).spawn(work)?;
    Ok(receiver)
}

/// Runs a plugin and reads what it prints. Blocks.
fn run(config: &Exec) -> Result<Credential, String> {
    let output = execute(config)?;
    if output.status.success() { Credential::parse(&output.stdout) } else { Err(describe_failure(&output)) }
}

/// Executes the command of a plugin and waits for its end.
fn execute(config: &Exec) -> Result<Output, String> {
    let program = config.command.as_ref().ok_or("has no command")?;
    let is_terminal = io::stdin().is_terminal();
    if config.interactive_mode == InteractiveMode::Always && !is_terminal {
        return Err("needs a terminal: its interactiveMode is Always".to_owned());
    }
    let is_interactive = is_terminal && config.interactive_mode != InteractiveMode::Never;
    let mut spec = json!({ "interactive": is_interactive });
    if let Some(cluster) = &config.cluster {
        spec["cluster"] = cluster.clone();
    }
    let info = json!({ "kind": "ExecCredential", "apiVersion": config.api_version, "spec": spec });
    let mut command = Command::new(program);
    command.args(&config.args).env("KUBERNETES_EXEC_INFO", info.to_string());
    command.envs(config.env.iter().map(|(name, value)| (name, value)));
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
