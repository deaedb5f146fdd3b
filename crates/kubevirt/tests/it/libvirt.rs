//! libvirt's own tools on our XML: its schema, its parser, and what it prints.
//!
//! They need `virt-xml-validate`, `xmllint` and `virsh` (Debian packages libvirt-clients and libxml2-utils). Without them
//! the tests say so and pass; with `DRAKKAR_REQUIRE_LIBVIRT=1` in the environment they fail.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use drakkar_kubevirt::Behaviour;
use drakkar_kubevirt::hostdev::{Controller, ControllerModel, HostDev, PciFields, Source};
use drakkar_kubevirt::xml::{self, Form};
use tempfile::TempDir;

use crate::cases::all_conversions;

/// Returns whether the tools are there.
pub(crate) fn has_libvirt() -> bool {
    let is_there = |tool: &str| {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&paths).any(|directory| directory.join(tool).is_file())
    };
    let missing: Vec<&str> =
        ["virt-xml-validate", "xmllint", "virsh"].into_iter().filter(|tool| !is_there(tool)).collect();
    if missing.is_empty() {
        return true;
    }
    let problem = format!(
        "not checked against libvirt, because {} cannot be found; install libvirt-clients and libxml2-utils",
        missing.join(", ")
    );
    let is_required = std::env::var_os("DRAKKAR_REQUIRE_LIBVIRT").is_some_and(|value| value == "1");
    assert!(!is_required, "{problem}");
    println!("{problem}");
    false
}

fn domain(name: &str, devices: &str) -> String {
    format!(
        "<domain type='test'><name>{name}</name><memory unit='KiB'>1048576</memory><vcpu>1</vcpu>\
         <os><type>hvm</type></os><devices>{devices}</devices></domain>"
    )
}

pub(crate) fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

pub(crate) fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Returns the schema's verdict on a document.
pub(crate) fn schema(directory: &Path, document: &str) -> Result<(), String> {
    let file = directory.join("schema.xml");
    fs::write(&file, document).unwrap();
    let output = run(Command::new("virt-xml-validate").arg(&file).arg("domain"));
    if output.status.success() { Ok(()) } else { Err(text(&output)) }
}

/// Defines domains with libvirt's test driver, in one process, and returns what it prints for each.
fn define(directory: &Path, documents: &[String]) -> Vec<String> {
    let mut script = String::new();
    for (number, document) in documents.iter().enumerate() {
        let file = directory.join(format!("{number}.xml"));
        fs::write(&file, document).unwrap();
        script.push_str(&format!("define {}; dumpxml d{number}; undefine d{number}; ", file.display()));
    }
    let output = run(Command::new("virsh").args(["-c", "test:///default", &script]));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let dumps: Vec<String> = printed.split("</domain>").map(str::to_owned).collect();
    assert_eq!(dumps.len(), documents.len() + 1, "virsh: {}", text(&output));
    dumps
}

/// Returns the `<hostdev>` elements of a dump, without indentation.
fn hostdevs(dump: &str) -> String {
    let mut inside = false;
    let mut lines = String::new();
    for line in dump.lines().filter_map(|line| line.strip_prefix("    ")) {
        inside |= line.starts_with("<hostdev");
        if inside {
            lines.push_str(line);
            lines.push('\n');
        }
        inside &= line != "</hostdev>";
    }
    lines
}

/// Debian 12's libvirt knows the display of mediated devices only.
fn has_pci_display(device: &HostDev) -> bool {
    device.display && !device.is_mdev()
}

