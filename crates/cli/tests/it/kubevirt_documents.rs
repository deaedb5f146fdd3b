//! Documents of `drakkar kubevirt` as users write them: lists, large files, mistakes; and what the command says about them.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::support::{Container, drakkar};

/// What a run of the command printed.
struct Run {
    code: i32,
    output: String,
    error: String,
}

fn run(arguments: &[&str]) -> Run {
    let output = drakkar().arg("kubevirt").args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code().unwrap(), output: text(output.stdout), error: text(output.stderr) }
}

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn write(&self, name: &str, content: &str) -> String {
        let path: PathBuf = self.0.path().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Runs a command on a document, with further arguments.
    fn run(&self, command: &str, document: &str, arguments: &[&str]) -> Run {
        let file = self.write("vm.yaml", document);
        run(&[&[command, &file], arguments].concat())
    }
}

fn vmi(gpu: &str) -> String {
    format!(
        "{{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {{name: train}}, spec: {{resourceClaims: \
         [{{name: c, resourceClaimName: c}}], domain: {{devices: {{gpus: [{gpu}]}}}}}}}}\n"
    )
}

const GOOD: &str = "{name: g, claimName: c, requestName: r}";

#[test]
fn validate_sees_the_document_as_the_validating_webhook_does() {
    let run = Files::new().run("validate", &vmi("{name: g, claimName: \"\", requestName: \"\"}"), &[]);
    assert_eq!(run.code, 5);
    assert_eq!(run.output.matches("FieldValue").count(), 1, "{}", run.output);
    assert!(run.output.contains("spec.domain.devices.gpus: FieldValueRequired: "), "{}", run.output);
}

#[test]
fn validate_refuses_what_the_schema_forbids_and_in_strict_behaviour_says_nothing_else() {
    let files = Files::new();
    let unknown = vmi("{name: g, claimName: x, requestName: r, colour: red}");
    let default = files.run("validate", &unknown, &[]);
    assert_eq!(default.code, 5);
    let schema = "  spec.domain.devices.gpus.colour in body is a forbidden property\n";
    assert!(default.output.contains(schema), "{}", default.output);
    assert!(default.output.contains("FieldValueInvalid"), "the missing claim too: {}", default.output);
    let strict = files.run("validate", &unknown, &["--strict-kubevirt"]);
    assert_eq!(strict.code, 5);
    assert!(strict.output.ends_with(&format!("VirtualMachineInstance train: refused\n{schema}")), "{}", strict.output);
    let null = files.run("validate", &vmi("{name: g, claimName: null, requestName: r}"), &["--strict-kubevirt"]);
    assert!(null.output.contains("claimName in body must be of type string: \"null\""), "{}", null.output);
    assert!(!null.output.contains("FieldValue"), "{}", null.output);
}

#[test]
fn validate_checks_the_schema_beside_objects_that_are_null() {
    let document =
        "{kind: VirtualMachineInstance, spec: {domain: {devices: null}, resourceClaims: [{name: c, colour: red}]}}";
    for document in [document.to_owned(), document.replace("{devices: null}", "null")] {
        let run = Files::new().run("validate", &document, &["--strict-kubevirt"]);
        assert!(run.output.contains("spec.resourceClaims.colour in body is a forbidden property"), "{}", run.output);
    }
}

#[test]
fn a_device_class_in_a_document_for_kubevirt_is_sent_to_the_command_for_it() {
    let run = Files::new().run("validate", &vmi("{name: g, deviceClassName: gpu.example.com}"), &[]);
    assert_eq!(run.code, 5);
    assert!(run.error.contains("hint: run `drakkar kubevirt claims FILE`"), "{}", run.error);
}

