//! DELETE: at once, after a grace period, or when the last finalizer is removed.

use std::sync::Arc;

use serde_json::{Value, json};

use super::call::Call;
use super::codec;
use super::prepare;
use super::read;
use super::resource::Resource;
use super::status::{Failure, success};
use super::store::{Key, Object};

/// The default grace period of pods, in seconds.
const DEFAULT_POD_GRACE: i64 = 30;

/// The `DeleteOptions` that the server implements.
#[derive(Debug)]
struct Options {
    grace: Option<i64>,
    uid: Option<String>,
    version: Option<String>,
    dry_run: bool,
}

/// The result of a delete, with the last state of the object.
enum Outcome {
    Removed(Arc<Object>),
    Terminating(Arc<Object>),
}

/// Handles the DELETE of one object.
pub(crate) fn one(call: &Call, body: &[u8]) -> Result<Vec<u8>, Failure> {
    let options = options(call, body)?;
    let mut out = Vec::new();
    match delete(call, &call.key(), &options)? {
        Outcome::Removed(object) if !call.resource().returns_deleted() => {
            let status = success(call.resource(), call.name(), &object.value["metadata"]["uid"]);
            out.extend_from_slice(status.to_string().as_bytes());
        }
        Outcome::Removed(object) | Outcome::Terminating(object) => {
            codec::encode(call.resource(), call.target.version, &object, &mut out);
        }
    }
    Ok(out)
}

/// Handles the DELETE of all selected objects.
pub(crate) fn collection(call: &Call, body: &[u8]) -> Result<Vec<u8>, Failure> {
    let options = options(call, body)?;
    let selector = call.selector()?;
    let (version, objects) = call.core.store.list(call.resource(), call.target.namespace.as_deref());
    let mut deleted = Vec::new();
    for object in objects.into_iter().filter(|object| selector.matches(&object.value)) {
        let text = |field: &str| object.value["metadata"][field].as_str().unwrap_or_default().to_owned();
        match delete(call, &(text("namespace"), text("name")), &options) {
            Ok(Outcome::Removed(object) | Outcome::Terminating(object)) => deleted.push(object),
            // Another client has removed it since the list.
            Err(failure) if failure.code == 404 => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(read::encode(call, &json!({ "resourceVersion": version.to_string() }), &deleted))
}

/// Reads the options from the body, or from the query if there is no body: the kube-apiserver ignores the query then.
fn options(call: &Call, body: &[u8]) -> Result<Options, Failure> {
    let (given, grace, dry_run) = if body.is_empty() {
        let grace = call.query.get("gracePeriodSeconds").map(|text| match text.parse() {
            Ok(grace) => Ok(grace),
            Err(_) => Err(Failure::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))),
        });
        (Value::Null, grace.transpose()?, call.dry_run())
    } else {
        let given = codec::parse(body, call.content_type.contains("yaml"), "DeleteOptions")?;
        let grace = given["gracePeriodSeconds"].as_i64();
        let dry_run = given["dryRun"].as_array().is_some_and(|list| !list.is_empty());
        (given, grace, dry_run)
    };
    let text = |field: &str| given["preconditions"][field].as_str().map(str::to_owned);
    // As in the kube-apiserver, a negative grace period is one second.
    let grace = grace.map(|grace: i64| if grace < 0 { 1 } else { grace });
    Ok(Options { grace, uid: text("uid"), version: text("resourceVersion"), dry_run })
}

fn delete(call: &Call, key: &Key, options: &Options) -> Result<Outcome, Failure> {
    let resource = call.resource();
    let name = key.1.as_str();
    loop {
        let old = call.core.store.get(resource, key).ok_or_else(|| Failure::not_found(resource, name))?;
        call.authorize_object(&old.value)?;
        check_preconditions(resource, name, options, &old)?;
        let mut new = old.value.clone();
        let grace = if resource == Resource::Pod { pod_grace(&old.value, options.grace) } else { 0 };
        let terminating = old.value["metadata"]["deletionTimestamp"].is_string();
        let removable = grace == 0 && !prepare::has_finalizers(&old.value);
        if terminating && !removable {
            let before = old.value["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or_default();
            // A second delete can only shorten the grace period.
            if grace >= before {
                return Ok(Outcome::Terminating(old));
            }
        }
        if !terminating && !removable {
            prepare::bump_generation(&mut new);
        }
        new["metadata"]["deletionTimestamp"] = prepare::timestamp(grace).into();
        new["metadata"]["deletionGracePeriodSeconds"] = grace.into();
        if options.dry_run {
            return Ok(Outcome::Terminating(old));
        }
        let stored = if removable {
            // Pods show the deletion in their last state; other objects are removed as they are.
            let last = if resource == Resource::Pod { new } else { old.value.clone() };
            call.core.store.remove(resource, key, old.version, last).map(Outcome::Removed)
        } else {
            call.core.store.replace(resource, key, old.version, new).map(Outcome::Terminating)
        };
        // Retry if the object has changed.
        if let Ok(outcome) = stored {
            return Ok(outcome);
        }
    }
}

/// Returns the grace period of a pod: the requested one or that of its spec, and 0 if no kubelet runs it.
fn pod_grace(pod: &Value, requested: Option<i64>) -> i64 {
    let unbound = pod["spec"]["nodeName"].as_str().unwrap_or_default().is_empty();
    let finished = matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
    if let Some(before) = pod["metadata"]["deletionGracePeriodSeconds"].as_i64() {
        return requested.unwrap_or(before).min(before);
    }
    if unbound || finished {
        return 0;
    }
    requested.or_else(|| pod["spec"]["terminationGracePeriodSeconds"].as_i64()).unwrap_or(DEFAULT_POD_GRACE)
}

fn check_preconditions(resource: Resource, name: &str, options: &Options, old: &Object) -> Result<(), Failure> {
    let uid = old.value["metadata"]["uid"].as_str().unwrap_or_default();
    let version = old.version.to_string();
    let checks = [
        ("UID", &options.uid, uid, "deleted and then recreated"),
        ("ResourceVersion", &options.version, version.as_str(), "modified"),
    ];
    for (what, wanted, found, why) in checks {
        if let Some(wanted) = wanted.as_deref().filter(|wanted| *wanted != found) {
            return Err(Failure::precondition(
                resource,
                name,
                format_args!(
                    "the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). The object might have been {why}"
                ),
            ));
        }
    }
    Ok(())
}
