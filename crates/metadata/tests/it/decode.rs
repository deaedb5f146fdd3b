//! Decoding a stream: which document is used, and the error if there is none.

use drakkar_metadata::{
    DecodeError, Format, MAX_DEPTH, Metadata, Position, Request, Version, decode, decode_as, v1alpha1, v1beta1,
    validate,
};
use rstest::rstest;

use crate::support::{both, file, metadata};

const ALPHA: &str =
    r#"{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1alpha1","requests":[{"name":"gpu"}]}"#;
const BETA: &str =
    r#"{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1beta1","requests":[{"name":"gpu"}]}"#;
const UNKNOWN: &str = r#"{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v2","requests":"?"}"#;

/// Returns a document of v1beta1 with these members.
fn beta(members: &str) -> String {
    format!(r#"{{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1beta1",{members}}}"#)
}

fn error_of(stream: impl AsRef<[u8]>) -> DecodeError {
    decode(stream.as_ref()).expect_err("the stream has no answer")
}

fn one_request() -> Metadata {
    Metadata { requests: vec![Request { name: "gpu".into(), devices: vec![] }], ..Metadata::default() }
}

#[rstest]
#[case(Version::V1Alpha1)]
#[case(Version::V1Beta1)]
fn any_version_converts_to_any_version(#[case] version: Version) {
    let metadata = metadata("my-claim", "gpu", "gpu.example.com", &["gpu-0"]);
    let stream = drakkar_metadata::encode(&metadata, &version.into());
    let neutral = decode(&stream).unwrap();
    assert_eq!((neutral.format, &neutral.metadata), (Format::Released(version), &metadata));
    let (alpha, format) = decode_as::<v1alpha1::V1Alpha1>(&stream).unwrap();
    assert_eq!(format, Format::Released(version));
    assert_eq!(alpha, v1alpha1::DeviceMetadata::from(metadata.clone()));
    assert_eq!(v1alpha1::DeviceMetadata::API_VERSION, "metadata.resource.k8s.io/v1alpha1");
    let (beta, format) = decode_as::<v1beta1::V1Beta1>(&stream).unwrap();
    assert_eq!(format, Format::Released(version));
    assert_eq!(beta, v1beta1::DeviceMetadata::from(metadata.clone()));
    assert_eq!(v1beta1::DeviceMetadata::API_VERSION, "metadata.resource.k8s.io/v1beta1");
    assert_eq!(Metadata::from(beta), metadata);
    assert_eq!(validate(&neutral.metadata), Ok(()));
}

#[rstest]
#[case("v1beta1,v1alpha1", Version::V1Beta1)]
#[case("v1alpha1,v1beta1", Version::V1Alpha1)]
fn the_first_document_is_used(#[case] versions: &str, #[case] used: Version) {
    let metadata = metadata("my-claim", "gpu", "gpu.example.com", &["gpu-0"]);
    let stream = drakkar_metadata::encode(&metadata, &versions.parse().unwrap());
    assert_eq!(decode(&stream).unwrap().format, Format::Released(used));
    assert_eq!(decode_as::<v1alpha1::V1Alpha1>(&stream).unwrap().1, Format::Released(used));
    assert_eq!(decode_as::<v1beta1::V1Beta1>(&stream).unwrap().1, Format::Released(used));
}

#[test]
fn a_typed_document_refuses_another_version_and_another_kind() {
    let other_version = serde_json::from_str::<v1beta1::DeviceMetadata>(ALPHA).unwrap_err().to_string();
    assert!(other_version.contains("metadata.resource.k8s.io/v1beta1"), "{other_version}");
    let other_kind = ALPHA.replace("\"DeviceMetadata\"", "\"Pod\"");
    let other_kind = serde_json::from_str::<v1alpha1::DeviceMetadata>(&other_kind).unwrap_err().to_string();
    assert!(other_kind.contains("Pod"), "{other_kind}");
    assert_eq!(Metadata::from(serde_json::from_str::<v1alpha1::DeviceMetadata>(ALPHA).unwrap()), one_request());
}

#[test]
fn an_invalid_pod_claim_name_is_decoded_and_refused_by_validation() {
    let decoded = decode(beta(r#""podClaimName":"No_Name","requests":[{"name":"gpu"}]"#).as_bytes()).unwrap();
    assert_eq!(decoded.metadata.pod_claim_name.as_deref(), Some("No_Name"));
    let error = validate(&decoded.metadata).unwrap_err();
    assert_eq!(error.errors().iter().map(|error| error.field.as_str()).collect::<Vec<_>>(), ["podClaimName"]);
}

#[rstest]
#[case("")]
#[case(" \n\t\r ")]
#[case("]")]
#[case("} garbage")]
fn a_stream_without_a_document_is_an_error(#[case] stream: &str) {
    let error = error_of(stream);
    assert_eq!(error, DecodeError::NothingFound);
    assert_eq!(error.to_string(), "no metadata document found");
}

#[rstest]
#[case(UNKNOWN.to_owned())]
#[case(format!("{UNKNOWN}]"))]
#[case(format!("{UNKNOWN}\n}} {ALPHA}"))]
fn a_stray_bracket_ends_the_stream(#[case] stream: String) {
    assert_eq!(error_of(stream), DecodeError::UnknownVersions(vec!["metadata.resource.k8s.io/v2".into()]));
}

#[test]
fn unknown_versions_are_listed_in_order() {
    let stream = [r#"{"kind":"A","apiVersion":"z/v9"}"#, r#"{"kind":"B","apiVersion":"v1"}"#, UNKNOWN].join("\n");
    let error = error_of(stream);
    assert_eq!(
        error,
        DecodeError::UnknownVersions(vec!["z/v9".into(), "v1".into(), "metadata.resource.k8s.io/v2".into()])
    );
    assert!(error.to_string().contains("z/v9, v1, metadata.resource.k8s.io/v2"), "{error}");
}

#[rstest]
#[case::not_json("hello", 1)]
#[case::cut_off(r#"{"kind":"DeviceMetadata","#, 1)]
#[case::a_trailing_comma("{\"kind\":\"DeviceMetadata\",\n}", 2)]
#[case::a_nul("\0", 1)]
#[case::a_byte_order_mark("\u{feff}{}", 1)]
#[case::not_a_number("{\"a\": NaN}", 1)]
fn text_that_is_not_json_is_a_syntax_error(#[case] stream: &str, #[case] line: usize) {
    match error_of(stream) {
        DecodeError::Syntax { position, problem } => assert!(position.line == line && !problem.is_empty()),
        other => panic!("{other:?}"),
    }
}

#[rstest]
#[case::list("[1]")]
#[case::number("7")]
#[case::text(r#""DeviceMetadata""#)]
#[case::truth("true")]
#[case::version_is_a_number(r#"{"apiVersion":1,"kind":"DeviceMetadata"}"#)]
#[case::kind_is_a_list(r#"{"apiVersion":"v1","kind":["DeviceMetadata"]}"#)]
fn a_document_without_type_information_is_an_error(#[case] document: &str) {
    for stream in [document.to_owned(), format!("{document}\n{BETA}"), format!("{UNKNOWN}{document}{BETA}")] {
        assert!(matches!(error_of(&stream), DecodeError::NoTypeInformation { .. }), "{stream}");
    }
}

#[rstest]
#[case::none("{}", None)]
#[case::kind_only(r#"{"kind":"DeviceMetadata"}"#, None)]
#[case::null(r#"{"kind":"DeviceMetadata","apiVersion":null}"#, None)]
#[case::null_document("null", None)]
#[case::empty(r#"{"kind":"DeviceMetadata","apiVersion":""}"#, Some(""))]
#[case::no_version(
    r#"{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/"}"#,
    Some("metadata.resource.k8s.io/")
)]
#[case::three_parts(r#"{"kind":"DeviceMetadata","apiVersion":"a/b/c"}"#, Some("a/b/c"))]
fn a_document_without_a_version_is_an_error(#[case] document: &str, #[case] expected: Option<&str>) {
    for (number, stream) in [(1, format!("{document}{BETA}")), (2, format!("{UNKNOWN} {document} {BETA}"))] {
        let expected = DecodeError::NoApiVersion { document: number, found: expected.map(str::to_owned) };
        assert_eq!(error_of(&stream), expected);
    }
}

#[rstest]
#[case::known(r#"{"apiVersion":"metadata.resource.k8s.io/v1beta1","requests":[]}"#, "metadata.resource.k8s.io/v1beta1")]
#[case::unknown(r#"{"apiVersion":"metadata.resource.k8s.io/v9"}"#, "metadata.resource.k8s.io/v9")]
#[case::empty(r#"{"apiVersion":"v9","kind":""}"#, "v9")]
#[case::null(r#"{"apiVersion":"v9","kind":null}"#, "v9")]
fn a_document_without_a_kind_is_an_error_in_any_version(#[case] document: &str, #[case] version: &str) {
    let error = error_of(format!("{document}\n{BETA}"));
    assert_eq!(error, DecodeError::NoKind { document: 1, api_version: version.into() });
    assert!(error.to_string().contains(version), "{error}");
}

#[test]
fn a_known_version_of_another_kind_is_an_error() {
    let error = error_of(format!("{UNKNOWN}{}{ALPHA}", BETA.replace("\"DeviceMetadata\"", "\"Pod\"")));
    let version = "metadata.resource.k8s.io/v1beta1";
    assert_eq!(error, DecodeError::WrongKind { document: 2, api_version: version.into(), kind: "Pod".into() });
    assert!(error.to_string().contains("\"Pod\", not DeviceMetadata"), "{error}");
}

#[rstest]
#[case::garbage("garbage")]
#[case::a_cut_off_document(r#"{"kind":"#)]
#[case::bytes_beyond_unicode("\u{fffd}")]
#[case::a_broken_document(r#"{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1alpha1","requests":1}"#)]
fn documents_after_the_used_one_are_not_read(#[case] rest: &str) {
    assert_eq!(decode(format!("{BETA}{rest}").as_bytes()).unwrap().metadata, one_request());
}

#[rstest]
#[case::adjacent(format!("{UNKNOWN}{ALPHA}"))]
#[case::lines(format!("\n\n{UNKNOWN}\r\n\t{ALPHA}\n"))]
#[case::another_kind_of_an_unknown_version(format!(r#"{{"kind":"Pod","apiVersion":"v1"}} {ALPHA}"#))]
fn unknown_versions_are_skipped(#[case] stream: String) {
    let decoded = decode(stream.as_bytes()).unwrap();
    assert_eq!((decoded.format, decoded.metadata), (Format::Released(Version::V1Alpha1), one_request()));
}

#[test]
fn a_broken_document_after_an_unknown_one_is_an_error() {
    assert!(matches!(error_of(format!("{UNKNOWN}{{\"kind\"")), DecodeError::Syntax { .. }));
    assert!(matches!(error_of(format!("{UNKNOWN}{}{ALPHA}", beta("\"requests\":1"))), DecodeError::Shape { .. }));
}

#[rstest]
#[case(r#""requests":{}"#, ".requests")]
#[case(r#""requests":[1]"#, ".requests[0]")]
#[case(r#""podClaimName":1"#, ".podClaimName")]
#[case(r#""metadata":{"generation":"1"}"#, ".metadata.generation")]
#[case(r#""metadata":{"labels":{"a.b/c":1}}"#, ".metadata.labels[\"a.b/c\"]")]
#[case(r#""metadata":{"creationTimestamp":"yesterday"}"#, ".metadata.creationTimestamp")]
#[case(
    r#""requests":[{"devices":[{},{"attributes":{"a/b":{"int":"1"}}}]}]"#,
    ".requests[0].devices[1].attributes[\"a/b\"].int"
)]
#[case(
    r#""requests":[{"devices":[{"attributes":{"a":{"ints":[0,1.5]}}}]}]"#,
    ".requests[0].devices[0].attributes.a.ints[1]"
)]
#[case(
    r#""requests":[{"devices":[{"attributes":{"a":{"int":9223372036854775808}}}]}]"#,
    ".requests[0].devices[0].attributes.a.int"
)]
#[case(r#""requests":[{"devices":[{"networkData":{"ips":"10.0.0.1/8"}}]}]"#, ".requests[0].devices[0].networkData.ips")]
#[case(r#""requests":[{"devices":[{"networkData":7}]}]"#, ".requests[0].devices[0].networkData")]
fn a_document_that_does_not_fit_its_schema_has_the_location(#[case] members: &str, #[case] expected: &str) {
    let error = error_of(format!("{}\n{ALPHA}", beta(members)));
    match &error {
        DecodeError::Shape { format, location, .. } => {
            assert_eq!(*format, Format::Released(Version::V1Beta1));
            assert_eq!(location, expected);
        }
        other => panic!("{other:?}"),
    }
    let text = error.to_string();
    assert!(text.contains("metadata.resource.k8s.io/v1beta1") && text.contains(expected), "{text}");
    assert!(text.contains("line 1, column "), "{text}");
}

