//! Hosts for tests: network namespaces with interfaces, and an empty sysfs.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use drakkar_net::attributes::Numa;
use drakkar_net::inventory::{Host, Inventory};
use drakkar_net::{Config, HeldInterface, HostChanges, Interfaces, Settings};
use drakkar_netlink::{Connection, Link, LinkChange, Monitor, Namespace, NewAddress, NewLink, NewLinkKind, NewRoute};
use drakkar_plugin::DriverResources;
use drakkar_plugin::attributes::NumaForm;
use drakkar_sysfs::{Roots, Sysfs};
use tempfile::TempDir;

/// The patience with the kernel, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A host in a network namespace.
pub(crate) struct TestHost {
    pub(crate) namespace: Namespace,
    pub(crate) connection: Connection,
    pub(crate) monitor: Monitor,
    pub(crate) directory: TempDir,
}

impl TestHost {
    /// A host with nothing but a loopback interface. `None` where the machine allows no namespaces, unless they are required.
    pub(crate) fn new() -> Option<Self> {
        let is_required = std::env::var_os("DRAKKAR_REQUIRE_NAMESPACES").is_some_and(|value| value == "1");
        match Namespace::unshared() {
            Ok(namespace) => {
                let connection = Connection::open(&namespace).unwrap();
                let monitor = Monitor::open(&namespace).unwrap();
                Some(Self { namespace, connection, monitor, directory: tempfile::tempdir().unwrap() })
            }
            Err(error) => {
                assert!(!is_required, "{error}");
                println!("skipped: {error}");
                None
            }
        }
    }

    pub(crate) fn sysfs(&self) -> Sysfs {
        Sysfs::at(Roots::below(self.directory.path()))
    }

    pub(crate) fn open(&self) -> Host {
        Host::open(&self.namespace, self.sysfs()).unwrap()
    }

    pub(crate) fn link(&mut self, name: &str) -> Link {
        self.connection.link_by_name(name).unwrap().unwrap_or_else(|| panic!("there is no {name}"))
    }

    /// Makes a cable with both ends here, both up.
    pub(crate) fn veth(&mut self, name: &str, peer: &str) -> Link {
        let kind = NewLinkKind::Veth { peer, peer_namespace: None };
        self.connection.create_link(&NewLink { up: true, ..NewLink::new(name, kind) }).unwrap();
        let other = self.link(peer);
        self.connection.change_link(&other, &LinkChange { up: Some(true), ..LinkChange::default() }).unwrap();
        self.link(name)
    }

    pub(crate) fn bridge(&mut self, name: &str) -> Link {
        self.connection.create_link(&NewLink { up: true, ..NewLink::new(name, NewLinkKind::Bridge) }).unwrap();
        self.link(name)
    }

    pub(crate) fn add_address(&mut self, link: &Link, address: &str) {
        let address = NewAddress::new(address.parse().unwrap()).without_dad();
        self.connection.add_address(link, &address).unwrap();
    }

    pub(crate) fn route(&self, destination: &str, link: &Link, table: u32) -> NewRoute {
        NewRoute { table, ..NewRoute::new(destination.parse().unwrap(), link.index) }
    }

    pub(crate) fn move_to(&mut self, link: &Link, namespace: &Namespace) {
        self.connection.change_link(link, &LinkChange { namespace: Some(namespace), ..LinkChange::default() }).unwrap();
    }

    /// Takes in events until the inventory is as expected.
    pub(crate) fn follow(
        &mut self,
        inventory: &mut Inventory,
        host: &mut Host,
        what: &str,
        mut is_it: impl FnMut(&Inventory) -> bool,
    ) {
        let deadline = Instant::now() + PATIENCE;
        while !is_it(inventory) {
            let events = self.monitor.wait(deadline.saturating_duration_since(Instant::now())).unwrap();
            assert!(!events.is_empty(), "{what}");
            inventory.apply(host, &events).unwrap();
        }
    }
}

/// What was published, and what claims hold.
#[derive(Clone, Default)]
pub(crate) struct Cluster {
    pub(crate) published: Arc<Mutex<Vec<DriverResources>>>,
    pub(crate) held: Arc<Mutex<Vec<HeldInterface>>>,
}

impl Cluster {
    /// Returns the names of the devices that are published now.
    pub(crate) fn devices(&self) -> Vec<String> {
        let published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = published.last().and_then(|resources| resources.pools.get("node-1"));
        pool.iter().flat_map(|pool| &pool.devices).map(|device| device.name).collect()
    }

    pub(crate) fn publications(&self) -> usize {
        self.published.lock().unwrap().len()
    }

    /// Publishes a host to this cluster.
    pub(crate) fn interfaces(&self, host: &TestHost, config: Config) -> Interfaces {
        let mut open = host.open();
        let inventory = open.scan().unwrap();
        let settings = Settings {
            node: "node-1".to_owned(),
            config: Arc::new(config),
            numa: Numa::new(Path::new("/none"), NumaForm::Number),
            node_addresses: vec!["192.0.2.5".parse().unwrap()],
        };
        let (held, published) = (self.held.clone(), self.published.clone());
        let interfaces = Interfaces::new(
            open,
            inventory,
            settings,
            move || held.lock().unwrap().clone(),
            move |resources| published.lock().unwrap().push(resources),
        );
        interfaces.publish();
        interfaces
    }
}

/// Takes in events until a condition holds.
pub(crate) fn until(host: &mut TestHost, interfaces: &Interfaces, what: &str, is_it: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_it() {
        let network = host.monitor.wait(deadline.saturating_duration_since(Instant::now())).unwrap();
        assert!(!network.is_empty(), "{what}");
        interfaces.apply(&HostChanges { network, devices: Vec::new() }).unwrap();
    }
}

pub(crate) fn config(devices: &str) -> Config {
    let yaml = format!("apiVersion: net.drakkar.dev/v1alpha1\nkind: DriverConfig\ndevices:\n{devices}\n");
    Config::from_yaml(&yaml).unwrap()
}
