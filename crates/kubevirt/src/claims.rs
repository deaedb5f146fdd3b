//! Generating claims: from a VM that names a device class per device to the claims it needs and a VM that uses them.
//!
//! KubeVirt wants three things for each device: a claim (or a template), an entry in `spec.resourceClaims`, and the claim's and
//! the request's name in the device. All three follow from the device class, so a user writes only that:
//!
//! ```yaml
//! gpus:
//! - name: g0
//!   deviceClassName: gpu.example.com
//!   deviceSelector: device.attributes["gpu.example.com"].model == "a100"   # optional
//! ```
//!
//! KubeVirt refuses both fields; [`generate`] replaces them. Everything else in the document stays as it is.

use std::collections::BTreeSet;

use drakkar_metadata::name::syntax::{is_c_identifier, is_dns_label, is_dns_subdomain};
use serde_json::{Map, Value, json};

/// The field that names a device class.
pub const DEVICE_CLASS_NAME: &str = "deviceClassName";
/// The field with a CEL expression that selects devices of the class.
pub const DEVICE_SELECTOR: &str = "deviceSelector";

/// The name of the entry in `spec.resourceClaims` if one claim has all devices.
const SHARED_ENTRY: &str = "devices";
/// The label of generated claims.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// The longest domain of an attribute in Kubernetes.
const MAX_DOMAIN: usize = 63;
/// The longest identifier of an attribute in Kubernetes.
const MAX_IDENTIFIER: usize = 32;

/// How claims are generated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimOptions {
    /// Whether all devices are requests of one claim. Otherwise each device has a claim of its own.
    pub one_claim: bool,
    /// Whether claims outlive the VM's pods, so that a restarted VM gets the same devices: `ResourceClaim` objects instead of
    /// templates. A VM with such a claim runs on the node that has the device.
    pub persistent: bool,
    /// Attributes that must have the same value for all devices, such as `resource.kubernetes.io/numaNode`. They need
    /// [`Self::one_claim`], because a constraint applies to the requests of one claim.
    pub same: Vec<String>,
}

/// Generated claims, and the document that uses them.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// The `ResourceClaimTemplate` or `ResourceClaim` objects.
    pub claims: Vec<Value>,
    /// The `VirtualMachine` or `VirtualMachineInstance`, with claims in place of device classes.
    pub workload: Value,
}

/// A document from which no claims can be generated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimsError {
    /// The document is neither a VM nor a VMI.
    #[error("the document is a {0}; claims are generated for a VirtualMachine or a VirtualMachineInstance")]
    Kind(String),
    /// The document has no name, from which the claims' names are made.
    #[error("metadata.name is missing: the names of the claims begin with it")]
    Unnamed,
    /// No device names a class.
    #[error("no device has a {DEVICE_CLASS_NAME}: add one to an entry of domain.devices.gpus or hostDevices")]
    NothingToDo,
    /// A field has a value of the wrong type.
    #[error("{field} must be {expected}")]
    Type {
        /// The field.
        field: String,
        /// The expected type.
        expected: &'static str,
    },
    /// A device class's name, or another name, has the wrong syntax.
    #[error("{field}: {value:?} is not a {expected}")]
    Name {
        /// The field.
        field: String,
        /// Its value.
        value: String,
        /// The expected syntax.
        expected: &'static str,
    },
    /// A device has a class and another source.
    #[error("{field} has a {DEVICE_CLASS_NAME} and a {other}: remove one of them")]
    TwoSources {
        /// The device.
        field: String,
        /// The other source.
        other: &'static str,
    },
    /// Two devices, or a device and an entry of `resourceClaims`, have the same name.
    #[error("{field}: the name {name:?} is already taken, and the name of a claim must be unique")]
    Taken {
        /// The device.
        field: String,
        /// The name.
        name: String,
    },
    /// The name of an attribute has the wrong syntax.
    #[error(
        "{0:?} is not the name of an attribute: write DOMAIN/NAME, such as resource.kubernetes.io/numaNode, with a DNS \
         subdomain of at most {MAX_DOMAIN} and an identifier of at most {MAX_IDENTIFIER} characters"
    )]
    Attribute(String),
    /// Constraints need one claim.
    #[error("devices of several claims cannot be matched by {0}: generate one claim for all of them")]
    MatchAcrossClaims(String),
}

