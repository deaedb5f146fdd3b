//! The content of a kubeconfig, read from the value that its YAML is.
//!
//! Only what a client needs is read; anything else may have any type. Texts that are empty mean the same as none.

use std::collections::BTreeMap;
use std::fmt;

use secrecy::SecretString;
use serde_json::{Map, Value};

use super::KubeconfigError;
use crate::connection::config::{AuthProvider, Exec, InteractiveMode, User};

/// The name of a cluster's extension that is meant for exec plugins.
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";

/// A document, or several merged ones.
#[derive(Default)]
pub(super) struct Kubeconfig {
    kind: Option<String>,
    api_version: Option<String>,
    pub(super) current_context: Option<String>,
    pub(super) clusters: Vec<Named<Cluster>>,
    pub(super) users: Vec<Named<User>>,
    pub(super) contexts: Vec<Named<Context>>,
}

/// An element of a list.
pub(super) struct Named<T> {
    pub(super) name: String,
    pub(super) value: T,
}

#[derive(Default)]
pub(super) struct Cluster {
    pub(super) server: Option<String>,
    pub(super) insecure_skip_tls_verify: bool,
    pub(super) certificate_authority: Option<String>,
    pub(super) certificate_authority_data: Option<String>,
    pub(super) proxy_url: Option<String>,
    pub(super) tls_server_name: Option<String>,
    /// Further configuration for exec plugins.
    pub(super) exec_extension: Option<Value>,
}

#[derive(Default)]
pub(super) struct Context {
    pub(super) cluster: String,
    pub(super) user: Option<String>,
}

/// A value of the wrong type. Does not have the value: it may be a token.
pub(in crate::connection) struct Mistake {
    /// Where the value is, each key after a point and each index in brackets.
    path: String,
    problem: String,
}

type Read<T> = Result<T, Mistake>;

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.trim_start_matches('.') {
            "" => f.write_str(&self.problem),
            path => write!(f, "{path}: {}", self.problem),
        }
    }
}

impl Mistake {
    fn new(value: &Value, expected: &str) -> Self {
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "a list",
            Value::Object(_) => "a map",
        };
        Self { path: String::new(), problem: format!("{found} instead of {expected}") }
    }

    fn missing(field: &str) -> Self {
        Self { path: String::new(), problem: format!("missing field `{field}`") }
    }

    /// Puts a part of the path before it.
    fn below(mut self, parent: &str) -> Self {
        self.path.insert_str(0, parent);
        self
    }
}

impl Kubeconfig {
    pub(super) fn read(document: &Value) -> Read<Self> {
        let fields = Fields::of(document)?;
        Ok(Self {
            kind: fields.text("kind")?,
            api_version: fields.text("apiVersion")?,
            current_context: fields.text("current-context")?,
            clusters: fields.named("clusters", "cluster", Cluster::read)?,
            users: fields.named("users", "user", user)?,
            contexts: fields.named("contexts", "context", Context::read)?,
        })
    }

    /// Adds what another document sets and this one does not.
    pub(super) fn merge(&mut self, next: Self) -> Result<(), KubeconfigError> {
        merge_type("kind", &mut self.kind, next.kind)?;
        merge_type("apiVersion", &mut self.api_version, next.api_version)?;
        self.current_context = self.current_context.take().or(next.current_context);
        merge_named(&mut self.clusters, next.clusters);
        merge_named(&mut self.users, next.users);
        merge_named(&mut self.contexts, next.contexts);
        Ok(())
    }
}

fn merge_type(field: &'static str, known: &mut Option<String>, next: Option<String>) -> Result<(), KubeconfigError> {
    if known.is_some() && next.is_some() && *known != next {
        return Err(KubeconfigError::Mismatch(field));
    }
    *known = known.take().or(next);
    Ok(())
}

fn merge_named<T>(known: &mut Vec<Named<T>>, next: Vec<Named<T>>) {
    for named in next {
        if known.iter().all(|it| it.name != named.name) {
            known.push(named);
        }
    }
}

impl Cluster {
    fn read(cluster: &Value) -> Read<Self> {
        let fields = Fields::of(cluster)?;
        let mut extensions = cluster["extensions"].as_array().into_iter().flatten();
        let extension = extensions.find(|extension| extension["name"] == EXEC_EXTENSION);
        Ok(Self {
            server: fields.text("server")?,
            insecure_skip_tls_verify: fields.boolean("insecure-skip-tls-verify")?,
            certificate_authority: fields.text("certificate-authority")?,
            certificate_authority_data: fields.data("certificate-authority-data")?,
            proxy_url: fields.text("proxy-url")?,
            tls_server_name: fields.text("tls-server-name")?,
            exec_extension: extension.map(|extension| extension["extension"].clone()),
        })
    }
}

impl Context {
    fn read(context: &Value) -> Read<Self> {
        let fields = Fields::of(context)?;
        Ok(Self { cluster: fields.text("cluster")?.unwrap_or_default(), user: fields.text("user")? })
    }
}

