//! Escaping of text in the two notations.

use std::borrow::Cow;

/// Escapes text as libvirt does. Characters that XML does not allow are left out.
pub(super) fn libvirt(text: &str) -> String {
    let allowed: Cow<'_, str> = if text.chars().all(is_xml_char) {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(text.chars().filter(|character| is_xml_char(*character)).collect())
    };
    let escaped = quick_xml::escape::escape(allowed);
    if escaped.contains(['\t', '\n', '\r']) {
        // A parser turns these characters into spaces in an attribute.
        return escaped.replace('\t', "&#9;").replace('\n', "&#10;").replace('\r', "&#13;");
    }
    escaped.into_owned()
}

/// Escapes text as Go's `encoding/xml` does.
pub(super) fn go(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' => escaped.push_str("&#34;"),
            '\'' => escaped.push_str("&#39;"),
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\t' => escaped.push_str("&#x9;"),
            '\n' => escaped.push_str("&#xA;"),
            '\r' => escaped.push_str("&#xD;"),
            allowed if is_xml_char(allowed) => escaped.push(allowed),
            _ => escaped.push('\u{fffd}'),
        }
    }
    escaped
}

/// Returns whether XML 1.0 allows a character.
fn is_xml_char(character: char) -> bool {
    matches!(character, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_notations_keep_hostile_text_inside_its_attribute() {
        let text = "a'b\"c<d>e&f\n\u{1}";
        assert_eq!(libvirt(text), "a&apos;b&quot;c&lt;d&gt;e&amp;f&#10;");
        assert_eq!(go(text), "a&#39;b&#34;c&lt;d&gt;e&amp;f&#xA;\u{fffd}");
    }
}
