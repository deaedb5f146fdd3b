//! Kubeconfig files.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;

/// Returns a kubeconfig file with a token. It is JSON, which is also YAML.
pub(crate) fn kubeconfig(url: &str, ca_pem: Option<&str>, user: &str, token: &str) -> String {
    let mut cluster = json!({ "server": url });
    if let Some(pem) = ca_pem {
        cluster["certificate-authority-data"] = BASE64_STANDARD.encode(pem).into();
    }
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "drakkar", "cluster": cluster }],
        "users": [{ "name": user, "user": { "token": token } }],
        "contexts": [{ "name": "drakkar", "context": { "cluster": "drakkar", "user": user, "namespace": "default" } }],
        "current-context": "drakkar",
    });
    format!("{config:#}\n")
}
