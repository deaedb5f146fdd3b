//! Random VMIs, clusters and metadata files, the same in each run: mostly sound, with defects here and there.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::{Map, Value, json};

use crate::suites::new_vmi as vmi;
use crate::suites::numa::Machine;

/// Returns `count` values of a strategy, the same in each run.
pub fn generated(strategy: &impl Strategy<Value = Value>, count: usize) -> Vec<Value> {
    let mut runner = TestRunner::deterministic();
    (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

/// One of the sound values mostly, one of the others now and then.
fn text(sound: &'static [&'static str], others: &'static [&'static str]) -> impl Strategy<Value = Value> + Clone {
    prop_oneof![12 => select(sound), 1 => select(others)].prop_map(Value::from)
}

const CLAIMS: &[&str] = &["alpha", "beta", "gamma"];
const REQUESTS: &[&str] = &["r0", "r1"];
const NETWORKS: &[&str] = &["n0", "n1", "n2"];

/// An object with the members that are present.
fn object(members: Vec<(&'static str, Option<Value>)>) -> Value {
    Value::Object(members.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect::<Map<_, _>>())
}

/// A value that is present mostly.
fn mostly<S: Strategy<Value = Value>>(strategy: S) -> impl Strategy<Value = Option<Value>> {
    option::weighted(0.93, strategy)
}

fn rarely<S: Strategy<Value = Value>>(strategy: S) -> impl Strategy<Value = Option<Value>> {
    option::weighted(0.07, strategy)
}

fn resource_claim() -> impl Strategy<Value = Value> {
    let name = text(CLAIMS, &["", "-a", "Alpha", "a.b", "../a"]);
    let source = || text(&["gold", "silver", "a.b-c"], &["", "-x", "Gold", "../a", "a..b"]);
    let sources = prop_oneof![
        6 => source().prop_map(|name| (Some(name), None)),
        6 => source().prop_map(|name| (None, Some(name))),
        1 => (source(), source()).prop_map(|(claim, template)| (Some(claim), Some(template))),
        1 => Just((None, None)),
        1 => Just((Some(Value::Null), Some("silver".into()))),
    ];
    (mostly(name), sources).prop_map(|(name, (claim, template))| {
        object(vec![("name", name), ("resourceClaimName", claim), ("resourceClaimTemplateName", template)])
    })
}

/// `claimName` and `requestName`, either of which can be missing, empty, or `null` if that is allowed.
fn claim_request(null: bool) -> impl Strategy<Value = (Option<Value>, Option<Value>)> {
    let null = if null { Value::Null } else { "".into() };
    let member = move |names| prop_oneof![20 => text(names, &["", "delta", "a/b"]), 1 => Just(null.clone())];
    (mostly(member(CLAIMS)), mostly(member(REQUESTS)))
}

fn bool_or_unset() -> impl Strategy<Value = Option<Value>> {
    option::of(any::<bool>().prop_map(Value::from))
}

/// The options of a vGPU. In a cluster the mutating webhook has set `enabled` of a frame buffer.
fn gpu_options(defaulted: bool) -> impl Strategy<Value = Value> {
    let ram_fb = bool_or_unset().prop_map(move |enabled| {
        let default = defaulted.then(|| Value::from(true));
        object(vec![("enabled", enabled.or(default))])
    });
    let display = (bool_or_unset(), option::of(ram_fb))
        .prop_map(|(enabled, ram_fb)| object(vec![("enabled", enabled), ("ramFB", ram_fb)]));
    option::of(display).prop_map(|display| object(vec![("display", display)]))
}

fn device(options: bool) -> impl Strategy<Value = Value> {
    let name = text(&["d0", "d1", "d2"], &["", "a b"]);
    let device_name = || text(&["vendor.example/gpu", "vendor.example/nic"], &["", "x"]);
    let sources = prop_oneof![
        10 => claim_request(true).prop_map(|request| (None, request)),
        2 => device_name().prop_map(|name| (Some(name), (None, None))),
        1 => (device_name(), claim_request(true)).prop_map(|(name, request)| (Some(name), request)),
        1 => Just((None, (None, None))),
    ];
    let options = option::weighted(0.2, gpu_options(false)).prop_map(move |found| found.filter(|_| options));
    (mostly(name), sources, options).prop_map(|(name, (device_name, (claim, request)), options)| {
        object(vec![
            ("name", name),
            ("deviceName", device_name),
            ("claimName", claim),
            ("requestName", request),
            ("virtualGPUOptions", options),
        ])
    })
}

fn network() -> impl Strategy<Value = Value> {
    let claim =
        claim_request(false).prop_map(|(claim, request)| object(vec![("claimName", claim), ("requestName", request)]));
    let multus = Just(json!({"networkName": "net"}));
    let sources = prop_oneof![
        8 => claim.prop_map(|claim| json!({"resourceClaim": claim})),
        2 => Just(json!({"pod": {}})),
        1 => multus.prop_map(|multus| json!({"multus": multus})),
        1 => Just(json!({})),
        1 => Just(json!({"pod": {}, "resourceClaim": {"claimName": "alpha", "requestName": "r0"}})),
    ];
    (text(NETWORKS, &["", "N.0"]), sources).prop_map(|(name, mut network)| {
        network["name"] = name;
        network
    })
}

fn interface() -> impl Strategy<Value = Value> {
    let binding = prop_oneof![
        8 => Just(json!({"sriov": {}})),
        3 => Just(json!({"binding": {"name": "plugin"}})),
        1 => Just(json!({"bridge": {}})),
        1 => Just(json!({"masquerade": {}})),
        1 => Just(json!({})),
        1 => Just(json!({"sriov": {}, "bridge": {}})),
    ];
    let address = rarely(text(&["0000:20:00.0"], &["zz", ""]));
    (text(NETWORKS, &["", "N.0"]), binding, address).prop_map(|(name, mut interface, address)| {
        interface["name"] = name;
        if let Some(address) = address {
            interface["pciAddress"] = address;
        }
        interface
    })
}

/// The configuration of a cluster: gates turned on and off.
pub fn configuration() -> impl Strategy<Value = Value> {
    const GATES: &[&str] =
        &["GPUsWithDRA", "HostDevicesWithDRA", "NetworkDevicesWithDRA", "HostDevices", "PCINUMAAwareTopology", "Other"];
    let enabled = prop_oneof![
        3 => Just(vec!["NetworkDevicesWithDRA", "HostDevices"]),
        1 => subsequence(GATES, 0..GATES.len()),
    ];
    let disabled = prop_oneof![3 => Just(Vec::new()), 1 => subsequence(GATES, 0..GATES.len())];
    (enabled, disabled).prop_map(|(enabled, disabled)| {
        json!({"developerConfiguration": {"featureGates": enabled, "disabledFeatureGates": disabled}})
    })
}

/// A VMI and the configuration of a cluster, for admission.
pub fn admission() -> impl Strategy<Value = Value> {
    let devices = (vec(device(true), 0..4), option::of(vec(device(false), 0..4)));
    // Each network has its interface mostly, and both lists something more now and then.
    let paired = vec((network(), interface()), 0..4).prop_map(|pairs| {
        let pair = |(network, mut interface): (Value, Value)| {
            interface["name"] = network["name"].clone();
            (network, interface)
        };
        pairs.into_iter().map(pair).unzip::<_, _, Vec<_>, Vec<_>>()
    });
    let networks = prop_oneof![6 => paired, 1 => (vec(network(), 0..3), vec(interface(), 0..3))];
    (vec(resource_claim(), 0..5), devices, networks, configuration()).prop_map(
        |(claims, (gpus, host_devices), (mut networks, interfaces), configuration)| {
            // A second pod network breaks a rule that is not about claims.
            let mut pods = 0;
            networks.retain(|network| {
                pods += usize::from(network.get("pod").is_some());
                network.get("pod").is_none() || pods == 1
            });
            let mut devices = json!({"gpus": gpus, "interfaces": interfaces});
            if let Some(host_devices) = host_devices {
                devices["hostDevices"] = host_devices.into();
            }
            json!({"configuration": configuration, "vmi": vmi(&json!({
                "resourceClaims": claims,
                "networks": networks,
                "architecture": "amd64",
                "domain": {"devices": devices, "memory": {"guest": "128Mi"}},
            }))})
        },
    )
}

/// A device of a metadata file.
fn metadata_device() -> impl Strategy<Value = Value> {
    let pci = text(&["0000:65:00.0", "0000:AF:1f.7", "faca:00:05.1"], &["", "zz", "65:00.0", "0000:65:00.8"]);
    let mdev =
        text(&["0f4d1b52-1b0e-4b3c-9d0e-0a6b3f1d2c4e", "b5f3e9aa-0000-4000-8000-000000000001"], &["", "no-uuid"]);
    let value = |text: Value| prop_oneof![15 => Just(json!({"string": text})), 1 => Just(json!({"int": 7})), 1 => Just(json!({}))];
    let pci = pci.prop_flat_map(value);
    let mdev = mdev.prop_flat_map(value);
    let attributes =
        (option::weighted(0.8, pci), option::weighted(0.3, mdev), any::<bool>()).prop_map(|(pci, mdev, more)| {
            let model = more.then(|| json!({"string": "x"}));
            object(vec![("resource.kubernetes.io/pciBusID", pci), ("mdevUUID", mdev), ("vendor.example/model", model)])
        });
    option::weighted(0.95, attributes).prop_map(|attributes| {
        let mut device = json!({"driver": "gpu.example.com", "pool": "node", "name": "dev-0"});
        if let Some(attributes) = attributes {
            device["attributes"] = attributes;
        }
        device
    })
}

/// One document of a metadata file, or something that is none.
fn document(request: &'static str) -> impl Strategy<Value = Value> {
    let version = prop_oneof![
        20 => Just(json!("metadata.resource.k8s.io/v1alpha1")),
        1 => Just(json!("metadata.resource.k8s.io/v2beta1")),
        1 => Just(json!("")),
        1 => Just(json!(7)),
    ];
    let name =
        prop_oneof![20 => Just(request.to_owned()), 1 => Just("other".to_owned()), 1 => Just(format!("{request}/sub"))];
    let devices = prop_oneof![
        15 => vec(metadata_device(), 1),
        1 => vec(metadata_device(), 0),
        1 => vec(metadata_device(), 2..3),
    ];
    let sound = (version, name, devices, any::<bool>()).prop_map(|(version, name, devices, second)| {
        let mut requests = vec![json!({"name": name, "devices": devices})];
        if second {
            requests.insert(0, json!({"name": "zero", "devices": []}));
        }
        json!({"kind": "DeviceMetadata", "apiVersion": version, "metadata": {"name": "claim"}, "requests": requests})
    });
    prop_oneof![
        25 => sound,
        1 => Just(json!({"kind": "DeviceMetadata", "apiVersion": "metadata.resource.k8s.io/v1alpha1", "requests": "x"})),
        1 => Just(json!({"apiVersion": "metadata.resource.k8s.io/v1beta1", "kind": "DeviceMetadata", "requests": []})),
        1 => Just(json!("text")),
        1 => Just(json!(null)),
        1 => Just(json!({})),
    ]
}

/// The content of a metadata file: a stream of documents, or a text.
fn content(request: &'static str) -> impl Strategy<Value = Value> {
    prop_oneof![
        20 => document(request),
        3 => vec(document(request), 0..3).prop_map(Value::from),
        1 => select(vec!["", " \n", "{", "]", "\u{feff}{}"]).prop_map(Value::from),
        1 => document(request).prop_map(|document| format!("{document} trailing").into()),
    ]
}

/// The metadata files of all claims and requests that a VMI can refer to.
fn files() -> impl Strategy<Value = Value> {
    let directories: Vec<String> = CLAIMS
        .iter()
        .map(|claim| format!("resourceclaimtemplates/{claim}"))
        .chain(["gold", "silver", "a.b-c"].map(|claim| format!("resourceclaims/{claim}")))
        .collect();
    let requests: Vec<_> = directories
        .into_iter()
        .flat_map(|directory| REQUESTS.iter().map(move |request| (directory.clone(), *request)))
        .map(|(directory, request)| {
            let path = format!("{directory}/{request}");
            let names = prop_oneof![
                20 => Just(vec!["gpu.example.com-metadata.json"]),
                1 => Just(vec![]),
                1 => Just(vec!["a.example-metadata.json", "b.example-metadata.json"]),
                1 => Just(vec!["gpu.example.com-metadata.json", "notes.txt", "metadata.json"]),
                1 => Just(vec!["-metadata.json"]),
                1 => Just(vec![".hidden-metadata.json"]),
                1 => Just(vec!["directory-metadata.json/"]),
            ];
            (names, content(request)).prop_map(move |(names, content)| {
                names.into_iter().map(|name| (format!("{path}/{name}"), content.clone())).collect::<Vec<_>>()
            })
        })
        .collect();
    requests.prop_map(|files| Value::Object(files.into_iter().flatten().collect()))
}

/// A claim of a VMI that passed admission: it has one source.
fn admitted_claim(name: &'static str) -> impl Strategy<Value = Value> {
    prop_oneof![
        5 => select(vec!["gold", "silver", "a.b-c"])
            .prop_map(move |claim| json!({"name": name, "resourceClaimName": claim})),
        5 => Just(json!({"name": name, "resourceClaimTemplateName": "template"})),
        1 => Just(json!({"name": name})),
        1 => Just(json!({"name": name, "resourceClaimName": "", "resourceClaimTemplateName": "template"})),
    ]
}

fn claims() -> impl Strategy<Value = Value> {
    let all = (admitted_claim("alpha"), admitted_claim("beta"), admitted_claim("gamma"));
    (all, 0_usize..20).prop_map(|((alpha, beta, gamma), keep)| {
        let claims = vec![alpha, beta, gamma];
        Value::from(if keep < 2 { claims[..keep].to_vec() } else { claims })
    })
}

/// A request of a claim, with the metadata files.
pub fn resolution() -> impl Strategy<Value = Value> {
    (claims(), files(), select(CLAIMS), select(REQUESTS)).prop_map(|(claims, files, claim, request)| {
        json!({"vmi": vmi(&json!({"resourceClaims": claims})), "files": files, "claim": claim, "request": request})
    })
}

/// A VMI with DRA devices, with the metadata files.
pub fn devices() -> impl Strategy<Value = Value> {
    let device = |options: bool| {
        let options = option::weighted(0.3, gpu_options(true)).prop_map(move |found| found.filter(|_| options));
        let request =
            prop_oneof![30 => (select(CLAIMS), select(REQUESTS)), 1 => Just(("", "r0")), 1 => Just(("delta", "r0"))];
        (request, options).prop_map(|((claim, request), options)| {
            object(vec![
                ("claimName", Some(claim.into())),
                ("requestName", Some(request.into())),
                ("virtualGPUOptions", options),
            ])
        })
    };
    let numbered = |prefix: &'static str, devices: Vec<Value>| -> Vec<Value> {
        let named = |(index, mut device): (usize, Value)| {
            device["name"] = format!("{prefix}{index}").into();
            device
        };
        devices.into_iter().enumerate().map(named).collect()
    };
    let architecture = select(vec!["amd64", "amd64", "arm64", "s390x", ""]);
    (claims(), files(), vec(device(true), 0..3), vec(device(false), 0..2), architecture).prop_map(
        move |(claims, files, gpus, host_devices, architecture)| {
            let devices = json!({"gpus": numbered("g", gpus), "hostDevices": numbered("h", host_devices)});
            let spec = json!({"architecture": architecture, "resourceClaims": claims, "domain": {"devices": devices}});
            json!({"vmi": vmi(&spec), "files": files})
        },
    )
}

