//! Decoding and encoding a metadata file: each framework's own library, in a loop.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use drakkar_metadata::{Device, DeviceAttribute, Metadata, ObjectMeta, Request, Version, Versions, decode, encode};

use crate::table::Table;
use crate::{DRIVER, micros, to_float};

/// A file in two versions, with one device and eight attributes.
fn file() -> Vec<u8> {
    let attributes: [(&str, DeviceAttribute); 8] = [
        ("driverVersion", DeviceAttribute::version("580.65.6")),
        ("ecc", true.into()),
        ("index", 3.into()),
        ("memoryGiB", 80.into()),
        ("model", "Example H100".into()),
        ("numaNode", 1.into()),
        ("resource.kubernetes.io/pciBusID", "0000:03:00.0".into()),
        ("uuid", "GPU-8d5d4ab9-2c5e-4a2e-9b5c-1f3f6f0d7c11".into()),
    ];
    let device = Device {
        driver: DRIVER.into(),
        pool: "worker-0".into(),
        name: "gpu-0".into(),
        attributes: attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<BTreeMap<_, _>>(),
        ..Device::default()
    };
    let document = Metadata {
        metadata: ObjectMeta {
            name: "claim-0".into(),
            namespace: "default".into(),
            uid: "5f3c1e0a-77a4-4f0e-8a55-000000000000".into(),
            generation: 1,
            ..ObjectMeta::default()
        },
        pod_claim_name: None,
        requests: vec![Request { name: "gpu".into(), devices: vec![device] }],
    };
    encode(&document, &versions())
}

fn versions() -> Versions {
    Versions::new([Version::V1Beta1, Version::V1Alpha1]).unwrap()
}

/// Ours.
pub fn ours(of: &'static str, times: u64, table: &mut Table) {
    let (file, versions) = (file(), versions());
    let begin = Instant::now();
    for _ in 0..times {
        std::hint::black_box(decode(std::hint::black_box(&file)).unwrap());
    }
    note(of, "decode a file", micros(begin.elapsed()) / to_float(times), table);
    let document = decode(&file).unwrap().metadata;
    let begin = Instant::now();
    for _ in 0..times {
        assert_eq!(encode(std::hint::black_box(&document), &versions).len(), file.len());
    }
    note(of, "encode a file", micros(begin.elapsed()) / to_float(times), table);
}

/// The Go library's, by its program, which prints the nanoseconds that each took.
pub fn go(of: &'static str, program: &Path, times: u64, table: &mut Table) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metadata.json");
    std::fs::write(&path, file()).unwrap();
    let output = Command::new(program).arg("time").arg(&path).arg(times.to_string()).output().unwrap();
    assert!(output.status.success(), "interop time: {}", String::from_utf8_lossy(&output.stderr));
    let told = String::from_utf8(output.stdout).unwrap();
    let times: Vec<f64> = told.split_whitespace().map(|nanos| nanos.parse().unwrap()).collect();
    note(of, "decode a file", times[0] / 1e3, table);
    note(of, "encode a file", times[1] / 1e3, table);
}

fn note(of: &'static str, what: &str, micros: f64, table: &mut Table) {
    table.less(of, what, "us", micros);
}
