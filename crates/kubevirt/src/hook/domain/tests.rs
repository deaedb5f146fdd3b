use std::fs;
use std::path::Path;

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

/// A domain as virt-launcher gives it to a hook: Go's notation, tabs, one PCI device that KubeVirt has resolved itself.
const DOMAIN: &str = r#"<domain type="kvm" xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0">
	<name>lab_vm</name>
	<memory unit="b">1073741824</memory>
	<!-- kept --><devices>
		<emulator>/usr/bin/qemu-kvm</emulator>
		<controller type="virtio-serial" index="0" model="virtio-non-transitional"></controller>
		<hostdev type="pci" managed="no">
			<source>
				<address type="pci" domain="0x0000" bus="0x65" slot="0x00" function="0x0"></address>
			</source>
			<alias name="ua-dra-gpu-first"></alias>
		</hostdev>
		<console type="pty"></console>
	</devices>
	<qemu:commandline><qemu:arg value="-foo &lt;x&gt;"></qemu:arg></qemu:commandline>
</domain>"#;

/// The devices of a claim `train`, which the VMI refers to by a template, and its VMI.
struct Lab {
    directory: TempDir,
}

impl Lab {
    fn new() -> Self {
        Self { directory: TempDir::new().unwrap() }
    }

    /// Writes the file of a request, with one attribute map per device.
    fn request(self, request: &str, devices: &[Value]) -> Self {
        let base = "var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/train";
        let directory = self.directory.path().join(base).join(request);
        fs::create_dir_all(&directory).unwrap();
        let devices: Vec<Value> = (0..)
            .zip(devices)
            .map(|(number, attributes)| {
                let name = format!("{request}-{number}");
                json!({"driver": "gpu.example.com", "pool": "node", "name": name, "attributes": attributes})
            })
            .collect();
        let document = json!({
            "apiVersion": "metadata.resource.k8s.io/v1alpha1",
            "kind": "DeviceMetadata",
            "metadata": {"name": "train-x", "namespace": "lab", "uid": "u", "generation": 1},
            "podClaimName": "train",
            "requests": [{"name": request, "devices": devices}],
        });
        fs::write(directory.join("gpu.example.com-metadata.json"), document.to_string()).unwrap();
        self
    }

    fn mutate(&self, annotations: &[(&str, &str)], domain: &str) -> Result<String, HookError> {
        self.mutate_vmi(&vmi(annotations, &json!({})), domain)
    }

    fn mutate_vmi(&self, vmi: &VirtualMachineInstance, domain: &str) -> Result<String, HookError> {
        let resolver = Resolver::with_root(self.directory.path()).unwrap();
        let options = HookOptions { host: HostTopology::new(Path::new("/nonexistent")) };
        let changed = mutate_domain(vmi, domain, &resolver, &options)?.into_owned();
        let again = mutate_domain(vmi, &changed, &resolver, &options)?.into_owned();
        assert_eq!(changed, again, "applying the hook to its result changes nothing");
        Ok(changed)
    }
}

fn vmi(annotations: &[(&str, &str)], devices: &Value) -> VirtualMachineInstance {
    let annotations: BTreeMap<&str, &str> = annotations.iter().copied().collect();
    serde_json::from_value(json!({
        "metadata": {"name": "vm", "namespace": "lab", "annotations": annotations},
        "spec": {
            "resourceClaims": [{"name": "train", "resourceClaimTemplateName": "gpus"}],
            "domain": {"devices": devices},
        },
    }))
    .unwrap()
}

fn pci(address: &str) -> Value {
    json!({"resource.kubernetes.io/pciBusID": {"string": address}})
}

fn pci_on_node(address: &str, node: u32) -> Value {
    json!({"resource.kubernetes.io/pciBusID": {"string": address}, "resource.kubernetes.io/numaNode": {"int": node}})
}

fn mdev(uuid: &str) -> Value {
    json!({"mdevUUID": {"string": uuid}})
}

const MODE: &str = " mode=\"subsystem\"";

