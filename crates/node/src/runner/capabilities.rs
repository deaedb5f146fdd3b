//! The capabilities of a container's processes: a few, and no way to gain more.
//!
//! They are those of Docker and containerd, without three that would reach the host here: there is no device cgroup
//! (`MKNOD`), the network is the host's (`NET_RAW`), and so is the audit log (`AUDIT_WRITE`).

use rustix::io::{Errno, Result};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities,
};

/// The capabilities that a container keeps.
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

/// Drops all others, from every set. Only makes system calls.
pub(super) fn drop_others() -> Result<()> {
    for bit in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        if ALLOWED.contains(one) {
            continue;
        }
        match remove_capability_from_bounding_set(one) {
            // Beyond the last capability that the kernel knows.
            Err(Errno::INVAL) => break,
            dropped => dropped?,
        }
    }
    clear_ambient_capability_set()?;
    let kept = capabilities(None)?.permitted.intersection(ALLOWED);
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() })
}
