//! The formats of names: DNS labels and subdomains, label keys and values, C identifiers, UUIDs.
//!
//! Each check gives the problems of a text in the words of the API server, none for a text that is right.

/// The bytes in a DNS label.
const LABEL_BYTES: usize = 63;
/// The bytes in a DNS subdomain.
const SUBDOMAIN_BYTES: usize = 253;
/// The bytes in the name part of a label key, and in a label value.
const LABEL_KEY_BYTES: usize = 63;

const LABEL_REGEX: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const LABEL_KEY_REGEX: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";

/// How a limit of length is worded: the server has two ways.
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

/// A DNS label (RFC 1123).
pub(super) fn label(text: &str, wording: Wording) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > LABEL_BYTES {
        problems.push(wording.too_long(LABEL_BYTES));
    }
    if !is_label(text) {
        problems.push(if is_subdomain(text) {
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

/// A DNS subdomain (RFC 1123).
pub(super) fn subdomain(text: &str, wording: Wording) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > SUBDOMAIN_BYTES {
        problems.push(wording.too_long(SUBDOMAIN_BYTES));
    }
    if !is_subdomain(text) {
        problems.push(regex_problem(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            &subdomain_regex(),
            &["example.com"],
        ));
    }
    problems
}

/// A DNS subdomain in which upper case is let through.
pub(super) fn subdomain_caseless(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > SUBDOMAIN_BYTES {
        problems.push(Wording::Bytes.too_long(SUBDOMAIN_BYTES));
    }
    if !is_subdomain(&text.to_ascii_lowercase()) {
        problems.push(regex_problem(
            "an RFC 1123 subdomain must consist of alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            &subdomain_regex(),
            &["Example.com"],
        ));
    }
    problems
}

/// The key of a label, with or without a prefix.
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
    } else if name.len() > LABEL_KEY_BYTES {
        problems.push(format!("name part {}", Wording::Bytes.too_long(LABEL_KEY_BYTES)));
    }
    if !is_label_key_name(name) {
        problems.push(format!("name part {}", format()));
    }
    problems
}

/// The value of a label.
pub(super) fn label_value(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > LABEL_KEY_BYTES {
        problems.push(Wording::Bytes.too_long(LABEL_KEY_BYTES));
    }
    if !text.is_empty() && !is_label_key_name(text) {
        problems.push(regex_problem(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            &format!("({LABEL_KEY_REGEX})?"),
            &["MyValue", "my_value", "12345"],
        ));
    }
    problems
}

/// An identifier as C has them.
pub(super) fn c_identifier(text: &str) -> Vec<String> {
    let mut bytes = text.bytes();
    let first = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    if first && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return Vec::new();
    }
    vec![regex_problem(
        "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_'",
        "[A-Za-z_][A-Za-z0-9_]*",
        &["my_name", "MY_NAME", "MyName"],
    )]
}

/// The reason of a condition.
pub(super) fn condition_reason(text: &str) -> Vec<String> {
    let bytes = text.as_bytes();
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"_,:".contains(byte);
    let last = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let right = match bytes {
        [] => false,
        [only] => only.is_ascii_alphabetic(),
        [first, between @ .., end] => first.is_ascii_alphabetic() && between.iter().all(inner) && last(end),
    };
    if right {
        return Vec::new();
    }
    vec![regex_problem(
        "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'",
        "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?",
        &["my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB"],
    )]
}

/// A UUID in lower case.
pub(super) fn uuid(text: &str) -> Vec<String> {
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let right = text.len() == 36
        && text
            .bytes()
            .enumerate()
            .all(|(at, byte)| if [8, 13, 18, 23].contains(&at) { byte == b'-' } else { digit(byte) });
    if right { Vec::new() } else { vec!["must be a lowercase UUID in 8-4-4-4-12 format".to_owned()] }
}

/// A prefix that a random suffix is put behind: a dash may be its last character.
pub(super) fn without_trailing_dash(text: &str) -> String {
    match text.strip_suffix('-') {
        // What the server checks instead is two characters shorter and ends with a letter.
        Some(rest) if !rest.is_empty() => {
            let mut kept: String = rest.chars().take(rest.chars().count() - 1).collect();
            kept.push('a');
            kept
        }
        _ => text.to_owned(),
    }
}

/// Strict semantic versions, of any size: `1.2.3-rc.1+build`.
pub(super) fn is_semantic_version(text: &str) -> bool {
    let (rest, build) = text.split_once('+').map_or((text, None), |(rest, build)| (rest, Some(build)));
    let (core, pre) = rest.split_once('-').map_or((rest, None), |(core, pre)| (core, Some(pre)));
    let number = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) && (part == "0" || !part.starts_with('0'))
    };
    let word = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let pre_release = |part: &str| number(part) || (word(part) && !part.bytes().all(|byte| byte.is_ascii_digit()));
    core.split('.').count() == 3
        && core.split('.').all(number)
        && pre.is_none_or(|pre| pre.split('.').all(pre_release))
        && build.is_none_or(|build| build.split('.').all(word))
}

fn is_label(text: &str) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(alphanumeric)
        && bytes.last().is_some_and(alphanumeric)
        && bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

fn is_label_key_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

fn subdomain_regex() -> String {
    format!("{LABEL_REGEX}(\\.{LABEL_REGEX})*")
}

fn regex_problem(rule: &str, regex: &str, examples: &[&str]) -> String {
    let examples: Vec<_> = examples.iter().map(|example| format!("'{example}', ")).collect();
    format!("{rule} (e.g. {}regex used for validation is '{regex}')", examples.join(" or "))
}
