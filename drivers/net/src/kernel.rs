//! The kernel calls of attach and restore, through which tests make any of them fail or be the last one.
//!
//! A `Network` is a network namespace that is open for one operation: an open one is kept alive, and the kernel gives
//! interfaces back only when a namespace ends. Each method is one call, and each call passes one place, where its faults
//! and the deadline of the operation are. Calls that only read pass it, too: they fail as well.

mod kept;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use drakkar_netlink::rdma::{self, Rdma};
use drakkar_netlink::{
    Address, BusAddress, Conflict, ConflictMonitor, ConflictProtocol, Connection, Errno, Error, Link, LinkChange,
    Monitor, Namespace, NamespaceId, NewAddress, NewLink, NewRoute, NewRule, Result, Route,
};

use self::kept::Kept;
use crate::attach::Attachment;

/// A kernel call, for faults and log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// Opens a namespace.
    Open,
    /// Reads interfaces, addresses, routes or RDMA devices.
    Read,
    /// Changes an interface, or moves it.
    ChangeLink,
    /// Makes an interface.
    CreateLink,
    /// Deletes an interface.
    DeleteLink,
    /// Adds an address.
    AddAddress,
    /// Adds a route.
    AddRoute,
    /// Adds a rule.
    AddRule,
    /// Deletes a rule.
    DeleteRule,
    /// Asks other hosts for addresses.
    Probe,
    /// Writes settings below `/proc/sys`.
    WriteSettings,
    /// Moves an RDMA device.
    MoveRdma,
}

/// The faults of a kernel. The real one has none of its own.
pub trait Faults: Send + Sync + fmt::Debug {
    /// Is asked before a call, which is not made if this fails.
    fn before(&self, call: Call) -> Result<(), Errno>;
    /// Is asked after a call that has succeeded, which is reported as failed if this fails.
    fn after(&self, call: Call) -> Result<(), Errno>;
}

/// No faults.
#[derive(Debug, Clone, Copy, Default)]
struct NoFaults;

impl Faults for NoFaults {
    fn before(&self, _: Call) -> Result<(), Errno> {
        Ok(())
    }

    fn after(&self, _: Call) -> Result<(), Errno> {
        Ok(())
    }
}

/// The kernel, as attach and restore use it.
#[derive(Debug, Clone)]
pub struct Kernel {
    host: PathBuf,
    sysfs: PathBuf,
    /// Where the settings of interfaces are.
    settings: PathBuf,
    faults: Arc<dyn Faults>,
    kept: Kept,
}

impl Kernel {
    /// The kernel, with the path of the host's network namespace: `/proc/self/ns/net` in a pod with the host's network.
    pub fn new(host: impl Into<PathBuf>) -> Self {
        Self {
            host: host.into(),
            sysfs: "/sys".into(),
            settings: "/proc/sys".into(),
            faults: Arc::new(NoFaults),
            kept: Kept::default(),
        }
    }

    /// The same with another sysfs than `/sys`.
    pub fn with_sysfs(self, sysfs: impl Into<PathBuf>) -> Self {
        Self { sysfs: sysfs.into(), ..self }
    }

    /// The same with another directory of the kernel's settings than `/proc/sys`, which is read-only in a container.
    pub fn with_settings(self, directory: impl Into<PathBuf>) -> Self {
        Self { settings: directory.into(), ..self }
    }

    /// The same with faults.
    pub fn with_faults(self, faults: Arc<dyn Faults>) -> Self {
        Self { faults, ..self }
    }

    /// Returns whether a device is there, wherever its interface is. One whose bus is not known counts as there.
    pub(crate) fn has_device(&self, device: &BusAddress) -> bool {
        let bus = self.sysfs.join("bus").join(&device.bus).join("devices");
        !bus.is_dir() || bus.join(&device.name).symlink_metadata().is_ok()
    }

    /// Opens the host's namespace.
    pub(crate) fn host(&self, deadline: Option<Instant>) -> Result<Network> {
        self.open(&self.host, deadline)
    }

    /// Opens the namespace of a pod.
    pub(crate) fn pod(&self, path: &Path, deadline: Option<Instant>) -> Result<Network> {
        self.open(path, deadline)
    }

