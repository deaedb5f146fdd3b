//! The environment of a test: a namespace in the cluster, a driver, and helpers to use them.

mod driver;
mod net_driver;
mod pods;
mod release;

use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use drakkar_e2e::{Cluster, ClusterPaths};
use http::{Method, Request};
use serde_json::Value;

pub(crate) use self::driver::Driver;
pub(crate) use self::net_driver::{NET_DRIVER, NetDriver};
pub(crate) use self::pods::{attribute, both_paths, devices, index_of, kep_path, kubernetes_path, template_path};
pub(crate) use self::release::{NAMESPACE, Release};

/// How long a condition may take to become true. Generous, since the host is small and busy.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(90);

/// The cluster, and a namespace in it.
pub(crate) struct TestEnv {
    pub(crate) cluster: Cluster,
    pub(crate) client: kube::Client,
    pub(crate) namespace: String,
}

impl TestEnv {
    /// Attaches to the cluster and creates a namespace named after `name`.
    pub(crate) async fn new(name: &str) -> Self {
        let cluster =
            Cluster::attach(ClusterPaths::of_checkout().unwrap()).expect("a cluster started by `cargo xtask e2e up`");
        let kubeconfig = kube::config::Kubeconfig::read_from(cluster.kubeconfig()).unwrap();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
        let client = kube::Client::try_from(config).unwrap();
        let env = Self { cluster, client, namespace: format!("test-{name}-{}", run_id()) };
        let namespace =
            serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": env.namespace}});
        env.call(Method::POST, "/api/v1/namespaces", Some(&namespace)).await.unwrap();
        // The API server rejects pods until the namespace has its default service account.
        let account = format!("/api/v1/namespaces/{}/serviceaccounts/default", env.namespace);
        env.eventually("the default service account exists", async || env.get(&account).await).await;
        env
    }

    /// Deletes the namespace, and waits until its pods are gone.
    pub(crate) async fn clean_up(self) {
        self.delete(&format!("/api/v1/namespaces/{}", self.namespace)).await;
        self.no_pods(&self.namespace).await;
    }

    pub(crate) async fn no_pods(&self, namespace: &str) {
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        self.eventually("all pods are gone", async || self.list(&path).await.is_empty().then_some(())).await;
    }

    pub(crate) async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> kube::Result<Value> {
        self.call_as(method, path, "application/json", body).await
    }

    pub(crate) async fn call_as(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: Option<&Value>,
    ) -> kube::Result<Value> {
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = Request::builder().method(method).uri(path).header("content-type", kind).body(body).unwrap();
        self.client.request(request).await
    }

    /// Returns an object, or `None` if it does not exist.
    pub(crate) async fn get(&self, path: &str) -> Option<Value> {
        match self.call(Method::GET, path, None).await {
            Ok(object) => Some(object),
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            Err(error) => panic!("{path}: {error}"),
        }
    }

    pub(crate) async fn list(&self, path: &str) -> Vec<Value> {
        let list = self.call(Method::GET, path, None).await.unwrap();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    pub(crate) async fn delete(&self, path: &str) {
        match self.call(Method::DELETE, path, None).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => panic!("{path}: {error}"),
        }
    }

    /// Lists the slices of a driver.
    pub(crate) async fn slices(&self, driver: &Driver) -> Vec<Value> {
        let path = format!("/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.driver%3D{}", driver.name);
        self.list(&path).await
    }

    /// A client that authenticates with a token.
    pub(crate) async fn client_with_token(&self, token: &str) -> kube::Client {
        let kubeconfig = kube::config::Kubeconfig::read_from(self.cluster.kubeconfig()).unwrap();
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
        config.auth_info = kube::config::AuthInfo { token: Some(token.to_owned().into()), ..Default::default() };
        kube::Client::try_from(config).unwrap()
    }

    /// Runs kubectl; the error is its standard error.
    pub(crate) fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let mut command = self.cluster.kubectl();
        command.args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    /// Polls until `look` returns a value; panics after the default timeout.
    pub(crate) async fn eventually<T>(&self, what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
        self.eventually_within(TIMEOUT, what, look).await
    }

    /// Polls until `look` returns a value, which leaves the reason for none in its argument; panics after the default timeout.
    pub(crate) async fn eventually_with<T>(
        &self,
        what: &str,
        mut look: impl AsyncFnMut(&mut String) -> Option<T>,
    ) -> T {
        let deadline = Instant::now() + TIMEOUT;
        let mut reason = String::new();
        loop {
            if let Some(found) = look(&mut reason).await {
                return found;
            }
            assert!(Instant::now() < deadline, "{}: timed out after {TIMEOUT:?}: {what}: {reason}", self.namespace);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Polls until `look` returns a value; panics after a timeout.
    pub(crate) async fn eventually_within<T>(
        &self,
        timeout: Duration,
        what: &str,
        mut look: impl AsyncFnMut() -> Option<T>,
    ) -> T {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(found) = look().await {
                return found;
            }
            assert!(Instant::now() < deadline, "{}: timed out after {timeout:?}: {what}", self.namespace);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// The path on the host of a driver's plugin directory.
    pub(crate) fn plugin_directory(&self, driver: &Driver) -> PathBuf {
        self.cluster.host_path(format!("/var/lib/kubelet/plugins/{}", driver.name))
    }

    pub(crate) fn cdi_directory(&self) -> PathBuf {
        self.cluster.host_path("/var/run/cdi")
    }

    /// The paths on the host of a driver's metadata directories of claims, and of the CDI specs that mount them.
    pub(crate) fn files(&self, driver: &Driver) -> Vec<PathBuf> {
        let mut files = entries(&self.plugin_directory(driver).join("dra-device-metadata"));
        files.retain(|path| path.is_dir());
        let specs = entries(&self.cdi_directory());
        let prefix = format!("{}_", driver.name);
        files.extend(specs.into_iter().filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(&prefix)));
        files
    }

    /// Waits until no files of a driver's claims are left.
    pub(crate) async fn no_leftovers(&self, driver: &Driver) {
        let what = format!("no files of the claims of {} are left", driver.name);
        self.eventually(&what, async || self.files(driver).is_empty().then_some(())).await;
    }
}

fn entries(directory: &std::path::Path) -> Vec<PathBuf> {
    match std::fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| entry.unwrap().path()).collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => panic!("{}: {error}", directory.display()),
    }
}

/// Identifies this run, so that leftovers of a failed test do not conflict with the next run.
pub(crate) fn run_id() -> String {
    format!("{:x}", std::process::id())
}
