//! A node with simulated interfaces and namespaces, and a driver that can die at any step.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use drakkar_driver_kit::files::faults::{Life, MortalFiles};
use drakkar_metadata::name::ClaimUid;
use drakkar_netlink::NamespaceId;
use drakkar_plugin::{BoxError, ClaimRef};
use drakkar_sysfs::PciAddress;
use tempfile::TempDir;

use crate::attach::{
    AttachError, AttachFailure, Attachment, Former, Identity, InterfacePlan, PodNamespace, RdmaIdentity,
};
use crate::attacher::{Attacher, InPod, PodInterface, Sandbox};
use crate::binder::{Binder, BoundFunction};
use crate::claim_config::ClaimConfig;
use crate::claims::{Claims, ClaimsError, Patience, Recovery, Wanted};
use crate::journal::Record;
use crate::published::Found;
use crate::restore::{Outcome, Restored};

/// Where an interface is, and how it is called there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// `None`: on the host.
    pub(crate) namespace: Option<PathBuf>,
    pub(crate) name: String,
    pub(crate) mtu: u32,
}

/// The kernel of a simulated node.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    /// By index.
    pub(crate) interfaces: BTreeMap<u32, Place>,
    /// Those that were made on top of others: namespace and name.
    pub(crate) children: BTreeSet<(PathBuf, String)>,
    pub(crate) namespaces: BTreeMap<PathBuf, u64>,
    /// The names of interfaces that the pod has already.
    pub(crate) refused: BTreeSet<String>,
    /// Whether interfaces cannot be brought back.
    pub(crate) is_stuck: bool,
    pub(crate) bound: BTreeMap<ClaimUid, Vec<PciAddress>>,
}

impl Kernel {
    /// Ends a namespace, as the kernel does: physical interfaces return under the names that they had in it.
    pub(crate) fn end_namespace(&mut self, path: &Path) {
        self.namespaces.remove(path);
        self.children.retain(|(namespace, _)| namespace != path);
        for place in self.interfaces.values_mut().filter(|place| place.namespace.as_deref() == Some(path)) {
            place.namespace = None;
        }
    }
}

/// The network of a process with a limited life: each change is a step.
#[derive(Debug)]
struct MortalNetwork {
    kernel: Arc<Mutex<Kernel>>,
    life: Arc<Life>,
}

impl MortalNetwork {
    fn change(&self, change: impl FnOnce(&mut Kernel)) -> std::io::Result<()> {
        self.life.step()?;
        change(&mut self.kernel.lock().unwrap());
        Ok(())
    }

    fn attach_step(&self, change: impl FnOnce(&mut Kernel)) -> Result<(), AttachError> {
        self.change(change).map_err(|error| failure(error.to_string()).into())
    }
}

/// An error of the kernel.
fn failure(operation: String) -> AttachFailure {
    AttachFailure::Kernel(refused(operation))
}

fn refused(operation: String) -> drakkar_netlink::Error {
    drakkar_netlink::Error::Refused { operation, errno: drakkar_netlink::Errno::INVAL, message: None }
}

impl Attacher for MortalNetwork {
    fn inspect(
        &self,
        plan: &InterfacePlan,
        namespace: &Path,
        _deadline: Option<Instant>,
    ) -> Result<Attachment, AttachFailure> {
        let id = self.namespace(namespace).ok_or_else(|| failure("no such namespace".to_owned()))?;
        let kernel = self.kernel.lock().unwrap();
        let place = kernel.interfaces.get(&plan.host.index).filter(|place| place.namespace.is_none());
        let place = place.ok_or_else(|| AttachFailure::NotFound(Box::new(plan.host.clone())))?;
        let former = Former {
            identity: Identity { name: place.name.clone(), ..plan.host.clone() },
            alias: None,
            alt_names: None,
            mtu: place.mtu,
            hardware_address: None,
            is_up: true,
            master: None,
            addresses: Vec::new(),
            routes: Vec::new(),
        };
        let former = plan.child.is_none().then_some(former);
        let namespace = PodNamespace { path: namespace.to_owned(), id };
        Ok(Attachment { plan: plan.clone(), name: plan.name.clone(), namespace, index: None, former })
    }