#[test]
fn without_annotations_only_a_missing_mode_is_added() {
    let changed = Lab::new().mutate(&[], DOMAIN).unwrap();
    assert!(changed.contains(r#"<hostdev mode="subsystem" type="pci" managed="no">"#), "{changed}");
    assert_eq!(changed.replacen(MODE, "", 1), DOMAIN);
}

#[test]
fn a_domain_that_needs_nothing_is_returned_as_it_is() {
    let domain = r#"<domain type='kvm'><devices/></domain>"#;
    let vmi = vmi(&[], &json!({}));
    let changed = mutate_domain(&vmi, domain, &Resolver::new(), &HookOptions::default()).unwrap();
    assert!(matches!(changed, Cow::Borrowed(text) if std::ptr::eq(text, domain)));
}

#[test]
fn a_request_with_several_devices_becomes_several_host_devices() {
    let lab = Lab::new().request("gpus", &[pci("0000:66:00.0"), pci("0000:67:00.0")]);
    let changed = lab.mutate(&[("drakkar.dev/gpus", "gpus=train/gpus")], DOMAIN).unwrap();
    let devices = edit::host_devices(&changed).unwrap();
    let found: Vec<(String, String, bool)> = devices
        .iter()
        .map(|found| (found.device.alias.clone(), found.device.host_pci().unwrap().to_string(), found.has_mode))
        .collect();
    assert_eq!(
        found,
        [
            ("dra-gpu-first".to_owned(), "0000:65:00.0".to_owned(), true),
            ("dra-gpu-gpus-0".to_owned(), "0000:66:00.0".to_owned(), true),
            ("dra-gpu-gpus-1".to_owned(), "0000:67:00.0".to_owned(), true),
        ]
    );
    // What was added is between two bytes of the document; the rest is the document.
    let added = changed.replacen(MODE, "", 1);
    let (before, rest) = DOMAIN.split_at(DOMAIN.find("\n\t\t<console").unwrap());
    assert!(added.starts_with(before) && added.ends_with(rest), "{changed}");
}

#[test]
fn host_devices_and_mediated_devices_are_added_too() {
    let uuid = "b2f4ad2e-11e5-4b39-8a3c-0f2f9a4dc7b1";
    let other = "c2f4ad2e-11e5-4b39-8a3c-0f2f9a4dc7b1";
    let lab = Lab::new().request("vgpus", &[mdev(uuid), mdev(other)]).request("nvme", &[pci("0000:41:00.0")]);
    let annotations = [("drakkar.dev/gpus", "v=train/vgpus"), ("drakkar.dev/host-devices", "nvme=train/nvme")];
    let changed = lab.mutate(&annotations, "<domain><devices></devices></domain>").unwrap();
    let devices: Vec<HostDev> = edit::host_devices(&changed).unwrap().into_iter().map(|found| found.device).collect();
    let aliases: Vec<&str> = devices.iter().map(|device| device.alias.as_str()).collect();
    assert_eq!(aliases, ["dra-hostdevice-nvme", "dra-gpu-v-0", "dra-gpu-v-1"]);
    let displays: Vec<bool> = devices.iter().map(|device| device.display).collect();
    assert_eq!(displays, [false, true, false], "libvirt allows one display");
}

#[test]
fn beside_gpus_of_the_vmi_an_annotated_gpu_has_no_display() {
    let lab = Lab::new().request("vgpus", &[mdev("b2f4ad2e-11e5-4b39-8a3c-0f2f9a4dc7b1")]);
    let own = json!({"gpus": [{"name": "first", "claimName": "train", "requestName": "own"}]});
    let changed = lab.mutate_vmi(&vmi(&[("drakkar.dev/gpus", "v=train/vgpus")], &own), DOMAIN).unwrap();
    assert!(
        changed.contains("ua-dra-gpu-v") && !changed.contains("display") && !changed.contains("ramfb"),
        "{changed}"
    );
}

#[test]
fn a_device_that_libvirt_has_placed_stays_where_it_is() {
    let lab = Lab::new().request("gpus", &[pci("0000:66:00.0"), pci("0000:67:00.0")]);
    let annotations = [("drakkar.dev/gpus", "gpus=train/gpus"), ("drakkar.dev/numa-placement", "preferred")];
    let first = lab.mutate(&annotations, DOMAIN).unwrap();
    // What virt-launcher sends the second time: read back from libvirt, written in Go's notation.
    let address = "<address type=\"pci\" domain=\"0x0000\" bus=\"0x07\" slot=\"0x00\" function=\"0x0\"></address>";
    let second = first.replace("ua-dra-gpu-gpus-0'/>", &format!("ua-dra-gpu-gpus-0'/>{address}"));
    assert_ne!(first, second);
    assert_eq!(lab.mutate(&annotations, &second).unwrap(), second);
}

/// A guest with two NUMA nodes whose memory is on the host's nodes 0 and 1.
fn numa_domain() -> String {
    let numa = "<cpu><numa><cell id=\"0\" cpus=\"0-1\"></cell><cell id=\"1\" cpus=\"2-3\"></cell></numa></cpu>\
                <numatune><memnode cellid=\"0\" mode=\"strict\" nodeset=\"0\"></memnode>\
                <memnode cellid=\"1\" mode=\"strict\" nodeset=\"1\"></memnode></numatune>";
    DOMAIN.replace("\n\t<!-- kept -->", &format!("\n\t{numa}<!-- kept -->"))
}

#[rstest]
#[case("preferred")]
#[case("required")]
fn devices_are_placed_by_the_numa_node_of_their_metadata(#[case] placement: &str) {
    let lab = Lab::new()
        .request("own", &[pci_on_node("0000:65:00.0", 0)])
        .request("gpus", &[pci_on_node("0000:66:00.0", 1), pci_on_node("0000:67:00.0", 0)]);
    let own = json!({"gpus": [{"name": "first", "claimName": "train", "requestName": "own"}]});
    let annotations = [("drakkar.dev/gpus", "gpus=train/gpus"), ("drakkar.dev/numa-placement", placement)];
    let changed = lab.mutate_vmi(&vmi(&annotations, &own), &numa_domain()).unwrap();
    let buses: Vec<(String, String)> = edit::host_devices(&changed)
        .unwrap()
        .into_iter()
        .map(|found| (found.device.alias, found.device.guest_address.unwrap().bus))
        .collect();
    let expected = [("dra-gpu-first", "0x02"), ("dra-gpu-gpus-0", "0x05"), ("dra-gpu-gpus-1", "0x03")];
    assert_eq!(buses, expected.map(|(alias, bus)| (alias.to_owned(), bus.to_owned())), "{changed}");
    assert_eq!(changed.matches("pcie-expander-bus").count(), 2, "{changed}");
    assert_eq!(changed.matches("pcie-root-port").count(), 3, "{changed}");
}

#[test]
fn a_guest_without_numa_nodes_fails_where_placement_is_required_and_starts_where_it_is_preferred() {
    let lab = Lab::new().request("gpus", &[pci_on_node("0000:66:00.0", 1)]);
    let gpus = ("drakkar.dev/gpus", "gpus=train/gpus");
    let preferred = lab.mutate(&[gpus, ("drakkar.dev/numa-placement", "preferred")], DOMAIN).unwrap();
    assert_eq!(preferred, lab.mutate(&[gpus], DOMAIN).unwrap());
    let refused = lab.mutate(&[gpus, ("drakkar.dev/numa-placement", "required")], DOMAIN).unwrap_err().to_string();
    assert!(refused.contains("drakkar.dev/numa-placement") && refused.contains("0000:66:00.0"), "{refused}");
}

#[rstest]
#[case::no_files(&[("drakkar.dev/gpus", "g=train/missing")], "resourceclaimtemplates/train/missing/*-metadata.json")]
#[case::no_files_says_where_they_come_from(&[("drakkar.dev/gpus", "g=train/missing")], "admission policy of the hook")]
#[case::unknown_claim(&[("drakkar.dev/gpus", "g=other/gpus")], "claim \"other\" is not in spec.resourceClaims")]
#[case::same_device_as_kubevirts(&[("drakkar.dev/gpus", "g=train/own")], "ua-dra-gpu-g and ua-dra-gpu-first are the same device")]
#[case::same_device_twice(
    &[("drakkar.dev/gpus", "g=train/gpus"), ("drakkar.dev/host-devices", "h=train/copy")],
    "are the same device"
)]
#[case::same_alias(&[("drakkar.dev/gpus", "g=train/pair, g-0=train/gpus")], "the alias \"dra-gpu-g-0\" is that of another")]
#[case::placement(&[("drakkar.dev/numa-placement", "yes")], "\"yes\" is not a placement")]
#[case::malformed(&[("drakkar.dev/gpus", "g")], "must be NAME=CLAIM/REQUEST")]
fn what_cannot_be_right_is_refused_with_its_reason(#[case] annotations: &[(&str, &str)], #[case] expected: &str) {
    let lab = Lab::new()
        .request("own", &[pci("0000:65:00.0")])
        .request("gpus", &[pci("0000:66:00.0")])
        .request("copy", &[pci("0000:66:00.0")])
        .request("pair", &[pci("0000:68:00.0"), pci("0000:69:00.0")]);
    let refused = lab.mutate(annotations, DOMAIN).unwrap_err().to_string();
    assert!(refused.contains(expected), "{refused}");
}

