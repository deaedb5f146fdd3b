//! Escapes control characters for a terminal, so that JSON stays valid JSON.

use std::fmt::Write as _;
use std::io::{self, Write};

use drakkar_metadata::show::{Shown, shown};

/// Escapes control characters; bytes that are not UTF-8 are replaced.
#[cfg(feature = "demo")]
pub(crate) fn terminal_safe(bytes: &[u8]) -> String {
    escape(&String::from_utf8_lossy(bytes))
}

/// Escapes unsafe characters other than newlines and tabs as in a JSON string, so that JSON stays valid.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for shown in shown(text) {
        match shown {
            Shown::Verbatim(c) | Shown::Escaped(c @ ('\n' | '\t')) => safe.push(c),
            Shown::Escaped(c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a String never fails.
                    let _ = write!(safe, "\\u{unit:04x}");
                }
            }
        }
    }
    safe
}

/// A writer that escapes control characters; bytes that are not UTF-8 are replaced.
pub(super) struct SafeWriter<W> {
    output: W,
    /// The first bytes of an incomplete character.
    started: Vec<u8>,
}

impl<W: Write> SafeWriter<W> {
    pub(super) fn new(output: W) -> Self {
        Self { output, started: Vec::new() }
    }
}

impl<W: Write> Write for SafeWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut text = std::mem::take(&mut self.started);
        text.extend_from_slice(bytes);
        let chunks: Vec<_> = text.utf8_chunks().collect();
        for (index, chunk) in chunks.iter().enumerate() {
            self.output.write_all(escape(chunk.valid()).as_bytes())?;
            let is_cut_off = index + 1 == chunks.len()
                && std::str::from_utf8(chunk.invalid()).is_err_and(|error| error.error_len().is_none());
            if is_cut_off {
                self.started = chunk.invalid().to_vec();
            } else if !chunk.invalid().is_empty() {
                self.output.write_all("\u{fffd}".as_bytes())?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_as_in_json() {
        let raw = "{\n\t\"a\": \"\u{1b}[2J \u{9b}31m \u{202e} \u{e0041} é\"\n}\n";
        let safe = escape(raw);
        assert_eq!(safe, "{\n\t\"a\": \"\\u001b[2J \\u009b31m \\u202e \\udb40\\udc41 é\"\n}\n");
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&safe), read(&raw.replace('\u{1b}', "\\u001b")));
    }

    #[test]
    fn a_character_can_be_split_between_two_writes() {
        let mut written = Vec::new();
        let mut writer = SafeWriter::new(&mut written);
        for byte in "é\u{202e}日\u{1b}".bytes() {
            writer.write_all(&[byte]).unwrap();
        }
        writer.write_all(b"\xff\xffx").unwrap();
        writer.flush().unwrap();
        assert_eq!(String::from_utf8(written).unwrap(), "é\\u202e日\\u001b\u{fffd}\u{fffd}x");
    }
}
