//! An unpacked Debian release: programs that run on the host without being installed, the kernel, and a root file system for
//! libvirt in the virtual machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::Cache;
use crate::error::{Error, IoContext, Result};
use crate::module_build;
use crate::packages;
use crate::run::{report, run, shell};

/// Changes when the steps below do.
const RECIPE: &str = "2";

/// Unpacks a package (`$1`) into a directory (`$2`) whose links to directories stay, as they do when it is installed.
const UNPACK: &str =
    "dpkg-deb --fsys-tarfile \"$1\" | tar --extract --preserve-permissions --keep-directory-symlink --directory \"$2\"";

/// The users that libvirt looks for. Packages add users when they are installed, which these are not.
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n\
                      libvirt-qemu:x:64055:64055:libvirt:/var/lib/libvirt:/bin/false\n";
const GROUP: &str = "root:x:0:\ntty:x:5:\nnogroup:x:65534:\nkvm:x:64054:\nlibvirt:x:64053:\nlibvirt-qemu:x:64055:\n";

/// What a release's packages can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// QEMU has the igb network card, which makes virtual functions.
    pub igb: bool,
    /// vfio devices have nodes of their own (`/dev/vfio/devices/vfio0`), and there is `/dev/iommu`.
    pub cdev: bool,
    /// There is a parent of mediated devices (`mtty`).
    pub mdev: bool,
    /// A device of `rdma_rxe` can be moved to another network namespace.
    pub rdma: bool,
}

/// An unpacked Debian release.
#[derive(Clone, Debug)]
pub struct Release {
    name: String,
    root: PathBuf,
}

impl Release {
    /// Returns the unpacked release from the cache; downloads it, unpacks it and builds modules first if it is not there. If
    /// the preferred release cannot be had, the host's own is taken, which can do less.
    ///
    /// # Errors
    ///
    /// Packages cannot be downloaded or unpacked.
    pub fn get(cache: &Cache) -> Result<Self> {
        let mut errors = Vec::new();
        for name in packages::releases() {
            match Self::named(cache, &name) {
                Ok(release) => {
                    for error in errors {
                        report(&format!("{error}; with {name} instead, there is no igb, no vfio cdev and no mtty"))?;
                    }
                    return Ok(release);
                }
                Err(error) => errors.push(format!("{name}: {error}")),
            }
        }
        Err(Error::Missing {
            what: format!("no release of Debian can be used: {}", errors.join("; ")),
            remedy: "if packages cannot be downloaded, set DRAKKAR_VM_MIRROR to a mirror that the host reaches"
                .to_owned(),
        })
    }

    /// Whether a release is in the cache.
    pub(crate) fn is_cached(cache: &Cache) -> bool {
        packages::releases().iter().any(|name| cache.entry("release", &inputs(name)).1)
    }

    fn named(cache: &Cache, name: &str) -> Result<Self> {
        let root = cache.get("release", &inputs(name), |root| {
            let files = packages::download(cache, name)?;
            let release = Self { name: name.to_owned(), root: root.to_path_buf() };
            release.unpack(&files)?;
            if name == packages::PREFERRED {
                module_build::build(&release, &files)?;
            }
            release.index_modules()
        })?;
        Ok(Self { name: name.to_owned(), root })
    }

    /// The codename.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The root of the unpacked files.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What the packages can do.
    pub fn features(&self) -> Features {
        let complete = self.name == packages::PREFERRED;
        Features { igb: complete, cdev: complete, mdev: complete, rdma: complete }
    }

    /// The release of the kernel, as `uname -r` prints it.
    ///
    /// # Errors
    ///
    /// There is not exactly one kernel.
    pub fn kernel(&self) -> Result<String> {
        let modules = self.root.join("usr/lib/modules");
        let context = || format!("read {}", modules.display());
        let mut names = Vec::new();
        for entry in fs::read_dir(&modules).with_context(context)? {
            names.push(entry.with_context(context)?.file_name().to_string_lossy().into_owned());
        }
        match &names[..] {
            [name] => Ok(name.clone()),
            _ => Err(Error::Format { path: modules.display().to_string(), reason: format!("kernels: {names:?}") }),
        }
    }

    /// A command that runs a program of the release on the host, with the release's libraries.
    pub fn command(&self, program: &str) -> Command {
        let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
        self.command_named(program, &name)
    }

    /// A command that indexes modules. Its own path can be an absolute link, which would lead out of the release.
    pub(crate) fn depmod(&self) -> Command {
        self.command_named("usr/bin/kmod", "depmod")
    }

    fn command_named(&self, program: &str, name: &str) -> Command {
        let mut command = Command::new(self.root.join("lib64/ld-linux-x86-64.so.2"));
        command.arg("--argv0").arg(name).arg("--library-path").arg(self.root.join("usr/lib/x86_64-linux-gnu"));
        command.arg(self.root.join(program));
        command
    }

    fn unpack(&self, files: &[PathBuf]) -> Result<()> {
        report("unpacking them")?;
        // Older releases have packages with files in `/lib`, which is a link to `/usr/lib` on every system.
        for name in ["bin", "sbin", "lib", "lib64"] {
            let directory = self.root.join("usr").join(name);
            fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
            link(&format!("usr/{name}"), &self.root.join(name))?;
        }
        for file in files.iter().filter(|file| !is_source(file)) {
            shell(UNPACK, [file, &self.root])?;
        }
        link("mawk", &self.root.join("usr/bin/awk"))?;
        for (name, content) in [("passwd", PASSWD), ("group", GROUP)] {
            let path = self.root.join("etc").join(name);
            fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }

    /// Writes `modules.dep` and `modules.alias`, which the kernel's package does when it is installed.
    fn index_modules(&self) -> Result<()> {
        run(self.depmod().arg("--basedir").arg(&self.root).arg(self.kernel()?)).map(drop)
    }
}

/// What an unpacked release is made from.
fn inputs(name: &str) -> Vec<&[u8]> {
    [name, RECIPE, packages::PACKAGES].into_iter().chain(module_build::RECIPE).map(str::as_bytes).collect()
}

/// Whether a package is the kernel's source, of which only some files are needed.
pub(crate) fn is_source(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("linux-source-"))
}

fn link(target: &str, path: &Path) -> Result<()> {
    symlink(target, path).with_context(|| format!("link {}", path.display()))
}
