//! What the machine must have for a cluster, and getting what it lacks.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::binaries::say;
use crate::cgroup;
use crate::error::{Doing, Error, Result};
use crate::run::{output, run};

/// Debian's packages: a file of theirs, and what they are for.
const PACKAGES: [(&str, &[&str], &str); 5] = [
    ("busybox-static", &["/bin/busybox", "/usr/bin/busybox"], "the busybox image"),
    ("gcc", &["/usr/bin/cc"], "runc's C code"),
    ("iproute2", &["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"], "the link to the node"),
    ("libseccomp-dev", &["/usr/include/seccomp.h"], "seccomp in runc"),
    ("pkg-config", &["/usr/bin/pkg-config"], "building runc"),
];

/// Why no cluster can be had on this machine whatever is installed; nothing when one can.
///
/// # Errors
///
/// The machine does not tell.
pub fn unfit() -> Result<Option<String>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(Some("a node needs root".to_owned()));
    }
    let go = Command::new("go").arg("version").output();
    if go.is_err() {
        return Ok(Some("there is no Go toolchain".to_owned()));
    }
    // A container may have root and yet no namespaces of its own.
    let unshared = output(Command::new("unshare").args(["--mount", "--net", "--pid", "--fork", "true"]))?;
    if !unshared.status.success() {
        return Ok(Some(format!("no namespaces can be made: {}", String::from_utf8_lossy(&unshared.stderr).trim())));
    }
    cgroup::unfit()
}

/// Installs the packages that are missing, where apt-get is there and may.
pub(crate) fn install_packages() -> Result<()> {
    let missing: Vec<_> = PACKAGES
        .iter()
        .filter(|(_, files, _)| !files.iter().any(|file| Path::new(file).exists()))
        .map(|(package, _, purpose)| (*package, *purpose))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.iter().map(|(name, purpose)| format!("{name} (for {purpose})")).collect::<Vec<_>>().join(", ");
    if !Path::new("/usr/bin/apt-get").exists() || !rustix::process::geteuid().is_root() {
        return Err(Error::Missing {
            what: format!("these are missing: {list}"),
            remedy: "install them; the names are those of Debian's packages".to_owned(),
        });
    }
    say(&format!("installing {list}"))?;
    let install = || {
        let mut apt = Command::new("apt-get");
        apt.args(["install", "--yes", "--no-install-recommends"]).args(missing.iter().map(|(name, _)| name));
        run(apt.env("DEBIAN_FRONTEND", "noninteractive"))
    };
    // A new machine has no lists of packages yet.
    install().or_else(|_| run(Command::new("apt-get").arg("update")).and_then(|_| install())).map(drop)
}

/// Debian's static busybox.
pub(crate) fn busybox() -> Result<&'static Path> {
    let paths = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new);
    paths.into_iter().find(|path| path.exists()).ok_or_else(|| Error::Missing {
        what: "there is no busybox".to_owned(),
        remedy: "install Debian's busybox-static".to_owned(),
    })
}

/// The release of the kernel.
pub(crate) fn kernel() -> Result<String> {
    let path = "/proc/sys/kernel/osrelease";
    Ok(fs::read_to_string(path).doing(|| format!("read {path}"))?.trim().to_owned())
}
