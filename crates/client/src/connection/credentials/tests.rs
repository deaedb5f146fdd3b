use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use http::Uri;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use super::*;
use crate::connection::config::{Exec, InteractiveMode};
use crate::connection::kubeconfig;
use crate::connection::tls::certified_key;

fn config(user: &Value) -> Config {
    let mut config = Config::new(Uri::from_static("http://localhost"));
    config.user = kubeconfig::user(user).unwrap_or_else(|mistake| panic!("{mistake}"));
    config
}

/// Reads the credentials of a user, as in a kubeconfig.
async fn credentials(user: Value) -> Result<Credentials, CredentialsError> {
    Credentials::new(&config(&user)).await
}

/// What a request with this token was sent with.
fn used(authorization: &str) -> Used {
    Used { authorization: Some(HeaderValue::from_str(authorization).unwrap()), identity: None }
}

/// Makes a certificate and its key, in PEM.
fn certificate() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

async fn error_of(user: Value) -> String {
    credentials(user).await.err().unwrap().to_string()
}

async fn authorization(credentials: &Credentials) -> Option<String> {
    let headers = credentials.headers().await.unwrap();
    headers.get(AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned())
}

/// An exec plugin: a script, and the number of its runs.
struct Script(tempfile::TempDir);

impl Script {
    fn new(body: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plugin");
        fs::write(&path, format!("cd \"${{0%/*}}\"\necho >> runs\n{body}\n")).unwrap();
        Self(directory)
    }

    /// A plugin that prints a token with the number of its runs.
    fn with_token(expires: Option<SignedDuration>) -> Self {
        let expires = expires.map(|after| format!(r#","expirationTimestamp":"{}""#, Timestamp::now() + after));
        let expires = expires.unwrap_or_default();
        Self::new(&format!("echo '{{\"status\":{{\"token\":\"secret-'$(wc -l < runs)'\"{expires}}}}}'"))
    }

    /// Returns the path of the script, which is an argument: a file that was just written may still be too busy to be executed.
    fn path(&self) -> String {
        self.0.path().join("plugin").to_str().unwrap().to_owned()
    }

    fn user(&self) -> Value {
        json!({ "exec": { "command": "sh", "args": [self.path()] } })
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.path().join(file)).unwrap()
    }

    fn runs(&self) -> usize {
        self.read("runs").lines().count()
    }
}

#[tokio::test]
async fn credentials_of_the_kubeconfig_are_sent_as_they_are() {
    for (user, expected) in [
        (json!({}), None),
        (json!({ "username": "u", "password": "p", "token": "secret" }), Some("Basic dTpw")),
        (json!({ "username": "u", "token": "secret", "tokenFile": "/nonexistent" }), Some("Bearer secret")),
        (json!({ "token": "", "tokenFile": "" }), None),
        (json!({ "token": "secret", "exec": { "command": "/nonexistent/plugin" } }), Some("Bearer secret")),
        (
            json!({ "auth-provider": { "name": "oidc", "config": { "id-token": "secret" } }, "token": "other" }),
            Some("Bearer secret"),
        ),
    ] {
        assert_eq!(authorization(&credentials(user).await.unwrap()).await.as_deref(), expected);
    }
}

#[tokio::test]
async fn users_act_as_others() {
    let user = json!({
        "as": "jane", "as-uid": "7", "as-groups": ["a", "b"], "as-user-extra": { "acme.com/Team%": ["x", "y"] }, "token": "secret",
    });
    let headers = credentials(user).await.unwrap().headers().await.unwrap();
    let all = |name: &str| headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect::<Vec<_>>();
    assert_eq!(all("impersonate-user"), ["jane"]);
    assert_eq!(all("impersonate-uid"), ["7"]);
    assert_eq!(all("impersonate-group"), ["a", "b"]);
    assert_eq!(all("impersonate-extra-acme.com%2fteam%25"), ["x", "y"]);
    assert_eq!(all("authorization"), ["Bearer secret"]);
    assert_eq!(error_of(json!({ "as": "a\nb" })).await, "as: has a character that a header cannot have");
}

#[tokio::test]
async fn auth_providers_are_replaced_by_plugins() {
    for (name, expected) in [
        ("gcp", "auth-provider gcp: was removed in Kubernetes 1.26; use the exec plugin gke-gcloud-auth-plugin"),
        ("azure", "auth-provider azure: was removed in Kubernetes 1.26; use the exec plugin kubelogin"),
        ("oidc", "auth-provider oidc: has no id-token; log in again, or use an exec plugin, such as kubelogin"),
        ("openstack", "auth-provider openstack: is not supported; use an exec plugin"),
    ] {
        assert_eq!(error_of(json!({ "auth-provider": { "name": name } })).await, expected);
    }
}

#[tokio::test]
async fn a_token_file_is_read_again_and_the_last_token_stays_if_that_fails() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let user = json!({ "tokenFile": file.path() });
    fs::write(file.path(), " first\n").unwrap();
    let credentials = credentials(user.clone()).await.unwrap();
    let Token::File(reloaded) = &credentials.token else { panic!("{credentials:?}") };
    fs::write(file.path(), "second").unwrap();
    assert_eq!(authorization(&credentials).await.unwrap(), "Bearer first", "a minute has not passed");
    reloaded.expire();
    assert_eq!(authorization(&credentials).await.unwrap(), "Bearer second");
    for broken in ["", "\n", "two\nlines"] {
        fs::write(file.path(), broken).unwrap();
        reloaded.expire();
        assert_eq!(authorization(&credentials).await.unwrap(), "Bearer second");
        let error = error_of(user.clone()).await;
        assert!(error.starts_with(&format!("tokenFile {}: ", file.path().display())), "{error}");
        assert!(!error.contains("two"), "{error}");
    }
    fs::write(file.path(), "third").unwrap();
    reloaded.expire();
    assert_eq!(authorization(&credentials).await.unwrap(), "Bearer third");
    // The token of the kubeconfig itself is used until the file can be read.
    let later = file.path().with_extension("later");
    let both = Credentials::new(&config(&json!({ "tokenFile": later, "token": "inline" }))).await.unwrap();
    let Token::File(reloaded) = &both.token else { panic!("{both:?}") };
    assert_eq!(authorization(&both).await.unwrap(), "Bearer inline");
    fs::write(&later, "fourth").unwrap();
    reloaded.expire();
    assert_eq!(authorization(&both).await.unwrap(), "Bearer fourth");
    fs::remove_file(&later).unwrap();
    reloaded.expire();
    assert_eq!(authorization(&both).await.unwrap(), "Bearer fourth");
    let missing = error_of(json!({ "tokenFile": "/nonexistent/token" })).await;
    assert_eq!(missing, "tokenFile /nonexistent/token: No such file or directory (os error 2)");
}

