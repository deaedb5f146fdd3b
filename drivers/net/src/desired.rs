//! What an interface is to become for a claim, in the kernel's terms: the claim's parameters with every choice made.

use drakkar_netlink::{
    Child, HardwareAddress, IpvlanFlag, IpvlanMode, MacvlanMode, NewAddress, NewRoute, NewRule, RouteScope, TABLE_MAIN,
    VlanProtocol,
};
use drakkar_plugin::ClaimRef;
use ipnet::IpNet;

use crate::attach::{Identity, InterfacePlan, PLACEHOLDER, RdmaIdentity};
use crate::claim_config::{self, ClaimConfig, DuplicateDetection, Family, Route, Rule};

/// The part of a firewall mark that a rule compares: all of it.
const WHOLE_MARK: u32 = u32::MAX;

/// The choices that are not in the parameters.
#[derive(Debug, Clone)]
pub(crate) struct Chosen {
    /// The interface on the host.
    pub(crate) host: Identity,
    /// The name in the pod.
    pub(crate) name: String,
    /// The addresses.
    pub(crate) addresses: Vec<IpNet>,
    /// The RDMA device that goes along.
    pub(crate) rdma: Option<RdmaIdentity>,
}

/// Returns the text by which an interface of a claim is found again wherever it is.
pub(crate) fn mark(claim: &ClaimRef, device: &str, share_id: Option<&str>) -> String {
    match share_id {
        Some(share_id) => format!("drakkar/{}/{device}/{share_id}", claim.uid),
        None => format!("drakkar/{}/{device}", claim.uid),
    }
}

/// Returns what an interface is to become.
pub(crate) fn interface_plan(mark: String, chosen: Chosen, config: &ClaimConfig) -> InterfacePlan {
    let Chosen { host, name, addresses, rdma } = chosen;
    let hardware_address = config.mac_address.and_then(|mac| HardwareAddress::new(mac.octets()).ok());
    let sysctls = config.sysctls.iter().flatten();
    let duplicate_detection = config.duplicate_detection.unwrap_or_default();
    InterfacePlan {
        mark,
        host,
        child: child(config),
        name,
        mtu: config.mtu,
        hardware_address,
        addresses: addresses.into_iter().map(|address| new_address(address, duplicate_detection)).collect(),
        duplicate_detection,
        routes: config.routes.iter().flatten().map(|one| route(config, one)).collect(),
        rules: config.rules.iter().flatten().flat_map(rules).collect(),
        settings: sysctls.map(|(sysctl, value)| (sysctl.file(PLACEHOLDER), value.to_string())).collect(),
        rdma,
    }
}

fn new_address(address: IpNet, detection: DuplicateDetection) -> NewAddress {
    let is_unchecked = detection == DuplicateDetection::Off && address.addr().is_ipv6();
    let address = NewAddress::new(address);
    if is_unchecked { address.without_dad() } else { address }
}

fn child(config: &ClaimConfig) -> Option<Child> {
    let macvlan = config.macvlan.map(|macvlan| Child::Macvlan {
        mode: match macvlan.mode {
            claim_config::MacvlanMode::Bridge => MacvlanMode::Bridge,
            claim_config::MacvlanMode::Private => MacvlanMode::Private,
            claim_config::MacvlanMode::Vepa => MacvlanMode::Vepa,
            claim_config::MacvlanMode::Passthru => MacvlanMode::Passthru,
        },
    });
    let ipvlan = config.ipvlan.map(|ipvlan| Child::Ipvlan {
        mode: match ipvlan.mode {
            claim_config::IpvlanMode::L2 => IpvlanMode::L2,
            claim_config::IpvlanMode::L3 => IpvlanMode::L3,
            claim_config::IpvlanMode::L3s => IpvlanMode::L3s,
        },
        flag: match ipvlan.flag {
            claim_config::IpvlanFlag::Bridge => IpvlanFlag::Bridge,
            claim_config::IpvlanFlag::Private => IpvlanFlag::Private,
            claim_config::IpvlanFlag::Vepa => IpvlanFlag::Vepa,
        },
    });
    let vlan = config.vlan.map(|vlan| Child::Vlan {
        id: vlan.id,
        protocol: match vlan.protocol {
            claim_config::VlanProtocol::Dot1Q => VlanProtocol::Dot1Q,
            claim_config::VlanProtocol::Dot1Ad => VlanProtocol::Dot1Ad,
        },
    });
    macvlan.or(ipvlan).or(vlan)
}

