use std::fs;
use std::sync::Arc;

use tempfile::TempDir;

use super::*;
use crate::files::SystemFiles;

fn specs(directory: &TempDir, dev: &str, host_dev: &str) -> Specs {
    let settings = SpecSettings {
        directory: directory.path().to_owned(),
        driver: "pci.drakkar.dev".parse().unwrap(),
        class: "device",
        dev: dev.into(),
        host_dev: host_dev.into(),
    };
    Specs::new(Arc::new(SystemFiles), settings)
}

#[test]
fn a_spec_has_the_nodes_of_each_device() {
    let directory = TempDir::new().unwrap();
    let uid = "0d6a".parse().unwrap();
    let devices = [
        ("pci-0000-65-00-0".to_owned(), vec!["null".to_owned(), "zero".to_owned()]),
        ("pci-0000-66-00-0".to_owned(), Vec::new()),
    ];
    specs(&directory, "/dev", "/dev").write(&uid, &devices).unwrap();
    let path = directory.path().join("pci.drakkar.dev_device_0d6a.json");
    let expected = r#"{"cdiVersion":"0.5.0","kind":"pci.drakkar.dev/device","devices":[{"name":"0d6a_pci-0000-65-00-0","containerEdits":{"deviceNodes":[{"path":"/dev/null","permissions":"rw"},{"path":"/dev/zero","permissions":"rw"}]}}],"containerEdits":{}}"#;
    let compact: String = fs::read_to_string(&path).unwrap().chars().filter(|letter| !letter.is_whitespace()).collect();
    assert_eq!(compact, expected);
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);

    specs(&directory, "/dev", "/host/dev").write(&uid, &devices).unwrap();
    assert!(fs::read_to_string(&path).unwrap().contains("/host/dev/zero"));
    specs(&directory, "/dev", "/dev").write(&uid, &devices[1..]).unwrap();
    assert!(!path.exists(), "a claim without nodes has no spec");
}

#[test]
fn a_link_at_the_place_of_a_spec_is_replaced_and_not_followed() {
    let directory = TempDir::new().unwrap();
    let outside = TempDir::new().unwrap();
    let target = outside.path().join("file");
    fs::write(&target, "untouched").unwrap();
    for name in ["pci.drakkar.dev_device_0d6a.json", ".pci.drakkar.dev_device_0d6a.json.tmp"] {
        std::os::unix::fs::symlink(&target, directory.path().join(name)).unwrap();
    }
    let devices = [("pci-0000-65-00-0".to_owned(), vec!["null".to_owned()])];
    specs(&directory, "/dev", "/dev").write(&"0d6a".parse().unwrap(), &devices).unwrap();
    assert_eq!(fs::read_to_string(&target).unwrap(), "untouched");
    assert!(!directory.path().join("pci.drakkar.dev_device_0d6a.json").is_symlink());
}