#[test]
fn a_value_of_the_wrong_type_is_named_by_file_object_and_field() {
    let files = Files::new();
    let run = files.run("validate", &vmi("{name: n, claimName: c, requestName: r}"), &[]);
    assert_eq!(run.code, 5);
    let expected = "vm.yaml: VirtualMachineInstance train: spec.domain.devices.gpus[0].name: is the boolean false, must be a \
                    string\n";
    assert!(run.error.contains(expected), "{}", run.error);
    assert!(run.error.contains("hint: put the value in quotes"), "{}", run.error);
    for command in ["explain", "render", "resolve", "domain-xml"] {
        let run = files.run(command, &vmi("null"), &[]);
        let expected = "VirtualMachineInstance train: spec.domain.devices.gpus[0]: is null, must be an object\n";
        assert!(run.error.contains(expected), "{command}: {}", run.error);
        assert!(!run.error.contains("quotes"), "{command}: {}", run.error);
    }
}

#[test]
fn errors_in_yaml_are_one_line_without_the_parsers_options() {
    let run = Files::new().run("validate", "kind: a\nspec: {}\nspec: {}\n", &[]);
    assert_eq!(run.code, 5);
    assert!(run.error.ends_with("vm.yaml: line 3 column 1: the key spec is repeated\n"), "{}", run.error);
}

#[test]
fn lists_of_any_kind_and_depth_are_taken_apart() {
    let of_kind = format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstanceList\nitems:\n- {}",
        vmi(GOOD).replace("apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, ", "")
    );
    let nested = format!("kind: List\nitems:\n- {{kind: List, items: [{}]}}\n- {}", vmi(GOOD).trim(), vmi(GOOD));
    let files = Files::new();
    for (document, machines) in [(of_kind, 1), (nested, 2)] {
        let run = files.run("validate", &document, &[]);
        assert_eq!(run.code, 0, "{}", run.error);
        assert_eq!(run.output.matches("VirtualMachineInstance train: admitted").count(), machines, "{}", run.output);
    }
    let run = files.run("validate", "{kind: List, items: {a: 1}}", &[]);
    assert!(run.code == 5 && run.error.contains("items of the List must be a list"), "{}", run.error);
}

#[test]
fn a_cluster_with_many_machines_is_read_from_a_file_and_from_standard_input() {
    let padding = "x".repeat(4096);
    let machine = vmi(GOOD).replace("name: train", &format!("name: train, annotations: {{a: {padding}}}"));
    let list: String = "kind: List\nitems:\n".chars().chain(format!("- {machine}").repeat(400).chars()).collect();
    assert!(list.len() > 1024 * 1024);
    let files = Files::new();
    let file = files.run("validate", &list, &[]);
    assert_eq!(file.code, 0, "{}", file.error);
    assert_eq!(file.output.lines().count(), 400);
    let input = drakkar().args(["kubevirt", "validate", "-"]).stdin(list).assert().success();
    assert_eq!(input.get_output().stdout.iter().filter(|byte| **byte == b'\n').count(), 400);
}

#[test]
fn a_document_beyond_the_limit_is_refused_with_its_own_text() {
    let files = Files::new();
    let path = files.write("huge.yaml", "");
    let huge = fs::OpenOptions::new().write(true).open(&path).unwrap();
    huge.set_len(64 * 1024 * 1024 + 1).unwrap();
    let run = run(&["validate", &path]);
    assert_eq!(run.code, 5);
    assert!(run.error.ends_with("huge.yaml: more than 64 MiB\n"), "{}", run.error);
}

#[test]
fn claims_names_the_file_and_the_machine() {
    let run = Files::new().run("claims", &vmi("{name: G, deviceClassName: gpu.example.com}"), &[]);
    assert_eq!(run.code, 5);
    let expected = "vm.yaml: VirtualMachineInstance train: spec.domain.devices.gpus[0].name: \"G\" is not a DNS label";
    assert!(run.error.contains(expected), "{}", run.error);
}

#[test]
fn claims_refuses_names_of_attributes_that_kubernetes_refuses() {
    let document = vmi("{name: g, deviceClassName: gpu.example.com}");
    let files = Files::new();
    let wrong = files.run("claims", &document, &["--one-claim", "--same", "foo/bar/baz"]);
    assert_eq!((wrong.code, &*wrong.output), (2, ""));
    assert!(wrong.error.contains("\"foo/bar/baz\" is not the name of an attribute"), "{}", wrong.error);
    assert_eq!(files.run("claims", &document, &["--one-claim", "--same", "numaNode"]).code, 0);
}

