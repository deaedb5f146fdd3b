//! Decodes metadata files, by the rules of the Go reader.
//!
//! A file is a stream of JSON documents, the same content once per version. The first document of a known version is
//! the result; what follows it is not read:
//!
//! | the next document | result |
//! |---|---|
//! | none, or a stray `]` or `}` | the stream ends: [`DecodeError::NothingFound`] or [`DecodeError::UnknownVersions`] |
//! | is not JSON, or is cut off | [`DecodeError::Syntax`] |
//! | is nested more than [`MAX_DEPTH`] levels deep, or has more than [`MAX_VALUES`] objects and lists | [`DecodeError::TooDeep`], [`DecodeError::TooMany`] |
//! | is not an object, or `apiVersion` or `kind` is not a string | [`DecodeError::NoTypeInformation`] |
//! | has no `apiVersion`, or an invalid one | [`DecodeError::NoApiVersion`] |
//! | has no `kind`, in any version | [`DecodeError::NoKind`] |
//! | has an unknown `apiVersion` | skipped |
//! | has a known version but another kind | [`DecodeError::WrongKind`] |
//! | has a known version and does not fit its schema | [`DecodeError::Shape`] |
//! | has a known version and fits its schema | the result |
//!
//! Unknown fields are ignored, names are case-sensitive, `null` is the same as absent. Deliberately stricter than Go: a
//! duplicate field in an object and text that is not UTF-8 are errors, because two readers could otherwise see different
//! content in one file. The number `-0` is also refused; that is a limitation.
//!
//! Two older formats are decoded if the rules above find nothing; see [`Decoder::released_only`].

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::error::Category;

use crate::location::location;
use crate::older::{self, EarlyDraft, Vep10};
use crate::show::{Printable, Quoted};
use crate::types::Metadata;
use crate::version::{Document, KIND, SchemaVersion, Typed, Version};

/// The maximum nesting depth of a document. A metadata document needs seven levels.
pub const MAX_DEPTH: usize = 100;

/// The maximum number of objects and lists in a document, which limits the memory for a file to a few megabytes.
///
/// A document with the maximum number of devices and attributes that Kubernetes allows has about two thousand.
pub const MAX_VALUES: usize = 8192;

/// The format of a metadata document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// A released version of `metadata.resource.k8s.io`.
    Released(Version),
    /// VEP 10's `resource.k8s.io/v1alpha1`: one file per claim, `device` for a device's name.
    Vep10,
    /// The early draft of KEP-5304: `claims[].requests[].attributes` with plain values, and no device names.
    EarlyDraft,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Released(version) => version.api_version(),
            Self::Vep10 => older::VEP10_API_VERSION,
            Self::EarlyDraft => "the early draft of KEP-5304",
        })
    }
}

/// The content of a metadata file and the format it was decoded from.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Decoded {
    /// The content.
    pub metadata: Metadata,
    /// The format of the document that was used.
    pub format: Format,
}

