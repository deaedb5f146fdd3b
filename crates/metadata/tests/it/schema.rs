//! The JSON Schemas have the rules of validation.

use std::sync::LazyLock;

use drakkar_metadata::{Version, Versions, decode, encode, schema::json_schema, validate};
use jsonschema::Validator;
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use crate::generate::nearly_valid;
use crate::support::{fixture, metadata};

/// Returns the schema of a version, compiled once.
fn validator(version: Version) -> &'static Validator {
    static ALPHA: LazyLock<Validator> = LazyLock::new(|| compile(Version::V1Alpha1));
    static BETA: LazyLock<Validator> = LazyLock::new(|| compile(Version::V1Beta1));
    match version {
        Version::V1Alpha1 => &ALPHA,
        Version::V1Beta1 => &BETA,
        other => panic!("no schema is compiled for {other}"),
    }
}

fn compile(version: Version) -> Validator {
    let schema: Value = serde_json::from_str(&json_schema(version)).unwrap();
    jsonschema::validator_for(&schema).unwrap()
}

/// Returns whether a document decodes and is valid.
fn is_valid(document: &Value) -> bool {
    decode(document.to_string().as_bytes()).is_ok_and(|decoded| validate(&decoded.metadata).is_ok())
}

fn documents(stream: &[u8]) -> Vec<Value> {
    serde_json::Deserializer::from_slice(stream).into_iter().collect::<Result<_, _>>().unwrap()
}

/// Returns the fixture with its invalid values corrected.
fn valid_fixture() -> Vec<Value> {
    let mut documents = documents(&fixture("v1beta1-v1alpha1.json"));
    for document in &mut documents {
        document["podClaimName"] = json!("gpu");
        document["metadata"]["managedFields"][0]["operation"] = json!("Apply");
        document["requests"][0]["devices"][0]["attributes"]["model"] = json!({"ints": [6]});
    }
    documents
}

#[rstest]
#[case(Version::V1Alpha1)]
#[case(Version::V1Beta1)]
fn the_schema_is_a_valid_schema_of_its_version(#[case] version: Version) {
    let schema: Value = serde_json::from_str(&json_schema(version)).unwrap();
    assert!(jsonschema::meta::is_valid(&schema));
    assert_eq!(schema["properties"]["apiVersion"]["const"], version.api_version());
    assert!(!json_schema(version).contains("VERSION"));
}

#[test]
fn the_fixtures_fit_the_schema_of_their_version_only() {
    for (index, document) in valid_fixture().iter().enumerate() {
        assert!(is_valid(document));
        assert_eq!(validator(Version::V1Beta1).is_valid(document), index == 0);
        assert_eq!(validator(Version::V1Alpha1).is_valid(document), index == 1);
    }
}

#[test]
fn invalid_values_of_the_fixtures_are_refused_by_both() {
    for document in documents(&fixture("v1alpha1.json")) {
        assert!(!is_valid(&document));
        let errors: Vec<String> = validator(Version::V1Alpha1)
            .iter_errors(&document)
            .map(|error| error.instance_path().to_string())
            .collect();
        for place in ["/podClaimName", "/metadata/managedFields/0/operation", "/requests/0/devices/0/attributes/model"]
        {
            assert!(errors.iter().any(|error| error == place), "{place}: {errors:?}");
        }
    }
}

#[rstest]
#[case::no_kind(|document: &mut Value| { document.as_object_mut().unwrap().remove("kind"); })]
#[case::no_version(|document: &mut Value| { document.as_object_mut().unwrap().remove("apiVersion"); })]
#[case::another_kind(|document: &mut Value| document["kind"] = json!("Pod"))]
#[case::a_list(|document: &mut Value| *document = json!([]))]
fn the_type_is_required(#[case] mutate: fn(&mut Value)) {
    let mut document = valid_fixture().remove(0);
    mutate(&mut document);
    assert!(!validator(Version::V1Beta1).is_valid(&document));
}

#[rstest]
#[case(json!(i64::MAX), true)]
#[case(json!(i64::MIN), true)]
#[case(json!(9_223_372_036_854_775_808_u64), false)]
#[case(json!(u64::MAX), false)]
#[case(json!(1.5), false)]
#[case(json!("1"), false)]
fn a_number_has_64_bits_with_a_sign(#[case] number: Value, #[case] valid: bool) {
    for (place, value) in [("int", number.clone()), ("ints", json!([0, number]))] {
        let mut document = valid_fixture().remove(0);
        document["requests"][0]["devices"][0]["attributes"]["model"] = json!({place: value});
        assert_eq!(is_valid(&document), valid, "{document}");
        assert_eq!(validator(Version::V1Beta1).is_valid(&document), valid, "{document}");
    }
}

/// Collects the JSON pointers of all values below a value.
fn pointers(value: &Value, prefix: &str, all: &mut Vec<String>) {
    all.push(prefix.to_owned());
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                pointers(value, &format!("{prefix}/{}", name.replace('~', "~0").replace('/', "~1")), all);
            }
        }
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                pointers(value, &format!("{prefix}/{index}"), all);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn replacement() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!("")),
        Just(json!("a")),
        Just(json!("A_")),
        Just(json!(7)),
        Just(json!(-7)),
        Just(json!(true)),
        Just(json!([])),
        Just(json!({})),
        Just(json!(["a"])),
        Just(json!(["a", "a"])),
        Just(json!([1])),
        Just(json!({"name": "a"})),
        Just(json!({"int": 1})),
        Just(json!({"int": 1, "bool": true})),
        Just(json!({"devices": [{"driver": "d", "pool": "p", "name": "n"}], "name": "r"})),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn schema_and_validation_agree_on_generated_documents(metadata in nearly_valid()) {
        for version in Version::ALL.iter().copied() {
            let document = documents(&encode(&metadata, &Versions::from(version))).remove(0);
            let errors: Vec<_> = validator(version).iter_errors(&document).map(|error| error.to_string()).collect();
            prop_assert_eq!(errors.is_empty(), validate(&metadata).is_ok(), "{:?}\n{:?}", errors, validate(&metadata));
        }
    }

    #[test]
    fn schema_and_validation_agree_on_mutated_documents(
        metadata in nearly_valid(),
        which in any::<proptest::sample::Index>(),
        value in replacement(),
    ) {
        let mut document = documents(&encode(&metadata, &Version::V1Beta1.into())).remove(0);
        let mut places = vec!["/metadata/generation".to_owned(), "/podClaimName".to_owned()];
        pointers(document.get("requests").unwrap_or(&Value::Null), "/requests", &mut places);
        if let Some(place) = document.pointer_mut(&places[which.index(places.len())]) {
            *place = value;
        }
        let errors: Vec<_> =
            validator(Version::V1Beta1).iter_errors(&document).map(|error| error.to_string()).collect();
        prop_assert_eq!(errors.is_empty(), is_valid(&document), "{:?}\n{}", errors, document);
    }
}

#[test]
fn a_drivers_file_fits_the_schema() {
    let metadata = metadata("my-claim", "gpu", "gpu.example.com", &["gpu-0"]);
    for version in Version::ALL.iter().copied() {
        let document = documents(&encode(&metadata, &version.into())).remove(0);
        assert!(validator(version).is_valid(&document));
    }
}
