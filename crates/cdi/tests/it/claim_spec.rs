//! The spec of a claim's devices: a golden file, names, and what is refused.

use drakkar_cdi::{
    ClaimDevices, ContainerEdits, Device, DeviceNode, Hook, MetadataDevice, Mount, Spec, validate_edits,
};
use rstest::rstest;

use crate::support::golden;

const UID: &str = "3f0c1a52-8c1f-4a5e-9d64-0b7a6b2f1c11";

fn devices() -> ClaimDevices {
    ClaimDevices::new("gpu.example.com".parse().unwrap(), UID.parse().unwrap()).unwrap()
}

fn device(name: &str, edits: ContainerEdits) -> Device {
    let name = devices().id(name).unwrap().device.to_string();
    Device { name, container_edits: edits, ..Device::default() }
}

fn edits() -> ContainerEdits {
    ContainerEdits::default()
        .device_node("/dev/gpu0")
        .device_node(DeviceNode::mapped("/dev/gpuctl0", "/dev/gpuctl"))
        .mount(Mount::read_only("/opt/gpu/lib", "/usr/lib/gpu"))
        .mount(Mount::read_write("/var/lib/gpu/cache", "/var/cache/gpu"))
        .env_var("GPU", 0)
        .hook(Hook::new("createContainer", "/usr/bin/gpu-hook", ["--device", "gpu-0"]))
}

#[test]
fn the_file_is_byte_for_byte_the_golden_one() {
    let spec = devices().spec(vec![device("gpu-0", edits()), device("gpu-1", edits().env_var("FAST", true))]).unwrap();
    let golden = golden!("claim_devices");
    assert_eq!(String::from_utf8(spec.to_json()).unwrap(), golden);
    assert_eq!(Spec::parse(golden.as_bytes()).unwrap(), spec);
}

#[test]
fn names_lead_to_the_claim_and_are_never_those_of_metadata() {
    let devices = devices();
    assert_eq!(devices.id("gpu-0").unwrap().to_string(), format!("gpu.example.com/container-edits={UID}_gpu-0"));
    assert_eq!(devices.file_name(), format!("gpu.example.com_container-edits_{UID}.json"));
    assert_eq!(ClaimDevices::from_file_name(&devices.file_name()), Some(devices.clone()));
    assert_eq!(MetadataDevice::from_file_name(&devices.file_name()), None);
    for uid in ["a_container-edits_b", "a_metadata_b_c", UID] {
        let (driver, uid) = ("gpu.example.com".parse().unwrap(), uid.parse().unwrap());
        let metadata = MetadataDevice::new(driver, uid, "gpu".parse().unwrap()).unwrap();
        assert_eq!(ClaimDevices::from_file_name(metadata.file_name()), None);
        let devices = ClaimDevices::new(metadata.driver().clone(), metadata.claim_uid().clone()).unwrap();
        assert_eq!(ClaimDevices::from_file_name(&devices.file_name()), Some(devices.clone()));
        assert_eq!(MetadataDevice::from_file_name(&devices.file_name()), None);
    }
}

#[rstest]
#[case("gpu.example.com_container-edits_.json")]
#[case("gpu.example.com_container-edits_uid")]
#[case("gpu.example.com_devices_uid.json")]
#[case("g_pu_container-edits_uid.json")]
#[case("3d.example.com_container-edits_uid.json")]
#[case("x_container-edits_../uid.json")]
fn a_file_of_another_name_is_not_one_of_ours(#[case] name: &str) {
    assert_eq!(ClaimDevices::from_file_name(name), None);
}

#[test]
fn a_driver_whose_name_is_no_cdi_vendor_is_refused() {
    let error = ClaimDevices::new("3d.example.com".parse().unwrap(), UID.parse().unwrap()).unwrap_err();
    assert!(error.to_string().contains("must start with a letter"), "{error}");
}

#[rstest]
#[case(ContainerEdits::default().mount(Mount::read_only("lib", "/usr/lib")), "containerEdits.mounts[0].hostPath")]
#[case(ContainerEdits::default().mount(Mount::read_only("/lib", "/sys/x")), "containerEdits.mounts[0].containerPath")]
#[case(ContainerEdits::default().env_var("", 1), "containerEdits.env[0]")]
#[case(edits().device_node("dev/gpu"), "containerEdits.deviceNodes[2].path")]
#[case(edits().hook(Hook::new("sometime", "/bin/true", [""; 0])), "containerEdits.hooks[1].hookName")]
fn invalid_edits_are_found_by_their_field(#[case] edits: ContainerEdits, #[case] field: &str) {
    let error = validate_edits(&edits).unwrap_err();
    assert_eq!(error.findings()[0].field, field, "{error}");
    assert!(devices().spec(vec![device("gpu-0", edits)]).is_err());
}
