//! The columns of each resource.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::age;
use super::pod;
use crate::resource::Resource;

/// A column of a table.
pub(super) struct Column {
    name: &'static str,
    description: &'static str,
    /// Whether only `-o wide` shows it.
    is_wide: bool,
    /// Returns the cell of an object.
    pub(super) cell: fn(&Value, Timestamp) -> Value,
}

impl Column {
    const fn new(name: &'static str, description: &'static str, cell: fn(&Value, Timestamp) -> Value) -> Self {
        Self { name, description, is_wide: false, cell }
    }

    const fn wide(self) -> Self {
        Self { is_wide: true, ..self }
    }

    /// Returns the definition that clients get.
    pub(super) fn definition(&self) -> Value {
        json!({
            "name": self.name,
            "type": "string",
            "format": if self.name == "Name" { "name" } else { "" },
            "description": self.description,
            "priority": i32::from(self.is_wide),
        })
    }
}

const NAME: Column = Column::new("Name", "The name of the object", |object, _| text(&object["metadata"]["name"]));
const AGE: Column = Column::new("Age", "The time since the object was created", |object, now| {
    age::since(&object["metadata"]["creationTimestamp"], now).into()
});

/// Returns the columns of a resource.
pub(super) fn of(resource: Resource) -> &'static [Column] {
    match resource {
        Resource::Pod => &POD,
        Resource::Node => &NODE,
        Resource::Event => &EVENT,
        Resource::Namespace => &NAMESPACE,
        Resource::ConfigMap => &CONFIG_MAP,
        Resource::Service => &SERVICE,
        Resource::Lease => &LEASE,
        Resource::ResourceClaim => &CLAIM,
        Resource::ResourceSlice => &SLICE,
        Resource::ResourceClaimTemplate | Resource::DeviceClass => &[NAME, AGE],
    }
}

static POD: [Column; 9] = [
    NAME,
    Column::new("Ready", "The containers that are ready, of all", pod::ready),
    Column::new("Status", "What the containers of the pod do", pod::status),
    Column::new("Restarts", "How often containers were restarted, and when the last time", pod::restarts),
    AGE,
    Column::new("IP", "The address of the pod", |pod, _| or_none(&pod["status"]["podIPs"][0]["ip"])).wide(),
    Column::new("Node", "The node that the pod is bound to", |pod, _| or_none(&pod["spec"]["nodeName"])).wide(),
    Column::new("Nominated Node", "The node that the pod waits for", |pod, _| {
        or_none(&pod["status"]["nominatedNodeName"])
    })
    .wide(),
    Column::new("Readiness Gates", "The readiness gates that are passed, of all", pod::readiness_gates).wide(),
];

static NODE: [Column; 10] = [
    NAME,
    Column::new("Status", "Whether the node is ready, and for new pods", |node, _| node_status(node).into()),
    Column::new("Roles", "The roles of the node", |node, _| node_roles(node).into()),
    AGE,
    Column::new("Version", "The version of the kubelet", |node, _| text(&node["status"]["nodeInfo"]["kubeletVersion"])),
    Column::new("Internal-IP", "An address of the node", |node, _| node_address(node, "InternalIP")).wide(),
    Column::new("External-IP", "An address of the node", |node, _| node_address(node, "ExternalIP")).wide(),
    Column::new("OS-Image", "The operating system", |node, _| node_info(node, "osImage").into()).wide(),
    Column::new("Kernel-Version", "The kernel", |node, _| {
        let kernel = node_info(node, "kernelVersion");
        match node["status"]["nodeInfo"]["architecture"].as_str().filter(|text| !text.is_empty()) {
            Some(architecture) => format!("{kernel} ({architecture})").into(),
            None => kernel.into(),
        }
    })
    .wide(),
    Column::new("Container-Runtime", "The container runtime", |node, _| {
        node_info(node, "containerRuntimeVersion").into()
    })
    .wide(),
];

static EVENT: [Column; 10] = [
    Column::new("Last Seen", "The time since the event happened last", |event, now| last_seen(event, now).into()),
    Column::new("Type", "Normal or Warning", |event, _| text(&event["type"])),
    Column::new("Reason", "Why the event happened, in a word", |event, _| text(&event["reason"])),
    Column::new("Object", "What the event is about", |event, _| involved(event).into()),
    Column::new("Subobject", "The part that the event is about", |event, _| {
        text(&event["involvedObject"]["fieldPath"])
    })
    .wide(),
    Column::new("Source", "What reported the event", |event, _| source(event).into()).wide(),
    Column::new("Message", "What happened", |event, _| event["message"].as_str().unwrap_or_default().trim().into()),
    Column::new("First Seen", "The time since the event happened first", |event, now| first_seen(event, now).into())
        .wide(),
    Column::new("Count", "How often the event happened", |event, _| {
        let count = event["series"]["count"].as_i64().or(event["count"].as_i64());
        count.filter(|count| *count > 0).unwrap_or(1).into()
    })
    .wide(),
    Column { is_wide: true, ..NAME },
];

static NAMESPACE: [Column; 3] =
    [NAME, Column::new("Status", "The phase of the namespace", |object, _| text(&object["status"]["phase"])), AGE];

static CONFIG_MAP: [Column; 3] = [
    NAME,
    Column::new("Data", "The number of values", |object, _| {
        let count = |field: &str| object[field].as_object().map_or(0, serde_json::Map::len);
        (count("data") + count("binaryData")).into()
    }),
    AGE,
];

