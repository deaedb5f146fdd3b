//! What a virtual machine boots: the release's kernel, uncompressed, and an initial file system with busybox, the modules that
//! tests need, and an init that waits for a program to run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::Cache;
use crate::cpio::Archive;
use crate::error::{Error, IoContext, Result};
use crate::release::Release;
use crate::run::{report, run};

/// The modules of every image: the program of a test comes through 9p, and random numbers do not wait for the kernel.
const HARNESS_MODULES: [&str; 5] = ["+virtio_pci", "+9p", "+9pnet_virtio", "+overlay", "+virtio_rng"];

/// The modules of the tests of PCI devices. Those that init loads come with a `+`; the others are there for `modprobe`.
pub const PASSTHROUGH_MODULES: [&str; 10] =
    ["+e1000", "+e1000e", "+igb", "+nvme", "igbvf", "iommufd", "mdev", "mtty", "vfio-pci", "vfio_iommu_type1"];

/// The modules of the tests of network interfaces. The kernel does not load them by itself: it has no `/sbin/modprobe` here.
pub const NETWORK_MODULES: [&str; 15] = [
    "+e1000e",
    "+igb",
    "+8021q",
    "+ipvlan",
    "+macvlan",
    "+veth",
    "bonding",
    "bridge",
    "crc32_generic",
    "dummy",
    "igbvf",
    "iommufd",
    "rdma_rxe",
    "vfio-pci",
    "vfio_iommu_type1",
];

const INIT: &str = include_str!("init.sh");

/// A kernel and an initial file system.
#[derive(Clone, Debug)]
pub struct Image {
    release: Release,
    directory: PathBuf,
}

impl Image {
    /// Returns the image with these modules (and those they need) from the cache, or makes it. A module with a leading `+` is
    /// loaded at boot. Modules that the release does not have are left out: not all releases have the same.
    ///
    /// # Errors
    ///
    /// Packages cannot be had, or files not be written.
    pub fn get(cache: &Cache, modules: &[&str]) -> Result<Self> {
        let release = Release::get(cache)?;
        let modules: Vec<&str> = HARNESS_MODULES.iter().chain(modules).copied().collect();
        let root = release.root().as_os_str().as_encoded_bytes();
        let directory = cache.get("image", &[root, modules.join(" ").as_bytes(), INIT.as_bytes()], |directory| {
            report("making the kernel and the initial file system")?;
            let vmlinux = directory.join("vmlinux");
            uncompress_kernel(&release, &vmlinux)?;
            let initramfs = directory.join("initramfs");
            let archive = initial_file_system(&release, directory, &modules)?;
            fs::write(&initramfs, archive).with_context(|| format!("write {}", initramfs.display()))
        })?;
        Ok(Self { release, directory })
    }

    /// The release that it is made from.
    pub fn release(&self) -> &Release {
        &self.release
    }

    pub(crate) fn kernel(&self) -> PathBuf {
        self.directory.join("vmlinux")
    }

    pub(crate) fn initramfs(&self) -> PathBuf {
        self.directory.join("initramfs")
    }

    /// Identifies the image: its path has the hash of what it is made from.
    pub(crate) fn id(&self) -> &[u8] {
        self.directory.as_os_str().as_encoded_bytes()
    }
}

/// Writes the kernel's ELF file, which boots in half the time: the emulated processor need not uncompress it.
fn uncompress_kernel(release: &Release, vmlinux: &Path) -> Result<()> {
    let path = release.root().join(format!("boot/vmlinuz-{}", release.kernel()?));
    let image = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let malformed = |reason: &str| Error::Format { path: path.display().to_string(), reason: reason.to_owned() };
    let payload = payload(&image).ok_or_else(|| malformed("not a bzImage with a payload"))?;
    let program = match payload {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "usr/bin/zstd",
        [0xfd, b'7', b'z', b'X', b'Z', ..] => "usr/bin/xz",
        _ => return Err(malformed("compressed in an unknown way")),
    };
    let compressed = vmlinux.with_extension("compressed");
    fs::write(&compressed, payload).with_context(|| format!("write {}", compressed.display()))?;
    let kernel = run(release.command(program).args(["--decompress", "--stdout"]).arg(&compressed))?;
    if !kernel.starts_with(b"\x7fELF") {
        return Err(malformed("its payload is not an ELF file"));
    }
    fs::write(vmlinux, kernel).with_context(|| format!("write {}", vmlinux.display()))?;
    fs::remove_file(&compressed).with_context(|| format!("remove {}", compressed.display()))
}

/// The compressed kernel in a bzImage, without the four bytes of its size that follow it. Offsets as in the boot protocol of x86.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let number = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    let sectors = match *image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let begin = (sectors + 1) * 512 + number(0x248)?;
    let length = number(0x24c)?;
    image.get(begin..begin + length.checked_sub(4)?)
}