fn route(config: &ClaimConfig, route: &Route) -> NewRoute {
    NewRoute {
        table: route.table.unwrap_or(TABLE_MAIN),
        scope: route.scope.map(|scope| match scope {
            claim_config::RouteScope::Global => RouteScope::Global,
            claim_config::RouteScope::Link => RouteScope::Link,
            claim_config::RouteScope::Host => RouteScope::Host,
        }),
        // That of the pod, which is known when it is there.
        interface: None,
        gateway: config.gateway_of(route),
        source: route.source,
        metric: route.metric,
        on_link: route.on_link,
        ..NewRoute::new(route.destination, 0)
    }
}

fn rules(rule: &Rule) -> impl Iterator<Item = NewRule> {
    rule.families().into_iter().map(|family| NewRule {
        is_ipv6: family == Family::V6,
        priority: rule.priority,
        from: rule.from,
        to: rule.to,
        input: None,
        output: None,
        mark: rule.fwmark.map(|mark| (mark, WHOLE_MARK)),
        table: rule.table,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(config: &str) -> InterfacePlan {
        let host =
            Identity { name: "eth1".into(), index: 3, kind: String::new(), device: None, permanent_address: None };
        let addresses = ["192.0.2.7/24", "2001:db8::7/64"].map(|address| address.parse().unwrap()).to_vec();
        let chosen = Chosen { host, name: "data0".into(), addresses, rdma: None };
        interface_plan("mark".into(), chosen, &serde_json::from_str(config).unwrap())
    }

    #[test]
    fn parameters_become_what_the_kernel_is_asked_for() {
        let plan = plan(
            r#"{
                "mtu": 9000, "macAddress": "02:00:5e:10:00:01", "vlan": {"id": 7, "protocol": "802.1ad"},
                "addressRanges": [{"subnet": "192.0.2.0/24", "gateway": "192.0.2.1"}],
                "routes": [{"destination": "198.51.100.0/24", "table": 100}, {"destination": "203.0.113.0/24", "scope": "link"}],
                "rules": [{"from": "192.0.2.0/24", "table": 100}, {"fwmark": 7, "table": 100, "priority": 10}],
                "sysctls": {"net.ipv4.conf.IFNAME.rp_filter": 2}
            }"#,
        );
        assert_eq!((plan.name.as_str(), plan.mtu), ("data0", Some(9000)));
        assert_eq!(plan.hardware_address.unwrap().to_string(), "02:00:5e:10:00:01");
        assert_eq!(plan.child, Some(Child::Vlan { id: 7, protocol: VlanProtocol::Dot1Ad }));
        assert_eq!(plan.routes[0].gateway, Some("192.0.2.1".parse().unwrap()), "that of the range");
        assert_eq!((plan.routes[0].table, plan.routes[0].interface), (100, None));
        assert_eq!((plan.routes[1].gateway, plan.routes[1].scope), (None, Some(RouteScope::Link)));
        let families: Vec<bool> = plan.rules.iter().map(|rule| rule.is_ipv6).collect();
        assert_eq!(families, [false, false, true], "a mark is of both families");
        assert_eq!(plan.rules[2].mark, Some((7, u32::MAX)));
        assert_eq!(plan.settings["net/ipv4/conf/IFNAME/rp_filter"], "2");
    }

    #[test]
    fn duplicates_are_looked_for_unless_that_is_switched_off() {
        let of = |config: &str| {
            let plan = plan(config);
            (plan.duplicate_detection, plan.addresses[0].no_dad, plan.addresses[1].no_dad)
        };
        assert_eq!(of("{}"), (DuplicateDetection::Quick, false, false));
        assert_eq!(of(r#"{"duplicateDetection": "full"}"#), (DuplicateDetection::Full, false, false));
        assert_eq!(
            of(r#"{"duplicateDetection": "off"}"#),
            (DuplicateDetection::Off, false, true),
            "IPv4 has none in the kernel"
        );
    }

    #[test]
    fn interfaces_on_top_of_others_are_of_the_kind_that_was_asked_for() {
        let macvlan = Child::Macvlan { mode: MacvlanMode::Private };
        assert_eq!(plan(r#"{"macvlan": {"mode": "private"}}"#).child, Some(macvlan));
        let ipvlan = Child::Ipvlan { mode: IpvlanMode::L3, flag: IpvlanFlag::Vepa };
        assert_eq!(plan(r#"{"ipvlan": {"mode": "l3", "flag": "vepa"}}"#).child, Some(ipvlan));
        assert_eq!(plan("{}").child, None);
    }
}
