//! Addresses for claims: from ranges, and checked against those that other claims of this node have.
//!
//! A range belongs to a node. There is no coordination between nodes: give each node a range of its own, with a device class for
//! each or with `first` and `last`, or use DHCP or SLAAC in the pod.
//!
//! The address of a device follows from the claim, the request and the device, so a claim that is prepared again on the
//! same node gets the same address, unless another claim has got it meanwhile. An address is free again when its claim is
//! unprepared. Which addresses are taken is nowhere but in the journal.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::claim_config::{AddressRange, ClaimConfig};

/// The addresses that claims of this node have, each with the claim for messages.
pub(crate) type Taken = BTreeMap<IpAddr, String>;

/// Why a device gets no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressError {
    #[error(
        "the address range {subnet} is exhausted: all {size} addresses are in use by claims of this node; delete pods, or make \
         the range larger"
    )]
    Exhausted { subnet: IpNet, size: u128 },
    #[error(
        "the address {address} is in use by claim {holder} on this node: delete its pod, or choose another address"
    )]
    InUse { address: IpAddr, holder: String },
}

/// Returns the addresses of a device, and takes them: the static ones, then one from each range. `None`: the claim leaves them as
/// they are on the host.
///
/// `holder` is the claim for messages, and `seed` names the device in it.
pub(crate) fn assign(
    config: &ClaimConfig,
    holder: &str,
    seed: &str,
    taken: &mut Taken,
) -> Result<Option<Vec<IpNet>>, AddressError> {
    if config.addresses.is_none() && config.address_ranges.is_none() {
        return Ok(None);
    }
    let mut addresses = config.addresses.clone().unwrap_or_default();
    take(&addresses, holder, taken)?;
    for range in config.address_ranges.iter().flatten() {
        let address = choose(range, seed, taken)?;
        taken.insert(address.addr(), holder.to_owned());
        addresses.push(address);
    }
    Ok(Some(addresses))
}

/// Takes addresses that are given: those that the claim sets, or that its interface has on the host. All of them or none.
pub(crate) fn take(addresses: &[IpNet], holder: &str, taken: &mut Taken) -> Result<(), AddressError> {
    for address in addresses {
        if let Some(holder) = taken.get(&address.addr()) {
            return Err(AddressError::InUse { address: address.addr(), holder: holder.clone() });
        }
    }
    taken.extend(addresses.iter().map(|address| (address.addr(), holder.to_owned())));
    Ok(())
}

/// Returns an address of a range: the one that follows from the seed, or the next one that is free.
fn choose(range: &AddressRange, seed: &str, taken: &Taken) -> Result<IpNet, AddressError> {
    let size = range.size();
    let exhausted = || AddressError::Exhausted { subnet: range.subnet, size };
    if size == 0 {
        return Err(exhausted());
    }
    let first = hash(seed) % size;
    // One more step than there are taken addresses ends at a free one, if there is one.
    for step in 0..size.min(taken.len() as u128 + 1) {
        // Not `first + step`, which can overflow in the range of all addresses.
        let place = if step < size - first { first + step } else { step - (size - first) };
        let address = range.nth(place).filter(|address| !taken.contains_key(address));
        if let Some(address) = address.and_then(|address| IpNet::new(address, range.subnet.prefix_len()).ok()) {
            return Ok(address);
        }
    }
    Err(exhausted())
}

/// FNV-1a with 128 bits: stable across releases of the standard library, and no secret depends on it.
fn hash(text: &str) -> u128 {
    let step = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    text.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, step)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn config(text: &str) -> ClaimConfig {
        serde_json::from_str(text).unwrap()
    }

    fn range(first: u8, last: u8) -> ClaimConfig {
        config(&format!(
            r#"{{"addressRanges": [{{"subnet": "192.0.2.0/24", "first": "192.0.2.{first}", "last": "192.0.2.{last}"}}]}}"#
        ))
    }

    #[test]
    fn a_claim_gets_the_same_address_again_whatever_others_have_come_and_gone() {
        let mut taken = Taken::new();
        let first = assign(&range(10, 200), "default/a", "a/net/eth1", &mut taken).unwrap();
        taken.clear();
        assign(&range(10, 200), "default/b", "b/net/eth1", &mut taken).unwrap();
        taken.clear();
        assert_eq!(assign(&range(10, 200), "default/a", "a/net/eth1", &mut taken).unwrap(), first);
        let address = first.unwrap()[0];
        assert_eq!(address.prefix_len(), 24);
    }

    #[test]
    fn every_address_of_a_range_is_handed_out_once_and_then_the_range_is_exhausted() {
        let mut taken = Taken::new();
        let seeds = (0..20).map(|number| format!("claim-{number}"));
        let addresses: BTreeSet<IpNet> =
            seeds.map(|seed| assign(&range(10, 29), "default/a", &seed, &mut taken).unwrap().unwrap()[0]).collect();
        assert_eq!(addresses.len(), 20);
        let error = assign(&range(10, 29), "default/b", "one more", &mut taken).unwrap_err();
        assert_eq!(error, AddressError::Exhausted { subnet: "192.0.2.0/24".parse().unwrap(), size: 20 });
        taken.remove(&"192.0.2.17".parse().unwrap());
        let freed = assign(&range(10, 29), "default/b", "one more", &mut taken).unwrap().unwrap();
        assert_eq!(freed[0].to_string(), "192.0.2.17/24");
    }

    #[test]
    fn a_static_address_of_another_claim_is_refused_by_name() {
        let mut taken = Taken::new();
        let fixed = config(r#"{"addresses": ["192.0.2.7/24", "2001:db8::7/64"]}"#);
        assign(&fixed, "default/a", "a", &mut taken).unwrap();
        let error = assign(&fixed, "default/b", "b", &mut taken).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the address 192.0.2.7 is in use by claim default/a on this node: delete its pod, or choose another address"
        );
        let both = assign(&range(7, 8), "default/c", "c", &mut taken).unwrap().unwrap();
        assert_eq!(both[0].to_string(), "192.0.2.8/24", "a range leaves static addresses out");
    }

    #[test]
    fn a_claim_that_sets_no_addresses_leaves_them_to_the_host() {
        assert_eq!(assign(&ClaimConfig::default(), "a", "a", &mut Taken::new()), Ok(None));
        let none = config(r#"{"addresses": []}"#);
        assert_eq!(assign(&none, "a", "a", &mut Taken::new()), Ok(Some(Vec::new())));
    }

    #[test]
    fn the_range_of_all_ipv6_addresses_does_not_overflow() {
        let all = config(r#"{"addressRanges": [{"subnet": "::/0"}]}"#);
        let mut taken = Taken::new();
        for seed in 0..100 {
            assign(&all, "a", &format!("{seed}"), &mut taken).unwrap();
        }
        assert_eq!(taken.len(), 100);
    }

    proptest! {
        #[test]
        fn an_address_is_in_its_range_and_free(seed in ".{0,8}", used in prop::collection::btree_set(0u8..=255, 0..40)) {
            let mut taken: Taken = used.iter().map(|last| (IpAddr::from([192, 0, 2, *last]), "x".to_owned())).collect();
            let before = taken.clone();
            match assign(&range(100, 119), "a", &seed, &mut taken) {
                Ok(addresses) => {
                    let address = addresses.unwrap()[0].addr();
                    prop_assert!(!before.contains_key(&address));
                    prop_assert!((IpAddr::from([192, 0, 2, 100])..=IpAddr::from([192, 0, 2, 119])).contains(&address));
                }
                Err(_) => prop_assert_eq!(used.range(100..=119).count(), 20),
            }
        }
    }
}
