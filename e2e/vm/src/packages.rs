//! Debian's packages: which are needed, from which release, and downloading them with an apt of their own.
//!
//! Nothing is installed on the host. apt gets its own configuration, lists and an empty list of installed packages, so it
//! resolves the dependencies of a whole system; the packages are then only unpacked ([`crate::Release`]).

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::Cache;
use crate::error::{Error, IoContext, Result};
use crate::run::{report, run};

/// The release that has everything: QEMU 10 with igb, kernel 6.12, libvirt 11.
pub(crate) const PREFERRED: &str = "trixie";

/// The environment variable that sets the first release to try.
const RELEASE: &str = "DRAKKAR_VM_RELEASE";

/// The environment variable that sets Debian's mirror.
const MIRROR: &str = "DRAKKAR_VM_MIRROR";

/// Debian's keys, part of every Debian.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The packages, without their dependencies: the machine, the kernel and what builds modules for it, libvirt, and what a shell
/// and `make` need (essential packages are dependencies of none).
pub(crate) const PACKAGES: &str = "\
    base-files bash binutils busybox-static coreutils dash diffutils findutils grep gzip kmod libvirt-clients \
    libvirt-daemon libvirt-daemon-driver-qemu linux-headers-amd64 linux-image-amd64 linux-source \
    make mawk qemu-system-x86 sed xz-utils zstd";

/// Returns why packages cannot be had on this host, or `None`.
pub(crate) fn unsupported_reason() -> Option<String> {
    let has = |program: &str| ["/usr/bin", "/bin"].iter().any(|path| Path::new(path).join(program).exists());
    if !cfg!(target_arch = "x86_64") {
        return Some("the virtual machine's packages are those of amd64".to_owned());
    }
    for program in ["apt-get", "dpkg-deb", "bash", "tar", "unshare"] {
        if !has(program) {
            return Some(format!("no {program} on this host: the virtual machine is made from Debian's packages"));
        }
    }
    (!Path::new(KEYRING).exists()).then(|| format!("no {KEYRING}: install debian-archive-keyring"))
}

/// The releases to try, best first: the preferred one (or the variable's), then the host's own if it is a Debian.
pub(crate) fn releases() -> Vec<String> {
    let own = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |key: &str| own.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let mut releases = vec![env::var(RELEASE).unwrap_or_else(|_| PREFERRED.to_owned())];
    if let (Some("debian"), Some(codename)) = (value("ID"), value("VERSION_CODENAME"))
        && codename != releases[0]
    {
        releases.push(codename.to_owned());
    }
    releases
}

/// Returns why no release can be downloaded, or `None` if one can: its lists were.
pub(crate) fn unreachable_reason(cache: &Cache) -> Option<String> {
    let mut errors = Vec::new();
    for release in releases() {
        match Apt::new(cache, &release).and_then(|apt| apt.update()) {
            Ok(()) => return None,
            Err(error) => errors.push(format!("{release}: {error}")),
        }
    }
    Some(format!("Debian's packages cannot be had: {}", errors.join("; ").replace('\n', " ")))
}

/// Downloads the packages of a release with their dependencies; returns the files.
pub(crate) fn download(cache: &Cache, release: &str) -> Result<Vec<PathBuf>> {
    if let Some(reason) = unsupported_reason() {
        return Err(Error::Missing { what: reason, remedy: "run it on Debian".to_owned() });
    }
    let apt = Apt::new(cache, release)?;
    report(&format!("downloading packages of Debian's {release} (about 380 MB, once)"))?;
    apt.update()?;
    apt.install("--download-only")?;
    let plan = apt.install("--simulate")?;
    // The directory can have packages of an older point release too, so the files are those of the plan.
    let files: Vec<PathBuf> = planned(&String::from_utf8_lossy(&plan)).map(|name| apt.archives.join(name)).collect();
    match files.iter().find(|file| !file.exists()) {
        None => Ok(files),
        Some(file) => Err(Error::Missing {
            what: format!("apt-get did not download {}", file.display()),
            remedy: format!("remove {} and try again", apt.directory.display()),
        }),
    }
}

/// An apt with lists, packages and configuration of its own.
struct Apt {
    directory: PathBuf,
    archives: PathBuf,
}

