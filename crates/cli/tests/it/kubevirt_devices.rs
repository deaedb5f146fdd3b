//! `drakkar kubevirt explain`, `resolve` and `domain-xml`: what they say where released KubeVirt or a driver fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use drakkar_metadata::{Device, DeviceAttribute, Metadata, Versions, encode};

use crate::kubevirt::{Launcher, TWO_GPUS, UUID};
use crate::support::{device, metadata, template};

const PCI: &str = "resource.kubernetes.io/pciBusID";

impl Launcher {
    /// Runs a command on a document.
    fn output(&self, command: &str, document: &Path, options: &[&str]) -> Output {
        let mut arguments = vec!["kubevirt", command, document.to_str().unwrap()];
        arguments.extend(options);
        self.container.drakkar(arguments).output().unwrap()
    }

    /// Replaces the devices of the first GPU's request.
    fn first_devices(&self, devices: Vec<Device>) -> PathBuf {
        let mut first = metadata("two-gpus-dyn-x7x2k", "1", "t-req", devices);
        first.pod_claim_name = Some("dyn".into());
        self.first_metadata(&first)
    }

    fn first_metadata(&self, metadata: &Metadata) -> PathBuf {
        let file = template("dyn", "t-req", "gpu.example.com");
        self.container.write(&file, encode(metadata, &Versions::default()))
    }

    /// A VMI with one GPU from the first request.
    fn one_gpu(&self) -> PathBuf {
        let lines: Vec<&str> = TWO_GPUS.lines().filter(|line| !line.contains("old")).collect();
        self.file("one.yaml", &lines.join("\n"))
    }
}