#[test]
fn the_schema_accepts_the_canonical_form_of_every_case() {
    if !has_libvirt() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let cases = all_conversions(Behaviour::Extended);
    let devices: Vec<&HostDev> =
        cases.iter().flat_map(|(_, devices)| devices).filter(|device| !has_pci_display(device)).collect();
    assert!(devices.len() > 40, "{}", devices.len());
    let all: String = devices.iter().map(|device| xml::write(&[(*device).clone()], Form::Canonical)).collect();
    let Err(problem) = schema(directory.path(), &domain("all", &all)) else { return };
    // The schema's errors do not tell which element is wrong.
    for device in devices {
        let element = xml::write(std::slice::from_ref(device), Form::Canonical);
        assert!(schema(directory.path(), &domain("one", &element)).is_ok(), "{element}\n{problem}");
    }
    panic!("{problem}");
}

#[test]
fn libvirt_prints_the_canonical_form_as_we_write_it() {
    if !has_libvirt() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let cases: Vec<(String, Vec<HostDev>)> = all_conversions(Behaviour::Extended)
        .into_iter()
        .filter(|(_, devices)| !devices.iter().any(has_pci_display))
        .collect();
    for form in [Form::Canonical, Form::Kubevirt] {
        let documents: Vec<String> = cases
            .iter()
            .enumerate()
            .map(|(number, (_, devices))| domain(&format!("d{number}"), &xml::write(devices, form)))
            .collect();
        for ((id, devices), dump) in cases.iter().zip(define(directory.path(), &documents)) {
            assert_eq!(hostdevs(&dump), xml::write(devices, Form::Canonical), "{id} in {form:?}");
        }
    }
}

#[test]
fn the_schema_refuses_kubevirts_form_of_a_pci_device_and_the_parser_accepts_it() {
    if !has_libvirt() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let fields = PciFields::parse("0000:65:00.0", Behaviour::Strict).unwrap();
    let device = [HostDev::new("dra-gpu-g", Source::Pci(fields))];
    let document = domain("d0", &xml::write(&device, Form::Kubevirt));
    assert!(schema(directory.path(), &document).is_err());
    assert!(schema(directory.path(), &domain("d0", &xml::write(&device, Form::Canonical))).is_ok());
    assert_eq!(hostdevs(&define(directory.path(), &[document])[0]), xml::write(&device, Form::Canonical));
}

#[test]
fn what_our_checks_refuse_libvirt_refuses_too() {
    if !has_libvirt() {
        return;
    }
    let directory: TempDir = tempfile::tempdir().unwrap();
    let extended: Vec<String> = all_conversions(Behaviour::Extended).into_iter().map(|(id, _)| id).collect();
    // The alias of Y11 is dropped without an error.
    let refused =
        all_conversions(Behaviour::Strict).into_iter().filter(|(id, _)| !extended.contains(id) && id != "Y11");
    let refused: Vec<(String, Vec<HostDev>)> = refused.collect();
    assert_eq!(refused.len(), 5);
    for (id, devices) in refused {
        let file = directory.path().join("refused.xml");
        fs::write(&file, domain("refused", &xml::write(&devices, Form::Canonical))).unwrap();
        let output = run(Command::new("virsh").args(["-c", "test:///default", "define"]).arg(&file));
        assert!(!output.status.success(), "{id}: {}", text(&output));
    }
}

#[test]
fn the_schema_accepts_expander_buses_and_root_ports() {
    if !has_libvirt() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let controllers = [
        Controller { index: 5, model: ControllerModel::ExpanderBus { bus_number: 254, node: 0 } },
        Controller { index: 6, model: ControllerModel::RootPort { address: PciFields::guest("5", 0) } },
    ];
    let fields = PciFields::parse("0000:65:00.0", Behaviour::Strict).unwrap();
    let mut device = HostDev::new("dra-gpu-g", Source::Pci(fields));
    device.guest_address = Some(PciFields::guest("6", 0));
    for form in [Form::Canonical, Form::Kubevirt] {
        let devices = xml::write_controllers(&controllers, form);
        schema(directory.path(), &domain("d0", &devices)).unwrap();
    }
    let devices = xml::write_controllers(&controllers, Form::Canonical) + &xml::write(&[device], Form::Canonical);
    schema(directory.path(), &domain("d0", &devices)).unwrap();
}
