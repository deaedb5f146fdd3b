//! The kernel's settings of one interface that a claim may change.
//!
//! They are named as files below `/proc/sys`, with dots, and with [`PLACEHOLDER`] where the name of the interface is, as CNI's
//! plugin `tuning` has it. They exist once for each interface and network namespace, so none of them reaches another
//! pod or the host. Those that the kernel keeps for a namespace as a whole are not here: a pod has `securityContext.sysctls` for these.

use std::fmt;
use std::str::FromStr;

use super::fields::unknown;

/// What stands for the name of the interface.
pub const PLACEHOLDER: &str = "IFNAME";

const IPV4_CONF: &[&str] = &[
    "accept_local",
    "accept_redirects",
    "accept_source_route",
    "arp_accept",
    "arp_announce",
    "arp_evict_nocarrier",
    "arp_filter",
    "arp_ignore",
    "arp_notify",
    "bc_forwarding",
    "disable_policy",
    "disable_xfrm",
    "drop_gratuitous_arp",
    "drop_unicast_in_l2_multicast",
    "force_igmp_version",
    "forwarding",
    "igmpv2_unsolicited_report_interval",
    "igmpv3_unsolicited_report_interval",
    "ignore_routes_with_linkdown",
    "log_martians",
    "medium_id",
    "promote_secondaries",
    "proxy_arp",
    "proxy_arp_pvlan",
    "route_localnet",
    "rp_filter",
    "secure_redirects",
    "send_redirects",
    "shared_media",
    "src_valid_mark",
];

const IPV6_CONF: &[&str] = &[
    "accept_dad",
    "accept_ra",
    "accept_ra_defrtr",
    "accept_ra_from_local",
    "accept_ra_min_hop_limit",
    "accept_ra_mtu",
    "accept_ra_pinfo",
    "accept_ra_rt_info_max_plen",
    "accept_ra_rt_info_min_plen",
    "accept_ra_rtr_pref",
    "accept_redirects",
    "accept_source_route",
    "accept_untracked_na",
    "addr_gen_mode",
    "autoconf",
    "dad_transmits",
    "disable_ipv6",
    "disable_policy",
    "drop_unicast_in_l2_multicast",
    "drop_unsolicited_na",
    "enhanced_dad",
    "force_mld_version",
    "force_tllao",
    "forwarding",
    "hop_limit",
    "ignore_routes_with_linkdown",
    "keep_addr_on_down",
    "max_addresses",
    "max_desync_factor",
    "mldv1_unsolicited_report_interval",
    "mldv2_unsolicited_report_interval",
    "ndisc_evict_nocarrier",
    "ndisc_notify",
    "ndisc_tclass",
    "optimistic_dad",
    "proxy_ndp",
    "ra_defrtr_metric",
    "regen_max_retry",
    "router_probe_interval",
    "router_solicitation_delay",
    "router_solicitation_interval",
    "router_solicitation_max_interval",
    "router_solicitations",
    "seg6_enabled",
    "suppress_frag_ndisc",
    "temp_prefered_lft",
    "temp_valid_lft",
    "use_oif_addrs_only",
    "use_optimistic",
    "use_tempaddr",
];

const NEIGH: &[&str] = &[
    "anycast_delay",
    "app_solicit",
    "base_reachable_time_ms",
    "delay_first_probe_time",
    "gc_stale_time",
    "interval_probe_time_ms",
    "locktime",
    "mcast_resolicit",
    "mcast_solicit",
    "proxy_delay",
    "proxy_qlen",
    "retrans_time_ms",
    "ucast_solicit",
    "unres_qlen",
    "unres_qlen_bytes",
];

/// The directories of settings, and what may be set in each.
const TREES: &[(&str, &[&str])] =
    &[("net.ipv4.conf", IPV4_CONF), ("net.ipv6.conf", IPV6_CONF), ("net.ipv4.neigh", NEIGH), ("net.ipv6.neigh", NEIGH)];

/// A setting of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sysctl {
    tree: &'static str,
    name: &'static str,
}

impl Sysctl {
    /// Returns the file of the setting for an interface, relative to `/proc/sys`.
    pub fn file(self, interface: &str) -> String {
        format!("{}/{interface}/{}", self.tree.replace('.', "/"), self.name)
    }

    /// Returns whether it is this setting.
    pub fn is(self, tree: &str, name: &str) -> bool {
        self.tree == tree && self.name == name
    }
}

impl FromStr for Sysctl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let tree =
            TREES.iter().find_map(|(tree, names)| Some((*tree, *names, text.strip_prefix(tree)?.strip_prefix('.')?)));
        let Some((tree, names, rest)) = tree else {
            let trees: Vec<String> = TREES.iter().map(|(tree, _)| format!("{tree}.{PLACEHOLDER}")).collect();
            return Err(format!("not a setting of one interface: use one below {}", trees.join(", ")));
        };
        let Some(name) = rest.strip_prefix(PLACEHOLDER).and_then(|rest| rest.strip_prefix('.')) else {
            let name = rest.rsplit('.').next().unwrap_or_default();
            return Err(format!(
                "a setting of the claimed interface alone: write {tree}.{PLACEHOLDER}.{name}, with {PLACEHOLDER} for its name"
            ));
        };
        let known = names.iter().find(|known| **known == name);
        let name = known.ok_or_else(|| unknown(&format!("{name:?} cannot be set"), name, names))?;
        Ok(Self { tree, name })
    }
}

impl fmt::Display for Sysctl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{PLACEHOLDER}.{}", self.tree, self.name)
    }
}