/// Generates the claims that a document needs.
///
/// ```
/// # use drakkar_kubevirt::claims::{ClaimOptions, generate};
/// # use serde_json::json;
/// let vmi = json!({
///     "kind": "VirtualMachineInstance",
///     "metadata": {"name": "train", "namespace": "lab"},
///     "spec": {"domain": {"devices": {"gpus": [{"name": "g0", "deviceClassName": "gpu.example.com"}]}}},
/// });
/// let generated = generate(&vmi, &ClaimOptions::default())?;
/// assert_eq!(generated.claims[0]["metadata"]["name"], "train-g0");
/// assert_eq!(generated.workload["spec"]["resourceClaims"][0]["resourceClaimTemplateName"], "train-g0");
/// # Ok::<(), drakkar_kubevirt::claims::ClaimsError>(())
/// ```
///
/// # Errors
/// The document is not a VM or VMI, names no class, or has names of which no valid claim can be made.
pub fn generate(document: &Value, options: &ClaimOptions) -> Result<Generated, ClaimsError> {
    if let Some(attribute) = options.same.iter().find(|name| !is_qualified_attribute(name)) {
        return Err(ClaimsError::Attribute(attribute.clone()));
    }
    if let (Some(attribute), false) = (options.same.first(), options.one_claim) {
        return Err(ClaimsError::MatchAcrossClaims(attribute.clone()));
    }
    let mut workload = document.clone();
    let prefix = match document["kind"].as_str() {
        Some("VirtualMachineInstance") => "/spec",
        Some("VirtualMachine") => "/spec/template/spec",
        other => return Err(ClaimsError::Kind(other.unwrap_or("document without a kind").to_owned())),
    };
    let owner = document["metadata"]["name"].as_str().filter(|name| !name.is_empty()).ok_or(ClaimsError::Unnamed)?;
    if !is_dns_subdomain(owner) {
        return Err(name_error("metadata.name", owner, "DNS subdomain"));
    }
    let mut names = existing_entries(&workload, prefix)?;
    let mut devices = Vec::new();
    for list in ["gpus", "hostDevices"] {
        let Some(entries) = workload.pointer_mut(&format!("{prefix}/domain/devices/{list}")) else { continue };
        let field = format!("{}.domain.devices.{list}", prefix[1..].replace('/', "."));
        let Some(entries) = entries.as_array_mut() else { return Err(type_error(&field, "a list")) };
        for (index, entry) in entries.iter_mut().enumerate() {
            let field = format!("{field}[{index}]");
            if let Some(device) = ClassedDevice::take(entry, &field)? {
                let name = if options.one_claim { SHARED_ENTRY } else { &device.name };
                let request = if options.one_claim { &device.name } else { request_of(list) };
                entry["claimName"] = json!(name);
                entry["requestName"] = json!(request);
                if devices.iter().any(|(_, other): &(String, ClassedDevice)| other.name == device.name)
                    || names.contains(name)
                {
                    return Err(ClaimsError::Taken { field, name: name.to_owned() });
                }
                devices.push((request.to_owned(), device));
            }
        }
    }
    if devices.is_empty() {
        return Err(ClaimsError::NothingToDo);
    }
    let groups: Vec<(String, Vec<Value>)> = if options.one_claim {
        vec![(SHARED_ENTRY.to_owned(), devices.iter().map(|(request, device)| device.request(request)).collect())]
    } else {
        devices.iter().map(|(request, device)| (device.name.clone(), vec![device.request(request)])).collect()
    };
    let mut claims = Vec::new();
    let mut entries = Vec::new();
    for (entry, requests) in groups {
        let object = format!("{owner}-{entry}");
        if !is_dns_subdomain(&object) {
            return Err(name_error("metadata.name with the name of the device", &object, "DNS subdomain"));
        }
        names.insert(entry.clone());
        claims.push(claim(&object, document, &requests, options));
        let source = if options.persistent { "resourceClaimName" } else { "resourceClaimTemplateName" };
        entries.push(json!({ "name": entry, source: object }));
    }
    let spec = workload.pointer_mut(prefix).and_then(Value::as_object_mut);
    let spec = spec.ok_or_else(|| type_error(&prefix[1..].replace('/', "."), "an object"))?;
    // Present entries were checked to be a list above.
    if let Value::Array(list) = spec.entry("resourceClaims").or_insert_with(|| json!([])) {
        list.extend(entries);
    }
    Ok(Generated { claims, workload })
}

