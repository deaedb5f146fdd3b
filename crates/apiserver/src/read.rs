//! GET of one object, and LIST.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::json;
use tokio::time::timeout;

use super::call::Call;
use super::codec;
use super::status::Failure;
use super::store::Object;

/// The time that a read waits for a resource version that does not exist yet.
const VERSION_TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) async fn get(call: &Call) -> Result<Vec<u8>, Failure> {
    wait_for_version(call).await?;
    let object = find(call)?;
    call.authorize_object(&object.value)?;
    let mut body = Vec::with_capacity(object.json().len() + 64);
    codec::encode(call.resource(), call.target.version, &object, &mut body);
    Ok(body)
}

pub(crate) fn find(call: &Call) -> Result<Arc<Object>, Failure> {
    let found = call.core.store.get(call.resource(), &call.key());
    found.ok_or_else(|| Failure::not_found(call.resource(), call.name()))
}

/// Lists objects.
///
/// Unlike in the kube-apiserver, a page shows the objects at the time of its own request. All pages have the resource version
/// of the first, so a watch from there reports what the pages missed.
pub(crate) async fn list(call: &Call) -> Result<Vec<u8>, Failure> {
    let selector = call.selector()?;
    let exact = check_version_match(call)?;
    wait_for_version(call).await?;
    let limit = call.query.number("limit")?.filter(|limit| *limit > 0);
    let page = call.query.get("continue").map(|token| parse_page(call, token)).transpose()?;
    let (version, mut objects) = call.core.store.list(call.resource(), call.target.namespace.as_deref());
    let mut list_version = version;
    if let Some(exact) = exact.filter(|exact| *exact != version) {
        objects = rewind(call, exact, objects)?;
        list_version = exact;
    }
    objects.retain(|object| selector.matches(&object.value));
    if let Some((at, after)) = page {
        list_version = at;
        objects.retain(|object| key(object) > (after.0.as_str(), after.1.as_str()));
    }
    let mut metadata = json!({ "resourceVersion": list_version.to_string() });
    if let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()).filter(|limit| *limit < objects.len()) {
        let remaining = objects.len() - limit;
        objects.truncate(limit);
        if let Some(last) = objects.last() {
            let token = json!({ "rv": list_version, "after": key(last) }).to_string();
            metadata["continue"] = BASE64_URL_SAFE_NO_PAD.encode(token).into();
            metadata["remainingItemCount"] = remaining.into();
        }
    }
    Ok(encode(call, &metadata, &objects))
}

/// Encodes a list as JSON.
pub(crate) fn encode(call: &Call, metadata: &serde_json::Value, objects: &[Arc<Object>]) -> Vec<u8> {
    let resource = call.resource();
    let version = call.target.version;
    let head = format!(
        "{{\"kind\":\"{}List\",\"apiVersion\":\"{}\",\"metadata\":{metadata},\"items\":[",
        resource.kind(),
        version.api_version(),
    );
    let mut body = head.into_bytes();
    for (index, object) in objects.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        body.extend_from_slice(&codec::body(resource, version, object));
    }
    body.extend_from_slice(b"]}");
    body
}

fn key(object: &Object) -> (&str, &str) {
    let text = |field: &str| object.value["metadata"][field].as_str().unwrap_or_default();
    (text("namespace"), text("name"))
}

fn parse_page(call: &Call, token: &str) -> Result<(u64, (String, String)), Failure> {
    let bad = |why: &dyn std::fmt::Display| Failure::bad_request(format!("continue key is not valid: {why}"));
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(token).map_err(|error| bad(&error))?;
    let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(|error| bad(&error))?;
    let version = value["rv"].as_u64().ok_or_else(|| bad(&"no version"))?;
    let after = serde_json::from_value(value["after"].clone()).map_err(|error| bad(&error))?;
    if call.core.store.events_since(call.resource(), version, 0).is_err() {
        return Err(Failure::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list \
             without the continue parameter."
                .to_owned(),
        ));
    }
    Ok((version, after))
}

/// Returns the resource version that the list must have exactly, if any.
fn check_version_match(call: &Call) -> Result<Option<u64>, Failure> {
    let version = call.query.version()?;
    match (call.query.get("resourceVersionMatch"), version) {
        (None, _) | (Some("NotOlderThan"), Some(_)) => Ok(None),
        (Some("Exact"), Some(version)) if version > 0 => Ok(Some(version)),
        (Some("Exact"), Some(_)) => Err(Failure::list_options(
            "resourceVersionMatch",
            "Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
        )),
        (Some(_), None) => Err(Failure::list_options(
            "resourceVersionMatch",
            "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
        )),
        (Some(other), _) => Err(Failure::list_options(
            "resourceVersionMatch",
            &format!("Unsupported value: \"{other}\": supported values: \"Exact\", \"NotOlderThan\""),
        )),
    }
}

/// Reconstructs the objects at an earlier resource version by undoing later events.
fn rewind(call: &Call, version: u64, now: Vec<Arc<Object>>) -> Result<Vec<Arc<Object>>, Failure> {
    let (_, events) =
        call.core.store.events_since(call.resource(), version, usize::MAX).map_err(|_expired| {
            Failure::expired("The provided resource version is too old to list from.".to_owned())
        })?;
    let owned = |object: &Object| (key(object).0.to_owned(), key(object).1.to_owned());
    let mut then: std::collections::BTreeMap<_, _> = now.into_iter().map(|object| (owned(&object), object)).collect();
    let wanted = call.target.namespace.as_deref();
    for event in events.into_iter().rev() {
        if let Some(after) = &event.after {
            then.remove(&owned(after));
        }
        if let Some(before) = event.before.filter(|object| wanted.is_none_or(|wanted| key(object).0 == wanted)) {
            then.insert(owned(&before), before);
        }
    }
    Ok(then.into_values().collect())
}

/// Waits until the store has reached the resource version of the request: a client never reads older data than it has seen.
async fn wait_for_version(call: &Call) -> Result<(), Failure> {
    let Some(wanted) = call.query.version()? else { return Ok(()) };
    if call.core.store.version() >= wanted {
        return Ok(());
    }
    let mut changed = call.core.store.subscribe(call.resource());
    let reached = timeout(VERSION_TIMEOUT, changed.wait_for(|version| *version >= wanted)).await;
    match reached {
        Ok(Ok(_)) => Ok(()),
        // Writes to other resources increase the version too, without a notification here.
        _ if call.core.store.version() >= wanted => Ok(()),
        _ => Err(Failure::version_too_large(wanted, call.core.store.version())),
    }
}