static SERVICE: [Column; 7] = [
    NAME,
    Column::new("Type", "How the service is reached", |object, _| text(&object["spec"]["type"])),
    Column::new("Cluster-IP", "The address in the cluster", |object, _| or_none(&object["spec"]["clusterIP"])),
    Column::new("External-IP", "The addresses outside of the cluster", |object, _| {
        or_none(&object["spec"]["externalIPs"][0])
    }),
    Column::new("Port(s)", "The ports, with their protocols", |object, _| ports(object).into()),
    AGE,
    Column::new("Selector", "The labels of the pods of the service", |object, _| selector(object).into()).wide(),
];

static LEASE: [Column; 3] =
    [NAME, Column::new("Holder", "Who holds the lease", |object, _| text(&object["spec"]["holderIdentity"])), AGE];

static CLAIM: [Column; 3] = [
    NAME,
    Column::new("State", "Whether the claim is allocated and reserved", |claim, _| claim_state(claim).into()),
    AGE,
];

static SLICE: [Column; 5] = [
    NAME,
    Column::new("Node", "The node of the devices", |slice, _| text(&slice["spec"]["nodeName"])),
    Column::new("Driver", "The driver of the devices", |slice, _| text(&slice["spec"]["driver"])),
    Column::new("Pool", "The pool of the devices", |slice, _| text(&slice["spec"]["pool"]["name"])),
    AGE,
];

/// Returns a text; empty if there is none.
fn text(value: &Value) -> Value {
    value.as_str().unwrap_or_default().into()
}

/// Returns a text, or `<none>`.
fn or_none(value: &Value) -> Value {
    value.as_str().filter(|text| !text.is_empty()).unwrap_or("<none>").into()
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn claim_state(claim: &Value) -> String {
    let is_deleted = claim["metadata"]["deletionTimestamp"].is_string();
    let mut states = Vec::new();
    if is_deleted {
        states.push("deleted");
    }
    if claim["status"]["allocation"].is_object() {
        states.push("allocated");
        if items(&claim["status"]["reservedFor"]).next().is_some() {
            states.push("reserved");
        }
    } else if !is_deleted {
        states.push("pending");
    }
    states.join(",")
}

fn node_status(node: &Value) -> String {
    let ready = items(&node["status"]["conditions"]).find(|condition| condition["type"] == "Ready");
    let ready = match ready.map(|ready| ready["status"] == "True") {
        Some(true) => "Ready",
        Some(false) => "NotReady",
        None => "Unknown",
    };
    let closed = if node["spec"]["unschedulable"] == true { ",SchedulingDisabled" } else { "" };
    format!("{ready}{closed}")
}

fn node_roles(node: &Value) -> String {
    let labels = node["metadata"]["labels"].as_object().into_iter().flatten();
    let roles: BTreeSet<&str> = labels
        .filter_map(|(name, value)| match name.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if name == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    if roles.is_empty() { "<none>".to_owned() } else { roles.into_iter().collect::<Vec<_>>().join(",") }
}

fn node_address(node: &Value, kind: &str) -> Value {
    let found = items(&node["status"]["addresses"]).find(|address| address["type"] == kind);
    found.map_or("<none>".into(), |address| or_none(&address["address"]))
}

fn node_info<'a>(node: &'a Value, field: &str) -> &'a str {
    node["status"]["nodeInfo"][field].as_str().filter(|text| !text.is_empty()).unwrap_or("<unknown>")
}

fn first_seen(event: &Value, now: Timestamp) -> String {
    let first = &event["firstTimestamp"];
    age::since(if first.is_string() { first } else { &event["eventTime"] }, now)
}

fn last_seen(event: &Value, now: Timestamp) -> String {
    let series = &event["series"]["lastObservedTime"];
    match (series.is_string(), &event["lastTimestamp"]) {
        (true, _) => age::since(series, now),
        (false, last) if last.is_string() => age::since(last, now),
        (false, _) => first_seen(event, now),
    }
}

fn involved(event: &Value) -> String {
    let involved = &event["involvedObject"];
    let kind = involved["kind"].as_str().unwrap_or_default().to_lowercase();
    match involved["name"].as_str().filter(|name| !name.is_empty()) {
        Some(name) => format!("{kind}/{name}"),
        None => kind,
    }
}

fn source(event: &Value) -> String {
    let first = |values: [&Value; 2]| {
        let found = values.into_iter().filter_map(Value::as_str).find(|text| !text.is_empty());
        found.unwrap_or_default().to_owned()
    };
    let component = first([&event["source"]["component"], &event["reportingComponent"]]);
    match first([&event["source"]["host"], &event["reportingInstance"]]) {
        instance if instance.is_empty() => component,
        instance => format!("{component}, {instance}"),
    }
}

fn ports(service: &Value) -> String {
    let port = |port: &Value| {
        let protocol = port["protocol"].as_str().unwrap_or("TCP");
        match port["nodePort"].as_i64().filter(|port| *port > 0) {
            Some(node_port) => format!("{}:{node_port}/{protocol}", port["port"]),
            None => format!("{}/{protocol}", port["port"]),
        }
    };
    let ports: Vec<String> = items(&service["spec"]["ports"]).map(port).collect();
    if ports.is_empty() { "<none>".to_owned() } else { ports.join(",") }
}

fn selector(service: &Value) -> String {
    let labels = service["spec"]["selector"].as_object().into_iter().flatten();
    let labels: Vec<String> =
        labels.map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default())).collect();
    if labels.is_empty() { "<none>".to_owned() } else { labels.join(",") }
}
