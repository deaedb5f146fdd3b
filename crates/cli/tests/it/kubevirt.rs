//! `drakkar kubevirt`, as a process.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};

use drakkar_metadata::{DeviceAttribute, Versions, encode};
use serde_json::Value;
use snapbox::cmd::cargo_bin;
use snapbox::str;
use tempfile::TempDir;

use crate::support::{Container, claim, device, drakkar, metadata, template};

/// VEP 10's example with two GPUs: a template claim with a whole GPU, and an existing claim with a mediated device.
pub(crate) const TWO_GPUS: &str = r#"
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: two-gpus, namespace: lab}
spec:
  resourceClaims:
  - {name: dyn, resourceClaimTemplateName: pgpu-tmpl}
  - {name: old, resourceClaimName: shared-gpu}
  domain:
    devices:
      gpus:
      - {name: first, claimName: dyn, requestName: t-req}
      - {name: second, claimName: old, requestName: s-req}
"#;

pub(crate) const UUID: &str = "aa618089-8b16-4d01-a136-25a0f3c73123";

/// A launcher's container, and a file with the VMI.
pub(crate) struct Launcher {
    pub(crate) container: Container,
    directory: TempDir,
}

impl Launcher {
    pub(crate) fn new() -> Self {
        let container = Container::new();
        let attributes = |name: &str, value: &str| [(name.to_owned(), DeviceAttribute::from(value))].into();
        let mut gpu = device("gpu.example.com", "gpu-0");
        gpu.attributes = attributes("resource.kubernetes.io/pciBusID", "0000:65:00.0");
        let mut first = metadata("two-gpus-dyn-x7x2k", "1", "t-req", vec![gpu]);
        first.pod_claim_name = Some("dyn".into());
        container.write(&template("dyn", "t-req", "gpu.example.com"), encode(&first, &Versions::default()));
        let mut mediated = device("gpu.example.com", "gpu-1");
        mediated.attributes = attributes("mdevUUID", UUID);
        let second = metadata("shared-gpu", "2", "s-req", vec![mediated]);
        container.write(&claim("shared-gpu", "s-req", "gpu.example.com"), encode(&second, &Versions::default()));
        Self { container, directory: TempDir::new().unwrap() }
    }

    pub(crate) fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn vmi(&self) -> PathBuf {
        self.file("vmi.yaml", TWO_GPUS)
    }

    pub(crate) fn run(&self, command: &str, file: &Path) -> snapbox::cmd::OutputAssert {
        self.container.drakkar(["kubevirt", command, file.to_str().unwrap()]).assert()
    }
}