#[tokio::test]
async fn a_plugin_runs_again_when_its_token_expires() {
    for (after, runs) in [(Some(-1), 3), (Some(30), 3), (Some(3600), 1), (None, 1)] {
        let script = Script::with_token(after.map(SignedDuration::from_secs));
        let credentials = credentials(script.user()).await.unwrap();
        for _ in 0..2 {
            authorization(&credentials).await.unwrap();
        }
        assert_eq!(script.runs(), runs, "{after:?}");
        assert_eq!(authorization(&credentials).await.unwrap(), format!("Bearer secret-{}", script.runs()));
    }
}

#[tokio::test]
async fn a_plugin_runs_again_after_the_server_has_refused_its_token() {
    let script = Script::with_token(None);
    let credentials = credentials(script.user()).await.unwrap();
    assert_eq!(authorization(&credentials).await.unwrap(), "Bearer secret-1");
    credentials.refuse(used("Bearer secret-1"));
    credentials.refuse(used("Bearer secret-1"));
    for _ in 0..2 {
        assert_eq!(authorization(&credentials).await.unwrap(), "Bearer secret-2");
    }
    // An answer to a request of before.
    credentials.refuse(used("Bearer secret-1"));
    assert_eq!(authorization(&credentials).await.unwrap(), "Bearer secret-2");
}

/// The connection has no certificate without TLS, and that of the kubeconfig if the plugin prints none.
#[tokio::test]
async fn a_refused_token_is_renewed_also_if_the_certificate_of_its_connection_is_not_the_plugins() {
    let (pem, key) = certificate();
    let of_kubeconfig = Some(certified_key(pem.as_bytes(), key.as_bytes()).unwrap());
    let script = Script::new("cat $(wc -l < runs)");
    for (prints, identity) in
        [(json!({}), of_kubeconfig), (json!({ "clientCertificateData": pem, "clientKeyData": key }), None)]
    {
        fs::remove_file(script.0.path().join("runs")).ok();
        for run in ["1", "2"] {
            let mut status = prints.clone();
            status["token"] = format!("secret-{run}").into();
            fs::write(script.0.path().join(run), json!({ "status": status }).to_string()).unwrap();
        }
        let credentials = credentials(script.user()).await.unwrap();
        assert_eq!(authorization(&credentials).await.unwrap(), "Bearer secret-1");
        credentials.refuse(Used { identity, ..used("Bearer secret-1") });
        assert_eq!(authorization(&credentials).await.unwrap(), "Bearer secret-2");
    }
}