#[rstest]
#[case::object_meta(r#""metadata":["my-claim"]"#, ".metadata")]
#[case::empty_object_meta(r#""metadata":[]"#, ".metadata")]
#[case::owner(r#""metadata":{"ownerReferences":[["v1","Pod","p","u",null,null]]}"#, ".metadata.ownerReferences[0]")]
#[case::managed_fields(r#""metadata":{"managedFields":[[]]}"#, ".metadata.managedFields[0]")]
#[case::request(r#""requests":[["gpu",[]]]"#, ".requests[0]")]
#[case::device(r#""requests":[{"devices":[["d","p","n",{},null]]}]"#, ".requests[0].devices[0]")]
#[case::attribute(r#""requests":[{"devices":[{"attributes":{"a":[1]}}]}]"#, ".requests[0].devices[0].attributes.a")]
#[case::network_data(r#""requests":[{"devices":[{"networkData":[]}]}]"#, ".requests[0].devices[0].networkData")]
fn a_list_instead_of_an_object_does_not_fit_the_schema(#[case] members: &str, #[case] expected: &str) {
    match decode(beta(members).as_bytes()) {
        Err(DecodeError::Shape { location, .. }) => assert_eq!(location, expected),
        other => panic!("{other:?}"),
    }
}

#[test]
fn positions_are_counted_over_the_whole_stream() {
    let stream = format!("{UNKNOWN}\n\n{}", beta("\n\"requests\": [\n  {\"name\": 7}\n]"));
    let line = stream.lines().nth(4).unwrap();
    assert_eq!(line, "  {\"name\": 7}");
    match error_of(&stream) {
        DecodeError::Shape { position, location, .. } => {
            assert_eq!(location, ".requests[0].name");
            assert_eq!(position, Position { line: 5, column: line.find('7').unwrap() + 1 });
        }
        other => panic!("{other:?}"),
    }
}

