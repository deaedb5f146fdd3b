//! Label and field selectors, as lists, watches and collection deletes take them.

use serde_json::Value;

use super::resource::Resource;
use super::status::Failure;

/// Which objects a client wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<FieldTerm>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Missing,
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

    /// The value that a field must have, if the selector demands one.
    pub(crate) fn demanded(&self, path: &str) -> Option<&str> {
        self.fields.iter().find(|term| term.equal && term.path == path).map(|term| term.value.as_str())
    }
}

impl Requirement {
    fn matches(&self, labels: &Value) -> bool {
        let value = labels.get(&self.key).and_then(Value::as_str);
        match &self.test {
            Test::In(values) => value.is_some_and(|value| values.iter().any(|other| other == value)),
            Test::NotIn(values) => value.is_none_or(|value| values.iter().all(|other| other != value)),
            Test::Exists => value.is_some(),
            Test::Missing => value.is_none(),
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
            // An absent flag reads as false, anything else that is absent as the empty string.
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
            if !knows_field(resource, path) {
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

fn knows_field(resource: Resource, path: &str) -> bool {
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
    let bad = |why: &str| Failure::bad_request(format!("unable to parse requirement: {why}: {text:?}"));
    let mut requirements = Vec::new();
    for term in split_terms(text) {
        let term = term.trim();
        if term.is_empty() {
            continue;
        }
        let (key, test) = if let Some(key) = term.strip_prefix('!') {
            (key, Test::Missing)
        } else if let Some((key, value)) = term.split_once("!=") {
            (key, Test::NotIn(vec![value.trim().to_owned()]))
        } else if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
            (key, Test::In(vec![value.trim().to_owned()]))
        } else if let Some((head, set)) = term.split_once('(') {
            let set = set.trim_end().strip_suffix(')').ok_or_else(|| bad("found end of the text, expected ')'"))?;
            let values = set.split(',').map(|value| value.trim().to_owned()).collect();
            match head.trim_end().rsplit_once(char::is_whitespace) {
                Some((key, "in")) => (key, Test::In(values)),
                Some((key, "notin")) => (key, Test::NotIn(values)),
                _ => return Err(bad("expected 'in' or 'notin' before '('")),
            }
        } else {
            (term, Test::Exists)
        };
        let key = key.trim();
        if key.is_empty() || key.contains(|c: char| !(c.is_ascii_alphanumeric() || "-_./".contains(c))) {
            return Err(bad(&format!("{key:?} is no label key")));
        }
        requirements.push(Requirement { key: key.to_owned(), test });
    }
    Ok(requirements)
}

/// Splits at the commas that are not in parentheses.
fn split_terms(text: &str) -> Vec<&str> {
    let (mut terms, mut start, mut depth) = (Vec::new(), 0, 0_u32);
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