    fn attach(&self, attachment: &Attachment, _deadline: Option<Instant>) -> Result<PodInterface, AttachError> {
        let Attachment { plan, name, namespace, .. } = attachment;
        let index = plan.host.index;
        let set =
            |kernel: &mut Kernel, change: &dyn Fn(&mut Place)| kernel.interfaces.get_mut(&index).map(change).unwrap();
        if plan.child.is_some() {
            self.attach_step(|kernel| kernel.children.extend([(namespace.path.clone(), name.clone())]))?;
        } else {
            self.attach_step(|kernel| set(kernel, &|place| place.namespace = Some(namespace.path.clone())))?;
            self.attach_step(|kernel| set(kernel, &|place| place.name.clone_from(name)))?;
            self.attach_step(|kernel| set(kernel, &|place| place.mtu = plan.mtu.unwrap_or(place.mtu)))?;
        }
        let kernel = self.kernel.lock().unwrap();
        if kernel.refused.contains(name) {
            return Err(AttachFailure::NameTaken { name: name.clone() }.into());
        }
        Ok(PodInterface {
            name: name.clone(),
            index: None,
            hardware_address: Some("02:00:00:00:00:01".to_owned()),
            mtu: kernel.interfaces[&index].mtu,
            addresses: plan.addresses.iter().map(|address| address.address).collect(),
        })
    }

    fn look(&self, attachment: &Attachment) -> drakkar_netlink::Result<InPod> {
        let is_there = self.kernel.lock().unwrap().namespaces.contains_key(&attachment.namespace.path);
        Ok(if is_there { InPod::Found { is_up: true, carrier: Some(true) } } else { InPod::NoNamespace })
    }

    fn restore(&self, attachment: &Attachment) -> drakkar_netlink::Result<Restored> {
        let Attachment { plan, name, namespace, former, .. } = attachment;
        if self.kernel.lock().unwrap().is_stuck {
            return Ok(Restored::new(Outcome::NotFound));
        }
        let step = |change: &dyn Fn(&mut Kernel)| self.change(change).map_err(|error| refused(error.to_string()));
        let Some(former) = former else {
            let child = (namespace.path.clone(), name.clone());
            step(&|kernel| kernel.children.retain(|other| *other != child))?;
            return Ok(Restored::new(Outcome::Deleted));
        };
        let set = |kernel: &mut Kernel, change: &dyn Fn(&mut Place)| {
            kernel.interfaces.get_mut(&plan.host.index).into_iter().for_each(change);
        };
        step(&|kernel| set(kernel, &|place| place.mtu = former.mtu))?;
        step(&|kernel| set(kernel, &|place| place.name.clone_from(&former.identity.name)))?;
        step(&|kernel| set(kernel, &|place| place.namespace = None))?;
        Ok(Restored::new(Outcome::OnHost(former.identity.name.clone())))
    }

    fn rdma(&self, _name: &str) -> drakkar_netlink::Result<Option<RdmaIdentity>> {
        Ok(None)
    }

    fn namespace(&self, path: &Path) -> Option<NamespaceId> {
        let inode = *self.kernel.lock().unwrap().namespaces.get(path)?;
        Some(NamespaceId { device: 4, inode })
    }
}

impl Binder for MortalNetwork {
    fn bind(&self, claim: &ClaimRef, devices: &[PciAddress]) -> Result<Vec<BoundFunction>, BoxError> {
        self.change(|kernel| drop(kernel.bound.insert(claim.uid.clone(), devices.to_vec())))?;
        let bound = devices.iter().map(|address| BoundFunction {
            address: *address,
            cdi_id: Some(format!("net.drakkar.dev/device={}_{address}", claim.uid)),
            iommu_group: Some(7),
            driver: Some("vfio-pci".to_owned()),
            nodes: vec!["/dev/vfio/7".into()],
        });
        Ok(bound.collect())
    }

    fn release(&self, claim: &ClaimUid) -> Result<(), BoxError> {
        Ok(self.change(|kernel| drop(kernel.bound.remove(claim)))?)
    }
}

/// A simulated node.
pub(crate) struct Node {
    directory: TempDir,
    pub(crate) kernel: Arc<Mutex<Kernel>>,
}

