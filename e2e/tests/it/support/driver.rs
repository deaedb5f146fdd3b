//! The e2e driver as a test deploys it.

use http::Method;
use serde_json::{Value, json};

use super::{TestEnv, run_id};

/// The image that `cargo xtask e2e test` builds from the e2e driver.
const IMAGE: &str = "localhost/e2e-driver:e2e";

const MANIFEST: &str = include_str!("../../../manifests/driver.yaml");

pub(crate) struct Driver {
    /// The driver's name, which its device class has too.
    pub(crate) name: String,
    /// The namespace of its pods.
    pub(crate) namespace: String,
    devices: usize,
    metadata: bool,
    arguments: Vec<String>,
}

impl Driver {
    /// A driver with 8 devices and metadata enabled.
    pub(crate) fn new(name: &str) -> Self {
        let id = run_id();
        Self {
            name: format!("{name}-{id}.example.com"),
            namespace: format!("driver-{name}-{id}"),
            devices: 8,
            metadata: true,
            arguments: Vec::new(),
        }
    }

    pub(crate) fn devices(self, devices: usize) -> Self {
        Self { devices, ..self }
    }

    pub(crate) fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    pub(crate) fn metadata(self, enabled: bool) -> Self {
        Self { metadata: enabled, ..self }
    }

    /// The driver's manifest, which a test can change before it applies it.
    pub(crate) fn manifest(&self) -> String {
        let mut arguments = vec![
            format!("--driver-name={}", self.name),
            format!("--devices={}", self.devices),
            format!("--enable-device-metadata={}", self.metadata),
        ];
        arguments.extend(self.arguments.iter().cloned());
        MANIFEST
            .replace("E2E_NAME", &self.namespace)
            .replace("E2E_DRIVER", &self.name)
            .replace("E2E_IMAGE", IMAGE)
            .replace("E2E_ARGUMENTS", &json!(arguments).to_string())
    }

    /// Applies the manifest, and waits until the driver runs and has published its devices.
    pub(crate) async fn deploy(self, env: &TestEnv) -> Self {
        self.apply(env).await;
        env.eventually("all devices are published", async || {
            let slices = env.slices(&self).await;
            let devices = |slice: &Value| slice["spec"]["devices"].as_array().map_or(0, Vec::len);
            (slices.iter().map(devices).sum::<usize>() == self.devices).then_some(())
        })
        .await;
        self
    }

    /// Applies the manifest with the current options, and waits until the `DaemonSet` is rolled out.
    pub(crate) async fn apply(&self, env: &TestEnv) {
        self.apply_manifest(env, &self.manifest()).await;
    }

    /// Applies a changed manifest, and waits until the `DaemonSet` is rolled out.
    pub(crate) async fn apply_manifest(&self, env: &TestEnv, manifest: &str) {
        env.kubectl(&["apply", "-f", "-"], manifest).unwrap();
        let path = format!("/apis/apps/v1/namespaces/{}/daemonsets/driver", self.namespace);
        env.eventually("the driver is rolled out", async || {
            let set = env.get(&path).await?;
            let status = &set["status"];
            let is_new = status["observedGeneration"] == set["metadata"]["generation"];
            let all = status["desiredNumberScheduled"].as_u64().is_some_and(|desired| desired == 1);
            let ready = status["updatedNumberScheduled"] == 1 && status["numberReady"] == 1;
            let alone = self.pods(env).await.len() == 1;
            (is_new && all && ready && alone).then_some(())
        })
        .await;
    }

    /// Lists the driver's pods.
    pub(crate) async fn pods(&self, env: &TestEnv) -> Vec<Value> {
        env.list(&format!("/api/v1/namespaces/{}/pods", self.namespace)).await
    }

    /// The name of the driver's only pod.
    pub(crate) async fn pod(&self, env: &TestEnv) -> String {
        let pods = self.pods(env).await;
        let [pod] = pods.as_slice() else { panic!("{} pods of {}", pods.len(), self.name) };
        pod["metadata"]["name"].as_str().unwrap().to_owned()
    }

    /// Deletes the driver's pod, and waits until the `DaemonSet` has another one that is ready.
    pub(crate) async fn replace_pod(&self, env: &TestEnv) {
        let old = self.pod(env).await;
        env.delete(&format!("/api/v1/namespaces/{}/pods/{old}", self.namespace)).await;
        env.eventually("another pod of the driver", async || {
            let pods = self.pods(env).await;
            let [pod] = pods.as_slice() else { return None };
            let is_ready = pod["status"]["containerStatuses"][0]["ready"] == true;
            (pod["metadata"]["name"] != old.as_str() && is_ready).then_some(())
        })
        .await;
    }

    /// The log of the driver's pod.
    pub(crate) async fn log(&self, env: &TestEnv) -> String {
        let pod = self.pod(env).await;
        env.kubectl(&["logs", "-n", &self.namespace, &pod], "").unwrap()
    }

    /// Writes a control file, which the driver polls.
    pub(crate) fn write_control_file(&self, env: &TestEnv, file: &str, text: &str) {
        let directory = env.plugin_directory(self).join("control");
        let next = directory.join(format!(".{file}"));
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, directory.join(file)).unwrap();
    }

    /// Waits until no files of the driver's claims are left, and deletes the driver and its objects.
    pub(crate) async fn clean_up(self, env: &TestEnv) {
        env.no_leftovers(&self).await;
        for path in [
            format!("/apis/apps/v1/namespaces/{}/daemonsets/driver", self.namespace),
            format!("/apis/resource.k8s.io/v1/deviceclasses/{}", self.name),
            format!("/api/v1/namespaces/{}", self.namespace),
        ] {
            env.delete(&path).await;
        }
        env.no_pods(&self.namespace).await;
        let path = format!("/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.driver%3D{}", self.name);
        env.call(Method::DELETE, &path, None).await.unwrap();
        for kind in [
            "admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
            "admissionregistration.k8s.io/v1/validatingadmissionpolicies",
            "rbac.authorization.k8s.io/v1/clusterrolebindings",
            "rbac.authorization.k8s.io/v1/clusterroles",
        ] {
            env.delete(&format!("/apis/{kind}/{}", self.namespace)).await;
        }
    }
}
