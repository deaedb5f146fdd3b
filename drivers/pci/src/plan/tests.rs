//! Tests of plans, over hosts that the simulated kernel builds.

use std::sync::Arc;

use drakkar_plugin::attributes::NumaForm;
use drakkar_sysfs::simulation::{Description, Simulation};

use super::*;
use crate::attributes::Numa;
use crate::config::Config;
use crate::select::FormerDrivers;

/// A host, and what the driver makes of it.
struct Bench {
    simulation: Simulation,
    selection: Selection,
    held: BTreeMap<Target, Held>,
    made: BTreeSet<String>,
    max_instances: MaxInstances,
    plan: Option<Plan>,
    _directory: tempfile::TempDir,
}

impl Bench {
    fn new(description: &str, rules: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let description: Description = serde_saphyr::from_str(description).unwrap();
        let simulation = Simulation::create(directory.path(), &description).unwrap();
        let numa = Numa::new(simulation.roots().sys, NumaForm::Number);
        let selection = Selection::new(config(rules), numa);
        Self {
            simulation,
            selection,
            held: BTreeMap::new(),
            made: BTreeSet::new(),
            max_instances: MaxInstances::default(),
            plan: None,
            _directory: directory,
        }
    }

    fn set_rules(&mut self, rules: &str) {
        self.selection.set_config(config(rules));
    }

    fn plan(&mut self) -> &Plan {
        let sysfs = self.simulation.sysfs();
        let inventory = Inventory::scan(&sysfs).unwrap();
        let host_use = HostUse::find(&sysfs, &inventory);
        self.selection.update(&inventory, &FormerDrivers::new());
        self.max_instances.update(&inventory);
        let gone = gone(&self.held, &inventory, &sysfs);
        update_made(&mut self.made, &self.held, &inventory);
        let plan = Plan::new(Inputs {
            inventory: &inventory,
            selection: &self.selection,
            host_use: &host_use,
            held: &self.held,
            gone: &gone,
            made: &self.made,
            max_instances: &self.max_instances,
            previous: self.plan.as_ref(),
        });
        plan.resources("node-1").validate().unwrap();
        self.plan.insert(plan)
    }

    fn names(&mut self) -> Vec<String> {
        self.plan().entries.keys().cloned().collect()
    }

    fn refusal(&mut self, address: &str) -> String {
        let decision = self.plan().decisions[&address.parse().unwrap()].clone();
        decision.refusal.expect("a refusal").to_string()
    }

    fn write(&self, path: &str, value: &str) {
        let path = self.simulation.roots().sys.join(path);
        self.simulation.sysfs().write(&"test", &path, value).unwrap();
    }

    fn create_mdev(&self, parent: &str, type_id: &str, uuid: &str) {
        self.write(&format!("class/mdev_bus/{parent}/mdev_supported_types/{type_id}/create"), uuid);
    }
}

const PREPARED: Held = Held { address: None, uuid: None, is_prepared: true };

fn made(uuid: &str) -> Held {
    Held { uuid: Some(uuid.to_owned()), ..PREPARED }
}

fn config(rules: &str) -> Arc<Config> {
    Arc::new(Config::from_yaml(&format!("apiVersion: pci.drakkar.dev/v1alpha1\nkind: DriverConfig\n{rules}")).unwrap())
}

const ONE_GPU: &str = "
drivers: [{name: nouveau, ids: ['10de:*']}]
devices:
- {address: '0000:65:00.0', vendor: 10de, device: '2236', class: '030200', iommuGroup: 5, numaNode: 1, pcieRoot: 'pci0000:64'}
";

const DISPLAYS: &str = "devices: [{name: gpus, match: {classes: [display]}}]";

#[test]
fn a_gpu_has_the_attributes_that_consumers_know() {
    let mut bench = Bench::new(ONE_GPU, DISPLAYS);
    let entry = bench.plan().entries["pci-0000-65-00-0"].clone();
    let text = |name: &str| entry.attributes[name].to_string();
    assert_eq!(text("resource.kubernetes.io/pciBusID"), "0000:65:00.0");
    assert_eq!(text("resource.kubernetes.io/pcieRoot"), "pci0000:64");
    assert_eq!(entry.attributes["resource.kubernetes.io/numaNode"], 1.into());
    assert_eq!(text("vendorID"), "10de");
    assert_eq!(text("deviceID"), "2236");
    assert_eq!(text("vendor"), "NVIDIA Corporation");
    assert_eq!(text("model"), "GA102GL [A10]");
    assert_eq!(text("kind"), "pci");
    assert_eq!(text("class"), "display");
    assert_eq!(text("subclass"), "3d");
    assert_eq!(text("driver"), "nouveau");
    assert_eq!(text("rule"), "gpus");
    assert_eq!(entry.attributes["iommuGroup"], 5.into());
    assert!(!entry.attributes.contains_key("mdevUUID"));
    assert_eq!(entry.consumes, []);
}

