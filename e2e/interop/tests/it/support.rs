//! The Go program, and the questions that tests ask it.

use std::io::Write as _;
use std::path::Path;
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use drakkar_interop::{Program, ProgramError};
use drakkar_metadata::{Metadata, Versions, v1beta1};
use proptest::strategy::{Strategy, ValueTree as _};
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

/// Every version and order of a file.
pub const ORDERS: [&str; 4] = ["v1alpha1", "v1beta1", "v1beta1,v1alpha1", "v1alpha1,v1beta1"];

/// Returns the Go program. If it is unavailable, prints the reason directly to standard error, since the test harness hides
/// the captured output of tests that pass.
pub fn program() -> Option<&'static Program> {
    static PROGRAM: OnceLock<Result<Program, String>> = OnceLock::new();
    built(&PROGRAM, Program::build)
}

/// Returns the Go program for NRI 0.8, likewise.
pub fn nri_0_8() -> Option<&'static Program> {
    static PROGRAM: OnceLock<Result<Program, String>> = OnceLock::new();
    built(&PROGRAM, Program::build_nri_0_8)
}

fn built(
    program: &'static OnceLock<Result<Program, String>>,
    build: fn(&Path) -> Result<Program, ProgramError>,
) -> Option<&'static Program> {
    let built = program.get_or_init(|| match build(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        Ok(program) => Ok(program),
        Err(ProgramError::Unavailable(reason)) => Err(reason),
        Err(error) => panic!("{error}"),
    });
    if let Err(reason) = built {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        std::io::stderr().write_all(format!("{name}: skipped: {reason}\n").as_bytes()).unwrap();
    }
    built.as_ref().ok()
}

/// Returns `count` values of a strategy, the same in each run.
pub fn generated<S: Strategy>(strategy: &S, count: usize) -> Vec<S::Value> {
    let mut runner = TestRunner::deterministic();
    (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

pub fn versions(order: &str) -> Versions {
    order.parse().unwrap()
}

/// The names of versions, for the Go program.
pub fn names(order: &str) -> Value {
    order.split(',').collect::<Vec<_>>().into()
}

/// An object as v1beta1 JSON, for comparisons.
pub fn object(metadata: &Metadata) -> Value {
    let document = v1beta1::DeviceMetadata::from(metadata.clone());
    serde_json::from_slice(&serde_json::to_vec(&document).unwrap()).unwrap()
}

/// A question about a file.
pub fn about_file(file: &[u8], order: &str) -> Value {
    json!({"file": STANDARD.encode(file), "versions": names(order)})
}

/// A question about an object.
pub fn about_object(metadata: &Metadata, order: &str) -> Value {
    json!({"object": object(metadata), "versions": names(order)})
}

/// The file in an answer, as text.
#[track_caller]
pub fn file(answer: &Value) -> String {
    assert_eq!(answer["error"], Value::Null);
    String::from_utf8(STANDARD.decode(answer["file"].as_str().unwrap()).unwrap()).unwrap()
}
