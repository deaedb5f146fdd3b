//! Preparing a claim: everything that can be refused is refused here, where a failure costs nothing. In the hook of the runtime a
//! failure costs a sandbox.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use drakkar_metadata::name::ClaimUid;
use drakkar_plugin::ClaimRef;
use drakkar_sysfs::PciAddress;

use super::{Claims, ClaimsError};
use crate::attach::{Identity, InterfacePlan, RdmaIdentity};
use crate::binder::BoundFunction;
use crate::claim_config::{ClaimConfig, InterfaceName, MAX_ADDRESSES};
use crate::desired::{Chosen, interface_plan, mark};
use crate::ipam::{self, Taken};
use crate::journal::{DeviceKind, DeviceRecord, InterfaceRecord, Phase, Record};
use crate::published::Found;

/// The time to wait for another call for the same claim. A kubelet gives a call 45 seconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// The names of interfaces that can keep none of their own.
const FALLBACK: &str = "net";

/// A device that was allocated to a claim, and what the claim wants of it.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) request: String,
    pub(crate) pool: String,
    pub(crate) device: String,
    pub(crate) share_id: Option<String>,
    /// The parameters of the claim, its class and the device's rule.
    pub(crate) config: ClaimConfig,
    /// What is known of the device.
    pub(crate) found: Found,
    /// The RDMA device that goes along.
    pub(crate) rdma: Option<RdmaIdentity>,
}

/// A prepared claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prepared {
    pub(crate) record: Record,
    /// The devices for user space.
    pub(crate) bound: Vec<BoundFunction>,
}

impl Claims {
    /// Prepares a claim for pods, by their UIDs: reserves addresses and names, and binds devices for user space. Again for the same
    /// claim, it gives the same answer and leaves interfaces in the pod where they are.
    pub(crate) fn prepare(
        &self,
        claim: &ClaimRef,
        pods: &[String],
        wanted: &[Wanted],
    ) -> Result<Prepared, ClaimsError> {
        let _turn = self.turn_of(&claim.uid, &claim.to_string())?;
        let record = match self.record(&claim.uid) {
            Some(record) => self.prepare_again(record, pods, wanted)?,
            None => {
                let record = self.reserve(claim, pods, wanted)?;
                self.write(&record).inspect_err(|_| self.forget(&claim.uid))?;
                record
            }
        };
        let bound = self.bind(&record)?;
        Ok(Prepared { record, bound })
    }

    /// Takes back everything that was done for a claim. A claim that is not known is not an error.
    pub(crate) fn unprepare(&self, uid: &ClaimUid) -> Result<(), ClaimsError> {
        let _turn = self.turn_of(uid, &format!("claim {uid}"))?;
        if let Some(mut record) = self.record(uid) {
            self.restore_all(&mut record, |_| true)?;
            let unbound = self.binder.release(uid);
            unbound.map_err(|source| ClaimsError::Binder { claim: Box::new(record.claim.clone()), source })?;
        }
        // Also without a valid record: a damaged file goes with its claim.
        let removed = self.journal.remove(uid);
        removed.map_err(|source| ClaimsError::Open { path: self.journal.path(uid), source })?;
        self.forget(uid);
        Ok(())
    }

