//! What claims get in each mode.

use std::path::PathBuf;

use rstest::rstest;

use super::machine::{AUDIO, DISK, GPU, Machine, NIC, claim, description, function, gpu_with_audio, mdev, vf};
use crate::mode::{IommuBackend, Mode};
use crate::prepare::DeviceRequest;
use crate::target::Target;

fn paths(nodes: &[&str]) -> Vec<PathBuf> {
    nodes.iter().map(PathBuf::from).collect()
}

#[rstest]
#[case(IommuBackend::Auto, true, &["/dev/vfio/devices/vfio0", "/dev/iommu", "/dev/vfio/5", "/dev/vfio/vfio"])]
#[case(IommuBackend::Iommufd, true, &["/dev/vfio/devices/vfio0", "/dev/iommu"])]
#[case(IommuBackend::Legacy, true, &["/dev/vfio/5", "/dev/vfio/vfio"])]
#[case(IommuBackend::Auto, false, &["/dev/vfio/5", "/dev/vfio/vfio"])]
fn a_function_for_user_space_has_the_nodes_of_its_backend(
    #[case] iommu_backend: IommuBackend,
    #[case] cdev: bool,
    #[case] nodes: &[&str],
) {
    let mut description = description();
    description.vfio.cdev = cdev;
    let machine = Machine::with(&description);
    let request = DeviceRequest { iommu_backend, iommu_group: Some(5), ..function(DISK) };
    let devices = machine.start().prepare(&claim("a"), &[request]).unwrap();
    assert_eq!(devices[0].nodes, paths(nodes));
    assert_eq!((devices[0].driver.as_deref(), devices[0].iommu_group), (Some("vfio-pci"), Some(5)));
    let id = devices[0].cdi_id.as_ref().unwrap().to_string();
    assert_eq!(id, format!("pci.drakkar.dev/device={}_pci-0000-03-00-0", claim("a").uid));
    assert_eq!(machine.spec(&claim("a")), [(id, nodes.iter().map(ToString::to_string).collect())].into());
}

#[test]
fn a_companion_goes_along_and_comes_back() {
    let machine = Machine::new();
    let manager = machine.start();
    let devices = manager.prepare(&claim("a"), &[gpu_with_audio()]).unwrap();
    assert_eq!(devices[0].companions, [AUDIO.parse().unwrap()]);
    assert_eq!(machine.driver(AUDIO).as_deref(), Some("vfio-pci"));
    assert_eq!(machine.driver("0000:64:00.0").as_deref(), Some("pcieport"), "a bridge keeps its driver");
    let former = manager.former_drivers();
    assert_eq!(former[&GPU.parse().unwrap()].as_deref(), Some("nvidia"));
    manager.unprepare(&claim("a").uid).unwrap();
    assert_eq!(machine.driver(AUDIO).as_deref(), Some("snd_hda_intel"));
}

#[test]
fn the_kernel_driver_is_kept_and_its_nodes_are_given() {
    let machine = Machine::new();
    let manager = machine.start();
    let writes = machine.kernel.writes();
    let requests = [GPU, DISK, NIC].map(|device| DeviceRequest { mode: Mode::Kernel, ..function(device) });
    let devices = manager.prepare(&claim("a"), &requests).unwrap();
    assert_eq!(devices[0].nodes, paths(&["/dev/dri/card0", "/dev/dri/renderD128"]));
    assert_eq!(devices[1].nodes, paths(&["/dev/nvme0", "/dev/nvme0n1"]));
    assert_eq!((&devices[2].nodes, &devices[2].cdi_id), (&Vec::new(), &None));
    assert_eq!(machine.spec(&claim("a")).len(), 2, "a container gets the nodes of its own request only");
    manager.unprepare(&claim("a").uid).unwrap();
    assert_eq!(machine.kernel.writes(), writes);
}

