//! What allocated claims hold: whole devices, and shares of devices.

use std::collections::{BTreeMap, HashMap};

use drakkar_client::Quantity;
use k8s_openapi::api::resource::v1::AllocationResult;

use super::capacity::{self, Amounts};
use super::inventory::DeviceId;

/// The devices that claims have. A claim counts with what was last [set](Self::set) for it.
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
    /// Notes what a claim has, in place of what it had. Says whether that made a difference.
    pub(crate) fn set(&mut self, claim_uid: &str, allocation: Option<&AllocationResult>) -> bool {
        let holdings = allocation.map(holdings).unwrap_or_default();
        if self.claims.get(claim_uid).map_or(holdings.is_empty(), |before| *before == holdings) {
            return false;
        }
        for holding in self.claims.remove(claim_uid).unwrap_or_default() {
            self.drop_holding(holding);
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

    fn drop_holding(&mut self, holding: Holding) {
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

    /// Whether a claim has all of the device.
    pub(crate) fn has_whole(&self, id: &DeviceId) -> bool {
        self.whole.contains_key(id)
    }

    /// Whether a claim has the device or a part of it.
    pub(crate) fn has_any(&self, id: &DeviceId) -> bool {
        self.whole.contains_key(id) || self.shares.contains_key(id)
    }

    /// What all shares of the device take of one of its capacities.
    pub(crate) fn consumed_of(&self, id: &DeviceId, capacity: &str) -> Quantity {
        let consumed = self.shares.get(id).and_then(|shares| shares.consumed.get(capacity));
        consumed.cloned().unwrap_or_default()
    }
}

/// Access for administrators takes nothing from anybody.
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
