//! The JSON Schema of a document, for editors, validators and generators in other languages.

use crate::version::Version;

const TEMPLATE: &str = include_str!("schema.json");

/// The JSON Schema (draft 2020-12) of one document of this version.
///
/// A file is a stream of such documents, one per version. The schema demands what [`validate`](crate::validate())
/// demands, with two limits: JSON Schema counts characters where the API counts bytes, so text beyond ASCII can pass
/// the schema and still be too long; and it does not take `null` for the value of an attribute that it is not.
pub fn json_schema(version: Version) -> String {
    TEMPLATE.replace("VERSION", version.as_str())
}
