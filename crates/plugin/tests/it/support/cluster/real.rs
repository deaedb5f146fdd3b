//! The objects of a test on a real API server, and their deletion.

use std::path::Path;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use super::permissions::Permissions;
use super::{ACCOUNT, Names, request, try_request};
use crate::support::TIMEOUT;

const JSON: &str = "application/json";

/// A real API server, with the objects of one test. Dropping it deletes them.
pub struct RealServer {
    config: kube::Config,
    admin: kube::Client,
    names: Names,
}

impl RealServer {
    pub async fn new(kubeconfig: &Path, names: Names) -> Self {
        let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        Self { admin: client(config.clone()), config, names }
    }

    /// Returns how the server differs from what a test needs, if it does.
    pub async fn mismatch(&self, gates: &[(&str, bool)], version: &str) -> Option<String> {
        let group = request(&self.admin, "GET", "/apis/resource.k8s.io", JSON, &Value::Null).await;
        let versions = group["versions"].as_array().unwrap();
        if versions.iter().all(|served| served["version"] != version) {
            return Some(format!("it does not serve resource.k8s.io/{version}"));
        }
        if gates.is_empty() {
            return None;
        }
        let get_metrics = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let metrics = self.admin.request_text(get_metrics).await.unwrap();
        let is_on = |gate: &str| {
            let start = format!("kubernetes_feature_enabled{{name=\"{gate}\",");
            // A gate that an older server does not know is off.
            metrics.lines().any(|line| line.starts_with(&start) && line.ends_with(" 1"))
        };
        let mismatch = gates.iter().find(|(gate, on)| is_on(gate) != *on);
        mismatch.map(|(gate, on)| format!("its feature gate {gate} is {}", if *on { "off" } else { "on" }))
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

    /// Returns a client of the driver's service account, whose token is bound to its pod on the node or not.
    pub async fn account(&self, on_node: bool) -> kube::Client {
        let path = self.within(&format!("serviceaccounts/{ACCOUNT}/token"));
        let mut spec = json!({"expirationSeconds": 600});
        if on_node {
            spec["boundObjectRef"] = json!({"apiVersion": "v1", "kind": "Pod", "name": ACCOUNT});
        }
        let token = request(&self.admin, "POST", &path, JSON, &json!({"spec": spec})).await;
        let mut config = self.config.clone();
        config.auth_info = serde_json::from_value(json!({"token": token["status"]["token"]})).unwrap();
        client(config)
    }

    /// Creates the driver's service account, its pod on the node, and the binding of its role.
    pub async fn create_objects(&self) {
        let Names { node, namespace, .. } = &self.names;
        let account = json!({"metadata": {"name": ACCOUNT}});
        request(&self.admin, "POST", &self.within("serviceaccounts"), JSON, &account).await;
        let container = json!({"name": "driver", "image": "driver.invalid/none"});
        let pod = json!({"metadata": {"name": ACCOUNT}, "spec": {
            "nodeName": node, "serviceAccountName": ACCOUNT, "automountServiceAccountToken": false, "containers": [container],
        }});
        request(&self.admin, "POST", &self.within("pods"), JSON, &pod).await;
        let group = "rbac.authorization.k8s.io";
        let binding = json!({
            "metadata": self.metadata(),
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": namespace},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}],
        });
        request(&self.admin, "POST", &format!("/apis/{group}/v1/clusterrolebindings"), JSON, &binding).await;
    }

    /// Sets the driver's permissions, and waits until the server applies them.
    pub async fn allow(&self, permissions: &Permissions) {
        let Names { namespace, .. } = &self.names;
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": self.metadata(),
            "rules": permissions.rules(&self.names),
        });
        let path =
            format!("/apis/rbac.authorization.k8s.io/v1/clusterroles/{namespace}?fieldManager=drakkar-test&force=true");
        request(&self.admin, "PATCH", &path, "application/apply-patch+yaml", &role).await;
        for (permission, is_granted) in permissions.each() {
            let (resource, subresource) = permission.resource.split_once('/').unwrap_or((permission.resource, ""));
            let review = json!({"spec": {
                "user": format!("system:serviceaccount:{namespace}:{ACCOUNT}"),
                "resourceAttributes": {
                    "group": permission.group, "resource": resource, "subresource": subresource, "verb": permission.verbs[0],
                    "name": permission.name(&self.names).unwrap_or_default(), "namespace": namespace,
                },
            }});
            let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
            let deadline = tokio::time::Instant::now() + TIMEOUT;
            while request(&self.admin, "POST", path, JSON, &review).await["status"]["allowed"] != is_granted {
                assert!(tokio::time::Instant::now() < deadline, "timed out: permissions for {}", permission.resource);
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

impl Drop for RealServer {
    /// Deletes the objects, also after a panic. It uses its own thread, because the test's runtime cannot block here.
    fn drop(&mut self) {
        let config = self.config.clone();
        let names = self.names.clone();
        let cleanup = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime
                .block_on(async { tokio::time::timeout(TIMEOUT, delete_all(client(config), &names)).await.unwrap() });
        });
        let is_clean = cleanup.join().is_ok();
        // A panic while panicking would abort all tests; the cause is on stderr.
        assert!(is_clean || std::thread::panicking(), "objects of {} are left on the server", self.names.namespace);
    }
}

/// Deletes all objects of a test, the driver's permissions first, so that it cannot create any again.
async fn delete_all(admin: kube::Client, names: &Names) {
    let Names { driver, node, namespace, .. } = names;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let dra = "/apis/resource.k8s.io/v1";
    let namespace_path = format!("/api/v1/namespaces/{namespace}");
    let paths = [
        format!("{rbac}/clusterrolebindings/{namespace}"),
        format!("{rbac}/clusterroles/{namespace}"),
        format!("{namespace_path}/pods/{ACCOUNT}"),
        format!("{namespace_path}/serviceaccounts/{ACCOUNT}"),
        format!("{dra}/resourceslices?fieldSelector=spec.driver%3D{driver}"),
        format!("{dra}/namespaces/{namespace}/resourceclaims"),
        format!("/api/v1/nodes/{node}"),
        namespace_path.clone(),
    ];
    for path in paths {
        // There is no kubelet that would confirm the end of a pod.
        match try_request(&admin, "DELETE", &path, JSON, &json!({"gracePeriodSeconds": 0})).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => panic!("DELETE {path}: {error}"),
            Ok(_) => {}
        }
    }
    // Without a controller manager nothing finalizes the namespace, and it is empty.
    let finished = json!({"metadata": {"name": namespace}, "spec": {"finalizers": []}});
    match try_request(&admin, "PUT", &format!("{namespace_path}/finalize"), JSON, &finished).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
        Err(error) => panic!("finalize {namespace}: {error}"),
        Ok(_) => {}
    }
}
