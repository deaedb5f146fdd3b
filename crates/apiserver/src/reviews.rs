//! Questions of users about themselves: who they are (`kubectl auth whoami`) and what they may do (`kubectl auth can-i`).

use serde_json::{Value, json};

use super::codec;
use super::core::Core;
use super::discovery::REVIEWS;
use super::resource::Resource;
use super::rules::{self, AccessRequest, User};
use super::status::Failure;

/// Returns the kind of review at a path, if there is one.
pub(crate) fn kind_at(segments: &[&str]) -> Option<&'static str> {
    let ["apis", group, "v1", plural] = *segments else { return None };
    REVIEWS.into_iter().find(|(of, name, _)| (*of, *name) == (group, plural)).map(|(.., kind)| kind)
}

/// Answers a review: the object of the request, with a status.
pub(crate) fn answer(core: &Core, user: &User, kind: &str, body: &[u8], yaml: bool) -> Result<Value, Failure> {
    let mut review = codec::parse(body, yaml, kind)?;
    let group = REVIEWS.into_iter().find(|(.., known)| *known == kind).map_or("", |(group, ..)| group);
    let api_version = format!("{group}/v1");
    let given = |field: &str| review[field].as_str().filter(|text| !text.is_empty());
    if given("kind").is_some_and(|given| given != kind) || given("apiVersion").is_some_and(|given| given != api_version)
    {
        return Err(Failure::bad_request(format!("expected a {kind} of {api_version}")));
    }
    let status = match kind {
        "SelfSubjectReview" => json!({
            "userInfo": { "username": user.name, "groups": user.groups, "extra": user.extra },
        }),
        "SelfSubjectRulesReview" => rules_of(core, user, &review["spec"])?,
        _ => access(core, user, &review["spec"])?,
    };
    review["kind"] = kind.into();
    review["apiVersion"] = api_version.into();
    review["metadata"] = json!({ "creationTimestamp": null });
    review["status"] = status;
    Ok(review)
}

/// Answers whether the user may do something.
fn access(core: &Core, user: &User, spec: &Value) -> Result<Value, Failure> {
    let wanted = match (&spec["resourceAttributes"], &spec["nonResourceAttributes"]) {
        (wanted @ Value::Object(_), Value::Null) => wanted,
        // Every authenticated user may read discovery, and there is nothing else.
        (Value::Null, Value::Object(_)) => return Ok(json!({ "allowed": true })),
        _ => {
            let message = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            return Err(Failure::bad_request(message));
        }
    };
    let text = |field: &str| wanted[field].as_str().filter(|text| !text.is_empty());
    let (verb, plural) = (text("verb").unwrap_or_default(), text("resource").unwrap_or_default());
    let (namespace, name, subresource) = (text("namespace"), text("name"), text("subresource"));
    let policy = core.policy();
    let known = Resource::from_plural(text("group").unwrap_or_default(), plural);
    let outcome = match known {
        Some(resource) => {
            let access = AccessRequest { verb, resource, subresource, namespace, name };
            rules::authorize(user, &access, &policy)
        }
        None => {
            let full = subresource.map_or_else(|| plural.to_owned(), |below| format!("{plural}/{below}"));
            let allowed = rules::is_allowed(user, verb, &full, namespace, name, &policy);
            allowed.then_some(()).ok_or_else(String::new)
        }
    };
    let mut status = json!({ "allowed": outcome.is_ok() });
    // What is after the sentence that every refusal has: the reason of the rules for nodes.
    if let Err(refusal) = outcome
        && let Some((_, reason)) = refusal.split_once(": node: ")
    {
        status["reason"] = reason.into();
    }
    Ok(status)
}

/// Lists what the user may do in a namespace.
fn rules_of(core: &Core, user: &User, spec: &Value) -> Result<Value, Failure> {
    let Some(namespace) = spec["namespace"].as_str().filter(|namespace| !namespace.is_empty()) else {
        return Err(Failure::bad_request("no namespace on request"));
    };
    let policy = core.policy();
    let resource_rules: Vec<Value> = policy
        .rules_of(user, namespace)
        .map(|(verbs, resources, names)| {
            let mut rule = json!({ "verbs": verbs, "apiGroups": ["*"], "resources": resources });
            if !names.is_empty() {
                rule["resourceNames"] = json!(names);
            }
            rule
        })
        .collect();
    // Nodes may do more than the rules of the policy say, which depends on the object.
    let incomplete = user.groups.iter().any(|group| group == "system:nodes");
    Ok(json!({
        "resourceRules": resource_rules,
        "nonResourceRules": [{ "verbs": ["get"], "nonResourceURLs": ["*"] }],
        "incomplete": incomplete,
    }))
}
