//! Checks that libvirt makes late, or not at all.
//!
//! libvirt refuses a domain with two equal aliases, source addresses or UUIDs only when it is defined, and drops an alias
//! with other characters without a word. Admission checks none of it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::{HostDev, HostDevError, Source};
use crate::xml::canonical_uuid;

/// Checks the devices of a domain against each other.
pub(super) fn check(devices: &[HostDev]) -> Result<(), HostDevError> {
    let mut aliases = HashMap::new();
    let mut addresses = HashMap::new();
    let mut uuids = HashMap::new();
    let mut guest_addresses = HashMap::new();
    let mut ramfb: Option<&str> = None;
    for device in devices {
        let alias = &*device.alias;
        if !is_alias(alias) {
            return Err(HostDevError::Alias { alias: device.user_alias() });
        }
        if aliases.insert(alias, ()).is_some() {
            return Err(HostDevError::DuplicateAlias { alias: device.user_alias() });
        }
        let second = || alias.to_owned();
        match &device.source {
            Source::Pci(fields) => {
                if let Some(first) = claim(&mut addresses, fields.to_lowercase(), alias) {
                    return Err(HostDevError::DuplicateAddress {
                        first,
                        second: second(),
                        address: fields.to_string(),
                    });
                }
            }
            Source::Mdev { uuid, .. } => {
                if let Some(first) = claim(&mut uuids, canonical_uuid(uuid), alias) {
                    return Err(HostDevError::DuplicateUuid { first, second: second(), uuid: uuid.clone() });
                }
            }
            Source::Usb { .. } => {}
        }
        if let Some(address) = &device.guest_address
            && let Some(first) = claim(&mut guest_addresses, address.to_lowercase(), alias)
        {
            return Err(HostDevError::DuplicateGuestAddress { first, second: second(), address: address.to_string() });
        }
        if device.ramfb {
            if let Some(first) = ramfb {
                return Err(HostDevError::SeveralRamfb { first: first.to_owned(), second: second() });
            }
            ramfb = Some(alias);
        }
    }
    Ok(())
}

/// Records the owner of a key, or returns the one it has.
fn claim<'a, K: std::hash::Hash + Eq>(owners: &mut HashMap<K, &'a str>, key: K, owner: &'a str) -> Option<String> {
    match owners.entry(key) {
        Entry::Occupied(entry) => Some((*entry.get()).to_owned()),
        Entry::Vacant(entry) => {
            entry.insert(owner);
            None
        }
    }
}

fn is_alias(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}
