//! The API server's error texts for names: DNS labels and subdomains, label keys and values, C identifiers, UUIDs.
//!
//! Each function returns the errors of a text in the API server's words, and none for a valid text. The formats
//! themselves are in [`drakkar_metadata::name::syntax`].

pub(super) use drakkar_metadata::name::syntax::is_semantic_version;
use drakkar_metadata::name::syntax::{
    MAX_DNS_LABEL, MAX_DNS_SUBDOMAIN, MAX_LABEL_VALUE, is_c_identifier, is_condition_reason, is_dns_label,
    is_dns_subdomain, is_dns_subdomain_ignoring_case, is_label_name, is_uuid,
};

const LABEL_REGEX: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const LABEL_KEY_REGEX: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";

/// The wording of an error about length: the API server has two.
#[derive(Clone, Copy)]
pub(super) enum Wording {
    Bytes,
    Characters,
}

impl Wording {
    fn too_long(self, limit: usize) -> String {
        match self {
            Self::Bytes => format!("must be no more than {limit} bytes"),
            Self::Characters => format!("must be no more than {limit} characters"),
        }
    }
}

/// Checks a DNS label (RFC 1123).
pub(super) fn label(text: &str, wording: Wording) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > MAX_DNS_LABEL {
        problems.push(wording.too_long(MAX_DNS_LABEL));
    }
    if !is_dns_label(text) {
        problems.push(if is_dns_subdomain(text) {
            "must not contain dots".to_owned()
        } else {
            regex_problem(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
                LABEL_REGEX,
                &["my-name", "123-abc"],
            )
        });
    }
    problems
}

/// Checks a DNS subdomain (RFC 1123).
pub(super) fn subdomain(text: &str, wording: Wording) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > MAX_DNS_SUBDOMAIN {
        problems.push(wording.too_long(MAX_DNS_SUBDOMAIN));
    }
    if !is_dns_subdomain(text) {
        problems.push(regex_problem(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            &subdomain_regex(),
            &["example.com"],
        ));
    }
    problems
}

/// Checks a DNS subdomain in which upper case is allowed.
pub(super) fn subdomain_caseless(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > MAX_DNS_SUBDOMAIN {
        problems.push(Wording::Bytes.too_long(MAX_DNS_SUBDOMAIN));
    }
    if !is_dns_subdomain_ignoring_case(text) {
        problems.push(regex_problem(
            "an RFC 1123 subdomain must consist of alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            &subdomain_regex(),
            &["Example.com"],
        ));
    }
    problems
}

/// Checks the key of a label, with or without a prefix.
pub(super) fn label_key(text: &str) -> Vec<String> {
    let format = || {
        regex_problem(
            "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            LABEL_KEY_REGEX,
            &["MyName", "my.name", "123-abc"],
        )
    };
    let mut problems = Vec::new();
    let parts: Vec<_> = text.split('/').collect();
    let name = match parts[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                problems.push("prefix part must be non-empty".to_owned());
            } else {
                let of_prefix = subdomain(prefix, Wording::Bytes).into_iter();
                problems.extend(of_prefix.map(|problem| format!("prefix part {problem}")));
            }
            name
        }
        _ => {
            return vec![format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                format()
            )];
        }
    };
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    } else if name.len() > MAX_LABEL_VALUE {
        problems.push(format!("name part {}", Wording::Bytes.too_long(MAX_LABEL_VALUE)));
    }
    if !is_label_name(name) {
        problems.push(format!("name part {}", format()));
    }
    problems
}

/// Checks the value of a label.
pub(super) fn label_value(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > MAX_LABEL_VALUE {
        problems.push(Wording::Bytes.too_long(MAX_LABEL_VALUE));
    }
    if !text.is_empty() && !is_label_name(text) {
        problems.push(regex_problem(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            &format!("({LABEL_KEY_REGEX})?"),
            &["MyValue", "my_value", "12345"],
        ));
    }
    problems
}

/// Checks a C identifier.
pub(super) fn c_identifier(text: &str) -> Vec<String> {
    if is_c_identifier(text) {
        return Vec::new();
    }
    vec![regex_problem(
        "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_'",
        "[A-Za-z_][A-Za-z0-9_]*",
        &["my_name", "MY_NAME", "MyName"],
    )]
}

/// Checks the reason of a condition.
pub(super) fn condition_reason(text: &str) -> Vec<String> {
    if is_condition_reason(text) {
        return Vec::new();
    }
    vec![regex_problem(
        "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'",
        "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?",
        &["my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB"],
    )]
}

/// Checks a UUID in lower case.
pub(super) fn uuid(text: &str) -> Vec<String> {
    if is_uuid(text) { Vec::new() } else { vec!["must be a lowercase UUID in 8-4-4-4-12 format".to_owned()] }
}

/// Returns the text to check for `generateName`, which may end with a dash because a random suffix follows.
pub(super) fn without_trailing_dash(text: &str) -> String {
    match text.strip_suffix('-') {
        // The API server replaces the last two characters with a letter.
        Some(rest) if !rest.is_empty() => {
            let mut kept: String = rest.chars().take(rest.chars().count() - 1).collect();
            kept.push('a');
            kept
        }
        _ => text.to_owned(),
    }
}

fn subdomain_regex() -> String {
    format!("{LABEL_REGEX}(\\.{LABEL_REGEX})*")
}

fn regex_problem(rule: &str, regex: &str, examples: &[&str]) -> String {
    let examples: Vec<_> = examples.iter().map(|example| format!("'{example}', ")).collect();
    format!("{rule} (e.g. {}regex used for validation is '{regex}')", examples.join(" or "))
}
