//! What the tests share: nodes with NRI, pods, and a plugin written by hand.

pub(crate) mod plugin;

use drakkar_node::{Container, Isolation, Node, Pod, nri};
use serde_json::Value;

/// Starts a node with NRI; `None`, and a line that says so, if pods cannot have networks here.
pub(crate) async fn node(config: nri::Config) -> Option<Node> {
    node_in(Isolation::Auto, config).await
}

/// Starts a node with NRI whose containers are isolated in this way.
pub(crate) async fn node_in(isolation: Isolation, config: nri::Config) -> Option<Node> {
    let node = Node::builder().isolation(isolation.clone()).nri(config).start().await;
    let node = match node {
        Ok(node) => node,
        Err(error) => return skip(&format!("isolation {isolation}: {error}")),
    };
    match node.nri().unwrap().network_problem() {
        Some(problem) => skip(&problem),
        None => Some(node),
    }
}

/// Prints why a test is skipped; fails where namespaces are required.
pub(crate) fn skip<T>(reason: &str) -> Option<T> {
    assert!(std::env::var_os("DRAKKAR_REQUIRE_NAMESPACES").is_none(), "namespaces are required: {reason}");
    println!("skipped: pods cannot have networks here: {reason}");
    None
}

/// Returns a pod with one container that runs until it is stopped.
pub(crate) fn sleeper(name: &str) -> Pod {
    Pod::new(name).container(Container::new("main", ["sleep", "infinity"]))
}

/// Returns a pod whose containers run a script.
pub(crate) fn script(name: &str, script: &str) -> Pod {
    Pod::new(name).container(Container::new("main", ["sh", "-c", script]))
}

/// Returns the pod with the network of the host.
pub(crate) fn on_host_network(pod: Pod) -> Value {
    let mut pod = Value::from(pod);
    pod["spec"]["hostNetwork"] = true.into();
    pod
}
