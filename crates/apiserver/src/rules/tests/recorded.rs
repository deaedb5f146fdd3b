//! A table of objects, each with the recorded response of a kube-apiserver 1.37.1: the causes of a refusal, or the stored
//! object.
//!
//! Objects are made from a base by setting fields. `$repeat`, `$join`, `$list` and `$map` abbreviate long strings, lists and
//! maps. Tests of other crates include this file too: slices are checked before publishing with the API server's rules.

// Not every test that includes this file uses all of it.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Deserialize)]
pub(crate) struct Table {
    /// Abbreviations of texts that many responses have.
    pub(crate) words: BTreeMap<String, String>,
    pub(crate) servers: Map<String, Value>,
    pub(crate) bases: Map<String, Value>,
    pub(crate) cases: Vec<Case>,
}

#[derive(Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) base: String,
    pub(crate) on: String,
    #[serde(default)]
    pub(crate) old: Vec<(String, Value)>,
    pub(crate) set: Vec<(String, Value)>,
    #[serde(default)]
    pub(crate) server: String,
    pub(crate) refused: Option<Refused>,
    pub(crate) stored: Option<Value>,
    #[serde(default)]
    pub(crate) warnings: BTreeSet<String>,
}

#[derive(Deserialize)]
pub(crate) struct Refused {
    pub(crate) code: u16,
    #[serde(default)]
    pub(crate) causes: BTreeSet<(String, String, String)>,
    #[serde(default)]
    pub(crate) message: String,
}

impl Table {
    pub(crate) fn read() -> Self {
        serde_json::from_str(include_str!("kubernetes_1_37_1.json")).unwrap()
    }
}

fn expand(value: &Value) -> Value {
    let text = |value: &Value| expand(value).as_str().unwrap().to_owned();
    match value {
        Value::Array(list) => list.iter().map(expand).collect(),
        Value::Object(fields) => {
            let (name, args) = fields.iter().next().map_or(("", &Value::Null), |(name, args)| (name.as_str(), args));
            let times = |at: usize| usize::try_from(args[at].as_u64().unwrap()).unwrap();
            match name {
                "$repeat" => text(&args[0]).repeat(times(1)).into(),
                "$join" => args.as_array().unwrap().iter().map(text).collect::<String>().into(),
                "$list" => (0..times(0)).map(|index| number(&expand(&args[1]), index)).collect(),
                "$map" => (0..times(0))
                    .map(|index| (text(&args[1]).replace('#', &index.to_string()), expand(&args[2])))
                    .collect(),
                _ => fields.iter().map(|(name, value)| (name.clone(), expand(value))).collect(),
            }
        }
        other => other.clone(),
    }
}

/// Replaces every `#` with a number.
fn number(value: &Value, index: usize) -> Value {
    match value {
        Value::String(text) => text.replace('#', &index.to_string()).into(),
        Value::Array(list) => list.iter().map(|value| number(value, index)).collect(),
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), number(value, index))).collect(),
        other => other.clone(),
    }
}

/// Sets fields of an object by their paths; `null` removes a field.
pub(crate) fn with(mut object: Value, sets: &[(String, Value)]) -> Value {
    for (path, value) in sets {
        let (parent, field) = path.rsplit_once('/').unwrap();
        let mut at = &mut object;
        for step in parent.split('/').skip(1) {
            at = match step.parse::<usize>() {
                Ok(index) if at.is_array() => &mut at[index],
                _ => {
                    if at[step].is_null() {
                        at[step] = json!({});
                    }
                    &mut at[step]
                }
            };
        }
        match value {
            Value::Null => {
                if let Some(fields) = at.as_object_mut() {
                    fields.remove(field);
                }
            }
            value => at[field] = expand(value),
        }
    }
    object
}
