//! The JSON Schema of a metadata document, for editors, validators and generators in other languages.

use crate::version::Version;

const TEMPLATE: &str = include_str!("schema.json");

/// Returns the JSON Schema (draft 2020-12) of a document of a version.
///
/// A file is a stream of such documents, one per version. The schema has the rules of [`validate`](crate::validate()),
/// with two differences: JSON Schema counts characters where the API counts bytes, so text beyond ASCII can pass the
/// schema and still be too long; and it refuses `null` for the unset fields of an attribute.
pub fn json_schema(version: Version) -> String {
    TEMPLATE.replace("VERSION", version.as_str())
}