fn initial_file_system(release: &Release, scratch: &Path, modules: &[&str]) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for directory in ["bin", "dev", "lib", "lib/modules", "mnt", "proc", "root", "run", "sys", "test", "tmp"] {
        archive.directory(directory);
    }
    let read = |path: PathBuf| fs::read(&path).with_context(|| format!("read {}", path.display()));
    archive.file("bin/busybox", true, &read(release.root().join("usr/bin/busybox"))?);
    archive.link("bin/sh", "busybox");
    archive.file("init", true, INIT.as_bytes());
    let kernel = release.kernel()?;
    let names = modules.iter().map(|name| name.trim_start_matches('+'));
    let chosen = Index::read(release)?.closure(names);
    // depmod indexes a directory, so the chosen modules get one.
    let base = scratch.join("base");
    let target = base.join("lib/modules").join(&kernel);
    fs::create_dir_all(&target).with_context(|| format!("create {}", target.display()))?;
    archive.directory(&format!("lib/modules/{kernel}"));
    for path in &chosen {
        let content = module(release, &kernel, path)?;
        let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
        let name = name.trim_end_matches(".xz");
        let copy = target.join(name);
        fs::write(&copy, &content).with_context(|| format!("write {}", copy.display()))?;
        archive.file(&format!("lib/modules/{kernel}/{name}"), false, &content);
    }
    run(release.depmod().arg("--basedir").arg(&base).arg(&kernel))?;
    for name in ["modules.dep", "modules.alias"] {
        archive.file(&format!("lib/modules/{kernel}/{name}"), false, &read(target.join(name))?);
    }
    fs::remove_dir_all(&base).with_context(|| format!("remove {}", base.display()))?;
    let present: BTreeSet<String> = chosen.iter().map(|path| module_name(path)).collect();
    let loaded = modules.iter().filter_map(|name| name.strip_prefix('+'));
    let loaded: Vec<_> = loaded.filter(|name| present.contains(&module_name(name))).collect();
    archive.file("lib/modules/load", false, (loaded.join("\n") + "\n").as_bytes());
    Ok(archive.finish())
}

/// A module's content, uncompressed.
fn module(release: &Release, kernel: &str, path: &str) -> Result<Vec<u8>> {
    let file = release.root().join("usr/lib/modules").join(kernel).join(path);
    if !path.ends_with(".xz") {
        return fs::read(&file).with_context(|| format!("read {}", file.display()));
    }
    let xz: &mut Command = &mut release.command("usr/bin/xz");
    run(xz.args(["--decompress", "--stdout"]).arg(file))
}

/// The kernel's modules and what each needs, from `modules.dep`.
#[derive(Debug, Default)]
struct Index {
    /// By name: the path, and the paths of all modules that it needs, directly or not.
    modules: BTreeMap<String, (String, Vec<String>)>,
}

impl Index {
    fn read(release: &Release) -> Result<Self> {
        let path = release.root().join("usr/lib/modules").join(release.kernel()?).join("modules.dep");
        Ok(Self::parse(&fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?))
    }

    fn parse(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        let modules = lines.map(|(path, needs)| {
            (module_name(path), (path.to_owned(), needs.split_whitespace().map(str::to_owned).collect()))
        });
        Self { modules: modules.collect() }
    }

    /// The paths of these modules and of all that they need. A module that is not there is built in, or not of this release.
    fn closure<'a>(&self, names: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
        let found = names.filter_map(|name| self.modules.get(&module_name(name)));
        found.flat_map(|(path, needs)| needs.iter().chain([path])).cloned().collect()
    }
}

/// A module's name: file names have `-` where the kernel has `_`.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_with_all_that_it_needs() {
        let index = Index::parse(
            "kernel/drivers/net/igb.ko.xz: kernel/drivers/dca/dca.ko.xz\n\
             kernel/drivers/dca/dca.ko.xz:\n\
             updates/vfio-pci.ko: updates/vfio-pci-core.ko updates/vfio.ko\n",
        );
        let paths = index.closure(["igb", "vfio_pci", "built-in"].into_iter());
        let expected = [
            "kernel/drivers/dca/dca.ko.xz",
            "kernel/drivers/net/igb.ko.xz",
            "updates/vfio-pci-core.ko",
            "updates/vfio-pci.ko",
            "updates/vfio.ko",
        ];
        assert_eq!(paths.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_payload_of_a_kernel_is_where_its_header_says() {
        let mut image = vec![0; 2048];
        image[0x1f1] = 1;
        image[0x248..0x24c].copy_from_slice(&16_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&12_u32.to_le_bytes());
        image[1040..1048].copy_from_slice(b"compress");
        assert_eq!(payload(&image).unwrap(), b"compress");
        assert_eq!(payload(&image[..1040]), None);
        assert_eq!(payload(b"text"), None);
    }
}
