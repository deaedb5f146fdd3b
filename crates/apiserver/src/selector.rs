//! Label and field selectors of lists, watches and collection deletes.

use serde_json::Value;

use super::resource::Resource;
use super::status::Failure;

/// A label selector and a field selector, both of which must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<FieldTerm>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Operator {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldTerm {
    path: String,
    value: String,
    equal: bool,
}

impl Selector {
    pub(crate) fn parse(resource: Resource, labels: Option<&str>, fields: Option<&str>) -> Result<Self, Failure> {
        Ok(Self {
            labels: labels.map(parse_labels).transpose()?.unwrap_or_default(),
            fields: fields.map(|text| parse_fields(resource, text)).transpose()?.unwrap_or_default(),
        })
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.fields.iter().all(|term| term.matches(object))
            && self.labels.iter().all(|requirement| requirement.matches(&object["metadata"]["labels"]))
    }

    /// Returns the value that the selector requires a field to have.
    pub(crate) fn required_value(&self, path: &str) -> Option<&str> {
        self.fields.iter().find(|term| term.equal && term.path == path).map(|term| term.value.as_str())
    }
}

impl Requirement {
    fn matches(&self, labels: &Value) -> bool {
        let value = labels.get(&self.key).and_then(Value::as_str);
        match &self.operator {
            Operator::In(values) => value.is_some_and(|value| values.iter().any(|other| other == value)),
            Operator::NotIn(values) => value.is_none_or(|value| values.iter().all(|other| other != value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

impl FieldTerm {
    fn matches(&self, object: &Value) -> bool {
        let found = self.path.split('.').try_fold(object, |value, field| value.get(field));
        let equal = match found {
            Some(Value::String(text)) => *text == self.value,
            Some(Value::Bool(flag)) => flag.to_string() == self.value,
            Some(Value::Number(number)) => number.to_string() == self.value,
            // A missing bool is false, any other missing field is the empty string.
            _ => self.value.is_empty() || (self.value == "false" && is_flag(&self.path)),
        };
        equal == self.equal
    }
}

fn is_flag(path: &str) -> bool {
    matches!(path, "spec.unschedulable" | "spec.hostNetwork")
}

fn parse_fields(resource: Resource, text: &str) -> Result<Vec<FieldTerm>, Failure> {
    text.split(',')
        .filter(|term| !term.is_empty())
        .map(|term| {
            let (path, value, equal) = if let Some((path, value)) = term.split_once("!=") {
                (path, value, false)
            } else if let Some((path, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
                (path, value, true)
            } else {
                return Err(Failure::bad_request(format!("invalid selector: '{text}'; can't understand '{term}'")));
            };
            if !supports_field(resource, path) {
                let of = match resource.group() {
                    "" => String::new(),
                    group => format!(" for {group}/v1, Kind={}", resource.kind()),
                };
                return Err(Failure::bad_request(format!("field label not supported{of}: {path}")));
            }
            Ok(FieldTerm { path: path.to_owned(), value: value.to_owned(), equal })
        })
        .collect()
}

fn supports_field(resource: Resource, path: &str) -> bool {
    let more: &[&str] = match resource {
        Resource::ResourceSlice => &["spec.nodeName", "spec.driver", "spec.pool.name"],
        Resource::Pod => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        Resource::Node => &["spec.unschedulable"],
        Resource::Namespace => &["status.phase"],
        Resource::Event => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        _ => &[],
    };
    path == "metadata.name" || (path == "metadata.namespace" && resource.namespaced()) || more.contains(&path)
}

fn parse_labels(text: &str) -> Result<Vec<Requirement>, Failure> {
    let bad = |cause: &str| Failure::bad_request(format!("unable to parse requirement: {cause}: {text:?}"));
    let mut requirements = Vec::new();
    for term in split_terms(text) {
        let term = term.trim();
        if term.is_empty() {
            continue;
        }
        let (key, operator) = if let Some(key) = term.strip_prefix('!') {
            (key, Operator::DoesNotExist)
        } else if let Some((key, value)) = term.split_once("!=") {
            (key, Operator::NotIn(vec![value.trim().to_owned()]))
        } else if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
            (key, Operator::In(vec![value.trim().to_owned()]))
        } else if let Some((head, set)) = term.split_once('(') {
            let set =
                set.trim_end().strip_suffix(')').ok_or_else(|| bad("found the end of the selector, expected ')'"))?;
            let values = set.split(',').map(|value| value.trim().to_owned()).collect();
            match head.trim_end().rsplit_once(char::is_whitespace) {
                Some((key, "in")) => (key, Operator::In(values)),
                Some((key, "notin")) => (key, Operator::NotIn(values)),
                _ => return Err(bad("expected 'in' or 'notin' before '('")),
            }
        } else {
            (term, Operator::Exists)
        };
        let key = key.trim();
        if key.is_empty() || key.contains(|c: char| !(c.is_ascii_alphanumeric() || "-_./".contains(c))) {
            return Err(bad(&format!("{key:?} is not a label key")));
        }
        requirements.push(Requirement { key: key.to_owned(), operator });
    }
    Ok(requirements)
}

/// Splits at commas outside of parentheses.
fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let mut start = 0;
    let mut depth = 0_u32;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}