#[tokio::test]
async fn a_token_is_used_until_it_expires_if_the_plugin_fails_before() {
    let expires = |after| (Timestamp::now() + SignedDuration::from_secs(after)).to_string();
    let first_only = |after| {
        let status = json!({ "token": "secret", "expirationTimestamp": expires(after) });
        Script::new(&format!("[ $(wc -l < runs) = 1 ] && echo '{}'", json!({ "status": status })))
    };
    let script = first_only(30);
    let last = credentials(script.user()).await.unwrap();
    for runs in [2, 3] {
        assert_eq!(authorization(&last).await.unwrap(), "Bearer secret");
        assert_eq!(script.runs(), runs);
    }
    last.refuse(used("Bearer secret"));
    for _ in 0..2 {
        assert_eq!(last.headers().await.unwrap_err().to_string(), "exec plugin sh: exit status: 1");
    }
    let script = first_only(-1);
    let expired = credentials(script.user()).await.unwrap();
    assert_eq!(expired.headers().await.unwrap_err().to_string(), "exec plugin sh: exit status: 1");
}

#[tokio::test]
async fn a_plugin_that_fails_later_runs_again_for_the_next_request() {
    let script = Script::new("[ $(wc -l < runs) != 2 ] && echo '{\"status\":{\"token\":\"secret\"}}'");
    let credentials = credentials(script.user()).await.unwrap();
    credentials.refuse(used("Bearer secret"));
    let error = credentials.headers().await.unwrap_err().to_string();
    assert_eq!(error, "exec plugin sh: exit status: 1");
    assert_eq!(authorization(&credentials).await.unwrap(), "Bearer secret");
    assert_eq!(script.runs(), 3);
}

#[tokio::test]
async fn requests_that_wait_for_a_plugin_share_its_token() {
    let script = Script::with_token(Some(SignedDuration::from_secs(3600)));
    let credentials = credentials(script.user()).await.unwrap();
    credentials.refuse(used("Bearer secret-1"));
    let (first, second) = tokio::join!(authorization(&credentials), authorization(&credentials));
    assert_eq!((first.as_deref(), second.as_deref()), (Some("Bearer secret-2"), Some("Bearer secret-2")));
}

#[tokio::test]
async fn a_plugin_that_hangs_is_not_started_again() {
    let token = r#"echo '{"status":{"token":"secret"}}'"#;
    let script = Script::new(&format!("if [ $(wc -l < runs) = 1 ]; then mkfifo gate; else cat gate; fi; {token}"));
    let credentials = credentials(script.user()).await.unwrap();
    credentials.refuse(used("Bearer secret"));
    for _ in 0..2 {
        tokio::select! { biased; _ = credentials.headers() => panic!("the plugin waits"), () = std::future::ready(()) => {} }
    }
    let gate = script.0.path().join("gate");
    let open = tokio::task::spawn_blocking(move || fs::write(gate, "").unwrap());
    assert_eq!(authorization(&credentials).await.unwrap(), "Bearer secret");
    open.await.unwrap();
    assert_eq!(script.runs(), 2);
}

#[test]
fn a_plugin_that_hangs_does_not_keep_the_process_from_ending() {
    let token = r#"echo '{"status":{"token":"secret"}}'"#;
    let script = Script::new(&format!("if [ $(wc -l < runs) = 1 ]; then mkfifo gate; {token}; else cat gate; fi"));
    let drop_runtime = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let credentials = credentials(script.user()).await.unwrap();
            credentials.refuse(used("Bearer secret"));
            let mut headers = std::pin::pin!(credentials.headers());
            while script.runs() < 2 {
                tokio::select! { biased; _ = &mut headers => panic!("the plugin waits"), () = tokio::task::yield_now() => {} }
            }
        });
    };
    let (ended, end) = mpsc::channel();
    let is_ended = thread::scope(|scope| {
        scope.spawn(|| {
            drop_runtime();
            ended.send(()).unwrap();
        });
        let is_ended = end.recv_timeout(Duration::from_secs(10)).is_ok();
        // Lets the plugin end.
        fs::write(script.0.path().join("gate"), "").unwrap();
        is_ended
    });
    assert!(is_ended, "the end of the runtime waits for the plugin");
}