#[rstest]
#[case::an_object_for_a_kind("{\"kind\":\n{}}", 2)]
#[case::a_list_for_a_kind("\n{\"kind\":\n\n[]}", 4)]
#[case::a_list_for_a_document("\n[]", 2)]
fn lines_and_columns_count_from_one(#[case] stream: &str, #[case] line: usize) {
    match error_of(stream) {
        DecodeError::NoTypeInformation { position, .. } => {
            assert_eq!(position.line, line);
            let width = stream.lines().nth(line - 1).unwrap().len();
            assert!((1..=width).contains(&position.column), "{position}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn columns_are_counted_over_the_line_even_if_documents_share_it() {
    let stream = format!("{UNKNOWN} {{\"kind\": nonsense}}");
    match error_of(&stream) {
        DecodeError::Syntax { position, .. } => {
            assert_eq!(position.line, 1);
            let start = stream.find("nonsense").unwrap() + 1;
            assert!((start..start + "nonsense".len()).contains(&position.column), "{position}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn unknown_fields_are_ignored_and_names_are_case_sensitive() {
    let members = r#""Requests":5,"PODCLAIMNAME":[],"x":{"y":[1]},"requests":[{"name":"gpu","Devices":1,"more":null}]"#;
    assert_eq!(decode(beta(members).as_bytes()).unwrap().metadata, one_request());
}

#[rstest]
#[case(r#""metadata":null,"podClaimName":null,"requests":null"#)]
#[case(
    r#""metadata":{"name":null,"generateName":null,"namespace":null,"selfLink":null,"uid":null,"resourceVersion":null,
          "generation":null,"creationTimestamp":null,"deletionTimestamp":null,"deletionGracePeriodSeconds":null,
          "labels":null,"annotations":null,"ownerReferences":null,"finalizers":null,"managedFields":null}"#
)]
fn null_is_absent(#[case] members: &str) {
    assert_eq!(decode(beta(members).as_bytes()).unwrap().metadata, Metadata::default());
}

#[rstest]
#[case(r#""requests":[null]"#, r#""requests":[{}]"#)]
#[case(r#""requests":[{"name":null,"devices":null}]"#, r#""requests":[{}]"#)]
#[case(r#""requests":[{"devices":[null]}]"#, r#""requests":[{"devices":[{}]}]"#)]
#[case(
    r#""requests":[{"devices":[{"driver":null,"pool":null,"name":null,"attributes":null,"networkData":null}]}]"#,
    r#""requests":[{"devices":[{}]}]"#
)]
#[case(
    r#""requests":[{"devices":[{"attributes":{"a":null}}]}]"#,
    r#""requests":[{"devices":[{"attributes":{"a":{}}}]}]"#
)]
#[case(
    r#""requests":[{"devices":[{"attributes":{"a":{"int":null,"bool":null,"string":null,"version":null,"ints":null,"bools":null,"strings":null,"versions":null}}}]}]"#,
    r#""requests":[{"devices":[{"attributes":{"a":{}}}]}]"#
)]
#[case(
    r#""requests":[{"devices":[{"attributes":{"a":{"ints":[null],"bools":[null],"strings":[null],"versions":[null]}}}]}]"#,
    r#""requests":[{"devices":[{"attributes":{"a":{"ints":[0],"bools":[false],"strings":[""],"versions":[""]}}}]}]"#
)]
#[case(
    r#""requests":[{"devices":[{"networkData":{"interfaceName":null,"ips":null,"hardwareAddress":null}}]}]"#,
    r#""requests":[{"devices":[{"networkData":{}}]}]"#
)]
#[case(
    r#""requests":[{"devices":[{"networkData":{"ips":[null]}}]}]"#,
    r#""requests":[{"devices":[{"networkData":{"ips":[""]}}]}]"#
)]
#[case(
    r#""metadata":{"labels":{"a":null},"finalizers":[null]}"#,
    r#""metadata":{"labels":{"a":""},"finalizers":[""]}"#
)]
#[case(
    r#""metadata":{"ownerReferences":[null,{"apiVersion":null,"kind":null,"name":null,"uid":null,"controller":null,"blockOwnerDeletion":null}]}"#,
    r#""metadata":{"ownerReferences":[{},{}]}"#
)]
#[case(
    r#""metadata":{"managedFields":[null,{"manager":null,"operation":null,"apiVersion":null,"time":null,"fieldsType":null,"fieldsV1":null,"subresource":null}]}"#,
    r#""metadata":{"managedFields":[{},{}]}"#
)]
fn null_is_the_zero_value_everywhere(#[case] with_null: &str, #[case] with_zero: &str) {
    let read = |members: &str| decode(beta(members).as_bytes()).unwrap().metadata;
    assert_eq!(read(with_null), read(with_zero));
}

