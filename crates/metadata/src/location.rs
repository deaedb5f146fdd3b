//! Finds the path of the field at an offset in a JSON document, as `jq` writes it.
//!
//! A parse error has a line and a column; a path such as `.requests[0].devices[1].attributes["a/b"].int` is easier to
//! find. The path is computed only for documents with an error, so parsing does not keep track of it.

use std::ops::Range;

use crate::show::Quoted;

/// Returns the path of the innermost member that has started within the first `offset` bytes of a valid JSON text.
pub(crate) fn location(json: &[u8], offset: usize) -> String {
    let mut frames: Vec<Frame> = Vec::new();
    let mut position = 0;
    while position < offset.min(json.len()) {
        let token = position..position + token_length(&json[position..]);
        position = token.end;
        match json[token.start] {
            b' ' | b'\t' | b'\r' | b'\n' => {}
            b',' => frames.iter_mut().last().into_iter().for_each(Frame::leave),
            b':' => {}
            b'}' | b']' => drop(frames.pop()),
            first => {
                frames.iter_mut().last().into_iter().for_each(|frame| frame.enter(&token));
                match first {
                    b'{' => frames.push(Frame::Object { key: None }),
                    b'[' => frames.push(Frame::Array { index: 0, inside: false }),
                    _ => {}
                }
            }
        }
    }
    let path: String = frames.iter().map(|frame| frame.show(json)).collect();
    if path.is_empty() { ".".to_owned() } else { path }
}

/// An object or array that is open, with its current member.
enum Frame {
    Object { key: Option<Range<usize>> },
    Array { index: usize, inside: bool },
}

impl Frame {
    /// Handles the start of a token: the key of a member, its value, or an element.
    fn enter(&mut self, token: &Range<usize>) {
        match self {
            Self::Object { key } => drop(key.get_or_insert_with(|| token.clone())),
            Self::Array { inside, .. } => *inside = true,
        }
    }

    /// Handles a comma.
    fn leave(&mut self) {
        match self {
            Self::Object { key } => *key = None,
            Self::Array { index, inside } => {
                *index += 1;
                *inside = false;
            }
        }
    }

    fn show(&self, json: &[u8]) -> String {
        match self {
            Self::Object { key: Some(key) } => {
                let text = &json[key.clone()];
                // The error can be that the key is not UTF-8.
                let name = serde_json::from_slice(text).unwrap_or_else(|_| String::from_utf8_lossy(text).into_owned());
                let is_word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
                if is_word && name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit()) {
                    format!(".{name}")
                } else {
                    format!("[{}]", Quoted(&name))
                }
            }
            Self::Array { index, inside: true } => format!("[{index}]"),
            Self::Object { key: None } | Self::Array { inside: false, .. } => String::new(),
        }
    }
}

/// Returns the length of the first token: a string, a number or word, or one byte.
fn token_length(json: &[u8]) -> usize {
    match json.first() {
        Some(b'"') => {
            let mut escaped = false;
            let closing = json[1..].iter().position(|byte| {
                let closes = *byte == b'"' && !escaped;
                escaped = *byte == b'\\' && !escaped;
                closes
            });
            closing.map_or(json.len(), |closing| closing + 2)
        }
        Some(byte) if is_word(*byte) => json.iter().position(|byte| !is_word(*byte)).unwrap_or(json.len()),
        _ => 1,
    }
}

/// Returns whether a byte can be part of a number, `true`, `false` or `null`.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_member_that_has_started_is_named() {
        let json = br#"{"a": [1, {"b/c": "\"]", "d": null}], "e_1": {}, "1": true}"#;
        let at = |needle: &str| {
            let text = std::str::from_utf8(json).unwrap();
            location(json, text.find(needle).unwrap() + needle.len())
        };
        assert_eq!(location(json, 0), ".");
        assert_eq!(at("{"), ".");
        assert_eq!(at("\"a\""), ".a");
        assert_eq!(at("["), ".a");
        assert_eq!(at("1"), ".a[0]");
        assert_eq!(at("1,"), ".a");
        assert_eq!(at("{\"b/c\""), ".a[1][\"b/c\"]");
        assert_eq!(at("\"\\\"]\""), ".a[1][\"b/c\"]");
        assert_eq!(at("null"), ".a[1].d");
        assert_eq!(at("}]"), ".a");
        assert_eq!(at("\"e_1\": {"), ".e_1");
        assert_eq!(at("true"), "[\"1\"]");
        assert_eq!(location(json, json.len() + 10), ".");
    }
}
