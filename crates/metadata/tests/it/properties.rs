//! Properties of all inputs: round trips, and that no input makes the decoder panic.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use drakkar_metadata::path::{ContainerFile, HostFile, KEP_DIR, KUBERNETES_DIR};
use drakkar_metadata::{Decoder, Format, Version, Versions, decode, decode_as, encode, v1alpha1, v1beta1, validate};
use proptest::prelude::*;

use crate::generate::{any_metadata, same_layout};
use crate::support::{file, fixture, metadata};

fn any_versions() -> impl Strategy<Value = Versions> {
    prop_oneof![Just("v1alpha1"), Just("v1beta1"), Just("v1beta1,v1alpha1"), Just("v1alpha1,v1beta1")]
        .prop_map(|text| text.parse().unwrap())
}

/// Returns the length of the first document of a stream.
fn first_document(stream: &[u8]) -> usize {
    let mut documents = serde_json::Deserializer::from_slice(stream).into_iter::<serde_json::Value>();
    documents.next().unwrap().unwrap();
    documents.byte_offset()
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(100))]

    #[test]
    fn any_object_round_trips_in_every_version_and_order(metadata in any_metadata(), versions in any_versions()) {
        let stream = encode(&metadata, &versions);
        let decoded = Decoder::released_only().decode(&stream).unwrap();
        prop_assert_eq!(decoded.format, Format::Released(versions.as_slice()[0]));
        prop_assert_eq!(same_layout(decoded.metadata), same_layout(metadata.clone()));
        let (alpha, _) = decode_as::<v1alpha1::V1Alpha1>(&stream).unwrap();
        let (beta, _) = decode_as::<v1beta1::V1Beta1>(&stream).unwrap();
        prop_assert_eq!(same_layout(alpha.into()), same_layout(metadata.clone()));
        prop_assert_eq!(same_layout(beta.into()), same_layout(metadata));
    }

    #[test]
    fn any_object_encodes_to_the_same_bytes_after_decoding(metadata in any_metadata(), versions in any_versions()) {
        let stream = encode(&metadata, &versions);
        let again = encode(&decode(&stream).unwrap().metadata, &versions);
        prop_assert_eq!(String::from_utf8(again).unwrap(), String::from_utf8(stream).unwrap());
    }

    #[test]
    fn a_mutated_file_is_decoded_or_refused(
        metadata in any_metadata(),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>(), 0_u8..3), 1..5),
    ) {
        let mut stream = file(&metadata);
        for (position, byte, what) in changes {
            let position = position.index(stream.len());
            match what {
                0 => stream[position] = byte,
                1 => stream.insert(position, byte),
                _ => { stream.remove(position); }
            }
        }
        match decode(&stream) {
            Ok(decoded) => {
                let _ = validate(&decoded.metadata);
                let written = encode(&decoded.metadata, &Versions::default());
                prop_assert_eq!(same_layout(decode(&written).unwrap().metadata), same_layout(decoded.metadata));
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn arbitrary_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(decode(&bytes).is_err());
        prop_assert!(Decoder::released_only().decode_claims(&bytes).is_err());
    }

    #[test]
    fn arbitrary_json_like_text_does_not_make_the_decoder_panic(
        parts in proptest::collection::vec(prop_oneof![
            Just("{"), Just("}"), Just("["), Just("]"), Just(","), Just(":"), Just("null"), Just("1"), Just("\"\""),
            Just("\"kind\":\"DeviceMetadata\""), Just("\"apiVersion\":\"metadata.resource.k8s.io/v1beta1\""),
            Just("\"apiVersion\":\"resource.k8s.io/v1alpha1\""), Just("\"claims\":"), Just("\"requests\":["),
            Just("\"devices\":["), Just("\"attributes\":{"), Just("\"metadata\":{"), Just(" "), Just("\n"),
        ], 0..20),
    ) {
        let text = parts.concat();
        if let Err(error) = decode(text.as_bytes()) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn a_parsed_path_prints_as_the_same_text(
        directory in prop_oneof![
            Just("/var/run/dra-device-attributes/"),
            Just("/var/run/kubernetes.io/dra-device-attributes/resourceclaims/"),
            Just("/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/"),
            Just("//var/run/dra-device-attributes/"), Just("/var/run//dra-device-attributes/"),
            Just("/var/./run/dra-device-attributes/"), Just("/var/run/dra-device-attributes//"),
            Just("/var/run/dra-device-attributes/./"), Just("var/run/dra-device-attributes/"),
            Just("/var/run/kubernetes.io//dra-device-attributes/resourceclaims/"), Just(""),
        ],
        parts in proptest::collection::vec(prop_oneof![
            4 => "[a-z]{1,3}", 1 => Just("..".to_owned()), 1 => Just(".".to_owned()), 1 => Just(String::new()),
            1 => "[a-zA-Z]{1,3}\\.[a-z]{1,3}", 1 => any::<String>(),
        ], 0..4),
        last in prop_oneof![
            4 => "[a-z]{1,3}-metadata\\.json", 2 => Just("metadata.json".to_owned()), 1 => any::<String>(),
            1 => Just("d-01234567-89ab-cdef-0123-456789abcdef-r.json".to_owned()),
            1 => Just("x-metadata.json/".to_owned()),
        ],
    ) {
        let text = format!("{directory}{}{}{last}", parts.join("/"), if parts.is_empty() { "" } else { "/" });
        check_parsed(Path::new(&text))?;
        if let Ok(host) = HostFile::parse(Path::new(&text)) {
            let built = host.relative_path().unwrap();
            prop_assert_eq!(built.as_os_str(), OsStr::new(&text));
        }
    }

    #[test]
    fn arbitrary_bytes_are_a_valid_path_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let path = Path::new(OsStr::from_bytes(&bytes));
        check_parsed(path)?;
        check_parsed(&Path::new(KEP_DIR).join(path))?;
        prop_assert!(HostFile::parse(path).is_err());
    }

    #[test]
    fn every_path_that_is_built_parses_back(
        claim in "[a-z0-9]{1,8}(\\.[a-z0-9]([a-z-]{0,8}[a-z])?){0,2}",
        label in "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?",
        driver in "[a-zA-Z0-9]{1,9}(-[a-z]{1,3})?(\\.[a-zA-Z]{1,9}){0,3}",
        uid in "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    ) {
        let claim = claim.parse().unwrap();
        let request = label.parse().unwrap();
        let driver = driver.parse().unwrap();
        let host = HostFile { namespace: label.parse().unwrap(), claim, request };
        prop_assert_eq!(&HostFile::parse(&host.relative_path().unwrap()).unwrap(), &host);
        let HostFile { claim, request, .. } = host;
        for file in [
            ContainerFile::Claim { claim: claim.clone(), request: request.clone(), driver },
            ContainerFile::Template { pod_claim: label.parse().unwrap(), request: request.clone(), driver: "D.x".parse().unwrap() },
            ContainerFile::Kep { claim: claim.clone(), request: request.clone(), driver: "d.x".parse().unwrap() },
            ContainerFile::Vep10 { driver: "d.x".parse().unwrap(), claim },
            ContainerFile::EarlyDraft { driver: "d-e.x".parse().unwrap(), uid: uid.parse().unwrap(), request },
        ] {
            prop_assert_eq!(&ContainerFile::parse(&file.path()).unwrap(), &file);
            check_parsed(&file.path())?;
        }
    }
}

/// Checks that a parsed path prints as the same text, and is below the directory of its layout.
fn check_parsed(path: &Path) -> Result<(), TestCaseError> {
    if let Ok(file) = ContainerFile::parse(path) {
        let built = file.path();
        prop_assert_eq!(built.as_os_str(), path.as_os_str());
        prop_assert!(built.starts_with(KEP_DIR) || built.starts_with(KUBERNETES_DIR));
        prop_assert!(built.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_))));
    }
    Ok(())
}

#[test]
fn a_file_truncated_in_its_first_document_is_refused() {
    let own = file(&metadata("my-claim", "gpu", "gpu.example.com", &["gpu-0", "gpu-1"]));
    for stream in [own, fixture("v1beta1-v1alpha1.json")] {
        let end = first_document(&stream);
        for length in 0..=stream.len() {
            let outcome = decode(&stream[..length]);
            assert_eq!(outcome.is_ok(), length >= end, "cut after {length} bytes: {outcome:?}");
        }
    }
}

#[test]
fn a_file_truncated_after_its_first_document_has_the_same_content() {
    let stream = fixture("v1beta1-v1alpha1.json");
    let whole = decode(&stream).unwrap();
    for length in first_document(&stream)..stream.len() {
        assert_eq!(decode(&stream[..length]).as_ref(), Ok(&whole));
    }
    assert_eq!(whole.format, Format::Released(Version::V1Beta1));
}
