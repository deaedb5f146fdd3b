use std::collections::BTreeMap;
use std::io::Read;

use super::*;

/// The files of an archive.
fn unpack(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut archive = tar::Archive::new(archive);
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        assert_eq!(entry.header().mtime().unwrap(), 0);
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        (entry.path().unwrap().display().to_string(), content)
    });
    entries.collect()
}

fn blob<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Value) -> &'a [u8] {
    let digest = descriptor["digest"].as_str().unwrap();
    let content = &files[&format!("blobs/{}", digest.replace(':', "/"))];
    let hash: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digest, format!("sha256:{hash}"));
    assert_eq!(descriptor["size"], content.len());
    content
}

#[test]
fn an_image_resolves_from_its_name_to_its_program() {
    let directory = tempfile::tempdir().unwrap();
    let this = std::env::current_exe().unwrap();
    let output = directory.path().join("image.tar");
    Image::new("localhost/this:e2e", &this).unwrap().write(&output).unwrap();

    let files = unpack(&std::fs::read(&output).unwrap());
    assert_eq!(files["oci-layout"], br#"{"imageLayoutVersion":"1.0.0"}"#);
    let index: Value = serde_json::from_slice(&files["index.json"]).unwrap();
    assert_eq!(index["manifests"][0]["annotations"]["io.containerd.image.name"], "localhost/this:e2e");
    let manifest: Value = serde_json::from_slice(blob(&files, &index["manifests"][0])).unwrap();
    let config: Value = serde_json::from_slice(blob(&files, &manifest["config"])).unwrap();
    assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);

    let layer = unpack(blob(&files, &manifest["layers"][0]));
    let entrypoint = config["config"]["Entrypoint"][0].as_str().unwrap();
    assert_eq!(layer[entrypoint.trim_start_matches('/')], std::fs::read(&this).unwrap());
    assert!(layer.keys().any(|path| path.contains("libc.so")), "{:?}", layer.keys());
}

#[test]
fn the_same_program_gives_the_same_bytes_and_the_same_digest() {
    let directory = tempfile::tempdir().unwrap();
    let this = std::env::current_exe().unwrap();
    let make = |name: &str, labels: [&str; 2]| {
        // A copy with its own time, in a directory of its own.
        let program = directory.path().join(name).join("this");
        std::fs::create_dir(program.parent().unwrap()).unwrap();
        std::fs::copy(&this, &program).unwrap();
        let output = directory.path().join(format!("{name}.tar"));
        let image = Image::new("localhost/this:e2e", &program).unwrap();
        let image = labels.into_iter().fold(image, |image, label| image.label(label, "value"));
        let digest = image.with_file(Path::new("/sbom.json"), b"{}").unwrap().write(&output).unwrap();
        (digest, std::fs::read(output).unwrap())
    };
    let one = make("one", ["a", "b"]);
    assert!(one == make("other", ["b", "a"]));
    assert!(one.0 != make("labels", ["a", "c"]).0);
}

#[test]
fn labels_user_and_files_are_in_the_image_and_the_digest_is_that_of_its_manifest() {
    let directory = tempfile::tempdir().unwrap();
    let this = std::env::current_exe().unwrap();
    let output = directory.path().join("image.tar");
    let image = Image::new("localhost/this:e2e", &this).unwrap();
    let image = image.label("org.opencontainers.image.version", "1").user("65532:65532");
    let digest = image.with_file(Path::new("/usr/share/doc/this/LICENSE"), b"free").unwrap().write(&output).unwrap();

    let files = unpack(&std::fs::read(&output).unwrap());
    let index: Value = serde_json::from_slice(&files["index.json"]).unwrap();
    assert_eq!(index["manifests"][0]["digest"], digest);
    let manifest: Value = serde_json::from_slice(blob(&files, &index["manifests"][0])).unwrap();
    let config: Value = serde_json::from_slice(blob(&files, &manifest["config"])).unwrap();
    assert_eq!(config["config"]["User"], "65532:65532");
    assert_eq!(config["config"]["Labels"], json!({"org.opencontainers.image.version": "1"}));
    let layer = unpack(blob(&files, &manifest["layers"][0]));
    assert_eq!(layer["usr/share/doc/this/LICENSE"], b"free");
}

#[test]
fn a_file_that_is_not_a_program_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    std::fs::write(&script, "#!/bin/sh\n").unwrap();
    let error = Image::new("localhost/script:e2e", &script).unwrap_err().to_string();
    assert!(error.contains("script: not a program"), "{error}");
}