/// A VMI with devices of claims, device plugins and networks, with metadata files and the launcher's environment.
pub fn domain() -> impl Strategy<Value = Value> {
    const RESOURCES: &[&str] = &["v.example/r0", "v.example/r1"];
    let entry = |claimed: u32| {
        let claim = (select(CLAIMS), select(REQUESTS))
            .prop_map(|(claim, request)| json!({"claimName": claim, "requestName": request}));
        let plugin = select(RESOURCES).prop_map(|resource| json!({"deviceName": resource}));
        prop_oneof![claimed => claim, 1 => plugin]
    };
    let lists =
        |claimed| (vec(entry(claimed), 0..3), vec(entry(claimed), 0..3), option::weighted(0.3, gpu_options(true)));
    let variables = || {
        let addresses = vec(text(&["0000:81:11.1", "0000:81:11.2", "0000:81:11.3"], &["", "zz"]), 0..4);
        let uuids =
            vec(select(vec!["b5f3e9aa-0000-4000-8000-000000000001", "b5f3e9aa-0000-4000-8000-000000000002"]), 0..3);
        let list = |values: Vec<String>| values.join(",");
        prop_oneof![
            4 => addresses.prop_map(move |all| ("PCI_RESOURCE", list(all.iter().map(|one| one.as_str().unwrap().to_owned()).collect()))),
            2 => uuids.prop_map(move |all| ("MDEV_PCI_RESOURCE", list(all.into_iter().map(str::to_owned).collect()))),
            1 => Just(("USB_RESOURCE", "2:14,".to_owned())),
        ]
    };
    let environment = (vec(variables(), 0..3), vec(variables(), 0..2)).prop_map(|(first, second)| {
        let named = |resource: &str, found: Vec<(&str, String)>| {
            found
                .into_iter()
                .map(|(prefix, value)| (format!("{prefix}_V_EXAMPLE_{resource}"), value.into()))
                .collect::<Vec<_>>()
        };
        Value::Object(named("R0", first).into_iter().chain(named("R1", second)).collect())
    });
    let networks = vec((select(CLAIMS), select(REQUESTS), any::<bool>(), option::of(1_u32..3)), 0..2);
    let sources = prop_oneof![lists(20), lists(1)];
    (claims(), files(), sources, environment, networks).prop_map(
        |(claims, files, (gpus, host_devices, options), environment, found)| {
            let named = |prefix: &str, devices: Vec<Value>| -> Vec<Value> {
                let name = |(index, mut device): (usize, Value)| {
                    device["name"] = format!("{prefix}{index}").into();
                    device
                };
                devices.into_iter().enumerate().map(name).collect()
            };
            let mut gpus = named("g", gpus);
            if let (Some(gpu), Some(options)) = (gpus.first_mut(), options) {
                gpu["virtualGPUOptions"] = options;
            }
            let mut networks = Vec::new();
            let mut interfaces = Vec::new();
            for (index, (claim, request, placed, boot_order)) in found.into_iter().enumerate() {
                let name = format!("n{index}");
                networks.push(json!({"name": name, "resourceClaim": {"claimName": claim, "requestName": request}}));
                let mut interface = json!({"name": name, "sriov": {}});
                if placed {
                    interface["pciAddress"] = "0000:20:00.0".into();
                }
                if let Some(order) = boot_order {
                    interface["bootOrder"] = order.into();
                }
                interfaces.push(interface);
            }
            let devices = json!({"gpus": gpus, "hostDevices": named("h", host_devices), "interfaces": interfaces});
            let spec = json!({
                "architecture": "amd64",
                "resourceClaims": claims,
                "networks": networks,
                "domain": {"devices": devices, "memory": {"guest": "128Mi"}},
            });
            json!({"vmi": vmi(&spec), "files": files, "env": environment})
        },
    )
}