    /// Opens the namespace of a pod if it is still there: at the path, and not another one at the same path, or [kept](Self::keep).
    pub(crate) fn pod_if_there(&self, path: &Path, id: NamespaceId) -> Result<Option<Network>> {
        if let Some(namespace) = self.kept.get(id) {
            let open = format!("/proc/self/fd/{}", namespace.as_fd().as_raw_fd());
            return self.open(Path::new(&open), None).map(Some);
        }
        match self.open(path, None) {
            Ok(network) if network.id() == id => Ok(Some(network)),
            Ok(_) | Err(Error::NotANamespace { .. }) => Ok(None),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Keeps the namespace of a pod alive as long as a virtual interface is in it that the kernel would delete with it.
    pub(crate) fn keep(&self, attachment: &Attachment) {
        let is_virtual = attachment.former.as_ref().is_some_and(|former| !former.identity.kind.is_empty());
        if !is_virtual {
            return;
        }
        match Namespace::open_identified(&attachment.namespace.path, attachment.namespace.id) {
            Ok(Some(namespace)) => self.kept.keep(namespace, &attachment.plan.mark),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "network namespace not kept, its interfaces end with it"),
        }
    }

    /// Lets the namespace of a pod go, because the interface is not in it any more.
    pub(crate) fn release(&self, attachment: &Attachment) {
        self.kept.release(attachment.namespace.id, &attachment.plan.mark);
    }

    fn open(&self, path: &Path, deadline: Option<Instant>) -> Result<Network> {
        let seam = Seam { faults: Arc::clone(&self.faults), deadline };
        let (namespace, connection) = seam.call(Call::Open, || Connection::open_at(path))?;
        Ok(Network { namespace: namespace.with_settings(&self.settings), connection, seam })
    }
}

/// The place that every call passes.
#[derive(Debug, Clone)]
struct Seam {
    faults: Arc<dyn Faults>,
    deadline: Option<Instant>,
}

impl Seam {
    fn call<T>(&self, call: Call, make: impl FnOnce() -> Result<T>) -> Result<T> {
        let failed = |errno| Error::Refused { operation: format!("{call:?}"), errno, message: None };
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(Error::Timeout {
                operation: "the time for this operation is over".to_owned(),
                timeout: Duration::ZERO,
            });
        }
        self.faults.before(call).map_err(failed)?;
        let result = make()?;
        self.faults.after(call).map_err(failed)?;
        Ok(result)
    }
}

/// A network namespace that is open for one operation.
#[derive(Debug)]
pub(crate) struct Network {
    namespace: Namespace,
    connection: Connection,
    seam: Seam,
}

impl Network {
    pub(crate) fn id(&self) -> NamespaceId {
        self.namespace.id()
    }

    pub(crate) fn path(&self) -> &Path {
        self.namespace.path()
    }

    /// Listens to the changes in the namespace.
    pub(crate) fn monitor(&self) -> Result<Monitor> {
        self.seam.call(Call::Open, || Monitor::open(&self.namespace))
    }

    pub(crate) fn links(&mut self) -> Result<Vec<Link>> {
        self.seam.call(Call::Read, || self.connection.links())
    }

    pub(crate) fn link(&mut self, index: u32) -> Result<Option<Link>> {
        self.seam.call(Call::Read, || self.connection.link(index))
    }

    pub(crate) fn link_by_name(&mut self, name: &str) -> Result<Option<Link>> {
        self.seam.call(Call::Read, || self.connection.link_by_name(name))
    }

    pub(crate) fn addresses(&mut self) -> Result<Vec<Address>> {
        self.seam.call(Call::Read, || self.connection.addresses())
    }

    pub(crate) fn addresses_of(&mut self, index: u32) -> Result<Vec<Address>> {
        self.seam.call(Call::Read, || self.connection.addresses_of(index))
    }

    pub(crate) fn routes_of(&mut self, index: u32) -> Result<Vec<Route>> {
        self.seam.call(Call::Read, || self.connection.routes_of(index))
    }

    /// Waits until duplicate address detection is over, at most until a moment.
    pub(crate) fn wait_for_dad(&mut self, index: u32, until: Instant) -> Result<Vec<Address>> {
        self.seam.call(Call::Read, || self.connection.wait_for_dad(index, until))
    }

    /// Listens to what other hosts say of addresses. `None`: nobody can be asked over this interface.
    pub(crate) fn monitor_conflicts(
        &mut self,
        link: &Link,
        protocol: ConflictProtocol,
    ) -> Result<Option<ConflictMonitor>> {
        self.seam.call(Call::Open, || ConflictMonitor::open(&self.namespace, link, protocol))
    }

