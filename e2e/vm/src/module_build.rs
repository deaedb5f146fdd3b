//! Kernel modules that Debian does not build, from the kernel's source: iommufd and the character devices of vfio, which are
//! off in Debian's configuration, and `mtty`, a sample parent of mediated devices. And one that it builds: `rdma_rxe`, with
//! [two changes](PATCHES) that make it behave as the RDMA devices of cards do when namespaces change.
//!
//! The structures of vfio have other layouts with iommufd than without, so all modules that use them are built together and
//! replace Debian's.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::error::{Error, IoContext, Result};
use crate::release::{Release, is_source};
use crate::run::{report, run, shell};

/// The configuration that Debian's headers do not have, as seen by the sources.
const KBUILD: &str = "\
subdir-ccflags-y += -DCONFIG_IOMMUFD_MODULE=1 -DCONFIG_VFIO_DEVICE_CDEV=1
obj-m += drivers/infiniband/sw/rxe/ drivers/iommu/iommufd/ drivers/vfio/ samples/vfio-mdev/
";

/// A part of `lib/interval_tree.c` that the kernel only has if iommufd is configured. The rest of the file is in the kernel,
/// so its symbols may not be exported again.
const SPANS: &str = "\
#include <linux/export.h>
#undef EXPORT_SYMBOL_GPL
#define EXPORT_SYMBOL_GPL(symbol)
#define CONFIG_INTERVAL_TREE_SPAN_ITER 1
#include \"../../../lib/interval_tree.c\"
";

/// Changes of sources: the file, a text in it, and what it becomes.
///
/// - `rdma_rxe` removes its device when the interface moves to another namespace. Devices of cards stay.
/// - `rdma_rxe` does not say that it can be taken from processes, so the kernel moves its device nowhere.
const PATCHES: [[&str; 3]; 2] = [
    [
        "drivers/infiniband/sw/rxe/rxe_net.c",
        "\tcase NETDEV_UNREGISTER:\n",
        "\tcase NETDEV_UNREGISTER:\n\t\tif (ndev->reg_state != NETREG_UNREGISTERING)\n\t\t\tbreak;\n",
    ],
    [
        "drivers/infiniband/sw/rxe/rxe_verbs.c",
        "static const struct ib_device_ops rxe_dev_ops = {\n",
        "static void rxe_disassociate_ucontext(struct ib_ucontext *context)\n{\n}\n\n\
         static const struct ib_device_ops rxe_dev_ops = {\n\t.disassociate_ucontext = rxe_disassociate_ucontext,\n",
    ],
];

/// Takes the needed directories out of the source's package (`$1`) into a directory (`$2`); the rest is the release's xz.
const EXTRACT: &str = "\
dpkg-deb --fsys-tarfile \"$1\" | tar --extract --to-stdout --wildcards './usr/src/linux-source-*.tar.xz' \
| \"${@:3}\" --decompress --stdout \
| tar --extract --directory \"$2\" --strip-components 1 --wildcards \
  '*/drivers/infiniband/sw/rxe' '*/drivers/iommu' '*/drivers/vfio' '*/lib/interval_tree.c' '*/samples/vfio-mdev'";

/// Runs `make` in the release (`$1`) for a kernel (`$2`), in a mount namespace of its own.
const MAKE: &str = "\
mount --rbind /dev \"$1/dev\" && mount --rbind /proc \"$1/proc\" && \
exec chroot \"$1\" /usr/bin/env -i PATH=/usr/sbin:/usr/bin make --silent --jobs \"$(nproc)\" \
  --directory \"/usr/src/linux-headers-$2\" M=/usr/src/drakkar CONFIG_DEBUG_INFO_BTF_MODULES= \
  CONFIG_IOMMUFD=m CONFIG_RDMA_RXE=m CONFIG_SAMPLE_VFIO_MDEV_MTTY=m CONFIG_VFIO_DEVICE_CDEV=y modules";

/// What the modules are made from, besides the packages.
pub(crate) const RECIPE: [&str; 6] = [KBUILD, SPANS, EXTRACT, MAKE, PATCHES[0][2], PATCHES[1][2]];

/// The modules that result, below the directory of the sources.
const MODULES: [&str; 8] = [
    "drivers/infiniband/sw/rxe/rdma_rxe.ko",
    "drivers/iommu/iommufd/iommufd.ko",
    "drivers/vfio/mdev/mdev.ko",
    "drivers/vfio/pci/vfio-pci-core.ko",
    "drivers/vfio/pci/vfio-pci.ko",
    "drivers/vfio/vfio.ko",
    "drivers/vfio/vfio_iommu_type1.ko",
    "samples/vfio-mdev/mtty.ko",
];

/// Builds the modules and installs them in the release, where depmod prefers them to Debian's.
pub(crate) fn build(release: &Release, packages: &[PathBuf]) -> Result<()> {
    report("building kernel modules (iommufd, vfio, mdev, mtty, rdma_rxe)")?;
    let Some(source) = packages.iter().find(|file| is_source(file)) else {
        return Err(Error::Missing {
            what: "no package with the kernel's source".to_owned(),
            remedy: "see the list of packages".to_owned(),
        });
    };
    let directory = release.root().join("usr/src/drakkar");
    fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    let xz = release.command("usr/bin/xz");
    let xz = std::iter::once(xz.get_program()).chain(xz.get_args());
    shell(EXTRACT, [source.as_os_str(), directory.as_os_str()].into_iter().chain(xz))?;
    let iommufd = directory.join("drivers/iommu/iommufd");
    let write =
        |path: PathBuf, content: &str| fs::write(&path, content).with_context(|| format!("write {}", path.display()));
    write(directory.join("Kbuild"), KBUILD)?;
    write(iommufd.join("interval_tree_span.c"), SPANS)?;
    let makefile = iommufd.join("Makefile");
    let rules = fs::read_to_string(&makefile).with_context(|| format!("read {}", makefile.display()))?;
    write(makefile, &format!("{rules}\niommufd-y += interval_tree_span.o\n"))?;
    for [file, text, change] in PATCHES {
        let path = directory.join(file);
        let source = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        if source.matches(text).count() != 1 {
            return Err(Error::Format { path: path.display().to_string(), reason: format!("not once: {text}") });
        }
        write(path, &source.replace(text, change))?;
    }
    let kernel = release.kernel()?;
    let mut make = Command::new("unshare");
    make.arg("--mount");
    if !rustix::process::geteuid().is_root() {
        make.args(["--user", "--map-root-user"]);
    }
    run(make.args(["sh", "-c", MAKE, "drakkar-vm"]).arg(release.root()).arg(&kernel))?;
    let installed = release.root().join("usr/lib/modules").join(kernel).join("updates");
    fs::create_dir_all(&installed).with_context(|| format!("create {}", installed.display()))?;
    for module in MODULES {
        let built = directory.join(module);
        let name = built.file_name().unwrap_or_default();
        // With debug information, they are ten times as large.
        let strip: &mut Command = &mut release.command("usr/bin/strip");
        run(strip.arg("--strip-debug").arg("-o").arg(installed.join(name)).arg(&built))?;
    }
    fs::remove_dir_all(&directory).with_context(|| format!("remove {}", directory.display()))
}
