//! Errors of documents in the words of their authors: the field, what it has, and what belongs there.

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

/// A field of a document that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}{problem}", .field.as_ref().map(|field| format!("{field}: ")).unwrap_or_default())]
pub struct FieldError {
    /// The path of the field, such as `spec.domain.devices.gpus[0].name`; `None` for the document itself.
    pub field: Option<String>,
    /// What is wrong with its value.
    pub problem: String,
    /// Whether quotes around the value help: a string is expected, and YAML reads the value as another type.
    pub needs_quotes: bool,
}

/// Reads a type from a document.
pub(super) fn from_value<'de, T: Deserialize<'de>>(document: &'de Value) -> Result<T, FieldError> {
    serde_path_to_error::deserialize(document).map_err(|error| {
        let path = error.path().to_string();
        let (problem, needs_quotes) = in_words_of_documents(&error.into_inner().to_string());
        FieldError { field: Some(path).filter(|path| path != "."), problem, needs_quotes }
    })
}

/// Replaces the names of Rust's and serde's types.
fn in_words_of_documents(problem: &str) -> (String, bool) {
    let types = problem.strip_prefix("invalid type: ").and_then(|types| types.split_once(", expected "));
    let Some((found, expected)) = types else { return (problem.to_owned(), false) };
    let found = match found.split_once(' ') {
        None if found == "map" => "an object".to_owned(),
        None if found == "sequence" => "a list".to_owned(),
        Some(("integer" | "floating", value)) => {
            format!("the number {}", value.trim_start_matches("point ").trim_matches('`'))
        }
        Some(("boolean", value)) => format!("the boolean {}", value.trim_matches('`')),
        _ => found.to_owned(),
    };
    let expected = match expected {
        "a sequence" => "a list",
        "a map" => "an object",
        "u32" | "i64" | "u64" => "a number",
        expected if expected.starts_with("struct ") => "an object",
        expected => expected,
    };
    let needs_quotes = expected == "a string" && found.starts_with("the ");
    (format!("is {found}, must be {expected}"), needs_quotes)
}

/// An error in YAML on one line: its place and its cause.
#[must_use]
pub fn yaml_problem(error: &serde_saphyr::Error) -> String {
    let error = error.without_snippet();
    let place = error.location().map(|at| format!("line {} column {}: ", at.line(), at.column())).unwrap_or_default();
    match error {
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => format!("{place}the key {key} is repeated"),
        serde_saphyr::Error::Budget { .. } => format!("{place}the document has too many values, aliases or levels"),
        serde_saphyr::Error::RecursiveReferencesRequireWeakTypes { .. } => {
            format!("{place}the alias refers to a value that contains it")
        }
        error => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            line.strip_prefix("error: ").unwrap_or(line).to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::super::{KubeVirt, Workload};

    fn problem(devices: &serde_json::Value) -> String {
        let vmi = json!({"kind": "VirtualMachineInstance", "spec": {"domain": {"devices": devices}}});
        let errors = [Workload::from_value(&vmi), Workload::from_json(&vmi.to_string())];
        let [first, second] = errors.map(|read| read.unwrap_err().to_string());
        assert_eq!(first, second, "a value and its text");
        first
    }

    #[rstest]
    #[case::name(json!({"gpus": [{"name": "a"}, {"name": 5}]}), "devices.gpus[1].name: is the number 5, must be a string")]
    #[case::boolean(json!({"gpus": [{"name": false}]}), "devices.gpus[0].name: is the boolean false, must be a string")]
    #[case::object(json!({"gpus": {}}), "devices.gpus: is an object, must be a list")]
    #[case::null(json!({"gpus": [null]}), "devices.gpus[0]: is null, must be an object")]
    #[case::list(json!({"hostDevices": [{"name": []}]}), "devices.hostDevices[0].name: is a list, must be a string")]
    fn the_field_is_named(#[case] devices: serde_json::Value, #[case] expected: &str) {
        let problem = problem(&devices);
        assert!(problem.ends_with(&format!("spec.domain.{expected}")), "{problem}");
    }

    #[test]
    fn values_that_quotes_would_make_strings_are_known() {
        let vmi = |name| json!({"kind": "VirtualMachineInstance", "metadata": {"name": name}});
        let needs_quotes = |name| match Workload::from_value(&vmi(name)) {
            Err(super::super::WorkloadError::Field(error)) => error.needs_quotes,
            other => panic!("{other:?}"),
        };
        assert!(needs_quotes(json!(false)));
        assert!(needs_quotes(json!(5)));
        assert!(!needs_quotes(json!([])));
    }

    #[rstest]
    #[case::duplicate("kind: a\nkind: b\n", "line 2 column 1: the key kind is repeated")]
    #[case::cycle("kind: &a [*a]\n", "the alias refers to a value that contains it")]
    #[case::syntax("kind: [\n", "line")]
    fn errors_in_yaml_are_one_line_without_internals(#[case] text: &str, #[case] expected: &str) {
        for error in
            [Workload::from_yaml(text).unwrap_err().to_string(), KubeVirt::from_yaml(text).unwrap_err().to_string()]
        {
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains('\n') && !error.contains("Options") && !error.contains("<input>"), "{error}");
        }
    }

    #[test]
    fn a_field_of_the_kubevirt_object_is_named() {
        let text = "kind: KubeVirt\nspec: {configuration: {developerConfiguration: {featureGates: HostDevices}}}\n";
        let error = KubeVirt::from_yaml(text).unwrap_err().to_string();
        let field = "spec.configuration.developerConfiguration.featureGates: is string \"HostDevices\", must be a list";
        assert!(error.ends_with(field), "{error}");
    }
}
