//! The text formats of the Kubernetes API: DNS labels and subdomains, label keys and values, C identifiers, UUIDs,
//! semantic versions.
//!
//! Every crate of Drakkar that checks one of these formats calls these functions, and words its own errors. The functions
//! check the characters only; the API server reports a text that is too long separately, so the limits are constants
//! beside them.

/// The maximum length of a DNS label in bytes.
pub const MAX_DNS_LABEL: usize = 63;
/// The maximum length of a DNS subdomain in bytes.
pub const MAX_DNS_SUBDOMAIN: usize = 253;
/// The maximum length of a label's value, and of a label's key without its prefix, in bytes.
pub const MAX_LABEL_VALUE: usize = 63;
/// The maximum length of a driver name, and of the domain of an attribute's qualified name, in bytes.
pub const MAX_DRIVER_NAME: usize = 63;
/// The maximum length of the name of an attribute or capacity without its domain, in bytes.
pub const MAX_C_IDENTIFIER: usize = 32;

/// Returns whether a text is a DNS label (RFC 1123): `[a-z0-9]([-a-z0-9]*[a-z0-9])?`.
pub fn is_dns_label(text: &str) -> bool {
    is_label_of(text, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// Returns whether a text is a DNS subdomain (RFC 1123): DNS labels joined with dots.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.split('.').all(is_dns_label)
}

/// Returns whether a text is a DNS subdomain in which upper case is allowed, as in driver names.
pub fn is_dns_subdomain_ignoring_case(text: &str) -> bool {
    text.split('.').all(|label| is_label_of(label, u8::is_ascii_alphanumeric))
}

/// Returns whether a text is the name of a label's key, without a prefix, or a value that is not empty:
/// `([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]`.
pub fn is_label_name(text: &str) -> bool {
    starts_and_ends_with(text, u8::is_ascii_alphanumeric)
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Returns whether a text is the key of a label or the type of a condition, with or without a prefix, and not too long.
pub fn is_label_key(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    is_label_name(name)
        && name.len() <= MAX_LABEL_VALUE
        && prefix.is_none_or(|prefix| is_dns_subdomain(prefix) && prefix.len() <= MAX_DNS_SUBDOMAIN)
}

/// Returns whether a text is an identifier as in C: `[A-Za-z_][A-Za-z0-9_]*`.
pub fn is_c_identifier(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.bytes().all(is_word) && text.bytes().next().is_some_and(|first| !first.is_ascii_digit())
}

/// Returns whether a text is the reason of a condition: `[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?`.
pub fn is_condition_reason(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.last().is_some_and(is_word)
        && bytes.iter().all(|byte| is_word(byte) || b",:".contains(byte))
}

/// Returns whether a text is a UUID in lower case, for example `0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11`.
pub fn is_uuid(text: &str) -> bool {
    let is_hex = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    text.split('-').map(str::len).eq([8, 4, 4, 4, 12]) && text.split('-').all(is_hex)
}

/// Returns whether a text is a semantic version (2.0.0), for example `1.2.3-rc.1+build`.
///
/// Numbers can have any length, as in the API server.
pub fn is_semantic_version(text: &str) -> bool {
    let (version, build) = text.split_once('+').map_or((text, None), |(version, build)| (version, Some(build)));
    let (core, release) = version.split_once('-').map_or((version, None), |(core, release)| (core, Some(release)));
    let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let is_number = |part: &str| !part.is_empty() && is_digits(part) && (part == "0" || !part.starts_with('0'));
    let is_identifier =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let is_release_part = |part: &str| is_number(part) || (is_identifier(part) && !is_digits(part));
    core.split('.').count() == 3
        && core.split('.').all(is_number)
        && release.is_none_or(|release| release.split('.').all(is_release_part))
        && build.is_none_or(|build| build.split('.').all(is_identifier))
}

fn is_label_of(text: &str, is_alphanumeric: fn(&u8) -> bool) -> bool {
    starts_and_ends_with(text, is_alphanumeric)
        && text.as_bytes().iter().all(|byte| is_alphanumeric(byte) || *byte == b'-')
}

fn starts_and_ends_with(text: &str, is_allowed: fn(&u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(is_allowed) && bytes.last().is_some_and(is_allowed)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// Label, subdomain, subdomain in any case, name of a label, C identifier.
    #[rstest]
    #[case::lower_case("abc", [true, true, true, true, true])]
    #[case::digits("0", [true, true, true, true, false])]
    #[case::dots("a.b", [false, true, true, true, false])]
    #[case::upper_case("A.b", [false, false, true, true, false])]
    #[case::underscore("_a", [false, false, false, false, true])]
    #[case::underscore_within("a_b", [false, false, false, true, true])]
    #[case::dash_at_the_end("a-", [false; 5])]
    #[case::empty_part("a..b", [false, false, false, true, false])]
    #[case::beyond_ascii("ä", [false; 5])]
    #[case::empty("", [false; 5])]
    fn a_text_has_these_formats(#[case] text: &str, #[case] expected: [bool; 5]) {
        let checks = [is_dns_label, is_dns_subdomain, is_dns_subdomain_ignoring_case, is_label_name, is_c_identifier];
        assert_eq!(checks.map(|check| check(text)), expected);
    }

    #[test]
    fn a_label_key_has_at_most_one_prefix_and_both_have_a_limit() {
        let name = "n".repeat(MAX_LABEL_VALUE);
        let prefix = "p".repeat(MAX_DNS_SUBDOMAIN);
        for key in ["Ready", "example.com/Ready", &name, &format!("{prefix}/{name}")] {
            assert!(is_label_key(key), "{key}");
        }
        for key in
            ["", "/Ready", "example.com/", "a/b/c", "Example.com/Ready", &format!("{name}n"), &format!("{prefix}p/n")]
        {
            assert!(!is_label_key(key), "{key}");
        }
    }

    #[test]
    fn a_uuid_is_in_lower_case_with_four_dashes() {
        assert!(is_uuid("0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11"));
        for text in [
            "",
            "0D6A3C0E-5c5e-4d53-9d39-0f2f6a1f6a11",
            "0d6a3c0e5c5e4d539d390f2f6a1f6a11",
            "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a1g",
        ] {
            assert!(!is_uuid(text), "{text}");
        }
    }

    #[test]
    fn a_condition_reason_starts_with_a_letter_and_does_not_end_with_punctuation() {
        for (text, expected) in [
            ("A", true),
            ("Ready_", true),
            ("A,B:C", true),
            ("", false),
            ("_A", false),
            ("1", false),
            ("A:", false),
            ("a-b", false),
        ] {
            assert_eq!(is_condition_reason(text), expected, "{text}");
        }
    }
}