/// An error in decoding a stream. Lines and columns count from 1, over the whole stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The stream has no document.
    #[error("no metadata document found")]
    NothingFound,
    /// The stream has only documents of unknown versions.
    #[error("no metadata document of a known version found, only {}; a newer reader may know them", listed(.0))]
    UnknownVersions(
        /// Their `apiVersion`s, in the order of the stream.
        Vec<String>,
    ),
    /// A document is not JSON, or is cut off.
    #[error("not valid JSON: {problem} ({position})")]
    Syntax {
        /// The parser's error text.
        problem: String,
        /// The position of the error.
        position: Position,
    },
    /// A document is nested too deep.
    #[error("document {document} is nested more than {MAX_DEPTH} levels deep")]
    TooDeep {
        /// The number of the document in the stream, counted from 1.
        document: usize,
    },
    /// A document has too many objects and lists.
    #[error("document {document} has more than {MAX_VALUES} objects and lists, which no metadata has")]
    TooMany {
        /// The number of the document in the stream, counted from 1.
        document: usize,
    },
    /// A document is not an object, or its `apiVersion` or `kind` is not a string.
    #[error("not a metadata document: {problem} ({position})")]
    NoTypeInformation {
        /// The parser's error text.
        problem: String,
        /// The position of the error.
        position: Position,
    },
    /// A document has no `apiVersion`, or an invalid one.
    #[error("document {document} has no usable apiVersion{}", behind_colon(.found.as_deref()))]
    NoApiVersion {
        /// The number of the document in the stream, counted from 1.
        document: usize,
        /// The invalid `apiVersion`.
        found: Option<String>,
    },
    /// A document has no `kind`.
    #[error("document {document} of version {} has no kind", Printable::cut(.api_version))]
    NoKind {
        /// The number of the document in the stream, counted from 1.
        document: usize,
        /// Its `apiVersion`.
        api_version: String,
    },
    /// A document of a known version is of another kind than metadata.
    #[error("document {document} of version {api_version} is of kind {}, not {KIND}", Quoted(.kind))]
    WrongKind {
        /// The number of the document in the stream, counted from 1.
        document: usize,
        /// Its `apiVersion`.
        api_version: String,
        /// Its `kind`.
        kind: String,
    },
    /// A document of a known version does not fit that version's schema.
    #[error("{format} document does not fit its schema: {location}: {problem} ({position})")]
    Shape {
        /// The format that the document declares.
        format: Format,
        /// The path of the member that does not fit, for example `.requests[0].devices`.
        location: String,
        /// The parser's error text.
        problem: String,
        /// The position of the error.
        position: Position,
    },
    /// An early draft has several claims in one file; see [`Decoder::decode_claims`].
    #[error("the early draft names {0} claims in one file, not one")]
    SeveralClaims(usize),
}

