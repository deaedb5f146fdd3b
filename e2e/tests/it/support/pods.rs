//! Pods and claims of a test, and the metadata files that containers see.

use drakkar_e2e::Cluster;
use drakkar_node::{ClaimSpec, Pod};
use http::Method;
use serde_json::{Value, json};

use super::{Driver, TestEnv};

/// The path of a file as in the KEP's text.
pub(crate) fn kep_path(claim: &str, request: &str, driver: &Driver) -> String {
    format!("/var/run/dra-device-attributes/{claim}/{request}/{}-metadata.json", driver.name)
}

/// Kubernetes' path for the file of a claim that the pod references by name.
pub(crate) fn kubernetes_path(claim: &str, request: &str, driver: &Driver) -> String {
    let root = "/var/run/kubernetes.io/dra-device-attributes";
    format!("{root}/resourceclaims/{claim}/{request}/{}-metadata.json", driver.name)
}

/// Kubernetes' path for the file of a claim from a template.
pub(crate) fn template_path(pod_claim: &str, request: &str, driver: &Driver) -> String {
    let root = "/var/run/kubernetes.io/dra-device-attributes";
    format!("{root}/resourceclaimtemplates/{pod_claim}/{request}/{}-metadata.json", driver.name)
}

/// Both paths for the file of a claim that the pod references by name.
pub(crate) fn both_paths(claim: &str, request: &str, driver: &Driver) -> [String; 2] {
    [kep_path(claim, request, driver), kubernetes_path(claim, request, driver)]
}

impl TestEnv {
    fn core(&self, rest: &str) -> String {
        format!("/api/v1/namespaces/{}/{rest}", self.namespace)
    }

    pub(crate) fn claims(&self, rest: &str) -> String {
        format!("/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims{rest}", self.namespace)
    }

    /// Sets an object's namespace to that of the test.
    fn in_namespace(&self, mut object: Value) -> Value {
        object["metadata"]["namespace"] = self.namespace.clone().into();
        object
    }

    /// Creates a claim.
    pub(crate) async fn claim(&self, name: &str, spec: ClaimSpec) {
        self.call(Method::POST, &self.claims(""), Some(&self.in_namespace(spec.claim(name)))).await.unwrap();
    }

    /// Creates a claim template.
    pub(crate) async fn template(&self, name: &str, spec: ClaimSpec) {
        let path = format!("/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates", self.namespace);
        self.call(Method::POST, &path, Some(&self.in_namespace(spec.template(name)))).await.unwrap();
    }

