//! A test's place on a real API server: what is made there for it, and that it goes again.

use std::path::Path;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use super::rights::Rights;
use super::{ACCOUNT, Names, ask, try_ask};
use crate::support::PATIENCE;

const JSON: &str = "application/json";

/// A test's place on a real API server.
pub struct Real {
    config: kube::Config,
    admin: kube::Client,
    names: Names,
}

impl Real {
    pub async fn new(kubeconfig: &Path, names: Names) -> Self {
        let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        Self { admin: client(config.clone()), config, names }
    }

    /// In what the server is not as a test needs it.
    pub async fn is_otherwise(&self, gates: &[(&str, bool)], version: &str) -> Option<String> {
        let group = ask(&self.admin, "GET", "/apis/resource.k8s.io", JSON, &Value::Null).await;
        let versions = group["versions"].as_array().unwrap();
        if versions.iter().all(|has| has["version"] != version) {
            return Some(format!("it does not serve resource.k8s.io/{version}"));
        }
        if gates.is_empty() {
            return None;
        }
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let metrics = self.admin.request_text(request).await.unwrap();
        let is_on = |gate: &str| {
            let start = format!("kubernetes_feature_enabled{{name=\"{gate}\",");
            // An older server does not know of some.
            metrics.lines().any(|line| line.starts_with(&start) && line.ends_with(" 1"))
        };
        let wrong = gates.iter().find(|(gate, on)| is_on(gate) != *on);
        wrong.map(|(gate, on)| format!("its feature gate {gate} is {}", if *on { "off" } else { "on" }))
    }

    pub fn admin(&self) -> kube::Client {
        self.admin.clone()
    }

    pub fn kubelet(&self) -> kube::Client {
        let mut config = self.config.clone();
        config.auth_info.impersonate = Some(format!("system:node:{}", self.names.node));
        config.auth_info.impersonate_groups = Some(vec!["system:nodes".into(), "system:authenticated".into()]);
        client(config)
    }

    /// The driver's service account, with a token of its own: that of its pod on the node, or one that tells no node.
    pub async fn account(&self, on_node: bool) -> kube::Client {
        let path = self.within(&format!("serviceaccounts/{ACCOUNT}/token"));
        let mut spec = json!({"expirationSeconds": 600});
        if on_node {
            spec["boundObjectRef"] = json!({"apiVersion": "v1", "kind": "Pod", "name": ACCOUNT});
        }
        let token = ask(&self.admin, "POST", &path, JSON, &json!({"spec": spec})).await;
        let mut config = self.config.clone();
        config.auth_info = serde_json::from_value(json!({"token": token["status"]["token"]})).unwrap();
        client(config)
    }

    /// Makes the driver's service account, its pod on the node, and the binding of its role.
    pub async fn furnish(&self) {
        let Names { node, namespace, .. } = &self.names;
        let account = json!({"metadata": {"name": ACCOUNT}});
        ask(&self.admin, "POST", &self.within("serviceaccounts"), JSON, &account).await;
        let container = json!({"name": "driver", "image": "driver.invalid/none"});
        let pod = json!({"metadata": {"name": ACCOUNT}, "spec": {
            "nodeName": node, "serviceAccountName": ACCOUNT, "automountServiceAccountToken": false, "containers": [container],
        }});
        ask(&self.admin, "POST", &self.within("pods"), JSON, &pod).await;
        let group = "rbac.authorization.k8s.io";
        let binding = json!({
            "metadata": self.metadata(),
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": namespace},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}],
        });
        ask(&self.admin, "POST", &format!("/apis/{group}/v1/clusterrolebindings"), JSON, &binding).await;
    }

    /// Sets the driver's rights, and waits until the server knows of it.
    pub async fn allow(&self, rights: &Rights) {
        let Names { namespace, .. } = &self.names;
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": self.metadata(),
            "rules": rights.rules(&self.names),
        });
        let path =
            format!("/apis/rbac.authorization.k8s.io/v1/clusterroles/{namespace}?fieldManager=drakkar-test&force=true");
        ask(&self.admin, "PATCH", &path, "application/apply-patch+yaml", &role).await;
        for (right, is_given) in rights.each() {
            let (resource, subresource) = right.resource.split_once('/').unwrap_or((right.resource, ""));
            let review = json!({"spec": {
                "user": format!("system:serviceaccount:{namespace}:{ACCOUNT}"),
                "resourceAttributes": {
                    "group": right.group, "resource": resource, "subresource": subresource, "verb": right.verbs[0],
                    "name": right.name(&self.names).unwrap_or_default(), "namespace": namespace,
                },
            }});
            let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
            let deadline = tokio::time::Instant::now() + PATIENCE;
            while ask(&self.admin, "POST", path, JSON, &review).await["status"]["allowed"] != is_given {
                assert!(tokio::time::Instant::now() < deadline, "waited in vain for rights to {}", right.resource);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }

    fn metadata(&self) -> Value {
        json!({"name": self.names.namespace, "labels": {"drakkar-test": self.names.id}})
    }

    fn within(&self, path: &str) -> String {
        format!("/api/v1/namespaces/{}/{path}", self.names.namespace)
    }
}

fn client(config: kube::Config) -> kube::Client {
    kube::Client::try_from(config).unwrap()
}

impl Drop for Real {
    /// Also after a panic, and in a thread of its own: the test's runtime cannot wait here.
    fn drop(&mut self) {
        let (config, names) = (self.config.clone(), self.names.clone());
        let cleaning = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { tokio::time::timeout(PATIENCE, clean(client(config), &names)).await.unwrap() });
        });
        let is_clean = cleaning.join().is_ok();
        // A second panic would end all tests; what went wrong is on stderr.
        assert!(is_clean || std::thread::panicking(), "things of {} stay on the server", self.names.namespace);
    }
}

/// Removes everything of a test, the driver's rights first so that nothing comes back.
async fn clean(admin: kube::Client, names: &Names) {
    let Names { driver, node, namespace, .. } = names;
    let (rbac, dra) = ("/apis/rbac.authorization.k8s.io/v1", "/apis/resource.k8s.io/v1");
    let home = format!("/api/v1/namespaces/{namespace}");
    let all = [
        format!("{rbac}/clusterrolebindings/{namespace}"),
        format!("{rbac}/clusterroles/{namespace}"),
        format!("{home}/pods/{ACCOUNT}"),
        format!("{home}/serviceaccounts/{ACCOUNT}"),
        format!("{dra}/resourceslices?fieldSelector=spec.driver%3D{driver}"),
        format!("{dra}/namespaces/{namespace}/resourceclaims"),
        format!("/api/v1/nodes/{node}"),
        home.clone(),
    ];
    for path in all {
        // No kubelet confirms the end of a pod.
        match try_ask(&admin, "DELETE", &path, JSON, &json!({"gracePeriodSeconds": 0})).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => panic!("DELETE {path}: {error}"),
            Ok(_) => {}
        }
    }
    // A server without a controller manager never finishes a namespace, and nothing is in this one.
    let finished = json!({"metadata": {"name": namespace}, "spec": {"finalizers": []}});
    match try_ask(&admin, "PUT", &format!("{home}/finalize"), JSON, &finished).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
        Err(error) => panic!("finish {namespace}: {error}"),
        Ok(_) => {}
    }
}