/// Lists the first versions, and the number of the others.
fn listed(versions: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = versions.iter().take(SHOWN).map(|version| Printable::cut(version).to_string()).collect();
    match versions.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn behind_colon(api_version: Option<&str>) -> String {
    api_version.map(|text| format!(": {}", Quoted(text))).unwrap_or_default()
}

/// A position in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are documentation enough")]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// Decodes the first document of a known version, older formats included.
///
/// ```
/// use drakkar_metadata::{Format, Version, decode};
///
/// let file = br#"
///   {"kind": "DeviceMetadata", "apiVersion": "metadata.resource.k8s.io/v2", "else": true}
///   {"kind": "DeviceMetadata", "apiVersion": "metadata.resource.k8s.io/v1alpha1",
///    "metadata": {"name": "my-claim"}, "requests": [{"name": "gpu"}]}
/// "#;
/// let decoded = decode(file)?;
/// assert_eq!(decoded.format, Format::Released(Version::V1Alpha1));
/// assert_eq!(decoded.metadata.requests[0].name, "gpu");
/// # Ok::<(), drakkar_metadata::DecodeError>(())
/// ```
pub fn decode(stream: &[u8]) -> Result<Decoded, DecodeError> {
    Decoder::new().decode(stream)
}

/// Decodes the first document of a known version and converts it to version `V`.
///
/// `V` is one of this crate's versions; no other type can be a [`SchemaVersion`]:
///
/// ```compile_fail
/// drakkar_metadata::decode_as::<String>(b"{}");
/// ```
///
/// ```
/// use drakkar_metadata::v1beta1::V1Beta1;
///
/// let file = br#"{"kind": "DeviceMetadata", "apiVersion": "metadata.resource.k8s.io/v1alpha1"}"#;
/// let (document, _) = drakkar_metadata::decode_as::<V1Beta1>(file)?;
/// assert_eq!(document, drakkar_metadata::v1beta1::DeviceMetadata::default());
/// # Ok::<(), drakkar_metadata::DecodeError>(())
/// ```
pub fn decode_as<V: SchemaVersion>(stream: &[u8]) -> Result<(Document<V>, Format), DecodeError> {
    let Decoded { metadata, format } = decode(stream)?;
    Ok((metadata.into(), format))
}

/// A decoder of metadata files, with or without the formats that were never released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decoder {
    older_formats: bool,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// Creates a decoder of the released versions and, in a stream that has none of them, of the older formats.
    pub const fn new() -> Self {
        Self { older_formats: true }
    }

    /// Creates a decoder of the released versions only.
    ///
    /// A `resource.k8s.io/v1alpha1` document of VEP 10 is then an unknown version, and the early draft, an object with
    /// `claims` but neither `apiVersion` nor `kind`, is an error. The names in KEP-5304's prose for network data are
    /// still accepted.
    pub const fn released_only() -> Self {
        Self { older_formats: false }
    }

    /// Decodes the first document of a known version.
    pub fn decode(&self, stream: &[u8]) -> Result<Decoded, DecodeError> {
        let mut all = self.decode_claims(stream)?;
        match (all.pop(), all.len()) {
            (Some(decoded), 0) => Ok(decoded),
            (None, _) => Err(DecodeError::NothingFound),
            (Some(_), others) => Err(DecodeError::SeveralClaims(others + 1)),
        }
    }

    /// Decodes the first document of a known version into one element per claim. Only the early draft can have several.
    pub fn decode_claims(&self, stream: &[u8]) -> Result<Vec<Decoded>, DecodeError> {
        if let Some(decoded) = self.decode_at_once(stream) {
            return Ok(vec![decoded]);
        }
        let mut unknown_versions = Vec::new();
        let mut vep10 = None;
        for document in Documents::new(stream) {
            let document = document?;
            match self.identify(document.number, &document.header)? {
                Identity::Released(_) | Identity::EarlyDraft => return self.decode_document(&document),
                Identity::Vep10(api_version) => {
                    // A released version later in the stream takes precedence.
                    unknown_versions.push(api_version);
                    vep10.get_or_insert(document);
                }
                Identity::Unknown(api_version) => unknown_versions.push(api_version),
            }
        }
        match vep10 {
            Some(document) => self.decode_document(&document),
            None if unknown_versions.is_empty() => Err(DecodeError::NothingFound),
            None => Err(DecodeError::UnknownVersions(unknown_versions)),
        }
    }

    /// Decodes every document of a stream: for tools that check files.
    ///
    /// Each document of an unknown version is a [`DecodeError::UnknownVersions`]. The list ends with the first document
    /// that is not JSON, because the start of the next one is unknown.
    pub fn decode_documents(&self, stream: &[u8]) -> Vec<Result<Decoded, DecodeError>> {
        let mut all = Vec::new();
        for document in Documents::new(stream) {
            match document.and_then(|document| self.decode_document(&document)) {
                Ok(claims) => all.extend(claims.into_iter().map(Ok)),
                Err(error) => all.push(Err(error)),
            }
        }
        all
    }

    fn decode_document(&self, document: &RawDocument<'_>) -> Result<Vec<Decoded>, DecodeError> {
        let one = |metadata, format| Ok(vec![Decoded { metadata, format }]);
        match self.identify(document.number, &document.header)? {
            Identity::Released(version) => {
                let format = Format::Released(version);
                one(document.parse::<Typed>(format)?.into(), format)
            }
            Identity::Vep10(_) => one(document.parse::<Vep10>(Format::Vep10)?.into(), Format::Vep10),
            Identity::EarlyDraft => Ok(document.parse::<EarlyDraft>(Format::EarlyDraft)?.into_claims()),
            Identity::Unknown(api_version) => Err(DecodeError::UnknownVersions(vec![api_version])),
        }
    }

    /// Decodes an ordinary stream in one pass per document, as a fast path.
    ///
    /// Returns `None` for a stream with errors, older formats or many brackets; the rules are then applied one by one.
    fn decode_at_once(&self, stream: &[u8]) -> Option<Decoded> {
        if count_brackets(stream) > MAX_DEPTH {
            return None;
        }
        let mut rest = stream.trim_ascii_start();
        // Derived code would accept a list instead of an object.
        while rest.starts_with(b"{") {
            if !looks_released(rest) {
                let mut documents = serde_json::Deserializer::from_slice(rest).into_iter::<Header<'_>>();
                let header = documents.next()?.ok()?;
                let Identity::Unknown(_) = self.identify(0, &header).ok()? else { return None };
                rest = rest[documents.byte_offset()..].trim_ascii_start();
                continue;
            }
            let typed: Typed = serde_json::Deserializer::from_slice(rest).into_iter().next()?.ok()?;
            let [api_version, kind] = [&typed.api_version, &typed.kind].map(|text| text.as_deref().map(Cow::Borrowed));
            let header = Header { api_version, kind, claims: false };
            let Identity::Released(version) = self.identify(0, &header).ok()? else { return None };
            return Some(Decoded { metadata: typed.into(), format: Format::Released(version) });
        }
        None
    }

    fn identify(&self, number: usize, header: &Header<'_>) -> Result<Identity, DecodeError> {
        let Header { api_version, kind, claims } = header;
        let api_version = match api_version {
            Some(text) if is_api_version(text) => text.clone().into_owned(),
            None if self.older_formats && *claims && kind.is_none() => return Ok(Identity::EarlyDraft),
            _ => {
                let found = api_version.as_ref().map(|text| text.clone().into_owned());
                return Err(DecodeError::NoApiVersion { document: number, found });
            }
        };
        let Some(kind) = kind.as_deref().filter(|kind| !kind.is_empty()) else {
            return Err(DecodeError::NoKind { document: number, api_version });
        };
        match Version::from_api_version(&api_version) {
            Some(version) if kind == KIND => Ok(Identity::Released(version)),
            Some(_) => Err(DecodeError::WrongKind { document: number, api_version, kind: kind.to_owned() }),
            None if self.older_formats && api_version == older::VEP10_API_VERSION && kind == KIND => {
                Ok(Identity::Vep10(api_version))
            }
            None => Ok(Identity::Unknown(api_version)),
        }
    }
}

