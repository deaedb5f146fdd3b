//! The system calls that a container's processes may not use, as a seccomp filter.
//!
//! The list is that of common container runtimes: calls that change mounts, namespaces, the clock, modules and keys of the
//! whole machine, or have often been a way out of a container. All others are allowed. Most of the listed calls need
//! capabilities that a container does not have either, but a user namespace of its own would give them. A refused call fails
//! with `EPERM`. Only `clone3`, whose flags a filter cannot read, fails with `ENOSYS`: the C library then uses `clone`, whose
//! flags are checked.
//!
//! A filter is for one architecture. There is none except for x86-64 and arm64.

use std::fs;
use std::sync::OnceLock;

use nix::libc::{self, c_long, sock_filter};

/// The system calls that are refused on every architecture.
const REFUSED: &[c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
];

#[cfg(target_arch = "x86_64")]
mod arch {
    use nix::libc::{self, c_long};

    /// `AUDIT_ARCH_X86_64`.
    pub(super) const NUMBER: Option<u32> = Some(0xc000_003e);
    /// The first number of the x32 ABI, which has the same calls once more.
    pub(super) const OTHER_ABI: Option<u32> = Some(0x4000_0000);
    pub(super) const REFUSED: &[c_long] = &[libc::SYS_ioperm, libc::SYS_iopl, libc::SYS_kexec_file_load];
}

#[cfg(not(target_arch = "x86_64"))]
mod arch {
    use nix::libc::c_long;

    /// `AUDIT_ARCH_AARCH64`.
    pub(super) const NUMBER: Option<u32> = if cfg!(target_arch = "aarch64") { Some(0xc000_00b7) } else { None };
    pub(super) const OTHER_ABI: Option<u32> = None;
    pub(super) const REFUSED: &[c_long] = &[];
}

// Instruction codes; see `linux/bpf_common.h`.
const LOAD: u16 = 0x20;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

// Offsets in `struct seccomp_data`. Both architectures are little-endian: the flags are in the lower half.
const NUMBER_OF_CALL: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;

/// All flags of `clone` that create a namespace.
const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET)
    .cast_unsigned();

/// Reports whether this kernel can filter calls on this architecture.
pub(super) fn can_be_filtered() -> bool {
    static SUPPORTED: OnceLock<bool> = OnceLock::new();
    *SUPPORTED.get_or_init(|| {
        let actions = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
        arch::NUMBER.is_some() && actions.split_whitespace().any(|action| action == "errno")
    })
}

/// Returns the filter, if filters are supported.
pub(super) fn filter() -> Option<Vec<sock_filter>> {
    let architecture = arch::NUMBER.filter(|_| can_be_filtered())?;
    let refuse = return_errno(libc::EPERM);
    let mut program = vec![load(ARCHITECTURE), jump_unless(IF_EQUAL, architecture, 0, 1), refuse, load(NUMBER_OF_CALL)];
    if let Some(first) = arch::OTHER_ABI {
        program.extend([jump_unless(IF_AT_LEAST, first, 1, 0), refuse]);
    }
    program.extend([jump_unless(IF_EQUAL, number(libc::SYS_clone3), 1, 0), return_errno(libc::ENOSYS)]);
    for call in REFUSED.iter().chain(arch::REFUSED) {
        program.extend([jump_unless(IF_EQUAL, number(*call), 1, 0), refuse]);
    }
    let namespaces = [load(FIRST_ARGUMENT), jump_unless(IF_ANY_BIT, NEW_NAMESPACES, 1, 0), refuse];
    program.push(jump_unless(IF_EQUAL, number(libc::SYS_clone), 3, 0));
    program.extend(namespaces);
    program.push(instruction(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    Some(program)
}

fn number(call: c_long) -> u32 {
    // All system call numbers are small.
    u32::try_from(call).unwrap_or(u32::MAX)
}

fn load(offset: u32) -> sock_filter {
    instruction(LOAD, 0, 0, offset)
}

/// Skips `otherwise` instructions unless the condition holds, and `then` if it does.
fn jump_unless(condition: u16, value: u32, otherwise: u8, then: u8) -> sock_filter {
    instruction(condition, then, otherwise, value)
}

fn return_errno(error: i32) -> sock_filter {
    instruction(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | error.cast_unsigned())
}

fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}
