//! Validation of metadata.

use serde_json::Value;

use super::super::resource::Resource;
use super::field::{Bad, Errors, Path};
use super::names::{self, Wording};
use super::schema::{OWNER_REFERENCE, show};
use super::value::{entries, flag, get, list, number, same, text, texts};

/// The maximum size of all keys and values of annotations together.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;
/// The standard finalizers, which need no domain prefix.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

pub(super) fn create(resource: Resource, object: &Value, errors: &mut Errors) {
    let path = Path::root("metadata");
    let meta = get(object, "metadata").unwrap_or(&Value::Null);
    name(resource, meta, &path, errors);
    namespace(resource, meta, &path, errors);
    common(meta, &path, errors);
}

pub(super) fn update(new: &Value, old: &Value, errors: &mut Errors) {
    let path = Path::root("metadata");
    let [new, old] = [new, old].map(|object| get(object, "metadata").unwrap_or(&Value::Null));
    if get(old, "deletionTimestamp").is_some() {
        let kept = texts(old, "finalizers");
        let mut added = texts(new, "finalizers");
        added.retain(|finalizer| !kept.contains(finalizer));
        added.sort_unstable();
        added.dedup();
        if !added.is_empty() {
            let added: Vec<_> = added.into_iter().map(super::field::quoted).collect();
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            );
            errors.forbidden(&path.child("finalizers"), &detail);
        }
    }
    if number(new, "generation") < number(old, "generation") {
        errors.invalid(&path.child("generation"), number(new, "generation"), "must not be decremented");
    }
    for field in ["name", "namespace", "uid", "creationTimestamp"] {
        // Fields that the client omits keep their value.
        if get(new, field).is_some() && !same(get(new, field), get(old, field)) {
            errors.invalid(&path.child(field), text(new, field), "field is immutable");
        }
    }
    common(new, &path, errors);
}

fn name(resource: Resource, meta: &Value, path: &Path, errors: &mut Errors) {
    let problems = |name: &str| match resource {
        Resource::Namespace => names::label(name, Wording::Characters),
        Resource::DeviceClass => names::subdomain(name, Wording::Bytes),
        _ => names::subdomain(name, Wording::Characters),
    };
    let prefix = text(meta, "generateName");
    // Of a class, the kube-apiserver checks the generated name instead.
    if !prefix.is_empty() && resource != Resource::DeviceClass {
        errors.invalid_each(&path.child("generateName"), prefix, problems(&names::without_trailing_dash(prefix)));
    }
    match text(meta, "name") {
        "" => errors.required(&path.child("name"), "name or generateName is required"),
        name => errors.invalid_each(&path.child("name"), name, problems(name)),
    }
}

fn namespace(resource: Resource, meta: &Value, path: &Path, errors: &mut Errors) {
    let path = path.child("namespace");
    match (resource.namespaced(), text(meta, "namespace")) {
        (true, "") => errors.required(&path, ""),
        (true, namespace) => errors.invalid_each(&path, namespace, names::label(namespace, Wording::Characters)),
        (false, "") => {}
        (false, _) => errors.forbidden(&path, "not allowed on this type"),
    }
}

fn common(meta: &Value, path: &Path, errors: &mut Errors) {
    if number(meta, "generation") < 0 {
        let detail = "must be greater than or equal to 0";
        errors.invalid(&path.child("generation"), number(meta, "generation"), detail);
    }
    labels_and_annotations(meta, path, errors);
    owner_references(meta, &path.child("ownerReferences"), errors);
    finalizers(meta, &path.child("finalizers"), errors);
}

pub(super) fn labels_and_annotations(meta: &Value, path: &Path, errors: &mut Errors) {
    let labels = path.child("labels");
    for (key, value) in entries(meta, "labels") {
        let value = value.as_str().unwrap_or_default();
        errors.invalid_each(&labels, key, names::label_key(key));
        errors.invalid_each(&labels, value, names::label_value(value));
    }
    let annotations = path.child("annotations");
    let mut bytes = 0;
    for (key, value) in entries(meta, "annotations") {
        errors.invalid_each(&annotations, key, names::label_key(&key.to_lowercase()));
        bytes += key.len() + value.as_str().map_or(0, str::len);
    }
    if bytes > MAX_ANNOTATION_BYTES {
        errors.too_long(&annotations, MAX_ANNOTATION_BYTES);
    }
}

fn owner_references(meta: &Value, path: &Path, errors: &mut Errors) {
    let references = list(meta, "ownerReferences");
    let mut controller: Option<String> = None;
    for (index, reference) in references.iter().enumerate() {
        owner_reference(reference, &path.index(index), errors);
        if flag(reference, "controller") != Some(true) {
            continue;
        }
        let name = format!("{}/{}", text(reference, "kind"), text(reference, "name"));
        if let Some(first) = &controller {
            let shown: Vec<_> = references.iter().map(|reference| show(&OWNER_REFERENCE, reference)).collect();
            let detail = format!(
                "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
            );
            errors.invalid(path, Bad::Json(format!("[{}]", shown.join(","))), &detail);
        } else {
            controller = Some(name);
        }
    }
}

fn owner_reference(reference: &Value, path: &Path, errors: &mut Errors) {
    let version = text(reference, "apiVersion");
    let is_valid = match version.split('/').collect::<Vec<_>>()[..] {
        [_] => true,
        [_, version] => !version.is_empty(),
        _ => false,
    };
    if !version.is_empty() && !is_valid {
        errors.invalid(&path.child("apiVersion"), version, "must be <group>/<version> or <version>");
    }
    for field in ["apiVersion", "kind", "name", "uid"] {
        if text(reference, field).is_empty() {
            errors.required(&path.child(field), "must not be empty");
        }
    }
    if version == "v1" && text(reference, "kind") == "Event" {
        let shown = Bad::Json(show(&OWNER_REFERENCE, reference));
        errors.invalid(path, shown, "/v1, Kind=Event is disallowed from being an owner");
    }
}

fn finalizers(meta: &Value, path: &Path, errors: &mut Errors) {
    let finalizers = texts(meta, "finalizers");
    for (index, finalizer) in finalizers.iter().enumerate() {
        errors.invalid_each(path, finalizer, names::label_key(finalizer));
        if !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(finalizer) {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            errors.invalid(&path.index(index), *finalizer, detail);
        }
    }
    if finalizers.contains(&"orphan") && finalizers.contains(&"foregroundDeletion") {
        let shown = Bad::Json(Value::from(finalizers).to_string());
        errors.invalid(path, shown, "finalizer orphan and foregroundDeletion cannot be both set");
    }
}