    /// Creates a pod without waiting for it; returns its name.
    pub(crate) async fn create_pod(&self, pod: Pod) -> String {
        let mut pod = self.in_namespace(pod.into());
        let spec = &mut pod["spec"];
        spec["terminationGracePeriodSeconds"] = 0.into();
        spec["automountServiceAccountToken"] = false.into();
        // The cluster has no DNS; with the default policy the kubelet emits two events about that for each pod.
        spec["dnsPolicy"] = "Default".into();
        if let Some(spec) = spec.as_object_mut() {
            // Left to the scheduler.
            spec.remove("nodeName");
        }
        for kind in ["containers", "initContainers"] {
            for container in spec[kind].as_array_mut().into_iter().flatten() {
                container["image"] = Cluster::BUSYBOX_IMAGE.into();
                container["imagePullPolicy"] = "Never".into();
            }
        }
        let pod = self.call(Method::POST, &self.core("pods"), Some(&pod)).await.unwrap();
        pod["metadata"]["name"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn pod(&self, name: &str) -> Option<Value> {
        self.get(&self.core(&format!("pods/{name}"))).await
    }

    /// Waits until all containers of a pod are running.
    pub(crate) async fn running(&self, name: &str) -> Value {
        self.eventually(&format!("{name} runs"), async || {
            let pod = self.pod(name).await?;
            let ready = |status: &Value| status["ready"] == true;
            let all = pod["status"]["containerStatuses"].as_array().is_some_and(|all| all.iter().all(ready));
            (pod["status"]["phase"] == "Running" && all).then_some(pod)
        })
        .await
    }

    /// Creates a pod and waits until all its containers are running; returns its name.
    pub(crate) async fn run(&self, pod: Pod) -> String {
        let name = self.create_pod(pod).await;
        self.running(&name).await;
        name
    }

    /// Deletes a pod and waits until it is gone.
    pub(crate) async fn delete_pod(&self, name: &str) {
        let path = self.core(&format!("pods/{name}"));
        self.delete(&path).await;
        self.eventually(&format!("{name} is gone"), async || self.get(&path).await.is_none().then_some(())).await;
    }

    pub(crate) async fn delete_claim(&self, name: &str) {
        let path = self.claims(&format!("/{name}"));
        self.delete(&path).await;
        self.eventually(&format!("{name} is gone"), async || self.get(&path).await.is_none().then_some(())).await;
    }

    /// Runs a command in a container; the error is its standard error.
    pub(crate) fn exec(&self, pod: &str, container: &str, command: &[&str]) -> Result<String, String> {
        let mut arguments = vec!["exec", "-n", &self.namespace, pod, "-c", container, "--"];
        arguments.extend(command);
        self.kubectl(&arguments, "")
    }

    /// Reads a metadata file in a container.
    pub(crate) fn read(&self, pod: &str, container: &str, path: &str) -> Value {
        let text = self.exec(pod, container, &["cat", path]).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}: {text:?}"))
    }

    /// Lists all metadata files that a container sees, below both roots.
    pub(crate) fn metadata_files(&self, pod: &str, container: &str) -> Vec<String> {
        let roots = "/var/run/dra-device-attributes /var/run/kubernetes.io/dra-device-attributes";
        let script = format!("for root in {roots}; do [ ! -e $root ] || find $root -type f; done");
        let mut files: Vec<String> =
            self.exec(pod, container, &["sh", "-c", &script]).unwrap().lines().map(str::to_owned).collect();
        files.sort();
        files
    }

    /// The log of a container.
    pub(crate) fn log(&self, pod: &str, container: &str) -> String {
        self.kubectl(&["logs", "-n", &self.namespace, pod, "-c", container], "").unwrap()
    }

    /// A pod with a container `main` that references a whole claim, sleeps, and is always restarted.
    pub(crate) fn sleeper(&self, name: &str, claim: &str) -> Pod {
        let main = drakkar_node::Container::new("main", ["sleep", "1000000"]).claim("devices");
        Pod::new(name).claim("devices", claim).container(main).restart_policy("Always")
    }

    /// The names of a driver's devices that are allocated to a claim.
    pub(crate) async fn allocated(&self, claim: &str, driver: &Driver) -> Vec<String> {
        let claim = self.get(&self.claims(&format!("/{claim}"))).await.unwrap();
        let results = claim["status"]["allocation"]["devices"]["results"].as_array().cloned().unwrap_or_default();
        let own = results.iter().filter(|result| result["driver"] == driver.name.as_str());
        own.map(|result| result["device"].as_str().unwrap().to_owned()).collect()
    }
}

/// The names of the devices in a file, of all its requests.
pub(crate) fn devices(file: &Value) -> Vec<String> {
    let requests = file["requests"].as_array().unwrap().iter();
    let devices = requests.flat_map(|request| request["devices"].as_array().unwrap());
    devices.map(|device| device["name"].as_str().unwrap().to_owned()).collect()
}

/// An attribute of the first device of a file.
pub(crate) fn attribute(file: &Value, name: &str) -> Value {
    file["requests"][0]["devices"][0]["attributes"][name].clone()
}

/// The attribute `index` that the e2e driver sets for a device.
pub(crate) fn index_of(device: &str) -> Value {
    json!({"int": device.strip_prefix("dev-").unwrap().parse::<i64>().unwrap()})
}
