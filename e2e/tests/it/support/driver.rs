//! The e2e driver, deployed for a test.

use http::Method;
use serde_json::{Value, json};

use super::{Lab, run_id};

/// What `cargo xtask e2e test` makes of the e2e driver.
const IMAGE: &str = "localhost/e2e-driver:e2e";

const MANIFEST: &str = include_str!("../../../manifests/driver.yaml");

pub(crate) struct Driver {
    /// The driver's name, which is that of its device class too.
    pub(crate) name: String,
    /// Where its pods are.
    pub(crate) namespace: String,
    devices: usize,
    metadata: bool,
    arguments: Vec<String>,
}

impl Driver {
    /// A driver with 8 devices, and metadata on.
    pub(crate) fn new(name: &str) -> Self {
        let id = run_id();
        let (name, namespace) = (format!("{name}-{id}.example.com"), format!("driver-{name}-{id}"));
        Self { name, namespace, devices: 8, metadata: true, arguments: Vec::new() }
    }

    pub(crate) fn devices(self, devices: usize) -> Self {
        Self { devices, ..self }
    }

    pub(crate) fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    pub(crate) fn metadata(self, is_on: bool) -> Self {
        Self { metadata: is_on, ..self }
    }

    /// Its manifest. It can be changed, and applied again.
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

    /// Applies it, and waits until it runs and its devices are known.
    pub(crate) async fn deploy(self, lab: &Lab) -> Self {
        self.apply(lab).await;
        lab.eventually("all devices are published", async || {
            let slices = lab.slices(&self).await;
            let devices = |slice: &Value| slice["spec"]["devices"].as_array().map_or(0, Vec::len);
            (slices.iter().map(devices).sum::<usize>() == self.devices).then_some(())
        })
        .await;
        self
    }

    /// Applies it as it is now, and waits until the daemon set says that it is rolled out.
    pub(crate) async fn apply(&self, lab: &Lab) {
        self.apply_manifest(lab, &self.manifest()).await;
    }

    /// The same with a manifest that was changed.
    pub(crate) async fn apply_manifest(&self, lab: &Lab, manifest: &str) {
        lab.kubectl(&["apply", "-f", "-"], manifest).unwrap();
        let path = format!("/apis/apps/v1/namespaces/{}/daemonsets/driver", self.namespace);
        lab.eventually("the driver is rolled out", async || {
            let set = lab.get(&path).await?;
            let status = &set["status"];
            let is_new = status["observedGeneration"] == set["metadata"]["generation"];
            let all = status["desiredNumberScheduled"].as_u64().is_some_and(|desired| desired == 1);
            let ready = status["updatedNumberScheduled"] == 1 && status["numberReady"] == 1;
            let alone = self.pods(lab).await.len() == 1;
            (is_new && all && ready && alone).then_some(())
        })
        .await;
    }

    /// Its pods.
    pub(crate) async fn pods(&self, lab: &Lab) -> Vec<Value> {
        lab.list(&format!("/api/v1/namespaces/{}/pods", self.namespace)).await
    }

    /// The name of its pod.
    pub(crate) async fn pod(&self, lab: &Lab) -> String {
        let pods = self.pods(lab).await;
        let [pod] = pods.as_slice() else { panic!("{} pods of {}", pods.len(), self.name) };
        pod["metadata"]["name"].as_str().unwrap().to_owned()
    }

    /// Deletes its pod and waits until the daemon set has another that is ready.
    pub(crate) async fn replace_pod(&self, lab: &Lab) {
        let old = self.pod(lab).await;
        lab.delete(&format!("/api/v1/namespaces/{}/pods/{old}", self.namespace)).await;
        lab.eventually("another pod of the driver", async || {
            let pods = self.pods(lab).await;
            let [pod] = pods.as_slice() else { return None };
            let is_ready = pod["status"]["containerStatuses"][0]["ready"] == true;
            (pod["metadata"]["name"] != old.as_str() && is_ready).then_some(())
        })
        .await;
    }

    /// What it logged.
    pub(crate) async fn log(&self, lab: &Lab) -> String {
        let pod = self.pod(lab).await;
        lab.kubectl(&["logs", "-n", &self.namespace, &pod], "").unwrap()
    }

    /// Tells it something by a file that it looks for.
    pub(crate) fn tell(&self, lab: &Lab, file: &str, text: &str) {
        let directory = lab.plugin_directory(self).join("control");
        let next = directory.join(format!(".{file}"));
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, directory.join(file)).unwrap();
    }

    /// Removes it when its claims are gone, and sees that it took all its files with it.
    pub(crate) async fn end(self, lab: &Lab) {
        lab.nothing_left(&self).await;
        for path in [
            format!("/apis/apps/v1/namespaces/{}/daemonsets/driver", self.namespace),
            format!("/apis/resource.k8s.io/v1/deviceclasses/{}", self.name),
            format!("/api/v1/namespaces/{}", self.namespace),
        ] {
            lab.delete(&path).await;
        }
        lab.no_pods(&self.namespace).await;
        let path = format!("/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.driver%3D{}", self.name);
        lab.call(Method::DELETE, &path, None).await.unwrap();
        for kind in [
            "admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
            "admissionregistration.k8s.io/v1/validatingadmissionpolicies",
            "rbac.authorization.k8s.io/v1/clusterrolebindings",
            "rbac.authorization.k8s.io/v1/clusterroles",
        ] {
            lab.delete(&format!("/apis/{kind}/{}", self.namespace)).await;
        }
    }
}