/// Returns whether a text is a fully qualified name of an attribute, as a constraint needs it.
fn is_qualified_attribute(name: &str) -> bool {
    name.split_once('/').is_some_and(|(domain, identifier)| {
        domain.len() <= MAX_DOMAIN
            && is_dns_subdomain(domain)
            && identifier.len() <= MAX_IDENTIFIER
            && is_c_identifier(identifier)
    })
}

/// Returns the names of the claims that the document already has.
fn existing_entries(workload: &Value, prefix: &str) -> Result<BTreeSet<String>, ClaimsError> {
    let field = || format!("{}.resourceClaims", prefix[1..].replace('/', "."));
    match workload.pointer(&format!("{prefix}/resourceClaims")) {
        None => Ok(BTreeSet::new()),
        Some(Value::Array(entries)) => {
            Ok(entries.iter().filter_map(|entry| entry["name"].as_str()).map(str::to_owned).collect())
        }
        Some(_) => Err(type_error(&field(), "a list")),
    }
}

/// A device that names a class.
struct ClassedDevice {
    name: String,
    class: String,
    selector: Option<String>,
}

impl ClassedDevice {
    /// Takes the class out of a device's entry. `None` if it has none.
    fn take(entry: &mut Value, field: &str) -> Result<Option<Self>, ClaimsError> {
        let Some(entry) = entry.as_object_mut() else { return Err(type_error(field, "an object")) };
        let class = take_text(entry, DEVICE_CLASS_NAME, field)?;
        let selector = take_text(entry, DEVICE_SELECTOR, field)?;
        let Some(class) = class else {
            return match selector {
                None => Ok(None),
                Some(_) => Err(type_error(&format!("{field}.{DEVICE_CLASS_NAME}"), "given beside deviceSelector")),
            };
        };
        for other in ["deviceName", "claimName", "requestName"] {
            if entry.contains_key(other) {
                return Err(ClaimsError::TwoSources { field: field.to_owned(), other });
            }
        }
        if !is_dns_subdomain(&class) {
            return Err(name_error(&format!("{field}.{DEVICE_CLASS_NAME}"), &class, "DNS subdomain"));
        }
        let name = entry.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        if !is_dns_label(&name) {
            return Err(name_error(&format!("{field}.name"), &name, "DNS label, which the name of a claim must be"));
        }
        Ok(Some(Self { name, class, selector }))
    }

    /// The device's request of a claim.
    fn request(&self, name: &str) -> Value {
        let mut exactly = json!({ "deviceClassName": self.class });
        if let Some(selector) = &self.selector {
            exactly["selectors"] = json!([{ "cel": { "expression": selector } }]);
        }
        json!({ "name": name, "exactly": exactly })
    }
}

fn take_text(entry: &mut Map<String, Value>, key: &str, field: &str) -> Result<Option<String>, ClaimsError> {
    match entry.remove(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(type_error(&format!("{field}.{key}"), "a string")),
    }
}

/// The name of the one request in a device's own claim.
fn request_of(list: &str) -> &'static str {
    if list == "gpus" { "gpu" } else { "device" }
}

/// A claim, or a template of one, in the namespace of the document.
fn claim(name: &str, document: &Value, requests: &[Value], options: &ClaimOptions) -> Value {
    let mut metadata = json!({ "name": name, "labels": { MANAGED_BY: "drakkar" } });
    if let Some(namespace) = document["metadata"].get("namespace") {
        metadata["namespace"] = namespace.clone();
    }
    let mut devices = json!({ "requests": requests });
    if !options.same.is_empty() {
        devices["constraints"] = options.same.iter().map(|name| json!({ "matchAttribute": name })).collect();
    }
    let spec = json!({ "devices": devices });
    let (kind, spec) =
        if options.persistent { ("ResourceClaim", spec) } else { ("ResourceClaimTemplate", json!({ "spec": spec })) };
    json!({ "apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec })
}

fn type_error(field: &str, expected: &'static str) -> ClaimsError {
    ClaimsError::Type { field: field.to_owned(), expected }
}

fn name_error(field: &str, value: &str, expected: &'static str) -> ClaimsError {
    ClaimsError::Name { field: field.to_owned(), value: value.to_owned(), expected }
}

#[cfg(test)]
mod tests;
