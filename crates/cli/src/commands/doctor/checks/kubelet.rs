//! The kubelet, the registration of drivers with it, and their sockets.

use std::io;

use crate::commands::doctor::finding::{Finding, count};
use crate::commands::doctor::kind::Kind;
use crate::node_facts::sockets::{Registration, Socket, SocketState};
use crate::node_facts::{DriverFacts, Facts, HttpAnswer};

/// The gRPC service that a kubelet since 1.34 uses; older ones use v1beta1.
const SERVICE: &str = "DRAPlugin";

pub(super) fn kubelet(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let directory = facts.node.kubelet_dir.display();
    match &facts.registry {
        Ok(_) => findings.push(Finding::ok(format!("the kubelet's directory is {directory}"))),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            findings.push(Finding::skipped(format!("{directory}/plugins_registry: {error}; run as root")));
        }
        Err(error) => findings.push(Finding::problem(
            Kind::KubeletDirMissing,
            format!("{directory}/plugins_registry: {error}"),
            "give --kubelet-dir as the kubelet's --root-dir, and in a pod mount it, with --host-root if not at its own path",
        )),
    }
    findings.push(match &facts.kubelet_healthz {
        HttpAnswer::Status(200, _) => Finding::ok("the kubelet says that it is healthy"),
        HttpAnswer::Status(status, body) => Finding::problem(
            Kind::KubeletUnhealthy,
            format!("the kubelet's /healthz answered {status}: {body}"),
            "journalctl -u kubelet",
        ),
        HttpAnswer::None(reason) => Finding::skipped(format!("the kubelet's /healthz: {reason}")),
    });
    findings
}

pub(super) fn registration(facts: &Facts) -> Vec<Finding> {
    if facts.node.drivers.is_empty() {
        let is_denied = |found: &&Registration| found.socket.state == SocketState::Denied;
        let denied = facts.registry.iter().flatten().filter(is_denied).count();
        if denied > 0 {
            let sockets = count(denied, "socket");
            return vec![Finding::skipped(format!(
                "drivers: {sockets} in the registry: permission denied; run as root"
            ))];
        }
        return vec![Finding::problem(
            Kind::NoDriver,
            "no DRA driver has a socket or a record on this node",
            "kubectl get pods -A -o wide --field-selector spec.nodeName=NODE, and look for the driver's pod; or give --driver",
        )];
    }
    facts.node.drivers.iter().flat_map(|driver| registration_of(facts, driver)).collect()
}

fn registration_of(facts: &Facts, driver: &DriverFacts) -> Vec<Finding> {
    let name = &driver.name;
    let found: Vec<&Registration> = facts.registrations_of(name).collect();
    let registry = facts.node.kubelet_dir.join("plugins_registry");
    if facts.registry.is_err() {
        return vec![Finding::skipped(format!("{name}: the registry cannot be read"))];
    }
    let Some(first) = found.first() else {
        return vec![Finding::problem(
            Kind::RegistrationMissing,
            format!("{name} has no registration socket in {}", registry.display()),
            "start the driver, and mount this directory of the host into its pod",
        )];
    };
    let is_live = |found: &&Registration| found.socket.state != SocketState::Refuses;
    if !found.iter().any(&is_live) {
        return vec![Finding::problem(
            Kind::DriverNotRunning,
            format!("{name}: nobody listens on {}: the driver is dead", first.socket.path.display()),
            "look at the driver's pod and its log: kubectl describe, kubectl logs --previous; its next start replaces the socket",
        )];
    }
    let mut findings = Vec::new();
    for registration in found.into_iter().filter(is_live) {
        findings.extend(answer_of(driver, registration));
    }
    let endpoints = facts.endpoints.iter().filter(|endpoints| endpoints.driver == *name);
    findings.extend(endpoints.flat_map(|endpoints| &endpoints.announced).map(|socket| endpoint(driver, socket)));
    findings
}

