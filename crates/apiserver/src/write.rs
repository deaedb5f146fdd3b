//! Create and update, in the order of steps of the kube-apiserver.
//!
//! Decode, set system fields, apply defaults, record field ownership, drop fields of disabled features, validate, store. An
//! update that loses a race is retried, unless the client named the resource version to replace.

use std::sync::Arc;

use serde_json::{Value, json};

use super::call::Call;
use super::codec;
use super::identity::suffix;
use super::ownership;
use super::prepare;
use super::resource::Resource;
use super::rules::{self, FieldError};
use super::status::Failure;
use super::store::{Object, Stale};

/// The maximum number of attempts to update an object, or to generate a free name.
const MAX_ATTEMPTS: usize = 100;
/// The maximum length of the name before a generated suffix.
const MAX_GENERATED_BASE: usize = 58;

/// The result that a write proposes.
#[derive(Debug)]
pub(crate) struct Proposal {
    /// The object in the stored form.
    pub(crate) object: Value,
    /// The managed fields that result from an apply. `None` for other writes, which own what they change.
    pub(crate) managed_fields: Option<Value>,
}

/// The object in a request.
#[derive(Debug)]
pub(crate) enum Payload<'a> {
    /// As JSON or YAML.
    Text(&'a [u8]),
    /// Decoded from protobuf.
    Object(Value),
}

impl<'a> Payload<'a> {
    pub(crate) fn of(decoded: Option<Value>, text: &'a [u8]) -> Self {
        decoded.map_or(Self::Text(text), Self::Object)
    }
}

/// Handles a POST.
pub(crate) fn create(call: &Call, payload: Payload<'_>) -> Result<Arc<Object>, Failure> {
    let object = decode(call, payload)?;
    create_proposed(call, Proposal { object, managed_fields: None })
}

fn decode(call: &Call, payload: Payload<'_>) -> Result<Value, Failure> {
    let mut object = match payload {
        Payload::Text(body) => codec::parse(body, call.content_type.contains("yaml"), call.resource().kind())?,
        Payload::Object(object) => object,
    };
    codec::take_type(call.resource(), call.target.version, &mut object)?;
    let (object, unknown) = codec::admit(call.resource(), call.target.version, object)?;
    call.check_strict(&unknown)?;
    Ok(object)
}

/// Creates an object that a POST or an apply proposes.
pub(crate) fn create_proposed(call: &Call, proposal: Proposal) -> Result<Arc<Object>, Failure> {
    let resource = call.resource();
    let Proposal { mut object, managed_fields } = proposal;
    let metadata = &object["metadata"];
    let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
    let given = text("name");
    let base = text("generateName");
    if !matches!(text("resourceVersion").as_str(), "" | "0") {
        return Err(Failure::internal_plain("resourceVersion should not be set on objects to be created".to_owned()));
    }
    check_namespace(call, &object)?;
    if given.is_empty() && base.is_empty() {
        let required = FieldError {
            reason: "FieldValueRequired",
            field: "metadata.name".to_owned(),
            message: "Required value: name or generateName is required".to_owned(),
        };
        return Err(Failure::invalid(resource, "", &[required]));
    }
    prepare::for_create(resource, call.target.namespace.as_deref(), &mut object);
    object["metadata"]["uid"] = drakkar_client::uuid().into();
    rules::default_fields(resource, &mut object);
    prepare::normalize(resource, &mut object);
    match managed_fields {
        Some(fields) => object["metadata"]["managedFields"] = fields,
        None => ownership::record_update(call, None, &mut object),
    }
    rules::drop_disabled(resource, &mut object, None, &call.core.gates);
    prepare::normalize(resource, &mut object);
    for _ in 0..MAX_ATTEMPTS {
        let name = if given.is_empty() { generate(&base)? } else { given.clone() };
        object["metadata"]["name"] = name.as_str().into();
        let mut errors = rules::validate_create(resource, &object, &call.core.gates);
        errors.extend(admin_access(call, &object, None));
        if !errors.is_empty() {
            return Err(Failure::invalid(resource, &name, &errors));
        }
        call.authorize_object(&object)?;
        check_namespace_exists(call)?;
        rules::complete(resource, &mut object);
        if call.dry_run() {
            return Ok(Arc::new(Object::draft(object)));
        }
        object = match call.core.store.create(resource, call.key_of(&name), object) {
            Ok(stored) => return Ok(stored),
            Err(refused) if given.is_empty() => refused,
            Err(_) => return Err(Failure::already_exists(resource, &name)),
        };
    }
    Err(Failure::already_exists(resource, &base))
}