/// A domain with host devices on a host with NUMA nodes.
pub fn numa() -> impl Strategy<Value = Value> {
    let nodes = select(vec![vec!["0-3", "4-7"], vec!["0,2,4,6", "1,3,5,7"], vec!["0-7"], vec!["0-3", "4-7", ""]]);
    let cells = select(vec![vec!["0-1", "2-3"], vec!["0-3"], vec!["0,2", "1,3"], vec!["3", "0-2"], vec![]]);
    let memory = select(vec![
        vec![(0, "0"), (1, "1")],
        vec![(0, "1"), (1, "0")],
        vec![(0, "0-1")],
        vec![(1, "1")],
        vec![],
        vec![],
    ]);
    let address = (select(vec!["0000", "faca"]), 1_u8..250, 0_u8..2)
        .prop_map(|(domain, bus, function)| format!("{domain}:{bus:02x}:00.{function}"));
    let node = prop_oneof![10 => (0_i64..2).prop_map(Some), 1 => Just(Some(-1)), 1 => Just(Some(5)), 1 => Just(None)];
    let devices = vec((address, node), 0..6);
    let controllers = select(vec![vec![0], vec![0, 1, 2], vec![], vec![0, 249]]);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (nodes, cells, vec(0_u32..8, 0..5), memory, devices, controllers, flags).prop_map(
        |(nodes, cells, pins, memory, mut devices, controllers, (placed, mdev, strict))| {
            let mut seen = std::collections::BTreeSet::new();
            devices.retain(|(address, _)| seen.insert(address.clone()));
            Machine { nodes, cells, pins, memory, devices, controllers, placed, mdev, strict }.case()
        },
    )
}