#[test]
fn domain_xml_prints_the_host_devices_of_the_example() {
    let launcher = Launcher::new();
    launcher.run("domain-xml", &launcher.vmi()).success().stdout_eq(str![[r#"
<hostdev mode='subsystem' type='pci' managed='no'>
  <source>
    <address domain='0x0000' bus='0x65' slot='0x00' function='0x0'/>
  </source>
  <alias name='ua-dra-gpu-first'/>
</hostdev>
<hostdev mode='subsystem' type='mdev' managed='no' model='vfio-pci' display='on' ramfb='on'>
  <source>
    <address uuid='aa618089-8b16-4d01-a136-25a0f3c73123'/>
  </source>
  <alias name='ua-dra-gpu-second'/>
</hostdev>

"#]]);
}

#[test]
fn domain_xml_adds_the_host_devices_to_a_domain() {
    let launcher = Launcher::new();
    let domain =
        launcher.file("domain.xml", "<domain type='kvm'>\n  <devices>\n    <!-- mine -->\n  </devices>\n</domain>\n");
    let vmi = launcher.vmi();
    let arguments = ["kubevirt", "domain-xml", vmi.to_str().unwrap(), "--domain", domain.to_str().unwrap()];
    let output = launcher.container.drakkar(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("<!-- mine -->") && text.ends_with("</domain>\n"), "{text}");
    assert_eq!(text.matches("<hostdev ").count(), 2, "{text}");
    let again = launcher.file("again.xml", &text);
    let arguments = ["kubevirt", "domain-xml", vmi.to_str().unwrap(), "--domain", again.to_str().unwrap()];
    let second = launcher.container.drakkar(arguments).output().unwrap();
    assert_eq!(String::from_utf8(second.stdout).unwrap(), text, "a domain that has the devices stays as it is");
}

#[test]
fn domain_xml_follows_released_kubevirt_byte_for_byte_on_request() {
    let launcher = Launcher::new();
    let vmi = launcher.vmi();
    let output = launcher.container.drakkar(["kubevirt", "domain-xml", vmi.to_str().unwrap(), "--strict-kubevirt"]);
    let text = String::from_utf8(output.output().unwrap().stdout).unwrap();
    let pci = r#"<hostdev type="pci" managed="no"><source><address type="pci" domain="0x0000" bus="0x65" slot="0x00" function="0x0"></address></source><alias name="ua-dra-gpu-first"></alias></hostdev>"#;
    assert!(text.starts_with(pci), "{text}");
}

#[test]
fn resolve_prints_a_table_or_json() {
    let launcher = Launcher::new();
    launcher.run("resolve", &launcher.vmi()).success().stdout_eq(str![[r#"
DEVICE      CLAIM/REQUEST  DRIVER           ADDRESS
gpu first   dyn/t-req      gpu.example.com  0000:65:00.0
gpu second  old/s-req      gpu.example.com  aa618089-8b16-4d01-a136-25a0f3c73123

"#]]);
    let vmi = launcher.vmi();
    let output =
        launcher.container.drakkar(["kubevirt", "resolve", vmi.to_str().unwrap(), "-o", "json"]).output().unwrap();
    let devices: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(devices[0]["pciBusId"], "0000:65:00.0");
    assert_eq!(devices[1]["mdevUuid"], UUID);
}

#[test]
fn explain_follows_each_device_and_its_exit_code_says_how_it_ended() {
    let launcher = Launcher::new();
    let explained = launcher.run("explain", &launcher.vmi()).success().get_output().stdout.clone();
    let text = String::from_utf8(explained).unwrap();
    for line in
        ["claim    dyn: a claim per pod, from template pgpu-tmpl", "PCI 0000:65:00.0", "existing claim shared-gpu"]
    {
        assert!(text.contains(line), "{line}:\n{text}");
    }
    let elsewhere = drakkar().args(["kubevirt", "explain", launcher.vmi().to_str().unwrap()]).assert().code(3);
    let text = String::from_utf8(elsewhere.get_output().stdout.clone()).unwrap();
    assert!(text.contains("this is not a launcher's container"), "{text}");
    let wrong = launcher.file("wrong.yaml", &TWO_GPUS.replace("claimName: dyn", "claimName: none"));
    let text = launcher.run("explain", &wrong).code(5).get_output().stdout.clone();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("none is not in spec.resourceClaims, it has dyn, old"), "{text}");
}

#[test]
fn validate_names_field_and_reason() {
    let launcher = Launcher::new();
    let path = launcher.vmi();
    let admitted = launcher.run("validate", &path).success().get_output().stdout.clone();
    assert!(String::from_utf8(admitted).unwrap().ends_with("VirtualMachineInstance two-gpus: admitted\n"));
    let arguments = ["kubevirt", "validate", path.to_str().unwrap(), "--disable-feature-gate", "GPUsWithDRA"];
    let output = drakkar().args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("spec.domain.devices.gpus: FieldValueInvalid: "), "{text}");
    let kubevirt = launcher.file(
        "kubevirt.yaml",
        "kind: List\nitems:\n- kind: KubeVirt\n  spec: {configuration: {developerConfiguration: {disabledFeatureGates: [GPUsWithDRA]}}}\n",
    );
    let arguments = ["kubevirt", "validate", path.to_str().unwrap(), "--kubevirt", kubevirt.to_str().unwrap()];
    drakkar().args(arguments).assert().code(5);
}

#[test]
fn render_prints_the_claims_of_the_launcher_pod() {
    let launcher = Launcher::new();
    launcher.run("render", &launcher.vmi()).success().stdout_eq(str![[r#"
resourceClaims:
- name: dyn
  resourceClaimTemplateName: pgpu-tmpl
- name: old
  resourceClaimName: shared-gpu
claims:
- name: dyn
  request: t-req
- name: old
  request: s-req
memoryOverhead: 1073741824
networkInfo: false

"#]]);
}

#[test]
fn claims_prints_what_kubectl_can_apply_and_kubevirt_admits() {
    let launcher = Launcher::new();
    let vm = launcher.file(
        "vm.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\n---\n\
         apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: train}\nspec:\n  template:\n    spec:\n      domain:\n        \
         devices:\n          gpus:\n          - {name: g0, deviceClassName: gpu.example.com}\n",
    );
    let output = launcher.run("claims", &vm).success().get_output().stdout.clone();
    let text = String::from_utf8(output).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let kinds: Vec<&str> = documents.iter().map(|document| document["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["ConfigMap", "ResourceClaimTemplate", "VirtualMachine"]);
    let generated = launcher.file("generated.yaml", &text);
    launcher.run("validate", &generated).success();
    let wrong = launcher.run("claims", &launcher.vmi()).code(5).get_output().stderr.clone();
    assert!(String::from_utf8(wrong).unwrap().contains("no device has a deviceClassName"));
}

#[test]
fn check_reads_the_files_of_a_container_or_those_named() {
    let launcher = Launcher::new();
    let output = launcher.container.drakkar(["kubevirt", "check"]).assert().success().get_output().stdout.clone();
    let text = String::from_utf8(output).unwrap();
    assert!(text.contains("/dyn/t-req/gpu.example.com-metadata.json: ok (pci 0000:65:00.0)"), "{text}");
    assert!(text.contains(&format!("ok (mdev {UUID})")), "{text}");
    let broken = launcher.file("broken.json", "{}");
    drakkar().args(["kubevirt", "check", broken.to_str().unwrap()]).assert().code(5);
    drakkar()
        .args(["kubevirt", "check", "--driver", "other.example.com"])
        .env("DRAKKAR_ROOT", launcher.container.root())
        .assert()
        .code(3);
}

#[test]
fn a_file_without_a_virtual_machine_says_what_it_has() {
    let launcher = Launcher::new();
    let pod = launcher.file("pod.yaml", "kind: Pod\n");
    let error = launcher.run("resolve", &pod).code(5).get_output().stderr.clone();
    let error = String::from_utf8(error).unwrap();
    assert!(error.contains("no VirtualMachine or VirtualMachineInstance, only Pod"), "{error}");
}

/// A service as a process. Ends with the test.
struct Service {
    child: Child,
    log: BufReader<std::process::ChildStderr>,
}

impl Service {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Process::new(cargo_bin!("drakkar"))
            .args(arguments)
            .env_remove("NO_COLOR")
            .env_remove("DRAKKAR_ROOT")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        Self { child, log }
    }

    /// Reads the log up to a line with a text.
    fn wait_for(&mut self, text: &str) -> String {
        let mut line = String::new();
        while self.log.read_line(&mut line).unwrap() > 0 {
            // Not a terminal.
            assert!(!line.contains('\x1b'), "{line:?}");
            if line.contains(text) {
                return line;
            }
            line.clear();
        }
        panic!("the service ended without {text:?}: {:?}", self.child.wait());
    }

    /// Sends SIGTERM and returns whether the service then ends with success.
    fn stop(mut self) -> bool {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let mut rest = String::new();
        self.log.read_to_string(&mut rest).unwrap();
        self.child.wait().unwrap().success()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Fails if it has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_hook_serves_its_socket_until_it_is_stopped() {
    let directory = TempDir::new().unwrap();
    let socket = directory.path().join("hook.sock");
    let mut hook = Service::start(&["kubevirt", "hook", "--socket", socket.to_str().unwrap()]);
    hook.wait_for("hook serving");
    std::os::unix::net::UnixStream::connect(&socket).unwrap();
    assert!(hook.stop());
    assert!(!socket.exists(), "the socket is removed");
}

#[test]
fn the_webhook_serves_until_it_is_stopped_and_names_a_missing_certificate() {
    let directory = TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let arguments = |certificate: &str, key: &str| {
        ["kubevirt", "webhook", "--listen", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key]
            .map(str::to_owned)
    };
    let missing = drakkar().args(arguments(&path("no.crt"), &path("no.key"))).assert().code(1);
    let error = String::from_utf8(missing.get_output().stderr.clone()).unwrap();
    assert!(error.contains("no.crt"), "{error}");
    let generated = rcgen::generate_simple_self_signed(["webhook.lab.svc".to_owned()]).unwrap();
    fs::write(path("tls.crt"), generated.cert.pem()).unwrap();
    fs::write(path("tls.key"), generated.signing_key.serialize_pem()).unwrap();
    let arguments = arguments(&path("tls.crt"), &path("tls.key"));
    let mut webhook = Service::start(&arguments.each_ref().map(String::as_str));
    let line = webhook.wait_for("webhook serving");
    let address = line.split("address=").nth(1).unwrap().trim();
    std::net::TcpStream::connect(address).unwrap();
    assert!(webhook.stop());
}

/// A certificate with its key in a directory, and the arguments of a webhook that uses them.
fn webhook_arguments(directory: &Path) -> Vec<String> {
    let generated = rcgen::generate_simple_self_signed(["webhook.lab.svc".to_owned()]).unwrap();
    fs::write(directory.join("tls.crt"), generated.cert.pem()).unwrap();
    fs::write(directory.join("tls.key"), generated.signing_key.serialize_pem()).unwrap();
    let file = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    let certificate = ["--tls-cert".to_owned(), file("tls.crt"), "--tls-key".to_owned(), file("tls.key")];
    ["kubevirt", "webhook", "--listen", "127.0.0.1:0"].map(str::to_owned).into_iter().chain(certificate).collect()
}

/// As Kubernetes mounts a `ConfigMap`: `kubevirt.yaml -> ..data/kubevirt.yaml`, and a rename over `..data`.
#[test]
fn the_webhook_follows_the_kubevirt_object_and_keeps_the_last_good_one() {
    let directory = TempDir::new().unwrap();
    let mount = directory.path().join("kubevirt");
    fs::create_dir(&mount).unwrap();
    let mut version = 0;
    let mut replace = |content: &str| {
        version += 1;
        let data = mount.join(format!("..{version}"));
        fs::create_dir(&data).unwrap();
        fs::write(data.join("kubevirt.yaml"), content).unwrap();
        std::os::unix::fs::symlink(&data, mount.join("..data_tmp")).unwrap();
        fs::rename(mount.join("..data_tmp"), mount.join("..data")).unwrap();
    };
    let list = |gates: &str| {
        format!(
            "apiVersion: v1\nkind: List\nitems:\n- apiVersion: kubevirt.io/v1\n  kind: KubeVirt\n  spec:\n    \
             configuration: {{developerConfiguration: {{featureGates: [{gates}], disabledFeatureGates: \
             [GPUsWithDRA, HostDevicesWithDRA]}}}}\n"
        )
    };
    replace(&list("HostDevices"));
    std::os::unix::fs::symlink("..data/kubevirt.yaml", mount.join("kubevirt.yaml")).unwrap();
    let mut arguments = webhook_arguments(directory.path());
    arguments.extend(["--kubevirt".to_owned(), mount.join("kubevirt.yaml").to_str().unwrap().to_owned()]);
    let arguments: Vec<&str> = arguments.iter().map(|argument| &**argument).collect();
    let mut webhook = Service::start(&arguments);
    let known = webhook.wait_for("feature gates known");
    assert!(known.contains("gates=\"HostDevices\""), "{known}");
    webhook.wait_for("webhook serving");

    replace(&list("HostDevices, NetworkDevicesWithDRA"));
    let replaced = webhook.wait_for("KubeVirt object replaced");
    assert!(replaced.contains("gates=\"NetworkDevicesWithDRA,HostDevices\""), "{replaced}");
    replace("kind: Pod\n");
    let kept = webhook.wait_for("KubeVirt object not replaced, the current one stays");
    assert!(kept.contains("kubevirt.yaml") && kept.contains("Pod"), "{kept}");
    replace(&list("Sidecar"));
    let replaced = webhook.wait_for("KubeVirt object replaced");
    assert!(replaced.contains("gates=\"Sidecar\""), "{replaced}");
    assert!(webhook.stop());
}

#[test]
fn the_webhook_says_that_it_does_not_know_the_gates() {
    let directory = TempDir::new().unwrap();
    let arguments = webhook_arguments(directory.path());
    let mut arguments: Vec<&str> = arguments.iter().map(|argument| &**argument).collect();
    let mut webhook = Service::start(&arguments);
    webhook.wait_for("feature gates unknown");
    assert!(webhook.stop());
    arguments.extend(["--feature-gate", "HostDevices"]);
    let mut webhook = Service::start(&arguments);
    webhook.wait_for("feature gates known");
    assert!(webhook.stop());
}

#[test]
fn the_webhook_refuses_a_certificate_that_is_a_fifo_and_does_not_hang() {
    let directory = TempDir::new().unwrap();
    let arguments = webhook_arguments(directory.path());
    let certificate = directory.path().join("tls.crt");
    fs::remove_file(&certificate).unwrap();
    assert!(Process::new("mkfifo").arg(&certificate).status().unwrap().success());
    let refused = drakkar().args(arguments).timeout(std::time::Duration::from_secs(60)).assert().code(1);
    let error = String::from_utf8(refused.get_output().stderr.clone()).unwrap();
    assert!(error.contains("tls.crt: is ") && error.contains("not a file"), "{error}");
}
