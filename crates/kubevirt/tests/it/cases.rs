//! The conformance rows: R (resolution), X (host devices), E (environment variables), T (PCI text), and our own S and Y.
//!
//! The inputs are data, because KubeVirt's own code gets the same ones. In `files`, a path that ends with a slash is a
//! directory. An expectation is KubeVirt's (`strict`), and applies to both behaviours unless the case has `extended`.

use std::collections::BTreeMap;

use drakkar_kubevirt::Behaviour;
use drakkar_kubevirt::device_plugin::{AddressPool, Environment, ResourceKind};
use drakkar_kubevirt::hostdev::{self, HostDev, Options, PciFields};
use drakkar_kubevirt::resolve::Resolver;
use drakkar_kubevirt::vmi::{ClaimRequest, VirtualMachineInstance};
use drakkar_kubevirt::xml::{self, Form};
use rstest::rstest;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;

use crate::tree::released_tree;

const RESOLUTION: &str = include_str!("../../testdata/cases/resolution.json");
const HOSTDEV: &str = include_str!("../../testdata/cases/hostdev.json");
const ENVIRONMENT: &str = include_str!("../../testdata/cases/environment.json");
const PCI_TEXT: &str = include_str!("../../testdata/cases/pci-text.json");

const BEHAVIOURS: [Behaviour; 2] = [Behaviour::Strict, Behaviour::Extended];

fn case<T: DeserializeOwned>(file: &str, id: &str) -> T {
    let cases: Vec<serde_json::Value> = serde_json::from_str(file).unwrap();
    let case = cases.into_iter().find(|case| case["id"] == id).unwrap_or_else(|| panic!("no case {id}"));
    serde_json::from_value(case).unwrap()
}

/// Returns the expectation of a behaviour.
fn expected<T>(strict: T, extended: Option<T>, behaviour: Behaviour) -> T {
    match behaviour {
        Behaviour::Strict => strict,
        Behaviour::Extended => extended.unwrap_or(strict),
    }
}

