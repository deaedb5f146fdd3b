//! Rules for single texts: names, keys and values of labels.

use drakkar_metadata::name::{ClaimName, DeviceName};

const MAX_IDENTIFIER: usize = 32;
const MAX_LABEL: usize = 63;

pub(super) fn length(text: &str, limit: usize) -> Result<(), String> {
    match text.len() {
        length if length > limit => Err(format!("too long: {length} bytes, at most {limit} are allowed")),
        _ => Ok(()),
    }
}

/// A DNS label.
pub(super) fn label(what: &str, text: &str) -> Result<(), String> {
    DeviceName::new(text).map(drop).map_err(|error| format!("{what} {text:?}: {}", error.problem()))
}

/// A DNS subdomain.
pub(super) fn subdomain(what: &str, text: &str) -> Result<(), String> {
    ClaimName::new(text).map(drop).map_err(|error| format!("{what} {text:?}: {}", error.problem()))
}

/// The name of an attribute or a capacity: a C identifier, with a domain before it or not.
pub(super) fn qualified_name(text: &str) -> Result<(), String> {
    let identifier = match text.split_once('/') {
        None => text,
        Some((domain, identifier)) => {
            super::domain(domain)?;
            identifier
        }
    };
    length(identifier, MAX_IDENTIFIER)?;
    let starts = |first: char| first.is_ascii_alphabetic() || first == '_';
    let goes_on = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if identifier.starts_with(starts) && identifier.chars().all(goes_on) {
        return Ok(());
    }
    Err(format!(
        "name {text:?} is not valid: must be letters, digits and '_', not starting with a digit, with a domain and one '/' \
         before it or not"
    ))
}

/// The key of a label or the type of a condition.
pub(super) fn label_key(text: &str) -> Result<(), String> {
    let name = match text.split_once('/') {
        None => text,
        Some((prefix, name)) => {
            subdomain("prefix", prefix)?;
            name
        }
    };
    if name.is_empty() {
        return Err(format!("{text:?} is not valid: the name must not be empty"));
    }
    label_text(name)
}

/// The value of a label.
pub(super) fn label_value(text: &str) -> Result<(), String> {
    if text.is_empty() { Ok(()) } else { label_text(text) }
}

fn label_text(text: &str) -> Result<(), String> {
    length(text, MAX_LABEL)?;
    let is_end = |c: char| c.is_ascii_alphanumeric();
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if text.starts_with(is_end) && text.ends_with(is_end) && text.chars().all(is_inner) {
        return Ok(());
    }
    Err(format!(
        "{text:?} is not valid: must be letters, digits, '-', '_' and '.', starting and ending with a letter or digit"
    ))
}

/// Whether a text is a semantic version (2.0.0). Numbers can have any length, as the API server has it.
pub(super) fn is_semantic_version(text: &str) -> bool {
    let (version, build) = text.split_once('+').map_or((text, None), |(version, build)| (version, Some(build)));
    let (core, release) = version.split_once('-').map_or((version, None), |(core, release)| (core, Some(release)));
    let is_number =
        |part: &str| part.bytes().all(|byte| byte.is_ascii_digit()) && (part == "0" || !part.starts_with('0'));
    let is_identifier =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let is_release_part =
        |part: &str| is_identifier(part) && (is_number(part) || part.bytes().any(|byte| !byte.is_ascii_digit()));
    core.split('.').count() == 3
        && core.split('.').all(|part| !part.is_empty() && is_number(part))
        && release.is_none_or(|release| release.split('.').all(is_release_part))
        && build.is_none_or(|build| build.split('.').all(is_identifier))
}
