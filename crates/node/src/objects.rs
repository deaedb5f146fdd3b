//! Objects of the API, for those who would rather not write YAML: pods, claims, classes and slices.
//!
//! What they make is JSON as the API has it; [`Node::create`](crate::Node::create) takes it. Whatever a builder has no
//! word for can be set in the [`Value`] that [`From`] makes of it.

use serde_json::{Value, json};

/// A pod that is never restarted unless it says so.
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
    /// A pod in the namespace `default`, without containers yet.
    pub fn new(name: &str) -> Self {
        Self(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "containers": [], "initContainers": [], "resourceClaims": [],
                "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            },
        }))
    }

    /// A claim that exists, under a name of the pod's own.
    #[must_use]
    pub fn claim(self, name: &str, claim: &str) -> Self {
        self.push("resourceClaims", json!({"name": name, "resourceClaimName": claim}))
    }

    /// A claim of its own, from a template.
    #[must_use]
    pub fn template(self, name: &str, template: &str) -> Self {
        self.push("resourceClaims", json!({"name": name, "resourceClaimTemplateName": template}))
    }

    /// With this container.
    #[must_use]
    pub fn container(self, container: Container) -> Self {
        self.push("containers", container.0)
    }

    /// With this container before the others. With `restartPolicy: Always` it goes on beside them.
    #[must_use]
    pub fn init_container(self, container: Container) -> Self {
        self.push("initContainers", container.0)
    }

    /// Whether its containers are started again: `Never`, `OnFailure`, `Always`.
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

/// A container. There are no images: its programs are those of the host.
#[derive(Debug, Clone)]
pub struct Container(Value);

impl Container {
    /// A container that runs a command.
    pub fn new<S: AsRef<str>>(name: &str, command: impl IntoIterator<Item = S>) -> Self {
        let command: Vec<Value> = command.into_iter().map(|part| part.as_ref().into()).collect();
        Self(json!({"name": name, "image": "host", "command": command, "resources": {"claims": []}, "env": []}))
    }

    /// With all devices of a claim of the pod.
    #[must_use]
    pub fn claim(self, claim: &str) -> Self {
        self.push(json!({"name": claim}))
    }

    /// With the devices of one request of a claim of the pod.
    #[must_use]
    pub fn request(self, claim: &str, request: &str) -> Self {
        self.push(json!({"name": claim, "request": request}))
    }

    /// With a variable in its environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        if let Some(env) = self.0["env"].as_array_mut() {
            env.push(json!({"name": name, "value": value}));
        }
        self
    }

    /// Whether an init container goes on beside the others: `Always`.
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

/// What a claim asks for, as a claim or as a template of claims.
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
    /// Asks for so many devices of a class.
    #[must_use]
    pub fn request(self, name: &str, class: &str, count: u32) -> Self {
        self.push(json!({"name": name, "exactly": {"deviceClassName": class, "count": count}}))
    }

    /// Asks for so many devices of a class that a CEL expression selects.
    #[must_use]
    pub fn request_with(self, name: &str, class: &str, count: u32, expression: &str) -> Self {
        let selectors = json!([{"cel": {"expression": expression}}]);
        self.push(json!({"name": name, "exactly": {"deviceClassName": class, "count": count, "selectors": selectors}}))
    }

    /// Asks for one device of the first class that has one: pairs of a subrequest's name and a class.
    #[must_use]
    pub fn first_available(self, name: &str, classes: &[(&str, &str)]) -> Self {
        let classes: Vec<Value> =
            classes.iter().map(|(name, class)| json!({"name": name, "deviceClassName": class})).collect();
        self.push(json!({"name": name, "firstAvailable": classes}))
    }

    /// A claim in the namespace `default`.
    pub fn claim(self, name: &str) -> Value {
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"}, "spec": self.0,
        })
    }

    /// A template in the namespace `default`.
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

/// A class of the same name as a driver, with all its devices.
pub fn device_class(driver: &str) -> Value {
    let expression = format!("device.driver == '{driver}'");
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": driver},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    })
}

/// The slice of a driver that has these devices on a node, without attributes, in a pool named as the node.
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
