//! A host, two pods and a network between them, each a network namespace of its own.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use drakkar_netlink::{
    AddressScope, Connection, Errno, Link, LinkChange, Namespace, NewAddress, NewLink, NewLinkKind, NewRoute,
};

use crate::attach::{Attached, Attachment, Identity, InterfacePlan, Limits, attach};
use crate::claim_config::DuplicateDetection;
use crate::kernel::{Call, Faults, Kernel};
use crate::restore::{Outcome, restore};

/// The patience with the kernel, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const UP: LinkChange<'static> = LinkChange {
    namespace: None,
    index: None,
    name: None,
    mtu: None,
    address: None,
    alias: None,
    master: None,
    up: Some(true),
};

/// A namespace with a connection into it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) namespace: Namespace,
}

impl Place {
    /// A new namespace. `None` where the machine allows none, unless they are required.
    pub(crate) fn new() -> Option<Self> {
        let is_required = std::env::var_os("DRAKKAR_REQUIRE_NAMESPACES").is_some_and(|value| value == "1");
        match Namespace::unshared() {
            Ok(namespace) => Some(Self { namespace }),
            Err(error) => {
                assert!(!is_required, "{error}");
                println!("skipped: {error}");
                None
            }
        }
    }

    /// The path by which every process finds the namespace, as long as this one lives.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.namespace.as_fd().as_raw_fd()).into()
    }

    pub(crate) fn connection(&self) -> Connection {
        Connection::open(&self.namespace).unwrap()
    }

    pub(crate) fn link(&self, name: &str) -> Link {
        self.find(name).unwrap_or_else(|| panic!("there is no {name}"))
    }

    pub(crate) fn find(&self, name: &str) -> Option<Link> {
        self.connection().link_by_name(name).unwrap()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.connection().links().unwrap().into_iter().map(|link| link.name).collect()
    }

    pub(crate) fn change(&self, name: &str, change: &LinkChange<'_>) {
        self.connection().change_link(&self.link(name), change).unwrap();
    }

    pub(crate) fn add_address(&self, name: &str, address: &str) {
        let address = NewAddress::new(address.parse().unwrap()).without_dad();
        self.connection().add_address(&self.link(name), &address).unwrap();
    }

    /// Everything that a restore has to bring back, as a text. Without what depends on the other end of a cable.
    pub(crate) fn state(&self) -> String {
        let mut connection = self.connection();
        let mut text = String::new();
        for mut link in connection.links().unwrap() {
            link.parent = None;
            link.carrier = None;
            link.is_running = false;
            link.state = drakkar_netlink::OperationalState::Unknown;
            writeln!(text, "{link:?}").unwrap();
        }
        let mut addresses: Vec<String> = Vec::new();
        for mut address in connection.addresses().unwrap() {
            // The kernel makes and checks these in its own time.
            if address.scope == AddressScope::Link {
                continue;
            }
            address.dad = drakkar_netlink::DadState::Done;
            addresses.push(format!("{address:?}"));
        }
        let routes = connection.routes().unwrap();
        let configured = routes.iter().filter(|route| !route.is_automatic());
        addresses.extend(configured.map(|route| format!("{route:?}")));
        addresses.extend(connection.rules().unwrap().iter().map(|rule| format!("{rule:?}")));
        addresses.sort_unstable();
        text + &addresses.join("\n")
    }

    /// What `ip -j addr show dev` tells of an interface: its hardware address, MTU and global addresses.
    pub(crate) fn ip_command(&self, name: &str) -> (String, u64, Vec<String>) {
        let run = || Command::new("ip").args(["-j", "addr", "show", "dev", name]).output();
        let output = self.namespace.run(run).unwrap().unwrap();
        assert!(output.status.success(), "{output:?}");
        let interfaces: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let interface = &interfaces[0];
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let addresses = interface["addr_info"].as_array().unwrap().iter();
        let global = addresses.filter(|address| address["scope"] == "global");
        let global = global.map(|address| format!("{}/{}", text(&address["local"]), address["prefixlen"])).collect();
        (text(&interface["address"]), interface["mtu"].as_u64().unwrap(), global)
    }

    fn udp(&self, address: &str) -> UdpSocket {
        let address = SocketAddr::new(address.parse::<IpAddr>().unwrap(), 0);
        let socket = self.namespace.run(|| UdpSocket::bind(address)).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket
    }
}

/// Sends a datagram from one namespace to another, again until it arrives.
pub(crate) fn talk(from: &Place, source: &str, to: &Place, destination: &str) {
    let receiver = to.udp(destination);
    let sender = from.udp(source);
    let start = std::time::Instant::now();
    let mut buffer = [0; 16];
    loop {
        sender.send_to(b"hello", receiver.local_addr().unwrap()).unwrap();
        if let Ok((length, peer)) = receiver.recv_from(&mut buffer) {
            assert_eq!((&buffer[..length], peer), (&b"hello"[..], sender.local_addr().unwrap()));
            return;
        }
        assert!(start.elapsed() < PATIENCE, "nothing arrives at {destination}");
    }
}

/// The host with `fast0` and `fast1`, two pods, and the network that the interfaces are connected to.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) host: Place,
    pub(crate) pods: [Place; 2],
    pub(crate) switch: Place,
}

