//! A look at a host without Kubernetes: what the driver would publish.

use std::sync::Arc;

use drakkar_plugin::attributes::NumaForm;
use drakkar_sysfs::{PciDevice, ScanError, Sysfs};

use crate::attributes::Numa;
use crate::config::Config;
use crate::devices::{Devices, Scan};
use crate::metrics::Metrics;
use crate::plan::Decision;

/// Returns every PCI device of a host, and what becomes of it with a configuration. Blocks.
pub fn survey(sysfs: Sysfs, config: Arc<Config>) -> Result<Vec<(PciDevice, Decision)>, ScanError> {
    let numa = Numa::new(&sysfs.roots().sys, NumaForm::Number);
    let devices = Devices::new(Scan::new(sysfs)?, "node", config, numa, Metrics::default(), Default::default, |_| ());
    devices.publish();
    Ok(devices.decisions())
}
