//! The devices, and shares of devices, that allocated claims hold.

use std::collections::{BTreeMap, HashMap};

use drakkar_client::Quantity;
use k8s_openapi::api::resource::v1::AllocationResult;

use super::capacity::{self, Amounts};
use super::inventory::DeviceId;

/// The devices that claims hold. The last allocation [set](Self::set) for a claim counts.
#[derive(Debug, Default)]
pub(crate) struct InUse {
    claims: HashMap<String, Vec<Holding>>,
    whole: HashMap<DeviceId, usize>,
    shares: HashMap<DeviceId, Shares>,
}

#[derive(Debug, Default)]
struct Shares {
    count: usize,
    consumed: Amounts,
}

#[derive(Debug, PartialEq)]
enum Holding {
    Whole(DeviceId),
    Share(DeviceId, Amounts),
}

impl InUse {
    /// Replaces what a claim holds by this allocation. Returns whether that changed anything.
    pub(crate) fn set(&mut self, claim_uid: &str, allocation: Option<&AllocationResult>) -> bool {
        let holdings = allocation.map(holdings).unwrap_or_default();
        if self.claims.get(claim_uid).map_or(holdings.is_empty(), |before| *before == holdings) {
            return false;
        }
        for holding in self.claims.remove(claim_uid).unwrap_or_default() {
            self.release(holding);
        }
        for holding in &holdings {
            match holding {
                Holding::Whole(id) => *self.whole.entry(id.clone()).or_default() += 1,
                Holding::Share(id, amounts) => {
                    let shares = self.shares.entry(id.clone()).or_default();
                    shares.count += 1;
                    capacity::add(&mut shares.consumed, amounts);
                }
            }
        }
        if !holdings.is_empty() {
            self.claims.insert(claim_uid.to_owned(), holdings);
        }
        true
    }

    fn release(&mut self, holding: Holding) {
        match holding {
            Holding::Whole(id) => {
                if let Some(count) = self.whole.get_mut(&id) {
                    *count -= 1;
                    if *count == 0 {
                        self.whole.remove(&id);
                    }
                }
            }
            Holding::Share(id, amounts) => {
                if let Some(shares) = self.shares.get_mut(&id) {
                    shares.count -= 1;
                    capacity::subtract(&mut shares.consumed, &amounts);
                    if shares.count == 0 {
                        self.shares.remove(&id);
                    }
                }
            }
        }
    }

    /// Reports whether a claim holds the whole device.
    pub(crate) fn has_whole(&self, id: &DeviceId) -> bool {
        self.whole.contains_key(id)
    }

    /// Reports whether a claim holds the device or a share of it.
    pub(crate) fn has_any(&self, id: &DeviceId) -> bool {
        self.whole.contains_key(id) || self.shares.contains_key(id)
    }

    /// Returns how much of a capacity all shares of the device consume.
    pub(crate) fn consumed_of(&self, id: &DeviceId, capacity: &str) -> Quantity {
        let consumed = self.shares.get(id).and_then(|shares| shares.consumed.get(capacity));
        consumed.cloned().unwrap_or_default()
    }
}

/// Returns what an allocation holds. Admin access holds nothing.
fn holdings(allocation: &AllocationResult) -> Vec<Holding> {
    let results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
    results
        .filter(|result| result.admin_access != Some(true))
        .map(|result| {
            let id = DeviceId::new(&result.driver, &result.pool, &result.device);
            if result.share_id.is_none() {
                return Holding::Whole(id);
            }
            let amounts: BTreeMap<_, _> = result
                .consumed_capacity
                .iter()
                .flatten()
                .filter_map(|(name, amount)| Some((capacity::qualified(name, &result.driver), amount.0.parse().ok()?)))
                .collect();
            Holding::Share(id, amounts)
        })
        .collect()
}
