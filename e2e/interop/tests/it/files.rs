//! A few thousand objects in each version and order: each library reads what the other writes, and both write the same bytes.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use drakkar_metadata::{
    Decoder, Device, DeviceAttribute, Format, Metadata, NetworkDeviceData, ObjectMeta, Request, Version, encode,
    validate,
};
use serde_json::Value;

use crate::generate::{any_metadata, nearly_valid, same_layout};
use crate::support::{ORDERS, about_file, about_object, file, generated, object, program, versions};

/// Objects of each kind in each order.
const COUNT: usize = 1000;

/// What chance would not come upon: limits, and what JSON, Go and HTML treat in ways of their own.
fn extremes() -> Vec<Metadata> {
    let of = |attributes: BTreeMap<String, DeviceAttribute>, network_data| Metadata {
        metadata: ObjectMeta {
            name: "n".repeat(253),
            namespace: "n".repeat(63),
            uid: "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11".into(),
            generation: i64::MAX,
            annotations: [("resource.kubernetes.io/pod-claim-name".into(), "gpu".into())].into(),
            ..ObjectMeta::default()
        },
        pod_claim_name: Some("gpu".into()),
        requests: vec![Request {
            name: format!("{}/{}", "r".repeat(63), "s".repeat(63)),
            devices: vec![Device {
                driver: format!("{}.example.com", "d".repeat(51)),
                pool: format!("{0}/{0}/{0}/{1}", "p".repeat(63), "p".repeat(61)),
                name: "d".repeat(63),
                attributes,
                network_data,
            }],
        }],
    };
    let control: String = (0..0x20_u8).map(char::from).collect();
    let beyond =
        "\u{7f}\u{80}\u{85}\u{a0}\u{ad}\u{200b}\u{2027}\u{2028}\u{2029}\u{202a}\u{feff}\u{fffd}\u{ffff}\u{10ffff}";
    let texts =
        ["", " ", "<script>&amp;</script>", "\"\\/", "日本語 ünïcödé 🛶🏽", beyond, &control, "\\u003c", "null"];
    let attributes = [
        ("ints", DeviceAttribute::from(vec![i64::MIN, -1, 0, 1, i64::MAX, 1 << 53, (1 << 53) + 1])),
        ("int", DeviceAttribute::from(i64::MIN)),
        ("zero", DeviceAttribute::from(0)),
        ("no", DeviceAttribute::from(false)),
        ("bools", DeviceAttribute::from(vec![false, true])),
        ("empty", DeviceAttribute::from(Vec::<bool>::new())),
        ("strings", DeviceAttribute::from(texts.to_vec())),
        ("version", DeviceAttribute::version("1.2.3-rc.1+build.5")),
        ("versions", DeviceAttribute::versions(["0.0.0", "999999999999.0.0-alpha"])),
        ("resource.kubernetes.io/pciBusID", DeviceAttribute::from("0000:03:00.0")),
    ];
    let named = |(name, value): &(&str, DeviceAttribute)| ((*name).to_owned(), value.clone());
    let mut all = vec![
        of(attributes.iter().map(named).collect(), None),
        of(texts.iter().map(|text| ((*text).to_owned(), DeviceAttribute::from(*text))).collect(), None),
        // Sorted by bytes, not by code units: U+FFFF is before U+10000.
        of(["\u{ffff}", "\u{10000}", "A", "a", "_"].map(|key| (key.to_owned(), true.into())).into(), None),
        of(BTreeMap::new(), Some(NetworkDeviceData::default())),
        Metadata::default(),
        Metadata { pod_claim_name: Some(String::new()), ..Metadata::default() },
        Metadata { requests: vec![Request::default()], ..Metadata::default() },
    ];
    let network = NetworkDeviceData {
        interface_name: "net1".into(),
        ips: vec!["10.9.0.5/24".into(), "2001:db8::1/64".into()],
        hardware_address: "02:00:00:00:00:05".into(),
    };
    all.extend(attributes.iter().map(|attribute| of([named(attribute)].into(), Some(network.clone()))));
    all.extend(texts.iter().map(|text| of([("text".into(), DeviceAttribute::from(*text))].into(), None)));
    all
}

/// All of them, made once.
fn objects() -> &'static [Metadata] {
    static OBJECTS: OnceLock<Vec<Metadata>> = OnceLock::new();
    OBJECTS.get_or_init(|| {
        let mut all = extremes();
        all.extend(generated(&any_metadata(), COUNT));
        all.extend(generated(&nearly_valid(), COUNT));
        all
    })
}