impl Node {
    /// A node with three interfaces, eth1 to eth3, of the indexes 1 to 3.
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let boot = directory.path().join("proc/sys/kernel/random");
        std::fs::create_dir_all(&boot).unwrap();
        std::fs::write(boot.join("boot_id"), "boot-1\n").unwrap();
        let place = |index| Place { namespace: None, name: format!("eth{index}"), mtu: 1500 };
        let kernel = Kernel { interfaces: (1..=3).map(|index| (index, place(index))).collect(), ..Kernel::default() };
        Self { directory, kernel: Arc::new(Mutex::new(kernel)) }
    }

    /// A driver before its recovery, with a limited life.
    pub(crate) fn mortal(&self, life: &Arc<Life>) -> Claims {
        let network = Arc::new(MortalNetwork { kernel: self.kernel.clone(), life: life.clone() });
        let files = Arc::new(MortalFiles::new(life.clone()));
        let proc = self.directory.path().join("proc");
        Claims::open_with(network.clone(), network, self.journal(), files, &proc).unwrap()
    }

    /// The kernel, as a driver without end sees it.
    pub(crate) fn attacher(&self) -> Arc<dyn Attacher> {
        Arc::new(MortalNetwork { kernel: self.kernel.clone(), life: Life::endless() })
    }

    /// A driver that has recovered.
    pub(crate) fn start(&self) -> Claims {
        self.restart().0
    }

    pub(crate) fn restart(&self) -> (Claims, Recovery) {
        let claims = self.mortal(&Life::endless());
        let recovery = claims.recover().unwrap();
        (claims, recovery)
    }

    pub(crate) fn reboot(&self) {
        std::fs::write(self.directory.path().join("proc/sys/kernel/random/boot_id"), "boot-2\n").unwrap();
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.directory.path().join("claims")
    }

    /// Makes the sandbox of a pod. Its network namespace is another one each time.
    pub(crate) fn sandbox(&self, pod: &str, id: &str) -> Sandbox {
        let namespace = PathBuf::from(format!("/var/run/netns/{id}"));
        let mut kernel = self.kernel.lock().unwrap();
        let inode = 4_026_531_840 + kernel.namespaces.len() as u64;
        kernel.namespaces.insert(namespace.clone(), inode);
        Sandbox { id: id.to_owned(), pod_uid: pod.to_owned(), pod: format!("default/{pod}"), namespace }
    }

    pub(crate) fn place(&self, index: u32) -> Place {
        self.kernel.lock().unwrap().interfaces[&index].clone()
    }

    /// Returns whether all interfaces are on the host as they were, and nothing else is left.
    pub(crate) fn is_as_it_was(&self) -> bool {
        let kernel = self.kernel.lock().unwrap();
        let is_back = |(index, place): (&u32, &Place)| {
            *place == Place { namespace: None, name: format!("eth{index}"), mtu: 1500 }
        };
        kernel.interfaces.iter().all(is_back) && kernel.children.is_empty() && kernel.bound.is_empty()
    }

    pub(crate) fn journal_files(&self) -> usize {
        std::fs::read_dir(self.journal()).unwrap().count()
    }
}

pub(crate) fn claim(name: &str) -> ClaimRef {
    ClaimRef {
        namespace: "default".parse().unwrap(),
        name: name.parse().unwrap(),
        uid: format!("uid-of-{name}").parse().unwrap(),
    }
}

/// What is known of one of the node's interfaces.
pub(crate) fn found(index: u32) -> Found {
    let name = format!("eth{index}");
    Found {
        interface: Some(Identity { name, index, kind: String::new(), device: None, permanent_address: None }),
        pci: format!("0000:03:00.{index}").parse().ok(),
        attributes: [("type".to_owned(), "physical".into())].into(),
        ..Found::default()
    }
}

/// A request for one of the node's interfaces.
pub(crate) fn wanted(index: u32, config: &str) -> Wanted {
    let name = format!("eth{index}");
    Wanted {
        request: format!("request-{index}"),
        pool: "node-1".to_owned(),
        device: name,
        share_id: None,
        config: serde_json::from_str::<ClaimConfig>(config).unwrap(),
        found: found(index),
        rdma: None,
    }
}

pub(crate) fn pods(uids: &[&str]) -> Vec<String> {
    uids.iter().map(ToString::to_string).collect()
}

/// Brings back what is left over, as the hooks do.
pub(crate) fn retry(claims: &Claims) -> Vec<Result<Vec<Record>, ClaimsError>> {
    claims.left_over_sandboxes().iter().map(|id| claims.detach(id)).collect()
}

pub(crate) fn patient() -> Patience<'static> {
    Patience { deadline: None, is_over: &|| false }
}

/// Returns the phases of a claim's interfaces, as words.
pub(crate) fn phases(record: &Record) -> Vec<&'static str> {
    use crate::journal::Phase;
    let word = |phase: &Phase| match phase {
        Phase::Prepared => "prepared",
        Phase::Attaching(_) => "attaching",
        Phase::Attached { .. } => "attached",
        Phase::Restoring(_) => "restoring",
    };
    record.interfaces().map(|interface| word(&interface.phase)).collect()
}