/// Handles a PUT.
pub(crate) fn replace(call: &Call, payload: Payload<'_>) -> Result<Arc<Object>, Failure> {
    let object = decode(call, payload)?;
    check_namespace(call, &object)?;
    check_name(call, &object)?;
    if call.resource().is_created_by_update() && call.core.store.get(call.resource(), &call.key()).is_none() {
        return create_proposed(call, Proposal { object, managed_fields: None });
    }
    // An attempt that loses a race is the last one if the client named the version to replace: usually there is one.
    let mut object = Some(object);
    update(call, |_| {
        let is_conditional = object.as_ref().is_some_and(|object| names_version(&object["metadata"]));
        let object = if is_conditional { object.take() } else { object.clone() };
        let object = object.ok_or_else(|| Failure::modified(call.resource(), call.name()))?;
        Ok(Proposal { object, managed_fields: None })
    })
}

/// Whether metadata names the resource version to replace.
fn names_version(metadata: &Value) -> bool {
    metadata["resourceVersion"].as_str().is_some_and(|version| !matches!(version, "" | "0"))
}

/// Checks that the name of an object is the one in the path.
pub(crate) fn check_name(call: &Call, object: &Value) -> Result<(), Failure> {
    let wanted = call.name();
    match object["metadata"]["name"].as_str().unwrap_or_default() {
        name if name == wanted => Ok(()),
        "" => Err(Failure::bad_request(format!(
            "the name of the object ({wanted} based on URL) was undeterminable: name must be provided"
        ))),
        name => Err(Failure::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({wanted})"
        ))),
    }
}

/// Replaces an object with the result of `propose`, which is called again after a lost race.
pub(crate) fn update(
    call: &Call,
    mut propose: impl FnMut(&Object) -> Result<Proposal, Failure>,
) -> Result<Arc<Object>, Failure> {
    let resource = call.resource();
    let key = call.key();
    for _ in 0..MAX_ATTEMPTS {
        let old = call.core.store.get(resource, &key).ok_or_else(|| Failure::not_found(resource, call.name()))?;
        call.authorize_object(&old.value)?;
        let Proposal { object: mut new, managed_fields } = propose(&old)?;
        let conditional = check_preconditions(call, &new["metadata"], &old)?;
        let replaced_fields = new["metadata"]["managedFields"].take();
        prepare::for_update(resource, call.is_status(), &mut new, &old.value);
        rules::default_fields(resource, &mut new);
        prepare::normalize(resource, &mut new);
        // Before fields are dropped: a dropped field stays in managedFields, as in the kube-apiserver.
        match managed_fields {
            Some(fields) => new["metadata"]["managedFields"] = fields,
            None => {
                if replaced_fields == json!([{}]) {
                    prepare::remove_metadata(&mut new, "managedFields");
                }
                ownership::record_update(call, Some(&old.value), &mut new);
            }
        }
        rules::drop_disabled(resource, &mut new, Some(&old.value), &call.core.gates);
        prepare::update_generation(resource, &mut new, &old.value);
        let mut errors = Vec::new();
        if resource == Resource::ResourceClaim && call.is_status() {
            let policy = call.core.policy();
            let gates = &call.core.gates;
            errors = admin_access(call, &new, Some(&old.value));
            errors.extend(rules::authorize_claim_status(&call.user, call.verb, &new, &old.value, &policy, gates));
        }
        errors.extend(rules::validate_update(resource, call.is_status(), &new, &old.value, &call.core.gates));
        if !errors.is_empty() {
            return Err(Failure::invalid(resource, call.name(), &errors));
        }
        rules::complete(resource, &mut new);
        if new == old.value {
            return Ok(old);
        }
        if call.dry_run() {
            return Ok(Arc::new(Object::new(new, old.version)));
        }
        let stored = if prepare::is_removable(&new) {
            call.core.store.remove(resource, &key, old.version, new)
        } else {
            call.core.store.replace(resource, &key, old.version, new)
        };
        match stored {
            Ok(object) => return Ok(object),
            Err(Stale) if conditional => return Err(Failure::modified(resource, call.name())),
            Err(Stale) => {}
        }
    }
    Err(Failure::modified(resource, call.name()))
}

