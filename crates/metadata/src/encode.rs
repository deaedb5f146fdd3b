//! Encodes metadata files, byte for byte as the Go serializer does.
//!
//! A file is a stream with one document per version, formatted as by Go's `encoding/json`: indented by two spaces, keys
//! in the order of declaration, map keys sorted by their bytes, `<`, `>`, `&`, U+2028 and U+2029 escaped, one newline
//! after every document. Consumers compare and cache these files and operators diff them, so an equivalent document is
//! not enough.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use crate::types::Metadata;
use crate::version::{AsVersion, Versions};

/// Encodes metadata as a stream with one document per version, in the given order.
///
/// It does not validate; see [`crate::validate()`].
///
/// ```
/// use drakkar_metadata::{Metadata, Versions, encode};
///
/// let mut metadata = Metadata::default();
/// metadata.metadata.name = "my-claim".into();
/// assert_eq!(
///     String::from_utf8_lossy(&encode(&metadata, &Versions::default())),
///     r#"{
///   "kind": "DeviceMetadata",
///   "apiVersion": "metadata.resource.k8s.io/v1alpha1",
///   "metadata": {
///     "name": "my-claim"
///   }
/// }
/// "#
/// );
/// ```
pub fn encode(metadata: &Metadata, versions: &Versions) -> Vec<u8> {
    let mut stream = Vec::with_capacity(1024 * versions.as_slice().len());
    for version in versions.as_slice() {
        // Serializing fails only for a failing writer, a map key that is not a string, or a number that is not finite: a
        // Vec accepts every byte, all keys are strings, and there are no floating-point numbers.
        #[allow(clippy::expect_used, reason = "see above")]
        write_go_json(&AsVersion(*version, metadata), &mut stream).expect("metadata always serializes");
        stream.push(b'\n');
    }
    stream
}

/// Serializes a value as Go's `json.MarshalIndent` does with two spaces, without a trailing newline.
///
/// It is for the other files of a DRA driver that must look as if written by Go, such as CDI specs. The value's
/// `Serialize` decides on the order of keys and on omitted fields. Floating-point numbers are formatted by `serde_json`,
/// which can differ from Go.
///
/// # Errors
/// If the value's `Serialize` fails, or a map has a key that is neither text nor a number.
///
/// ```
/// let json = drakkar_metadata::to_go_json(&std::collections::BTreeMap::from([("a<b", [1, 2])]))?;
/// assert_eq!(String::from_utf8_lossy(&json), "{\n  \"a\\u003cb\": [\n    1,\n    2\n  ]\n}");
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn to_go_json(value: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    let mut bytes = Vec::with_capacity(1024);
    write_go_json(value, &mut bytes)?;
    Ok(bytes)
}

fn write_go_json(value: &impl Serialize, bytes: &mut Vec<u8>) -> Result<(), serde_json::Error> {
    value.serialize(&mut Serializer::with_formatter(bytes, GoFormatter::default()))
}

/// Formats JSON as Go's `MarshalIndent` does with two spaces.
#[derive(Default)]
struct GoFormatter {
    depth: usize,
    has_content: bool,
}

impl GoFormatter {
    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.has_content = false;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.has_content {
            self.new_line(writer)?;
        }
        self.has_content = true;
        writer.write_all(bracket)
    }

    fn item<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(b",")?;
        }
        self.new_line(writer)
    }

    fn new_line<W: ?Sized + Write>(&self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b"\n")?;
        for _ in 0..self.depth {
            writer.write_all(b"  ")?;
        }
        Ok(())
    }
}

impl Formatter for GoFormatter {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.item(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_content = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.item(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_content = true;
        Ok(())
    }

    /// Writes a part of a string, with Go's escapes. `serde_json` itself escapes quotes and control characters, as Go does.
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let bytes = fragment.as_bytes();
        let mut written = 0;
        for (start, byte) in bytes.iter().enumerate() {
            // E2 80 A8 and E2 80 A9 are U+2028 and U+2029.
            let (escape, length): (&[u8], usize) = match byte {
                b'<' => (b"\\u003c", 1),
                b'>' => (b"\\u003e", 1),
                b'&' => (b"\\u0026", 1),
                0xE2 if bytes[start..].starts_with(&[0xE2, 0x80, 0xA8]) => (b"\\u2028", 3),
                0xE2 if bytes[start..].starts_with(&[0xE2, 0x80, 0xA9]) => (b"\\u2029", 3),
                _ => continue,
            };
            writer.write_all(&bytes[written..start])?;
            writer.write_all(escape)?;
            written = start + length;
        }
        writer.write_all(&bytes[written..])
    }

    /// Writes JSON that is kept as text (`fieldsV1`): indented again, its numbers and strings unchanged.
    fn write_raw_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let bytes = fragment.as_bytes();
        let mut position = 0;
        while let Some(byte) = bytes.get(position) {
            position += 1;
            match byte {
                b'{' | b'[' => {
                    self.open(writer, &[*byte])?;
                    let rest = fragment[position..].trim_ascii_start();
                    if !rest.starts_with(['}', ']']) {
                        self.new_line(writer)?;
                        self.has_content = true;
                    }
                }
                b'}' | b']' => self.close(writer, &[*byte])?,
                b',' => self.item(writer, false)?,
                b':' => writer.write_all(b": ")?,
                b'"' => {
                    let length = string_length(&bytes[position..]);
                    writer.write_all(b"\"")?;
                    self.write_string_fragment(writer, &fragment[position..position + length])?;
                    writer.write_all(b"\"")?;
                    position += length + 1;
                }
                b' ' | b'\t' | b'\r' | b'\n' => {}
                _ => writer.write_all(&[*byte])?,
            }
        }
        Ok(())
    }
}

/// Returns the length of a JSON string without its quotes, from a text that starts after the opening quote.
fn string_length(bytes: &[u8]) -> usize {
    let mut position = 0;
    while let Some(byte) = bytes.get(position) {
        match byte {
            b'"' => return position,
            b'\\' => position += 2,
            _ => position += 1,
        }
    }
    bytes.len()
}