impl Apt {
    fn new(cache: &Cache, release: &str) -> Result<Self> {
        let directory = cache.subdirectory(&format!("apt/{release}"))?;
        let archives = cache.subdirectory(&format!("apt/{release}/archives"))?;
        for name in ["lists/partial", "archives/partial"] {
            cache.subdirectory(&format!("apt/{release}/{name}"))?;
        }
        let write = |name: &str, content: String| {
            let path = directory.join(name);
            fs::write(&path, content).with_context(|| format!("write {}", path.display()))
        };
        write("status", String::new())?;
        write("sources.list", format!("deb [signed-by={KEYRING}] {} {release} main\n", mirror()))?;
        write("apt.conf", configuration(&directory, &archives))?;
        Ok(Self { directory, archives })
    }

    fn update(&self) -> Result<()> {
        self.run(&["update", "-qq", "--error-on=any"]).map(drop)
    }

    fn install(&self, how: &str) -> Result<Vec<u8>> {
        let packages: Vec<&str> = PACKAGES.split_whitespace().collect();
        self.run(&[&["install", how, "--yes", "-qq"], &packages[..]].concat())
    }

    fn run(&self, arguments: &[&str]) -> Result<Vec<u8>> {
        let mut apt = Command::new("apt-get");
        apt.env("APT_CONFIG", self.directory.join("apt.conf")).env("DEBIAN_FRONTEND", "noninteractive");
        run(apt.args(arguments))
    }
}

/// The names of the files of a plan: lines like `Inst kmod (34.2-2 Debian:13.7/stable [amd64])`.
fn planned(plan: &str) -> impl Iterator<Item = String> {
    plan.lines().filter_map(|line| {
        let (package, rest) = line.strip_prefix("Inst ")?.split_once(" (")?;
        let (version, rest) = rest.split_once(' ')?;
        let architecture = rest.split_once('[')?.1.split_once(']')?.0;
        Some(format!("{package}_{}_{architecture}.deb", version.replace(':', "%3a")))
    })
}

fn configuration(directory: &Path, archives: &Path) -> String {
    let path = |name: &str| directory.join(name).display().to_string();
    let settings = [
        ("Dir::Etc::sourcelist", path("sources.list")),
        ("Dir::Etc::sourceparts", "/dev/null".to_owned()),
        ("Dir::Etc::preferencesparts", "/dev/null".to_owned()),
        ("Dir::Etc::preferences", "/dev/null".to_owned()),
        ("Dir::State::lists", path("lists")),
        ("Dir::State::status", path("status")),
        ("Dir::Cache", directory.display().to_string()),
        ("Dir::Cache::archives", archives.display().to_string()),
        ("APT::Architecture", "amd64".to_owned()),
        ("APT::Install-Recommends", "false".to_owned()),
        // The user `_apt` may not write to the cache.
        ("APT::Sandbox::User", "root".to_owned()),
        ("APT::Keep-Downloaded-Packages", "true".to_owned()),
        ("Acquire::Languages", "none".to_owned()),
        ("Acquire::Retries", "3".to_owned()),
        ("Debug::NoLocking", "true".to_owned()),
    ];
    settings.map(|(name, value)| format!("{name} \"{value}\";\n")).concat()
}

/// The mirror: the variable's, the host's own, or Debian's.
fn mirror() -> String {
    if let Ok(mirror) = env::var(MIRROR) {
        return mirror;
    }
    let targets = run(Command::new("apt-get").args(["indextargets", "--format", "$(ORIGIN) $(REPO_URI)"]));
    let targets = String::from_utf8(targets.unwrap_or_default()).unwrap_or_default();
    let mut mirrors = targets.lines().filter_map(|line| line.strip_prefix("Debian "));
    let own = mirrors.find(|uri| uri.trim_end_matches('/').ends_with("/debian"));
    own.unwrap_or("http://deb.debian.org/debian").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_one_other_release_is_tried() {
        assert!((1..=2).contains(&releases().len()));
    }

    #[test]
    fn the_files_of_a_plan_have_the_names_that_apt_gives_them() {
        let plan = "Inst kmod (34.2-2 Debian:13.7/stable [amd64])\n\
                    Inst passwd (1:4.17.4-2 Debian:13.7/stable [amd64]) []\n\
                    Inst seabios (1.16.3-2 Debian:13.7/stable [all])\n\
                    Conf kmod (34.2-2 Debian:13.7/stable [amd64])\n";
        let files: Vec<_> = planned(plan).collect();
        assert_eq!(files, ["kmod_34.2-2_amd64.deb", "passwd_1%3a4.17.4-2_amd64.deb", "seabios_1.16.3-2_all.deb"]);
    }
}
