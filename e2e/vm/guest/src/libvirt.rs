//! From metadata files to a domain that libvirt starts: the files of a claim with a PCI device and a mediated device, the VMI
//! that names it, the XML that comes of both, and QEMU with the devices attached.
//!
//! The devices are bound and made before, as the driver does it, and put back after: KubeVirt's host devices are not managed by
//! libvirt.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};
use drakkar_kubevirt::device_plugin::Environment;
use drakkar_kubevirt::hostdev::{Options, host_devices};
use drakkar_kubevirt::resolve::Resolver;
use drakkar_kubevirt::vmi::Workload;
use drakkar_kubevirt::xml::{self, Form};
use drakkar_metadata::{Device, Metadata, ObjectMeta, Request, Versions, encode};
use drakkar_sysfs::{Binding, MdevParentName, bind_to, create_mdev, remove_mdev, restore};

use crate::debian::Debian;
use crate::ensure_eq;
use crate::guest::{Guest, modprobe, names, run, wait};
use crate::mediated::uuid;

const DRIVER: &str = "pci.drakkar.example";

const VMI: &str = "
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: vm, namespace: default}
spec:
  resourceClaims:
  - {name: devices, resourceClaimTemplateName: devices}
  domain:
    devices:
      gpus:
      - {name: card, claimName: devices, requestName: card}
      hostDevices:
      - {name: port, claimName: devices, requestName: port}
";

/// As small as a domain can be: no display, no disk. It never runs.
const DOMAIN: &str = "\
<domain type='qemu'>
  <name>vm</name>
  <memory unit='MiB'>64</memory>
  <vcpu>1</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <features><acpi/></features>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
</domain>
";

/// What libvirt needs of other services is not there: no login manager, no log daemon, no users.
const QEMU_CONF: &str = "user = \"root\"\ngroup = \"root\"\nsecurity_driver = \"none\"\nstdio_handler = \"file\"\n\
                         namespaces = []\ncgroup_controllers = []\nremember_owner = 0\n";

pub(crate) fn test(guest: &mut Guest) -> Result<()> {
    for module in ["vfio-pci", "vfio_iommu_type1", "mtty"] {
        modprobe(module)?;
    }
    let sysfs = guest.sysfs.clone();
    let nic = guest.address("nic2")?;
    let former = Binding::read(&sysfs, nic)?.context("nic2")?;
    let mdev = uuid(0x77);
    bind_to(&sysfs, nic, "vfio-pci")?;
    create_mdev(&sysfs, &MdevParentName::Other("mtty".to_owned()), "mtty-2", &mdev)?;

    let root = Path::new("/run/launcher");
    write_metadata(root, "card", "resource.kubernetes.io/pciBusID", &nic.to_string())?;
    write_metadata(root, "port", "mdevUUID", &mdev)?;
    let workload = Workload::from_yaml(VMI)?;
    let resolver = Resolver::with_root(root)?;
    let devices = host_devices(workload.vmi(), &resolver, &Environment::default(), &Options::default())?;
    println!("{}", xml::write(&devices, Form::Canonical));
    let domain = xml::edit::put_hostdevs(DOMAIN, &devices)?;

    let debian = Debian::mount()?;
    let mut libvirt = Libvirt::start(&debian)?;
    let path = debian.path("/tmp/domain.xml");
    fs::write(&path, &domain).with_context(|| format!("write {}", path.display()))?;
    libvirt.virsh(&["define", "--validate", "/tmp/domain.xml"])?;
    libvirt.virsh(&["start", "--paused", "vm"])?;
    ensure_eq!(libvirt.virsh(&["domstate", "vm"])?.trim(), "paused");
    let tree = libvirt.virsh(&["qemu-monitor-command", "--hmp", "vm", "info qtree"])?;
    for expected in [format!("host = \"{nic}\""), format!("{mdev}\"")] {
        ensure!(tree.contains(&expected), "no {expected} in QEMU's devices:\n{tree}");
    }
    ensure_eq!(tree.matches("dev: vfio-pci,").count(), 2, "{tree}");
    for alias in ["ua-dra-gpu-card", "ua-dra-hostdevice-port"] {
        ensure!(tree.contains(&format!("dev: vfio-pci, id \"{alias}\"")), "no {alias} in {tree}");
    }
    let open = open_groups()?;
    let inventory = guest.scan()?;
    let mut groups = vec![
        inventory.devices[&nic].iommu_group.context("a group")?,
        inventory.mdevs[&mdev].iommu_group.context("a group")?,
    ];
    groups.sort_unstable();
    ensure_eq!(open, groups, "the groups that QEMU has open");

    libvirt.virsh(&["destroy", "vm"])?;
    ensure_eq!(open_groups()?.len(), 0);
    // Not managed: libvirt leaves the driver alone.
    ensure_eq!(Binding::read(&sysfs, nic)?.context("nic2")?.driver.as_deref(), Some("vfio-pci"));
    libvirt.stop()?;
    remove_mdev(&sysfs, &mdev)?;
    restore(&sysfs, nic, Some("vfio-pci"), &former)?;
    ensure_eq!(Binding::read(&sysfs, nic)?.as_ref(), Some(&former));
    Ok(())
}