    pub(super) fn turn_of(&self, uid: &ClaimUid, what: &str) -> Result<super::turns::Turn<'_>, ClaimsError> {
        let turn = self.turns.wait(BTreeSet::from([uid.clone()]), Instant::now() + PATIENCE);
        turn.ok_or_else(|| ClaimsError::Busy { what: what.to_owned() })
    }

    /// Confirms a claim that is prepared. Its pod may be another one now: that of before is gone then.
    fn prepare_again(&self, mut record: Record, pods: &[String], wanted: &[Wanted]) -> Result<Record, ClaimsError> {
        let known =
            record.devices.iter().map(|device| (&device.request, &device.pool, &device.device, &device.share_id));
        let asked = wanted.iter().map(|wanted| (&wanted.request, &wanted.pool, &wanted.device, &wanted.share_id));
        if known.clone().collect::<BTreeSet<_>>() != asked.collect::<BTreeSet<_>>() {
            let prepared = known.map(|(_, _, device, _)| device.as_str()).collect::<Vec<_>>().join(", ");
            return Err(ClaimsError::Differs { claim: Box::new(record.claim.clone()), prepared });
        }
        if record.pods != pods {
            require_one_pod(&record.claim, pods, record.interfaces().next().is_some())?;
            self.restore_all(&mut record, |sandbox| !pods.contains(&sandbox.pod_uid))?;
            record.pods = pods.to_vec();
            self.write(&record)?;
        }
        Ok(record)
    }

    /// Chooses addresses and names, and keeps the record for other claims to see.
    fn reserve(&self, claim: &ClaimRef, pods: &[String], wanted: &[Wanted]) -> Result<Record, ClaimsError> {
        // Until the record is among the others: nobody else chooses meanwhile.
        let mut records = self.records();
        let mut taken = Taken::new();
        let mut names = BTreeSet::new();
        for other in records.values() {
            taken.extend(other.addresses().map(|address| (address, other.claim.to_string())));
            if pods.iter().any(|pod| other.is_for(pod)) {
                names.extend(other.interfaces().map(|interface| interface.plan.name.clone()));
            }
        }
        let mut devices: Vec<DeviceRecord> = Vec::new();
        for wanted in wanted {
            let error = |problem: &str| ClaimsError::Device {
                claim: Box::new(claim.clone()),
                request: wanted.request.clone(),
                device: wanted.device.clone(),
                problem: problem.to_owned(),
            };
            if let Some(holder) = holder(records.values(), wanted) {
                let (claim, holder) = (Box::new(claim.clone()), Box::new(holder.clone()));
                return Err(ClaimsError::InUse {
                    claim,
                    request: wanted.request.clone(),
                    device: wanted.device.clone(),
                    holder,
                });
            }
            let kind = if wanted.config.is_userspace() {
                let address =
                    wanted.found.pci.ok_or_else(|| error("is not a PCI device, which driver needs: remove driver"))?;
                DeviceKind::Userspace { address: address.to_string() }
            } else {
                let no_interface =
                    "has no interface: a driver for user space has it; set driver: vfio-pci, or select another device";
                let interface = wanted.found.interface.clone().ok_or_else(|| error(no_interface))?;
                require_one_pod(claim, pods, true)?;
                let plan = choose(claim, wanted, interface, &mut taken, &mut names)?;
                DeviceKind::Interface(Box::new(InterfaceRecord { plan, phase: Phase::Prepared, is_lost: false }))
            };
            devices.push(DeviceRecord {
                request: wanted.request.clone(),
                pool: wanted.pool.clone(),
                device: wanted.device.clone(),
                share_id: wanted.share_id.clone(),
                identity: wanted.found.identity.clone(),
                is_shared: wanted.found.is_shared,
                facts: wanted.found.facts.clone(),
                attributes: wanted.found.attributes.clone(),
                kind,
            });
        }
        if let Some(request) = mixed_request(&devices) {
            let device = devices.iter().find(|device| base(&device.request) == request);
            return Err(ClaimsError::Device {
                claim: Box::new(claim.clone()),
                request: request.to_owned(),
                device: device.map(|device| device.device.clone()).unwrap_or_default(),
                problem: "the request also has a device with another kind of driver: use a request for each kind"
                    .to_owned(),
            });
        }
        let record = Record { claim: claim.clone(), boot: self.boot.clone(), pods: pods.to_vec(), devices };
        records.insert(claim.uid.clone(), record.clone());
        Ok(record)
    }

    /// Binds the devices of a claim for user space.
    fn bind(&self, record: &Record) -> Result<Vec<BoundFunction>, ClaimsError> {
        let addresses = record.devices.iter().filter_map(|device| match &device.kind {
            DeviceKind::Userspace { address } => address.parse().ok(),
            DeviceKind::Interface(_) => None,
        });
        let addresses: Vec<PciAddress> = addresses.collect();
        if addresses.is_empty() {
            return Ok(Vec::new());
        }
        let bound = self.binder.bind(&record.claim, &addresses);
        bound.map_err(|source| ClaimsError::Binder { claim: Box::new(record.claim.clone()), source })
    }
}

/// Returns the request of a reference, without the subrequest.
pub(crate) fn base(reference: &str) -> &str {
    reference.split('/').next().unwrap_or_default()
}