/// Go reads every file that we write: the same version, the same content, the same verdict of validation. And what it then
/// writes are the bytes that it has read.
#[test]
fn go_reads_what_we_write_and_writes_the_same_again() {
    let Some(program) = program() else { return };
    let objects = objects();
    for order in ORDERS {
        let files: Vec<Vec<u8>> = objects.iter().map(|metadata| encode(metadata, &versions(order))).collect();
        let questions: Vec<Value> = files.iter().map(|file| about_file(file, order)).collect();
        let answers = program.ask(&["decode"], &questions).unwrap();
        assert_eq!(answers.len(), objects.len());
        for ((metadata, ours), answer) in objects.iter().zip(files).zip(answers) {
            assert_eq!(file(&answer), String::from_utf8(ours).unwrap());
            assert_eq!(answer["version"], versions(order).as_slice()[0].api_version());
            assert_eq!(answer["object"], object(metadata));
            let verdict = validate(metadata);
            assert_eq!(answer["invalid"].is_null(), verdict.is_ok(), "{answer}\n{verdict:?}");
        }
    }
}

/// Objects become the same files with Go's codec as with ours.
#[test]
fn go_writes_objects_as_we_do() {
    let Some(program) = program() else { return };
    let objects = objects();
    for order in ORDERS {
        let questions: Vec<Value> = objects.iter().map(|metadata| about_object(metadata, order)).collect();
        let answers = program.ask(&["encode"], &questions).unwrap();
        assert_eq!(answers.len(), objects.len());
        for (metadata, answer) in objects.iter().zip(answers) {
            assert_eq!(file(&answer), String::from_utf8(encode(metadata, &versions(order))).unwrap());
        }
    }
}

/// What the framework's own writer, and not only its codec, puts into files: one request, devices of one driver. It writes
/// v1alpha1 only beside v1beta1.
#[test]
fn the_go_framework_writes_files_as_we_do() {
    let Some(program) = program() else { return };
    let of_framework = |mut metadata: Metadata| {
        let meta = &metadata.metadata;
        metadata.metadata = ObjectMeta {
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            uid: meta.uid.clone(),
            generation: 7,
            ..ObjectMeta::default()
        };
        metadata.requests.truncate(1);
        for device in metadata.requests.iter_mut().flat_map(|request| &mut request.devices) {
            device.driver = "gpu.example.com".to_owned();
        }
        metadata.requests.first().is_some_and(|request| !request.devices.is_empty()).then_some(metadata)
    };
    let objects: Vec<_> = objects().iter().cloned().filter_map(of_framework).collect();
    assert!(objects.len() > COUNT / 2, "only {} objects are of the framework's kind", objects.len());
    for order in ORDERS.into_iter().filter(|order| order.contains("v1beta1")) {
        let questions: Vec<Value> = objects.iter().map(|metadata| about_object(metadata, order)).collect();
        let answers = program.ask(&["write"], &questions).unwrap();
        assert_eq!(answers.len(), objects.len());
        for (metadata, answer) in objects.iter().zip(answers) {
            let written = file(&answer);
            assert_eq!(written, String::from_utf8(encode(metadata, &versions(order))).unwrap());
            assert_eq!(Decoder::released_only().decode(written.as_bytes()).unwrap().metadata, *metadata);
        }
    }
}

/// We read every file that Go writes for objects of its own making, and write it again byte by byte.
#[test]
fn we_read_what_go_writes_and_write_the_same_again() {
    let Some(program) = program() else { return };
    for seed in ["1", "2"] {
        let files = program.ask(&["generate", "--seed", seed, "--count", &COUNT.to_string()], &[]).unwrap();
        assert_eq!(files.len(), COUNT * ORDERS.len());
        for one in files {
            let order: Vec<&str> =
                one["versions"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
            let theirs = file(&one);
            let decoded =
                Decoder::released_only().decode(theirs.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{theirs}"));
            assert_eq!(decoded.format, Format::Released(order[0].parse::<Version>().unwrap()));
            assert_eq!(object(&same_layout(decoded.metadata.clone())), one["object"]);
            assert_eq!(String::from_utf8(encode(&decoded.metadata, &versions(&order.join(",")))).unwrap(), theirs);
        }
    }
}