    /// Asks once for each address who has it, and waits for an answer, at most until a moment.
    pub(crate) fn probe(
        &mut self,
        monitor: &mut ConflictMonitor,
        addresses: &[Ipv4Addr],
        until: Instant,
    ) -> Result<Option<Conflict>> {
        self.seam.call(Call::Probe, || {
            addresses.iter().try_for_each(|address| monitor.probe(*address))?;
            let addresses: Vec<IpAddr> = addresses.iter().copied().map(IpAddr::from).collect();
            monitor.wait(&addresses, until)
        })
    }

    pub(crate) fn change_link(&mut self, link: &Link, change: &LinkChange<'_>) -> Result<()> {
        self.seam.call(Call::ChangeLink, || self.connection.change_link(link, change))
    }

    pub(crate) fn add_alt_name(&mut self, link: &Link, name: &str) -> Result<()> {
        self.seam.call(Call::ChangeLink, || self.connection.add_alt_names(link, &[name.to_owned()]))
    }

    pub(crate) fn delete_alt_names(&mut self, link: &Link, names: &[String]) -> Result<()> {
        self.seam.call(Call::ChangeLink, || self.connection.delete_alt_names(link, names))
    }

    /// Moves an interface to another namespace, with further changes.
    pub(crate) fn move_link(&mut self, link: &Link, to: &Self, change: &LinkChange<'_>) -> Result<()> {
        self.change_link(link, &LinkChange { namespace: Some(&to.namespace), ..*change })
    }

    /// Makes an interface in another namespace, on top of one in this.
    pub(crate) fn create_link_in(&mut self, to: &Self, link: &NewLink<'_>) -> Result<()> {
        let link = NewLink { namespace: Some(&to.namespace), ..*link };
        self.seam.call(Call::CreateLink, || self.connection.create_link(&link))
    }

    pub(crate) fn delete_link(&mut self, link: &Link) -> Result<()> {
        self.seam.call(Call::DeleteLink, || self.connection.delete_link(link))
    }

    pub(crate) fn add_address(&mut self, link: &Link, address: &NewAddress) -> Result<()> {
        self.seam.call(Call::AddAddress, || self.connection.add_address(link, address))
    }

    pub(crate) fn add_route(&mut self, route: &NewRoute) -> Result<()> {
        self.seam.call(Call::AddRoute, || self.connection.add_route(route))
    }

    pub(crate) fn add_rule(&mut self, rule: &NewRule) -> Result<()> {
        self.seam.call(Call::AddRule, || self.connection.add_rule(rule))
    }

    pub(crate) fn delete_rule(&mut self, rule: &NewRule) -> Result<()> {
        self.seam.call(Call::DeleteRule, || self.connection.delete_rule(rule))
    }

    /// Reads settings, each by its path below `/proc/sys`, in one visit of the namespace.
    pub(crate) fn settings(&self, paths: &[(String, String)]) -> Result<Vec<(String, String)>> {
        let values =
            self.seam.call(Call::Read, || self.namespace.settings(paths.iter().map(|(path, _)| path.as_str())))?;
        Ok(paths.iter().map(|(path, _)| path.clone()).zip(values).collect())
    }

    /// Writes settings, each by its path below `/proc/sys`, in one visit of the namespace.
    pub(crate) fn set_settings(&self, settings: &[(String, String)]) -> Result<()> {
        if settings.is_empty() {
            return Ok(());
        }
        let settings = settings.iter().map(|(path, value)| (path.as_str(), value.as_str()));
        self.seam.call(Call::WriteSettings, || self.namespace.set_settings(settings))
    }

    /// Opens the RDMA subsystem of the namespace. `None` if the kernel has none.
    pub(crate) fn rdma(&self) -> Result<Option<RdmaNetwork>> {
        let rdma = self.seam.call(Call::Open, || Rdma::open(&self.namespace))?;
        Ok(rdma.map(|rdma| RdmaNetwork { rdma, seam: self.seam.clone() }))
    }
}

/// The RDMA devices of a network namespace that is open for one operation.
#[derive(Debug)]
pub(crate) struct RdmaNetwork {
    rdma: Rdma,
    seam: Seam,
}

impl RdmaNetwork {
    pub(crate) fn mode(&mut self) -> Result<rdma::Mode> {
        self.seam.call(Call::Read, || self.rdma.mode())
    }

    pub(crate) fn devices(&mut self) -> Result<Vec<rdma::Device>> {
        self.seam.call(Call::Read, || self.rdma.devices())
    }

    pub(crate) fn move_to(&mut self, device: &rdma::Device, to: &Network) -> Result<()> {
        self.seam.call(Call::MoveRdma, || self.rdma.move_to(device, &to.namespace))
    }
}