/// Returns a request with interfaces and devices for user space. Its metadata cannot be both at the prepare and later.
fn mixed_request(devices: &[DeviceRecord]) -> Option<&str> {
    let requests = |has_interface: bool| {
        let devices = devices.iter().filter(move |device| device.interface().is_some() == has_interface);
        devices.map(|device| base(&device.request))
    };
    requests(true).find(|request| requests(false).any(|other| other == *request))
}

/// Returns the claim that excludes another from a device: one of them takes the whole device.
fn holder<'a>(mut records: impl Iterator<Item = &'a Record>, wanted: &Wanted) -> Option<&'a ClaimRef> {
    let is_whole = |device: &DeviceRecord| device.interface().is_none_or(|interface| interface.plan.child.is_none());
    let excludes = |device: &DeviceRecord| {
        device.pool == wanted.pool && device.device == wanted.device && (is_whole(device) || !wanted.config.has_child())
    };
    records.find(|record| record.devices.iter().any(excludes)).map(|record| &record.claim)
}

fn require_one_pod(claim: &ClaimRef, pods: &[String], has_interface: bool) -> Result<(), ClaimsError> {
    let consumers = match pods.len() {
        1 => return Ok(()),
        _ if !has_interface => return Ok(()),
        0 => "is reserved for no pod".to_owned(),
        count => format!("is reserved for {count} pods"),
    };
    Err(ClaimsError::Consumers { claim: Box::new(claim.clone()), consumers })
}

/// Chooses the addresses and the name of an interface.
fn choose(
    claim: &ClaimRef,
    wanted: &Wanted,
    interface: Identity,
    taken: &mut Taken,
    names: &mut BTreeSet<String>,
) -> Result<InterfacePlan, ClaimsError> {
    let Wanted { request, device, share_id, config, .. } = wanted;
    let seed = format!("{}/{request}/{device}/{}", claim.uid, share_id.as_deref().unwrap_or_default());
    let address_error = |source| ClaimsError::Address {
        claim: Box::new(claim.clone()),
        request: request.clone(),
        device: device.clone(),
        source,
    };
    let holder = claim.to_string();
    let addresses = match ipam::assign(config, &holder, &seed, taken).map_err(address_error)? {
        Some(addresses) => addresses,
        // One on top of the device's own has no addresses on the host.
        None if config.has_child() => Vec::new(),
        None => {
            let addresses = wanted.found.addresses.clone();
            if addresses.len() > MAX_ADDRESSES {
                return Err(ClaimsError::Device {
                    claim: Box::new(claim.clone()),
                    request: request.clone(),
                    device: device.clone(),
                    problem: format!(
                        "interface {} has {} addresses on the host, which would go along, and a claim can have at most {MAX_ADDRESSES}: \
                         set addresses or addressRanges, or remove some from the interface",
                        interface.name,
                        addresses.len(),
                    ),
                });
            }
            ipam::take(&addresses, &holder, taken).map_err(address_error)?;
            addresses
        }
    };
    let name = name(config.interface_name.as_ref(), &interface.name, names).map_err(|name| ClaimsError::Name {
        claim: Box::new(claim.clone()),
        request: request.clone(),
        device: device.clone(),
        name,
    })?;
    names.insert(name.clone());
    let chosen = Chosen { host: interface, name, addresses, rdma: wanted.rdma.clone() };
    Ok(interface_plan(mark(claim, device, share_id.as_deref()), chosen, config))
}

/// Returns the name of an interface in a pod: the one that the claim sets, or that of the host if a pod can have it. An error is
/// the name that is taken.
fn name(set: Option<&InterfaceName>, on_host: &str, names: &BTreeSet<String>) -> Result<String, String> {
    let numbered = |prefix: &str| {
        let mut candidates = (0..100u32).map(|number| format!("{prefix}{number}"));
        // Every pod has some of them, such as the first of `eth%d`.
        let is_free = |name: &String| InterfaceName::check(name).is_ok() && !names.contains(name);
        candidates.find(is_free).ok_or_else(|| format!("{prefix}99"))
    };
    match set {
        Some(name) => match name.prefix() {
            Some(prefix) => numbered(prefix),
            None if names.contains(name.as_str()) => Err(name.to_string()),
            None => Ok(name.to_string()),
        },
        None if InterfaceName::check(on_host).is_ok() && !on_host.ends_with("%d") && !names.contains(on_host) => {
            Ok(on_host.to_owned())
        }
        None => numbered(FALLBACK),
    }
}
