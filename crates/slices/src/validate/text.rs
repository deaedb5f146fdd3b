//! Checks of names and of the keys and values of labels, with this crate's error texts.

use drakkar_metadata::name::{ClaimName, DeviceName, syntax};

/// Checks the maximum length of a text in bytes.
pub(super) fn length(text: &str, limit: usize) -> Result<(), String> {
    if text.len() > limit {
        return Err(format!("too long: {} bytes, at most {limit} are allowed", text.len()));
    }
    Ok(())
}

/// Checks a DNS label.
pub(super) fn label(what: &str, text: &str) -> Result<(), String> {
    DeviceName::new(text).map(drop).map_err(|error| format!("{what} {text:?}: {}", error.problem()))
}

/// Checks a DNS subdomain.
pub(super) fn subdomain(what: &str, text: &str) -> Result<(), String> {
    ClaimName::new(text).map(drop).map_err(|error| format!("{what} {text:?}: {}", error.problem()))
}

/// Checks the name of an attribute or capacity: a C identifier, with or without a domain.
pub(super) fn qualified_name(text: &str) -> Result<(), String> {
    let identifier = match text.split_once('/') {
        None => text,
        Some((domain, identifier)) => {
            super::domain(domain)?;
            identifier
        }
    };
    length(identifier, syntax::MAX_C_IDENTIFIER)?;
    if syntax::is_c_identifier(identifier) {
        return Ok(());
    }
    Err(format!(
        "name {text:?} is not valid: must be letters, digits and '_', not starting with a digit, with a domain and one '/' \
         before it or not"
    ))
}

/// Checks the key of a label or the type of a condition.
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
    label_name(name)
}

/// Checks the value of a label.
pub(super) fn label_value(text: &str) -> Result<(), String> {
    if text.is_empty() { Ok(()) } else { label_name(text) }
}

fn label_name(text: &str) -> Result<(), String> {
    length(text, syntax::MAX_LABEL_VALUE)?;
    if syntax::is_label_name(text) {
        return Ok(());
    }
    Err(format!(
        "{text:?} is not valid: must be letters, digits, '-', '_' and '.', starting and ending with a letter or digit"
    ))
}