fn answer_of(driver: &DriverFacts, registration: &Registration) -> Option<Finding> {
    let name = &driver.name;
    let path = registration.socket.path.display();
    let info = match (&registration.info, &registration.socket.state) {
        (Some(Ok(info)), _) => info,
        (Some(Err(error)), _) => {
            return Some(Finding::problem(
                Kind::RegistrationNoAnswer,
                format!("{name}: {path} accepts connections, but: {error}"),
                "look at the driver's log; if it hangs, delete its pod",
            ));
        }
        (None, SocketState::Denied) => {
            return Some(Finding::skipped(format!("{name}: {path}: permission denied; run as root")));
        }
        (None, SocketState::Failed(error)) => {
            return Some(Finding::problem(
                Kind::RegistrationNoAnswer,
                format!("{name}: {path}: {error}"),
                "look at the driver's log; if it hangs, delete its pod",
            ));
        }
        // Gone since it was listed.
        (None, _) => return None,
    };
    let problem = if info.r#type != SERVICE {
        format!("its type is {:?}, not {SERVICE}", info.r#type)
    } else if !info.supported_versions.iter().any(|service| service.ends_with(SERVICE)) {
        format!("it names no service of DRA: {:?}", info.supported_versions)
    } else if !info.endpoint.starts_with('/') {
        format!("its endpoint {:?} is not an absolute path", info.endpoint)
    } else {
        let services = info.supported_versions.join(", ");
        return Some(Finding::ok(format!("{name}: registration socket answers, with {services}")));
    };
    Some(Finding::problem(
        Kind::RegistrationInvalid,
        format!("{name}: {path}: {problem}"),
        "the kubelet refuses it; update the driver",
    ))
}

fn endpoint(driver: &DriverFacts, socket: &Socket) -> Finding {
    let name = &driver.name;
    let path = socket.path.display();
    let restart = "delete the driver's pod: its next start makes the socket again";
    match &socket.state {
        SocketState::Accepts => Finding::ok(format!("{name}: DRA socket accepts connections")),
        SocketState::Missing => Finding::problem(
            Kind::DraSocketMissing,
            format!("{name}: its DRA socket {path} does not exist, so no claim can be prepared"),
            restart,
        ),
        SocketState::Denied => Finding::skipped(format!("{name}: {path}: permission denied; run as root")),
        SocketState::Refuses => Finding::problem(
            Kind::DraSocketDead,
            format!("{name}: nobody listens on its DRA socket {path}, so no claim can be prepared"),
            restart,
        ),
        SocketState::Failed(error) => {
            Finding::problem(Kind::DraSocketDead, format!("{name}: its DRA socket {path}: {error}"), restart)
        }
    }
}

/// Sockets of dead instances beside those of a live one. A driver removes them when it starts.
pub(super) fn stale_sockets(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let remove = |socket: &Socket| format!("rm {}", shell_quoted(&socket.path.to_string_lossy()));
    let mut looked_at = 0;
    for driver in &facts.node.drivers {
        let found: Vec<&Registration> = facts.registrations_of(&driver.name).collect();
        let is_dead = |found: &&&Registration| found.socket.state == SocketState::Refuses;
        looked_at += found.len();
        if found.iter().any(|found| found.socket.state == SocketState::Accepts) {
            findings.extend(found.iter().filter(is_dead).map(|found| {
                let path = found.socket.path.display();
                Finding::problem(
                    Kind::RegistrationStale,
                    format!("{}: nobody listens on {path}: a dead instance left it", driver.name),
                    remove(&found.socket),
                )
            }));
        }
    }
    for endpoints in &facts.endpoints {
        looked_at += endpoints.announced.len() + endpoints.others.len();
        let dead = endpoints.others.iter().filter(|socket| socket.state == SocketState::Refuses);
        // Without a live instance there is no stale socket: the driver is dead, which is another finding.
        let has_live = endpoints.announced.iter().any(|socket| socket.state == SocketState::Accepts);
        findings.extend(dead.filter(|_| has_live).map(|socket| {
            Finding::problem(
                Kind::DraSocketStale,
                format!("{}: nobody listens on {}: a dead instance left it", endpoints.driver, socket.path.display()),
                remove(socket),
            )
        }));
    }
    if findings.is_empty() && looked_at > 0 {
        findings.push(Finding::ok(format!("no stale socket among {}", count(looked_at, "socket"))));
    }
    findings
}

pub(super) fn readyz(facts: &Facts) -> Vec<Finding> {
    let Some((address, answer)) = &facts.readyz else {
        return vec![Finding::skipped("the driver's /readyz: give --http-endpoint to ask it")];
    };
    let remedy = "look at the driver's log, and at its /statusz";
    vec![match answer {
        HttpAnswer::Status(200, _) => Finding::ok(format!("the driver at {address} is ready")),
        HttpAnswer::Status(status, body) => {
            let failed = body.lines().filter(|line| line.starts_with("[-]")).collect::<Vec<_>>().join("; ");
            let failed = if failed.is_empty() { body.clone() } else { failed };
            Finding::problem(Kind::DriverNotReady, format!("{address}/readyz answered {status}: {failed}"), remedy)
        }
        HttpAnswer::None(reason) => {
            Finding::problem(Kind::DriverNotReady, format!("{address}/readyz: {reason}"), remedy)
        }
    }]
}

/// Quotes a word for a shell, if it needs it.
pub(super) fn shell_quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-@:+=,%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
