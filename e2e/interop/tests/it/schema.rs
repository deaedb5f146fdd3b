//! The schema table of `drakkar-client`, field by field against the Go structs of `k8s.io/api`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Command;

use drakkar_client::schema::{self, Field, Kind, ListType, Presence};
use serde_json::Value;

/// Fields of Go that the table does not have: an alpha feature of lists, which no DRA client asks for.
const MISSING: [&str; 1] = ["v1.ListMeta.shardInfo"];

#[test]
fn the_table_has_the_fields_numbers_and_markers_of_go() {
    let modules = ["k8s.io/api", "k8s.io/apimachinery"].map(directory);
    let [Ok(api), Ok(apimachinery)] = &modules else {
        // Past the test harness, which hides the output of tests that pass.
        let problem = modules.iter().find_map(|module| module.as_ref().err());
        std::io::stderr().write_all(format!("schema: skipped: {problem:?}\n").as_bytes()).unwrap();
        return;
    };
    for version in ["v1", "v1beta2"] {
        let paths = [
            format!("{api}/resource/{version}/types.go"),
            format!("{apimachinery}/pkg/apis/meta/v1/types.go"),
            format!("{api}/core/v1/types.go"),
        ];
        let sources = paths.map(|path| std::fs::read_to_string(path).unwrap());
        let types = schema::types();
        assert!(types.len() > 45, "{}", types.len());
        let mut missing = Vec::new();
        for of in types {
            let structure = Structure::find(&sources, of.name);
            let go: Vec<String> = structure.fields(&sources).into_iter().map(|field| field.describe()).collect();
            let is_known = |line: &String| of.fields.iter().any(|field| line.starts_with(&format!("{} ", field.name)));
            let (known, unknown): (Vec<_>, Vec<_>) = go.into_iter().partition(is_known);
            let table: Vec<String> = of.fields.iter().map(describe).collect();
            assert_eq!(table, known, "{version}: {}", of.name);
            assert_eq!(of.atomic, structure.is_atomic, "{version}: {}", of.name);
            missing.extend(
                unknown.iter().map(|line| format!("{}.{}", of.name, line.split(' ').next().unwrap_or_default())),
            );
        }
        assert_eq!(missing, MISSING, "{version}");
    }
}

/// Returns the directory of a Go module.
pub fn directory(module: &str) -> Result<String, String> {
    let output = Command::new("go")
        .args(["mod", "download", "-json", module])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .map_err(|error| error.to_string())?;
    let answer: Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    answer["Dir"].as_str().map(str::to_owned).ok_or_else(|| answer.to_string())
}

/// A struct in the source code of Go.
struct Structure<'a> {
    body: &'a str,
    is_atomic: bool,
}

impl<'a> Structure<'a> {
    fn find(sources: &'a [String], name: &str) -> Self {
        let name = name.rsplit('.').next().unwrap_or(name);
        let head = format!("\ntype {name} struct {{\n");
        let (before, body) =
            sources.iter().find_map(|source| source.split_once(&head)).unwrap_or_else(|| panic!("{name}"));
        let comment: Vec<&str> = before.lines().rev().take_while(|line| line.starts_with("//")).collect();
        Self { body: body.split_once("\n}").unwrap().0, is_atomic: comment.contains(&"// +structType=atomic") }
    }