/// Reads a user.
pub(in crate::connection) fn user(user: &Value) -> Read<User> {
    let fields = Fields::of(user)?;
    Ok(User {
        username: fields.text("username")?,
        password: fields.get("password", text)?.map(SecretString::from),
        token: fields.text("token")?.map(SecretString::from),
        token_file: fields.text("tokenFile")?,
        client_certificate: fields.text("client-certificate")?,
        client_certificate_data: fields.data("client-certificate-data")?,
        client_key: fields.text("client-key")?,
        client_key_data: fields.data("client-key-data")?.map(SecretString::from),
        impersonate: fields.text("as")?,
        impersonate_uid: fields.text("as-uid")?,
        impersonate_groups: fields.list("as-groups", text)?,
        impersonate_user_extra: fields.get("as-user-extra", extra)?.unwrap_or_default(),
        auth_provider: fields.get("auth-provider", auth_provider)?,
        exec: fields.get("exec", exec)?,
    })
}

fn extra(extra: &Value) -> Read<BTreeMap<String, Vec<String>>> {
    let fields = Fields::of(extra)?;
    fields.0.keys().map(|key| Ok((key.clone(), fields.list(key, text)?))).collect()
}

fn auth_provider(provider: &Value) -> Read<AuthProvider> {
    let fields = Fields::of(provider)?;
    let id_token = fields.get("config", |config| Fields::of(config)?.text("id-token"))?.flatten();
    Ok(AuthProvider { name: fields.required("name")?, id_token: id_token.map(SecretString::from) })
}

fn exec(exec: &Value) -> Read<Exec> {
    let fields = Fields::of(exec)?;
    let variable = |variable: &Value| {
        let fields = Fields::of(variable)?;
        Ok(fields.get("name", text)?.zip(fields.get("value", text)?))
    };
    Ok(Exec {
        api_version: fields.text("apiVersion")?,
        command: fields.text("command")?,
        args: fields.list("args", text)?,
        env: fields.list("env", variable)?.into_iter().flatten().collect(),
        install_hint: fields.text("installHint")?,
        interactive_mode: fields.get("interactiveMode", interactive_mode)?.unwrap_or_default(),
        provide_cluster_info: fields.boolean("provideClusterInfo")?,
        cluster: None,
    })
}

fn interactive_mode(mode: &Value) -> Read<InteractiveMode> {
    match mode.as_str() {
        Some("Never") => Ok(InteractiveMode::Never),
        Some("IfAvailable" | "") => Ok(InteractiveMode::IfAvailable),
        Some("Always") => Ok(InteractiveMode::Always),
        _ => Err(Mistake::new(mode, "one of `Never`, `IfAvailable`, `Always`")),
    }
}

/// The fields of a map.
struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    fn of(value: &'a Value) -> Read<Self> {
        value.as_object().map(Self).ok_or_else(|| Mistake::new(value, "a map"))
    }

    /// Reads a field, if there is one that is not null.
    fn get<T>(&self, field: &str, read: impl FnOnce(&'a Value) -> Read<T>) -> Read<Option<T>> {
        let value = self.0.get(field).filter(|value| !value.is_null());
        value.map(read).transpose().map_err(|mistake| mistake.below(&format!(".{field}")))
    }

    fn text(&self, field: &str) -> Read<Option<String>> {
        Ok(self.get(field, text)?.filter(|text| !text.is_empty()))
    }

    /// Reads base64, without line ends, which decoders in other languages ignore.
    fn data(&self, field: &str) -> Read<Option<String>> {
        let data = self.get(field, text)?.map(|data| data.replace(['\r', '\n'], ""));
        Ok(data.filter(|data| !data.is_empty()))
    }

    fn required(&self, field: &str) -> Read<String> {
        self.get(field, text)?.ok_or_else(|| Mistake::missing(field))
    }

    fn boolean(&self, field: &str) -> Read<bool> {
        Ok(self.get(field, boolean)?.unwrap_or_default())
    }

    fn list<T>(&self, field: &str, read: impl Fn(&'a Value) -> Read<T>) -> Read<Vec<T>> {
        let read = |value: &'a Value| {
            let elements = value.as_array().ok_or_else(|| Mistake::new(value, "a list"))?.iter().enumerate();
            elements
                .map(|(index, element)| read(element).map_err(|mistake| mistake.below(&format!("[{index}]"))))
                .collect()
        };
        Ok(self.get(field, read)?.unwrap_or_default())
    }

    /// Reads a list of elements with a name and something else.
    fn named<T: Default>(&self, list: &str, field: &str, read: fn(&'a Value) -> Read<T>) -> Read<Vec<Named<T>>> {
        self.list(list, |element| {
            let fields = Fields::of(element)?;
            Ok(Named { name: fields.required("name")?, value: fields.get(field, read)?.unwrap_or_default() })
        })
    }
}

fn text(value: &Value) -> Read<String> {
    let expected = match value {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(_) | Value::Object(_) => "a string",
        Value::Null | Value::Bool(_) | Value::Number(_) => "a string: put it in quotes",
    };
    Err(Mistake::new(value, expected))
}

/// Reads a boolean. Accepts the other words of YAML 1.1, which are texts elsewhere: `no` and `on` are also names.
fn boolean(value: &Value) -> Read<bool> {
    match value.as_str().map(str::to_ascii_lowercase).as_deref() {
        Some("y" | "yes" | "on" | "true") => Ok(true),
        Some("n" | "no" | "off" | "false") => Ok(false),
        _ => value.as_bool().ok_or_else(|| Mistake::new(value, "a boolean")),
    }
}
