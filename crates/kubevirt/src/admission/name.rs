//! The API server's error texts for names.

use drakkar_metadata::name::syntax::{MAX_DNS_LABEL, MAX_DNS_SUBDOMAIN, is_dns_label, is_dns_subdomain};

/// What is wrong with a DNS label (RFC 1123), in the API server's words.
pub(super) fn label_problems(text: &str) -> Vec<String> {
    let mut problems = too_long(text, MAX_DNS_LABEL);
    if !is_dns_label(text) {
        problems.push(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
             end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
                .to_owned(),
        );
    }
    problems
}

/// What is wrong with a DNS subdomain (RFC 1123), in the API server's words.
pub(super) fn subdomain_problems(text: &str) -> Vec<String> {
    let mut problems = too_long(text, MAX_DNS_SUBDOMAIN);
    if !is_dns_subdomain(text) {
        problems.push(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                .to_owned(),
        );
    }
    problems
}

fn too_long(text: &str, limit: usize) -> Vec<String> {
    if text.len() > limit { vec![format!("must be no more than {limit} characters")] } else { Vec::new() }
}
