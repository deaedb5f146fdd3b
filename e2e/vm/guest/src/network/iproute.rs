//! iproute2's view of a namespace, and whether it is ours.
//!
//! Both views are brought to the same few fields; what is compared is all that [`drakkar_netlink`] tells.

use anyhow::{Context, Result, ensure};
use drakkar_netlink::{
    Address, AddressScope, DadState, Link, LinkKind, Namespace, OperationalState, Route, RouteScope, RouteType, Rule,
};
use serde_json::{Map, Value, json};

use super::Network;
use crate::debian::Debian;
use crate::guest::wait;

/// The programs of the package iproute2.
#[derive(Debug)]
pub(crate) struct Iproute {
    debian: Debian,
}

impl Iproute {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { debian: Debian::mount()? })
    }

    /// Runs a command in a namespace, and returns what it printed.
    pub(crate) fn run(&self, namespace: &Namespace, command: &str) -> Result<String> {
        let mut words = command.split_whitespace();
        // By its path: of the name alone busybox would make its own program.
        let program = format!("/usr/bin/{}", words.next().context("a command")?);
        let mut process = self.debian.command(&program);
        process.args(words);
        let output = namespace.run(|| process.output())?.with_context(|| format!("run {command}"))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command}: {}: {errors}", output.status);
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs a command that prints a JSON list. None is printed if it is empty.
    pub(crate) fn list(&self, namespace: &Namespace, command: &str) -> Result<Vec<Value>> {
        let printed = self.run(namespace, command)?;
        let lists = serde_json::Deserializer::from_str(&printed).into_iter::<Vec<Value>>();
        let lists: Vec<_> = lists.collect::<Result<_, _>>().with_context(|| format!("{command}: {printed}"))?;
        // A version prints empty objects for what its filter leaves out.
        Ok(lists
            .into_iter()
            .flatten()
            .filter(|value| value.as_object().is_none_or(|object| !object.is_empty()))
            .collect())
    }

    /// Compares all that both tell of a namespace.
    pub(crate) fn compare(&self, network: &mut Network) -> Result<()> {
        self.compare_links(network)?;
        self.compare_addresses(network)?;
        self.compare_routes(network)?;
        self.compare_rules(network)
    }

    /// Compares the interfaces, and returns them as iproute2 shows them.
    pub(crate) fn compare_links(&self, network: &mut Network) -> Result<Vec<Value>> {
        let mut shown = Vec::new();
        compare("interfaces", || {
            let ours = network.connection.links()?;
            let links = ours.iter().map(|link| our_link(link, &ours)).collect();
            shown = self.list(&network.namespace, "ip -j -d link")?;
            Ok((links, shown.iter().map(their_link).collect()))
        })?;
        Ok(shown)
    }

    /// Compares the addresses.
    pub(crate) fn compare_addresses(&self, network: &mut Network) -> Result<()> {
        compare("addresses", || {
            let ours = network.connection.addresses()?.iter().map(our_address).collect();
            let mut theirs = Vec::new();
            for link in self.list(&network.namespace, "ip -j addr")? {
                let addresses = link["addr_info"].as_array().into_iter().flatten();
                theirs.extend(addresses.map(|address| their_address(&link["ifindex"], address)));
            }
            Ok((ours, theirs))
        })
    }

    /// Compares the routes of all tables.
    pub(crate) fn compare_routes(&self, network: &mut Network) -> Result<()> {
        compare("routes", || {
            let names = network.connection.links()?;
            let ours = network.connection.routes()?.iter().map(|route| our_route(route, &names)).collect();
            let mut theirs = Vec::new();
            for family in ["-4", "-6"] {
                let routes = self.list(&network.namespace, &format!("ip -j -d -N {family} route show table all"))?;
                theirs.extend(routes.iter().map(|route| their_route(route, family)));
            }
            Ok((ours, theirs))
        })
    }

    /// Compares the rules.
    pub(crate) fn compare_rules(&self, network: &mut Network) -> Result<()> {
        compare("rules", || {
            let ours = network.connection.rules()?.iter().map(our_rule).collect();
            let mut theirs = Vec::new();
            for (family, is_ipv6) in [("-4", false), ("-6", true)] {
                let rules = self.list(&network.namespace, &format!("ip -j -N {family} rule"))?;
                theirs.extend(rules.iter().map(|rule| their_rule(rule, is_ipv6)));
            }
            Ok((ours, theirs))
        })
    }
}