/// Writes the file of a request as a driver does.
fn write_metadata(root: &Path, request: &str, attribute: &str, value: &str) -> Result<()> {
    let metadata = Metadata {
        metadata: ObjectMeta {
            name: "vm-devices".into(),
            namespace: "default".into(),
            generation: 1,
            ..ObjectMeta::default()
        },
        requests: vec![Request {
            name: request.into(),
            devices: vec![Device {
                driver: DRIVER.into(),
                pool: "node".into(),
                name: request.into(),
                attributes: [(attribute.into(), value.into())].into(),
                ..Device::default()
            }],
        }],
        ..Metadata::default()
    };
    let directory =
        root.join("var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/devices").join(request);
    fs::create_dir_all(&directory)?;
    fs::write(directory.join(format!("{DRIVER}-metadata.json")), encode(&metadata, &"v1alpha1".parse::<Versions>()?))?;
    Ok(())
}

/// The groups that a process has open.
fn open_groups() -> Result<Vec<u32>> {
    let mut groups = Vec::new();
    for process in names("/proc").iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
        for descriptor in names(format!("/proc/{process}/fd")) {
            let Ok(target) = fs::read_link(format!("/proc/{process}/fd/{descriptor}")) else { continue };
            // The release has its own view of /dev.
            let target = target.display().to_string();
            groups.extend(target.rsplit_once("/dev/vfio/").and_then(|(_, group)| group.parse::<u32>().ok()));
        }
    }
    groups.sort_unstable();
    groups.dedup();
    Ok(groups)
}

/// A running libvirtd.
struct Libvirt<'a> {
    debian: &'a Debian,
    daemon: Child,
}

impl<'a> Libvirt<'a> {
    fn start(debian: &'a Debian) -> Result<Self> {
        fs::write(debian.path("/etc/libvirt/qemu.conf"), QEMU_CONF)?;
        fs::write(debian.path("/etc/machine-id"), "0123456789abcdef0123456789abcdef\n")?;
        let mut command = debian.command("/usr/sbin/libvirtd");
        let daemon = command.stdin(Stdio::null()).spawn().with_context(|| format!("run {command:?}"))?;
        let mut libvirt = Self { debian, daemon };
        wait("libvirtd", || {
            ensure!(libvirt.daemon.try_wait()?.is_none(), "libvirtd has ended");
            Ok(debian.path("/run/libvirt/libvirt-sock").exists())
        })?;
        Ok(libvirt)
    }

    fn virsh(&mut self, arguments: &[&str]) -> Result<String> {
        println!("virsh {}", arguments.join(" "));
        run(self.debian.command("/usr/bin/virsh").args(["-c", "qemu:///system"]).args(arguments))
    }

    fn stop(mut self) -> Result<()> {
        self.daemon.kill()?;
        self.daemon.wait()?;
        Ok(())
    }
}

impl Drop for Libvirt<'_> {
    fn drop(&mut self) {
        // It may have ended.
        self.daemon.kill().ok();
        self.daemon.wait().ok();
    }
}