/// The format that a document's header declares.
enum Identity {
    Released(Version),
    Vep10(String),
    EarlyDraft,
    Unknown(String),
}

/// Returns whether a text has the form `version` or `group/version`. The group may be empty.
fn is_api_version(text: &str) -> bool {
    match text.split_once('/') {
        None => !text.is_empty(),
        Some((_, version)) => !version.is_empty() && !version.contains('/'),
    }
}

/// An iterator over the documents of a stream, which ends after the first syntax error.
struct Documents<'a> {
    stream: &'a [u8],
    position: usize,
    number: usize,
    /// The line of `position`, and the offset at which that line starts.
    line: usize,
    line_start: usize,
}

impl<'a> Documents<'a> {
    fn new(stream: &'a [u8]) -> Self {
        Self { stream, position: 0, number: 0, line: 1, line_start: 0 }
    }
}

impl Documents<'_> {
    /// Advances to a later position and counts the lines on the way.
    fn count_lines(&mut self, position: usize) {
        for (index, byte) in self.stream[self.position..position].iter().enumerate() {
            if *byte == b'\n' {
                self.line += 1;
                self.line_start = self.position + index + 1;
            }
        }
        self.position = position;
    }
}

impl<'a> Iterator for Documents<'a> {
    type Item = Result<RawDocument<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.stream.get(self.position..)?;
        let start = self.position + rest.iter().position(|byte| !b" \t\r\n".contains(byte))?;
        if b"]}".contains(&self.stream[start]) {
            return None;
        }
        self.number += 1;
        self.count_lines(start);
        let origin = Position { line: self.line, column: start - self.line_start };
        let mut documents = serde_json::Deserializer::from_slice(&self.stream[start..]).into_iter::<Header<'a>>();
        let header = documents.next()?;
        let end = start + documents.byte_offset();
        if header.is_ok() {
            self.count_lines(end);
        } else {
            self.position = self.stream.len();
        }
        Some(match header {
            Ok(header) => {
                let document = RawDocument { header, number: self.number, bytes: &self.stream[start..end], origin };
                document.check_bounds().map(|()| document)
            }
            Err(error) => {
                let position = position_in_stream(origin, &error);
                Err(match error.classify() {
                    Category::Data => DecodeError::NoTypeInformation { problem: problem(&error), position },
                    Category::Syntax | Category::Eof | Category::Io => {
                        DecodeError::Syntax { problem: problem(&error), position }
                    }
                })
            }
        })
    }
}

/// A document that is known to be JSON, with its header.
struct RawDocument<'a> {
    header: Header<'a>,
    number: usize,
    bytes: &'a [u8],
    /// The line of the document's first byte, and the number of bytes before it in that line.
    origin: Position,
}