    /// Returns the fields, with those of an embedded struct that JSON has beside the others.
    fn fields(&self, sources: &[String]) -> Vec<GoField> {
        let mut fields = Vec::new();
        let mut markers = Vec::new();
        for line in self.body.lines().map(str::trim) {
            if let Some(marker) = line.strip_prefix("// +") {
                markers.push(marker);
            }
            let Some((declaration, tags)) = line.split_once('`').filter(|_| !line.starts_with("//")) else { continue };
            let markers = std::mem::take(&mut markers);
            let tag = |name: &str| Some(tags.split_once(&format!("{name}:\""))?.1.split_once('"')?.0);
            let Some(number) = tag("protobuf").and_then(|tag| tag.split(',').nth(1)?.parse().ok()) else { continue };
            let json = tag("json").unwrap();
            let mut words = declaration.split_whitespace();
            let go_name = words.next().unwrap();
            // An embedded struct has no name but that of its type.
            let go_type = words.next().unwrap_or(go_name);
            if json.is_empty() {
                let embedded = Structure::find(sources, go_type).fields(sources);
                fields.extend(embedded.into_iter().map(|field| GoField { embedded_in: Some(number), ..field }));
                continue;
            }
            let (name, options) = json.split_once(',').unwrap_or((json, ""));
            let pointee = go_type.strip_prefix('*');
            let is_struct = pointee.is_none() && is_struct(sources, go_type);
            let presence = match (pointee, options.contains("omitempty")) {
                (Some(_), true) => Presence::Pointer,
                (Some(_), false) => Presence::Nullable,
                (None, true) if !is_struct => Presence::OmitEmpty,
                (None, _) => Presence::Always,
            };
            let keys = markers.iter().filter_map(|marker| marker.strip_prefix("listMapKey="));
            let list_type = match markers.iter().find_map(|marker| marker.strip_prefix("listType=")) {
                Some("set") => "set".to_owned(),
                Some("map") => format!("{:?}", keys.collect::<Vec<_>>()),
                _ => "atomic".to_owned(),
            };
            fields.push(GoField {
                name: name.to_owned(),
                go_name: if go_name == go_type { capitalized(name) } else { go_name.to_owned() },
                number,
                embedded_in: None,
                go_type: qualified(pointee.unwrap_or(go_type)),
                presence,
                list_type,
                patch_merge: tag("patchStrategy") == Some("merge"),
            });
        }
        fields
    }
}

/// Returns whether a type is a struct that the table describes field by field, which times and quantities are not.
fn is_struct(sources: &[String], go_type: &str) -> bool {
    let name = go_type.rsplit('.').next().unwrap_or(go_type);
    let is_special = matches!(name, "Time" | "Quantity" | "RawExtension" | "FieldsV1");
    !is_special && sources.iter().any(|source| source.contains(&format!("\ntype {name} struct {{\n")))
}

/// A field in the source code of Go.
struct GoField {
    name: String,
    go_name: String,
    number: u32,
    embedded_in: Option<u32>,
    go_type: String,
    presence: Presence,
    list_type: String,
    patch_merge: bool,
}

impl GoField {
    fn describe(&self) -> String {
        let Self { name, go_name, number, embedded_in, go_type, presence, list_type, patch_merge } = self;
        format!("{name} {go_name} {number} {embedded_in:?} {go_type} {presence:?} {list_type} {patch_merge}")
    }
}

fn describe(field: &Field) -> String {
    let Field { name, number, embedded_in, presence, patch_merge, .. } = field;
    let go_name = field.go_name.map_or_else(|| capitalized(name), str::to_owned);
    let list_type = match field.list_type {
        ListType::Atomic => "atomic".to_owned(),
        ListType::Set => "set".to_owned(),
        ListType::Map(keys) => format!("{keys:?}"),
    };
    let go_type = go_type(field.kind);
    format!("{name} {go_name} {number} {embedded_in:?} {go_type} {presence:?} {list_type} {patch_merge}")
}

fn capitalized(name: &str) -> String {
    name[..1].to_ascii_uppercase() + &name[1..]
}

/// Returns a type of Go with its package, as the table names it.
fn qualified(go_type: &str) -> String {
    if let Some(item) = go_type.strip_prefix("[]") {
        return format!("[]{}", qualified(item));
    }
    if let Some((key, value)) = go_type.strip_prefix("map[").and_then(|rest| rest.split_once(']')) {
        return format!("map[{}]{}", qualified(key), qualified(value));
    }
    match go_type {
        "int32" => "int64".to_owned(),
        "FieldsV1" => "runtime.RawExtension".to_owned(),
        _ if go_type.starts_with(char::is_uppercase) => format!("v1.{go_type}"),
        _ => go_type.replace("metav1.", "v1."),
    }
}

fn go_type(kind: Kind) -> String {
    let mut text = String::new();
    match kind {
        Kind::Text => text.push_str("string"),
        Kind::Named(name) => text.push_str(name),
        Kind::Int => text.push_str("int64"),
        Kind::Bool => text.push_str("bool"),
        Kind::Quantity => text.push_str("resource.Quantity"),
        Kind::Time => text.push_str("v1.Time"),
        Kind::Raw => text.push_str("runtime.RawExtension"),
        Kind::Object(of) => text.push_str(of.name),
        Kind::List(item) => write!(text, "[]{}", go_type(*item)).unwrap(),
        Kind::Map(key, item) => write!(text, "map[{key}]{}", go_type(*item)).unwrap(),
    }
    text
}