#[rstest]
#[case::request_name(r#""requests":[{"name":"a","name":"b"}]"#)]
#[case::requests(r#""requests":[],"requests":[{"name":"a"}]"#)]
#[case::value(r#""requests":[{"devices":[{"attributes":{"a":{"int":1,"int":2}}}]}]"#)]
#[case::attribute(r#""requests":[{"devices":[{"attributes":{"a":{"int":1},"a":{"int":2}}}]}]"#)]
#[case::network_data(r#""requests":[{"devices":[{"networkData":{"ips":[],"ips":["10.0.0.1/8"]}}]}]"#)]
#[case::kind(r#""kind":"DeviceMetadata""#)]
#[case::a_version_that_hides_the_known_one(r#""apiVersion":"metadata.resource.k8s.io/v9""#)]
fn a_duplicate_field_is_an_error(#[case] members: &str) {
    let outcome = decode(format!("{}{ALPHA}", beta(members)).as_bytes());
    assert!(outcome.is_err(), "{outcome:?}");
}

#[rstest]
#[case::bytes(b"\"podClaimName\":\"\xff\xfe\"".as_slice())]
#[case::overlong(b"\"podClaimName\":\"\xc0\xaf\"")]
#[case::lone_surrogate(br#""podClaimName":"\ud800""#)]
#[case::attribute_name(b"\"requests\":[{\"devices\":[{\"attributes\":{\"\xff\":{\"int\":1}}}]}]")]
fn text_that_is_not_utf8_is_an_error(#[case] members: &[u8]) {
    let whole = beta("@");
    let (before, after) = whole.split_once('@').unwrap();
    let stream = [before.as_bytes(), members, after.as_bytes()].concat();
    let error = error_of(&stream);
    assert!(matches!(error, DecodeError::Shape { .. } | DecodeError::Syntax { .. }), "{error:?}");
}

