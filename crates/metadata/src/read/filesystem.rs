//! Detects pseudo file systems, on which a metadata file never is.
//!
//! On most of them opening or reading a regular file has side effects: it consumes messages (`/proc/kmsg`), starts work
//! or wakes hardware. The list is of pseudo file systems because a container can be on any ordinary one (overlays, ZFS,
//! Lustre, virtiofs). One that is missing in the list is a risk only if the container has a mount of it.

use rustix::fd::AsFd;
use rustix::fs::fstatfs;
use rustix::io::Errno;

/// The magic number of procfs.
const PROC: u32 = 0x9fa0;

/// The magic numbers of pseudo file systems, as returned by `statfs`.
const PSEUDO_FILE_SYSTEMS: [u32; 32] = [
    PROC,
    0x9fa1,      // openprom
    0x9fa2,      // usbdevice
    0x0187,      // autofs
    0x1cd1,      // devpts
    0x0027_e0eb, // cgroup
    0x0765_5821, // resctrl
    0x0904_1934, // anonymous inodes
    0x1980_0202, // mqueue
    0x4249_4e4d, // binfmt_misc
    0x4341_5d53, // smack
    0x444d_4142, // dma-buf
    0x454d_444d, // devmem
    0x474d_454d, // guest memory
    0x5049_4446, // pidfs
    0x5345_434d, // secret memory
    0x6165_676c, // pstore
    0x6265_6570, // configfs
    0x6265_6572, // sysfs
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x6573_5543, // FUSE control
    0x6759_6969, // rpc_pipefs
    0x6c6f_6f70, // binder
    0x6e66_7364, // nfsd
    0x6e73_6673, // nsfs
    0x7363_6673, // securityfs
    0x7472_6163, // tracefs
    0xabba_1974, // xenfs
    0xcafe_4a11, // bpf
    0xde5e_81e4, // efivarfs
    0xf97c_ff8c, // selinuxfs
];

/// Returns whether a handle is on a pseudo file system. A handle without access (`O_PATH`) suffices.
pub(super) fn is_pseudo(handle: impl AsFd) -> Result<bool, Errno> {
    Ok(PSEUDO_FILE_SYSTEMS.contains(&magic(handle)?))
}

/// Returns whether a handle is on procfs.
pub(super) fn is_proc(handle: impl AsFd) -> Result<bool, Errno> {
    Ok(magic(handle)? == PROC)
}

fn magic(handle: impl AsFd) -> Result<u32, Errno> {
    // The type's size and sign depend on the architecture; all magic numbers have 32 bits.
    #[allow(clippy::cast_possible_truncation, clippy::unnecessary_cast, reason = "see above")]
    Ok(fstatfs(handle)?.f_type as u32)
}