#[cfg(feature = "cel")]
#[test]
fn claims_checks_selectors_as_the_api_server_does() {
    let files = Files::new();
    let with = |selector: &str| {
        let document = vmi(&format!("{{name: g, deviceClassName: gpu.example.com, deviceSelector: '{selector}'}}"));
        files.run("claims", &document, &[])
    };
    let broken = with("device.attributes[");
    assert_eq!((broken.code, &*broken.output), (5, ""));
    let field = "VirtualMachineInstance train: spec.domain.devices.gpus[0].deviceSelector: ";
    assert!(broken.error.contains(field), "{}", broken.error);
    let no_bool = with("device.driver");
    assert!(no_bool.error.contains("must evaluate to bool"), "{}", no_bool.error);
    assert_eq!(with("device.attributes[\"gpu.example.com\"].model == \"a100\"").code, 0);
}

#[test]
fn a_cluster_has_one_kubevirt_object() {
    let files = Files::new();
    let kubevirt = "kind: KubeVirt\nspec: {configuration: {developerConfiguration: {featureGates: [HostDevices]}}}\n";
    let one = files.write("kv.yaml", kubevirt);
    let two = files.write("two.yaml", &format!("{kubevirt}---\n{kubevirt}"));
    let wrong = files.write("wrong.yaml", &kubevirt.replace("[HostDevices]", "{}"));
    assert_eq!(files.run("validate", &vmi(GOOD), &["--kubevirt", &one]).code, 0);
    let several = files.run("validate", &vmi(GOOD), &["--kubevirt", &two]);
    assert_eq!(several.code, 2);
    assert!(several.error.contains("two.yaml: 2 KubeVirt objects"), "{}", several.error);
    let wrong = files.run("validate", &vmi(GOOD), &["--kubevirt", &wrong]);
    assert_eq!(wrong.code, 5);
    let field = "spec.configuration.developerConfiguration.featureGates: is an object, must be a list";
    assert!(wrong.error.contains("wrong.yaml: ") && wrong.error.contains(field), "{}", wrong.error);
}

/// What a launcher pod gets is the same in both behaviours.
#[test]
fn render_has_no_flag_without_effect() {
    let files = Files::new();
    assert_eq!(files.run("render", &vmi(GOOD), &[]).code, 0);
    let strict = files.run("render", &vmi(GOOD), &["--strict-kubevirt"]);
    assert_eq!(strict.code, 2);
    assert!(strict.error.contains("unexpected argument '--strict-kubevirt'"), "{}", strict.error);
}

#[test]
fn the_exit_codes_of_documents_say_what_to_do() {
    let files = Files::new();
    let missing = files.0.path().join("missing.yaml");
    let missing = files.run("validate", &vmi(GOOD), &["--kubevirt", missing.to_str().unwrap()]);
    assert_eq!(missing.code, 3, "{}", missing.error);
    let help = String::from_utf8(drakkar().arg("--help").output().unwrap().stdout).unwrap();
    assert!(help.contains("  3  not found: no such file, claim, request, device or attribute\n"), "{help}");
    assert!(help.contains("  5  invalid: broken metadata or document, or a refused VM\n"), "{help}");
}

#[test]
fn a_link_to_a_file_that_is_gone_has_a_remedy() {
    let files = Files::new();
    let link = files.0.path().join("link.json");
    std::os::unix::fs::symlink("gone.json", &link).unwrap();
    let run = run(&["check", link.to_str().unwrap()]);
    assert_eq!(run.code, 3);
    assert!(run.error.contains("hint: the link's target does not exist"), "{}", run.error);
}

#[test]
fn check_of_a_container_does_not_speak_of_standard_input() {
    let container = Container::new();
    let directory = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/c/gpu/gpu.example.com-metadata.json";
    fs::create_dir_all(container.outside(directory)).unwrap();
    let output = container.drakkar(["kubevirt", "check"]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("is a directory, not a file"), "{error}");
    assert!(!error.contains("standard input"), "{error}");
}
