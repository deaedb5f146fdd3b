//! Generated specs for property tests: valid ones, with all fields.

use std::collections::BTreeMap;

use drakkar_cdi::{ContainerEdits, Device, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;
use proptest::{option, sample};

/// Any text that runtimes can parse, with the characters that JSON and Go escape more often than in random text.
fn text() -> impl Strategy<Value = String> {
    let readable = |c: &char| !matches!(c, '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}');
    prop_oneof![
        3 => "[a-z0-9./-]{0,12}",
        1 => vec(any::<char>().prop_filter("unreadable", readable), 0..8).prop_map(|chars| chars.into_iter().collect()),
        1 => vec(sample::select(vec![
            '<', '>', '&', '\u{2028}', '\u{2029}', '"', '\\', '/', '\0', '\u{8}', '\u{c}', '\n', '\t', '\u{1f}',
            'ü', '🛶', ':', '#', '\'',
        ]), 0..8).prop_map(|chars| chars.into_iter().collect()),
    ]
}

fn path() -> impl Strategy<Value = String> {
    "(/[a-z0-9_-][a-zA-Z0-9._ <&-]{0,8}){1,4}"
}

fn env() -> impl Strategy<Value = Vec<String>> {
    vec(("[A-Z_]{1,5}", text()).prop_map(|(name, value)| format!("{name}={value}")), 0..3)
}

fn annotations() -> impl Strategy<Value = BTreeMap<String, String>> {
    let key = "([a-z][a-z0-9]{0,4}\\.com/)?[A-Za-z][A-Za-z0-9]{0,5}";
    prop_oneof![2 => Just(BTreeMap::new()), 1 => btree_map(key, text(), 1..3)]
}

prop_compose! {
    fn device_node()(
        paths in (path(), option::of(path())),
        node_type in sample::select(vec!["", "b", "c", "u", "p"]),
        numbers in (prop_oneof![Just(0), any::<i64>()], prop_oneof![Just(0), any::<i64>()]),
        owner in any::<(Option<u32>, Option<u32>, Option<u32>)>(),
        permissions in "r?w?m?",
    ) -> DeviceNode {
        DeviceNode {
            path: paths.0,
            host_path: paths.1.unwrap_or_default(),
            node_type: node_type.into(),
            major: numbers.0,
            minor: numbers.1,
            file_mode: owner.0,
            permissions,
            uid: owner.1,
            gid: owner.2,
        }
    }
}

prop_compose! {
    fn hook()(
        hook_name in sample::select(drakkar_cdi::validate::HOOK_NAMES),
        path in path(),
        args in vec(text(), 0..3),
        env in env(),
        timeout in option::of(1..=i64::MAX),
    ) -> Hook {
        Hook { hook_name: hook_name.into(), path, args, env, timeout }
    }
}

prop_compose! {
    fn mount()(
        host_path in path(),
        option in text(),
        bind in "r?bind",
        fs_type in prop_oneof![3 => Just(String::new()), 1 => text()],
    ) -> Mount {
        Mount { host_path, container_path: String::new(), options: vec![option, bind], fs_type }
    }
}

/// Mounts with unique targets, none of them in `/proc` or `/sys`.
fn mounts() -> impl Strategy<Value = Vec<Mount>> {
    (vec(mount(), 0..3), btree_set(path(), 3)).prop_map(|(mut mounts, targets)| {
        for (mount, target) in mounts.iter_mut().zip(targets) {
            mount.container_path = format!("/mnt{target}");
        }
        mounts
    })
}

prop_compose! {
    fn intel_rdt()(
        clos_id in prop_oneof![Just("/".to_owned()), Just(String::new()), "[a-z]{1,5}"],
        schemas in (text(), text()),
        schemata in option::of(vec(text(), 1..3)),
        enable_monitoring in any::<bool>(),
    ) -> IntelRdt {
        IntelRdt {
            clos_id,
            l3_cache_schema: schemas.0,
            mem_bw_schema: schemas.1,
            schemata,
            enable_monitoring,
            ..IntelRdt::default()
        }
    }
}

fn net_devices() -> impl Strategy<Value = Vec<NetDevice>> {
    let names = || btree_set("[a-z][a-z0-9]{0,6}", 2);
    (names(), names(), 0_usize..=2).prop_map(|(hosts, names, count)| {
        let pairs = hosts.into_iter().zip(names).take(count);
        pairs.map(|(host_interface_name, name)| NetDevice { host_interface_name, name }).collect()
    })
}

/// Edits in which each field is set once in `rarity` cases, so that every minimum version occurs.
fn edits(rarity: u32) -> impl Strategy<Value = ContainerEdits> {
    let seldom = move || prop::bool::weighted(1.0 / f64::from(rarity));
    let all = (
        env(),
        vec(device_node(), 0..3),
        net_devices(),
        vec(hook(), 0..2),
        mounts(),
        intel_rdt(),
        vec(any::<u32>(), 1..3),
    );
    (all, [seldom(), seldom(), seldom(), seldom(), seldom(), seldom(), seldom()]).prop_map(|(all, there)| {
        fn list<T>(list: Vec<T>, there: bool) -> Vec<T> {
            if there { list } else { Vec::new() }
        }
        ContainerEdits {
            env: all.0,
            device_nodes: list(all.1, there[1]),
            net_devices: list(all.2, there[2]),
            hooks: list(all.3, there[3]),
            mounts: list(all.4, there[4] || there[0]),
            intel_rdt: there[5].then_some(all.5),
            additional_gids: list(all.6, there[6]),
        }
    })
}

prop_compose! {
    fn device()(annotations in annotations(), mut container_edits in edits(4)) -> Device {
        if container_edits.is_empty() {
            container_edits.env.push("A=b".into());
        }
        Device { name: String::new(), annotations, container_edits }
    }
}

prop_compose! {
    /// A spec that is valid at the strict level, with its minimum version.
    pub(crate) fn valid_spec()(
        kind in "[a-z][a-z0-9]{0,5}(\\.[a-z0-9]([a-z0-9-]{0,3}[a-z0-9])?){0,2}/[A-Za-z]([A-Za-z0-9_-]{0,8}(\\.v)?[A-Za-z0-9])?",
        annotations in annotations(),
        names in btree_set("[A-Za-z0-9]([A-Za-z0-9_.:-]{0,8}[A-Za-z0-9])?", 3),
        devices in vec(device(), 1..=3),
        container_edits in edits(8),
    ) -> Spec {
        let named = devices.into_iter().zip(names).map(|(device, name)| Device { name, ..device });
        let mut spec = Spec { kind, annotations, devices: named.collect(), container_edits, ..Spec::default() };
        spec.cdi_version = spec.minimum_version().to_string();
        spec
    }
}