#[rstest]
#[case("")]
#[case("<network/>")]
#[case("<domain><devices></domain>")]
fn a_text_that_is_no_domain_is_refused(#[case] text: &str) {
    assert!(matches!(Lab::new().mutate(&[], text), Err(HookError::Edit(_))));
}

/// A piece of a `<devices>` element.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("<!-- <hostdev> -->".to_owned()),
        Just("\n\t\t".to_owned()),
        Just("<disk type='file'><source file='/a&amp;b'/></disk>".to_owned()),
        Just("<x:y xmlns:x='urn:z'><![CDATA[</devices>]]></x:y>".to_owned()),
        (0u8..32).prop_map(|slot| format!(
            "<hostdev type='pci' managed=\"no\"><source><address domain='0x0000' bus='0x01' slot='0x{slot:02x}' \
             function='0x0'/></source></hostdev>"
        )),
        (0u8..8).prop_map(|number| format!("<controller type='pci' index='{number}'/>")),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_domain_changes_once_and_only_inside_its_devices(pieces in prop::collection::vec(piece(), 0..12), count in 1u8..6) {
        let devices: Vec<Value> = (0..count).map(|number| pci(&format!("0000:66:{number:02x}.0"))).collect();
        let lab = Lab::new().request("gpus", &devices);
        let before = "<!-- a --><domain>\n<name>&lt;</name><devices>";
        let after = "</devices><seclabel type='none'/>\n</domain>\n";
        let domain = [before, &pieces.concat(), after].concat();
        // `mutate` compares a second application with the first.
        let changed = lab.mutate(&[("drakkar.dev/gpus", "g=train/gpus")], &domain).unwrap();
        prop_assert!(changed.starts_with(before) && changed.ends_with(after), "{}", changed);
        prop_assert_eq!(changed.matches("ua-dra-gpu-g").count(), usize::from(count));
        let found = edit::host_devices(&changed).unwrap();
        prop_assert!(found.iter().all(|found| found.has_mode));
        let aliases: Vec<String> = found.iter().filter(|it| !it.device.alias.is_empty()).map(|it| it.device.alias.clone()).collect();
        let borrowed: Vec<&str> = aliases.iter().map(String::as_str).collect();
        // Without what was added, and without the modes, it is the document that came in, up to white space.
        let removed = edit::remove_hostdevs(&changed, &borrowed).unwrap().replace(MODE, "");
        let plain = |text: &str| text.split_whitespace().collect::<String>();
        prop_assert_eq!(plain(&removed), plain(&domain));
    }
}
