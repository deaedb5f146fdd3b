//! The messages of `drakkar-nri-api` are those of the released `.proto` files.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use protox::prost_reflect::{DescriptorPool, EnumDescriptor, MessageDescriptor};

use crate::schema::directory;

/// What is not compared of ttrpc: a message that nothing uses, and `Status`.
const NOT_OURS: [&str; 3] = ["ttrpc.StringList", "message Status", "Status."];

/// Describes all messages, enums and services of a file, a line each, in order.
fn describe(pool: &DescriptorPool, package: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for message in pool.all_messages().filter(|message| message.full_name().starts_with(package)) {
        lines.extend(fields(&message));
    }
    for one in pool.all_enums().filter(|one| one.full_name().starts_with(package)) {
        lines.extend(values(&one));
    }
    for service in pool.services().filter(|service| service.full_name().starts_with(package)) {
        lines.extend(service.methods().map(|method| {
            format!("{}({}) -> {}", method.full_name(), method.input().full_name(), method.output().full_name())
        }));
    }
    lines.sort();
    lines
}

fn fields(message: &MessageDescriptor) -> Vec<String> {
    let described = message.fields().map(|field| {
        format!("{} = {}: {:?} {:?}", field.full_name(), field.number(), field.cardinality(), field.kind())
    });
    described.chain([format!("message {}", message.full_name())]).collect()
}

fn values(one: &EnumDescriptor) -> Vec<String> {
    one.values().map(|value| format!("{}: {} = {}", one.full_name(), value.full_name(), value.number())).collect()
}

fn compile(file: &str, include: &Path) -> DescriptorPool {
    let set = protox::compile([file], [include]).unwrap();
    DescriptorPool::from_file_descriptor_set(set).unwrap()
}

fn ours(file: &str) -> DescriptorPool {
    compile(file, &Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/nri-api/proto"))
}

/// The directory of a Go module, or `None` with a message.
fn released(module: &str) -> Option<PathBuf> {
    directory(module)
        .map(PathBuf::from)
        .map_err(|reason| {
            std::io::stderr().write_all(format!("nri_messages: skipped: {reason}\n").as_bytes()).unwrap();
        })
        .ok()
}

#[test]
fn the_messages_of_nri_are_those_of_the_release() {
    let Some(module) = released("github.com/containerd/nri") else { return };
    let released = compile("pkg/api/api.proto", &module);
    let released = describe(&released, "nri.pkg.api.v1alpha1");
    assert!(released.len() > 300, "{}", released.len());
    assert_eq!(describe(&ours("v1alpha1.proto"), "nri.pkg.api.v1alpha1"), released);
    let version = format!("@v{}", drakkar_nri_api::NRI_VERSION);
    assert!(module.to_string_lossy().ends_with(&version), "{} is not {version}", module.display());
}

/// `Status` is google.rpc's, of which ttrpc's own file has a stub.
#[test]
fn the_messages_of_ttrpc_are_those_of_the_release() {
    let Some(module) = released("github.com/containerd/ttrpc") else { return };
    let lines = |pool: &DescriptorPool| -> Vec<String> {
        let lines = describe(pool, "ttrpc.").into_iter().map(|line| line.replace("ttrpc.Status", "Status"));
        lines.filter(|line| !NOT_OURS.iter().any(|other| line.contains(other))).collect()
    };
    let released = lines(&compile("request.proto", &module));
    assert!(released.len() > 8, "{released:?}");
    assert_eq!(lines(&ours("ttrpc.proto")), released);
}
