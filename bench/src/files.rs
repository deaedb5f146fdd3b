//! Decoding and encoding a metadata file in a loop, with each framework's library.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use drakkar_metadata::{Version, Versions, decode, encode};

use crate::table::Table;
use crate::{micros, to_float};

/// A file in two versions, with one device that has eight attributes: the one that the benchmarks of the library use.
fn file() -> Vec<u8> {
    let one_device = include_bytes!("../../crates/metadata/benches/one_device.json");
    encode(&decode(one_device).unwrap().metadata, &versions())
}

fn versions() -> Versions {
    Versions::new([Version::V1Beta1, Version::V1Alpha1]).unwrap()
}

/// Measures our library.
pub fn ours(label: &'static str, times: u64, table: &mut Table) {
    let file = file();
    let versions = versions();
    let begin = Instant::now();
    for _ in 0..times {
        std::hint::black_box(decode(std::hint::black_box(&file)).unwrap());
    }
    note(label, "decode a file", micros(begin.elapsed()) / to_float(times), table);
    let document = decode(&file).unwrap().metadata;
    let begin = Instant::now();
    for _ in 0..times {
        assert_eq!(encode(std::hint::black_box(&document), &versions).len(), file.len());
    }
    note(label, "encode a file", micros(begin.elapsed()) / to_float(times), table);
}

/// Measures the Go library, with the Go program, which prints the nanoseconds of a decode and of an encode.
pub fn go(label: &'static str, program: &Path, times: u64, table: &mut Table) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metadata.json");
    std::fs::write(&path, file()).unwrap();
    let output = Command::new(program).arg("time").arg(&path).arg(times.to_string()).output().unwrap();
    assert!(output.status.success(), "interop time: {}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    let times: Vec<f64> = printed.split_whitespace().map(|nanos| nanos.parse().unwrap()).collect();
    note(label, "decode a file", times[0] / 1e3, table);
    note(label, "encode a file", times[1] / 1e3, table);
}

fn note(label: &'static str, what: &str, micros: f64, table: &mut Table) {
    table.add_cost(label, what, "us", micros);
}
