//! NRI: the socket of the container runtime for plugins such as network drivers.

use crate::commands::doctor::finding::Finding;
use crate::commands::doctor::kind::Kind;
use crate::node_facts::Facts;
use crate::node_facts::runtime::{Runtime, Switch};
use crate::node_facts::sockets::SocketState;

/// The driver of this project that works through NRI. Of other drivers only the user knows.
const NETWORK_DRIVER: &str = "net.drakkar.dev";

pub(super) fn nri(facts: &Facts) -> Vec<Finding> {
    let socket = &facts.nri.socket;
    let path = socket.path.display();
    if socket.state == SocketState::Accepts {
        return vec![Finding::ok(format!("NRI: {path} accepts connections"))];
    }
    let has_network_driver = facts.node.drivers.iter().any(|driver| driver.name.as_str() == NETWORK_DRIVER);
    if !facts.nri.is_needed && !has_network_driver {
        return vec![Finding::skipped("NRI: if a driver here needs it, give --nri-socket")];
    }
    if let Runtime::Known(config) = &facts.runtime
        && config.nri_with(facts.runtime_release()) == Switch::Off
    {
        let enable = if config.name == "CRI-O" {
            "set enable_nri = true in [crio.nri]"
        } else {
            "set disable = false in [plugins.\"io.containerd.nri.v1.nri\"]"
        };
        return vec![Finding::problem(
            Kind::NriDisabled,
            format!("NRI is off in {}, and a driver needs it", config.path.display()),
            format!("{enable}, then restart {}", config.name),
        )];
    }
    let state = match &socket.state {
        SocketState::Refuses => "nobody listens on it".to_owned(),
        SocketState::Denied => return vec![Finding::skipped(format!("NRI: {path}: permission denied; run as root"))],
        SocketState::Failed(error) => error.clone(),
        SocketState::Missing | SocketState::Accepts => "it does not exist".to_owned(),
    };
    vec![Finding::problem(
        Kind::NriSocketMissing,
        format!("NRI socket {path}: {state}, and a driver needs it"),
        "turn NRI on in the runtime (containerd 2.0 or newer, CRI-O 1.30 or newer), and mount the socket's directory into the \
         driver's pod; if the socket is elsewhere, give --nri-socket",
    )]
}

#[cfg(all(test, feature = "net"))]
mod tests {
    #[test]
    fn the_network_driver_is_known_by_its_name() {
        assert_eq!(super::NETWORK_DRIVER, drakkar_net::DRIVER_NAME);
    }
}
