//! Namespaces and cables for tests.

use std::time::{Duration, Instant};

use drakkar_netlink::{Connection, Link, Namespace, NewLink, NewLinkKind};

/// The patience with the kernel, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A namespace with a connection into it.
#[derive(Debug)]
pub(crate) struct TestNamespace {
    pub(crate) namespace: Namespace,
    pub(crate) connection: Connection,
}

impl TestNamespace {
    /// A new namespace. `None` where the machine allows none, unless they are required.
    pub(crate) fn new() -> Option<Self> {
        let is_required = std::env::var_os("DRAKKAR_REQUIRE_NAMESPACES").is_some_and(|value| value == "1");
        match Namespace::unshared() {
            Ok(namespace) => {
                let connection = Connection::open(&namespace).unwrap();
                Some(Self { namespace, connection })
            }
            Err(error) => {
                assert!(!is_required, "{error}");
                println!("skipped: {error}");
                None
            }
        }
    }

    /// The interface of a name.
    pub(crate) fn link(&mut self, name: &str) -> Link {
        self.connection.link_by_name(name).unwrap().unwrap_or_else(|| panic!("there is no {name}"))
    }

    /// The names of all interfaces, in the order of their indices.
    pub(crate) fn names(&mut self) -> Vec<String> {
        self.connection.links().unwrap().into_iter().map(|link| link.name).collect()
    }

    /// Makes a cable with both ends here.
    pub(crate) fn veth(&mut self, name: &str, peer: &str) -> Link {
        let kind = NewLinkKind::Veth { peer, peer_namespace: None };
        self.connection.create_link(&NewLink { up: true, ..NewLink::new(name, kind) }).unwrap();
        self.link(name)
    }
}

/// Two namespaces, or nothing where the machine allows none.
pub(crate) fn two_namespaces() -> Option<(TestNamespace, TestNamespace)> {
    Some((TestNamespace::new()?, TestNamespace::new()?))
}

/// Waits until a condition has a value.
pub(crate) fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