#[test]
fn a_device_that_is_not_to_be_touched_is_not() {
    let machine = Machine::new();
    let manager = machine.start();
    let writes = machine.kernel.writes();
    let devices = manager.prepare(&claim("a"), &[DeviceRequest { mode: Mode::None, ..function(GPU) }]).unwrap();
    assert_eq!((devices[0].driver.as_deref(), &devices[0].cdi_id), (Some("nvidia"), &None));
    assert!(manager.prepare(&claim("b"), &[gpu_with_audio()]).is_err());
    manager.unprepare(&claim("a").uid).unwrap();
    assert_eq!(machine.kernel.writes(), writes);
}

#[test]
fn a_virtual_function_is_made_when_it_is_needed() {
    let machine = Machine::new();
    let manager = machine.start();
    let devices = manager.prepare(&claim("a"), &[vf(2)]).unwrap();
    assert_eq!(devices[0].address, Some("0000:17:10.2".parse().unwrap()));
    assert_eq!(machine.driver("0000:17:10.2").as_deref(), Some("vfio-pci"));
    assert_eq!(machine.driver("0000:17:10.3").as_deref(), Some("igbvf"), "four are made, one is given");
    manager.unprepare(&claim("a").uid).unwrap();
    assert!(!machine.exists("sys/bus/pci/devices/0000:17:10.2"));
}

#[test]
fn a_mediated_device_is_made_and_removed_and_one_that_exists_stays() {
    let machine = Machine::new();
    let manager = machine.start();
    let devices = manager.prepare(&claim("a"), &[mdev("nvidia-2", 0)]).unwrap();
    let uuid = devices[0].mdev_uuid.clone().unwrap();
    assert_eq!(machine.mdevs(), [uuid.as_str()]);
    let group = devices[0].iommu_group.unwrap();
    assert!(devices[0].nodes.contains(&format!("/dev/vfio/{group}").into()), "{devices:?}");
    let existing = DeviceRequest::new(Target::Mdev { uuid: uuid.clone() });
    manager.prepare(&claim("b"), std::slice::from_ref(&existing)).unwrap();
    manager.unprepare(&claim("b").uid).unwrap();
    assert_eq!(machine.mdevs(), [uuid]);
    manager.unprepare(&claim("a").uid).unwrap();
    assert_eq!(machine.mdevs(), Vec::<String>::new());
    assert!(manager.prepare(&claim("b"), &[existing]).unwrap_err().is_gone());
    let parent = drakkar_sysfs::MdevParentName::Other("mtty".into());
    let target = Target::NewMdev { parent, type_id: "mtty-1".into(), slot: 0 };
    manager.prepare(&claim("c"), &[DeviceRequest::new(target)]).unwrap();
    assert_eq!(machine.mdevs().len(), 1);
}

#[test]
fn preparing_again_gives_the_same_answer_and_writes_nothing() {
    let machine = Machine::new();
    let manager = machine.start();
    let requests = [gpu_with_audio(), vf(0), function(DISK)];
    let first = manager.prepare(&claim("a"), &requests).unwrap();
    let writes = machine.kernel.writes();
    let modified = |path: &str| std::fs::metadata(machine.path(path)).unwrap().modified().unwrap();
    let files = machine.driver_files();
    let times: Vec<_> = files.iter().map(|file| modified(file)).collect();
    assert_eq!(manager.prepare(&claim("a"), &requests).unwrap(), first);
    assert_eq!(manager.prepared(&claim("a").uid), Some(first));
    assert_eq!(machine.kernel.writes(), writes);
    assert_eq!(files.iter().map(|file| modified(file)).collect::<Vec<_>>(), times);
    // What somebody else has undone is done again.
    drakkar_sysfs::unbind(&machine.kernel.sysfs(), DISK.parse().unwrap()).unwrap();
    manager.prepare(&claim("a"), &requests).unwrap();
    assert_eq!(machine.driver(DISK).as_deref(), Some("vfio-pci"));
    manager.unprepare(&claim("a").uid).unwrap();
    manager.unprepare(&claim("a").uid).unwrap();
    assert_eq!(machine.driver(DISK).as_deref(), Some("nvme"));
}