impl<'a> RawDocument<'a> {
    fn parse<T: Deserialize<'a>>(&self, format: Format) -> Result<T, DecodeError> {
        serde_json::from_slice(self.bytes).map_err(|error| DecodeError::Shape {
            format,
            location: location(self.bytes, offset(self.bytes, &error)),
            problem: problem(&error),
            position: position_in_stream(self.origin, &error),
        })
    }

    /// Refuses a document that would take too much memory or stack.
    ///
    /// Counting brackets, those in strings included, is a cheap upper bound of both; the exact depth is computed only
    /// for the rare document that has many.
    fn check_bounds(&self) -> Result<(), DecodeError> {
        let brackets = count_brackets(self.bytes);
        if brackets > MAX_DEPTH && is_deeper_than(MAX_DEPTH, self.bytes) {
            return Err(DecodeError::TooDeep { document: self.number });
        }
        if brackets > MAX_VALUES {
            return Err(DecodeError::TooMany { document: self.number });
        }
        Ok(())
    }
}

/// The members of a document that declare its format. `null` is the same as absent.
#[derive(Default)]
struct Header<'a> {
    api_version: Option<Cow<'a, str>>,
    kind: Option<Cow<'a, str>>,
    /// Whether the document has a member `claims`.
    claims: bool,
}

impl<'de: 'a, 'a> Deserialize<'de> for Header<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;

        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Header::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
                let mut header = Header::default();
                while let Some(Text(name)) = members.next_key()? {
                    match name.as_ref() {
                        "apiVersion" => text_value(&mut header.api_version, "apiVersion", &mut members)?,
                        "kind" => text_value(&mut header.kind, "kind", &mut members)?,
                        name => {
                            header.claims |= name == "claims";
                            members.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(header)
            }
        }

        deserializer.deserialize_any(HeaderVisitor)
    }
}

fn text_value<'de, A: MapAccess<'de>>(
    field: &mut Option<Cow<'de, str>>,
    name: &'static str,
    members: &mut A,
) -> Result<(), A::Error> {
    if field.is_some() {
        return Err(serde::de::Error::duplicate_field(name));
    }
    *field = members.next_value::<Option<Text<'de>>>()?.map(|Text(text)| text);
    Ok(())
}

/// A string, borrowed from the input unless it has escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Returns whether a document seems to be of a released version. A wrong guess only costs time.
fn looks_released(document: &[u8]) -> bool {
    let start = &document[..document.len().min(128)];
    let names =
        |version: &Version| start.windows(version.api_version().len()).any(|at| at == version.api_version().as_bytes());
    Version::ALL.iter().any(names)
}

/// Counts opening brackets: an upper bound of the number of objects and lists, and of their depth.
fn count_brackets(json: &[u8]) -> usize {
    json.iter().filter(|byte| matches!(byte, b'[' | b'{')).count()
}

/// Returns whether a valid JSON text is nested deeper than `limit`.
fn is_deeper_than(limit: usize, json: &[u8]) -> bool {
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut escaped = false;
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > limit {
            return true;
        }
    }
    false
}

/// Returns the position in the stream of an error in a document that starts at `origin`.
fn position_in_stream(origin: Position, error: &serde_json::Error) -> Position {
    let before = if error.line() == 1 { origin.column } else { 0 };
    // The parser reports column 0 for a value at the start of a line.
    Position { line: origin.line + error.line().max(1) - 1, column: (before + error.column()).max(1) }
}

/// Returns the offset in a document at which the parser found an error.
fn offset(document: &[u8], error: &serde_json::Error) -> usize {
    let lines = document.split_inclusive(|byte| *byte == b'\n').take(error.line().saturating_sub(1));
    lines.map(<[u8]>::len).sum::<usize>() + error.column()
}

/// Returns `serde_json`'s error text without its position, which counts from the document's start.
fn problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let suffix = format!(" at line {} column {}", error.line(), error.column());
    Printable::cut(text.strip_suffix(suffix.as_str()).unwrap_or(&text)).to_string()
}
