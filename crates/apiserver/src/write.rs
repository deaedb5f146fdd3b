//! Creating and updating objects: the order of steps that a real server has.
//!
//! Decode, set what is the server's to set, default, drop fields of disabled features, validate, note who owns which field,
//! store. An update that finds that the object changed meanwhile begins again, unless the client named the version that it
//! wants to replace.

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

/// How often an update begins again, and a name is generated anew.
const TRIES: usize = 100;
/// What is left for the name in front of a generated suffix.
const GENERATED_BASE: usize = 58;

/// What a write is to make of an object.
#[derive(Debug)]
pub(crate) struct Proposal {
    /// The object, admitted, without `apiVersion` and `kind`.
    pub(crate) object: Value,
    /// Who owns which field afterwards, if this was an apply; any other write owns what it changes.
    pub(crate) managed_fields: Option<Value>,
}

/// A POST.
pub(crate) fn create(call: &Call, body: &[u8]) -> Result<Arc<Object>, Failure> {
    let object = decode(call, body)?;
    create_proposed(call, Proposal { object, managed_fields: None })
}

fn decode(call: &Call, body: &[u8]) -> Result<Value, Failure> {
    let mut object = codec::parse(body, call.content_type.contains("yaml"), call.resource().kind())?;
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
    let (given, base) = (text("name"), text("generateName"));
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
    prepare::shape(resource, &mut object);
    match managed_fields {
        Some(fields) => object["metadata"]["managedFields"] = fields,
        None => ownership::record_update(call, None, &mut object),
    }
    rules::drop_disabled(resource, &mut object, None, &call.core.gates);
    prepare::shape(resource, &mut object);
    for _ in 0..TRIES {
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
        match call.core.store.create(resource, call.key_of(&name), object.clone()) {
            Ok(stored) => return Ok(stored),
            Err(Stale) if given.is_empty() => {}
            Err(Stale) => return Err(Failure::already_exists(resource, &name)),
        }
    }
    Err(Failure::already_exists(resource, &base))
}

/// A PUT.
pub(crate) fn replace(call: &Call, body: &[u8]) -> Result<Arc<Object>, Failure> {
    let object = decode(call, body)?;
    check_namespace(call, &object)?;
    check_name(call, &object)?;
    // Alone of all resources, events may be created by a PUT.
    if call.resource() == Resource::Event && call.core.store.get(Resource::Event, &call.key()).is_none() {
        return create_proposed(call, Proposal { object, managed_fields: None });
    }
    update(call, |_| Ok(Proposal { object: object.clone(), managed_fields: None }))
}

/// Whether an object is the one that the path names.
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

/// Changes an object to what `propose` makes of it.
pub(crate) fn update(
    call: &Call,
    propose: impl Fn(&Object) -> Result<Proposal, Failure>,
) -> Result<Arc<Object>, Failure> {
    let (resource, key) = (call.resource(), call.key());
    for _ in 0..TRIES {
        let old = call.core.store.get(resource, &key).ok_or_else(|| Failure::not_found(resource, call.name()))?;
        call.authorize_object(&old.value)?;
        let Proposal { object: mut new, managed_fields } = propose(&old)?;
        let conditional = check_preconditions(call, &new["metadata"], &old)?;
        let replaced_fields = new["metadata"]["managedFields"].take();
        prepare::for_update(resource, call.is_status(), &mut new, &old.value);
        rules::default_fields(resource, &mut new);
        prepare::shape(resource, &mut new);
        // What the server itself takes away below stays on record as owned, as it does in a real one.
        match managed_fields {
            Some(fields) => new["metadata"]["managedFields"] = fields,
            None => {
                if replaced_fields == json!([{}]) {
                    prepare::strip(&mut new, "managedFields");
                }
                ownership::record_update(call, Some(&old.value), &mut new);
            }
        }
        rules::drop_disabled(resource, &mut new, Some(&old.value), &call.core.gates);
        prepare::generation(resource, &mut new, &old.value);
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
        let stored = if prepare::is_to_be_removed(&new) {
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

/// Whether the client named the version that it replaces; an error if it is another.
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
    // To a real server the UID of a PUT is a condition, and that of a patch, looked at later, a change.
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

/// Admin access needs a namespace that is marked for it.
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
    let base: String = base.chars().take(GENERATED_BASE).collect();
    Ok(base + &suffix().map_err(Failure::internal)?)
}
