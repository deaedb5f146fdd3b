//! The lock of a device, held by a write that hangs.
//!
//! The kernel holds the lock of a device while a driver takes it or leaves it. Whoever reads `driver_override` or `sriov_numvfs`
//! meanwhile waits, in every process, and so does the next write for the device. Here a locked file, `.locks/ADDRESS/lock`, makes
//! writes wait, and FIFOs that nobody writes to take the place of the two files. Their content is beside the lock until the
//! write returns. The lock of a process that was killed is free; the next one that opens the tree removes the FIFOs.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use super::host::{Host, name};
use super::tree::Tree;
use crate::PciAddress;

const LOCKS: &str = ".locks";
const LOCK: &str = "lock";
/// The files of a device whose readers wait for its lock.
const FILES: [&str; 2] = ["driver_override", "sriov_numvfs"];

/// Returns the device whose lock the kernel holds during a write.
pub(super) fn device_of(path: &Path, value: &str) -> Option<PciAddress> {
    match name(path).as_str() {
        "bind" | "unbind" | "drivers_probe" => value.parse().ok(),
        "driver_override" | "sriov_numvfs" | "remove" => name(path.parent()?).parse().ok(),
        _ => None,
    }
}

/// Waits until no write that hangs holds the lock of a device.
pub(super) fn wait(root: &Path, address: PciAddress) -> io::Result<()> {
    match File::open(root.join(LOCKS).join(address.to_string()).join(LOCK)) {
        Ok(file) => file.lock_shared(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// The lock of a device. It must be [released](DeviceLock::release).
#[derive(Debug)]
pub(super) struct DeviceLock {
    address: PciAddress,
    _file: File,
    /// Kept open, so that those who wait are released even if the device is removed.
    fifos: Vec<(PathBuf, File)>,
}

impl DeviceLock {
    /// Waits for the lock of a device, and takes it.
    pub(super) fn take(root: &Path, address: PciAddress) -> io::Result<Self> {
        let directory = root.join(LOCKS).join(address.to_string());
        fs::create_dir_all(&directory)?;
        let file = File::options().create(true).truncate(false).write(true).open(directory.join(LOCK))?;
        file.lock()?;
        Ok(Self { address, _file: file, fifos: Vec::new() })
    }

    /// Makes those wait who read the device's files.
    pub(super) fn block(&mut self, host: &Host) -> io::Result<()> {
        let Some(dir) = host.device_dir(self.address) else { return Ok(()) };
        for file in FILES.map(|file| dir.join(file)) {
            if host.tree.exists(&file) && !is_fifo(&host.tree.path(&file)) {
                let content = fs::read(host.tree.path(&file))?;
                fs::write(kept(&host.tree, &file), content)?;
                self.fifos.push((file.clone(), host.tree.make_fifo(&file)?));
            }
        }
        Ok(())
    }

    /// Puts the files back, and lets those who wait go on.
    pub(super) fn release(self, host: &Host) -> io::Result<()> {
        for (file, fifo) in self.fifos {
            put_back(&host.tree, &file, fifo)?;
        }
        Ok(())
    }
}

/// Puts back the files of devices whose lock belonged to a process that was killed.
pub(super) fn clean(host: &Host) -> io::Result<()> {
    for name in host.tree.list(LOCKS) {
        let Some(dir) = name.parse().ok().and_then(|address| host.device_dir(address)) else { continue };
        let lock = File::open(host.tree.path(LOCKS).join(&name).join(LOCK))?;
        if lock.try_lock().is_err() {
            continue;
        }
        for file in FILES.map(|file| dir.join(file)) {
            let path = host.tree.path(&file);
            if is_fifo(&path) {
                put_back(&host.tree, &file, open_fifo(&path)?)?;
            }
        }
    }
    Ok(())
}

fn put_back(tree: &Tree, file: &Path, mut fifo: File) -> io::Result<()> {
    let (kept, path) = (kept(tree, file), tree.path(file));
    if is_fifo(&path) {
        let content = fs::read(&kept)?;
        fs::rename(&kept, &path)?;
        // One of those who wait reads this, the others nothing, and then read again.
        fifo.write_all(&content)?;
    }
    Ok(())
}

/// Returns where the content of a device's file is while a FIFO is in its place.
pub(super) fn kept(tree: &Tree, file: &Path) -> PathBuf {
    tree.path(LOCKS).join(name(file.parent().unwrap_or(file))).join(name(file))
}

/// Returns whether there is a FIFO in place of a file.
pub(super) fn is_fifo(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|status| status.file_type().is_fifo())
}

/// Opens a FIFO in the one way that does not wait: for both directions.
pub(super) fn open_fifo(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).open(path)
}