/// Compares two views until they are equal: between one and the other the kernel may have ended duplicate address detection, or
/// noticed a carrier. Fails with the last difference.
fn compare(what: &str, mut views: impl FnMut() -> Result<(Vec<Value>, Vec<Value>)>) -> Result<()> {
    let mut last = Ok(());
    let waited = wait(what, || {
        let (ours, theirs) = views()?;
        last = equal(what, ours, theirs);
        Ok(last.is_ok())
    });
    last.and(waited)
}

/// Checks that two views have the same entries, in any order.
fn equal(what: &str, ours: Vec<Value>, theirs: Vec<Value>) -> Result<()> {
    let sorted = |values: Vec<Value>| {
        let mut lines: Vec<_> = values.iter().map(Value::to_string).collect();
        lines.sort();
        lines.join("\n")
    };
    let (ours, theirs) = (sorted(ours), sorted(theirs));
    ensure!(ours == theirs, "{what} differ\nours:\n{ours}\niproute2's:\n{theirs}");
    Ok(())
}

/// A value without the fields that are null or false, which iproute2 leaves out.
fn present(value: Value) -> Value {
    let Value::Object(fields) = value else { return value };
    let is_present = |value: &Value| !value.is_null() && *value != json!(false) && *value != json!([]);
    Value::Object(fields.into_iter().filter(|(_, value)| is_present(value)).collect())
}

/// Some fields of a value.
fn fields(value: &Value, names: &[&str]) -> Map<String, Value> {
    names.iter().filter_map(|name| Some(((*name).to_owned(), value.get(name)?.clone()))).collect()
}

fn our_link(link: &Link, all: &[Link]) -> Value {
    let name = |index: u32| all.iter().find(|link| link.index == index).map(|link| link.name.clone());
    let (mode, id) = match &link.kind {
        LinkKind::Vlan { id } => (None, Some(*id)),
        LinkKind::Macvlan { mode } => (serde_json::to_value(mode).ok(), None),
        LinkKind::Ipvlan { mode } => (serde_json::to_value(mode).ok(), None),
        _ => (None, None),
    };
    let parent = link.parent;
    let is_here = parent.is_some_and(|parent| parent.namespace.is_none());
    let permanent = link.permanent_address.as_ref().filter(|permanent| link.address.as_ref() != Some(permanent));
    present(json!({
        "ifindex": link.index,
        "ifname": link.name,
        "altnames": link.alt_names,
        "ifalias": link.alias,
        "address": link.address.as_ref().map(ToString::to_string),
        "permaddr": permanent.map(ToString::to_string),
        "parentbus": link.device.as_ref().map(|device| &device.bus),
        "parentdev": link.device.as_ref().map(|device| &device.name),
        "mtu": link.mtu,
        "min_mtu": link.min_mtu,
        "max_mtu": link.max_mtu.unwrap_or_default(),
        "kind": (link.kind != LinkKind::Device).then(|| link.kind.name()),
        "mode": mode,
        "id": id,
        "link": parent.filter(|_| is_here).and_then(|parent| name(parent.index)),
        "link_index": parent.filter(|_| !is_here).map(|parent| parent.index),
        "link_netnsid": parent.and_then(|parent| parent.namespace),
        "master": link.master.and_then(name),
        "operstate": state(link.state),
        "up": link.is_up,
        "loopback": link.is_loopback,
    }))
}

/// The kernel's names in capitals.
fn state(state: OperationalState) -> String {
    state.to_string().to_uppercase()
}

fn their_link(link: &Value) -> Value {
    let mut kept = fields(
        link,
        &[
            "ifindex",
            "ifname",
            "altnames",
            "ifalias",
            "address",
            "permaddr",
            "parentbus",
            "parentdev",
            "mtu",
            "min_mtu",
            "max_mtu",
            "link",
            "link_index",
            "link_netnsid",
            "master",
            "operstate",
        ],
    );
    let info = &link["linkinfo"];
    kept.insert("kind".to_owned(), info["info_kind"].clone());
    if ["macvlan", "ipvlan", "vlan"].iter().any(|kind| info["info_kind"] == *kind) {
        kept.extend(fields(&info["info_data"], &["mode", "id"]));
    }
    let has = |flag: &str| link["flags"].as_array().is_some_and(|flags| flags.contains(&json!(flag)));
    kept.insert("up".to_owned(), json!(has("UP")));
    kept.insert("loopback".to_owned(), json!(has("LOOPBACK")));
    present(Value::Object(kept))
}