/// Returns whether the client named the resource version to replace; fails if the object has another one.
fn check_preconditions(call: &Call, metadata: &Value, old: &Object) -> Result<bool, Failure> {
    let text = |field: &str| metadata[field].as_str().filter(|text| !text.is_empty());
    let uid = old.value["metadata"]["uid"].as_str().unwrap_or_default();
    let wrong_uid = text("uid").filter(|wanted| *wanted != uid);
    let is_patch = call.verb == "patch";
    if let Some(wanted) = wrong_uid.filter(|_| !is_patch) {
        return Err(Failure::wrong_uid(call.resource(), &call.key(), wanted, uid));
    }
    let conditional = match text("resourceVersion") {
        None | Some("0") => false,
        Some(wanted) if wanted.parse() == Ok(old.version) => true,
        Some(_) => return Err(Failure::modified(call.resource(), call.name())),
    };
    // The kube-apiserver treats the UID of a PUT as a precondition, and that of a patch as a change of the field.
    let Some(wanted) = wrong_uid else { return Ok(conditional) };
    let immutable = FieldError {
        reason: "FieldValueInvalid",
        field: "metadata.uid".to_owned(),
        message: format!("Invalid value: \"{wanted}\": field is immutable"),
    };
    Err(Failure::invalid(call.resource(), call.name(), &[immutable]))
}

fn check_namespace(call: &Call, object: &Value) -> Result<(), Failure> {
    let given = object["metadata"]["namespace"].as_str().unwrap_or_default();
    if !given.is_empty() && call.target.namespace.as_deref() != Some(given) {
        return Err(Failure::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if call.resource().namespaced() && call.target.namespace.is_none() {
        return Err(Failure::bad_request("an empty namespace may not be set during creation"));
    }
    Ok(())
}

fn check_namespace_exists(call: &Call) -> Result<(), Failure> {
    match call.target.namespace.as_deref() {
        Some(name) if call.core.store.get(Resource::Namespace, &(String::new(), name.to_owned())).is_none() => {
            Err(Failure::not_found(Resource::Namespace, name))
        }
        _ => Ok(()),
    }
}

/// Checks that the namespace allows admin access, if the object requests it.
fn admin_access(call: &Call, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    if !matches!(call.resource(), Resource::ResourceClaim | Resource::ResourceClaimTemplate) {
        return Vec::new();
    }
    let name = call.target.namespace.clone().unwrap_or_default();
    let namespace = call.core.store.get(Resource::Namespace, &(String::new(), name));
    let namespace = namespace.map_or(Value::Null, |namespace| namespace.value.clone());
    rules::admin_access(call.resource(), new, old, &namespace)
}

fn generate(base: &str) -> Result<String, Failure> {
    let base: String = base.chars().take(MAX_GENERATED_BASE).collect();
    Ok(base + &suffix().map_err(Failure::internal)?)
}