#[test]
fn a_document_may_be_nested_up_to_the_limit() {
    let nested = |levels: usize| beta(&format!(r#""x":{}{}"#, "[".repeat(levels), "]".repeat(levels)));
    assert_eq!(decode(nested(MAX_DEPTH - 1).as_bytes()).unwrap().metadata, Metadata::default());
    assert_eq!(error_of(nested(MAX_DEPTH)), DecodeError::TooDeep { document: 1 });
    assert_eq!(error_of(format!("{UNKNOWN}{}", nested(MAX_DEPTH))), DecodeError::TooDeep { document: 2 });
    let in_text = beta(&format!(r#""x":"{}","y":"\"{}""#, "[".repeat(1000), "{".repeat(1000)));
    assert_eq!(decode(in_text.as_bytes()).unwrap().metadata, Metadata::default());
}

#[test]
fn a_file_as_a_driver_writes_it_is_valid() {
    let metadata = metadata("my-claim", "gpu/large", "gpu.example.com", &["gpu-0", "gpu-1"]);
    let decoded = decode(&file(&metadata)).unwrap();
    assert_eq!(decoded.metadata, metadata);
    assert_eq!(validate(&decoded.metadata), Ok(()));
    assert_eq!(both().to_string(), "v1beta1,v1alpha1");
}
