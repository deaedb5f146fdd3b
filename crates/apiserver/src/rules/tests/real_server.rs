//! Replays the recorded responses of a kube-apiserver 1.37.1.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::recorded::{Case, Table, with};
use crate::resource::Resource;
use crate::rules::value::remove;
use crate::rules::{
    FieldError, Gates, admin_access, complete, decode, default_fields, drop_disabled, validate_create, validate_update,
    warnings,
};

/// Expands the abbreviations of a message; `⟨a*64⟩` is a repeated letter.
fn expand_message(message: &str, words: &BTreeMap<String, String>) -> String {
    let message = words.iter().fold(message.to_owned(), |message, (short, full)| message.replace(short, full));
    let mut parts = message.split('⟨');
    let mut full = parts.next().unwrap().to_owned();
    for part in parts {
        let (repeated, rest) = part.split_once('⟩').unwrap();
        let (letter, times) = repeated.split_once('*').unwrap();
        full += &letter.repeat(times.parse().unwrap());
        full += rest;
    }
    full
}

fn resource(object: &Value) -> Resource {
    let kind = object["kind"].as_str().unwrap();
    Resource::ALL.into_iter().find(|resource| resource.kind() == kind).unwrap()
}

fn header(text: &str) -> String {
    format!("299 - {}", Value::from(text))
}

/// Applies a write. Returns the stored object, or code, message and causes of the refusal.
fn write(case: &Case, base: &Value, gates: &Gates) -> Result<Value, (u16, String, Vec<FieldError>)> {
    let resource = resource(base);
    let namespace = json!({"metadata": {"name": "default"}});
    let old = with(base.clone(), &case.old);
    if case.on == "create" {
        let mut new = with(old, &case.set);
        let unknown = decode(resource, &mut new).map_err(|message| (400, message, Vec::new()))?;
        let unknown = unknown.into_iter().map(|field| format!("unknown field \"{field}\""));
        let said: BTreeSet<_> = unknown.chain(warnings(resource, &new)).map(|text| header(&text)).collect();
        if case.refused.is_none() && resource.group() != "" {
            assert_eq!(said, case.warnings, "{}", case.name);
        }
        default_fields(resource, &mut new);
        drop_disabled(resource, &mut new, None, gates);
        let mut errors = admin_access(resource, &new, None, &namespace);
        errors.extend(validate_create(resource, &new, gates));
        complete(resource, &mut new);
        return if errors.is_empty() { Ok(new) } else { Err((422, String::new(), errors)) };
    }
    // The old object is in the stored form, with defaults.
    let status = case.on == "status";
    let mut old = old;
    decode(resource, &mut old).unwrap();
    default_fields(resource, &mut old);
    old["metadata"]["resourceVersion"] = "1".into();
    old["metadata"]["uid"] = "0c4f6a46-0000-4000-8000-000000000000".into();
    let mut new = with(old.clone(), &case.set);
    decode(resource, &mut new).map_err(|message| (400, message, Vec::new()))?;
    let kept: &[&str] = if status { &["spec", "metadata"] } else { &["status"] };
    for field in kept {
        new[*field] = old[*field].clone();
    }
    default_fields(resource, &mut new);
    drop_disabled(resource, &mut new, Some(&old), gates);
    let mut errors = admin_access(resource, &new, Some(&old), &namespace);
    errors.extend(validate_update(resource, status, &new, &old, gates));
    complete(resource, &mut new);
    if errors.is_empty() { Ok(new) } else { Err((422, String::new(), errors)) }
}

/// Returns the difference between the response and the recorded one, if any.
fn difference(case: &Case, table: &Table) -> Option<String> {
    let mut gates = Gates::default();
    for (name, enabled) in table.servers.get(&case.server).and_then(Value::as_object).into_iter().flatten() {
        gates = gates.with(name, enabled.as_bool().unwrap()).unwrap();
    }
    match (write(case, &table.bases[&case.base], &gates), &case.refused) {
        (Ok(stored), None) => {
            let wanted = case.stored.as_ref()?;
            let differs = ["spec", "status"].into_iter().any(|field| {
                // Only the given fields of a pod are compared: the server adds more.
                let skipped = field == "status" && case.base == "pod";
                !skipped && without_times(stored[field].clone()) != wanted[field]
            });
            differs.then(|| format!("stored\n  {stored}\nnot\n  {wanted}"))
        }
        (Ok(_), Some(refused)) => Some(format!("let through, not refused: {} {:?}", refused.message, refused.causes)),
        (Err((code, message, errors)), None) => Some(format!("refused, not let through: {code} {message} {errors:?}")),
        (Err((code, message, errors)), Some(refused)) => {
            let causes: BTreeSet<_> = errors
                .iter()
                .map(|error| (error.reason.to_owned(), error.field.clone(), error.message.clone()))
                .collect();
            let wanted: BTreeSet<_> = refused
                .causes
                .iter()
                .map(|(reason, field, message)| (reason.clone(), field.clone(), expand_message(message, &table.words)))
                .collect();
            let same_message = refused.message.ends_with(&format!(": {message}")) || message.is_empty();
            let missing: Vec<_> = wanted.difference(&causes).collect();
            let extra: Vec<_> = causes.difference(&wanted).collect();
            let is_same = code == refused.code && same_message && missing.is_empty() && extra.is_empty();
            (!is_same).then(|| {
                format!(
                    "{code} {message}, not {} {}\n  missing {missing:#?}\n  extra {extra:#?}",
                    refused.code, refused.message
                )
            })
        }
    }
}

/// Removes the times of taints, which the server sets to the current time.
fn without_times(mut spec: Value) -> Value {
    for device in spec.get_mut("devices").and_then(Value::as_array_mut).into_iter().flatten() {
        for taint in device.get_mut("taints").and_then(Value::as_array_mut).into_iter().flatten() {
            if taint["timeAdded"] != "2026-01-02T03:04:05Z" {
                remove(taint, &["timeAdded"]);
            }
        }
    }
    spec
}

/// Known differences: the cost of expressions is not estimated, and the kube-apiserver reports an attribute without a value
/// and with a truncated name twice.
const KNOWN: [&str; 2] = ["expression type(device.driver) == string", "attribute name long in a path"];

#[test]
fn responses_are_those_of_the_real_server() {
    let table: Table = Table::read();
    let different: Vec<_> = table
        .cases
        .iter()
        .filter(|case| !KNOWN.contains(&case.name.as_str()))
        .filter_map(|case| difference(case, &table).map(|difference| format!("{}: {difference}", case.name)))
        .collect();
    assert!(different.is_empty(), "{} of {}:\n{}", different.len(), table.cases.len(), different.join("\n"));
    assert!(table.cases.len() > 600);
}
