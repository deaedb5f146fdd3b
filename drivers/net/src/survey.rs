//! A look at a host without Kubernetes: what the driver would publish.

use std::net::IpAddr;
use std::sync::Arc;

use drakkar_netlink::Namespace;
use drakkar_plugin::attributes::NumaForm;
use drakkar_sysfs::Sysfs;

use crate::attributes::Numa;
use crate::config::Config;
use crate::interfaces::{Interfaces, Settings, Subject};
use crate::inventory::{Host, InventoryError};
use crate::plan::Decision;

/// Returns every interface of a host, and what becomes of it with a configuration. Blocks.
pub fn survey(
    namespace: &Namespace,
    sysfs: Sysfs,
    config: Arc<Config>,
    node_addresses: Vec<IpAddr>,
) -> Result<Vec<(Subject, Decision)>, InventoryError> {
    let numa = Numa::new(&sysfs.roots().sys, NumaForm::Number);
    let mut host = Host::open(namespace, sysfs)?;
    let inventory = host.scan()?;
    let settings = Settings { node: "node".to_owned(), config, numa, node_addresses };
    let interfaces = Interfaces::new(host, inventory, settings, Vec::new, |_| ());
    interfaces.publish();
    Ok(interfaces.decisions())
}
