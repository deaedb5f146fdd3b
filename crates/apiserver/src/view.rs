//! What a response shows of objects: all of them, a table, or only their metadata. A client asks for it in its `Accept` header
//! (`application/json;as=Table;v=v1;g=meta.k8s.io`), with alternatives of which the first that the server has is taken.

use http::StatusCode;
use hyper::body::Bytes;
use serde_json::{Value, json};

use super::call::Call;
use super::media::Media;
use super::resource::Resource;
use super::serve::{Answer, answer, full};
use super::status::Failure;
use super::table::{self, Include, Table};
use super::version::Version;

/// The form and the encoding of a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    form: Form,
    resource: Resource,
    version: Version,
}

#[derive(Clone, Copy, Debug)]
enum Form {
    /// Objects as they are.
    Whole(Media),
    /// A table of them.
    Table(Table),
    /// Their metadata, with this `apiVersion`.
    Metadata(&'static str),
}

impl View {
    /// Chooses the form of the response to a request.
    pub(super) fn accepted(accept: &str, call: &Call) -> Result<Self, Failure> {
        let resource = call.resource();
        let version = call.target.version;
        let include = match call.query.get("includeObject") {
            None | Some("Metadata") => Include::Metadata,
            Some("None") => Include::None,
            Some("Object") => Include::Object,
            Some(other) => {
                return Err(Failure::bad_request(format!(
                    "Unable to convert to Table as requested: includeObject: Unsupported value: \"{other}\": supported \
                     values: \"Metadata\", \"None\", \"Object\""
                )));
            }
        };
        let form = accept.split(',').find_map(|form| {
            let Some(wanted) = parameter(form, "as") else {
                return Media::named(form, version.api_version(), resource.kind()).map(Form::Whole);
            };
            // Other forms are in JSON only.
            if parameter(form, "g") != Some("meta.k8s.io") || form.contains("protobuf") {
                return None;
            }
            let api_version = match parameter(form, "v")? {
                "v1" => "meta.k8s.io/v1",
                "v1beta1" => "meta.k8s.io/v1beta1",
                _ => return None,
            };
            match wanted {
                "Table" => Some(Form::Table(Table { resource, api_version, include })),
                "PartialObjectMetadata" | "PartialObjectMetadataList" => Some(Form::Metadata(api_version)),
                _ => None,
            }
        });
        Ok(Self { form: form.ok_or_else(Failure::not_acceptable)?, resource, version })
    }

    /// Returns a response with an object or a list, given as JSON of the version of the request.
    pub(super) fn answer(self, status: StatusCode, body: Vec<u8>) -> Answer {
        if let Form::Whole(media) = self.form {
            return media.answer(status, body);
        }
        match serde_json::from_slice(&body) {
            Ok(object) => answer(status, "application/json", full(self.show(object, true).to_string())),
            Err(error) => {
                // The content type is the same; the client sees by the kind that it is the object itself.
                tracing::debug!(%error, "showing an object in another form failed, responding with the object");
                answer(status, "application/json", full(body))
            }
        }
    }

    /// Returns the media type of a watch.
    pub(super) fn watch_media_type(self) -> &'static str {
        match self.form {
            Form::Whole(media) => media.watch_media_type(),
            Form::Table(_) | Form::Metadata(_) => "application/json",
        }
    }

    /// Encodes lines of a watch, given as JSON. Only the first table has column definitions.
    pub(super) fn encode_watch_lines(self, lines: Bytes, is_first: bool) -> std::io::Result<Bytes> {
        if let Form::Whole(media) = self.form {
            return media.encode_watch_lines(lines);
        }
        let mut out = String::with_capacity(lines.len());
        let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        for (index, line) in lines.enumerate() {
            let mut event: Value = serde_json::from_slice(line)?;
            let object = event["object"].take();
            event["object"] = self.show(object, is_first && index == 0);
            out += &event.to_string();
            out.push('\n');
        }
        Ok(out.into())
    }

    /// Shows an object or a list. A `Status` is left as it is.
    fn show(self, mut object: Value, headers: bool) -> Value {
        if object["kind"] == "Status" && object["apiVersion"] == "v1" {
            return object;
        }
        let items = match object.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => Some(items),
            _ => None,
        };
        match (self.form, items) {
            (Form::Table(table), Some(items)) => self.table(table, &object["metadata"], headers, items),
            (Form::Table(table), None) => {
                let metadata = object["metadata"].clone();
                self.table(table, &metadata, headers, vec![object])
            }
            (Form::Metadata(api_version), Some(items)) => {
                let items: Vec<Value> = items.iter().map(|item| table::metadata_only(api_version, item)).collect();
                json!({
                    "kind": "PartialObjectMetadataList", "apiVersion": api_version,
                    "metadata": object["metadata"], "items": items,
                })
            }
            (Form::Metadata(api_version), None) => table::metadata_only(api_version, &object),
            (Form::Whole(_), _) => object,
        }
    }

    fn table(self, table: Table, metadata: &Value, headers: bool, mut objects: Vec<Value>) -> Value {
        objects.iter_mut().for_each(|object| self.version.to_stored(self.resource, object));
        table.show(metadata, headers, &objects, |object| super::codec::present(self.resource, self.version, object))
    }
}

/// Returns a parameter of a media type.
pub(super) fn parameter<'a>(form: &'a str, name: &str) -> Option<&'a str> {
    form.split(';').skip(1).find_map(|parameter| parameter.trim().strip_prefix(name)?.strip_prefix('='))
}