fn our_address(address: &Address) -> Value {
    let scope = match address.scope {
        AddressScope::Global => "global",
        AddressScope::Site => "site",
        AddressScope::Link => "link",
        AddressScope::Host => "host",
        AddressScope::Other(_) => "other",
    };
    present(json!({
        "ifindex": address.index,
        "local": address.address.addr().to_string(),
        "prefixlen": address.address.prefix_len(),
        "address": address.peer.map(|peer| peer.to_string()),
        "broadcast": address.broadcast.map(|broadcast| broadcast.to_string()),
        "scope": scope,
        "label": address.label,
        "dynamic": !address.is_permanent,
        "secondary": address.is_secondary,
        "noprefixroute": address.no_prefix_route,
        "nodad": address.no_dad,
        "dadfailed": address.dad == DadState::Failed,
        "optimistic": address.dad == DadState::Optimistic,
        // The flag stays while the check has failed.
        "tentative": matches!(address.dad, DadState::Tentative | DadState::Failed),
    }))
}

fn their_address(index: &Value, address: &Value) -> Value {
    let mut kept = fields(
        address,
        &[
            "local",
            "prefixlen",
            "address",
            "broadcast",
            "scope",
            "label",
            "dynamic",
            "secondary",
            "noprefixroute",
            "nodad",
            "dadfailed",
            "optimistic",
            "tentative",
        ],
    );
    kept.insert("ifindex".to_owned(), index.clone());
    present(Value::Object(kept))
}

fn our_route(route: &Route, links: &[Link]) -> Value {
    let device = route.interface.and_then(|index| links.iter().find(|link| link.index == index));
    // Numbers as in the kernel's header.
    let kind = match route.kind {
        RouteType::Unicast => 1,
        RouteType::Local => 2,
        RouteType::Broadcast => 3,
        RouteType::Anycast => 4,
        RouteType::Multicast => 5,
        RouteType::BlackHole => 6,
        RouteType::Unreachable => 7,
        RouteType::Prohibit => 8,
        RouteType::Other(number) => number,
        _ => 0,
    };
    let scope = match route.scope {
        RouteScope::Global => 0,
        RouteScope::Site => 200,
        RouteScope::Link => 253,
        RouteScope::Host => 254,
        RouteScope::Other(number) => number,
    };
    present(json!({
        "type": kind.to_string(),
        "family": if route.destination.addr().is_ipv4() { "-4" } else { "-6" },
        "dst": route.destination.to_string(),
        "table": route.table.to_string(),
        "protocol": route.protocol.to_string(),
        "scope": scope.to_string(),
        "dev": device.map(|link| &link.name),
        "gateway": route.gateway.map(|gateway| gateway.to_string()),
        "prefsrc": route.source.map(|source| source.to_string()),
        "metric": route.metric,
        "onlink": route.on_link,
    }))
}

fn their_route(route: &Value, family: &str) -> Value {
    let mut kept = fields(route, &["type", "protocol", "scope", "dev", "gateway", "prefsrc", "metric"]);
    kept.insert("family".to_owned(), json!(family));
    let bits = if family == "-4" { 32 } else { 128 };
    let destination = match route["dst"].as_str().unwrap_or_default() {
        "default" if family == "-4" => "0.0.0.0/0".to_owned(),
        "default" => "::/0".to_owned(),
        network if network.contains('/') => network.to_owned(),
        host => format!("{host}/{bits}"),
    };
    kept.insert("dst".to_owned(), json!(destination));
    // The main table is not named.
    let table = route["table"].as_str().unwrap_or("254");
    kept.insert("table".to_owned(), json!(table));
    let is_on_link = route["flags"].as_array().is_some_and(|flags| flags.contains(&json!("onlink")));
    kept.insert("onlink".to_owned(), json!(is_on_link));
    present(Value::Object(kept))
}

fn our_rule(rule: &Rule) -> Value {
    present(json!({
        "ipv6": rule.is_ipv6,
        "priority": rule.priority,
        "src": rule.from.map_or("all".to_owned(), |net| net.addr().to_string()),
        "srclen": rule.from.map(|net| net.prefix_len()).filter(|length| ![32, 128].contains(length)),
        "dst": rule.to.map(|net| net.addr().to_string()),
        "dstlen": rule.to.map(|net| net.prefix_len()).filter(|length| ![32, 128].contains(length)),
        "iif": rule.input,
        "oif": rule.output,
        "fwmark": rule.mark.map(|(mark, _)| format!("{mark:#x}")),
        "fwmask": rule.mark.filter(|(_, mask)| *mask != u32::MAX).map(|(_, mask)| format!("{mask:#x}")),
        "table": rule.table.map(|table| table.to_string()),
    }))
}

fn their_rule(rule: &Value, is_ipv6: bool) -> Value {
    let mut kept =
        fields(rule, &["priority", "src", "srclen", "dst", "dstlen", "iif", "oif", "fwmark", "fwmask", "table"]);
    kept.insert("ipv6".to_owned(), json!(is_ipv6));
    present(Value::Object(kept))
}
