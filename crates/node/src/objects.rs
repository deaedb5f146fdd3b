//! Builders for API objects, as an alternative to YAML: pods, claims, classes and slices.
//!
//! They build JSON in the form of the API, which [`Node::create`](crate::Node::create) takes. Fields without a builder
//! method can be set in the [`Value`] that the builder converts into.

use serde_json::{Value, json};

/// Builds a pod. Its restart policy is `Never` by default.
///
/// ```
/// use drakkar_node::{Container, Pod};
///
/// let pod = Pod::new("trainer")
///     .claim("gpus", "my-claim")
///     .container(Container::new("main", ["sleep", "infinity"]).request("gpus", "gpu"));
/// assert_eq!(serde_json::Value::from(pod)["kind"], "Pod");
/// ```
#[derive(Debug, Clone)]
pub struct Pod(Value);

impl Pod {
    /// Creates a pod in the namespace `default`, without containers.
    pub fn new(name: &str) -> Self {
        Self(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "containers": [], "initContainers": [], "resourceClaims": [],
                "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            },
        }))
    }

    /// Adds an existing claim, under the name that containers refer to.
    #[must_use]
    pub fn claim(self, name: &str, claim: &str) -> Self {
        self.push("resourceClaims", json!({"name": name, "resourceClaimName": claim}))
    }

    /// Adds a claim that is generated from a template.
    #[must_use]
    pub fn template(self, name: &str, template: &str) -> Self {
        self.push("resourceClaims", json!({"name": name, "resourceClaimTemplateName": template}))
    }

    /// Adds a container.
    #[must_use]
    pub fn container(self, container: Container) -> Self {
        self.push("containers", container.0)
    }

    /// Adds an init container. With `restartPolicy: Always` it is a sidecar, which keeps running beside the containers.
    #[must_use]
    pub fn init_container(self, container: Container) -> Self {
        self.push("initContainers", container.0)
    }

    /// Sets the restart policy: `Never`, `OnFailure` or `Always`.
    #[must_use]
    pub fn restart_policy(mut self, policy: &str) -> Self {
        self.0["spec"]["restartPolicy"] = policy.into();
        self
    }

    fn push(mut self, list: &str, entry: Value) -> Self {
        if let Some(list) = self.0["spec"][list].as_array_mut() {
            list.push(entry);
        }
        self
    }
}

impl From<Pod> for Value {
    fn from(pod: Pod) -> Self {
        pod.0
    }
}

/// Builds a container. There are no images: its programs are those of the host.
#[derive(Debug, Clone)]
pub struct Container(Value);

impl Container {
    /// Creates a container that runs a command.
    pub fn new<S: AsRef<str>>(name: &str, command: impl IntoIterator<Item = S>) -> Self {
        let command: Vec<Value> = command.into_iter().map(|part| part.as_ref().into()).collect();
        Self(json!({"name": name, "image": "host", "command": command, "resources": {"claims": []}, "env": []}))
    }

    /// Adds all devices of one of the pod's claims.
    #[must_use]
    pub fn claim(self, claim: &str) -> Self {
        self.push(json!({"name": claim}))
    }

    /// Adds the devices of one request of one of the pod's claims.
    #[must_use]
    pub fn request(self, claim: &str, request: &str) -> Self {
        self.push(json!({"name": claim, "request": request}))
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        if let Some(env) = self.0["env"].as_array_mut() {
            env.push(json!({"name": name, "value": value}));
        }
        self
    }

    /// Sets the container's restart policy; `Always` makes an init container a sidecar.
    #[must_use]
    pub fn restart_policy(mut self, policy: &str) -> Self {
        self.0["restartPolicy"] = policy.into();
        self
    }

    fn push(mut self, entry: Value) -> Self {
        if let Some(claims) = self.0["resources"]["claims"].as_array_mut() {
            claims.push(entry);
        }
        self
    }
}

/// Builds the spec of a claim, for a claim or a claim template.
///
/// ```
/// use drakkar_node::ClaimSpec;
///
/// let claim = ClaimSpec::default().request("gpu", "gpu.example.com", 2).claim("my-claim");
/// assert_eq!(claim["spec"]["devices"]["requests"][0]["exactly"]["count"], 2);
/// ```
#[derive(Debug, Clone)]
pub struct ClaimSpec(Value);

impl Default for ClaimSpec {
    fn default() -> Self {
        Self(json!({"devices": {"requests": []}}))
    }
}

impl ClaimSpec {
    /// Adds a request for a number of devices of a class.
    #[must_use]
    pub fn request(self, name: &str, class: &str, count: u32) -> Self {
        self.push(json!({"name": name, "exactly": {"deviceClassName": class, "count": count}}))
    }

    /// Adds a request for a number of devices of a class that match a CEL expression.
    #[must_use]
    pub fn request_with(self, name: &str, class: &str, count: u32, expression: &str) -> Self {
        let selectors = json!([{"cel": {"expression": expression}}]);
        self.push(json!({"name": name, "exactly": {"deviceClassName": class, "count": count, "selectors": selectors}}))
    }

    /// Adds a request for one device of the first class that has one: pairs of a subrequest's name and a class.
    #[must_use]
    pub fn first_available(self, name: &str, classes: &[(&str, &str)]) -> Self {
        let classes: Vec<Value> =
            classes.iter().map(|(name, class)| json!({"name": name, "deviceClassName": class})).collect();
        self.push(json!({"name": name, "firstAvailable": classes}))
    }

    /// Adds opaque parameters for a driver, for these requests or, without any, for all of them.
    #[must_use]
    pub fn parameters(mut self, requests: &[&str], driver: &str, parameters: &Value) -> Self {
        let entry = json!({"requests": requests, "opaque": {"driver": driver, "parameters": parameters}});
        match self.0["devices"]["config"].as_array_mut() {
            Some(config) => config.push(entry),
            None => self.0["devices"]["config"] = json!([entry]),
        }
        self
    }

    /// Returns a claim in the namespace `default`.
    pub fn claim(self, name: &str) -> Value {
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"}, "spec": self.0,
        })
    }

    /// Returns a claim template in the namespace `default`.
    pub fn template(self, name: &str) -> Value {
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"name": name, "namespace": "default"}, "spec": {"spec": self.0},
        })
    }

    fn push(mut self, request: Value) -> Self {
        if let Some(requests) = self.0["devices"]["requests"].as_array_mut() {
            requests.push(request);
        }
        self
    }
}

/// Returns a device class of the same name as the driver, which selects all its devices.
pub fn device_class(driver: &str) -> Value {
    let expression = format!("device.driver == '{driver}'");
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": driver},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    })
}

/// Returns a slice of a driver with these devices, without attributes, in a pool named after the node.
pub fn resource_slice(driver: &str, node: &str, devices: &[&str]) -> Value {
    let devices: Vec<Value> = devices.iter().map(|name| json!({"name": name})).collect();
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"generateName": format!("{node}-{driver}-")},
        "spec": {
            "driver": driver, "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        },
    })
}