#[derive(Deserialize)]
struct Resolution {
    vmi: VirtualMachineInstance,
    files: BTreeMap<String, Option<String>>,
    lookups: Vec<Lookup>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Lookup {
    attribute: String,
    claim_name: String,
    request_name: String,
    strict: Outcome,
    extended: Option<Outcome>,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
enum Outcome {
    Value(String),
    Values(Vec<String>),
    Hostdevs(Vec<String>),
    Error(String),
}

#[rstest]
#[case::r01("R01")]
#[case::r02("R02")]
#[case::r03("R03")]
#[case::r04("R04")]
#[case::r05("R05")]
#[case::r06("R06")]
#[case::r07("R07")]
#[case::r08("R08")]
#[case::r09("R09")]
#[case::r10("R10")]
#[case::r11("R11")]
#[case::r12("R12")]
#[case::r13("R13")]
#[case::r14("R14")]
#[case::r15("R15")]
#[case::r16("R16")]
#[case::r17("R17")]
#[case::r18("R18")]
#[case::r19("R19")]
#[case::r20("R20")]
#[case::r21("R21")]
#[case::r22("R22")]
#[case::r23("R23")]
#[case::r24("R24")]
#[case::s01("S01")]
#[case::s02("S02")]
#[case::s03("S03")]
#[case::s04("S04")]
#[case::s05("S05")]
#[case::s06("S06")]
#[case::s07("S07")]
#[case::s08("S08")]
#[case::s09("S09")]
#[case::s10("S10")]
#[case::s11("S11")]
#[case::s12("S12")]
#[case::s13("S13")]
#[case::s14("S14")]
#[case::s15("S15")]
#[case::s16("S16")]
#[case::s17("S17")]
#[case::s18("S18")]
#[case::s19("S19")]
#[case::s20("S20")]
fn resolution(#[case] id: &str) {
    let Resolution { vmi, files, lookups } = case(RESOLUTION, id);
    let root = released_tree(&files);
    for behaviour in BEHAVIOURS {
        let resolver = Resolver::with_root(root.path()).unwrap().with_behaviour(behaviour);
        for lookup in &lookups {
            let request =
                ClaimRequest { claim_name: lookup.claim_name.clone(), request_name: lookup.request_name.clone() };
            let claims = &vmi.spec.resource_claims;
            let one = || match &*lookup.attribute {
                "pci" => resolver.pci_bus_id(claims, &request),
                _ => resolver.mdev_uuid(claims, &request),
            };
            match expected(lookup.strict.clone(), lookup.extended.clone(), behaviour) {
                Outcome::Value(value) => assert_eq!(one().unwrap(), value, "{behaviour:?}"),
                Outcome::Error(part) => assert_contains(&one().unwrap_err().to_string(), &part),
                Outcome::Values(values) => {
                    let devices = resolver.resolve(claims, &request).unwrap().devices;
                    let addresses: Vec<String> = devices.into_iter().filter_map(|device| device.pci_bus_id).collect();
                    assert_eq!(addresses, values);
                }
                Outcome::Hostdevs(_) => unreachable!("a lookup has values"),
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Conversion {
    pub(crate) id: String,
    vmi: VirtualMachineInstance,
    files: BTreeMap<String, Option<String>>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    device_plugins_only: bool,
    strict: Outcome,
    extended: Option<Outcome>,
}

impl Conversion {
    fn run(&self, behaviour: Behaviour, root: &TempDir) -> Result<Vec<HostDev>, hostdev::HostDevError> {
        let environment: Environment = self.env.clone().into_iter().collect();
        if self.device_plugins_only {
            let gpus = &self.vmi.spec.domain.devices.gpus;
            return drakkar_kubevirt::device_plugin::gpus(gpus, &environment, behaviour);
        }
        let resolver = Resolver::with_root(root.path()).unwrap().with_behaviour(behaviour);
        hostdev::host_devices(&self.vmi, &resolver, &environment, &Options::default())
    }
}

/// Returns the devices of all cases that have some: for libvirt.
pub(crate) fn all_conversions(behaviour: Behaviour) -> Vec<(String, Vec<HostDev>)> {
    let cases: Vec<Conversion> = serde_json::from_str(HOSTDEV).unwrap();
    let devices = cases.into_iter().filter_map(|case| {
        let root = released_tree(&case.files);
        let devices = case.run(behaviour, &root).ok()?;
        Some((case.id, devices))
    });
    devices.filter(|(_, devices)| !devices.is_empty()).collect()
}

fn check_conversion(case: &Conversion) {
    let root = released_tree(&case.files);
    for behaviour in BEHAVIOURS {
        let result = case.run(behaviour, &root);
        match expected(case.strict.clone(), case.extended.clone(), behaviour) {
            Outcome::Hostdevs(elements) => {
                let devices = result.unwrap_or_else(|error| panic!("{behaviour:?}: {error}"));
                assert_eq!(xml::write(&devices, Form::Kubevirt), elements.concat(), "{behaviour:?}");
            }
            Outcome::Error(part) => assert_contains(&result.unwrap_err().to_string(), &part),
            other => unreachable!("{other:?}"),
        }
    }
}

#[rstest]
#[case::x01("X01")]
#[case::x02("X02")]
#[case::x03("X03")]
#[case::x04("X04")]
#[case::x05("X05")]
#[case::x06("X06")]
#[case::x07("X07")]
#[case::x08("X08")]
#[case::x09("X09")]
#[case::x10("X10")]
#[case::x11("X11")]
#[case::x12("X12")]
#[case::x13("X13")]
#[case::x14("X14")]
#[case::x15("X15")]
#[case::x16("X16")]
#[case::x17("X17")]
#[case::x18("X18")]
#[case::x19("X19")]
#[case::x20("X20")]
#[case::x21("X21")]
#[case::x22("X22")]
#[case::x23("X23")]
#[case::x24("X24")]
#[case::x25a("X25a")]
#[case::x25b("X25b")]
#[case::x25c("X25c")]
#[case::x26("X26")]
#[case::x27("X27")]
#[case::x28("X28")]
#[case::x29a("X29a")]
#[case::x29b("X29b")]
#[case::x29c("X29c")]
#[case::x30a("X30a")]
#[case::x30b("X30b")]
#[case::x30c("X30c")]
#[case::x31("X31")]
#[case::y01("Y01")]
#[case::y02("Y02")]
#[case::y03("Y03")]
#[case::y04("Y04")]
#[case::y05("Y05")]
#[case::y06("Y06")]
#[case::y07("Y07")]
#[case::y08("Y08")]
#[case::y09("Y09")]
#[case::y10("Y10")]
#[case::y11("Y11")]
#[case::y12("Y12")]
#[case::y13("Y13")]
#[case::y14("Y14")]
#[case::y15("Y15")]
#[case::y16("Y16")]
#[case::y17("Y17")]
#[case::y18("Y18")]
#[case::y19("Y19")]
fn host_devices(#[case] id: &str) {
    check_conversion(&case(HOSTDEV, id));
}

#[derive(Deserialize)]
struct Pool {
    env: BTreeMap<String, String>,
    resources: Vec<String>,
    pops: Vec<Pop>,
}

#[derive(Deserialize)]
struct Pop {
    resource: String,
    expected: Outcome,
}

#[rstest]
#[case::e01("E01")]
#[case::e02("E02")]
#[case::e03("E03")]
#[case::e04("E04")]
#[case::e05("E05")]
#[case::e06("E06")]
fn environment_pool(#[case] id: &str) {
    let Pool { env, resources, pops } = case(ENVIRONMENT, id);
    let environment: Environment = env.into_iter().collect();
    let mut pool = AddressPool::load(ResourceKind::Pci, resources.iter().map(String::as_str), &environment);
    for Pop { resource, expected } in pops {
        match (pool.pop(&resource), expected) {
            (Ok(address), Outcome::Value(value)) => assert_eq!(address, value),
            (Err(error), Outcome::Error(part)) => assert_contains(&error.to_string(), &part),
            (result, expected) => panic!("{result:?}, expected {expected:?}"),
        }
    }
}

#[rstest]
#[case::e07("E07")]
#[case::e08("E08")]
#[case::e09("E09")]
#[case::e10("E10")]
#[case::e11("E11")]
fn environment(#[case] id: &str) {
    check_conversion(&case(ENVIRONMENT, id));
}

#[derive(Deserialize)]
struct PciText {
    text: String,
    strict: serde_json::Value,
    extended: Option<serde_json::Value>,
}

#[rstest]
#[case::t01("T01")]
#[case::t02("T02")]
#[case::t03("T03")]
#[case::t04("T04")]
#[case::t05("T05")]
#[case::t06("T06")]
#[case::t07("T07")]
#[case::t08("T08")]
#[case::t09("T09")]
#[case::t10("T10")]
#[case::t11("T11")]
#[case::t12("T12")]
#[case::t13("T13")]
#[case::t14("T14")]
#[case::t15("T15")]
#[case::t16("T16")]
#[case::t17("T17")]
#[case::t18("T18")]
#[case::t19("T19")]
#[case::t20("T20")]
#[case::t21("T21")]
fn pci_text(#[case] id: &str) {
    let PciText { text, strict, extended } = case(PCI_TEXT, id);
    for behaviour in BEHAVIOURS {
        let wanted = expected(strict.clone(), extended.clone(), behaviour);
        match PciFields::parse(&text, behaviour) {
            Ok(PciFields { domain, bus, slot, function }) => {
                let fields = serde_json::json!({"domain": domain, "bus": bus, "slot": slot, "function": function});
                assert_eq!(serde_json::json!({"fields": fields}), wanted);
            }
            Err(error) => {
                assert_eq!(wanted["error"], true, "{error}");
                assert_contains(&error.to_string(), &format!("{text:?}"));
            }
        }
    }
}

/// Every case of the data is a test above.
#[test]
fn no_case_is_left_out() {
    let tests = include_str!("cases.rs");
    for file in [RESOLUTION, HOSTDEV, ENVIRONMENT, PCI_TEXT] {
        for case in serde_json::from_str::<Vec<serde_json::Value>>(file).unwrap() {
            let id = case["id"].as_str().unwrap();
            assert!(tests.contains(&format!("(\"{id}\")]")), "{id}");
        }
    }
}

fn assert_contains(text: &str, part: &str) {
    assert!(text.contains(part), "{text:?} does not contain {part:?}");
}
