//! What a container's root user may do beyond others: a few capabilities, and no way to get more.
//!
//! They are those that Docker and containerd give, without three of which would reach the host here: there is no device
//! cgroup (`MKNOD`), the network is the host's (`NET_RAW`), and so is the audit log (`AUDIT_WRITE`).

use rustix::io::{Errno, Result};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities,
};

/// What is left.
pub(super) const ALLOWED: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SYS_CHROOT);

/// Gives up all others, in every set. Makes system calls and nothing else.
pub(super) fn drop_others() -> Result<()> {
    for bit in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        if ALLOWED.contains(one) {
            continue;
        }
        match remove_capability_from_bounding_set(one) {
            // The kernel knows no more.
            Err(Errno::INVAL) => break,
            dropped => dropped?,
        }
    }
    clear_ambient_capability_set()?;
    let left = capabilities(None)?.permitted.intersection(ALLOWED);
    set_capabilities(None, CapabilitySets { effective: left, permitted: left, inheritable: CapabilitySet::empty() })
}