impl Machine {
    pub(crate) fn new() -> Option<Self> {
        let machine = Self { host: Place::new()?, pods: [Place::new()?, Place::new()?], switch: Place::new()? };
        let mut connection = machine.host.connection();
        machine
            .switch
            .connection()
            .create_link(&NewLink { up: true, ..NewLink::new("br0", NewLinkKind::Bridge) })
            .unwrap();
        let bridge = machine.switch.link("br0").index;
        for name in ["fast0", "fast1"] {
            let port = format!("port-{name}");
            let kind = NewLinkKind::Veth { peer: &port, peer_namespace: Some(&machine.switch.namespace) };
            connection.create_link(&NewLink { mtu: Some(1450), ..NewLink::new(name, kind) }).unwrap();
            machine.switch.change(&port, &LinkChange { master: Some(bridge), ..UP });
        }
        // The first one was in use: it has an alias, addresses and a route.
        machine.host.add_address("fast0", "192.0.2.100/24");
        machine.host.add_address("fast0", "2001:db8::100/64");
        machine.host.change("fast0", &LinkChange { alias: Some("uplink to storage"), ..UP });
        let index = machine.host.link("fast0").index;
        let gateway = Some("192.0.2.1".parse().unwrap());
        let route = NewRoute { gateway, ..NewRoute::new("203.0.113.0/24".parse().unwrap(), index) };
        connection.add_route(&route).unwrap();
        // Other pods' interfaces: the indices of the host's interfaces are taken in the pods.
        for pod in &machine.pods {
            let kind = NewLinkKind::Veth { peer: "eth0-peer", peer_namespace: None };
            pod.connection().create_link(&NewLink { up: true, ..NewLink::new("eth0", kind) }).unwrap();
        }
        Some(machine)
    }

    /// Ends the namespace of a pod. Another one takes its place.
    pub(crate) fn replace_pod(&mut self, pod: usize) {
        self.pods[pod] = Place::new().unwrap();
    }

    pub(crate) fn kernel(&self) -> Kernel {
        Kernel::new(self.host.path())
    }

    pub(crate) fn attachment(&self, plan: InterfacePlan, pod: usize) -> Attachment {
        Attachment::inspect(&self.kernel(), plan, &self.pods[pod].path(), &Limits::default()).unwrap()
    }

    pub(crate) fn attach(&self, plan: InterfacePlan, pod: usize) -> (Attachment, Attached) {
        let attachment = self.attachment(plan, pod);
        let attached = attach(&self.kernel(), &attachment, &Limits::default()).unwrap();
        (attachment, attached)
    }

    /// Restores, which has to be complete.
    pub(crate) fn restore(&self, attachment: &Attachment) -> Outcome {
        let restored = restore(&self.kernel(), attachment).unwrap();
        assert!(restored.is_complete(), "{restored}");
        restored.outcome
    }

    /// A plan that moves an interface and changes nothing but its name.
    pub(crate) fn plan(&self, interface: &str, name: &str) -> InterfacePlan {
        InterfacePlan {
            mark: format!("drakkar/c1/{interface}/{name}"),
            host: Identity::from(&self.host.link(interface)),
            child: None,
            name: name.to_owned(),
            mtu: None,
            hardware_address: None,
            addresses: Vec::new(),
            duplicate_detection: DuplicateDetection::default(),
            routes: Vec::new(),
            rules: Vec::new(),
            settings: BTreeMap::new(),
            rdma: None,
        }
    }

    /// A plan with all that a claim can ask for.
    pub(crate) fn full_plan(&self, interface: &str, number: u8) -> InterfacePlan {
        let address = |text: String| NewAddress::new(text.parse().unwrap());
        let any = NewRoute { interface: None, ..NewRoute::new("198.51.100.0/24".parse().unwrap(), 0) };
        let gateway = |text: &str| Some(text.parse().unwrap());
        let rule = drakkar_netlink::NewRule {
            is_ipv6: false,
            priority: Some(100),
            from: Some(format!("10.1.0.{number}/32").parse().unwrap()),
            to: None,
            input: None,
            output: None,
            mark: None,
            table: 77,
        };
        InterfacePlan {
            mtu: Some(1400),
            hardware_address: Some(format!("02:00:5e:10:00:{number:02x}").parse().unwrap()),
            addresses: vec![
                address(format!("10.1.0.{number}/24")),
                address(format!("fd00::{number}/64")).without_dad(),
                address(format!("10.2.0.{number}/32")),
            ],
            routes: vec![
                // In the wrong order: the router is reached by the second.
                NewRoute { gateway: gateway("10.9.0.1"), table: 77, ..any.clone() },
                NewRoute { destination: "10.9.0.0/24".parse().unwrap(), ..any.clone() },
                NewRoute { destination: "fd01::/64".parse().unwrap(), gateway: gateway("fd00::ff"), ..any },
            ],
            rules: vec![rule],
            settings: BTreeMap::from([("net/ipv4/conf/IFNAME/arp_ignore".to_owned(), "2".to_owned())]),
            ..self.plan(interface, "net%d")
        }
    }
}

/// Counts calls, and makes one of them or all from one on fail.
#[derive(Debug)]
pub(crate) struct Fault {
    count: AtomicUsize,
    /// The number of the call, from 0.
    pub(crate) at: usize,
    /// Whether the call is made nevertheless.
    pub(crate) after: bool,
    /// Whether all later calls fail, too.
    pub(crate) forever: bool,
}

impl Fault {
    pub(crate) fn new(at: usize, after: bool, forever: bool) -> Arc<Self> {
        Arc::new(Self { count: AtomicUsize::new(0), at, after, forever })
    }

    pub(crate) fn calls(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn verdict(&self, number: usize) -> Result<(), Errno> {
        let is_hit = number == self.at || (self.forever && number > self.at);
        if is_hit { Err(Errno::IO) } else { Ok(()) }
    }
}

impl Faults for Fault {
    fn before(&self, _: Call) -> Result<(), Errno> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        if self.after { Ok(()) } else { self.verdict(number) }
    }

    fn after(&self, _: Call) -> Result<(), Errno> {
        if self.after { self.verdict(self.calls() - 1) } else { Ok(()) }
    }
}
