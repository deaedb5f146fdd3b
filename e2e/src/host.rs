//! What the host must provide for a cluster, and installing what is missing.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::binaries::report;
use crate::cgroup;
use crate::error::{Error, IoContext, Result};
use crate::program::Program;
use crate::run::{output, run};

/// The paths at which busybox can be.
const BUSYBOX: [&str; 2] = ["/bin/busybox", "/usr/bin/busybox"];

/// Required Debian packages: the name, the paths at which one of its files can be, and the purpose.
const PACKAGES: [(&str, &[&str], &str); 5] = [
    ("busybox-static", &BUSYBOX, "the busybox image"),
    ("gcc", &["/usr/bin/cc"], "runc's C code"),
    ("iproute2", &["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"], "the link to the node"),
    ("libseccomp-dev", &["/usr/include/seccomp.h"], "seccomp in runc"),
    ("pkg-config", &["/usr/bin/pkg-config"], "building runc"),
];

/// Returns why a cluster cannot run on this host, or `None` if it can. Packages that can be installed are not considered.
///
/// # Errors
///
/// The host cannot be inspected.
pub fn unsupported_reason() -> Result<Option<String>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(Some("a node needs root".to_owned()));
    }
    let go = Command::new("go").arg("version").output();
    if go.is_err() {
        return Ok(Some("no Go toolchain was found".to_owned()));
    }
    // Root in a container may not be allowed to create namespaces.
    let unshared = output(Command::new("unshare").args(["--mount", "--net", "--pid", "--fork", "true"]))?;
    if !unshared.status.success() {
        return Ok(Some(format!("cannot create namespaces: {}", String::from_utf8_lossy(&unshared.stderr).trim())));
    }
    cgroup::unsupported_reason()
}

/// Installs missing packages with apt-get; fails if there is no apt-get or the user is not root.
pub(crate) fn install_packages() -> Result<()> {
    let missing: Vec<_> = PACKAGES
        .iter()
        .filter(|(package, files, _)| match *package {
            // Debian's `busybox` has the same path and will not do: its libraries are not in an image, and applets are missing.
            "busybox-static" => busybox().is_err(),
            _ => !files.iter().any(|file| Path::new(file).exists()),
        })
        .map(|(package, _, purpose)| (*package, *purpose))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.iter().map(|(name, purpose)| format!("{name} (for {purpose})")).collect::<Vec<_>>().join(", ");
    if !Path::new("/usr/bin/apt-get").exists() || !rustix::process::geteuid().is_root() {
        return Err(Error::Missing {
            what: format!("missing packages: {list}"),
            remedy: "install them (these are Debian's package names)".to_owned(),
        });
    }
    report(&format!("installing {list}"))?;
    let install = || {
        let mut apt = Command::new("apt-get");
        apt.args(["install", "--yes", "--no-install-recommends"]).args(missing.iter().map(|(name, _)| name));
        run(apt.env("DEBIAN_FRONTEND", "noninteractive"))
    };
    // A new host has no package lists yet.
    install().or_else(|_| run(Command::new("apt-get").arg("update")).and_then(|_| install())).map(drop)
}

/// The path of Debian's static busybox.
pub(crate) fn busybox() -> Result<&'static Path> {
    static_program(&BUSYBOX.map(Path::new))
}

/// Returns the first of the paths at which a statically linked program is.
fn static_program<'a>(paths: &[&'a Path]) -> Result<&'a Path> {
    let is_static = |path: &&&Path| Program::read(path).is_ok_and(|program| program.libraries.is_empty());
    paths.iter().find(is_static).copied().ok_or_else(|| Error::Missing {
        what: "a statically linked busybox was not found".to_owned(),
        remedy: "install Debian's busybox-static, which replaces busybox".to_owned(),
    })
}

/// The kernel release.
pub(crate) fn kernel() -> Result<String> {
    let path = "/proc/sys/kernel/osrelease";
    Ok(fs::read_to_string(path).with_context(|| format!("read {path}"))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamically_linked_busybox_will_not_do() {
        let dynamic = std::env::current_exe().unwrap();
        let error = static_program(&[Path::new("/nowhere/busybox"), &dynamic]).unwrap_err().to_string();
        assert!(error.contains("busybox-static"), "{error}");
    }
}