fn gpu(name: &str, attribute: &str, value: &str) -> Device {
    let mut gpu = device("gpu.example.com", name);
    gpu.attributes = [(attribute.to_owned(), DeviceAttribute::from(value))].into();
    gpu
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_domain_gets_devices_in_kubevirts_form_on_request() {
    let launcher = Launcher::new();
    let domain = launcher.file("domain.xml", "<domain>\n  <devices>\n    <emulator/>\n  </devices>\n</domain>\n");
    let options = ["--strict-kubevirt", "--domain", domain.to_str().unwrap()];
    let text = stdout(&launcher.output("domain-xml", &launcher.vmi(), &options));
    let pci = r#"    <hostdev type="pci" managed="no"><source><address type="pci" domain="0x0000" bus="0x65" slot="0x00" function="0x0"></address></source><alias name="ua-dra-gpu-first"></alias></hostdev>"#;
    assert!(text.lines().any(|line| line == pci), "{text}");
    let again = launcher.file("again.xml", &text);
    let options = ["--strict-kubevirt", "--domain", again.to_str().unwrap()];
    assert_eq!(stdout(&launcher.output("domain-xml", &launcher.vmi(), &options)), text);
}

#[test]
fn explain_agrees_with_domain_xml_about_two_entries_with_one_device() {
    let launcher = Launcher::new();
    launcher.first_devices(vec![gpu("gpu-9", "mdevUUID", UUID)]);
    assert_eq!(code(&launcher.output("domain-xml", &launcher.vmi(), &[])), 5);
    let explained = launcher.output("explain", &launcher.vmi(), &[]);
    assert_eq!(code(&explained), 5);
    let text = stdout(&explained);
    assert!(text.contains("\nall devices\n") && text.contains("are both the mediated device"), "{text}");
}

#[test]
fn explain_answers_as_validate_does() {
    let launcher = Launcher::new();
    let unused = TWO_GPUS.replace("  - {name: old,", "  - {name: spare, resourceClaimName: spare}\n  - {name: old,");
    let unused = launcher.file("unused.yaml", &unused);
    assert!(stdout(&launcher.output("explain", &unused, &[])).contains("warning: spec.resourceClaims[1]"));
    let strict = stdout(&launcher.output("explain", &unused, &["--strict-kubevirt"]));
    assert!(!strict.contains("warning"), "released KubeVirt has no warnings: {strict}");
    let unknown = launcher.file("unknown.yaml", &TWO_GPUS.replace("{name: first,", "{name: first, colour: red,"));
    let explained = launcher.output("explain", &unknown, &[]);
    assert_eq!(code(&explained), 5);
    assert!(stdout(&explained).contains("colour"), "{}", stdout(&explained));
}

/// What each command says about several devices, newer metadata and alternatives.
#[test]
fn what_released_kubevirt_cannot_do_is_done_with_a_note() {
    let launcher = Launcher::new();
    let vmi = launcher.one_gpu();
    let assert_noted = |expected: &str| {
        for command in ["resolve", "domain-xml"] {
            let output = launcher.output(command, &vmi, &[]);
            assert_eq!(code(&output), 0, "{output:?}");
            let text = stderr(&output);
            let line = text.lines().find(|line| line.contains("KubeVirt 1.9 fails here: GPU \"first\": "));
            assert!(line.is_some_and(|line| line.contains(expected)), "{command}: {text}");
            assert_ne!(code(&launcher.output(command, &vmi, &["--strict-kubevirt"])), 0);
        }
    };
    let file = launcher.first_devices(vec![gpu("gpu-0", PCI, "0000:65:00.0"), gpu("gpu-1", PCI, "0000:66:00.0")]);
    assert_noted("has 2 devices");
    launcher.first_metadata(&metadata("c", "1", "t-req/a", vec![gpu("gpu-0", PCI, "0000:65:00.0")]));
    assert_noted("is not in the metadata");
    launcher.first_devices(vec![gpu("gpu-0", PCI, "0000:65:00.0")]);
    let quiet = launcher.output("resolve", &vmi, &[]);
    assert_eq!(stderr(&quiet), "", "what KubeVirt can do needs no note");
    fs::write(&file, fs::read_to_string(&file).unwrap().replace("v1alpha1", "v1beta1")).unwrap();
    assert_noted("no compatible metadata version");
}

#[test]
fn resolve_fails_without_an_address_that_the_kind_can_use() {
    let launcher = Launcher::new();
    let vmi = launcher.one_gpu();
    for options in [&[][..], &["--strict-kubevirt"]] {
        launcher.first_devices(vec![device("gpu.example.com", "gpu-0")]);
        let output = launcher.output("resolve", &vmi, options);
        assert_eq!(code(&output), 5);
        let text = stderr(&output);
        assert!(text.contains("GPU \"first\": ") && text.contains("has no mdevUUID or"), "{text}");
        launcher.first_devices(vec![gpu("gpu-0", PCI, "zz")]);
        let output = launcher.output("resolve", &vmi, options);
        assert_eq!(code(&output), 5);
        assert!(stderr(&output).contains("\"zz\" is not a PCI address"), "{}", stderr(&output));
    }
    launcher.first_devices(vec![gpu("gpu-0", "mdevUUID", UUID)]);
    let network = launcher.file(
        "network.yaml",
        "kind: VirtualMachineInstance\nmetadata: {name: v}\nspec:\n  \
         resourceClaims: [{name: dyn, resourceClaimTemplateName: t}]\n  \
         networks: [{name: nic, resourceClaim: {claimName: dyn, requestName: t-req}}]\n  \
         domain: {devices: {interfaces: [{name: nic, sriov: {}}]}}\n",
    );
    let output = launcher.output("resolve", &network, &[]);
    assert_eq!(code(&output), 5);
    assert!(stderr(&output).contains("interface \"nic\": "), "{}", stderr(&output));
}

#[test]
fn exit_codes_of_a_link_to_nothing_and_of_a_loop_are_the_same_everywhere() {
    let launcher = Launcher::new();
    let vmi = launcher.one_gpu();
    let file = launcher.first_devices(vec![gpu("gpu-0", PCI, "0000:65:00.0")]);
    for (target, expected) in [("/nowhere".as_ref(), 3), (file.file_name().unwrap().as_ref() as &Path, 1)] {
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(target, &file).unwrap();
        for command in ["resolve", "domain-xml", "explain"] {
            assert_eq!(code(&launcher.output(command, &vmi, &[])), expected, "{command} {target:?}");
        }
        let text = stderr(&launcher.output("resolve", &vmi, &[]));
        assert!(text.contains("GPU \"first\": ") && text.contains("hint: the "), "{text}");
    }
}

#[test]
fn newlines_of_a_driver_do_not_make_lines_of_explain() {
    let launcher = Launcher::new();
    launcher.first_devices(vec![gpu("gpu-0\n  xml      forged", PCI, "0000:65:00.0")]);
    let text = stdout(&launcher.output("explain", &launcher.one_gpu(), &[]));
    assert!(text.contains("gpu-0\\n  xml      forged") && !text.contains("\n  xml      forged"), "{text}");
}

#[test]
fn numa_placement_that_needs_the_domain_is_not_skipped_silently() {
    let launcher = Launcher::new();
    let vmi = TWO_GPUS.replace("  domain:\n", "  domain:\n    cpu: {dedicatedCpuPlacement: true}\n");
    let vmi = launcher.file("numa.yaml", &vmi);
    let output = launcher.output("domain-xml", &vmi, &["--feature-gate", "PCINUMAAwareTopology"]);
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(stderr(&output).contains("use --domain FILE"), "{}", stderr(&output));
    assert_eq!(stderr(&launcher.output("domain-xml", &vmi, &[])), "");
}

#[test]
fn devices_of_annotations_are_listed_with_the_hook_that_they_need() {
    let launcher = Launcher::new();
    launcher.first_devices(vec![gpu("gpu-0", PCI, "0000:65:00.0"), gpu("gpu-1", PCI, "0000:66:00.0")]);
    let vm = launcher.file(
        "vm.yaml",
        "kind: VirtualMachine\nmetadata: {name: trainer}\nspec:\n  template:\n    metadata:\n      annotations:\n        \
         drakkar.dev/gpus: all=dyn/t-req\n    spec:\n      \
         resourceClaims: [{name: dyn, resourceClaimTemplateName: t}]\n      domain: {devices: {}}\n",
    );
    let resolved = launcher.output("resolve", &vm, &[]);
    assert_eq!(stdout(&resolved).matches("gpu all").count(), 2, "{resolved:?}");
    assert!(stderr(&resolved).contains("drakkar.dev/gpus: KubeVirt 1.9 needs the hook"), "{resolved:?}");
    let json = stdout(&launcher.output("resolve", &vm, &["-o", "json"]));
    assert!(json.contains(r#""annotation": "drakkar.dev/gpus""#), "{json}");
    let explained = launcher.output("explain", &vm, &[]);
    let text = stdout(&explained);
    assert_eq!(code(&explained), 0, "{text}");
    assert!(text.contains("\ngpu all\n") && text.contains("needs the hook"), "{text}");
    let domain = launcher.file("domain.xml", "<domain><devices/></domain>");
    let plain = stdout(&launcher.output("domain-xml", &vm, &[]));
    let edited = stdout(&launcher.output("domain-xml", &vm, &["--domain", domain.to_str().unwrap()]));
    for text in [plain, edited] {
        assert!(text.contains("ua-dra-gpu-all-0") && text.contains("ua-dra-gpu-all-1"), "{text}");
    }
    let strict = launcher.output("domain-xml", &vm, &["--strict-kubevirt"]);
    assert_eq!(stdout(&strict), "");
    assert!(stderr(&strict).contains("KubeVirt 1.9 does not read annotation"), "{strict:?}");
}
