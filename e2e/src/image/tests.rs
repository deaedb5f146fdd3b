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
fn the_same_program_gives_the_same_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let this = std::env::current_exe().unwrap();
    let make = |name: &str| {
        let output = directory.path().join(name);
        Image::new("localhost/this:e2e", &this).unwrap().write(&output).unwrap();
        std::fs::read(output).unwrap()
    };
    assert!(make("one.tar") == make("other.tar"));
}

#[test]
fn a_file_that_is_not_a_program_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    std::fs::write(&script, "#!/bin/sh\n").unwrap();
    let error = Image::new("localhost/script:e2e", &script).unwrap_err().to_string();
    assert!(error.contains("script: not a program"), "{error}");
}