/// What a plugin is given: arguments, variables, and the cluster if it wants it.
#[tokio::test]
async fn a_plugin_knows_what_it_is_asked_for() {
    let script =
        Script::new("echo \"$* $STAGE\" > args; echo \"$KUBERNETES_EXEC_INFO\" > info; echo 'status: {token: secret}'");
    let mut config = Config::new(Uri::from_static("http://localhost"));
    config.user.exec = Some(Exec {
        api_version: Some("client.authentication.k8s.io/v1".to_owned()),
        command: Some("sh".to_owned()),
        args: vec![script.path(), "get-token".to_owned(), "a b".to_owned()],
        env: vec![("STAGE".to_owned(), "test".to_owned())],
        interactive_mode: InteractiveMode::Never,
        provide_cluster_info: true,
        cluster: Some(json!({ "server": "https://server" })),
        ..Exec::default()
    });
    let credentials = Credentials::new(&config).await.unwrap();
    assert_eq!(authorization(&credentials).await.unwrap(), "Bearer secret", "YAML is accepted, too");
    assert_eq!(script.read("args"), "get-token a b test\n");
    let expected = json!({
        "kind": "ExecCredential",
        "apiVersion": "client.authentication.k8s.io/v1",
        "spec": { "interactive": false, "cluster": { "server": "https://server" } },
    });
    assert_eq!(serde_json::from_str::<Value>(&script.read("info")).unwrap(), expected);
}

#[tokio::test]
async fn errors_of_plugins_have_their_message_and_never_their_output() {
    for (body, expected) in [
        ("echo secret; echo >&2; echo ' not logged in' >&2; echo more >&2; exit 3", "exit status: 3: not logged in"),
        ("echo secret; exit 4", "exit status: 4"),
        ("kill -9 $$", "signal: 9 (SIGKILL)"),
        ("echo secret", "printed neither a token nor a client certificate"),
        ("echo '{secret'", "printed no ExecCredential"),
        (":", "printed no ExecCredential"),
        ("echo '{\"status\":{\"token\":\"secret\\u0001\"}}'", "token: has a character that a header cannot have"),
        (
            "echo '{\"status\":{\"token\":\"secret\",\"expirationTimestamp\":\"secret\"}}'",
            "expirationTimestamp: is not a time in RFC 3339",
        ),
        (
            "echo '{\"status\":{\"clientKeyData\":\"secret\"}}'",
            "printed only one of clientCertificateData and clientKeyData",
        ),
        (
            "echo '{\"status\":{\"clientCertificateData\":\"secret\",\"clientKeyData\":\"secret\"}}'",
            "client-certificate: is not a certificate in PEM",
        ),
    ] {
        let script = Script::new(body);
        let error = error_of(script.user()).await;
        let problem = error.strip_prefix("exec plugin sh: ").unwrap();
        assert!(problem.starts_with(expected) && !problem.contains("secret"), "{body}: {error}");
    }
    let missing = json!({ "exec": { "command": "/nonexistent/plugin", "installHint": "install\nit" } });
    assert_eq!(
        error_of(missing).await,
        "exec plugin /nonexistent/plugin: No such file or directory (os error 2); install it"
    );
    assert_eq!(error_of(json!({ "exec": {} })).await, "exec plugin : has no command");
}

#[tokio::test]
async fn debug_output_has_no_secrets() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "secret").unwrap();
    let script = Script::with_token(None);
    let exec =
        json!({ "command": "sh", "args": [script.path(), "secret"], "env": [{ "name": "X", "value": "secret" }] });
    for user in [
        json!({ "username": "u", "password": "secret" }),
        json!({ "token": "secret" }),
        json!({ "tokenFile": file.path() }),
        json!({ "exec": exec }),
    ] {
        let credentials = credentials(user).await.unwrap();
        let headers = credentials.headers().await.unwrap();
        let shown = format!("{credentials:?} {headers:?}");
        assert!(shown.contains("Sensitive") && !shown.contains("secret") && !shown.contains("dTpz"), "{shown}");
    }
    assert_eq!(error_of(json!({ "token": "secret\n" })).await, "token: has a character that a header cannot have");
}