#[test]
fn the_first_rule_that_matches_decides_and_exclude_comes_first() {
    let rules = "
exclude: [{addresses: ['0000:66:*']}]
devices:
- {name: first, match: {cel: \"device.attributes['pci.drakkar.dev'].vendorID == '10de'\"}}
- {name: second, match: {addresses: ['*']}}";
    let description = "
devices:
- {address: '0000:65:00.0', vendor: 10de, device: '2236', class: '030200', iommuGroup: 1}
- {address: '0000:66:00.0', vendor: 10de, device: '2236', class: '030200', iommuGroup: 2}
- {address: '0000:67:00.0', vendor: '8086', device: '10fb', class: '020000', iommuGroup: 3}";
    let mut bench = Bench::new(description, rules);
    let plan = bench.plan();
    let choice = |address: &str| plan.decisions[&address.parse().unwrap()].choice.clone();
    assert_eq!(choice("0000:65:00.0"), Choice::Rule(0));
    assert_eq!(choice("0000:66:00.0"), Choice::Excluded(0));
    assert_eq!(choice("0000:67:00.0"), Choice::Rule(1));
    assert_eq!(plan.entries.len(), 2);
}

#[test]
fn an_expression_that_fails_keeps_the_device_out_and_says_so() {
    let rules = "devices: [{match: {cel: \"device.attributes['pci.drakkar.dev'].physicalFunction == 'x'\"}}]";
    let mut bench = Bench::new(ONE_GPU, rules);
    let decision = bench.plan().decisions[&"0000:65:00.0".parse().unwrap()].clone();
    let Choice::Failed(message) = decision.choice else { panic!("{decision:?}") };
    assert!(message.contains("devices[0].match.cel") && message.contains("physicalFunction"), "{message}");
}

mod refusals {
    use super::*;

    #[test]
    fn bridges_and_devices_without_a_group() {
        let description = "
devices:
- {address: '0000:64:00.0', vendor: '8086', device: '2030', class: '060400', iommuGroup: 1}
- {address: '0000:66:00.0', vendor: 10de, device: '2236', class: '030200'}";
        let mut bench = Bench::new(description, "devices: [{match: {addresses: ['*']}}]");
        assert!(bench.refusal("0000:64:00.0").contains("bridge"));
        assert!(bench.refusal("0000:66:00.0").contains("no IOMMU group"));
        bench.set_rules("devices: [{mode: kernel, match: {addresses: ['*']}}]");
        assert_eq!(bench.names(), ["pci-0000-66-00-0"]);
    }

    #[test]
    fn what_the_host_uses_is_refused_unless_named() {
        let description = "
drivers: [{name: nvme, ids: ['144d:*']}]
devices:
- {address: '0000:01:00.0', vendor: 144d, device: a808, class: '010802', iommuGroup: 1, nvme: nvme0}
- {address: '0000:02:00.0', vendor: 144d, device: a808, class: '010802', iommuGroup: 2, nvme: nvme1}
- {address: '0000:03:00.0', vendor: '1002', device: '73bf', class: '030000', iommuGroup: 3, bootVga: true}
files: {proc/1/mountinfo: '22 1 0:25 / / rw - btrfs /dev/nvme0n1 rw'}";
        let rule = "match: {addresses: ['*']}";
        let mut bench = Bench::new(description, &format!("devices: [{{{rule}}}]"));
        assert!(bench.refusal("0000:01:00.0").contains("/dev/nvme0n1 is mounted at /"));
        assert!(bench.refusal("0000:03:00.0").contains("add 0000:03:00.0 to the rule's allowInUse"));
        assert!(bench.names().contains(&"pci-0000-02-00-0".to_owned()));
        assert!(!bench.names().contains(&"pci-0000-03-00-0".to_owned()));
        bench.set_rules(&format!("devices: [{{{rule}, allowInUse: ['0000:03:00.0']}}]"));
        assert!(bench.names().contains(&"pci-0000-03-00-0".to_owned()));
    }

    #[test]
    fn disks_are_refused_while_the_mounts_of_the_host_are_not_known() {
        let description = "
devices:
- {address: '0000:01:00.0', vendor: 144d, device: a808, class: '010802', iommuGroup: 1}
- {address: '0000:02:00.0', vendor: 10de, device: '2236', class: '030200', iommuGroup: 2}";
        let mut bench = Bench::new(description, "devices: [{match: {addresses: ['*']}}]");
        let refusal = bench.refusal("0000:01:00.0");
        assert!(refusal.contains("not known whether the host uses it") && refusal.contains("mountinfo"), "{refusal}");
        assert_eq!(bench.names(), ["pci-0000-02-00-0"]);
        bench.set_rules("devices: [{match: {addresses: ['*']}, allowInUse: ['0000:01:00.0']}]");
        assert_eq!(bench.names().len(), 2);
    }

    const NIC_AND_USB: &str = "
devices:
- {address: '0000:01:00.0', vendor: '8086', device: 10c9, class: '020000', iommuGroup: 1}
- {address: '0000:02:00.0', vendor: 1b73, device: '1100', class: '0c0330', iommuGroup: 2}
- {address: '0000:03:00.0', vendor: 144d, device: a808, class: '010802', iommuGroup: 3, nvme: nvme0}
- {address: '0000:04:00.0', vendor: 144d, device: a808, class: '010802', iommuGroup: 4}
- {address: '0000:05:00.0', vendor: 10de, device: 1aef, class: '040300', iommuGroup: 5}
drivers: [{name: nvme, ids: ['144d:*']}]
files: {proc/1/mountinfo: '22 1 0:25 / / rw - btrfs /dev/nvme0n1 rw'}";

    #[test]
    fn network_cards_are_refused_while_the_routes_of_the_host_are_not_known() {
        let all = "devices: [{match: {addresses: ['*']}}]";
        let mut bench = Bench::new(NIC_AND_USB, all);
        assert_eq!(
            bench.names(),
            ["pci-0000-01-00-0", "pci-0000-02-00-0", "pci-0000-04-00-0", "pci-0000-05-00-0"],
            "mounts and routes are known"
        );
        std::fs::remove_file(bench.simulation.roots().proc.join("1/net/route")).unwrap();
        for address in ["0000:01:00.0", "0000:02:00.0"] {
            let refusal = bench.refusal(address);
            let texts =
                ["not known whether the host uses it", "1/net/route: there is no such file", "--proc-root", address];
            assert!(texts.iter().all(|text| refusal.contains(text)), "{refusal}");
        }
        assert_eq!(bench.names(), ["pci-0000-04-00-0", "pci-0000-05-00-0"]);
        bench.set_rules("devices: [{match: {addresses: ['*']}, allowInUse: ['0000:01:00.0']}]");
        assert_eq!(bench.names(), ["pci-0000-01-00-0", "pci-0000-04-00-0", "pci-0000-05-00-0"]);
    }

    #[test]
    fn without_the_hosts_procfs_everything_that_it_may_use_is_refused() {
        let mut bench = Bench::new(NIC_AND_USB, "devices: [{match: {addresses: ['*']}}]");
        std::fs::remove_dir_all(bench.simulation.roots().proc.join("1")).unwrap();
        assert_eq!(bench.names(), ["pci-0000-05-00-0"]);
        let refusal = bench.refusal("0000:04:00.0");
        assert!(refusal.contains("1/mountinfo: names no disk") && refusal.contains("--proc-root"), "{refusal}");
    }

    #[test]
    fn a_virtual_function_of_somebody_else_may_be_in_use_too() {
        let description = "
drivers: [{name: igb, ids: ['8086:10c9'], sriov: true}]
devices:
- {address: '0000:01:00.0', vendor: '8086', device: 10c9, class: '020000', iommuGroup: 1, sriov: {totalVfs: 2, vfDevice: 10ca, numVfs: 1}}";
        let mut bench = Bench::new(description, "devices: [{match: {ids: ['8086:10ca']}}]");
        assert_eq!(bench.names().len(), 1);
        std::fs::remove_file(bench.simulation.roots().proc.join("1/net/route")).unwrap();
        assert_eq!(bench.names(), Vec::<String>::new());
    }

    #[test]
    fn a_graphics_card_is_refused_while_it_is_not_known_where_the_console_is() {
        let description = "
devices:
- {address: '0000:01:00.0', vendor: '1002', device: '73bf', class: '030000', iommuGroup: 1}
- {address: '0000:02:00.0', vendor: '1002', device: '73bf', class: '030000', iommuGroup: 2}
- {address: '0000:03:00.0', vendor: 10de, device: '2236', class: '030200', iommuGroup: 3}";
        let mut bench = Bench::new(description, DISPLAYS);
        assert_eq!(bench.names().len(), 3);
        let address = "0000:01:00.0".parse().unwrap();
        bench.simulation.set_attribute(address, "boot_vga", b"?\n").unwrap();
        let refusal = bench.refusal("0000:01:00.0");
        assert!(refusal.contains("0000:01:00.0/boot_vga") && refusal.contains("not known"), "{refusal}");
        assert_eq!(bench.names(), ["pci-0000-02-00-0", "pci-0000-03-00-0"]);
        std::fs::remove_file(bench.simulation.roots().pci_device(&address).join("boot_vga")).unwrap();
        assert!(bench.refusal("0000:01:00.0").contains("whether the console is on this card"));
        // A link that leads nowhere readable.
        std::fs::write(bench.simulation.roots().sys.join("class/drm"), "").unwrap();
        assert!(bench.refusal("0000:03:00.0").contains("class/drm"));
        bench.set_rules("devices: [{match: {classes: [display]}, allowInUse: ['0000:01:00.0']}]");
        assert_eq!(bench.names(), ["pci-0000-01-00-0"]);
    }

    #[test]
    fn a_companion_that_the_host_may_use_is_refused() {
        let description = "
devices:
- {address: '0000:65:00.0', vendor: 10de, device: '2236', class: '030200', iommuGroup: 5}
- {address: '0000:65:00.1', vendor: 144d, device: a808, class: '010802', iommuGroup: 5}";
        let rule = "match: {classes: [display]}, companions: bind";
        let mut bench = Bench::new(description, &format!("devices: [{{{rule}}}]"));
        let refusal = bench.refusal("0000:65:00.0");
        assert!(refusal.contains("also has 0000:65:00.1, of which it is not known") && refusal.contains("mountinfo"));
        bench.set_rules(&format!("devices: [{{{rule}, allowInUse: ['0000:65:00.1']}}]"));
        assert_eq!(bench.names(), ["pci-0000-65-00-0"]);
    }

    #[test]
    fn a_group_without_an_iommu_behind_it_is_refused_for_vfio() {
        let description = "
devices:
- {address: '0000:65:00.0', vendor: 10de, device: '2236', class: '030200', iommuGroup: 5, driver: vfio-pci, driverOverride: vfio-pci}
files: {sys/kernel/iommu_groups/5/name: \"vfio-noiommu\\n\"}";
        let mut bench = Bench::new(description, DISPLAYS);
        let refusal = bench.refusal("0000:65:00.0");
        assert!(refusal.contains("group 5 has no IOMMU behind it") && refusal.contains("intel_iommu=on"), "{refusal}");
        bench.set_rules("devices: [{match: {classes: [display]}, mode: none}]");
        assert_eq!(bench.names(), ["pci-0000-65-00-0"]);
    }

    const GROUP: &str = "
devices:
- {address: '0000:65:00.0', vendor: 10de, device: '2236', class: '030000', iommuGroup: 5}
- {address: '0000:65:00.1', vendor: 10de, device: 1aef, class: '040300', iommuGroup: 5}";

    #[test]
    fn a_companion_that_no_rule_selects_is_refused_unless_it_may_be_bound() {
        let mut bench = Bench::new(GROUP, DISPLAYS);
        let refusal = bench.refusal("0000:65:00.0");
        assert!(refusal.contains("0000:65:00.1, which no rule selects"), "{refusal}");
        bench.set_rules("devices: [{companions: bind, match: {classes: [display]}}]");
        let companions = bench.plan().entries["pci-0000-65-00-0"].settings.companions.clone();
        assert_eq!(companions, ["0000:65:00.1".parse().unwrap()]);
        bench.set_rules("exclude: [{classes: [audio]}]\ndevices: [{companions: bind, match: {classes: [display]}}]");
        assert!(bench.refusal("0000:65:00.0").contains("which exclude matches"));
    }

    #[test]
    fn devices_of_one_group_exclude_each_other() {
        let mut bench = Bench::new(GROUP, "devices: [{match: {ids: ['10de:*']}}]");
        let plan = bench.plan();
        assert_eq!(plan.sets, BTreeMap::from([("iommu-group-5".to_owned(), 1)]));
        for entry in plan.entries.values() {
            assert_eq!(entry.consumes, [("iommu-group-5".to_owned(), 1)]);
        }
    }

    /// A claim can ask for vfio whatever the rule says.
    #[test]
    fn devices_of_one_group_exclude_each_other_in_every_mode() {
        for mode in ["kernel", "none"] {
            let mut bench = Bench::new(GROUP, &format!("devices: [{{mode: {mode}, match: {{ids: ['10de:*']}}}}]"));
            let plan = bench.plan();
            assert_eq!(plan.entries.len(), 2);
            for entry in plan.entries.values() {
                assert_eq!(entry.consumes, [("iommu-group-5".to_owned(), 1)]);
            }
        }
    }

    #[test]
    fn a_companion_of_a_claims_device_is_not_free_when_only_it_has_a_rule() {
        let mut bench = Bench::new(GROUP, "devices: [{companions: bind, match: {classes: [display]}}]");
        bench.plan();
        bench.held.insert(Target::Function("0000:65:00.0".parse().unwrap()), PREPARED);
        bench.set_rules("devices: [{companions: bind, match: {classes: [audio]}}]");
        for _ in 0..2 {
            let plan = bench.plan();
            assert_eq!(plan.entries.len(), 2);
            for entry in plan.entries.values() {
                assert_eq!(entry.consumes, [("iommu-group-5".to_owned(), 1)]);
            }
            // And after a restart.
            bench.plan = None;
        }
    }

    #[test]
    fn a_companion_of_which_exclude_fails_is_refused() {
        let rules = "
exclude: [{cel: \"device.attributes['pci.drakkar.dev'].subclass != '3d' && device.attributes['pci.drakkar.dev'].rule == 'x'\"}]
devices: [{companions: bind, match: {ids: ['10de:2236']}}]";
        let description = GROUP.replace("030000", "030200");
        let mut bench = Bench::new(&description, rules);
        let refusal = bench.refusal("0000:65:00.0");
        assert!(refusal.contains("0000:65:00.1, of which it is not known whether exclude matches: exclude[0].cel"));
    }

    #[test]
    fn a_function_with_virtual_functions_of_others_stays() {
        let description = "
drivers: [{name: igb, ids: ['8086:*'], sriov: true}]
devices:
- address: '0000:01:00.0'
  vendor: '8086'
  device: 10c9
  class: '020000'
  iommuGroup: 1
  sriov: {totalVfs: 7, numVfs: 2, vfDevice: 10ca}";
        let mut bench = Bench::new(description, "devices: [{match: {ids: ['8086:*']}}]");
        assert!(bench.refusal("0000:01:00.0").contains("2 virtual functions"));
        assert_eq!(bench.names(), ["pci-0000-01-10-0", "pci-0000-01-10-1"]);
    }
}

mod virtual_functions {
    use super::*;

    const PF: &str = "
drivers: [{name: igb, ids: ['8086:10c9'], sriov: true}, {name: igbvf, ids: ['8086:10ca']}]
devices:
- address: '0000:01:00.0'
  vendor: '8086'
  device: 10c9
  class: '020000'
  iommuGroup: 1
  sriov: {totalVfs: 7, vfDevice: 10ca}";
    const ON_DEMAND: &str = "devices: [{match: {ids: ['8086:10c9']}, virtualFunctions: {count: 3}}]";

    #[test]
    fn functions_that_do_not_exist_yet_and_their_whole_exclude_each_other() {
        let mut bench = Bench::new(PF, ON_DEMAND);
        let plan = bench.plan().clone();
        assert_eq!(plan.sets, BTreeMap::from([("pci-0000-01-00-0".to_owned(), 3)]));
        let names: Vec<_> = plan.entries.keys().collect();
        assert_eq!(names, ["pci-0000-01-00-0", "vf-0000-01-00-0-0", "vf-0000-01-00-0-1", "vf-0000-01-00-0-2"]);
        assert_eq!(plan.entries["pci-0000-01-00-0"].consumes, [("pci-0000-01-00-0".to_owned(), 3)]);
        let function = &plan.entries["vf-0000-01-00-0-2"];
        assert_eq!(function.consumes, [("pci-0000-01-00-0".to_owned(), 1)]);
        assert_eq!(function.settings.virtual_functions, 3);
        assert_eq!(function.attributes["kind"], "vf".into());
        assert_eq!(function.attributes["vfIndex"], 2.into());
        assert_eq!(function.attributes["physicalFunction"], "0000:01:00.0".into());
        assert!(!function.attributes.contains_key("resource.kubernetes.io/pciBusID"));
    }

    #[test]
    fn a_function_keeps_its_name_when_it_is_made_and_gets_its_address() {
        let mut bench = Bench::new(PF, ON_DEMAND);
        let before = bench.names();
        bench.write("bus/pci/devices/0000:01:00.0/sriov_numvfs", "3");
        bench.held.insert(Target::VirtualFunction { physical: "0000:01:00.0".parse().unwrap(), index: 0 }, PREPARED);
        assert_eq!(bench.names(), before);
        let function = bench.plan().entries["vf-0000-01-00-0-1"].clone();
        assert_eq!(function.attributes["resource.kubernetes.io/pciBusID"], "0000:01:10.1".into());
        assert_eq!(function.attributes["deviceID"], "10ca".into());
        let decision = bench.plan().decisions[&"0000:01:10.1".parse().unwrap()].clone();
        assert_eq!(decision.names, ["vf-0000-01-00-0-1"]);
    }

    fn vf(index: u16) -> Target {
        Target::VirtualFunction { physical: "0000:01:00.0".parse().unwrap(), index }
    }

    fn with_group(bench: &Bench, functions: &[&str], group: u32) {
        bench.write("bus/pci/devices/0000:01:00.0/sriov_numvfs", "3");
        for function in functions {
            bench.simulation.change_group(function.parse().unwrap(), group).unwrap();
        }
    }

    #[test]
    fn functions_of_one_group_exclude_each_other() {
        let mut bench = Bench::new(PF, ON_DEMAND);
        with_group(&bench, &["0000:01:10.0", "0000:01:10.1"], 70);
        let plan = bench.plan();
        let group = ("iommu-group-70".to_owned(), 1);
        assert!(plan.entries["vf-0000-01-00-0-0"].consumes.contains(&group));
        assert!(plan.entries["vf-0000-01-00-0-1"].consumes.contains(&group));
        assert!(!plan.entries["vf-0000-01-00-0-2"].consumes.contains(&group));
    }

    #[test]
    fn a_function_in_one_group_with_its_physical_function_is_refused() {
        let mut bench = Bench::new(PF, ON_DEMAND);
        with_group(&bench, &["0000:01:10.0"], 1);
        let refusal = bench.refusal("0000:01:10.0");
        assert!(refusal.contains("also has 0000:01:00.0, which would lose its 3 virtual functions"), "{refusal}");
        assert_eq!(bench.names(), ["vf-0000-01-00-0-1", "vf-0000-01-00-0-2"]);
    }

    /// A reload must not make the whole free, nor the held function under another name; nor must a restart.
    #[test]
    fn the_whole_is_not_free_when_its_rule_has_no_virtual_functions_any_more() {
        let mut bench = Bench::new(PF, ON_DEMAND);
        bench.write("bus/pci/devices/0000:01:00.0/sriov_numvfs", "3");
        let address = Some("0000:01:10.0".parse().unwrap());
        bench.held.insert(vf(0), Held { address, ..PREPARED });
        bench.plan();
        bench.set_rules("devices: [{match: {ids: ['8086:*']}}]");
        for _ in 0..2 {
            assert_eq!(bench.names(), ["vf-0000-01-00-0-0"]);
            assert!(bench.refusal("0000:01:00.0").contains("a claim holds vf-0000-01-00-0-0"));
            assert!(bench.refusal("0000:01:10.0").contains("a claim holds vf-0000-01-00-0-0"));
            let entry = bench.plan().entries["vf-0000-01-00-0-0"].clone();
            assert_eq!(entry.taint, Some(Taint::Unselected));
            assert_eq!(entry.attributes["resource.kubernetes.io/pciBusID"], "0000:01:10.0".into());
            bench.plan = None;
        }
        bench.held.clear();
        bench.write("bus/pci/devices/0000:01:00.0/sriov_numvfs", "0");
        assert_eq!(bench.names(), ["pci-0000-01-00-0"]);
    }

    #[test]
    fn only_existing_functions_are_published_without_on_demand() {
        let rules = "devices: [{match: {ids: ['8086:10c9']}, virtualFunctions: {count: max, onDemand: false}}]";
        let mut bench = Bench::new(PF, rules);
        assert_eq!(bench.names(), ["pci-0000-01-00-0"]);
        bench.write("bus/pci/devices/0000:01:00.0/sriov_numvfs", "2");
        assert_eq!(bench.names(), ["vf-0000-01-00-0-0", "vf-0000-01-00-0-1"]);
        assert!(bench.refusal("0000:01:00.0").contains("that this driver has not made"));
    }
}

mod mediated {
    use super::*;

    fn gpu(homogeneous: bool) -> String {
        format!(
            "
drivers: [{{name: nvidia, ids: ['10de:*']}}]
devices:
- address: '0000:65:00.0'
  vendor: 10de
  device: '2236'
  class: '030200'
  iommuGroup: 5
  numaNode: 0
  mdev:
    capacity: 4
    homogeneous: {homogeneous}
    types:
    - {{id: nvidia-63, name: GRID A10-1Q, cost: 1}}
    - {{id: nvidia-64, name: GRID A10-2Q, cost: 2}}"
        )
    }
    const TYPES: &str = "devices: [{match: {classes: [display]}, mdevTypes: ['nvidia-*']}]";
    const UUID: &str = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001";

    fn slot(type_id: &str, slot: u32) -> Target {
        let parent = drakkar_sysfs::MdevParentName::Pci("0000:65:00.0".parse().unwrap());
        Target::NewMdev { parent, type_id: type_id.to_owned(), slot }
    }

    #[test]
    fn types_share_the_units_of_their_parent() {
        let mut bench = Bench::new(&gpu(false), TYPES);
        let plan = bench.plan();
        assert_eq!(plan.sets, BTreeMap::from([("pci-0000-65-00-0".to_owned(), 4)]));
        assert_eq!(plan.entries.len(), 4 + 2 + 1);
        let units = |name: &str| plan.entries[name].consumes.clone();
        assert_eq!(units("mdev-0000-65-00-0-nvidia-63-3"), [("pci-0000-65-00-0".to_owned(), 1)]);
        assert_eq!(units("mdev-0000-65-00-0-nvidia-64-1"), [("pci-0000-65-00-0".to_owned(), 2)]);
        assert_eq!(units("pci-0000-65-00-0"), [("pci-0000-65-00-0".to_owned(), 4)]);
        let attributes = &plan.entries["mdev-0000-65-00-0-nvidia-64-1"].attributes;
        assert_eq!(attributes["kind"], "mdev".into());
        assert_eq!(attributes["mdevType"], "nvidia-64".into());
        assert_eq!(attributes["mdevTypeName"], "GRID A10-2Q".into());
        assert_eq!(attributes["mdevParent"], "0000:65:00.0".into());
        assert!(!attributes.contains_key("resource.kubernetes.io/pciBusID"), "KubeVirt would take it for the address");
    }

    #[test]
    fn instances_of_claims_change_nothing_for_the_scheduler_that_counts_them() {
        let mut bench = Bench::new(&gpu(false), TYPES);
        let before = bench.plan().clone();
        bench.create_mdev("0000:65:00.0", "nvidia-64", UUID);
        bench.held.insert(slot("nvidia-64", 1), made(UUID));
        let after = bench.plan();
        assert_eq!(after.entries, before.entries);
        assert_eq!(after.sets, before.sets);
    }

    /// Neither a reload nor a restart makes free what an instance takes.
    #[test]
    fn the_whole_is_not_free_when_its_rule_has_no_types_any_more() {
        let mut bench = Bench::new(&gpu(false), TYPES);
        bench.plan();
        bench.create_mdev("0000:65:00.0", "nvidia-64", UUID);
        bench.held.insert(slot("nvidia-64", 1), made(UUID));
        for types in ["", ", mdevTypes: [nvidia-63]"] {
            bench.set_rules(&format!("devices: [{{match: {{classes: [display]}}{types}}}]"));
            for _ in 0..2 {
                let plan = bench.plan();
                let set = "pci-0000-65-00-0".to_owned();
                let total = plan.sets[&set];
                let held = &plan.entries["mdev-0000-65-00-0-nvidia-64-1"];
                assert_eq!((&held.consumes, held.taint), (&vec![(set.clone(), total / 2)], Some(Taint::Unselected)));
                assert_eq!(plan.entries["pci-0000-65-00-0"].consumes, [(set, total)]);
                assert!(!plan.entries.contains_key("mdev-0000-65-00-0-nvidia-64-0"));
                (bench.plan, bench.max_instances) = (None, MaxInstances::default());
            }
        }
    }

    /// An instance that is gone and of which the event has not come is not counted beside the room that it left.
    #[test]
    fn the_most_instances_are_counted_at_one_time() {
        let bench = Bench::new(&gpu(false), TYPES);
        let sysfs = bench.simulation.sysfs();
        bench.create_mdev("0000:65:00.0", "nvidia-63", UUID);
        let mut inventory = Inventory::scan(&sysfs).unwrap();
        bench.write(&format!("bus/mdev/devices/{UUID}/remove"), "1");
        let address: PciAddress = "0000:65:00.0".parse().unwrap();
        let now = Inventory::scan(&sysfs).unwrap().devices.remove(&address).unwrap();
        inventory.devices.insert(address, now);
        assert_eq!(inventory.mdevs.len(), 1, "it is not known yet that it is gone");
        let mut max_instances = MaxInstances::default();
        max_instances.update(&inventory);
        let mut exact = MaxInstances::default();
        exact.update(&Inventory::scan(&sysfs).unwrap());
        assert_eq!(max_instances, exact);
    }

    #[test]
    fn an_instance_whose_claim_has_just_ended_is_nobody_elses() {
        let mut bench = Bench::new(&gpu(false), TYPES);
        let before = bench.plan().clone();
        bench.held.insert(slot("nvidia-64", 1), made(UUID));
        bench.plan();
        bench.create_mdev("0000:65:00.0", "nvidia-64", UUID);
        bench.plan();
        // The driver has removed it, and the event has not come.
        bench.held.clear();
        assert_eq!(bench.plan().entries, before.entries);
        bench.write(&format!("bus/mdev/devices/{UUID}/remove"), "1");
        bench.plan();
        // Somebody else makes one of the same UUID.
        bench.create_mdev("0000:65:00.0", "nvidia-64", UUID);
        assert!(bench.plan().entries.contains_key(&format!("mdev-{UUID}")));
    }

    #[test]
    fn instances_of_others_are_published_with_their_uuid_and_take_units() {
        let mut bench = Bench::new(&gpu(false), TYPES);
        bench.plan();
        bench.create_mdev("0000:65:00.0", "nvidia-64", UUID);
        let plan = bench.plan();
        let existing = &plan.entries[&format!("mdev-{UUID}")];
        assert_eq!(existing.attributes["mdevUUID"], UUID.into());
        assert_eq!(existing.consumes, []);
        assert_eq!(plan.sets["pci-0000-65-00-0"], 2);
        assert!(!plan.entries.contains_key("pci-0000-65-00-0"), "the whole would take the instance away");
        assert!(bench.refusal("0000:65:00.0").contains(UUID));
    }

    #[test]
    fn a_device_of_one_type_at_a_time_offers_the_other_type_no_more() {
        let mut bench = Bench::new(&gpu(true), TYPES);
        assert_eq!(bench.names().len(), 7);
        bench.create_mdev("0000:65:00.0", "nvidia-63", UUID);
        bench.held.insert(slot("nvidia-63", 0), made(UUID));
        let names = bench.names();
        assert!(names.iter().all(|name| !name.contains("nvidia-64")), "{names:?}");
        assert_eq!(names.iter().filter(|name| name.contains("nvidia-63")).count(), 4);
    }

    #[test]
    fn parents_that_are_no_pci_devices() {
        let description = "mdevParents: [{name: mtty, capacity: 2, types: [{id: mtty-1}, {id: mtty-2, cost: 2}]}]";
        let mut bench = Bench::new(description, "devices: [{match: {parents: [mtty]}, mdevTypes: ['*']}]");
        let plan = bench.plan();
        let names: Vec<_> = plan.entries.keys().collect();
        assert_eq!(names, ["mdev-mtty-mtty-1-0", "mdev-mtty-mtty-1-1", "mdev-mtty-mtty-2-0"]);
        assert_eq!(plan.sets, BTreeMap::from([("parent-mtty".to_owned(), 2)]));
    }
}

mod held {
    use super::*;

    fn gpu() -> Target {
        Target::Function("0000:65:00.0".parse().unwrap())
    }

    fn taint(plan: &Plan) -> Option<Taint> {
        plan.entries.get("pci-0000-65-00-0").and_then(|entry| entry.taint)
    }

    #[test]
    fn a_device_that_no_rule_selects_any_more_is_tainted_until_its_claim_ends() {
        let mut bench = Bench::new(ONE_GPU, DISPLAYS);
        bench.plan();
        bench.held.insert(gpu(), PREPARED);
        bench.set_rules("devices: []");
        assert_eq!(taint(bench.plan()), Some(Taint::Unselected));
        assert_eq!(bench.plan().entries["pci-0000-65-00-0"].attributes["vendorID"], "10de".into());
        bench.held.clear();
        assert_eq!(bench.names(), Vec::<String>::new());
    }

    #[test]
    fn a_device_that_is_gone_is_tainted_while_a_claim_has_it_and_comes_back() {
        let mut bench = Bench::new(ONE_GPU, DISPLAYS);
        bench.plan();
        bench.held.insert(gpu(), PREPARED);
        bench.simulation.remove_device("0000:65:00.0".parse().unwrap()).unwrap();
        assert_eq!(taint(bench.plan()), Some(Taint::Gone));
        let resources = bench.plan().resources("node-1");
        let taint_of_slice = resources.pools["node-1"].devices.get(0).unwrap().taints[0].clone();
        assert_eq!((taint_of_slice.key.as_str(), taint_of_slice.effect.as_str()), (GONE, "NoExecute"));
        let description: Description = serde_saphyr::from_str(ONE_GPU).unwrap();
        bench.simulation.add_device(&description.devices[0]).unwrap();
        assert_eq!(taint(bench.plan()), None);
        bench.held.clear();
        bench.simulation.remove_device("0000:65:00.0".parse().unwrap()).unwrap();
        assert_eq!(bench.names(), Vec::<String>::new());
    }

    #[test]
    fn a_device_that_does_not_answer_gets_no_new_pods() {
        let mut bench = Bench::new(ONE_GPU, DISPLAYS);
        bench.simulation.set_attribute("0000:65:00.0".parse().unwrap(), "config", &[0xff; 64]).unwrap();
        assert_eq!(taint(bench.plan()), Some(Taint::Unresponsive));
    }

    #[test]
    fn a_held_device_of_an_earlier_process_is_kept_though_nothing_is_known_of_it() {
        let mut bench = Bench::new("{}", DISPLAYS);
        bench.held.insert(gpu(), PREPARED);
        assert_eq!(taint(bench.plan()), Some(Taint::Gone));
    }
}

mod scale {
    use std::time::Instant;

    use drakkar_plugin::DriverResources;
    use drakkar_sysfs::simulation::Device;

    use super::*;
    use crate::devices::{Devices, Scan};
    use crate::metrics::Metrics;

    /// An event about one of 1,000 devices reads that device and publishes at most once. The time is printed; a busy machine must
    /// not fail the test.
    #[test]
    fn an_event_about_one_of_a_thousand_devices() {
        let address = |number: u32| format!("{:04x}:{:02x}:00.0", number / 200, number % 200).parse().unwrap();
        let devices = (0..1000).map(|number| {
            let mut device = Device::new(address(number), 0x10de, 0x2236, 0x03_0200);
            device.iommu_group = Some(number);
            device
        });
        let description = Description { devices: devices.collect(), ..Description::default() };
        let directory = tempfile::tempdir().unwrap();
        let simulation = Simulation::create(directory.path(), &description).unwrap();
        let events = simulation.uevents();
        let sysfs = simulation.sysfs();
        let numa = Numa::new(simulation.roots().sys, NumaForm::Number);
        let rules = "devices: [{match: {cel: \"device.attributes['pci.drakkar.dev'].model.contains('A10')\"}}]";
        let (sender, published) = std::sync::mpsc::channel::<DriverResources>();
        let started = Instant::now();
        let scan = Scan::new(sysfs.clone()).unwrap();
        let publish = move |resources| sender.send(resources).unwrap();
        let devices = Devices::new(scan, "node-1", config(rules), numa, Metrics::default(), Default::default, publish);
        devices.publish();
        eprintln!("scan, selection and plan of 1,000 devices: {:?}", started.elapsed());
        assert_eq!(published.try_recv().unwrap().pools["node-1"].devices.len(), 1000);

        simulation.remove_device(address(7)).unwrap();
        let batch: Vec<_> = events.try_iter().collect();
        let opens = sysfs.opens();
        let started = Instant::now();
        devices.apply(&batch).unwrap();
        eprintln!("one event of 1,000 devices: {:?}, {} files opened", started.elapsed(), sysfs.opens() - opens);
        assert_eq!(published.try_recv().unwrap().pools["node-1"].devices.len(), 999);
        assert!(sysfs.opens() - opens < 100, "no walk over all devices");
        devices.apply(&batch).unwrap();
        assert!(published.try_recv().is_err(), "what has not changed is not published");
    }
}
